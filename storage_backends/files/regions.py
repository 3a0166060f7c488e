"""Durable regions as files of a directory: for logs of runs whose store cannot be written, and for a server's journals.

Written with pwrite(2) and made durable with fdatasync(2), in the background if requested; a region appears with its space allocated
or not at all.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fastomp_nvm.durable_files import device_errors, opened_directory, sync_directory
from fastomp_nvm.errors import InputError, MediumError, StoreError, StoreURLError
from fastomp_nvm.stores.contract import DurableRegion
from storage_backends.files.durable import allocate, partial_file, publish_file
from storage_backends.files.flushing import Flusher
from storage_backends.opened import check_range, check_region_name

__all__ = ["DirectoryRegions", "FileRegion"]


class DirectoryRegions:
    """The regions in a directory.

    Parameters
    ----------
    directory : Path
        Exists.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open the region ``name``; create it zero-filled with ``size`` bytes when it is absent.

        A region that cannot be written is opened for reading.
        """
        path = self._path(name)
        if size < 0:
            raise InputError(f"a region of {size} bytes was requested: its size must be positive")
        with device_errors(f"open region {name!r} in {self._directory}"):
            if not path.exists():
                if not size:
                    raise StoreURLError(f"there is no region {name!r} in {self._directory}: give a size to create it")
                self._create(path, size)
            writable = os.access(path, os.W_OK, effective_ids=True)
            descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
            region = FileRegion(name, descriptor, writable=writable)
        if size and region.size != size:
            region.close()
            raise StoreError(f"region {name!r} in {self._directory} has {region.size} bytes and should have {size}")
        return region

    def regions(self) -> Sequence[str]:
        """Names of the regions that exist, in order."""
        with device_errors(f"list {self._directory}"):
            return tuple(sorted(path.stem for path in self._directory.glob("[!.]*.bin")))

    def drop_region(self, name: str) -> None:
        """Remove a region."""
        with device_errors(f"drop region {name!r} in {self._directory}"):
            try:
                self._path(name).unlink()
            except FileNotFoundError as error:
                raise StoreURLError(f"there is no region {name!r} in {self._directory} to drop") from error
            sync_directory(self._directory)

    def _path(self, name: str) -> Path:
        """Return the file of a region."""
        check_region_name(name)
        return self._directory / f"{name}.bin"

    def _create(self, path: Path, size: int) -> None:
        """Create a region atomically."""
        with opened_directory(self._directory) as directory, partial_file(directory, path.name, 0o600) as (partial, descriptor):
            allocate(descriptor, size, str(path))
            os.fsync(descriptor)
            publish_file(partial, path.name, directory)


class FileRegion(DurableRegion):
    """A region that is a file, accessed without a mapping.

    A run calls ``write``, ``start`` and ``persist`` between two sweeps, when the processor's caches hold nothing of the interpreter
    and every call is slow: these methods therefore do without ``device_errors``.

    Parameters
    ----------
    name : str
    descriptor : int
        Owned by the region.
    writable : bool
        False where the file can only be read; ``write`` then raises ``MediumError``.
    """

    def __init__(self, name: str, descriptor: int, *, writable: bool = True) -> None:
        self._writable = writable
        self._name = name
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._flusher: Flusher | None = None
        self._started = self._written_since = False  # a flush was begun and not awaited; bytes were written after its begin

    @property
    def size(self) -> int:
        """Bytes in the region."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``."""
        self._check(offset, length)
        parts, position = [], offset
        with device_errors(f"read region {self._name!r}"):
            while position < offset + length:
                data = os.pread(self._descriptor, offset + length - position, position)
                if not data:
                    raise self._cut_off()
                parts.append(data)
                position += len(data)
        return b"".join(parts)

    def write(self, offset: int, data: bytes) -> None:
        """Store ``data`` at ``offset``; not durable until ``persist``."""
        self._check(offset, len(data))
        try:
            if not self._writable:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            if os.fstat(self._descriptor).st_size < self._size:  # writing would extend it again, with zeros
                raise self._cut_off()
            self._written_since = True  # also if the write fails halfway
            written = os.pwrite(self._descriptor, data, offset)
            while written < len(data):
                written += os.pwrite(self._descriptor, memoryview(data)[written:], offset + written)
        except OSError as error:
            raise self._failure("write region {!r}", error) from error

    def start(self, offset: int, length: int) -> None:
        """Begin to flush the file, which includes this range."""
        self._check(offset, length)
        try:
            self._finish()
            if self._flusher is None:
                self._flusher = Flusher(partial(os.fdatasync, self._descriptor))
        except OSError as error:
            raise self._failure("make region {!r} durable", error) from error
        self._flusher.begin()
        self._started, self._written_since = True, False

    def persist(self, offset: int, length: int) -> None:
        """Return once the file, which includes this range, is durable."""
        self._check(offset, length)
        try:
            if not self._finish() or self._written_since:
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._failure("make region {!r} durable", error) from error

    def close(self) -> None:
        """Close the file; does not imply ``persist``."""
        if self._flusher is not None:
            self._flusher.close()
            self._flusher = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _finish(self) -> bool:
        """Wait for the flush that was begun; return whether there was one."""
        started, self._started = self._started, False
        if started:
            assert self._flusher is not None
            self._flusher.wait()
        return started

    def _failure(self, action: str, error: OSError) -> MediumError:
        """Return the error for a device that failed."""
        return MediumError(f"cannot {action.format(self._name)}: {error.strerror or error}")

    def _cut_off(self) -> MediumError:
        """Return the error for a file that was truncated."""
        return MediumError(f"region {self._name!r} lost its end: its file was truncated while in use")

    def _check(self, offset: int, length: int) -> None:
        """Raise ``StoreError`` for a closed region, ``InputError`` for bytes outside it."""
        if self._descriptor < 0:
            raise StoreError(f"region {self._name!r} is closed: open it again")
        check_range(self._name, self._size, offset, length)
