"""The paper's largest size on a small machine: a million features of ten thousand observations, partition-constrained, k = 300.

The paper's design is generated block by block into a store with an int8 tier. Selections follow, each in a process of its own, all
with the tier copied into memory: ``quality="fast"``, ``quality="verified"``, and a few passes of plain matching pursuit, from which
the time of all its k passes is estimated. ``--exact`` adds ``fast`` from the exact matrix alone, which takes the longest and shows
that the tier changes no answer. Generation, ingest and selection are timed separately; the device is measured between the passes,
and that time is not counted. The default is the largest of ``SIZES`` that the free disk holds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import mmap
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fastomp_nvm as fo
from benchmarks.harness.data import build_paper_design
from benchmarks.harness.device import direct_bandwidth, evict
from benchmarks.harness.memory import PeakMemory
from benchmarks.harness.processes import run_cell
from benchmarks.harness.report import Report, argument_parser, at_least
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.constraints import Partition
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import MediumError, RequestError

__all__ = ["main"]

SIZES = ((1_000_000, 10_000), (400_000, 5000), (100_000, 5000), (20_000, 2000))

#: Disk asked for beyond the bytes of matrix and tier: 55 GB for the full size of 40 + 10 GB.
HEADROOM = 1.1

GROUPS = 100

#: Parts of the file, of which one is read after every pass to measure the device.
STRETCHES = 10

#: Time over passes x bytes / bandwidth without the tier; seconds and bytes of memory at the full size with it.
EXACT_BAR, SECONDS_BAR, MEMORY_BAR = 1.3, 90.0, 14e9

#: Time of the verified selection over that of the fast one.
VERIFIED_BAR = 6.0

#: Passes of plain greedy that are measured.
PLAIN_PASSES = 5


@terminating_cleanly()
def main(argv: Sequence[str] | None = None) -> int:
    """Generate, select, print, judge."""
    parser = argument_parser("scale", __doc__, out=True)
    parser.add_argument("--features", type=int, help="number of features (default by the free disk)")
    parser.add_argument("--observations", type=int, help="number of observations (default by the free disk)")
    parser.add_argument("--dtype", choices=("float32", "float16"), help="of a store that is built (default float32)")
    parser.add_argument("--k", type=int, default=300)
    parser.add_argument("--exact", action="store_true", help="select from the exact matrix alone as well")
    parser.add_argument("--folder", type=Path, help="folder on the device to measure (default the folder of the results)")
    parser.add_argument("--store", type=Path, help="build the store here and keep it; an existing one is used as it is")
    options = parser.parse_args(argv)
    if options.cell:
        print(json.dumps(select_cell(**options.cell)))
        return 0
    at_least("--k", options.k, 1)
    k = min(options.k, 100) if options.quick else options.k
    if options.features is not None:
        at_least("--features, of which --k are selected,", options.features, k)
    if options.observations is not None:
        at_least("--observations", options.observations, 2)
    if options.store is not None and options.store.exists():
        check_store(options.store, options, k)
    report = Report(options, argv)
    with contextlib.ExitStack() as stack:
        folder = options.folder or options.out
        store = options.store or Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix="scale-"))) / "store"
        store = store.resolve()
        built: dict[str, float] = {}
        if not store.exists():
            n_features, n_obs = choose_size(options, shutil.disk_usage(store.parent).free)
            check_k(k, n_features)
            built = build(store, n_features, n_obs, options.dtype or "float32")
        row = {**built, **measure(store, k, options.exact)}
    report.measured(row)
    report.figures(**row)
    show(report, row)
    bars(report, row)
    return report.finish(judged=True)


def needed_bytes(n_features: int, n_obs: int, dtype: str) -> int:
    """Return the disk that matrix and tier of a size need, with headroom."""
    return int(HEADROOM * n_features * n_obs * (np.dtype(dtype).itemsize + 1))


def check_store(store: Path, arguments: argparse.Namespace, k: int) -> None:
    """Refuse a store that contradicts the options."""
    with fo.open_store(f"mmap://{store}") as opened:
        layout = opened.layout
        holds = {"features": layout.n_features, "observations": layout.n_obs, "dtype": str(opened.matrix.dtype)}
    for option, found in holds.items():
        if (asked := getattr(arguments, option)) not in (None, found):
            raise RequestError(
                f"--{option} is {asked} and the store {store} has {found}: leave --{option} out or build in another place"
            )
    check_k(k, layout.n_features)


def check_k(k: int, n_features: int) -> None:
    """Refuse to select more features than there are."""
    if k > n_features:
        raise RequestError(f"--k is {k} and there are {n_features} features: ask for at most as many")


def choose_size(arguments: argparse.Namespace, free: int) -> tuple[int, int]:
    """Return features and observations: as asked for, or the largest of ``SIZES`` that ``free`` bytes of disk hold."""
    sizes = [SIZES[-1]] if arguments.quick else list(SIZES)
    if arguments.features or arguments.observations:
        sizes = [(arguments.features or SIZES[-1][0], arguments.observations or SIZES[-1][1])]
    dtype = arguments.dtype or "float32"
    for n_features, n_obs in sizes:
        if needed_bytes(n_features, n_obs, dtype) <= free:
            return n_features, n_obs
    needed = needed_bytes(*sizes[-1], dtype)
    raise MediumError(
        f"{needed / 1e9:.1f} GB of disk are needed and {free / 1e9:.1f} GB are free: choose a smaller size or --folder"
    )


def measure(store: Path, k: int, exact: bool) -> dict[str, Any]:
    """Select from the store in every way; return the figures."""
    with fo.open_store(f"mmap://{store}") as opened:
        layout = opened.layout
        row: dict[str, Any] = {"n_features": layout.n_features, "n_obs": layout.n_obs, "dtype": str(opened.matrix.dtype), "k": k}
        row |= {"groups": GROUPS, "bytes": opened.matrix.nbytes}
    ways: dict[str, dict[str, Any]] = {"fast": {}, "verified": {"quality": "verified"}}
    ways["plain"] = {"algorithm": "sds_omp", "plain": True, "k": min(k, PLAIN_PASSES)}
    if exact:
        ways["exact_only"] = {"tier": "exact"}
    for name, request in ways.items():
        found = run_cell("benchmarks.scale", {"store": str(store), "k": k, "tier": "int8", **request}, None)
        found["device_seconds"] = found["bytes_read_exact"] / found["device_bytes_per_second"]
        row[name] = found
    indices = {name: row[name].pop("indices") for name in ways}
    if exact:
        row["same_features"] = indices["fast"] == indices["exact_only"]
    plain = row.pop("plain")
    row["plain_seconds"] = plain["load_seconds"] + k * (plain["seconds"] - plain["load_seconds"]) / plain["passes"]
    row["ratio"] = row["verified"]["seconds"] / row["fast"]["seconds"]
    return row


def build(store: Path, n_features: int, n_obs: int, dtype: str) -> dict[str, float]:
    """Build the store; return the seconds of generating the data and of everything else."""
    started = time.perf_counter()
    generation = build_paper_design(f"mmap://{store}", n_obs, n_features, dtype)
    return {"generation_seconds": generation, "ingest_seconds": time.perf_counter() - started - generation}


def select_cell(store: str, tier: str, k: int, **request: Any) -> dict[str, Any]:
    """Select in this process from a cold store; return the figures."""
    stayed = max(evict(Path(store) / name) for name in ("matrix.npy", "tier.npy"))
    fresh = _fresh_memory_rate()
    with PeakMemory() as memory:
        started = time.perf_counter()
        with fo.open_store(f"mmap://{store}") as opened:
            device = _DeviceBetweenPasses(Path(store) / "matrix.npy", opened.matrix.nbytes // (4 if tier == "int8" else 1))
            if tier == "int8":
                opened.load_tier()
            loaded = time.perf_counter()
            n_features = opened.layout.n_features
            caps = [math.ceil(k / GROUPS)] * GROUPS
            constraint = Partition(n_features, np.arange(n_features) % GROUPS, caps)
            found = fo.select(Dataset.of_store(opened), k=k, constraint=constraint, tier=tier, observer=device, **request)
    return {
        "seconds": time.perf_counter() - started - device.seconds,
        "load_seconds": loaded - started,
        "selected": len(found.indices),
        "score": found.score,
        "passes": found.full_passes,
        "vectors": found.vectors,
        "bytes_read": found.bytes_read,
        "bytes_read_exact": found.bytes_read_exact,
        "peak_memory": memory.peak,
        "resident_before": stayed,
        "fresh_memory_bytes_per_second": fresh,
        "device_bytes_per_second": device.bytes / device.seconds,
        "indices": found.indices.tolist(),
    }


class _DeviceBetweenPasses:
    """Measures the device before the first pass and after each, on a part of the file: a shared device changes quickly.

    Parameters
    ----------
    path : Path
    pass_bytes : int
        Bytes of a pass.

    Attributes
    ----------
    seconds, bytes : float
        Spent and read by the measurements.
    """

    def __init__(self, path: Path, pass_bytes: int) -> None:
        self.seconds = self.bytes = 0.0
        self._path, self._pass, self._due = path, pass_bytes, 0
        self._stretch = max(path.stat().st_size // STRETCHES // mmap.PAGESIZE, 1) * mmap.PAGESIZE
        self._number = 0

    def __call__(self, progress: Progress) -> None:
        """Read the next part of the file if a pass was made since the last one."""
        if progress.bytes_read < self._due:
            return
        self._due = progress.bytes_read + self._pass
        started = time.perf_counter()
        rate = direct_bandwidth(self._path, self._number % STRETCHES * self._stretch, self._stretch)
        took = time.perf_counter() - started
        self.seconds += took
        self.bytes += rate * took
        self._number += 1


def _fresh_memory_rate() -> float:
    """Return the bytes per second at which fresh memory is mapped: a host that assigns it lazily can be slower than a disk."""
    size = 1 << 30
    started = time.perf_counter()
    np.empty(size, dtype=np.uint8)[:: mmap.PAGESIZE] = 1
    return size / (time.perf_counter() - started)


def bars(report: Report, row: dict[str, Any]) -> None:
    """Judge the figures; seconds and memory have a bar at the full size only."""
    fast = row["fast"]
    report.bar("verified over fast, seconds", row["ratio"], VERIFIED_BAR, at_most=True)
    if (row["n_features"], row["n_obs"], row["dtype"]) == (*SIZES[0], "float32"):
        report.bar("fast: seconds, loading the tier included", fast["seconds"], SECONDS_BAR, at_most=True)
        report.bar("fast: anonymous and shared memory, bytes", fast["peak_memory"], MEMORY_BAR, at_most=True)
    if "exact_only" in row:
        exact = row["exact_only"]
        report.bar("answers that the tier changes", int(not row["same_features"]), 0, at_most=True)
        claim = "exact only: seconds over passes x bytes / device bandwidth"
        report.bar(claim, exact["seconds"] / exact["device_seconds"], EXACT_BAR, at_most=True)


def show(report: Report, row: dict[str, Any]) -> None:
    """Report sizes, building and the selections."""
    report.say(
        f"{row['n_features']:,} features x {row['n_obs']:,} observations, {row['dtype']}, {row['bytes'] / 1e9:.1f} GB; "
        f"{row['groups']} groups, k = {row['k']}"
    )
    if "generation_seconds" in row:
        report.say(f"generation {row['generation_seconds']:.1f} s, ingest {row['ingest_seconds']:.1f} s")
    ways = {"fast": "fast", "verified": "verified", "exact_only": "fast, exact only"}
    report.columns("", {title: row[name] for name, title in ways.items() if name in row})
    report.say(f"verified over fast: {row['ratio']:.2f} times the seconds")
    passes = min(row["k"], PLAIN_PASSES)
    report.say(
        f"plain greedy: {row['plain_seconds']:.0f} s (estimated: {row['k']} passes over the tier, {passes} of them measured)"
    )
    if "exact_only" in row:
        report.say(f"same features with and without the tier: {row['same_features']}")


if __name__ == "__main__":
    raise SystemExit(main())
