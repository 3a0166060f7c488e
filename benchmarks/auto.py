"""What fastomp chooses by itself against the best fixed choice: tier, reading, threads, memory for columns, and the algorithm.

Stores of three shapes, each with a response of several features and one of nearly nothing but noise, are read warm, cold, and cold
within a memory limit of a quarter of their size. Every cell is a process of its own; contestants take turns in it, and medians of
paired ratios are judged: warm at most 1.15 times the best fixed choice, cold at most 1.3 times its time or 1.15 times the bytes
that the fewest-reading one takes from the device. ``--algorithm auto`` is judged among the algorithms whose R^2 is within .002 of
the best of them. Contestants that are far behind after one turn are not timed again.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

import fastomp_nvm as fo
from benchmarks.harness.device import evict
from benchmarks.harness.memory import memory_group
from benchmarks.harness.processes import run_cell
from benchmarks.harness.report import Report, argument_parser
from benchmarks.harness.timing import Ratio, in_turn, paired
from fastomp_nvm.analysis.synthetic import sparse_design
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.engine.dataset import Dataset

__all__ = ["main"]

#: Limits of ``auto`` over the best fixed choice: time of warm and of cold runs, and bytes of cold runs.
WARM, COLD, COLD_BYTES = 1.15, 1.3, 1.15

#: R^2 that an algorithm may lose against the best one and still count.
CLOSE = 0.002

#: A contestant whose first run takes this many times as long as the fastest one's is not timed again.
FAR_BEHIND = 2.0

#: Bytes that a cell larger than memory may fill, page cache included.
LIMIT = 500_000_000

#: Observations and features of the stores: 0.4 GB of matrix for warm runs, 1.6 GB and 0.4 GB of tier for cold ones, and small ones.
SHAPES = {
    "tall": ((60_000, 1700), (60_000, 6700)),
    "square": ((10_000, 10_000), (20_000, 20_000)),
    "wide": ((2000, 50_000), (2000, 200_000)),
}
QUICK_SHAPES = {"tall": (4000, 600), "square": (1200, 1200), "wide": (300, 8000)}

#: Features selected, and features behind a response with a signal.
SELECTED, TRUE = 40, 30

#: Observations, features and k of the problems for algorithms.
PROBLEMS = ((1000, 500, 150), (500, 5000, 10), (500, 5000, 50), (300, 50_000, 30), (2000, 20_000, 100), (60_000, 784, 40))

#: Repeats of warm and of cold cells.
REPEATS = {"warm": 11, "cold": 3, "larger than memory": 3}

#: Fixed choices that keep the answer and may be the fastest, by the state of the files.
FIXED: dict[str, dict[str, dict[str, Any]]] = {
    "warm": {
        "exact": {"tier": "exact"},
        "int8": {"tier": "int8"},
        "exact, 1 thread": {"tier": "exact", "threads": 1},
        "exact, gather 64 MiB": {"tier": "exact", "gather_bytes": 64 << 20},
    },
    "cold": {
        "exact, mmap": {"tier": "exact", "io": "mmap"},
        "exact, direct": {"tier": "exact", "io": "direct"},
        "int8, mmap": {"tier": "int8", "io": "mmap"},
        "int8, direct": {"tier": "int8", "io": "direct"},
    },
    "larger than memory": {  # a mapping that does not fit takes minutes
        "exact, direct": {"tier": "exact", "io": "direct"},
        "int8, direct": {"tier": "int8", "io": "direct"},
    },
}

#: Algorithms that ``auto`` is compared with.
ALGORITHMS = ("fast_omp", "sds_omp", "sds_ma", "top_k")


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs over one store (``url``), or with ``url`` empty over an array of this shape, in a process of its own."""

    url: str
    state: str
    algorithm: str
    k: int
    repeats: int
    target: str = "signal"
    shape: tuple[int, int] = (0, 0)


def _design(shape: Sequence[int], true: int) -> tuple[Any, dict[str, Any]]:
    """Return features and two responses: of ``true`` features and little noise, and of nearly nothing but noise."""
    X, y = sparse_design(*shape, min(true, shape[1] // 3), 0.3)
    return X, {"signal": y, "noise": X[:, 0] + 5.0 * np.random.default_rng(1).standard_normal(len(X))}


def _device_bytes() -> int:
    """Return the bytes that this process has had read from devices; 0 where the kernel does not count them."""
    try:
        found = re.search(r"^read_bytes: (\d+)", Path("/proc/self/io").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return 0 if found is None else int(found[1])


def _contend(
    contestants: Mapping[str, Callable[[], fo.Selection]],
    repeats: int,
    untimed: Mapping[str, Callable[[], object]] = MappingProxyType({}),
) -> tuple[dict[str, list[float]], dict[str, fo.Selection]]:
    """Time contestants in turn, ``auto`` always; those that one turn shows to lose in R^2 or to be far behind only once.

    The first turn counts where ``untimed`` prepares every run alike. Returns the seconds, and the last selection of each.
    """
    seconds, found = in_turn(contestants, 1, untimed=untimed)
    best = max(each.score for each in found.values())
    good = {name: seconds[name][0] for name, each in found.items() if name != "auto" and best - each.score <= CLOSE}
    near = {"auto", *(name for name, taken in good.items() if taken <= FAR_BEHIND * min(good.values()))}
    left, counted = {name: run for name, run in contestants.items() if name in near}, 1 if untimed else 0
    timed, again = in_turn(left, repeats - counted, untimed=untimed)
    return seconds | {name: seconds[name][:counted] + each for name, each in timed.items()}, found | again


def _stored(cell: Cell) -> dict[str, Any]:
    """Time ``auto`` and the fixed choices over a store, in turn."""
    folder = Path(cell.url.removeprefix("mmap://"))
    read: dict[str, list[int]] = {}
    stayed = 0.0

    def run(name: str, options: dict[str, Any]) -> Callable[[], fo.Selection]:
        def call() -> fo.Selection:
            before = _device_bytes()
            found = fo.select(cell.url, k=cell.k, algorithm=cell.algorithm, target=cell.target, **options)
            read.setdefault(name, []).append(_device_bytes() - before)
            return found

        return call

    def make_cold() -> None:
        nonlocal stayed
        stayed = max(stayed, *(evict(folder / name) for name in ("matrix.npy", "tier.npy")))

    cold = cell.state != "warm"
    fixed = FIXED[cell.state]
    if cell.algorithm != "fast_omp":
        fixed = {name: fixed[name] for name in ("exact", "int8")}
    contestants = {"auto": run("auto", {}), **{name: run(name, options) for name, options in fixed.items()}}
    for tier in ("exact", "int8"):  # imports, and pages of warm runs
        fo.select(cell.url, k=1, target=cell.target, tier=tier, io="direct" if cold else "mmap")
    seconds, found = _contend(contestants, cell.repeats, dict.fromkeys(contestants, make_cold) if cold else {})
    chosen = {name: f"{choice.value}: {choice.reason}" for name, choice in found["auto"].choices.items()}
    return {
        "seconds": seconds,
        "device_bytes": {name: median(each[-len(seconds[name]) :]) for name, each in read.items()},
        "stayed": stayed,
        "answers": len({tuple(each.indices.tolist()) for each in found.values()}),
        "choices": chosen,
    }


def _algorithms(cell: Cell) -> dict[str, Any]:
    """Time the algorithms over an array, in turn."""
    X, responses = _design(cell.shape, 2 * cell.k)
    data, y = Dataset.of_array(X), responses[cell.target]
    runs: dict[str, Callable[[], fo.Selection]] = {
        name: lambda name=name: fo.select(data, y, k=cell.k, algorithm=name)  # type: ignore[misc]
        for name in ("auto", *ALGORITHMS)
    }
    fo.select(data, y, k=1)  # imports
    seconds, found = _contend(runs, cell.repeats)
    chosen = found["auto"].choices["algorithm"]
    scores = {name: each.score for name, each in found.items()}
    return {"seconds": seconds, "scores": scores, "choices": {"algorithm": f"{chosen.value}: {chosen.reason}"}}


def _over(seconds: Mapping[str, Sequence[float]], name: str) -> Ratio | None:
    """Return the time of ``auto`` over that of a contestant; None where that one was timed only once."""
    same = len(seconds[name]) == len(seconds["auto"])
    return paired(seconds["auto"], seconds[name]) if same else None


def _against_the_best(seconds: Mapping[str, Sequence[float]], names: Sequence[str]) -> tuple[str, Ratio]:
    """Return the fastest of ``names``, and the time of ``auto`` over its time."""
    ratios = {name: ratio for name in names if (ratio := _over(seconds, name)) is not None}
    best = min(ratios, key=lambda name: median(seconds[name]))
    return best, ratios[best]


def judge_store(report: Report, title: str, cell: Cell, found: Mapping[str, Any]) -> None:
    """Report and judge a cell of one store."""
    seconds, device = found["seconds"], found["device_bytes"]
    rows = [(name, len(each), median(each), _over(seconds, name), device[name] / 1e9) for name, each in seconds.items()]
    report.table(title, ("choice", "runs", "median s", "auto over it", "GB from the device"), rows)
    report.say("; ".join(f"{name} {text}" for name, text in found["choices"].items()))
    fixed = [name for name in seconds if name != "auto"]
    best, ratio = _against_the_best(seconds, fixed)
    if cell.state == "warm":
        report.bar(f"{title}: time over the best fixed choice ({best})", ratio, WARM, at_most=True)
        return
    if found["stayed"] > 0.05:
        report.say(f"{100 * found['stayed']:.0f} % of a file stayed in memory: not quite cold")
    fewest = min(device[name] for name in fixed)
    bytes_ratio = device["auto"] / fewest if fewest else float("inf")
    if ratio.median > COLD and bytes_ratio <= COLD_BYTES:
        report.bar(f"{title}: bytes over the least of a fixed choice", bytes_ratio, COLD_BYTES, at_most=True)
    else:
        report.bar(f"{title}: time over the best fixed choice ({best})", ratio, COLD, at_most=True)


def judge_algorithms(report: Report, title: str, found: Mapping[str, Any]) -> None:
    """Report and judge a cell of algorithms."""
    seconds, scores = found["seconds"], found["scores"]
    rows = [(name, len(each), median(each), _over(seconds, name), scores[name]) for name, each in seconds.items()]
    report.table(title, ("algorithm", "runs", "median s", "auto over it", "R^2"), rows)
    report.say("; ".join(f"{name} {text}" for name, text in found["choices"].items()))
    highest = max(scores.values())
    if highest - scores["auto"] > CLOSE:
        report.bar(f"{title}: R^2 below the best", highest - scores["auto"], CLOSE, at_most=True)
        return
    best, ratio = _against_the_best(seconds, [name for name in ALGORITHMS if highest - scores[name] <= CLOSE])
    report.bar(f"{title}: time over the fastest as good ({best})", ratio, WARM, at_most=True)


@terminating_cleanly()
def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("auto", __doc__)
    parser.add_argument("--folder", type=Path, help="folder for the stores of up to 2 GB (default a temporary folder)")
    parts = (*SHAPES, "algorithms")
    parser.add_argument("--part", choices=parts, action="append", help="only this part, recorded alone; may be repeated")
    options = parser.parse_args(argv)
    if options.cell is not None:
        cell = Cell(**options.cell)
        print(json.dumps(_stored(cell) if cell.url else _algorithms(cell)))
        return 0
    report, same = Report(options, argv), True
    for part in options.part or parts:
        started = time.monotonic()
        report.part(part)
        if part == "algorithms":
            _measure_algorithms(report, options.quick)
        else:
            same &= _measure_stores(report, part, options.quick, options.folder)
        report.say(f"this part took {(time.monotonic() - started) / 60:.1f} minutes")
    return report.finish() if same else 1


def _measure_algorithms(report: Report, quick: bool) -> None:
    """Measure the algorithms on arrays."""
    for n_obs, n_features, k in PROBLEMS[:2] if quick else PROBLEMS:
        for target in ("signal", "noise"):
            cell = Cell("", "warm", "auto", k, 1 if quick else REPEATS["warm"], target, (n_obs, n_features))
            found = run_cell("benchmarks.auto", asdict(cell))
            report.measured({**asdict(cell), **found})
            judge_algorithms(report, f"algorithm, {n_obs} x {n_features}, k = {k}, {target}", found)


def _measure_stores(report: Report, shape: str, quick: bool, folder: Path | None) -> bool:
    """Measure stores of one shape, one at a time on the disk; return whether no choice changed an answer."""
    warm = (("warm", "fast_omp", SELECTED), ("warm", "sds_omp", SELECTED // 2))
    cold = (("cold", "fast_omp", SELECTED), ("larger than memory", "fast_omp", SELECTED))
    sizes = [QUICK_SHAPES[shape]] * 2 if quick else SHAPES[shape]
    same = True
    with memory_group(LIMIT) as group:
        if group is None:
            report.say("cells larger than memory are skipped: no memory control group can be made here (it takes root)")
        for size, runs in zip(sizes, (warm, cold), strict=True):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                url = f"mmap://{Path(place).resolve()}/store"
                X, responses = _design(size, TRUE)
                fo.create_store(url, X, responses, tier="int8").close()
                del X
                for (state, algorithm, k), target in ((run, target) for run in runs for target in responses):
                    limited = state == "larger than memory"
                    if limited and group is None:
                        continue
                    cell = Cell(url, state, algorithm, k, 1 if quick else REPEATS[state], target)
                    found = run_cell("benchmarks.auto", asdict(cell), group=group if limited else None)
                    report.measured({"size": size, **asdict(cell), **found})
                    same &= found["answers"] == 1
                    judge_store(report, f"{shape}, {size[0]} x {size[1]}, {target}, {algorithm}, {state}", cell, found)
    report.bar(f"{shape}: answers that a choice changes", int(not same), 0, at_most=True)
    return same


if __name__ == "__main__":
    raise SystemExit(main())
