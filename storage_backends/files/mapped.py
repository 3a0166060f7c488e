"""Memory-mapped files, and matrices and durable regions in them.

File media differ only in their ``Access``: the flags of a mapping and how bytes of it are made durable.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import device_errors
from fastomp_nvm.errors import StoreError
from fastomp_nvm.matrix import lost_pages
from fastomp_nvm.stores.contract import DurableRegion, MediumTraits
from storage_backends.files import format as store_format
from storage_backends.files.flushing import Flusher
from storage_backends.opened import check_range

__all__ = ["Access", "MappedFile", "MappedRegion", "flush_pages", "map_file", "matrix_view"]

_msync = ctypes.CDLL(None, use_errno=True).msync
_msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MS_SYNC = 4


@dataclass(frozen=True, slots=True)
class Access:
    """How a medium maps its files and makes them durable.

    Attributes
    ----------
    traits : MediumTraits
        Including the durability that ``persist`` provides.
    flags : int
        Flags of every mapping.
    persist : callable, optional
        Makes ``length`` bytes from ``offset`` of a mapping durable. None: regions are not mapped but written with pwrite(2), which
        on a block device takes less CPU time than page faults and msync(2).
    """

    traits: MediumTraits
    flags: int
    persist: Callable[[mmap.mmap, int, int], None] | None = None


def flush_pages(mapping: mmap.mmap, offset: int, length: int) -> None:
    """Make bytes of a shared mapping durable with msync(2), rounded to whole pages."""
    first = offset - offset % mmap.PAGESIZE
    mapping.flush(first, offset + length - first)


class MappedFile(mmap.mmap):
    """A mapping of a file that is watched: reading a lost page is an error, not a signal (see ``fastomp_nvm.matrix.lost_pages``).

    ``address`` is its first byte; 0 while it is not watched.
    """

    address = 0

    def flush(self, offset: int = 0, size: int | None = None) -> None:
        """Write pages to the device. Unlike ``mmap.flush`` before Python 3.14 it does not hold the interpreter lock meanwhile."""
        length = len(self) - offset if size is None else size
        if _msync(self.address + offset, length, _MS_SYNC):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def close(self) -> None:
        """Unmap."""
        self._unwatch()
        super().close()

    def __del__(self) -> None:
        self._unwatch()

    def _unwatch(self) -> None:
        """Stop watching, once: the address may be reused by another mapping later."""
        address, self.address = self.address, 0
        if address:
            lost_pages.unwatch(address)


def map_file(descriptor: int, length: int, flags: int, *, writable: bool, path: str) -> MappedFile:
    """Map the first ``length`` bytes of an open file."""
    with device_errors(f"map {path}"):
        mapping = MappedFile(descriptor, length, flags=flags, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    mapping.address = int(np.frombuffer(mapping, np.uint8, 1).__array_interface__["data"][0])
    lost_pages.watch(mapping, mapping.address)
    return mapping


def matrix_view(mapping: mmap.mmap, n_columns: int, n_obs: int, dtype: str) -> AnyArray:
    """Return the matrix in a mapping of a matrix file, as a view that keeps the mapping alive."""
    element = store_format.element_type(dtype)
    return np.frombuffer(mapping, element, n_columns * n_obs, store_format.DATA_OFFSET).reshape(n_columns, n_obs)


class MappedRegion(DurableRegion):
    """A durable region that is a shared mapping of a whole file.

    Parameters
    ----------
    name : str
    mapping : MappedFile
    persist : callable
        See ``Access``.
    writable : bool
        False if the file is read-only: ``write`` then raises ``MediumError``.
    """

    def __init__(
        self, name: str, mapping: MappedFile, persist: Callable[[mmap.mmap, int, int], None], *, writable: bool = True
    ) -> None:
        self._writable = writable
        self._name = name
        self._mapping = mapping
        self._persist = persist
        self._size = len(mapping)
        self._flusher: Flusher | None = None
        self._started = self._written_since = False  # a flush was begun and not waited for; bytes were written after it began
        self._range = (0, 0)  # offset and length of that flush

    @property
    def size(self) -> int:
        """Bytes in the region."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``."""
        self._check(offset, length)
        data = self._mapping[offset : offset + length]
        self._check_readable()
        return data

    def write(self, offset: int, data: bytes) -> None:
        """Store ``data`` at ``offset``; not durable until ``persist``."""
        self._check(offset, len(data))
        if not self._writable:
            with device_errors(f"write region {self._name!r}"):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        self._written_since = True
        self._mapping[offset : offset + len(data)] = data
        self._check_readable()

    def start(self, offset: int, length: int) -> None:
        """Begin to write this range to a device in the background; flushing CPU caches is left to ``persist``."""
        self._check(offset, length)
        if self._persist is not flush_pages or not length:
            return
        with device_errors(f"make region {self._name!r} durable"):
            self._finished(0, 0)
        if self._flusher is None:
            self._flusher = Flusher(self._flush)
        self._started, self._written_since, self._range = True, False, (offset, length)
        self._flusher.begin()

    def persist(self, offset: int, length: int) -> None:
        """Return once the bytes of this range are durable."""
        self._check(offset, length)
        with device_errors(f"make region {self._name!r} durable"):
            if not self._finished(offset, length) and length:
                self._persist(self._mapping, offset, length)

    def close(self) -> None:
        """Release the mapping; does not imply ``persist``."""
        if self._flusher is not None:
            self._flusher.close()
            self._flusher = None
        self._mapping.close()

    def _flush(self) -> None:
        """Flush the range given to ``start``."""
        self._persist(self._mapping, *self._range)

    def _finished(self, offset: int, length: int) -> bool:
        """Wait for a flush begun by ``start``; return whether it made the current content of this range durable."""
        if not self._started:
            return False
        assert self._flusher is not None
        self._started = False  # before waiting: a failure is raised once
        self._flusher.wait()
        first, size = self._range
        return not self._written_since and first <= offset and offset + length <= first + size

    def _check_readable(self) -> None:
        """Raise ``MediumError`` when a page of the region was lost: reading it returned zeros."""
        lost_pages.check_range(self._mapping.address, self._size, f"region {self._name!r}")

    def _check(self, offset: int, length: int) -> None:
        """Raise when the region is closed or has no such range."""
        if self._mapping.closed:
            raise StoreError(f"region {self._name!r} is closed: open it again")
        check_range(self._name, self._size, offset, length)
