"""Passes after FAST_OMP that gather what its own passes missed, for the linear model on wide data.

The polish knows only the columns that reached a threshold of FAST_OMP. Full greedy meets other residuals on its way, and other
features lead there. So a pass takes the residuals of several prefixes of the polished set, a *draft* of full greedy, and asks for
the features with the largest scores at each. Greedy by gain and greedy by score among these and the draft, as the two full
greedies choose, give the next draft. The best set is kept.

Passes are made where features by far outnumber few observations, so that many features fit any residual about as well as the best.
A pass is made only while some feature of the draft explains no more than the best of all features might explain by chance: where
few strong features make the response, FAST_OMP has found them. A second one is made where the first gained much.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.algorithms.polish import best_of, greedy_sets, wants_more
from fastomp_nvm.algorithms.protocol import Ask, Problem, Query, Steps
from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.objectives.independent import DEPENDENT, cholesky_of_independent
from fastomp_nvm.objectives.linear import Linear

__all__ = ["gathered_again"]

#: Passes at most.
PASSES = 2

#: Residuals in a pass, and features with the largest scores gathered per residual.
RESIDUALS, NEAR = 12, 128

#: Wide data: features per observation, at least, and observations, at most.
WIDE, FEW = 32, 1024

#: A second pass is made where the first raised f by more than this.
GAINED = 0.01

#: A set is settled where each member explains so many times what the best of all features explains by chance.
SETTLED = 2.0


def gathered_again(
    problem: Problem, selected: IndexArray, complete: Callable[[IndexArray], Steps[IndexArray]]
) -> Steps[IndexArray]:
    """Return a set at least as good as ``selected``, which is polished, after at most ``PASSES`` further passes.

    ``complete`` is as in :func:`~fastomp_nvm.algorithms.polish.polish`; the passes that it may need come on top. Sets of other
    objectives, and over data that is not wide, are returned as they are.
    """
    n_obs = problem.design.matrix.shape[1]
    if not (isinstance(problem.objective, Linear) and selected.size) or n_obs > FEW or len(problem.usable) < WIDE * n_obs:
        return selected
    draft, sets = selected, [selected]
    for _ in range(PASSES):
        query = _query(problem, problem.objective, draft)
        if query is None:
            break
        answers = yield query
        assert answers is not None
        problem.counters.gradient_rounds += 1
        problem.counters.gradient_calls += len(answers)
        pool = np.unique(np.concatenate((selected, draft, *(answer.leaders(NEAR)[0] for answer in answers))))
        problem.objective.known.make_room(problem.pool.columns(pool))  # no earlier model is used any more
        found = greedy_sets(problem, pool, pursuit=True)
        sets += found
        draft = found[best_of(problem, found)]
        gained = problem.objective.refit(Columns(problem.pool, draft), exact=False).value - query.value
        if gained <= GAINED and not wants_more(problem, draft):
            break
    best = sets[best_of(problem, sets)]
    if wants_more(problem, best):
        sets = [selected, (yield from complete(best))]
        best = sets[best_of(problem, sets)]
    return best


def _query(problem: Problem, objective: Linear, draft: IndexArray) -> Query | None:
    """Return a query at prefixes of ``draft``, the last the whole, about the features that extend each; None if settled.

    Where none extends the whole, all features are asked about: some may take the place of a member.
    """
    columns, usable = problem.pool.columns(draft), problem.usable
    unit, penalty = objective.unit(objective.weighted(columns.dense(np.arange(len(draft)))))
    gram = unit.T @ unit
    gram.flat[:: len(gram) + 1] += penalty
    factor, kept = cholesky_of_independent(gram, DEPENDENT)
    if not len(kept):
        return None
    directions = lapack.dtrtrs(factor, unit.T[kept], trans=1)[0]
    along = directions @ objective.response
    inverse = lapack.dtrtri(factor)[0]
    explained = (inverse @ along) ** 2 / (inverse * inverse).sum(axis=1)  # of f, by each column beside the others
    value = float(along @ along)
    by_chance = (1.0 - value) * 2.0 * math.log(len(usable)) / len(objective.response)
    if float(explained.min()) >= SETTLED * by_chance:
        return None
    ends = np.unique(np.linspace(len(draft), 0, RESIDUALS, endpoint=False).astype(np.int64))
    taken = np.searchsorted(kept, columns.standardisation.offsets[ends])  # independent columns of each prefix
    fitted = np.where(np.arange(len(kept)) < taken[:, None], along, 0.0) @ directions
    residuals = objective.weighted((objective.response - fitted).T).T
    problem.counters.independence_rounds += 1
    problem.counters.independence_calls += len(usable)
    blocked = problem.constraint.blocking(draft[:0], draft, usable)
    free = int(blocked.min())  # no feature is blocked after fewer additions
    blocked[np.searchsorted(usable, draft)] = np.arange(1, len(draft) + 1)  # a member blocks itself
    extending = [usable if end < free else usable[blocked > end] for end in ends.tolist()]
    asks = [Ask(residual, features if features.size else usable) for residual, features in zip(residuals, extending, strict=True)]
    return Query(len(draft), value, asks, members=draft)
