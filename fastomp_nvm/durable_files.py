"""Names, locks and atomic writes of the files that this program keeps, for every package.

A name that passed ``check_name`` is safe as a file name. A lock belongs to an open file or directory and ends with its process,
however that ends. A file written here appears whole or not at all, and is on the device when the call returns. A failure of the
device is a ``MediumError`` wherever ``device_errors`` is used, otherwise an ``OSError``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from fastomp_nvm.errors import MediumError, RequestError

__all__ = [
    "check_name",
    "device_errors",
    "is_name",
    "is_unlocked",
    "lock",
    "lock_path",
    "new_locked_directory",
    "opened_directory",
    "remove_abandoned",
    "sync_directory",
    "write_atomically",
]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def is_name(name: object) -> bool:
    """Return whether ``name`` is safe as a file name: 1 to 100 letters, digits, ``_``, ``-``, ``.``, not first ``-`` or ``.``."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: object, kind: str) -> str:
    """Return ``name`` if it is safe as a file name, otherwise raise a ``RequestError`` that calls it the name of a ``kind``."""
    if not isinstance(name, str) or not is_name(name):
        raise RequestError(
            f"{str(name)[:120]!r} is no name of a {kind}: expected 1 to 100 letters, digits, '_', '-', '.', not first '.' or '-'"
        )
    return name


@contextlib.contextmanager
def device_errors(action: str) -> Iterator[None]:
    """Turn an ``OSError`` raised inside into a ``MediumError`` that names the action."""
    try:
        yield
    except OSError as error:
        raise MediumError(f"cannot {action}: {error.strerror or error}") from error


@contextlib.contextmanager
def opened_directory(path: str | Path, parent: int | None = None) -> Iterator[int]:
    """Open a directory, relative to the open ``parent`` where given, for a ``with`` block; yields its descriptor."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(path: str | Path) -> None:
    """Bring the entries of a directory to the device: a rename is durable only after this."""
    with opened_directory(path) as descriptor:
        os.fsync(descriptor)


def write_atomically(path: Path, data: bytes, *, replace: bool = True, durable: bool = True, mode: int = 0o600) -> None:
    """Make a file with ``data`` appear at ``path``, whole or not at all.

    Parameters
    ----------
    path : Path
    data : bytes
    replace : bool
        Replace a file that exists; otherwise ``FileExistsError`` is raised.
    durable : bool
        Return only once file and name are on the device. Without it a loss of power may leave no file or an older one.
    mode : int
        Permissions of the file, less the umask.
    """
    partial = path.with_name(f".{path.name}.partial-{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(descriptor)
        (os.rename if replace else os.link)(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if durable:
        sync_directory(path.parent)


def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file or directory; return False where another process holds the lock and ``wait`` is false.

    Raises ``OSError`` where the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def lock_path(path: str | Path, flags: int = os.O_RDONLY, *, directory: int | None = None) -> int | None:
    """Return a descriptor that holds the lock of a file or directory until it is closed.

    None if another process holds the lock, the file system has no locks, or ``path`` does not exist.
    A symbolic link is not followed. ``flags`` are those of ``open``; ``path`` is relative to the open ``directory`` where given.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if lock(descriptor):
            return descriptor
    os.close(descriptor)
    return None


def is_unlocked(path: str | Path) -> bool:
    """Return whether ``path`` exists and no process holds its lock."""
    descriptor = lock_path(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def remove_abandoned(path: str | Path, *, directory: int | None = None) -> None:
    """Remove a file, or a directory with its content, unless a process holds its lock or it cannot be removed."""
    descriptor = lock_path(path, directory=directory)
    if descriptor is None:
        return
    try:
        with contextlib.suppress(OSError):
            os.unlink(path, dir_fd=directory)
            return
        shutil.rmtree(path, ignore_errors=True, dir_fd=directory)
    finally:
        os.close(descriptor)


def new_locked_directory(make: Callable[[], str]) -> tuple[str, int]:
    """Create a directory and lock it; return its path and the descriptor that holds the lock.

    ``make`` creates a directory under a fresh name. Until it is locked, ``remove_abandoned`` in another process may remove it;
    then another one is made. On a file system without locks the directory is not locked, and none is ever removed as abandoned.
    """
    while True:
        path = make()
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with contextlib.suppress(OSError):
                lock(descriptor, wait=True)
            if os.path.isdir(path):
                return path, descriptor
            os.close(descriptor)
