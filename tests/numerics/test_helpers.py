"""Worker threads: every task is done once, errors are raised, and workers stay off the caller's CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.matrix import sweeper, threads
from fastomp_nvm.matrix.threads import together


def sharing(tasks: int, each: Callable[[int], None]) -> Callable[[], None]:
    """Return work that calls ``each`` once for every task, on any thread."""
    waiting = iter(range(tasks))

    def work() -> None:
        for task in waiting:
            each(task)

    return work


@pytest.mark.parametrize("others", [0, 1, 3])
def test_all_of_it_is_done_once(others) -> None:
    """Every task is done once, and repeated calls start no further threads."""
    before = {thread.name for thread in threading.enumerate()}
    for _ in range(20):
        done: list[int] = []
        together(sharing(50, done.append), others)
        assert sorted(done) == list(range(50))
    helping = [thread for thread in threading.enumerate() if thread.name == "fastomp-help"]
    assert len(helping) <= max(others, sum(name == "fastomp-help" for name in before)) + 4


def test_few_products_stay_with_the_caller(monkeypatch) -> None:
    """Tasks of few products by BLAS wake no worker; those of many, or of an unknown number, do."""
    woken: list[int] = []
    monkeypatch.setattr(sweeper, "together", lambda work, others: (woken.append(others), work()))
    done: list[int] = []
    tasks = [partial(done.append, task) for task in range(5)]
    for products in (sweeper.INLINE_BLAS_PRODUCTS - 1, sweeper.INLINE_BLAS_PRODUCTS, float("inf")):
        sweeper.Sweeper(2).share_out(tasks, products)
    sweeper.Sweeper(2).share_out(tasks)
    assert woken == [0, 1, 1, 1]
    assert done == 4 * list(range(5))


def test_others_take_their_share() -> None:
    """While the calling thread is busy with one task, another thread does the rest."""
    taken: dict[int, int] = {}
    done = threading.Event()

    def each(task: int) -> None:
        taken[task] = threading.get_ident()
        if threading.get_ident() == caller:
            done.wait(30.0)
        elif len(taken) == 10:
            done.set()

    caller = threading.get_ident()
    together(sharing(10, each), 1)
    assert list(taken.values()).count(caller) <= 1
    assert sorted(taken) == list(range(10))


@pytest.mark.parametrize("who", ["caller", "other"])
def test_an_error_is_told_when_nobody_is_at_it_any_more(who) -> None:
    """An error of any thread is raised; afterwards the thread runs the next task."""
    caller, at_it = threading.get_ident(), []

    def work() -> None:
        at_it.append(1)
        mine = threading.get_ident() == caller
        try:
            deadline = time.monotonic() + 30.0
            while len(at_it) < 2 and time.monotonic() < deadline:
                time.sleep(0.001)
            if mine == (who == "caller"):
                raise OSError("the disk is gone")
        finally:
            at_it.append(-1)

    with pytest.raises(OSError, match="the disk is gone"):
        together(work, 1)
    assert sum(at_it) == 0
    done: list[int] = []
    together(sharing(5, done.append), 1)
    assert sorted(done) == list(range(5))


def test_what_never_began_is_not_waited_for() -> None:
    """A caller that has done all tasks returns, even if the workers have not started."""
    blocked, let_go = threading.Event(), threading.Event()
    helper = threads._Helper()

    def block() -> None:
        blocked.set()
        let_go.wait(30.0)

    busy = helper.give(block)
    assert blocked.wait(30.0)
    idle = list(threads._idle)
    threads._idle.clear()
    threads._idle.append(helper)
    try:
        done: list[int] = []
        together(sharing(5, done.append), 1)
        assert done == list(range(5))
        assert not busy.done()
    finally:
        let_go.set()
        busy.result(30.0)
        threads._idle.extendleft(idle)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_others_keep_off_the_processor_of_the_caller() -> None:
    """No worker may run on the caller's CPU; the affinity of the caller is unchanged."""
    allowed = os.sched_getaffinity(0)
    one = min(allowed)
    try:
        os.sched_setaffinity(0, {one})  # so that it is known where the caller is
        os.sched_setaffinity(0, allowed)
        seen: list[set[int]] = []
        done, caller = threading.Event(), threading.get_ident()

        def work() -> None:
            if threading.get_ident() == caller:
                done.wait(30.0)
            else:
                seen.append(os.sched_getaffinity(0))
                done.set()

        together(work, 1)
        assert len(seen[0]) == len(allowed) - 1
        assert os.sched_getaffinity(0) == allowed
        os.sched_setaffinity(0, {one})  # where there is one processor alone, it is shared
        done.clear()
        together(work, 1)
        assert seen[1] == {one}
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_sandbox_that_forbids_it_is_no_error(monkeypatch) -> None:
    """Where affinity cannot be set, workers run anywhere."""

    def forbidden(thread: int, processors: object) -> None:
        asked.append(thread)
        raise PermissionError(1, "not here")

    asked: list[int] = []
    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    monkeypatch.setattr(threads, "_idle", type(threads._idle)())
    done: list[int] = []
    together(sharing(5, done.append), 1)
    assert sorted(done) == list(range(5))
    assert len(asked) == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it has threads, which is the point
def test_a_child_process_has_threads_of_its_own() -> None:
    """A process forked after a selection makes the same selection, with as many threads, and ends."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 16_000))
    y = X[:, :3].sum(axis=1)
    expected = fo.select(X, y, k=3, threads=2).indices.tolist()
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends it should it hang
        os._exit(0 if fo.select(X, y, k=3, threads=2).indices.tolist() == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


_FORKING = """
import os, signal, threading, time
from fastomp_nvm.matrix import threads

held = threading.Event()

def hold():
    with threads._blas_lock:
        held.set()
        time.sleep(0.2)

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    with threads.one_blas_thread():
        os._exit(0)
print(os.waitpid(child, 0)[1])
"""


def test_a_child_forked_during_a_selection_can_select() -> None:
    """A fork while another thread changes the number of BLAS threads leaves the child no lock that nobody releases."""
    pytest.importorskip("threadpoolctl")
    ended = subprocess.run([sys.executable, "-c", _FORKING], capture_output=True, text=True, check=True)
    assert ended.stdout == "0\n"
