"""Threads that share the work of a sweep: kept from one to the next, and kept off the processor of who calls them.

Starting a thread takes longer than many a sweep, so none is ended. And when a machine was idle for a moment, a thread is woken on
the processor of who wakes it more often than not, where it waits again for the caller to be done; the kernel takes milliseconds to
notice, in which a sweep runs at half its speed (``bench kernels`` shows it). So that processor is forbidden to it.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread, get_native_id

__all__ = ["together"]

#: Returns the number of the processor that the calling thread runs on; None where the C library cannot tell.
_processor: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)


class _Helper:
    """A thread that calls what it is given, one after the other."""

    def __init__(self) -> None:
        self._given: SimpleQueue[tuple[Future[None], Callable[[], None]]] = SimpleQueue()
        self._allowed: Set[int] = frozenset()  # processors; empty: as it began
        self._native_id, begun = 0, Event()
        Thread(target=self._serve, args=(begun,), name="fastomp-help", daemon=True).start()
        begun.wait()

    def keep_to(self, processors: Set[int]) -> None:
        """Let it run on these alone, where this process may decide that."""
        if processors != self._allowed:
            with suppress(OSError):  # a sandbox that forbids it, or one that just took some of these away
                os.sched_setaffinity(self._native_id, processors)
            self._allowed = processors

    def give(self, work: Callable[[], None]) -> Future[None]:
        """Have ``work`` called; the future is done when it has returned."""
        future: Future[None] = Future()
        self._given.put((future, work))
        return future

    def _serve(self, begun: Event) -> None:
        """Call, one after the other, for as long as the process lives."""
        self._native_id = get_native_id()
        begun.set()
        while True:
            future, work = self._given.get()
            if future.set_running_or_notify_cancel():
                try:
                    work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(None)
            del future, work  # nothing is kept alive while it waits


_idle: deque[_Helper] = deque()
os.register_at_fork(after_in_child=_idle.clear)  # a child has none of its parent's threads


def together(work: Callable[[], None], others: int) -> None:
    """Have ``work`` called by the calling thread and as many ``others``; return, or raise what one raised, when none is at it.

    Calls must share what there is to do among themselves: one that has not begun when the calling thread returns never will.
    """
    if others < 1:
        work()
        return
    helpers = [_helper() for _ in range(others)]
    _keep_off(helpers)
    given = [helper.give(work) for helper in helpers]
    try:
        work()
    finally:
        for future in given:
            if not future.cancel():
                future.exception()  # waits
        _idle.extend(helpers)
    for future in given:
        if not future.cancelled():
            future.result()


def _helper() -> _Helper:
    """Return one that has nothing to do."""
    try:
        return _idle.pop()
    except IndexError:
        return _Helper()


def _keep_off(helpers: Sequence[_Helper]) -> None:
    """Forbid the processor of the calling thread to ``helpers``, where they have another."""
    allowed = os.sched_getaffinity(0)
    elsewhere = allowed - {_processor()} if _processor is not None else allowed
    for helper in helpers:
        helper.keep_to(elsewhere or allowed)
