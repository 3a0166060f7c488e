"""Passes after FAST_OMP that gather what its own passes missed, for the linear model on wide data.

The polish knows only the columns that reached a threshold of FAST_OMP. Full greedy meets other residuals on its way, and other
features lead there. So a pass at the polished set takes the residuals of several of its greedy prefixes at once and gathers the
features with the largest scores at each. Then the polish is repeated, by gain and by score, as the two full greedies choose.

The passes are made where they pay: where features by far outnumber few observations, so that many features fit any residual about
as well as the best, and only while some selected feature explains no more than the best of all features might explain by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.algorithms.polish import polish
from fastomp_nvm.algorithms.protocol import Ask, Problem, Query, Steps
from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.objectives.independent import DEPENDENT, cholesky_of_independent
from fastomp_nvm.objectives.linear import Linear

__all__ = ["gathered_again"]

#: Passes at most, and residuals in each.
PASSES, RESIDUALS = 2, 12

#: Features gathered per residual: those with at least the mean of so many largest scores.
NEAR = 256

#: Wide data: features per observation, at least, and observations, at most.
WIDE, FEW = 32, 1024

#: A set is settled where each member explains so many times what the best of all features explains by chance.
SETTLED = 2.0


def gathered_again(
    problem: Problem, selected: IndexArray, complete: Callable[[IndexArray], Steps[IndexArray]]
) -> Steps[IndexArray]:
    """Return a set at least as good as ``selected``, which is polished, after at most ``PASSES`` further passes.

    ``complete`` is as in :func:`~fastomp_nvm.algorithms.polish.polish`. Sets of other objectives, over columns that are not
    standardised, and over data that is not wide are returned as they are.
    """
    objective, n_obs, pool = problem.objective, problem.design.matrix.shape[1], problem.pool.features
    if not (isinstance(objective, Linear) and objective.centred and selected.size):
        return selected
    if n_obs > FEW or len(problem.usable) < WIDE * n_obs:
        return selected
    for _ in range(PASSES):
        query = _query(problem, objective, selected)
        if query is None:
            break
        known = len(pool)
        if known < len(problem.usable):
            answers = yield query
            assert answers is not None
            problem.counters.gradient_rounds += 1
            problem.counters.gradient_calls += len(answers)
            pool = np.unique(np.concatenate((pool, *(answer.at_least(answer.top_mean(NEAR)) for answer in answers))))
        before, selected = selected, (yield from polish(problem, selected, pool, complete, pursuit=True))
        if len(pool) == known or np.array_equal(np.sort(before), np.sort(selected)):
            break
    return selected


def _query(problem: Problem, objective: Linear, selected: IndexArray) -> Query | None:
    """Return a query about prefixes of ``selected``, each with the features that extend it, and the whole, with all features.

    None where the set is settled.
    """
    columns, usable = problem.pool.columns(selected), problem.usable
    rows = objective.weighted(columns.dense(np.arange(len(selected)))).T
    gram = rows @ rows.T
    gram.flat[:: len(gram) + 1] += objective.ridge
    factor, kept = cholesky_of_independent(gram, DEPENDENT)
    if not len(kept):
        return None
    directions = lapack.dtrtrs(factor, rows[kept], trans=1)[0]
    along = directions @ objective.response
    inverse = lapack.dtrtri(factor)[0]
    explained = (inverse @ along) ** 2 / (inverse * inverse).sum(axis=1)  # of f, by each column beside the others
    value = float(along @ along)
    by_chance = (1.0 - value) * 2.0 * math.log(len(usable)) / len(objective.response)
    if float(explained.min()) >= SETTLED * by_chance:
        return None
    ends = np.unique(np.linspace(len(selected), 0, RESIDUALS, endpoint=False).astype(np.int64))
    taken = np.searchsorted(kept, columns.standardisation.offsets[ends])  # independent columns of each prefix
    fitted = np.where(np.arange(len(kept)) < taken[:, None], along, 0.0) @ directions
    residuals = objective.weighted((objective.response - fitted).T)
    problem.counters.independence_rounds += 1
    problem.counters.independence_calls += len(usable)
    blocked = problem.constraint.blocking(selected[:0], selected, usable)
    free = int(blocked.min())  # no feature is blocked after fewer additions
    prefixes = [
        Ask(residual, usable if end < free else usable[blocked > end])
        for residual, end in zip(residuals.T[:-1], ends[:-1].tolist(), strict=True)
    ]
    return Query(len(selected), value, [*(ask for ask in prefixes if ask.candidates.size), Ask(residuals.T[-1], usable)])
