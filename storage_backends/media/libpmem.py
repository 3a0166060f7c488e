"""Binding to libpmem: flushing CPU caches to persistent memory.

``persist`` is meaningful only for mappings with ``MAP_SYNC``: elsewhere a cache flush does not reach the device.
"""

from __future__ import annotations

import ctypes
import functools
import mmap

__all__ = ["MAP_SYNC_FLAGS", "Libpmem", "load"]

#: MAP_SHARED_VALIDATE | MAP_SYNC of mmap(2): the kernel refuses the mapping unless flushed CPU caches are durable.
MAP_SYNC_FLAGS = 0x03 | 0x80000


class Libpmem:
    """The functions of libpmem that fastomp calls.

    Parameters
    ----------
    library : ctypes.CDLL
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._persist = library.pmem_persist
        self._persist.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._persist.restype = None

    def persist(self, mapping: mmap.mmap, offset: int, length: int) -> None:
        """Flush bytes of a writable ``MAP_SYNC`` mapping from CPU caches and wait for completion."""
        self._persist(ctypes.addressof(ctypes.c_char.from_buffer(mapping, offset)), length)


@functools.cache
def load() -> Libpmem | None:
    """Return libpmem, or None if it is not installed."""
    try:
        return Libpmem(ctypes.CDLL("libpmem.so.1"))
    except (OSError, AttributeError):
        return None
