"""DASH: adaptive sampling for differentially submodular functions (Qian and Singer 2019), under a cardinality only.

Algorithm 1 of "Fast Parallel Algorithms for Statistical Subset Selection Problems" (NeurIPS 2019), read next to the authors' code
(github.com/robo-sq/dash, ``adaptive_alg.py``). With ``U(X)`` the uniform distribution over subsets of ``X`` of size ``k / r``:

    S = {}
    for r iterations:
        X = all features outside S,   t = (1 - epsilon) (OPT - f(S))
        while E_{R ~ U(X)}[f(S + R) - f(S)] < alpha^2 t / r:
            X = X without { a : E_{R ~ U(X)}[f(S + R) - f(S + R - a)] < alpha (1 + epsilon / 2) t / k }
        S = S + R,  R ~ U(X)

Readings:

* Expectations are means over 5 samples, and alpha is 0.95, as in the authors' code.
* ``r`` is ``ceil(1 / epsilon)``, at most k.
* OPT is unknown. The guess starts at k times the best single feature (for the linear model at most the largest value f can have)
  and falls by ``1 - epsilon`` whenever the filter drops nothing or everything (and then begins anew), which a right guess excludes.
* Fewer than ``k / r`` members in X are taken all, as in the authors' code.

All samples of a filter step are one round: one sweep for the linear model. For other objectives each sample is a refit with every
candidate, which is feasible for small problems only.
"""

from __future__ import annotations

import math

import numpy as np

from fastomp_nvm.algorithms.cardinality_only import only_cardinality
from fastomp_nvm.algorithms.draws import permutation
from fastomp_nvm.algorithms.exact_gains import Gains, gains_of_nothing
from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem, Steps
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.objectives.linear import Linear

__all__ = ["dash"]

#: Parameter of differential submodularity, and samples per expectation: the authors' settings.
ALPHA, SAMPLES = 0.95, 5


def dash(problem: Problem) -> Algorithm:
    """Run DASH."""
    k, epsilon = only_cardinality(problem, "dash"), problem.parameters.epsilon
    if not k:
        return Outcome(np.empty(0, dtype=np.int64))
    iterations = min(k, math.ceil(1.0 / epsilon))
    gains = yield from gains_of_nothing(problem)
    singles = yield from gains.of(problem.usable)
    optimum = k * float(singles.max())
    if isinstance(problem.objective, Linear):
        optimum = min(optimum, float(problem.objective.response @ problem.objective.response))
    selected = np.empty(0, dtype=np.int64)
    draw = 0
    for outer in range(iterations):
        size = min(-(-k // iterations), k - len(selected))
        outside = np.setdiff1d(problem.usable, selected, assume_unique=True)
        X = outside
        while size:
            distance = (1.0 - epsilon) * (optimum - gains.value)
            samples = [_sample(problem, outer, draw + sample, X, size) for sample in range(SAMPLES)]
            draw += SAMPLES
            gained, growth = yield from _expectations(problem, gains, selected, X, samples)
            if gained >= ALPHA**2 * distance / iterations:
                break
            kept = X[growth >= ALPHA * (1.0 + epsilon / 2.0) * distance / k]
            if 0 < kept.size < X.size:
                X = kept
                continue
            X, optimum = X if kept.size else outside, (1.0 - epsilon) * optimum
            if optimum < gains.value:  # nothing left to gain: any features serve
                break
        added = _sample(problem, outer, draw, X, size)
        draw += 1
        if added.size:
            grown = yield from gains.after([added])
            *_, gains = grown[0]
        selected = np.concatenate((selected, added))
    return Outcome(selected)


def _sample(problem: Problem, outer: int, draw: int, X: IndexArray, size: int) -> IndexArray:
    """Draw R ~ U(X)."""
    return permutation(problem.parameters.seed, outer, draw, 0, X)[:size]


def _expectations(
    problem: Problem, gains: Gains, selected: IndexArray, X: IndexArray, samples: list[IndexArray]
) -> Steps[tuple[float, Float64Array]]:
    """Return E[f(S + R) - f(S)] and, per member of X, E[f(S + R) - f(S + R - a)], as means over ``samples``."""
    grown = yield from gains.after(samples)
    gained, growth = 0.0, np.zeros(len(X))
    for sample, prefixes in zip(samples, grown, strict=True):
        *_, with_sample = prefixes
        gained += with_sample.value - gains.value
        inside = np.isin(X, sample)
        growth[~inside] += yield from with_sample.of(X[~inside])
        for place in np.flatnonzero(inside):
            rest = np.concatenate((selected, sample[sample != X[place]]))
            columns = problem.pool.columns(rest).dense(np.arange(len(rest)))
            growth[place] += with_sample.value - problem.objective.fit(columns).value
    return gained / len(samples), growth / len(samples)
