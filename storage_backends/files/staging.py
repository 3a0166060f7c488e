"""Large writes to files on a thread of its own, from a few reused buffers, past the page cache where the file system allows it.

A direct write needs whole pages, in the file and in memory. A staged array therefore begins as many bytes into a page as its place
in the file does: the pages inside it are written directly, the ragged ends through the page cache.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import device_errors

__all__ = ["Staging", "direct_descriptor", "write_pages"]

#: Buffers: one being filled, one waiting and one being written.
_BUFFERS = 3
_PAGE = mmap.PAGESIZE


def direct_descriptor(name: str, directory: int) -> int | None:
    """Open a file for direct writes; None where its file system has none."""
    with contextlib.suppress(OSError):
        return os.open(name, os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0), dir_fd=directory)
    return None


def write_pages(descriptor: int, direct: int | None, data: AnyArray, position: int) -> int | None:
    """Write bytes at ``position`` of a file, whole pages through the descriptor ``direct`` where there is one and they are aligned.

    Returns
    -------
    int or None
        ``direct``, or None where it was refused and closed.
    """
    first, last = -position % _PAGE, len(data) - (position + len(data)) % _PAGE
    if direct is not None and first < last and not (int(data.ctypes.data) + first) % _PAGE:
        try:
            _write(direct, data[first:last], position + first)
        except OSError as error:
            if error.errno != errno.EINVAL:  # pages of this file system are larger
                raise
            os.close(direct)
            direct = None
        else:
            _write(descriptor, data[:first], position)
            _write(descriptor, data[last:], position + last)
            return direct
    _write(descriptor, data, position)
    return direct


def _write(descriptor: int, data: AnyArray, position: int) -> None:
    """Write all bytes."""
    left = data.data
    while left:
        written = os.pwrite(descriptor, left, position)
        left, position = left[written:], position + written


class Staging:
    """Buffers that are filled by the caller and written by a thread, in order.

    Parameters
    ----------
    doing : str
        What fails when a write fails, for the error.
    """

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._free: SimpleQueue[mmap.mmap | None] = SimpleQueue()
        for _ in range(_BUFFERS):
            self._free.put(None)
        self._taken: mmap.mmap | None = None
        self._given: SimpleQueue[tuple[Callable[[], None], mmap.mmap | None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def take(self, wanted: Sequence[tuple[int, tuple[int, int], np.dtype[Any]]]) -> list[AnyArray]:
        """Return arrays in a free buffer, for data at a position in a file, of a shape and a type each; wait for a free one."""
        if self._taken is None:
            self._taken = self._free.get()
        sizes = [rows * columns * dtype.itemsize for _, (rows, columns), dtype in wanted]
        length = sum(-(-size // _PAGE) * _PAGE + _PAGE for size in sizes)
        if self._taken is None or len(self._taken) < length:
            self._taken = mmap.mmap(-1, length)
        found, start = [], 0
        for size, (position, shape, dtype) in zip(sizes, wanted, strict=True):
            begin = start + position % _PAGE
            found.append(np.frombuffer(self._taken, np.uint8, size, begin).view(dtype).reshape(shape))
            start = -(-(begin + size) // _PAGE) * _PAGE
        return found

    def give(self, write: Callable[[], None]) -> None:
        """Have the buffer taken last written by ``write``."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="fastomp-write", daemon=True)
            self._thread.start()
        self._given.put((write, self._taken))
        self._taken = None
        self._check()

    def wait(self) -> None:
        """Return once everything given was written, or raise the error of a write."""
        held = [self._free.get() for _ in range(_BUFFERS - (self._taken is not None))]
        for buffer in held:
            self._free.put(buffer)
        self._check()

    def close(self) -> None:
        """End the thread after what it was given; no error is raised."""
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()
            self._thread = None

    def _check(self) -> None:
        """Raise the error of a write, if there was one."""
        if self._error is not None:
            with device_errors(self._doing):
                raise self._error

    def _run(self) -> None:
        """Write until the thread is ended; after an error only empty the queue."""
        while (given := self._given.get()) is not None:
            write, buffer = given
            try:
                if self._error is None:
                    write()
            except BaseException as error:  # raised by the next call of the owner
                self._error = error
            del write, given
            self._free.put(buffer)
