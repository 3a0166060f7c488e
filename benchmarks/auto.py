"""What fastomp chooses by itself against the best fixed choice: tier, reading, threads, memory for columns, and the algorithm.

Stores of three shapes, with signal and with noise alone, are read warm, cold, and cold within a memory limit of a quarter of their
size. Every cell is a process of its own; contestants take turns in it, and medians of paired ratios are judged: warm at most 1.15
times the best fixed choice, cold at most 1.3 times its time or 1.15 times the bytes that the fewest-reading one takes from the
device. ``--algorithm auto`` is judged among the algorithms whose R^2 is within .002 of the best of them.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

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

#: Bytes that a cell larger than memory may fill, page cache included.
LIMIT = 500_000_000

#: Observations and features of the stores: 1.6 GB of matrix and 0.4 GB of tier, and small ones.
SHAPES = {"tall": (60_000, 6600), "square": (20_000, 20_000), "wide": (2000, 200_000)}
QUICK_SHAPES = {"tall": (4000, 600), "square": (1200, 1200), "wide": (300, 8000)}

#: Features selected, and features behind a response with a signal.
SELECTED, TRUE = 40, 30

#: Fixed choices that keep the answer, for files in memory and for cold ones.
CORES = len(os.sched_getaffinity(0))
FIXED: dict[str, dict[str, dict[str, Any]]] = {
    "warm": {
        "exact": {"tier": "exact"},
        "int8": {"tier": "int8"},
        "mmap": {"io": "mmap"},
        "1 thread": {"threads": 1},
        f"{2 * CORES} threads": {"threads": 2 * CORES},
        "gather 64 MiB": {"gather_bytes": 64 << 20},
        "gather 1 GiB": {"gather_bytes": 1 << 30},
    },
    "cold": {
        "exact, mmap": {"tier": "exact", "io": "mmap"},
        "exact, direct": {"tier": "exact", "io": "direct"},
        "int8, mmap": {"tier": "int8", "io": "mmap"},
        "int8, direct": {"tier": "int8", "io": "direct"},
        "gather 64 MiB": {"gather_bytes": 64 << 20},
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
    shape: tuple[int, int] = (0, 0)
    noise: bool = False


def _design(shape: Sequence[int], k: int, noise: bool) -> tuple[Any, Any]:
    """Return features and a response: of several features and little noise, or of nearly nothing but noise."""
    n_obs, n_features = shape
    return sparse_design(n_obs, n_features, 1, 5.0) if noise else sparse_design(n_obs, n_features, min(k, n_features // 3), 0.3)


def _device_bytes() -> int:
    """Return the bytes that this process has had read from devices; 0 where the kernel does not count them."""
    try:
        found = re.search(r"^read_bytes: (\d+)", Path("/proc/self/io").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return 0 if found is None else int(found[1])


def _stored(cell: Cell) -> dict[str, Any]:
    """Time ``auto`` and the fixed choices over a store, in turn."""
    folder = Path(cell.url.removeprefix("mmap://"))
    read: dict[str, list[int]] = {}
    stayed = 0.0

    def run(name: str, options: dict[str, Any]) -> Callable[[], fo.Selection]:
        def call() -> fo.Selection:
            before = _device_bytes()
            found = fo.select(cell.url, k=cell.k, algorithm=cell.algorithm, **options)
            read.setdefault(name, []).append(_device_bytes() - before)
            return found

        return call

    def make_cold() -> None:
        nonlocal stayed
        stayed = max(stayed, *(evict(folder / name) for name in ("matrix.npy", "tier.npy")))

    cold = cell.state != "warm"
    fixed = FIXED["cold" if cold else "warm"]
    if cell.algorithm != "fast_omp":
        fixed = {name: fixed[name] for name in ("exact", "int8")}
    contestants = {"auto": run("auto", {}), **{name: run(name, options) for name, options in fixed.items()}}
    untimed = dict.fromkeys(contestants, make_cold) if cold else {}
    fo.select(cell.url, k=1)  # first use: imports
    seconds, found = in_turn(contestants, cell.repeats, warm=0 if cold else 1, untimed=untimed)
    answers = {tuple(each.indices.tolist()) for each in found.values()}
    chosen = {name: f"{choice.value}: {choice.reason}" for name, choice in found["auto"].choices.items()}
    return {
        "seconds": seconds,
        "device_bytes": {name: median(each[-cell.repeats :]) for name, each in read.items()},
        "stayed": stayed,
        "answers": len(answers),
        "choices": chosen,
    }


def _algorithms(cell: Cell) -> dict[str, Any]:
    """Time the algorithms over an array, in turn."""
    X, y = _design(cell.shape, 2 * cell.k, cell.noise)
    data = Dataset.of_array(X)
    runs: dict[str, Callable[[], fo.Selection]] = {
        name: lambda name=name: fo.select(data, y, k=cell.k, algorithm=name)  # type: ignore[misc]
        for name in ("auto", *ALGORITHMS)
    }
    seconds, found = in_turn(runs, cell.repeats, warm=1)
    chosen = found["auto"].choices["algorithm"]
    scores = {name: each.score for name, each in found.items()}
    return {"seconds": seconds, "scores": scores, "choices": {"algorithm": f"{chosen.value}: {chosen.reason}"}}


def _against_the_best(found: Mapping[str, Any], names: Sequence[str]) -> tuple[str, Ratio]:
    """Return the fastest of ``names``, and the time of ``auto`` over its time."""
    best = min(names, key=lambda name: median(found["seconds"][name]))
    return best, paired(found["seconds"]["auto"], found["seconds"][best])


def judge_store(report: Report, title: str, cell: Cell, found: Mapping[str, Any]) -> None:
    """Report and judge a cell of one store."""
    seconds, device = found["seconds"], found["device_bytes"]
    rows = [(name, median(each), paired(seconds["auto"], each), device[name] / 1e9) for name, each in seconds.items()]
    report.table(f"{title}, {cell.repeats} repeats", ("choice", "median s", "auto over it", "GB from the device"), rows)
    report.say("; ".join(f"{name} {text}" for name, text in found["choices"].items()))
    fixed = [name for name in seconds if name != "auto"]
    best, ratio = _against_the_best(found, fixed)
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


def judge_algorithms(report: Report, title: str, cell: Cell, found: Mapping[str, Any]) -> None:
    """Report and judge a cell of algorithms."""
    seconds, scores = found["seconds"], found["scores"]
    rows = [(name, median(each), paired(seconds["auto"], each), scores[name]) for name, each in seconds.items()]
    report.table(f"{title}, {cell.repeats} repeats", ("algorithm", "median s", "auto over it", "R^2"), rows)
    report.say("; ".join(f"{name} {text}" for name, text in found["choices"].items()))
    highest = max(scores.values())
    if highest - scores["auto"] > CLOSE:
        report.bar(f"{title}: R^2 below the best", highest - scores["auto"], CLOSE, at_most=True)
        return
    best, ratio = _against_the_best(found, [name for name in ALGORITHMS if highest - scores[name] <= CLOSE])
    report.bar(f"{title}: time over the fastest as good ({best})", ratio, WARM, at_most=True)


@terminating_cleanly()
def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("auto", __doc__)
    parser.add_argument("--folder", type=Path, help="folder for the stores of up to 2 GB (default a temporary folder)")
    parser.add_argument("--part", choices=(*SHAPES, "algorithms"), action="append", help="only this part; may be repeated")
    options = parser.parse_args(argv)
    if options.cell is not None:
        cell = Cell(**options.cell)
        print(json.dumps(_stored(cell) if cell.url else _algorithms(cell)))
        return 0
    report, quick = Report(options, argv), options.quick
    started, same, parts = time.monotonic(), True, options.part or (*SHAPES, "algorithms")
    shapes = {name: size for name, size in (QUICK_SHAPES if quick else SHAPES).items() if name in parts}
    if shapes:
        same = _stores(report, shapes, quick, options.folder)
        report.bar("answers that a choice changes", int(not same), 0, at_most=True)
    if "algorithms" in parts:
        problems = [(1000, 500, 150), (500, 5000, 10), (500, 5000, 50), (300, 50_000, 30), (2000, 20_000, 100), (60_000, 784, 40)]
        for n_obs, n_features, k in problems[:2] if quick else problems:
            for noise in (False, True):
                repeats = 1 if quick else 11 if k * n_obs * n_features < 5e8 else 3
                cell = Cell("", "warm", "auto", k, repeats, (n_obs, n_features), noise)
                found = run_cell("benchmarks.auto", asdict(cell))
                report.measured({**asdict(cell), **found})
                kind = "noise" if noise else "signal"
                judge_algorithms(report, f"algorithm, {n_obs} x {n_features}, k = {k}, {kind}", cell, found)
    report.say(f"the whole took {(time.monotonic() - started) / 60:.1f} minutes")
    return report.finish() if same else 1


def _stores(report: Report, shapes: Mapping[str, tuple[int, int]], quick: bool, folder: Path | None) -> bool:
    """Measure stores of these shapes, one at a time on the disk; return whether no choice changed an answer."""
    same = True
    with memory_group(LIMIT) as group:
        if group is None:
            report.say("cells larger than memory are skipped: no memory control group can be made here (it takes root)")
        for (shape, size), noise in ((each, noise) for each in shapes.items() for noise in (False, True)):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                url = f"mmap://{Path(place).resolve()}/store"
                X, y = _design(size, TRUE, noise)
                fo.create_store(url, X, y, tier="int8").close()
                del X
                cells = [
                    Cell(url, "warm", "fast_omp", SELECTED, 1 if quick else 11),
                    Cell(url, "warm", "sds_omp", SELECTED // 2, 1 if quick else 3),
                    Cell(url, "cold", "fast_omp", SELECTED, 1 if quick else 3),
                    Cell(url, "larger than memory", "fast_omp", SELECTED, 1 if quick else 3),
                ]
                for cell in cells:
                    limited = cell.state == "larger than memory"
                    if limited and group is None:
                        continue
                    found = run_cell("benchmarks.auto", asdict(cell), group=group if limited else None)
                    report.measured({"shape": shape, "noise": noise, **asdict(cell), **found})
                    same &= found["answers"] == 1
                    title = f"{shape}, {'noise' if noise else 'signal'}, {cell.algorithm}, {cell.state}"
                    judge_store(report, title, cell, found)
    return same


if __name__ == "__main__":
    raise SystemExit(main())
