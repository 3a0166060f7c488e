"""Top-k: oblivious selection by the score at the empty model, in one sweep.

Features are added by decreasing score, the lowest index first among equals, where they are feasible. Scores are not updated.
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem

__all__ = ["top_k"]


def top_k(problem: Problem) -> Algorithm:
    """Run the oblivious selection."""
    answers = yield from problem.ask(0, 0.0, [problem.objective.null().residual], problem.usable, exact=True)
    gradient = answers[0].of(problem.usable)
    scores = problem.design.standardisation.subset(problem.usable).scores(gradient[:, None])[:, 0]
    left = problem.usable[np.argsort(-scores, kind="stable")]
    selected = np.empty(0, dtype=np.int64)
    while left.size:
        # Infeasible features remain so: continue after the longest feasible prefix.
        left = left[problem.extensions(selected, left)]
        problem.counters.independence_calls += len(left)
        taken = problem.constraint.longest_prefix(selected, left)
        selected, left = np.concatenate((selected, left[:taken])), left[taken:]
    return Outcome(selected)
