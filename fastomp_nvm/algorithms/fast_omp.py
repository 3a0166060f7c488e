"""FAST_OMP, Algorithm 1 of the paper: adaptive sequencing with matching pursuit under a p-system.

An outer iteration asks for the gradient of every candidate once (the only full pass), sets the threshold ``t`` and keeps the
candidates that reach it. Their columns are gathered into memory; inner iterations (:mod:`fastomp_nvm.algorithms.sequence`) then
draw random feasible sequences of them and adopt the shortest prefix after which enough candidates have fallen below ``t``, without
reading from the medium.

Readings of Algorithm 1 (line numbers as printed):

* line 2: the test precedes the body, so there are at most ``ceil(1 / epsilon)`` outer iterations; ``until="full"`` goes on until
  nothing extends the set.
* line 4: ``r`` is the rank of the whole constraint (estimated where it knows only a bound, see :mod:`fastomp_nvm.algorithms.rank`),
  ``m / M`` is the parameter ``tau``.
* line 8: prefixes run over ``j = 0..k``. ``j = 0`` can qualify in the first inner iteration only, where it filters with the
  gradient already computed; then no sequence is drawn and no query made. ``|X_j|`` is not monotone in ``j``, so prefixes are
  evaluated in growing blocks up to the first that qualifies. At ``j = k`` the set is maximal and ``X_k`` empty, so ``j*`` exists.

Three additions of ours. ``tau="auto"`` runs the algorithm once per member of ``TAUS`` side by side, in the same sweeps; each run is
polished over its own columns, then all columns gathered are, and the best set is kept. After the polish a run gathers again at the
polished set (:mod:`fastomp_nvm.algorithms.again`). ``skip_weak`` is a variant outside Theorem 1: an element of the sequence
whose own score has fallen below ``t`` when its turn comes is skipped.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from fastomp_nvm.algorithms.again import gathered_again
from fastomp_nvm.algorithms.polish import best_of, polish
from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem, Round, Steps
from fastomp_nvm.algorithms.rank import find_rank
from fastomp_nvm.algorithms.sequence import SMALLEST_BLOCK, inner_iterations
from fastomp_nvm.algorithms.together import together
from fastomp_nvm.arrays import IndexArray

__all__ = ["TAUS", "fast_omp"]

#: Values of tau for ``tau="auto"``.
TAUS = (0.25, 0.5, 0.75, 0.95)


def fast_omp(problem: Problem) -> Algorithm:
    """Run FAST_OMP, then the polish unless it is switched off; with ``tau="auto"`` once per member of ``TAUS``."""
    tau = problem.parameters.tau
    rank, estimated = find_rank(problem)
    if tau != "auto":
        selected, polished, _ = yield from _run(problem, tau, rank)
        outcome = Outcome(selected, rank=rank, rank_estimated=estimated)
    else:
        runs = yield from together(problem, [partial(_run, tau=each, rank=rank) for each in TAUS])
        best = best_of(problem, [run[0] for run in runs])
        complete = partial(_complete, problem, TAUS[best], rank)
        selected, polished, _ = runs[best]
        outcome = Outcome(selected, tau=TAUS[best], rank=rank, rank_estimated=estimated)
        if polished is not None:
            sets = [selected, *(alone for _, alone, _ in runs if alone is not None)]
            union = problem.pool.features
            if max(gathered for _, _, gathered in runs) < len(union):  # otherwise one run has gathered all of it
                sets.append((yield from polish(problem, selected, union, complete)))
            polished = sets[best_of(problem, sets)]
    return outcome if polished is None else replace(outcome, selected=polished, unpolished=selected)


def _run(problem: Problem, tau: float, rank: int) -> Steps[tuple[IndexArray, IndexArray | None, int]]:
    """Run Algorithm 1, then polish over the columns it gathered, and gather again.

    Returns both sets, the second None without a polish, and the number of features whose columns were gathered.
    """
    selected, pool = yield from _pursue(problem, tau, rank, np.empty(0, dtype=np.int64))
    if problem.parameters.polish == "none":
        return selected, None, len(pool)
    complete = partial(_complete, problem, tau, rank)
    polished = yield from polish(problem, selected, pool, complete)
    return selected, (yield from gathered_again(problem, polished, pool, complete)), len(pool)


def _complete(problem: Problem, tau: float, rank: int, selected: IndexArray) -> Steps[IndexArray]:
    """Return ``selected`` extended by Algorithm 1 until it is maximal."""
    return (yield from _pursue(problem, tau, rank, selected))[0]


def _pursue(problem: Problem, tau: float, rank: int, selected: IndexArray) -> Steps[tuple[IndexArray, IndexArray]]:
    """Run Algorithm 1 from ``selected`` with ``rank`` for r; return the set, and the features whose columns were gathered."""
    parameters, epsilon, model = problem.parameters, problem.parameters.epsilon, problem.objective.null()
    if selected.size:
        model.add(problem.pool.columns(selected).dense(np.arange(len(selected))))
    candidates, gathered = problem.usable, np.zeros(problem.constraint.n_features, dtype=np.bool_)
    outer, block = 0, SMALLEST_BLOCK
    while parameters.until == "full" or outer < math.ceil(1.0 / epsilon):
        extends = problem.extensions(selected, candidates)
        candidates = candidates if extends.all() else candidates[extends]  # line 3: X = Cond(S), which only shrinks
        if not candidates.size:
            break
        (gradients,) = yield from problem.ask(len(selected), lambda: model.value, [model.residual], candidates, members=selected)
        threshold = (1.0 - epsilon) * tau * gradients.top_mean(rank)  # line 4
        survivors, inner = gradients.at_least(threshold), 1
        if not len(survivors) < (1.0 - epsilon) * len(candidates):  # j* = 0 does not qualify: X stays as it is
            survivors, inner = (survivors if parameters.skip_weak else candidates), 0
        gathered[survivors] = True
        following = model.follow(problem.pool.columns(survivors), gradients.of(survivors))
        del gradients  # frees an n-vector
        while following.features.size:  # members of X extend S, so Cond(S) is not empty either
            added, iterations, block = inner_iterations(problem, following, selected, threshold, outer, inner, block)
            selected = np.concatenate((selected, added))
            inner += iterations
            yield Round(len(selected), lambda: model.value, members=selected)
        del following  # frees columns before the next outer iteration
        outer += 1
    problem.objective.remember(selected, model)
    return selected, np.flatnonzero(gathered)
