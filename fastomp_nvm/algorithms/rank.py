"""``r`` of the paper: the size of the largest feasible set, estimated where a constraint knows only a loose bound.

FAST_OMP's threshold is the mean of the ``r`` largest scores. With a bound as loose as the number of features it is the mean of all
scores: nothing is filtered and the answer is a random maximal set. So such a bound is replaced by the largest of a few sets drawn
by ``rndSeq``: feasible, hence never above the true ``r``, and without a look at the data. Where ``p`` is known, no feasible set is
larger than ``p`` times a maximal one; a draw that reaches this bound is the true ``r``, and Theorem 1 rests on no estimate.

A draw fills its set up from ever larger parts of a random order of the features, so that the many rounds at its beginning ask about
few of them, and ends where a large part holds nothing that fits. What it asks then hardly depends on the number of features.
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.draws import random_sequence
from fastomp_nvm.algorithms.protocol import Problem
from fastomp_nvm.random_keys import first_of

__all__ = ["find_rank"]

#: Sets drawn.
DRAWS = 4

#: Features in the first part of a draw; each further part is twice as large.
FIRST_PART = 128

#: A part of so many features of which none fits ends a draw.
LARGE_PART = 1024

# Stands where the sequences of a run have their outer iteration, which never comes so far.
_NAME = 2**64 - 1


def find_rank(problem: Problem) -> tuple[int, bool]:
    """Return ``r``, and whether it is an estimate: then larger sets may be feasible. What it asks is counted.

    The draws depend on the seed, the constraint and the usable features only, so that a resumed run finds the same.
    """
    constraint, counters, seed = problem.constraint, problem.counters, problem.parameters.seed
    if not constraint.rank_is_bound:
        return constraint.rank, False
    bound, largest = min(constraint.rank, len(problem.usable)), 0
    for draw in range(DRAWS):
        order = problem.usable[first_of((seed, _NAME, draw), problem.usable, len(problem.usable))]
        drawn, start, size = order[:0], 0, FIRST_PART
        while len(drawn) < bound and (part := order[start : start + size]).size:
            more, rounds, calls = random_sequence(constraint, drawn, part, seed=seed, outer=_NAME, inner=draw)
            counters.independence_rounds += rounds
            counters.independence_calls += calls
            if not more.size and size >= LARGE_PART:
                break
            drawn = np.concatenate((drawn, more))
            start, size = start + size, 2 * size
        if constraint.p is not None and start >= len(order):  # every feature was asked about: the set is maximal
            bound = min(bound, int(constraint.p * len(drawn)))
        largest = max(largest, len(drawn))
        if largest == bound:
            return bound, False
    return largest, True
