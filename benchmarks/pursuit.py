"""Sweep bandwidth against memory and BLAS, and FAST_OMP against scikit-learn's OMP and our SDS_OMP, in one run.

``python -m benchmarks.pursuit`` prints every figure as a ratio of times measured side by side, and exits with 1 when a bar is
missed. scikit-learn is given what suits it best: float64, Fortran order, ``precompute=False`` on the wide set (and its Gram form
too on the small one), all cores for its BLAS. In float32 it stops early, so its number of selected features is printed.

The bars on the wide set are loose; ``fastomp bench kernels`` (0.85 of BLAS GEMV in float32) and ``fastomp bench fast`` (6 times
faster than scikit-learn's best form, R^2 not below its) judge the strict ones.
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fastomp_nvm as fo
from benchmarks.harness.machine import fingerprint, interleaved
from fastomp_nvm.analysis.synthetic import PaperDesign, sparse_design
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.matrix.standardisation import Standardisation
from fastomp_nvm.matrix.sweeper import Sweeper

__all__ = ["main"]

#: On small data rounds cost more than sweeps; a larger epsilon has half as many.
COARSE = "FAST_OMP, epsilon 0.3, no polish"


def sweep_ratios(rows: int, n_obs: int, repeats: int) -> list[dict[str, Any]]:
    """Return the bandwidth of a full sweep with one residual over that of a copy and of BLAS GEMV, per element type."""
    out = []
    for dtype in (np.float32, np.float64):
        matrix = np.random.default_rng(0).standard_normal((rows, n_obs)).astype(dtype)
        vector = np.random.default_rng(1).standard_normal((n_obs, 1))
        typed, target = vector[:, 0].astype(dtype), np.empty_like(matrix)
        plain = Standardisation.identity(np.arange(rows + 1), np.ones(rows))
        sweeper = Sweeper()
        seconds, _ = interleaved(
            {
                "copy": lambda m=matrix, t=target: np.copyto(t, m),
                "gemv": lambda m=matrix, v=typed: m @ v,
                "sweep": lambda m=matrix, v=vector, s=sweeper, p=plain: s.products(m, p, v),
            },
            repeats,
        )
        sweeper.close()
        out.append(
            {
                "dtype": np.dtype(dtype).name,
                "megabytes": matrix.nbytes / 1e6,
                "sweep_gb_per_s": matrix.nbytes / seconds["sweep"] / 1e9,
                "over_gemv": seconds["gemv"] / seconds["sweep"],
                "over_copy": seconds["copy"] / seconds["sweep"],
            }
        )
    return out


def _sklearn(X: np.ndarray, y: np.ndarray, k: int, precompute: bool) -> tuple[int, np.ndarray]:
    """Fit scikit-learn's OMP; return how many features it selected and which."""
    from sklearn.linear_model import OrthogonalMatchingPursuit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in float32 it warns that it stopped early; the count below says so
        model = OrthogonalMatchingPursuit(n_nonzero_coefs=k, precompute=precompute).fit(X, y)
    chosen = np.flatnonzero(model.coef_)
    return len(chosen), chosen


def _r2(X: np.ndarray, y: np.ndarray, chosen: np.ndarray) -> float:
    """Return R^2 of a least-squares refit in float64: one measure for all contestants."""
    design = np.column_stack((np.ones(len(y)), X[:, chosen].astype(np.float64)))
    rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return 1.0 - float(rest @ rest) / float(((y - y.mean()) ** 2).sum())


def pursuit_ratios(name: str, X: np.ndarray, y: np.ndarray, k: int, repeats: int) -> dict[str, Any]:
    """Time the contestants on one data set at equal k.

    Parameters
    ----------
    X : (n_obs, n_features) float32
    y : (n_obs,) float64
    """
    wide, narrow = np.asfortranarray(X.astype(np.float64)), np.asfortranarray(X)
    data: Any = Dataset.of_array(X)
    if X.size < 10**6:  # small: the call as a user makes it, array in, everything included
        data = np.ascontiguousarray(wide)
    contestants = {
        "scikit-learn OMP, float64 Fortran": lambda: _sklearn(wide, y, k, False),
        "scikit-learn OMP, float32 Fortran": lambda: _sklearn(narrow, y, k, False),
        "SDS_OMP": lambda: fo.select(data, y, k=k, algorithm="sds_omp"),
        "FAST_OMP": lambda: fo.select(data, y, k=k),
        "FAST_OMP, no polish": lambda: fo.select(data, y, k=k, tau=0.9, polish="none"),
    }
    if X.shape[1] <= X.shape[0]:
        contestants["scikit-learn OMP, Gram"] = lambda: _sklearn(wide, y, k, True)
        contestants[COARSE] = lambda: fo.select(data, y, k=k, epsilon=0.3, polish="none")
    seconds, results = interleaved(contestants, repeats)
    rows = []
    for label, found in results.items():
        chosen = found[1] if isinstance(found, tuple) else found.indices
        passes = None if isinstance(found, tuple) else found.full_passes
        score = _r2(X, y, chosen)
        rows.append({"contestant": label, "seconds": seconds[label], "selected": len(chosen), "r2": score, "passes": passes})
    best = min(seconds[label] for label in seconds if label.startswith("scikit") and "float32" not in label)
    return {"data": name, "shape": list(X.shape), "k": k, "rows": rows, "best_sklearn_seconds": best}


def main(argv: list[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pursuit", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller data: a smoke test, not a measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    scale = 8 if arguments.quick else 1
    repeats = 1 if arguments.quick else 7
    sweeps = sweep_ratios(80_000 // scale, 2000, repeats)
    X, y = sparse_design(2000 // scale, 20_000 // scale, 200 // scale, 0.1)
    design = PaperDesign(1000, 500)
    runs = [
        pursuit_ratios("independent Gaussian, 200 true features", X, y, 100 // scale, min(repeats, 3)),
        pursuit_ratios("the paper's small set", design.matrix().T, design.response(), 150, 3 * repeats),
    ]
    bars = _bars(sweeps, runs)
    if arguments.json:
        print(json.dumps({"machine": fingerprint(), "sweeps": sweeps, "pursuits": runs, "bars": bars}))
    else:
        _show(sweeps, runs, bars)
    return 0 if arguments.quick or all(bar["met"] for bar in bars) else 1


def _bars(sweeps: list[dict[str, Any]], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge the figures of one run."""
    bars = [(f"{sweep['dtype']} sweep over BLAS GEMV", sweep["over_gemv"], 0.7) for sweep in sweeps]
    wide, small = runs
    times = {row["contestant"]: row for row in wide["rows"]}
    best = wide["best_sklearn_seconds"]
    bars.append(("SDS_OMP: times faster than scikit-learn's best", best / times["SDS_OMP"]["seconds"], 1.0))
    bars.append(("FAST_OMP: times faster than scikit-learn's best", best / times["FAST_OMP"]["seconds"], 5.0))
    reference = times["scikit-learn OMP, float64 Fortran"]["r2"]
    bars.append(("FAST_OMP: R^2 over scikit-learn's", times["FAST_OMP"]["r2"] / reference, 0.98))
    times = {row["contestant"]: row for row in small["rows"]}
    bars.append(("small set: scikit-learn's best over FAST_OMP", small["best_sklearn_seconds"] / times["FAST_OMP"]["seconds"], 1.0))
    reference = times["scikit-learn OMP, float64 Fortran"]["r2"]
    bars.append(("small set: R^2 over scikit-learn's", times["FAST_OMP"]["r2"] / reference, 0.99))
    coarse = times[COARSE]
    bars.append((f"small set, {COARSE}: scikit-learn's best over it", small["best_sklearn_seconds"] / coarse["seconds"], 1.0))
    bars.append((f"small set, {COARSE}: R^2 over scikit-learn's", coarse["r2"] / reference, 0.99))
    return [{"claim": claim, "found": found, "at_least": least, "met": bool(found >= least)} for claim, found, least in bars]


def _show(sweeps: list[dict[str, Any]], runs: list[dict[str, Any]], bars: list[dict[str, Any]]) -> None:
    """Print tables for a person."""
    console = Console(width=120, highlight=False, markup=False)
    machine = fingerprint()
    console.print(f"{machine['cpu']}, {machine['cores']} cores, numpy {machine['numpy']}, kernel {machine['kernel']}")
    for sweep in sweeps:
        console.print(
            f"full sweep, {sweep['dtype']}, {sweep['megabytes']:.0f} MB, one residual: {sweep['over_gemv']:.2f} of BLAS GEMV, "
            f"{sweep['over_copy']:.2f} of a copy ({sweep['sweep_gb_per_s']:.1f} GB/s)"
        )
    for run in runs:
        table = Table(title=f"{run['data']}: {run['shape'][0]} x {run['shape'][1]}, k = {run['k']}")
        for title in ("contestant", "seconds", "scikit-learn's best / it", "selected", "R^2 of a refit", "passes"):
            table.add_column(title, justify="left" if title == "contestant" else "right")
        for row in run["rows"]:
            ratio = run["best_sklearn_seconds"] / row["seconds"]
            passes = "" if row["passes"] is None else f"{row['passes']:.1f}"
            table.add_row(
                row["contestant"], f"{row['seconds']:.4f}", f"{ratio:.2f}", str(row["selected"]), f"{row['r2']:.4f}", passes
            )
        console.print(table)
    for bar in bars:
        console.print(f"{'met   ' if bar['met'] else 'MISSED'} {bar['claim']}: {bar['found']:.2f} (bar {bar['at_least']:.2f})")


if __name__ == "__main__":
    raise SystemExit(main())
