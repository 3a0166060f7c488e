"""Random: a random maximal feasible set, drawn by ``rndSeq`` without reading the data."""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.draws import random_sequence
from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem, Round

__all__ = ["random_base"]


def random_base(problem: Problem) -> Algorithm:
    """Draw a random base of the constraint among the usable features."""
    yield Round(0, 0.0)
    nothing = np.empty(0, dtype=np.int64)
    candidates = problem.usable[problem.extensions(nothing, problem.usable)]
    sequence, rounds, calls = random_sequence(
        problem.constraint, nothing, candidates, seed=problem.parameters.seed, outer=0, inner=0
    )
    problem.counters.independence_rounds += rounds
    problem.counters.independence_calls += calls
    return Outcome(sequence)
