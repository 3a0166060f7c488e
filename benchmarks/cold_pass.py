"""One pass over a matrix that is not in memory, against what its device delivers to direct reads that compute nothing.

The file's pages are dropped before every reading (verified by sampling them). The ways to read take turns, several times over; a
ratio is taken within a turn, and its median over the turns counts, because a shared device changes from minute to minute. Exit code
1 when the direct pass falls below 85 % of the device's rate.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import fastomp_nvm as fo
from benchmarks.harness.device import direct_bandwidth, evict, resident_share
from benchmarks.harness.machine import at_least, fingerprint
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
        dataset = Dataset.of_store(store)
        vectors = Vectors(np.random.default_rng(0).standard_normal((dataset.n_obs, 1)), dataset.matrix.dtype)
        sweeper = Sweeper(files=dataset.files, io=io)
        started = time.perf_counter()
        sweeper.dots(dataset.matrix, vectors, np.zeros(len(dataset.matrix), np.bool_))
        seconds = time.perf_counter() - started
        sweeper.close()
        return dataset.matrix.nbytes / seconds, resident_share(file)


def measure(folder: Path, n_obs: int, n_features: int, turns: int) -> dict[str, Any]:
    """Return the rates of every turn, and how much of the file each way left in memory."""
    build(folder, n_obs, n_features)
    rates: dict[str, list[float]] = {"device": [], "direct": [], "mmap": []}
    left = {}
    for turn in range(turns):
        # The device goes first and last in turn, so that a drift favours neither.
        for name in ("device", "direct") if turn % 2 else ("direct", "device"):
            if name == "device":
                evict(folder / "matrix.npy")
                rates[name].append(direct_bandwidth(folder / "matrix.npy"))
            else:
                rate, left[name] = cold_sweep(folder, name)
                rates[name].append(rate)
        rate, left["mmap"] = cold_sweep(folder, "mmap")
        rates["mmap"].append(rate)
    ratios = {name: [mine / raw for mine, raw in zip(rates[name], rates["device"], strict=True)] for name in ("direct", "mmap")}
    return {
        "bytes": 4 * n_obs * n_features,
        "bytes_per_second": rates,
        "resident_share_afterwards": left,
        "ratios": ratios,
        "ratio": statistics.median(ratios["direct"]),
        "ratio_mmap": statistics.median(ratios["mmap"]),
    }


@terminating_cleanly()
def main(argv: list[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(prog="fastomp bench cold-pass", description=__doc__.splitlines()[0])
    parser.add_argument("--observations", type=int, default=5000)
    parser.add_argument("--features", type=int, default=50_000, help="1 GB by default")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="folder on the device to measure (default a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    for option in ("observations", "features", "turns"):
        at_least(f"--{option}", getattr(arguments, option), 1)
    place = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        found = measure(place / "store", arguments.observations, arguments.features, arguments.turns)
    finally:
        shutil.rmtree(place)
    if arguments.json:
        print(json.dumps({"machine": fingerprint(), **found, "bar": BAR, "met": found["ratio"] >= BAR}))
    else:
        console = Console(width=120, highlight=False, markup=False)
        for name, rates in found["bytes_per_second"].items():
            shown = ", ".join(f"{rate / 1e9:.2f}" for rate in rates)
            kept = found["resident_share_afterwards"].get(name)
            console.print(f"{name:7} {shown} GB/s" + ("" if kept is None else f"; {100 * kept:.0f} % in memory afterwards"))
        console.print(f"mmap pass over device: {found['ratio_mmap']:.2f}")
        verdict = "met   " if found["ratio"] >= BAR else "MISSED"
        console.print(f"{verdict} direct pass over device: {found['ratio']:.2f} (bar >= {BAR})")
    return 0 if found["ratio"] >= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
