"""``select`` and ``select_many``: from data and requests to selections, all requests in shared sweeps."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np

from fastomp_nvm.algorithms.certificate import certified
from fastomp_nvm.algorithms.protocol import Counters, Journal, Parameters, Problem
from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray, first_missing
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.constraints.intersection import intersect
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Engine, Observer, Run
from fastomp_nvm.errors import ConstraintError, DataError, RequestError
from fastomp_nvm.matrix.pool import LARGEST_BUDGET, ColumnPool, Columns, automatic_budget
from fastomp_nvm.matrix.standardisation import column_index
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.matrix.threads import one_blas_thread
from fastomp_nvm.matrix.tier import Tier, worthwhile
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.objectives.base import Fit
from fastomp_nvm.objectives.table import OBJECTIVES
from fastomp_nvm.selection.held_out import split_weights
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import open_store

__all__ = ["select", "select_many"]


def select(
    data: Any,
    y: Any = None,
    *,
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
    run: str | None = None,
    **request: Any,
) -> Selection:
    """Select features.

    Parameters
    ----------
    data : FeatureStore, store URL, or (n_obs, n_features) array
        Where the features are. A table of mixed columns goes through ``create_store`` first.
    y : (n_obs,) array, optional
        The response; the store's target when left out. Two distinct labels become classes 0 and 1 for the logistic objective.
    threads : int, optional
        Threads of a sweep; the answer does not depend on it.
    names : sequence of str, optional
        Feature names of an array.
    observer, cancelled : callable, optional
        See ``Engine``.
    run : str, optional
        Name of a durable run: registered before the first sweep, resumed with ``resume`` after a crash. Needs a store.
    **request
        Fields of ``SelectionRequest``: ``k``, ``objective``, ``constraint``, ``algorithm``, ``epsilon``, ``tau``, ``seed``, ...

    Returns
    -------
    Selection

    Examples
    --------
    >>> import numpy as np, fastomp_nvm as fo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 50))
    >>> y = 3 * X[:, 7] - 2 * X[:, 21] + 0.1 * rng.normal(size=200)
    >>> sorted(fo.select(X, y, k=2).indices.tolist())
    [7, 21]
    """
    if run is not None:
        from fastomp_nvm.runs.drive import start

        durable: Selection = start(run, data, y, threads=threads, observer=observer, cancelled=cancelled, **request)
        return durable
    one = make_request(request)
    return select_many(data, [one], y, threads=threads, names=names, observer=observer, cancelled=cancelled)[0]


def make_request(fields: dict[str, Any]) -> SelectionRequest:
    """Build a request, naming a field that does not exist."""
    known = SelectionRequest.__dataclass_fields__
    for field in fields:
        if field not in known:
            raise RequestError(f"a selection has no parameter {field!r}: expected one of {', '.join(known)}")
    return SelectionRequest(**fields)


def select_many(
    data: Any,
    requests: Sequence[SelectionRequest | dict[str, Any]],
    y: Any = None,
    *,
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> list[Selection]:
    """Answer several requests over the same data in shared sweeps.

    Each answer equals, bit for bit, that of the request run alone; its counters are those of the run alone too.

    Parameters
    ----------
    data, y, threads, names, observer, cancelled
        As for ``select``.
    requests : sequence of SelectionRequest or dict

    Returns
    -------
    list of Selection
    """
    return select_shared(data, requests, y, threads=threads, names=names, observer=observer, cancelled=cancelled)[0]


def select_shared(
    data: Any,
    requests: Sequence[SelectionRequest | dict[str, Any]],
    y: Any = None,
    *,
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
    journals: Sequence[Journal | None] = (),
    dropped: Callable[[int], bool] | None = None,
    ended: Callable[[int, Selection | None], None] | None = None,
    deadline: Callable[[], bool] | None = None,
) -> tuple[list[Selection], Traffic]:
    """Answer several requests as ``select_many`` does; return also what all of them together took from the medium.

    ``journals`` make the runs durable, one each. ``dropped`` is asked at every round of a request, by its place, whether it alone
    is to end. With ``ended`` each selection is handed over by its place as soon as there is one (None for a dropped request), while
    the others go on, and none is returned. Where ``deadline`` (see ``Engine``) ends the sweeps, none is returned either.
    """
    started = time.perf_counter()
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise RequestError(f"threads is {threads!r}: expected a whole number of at least 1")
    wanted = [request if isinstance(request, SelectionRequest) else make_request(dict(request)) for request in requests]
    opened = open_store(data) if isinstance(data, str) else None
    try:
        dataset = as_dataset(opened if opened is not None else data, names)
        if dataset.matrix.network is not None:
            dataset.matrix.network.restart()
        sweeper = Sweeper(threads)
        with one_blas_thread():
            weights = [each for request in wanted if (each := _moment_weights(dataset, request)) is not None]
            if len(weights) > 1:
                dataset = dataset.knowing(weights)
            budget = LARGEST_BUDGET
            if not dataset.resident:
                budget = automatic_budget(8 * len(dataset.matrix) * dataset.n_obs, len(wanted))
            runs = [_prepare(dataset, request, y, sweeper, budget) for request in wanted]
            for (run, _), journal in zip(runs, journals, strict=False):
                run.journal = journal

            def hand_over(place: int) -> None:
                run, target = runs[place]
                assert ended is not None
                found = None if run.outcome is None else _finish(dataset, wanted[place], run, target, sweeper, started)
                ended(place, found)

            engine = Engine(dataset.matrix, sweeper, observer, cancelled, dropped, None if ended is None else hand_over)
            driven = engine.drive([run for run, _ in runs], deadline)
            left = [] if ended is not None or not driven else zip(wanted, runs, strict=True)
            selections = [_finish(dataset, request, run, target, sweeper, started) for request, (run, target) in left]
            return selections, _shared_traffic(dataset, engine, [run for run, _ in runs], len(weights))
    finally:
        if opened is not None:
            opened.close()


def _shared_traffic(dataset: Dataset, engine: Engine, runs: Sequence[Run], weighted: int) -> Traffic:
    """Return what the runs took from the medium: merged sweeps and the pass of moments once, gathers as they were."""
    shared = Traffic()
    for run in runs:
        shared.include(run.problem.counters.traffic)
    shared = shared.without(engine.saved)
    again = max(weighted - 1, 0)
    return shared.without(Traffic(again, again * dataset.n_features, again * dataset.matrix.nbytes))


def as_dataset(data: Any, names: Sequence[str] | None) -> Dataset:
    """Return the data set behind what the caller gave."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, FeatureStore):
        return Dataset.of_store(data)
    if hasattr(data, "columns") and names is None:  # a table of numbers; mixed ones need create_store
        of_arrow = type(data).__module__.startswith("pyarrow")  # whose columns are the values
        names = [str(name) for name in (data.column_names if of_arrow else data.columns)]
    if np.ma.is_masked(data):
        raise DataError("X has masked entries: fill them in, or build a store with create_store(..., missing='mean')")
    try:
        array = np.asarray(data)
        if array.dtype.kind not in "fiubcmM":  # NumPy would drop imaginary parts, and count the nanoseconds of a date
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"the data is not a table of numbers ({error}): build a store with create_store first") from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"X holds elements of type {array.dtype}, expected real numbers: convert it first")
    return Dataset.of_array(array, names)


def _prepare(
    dataset: Dataset, request: SelectionRequest, y: Any, sweeper: Sweeper, budget: int = LARGEST_BUDGET
) -> tuple[Run, dict[str, Any]]:
    """Bind a request to the data, with a ``budget`` of bytes to gather where it names none; return its run and target."""
    counters = Counters()
    response, target, excluded = resolve_response(dataset, request, y)
    if len(request.exclude):
        excluded = np.union1d(excluded, _excluded(dataset, request))
    weights = _training_weights(dataset, request)
    if weights is not request.weights:
        request = replace(request, weights=weights)
    design = dataset.design(request.standardize, request.weights, counters.traffic)
    usable = np.flatnonzero(design.standardisation.usable())
    if excluded.size:
        usable = np.setdiff1d(usable, excluded, assume_unique=True)
    if not usable.size:
        raise DataError("every feature is constant: there is nothing to select from")
    constraint = _constraint(dataset, request, usable)
    if constraint.needs_base and request.until != "full":
        request = replace(request, until="full")
    options: dict[str, Any] = {} if request.ridge is None else {"ridge": float(request.ridge)}
    objective = OBJECTIVES.load(request.objective)(response, request.weights, centred=request.standardize, **options)
    parameters = Parameters(request.epsilon, request.tau, int(request.seed), request.until, request.polish, request.skip_weak)
    budget = budget if request.gather_bytes is None else request.gather_bytes
    pool = ColumnPool(design, sweeper, counters.traffic, budget, resident=dataset.resident)
    problem = Problem(design, objective, constraint, parameters, usable, pool, counters)
    algorithm = ALGORITHMS.load(request.algorithm)(problem)
    if request.certificate:
        algorithm = certified(problem, algorithm, request.lambda_min, theorem1=request.algorithm == "fast_omp")
    tier = _tier(dataset, request)
    account = dataset.account(tier) if request.tier == "auto" and tier is not None else None
    return Run(problem, algorithm, tier=tier, account=account), target


def _tier(dataset: Dataset, request: SelectionRequest) -> Tier | None:
    """Return the tier that full passes go over, or None for the exact matrix."""
    if request.tier == "int8" and dataset.tier is None:
        raise RequestError("the data has no int8 tier: build the store with --tier int8, or select with tier auto or exact")
    if request.tier == "exact" or dataset.tier is None:
        return None
    if request.tier == "int8" or worthwhile(dataset.matrix, request.algorithm, dataset.traits.medium):
        return dataset.tier
    return None


def _training_weights(dataset: Dataset, request: SelectionRequest) -> Float64Array | None:
    """Return the observation weights of the selection: as given, without the observations held out."""
    if request.weights is not None and len(request.weights) != dataset.n_obs:
        raise RequestError(f"{len(request.weights)} weights were given for {dataset.n_obs} observations")
    if request.test_fraction is None:
        return request.weights
    return split_weights(dataset.n_obs, request.test_fraction, int(request.seed), request.weights)[0]


def _moment_weights(dataset: Dataset, request: SelectionRequest) -> Float64Array | None:
    """Return the weights under which the request needs moments of its own, or None."""
    return _training_weights(dataset, request) if request.standardize else None


def resolve_response(dataset: Dataset, request: SelectionRequest, y: Any) -> tuple[Float64Array, dict[str, Any], IndexArray]:
    """Return the response (n_obs,), what the result says of it, and features that must not be selected."""
    nothing = np.empty(0, dtype=np.int64)
    if y is not None:
        values, classes = encode_response(y, request.objective)
        name = "y"
    elif request.target is None:
        if not dataset.targets:
            raise RequestError("the store holds no target: give one with y= in Python or --target in the shell")
        name = next(iter(dataset.targets))
        values, classes = dataset.targets[name].values, dataset.targets[name].classes
    elif request.target in dataset.targets:
        name = request.target
        values, classes = dataset.targets[name].values, dataset.targets[name].classes
    else:
        name = request.target
        try:
            feature = list(dataset.names).index(name)
        except ValueError:
            known = ", ".join(dataset.targets) or "none"
            raise RequestError(f"no target or feature is called {name!r}; the store's targets: {known}") from None
        first, last = int(dataset.offsets[feature]), int(dataset.offsets[feature + 1])
        if last - first > 1:
            raise RequestError(f"the feature {name!r} spans {last - first} columns and cannot be a target")
        nothing = np.array([feature], dtype=np.int64)
        values, classes = dataset.matrix[first].astype(np.float64), ()
    if len(values) != dataset.n_obs:
        raise DataError(f"the target has {len(values)} values for {dataset.n_obs} observations")
    if not np.isfinite(values).all():
        raise DataError(f"the target holds a NaN or infinity at row {int(np.flatnonzero(~np.isfinite(values))[0]) + 1}")
    if classes and request.objective != "logistic":
        raise RequestError(f"the target {name!r} holds classes ({', '.join(classes[:3])}): use the logistic objective")
    if request.objective == "logistic" and not classes:
        values, classes = encode_response(values, "logistic")
    if request.objective == "logistic" and len(classes) != 2:
        raise DataError(f"the target {name!r} has {len(classes)} distinct values: the logistic objective needs exactly two")
    return values, {"target": name, **({"classes": list(classes)} if request.objective == "logistic" else {})}, nothing


def _excluded(dataset: Dataset, request: SelectionRequest) -> IndexArray:
    """Return the features that the request excludes by name."""
    places = {name: index for index, name in enumerate(dataset.names)}
    for name in request.exclude:
        if name not in places:
            raise RequestError(f"the feature {name!r} is to be excluded, but the data has none of that name")
    return np.array([places[name] for name in request.exclude], dtype=np.int64)


def labelled(values: AnyArray) -> tuple[tuple[str, ...], IndexArray]:
    """Return a label for each distinct one of ``values`` (n,), no two alike, and the place of each value's label (n,)."""
    distinct, codes = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)
    return tuple(_label(value) for value in distinct.tolist()), codes.ravel()


def _label(value: Any) -> str:
    """Return ``value`` as text, a number in six digits where these say it all."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else str(value).removesuffix(".0")


def encode_response(y: Any, objective: str) -> tuple[Float64Array, tuple[str, ...]]:
    """Return a response as float64; for the logistic objective also the labels of codes 0 and 1."""
    if np.ma.is_masked(y):
        raise DataError("the target has masked entries: remove these observations or fill the values in")
    values = np.asarray(y)
    if values.ndim == 2 and 1 in values.shape:
        values = values.ravel()
    if values.ndim != 1:
        raise DataError(f"the target has shape {values.shape}: expected one value per observation")
    if values.dtype.kind in "cmM":
        raise DataError(f"the target holds elements of type {values.dtype}, expected real numbers or labels: convert it first")
    missing = first_missing(values)
    if missing is not None:
        raise DataError(f"the target is missing at row {missing + 1}: remove the observation or fill the value in")
    if objective == "logistic":
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(f"the target holds a NaN or infinity at row {int(np.flatnonzero(~np.isfinite(values))[0]) + 1}")
        if values.dtype.kind in "fiu":
            ones = values == 1
            if (ones | (values == 0)).all() and ones.any() and not ones.all():  # as mostly: nothing to sort
                return ones.astype(np.float64), ("0", "1")
        labels, codes = labelled(values)
        return codes.astype(np.float64), labels
    try:
        return values.astype(np.float64), ()
    except (TypeError, ValueError) as error:
        raise DataError(f"the target is not numeric ({error}): use the logistic objective for two classes") from error


def _constraint(dataset: Dataset, request: SelectionRequest, usable: IndexArray) -> Constraint:
    """Return the constraint of the request with k folded in, bound to the data's features."""
    given = request.constraint
    if isinstance(given, Constraint):
        if given.n_features != dataset.n_features:
            raise ConstraintError(f"the constraint is over {given.n_features} features, the data has {dataset.n_features}")
        constraint: Constraint | None = given
    elif given is None:
        constraint = None
    else:
        from fastomp_nvm.constraints.written.description import parse_constraint  # needs a YAML parser

        selectable = np.zeros(dataset.n_features, dtype=np.bool_)
        selectable[usable] = True
        constraint = parse_constraint(given, dataset.names, usable=selectable)
    if request.k is None and constraint is None:
        raise RequestError("give k, or a constraint that bounds how many features may be selected")
    limits = [] if request.k is None else [Cardinality(dataset.n_features, min(request.k, len(usable)))]
    # Through ``intersect``, because a limit next to lower bounds must leave room for them.
    return intersect([*limits, *([] if constraint is None else [constraint])])


def _finish(
    dataset: Dataset, request: SelectionRequest, run: Run, target: dict[str, Any], sweeper: Sweeper, started: float
) -> Selection:
    """Refit on the selection and put the result together."""
    problem, outcome = run.problem, run.outcome
    assert outcome is not None
    counters, traffic, parameters = problem.counters, problem.counters.traffic, problem.parameters
    indices = outcome.selected
    columns = problem.pool.columns(indices)
    fit = problem.objective.refit(columns)
    with np.errstate(over="ignore", invalid="ignore"):
        coef, shift = columns.standardisation.coefficients(fit.coef)
    if not (np.isfinite(coef).all() and math.isfinite(fit.intercept + shift) and math.isfinite(fit.score)):
        raise DataError("the fit left the range of float64: scale the columns and the target to moderate sizes")
    positions = column_index(dataset.offsets, indices)
    offsets = columns.standardisation.offsets.tolist()
    unpolished = fit.score
    if outcome.unpolished is not None and not np.array_equal(outcome.unpolished, indices):
        before = problem.pool.columns(outcome.unpolished)
        unpolished = problem.objective.refit(before, exact=False).score
    violations = list(problem.constraint.violations(indices))
    if violations:
        warnings.warn(f"the answer breaks the constraint as written: {'; '.join(violations)}", stacklevel=5)
    details: dict[str, Any] = {
        **fit.summary,
        **_test_figures(problem, request, columns, fit),
        "objective": request.objective,
        "algorithm": request.algorithm,
        "k": request.k if request.k is not None else problem.constraint.rank,
        "seed": int(request.seed),
        "epsilon": request.epsilon,
        "tau": request.tau,
        **({} if outcome.tau is None else {"tau_chosen": outcome.tau}),
        **({} if outcome.rank is None else {"rank": outcome.rank, "rank_estimated": outcome.rank_estimated}),
        "until": parameters.until,
        "polish": request.polish if outcome.unpolished is not None else "none",  # only FAST_OMP polishes
        "score_unpolished": float(unpolished),
        **({"skip_weak": True} if request.skip_weak else {}),
        **({} if outcome.certificate is None else {"certificate": asdict(outcome.certificate)}),
        "feasible": not violations,
        "violations": violations,
        "gradient_rounds": counters.gradient_rounds,
        "gradient_calls": counters.gradient_calls,
        "independence_rounds": counters.independence_rounds,
        "independence_calls": counters.independence_calls,
        "sweeps": traffic.sweeps,
        "full_passes": traffic.features_visited / dataset.n_features,
        "bytes_read": traffic.bytes_read,
        "bytes_read_tier": traffic.bytes_read_tier,
        "bytes_read_exact": traffic.bytes_read - traffic.bytes_read_tier,
        **({} if dataset.matrix.network is None else dataset.matrix.network.figures()),
        "seconds": time.perf_counter() - started,
        "medium": dataset.traits.medium,
        "durability": dataset.traits.durability,
        "emulated": dataset.traits.emulated,
        "tier": "exact" if run.tier is None else "int8",
        "kernel": sweeper.kernel.id,
        "verified": False,
        **target,
        "store": {
            "n_features": dataset.n_features,
            "n_columns": len(dataset.matrix),
            "n_obs": dataset.n_obs,
            "dtype": dataset.matrix.dtype.name,
        },
    }
    names = [dataset.names[index] for index in indices.tolist()]
    several = dataset.column_names is not dataset.names
    return Selection(
        features=names,
        indices=indices,
        columns=[
            [dataset.column_names[column] for column in range(int(dataset.offsets[index]), int(dataset.offsets[index + 1]))]
            for index in indices.tolist()
        ]
        if several
        else [[name] for name in names],
        coef=[coef[first:last] for first, last in pairwise(offsets)],
        column_positions=positions,
        intercept=fit.intercept + shift,
        score=fit.score,
        details=details,
    )


def _test_figures(problem: Problem, request: SelectionRequest, columns: Columns, fit: Fit) -> dict[str, Any]:
    """Score a fit on the observations held out, if any."""
    if request.test_fraction is None:
        return {}
    _, test = split_weights(problem.design.n_obs, request.test_fraction, int(request.seed), request.weights)
    score = problem.objective.score(columns.dense(np.arange(len(columns.features))) @ fit.coef + fit.intercept, test)
    return {
        "test_score": score if np.isfinite(score) else None,  # JSON has no NaN
        "test_fraction": request.test_fraction,
        "test_rows": int(np.count_nonzero(test)),
    }
