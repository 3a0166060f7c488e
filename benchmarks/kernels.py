"""The sweep kernels against BLAS and a copy, float16, int8 and genotypes of 2 bits against float32, the tier, and blocking indices.

All ratios are taken in turn on the same arrays; BLAS gets all cores. A short sweep after an idle moment is timed with the worker
threads pinned away from the caller's processor, as they are, and placed by the system. The last table compares the time of the
blocking indices of a sequence with a sweep over as many columns.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

import fastomp_nvm as fo
from benchmarks.harness.report import Report, argument_parser
from benchmarks.harness.timing import in_turn, paired
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
from fastomp_nvm.matrix.rows import local_rows
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors

__all__ = ["main"]

#: Residuals of the wide sweep.
WIDE = 64

#: Numbers of residuals of sweeps over genotypes.
RESIDUALS = (1, 8, 64)

#: Length of the sequence whose blocking indices are asked for.
SEQUENCE = 300


def sweeps(rows: int, n_obs: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of sweeps over the same numbers as float64, float32, float16 and int8, and of BLAS and a copy.

    Parameters
    ----------
    rows, n_obs : int
        Shape of the matrix; it should be far larger than the processor's caches.
    """
    rng = np.random.default_rng(0)
    single = rng.standard_normal((rows, n_obs), dtype=np.float32)
    double, half = single.astype(np.float64), single.astype(np.float16)
    codes = np.clip(np.rint(single * 30), -127, 127).astype(np.int8)
    target = np.empty_like(single)
    residuals = rng.standard_normal((n_obs, WIDE))
    first = np.ascontiguousarray(residuals[:, 0])
    one, many = first.astype(np.float32), np.ascontiguousarray(residuals, dtype=np.float32)
    quantised = np.rint(residuals[:, :1].T * (INT8_RESIDUAL_LIMIT / np.abs(first).max())).astype(np.int16)
    narrow = np.zeros(rows, dtype=np.bool_)
    sweeper = Sweeper()
    seconds, _ = in_turn(
        {
            "copy": lambda: np.copyto(target, single),
            "BLAS GEMV": lambda: single @ one,
            "float32": lambda: sweeper.dots(local_rows(single), Vectors(residuals[:, :1], single.dtype), narrow),
            "BLAS GEMV, float64": lambda: double @ first,
            "float64": lambda: sweeper.dots(local_rows(double), Vectors(residuals[:, :1], double.dtype), narrow),
            "float16": lambda: sweeper.dots(local_rows(half), Vectors(residuals[:, :1], half.dtype), narrow),
            "int8": lambda: sweeper.dots_int8(codes, quantised),
            "BLAS GEMM": lambda: single @ many,
            "float32, 64 residuals": lambda: sweeper.dots(local_rows(single), Vectors(residuals, single.dtype), narrow),
        },
        repeats,
    )
    return seconds


def after_a_pause(rows: int, n_obs: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of a sweep by a machine that was idle, its threads pinned away from the caller's processor, and not."""
    rng = np.random.default_rng(0)
    single, narrow = rng.standard_normal((rows, n_obs), dtype=np.float32), np.zeros(rows, dtype=np.bool_)
    vectors, sweeper = Vectors(rng.standard_normal((n_obs, 1)), single.dtype), Sweeper()
    pinned = helpers._keep_off

    def free(threads: Sequence[Any]) -> None:
        for thread in threads:
            thread.keep_to(os.sched_getaffinity(0))

    def sweep(place: Callable[[Sequence[Any]], None]) -> None:
        with mock.patch.object(helpers, "_keep_off", place):
            sweeper.dots(local_rows(single), vectors, narrow)

    seconds, _ = in_turn({"pinned": lambda: sweep(pinned), "free": lambda: sweep(free)}, repeats)
    return seconds


def genotypes(rows: int, n_obs: int, repeats: int) -> dict[int, dict[str, list[float]]]:
    """Return, by number of residuals, the seconds of sweeps over genotypes in a .bed, over their numbers in float32, and of BLAS.

    2 % of the genotypes are missing, the file is in the page cache, and the array in memory.
    """
    rng = np.random.default_rng(0)
    codes = rng.choice(np.array([0, 1, 2, 3], dtype=np.uint8), (rows, -(-n_obs // 4), 4), p=[0.2, 0.02, 0.4, 0.38])
    packed = np.bitwise_or.reduce(codes << np.array([0, 2, 4, 6], dtype=np.uint8), axis=2, dtype=np.uint8)
    narrow, found = np.zeros(rows, dtype=np.bool_), {}
    with tempfile.TemporaryDirectory() as folder:
        stem = Path(folder, "all")
        stem.with_suffix(".bed").write_bytes(b"\x6c\x1b\x01" + packed.tobytes())
        stem.with_suffix(".bim").write_text("".join(f"1 rs{place} 0 {place} A G\n" for place in range(rows)))
        stem.with_suffix(".fam").write_text("".join(f"{place} {place} 0 0 0 -9\n" for place in range(n_obs)))
        with fo.open_store(f"plink://{stem}.bed") as store:
            lying, sweeper = local_rows(store.matrix), Sweeper()
            single = np.asarray(store.matrix)
            for count in RESIDUALS:
                residuals = rng.standard_normal((n_obs, count))
                vectors, many = Vectors(residuals, single.dtype), residuals.astype(np.float32)
                ways: dict[str, Callable[[], Any]] = {
                    "genotypes": lambda vectors=vectors: sweeper.dots(lying, vectors, narrow),  # type: ignore[misc]
                    "float32": lambda vectors=vectors: sweeper.dots(local_rows(single), vectors, narrow),  # type: ignore[misc]
                    "BLAS": lambda many=many: single @ many,  # type: ignore[misc]
                }
                found[count], answers = in_turn(ways, repeats)
                assert (answers["genotypes"] == answers["float32"]).all(), "genotypes and float32 have the same bits"
    return found


def tier(n_obs: int, n_features: int, k: int, repeats: int) -> list[dict[str, Any]]:
    """Return, per algorithm, the time and bytes of a selection in memory without the int8 tier over those with it."""
    X, y = sparse_design(n_obs, n_features, 2 * k, 0.1)
    out = []
    with fo.create_store("dram:benchmark-kernels", X, y, tier="int8", replace=True) as store:
        for algorithm in ("sds_omp", "fast_omp"):
            ways: dict[str, Callable[[], Any]] = {
                way: lambda way=way, name=algorithm: fo.select(store, k=k, algorithm=name, plain=True, tier=way)  # type: ignore[misc]
                for way in ("exact", "int8")
            }
            seconds, found = in_turn(ways, repeats)
            exact, tiered = found["exact"], found["int8"]
            out.append(
                {
                    "algorithm": algorithm,
                    "seconds": median(seconds["int8"]),
                    "times_faster": paired(seconds["exact"], seconds["int8"]),
                    "times_fewer_bytes": exact.bytes_read / tiered.bytes_read,
                    "same_answer": exact.indices.tolist() == tiered.indices.tolist() and exact.score == tiered.score,
                }
            )
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
    """Return the median seconds of the blocking indices of all candidates, per family, and their share of a sweep."""
    candidates, nothing = np.arange(n_features), np.empty(0, dtype=np.int64)
    out = []
    for name, constraint in constraints(n_features).items():
        sequence = random_sequence(constraint, nothing, candidates, seed=0, outer=0, inner=0)[0][:SEQUENCE]
        ask = {name: lambda c=constraint, s=sequence: c.blocking(nothing, s, candidates)}
        seconds = median(in_turn(ask, repeats)[0][name])
        out.append({"constraint": name, "sequence": len(sequence), "seconds": seconds, "of_a_sweep": seconds / sweep_seconds})
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    options = argument_parser("kernels", __doc__).parse_args(argv)
    report, quick = Report(options, argv), options.quick
    rows, n_obs, repeats = (2000, 500, 2) if quick else (60_000, 2000, 21)
    candidates = 20_000 if quick else 10**6
    seconds = sweeps(rows, n_obs, repeats)
    gc.collect()
    woken = after_a_pause(*((2000, 500, 2) if quick else (20_000, 800, 25)))
    lying = genotypes(*((1000, 501, 2) if quick else (8000, 20_001, min(repeats, 7))))
    tiers = tier(*((300, 3000, 10, 1) if quick else (2000, 20_000, 100, 5)))
    asked = blocking(candidates, median(seconds["float32"]) * candidates / rows, min(repeats, 5))
    report.figures(shape=[rows, n_obs], sweeps=seconds, after_a_pause=woken, genotypes=lying, tier=tiers, blocking=asked)
    sizes = {"float16": 2, "int8": 1, "float64": 8, "BLAS GEMV, float64": 8}
    report.table(
        f"{rows} x {n_obs}",
        ("sweep", "median seconds", "million rows/s", "GB/s"),
        [
            (name, took := median(times), rows / took / 1e6, rows * n_obs * sizes.get(name, 4) / took / 1e9)
            for name, times in seconds.items()
        ],
    )
    report.say(f"after an idle moment, threads placed by the system over pinned: {paired(woken['free'], woken['pinned'])}")
    report.records("the int8 tier, all in memory", tiers)
    report.records(f"blocking indices of {candidates} candidates, and a sweep of as many columns of {n_obs} observations", asked)
    report.bar("float32 sweep over BLAS GEMV", paired(seconds["BLAS GEMV"], seconds["float32"]), 0.85)
    report.bar("float64 sweep over BLAS GEMV", paired(seconds["BLAS GEMV, float64"], seconds["float64"]), 0.7)
    report.bar("int8 tier over float32 sweep, rows per second", paired(seconds["float32"], seconds["int8"]), 2.5)
    report.bar("float16 over float32 sweep, rows per second", paired(seconds["float32"], seconds["float16"]), 1.2)
    report.bar(f"{WIDE} residuals over BLAS GEMM", paired(seconds["BLAS GEMM"], seconds["float32, 64 residuals"]), 0.5)
    for count, each in lying.items():
        report.say(f"genotypes over BLAS in float32, {count} residuals, rows per second: {paired(each['BLAS'], each['genotypes'])}")
        report.bar(f"genotypes over float32 sweep, {count} residuals", paired(each["float32"], each["genotypes"]), 0.9)
    report.bar("answers that the tier changes", sum(not row["same_answer"] for row in tiers), 0, at_most=True)
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
