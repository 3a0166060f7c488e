"""FAST: adaptive sequencing on f itself, the prototype of the paper's motivating example (appendix, algorithm "FAST").

The ancestor of FAST_OMP (Balkanski, Rubinstein and Singer 2019): the same random sequences and the same filter, but candidates are
kept by how much f grows with them, ``f(S_i + e) - f(S_i) >= t``, and the threshold only falls, from the best single feature on, by
``1 - epsilon`` per outer iteration. On objectives that are not submodular it can fail completely, as the example shows.

Readings of the algorithm as printed:

* The number of outer iterations, Delta, is left open. Here it is ``ceil(ln(r / epsilon) / epsilon)``, after which the threshold is
  below ``epsilon / r`` of the best single feature, so that r features below it gain less than ``epsilon`` times that one.
* ``i`` runs from 0: a sequence whose first filter suffices adds nothing.
* ``X = [n]`` contains the selected features; they count in ``|X|`` and are skipped in the sequence.
* ``until="full"`` adds an iteration without threshold, which makes the set maximal.

Gains are exact: one sweep per block of prefixes for the linear model, refits of every candidate otherwise.
"""

from __future__ import annotations

import math

import numpy as np

from fastomp_nvm.algorithms.draws import random_sequence
from fastomp_nvm.algorithms.exact_gains import Gains, gains_of_nothing
from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem, Steps
from fastomp_nvm.algorithms.rank import find_rank
from fastomp_nvm.arrays import IndexArray

__all__ = ["fast"]

#: Prefixes swept at once: more cost memory (a vector of the number of features each), fewer cost sweeps.
BLOCK = 8


def fast(problem: Problem) -> Algorithm:
    """Run FAST."""
    parameters, constraint = problem.parameters, problem.constraint
    rank, estimated = find_rank(problem)
    gains = yield from gains_of_nothing(problem)
    growth = yield from gains.of(problem.usable)
    threshold = float(growth.max())
    iterations = math.ceil(math.log(max(rank, 1) / parameters.epsilon) / parameters.epsilon)
    selected = np.empty(0, dtype=np.int64)
    for outer in range(iterations + (parameters.until == "full")):
        candidates, inner = problem.usable, 0
        if outer == iterations:
            threshold = -math.inf
        while candidates.size:
            if inner or outer:
                growth = yield from gains.of(candidates)
            fitting = problem.extensions(selected, candidates)
            survivors = candidates[fitting & (growth >= threshold)]
            if len(survivors) > (1.0 - parameters.epsilon) * len(candidates):  # i = 0 does not qualify
                sequence, rounds, calls = random_sequence(
                    constraint, selected, candidates[fitting], seed=parameters.seed, outer=outer, inner=inner
                )
                problem.counters.independence_rounds += rounds
                problem.counters.independence_calls += calls
                gains, adopted, survivors = yield from _adopt_prefix(problem, gains, selected, sequence, candidates, threshold)
                selected = np.concatenate((selected, sequence[:adopted]))
            candidates = survivors
            inner += 1
        if not constraint.extensions(selected, problem.usable).any():
            break
        threshold *= 1.0 - parameters.epsilon
    return Outcome(selected, rank=rank, rank_estimated=estimated)


def _adopt_prefix(
    problem: Problem, gains: Gains, selected: IndexArray, sequence: IndexArray, candidates: IndexArray, threshold: float
) -> Steps[tuple[Gains, int, IndexArray]]:
    """Find i* >= 1 along ``sequence``; return the gains at S_i*, i* and X_i*."""
    enough = (1.0 - problem.parameters.epsilon) * len(candidates)
    blocked_at = problem.constraint.blocking(selected, sequence, candidates)
    blocked_at[np.isin(candidates, selected)] = 0
    places = np.searchsorted(candidates, sequence)
    blocked_at[places] = np.minimum(blocked_at[places], 1 + np.arange(len(sequence)))  # S_i contains a_1..a_i
    for first in range(0, len(sequence), BLOCK):
        prefixes = yield from gains.after([sequence[first : first + BLOCK]])
        for adopted, gains in enumerate(prefixes[0], first + 1):
            problem.counters.independence_calls += len(candidates)
            alive = np.flatnonzero(blocked_at > adopted)
            growth = yield from gains.of(candidates[alive])
            survivors = candidates[alive[growth >= threshold]]
            if len(survivors) <= enough:
                return gains, adopted, survivors
    raise AssertionError("the whole sequence leaves no feasible candidate, so it qualifies")
