"""Every bar of the sweep kernels in one run: against BLAS, of float16 and int8 against float32, of the tier, and of constraints.

``fastomp bench kernels`` prints ratios of medians, measured in turn on the same arrays, and ends with 1 when a bar is missed. BLAS
gets all cores. A short sweep after an idle moment is timed with the threads that help kept off the processor of who sweeps, as they
are, and left to the kernel. The last table is the time that the blocking indices of a sequence take, next to a sweep over as many
columns.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fastomp_nvm as fo
from benchmarks.harness.machine import Bar, fingerprint, interleaved, show_bars
from fastomp_nvm.algorithms.draws import random_sequence
from fastomp_nvm.analysis.synthetic import sparse_design
from fastomp_nvm.constraints import (
    Bounds,
    Cardinality,
    Constraint,
    Fairness,
    Graphic,
    Intersection,
    Knapsack,
    Laminar,
    Partition,
    RandomSystem,
)
from fastomp_nvm.matrix import threads as helpers
from fastomp_nvm.matrix.kernels import INT8_RESIDUAL_LIMIT
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors

__all__ = ["main"]

#: Residuals of the wide sweep.
WIDE = 64

#: Length of the sequence whose blocking indices are asked for.
SEQUENCE = 300


def sweeps(rows: int, n_obs: int, repeats: int) -> dict[str, float]:
    """Return the median seconds of sweeps over the same numbers as float32, float16 and int8, and of BLAS.

    Parameters
    ----------
    rows, n_obs : int
        Shape of the matrix; it should be far larger than the processor's caches.
    """
    rng = np.random.default_rng(0)
    single = rng.standard_normal((rows, n_obs), dtype=np.float32)
    half = single.astype(np.float16)
    codes = np.clip(np.rint(single * 30), -127, 127).astype(np.int8)
    residuals = rng.standard_normal((n_obs, WIDE))
    one, many = residuals[:, 0].astype(np.float32), np.ascontiguousarray(residuals, dtype=np.float32)
    quantised = np.rint(residuals[:, :1].T * (INT8_RESIDUAL_LIMIT / np.abs(residuals[:, 0]).max())).astype(np.int16)
    narrow = np.zeros(rows, dtype=np.bool_)
    sweeper = Sweeper()
    seconds, _ = interleaved(
        {
            "BLAS GEMV": lambda: single @ one,
            "float32": lambda: sweeper.dots(single, Vectors(residuals[:, :1], single.dtype), narrow),
            "float16": lambda: sweeper.dots(half, Vectors(residuals[:, :1], half.dtype), narrow),
            "int8": lambda: sweeper.dots_int8(codes, quantised),
            "BLAS GEMM": lambda: single @ many,
            "float32, 64 residuals": lambda: sweeper.dots(single, Vectors(residuals, single.dtype), narrow),
        },
        repeats,
        statistics.median,
    )
    sweeper.close()
    return seconds


def after_a_pause(rows: int, n_obs: int, repeats: int) -> dict[str, float]:
    """Return the median seconds of a sweep by a machine that was idle, its threads kept off the caller's processor, and not."""
    rng = np.random.default_rng(0)
    single, narrow = rng.standard_normal((rows, n_obs), dtype=np.float32), np.zeros(rows, dtype=np.bool_)
    vectors, sweeper = Vectors(rng.standard_normal((n_obs, 1)), single.dtype), Sweeper()
    keeping_off = helpers._keep_off

    def left_to_the_kernel(threads: Sequence[Any]) -> None:
        for thread in threads:
            thread.keep_to(os.sched_getaffinity(0))

    def sweep(keep: Callable[[Sequence[Any]], None]) -> None:
        helpers._keep_off = keep
        sweeper.dots(single, vectors, narrow)

    ways = {"kept off": lambda: sweep(keeping_off), "left to the kernel": lambda: sweep(left_to_the_kernel)}
    try:
        seconds, _ = interleaved(ways, repeats, statistics.median)
    finally:
        helpers._keep_off = keeping_off
        sweeper.close()
    return seconds


def tier(n_obs: int, n_features: int, k: int, repeats: int) -> list[dict[str, Any]]:
    """Return, per algorithm, what the int8 tier saves of a selection in memory: time and bytes, without over with."""
    X, y = sparse_design(n_obs, n_features, 2 * k, 0.1)
    store = fo.create_store("dram:benchmark-kernels", X, y, tier="int8", replace=True)
    out = []
    for algorithm in ("sds_omp", "fast_omp"):
        ways: dict[str, Callable[[], Any]] = {
            way: lambda way=way, name=algorithm: fo.select(store, k=k, algorithm=name, tier=way)  # type: ignore[misc]
            for way in ("exact", "int8")
        }
        seconds, found = interleaved(ways, repeats, statistics.median)
        exact, tiered = found["exact"], found["int8"]
        out.append(
            {
                "algorithm": algorithm,
                "seconds": seconds["int8"],
                "times_faster": seconds["exact"] / seconds["int8"],
                "times_fewer_bytes": exact.bytes_read / tiered.bytes_read,
                "same_answer": exact.indices.tolist() == tiered.indices.tolist() and exact.score == tiered.score,
            }
        )
    store.close()
    return out


def constraints(n_features: int) -> dict[str, Constraint]:
    """Return one of each built-in family, wide enough for a long sequence."""
    rng = np.random.default_rng(0)
    groups, width = rng.integers(0, 1000, n_features), max(n_features // 1000, 1)
    ones = np.ones(1000, dtype=np.int64)
    halves = [np.arange(start, min(start + 10 * width, n_features)) for start in range(0, n_features, 10 * width)]
    leaves = [np.arange(start, min(start + width, n_features)) for start in range(0, n_features, width)]
    nested = [np.arange(n_features), *halves, *leaves]
    people = rng.random((64, n_features), dtype=np.float32) < 0.9995
    vertices = np.sort(rng.integers(0, 2000, (n_features, 2)), axis=1)
    vertices[vertices[:, 0] == vertices[:, 1], 1] += 1
    return {
        "cardinality": Cardinality(n_features, 400),
        "partition": Partition(n_features, groups, ones),
        "bounds": Bounds(n_features, groups % 100, np.full(100, 2), np.full(100, 8), 400),
        "laminar": Laminar(n_features, nested, np.array([500] + [6] * len(halves) + [1] * len(leaves))),
        "graphic": Graphic(n_features, vertices),
        "knapsack": Knapsack(n_features, rng.random(n_features), 250.0),
        "fairness": Fairness(n_features, people, 0.5),
        "random p-system": RandomSystem(n_features, p=3, n_groups=1000, cap=2),
        "intersection": Intersection([Cardinality(n_features, 400), Partition(n_features, groups, ones)]),
    }


def blocking(n_features: int, sweep_seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Return the seconds of the blocking indices of all candidates, per family, and their share of a sweep."""
    candidates, nothing = np.arange(n_features), np.empty(0, dtype=np.int64)
    out = []
    for name, constraint in constraints(n_features).items():
        sequence = random_sequence(constraint, nothing, candidates, seed=0, outer=0, inner=0)[0][:SEQUENCE]
        ask = {name: lambda c=constraint, s=sequence: c.blocking(nothing, s, candidates)}
        seconds = interleaved(ask, repeats, statistics.median)[0][name]
        out.append({"constraint": name, "sequence": len(sequence), "seconds": seconds, "of_a_sweep": seconds / sweep_seconds})
    return out


def main(argv: list[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(prog="fastomp bench kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller data: a smoke test, not a measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    rows, n_obs, repeats = (2000, 500, 2) if arguments.quick else (60_000, 2000, 21)
    candidates = 20_000 if arguments.quick else 10**6
    seconds = sweeps(rows, n_obs, repeats)
    gc.collect()
    woken = after_a_pause(*((2000, 500, 2) if arguments.quick else (20_000, 800, 25)))
    tiers = tier(*((300, 3000, 10, 1) if arguments.quick else (2000, 20_000, 100, 5)))
    asked = blocking(candidates, seconds["float32"] * candidates / rows, min(repeats, 5))
    bars = [
        Bar("float32 sweep over BLAS GEMV", seconds["BLAS GEMV"] / seconds["float32"], 0.85),
        Bar("int8 tier over float32 sweep, rows per second", seconds["float32"] / seconds["int8"], 2.5),
        Bar("float16 over float32 sweep, rows per second", seconds["float32"] / seconds["float16"], 1.2),
        Bar(f"{WIDE} residuals over BLAS GEMM", seconds["BLAS GEMM"] / seconds["float32, 64 residuals"], 0.5),
        Bar("answers that the tier changes", sum(not row["same_answer"] for row in tiers), 0, at_most=True),
    ]
    if arguments.json:
        figures = {
            "shape": [rows, n_obs],
            "sweeps": seconds,
            "after_a_pause": woken,
            "tier": tiers,
            "blocking": asked,
            "bars": list(map(asdict, bars)),
        }
        print(json.dumps({"machine": fingerprint(), **figures}))
    else:
        _show(rows, n_obs, candidates, seconds, woken, tiers, asked, bars)
    return 0 if arguments.quick or all(bar.met for bar in bars) else 1


def _show(
    rows: int,
    n_obs: int,
    candidates: int,
    seconds: dict[str, float],
    woken: dict[str, float],
    tiers: list[dict[str, Any]],
    asked: list[dict[str, Any]],
    bars: list[Bar],
) -> None:
    """Print tables for a person."""
    console = Console(width=120, highlight=False, markup=False)
    machine = fingerprint()
    console.print(f"{machine['cpu']}, {machine['cores']} cores, numpy {machine['numpy']}, kernel {machine['kernel']}")
    table = Table("sweep", "seconds", "million rows/s", "GB/s", title=f"{rows} x {n_obs}")
    for name, size in (
        ("BLAS GEMV", 4),
        ("float32", 4),
        ("float16", 2),
        ("int8", 1),
        ("BLAS GEMM", 4),
        ("float32, 64 residuals", 4),
    ):
        took = seconds[name]
        table.add_row(name, f"{took:.4f}", f"{rows / took / 1e6:.2f}", f"{rows * n_obs * size / took / 1e9:.1f}")
    console.print(table)
    faster = woken["left to the kernel"] / woken["kept off"]
    console.print(
        f"64 MB after an idle moment, threads kept off the caller's processor: {faster:.2f} times as fast as left to the kernel"
    )
    table = Table("algorithm", "seconds", "times faster", "times fewer bytes", "same answer", title="the int8 tier, all in memory")
    for row in tiers:
        figures = (f"{row['seconds']:.4f}", f"{row['times_faster']:.2f}", f"{row['times_fewer_bytes']:.2f}")
        table.add_row(row["algorithm"], *figures, str(row["same_answer"]))
    console.print(table)
    title = f"blocking indices of {candidates} candidates, and a sweep of as many columns of {n_obs} observations"
    table = Table("constraint", "sequence", "seconds", "of a sweep", title=title)
    for row in asked:
        table.add_row(row["constraint"], str(row["sequence"]), f"{row['seconds']:.4f}", f"{row['of_a_sweep']:.3f}")
    console.print(table)
    show_bars(console, bars)


if __name__ == "__main__":
    raise SystemExit(main())
