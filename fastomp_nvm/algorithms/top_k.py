"""Top-k: oblivious selection by the score at the empty model, in one sweep.

Features are added by decreasing score, the lowest index first among equals, where they are feasible. Scores are not updated.
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem
from fastomp_nvm.arrays import IndexArray

__all__ = ["taken_in_order", "top_k"]


def top_k(problem: Problem) -> Algorithm:
    """Run the oblivious selection."""
    answers = yield from problem.ask(0, 0.0, [problem.objective.null().residual], problem.usable, exact=True)
    gradient = answers[0].of(problem.usable)
    scores = problem.design.standardisation.subset(problem.usable).scores(gradient[:, None])[:, 0]
    return Outcome(taken_in_order(problem, problem.usable[:0], problem.usable[np.argsort(-scores, kind="stable")]))


def taken_in_order(problem: Problem, selected: IndexArray, left: IndexArray) -> IndexArray:
    """Return ``selected`` and each feature of ``left``, in their order, that is feasible with those before it."""
    while left.size:
        # Infeasible features remain so: continue after the longest feasible prefix.
        left = left[problem.extensions(selected, left)]
        problem.counters.independence_calls += len(left)
        taken = problem.constraint.longest_prefix(selected, left)
        selected, left = np.concatenate((selected, left[:taken])), left[taken:]
    return selected
