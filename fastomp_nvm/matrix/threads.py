"""Persistent worker threads for sweeps, pinned away from the caller's CPU, and one BLAS thread while a selection runs.

Starting a thread takes longer than many sweeps, so workers are kept. After an idle moment the kernel often wakes a thread on the
CPU of the thread that woke it, where it waits for the caller to finish; it takes milliseconds to be moved, during which a sweep
runs at half its speed (``bench kernels`` shows it). So workers may not run on that CPU.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import pairwise, product
from queue import SimpleQueue
from threading import Event, Lock, Thread, get_native_id
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

__all__ = ["blas_libraries", "hold_at_fork", "one_blas_thread", "ranges", "together", "unless_others_fail"]

#: Returns the CPU that the calling thread runs on; None where the C library has no such function.
_processor: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)

#: Names of OpenBLAS's functions in its own builds and in those for NumPy and SciPy; ``get`` or ``set`` goes between the braces.
OPENBLAS_NAMES = tuple(f"{before}openblas_{{}}_num_threads{after}" for before, after in product(("", "scipy_"), ("", "64_", "_64")))


class _Helper:
    """A worker thread that runs the tasks it is given, one after the other."""

    def __init__(self) -> None:
        self._given: SimpleQueue[tuple[Future[None], Callable[[], None]]] = SimpleQueue()
        self._allowed: Set[int] = frozenset()  # CPUs; empty: not restricted yet
        self._native_id, begun = 0, Event()
        Thread(target=self._serve, args=(begun,), name="fastomp-help", daemon=True).start()
        begun.wait()

    def keep_to(self, processors: Set[int]) -> None:
        """Restrict the thread to these CPUs, where the system allows it."""
        if processors != self._allowed:
            with suppress(OSError):  # a sandbox forbids it, or has just removed some of these CPUs
                os.sched_setaffinity(self._native_id, processors)
            self._allowed = processors

    def give(self, work: Callable[[], None]) -> Future[None]:
        """Run ``work`` on this thread; return its future."""
        future: Future[None] = Future()
        self._given.put((future, work))
        return future

    def _serve(self, begun: Event) -> None:
        """Run tasks until the process ends."""
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
            del future, work  # keep nothing alive while waiting


_idle: deque[_Helper] = deque()
os.register_at_fork(after_in_child=_idle.clear)  # a child process has none of its parent's threads


def together(work: Callable[[], None], others: int) -> None:
    """Run ``work`` on the calling thread and on ``others`` workers; return when all have ended, or raise the error of one.

    The calls must divide the tasks among themselves: a worker that has not begun when the calling thread is done is not started.
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
    """Return an idle worker."""
    try:
        return _idle.pop()
    except IndexError:
        return _Helper()


def _keep_off(helpers: Sequence[_Helper]) -> None:
    """Keep ``helpers`` off the CPU of the calling thread, where there is another."""
    allowed = os.sched_getaffinity(0)
    elsewhere = allowed - {_processor()} if _processor is not None else allowed
    for helper in helpers:
        helper.keep_to(elsewhere or allowed)


def ranges(count: int, step: int) -> Iterator[tuple[int, int]]:
    """Return an iterator of ranges of ``step`` entries that make up ``range(count)``, from which several threads take."""
    starts = range(0, count, step)
    return iter(list(pairwise([*starts, count])))  # next() of a list iterator is atomic under the interpreter lock


def unless_others_fail(work: Callable[[], None], waiting: Iterator[tuple[int, int]]) -> Callable[[], None]:
    """Return ``work`` such that, when it fails, ``waiting`` is emptied and the other threads that take from it stop."""

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
    except ImportError:  # the core promises to run with numpy and scipy alone
        return None
    return ThreadpoolController().select(user_api="blas")


class _Lock(Protocol):
    """A lock of ``threading``, reentrant or not."""

    def acquire(self) -> bool: ...

    def release(self) -> None: ...


def hold_at_fork(lock: _Lock) -> None:
    """Let forks wait for a lock: in a child process, which has no other thread, nobody would ever release it."""
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


@lru_cache(maxsize=1)
def _thread_counts() -> list[tuple[Callable[[], int], Callable[[int], object]]]:
    """Return a function that gets and one that sets the number of threads, for each BLAS of NumPy and SciPy.

    OpenBLAS's are looked up among the libraries that NumPy and SciPy are linked to. threadpoolctl, which knows other kinds too,
    resolves the path of every library of the process, which takes as long as a small selection. Without it other kinds are not
    limited.
    """
    from numpy.linalg import lapack_lite
    from scipy.linalg import cython_blas

    found: list[tuple[Callable[[], int], Callable[[int], object]]] = []
    for module in (lapack_lite, cython_blas):
        library = ctypes.CDLL(module.__file__)
        name = next((name for name in OPENBLAS_NAMES if hasattr(library, name.format("get"))), None)
        if name is None:
            controllers = () if (controller := _controller()) is None else controller.lib_controllers
            # From 3.8 on, threadpoolctl's own ``set_num_threads`` ignores every thread but the first that set a limit.
            return [(each.get_num_threads, getattr(each, "_real_set_num_threads", each.set_num_threads)) for each in controllers]
        found.append((getattr(library, name.format("get")), getattr(library, name.format("set"))))
    return found


_blas_lock = Lock()
hold_at_fork(_blas_lock)
_blas_before: list[list[int]] = []  # one entry per open block: how many threads each library had before the first of them


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block, and until the last of several that are open at once is left.

    The big products run in our own kernel, on our own threads. The products left for BLAS are small: the barriers of its threads
    cost more than the work (ten times, on a busy machine), and their number changes the last bits of a result.
    """
    counts = _thread_counts()
    with _blas_lock:
        # The limit is the process's: the first block to end must not lift it for the others, whose bits it would change.
        _blas_before.append(_blas_before[0] if _blas_before else [get() for get, _ in counts])
        for _, set_count in counts:
            set_count(1)
    try:
        yield
    finally:
        with _blas_lock:
            before = _blas_before.pop()
            if not _blas_before:
                for (_, set_count), threads in zip(counts, before, strict=True):
                    set_count(threads)


def blas_libraries() -> list[str]:
    """Return name, release and processor type of each BLAS loaded, sorted; empty without threadpoolctl."""
    controller = _controller()
    if controller is None:
        return []
    described = (
        f"{library['internal_api']} {library['version']} {library.get('architecture', '')}" for library in controller.info()
    )
    return sorted(each.strip() for each in described)
