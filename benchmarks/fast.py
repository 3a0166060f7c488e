"""FAST_OMP's whole run against scikit-learn's OMP and our SDS_OMP at equal k, and the share of it that is not products.

scikit-learn is called as most users call it, on a float64 array in C order, and in its quickest forms: its estimator on Fortran
order, ``orthogonal_mp`` without a copy on data centred beforehand (it overwrites them; preparing them again is not timed) and, on
the paper's small set, its Gram form. In float32 it may stop early, so the number of features is printed. Building stores is not
timed. *Bookkeeping* is the part of a run that is neither a sweep, nor a gather, nor a product of gathered columns. For logistic
runs the share of full sweeps is printed: SDS_OMP is hardly anything else, so the faster memory is, the smaller the ratio.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import psutil

import fastomp_nvm as fo
from benchmarks.harness.data import centred_fortran, refit_score
from benchmarks.harness.report import Report, argument_parser
from benchmarks.harness.timing import Ratio, in_turn, paired, stopwatch
from fastomp_nvm.analysis.synthetic import PaperDesign, sparse_design
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.objectives.known_columns import KnownColumns

__all__ = ["main"]

#: Full sweeps; and all products: sweeps, gathers, and products of gathered columns with vectors and with each other.
SWEEPS = ((Sweeper, "dots"),)
PRODUCTS = (
    *SWEEPS,
    (Sweeper, "dots_at"),
    (Sweeper, "dots_int8"),
    (Sweeper, "gather"),
    (KnownColumns, "places"),
    (KnownColumns, "combination"),
)

#: Bytes scikit-learn takes per entry of X at its peak: our float32, its float64 and the copy it centres.
PEAK_BYTES = 22

C_ORDER, FORTRAN = "scikit-learn, float64 C order", "scikit-learn, float64 Fortran"
NO_COPY = "scikit-learn, float64 Fortran, no copy"

PARTS = ("paper", "small", "large", "logistic")

#: Logistic problems: features behind the labels, the penalty on coefficients of unit-norm columns, element types of the store.
LOGISTIC_TRUE, LOGISTIC_RIDGE, LOGISTIC_DTYPES = 10, 0.05, ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Size:
    """A problem and its bars: times faster than scikit-learn's C order and Fortran order, and with the tier than C order."""

    n_obs: int
    n_features: int
    k: int
    c_order: float
    fortran: float | None
    tier: float | None


SIZES = {"small": Size(2000, 20_000, 100, 12.0, 6.0, None), "large": Size(5000, 100_000, 100, 15.0, None, 25.0)}
QUICK_SIZES = {"small": Size(200, 2000, 10, 12.0, 6.0, None), "large": Size(300, 3000, 10, 15.0, None, 25.0)}


def bookkeeping(run: Callable[[], Any], repeats: int, products: Sequence[tuple[type, str]] = PRODUCTS) -> float:
    """Return the median share of ``run`` that is not in ``products``. The first run does not count: it warms caches of classes."""
    shares = []
    with stopwatch({"products": products}) as spent:
        run()
        for _ in range(repeats):
            before, started = spent["products"], time.perf_counter()
            run()
            shares.append(1.0 - (spent["products"] - before) / (time.perf_counter() - started))
    return median(shares)


def _sklearn(X: np.ndarray, y: np.ndarray, k: int, precompute: bool | str = "auto") -> np.ndarray:
    """Return the features that scikit-learn's estimator selects."""
    from sklearn.linear_model import OrthogonalMatchingPursuit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in float32 it warns that it stopped early; the count says so
        return np.flatnonzero(OrthogonalMatchingPursuit(n_nonzero_coefs=k, precompute=precompute).fit(X, y).coef_)


def _sklearn_without_copy(X: np.ndarray, y: np.ndarray, k: int) -> np.ndarray:
    """Return the features that scikit-learn selects from centred data, which it overwrites."""
    from sklearn.linear_model import orthogonal_mp

    return np.flatnonzero(orthogonal_mp(X, y, n_nonzero_coefs=k, copy_X=False, precompute=False))


def linear(report: Report, size: Size, repeats: int) -> None:
    """Time the contestants on one problem, each form of scikit-learn in turn with ours."""
    X, y = sparse_design(size.n_obs, size.n_features, 2 * size.k, 0.1)
    _sklearn(X[:50, :50], y[:50], 2)  # first use: imports
    store = fo.create_store("dram:benchmark-fast", X, y, tier="int8", replace=True)
    X = store.matrix.T  # the same numbers, one copy less
    ours = {
        "FAST_OMP": lambda: fo.select(store, k=size.k, tier="exact").indices,
        "FAST_OMP, int8 tier": lambda: fo.select(store, k=size.k, tier="int8").indices,
    }
    if size.fortran is not None:
        ours["SDS_OMP"] = lambda: fo.select(store, k=size.k, tier="exact", algorithm="sds_omp", plain=True).indices
    name = f"{size.n_obs} x {size.n_features}"
    times: dict[str, dict[str, list[float]]] = {}
    chosen: dict[str, np.ndarray] = {}
    again = repeats if size.fortran is not None else 1  # scikit-learn takes minutes on the large problem

    def race(label: str, call: Callable[[], Any] | None, repeats: int, **options: Any) -> None:
        times[label], found = in_turn(ours if call is None else {**ours, label: call}, repeats, **options)
        chosen.update(found)

    if psutil.virtual_memory().available < PEAK_BYTES * X.size:
        report.say(f"{name}: scikit-learn skipped, it needs {PEAK_BYTES * X.size / 1e9:.0f} GB at its peak")
    else:
        forms: dict[str, tuple[Any, Any]] = {
            C_ORDER: ("C", np.float64),
            FORTRAN: ("F", np.float64),
            "scikit-learn, float32 Fortran": ("F", np.float32),
        }
        for label, (order, dtype) in forms.items():
            data, target = np.array(X, dtype=dtype, order=order), y.astype(dtype)
            race(label, lambda d=data, t=target: _sklearn(d, t, size.k), again)  # type: ignore[misc]
        data = np.empty(X.shape, order="F")
        race(
            NO_COPY,
            lambda: _sklearn_without_copy(data, y - y.mean(), size.k),
            again,
            untimed={NO_COPY: lambda: centred_fortran(X, data)},
        )
        del data
    race("FAST_OMP", None, repeats)
    scores = {label: refit_score(X, y, indices) for label, indices in chosen.items()}
    share = bookkeeping(ours["FAST_OMP"], 7 * repeats)
    store.close()
    rows = []
    for label, indices in chosen.items():
        race_of = times.get(label, times["FAST_OMP"])
        rows.append((label, median(race_of[label]), paired(race_of[label], race_of["FAST_OMP"]), len(indices), scores[label]))
    _table(report, f"{name}, k = {size.k}", rows, bookkeeping=share)
    if C_ORDER in times:
        counts = {label: len(indices) for label, indices in chosen.items()}
        linear_bars(report, size, times, scores, counts)
    report.bar(f"{name}: bookkeeping as a share of FAST_OMP", share, 0.25, at_most=True)


def _table(report: Report, title: str, rows: Sequence[tuple[str, float, Ratio, int, float]], **figures: float) -> None:
    """Report contestants with seconds, ratio to FAST_OMP, number of features and refit score."""
    report.table(title, ("contestant", "median seconds", "times FAST_OMP's", "selected", "R^2 of a refit"), rows)
    report.figures(**{title: {**figures, "rows": {row[0]: {"seconds": row[1], "selected": row[3], "r2": row[4]} for row in rows}}})


def linear_bars(
    report: Report, size: Size, times: dict[str, dict[str, list[float]]], scores: dict[str, float], counts: dict[str, int]
) -> None:
    """Judge FAST_OMP against scikit-learn on one problem.

    Parameters
    ----------
    times : dict
        Form of scikit-learn -> seconds of it and of ours, timed in turn with it.
    scores, counts : dict
        R^2 and number of features of each contestant.
    """
    name, users = f"{size.n_obs} x {size.n_features}", times[C_ORDER]
    report.bar(f"{name}: times faster than scikit-learn, C order", paired(users[C_ORDER], users["FAST_OMP"]), size.c_order)
    if size.fortran is not None:
        form = min((FORTRAN, NO_COPY), key=lambda form: paired(times[form][form], times[form]["FAST_OMP"]).median)
        for algorithm, limit in (("FAST_OMP", size.fortran), ("SDS_OMP", 1.0)):
            ratio = paired(times[form][form], times[form][algorithm])
            report.bar(f"{name}: {algorithm}, times faster than the quicker Fortran form", ratio, limit)
    if size.tier is not None:
        ratio = paired(users[C_ORDER], users["FAST_OMP, int8 tier"])
        report.bar(f"{name}: with the int8 tier, times faster than C order", ratio, size.tier)
    report.bar(f"{name}: R^2 over scikit-learn's", scores["FAST_OMP"] / scores[C_ORDER], 1.0)
    report.bar(f"{name}: features over scikit-learn's", counts["FAST_OMP"] / counts[C_ORDER], 1.0)


def paper_set(report: Report, repeats: int) -> None:
    """Time the paper's small set, from the array: rounds cost more than sweeps there, and a larger epsilon has half as many."""
    design, k = PaperDesign(1000, 500), 150
    X, y = np.ascontiguousarray(design.matrix().T.astype(np.float64)), design.response()
    fortran, coarse = np.asfortranarray(X), "FAST_OMP, epsilon 0.3, no polish"
    contestants = {
        FORTRAN: lambda: _sklearn(fortran, y, k, False),
        "scikit-learn, Gram": lambda: _sklearn(fortran, y, k, True),
        "SDS_OMP": lambda: fo.select(X, y, k=k, algorithm="sds_omp", plain=True).indices,
        "FAST_OMP": lambda: fo.select(X, y, k=k).indices,
        coarse: lambda: fo.select(X, y, k=k, epsilon=0.3, polish="none").indices,
    }
    seconds, found = in_turn(contestants, repeats, warm=1)
    scores = {label: refit_score(X, y, indices) for label, indices in found.items()}
    rows = [
        (label, median(seconds[label]), paired(seconds[label], seconds["FAST_OMP"]), len(indices), scores[label])
        for label, indices in found.items()
    ]
    _table(report, "the paper's small set, 1000 x 500, k = 150", rows)
    best = min((FORTRAN, "scikit-learn, Gram"), key=lambda form: median(seconds[form]))
    for label in ("FAST_OMP", coarse):
        report.bar(f"small set: scikit-learn's best over {label}", paired(seconds[best], seconds[label]), 1.0)
        report.bar(f"small set: R^2 of {label} over scikit-learn's", scores[label] / scores[FORTRAN], 0.99)


def logistic(report: Report, n_obs: int, n_features: int, k: int, data_sets: int, repeats: int) -> None:
    """Time FAST_OMP and SDS_OMP on logistic problems, with default settings except for the ridge.

    Ten independent Gaussian features decide the log odds, which have unit variance. Fifty columns chosen among 20,000 for 800
    labels fit chance as well: at the default ridge the labels end up nearly separated, the log-likelihood goes to zero, and a ratio
    of two such means nothing. So both get a ridge suited to such data, and medians over several data sets are judged. The same
    numbers are stored as float32 and as float64: a sweep then moves twice the bytes, of which SDS_OMP has one per feature, FAST_OMP
    one or two.
    """
    rows = []
    for dtype in LOGISTIC_DTYPES:
        races = [_one_logistic(n_obs, n_features, k, seed, dtype, repeats) for seed in range(data_sets)]
        slow, fast = ([median(race[name]["seconds"]) for race in races] for name in ("sds_omp", "fast_omp"))
        # Both are negative: at least 0.98 means at most 2 % worse.
        worse = [race["sds_omp"]["log_likelihood"] / race["fast_omp"]["log_likelihood"] for race in races]
        rows += [
            {"data_set": seed, "dtype": dtype, "algorithm": name, **race[name]} for seed, race in enumerate(races) for name in race
        ]
        report.bar(f"logistic, {dtype}: times faster than SDS_OMP, median", paired(slow, fast), 10.0)
        report.bar(f"logistic, {dtype}: SDS_OMP's log-likelihood over its own, median", median(worse), 0.98)
    report.figures(logistic=rows)
    report.table(
        f"logistic, {n_obs} x {n_features}, k = {k}, ridge {LOGISTIC_RIDGE}",
        ("data set", "stored as", "algorithm", "median seconds", "full passes", "share of sweeps", "selected", "log-likelihood"),
        [[median(value) if isinstance(value, list) else value for value in row.values()] for row in rows],
    )


def _one_logistic(n_obs: int, n_features: int, k: int, seed: int, dtype: str, repeats: int) -> dict[str, dict[str, Any]]:
    """Time both algorithms on one data set."""
    X, eta = sparse_design(n_obs, n_features, LOGISTIC_TRUE, 0.0, seed=seed)
    y = (np.random.default_rng(seed + 1).random(n_obs) < 1.0 / (1.0 + np.exp(-eta / eta.std()))).astype(np.int64)
    request: dict[str, Any] = {"k": k, "objective": "logistic", "ridge": LOGISTIC_RIDGE}
    with fo.create_store("dram:benchmark-fast", X, y, dtype=dtype, tier="none", replace=True) as store:
        runs: dict[str, Callable[[], Any]] = {
            name: lambda name=name: fo.select(store, algorithm=name, plain=True, **request)  # type: ignore[misc]
            for name in ("fast_omp", "sds_omp")
        }
        seconds, found = in_turn(runs, repeats)
        return {
            name: {
                "seconds": seconds[name],
                "full_passes": result.full_passes,
                "sweeps": 1.0 - bookkeeping(runs[name], repeats, SWEEPS),
                "selected": len(result.indices),
                "log_likelihood": result.score,
            }
            for name, result in found.items()
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("fast", __doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    options = parser.parse_args(argv)
    report, quick, parts = Report(options, argv), options.quick, options.part or PARTS
    if "paper" in parts:
        paper_set(report, 1 if quick else 21)
    for part, size in (QUICK_SIZES if quick else SIZES).items():
        if part in parts:
            linear(report, size, 1 if quick else 5)
    if "logistic" in parts:
        logistic(report, *((200, 1000, 8, 1, 1) if quick else (800, 20_000, 50, 5, 7)))
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
