"""Threads that share the work of a sweep: kept from one to the next, and kept off the processor of who calls them.

Starting a thread takes longer than many a sweep, so none is ended. And when a machine was idle for a moment, a thread is woken on
the processor of who wakes it more often than not, where it waits again for the caller to be done; the kernel takes milliseconds to
notice, in which a sweep runs at half its speed (``bench kernels`` shows it). So that processor is forbidden to it.
"""

from __future__ import annotations

import ctypes
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import pairwise
from queue import SimpleQueue
from threading import Event, Lock, Thread, get_native_id
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

__all__ = ["blas_libraries", "one_blas_thread", "ranges", "together", "unless_others_fail"]

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


def ranges(count: int, step: int, edges: Sequence[int] | None = None) -> Iterator[tuple[int, int]]:
    """Return ranges that make up ``range(count)``, for threads to take one after the other.

    They have ``step`` entries each; with ``edges`` (ascending, from 0 to ``count``) they begin and end there, and may be longer.
    """
    starts = list(range(0, count, step))
    if edges is not None:
        starts = sorted({edges[bisect_right(edges, start) - 1] for start in starts})
    return iter(list(pairwise([*starts, count])))  # next() on it is atomic under the interpreter lock


def unless_others_fail(work: Callable[[], None], waiting: Iterator[tuple[int, int]]) -> Callable[[], None]:
    """Return ``work``, which takes from ``waiting`` as other threads do; when it fails they find nothing more there to take."""

    def guarded() -> None:
        try:
            work()
        except BaseException:
            deque(waiting, maxlen=0)
            raise

    return guarded


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController | None:
    """Return the controller of the BLAS libraries loaded by NumPy and SciPy, or None without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:  # the core promises to run with numpy and scipy alone; then BLAS is not limited
        return None
    return ThreadpoolController().select(user_api="blas")


_blas_lock = Lock()
_blas_before: list[list[int]] = []  # one entry per open block: how many threads each library had before the first of them


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block, and until the last of several that are open at once is left.

    The big products run in our own kernel, on our own threads. The products left for BLAS are small: the barriers of its threads
    cost more than the work (ten times, on a busy machine), and their number changes the last bits of a result.
    """
    controller = _controller()
    if controller is None:
        yield
        return
    with _blas_lock:
        before = _blas_before[0] if _blas_before else []
        for library in controller.lib_controllers:  # one by one: threadpoolctl's own limiter takes ten times as long
            if not _blas_before:
                before.append(library.num_threads)
            # From 3.8 on, threadpoolctl ignores every thread but the first that set a limit.
            getattr(library, "_real_set_num_threads", library.set_num_threads)(1)
        # The limit is the process's: the first block to end must not lift it for the others, whose bits it would change.
        _blas_before.append(before)
    try:
        yield
    finally:
        with _blas_lock:
            before = _blas_before.pop()
            if not _blas_before:
                for library, threads in zip(controller.lib_controllers, before, strict=True):
                    getattr(library, "_real_set_num_threads", library.set_num_threads)(threads)


def blas_libraries() -> list[str]:
    """Return name, release and processor type of each BLAS loaded, sorted; empty without threadpoolctl."""
    controller = _controller()
    if controller is None:
        return []
    described = (
        f"{library['internal_api']} {library['version']} {library.get('architecture', '')}" for library in controller.info()
    )
    return sorted(each.strip() for each in described)
