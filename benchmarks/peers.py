"""FAST_OMP against what a user could pick instead: time, peak memory and refit score at equal k, on the same data, in one run.

``fastomp bench peers`` runs every contestant in a process of its own (peak memory is then its own too), in turn, and prints ratios.
Contestants whose package is not installed are listed as skipped. All scores are R^2 of one and the same least-squares refit. Each
is given its data in the form that suits it best; that conversion is not timed, and neither is ingest, for anybody.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness.machine import at_least, fingerprint
from benchmarks.harness.memory import PeakMemory, resident_bytes
from benchmarks.harness.processes import run_alone
from fastomp_nvm.analysis.synthetic import sparse_design
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.errors import RequestError

__all__ = ["CONTESTANTS", "Contestant", "main"]

#: Largest number of features for which a Gram matrix is asked for.
GRAM_FEATURES = 20_000

#: Between samples of the memory: the quickest contestant takes some 40 ms, a sample less than 0.1.
SAMPLE_SECONDS = 0.004

Selected = np.ndarray
Prepared = Callable[[], Selected]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A method: its name, the module it needs, and a function that prepares its data and returns the call to time.

    One that spoils its data is prepared anew before every call.
    """

    name: str
    module: str
    prepare: Callable[[np.ndarray, np.ndarray, int], Prepared]
    note: str = ""
    spoils_data: bool = False


def _fast_omp(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    import fastomp_nvm as fo
    from fastomp_nvm.engine.dataset import Dataset

    data = Dataset.of_array(X)
    return lambda: fo.select(data, y, k=k).indices


def _sds_omp(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    import fastomp_nvm as fo
    from fastomp_nvm.engine.dataset import Dataset

    data = Dataset.of_array(X)
    return lambda: fo.select(data, y, k=k, algorithm="sds_omp").indices


def _sklearn_omp(order: str, dtype: str, precompute: bool) -> Callable[[np.ndarray, np.ndarray, int], Prepared]:
    def prepare(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
        from sklearn.linear_model import OrthogonalMatchingPursuit

        data = np.array(X, dtype=dtype, order=order)  # type: ignore[call-overload]
        target = y.astype(dtype)
        model = OrthogonalMatchingPursuit(n_nonzero_coefs=k, precompute=precompute)
        return lambda: np.flatnonzero(model.fit(data, target).coef_)

    return prepare


def _sklearn_omp_without_copy(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    from sklearn.linear_model import orthogonal_mp

    data = centred_fortran(X)
    target = y - y.mean()
    return lambda: np.flatnonzero(orthogonal_mp(data, target, n_nonzero_coefs=k, copy_X=False, precompute=False))


def centred_fortran(X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return the columns of ``X`` less their means, float64 in Fortran order: what scikit-learn's OMP makes of its data first."""
    data = np.empty(X.shape, order="F") if out is None else out
    data[...] = X
    data -= data.mean(axis=0)
    return data


def _lasso_lars(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    from sklearn.linear_model import lars_path

    data = np.asfortranarray(X.astype(np.float64))
    data -= data.mean(axis=0)
    data /= np.linalg.norm(data, axis=0)
    centred = y - y.mean()
    # Features may leave the path again: stop at the first step with k of them.
    return lambda: _of_size(lars_path(data, centred, method="lasso", max_iter=2 * k)[2], k)


def _of_size(path: np.ndarray, k: int) -> np.ndarray:
    """Return the ``k`` features of largest coefficient at the first step of a path (n_features, steps) that has as many."""
    sizes = (path != 0).sum(axis=0)
    reached = np.flatnonzero(sizes >= k)
    return _largest(path[:, reached[0] if reached.size else -1], k)


def _largest(coef: np.ndarray, k: int) -> np.ndarray:
    """Return the features of the ``k`` largest coefficients that are not zero: equal k for all contestants."""
    chosen = np.argsort(-np.abs(coef), kind="stable")[:k]
    return np.sort(chosen[coef[chosen] != 0])


def _celer(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    from celer import celer_path

    data = np.asfortranarray(X.astype(np.float64))
    data -= data.mean(axis=0)
    data /= data.std(axis=0)
    centred = y - y.mean()
    return lambda: _of_size(celer_path(data, centred, pb="lasso", n_alphas=100, eps=1e-2)[1], k)


def _skglm(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    from skglm.datafits import Quadratic
    from skglm.penalties import MCPenalty
    from skglm.solvers import AndersonCD

    data = np.asfortranarray(X.astype(np.float64))
    data -= data.mean(axis=0)
    data /= data.std(axis=0)
    centred = y - y.mean()
    largest = float(np.abs(data.T @ centred).max() / len(y))

    def fit() -> np.ndarray:
        solver, datafit = AndersonCD(warm_start=True, fit_intercept=False, tol=1e-4), Quadratic()
        coef = np.zeros(data.shape[1])
        for alpha in largest * np.geomspace(0.95, 0.01, 100):
            coef = solver.solve(data, centred, datafit, MCPenalty(alpha, 3.0), w_init=coef, Xw_init=data @ coef)[0]
            if np.count_nonzero(coef) >= k:
                break
        return _largest(coef, k)

    return fit


def _abess(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    from abess.linear import LinearRegression

    data = np.ascontiguousarray(X.astype(np.float64))
    model = LinearRegression(support_size=k)
    return lambda: np.flatnonzero(model.fit(data, y).coef_)


def _adelie(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    import adelie

    data = np.asfortranarray(X.astype(np.float64))

    def fit() -> np.ndarray:
        state = adelie.grpnet(X=data, glm=adelie.glm.gaussian(y=y), max_active_size=k + 1, progress_bar=False, min_ratio=1e-3)
        return _of_size(state.betas.toarray().T, k)

    return fit


def _fastcan(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    from fastcan import FastCan

    data = np.asfortranarray(X.astype(np.float64))
    model = FastCan(n_features_to_select=k, verbose=0)
    return lambda: np.flatnonzero(model.fit(data, y).get_support())


def _mrmr(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    import pandas
    from mrmr import mrmr_regression

    frame = pandas.DataFrame(X.astype(np.float64), columns=range(X.shape[1]))
    response = pandas.Series(y)
    return lambda: np.array(mrmr_regression(frame, response, K=k, show_progress=False), dtype=np.int64)


def _spams(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    import spams

    data = np.asfortranarray(X.astype(np.float64))
    data -= data.mean(axis=0)
    data /= np.linalg.norm(data, axis=0)
    centred = np.asfortranarray((y - y.mean())[:, None])
    return lambda: np.flatnonzero(spams.omp(centred, data, L=k, numThreads=-1).toarray())


CONTESTANTS = (
    Contestant("fastomp FAST_OMP", "fastomp_nvm", _fast_omp),
    Contestant("fastomp SDS_OMP", "fastomp_nvm", _sds_omp),
    Contestant("scikit-learn OMP, float64 C order", "sklearn", _sklearn_omp("C", "float64", False), "as people call it"),
    Contestant("scikit-learn OMP, float64 Fortran", "sklearn", _sklearn_omp("F", "float64", False), "its estimator's best form"),
    Contestant(
        "scikit-learn OMP, float64 Fortran, no copy",
        "sklearn",
        _sklearn_omp_without_copy,
        "orthogonal_mp on centred data, which it overwrites",
        spoils_data=True,
    ),
    Contestant("scikit-learn OMP, float32 Fortran", "sklearn", _sklearn_omp("F", "float32", False), "may stop early"),
    Contestant("scikit-learn OMP, Gram", "sklearn", _sklearn_omp("F", "float64", True)),
    Contestant("scikit-learn Lasso-LARS path", "sklearn", _lasso_lars),
    Contestant("celer lasso path", "celer", _celer),
    Contestant("skglm MCP path", "skglm", _skglm),
    Contestant("abess", "abess", _abess),
    Contestant("adelie lasso path", "adelie", _adelie),
    Contestant("fastcan", "fastcan", _fastcan),
    Contestant("mRMR", "mrmr", _mrmr),
    Contestant("spams OMP", "spams", _spams),
)


def refit_score(X: np.ndarray, y: np.ndarray, chosen: np.ndarray) -> float:
    """Return R^2 of least squares on ``chosen``, in float64; the same bits in whichever order they were chosen."""
    design = np.column_stack((np.ones(len(y)), X[:, np.sort(chosen)].astype(np.float64)))
    rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return 1.0 - float(rest @ rest) / float(((y - y.mean()) ** 2).sum())


def _sequential_step(X: np.ndarray, y: np.ndarray, k: int) -> dict[str, Any]:
    """Time one step of SequentialFeatureSelector on a hundred features; extrapolate to all steps and features."""
    from sklearn.feature_selection import SequentialFeatureSelector
    from sklearn.linear_model import LinearRegression

    some = min(100, X.shape[1])
    model = SequentialFeatureSelector(LinearRegression(), n_features_to_select=1, cv=2)
    started = time.perf_counter()
    model.fit(X[:, :some].astype(np.float64), y)
    per_fit = (time.perf_counter() - started) / some
    return {
        "seconds": per_fit * X.shape[1] * k,
        "selected": k,
        "r2": None,
        "note": f"extrapolated from one step over {some} features",
    }


def measure(name: str, n_obs: int, n_features: int, k: int, repeats: int) -> dict[str, Any]:
    """Run one contestant in this process; return its best time, its peak memory above the data and its score."""
    warnings.simplefilter("ignore")  # early stops show in the number selected
    X, y = sparse_design(n_obs, n_features, 2 * k, 0.1)
    if name == "SequentialFeatureSelector":
        return _sequential_step(X, y, k)
    contestant = next(entry for entry in CONTESTANTS if entry.name == name)
    call: Prepared | None = None
    seconds, chosen = float("inf"), np.empty(0, dtype=np.int64)
    spent, extra = 0.0, 0
    for _ in range(repeats):
        if call is None or contestant.spoils_data:
            call = None  # or its data would still be there while it is made anew
            call = contestant.prepare(X, y, k)
        gc.collect()  # what is freed during the call would hide what the call takes
        before = resident_bytes()
        with PeakMemory(SAMPLE_SECONDS) as memory:
            started = time.perf_counter()
            chosen = call()
            last = time.perf_counter() - started
        spent, seconds, extra = spent + last, min(seconds, last), max(extra, memory.peak - before)
        if spent > 60:
            break
    return {
        "seconds": seconds,
        "selected": len(chosen),
        "r2": refit_score(X, y, chosen),
        "extra_bytes": extra,
        "note": contestant.note,
    }


@terminating_cleanly()
def main(argv: list[str] | None = None) -> int:
    """Run all contestants, print and write the table."""
    parser = argparse.ArgumentParser(prog="fastomp bench peers", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="500 x 4000, k = 40: a smoke test")
    parser.add_argument("--observations", type=int, default=2000)
    parser.add_argument("--features", type=int, default=20_000)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a contestant may take in all")
    parser.add_argument("--out", type=Path, help="folder for peers.jsonl")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    shape = (500, 4000, 40) if arguments.quick else (arguments.observations, arguments.features, arguments.k)
    _check(*shape, arguments.repeats, arguments.limit)
    if arguments.only:
        print(json.dumps(measure(arguments.only, *shape, arguments.repeats)))
        return 0
    rows = [_in_a_process(entry.name, entry.module, shape, arguments) for entry in CONTESTANTS]
    rows.append(_in_a_process("SequentialFeatureSelector", "sklearn", shape, arguments))
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"machine": fingerprint(), "shape": shape, **row}) for row in rows]
        (arguments.out / "peers.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _show(rows, shape)
    return 0


def _check(n_obs: int, n_features: int, k: int, repeats: int, limit: float) -> None:
    """Refuse what no contestant could run on."""
    for option, found, least in (("k", k, 1), ("observations", n_obs, 2), ("repeats", repeats, 1), ("limit", limit, 1)):
        at_least(f"--{option}", found, least)
    # The response is made of twice as many features as are selected.
    if 2 * k > n_features or k >= n_obs:
        raise RequestError(
            f"--k is {k} with {n_features} features and {n_obs} observations: "
            "expected at most half of the features, and fewer than the observations"
        )


def _in_a_process(name: str, module: str, shape: tuple[int, int, int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure a contestant in a child process, or say why not."""
    if importlib.util.find_spec(module) is None:
        return {"contestant": name, "skipped": f"{module} is not installed"}
    if "Gram" in name and shape[1] > GRAM_FEATURES:
        return {"contestant": name, "skipped": f"a Gram matrix of {shape[1]} features"}
    sizes = ["--observations", str(shape[0]), "--features", str(shape[1]), "--k", str(shape[2])]
    command = [sys.executable, "-m", "benchmarks.peers", "--only", name, "--repeats", str(arguments.repeats), *sizes]
    try:
        done = run_alone(command, arguments.limit)
    except subprocess.TimeoutExpired:
        return {"contestant": name, "skipped": f"not done in {arguments.limit:.0f} s"}
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        return {"contestant": name, "skipped": f"failed: {reason[:100]}"}
    return {"contestant": name, **json.loads(done.stdout.splitlines()[-1])}


def _show(rows: list[dict[str, Any]], shape: tuple[int, int, int]) -> None:
    """Print the table, times as multiples of FAST_OMP's."""
    console = Console(width=140, highlight=False, markup=False)
    machine = fingerprint()
    console.print(f"{machine['cpu']}, {machine['cores']} cores, numpy {machine['numpy']}, kernel {machine['kernel']}")
    own = rows[0].get("seconds", math.nan)  # it too may not be done in time
    table = Table(title=f"{shape[0]} x {shape[1]}, k = {shape[2]}")
    for title in ("contestant", "seconds", "times FAST_OMP's", "extra memory", "selected", "R^2 of a refit", "note"):
        table.add_column(title, justify="left" if title in ("contestant", "note") else "right")
    for row in rows:
        if "skipped" in row:
            table.add_row(row["contestant"], "", "", "", "", "", f"skipped: {row['skipped']}")
            continue
        memory = "" if row.get("extra_bytes") is None else f"{row['extra_bytes'] / 1e6:.0f} MB"
        score = "" if row["r2"] is None else f"{row['r2']:.4f}"
        figures = (f"{row['seconds']:.3f}", f"{row['seconds'] / own:.1f}", memory, str(row["selected"]), score)
        table.add_row(row["contestant"], *figures, row["note"])
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
