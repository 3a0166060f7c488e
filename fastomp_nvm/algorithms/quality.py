"""Better sets than FAST_OMP's for more passes: never worse than full greedy, or improved until no exchange helps.

``verified`` runs, after FAST_OMP, full matching pursuit and for the linear model full exact-gain greedy in the same sweeps
(:mod:`fastomp_nvm.algorithms.verified`), and keeps the best of the sets. ``best`` adds runs of FAST_OMP with other seeds and, on
standardised columns, of splicing (:mod:`fastomp_nvm.algorithms.splicing`, for the linear model) and exchanges from these sets
(:mod:`fastomp_nvm.algorithms.exchange`, for GLMs ``glm_exchange``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from fastomp_nvm.algorithms.exchange import exchanged
from fastomp_nvm.algorithms.fast_omp import fast_omp
from fastomp_nvm.algorithms.glm_exchange import exchanged_by_fits
from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem
from fastomp_nvm.algorithms.splicing import spliced
from fastomp_nvm.algorithms.together import together
from fastomp_nvm.algorithms.verified import exact_gain_greedy, matching_pursuit
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.objectives.glm import GLM
from fastomp_nvm.objectives.linear import Linear

__all__ = ["improved", "shortened"]

#: Further seeds of FAST_OMP that ``best`` tries.
SEEDS = 2

#: Features gathered by FAST_OMP that the drafts of full greedy consider per prefix of its set, and prefixes.
NEAR, PREFIXES = 512, 4

#: Members that its runs of splicing exchange at once, at most: few as the package abess does, and many.
SPLICED = (2, 64)


def improved(problem: Problem, algorithm: Algorithm, *, exchanges: bool) -> Algorithm:
    """Run ``algorithm``, which is FAST_OMP, and improve its set; ``exchanges`` asks for the best set, not only a verified one."""
    outcome = yield from algorithm
    objective, first = problem.objective, outcome.selected
    if exchanges:  # they begin among the columns gathered so far, which the tier must not change
        problem = replace(problem, tier=None)
    considered = np.zeros(problem.design.standardisation.n_features, dtype=np.bool_)
    considered[_drafted_among(problem, first)] = True
    parts: list[Callable[[Problem], Algorithm]] = [partial(matching_pursuit, considered=considered)]
    if isinstance(objective, Linear):
        parts.append(partial(exact_gain_greedy, considered=considered))
    n_greedy = len(parts)
    if exchanges:
        parts += [partial(_reseeded, by=by) for by in range(1, SEEDS + 1)]
        if isinstance(objective, Linear) and objective.centred:
            parts += [partial(spliced, objective=objective, most=most) for most in SPLICED]
    runs = yield from together(problem, parts)
    found = [run.selected for run in runs]
    greedy = found[:n_greedy]
    selected, guarantee = _best(problem, [first, *found]), "greedy"
    if exchanges and isinstance(objective, (Linear, GLM)) and objective.centred and len(selected):
        starts = [each for each in (first, *found) if len(each)]
        if isinstance(objective, Linear):
            swapped, proven = yield from exchanged(problem, objective, starts)
        else:
            swapped, proven = yield from exchanged_by_fits(problem, objective, starts)
        swapped = _by_gain(problem, swapped)
        if problem.parameters.until == "full":
            swapped = _completed(problem, swapped)
        selected = _best(problem, [selected, swapped])
        if proven and np.array_equal(np.sort(selected), np.sort(swapped)):
            guarantee = "swap-optimal" if isinstance(objective, Linear) else "swap-optimal (quadratic model)"
    traces = tuple(trace for run in runs for trace in run.traces)
    return replace(outcome, selected=selected, guarantee=guarantee, greedy=greedy, traces=traces)


def shortened(problem: Problem, own: Outcome | None, longer: Outcome, k: int) -> Outcome:
    """Return the outcome of a run with a smaller k from the greedy sets of a longer one.

    Parameters
    ----------
    problem : Problem
        With the smaller k.
    own : Outcome, optional
        Of FAST_OMP with the smaller k, which is kept where it is better.
    longer : Outcome
        Of the run with the larger k.
    k : int
        The smaller k.
    """
    sets = [selected[:k] for selected in longer.greedy]
    if own is None:
        return Outcome(sets[0], guarantee=longer.guarantee)
    return replace(own, selected=_best(problem, [own.selected, *sets]), guarantee="greedy")


def _drafted_among(problem: Problem, first: IndexArray) -> IndexArray:
    """Return ``first`` and the gathered features that fit best beside several of its prefixes."""
    features = np.intersect1d(problem.pool.features, problem.usable, assume_unique=True)
    if not features.size:
        return first
    columns, members = problem.pool.columns(features), problem.pool.columns(first)
    model, residuals, size = problem.objective.null(), list[Float64Array](), 0
    for end in np.linspace(0, len(first), PREFIXES).astype(np.int64).tolist():
        if end > size:
            model.add(members.dense(np.arange(size, end)))
        residuals.append(model.residual)
        size = end
    scores = columns.standardisation.scores(columns.products(np.stack(residuals, axis=1)))
    count = min(NEAR, len(features))
    return np.union1d(first, features[np.argpartition(-scores, count - 1, axis=0)[:count]])


def _reseeded(problem: Problem, by: int) -> Algorithm:
    """Run FAST_OMP with another seed; it does not gather again, which empties the cache that runs side by side share."""
    seed = (problem.parameters.seed + by) % 2**64
    return fast_omp(replace(problem, parameters=replace(problem.parameters, seed=seed, again=False)))


def _best(problem: Problem, sets: Sequence[IndexArray]) -> IndexArray:
    """Return the set with the largest f, the first among equals; one that meets lower bounds before one that does not."""
    best, best_rank = sets[0], (False, -np.inf)
    for features in sets:
        meets = not (problem.constraint.needs_base and problem.constraint.violations(features))
        rank = meets, problem.objective.refit(problem.pool.columns(features)).value
        if rank > best_rank:
            best, best_rank = features, rank
    return best


def _completed(problem: Problem, selected: IndexArray) -> IndexArray:
    """Return ``selected`` and features that gain nothing, as long as any extends the set: exchanges add only what improves f."""
    candidates = problem.usable
    while (candidates := candidates[problem.extensions(selected, candidates)]).size:
        selected = np.append(selected, candidates[0])
    return selected


def _by_gain(problem: Problem, features: IndexArray) -> IndexArray:
    """Return ``features`` in the order in which greedy would take them."""
    features = np.sort(features)
    tracker = problem.objective.gains(problem.pool.columns(features))
    taken = tracker.grow(np.ones(len(features), dtype=np.bool_), len(features), -1.0, last=True)
    return features[np.array([place for place, _ in taken], dtype=np.int64)]
