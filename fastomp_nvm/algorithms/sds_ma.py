"""SDS_MA: greedy on f under a constraint, the forward selection of Krause and Cevher (2010).

Starting from the empty set, add the feasible feature with which f grows most, the lowest index among equals, until nothing extends
the set. For the linear model a step is one sweep with one vector per column of the feature, like a step of SDS_OMP; where it is
faster, many steps share a sweep (:mod:`fastomp_nvm.algorithms.verified`). For other objectives every step refits the model with
every candidate: exact, and slow beyond some thousand features.
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.exact_gains import gains_of_nothing
from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem
from fastomp_nvm.algorithms.verified import exact_gain_greedy, pays
from fastomp_nvm.objectives.linear import Linear

__all__ = ["sds_ma"]


def sds_ma(problem: Problem) -> Algorithm:
    """Run SDS_MA."""
    if isinstance(problem.objective, Linear) and not problem.parameters.plain and pays(problem):
        return (yield from exact_gain_greedy(problem))
    gains = yield from gains_of_nothing(problem)
    selected = np.empty(0, dtype=np.int64)
    best = selected
    candidates = problem.usable
    while True:
        candidates = candidates[problem.extensions(selected, candidates)]
        if not candidates.size:
            return Outcome(selected, guarantee="greedy", greedy=[selected])
        if best.size:
            grown = yield from gains.after([best])
            gains = next(grown[0])
        growth = yield from gains.of(candidates)
        best = candidates[int(np.argmax(growth)), None]
        selected = np.concatenate((selected, best))
