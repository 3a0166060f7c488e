"""``select_many``: from data and requests to selections, all requests in shared sweeps."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise, starmap
from pathlib import Path

import numpy as np

from fastomp_nvm.algorithms.protocol import Counters, Journal, Parameters, Problem
from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.arrays import BoolArray, Float64Array
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.constraints.intersection import intersect
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Engine, Observer, Run
from fastomp_nvm.errors import ConstraintError, DataError, RequestError, near
from fastomp_nvm.matrix.pool import LARGEST_BUDGET, ColumnPool, automatic_budget
from fastomp_nvm.matrix.standardisation import column_index
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.matrix.threads import one_blas_thread
from fastomp_nvm.matrix.tier import worthwhile
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.objectives.table import OBJECTIVES
from fastomp_nvm.selection.answer import DataSize
from fastomp_nvm.selection.held_out import split_weights
from fastomp_nvm.selection.model import resolved_encoding
from fastomp_nvm.selection.notes import notes_on
from fastomp_nvm.selection.progress import watched
from fastomp_nvm.selection.request import RequestFields, SelectionRequest, make_request
from fastomp_nvm.selection.response import Response, resolve_response
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.source import Load, Way, open_dataset

__all__ = ["Prepared", "bind_constraint", "prepare", "select_many", "select_shared"]


def select_many(
    data: object,
    requests: Sequence[SelectionRequest | RequestFields],
    y: object = None,
    *,
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    verify: bool = False,
    load: Load | None = None,
    io: Way | None = None,
) -> list[Selection]:
    """Answer several requests over the same data in shared sweeps.

    Each answer equals, bit for bit, that of the request run alone; its counters are those of the run alone too.

    Parameters
    ----------
    data, y, threads, names, observer, progress, cancelled, verify, load, io
        As for ``select``.
    requests : sequence of SelectionRequest or dict

    Returns
    -------
    list of Selection
    """
    with watched(observer, progress, "select") as watching:
        return select_shared(
            data,
            requests,
            y,
            threads=threads,
            names=names,
            observer=watching,
            cancelled=cancelled,
            verify=verify,
            load=load,
            io=io,
        )[0]


def select_shared(
    data: object,
    requests: Sequence[SelectionRequest | RequestFields],
    y: object = None,
    *,
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
    verify: bool = False,
    load: Load | None = None,
    io: Way | None = None,
    journals: Sequence[Journal | None] = (),
    dropped: Callable[[int], bool] | None = None,
    ended: Callable[[int, Selection | None], None] | None = None,
    deadline: Callable[[], bool] | None = None,
) -> tuple[list[Selection], Traffic]:
    """Answer several requests as ``select_many`` does; return also the traffic of all of them together.

    ``journals`` make the runs durable, one each. ``dropped(place)`` is asked at every round of the request at that position
    whether it alone is to end. With ``ended``, each selection is passed to ``ended(place, selection)`` as soon as it is there (None
    for a dropped request), while the others go on, and no selection is returned; nor is one where ``deadline`` (see
    ``Engine.drive``) ends the sweeps.
    """
    started = time.perf_counter()
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise RequestError(f"threads is {threads!r}: expected a whole number of at least 1")
    with open_dataset(data, names, verify=verify, load=load, io=io) as dataset, one_blas_thread():
        if dataset.matrix.network is not None:
            dataset.matrix.network.restart()
        sweeper = Sweeper(threads)
        wanted: list[tuple[SelectionRequest, Float64Array | None]] = []
        weighted: list[Float64Array] = []
        pools = 0  # whose size is left to us
        for each in requests:
            request = each if isinstance(each, SelectionRequest) else make_request(each)
            weights = request.weights
            if weights is not None and len(weights) != dataset.n_obs:
                raise RequestError(f"{len(weights)} weights were given for {dataset.n_obs} observations")
            if request.test_fraction is not None:
                weights, _ = split_weights(dataset.n_obs, request.test_fraction, int(request.seed), weights)
            wanted.append((request, weights))
            pools += request.gather_bytes is None
            if weights is not None and request.standardize:
                weighted.append(weights)
        if len(weighted) > 1:
            dataset = dataset.knowing(weighted)
        budget = LARGEST_BUDGET
        if pools and not dataset.resident:
            budget = automatic_budget(8 * dataset.matrix.shape[0] * dataset.n_obs, len(wanted))
        prepared: list[Prepared] = []
        runs: list[Run] = []
        for place, (request, weights) in enumerate(wanted):
            prepared.append(prepare(dataset, request, y, weights, sweeper, budget))
            runs.append(prepared[place].run)
            if journals:
                runs[place].journal = journals[place]

        finish = partial(_finish, dataset, sweeper, started)

        def hand_over(place: int) -> None:
            assert ended is not None
            ended(place, None if runs[place].outcome is None else finish(prepared[place]))

        engine = Engine(dataset.matrix, sweeper, observer, cancelled, dropped, None if ended is None else hand_over)
        if len(weighted) > 1:  # one pass of moments serves all of them
            engine.saved.include(Traffic(1, dataset.n_features, dataset.matrix.nbytes), len(weighted) - 1)
        driven = engine.drive(runs, deadline)
        # Merged sweeps and the pass of moments count once, gathers as often as they were made.
        traffic = Traffic()
        for run in runs:
            traffic.include(run.problem.counters.traffic)
        traffic.include(engine.saved, -1)
        return [] if ended is not None or not driven else list(map(finish, prepared)), traffic


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A request bound to data, ready to run; ``weights`` are zero where held out, ``constant`` counts constant features."""

    request: SelectionRequest
    response: Response
    run: Run
    weights: Float64Array | None
    constant: int


def prepare(
    dataset: Dataset,
    request: SelectionRequest,
    y: object,
    weights: Float64Array | None,
    sweeper: Sweeper,
    budget: int = LARGEST_BUDGET,
) -> Prepared:
    """Bind a request to the data.

    ``weights`` (n_obs,) are the observation weights of the request, zero for the observations held out; None without either.
    ``budget`` is the memory in bytes for gathered columns where the request names none.
    """
    counters = Counters()
    response = resolve_response(dataset, request, y)
    design = dataset.design(request.standardize, weights, counters.traffic)
    usable = design.standardisation.usable()
    constant = len(usable) - int(np.count_nonzero(usable))
    if response.feature is not None:
        usable[response.feature] = False
    if request.exclude:
        usable[_named(dataset, request.exclude)] = False
    candidates = np.flatnonzero(usable)
    if not candidates.size:
        raise DataError("every feature is constant: there is nothing to select from")
    limit = None if request.k is None else Cardinality(dataset.n_features, min(request.k, len(candidates)))
    if request.constraint is not None:
        given = bind_constraint(request.constraint, dataset, usable)
        # ``intersect``, also of one: a limit anywhere next to lower bounds must leave room for them.
        constraint = intersect([given] if limit is None else [limit, given])
    elif limit is not None:
        constraint = limit
    else:
        raise RequestError("k is missing: give it, or a constraint that bounds how many features may be selected")
    parameters = Parameters(
        request.epsilon,
        request.tau,
        int(request.seed),
        "full" if constraint.needs_base else request.until,
        request.polish,
        request.skip_weak,
    )
    ridge = {} if request.ridge is None else {"ridge": float(request.ridge)}
    objective = OBJECTIVES.load(response.objective)(response.values, weights, centred=request.standardize, **ridge)
    pool = ColumnPool(design, sweeper, counters.traffic, request.gather_bytes or budget, resident=dataset.resident)
    problem = Problem(design, objective, constraint, parameters, candidates, pool, counters)
    algorithm = ALGORITHMS.load(request.algorithm)(problem)
    if request.certificate:
        from fastomp_nvm.algorithms.certificate import certified  # imports every objective

        algorithm = certified(problem, algorithm, request.lambda_min, theorem1=request.algorithm == "fast_omp")
    tier, account = dataset.tier, None
    if tier is None and request.tier == "int8":
        raise RequestError("the data has no int8 tier: build the store with one, or select with tier auto or exact")
    if tier is not None and request.tier != "int8":
        if request.tier == "exact" or not worthwhile(dataset.matrix, request.algorithm, dataset.traits.medium):
            tier = None
        else:
            account = dataset.account(tier)  # gives the tier up where it does not pay
    return Prepared(request, response, Run(problem, algorithm, tier=tier, account=account), weights, constant)


def _named(dataset: Dataset, names: Sequence[str]) -> list[int]:
    """Return the indices of the features to exclude."""
    positions = {name: index for index, name in enumerate(dataset.names)}
    for name in names:
        if name not in positions:
            hint = near(name, positions)
            raise RequestError(f"the feature {name!r} is to be excluded, but the data has none of that name{hint}")
    return [positions[name] for name in names]


def bind_constraint(
    given: Constraint | Mapping[str, object] | str | os.PathLike[str], dataset: Dataset, usable: BoolArray
) -> Constraint:
    """Return the constraint over the features of ``dataset`` that an object, a description or a file stands for.

    Lower bounds are checked against the features in ``usable`` (n_features,).
    """
    if isinstance(given, Constraint):
        if given.n_features != dataset.n_features:
            raise ConstraintError(f"the constraint is over {given.n_features} features, the data has {dataset.n_features}")
        return given
    from fastomp_nvm.constraints.written.description import parse_constraint, read_constraint  # needs a YAML parser

    if isinstance(given, os.PathLike):
        return read_constraint(Path(given), dataset.names, usable=usable)
    return parse_constraint(given, dataset.names, usable=usable)


def _finish(dataset: Dataset, sweeper: Sweeper, started: float, prepared: Prepared) -> Selection:
    """Refit on the selected features and return the result."""
    request, response, run = prepared.request, prepared.response, prepared.run
    problem, outcome, counters, traffic = run.problem, run.outcome, run.problem.counters, run.problem.counters.traffic
    assert outcome is not None
    indices = outcome.selected
    columns = problem.pool.columns(indices)
    fit = problem.objective.refit(columns)
    with np.errstate(over="ignore", invalid="ignore"):
        coef, shift = columns.standardisation.coefficients(fit.coef)
    if not (np.isfinite(coef).all() and math.isfinite(fit.intercept + shift) and math.isfinite(fit.score)):
        raise DataError("the fit left the range of float64: scale the columns and the target to moderate sizes")
    unpolished = fit.score
    if outcome.unpolished is not None and not np.array_equal(outcome.unpolished, indices):
        unpolished = problem.objective.refit(problem.pool.columns(outcome.unpolished), exact=False).score
    test_score = test_rows = None
    if request.test_fraction is not None:
        _, test = split_weights(dataset.n_obs, request.test_fraction, int(request.seed), request.weights)
        test_score = problem.objective.score(columns.dense(np.arange(len(columns.features))) @ fit.coef + fit.intercept, test)
        test_rows = int(np.count_nonzero(test))
    violations = list(problem.constraint.violations(indices))
    if violations:
        warnings.warn(f"the answer breaks the constraint as written: {'; '.join(violations)}", stacklevel=4)
    names = list(map(dataset.names.__getitem__, indices.tolist()))
    limit = len(indices) if request.k is None else min(request.k, dataset.n_features)
    notes = notes_on(names, columns, fit, problem, response, prepared.weights, request.standardize, limit, prepared.constant)
    spans = list(starmap(slice, pairwise(columns.standardisation.offsets.tolist())))  # columns of each feature
    positions = column_index(dataset.offsets, indices)
    column_names = list(map(dataset.column_names.__getitem__, positions.tolist()))
    network = {} if dataset.matrix.network is None else asdict(dataset.matrix.network)
    return Selection(
        features=names,
        indices=indices,
        coef=coef if len(coef) == len(indices) else list(map(coef.__getitem__, spans)),
        intercept=fit.intercept + shift,
        score=fit.score,
        columns=list(map(column_names.__getitem__, spans)),
        column_positions=positions,
        encoding=resolved_encoding(dataset.encoding, column_names, dataset.statistics.mean[positions]),
        pseudo_r2=fit.summary.get("pseudo_r2"),
        null_score=fit.summary.get("null_score"),
        test_score=test_score if test_score is None or math.isfinite(test_score) else None,  # JSON has no NaN
        test_fraction=request.test_fraction,
        test_rows=test_rows,
        objective=response.objective,
        objective_reason=response.reason,
        algorithm=request.algorithm,
        k=request.k if request.k is not None else problem.constraint.rank,
        seed=int(request.seed),
        epsilon=request.epsilon,
        tau=request.tau,
        tau_chosen=outcome.tau,
        rank=outcome.rank,
        rank_estimated=None if outcome.rank is None else outcome.rank_estimated,
        until=problem.parameters.until,
        polish=request.polish if outcome.unpolished is not None else "none",  # only FAST_OMP polishes
        score_unpolished=float(unpolished),
        skip_weak=request.skip_weak,
        certificate=outcome.certificate,
        feasible=not violations,
        violations=violations,
        gradient_rounds=counters.gradient_rounds,
        gradient_calls=counters.gradient_calls,
        independence_rounds=counters.independence_rounds,
        independence_calls=counters.independence_calls,
        sweeps=traffic.sweeps,
        full_passes=traffic.features_visited / dataset.n_features,
        bytes_read=traffic.bytes_read,
        bytes_read_tier=traffic.bytes_read_tier,
        bytes_read_exact=traffic.bytes_read - traffic.bytes_read_tier,
        **network,
        seconds=time.perf_counter() - started,
        medium=dataset.traits.medium,
        durability=dataset.traits.durability,
        emulated=dataset.traits.emulated,
        tier="exact" if run.tier is None else "int8",
        kernel=sweeper.kernel.id,
        verified=dataset.verified,
        target=response.name,
        classes=list(response.classes) if response.objective == "logistic" else None,
        store=DataSize(dataset.n_features, *dataset.matrix.shape, dataset.matrix.dtype.name),
        path=None if (path := problem.objective.path(columns)) is None else path.tolist(),
        notes=notes,
    )
