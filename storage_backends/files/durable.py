"""Files of stores: allocated room, new files, exclusive renames, and the kind of file system.

Locks, atomic writes and the conversion of ``OSError`` are in :mod:`fastomp_nvm.durable_files`. Knows nothing of stores.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fastomp_nvm.durable_files import device_errors, lock, new_locked_directory, remove_abandoned
from fastomp_nvm.errors import MediumError, StoreError

__all__ = [
    "EXCHANGE",
    "VOLATILE_FILE_SYSTEMS",
    "allocate",
    "copy_file",
    "describe_bytes",
    "file_system_type",
    "give_back",
    "new_file",
    "partial_file",
    "publish_file",
    "rename_with_flag",
    "scratch_directory",
    "write_file",
]

#: File systems that live in memory: ``fsync`` succeeds there and protects against nothing.
VOLATILE_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs", "rootfs"})

#: Flags of renameat2(2).
EXCHANGE = 2
_NO_REPLACE = 1

_COPY_BYTES = 8 << 20
_PARTIAL = re.compile(r"\..+\.partial-[0-9a-f-]+")
# Limits that refuse a file although there is free space.
_LIMITS = {errno.EDQUOT: "the quota on its file system", errno.EFBIG: "the largest size of a file (ulimit -f, or its file system)"}
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def describe_bytes(count: int) -> str:
    """Return ``count`` bytes as text with a decimal unit, such as ``1.5 GB``."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def file_system_type(path: str) -> str:
    """Return the type of the file system that holds ``path`` (``ext4``, ``tmpfs``, ...), or ``unknown``."""
    target = os.path.realpath(path)
    best, kind = "", "unknown"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                fields, _, source = line.partition(" - ")
                # Spaces in a mount point are written \040; a later mount on the same point hides the earlier one.
                point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields.split(" ")[4])
                if len(point) >= len(best) and (target == point or target.startswith(point.rstrip("/") + "/")):
                    best, kind = point, source.split(" ")[0]
    except (OSError, IndexError):
        return "unknown"
    return kind


def allocate(descriptor: int, length: int, path: str) -> None:
    """Allocate ``length`` bytes for an open file, so that writing through a mapping cannot run out of space.

    Raises
    ------
    MediumError
        The file system has not enough free space.
    """
    room = os.fstatvfs(descriptor)
    free = room.f_bavail * room.f_frsize
    shortage = f"{path} needs {describe_bytes(length)}, has {describe_bytes(free)} free: free some space or choose another place"
    if length > free:
        raise MediumError(shortage)
    try:
        os.posix_fallocate(descriptor, 0, length)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise MediumError(shortage) from error
        if error.errno in _LIMITS:
            limit = _LIMITS[error.errno]
            raise MediumError(f"{path} needs {describe_bytes(length)}, more than {limit} allows: raise it") from error
        if error.errno not in _UNSUPPORTED:
            raise MediumError(f"cannot allocate {path}: {error.strerror}") from error
        with device_errors(f"allocate {path}"):
            os.ftruncate(descriptor, length)


def give_back(descriptor: int, offset: int, length: int) -> None:
    """Release the space of a part of an open file, where the file system supports it; the part then reads as zeros."""
    keep_size, punch_hole = 1, 2
    library = ctypes.CDLL(None, use_errno=True)
    library.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    if library.fallocate(descriptor, keep_size | punch_hole, offset, length) and ctypes.get_errno() not in _UNSUPPORTED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def write_file(directory: int, name: str, data: bytes) -> None:
    """Create the file ``name`` in an open directory with ``data`` and bring it to the device."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=directory)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def scratch_directory(prefix: str, parent: str) -> tuple[str, int]:
    """Return a new private directory in ``parent`` and the descriptor that holds its lock; remove those of dead processes."""
    for left in Path(parent).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if left.lstat().st_uid == os.getuid():
                remove_abandoned(left)
    return new_locked_directory(lambda: tempfile.mkdtemp(prefix=prefix, dir=parent))


@contextlib.contextmanager
def partial_file(directory: int, name: str, mode: int) -> Iterator[tuple[str, int]]:
    """Create a temporary file, to be renamed to ``name`` in an open directory; remove those of dead processes first.

    The file is locked while its process lives, in whichever process namespace.

    Yields
    ------
    tuple of str and int
        Its name and its descriptor. A file that was not renamed is removed at the end of the ``with`` block.
    """
    for entry in os.listdir(directory):
        if _PARTIAL.fullmatch(entry):
            remove_abandoned(entry, directory=directory)
    while True:
        partial = f".{name}.partial-{secrets.token_hex(8)}"
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=directory)
        with contextlib.suppress(OSError):  # without locks no file is removed as abandoned
            lock(descriptor, wait=True)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # another process removed the file before it was locked
    try:
        yield partial, descriptor
    finally:
        os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=directory)


def publish_file(partial: str, name: str, directory: int) -> None:
    """Rename a file to ``name`` in an open directory, durably; a file that has the name already stays, and ``partial`` too."""
    with contextlib.suppress(FileExistsError):
        if not rename_with_flag(partial, name, _NO_REPLACE, directory=directory):
            os.rename(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)


@contextlib.contextmanager
def new_file(directory: int, name: str, length: int, label: str) -> Iterator[int]:
    """Create a file of ``length`` bytes in an open directory atomically; yield the descriptor to write it with.

    An existing file is kept. ``label`` names the file in errors.
    """
    with partial_file(directory, name, 0o666) as (partial, descriptor):
        allocate(descriptor, length, label)
        yield descriptor
        os.fsync(descriptor)
        publish_file(partial, name, directory)  # another process may have been faster


def copy_file(source: int, directory: int, name: str, label: str) -> int:
    """Copy an open file to ``name`` in an open directory, atomically; return its length. ``label`` names the copy in errors."""
    length, position = os.fstat(source).st_size, 0
    with new_file(directory, name, length, label) as descriptor:
        while position < length:
            data = os.pread(source, min(_COPY_BYTES, length - position), position)
            if not data:
                raise StoreError(f"the file was truncated while {label} was copied from it: build the store again")
            position += os.pwrite(descriptor, data, position)
    return length


def rename_with_flag(source: str, target: str, flag: int, *, directory: int | None = None) -> bool:
    """Rename through renameat2(2) with a flag such as ``EXCHANGE``, names relative to ``directory`` where given.

    Returns
    -------
    bool
        False, with nothing changed, where the file system or the C library does not offer it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    base = ctypes.c_int(-100 if directory is None else directory)  # -100 is AT_FDCWD
    if library.renameat2(base, os.fsencode(source), base, os.fsencode(target), ctypes.c_uint(flag)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), source)
