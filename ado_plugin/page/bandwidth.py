"""How fast the device under a store can be read: measured once per store, past the page cache."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

from ado_plugin.service.pools import Pools

__all__ = ["Bandwidths"]

#: Bytes of one read, and reads in all, spread over the file.
_READ, _READS = 8 << 20, 8


class Bandwidths:
    """Bandwidths of the devices under the stores of pools, in bytes per second.

    Parameters
    ----------
    pools : Pools
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._known: dict[Path, float | None] = {}
        self._lock = threading.Lock()

    def of(self, pool: str, key: str) -> float | None:
        """Return the bandwidth under a store; None where it is not a large file on a device that reads directly."""
        path = self._pools.root / pool / key / "matrix.npy"
        with self._lock:
            if path not in self._known:
                self._known[path] = _measure(path)
            return self._known[path]


def _measure(path: Path) -> float | None:
    """Read parts of a file past the page cache and return bytes per second; None where that is not possible."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        if size < 4 * _READ * _READS:
            return None
        buffer = mmap.mmap(-1, _READ)
        began = time.perf_counter()
        for place in range(_READS):
            offset = (size // _READS * place) // _READ * _READ
            if os.preadv(descriptor, [buffer], offset) != _READ:
                return None
        return _READ * _READS / (time.perf_counter() - began)
    except OSError:
        return None
    finally:
        os.close(descriptor)
