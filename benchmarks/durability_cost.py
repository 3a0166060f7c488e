"""What durability costs: the same selections with and without ``--run``, in turn in one process, on an mmap store.

The bar is 2 % of the run time on an SSD store. The cost has three parts, told apart here by a clock around each step that only a
durable run takes: once per run (registration, the log, the result, the removal of the state: eight small writes that each wait for
the device), once per round (noting the answers, waiting for the record before and writing this one), and the processor time of the
thread that persists it meanwhile, which is felt only when no core is idle. Their sum over the run time is the ``cost`` that is
judged. It is no upper bound: what a flush does to reads of the same device, and the thread to the caches of others, is not in it.
The first part is the same for a run of a second and of a day.

The ratio of wall times is printed beside it, with the interval that holds its true median in at least 95 % of all cases, and so is
the ratio of processor times, all threads and the kernel's work on their behalf. The two runs of a pair go on in turn, a few rounds
each, one standing still while the other's clock runs (``in_turn``): a shared machine changes its pace within seconds by more than
the bar, and one run after the other would compare a quick second with a slow one. A clock runs from the call to its result, with
everything that is done once. Where a turn ends no flush is under way unless it has already outlasted a sweep. The run that begins
takes up to a tenth longer, whichever it is: it finds memory and caches as the run before left them. So every pair is run in both
orders and their times are added up.

With ``--cold`` every sweep reads the device, as one over data larger than memory does; without, the page cache, where a round is so
short that a millisecond counts. Exit code 1 when a cost is over the bar.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from math import comb
from pathlib import Path
from statistics import median
from threading import Semaphore
from typing import Any
from unittest import mock

import fastomp_nvm as fo
from benchmarks.harness.device import evict
from benchmarks.harness.machine import fingerprint
from benchmarks.harness.processes import private_home
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.matrix import reader
from fastomp_nvm.matrix.blas import one_blas_thread
from fastomp_nvm.runs import directory
from fastomp_nvm.runs import drive as durable_runs
from fastomp_nvm.runs.journal import DecisionJournal
from fastomp_nvm.runs.log import StateLog
from storage_backends.files.regions import FileRegion

__all__ = ["main", "measure"]

BAR = 0.02

#: The exact matrix has four times the bytes of its tier, so rounds are four times as long.
REQUESTS: dict[str, dict[str, Any]] = {
    "fast_omp": {"k": 200},
    "sds_omp": {"k": 60, "algorithm": "sds_omp"},
    "sds_omp, exact": {"k": 30, "algorithm": "sds_omp", "tier": "exact"},
}
COLD_REQUESTS: dict[str, dict[str, Any]] = {
    "fast_omp": {"k": 33, "tier": "exact"},
    "sds_omp": {"k": 10, "algorithm": "sds_omp", "tier": "exact"},
}

#: Steps that only a durable run takes and waits for.
STEPS: dict[str, tuple[tuple[Any, str], ...]] = {
    "run": (
        (directory, "write_durably"),
        (directory, "_sync"),
        (durable_runs, "_open_log"),
        (durable_runs, "target_digest"),
        (durable_runs, "numeric_build"),
        (DecisionJournal, "close"),
        (StateLog, "drop"),
    ),
    "rounds": ((DecisionJournal, "record"), (DecisionJournal, "note"), (DecisionJournal, "commit")),
}

#: Rounds that a run of a pair goes on before it is the other's turn.
TURN = 2


@contextmanager
def clocked() -> Iterator[Callable[[str], float]]:
    """Time the steps that only a durable run takes; yields what tells the seconds of a group so far, or ``persisting``."""
    spent = dict.fromkeys((*STEPS, "persisting"), 0.0)
    inside = False
    close = FileRegion.close

    def close_noting(region: FileRegion) -> None:
        if region._flusher is not None:
            spent["persisting"] += region._flusher.seconds
        close(region)

    def timed(group: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal inside
            if inside:  # a step within a step is counted once
                return original(*arguments, **options)
            inside, started = True, time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                inside = False
                spent[group] += time.perf_counter() - started

        return call

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(FileRegion, "close", close_noting))
        for group, steps in STEPS.items():
            for owner, name in steps:
                stack.enter_context(mock.patch.object(owner, name, timed(group, getattr(owner, name))))
        yield lambda group: spent[group]


class _Turns:
    """Clocks of runs of which one goes on at a time.

    Parameters
    ----------
    kinds : sequence of str
        The two runs, the first to begin first.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.wall, self.cpu = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0.0)
        self._other = dict(zip(kinds, reversed(kinds), strict=True))
        self._gates = {kind: Semaphore(kind == kinds[0]) for kind in kinds}
        self._rounds = dict.fromkeys(kinds, 0)
        self._going_on = set(kinds)

    def drive(self, kind: str, work: Callable[[Callable[[], bool]], Any]) -> None:
        """Do ``work``, which asks at every round whether it is cancelled, and is kept waiting then when it is the other's turn."""
        self._take_over(kind)
        try:
            work(lambda: self._asked(kind))
        finally:
            self._stop(kind)
            self._going_on.remove(kind)
            self._gates[self._other[kind]].release()

    def _asked(self, kind: str) -> bool:
        """Let the other run go on after ``TURN`` rounds; never cancels."""
        self._rounds[kind] += 1
        if self._rounds[kind] % TURN == 0 and self._other[kind] in self._going_on:
            self._stop(kind)
            self._gates[self._other[kind]].release()
            self._take_over(kind)
        return False

    def _take_over(self, kind: str) -> None:
        """Wait for the turn of a run and start its clocks."""
        self._gates[kind].acquire()
        self.cpu[kind] -= time.process_time()
        self.wall[kind] -= time.perf_counter()

    def _stop(self, kind: str) -> None:
        """Stop the clocks of a run."""
        self.wall[kind] += time.perf_counter()
        self.cpu[kind] += time.process_time()


def in_turn(url: str, request: dict[str, Any], kinds: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Run a selection plain and durable, a few rounds of each in turn; return the wall and processor time of either."""
    turns = _Turns(kinds)

    def work(kind: str) -> None:
        run = "cost" if kind == "durable" else None
        turns.drive(kind, lambda cancelled: fo.select(url, run=run, cancelled=cancelled, **request))

    # BLAS stays limited until both are done: the run that ends first would lift the limit for the other's last rounds.
    with one_blas_thread(), ThreadPoolExecutor(len(kinds)) as threads:
        list(threads.map(work, kinds))
    durable_runs.forget("cost")
    return turns.wall, turns.cpu


def measure(url: str, request: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Time pairs in both orders; return medians and ratios.

    The parts are timed in runs of their own between the pairs: what times them takes time itself.
    """
    wall: dict[str, list[float]] = {"plain": [], "durable": []}
    cpu: dict[str, list[float]] = {"plain": [], "durable": []}
    took: dict[str, list[float]] = {group: [] for group in (*STEPS, "persisting")}
    rounds = 0
    fo.select(url, **request)
    for _ in range(repeats):
        orders = [in_turn(url, request, kinds) for kinds in (("plain", "durable"), ("durable", "plain"))]
        for times, found in zip((wall, cpu), zip(*orders, strict=True), strict=True):
            for kind, seconds in times.items():
                seconds.append(sum(order[kind] for order in found) / len(orders))
        with clocked() as spent:
            fo.select(url, run="parts", **request)
        for group, times in took.items():
            times.append(spent(group))
        rounds = fo.list_runs()[0].rounds
        durable_runs.forget("parts")
    ratios = sorted(durable / plain for durable, plain in zip(wall["durable"], wall["plain"], strict=True))
    outside = outside_median(repeats)
    return {
        "rounds": rounds,
        "pairs": repeats,
        "plain": median(wall["plain"]),
        "durable": median(wall["durable"]),
        "ratio": median(ratios),
        "interval": [ratios[outside], ratios[-1 - outside]],
        "ratio_best": min(wall["durable"]) / min(wall["plain"]),
        "cpu": median(durable / plain for durable, plain in zip(cpu["durable"], cpu["plain"], strict=True)),
        "per_run": median(took["run"]),
        "per_round": median(took["rounds"]) / rounds,
        "persisting_per_round": median(took["persisting"]) / rounds,
        "cost": median(sum(parts) / seconds for *parts, seconds in zip(*took.values(), wall["plain"], strict=True)),
    }


def outside_median(count: int) -> int:
    """Return how many of ``count`` ordered values lie on either side of an interval that holds the median 95 times in 100."""
    outside, tail = 0, 0.5**count
    while 2 * tail <= 0.05:
        outside += 1
        tail += comb(count, outside) * 0.5**count
    return max(outside - 1, 0)


@terminating_cleanly()
def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="durability_cost", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to build the store (default: the temporary directory)")
    parser.add_argument("--features", type=int, default=100_000)
    parser.add_argument("--observations", type=int, default=4_000)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--cold", action="store_true", help="read the device in every sweep, for fewer features")
    parser.add_argument("--quick", action="store_true", help="a small store, three pairs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(words)
    features, observations, repeats = arguments.features, arguments.observations, arguments.repeats
    if arguments.quick:
        features, observations, repeats = 10_000, 500, 3
    with private_home(), tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        url = f"mmap://{folder}/store"
        design = PaperDesign(observations, features, seed=0)
        fo.create_store(url, design.matrix(), design.response(), rows="features").close()
        with fo.open_store(url) as store:
            medium = store.traits.detail
        requests = COLD_REQUESTS if arguments.cold else REQUESTS
        with ExitStack() as stack:
            if arguments.cold:  # no memory that a mapping may fill: sweeps go past the page cache
                evict(Path(folder) / "store" / "matrix.npy")
                stack.enter_context(mock.patch.object(reader, "fillable_memory", return_value=0.0))
            found = {name: measure(url, request, repeats) for name, request in requests.items()}
    if arguments.json:
        print(json.dumps({"machine": fingerprint(), "medium": medium, "features": features, "observations": observations, **found}))
        return 0
    load = f"load average {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores"
    kind = "cold" if arguments.cold else "in the page cache"
    print(f"{features:,} features x {observations:,} observations, {medium}, {kind}, {load}, {datetime.now(UTC):%Y-%m-%d}")
    for name, figures in found.items():
        low, high = figures["interval"]
        met = "met   " if figures["cost"] <= BAR else "MISSED"
        print(
            f"{met} {name}: {figures['rounds']} rounds, {figures['plain']:.3f} s, cost {100 * figures['cost']:.2f} % "
            f"(bar {100 * BAR:.0f} %): waits of {1e3 * figures['per_run']:.1f} ms per run and {1e3 * figures['per_round']:.2f} ms "
            f"per round, and {1e3 * figures['persisting_per_round']:.2f} ms of processor time per round\n"
            f"       wall time with over without {figures['ratio']:.3f} (median of {figures['pairs']} pairs; "
            f"{low:.3f} to {high:.3f}), {figures['ratio_best']:.3f} (best against best), processor time {figures['cpu']:.3f}"
        )
    return 0 if arguments.quick or all(figures["cost"] <= BAR for figures in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
