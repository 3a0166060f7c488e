"""One pass over a matrix that is not in memory, against the rate of direct reads from its device that compute nothing.

The file's pages are dropped before every pass (verified by sampling them). The ways to read take turns, and ratios are taken within
a turn, because a shared device changes from minute to minute. Exit code 1 when the direct pass falls below 85 % of the device's
rate.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import fastomp_nvm as fo
from benchmarks.harness.device import direct_bandwidth, evict, resident_share
from benchmarks.harness.report import Report, argument_parser, at_least
from benchmarks.harness.timing import paired
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import MediumError
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.schema import TableSchema

__all__ = ["main"]

BAR = 0.85


def build(folder: Path, n_obs: int, n_features: int) -> None:
    """Build a store of random numbers."""
    rng = np.random.default_rng(0)
    with StoreBuilder(f"mmap://{folder}", TableSchema.plain(n_obs, NumberedNames(n_features)), tier="none") as builder:
        for first in range(0, n_features, 256):
            builder.write_columns(first, rng.standard_normal((min(256, n_features - first), n_obs), dtype=np.float32))
        builder.finish({})


def cold_sweep(folder: Path, io: str) -> tuple[float, float]:
    """Drop the matrix from memory and sweep it; return bytes per second and the share of it in memory afterwards."""
    file = folder / "matrix.npy"
    stayed = evict(file)
    if stayed > 0.05:
        raise MediumError(f"{100 * stayed:.0f} % of {file} stayed in memory: it cannot be made cold here")
    with fo.open_store(f"mmap://{folder}") as store:
        dataset = Dataset.of_store(store, io)
        vectors = Vectors(np.random.default_rng(0).standard_normal((dataset.n_obs, 1)), dataset.matrix.dtype)
        sweeper = Sweeper()
        started = time.perf_counter()
        sweeper.dots(dataset.matrix, vectors, np.zeros(len(dataset.matrix), np.bool_))
        seconds = time.perf_counter() - started
        return dataset.matrix.nbytes / seconds, resident_share(file)


def measure(folder: Path, n_obs: int, n_features: int, turns: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return bytes per second of every turn, and the share of the file that each way left in memory."""
    build(folder, n_obs, n_features)
    rates: dict[str, list[float]] = {"device": [], "direct": [], "mmap": []}
    left = {}
    for turn in range(turns):
        # The device goes first and second in turn, so that a drift favours neither.
        for name in ("device", "direct", "mmap") if turn % 2 else ("direct", "device", "mmap"):
            if name == "device":
                evict(folder / "matrix.npy")
                rates[name].append(direct_bandwidth(folder / "matrix.npy"))
            else:
                rate, left[name] = cold_sweep(folder, name)
                rates[name].append(rate)
    return rates, left


@terminating_cleanly()
def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("cold-pass", __doc__)
    parser.add_argument("--observations", type=int, default=5000)
    parser.add_argument("--features", type=int, default=50_000, help="1 GB by default")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="folder on the device to measure (default a temporary folder)")
    options = parser.parse_args(argv)
    for option in ("observations", "features", "turns"):
        at_least(f"--{option}", getattr(options, option), 1)
    report = Report(options, argv)
    sizes = (1000, 2000, 1) if options.quick else (options.observations, options.features, options.turns)
    place = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        rates, left = measure(place / "store", *sizes)
    finally:
        shutil.rmtree(place)
    direct, mapped = (paired(rates[name], rates["device"]) for name in ("direct", "mmap"))
    report.figures(bytes_per_second=rates, resident_share_afterwards=left, ratio=direct.median, ratio_mmap=mapped.median)
    rows = [(name, ", ".join(f"{rate / 1e9:.2f}" for rate in each), left.get(name)) for name, each in rates.items()]
    report.table("one cold pass", ("way", "GB/s per turn", "share in memory afterwards"), rows)
    report.say(f"mmap pass over device: {mapped}")
    report.bar("direct pass over device", direct, BAR)
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
