"""Random: a random maximal feasible set, drawn by ``rndSeq`` without reading the data."""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.draws import random_sequence
from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem, Round

__all__ = ["random_base"]


def random_base(problem: Problem) -> Algorithm:
    """Draw a random base of the constraint among the usable features."""
    counters, constraint = problem.counters, problem.constraint
    yield Round(0, 0.0)
    nothing = np.empty(0, dtype=np.int64)
    candidates = problem.usable[constraint.extensions(nothing, problem.usable)]
    sequence, rounds, calls = random_sequence(constraint, nothing, candidates, seed=problem.parameters.seed, outer=0, inner=0)
    counters.independence_rounds += rounds + 1
    counters.independence_calls += calls + len(problem.usable)
    return Outcome(sequence)
