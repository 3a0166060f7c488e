"""Passes after FAST_OMP that gather what its own passes missed, for the linear model.

The polish knows only the columns that reached a threshold of FAST_OMP. Full greedy meets other residuals on its way, and other
features lead there. So a pass takes the residuals of several prefixes of the polished set, a *draft* of full greedy, and asks for
the features with the largest scores at each. Greedy by gain and greedy by score among these and the draft, as the two full
greedies choose, give the next draft. The best set is kept.

One pass with few residuals does, at the whole draft and at shorter prefixes that lie ever closer together: greedy's first steps
change the residual most. Where features by far outnumber few observations, so that many features fit any residual about as well as
the best, passes take more residuals, and a second one is made where the first gained much. No pass is made where every feature of
the draft explains more than the best of all features might by chance: where few strong features make the response, FAST_OMP has
found them.
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

#: Residuals in a pass, and features with the largest scores gathered per residual and, of those gathered before, at the empty set.
RESIDUALS, NEAR = 4, 192

#: Wide data: features per observation, at least, and observations, at most; residuals and features gathered there.
WIDE, FEW, WIDE_RESIDUALS, WIDE_NEAR = 32, 1024, 12, 128

#: A second pass is made where the first raised f by more than this.
GAINED = 0.01

#: A set is settled where each member explains so many times what the best of all features explains by chance.
SETTLED = 2.0


def gathered_again(
    problem: Problem, selected: IndexArray, gathered: IndexArray, complete: Callable[[IndexArray], Steps[IndexArray]]
) -> Steps[IndexArray]:
    """Return a set at least as good as ``selected``, which is polished, after at most ``PASSES`` further passes.

    ``gathered`` are the features whose columns the run has gathered. ``complete`` is as in
    :func:`~fastomp_nvm.algorithms.polish.polish`; the passes that it may need come on top. Sets of other objectives
    are returned as they are, and those over data with more observations than columns, which may have been replaced by their
    products.
    """
    objective, (n_columns, n_obs) = problem.objective, problem.design.matrix.shape
    if not (isinstance(objective, Linear) and selected.size and problem.parameters.again) or n_obs > n_columns:
        return selected
    wide = n_obs <= FEW and len(problem.usable) >= WIDE * n_obs
    near, draft, sets = WIDE_NEAR if wide else NEAR, selected, [selected]
    first = gathered[:0] if wide else _first(problem, gathered, near)
    for _ in range(PASSES if wide else min(PASSES, 1)):
        query = _query(problem, objective, draft, wide)
        if query is None:
            break
        if len(problem.usable) <= RESIDUALS * NEAR:  # a pass would gather hardly fewer
            pool = problem.usable
        else:
            answers = yield query
            assert answers is not None
            problem.counters.gradient_rounds += 1
            problem.counters.gradient_calls += len(answers)
            leaders = [answer.leaders(near)[0] for answer in answers]
            pool = np.unique(np.concatenate((selected, draft, first, *leaders)))
        if problem.parameters.tau != "auto":  # no earlier model is used any more
            objective.known.make_room(problem.pool.columns(pool))
        found = greedy_sets(problem, pool, near=draft)
        sets += found
        draft = found[best_of(problem, found)]
        gained = objective.refit(Columns(problem.pool, draft), exact=False).value - query.value
        if gained <= GAINED and not wants_more(problem, draft):
            break
    best = sets[best_of(problem, sets)]
    if wants_more(problem, best):
        sets = [selected, (yield from complete(best))]
        best = sets[best_of(problem, sets)]
    return best


def _first(problem: Problem, features: IndexArray, count: int) -> IndexArray:
    """Return the ``count`` of ``features`` with the largest scores at the empty set."""
    columns = problem.pool.columns(features)
    scores = columns.standardisation.scores(columns.products(problem.objective.null().residual[:, None]))[:, 0]
    return features[np.argsort(-scores, kind="stable")[:count]]


def _query(problem: Problem, objective: Linear, draft: IndexArray, wide: bool) -> Query | None:
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
    shares = np.linspace(1.0, 0.0, WIDE_RESIDUALS if wide else RESIDUALS, endpoint=False) ** (1 if wide else 2)
    ends = np.unique((len(draft) * shares).astype(np.int64))
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
