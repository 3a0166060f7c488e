"""FAST_OMP's whole run against scikit-learn's OMP and our SDS_OMP at equal k, and how much of it is not products, in one run.

``fastomp bench fast`` prints ratios of times measured side by side and ends with 1 when a bar is missed. scikit-learn is called as
people call it, on a float64 array in C order, and as it is quickest: its estimator on Fortran order, and ``orthogonal_mp`` without
a copy on data centred beforehand, which it overwrites; making them anew is not timed. In float32 it may stop early, so the number
of features is printed. Building stores is not timed, the tier included. *Bookkeeping* is all of a run that is neither a sweep, nor
a gather, nor a product of gathered columns. Of logistic runs the share of full sweeps is printed: SDS_OMP is hardly anything else,
so the quicker memory is at the moment, the smaller the ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import fastomp_nvm as fo
from benchmarks.machine import Bar, fingerprint, interleaved, show_bars
from benchmarks.peers import centred_fortran, refit_score
from fastomp_nvm.analysis.synthetic import sparse_design
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.objectives.known_columns import KnownColumns

__all__ = ["main"]

#: What counts as the work itself: sweeps, gathers, and products of gathered columns with vectors and with each other.
WORK = (
    (Sweeper, "dots"),
    (Sweeper, "dots_at"),
    (Sweeper, "dots_int8"),
    (Sweeper, "gather"),
    (KnownColumns, "_add"),
    (KnownColumns, "combination"),
)

#: Of these, the full sweeps.
SWEEPS = ((Sweeper, "dots"),)

#: Bytes scikit-learn takes per entry of X at its peak: our float32, its float64 and the copy it centres.
PEAK_BYTES = 22


@contextmanager
def work_timed(work: Sequence[tuple[type, str]]) -> Iterator[list[float]]:
    """Add up the seconds inside what counts as ``work``, the outermost call of nested ones; the list has one entry."""
    spent, inside = [0.0], [False]
    originals = [(owner, name, getattr(owner, name)) for owner, name in work]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if inside[0]:
                return function(*arguments, **options)
            inside[0], started = True, time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                inside[0] = False
                spent[0] += time.perf_counter() - started

        return call

    for owner, name, function in originals:
        setattr(owner, name, timed(function))
    try:
        yield spent
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def bookkeeping(run: Callable[[], Any], repeats: int, work: Sequence[tuple[type, str]] = WORK) -> float:
    """Return the median share of ``run`` that is not ``work``.

    The clocks are put in once, and the first run is not counted: the interpreter forgets what it had learnt of classes that change.
    """
    shares = []
    with work_timed(work) as spent:
        run()
        for _ in range(repeats):
            before, started = spent[0], time.perf_counter()
            run()
            shares.append(1.0 - (spent[0] - before) / (time.perf_counter() - started))
    return statistics.median(shares)


@dataclass(frozen=True, slots=True)
class Size:
    """A problem and its bars: times faster than scikit-learn's C order and Fortran order, and with the tier than C order."""

    n_obs: int
    n_features: int
    k: int
    c_order: float
    fortran: float | None
    tier: float | None


SIZES = (Size(2000, 20_000, 100, 12.0, 6.0, None), Size(5000, 100_000, 100, 15.0, None, 25.0))
QUICK_SIZES = (Size(200, 2000, 10, 12.0, 6.0, None), Size(300, 3000, 10, 15.0, None, 25.0))


NO_COPY = "scikit-learn, float64 Fortran, no copy"

PARTS = ("small", "large", "logistic")

#: The logistic problems: features behind the labels, and the penalty on coefficients of unit-norm columns.
LOGISTIC_TRUE, LOGISTIC_RIDGE = 10, 0.05

#: What their numbers are stored as.
LOGISTIC_DTYPES = ("float32", "float64")


def _sklearn(X: np.ndarray, y: np.ndarray, k: int) -> np.ndarray:
    """Fit scikit-learn's OMP as people do; return what it selected."""
    from sklearn.linear_model import OrthogonalMatchingPursuit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in float32 it warns that it stopped early; the count says so
        return np.flatnonzero(OrthogonalMatchingPursuit(n_nonzero_coefs=k).fit(X, y).coef_)


def _sklearn_without_copy(X: np.ndarray, y: np.ndarray, k: int) -> np.ndarray:
    """Run scikit-learn's OMP on centred data, which it overwrites; return what it selected."""
    from sklearn.linear_model import orthogonal_mp

    return np.flatnonzero(orthogonal_mp(X, y, n_nonzero_coefs=k, copy_X=False, precompute=False))


def linear(size: Size, repeats: int) -> dict[str, Any]:
    """Time the contestants on one problem; scikit-learn once where it takes long, ours every time around it."""
    X, y = sparse_design(size.n_obs, size.n_features, 2 * size.k, 0.1)
    _sklearn(X[:50, :50], y[:50], 2)  # first use: imports
    store = fo.create_store("dram:benchmark-fast", X, y, tier="int8", replace=True)
    X = store.matrix.T  # the same numbers: one copy of them less
    ours = {
        "FAST_OMP": lambda: fo.select(store, k=size.k, tier="exact").indices,
        "FAST_OMP, int8 tier": lambda: fo.select(store, k=size.k, tier="int8").indices,
    }
    forms: dict[str, tuple[str, Any]] = {
        "scikit-learn, float64 C order": ("C", np.float64),
        "scikit-learn, float64 Fortran": ("F", np.float64),
        "scikit-learn, float32 Fortran": ("F", np.float32),
    }
    rows: dict[str, dict[str, Any]] = {}
    skipped = ""
    if psutil.virtual_memory().available < PEAK_BYTES * X.size:
        skipped = f"scikit-learn needs {PEAK_BYTES * X.size / 1e9:.0f} GB at its peak"
        forms = {}
    times: dict[str, list[float]] = defaultdict(list)
    chosen: dict[str, np.ndarray] = {}
    again = repeats if size.fortran is not None else 1

    def race(contestants: dict[str, Callable[[], Any]], repeats: int, **options: Any) -> None:
        seconds, found = interleaved(contestants, repeats, **options)
        for each, took in seconds.items():
            times[each].append(took)
        chosen.update(found)

    for name, (order, dtype) in forms.items():
        data = np.array(X, dtype=dtype, order=order)  # type: ignore[call-overload]
        target = y.astype(dtype)
        race({**ours, name: lambda d=data, t=target: _sklearn(d, t, size.k)}, again)
        del data
    if forms:
        data = np.empty(X.shape, order="F")
        without_copy = {NO_COPY: lambda: _sklearn_without_copy(data, y - y.mean(), size.k)}
        race({**ours, **without_copy}, again, untimed={NO_COPY: lambda: centred_fortran(X, data)})
        del data
    race(ours, repeats)
    for name, indices in chosen.items():
        best = min(times[name])
        rows[name] = {"seconds": best, "selected": len(indices), "r2": refit_score(X, y, indices)}
    share = bookkeeping(ours["FAST_OMP"], 7 * repeats)
    store.close()
    return {"size": asdict(size), "rows": rows, "bookkeeping": share, "skipped": skipped}


def logistic(n_obs: int, n_features: int, k: int, data_sets: int, repeats: int) -> dict[str, Any]:
    """Time FAST_OMP and SDS_OMP on logistic problems, both with default settings but for the ridge.

    Ten of the features, independent and Gaussian, decide the log odds, which have unit variance; the rest of a label is chance.
    Fifty columns chosen among 20,000 for 800 labels fit chance as well: at the default ridge, there to keep separable data finite,
    the labels end up nearly separated, the log-likelihood goes to zero, and a ratio of two such means nothing. So both get a
    ridge that one might fit such data with. One data set says little about 2 %: several are drawn, and the medians judged.

    The same numbers are stored as float32, the default, and as float64, as arrays mostly are: a sweep then moves twice the bytes,
    of which SDS_OMP has one per feature and FAST_OMP one or two.
    """
    rows = [_one_logistic(n_obs, n_features, k, seed, dtype, repeats) for dtype in LOGISTIC_DTYPES for seed in range(data_sets)]
    return {"shape": [n_obs, n_features], "k": k, "ridge": LOGISTIC_RIDGE, "rows": rows}


def _one_logistic(n_obs: int, n_features: int, k: int, seed: int, dtype: str, repeats: int) -> dict[str, Any]:
    """Time both on one data set."""
    X, eta = sparse_design(n_obs, n_features, LOGISTIC_TRUE, 0.0, seed=seed)
    y = (np.random.default_rng(seed + 1).random(n_obs) < 1.0 / (1.0 + np.exp(-eta / eta.std()))).astype(np.int64)
    store = fo.create_store("dram:benchmark-fast", X, y, dtype=dtype, tier="none", replace=True)
    request: dict[str, Any] = {"k": k, "objective": "logistic", "ridge": LOGISTIC_RIDGE}
    runs = {name: lambda name=name: fo.select(store, algorithm=name, **request) for name in ("fast_omp", "sds_omp")}
    seconds, found = interleaved(runs, repeats)
    swept = {name: 1.0 - bookkeeping(run, repeats, SWEEPS) for name, run in runs.items()}
    store.close()
    return {
        "data_set": seed,
        "dtype": dtype,
        "seconds": seconds,
        "sweeps": swept,
        "selected": {name: len(result.indices) for name, result in found.items()},
        "full_passes": {name: result.full_passes for name, result in found.items()},
        "log_likelihood": {name: result.score for name, result in found.items()},
    }


def _linear_bars(run: dict[str, Any]) -> list[Bar]:
    """Judge the figures of one problem."""
    size, rows, bars = run["size"], run["rows"], []
    name = f"{size['n_obs']} x {size['n_features']}"
    fast, tier = rows["FAST_OMP"], rows["FAST_OMP, int8 tier"]
    if not run["skipped"]:
        people = rows["scikit-learn, float64 C order"]
        best = min(rows[form]["seconds"] for form in ("scikit-learn, float64 Fortran", NO_COPY))
        faster = people["seconds"] / fast["seconds"]
        bars.append(Bar(f"{name}: times faster than scikit-learn, C order", faster, size["c_order"]))
        if size["fortran"] is not None:
            bars.append(Bar(f"{name}: and than the quicker of its Fortran forms", best / fast["seconds"], size["fortran"]))
        if size["tier"] is not None:
            bars.append(Bar(f"{name}: with the int8 tier", people["seconds"] / tier["seconds"], size["tier"]))
        bars.append(Bar(f"{name}: R^2 over scikit-learn's", fast["r2"] / people["r2"], 1.0))
        bars.append(Bar(f"{name}: features over scikit-learn's", fast["selected"] / people["selected"], 1.0))
    return [*bars, Bar(f"{name}: bookkeeping as a share of FAST_OMP", run["bookkeeping"], 0.25, at_most=True)]


def _logistic_bars(classes: dict[str, Any]) -> list[Bar]:
    """Judge the figures of the logistic problems, each type of numbers by itself."""
    bars = []
    for dtype in LOGISTIC_DTYPES:
        rows = [row for row in classes["rows"] if row["dtype"] == dtype]
        faster = statistics.median(row["seconds"]["sds_omp"] / row["seconds"]["fast_omp"] for row in rows)
        # Both are negative: at least 0.98 means at most 2 % worse.
        likelihood = statistics.median(row["log_likelihood"]["sds_omp"] / row["log_likelihood"]["fast_omp"] for row in rows)
        bars.append(Bar(f"logistic, {dtype}: times faster than SDS_OMP, median", faster, 10.0))
        bars.append(Bar(f"logistic, {dtype}: SDS_OMP's log-likelihood over its own, median", likelihood, 0.98))
    return bars


def main(argv: list[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(prog="fastomp bench fast", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller data: a smoke test, not a measurement")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    parts = arguments.part or PARTS
    console = Console(width=120, highlight=False, markup=False, quiet=arguments.json)
    machine = fingerprint()
    console.print(f"{machine['cpu']}, {machine['cores']} cores, numpy {machine['numpy']}, kernel {machine['kernel']}")
    runs, classes, bars = [], None, []
    for part, size in zip(PARTS, QUICK_SIZES if arguments.quick else SIZES, strict=False):
        if part in parts:
            runs.append(linear(size, 1 if arguments.quick else 5))
            _show_linear(console, runs[-1])
            bars += _linear_bars(runs[-1])
    if PARTS[-1] in parts:
        classes = logistic(*((200, 1000, 8, 1, 1) if arguments.quick else (800, 20_000, 50, 5, 7)))
        _show_logistic(console, classes)
        bars += _logistic_bars(classes)
    show_bars(console, bars)
    if arguments.json:
        figures = {"linear": runs, "logistic": classes, "bars": [{**asdict(bar), "met": bar.met} for bar in bars]}
        print(json.dumps({"machine": machine, **figures}))
    return 0 if arguments.quick or all(bar.met for bar in bars) else 1


def _show_linear(console: Console, run: dict[str, Any]) -> None:
    """Print the table of one problem."""
    size = run["size"]
    title = f"{size['n_obs']} x {size['n_features']}, k = {size['k']}"
    table = Table("contestant", "seconds", "times FAST_OMP's", "selected", "R^2 of a refit", title=title)
    own = run["rows"]["FAST_OMP"]["seconds"]
    for name, row in run["rows"].items():
        table.add_row(name, f"{row['seconds']:.4f}", f"{row['seconds'] / own:.2f}", str(row["selected"]), f"{row['r2']:.4f}")
    console.print(table)
    if run["skipped"]:
        console.print(f"skipped: {run['skipped']}")


def _show_logistic(console: Console, classes: dict[str, Any]) -> None:
    """Print the table of the logistic problems."""
    title = f"logistic, {classes['shape'][0]} x {classes['shape'][1]}, k = {classes['k']}, ridge {classes['ridge']}"
    heads = ("data set", "stored as", "algorithm", "seconds", "full passes", "share of these", "selected", "mean log-likelihood")
    table = Table(*heads, title=title)
    for row in classes["rows"]:
        for name, took in row["seconds"].items():
            passes, selected = f"{row['full_passes'][name]:.1f}", str(row["selected"][name])
            likelihood = f"{row['log_likelihood'][name]:.4f}"
            share = f"{row['sweeps'][name]:.2f}"
            table.add_row(str(row["data_set"]), row["dtype"], name, f"{took:.4f}", passes, share, selected, likelihood)
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
