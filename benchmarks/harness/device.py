"""Bandwidth of a file's device, and dropping a file from the page cache."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

import numpy as np

from fastomp_nvm.matrix.reader import MatrixFile

__all__ = ["direct_bandwidth", "evict", "resident_share"]

#: Threads and block size of the raw reads: the fastest combination tried, independent of the package's own reader.
THREADS, BLOCK_BYTES = 8, 1 << 20


def evict(path: Path) -> float:
    """Drop an unmapped file from the page cache; return the share of it that stayed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # dirty pages would be kept
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return resident_share(path)


def resident_share(path: Path) -> float:
    """Return the share of a file's pages that are in memory, from a sample."""
    whole = np.memmap(path, np.uint8, "r").reshape(1, -1)
    return MatrixFile(whole, 0, lambda flags: os.open(path, flags)).resident_share()


def direct_bandwidth(path: Path, first: int = 0, size: int | None = None) -> float:
    """Read a file, or ``size`` bytes of it from ``first`` on, bypassing the page cache; return bytes per second.

    ``first`` must be a multiple of a page.
    """
    size = min(path.stat().st_size - first, path.stat().st_size if size is None else size)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # a file system in memory
        descriptor = os.open(path, os.O_RDONLY)
    starts = iter(range(first, first + size, BLOCK_BYTES))

    def work() -> None:
        buffer = mmap.mmap(-1, BLOCK_BYTES)
        for start in starts:
            os.preadv(descriptor, [buffer], start)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    os.close(descriptor)
    return size / seconds
