"""The directories of durable runs: one per name under ``FASTOMP_HOME``, locked by the process that drives the run.

Invariants: a directory appears under its name at once, whole, durable and locked; a file in it appears whole or not at all; a lock
ends with the process that holds it, however it ends. A failure of the device is a ``MediumError``. Knows nothing of what a run is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from fastomp_nvm.errors import MediumError, RequestError
from fastomp_nvm.home import home

__all__ = ["check_name", "existing", "is_locked", "locked", "names", "registered", "remove", "write_durably"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_LOCK_ATTEMPTS = 20  # who only looks holds a lock for microseconds


def check_name(name: str) -> None:
    """Refuse a name that would not be safe as a file name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{name!r} is no run name: expected up to 100 letters, digits, '_', '-' and '.', the first no '-' or '.'"
        )


def names() -> list[str]:
    """Return the names of all runs, in order."""
    return sorted(entry.name for entry in _parent().iterdir() if _NAME.fullmatch(entry.name))


def existing(name: str) -> Path:
    """Return the directory of the run ``name``."""
    check_name(name)
    directory = _parent() / name
    if not directory.is_dir():
        raise RequestError(f"there is no run {name!r}: 'fastomp runs' lists those there are")
    return directory


@contextlib.contextmanager
def registered(name: str, file: str, data: bytes) -> Iterator[Path]:
    """Make a directory with one file appear under ``name``, locked for the time of a ``with``."""
    parent = _parent()
    partial = parent / f".{name}.partial-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, partial, ignore_errors=True)
        # Registrations take turns: what one has made and not yet locked looks to another like what the dead left behind.
        with _turn(parent), _device_errors(f"register the run {name!r}"):
            _sweep(parent, name)
            os.mkdir(partial, 0o700)
            stack.enter_context(locked(partial, name))
            write_durably(partial, file, data)
            if (parent / name).exists():
                raise RequestError(f"the name {name!r} is used by another run: resume that one, or choose a new name")
            os.rename(partial, parent / name)
            _sync(parent)
            _sync(parent.parent)  # whoever made the directory of all runs may have died before it did
        yield parent / name


@contextlib.contextmanager
def locked(directory: Path, name: str) -> Iterator[None]:
    """Hold the lock of a run, which ends with this process at the latest."""
    with _opened(directory, f"lock the run {name!r}") as descriptor:
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                with _device_errors(f"lock the run {name!r}"):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if attempt == _LOCK_ATTEMPTS - 1:
                    raise RequestError(f"the run {name!r} is being driven by another process: wait for it or stop it") from error
                time.sleep(0.01)
        # Forgotten while we waited: what is locked now is no run any more, or another one has the name.
        if not _leads_to(directory, descriptor):
            raise RequestError(f"the run {name!r} was forgotten meanwhile: 'fastomp runs' lists those there are")
        yield


def is_locked(directory: Path) -> bool:
    """Tell whether a process drives the run."""
    with _opened(directory, f"look at {directory}") as descriptor:
        try:
            with _device_errors(f"look at {directory}"):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def remove(directory: Path) -> None:
    """Remove a run's directory; from the first step on its name is free."""
    retired = directory.with_name(f".{directory.name}.retired-{secrets.token_hex(4)}")
    with _device_errors(f"remove {directory}"):
        os.rename(directory, retired)
        shutil.rmtree(retired, ignore_errors=True)
        _sync(retired.parent)


def write_durably(directory: Path, name: str, data: bytes) -> None:
    """Make the file ``name`` appear in a directory, whole and on the device."""
    partial = directory / f".{name}.partial"
    with _device_errors(f"write {directory / name}"):
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, directory / name)
        _sync(directory)


def _parent() -> Path:
    """Return the directory of all runs, made if absent."""
    directory = home() / "runs"
    with _device_errors(f"make {directory}"):
        directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _sweep(parent: Path, name: str) -> None:
    """Remove what dead processes left of registering or removing this run."""
    for leftover in (*parent.glob(f".{name}.partial-*"), *parent.glob(f".{name}.retired-*")):
        with contextlib.suppress(MediumError):
            if not is_locked(leftover):
                shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def _turn(parent: Path) -> Iterator[None]:
    """Keep other registrations waiting for the time of a ``with``."""
    with _opened(parent, f"lock {parent}") as descriptor:
        with _device_errors(f"lock {parent}"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _sync(directory: Path) -> None:
    """Bring the entries of a directory to the device."""
    with _opened(directory, f"sync {directory}") as descriptor, _device_errors(f"sync {directory}"):
        os.fsync(descriptor)


def _leads_to(directory: Path, descriptor: int) -> bool:
    """Tell whether a path still leads to an open directory."""
    try:
        return os.path.samestat(os.stat(directory), os.fstat(descriptor))
    except OSError:
        return False


@contextlib.contextmanager
def _opened(directory: Path, action: str) -> Iterator[int]:
    """Open a directory for the time of a ``with``."""
    with _device_errors(action):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _device_errors(action: str) -> Iterator[None]:
    """Turn an ``OSError`` raised inside into a ``MediumError`` that says what was being done; a lock that is held is none."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise MediumError(f"cannot {action}: {error.strerror or error}") from error
