"""The cost of durability: the same selections with and without ``run=``, in turn in one process, on an mmap store.

The bar is 2 % of the run time on an SSD store. The cost has three parts, each timed around the steps that only a durable run takes:
once per run (registration, the log, the result, the removal of the state: eight small writes that each wait for the device), once
per round (recording the answers, waiting for the record before, writing this one), and the processor time of the thread that
persists it meanwhile, which matters only when no core is idle. Their sum over the run time is judged. It is not an upper bound: the
effect of a flush on reads of the same device, and of the thread on caches, is not in it.

The ratio of wall times is printed beside it, and the ratio of processor times of all threads. The two runs of a pair alternate, a
few rounds each, one standing still while the other's clock runs: a shared machine changes its pace within seconds by more than the
bar. The run that begins takes up to a tenth longer, because it finds memory and caches as the run before left them, so every pair
is run in both orders and their times are added. ``--cold`` makes every sweep read the device; otherwise sweeps read the page cache,
where a round is so short that a millisecond counts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from threading import Semaphore
from typing import Any
from unittest import mock

import fastomp_nvm as fo
from benchmarks.harness.device import evict
from benchmarks.harness.processes import private_home
from benchmarks.harness.report import Report, argument_parser
from benchmarks.harness.timing import paired, stopwatch
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.matrix import reader
from fastomp_nvm.matrix.threads import one_blas_thread
from fastomp_nvm.runs import directory
from fastomp_nvm.runs import drive as durable_runs
from fastomp_nvm.runs.journal import DecisionJournal
from storage_backends.files.regions import FileRegion

__all__ = ["main", "measure"]

BAR = 0.02

#: The exact matrix has four times the bytes of its tier, so rounds are four times as long.
REQUESTS: dict[str, dict[str, Any]] = {
    "fast_omp": {"k": 200},
    "sds_omp": {"k": 60, "algorithm": "sds_omp", "plain": True},
    "sds_omp, exact": {"k": 30, "algorithm": "sds_omp", "plain": True, "tier": "exact"},
}
COLD_REQUESTS: dict[str, dict[str, Any]] = {
    "fast_omp": {"k": 33, "tier": "exact"},
    "sds_omp": {"k": 10, "algorithm": "sds_omp", "plain": True, "tier": "exact"},
}

#: Steps that only a durable run takes, and waits for.
STEPS: dict[str, tuple[tuple[Any, str], ...]] = {
    "run": (
        (directory, "write"),
        (directory, "sync_directory"),
        (durable_runs, "_open_log"),
        (durable_runs, "target_digest"),
        (durable_runs, "numeric_build"),
        (DecisionJournal, "close"),
        (durable_runs, "_drop_logs"),
    ),
    "rounds": ((DecisionJournal, "record"), (DecisionJournal, "note"), (DecisionJournal, "commit")),
}

#: Rounds of a run before the other run of the pair takes its turn.
TURN = 2


@contextmanager
def parts_timed() -> Iterator[dict[str, float]]:
    """Time the steps that only a durable run takes: seconds per group of ``STEPS``, and of ``persisting``."""
    close = FileRegion.close

    def close_noting(region: FileRegion) -> None:
        if region._flusher is not None:
            spent["persisting"] += region._flusher.seconds
        close(region)

    with stopwatch({**STEPS, "persisting": ()}) as spent, mock.patch.object(FileRegion, "close", close_noting):
        yield spent


class _Turns:
    """Clocks of two runs that alternate.

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
        self._unfinished = set(kinds)

    def drive(self, kind: str, work: Callable[[Callable[[], bool]], Any]) -> None:
        """Run ``work``, whose ``cancelled`` callback, called every round, blocks while it is the other run's turn."""
        self._take_over(kind)
        try:
            work(lambda: self._next_round(kind))
        finally:
            self._stop(kind)
            self._unfinished.remove(kind)
            self._gates[self._other[kind]].release()

    def _next_round(self, kind: str) -> bool:
        """Switch to the other run after ``TURN`` rounds; never cancels."""
        self._rounds[kind] += 1
        if self._rounds[kind] % TURN == 0 and self._other[kind] in self._unfinished:
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
    """Time pairs in both orders; return medians and ratios. The parts are timed in separate runs: stopwatches take time."""
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
        with parts_timed() as spent:
            fo.select(url, run="parts", **request)
        for group, times in took.items():
            times.append(spent[group])
        rounds = fo.list_runs()[0].rounds
        durable_runs.forget("parts")
    return {
        "rounds": rounds,
        "pairs": repeats,
        "plain": median(wall["plain"]),
        "durable": median(wall["durable"]),
        "ratio": paired(wall["durable"], wall["plain"]),
        "cpu": paired(cpu["durable"], cpu["plain"]),
        "per_run": median(took["run"]),
        "per_round": median(took["rounds"]) / rounds,
        "persisting_per_round": median(took["persisting"]) / rounds,
        "cost": median(sum(parts) / seconds for *parts, seconds in zip(*took.values(), wall["plain"], strict=True)),
    }


@terminating_cleanly()
def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argument_parser("durability", __doc__)
    parser.add_argument("--folder", type=Path, help="folder of the store (default the temporary directory)")
    parser.add_argument("--features", type=int, default=100_000)
    parser.add_argument("--observations", type=int, default=4_000)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--cold", action="store_true", help="read the device in every sweep, for fewer features")
    options = parser.parse_args(words)
    features, observations, repeats = options.features, options.observations, options.repeats
    if options.quick:
        features, observations, repeats = min(features, 10_000), min(observations, 500), min(repeats, 3)
    report = Report(options, words)
    with private_home(), tempfile.TemporaryDirectory(dir=options.folder) as folder:
        url = f"mmap://{folder}/store"
        design = PaperDesign(observations, features, seed=0)
        fo.create_store(url, design.matrix(), design.response(), rows="features").close()
        with fo.open_store(url) as store:
            medium = store.traits.detail
        with ExitStack() as stack:
            if options.cold:  # no memory that a mapping may fill: sweeps bypass the page cache
                evict(Path(folder) / "store" / "matrix.npy")
                stack.enter_context(mock.patch.object(reader, "fillable_memory", return_value=0.0))
            requests = COLD_REQUESTS if options.cold else REQUESTS
            found = {name: measure(url, request, repeats) for name, request in requests.items()}
    report.figures(medium=medium, features=features, observations=observations, **found)
    title = f"{observations:,} x {features:,}, {medium}, {'cold' if options.cold else 'in the page cache'}"
    report.columns(title, found)
    for name, each in found.items():
        report.bar(f"{name}: cost as a share of the run", each["cost"], BAR, at_most=True)
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
