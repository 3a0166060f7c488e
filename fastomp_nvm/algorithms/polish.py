"""The polish: exact-gain greedy over the columns a run has gathered, without another pass over the medium.

FAST_OMP adds random members of a good set; greedy on exact gains among the same columns usually explains more. The better of the
two sets is kept, so every guarantee of the first still holds.
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.protocol import Problem
from fastomp_nvm.arrays import BoolArray, IndexArray

__all__ = ["polish"]

#: A gain below this share of f is rounding: the fit is perfect, and further features would be picked by noise.
NOTHING = 1e-12


def polish(problem: Problem, selected: IndexArray, value: float) -> IndexArray:
    """Return the greedy set over ``problem.pool`` when it beats ``selected``, whose f is ``value``; else ``selected``.

    With ``until="full"`` the greedy set must also be as large, so that the result stays maximal.
    """
    features, constraint = problem.pool.features, problem.constraint
    if not features.size:
        return selected
    full = problem.parameters.until == "full"

    def extends(added: IndexArray, others: IndexArray) -> BoolArray:
        return constraint.extensions(features[added], features[others])

    tracker = problem.objective.gains(problem.pool.columns(features), extends)
    room = np.empty(min(constraint.rank, len(features)), dtype=np.int64)  # no larger set is independent
    open_, size, predicted = np.ones(len(features), dtype=np.bool_), 0, 0.0
    least = -1.0 if full else NOTHING
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
        best, gain = tracker.best(open_)
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
    chosen = room[:size]
    if tracker.value <= value or (full and len(chosen) < len(selected)) or np.array_equal(np.sort(chosen), np.sort(selected)):
        return selected
    # Of two maximal sets under lower bounds and something else, one may meet the bounds and the other not.
    if constraint.needs_base and constraint.violations(chosen) and not constraint.violations(selected):
        return selected
    return chosen
