"""ISK: iterated submodular-cost knapsack (Iyer and Bilmes 2013), as Grgic-Hlaca et al. (2018) use it for fair features.

Maximise f(T) subject to a submodular cost ``h(T) <= b`` and at most k features. Each iteration replaces the cost by its modular
upper bound that is tight at the current set X,

    m_X(T) = h(X) - sum_{j in X without T} [h(X) - h(X - j)] + sum_{j in T without X} h({j}),

and maximises f under this knapsack; whatever satisfies the bound satisfies the constraint. From the empty set on, it is repeated
until f no longer grows, at most 25 times as in their code (github.com/nina-gh/procedurally_fair_learning,
``submodular_optimization.py``), and the best set is returned.

Under the knapsack, the paper maximises f by greedy; their code replaces f by a modular lower bound and solves the knapsack in whole
thousandths exactly. This is the paper's: greedy by gain per cost (free features first, by gain) and greedy by gain, whichever is
better.

The cost is the unfairness of :class:`~fastomp_nvm.constraints.fairness.Fairness`, counted in people, or the number of features.
Other constraints are refused. The set need not be maximal, because the bound overestimates the cost of features outside X.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastomp_nvm.algorithms.exact_gains import Gains, gains_of_nothing
from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem, Steps
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.constraints.fairness import Fairness
from fastomp_nvm.constraints.intersection import parts_of
from fastomp_nvm.errors import RequestError

__all__ = ["isk"]

#: Modular bounds tried, as in the code of Grgic-Hlaca et al.
ITERATIONS = 25


@dataclass(frozen=True, slots=True)
class _Cost:
    """The constraint: ``h`` of a set in whole units, its bound, and the number of features."""

    h: Callable[[IndexArray], int]
    budget: int
    k: int


def isk(problem: Problem) -> Algorithm:
    """Run ISK."""
    cost, counters = _cost(problem), problem.counters
    start = yield from gains_of_nothing(problem)
    singles = np.array([cost.h(feature[None]) for feature in problem.usable], dtype=np.int64)
    counters.independence_rounds += 1
    counters.independence_calls += len(singles)
    best, value = np.empty(0, dtype=np.int64), 0.0
    weights, fixed = singles, 0
    for _ in range(ITERATIONS):
        features, reached = yield from _greedy(problem, start, weights, cost.budget - fixed, cost.k, by_ratio=False)
        if len(np.unique(weights)) > 1:
            others, theirs = yield from _greedy(problem, start, weights, cost.budget - fixed, cost.k, by_ratio=True)
            features, reached = (others, theirs) if theirs > reached else (features, reached)
        if reached <= value:
            break
        best, value, before = features, reached, (weights, fixed)
        weights, fixed = _bound(problem, cost, singles, best)
        counters.independence_rounds += 1
        counters.independence_calls += len(best) + 1
        if fixed == before[1] and np.array_equal(weights, before[0]):  # the same knapsack again
            break
    return Outcome(best)


def _bound(problem: Problem, cost: _Cost, singles: IndexArray, tight: IndexArray) -> tuple[IndexArray, int]:
    """Return the weights of the modular upper bound tight at ``tight`` and its value on the empty set."""
    weights, total = singles.copy(), cost.h(tight)
    given = np.array([total - cost.h(tight[tight != feature]) for feature in tight], dtype=np.int64)
    weights[np.searchsorted(problem.usable, tight)] = given
    return weights, total - int(given.sum())


def _cost(problem: Problem) -> _Cost:
    """Return the cost of the constraint; raise ``RequestError`` for unsupported ones."""
    k, fair = len(problem.usable), []
    for part in parts_of(problem.constraint):
        if isinstance(part, Cardinality):
            k = min(k, part.k)
        elif isinstance(part, Fairness):
            fair.append(part)
        else:
            raise RequestError(
                f"isk does not support a constraint of type {type(part).__name__}: give k and one fairness constraint; "
                "choose fast_omp or sds_omp"
            )
    if len(fair) > 1:
        raise RequestError(f"isk supports one fairness constraint, {len(fair)} were given: choose fast_omp or sds_omp")
    if not fair:
        return _Cost(len, k, k)
    people, limit = fair[0].n_people, fair[0].limit
    # In people, as the constraint itself counts: shares add up inexactly.
    return _Cost(lambda features: round(fair[0].unfairness(features) * people), math.floor(limit * people + 1e-9), k)


def _greedy(
    problem: Problem, gains: Gains, weights: IndexArray, budget: int, k: int, by_ratio: bool
) -> Steps[tuple[IndexArray, float]]:
    """Maximise f greedily under ``sum of weights <= budget``; return the set and its f."""
    selected = np.empty(0, dtype=np.int64)
    open_ = np.ones(len(weights), dtype=np.bool_)
    while True:
        open_ &= weights <= budget
        if len(selected) == k or not open_.any():
            return selected, gains.value
        places = np.flatnonzero(open_)
        growth = yield from gains.of(problem.usable[places])
        place = places[int(np.argmax(_per_cost(growth, weights[places]) if by_ratio else growth))]
        grown = yield from gains.after([problem.usable[place, None]])
        gains = next(grown[0])
        selected, budget = np.append(selected, problem.usable[place]), budget - int(weights[place])
        open_[place] = False


def _per_cost(growth: Float64Array, weights: IndexArray) -> Float64Array:
    """Return gain per cost; where features are free, their gains, and -1 for the others."""
    free = weights == 0
    if free.any():
        return np.where(free, growth, -1.0)
    return np.asarray(growth / weights)
