"""Flushing to a device on a thread of its own: started by one call, awaited by another."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

__all__ = ["Flusher"]


class Flusher:
    """A thread that flushes on request, one flush at a time.

    Requests go through a ``SimpleQueue``, whose ``put`` never releases the GIL: the caller is in its next sweep, which does release
    it, before the thread wakes up. The locks of an executor would make the caller wait instead.

    Parameters
    ----------
    flush : callable
        Returns once the data is durable, or raises.

    Attributes
    ----------
    seconds : float
        Processor time of the thread up to the last flush.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self.seconds = 0.0
        self._flush = flush
        self._requests: SimpleQueue[bool] = SimpleQueue()  # False: end the thread
        self._outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="fastomp-flush", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Start a flush of everything written so far; call ``wait`` before the next."""
        self._requests.put(True)

    def wait(self) -> None:
        """Return once the flush is done, or raise its exception."""
        if (error := self._outcomes.get()) is not None:
            raise error

    def close(self) -> None:
        """End the thread, after a flush in progress."""
        self._requests.put(False)
        self._thread.join()

    def _run(self) -> None:
        """Flush until the thread is ended."""
        while self._requests.get():
            try:
                self._flush()
                outcome = None
            except BaseException as error:  # raised by wait
                outcome = error
            self.seconds = time.thread_time()
            self._outcomes.put(outcome)
