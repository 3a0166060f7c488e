"""The polish: exact-gain greedy over the columns a run has gathered.

FAST_OMP adds random members of a good set; greedy on exact gains among the same columns usually explains more. The best set is
kept, so every guarantee of the first still holds. Under a knapsack the greedy runs twice, by gain and by gain per cost: either
alone can be far from the optimum. No pass over the medium is needed, except with ``until="full"``, where a greedy set that leaves
room for features outside the pool is completed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from fastomp_nvm.algorithms.protocol import Problem, Steps
from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.objectives.base import GainTracker
from fastomp_nvm.objectives.linear import Linear
from fastomp_nvm.objectives.linear_gains import LinearGains

__all__ = ["best_of", "greedy_sets", "polish", "wants_more"]

#: A gain below this share of f is rounding: the fit is perfect, and further features would be picked by noise.
NOTHING = 1e-12


def polish(
    problem: Problem, selected: IndexArray, pool: IndexArray, complete: Callable[[IndexArray], Steps[IndexArray]]
) -> Steps[IndexArray]:
    """Return the best of ``selected`` and the greedy sets over the features of ``pool``.

    ``complete`` extends a set until it is maximal over all features; it is called where ``until="full"`` asks for that.
    """
    found = [selected, *greedy_sets(problem, pool)]
    for place, chosen in enumerate(found[1:], 1):
        if wants_more(problem, chosen):
            found[place] = yield from complete(chosen)
    return found[best_of(problem, found)]


def greedy_sets(problem: Problem, pool: IndexArray, *, near: IndexArray | None = None) -> list[IndexArray]:
    """Return the greedy sets over the features of ``pool``: by gain and, under a knapsack, by gain per cost.

    With ``near``, a set that these will probably resemble, there is one by score too, as matching pursuit chooses; for the linear
    model.
    """
    if not pool.size:
        return []
    rules: list[Float64Array | Literal["score"] | None] = [None]
    if (shares := problem.constraint.budget_shares) is not None:
        rules.append(shares[pool])
    if near is not None:
        rules.append("score")
    sets: list[IndexArray] = []
    tracker: GainTracker | None = None
    for rule in rules:
        chosen, tracker = _greedy(problem, pool, rule, tracker, near)
        sets.append(chosen)
    return sets


def wants_more(problem: Problem, selected: IndexArray) -> bool:
    """Tell whether ``until="full"`` asks for further features beside ``selected``."""
    full = problem.parameters.until == "paper" or len(selected) == problem.constraint.rank
    return not full and bool(problem.constraint.extensions(selected, problem.usable).any())


def best_of(problem: Problem, sets: Sequence[IndexArray]) -> int:
    """Return the position of the best of several sets, the first among equals.

    A set that meets the constraint as written precedes one that does not: under lower bounds not every maximal set does. Then the
    score of a refit decides, the one that the answer shows; f, which differs from it by the penalty of a ridge, must not fall below
    that of the first set.
    """
    different: dict[frozenset[int], int] = {}
    for place, features in enumerate(sets):  # found in another order, the same set differs by rounding only
        different.setdefault(frozenset(features.tolist()), place)
    if len(different) == 1:
        return 0
    best, value, quality = 0, 0.0, (False, 0.0)
    for place in different.values():
        fit = problem.objective.refit(Columns(problem.pool, sets[place]), exact=False)  # reads only what it lacks
        other = (not problem.constraint.violations(sets[place]), fit.score)
        if place == 0 or (other > quality and (fit.value >= value or other[0] > quality[0])):
            best, quality = place, other
        value = fit.value if place == 0 else value
    return best


def _greedy(
    problem: Problem,
    features: IndexArray,
    rule: Float64Array | Literal["score"] | None,
    earlier: GainTracker | None,
    near: IndexArray | None,
) -> tuple[IndexArray, GainTracker]:
    """Return the greedy set over ``features``, by gain, by gain per price (f,), or by score, and the tracker of the gains.

    ``earlier`` is the tracker of another greedy over the same columns: it knows products of them. ``near``, some of ``features``,
    are those that will probably be chosen.
    """
    constraint, objective = problem.constraint, problem.objective

    def extends(added: IndexArray, others: IndexArray) -> BoolArray:
        return constraint.extensions(features[added], features[others])

    columns = problem.pool.columns(features)
    if isinstance(objective, Linear):
        known = earlier if isinstance(earlier, LinearGains) else None
        gains = objective.gains(columns, extends, known, pursuit=isinstance(rule, str))
        if near is not None and known is None:
            gains.expect(np.searchsorted(features, near))
        tracker: GainTracker = gains
    else:
        tracker = objective.gains(columns, extends)
    prices = None if isinstance(rule, str) else rule
    room = np.empty(min(constraint.rank, len(features)), dtype=np.int64)  # no larger set is independent
    open_, size, predicted = np.ones(len(features), dtype=np.bool_), 0, 0.0
    least = -1.0 if problem.parameters.until == "full" else NOTHING
    while size < len(room):
        free = min(constraint.free(room[:size]), len(room) - size)
        taken = tracker.grow(open_, free, least * (1.0 + predicted), size + free == len(room)) if free else []
        for best, gain in taken:
            room[size] = features[best]
            size, predicted = size + 1, predicted + gain  # the latter approximates f without a refit
        if free:
            if len(taken) < free:
                break
            continue
        best, gain = tracker.best(open_, prices)
        if gain < 0.0 or gain <= least * (1.0 + predicted):
            break
        room[size] = features[best]
        if constraint.independent(room[: size + 1]):
            tracker.add(best)
            open_[best] = False
            size, predicted = size + 1, predicted + gain
        else:  # infeasible candidates remain so: close all of them
            positions = np.flatnonzero(open_)
            open_[positions] = constraint.extensions(room[:size], features[positions])
    tracker.settle()
    return room[:size], tracker
