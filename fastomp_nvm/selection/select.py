"""``select_many``: from data and requests to selections, all requests in shared sweeps."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise, starmap
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from fastomp_nvm.algorithms.protocol import Algorithm, Counters, Journal, Outcome, Parameters, Problem
from fastomp_nvm.algorithms.table import ALGORITHMS, DRAWING, GREEDY
from fastomp_nvm.arrays import BoolArray, Float64Array
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Engine, Observer, Run
from fastomp_nvm.errors import ConstraintError, DataError, RequestError, near
from fastomp_nvm.matrix.checksum import Check
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.matrix.pool import BUDGET_REASON, LARGEST_BUDGET, ColumnPool, automatic_budget
from fastomp_nvm.matrix.standardisation import column_index
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.matrix.threads import one_blas_thread
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.objectives.table import OBJECTIVES
from fastomp_nvm.selection.answer import DataSize, KeptColumn
from fastomp_nvm.selection.automatic import choose_algorithm
from fastomp_nvm.selection.compression import Compression, Split, compress
from fastomp_nvm.selection.criteria import path_points
from fastomp_nvm.selection.notes import notes_on
from fastomp_nvm.selection.progress import watched
from fastomp_nvm.selection.request import RequestFields, SelectionRequest, make_request
from fastomp_nvm.selection.response import Response, observation_values, offset_column, resolve_response, weights_of
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.source import Load, Way, open_dataset

if TYPE_CHECKING:
    from fastomp_nvm.selection.kept import Kept
    from fastomp_nvm.selection.proof import Proof

__all__ = ["Prepared", "bind_constraint", "nested", "prepare", "resolve_algorithm", "select_many", "select_shared", "split_of"]

#: Characters of a request that a proof holds with its constraint; longer ones are left out.
LONGEST_REQUEST = 1 << 16


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
    check: Check | None = None,
) -> list[Selection]:
    """Answer several requests over the same data in shared sweeps.

    Each answer equals, bit for bit, that of the request run alone; its counters are those of the run alone too. Where answers are
    made from Gram matrices (``gram`` of a request and of its choices), they are equal up to rounding.

    Parameters
    ----------
    data, y, threads, names, observer, progress, cancelled, verify, load, io, check
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
            check=check,
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
    check: Check | None = None,
    journals: Sequence[Journal | None] = (),
    dropped: Callable[[int], bool] | None = None,
    ended: Callable[[int, Selection | None], None] | None = None,
    deadline: Callable[[], bool] | None = None,
    held_out: Sequence[Float64Array | None] = (),
    longest: Sequence[int] = (),
    beside: Beside | None = None,
) -> tuple[list[Selection], Traffic]:
    """Answer several requests as ``select_many`` does; return also the traffic of all of them together.

    ``journals`` make the runs durable, one each. ``dropped(place)`` is asked at every round of the request at that position
    whether it alone is to end. With ``ended``, each selection is passed to ``ended(place, selection)`` as soon as it is there (None
    for a dropped request), while the others go on, and no selection is returned; nor is one where ``deadline`` (see
    ``Engine.drive``) ends the sweeps. ``held_out`` holds observation weights (n_obs,) for each request, on which ``test_score`` is
    computed. Where ``journals`` are given, even as None, no Gram matrix is used: such runs share sweeps with whatever else waits,
    and that must not change a bit of them. ``longest``, only for requests that are ``nested``, holds for each of them the position
    of the one with the largest k among those that differ from it by k alone: greedy then runs for that k only. ``beside`` returns
    further runs over the same data, which share sweeps and give no selection.
    """
    started = time.perf_counter()
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise RequestError(f"threads is {threads!r}: expected a whole number of at least 1")
    with open_dataset(data, names, verify=verify, load=load, io=io, check=check) as dataset, one_blas_thread():
        if dataset.matrix.network is not None:
            dataset.matrix.network.restart()
        sweeper = Sweeper(threads)
        wanted: dict[int, Split] = {}
        driving: list[Split] = []  # those with a run of their own
        weighted: list[Float64Array] = []
        pools = 0  # whose size is left to us
        longest = longest or range(len(requests))
        longest_first = sorted(range(len(requests)), key=lambda place: longest[place] != place)
        for place in longest_first:
            each = requests[place]
            request = each if isinstance(each, SelectionRequest) else make_request(each)
            if longest[place] != place:
                wanted[place] = wanted[longest[place]]._replace(request=request)
                if request.algorithm in GREEDY:
                    continue
            else:
                wanted[place] = split_of(dataset, request, held_out[place] if held_out else None)
            split = wanted[place]
            driving.append(split)
            pools += request.gather_bytes is None
            if split.weights is not None and request.standardize:
                weighted.append(split.weights)
        found = None if journals else compress(dataset, driving, y, sweeper, cancelled)
        compression = found if isinstance(found, Compression) else None
        if compression is None and len(weighted) > 1:
            dataset = dataset.knowing(weighted)
        budget, left_open = LARGEST_BUDGET, dict[str, Choice]()
        if threads is None:
            left_open["threads"] = Choice(sweeper.threads, "the cores that this process may use")
        if pools and not dataset.resident:
            budget = automatic_budget(8 * dataset.matrix.shape[0] * dataset.n_obs, len(driving))
            left_open["gather_bytes"] = Choice(budget, BUDGET_REASON)
        if found is not None:
            left_open["gram"] = found.choice if isinstance(found, Compression) else found
        prepared: dict[int, Prepared] = {}
        binding = partial(prepare, ahead=observer is None and cancelled is None)
        for place in longest_first:
            prepared[place] = binding(dataset, wanted[place], y, sweeper, budget, compression, prepared.get(longest[place]))
            if journals:
                prepared[place].run.journal = journals[place]
        runs = list(dict.fromkeys(prepared[place].run for place in range(len(wanted))))

        finish = partial(_finish, dataset, sweeper, left_open, started)

        def hand_over(place: int) -> None:
            assert ended is not None
            ended(place, None if runs[place].outcome is None else finish(prepared[place]))

        engine = Engine(dataset.matrix, sweeper, observer, cancelled, dropped, None if ended is None else hand_over)
        one_pass = Traffic(1, dataset.n_features, dataset.matrix.nbytes)
        if compression is None and len(weighted) > 1:  # one pass of moments serves all of them
            engine.saved.include(one_pass, len(weighted) - 1)
        if found is not None:  # so does one of Gram matrices, used or not
            for run in runs:
                run.problem.counters.traffic.include(one_pass)
            engine.saved.include(one_pass, len(runs) - 1)
        further = [] if beside is None else list(beside(dataset, sweeper, list(prepared.values())))
        driven = engine.drive([*runs, *further], deadline)
        finished: dict[int, Selection] = {}
        for place in longest_first if ended is None and driven else ():
            finished[place] = finish(prepared[place], finished.get(longest[place]))
        # Merged sweeps, the pass of moments and that of Gram matrices count once, gathers as often as they were made.
        traffic = Traffic()
        for run in (*runs, *further):
            traffic.include(run.problem.counters.traffic)
        traffic.include(engine.saved, -1)
        return [finished[place] for place in sorted(finished)], traffic


def split_of(dataset: Dataset, request: SelectionRequest, test: Float64Array | None = None) -> Split:
    """Return a request with the weights of its training and test observations; ``test`` unless the request holds some out."""
    weights = weights_of(dataset, request)
    if request.test_fraction is not None:
        from fastomp_nvm.selection.held_out import split_weights

        weights, test = split_weights(dataset.n_obs, request.test_fraction, int(request.seed), weights)
    return Split(request, weights, test)


class Prepared(NamedTuple):
    """A request bound to data, ready to run.

    Attributes
    ----------
    split : Split
    response : Response
        Of the observations, or of the pseudo-observations of compressed data.
    run : Run
    constant : int
        Number of constant features.
    compression : Compression, optional
    algorithm : Choice, optional
        The algorithm, where the request left it open.
    kept : Kept, optional
        Columns that every model has.
    longer : Run, optional
        A run with a larger k whose greedy sets begin with those of this request; it is ``run`` itself where nothing else is needed.
    """

    split: Split
    response: Response
    run: Run
    constant: int
    compression: Compression | None
    algorithm: Choice | None
    kept: Kept | None = None
    longer: Run | None = None


#: Called with the data set, what sweeps it, and the requests: returns further runs to drive with theirs.
Beside: TypeAlias = Callable[[Dataset, Sweeper, Sequence[Prepared]], Sequence[Run]]


def prepare(
    dataset: Dataset,
    split: Split,
    y: object,
    sweeper: Sweeper,
    budget: int = LARGEST_BUDGET,
    compression: Compression | None = None,
    longer: Prepared | None = None,
    *,
    ahead: bool = True,
) -> Prepared:
    """Bind a request to the data, or to the data compressed; ``budget`` is the memory in bytes for columns by default.

    ``longer`` is a nested request that differs by a larger k alone: greedy runs for that one only. ``ahead``: the pass that makes
    the moments of an array may also make the products that most algorithms ask for first, unreported and without cancellation.
    """
    if longer is not None and split.request.algorithm in GREEDY:
        return longer._replace(split=split, longer=longer.run)
    counters, request, weights, resident = Counters(), split.request, split.weights, dataset.resident
    response = resolve_response(dataset, request, y)
    compressed = None if compression is None else compression.of(split)
    if compressed is not None:
        response, weights, resident = response._replace(values=compressed.response), None, True
    offset = observation_values(dataset, request.offset, "offsets")
    bound = partial(OBJECTIVES.load(response.objective), response.values, weights, centred=request.standardize, offset=offset)
    if request.ridge is not None:
        bound = partial(bound, ridge=float(request.ridge))
    objective = None if request.beside else bound()
    if compressed is None:
        if ahead and objective is not None:
            ready = objective
            dataset.measure(sweeper, lambda: ready.null().residual)
        design = dataset.design(request.standardize, weights, counters.traffic)
    else:
        design = compressed.design
    pool = ColumnPool(design, sweeper, counters.traffic, request.gather_bytes or budget, resident=resident)
    usable = design.standardisation.usable()
    constant = len(usable) - int(np.count_nonzero(usable))
    kept, features = None, np.empty(0, dtype=np.int64)
    if objective is None:
        if not request.standardize:
            raise RequestError("kept columns stand beside an intercept: leave standardize=False out, or keep and covariates")
        from fastomp_nvm.selection.kept import keep, kept_features  # not needed by most requests

        features = kept_features(dataset, request, response.feature)
        kept = keep(dataset, pool, features, request.covariates, weights)
        usable[features] = False
        objective = bound(fixed=kept.fixed)
        pool.fixed = kept.fixed if objective.projects else None
    for column in (request.weights, request.offset):
        if isinstance(column, str) and column in dataset.names:
            usable[list(dataset.names).index(column)] = False
    if response.feature is not None:
        usable[response.feature] = False
    if dataset.excluded is not None:
        usable[dataset.excluded] = False
    if request.exclude:
        usable[_named(dataset, request.exclude)] = False
    candidates = np.flatnonzero(usable)
    if not candidates.size:
        beside = " beside the kept columns" if kept is not None else ""
        raise DataError(f"every feature{beside} is constant or excluded: there is nothing to select from")
    inside = features if request.keep_inside else features[:0]
    limit = None if request.k is None else Cardinality(dataset.n_features, min(request.k, len(candidates) + len(inside)))
    if request.constraint is not None:
        from fastomp_nvm.constraints.extendable import intersect  # imports families of constraints

        given = bind_constraint(request.constraint, dataset, usable)
        # ``intersect``, also of one: a limit anywhere next to lower bounds must leave room for them.
        constraint = intersect([given] if limit is None else [limit, given], usable)
    elif limit is not None:
        constraint = limit
    else:
        raise RequestError("k is missing: give it, or a constraint that bounds how many features may be selected")
    if len(inside):
        from fastomp_nvm.selection.kept import around  # not needed by most requests

        constraint = around(constraint, inside)
    parameters = Parameters(
        request.epsilon,
        request.tau,
        int(request.seed),
        "full" if constraint.needs_base else request.until,
        request.polish,
        request.skip_weak,
        request.plain,
        again=request.polish == "pool",
    )
    request, choice = resolve_algorithm(dataset, request)
    tier, account = dataset.tier if compression is None else None, None
    if tier is None and request.tier == "int8":
        raise RequestError("the data has no int8 tier: build the store with one, or select with tier auto or exact")
    if tier is not None and request.tier != "int8":
        from fastomp_nvm.matrix.tier import worthwhile  # not needed by data without a tier

        if request.tier == "exact" or not worthwhile(dataset.matrix, request.algorithm, resident=dataset.resident):
            tier = None
        else:
            account = dataset.account(tier)  # gives the tier up where it does not pay
    problem = Problem(design, objective, constraint, parameters, candidates, pool, counters, tier)
    running = partial(_algorithm, request=request, improve=longer is None)
    if kept is None:
        algorithm = running(problem)
    else:
        from fastomp_nvm.algorithms.spanned import without_spanned  # not needed by most requests

        algorithm = without_spanned(problem, kept.fixed, running, first=request.algorithm in DRAWING)
    if request.certificate:
        from fastomp_nvm.algorithms.certificate import certified  # imports every objective

        algorithm = certified(problem, algorithm, request.lambda_min, theorem1=request.algorithm == "fast_omp")
    split = split._replace(request=request)
    run = Run(problem, algorithm, tier=tier, account=account)
    return Prepared(split, response, run, constant, compression, choice, kept, None if longer is None else longer.run)


def _algorithm(problem: Problem, request: SelectionRequest, *, improve: bool) -> Algorithm:
    """Return the algorithm of a request over ``problem``; ``improve`` allows what its quality adds."""
    algorithm = ALGORITHMS.load(request.algorithm)(problem)
    if request.constraint is not None:
        from fastomp_nvm.algorithms.repair import repaired

        algorithm = repaired(problem, algorithm)
    if request.quality != "fast" and improve:
        from fastomp_nvm.algorithms.quality import improved  # not needed by most requests

        algorithm = improved(problem, algorithm, exchanges=request.quality == "best")
    return algorithm


def nested(dataset: Dataset, request: SelectionRequest) -> bool:
    """Return whether a request runs greedy whose sets begin with those of the same request with a smaller k.

    They do not beside lower bounds, for which every k leaves room in its own way. A certificate is of one set alone.
    """
    if request.certificate or not (request.algorithm in GREEDY or request.quality == "verified"):
        return False
    usable = dataset.design(request.standardize).standardisation.usable()
    return request.constraint is None or not bind_constraint(request.constraint, dataset, usable).needs_base


def resolve_algorithm(dataset: Dataset, request: SelectionRequest) -> tuple[SelectionRequest, Choice | None]:
    """Return the request with an algorithm, and the choice where it left that open."""
    if request.algorithm != "auto":
        return request, None
    choice = choose_algorithm(dataset.n_obs, dataset.n_features, request.k, constrained=request.constraint is not None)
    return replace(request, algorithm=str(choice.value)), choice


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


def _choices(dataset: Dataset, left_open: Mapping[str, Choice], prepared: Prepared) -> dict[str, Choice]:
    """Return what was chosen for a request alone, and those of ``left_open``, chosen for all requests, that it does not name."""
    request, run = prepared.split.request, prepared.run
    chosen = {} if prepared.algorithm is None else {"algorithm": prepared.algorithm}
    if prepared.longer is run:
        chosen["run"] = Choice("shared", "greedy is nested: one run with the largest k answers every k; its passes are shown")
    elif prepared.longer is not None:
        chosen["greedy"] = Choice("shared", "full greedy is nested and ran once, with the largest k, where its passes are shown")
    if run.account is not None:
        chosen["tier"] = run.account.choice
    elif request.tier == "auto" and dataset.tier is not None:
        size = f"{request.algorithm} over {dataset.matrix.nbytes / 1e6:.0f} MB{' in memory' if dataset.resident else ''}"
        chosen["tier"] = Choice("exact", f"{size} is not expected to be faster with the tier")
    if dataset.matrix.choice is not None:
        chosen["io"] = dataset.matrix.choice
    chosen.update(dataset.choices)
    return chosen | {name: choice for name, choice in left_open.items() if getattr(request, name, None) in (None, "auto")}


def _guarantee(request: SelectionRequest, outcome: Outcome) -> str | None:
    """Return the strongest guarantee that holds for an outcome."""
    certificate = outcome.certificate
    if certificate is not None and certificate.unconditional and certificate.ratio >= 1.0 - 1e-9:
        return "optimal"
    covered = request.algorithm == "fast_omp" and not request.skip_weak
    return outcome.guarantee or ("paper" if covered else None)


def _proof(dataset: Dataset, request: SelectionRequest, response: Response, outcome: Outcome) -> Proof | None:
    """Return the proof of a verified outcome, with as much of the request as is short and can be written."""
    if not outcome.traces:
        return None
    from fastomp_nvm.engine.identity import target_digest  # neither is needed by most requests
    from fastomp_nvm.selection.codec import encode_request
    from fastomp_nvm.selection.proof import Proof

    missing = ["y"] if response.given else []
    weights, offset = (each if isinstance(each, str) else None for each in (request.weights, request.offset))
    given = {"weights": request.weights is not weights, "offset": request.offset is not offset, "covariates": request.covariates}
    missing += [name for name, there in given.items() if there]
    # Without what the answer does not depend on.
    plain = replace(
        request,
        weights=weights,
        offset=offset,
        covariates=None,
        objective=response.objective,
        gather_bytes=None,
        tier="auto",
        gram="auto",
    )
    try:
        fields = encode_request(plain)
        if len(json.dumps(fields)) > LONGEST_REQUEST:
            raise RequestError("the constraint is too long")
    except RequestError:
        fields = encode_request(replace(plain, constraint=None))
        missing.append("constraint")
    return Proof(list(outcome.traces), dataset.fingerprint, target_digest(dataset), fields, missing)


def _why_nothing(constraint: Constraint, names: Sequence[str]) -> str:
    """Return the sentence for a constraint, programmed by the user, under which no feature was selected."""
    from fastomp_nvm.constraints.oracle import check_downward_closed  # imports a pool of processes

    found = check_downward_closed(constraint)
    if found is None:
        return "the constraint allows no feature alone, so that nothing can be selected: loosen it"
    allowed, refused = (", ".join(names[feature] for feature in sets) for sets in (found.allowed, found.refused_subset))
    return (
        f"the constraint is not downward closed, and nothing was selected: it allows {{{allowed}}} but refuses {{{refused}}}, a "
        "part of it; allow every part of a set that is allowed"
    )


def _finish(
    dataset: Dataset,
    sweeper: Sweeper,
    left_open: Mapping[str, Choice],
    started: float,
    prepared: Prepared,
    longer: Selection | None = None,
) -> Selection:
    """Refit on the selected features and return the result; ``longer`` is that of the request with the largest k."""
    split, response, run, compression = prepared.split, prepared.response, prepared.run, prepared.compression
    request, weights, original, mean = split.request, split.weights, run.problem.design.standardisation, 0.0
    if compression is not None:
        compressed = compression.of(split)
        weights, original, mean = None, compressed.original, compressed.intercept
    problem, outcome, counters, traffic = run.problem, run.outcome, run.problem.counters, run.problem.counters.traffic
    assert outcome is not None
    if prepared.longer is not None:
        from fastomp_nvm.algorithms.quality import shortened  # not needed by most requests

        assert request.k is not None
        assert prepared.longer.outcome is not None
        outcome = shortened(problem, None if prepared.longer is run else outcome, prepared.longer.outcome, request.k)
    indices = outcome.selected
    if not len(indices) and problem.constraint.calls_user_code:
        raise ConstraintError(_why_nothing(problem.constraint, dataset.names))
    columns = problem.pool.columns(indices)
    fit, kept, offset = problem.objective.refit(columns), list[KeptColumn](), None
    with np.errstate(over="ignore", invalid="ignore"):
        coef, shift = original.subset(indices).coefficients(fit.coef)
        if prepared.kept is not None:
            kept, further = prepared.kept.coefficients(problem.objective, fit, problem.pool.whole(indices))
            shift += further
    if request.offset is not None:
        offset = request.offset if isinstance(request.offset, str) else "given"
        kept += offset_column(dataset, offset)
    intercept = fit.intercept + mean + shift
    if not (np.isfinite(coef).all() and math.isfinite(intercept) and math.isfinite(fit.score)):
        raise DataError("the fit left the range of float64: scale the columns and the target to moderate sizes")
    unpolished = fit.score
    if outcome.unpolished is not None and not np.array_equal(outcome.unpolished, indices):
        unpolished = problem.objective.refit(problem.pool.columns(outcome.unpolished), exact=False).score
    positions = column_index(dataset.offsets, indices)
    test_score = test_rows = None
    if split.test is not None:
        if compression is not None:
            test_score = compression.score(split, positions, coef, intercept)
        else:
            predictor = columns.dense(np.arange(len(columns.features))) @ fit.coef + fit.intercept
            if problem.objective.fixed is not None:
                predictor += fit.fixed @ problem.objective.fixed.basis
            if problem.objective.offset is not None:
                predictor += problem.objective.offset
            test_score = problem.objective.score(predictor, split.test)
        test_rows = int(np.count_nonzero(split.test))
    violations = list(problem.constraint.violations(indices))
    if violations:
        warnings.warn(f"the answer breaks the constraint as written: {'; '.join(violations)}", stacklevel=4)
    names = list(map(dataset.names.__getitem__, indices.tolist()))
    limit = len(indices) if request.k is None else min(request.k, dataset.n_features)
    about = problem, response, weights, request.standardize, limit, prepared.constant, outcome.repaired
    notes = notes_on(names, columns, fit, *about)
    if prepared.kept is not None:
        notes += prepared.kept.notes([dataset.names[feature] for feature in outcome.spanned])
    every_k = request.algorithm in GREEDY and not problem.constraint.needs_base
    if every_k and longer is not None:
        path = longer.path[: len(indices)]
    else:
        path = path_points(problem.objective, columns, fit, every_k, split.weights, dataset.n_obs, len(problem.usable))
    several = len(positions) > len(indices)  # columns of a feature
    spans = list(starmap(slice, pairwise(columns.standardisation.offsets.tolist()))) if several else []
    column_names = names
    if dataset.column_names is not dataset.names:
        column_names = list(map(dataset.column_names.__getitem__, positions.tolist()))
    encoding = dataset.encoding
    if encoding is not None:
        from fastomp_nvm.selection.model import resolved_encoding  # imports what predictions need

        theirs = [column for column in kept if column.position is not None]
        everywhere = np.append(positions, np.array([column.position for column in theirs], dtype=np.int64))
        every_name = [*column_names, *(column.column for column in theirs)]
        encoding = resolved_encoding(encoding, every_name, dataset.statistics.mean[everywhere])
    network = {} if dataset.matrix.network is None else asdict(dataset.matrix.network)
    return Selection(
        features=names,
        indices=indices,
        coef=list(map(coef.__getitem__, spans)) if several else coef,
        intercept=intercept,
        score=fit.score,
        columns=list(map(column_names.__getitem__, spans)) if several else [[name] for name in column_names],
        column_positions=positions,
        kept=kept,
        offset=offset,
        encoding=encoding,
        pseudo_r2=fit.summary.get("pseudo_r2"),
        null_score=fit.summary.get("null_score"),
        test_score=test_score if test_score is None or math.isfinite(test_score) else None,  # JSON has no NaN
        test_fraction=request.test_fraction,
        test_rows=test_rows,
        objective=response.objective,
        objective_reason=response.reason,
        algorithm=request.algorithm,
        quality=request.quality,
        guarantee=_guarantee(request, outcome),
        features_covered=None if outcome.guarantee is None else len(problem.usable),
        proof=_proof(dataset, request, response, outcome),
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
        vectors=counters.vectors,
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
        tier="exact" if run.tier is None else "int8" if run.account is None else str(run.account.choice.value),
        kernel=sweeper.kernel.id,
        verified=dataset.verified,
        target=response.name,
        classes=list(response.classes) if response.objective == "logistic" else None,
        store=DataSize(dataset.n_features, *dataset.matrix.shape, dataset.matrix.dtype.name),
        path=path,
        nested=every_k,
        notes=notes,
        choices=_choices(dataset, left_open, prepared),
    )
