"""Bringing bytes to a device beside other work: begun by one call, waited for by another.

For a file the thread that does so is compiled and never asks for the interpreter, where there was a compiler: a thread that does
costs a sweep more than the flush itself (see ``_flushing.c``). Knows nothing of regions.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

try:
    native: Any = importlib.import_module("fastomp_nvm._flushing")
except ImportError:  # installed on a machine without a compiler
    native = None

__all__ = ["Flusher", "ThreadFlusher", "file_flusher"]


class Flusher(Protocol):
    """Flushes one thing, one flush at a time."""

    @property
    def seconds(self) -> float:
        """Processor time of its thread, up to the last flush waited for."""
        ...

    def begin(self) -> None:
        """Begin a flush of all that was written so far; to be waited for before the next."""
        ...

    def wait(self) -> None:
        """Return once the flush is done, or raise its ``OSError``."""
        ...

    def close(self) -> None:
        """End the thread, after the flush that runs."""
        ...


def file_flusher(descriptor: int) -> Flusher:
    """Return what flushes an open file, to be closed before the file is."""
    if native is None:
        return ThreadFlusher(lambda: os.fdatasync(descriptor))
    found: Flusher = native.Flusher(descriptor)
    return found


class ThreadFlusher:
    """A flusher with a thread of Python.

    It is told through a ``SimpleQueue``, not an executor: its ``put`` never lets go of the interpreter, so the run is in its next
    sweep, which does, before the thread begins. An executor's locks made the run wait for that instead.

    Parameters
    ----------
    flush : callable
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self.seconds = 0.0
        self._flush = flush
        self._states: SimpleQueue[bool] = SimpleQueue()  # False: there are no more
        self._outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="fastomp-flush", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Begin a flush."""
        self._states.put(True)

    def wait(self) -> None:
        """Return once the flush is done, or raise what prevented it."""
        if (error := self._outcomes.get()) is not None:
            raise error

    def close(self) -> None:
        """End the thread."""
        self._states.put(False)
        self._thread.join()

    def _run(self) -> None:
        """Flush until told to end."""
        while self._states.get():
            try:
                self._flush()
                outcome = None
            except BaseException as error:  # the caller's to raise
                outcome = error
            self.seconds = time.thread_time()
            self._outcomes.put(outcome)
