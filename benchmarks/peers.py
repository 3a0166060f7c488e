"""FAST_OMP against other packages: time, peak memory and refit score at equal k, on the same data.

Every contestant runs in a process of its own, so that its peak memory is its own too. Contestants whose package is not installed
are listed as skipped. Of a path, the largest set of at most k features counts. All scores are R^2 of the same least-squares refit.
Each contestant gets its data in the form that suits it best; neither that conversion nor ingest is timed.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness.data import centred_fortran, refit_score
from benchmarks.harness.memory import PeakMemory, resident_bytes
from benchmarks.harness.processes import CellError, run_cell
from benchmarks.harness.report import Report, argument_parser, at_least
from fastomp_nvm.analysis.synthetic import sparse_design
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.errors import RequestError

__all__ = ["CONTESTANTS", "Contestant", "largest_on_path", "main"]

#: Largest number of features for which a Gram matrix is computed.
GRAM_FEATURES = 20_000

#: Seconds between samples of the memory: the fastest contestant takes some 40 ms, a sample less than 0.1.
SAMPLE_SECONDS = 0.004

Selected = np.ndarray
Prepared = Callable[[], Selected]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A method: its name, the module it needs, and a function that prepares its data and returns the call to time.

    One with ``spoils_data`` overwrites its data and is prepared again before every call.
    """

    name: str
    module: str
    prepare: Callable[[np.ndarray, np.ndarray, int], Prepared]
    note: str = ""
    spoils_data: bool = False


def _fastomp(algorithm: str) -> Callable[[np.ndarray, np.ndarray, int], Prepared]:
    def prepare(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
        import fastomp_nvm as fo
        from fastomp_nvm.engine.dataset import Dataset

        data = Dataset.of_array(X)
        return lambda: fo.select(data, y, k=k, algorithm=algorithm, plain=True).indices

    return prepare


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


def _lasso_lars(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    from sklearn.linear_model import lars_path

    data, centred = centred_fortran(X), y - y.mean()
    data /= np.linalg.norm(data, axis=0)
    return lambda: largest_on_path(lars_path(data, centred, method="lasso", max_iter=2 * k)[2], k)


def largest_on_path(path: np.ndarray, k: int) -> np.ndarray:
    """Return the largest set of at most ``k`` features on a path of coefficients (n_features, steps), the last among equals."""
    sizes = (path != 0).sum(axis=0)
    within = np.where(sizes <= k, sizes, 0)
    last = len(within) - 1 - int(np.argmax(within[::-1]))
    return np.flatnonzero(path[:, last]) if within[last] else np.empty(0, dtype=np.int64)


def _celer(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    from celer import celer_path

    data, centred = centred_fortran(X), y - y.mean()
    data /= data.std(axis=0)
    return lambda: largest_on_path(celer_path(data, centred, pb="lasso", n_alphas=100, eps=1e-2)[1], k)


def _skglm(X: np.ndarray, y: np.ndarray, k: int) -> Prepared:
    from skglm.datafits import Quadratic
    from skglm.penalties import MCPenalty
    from skglm.solvers import AndersonCD

    data, centred = centred_fortran(X), y - y.mean()
    data /= data.std(axis=0)
    largest = float(np.abs(data.T @ centred).max() / len(y))

    def fit() -> np.ndarray:
        solver, datafit = AndersonCD(warm_start=True, fit_intercept=False, tol=1e-4), Quadratic()
        coefs = [np.zeros(data.shape[1])]
        for alpha in largest * np.geomspace(0.95, 0.01, 100):
            coef = coefs[-1]
            coefs.append(solver.solve(data, centred, datafit, MCPenalty(alpha, 3.0), w_init=coef.copy(), Xw_init=data @ coef)[0])
            if np.count_nonzero(coefs[-1]) > k:
                break
        return largest_on_path(np.stack(coefs, axis=1), k)

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
        return largest_on_path(state.betas.toarray().T, k)

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

    data = centred_fortran(X)
    data /= np.linalg.norm(data, axis=0)
    centred = np.asfortranarray((y - y.mean())[:, None])
    return lambda: np.flatnonzero(spams.omp(centred, data, L=k, numThreads=-1).toarray())


CONTESTANTS = (
    Contestant("fastomp FAST_OMP", "fastomp_nvm", _fastomp("fast_omp")),
    Contestant("fastomp SDS_OMP", "fastomp_nvm", _fastomp("sds_omp")),
    Contestant("scikit-learn OMP, float64 C order", "sklearn", _sklearn_omp("C", "float64", False), "as most users call it"),
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
    warnings.simplefilter("ignore")  # the number selected shows early stops
    X, y = sparse_design(n_obs, n_features, 2 * k, 0.1)
    if name == "SequentialFeatureSelector":
        return _sequential_step(X, y, k)
    contestant = next(entry for entry in CONTESTANTS if entry.name == name)
    call: Prepared | None = None
    seconds, chosen = float("inf"), np.empty(0, dtype=np.int64)
    spent, extra = 0.0, 0
    for _ in range(repeats):
        if call is None or contestant.spoils_data:
            call = None  # frees its data before they are prepared again
            call = contestant.prepare(X, y, k)
        gc.collect()  # memory freed during the call would hide memory taken by it
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
def main(argv: Sequence[str] | None = None) -> int:
    """Run all contestants and report."""
    parser = argument_parser("peers", __doc__)
    parser.add_argument("--observations", type=int, default=2000)
    parser.add_argument("--features", type=int, default=20_000)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a contestant may take in all")
    options = parser.parse_args(argv)
    if options.cell:
        print(json.dumps(measure(**options.cell)))
        return 0
    n_obs, n_features, k = (500, 4000, 40) if options.quick else (options.observations, options.features, options.k)
    _check(n_obs, n_features, k, options.repeats, options.limit)
    report = Report(options, argv)
    rows = []
    for name, module in (*((each.name, each.module) for each in CONTESTANTS), ("SequentialFeatureSelector", "sklearn")):
        cell = {"name": name, "n_obs": n_obs, "n_features": n_features, "k": k, "repeats": options.repeats}
        rows.append({"contestant": name, **_measured(module, cell, options.limit)})
        report.measured({"shape": [n_obs, n_features], "k": k, **rows[-1]})
    report.figures(rows=rows)
    own = rows[0].get("seconds", math.nan)  # it too may not be done in time
    report.table(
        f"{n_obs} x {n_features}, k = {k}",
        ("contestant", "seconds", "times FAST_OMP's", "extra memory, MB", "selected", "R^2 of a refit", "note"),
        [
            (
                row["contestant"],
                row.get("seconds"),
                row["seconds"] / own if "seconds" in row else None,
                row["extra_bytes"] / 1e6 if "extra_bytes" in row else None,
                row.get("selected"),
                row.get("r2"),
                f"skipped: {row['skipped']}" if "skipped" in row else row["note"],
            )
            for row in rows
        ],
    )
    return report.finish()


def _check(n_obs: int, n_features: int, k: int, repeats: int, limit: float) -> None:
    """Refuse sizes that no contestant could run on."""
    for option, found, least in (("k", k, 1), ("observations", n_obs, 2), ("repeats", repeats, 1), ("limit", limit, 1)):
        at_least(f"--{option}", found, least)
    # The response is made of twice as many features as are selected.
    if 2 * k > n_features or k >= n_obs:
        raise RequestError(
            f"--k is {k} with {n_features} features and {n_obs} observations: "
            "expected at most half of the features, and fewer than the observations"
        )


def _measured(module: str, cell: dict[str, Any], limit: float) -> dict[str, Any]:
    """Measure a contestant in a process of its own, or give the reason why not."""
    if importlib.util.find_spec(module) is None:
        return {"skipped": f"{module} is not installed"}
    if "Gram" in cell["name"] and cell["n_features"] > GRAM_FEATURES:
        return {"skipped": f"a Gram matrix of {cell['n_features']} features"}
    try:
        return run_cell("benchmarks.peers", cell, limit)
    except CellError as error:
        return {"skipped": str(error)[:100]}


if __name__ == "__main__":
    raise SystemExit(main())
