"""SDS_OMP: orthogonal matching pursuit under a constraint, one full sweep per selected feature.

Starting from the empty set, add the feasible feature with the largest score at the current model, until nothing extends the set.
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.protocol import Algorithm, Ask, Outcome, Problem, Query

__all__ = ["sds_omp"]


def sds_omp(problem: Problem) -> Algorithm:
    """Run SDS_OMP."""
    model, counters, constraint = problem.objective.null(), problem.counters, problem.constraint
    selected = np.empty(0, dtype=np.int64)
    candidates = problem.usable
    while True:
        counters.independence_rounds += 1
        counters.independence_calls += len(candidates)
        candidates = candidates[constraint.extensions(selected, candidates)]
        if not candidates.size:
            return Outcome(selected)
        answers = yield Query(len(selected), model.value, (Ask(model.residual, candidates),))
        assert answers is not None
        counters.gradient_rounds += 1
        counters.gradient_calls += 1
        best = np.array([answers[0].argmax()], dtype=np.int64)
        model.add(problem.pool.columns(best).dense(np.zeros(1, dtype=np.int64)))
        selected = np.concatenate((selected, best))
