"""Splicing for the linear model: several members of a set are exchanged at once for features that fit the residual well.

The set begins with the features of largest score, as in best-subset selection by splicing (Zhu, Wen, Zhu, Zhang and Wang 2020), and
so leads to other local optima than greedy sets do. Every pass gathers the features that fit the residual of the set best; then the
1, 2, 4, ... members whose removal costs least give way to as many of these, in the number with which f grows most, until none does.
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.exchange import TOLERANCE, Neighbourhood, Point, affordable
from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem
from fastomp_nvm.algorithms.top_k import taken_in_order
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.objectives.linear import Linear

__all__ = ["spliced"]

#: Passes, at most, and the features gathered in each: those with at least the mean of so many largest scores.
PASSES, NEAR = 8, 256


def spliced(problem: Problem, objective: Linear, most: int) -> Algorithm:
    """Run splicing with at most ``most`` members exchanged at once."""
    near = max(affordable(problem, NEAR), 1)
    selected, value, residual = np.empty(0, dtype=np.int64), 0.0, objective.response
    for _ in range(PASSES):
        answer = (yield from problem.ask(len(selected), value, [objective.swept(residual)], problem.usable, members=selected))[0]
        close = problem.usable if len(problem.usable) <= near else answer.at_least(answer.top_mean(near))[:near]
        hood = Neighbourhood(problem, objective, np.union1d(selected, close))
        members = np.searchsorted(hood.features, selected)
        if not len(members):
            members = _best_first(hood, members, Point(hood, []).remainders.gains())
        point = _settled(Point(hood, members.tolist()), most)
        if point.value <= (1.0 + TOLERANCE) * value:
            break
        selected, value, residual = hood.features[np.sort(point.members)], point.value, point.residual()
        if point.perfect:
            break
    return Outcome(selected)


def _settled(point: Point, most: int) -> Point:
    """Return the set that splices lead to among the features in memory."""
    while True:
        members, hood = np.array(point.members, dtype=np.int64), point.hood
        gains = point.remainders.gains()
        gains[members] = -1.0
        losses = [float(np.square(point.along @ point.directions([place])).sum()) for place in range(len(members))]
        cheapest, best, size = np.argsort(losses, kind="stable"), point, 1
        while size <= min(most, len(members)):
            best = max(best, Point(hood, _best_first(hood, members[cheapest[size:]], gains).tolist()), key=lambda each: each.value)
            size *= 2
        if best.value <= (1.0 + TOLERANCE) * point.value:
            return point
        point = best


def _best_first(hood: Neighbourhood, members: IndexArray, gains: Float64Array) -> IndexArray:
    """Return ``members`` and the features of largest gain that are feasible with them, by position."""
    order = np.argsort(-gains, kind="stable")
    grown = taken_in_order(hood.problem, hood.features[members], hood.features[order[gains[order] >= 0.0]])
    return np.searchsorted(hood.features, grown)
