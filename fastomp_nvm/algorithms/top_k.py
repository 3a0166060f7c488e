"""Top-k: oblivious selection by the score at the empty model, in one sweep.

Features are added by decreasing score, the lowest index first among equals, where they are feasible. Scores are not updated.
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.protocol import Algorithm, Ask, Outcome, Problem, Query

__all__ = ["top_k"]


def top_k(problem: Problem) -> Algorithm:
    """Run the oblivious selection."""
    counters, constraint = problem.counters, problem.constraint
    answers = yield Query(0, 0.0, (Ask(problem.objective.null().residual, problem.usable),))
    assert answers is not None
    counters.gradient_rounds += 1
    counters.gradient_calls += 1
    gradient = answers[0].of(problem.usable)
    scores = problem.design.standardisation.subset(problem.usable).scores(gradient[:, None])[:, 0]
    left = problem.usable[np.argsort(-scores, kind="stable")]
    selected = np.empty(0, dtype=np.int64)
    while left.size:
        # Infeasible features remain so: continue after the longest feasible prefix.
        counters.independence_rounds += 1
        counters.independence_calls += len(left)
        left = left[constraint.extensions(selected, left)]
        counters.independence_calls += len(left)
        taken = constraint.longest_prefix(selected, left)
        selected, left = np.concatenate((selected, left[:taken])), left[taken:]
    return Outcome(selected)
