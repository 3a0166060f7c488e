"""SDS_OMP: orthogonal matching pursuit under a constraint.

Starting from the empty set, add the feasible feature with the largest score at the current model, until nothing extends the set.
The plain form makes one full sweep per selected feature. Where a few sweeps with many vectors are faster, they find the same set in
the same order (:mod:`fastomp_nvm.algorithms.verified`).
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem
from fastomp_nvm.algorithms.verified import matching_pursuit, pays

__all__ = ["sds_omp"]


def sds_omp(problem: Problem) -> Algorithm:
    """Run SDS_OMP."""
    if not problem.parameters.plain and pays(problem):
        return (yield from matching_pursuit(problem))
    model = problem.objective.null()
    selected = np.empty(0, dtype=np.int64)
    candidates = problem.usable
    while True:
        candidates = candidates[problem.extensions(selected, candidates)]
        if not candidates.size:
            return Outcome(selected, guarantee="greedy", greedy=[selected])
        answers = yield from problem.ask(len(selected), model.value, [model.residual], candidates, members=selected)
        best = np.array([answers[0].argmax()], dtype=np.int64)
        model.add(problem.pool.columns(best).dense(np.zeros(1, dtype=np.int64)))
        selected = np.concatenate((selected, best))
