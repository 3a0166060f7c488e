"""FAST_OMP, Algorithm 1 of the paper: adaptive sequencing with matching pursuit under a p-system.

An outer iteration asks for the gradient of every candidate once (the only full pass), sets the threshold ``t`` and keeps the
candidates that reach it. Their columns are gathered into memory; inner iterations (:mod:`fastomp_nvm.algorithms.sequence`) then
draw random feasible sequences of them and adopt the shortest prefix after which enough candidates have fallen below ``t``, without
reading from the medium.

Readings of Algorithm 1 (line numbers as printed):

* line 2: the test precedes the body, so there are at most ``ceil(1 / epsilon)`` outer iterations; ``until="full"`` goes on until
  nothing extends the set.
* line 4: ``r`` is the rank of the whole constraint (estimated where it knows only a bound, see :mod:`fastomp_nvm.selectors.rank`),
  ``m / M`` is the parameter ``tau``.
* line 8: prefixes run over ``j = 0..k``. ``j = 0`` can qualify in the first inner iteration only, where it filters with the
  gradient already computed; then no sequence is drawn and no query made. ``|X_j|`` is not monotone in ``j``, so prefixes are
  evaluated in growing blocks up to the first that qualifies. At ``j = k`` the set is maximal and ``X_k`` empty, so ``j*`` exists.

Two additions of ours. ``tau="auto"`` runs the algorithm once per member of ``TAUS`` side by side, in the same sweeps and over one
pool of columns; the polish then uses all gathered columns, and the best set is kept. ``skip_weak`` is a variant outside
Theorem 1: an element of the sequence whose own score has fallen below ``t`` when its turn comes is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fastomp_nvm.algorithms.polish import polish
from fastomp_nvm.algorithms.protocol import Algorithm, Counters, Gradients, Outcome, Problem, Query, Round, Steps
from fastomp_nvm.algorithms.rank import find_rank
from fastomp_nvm.algorithms.sequence import SMALLEST_BLOCK, inner_iterations
from fastomp_nvm.arrays import IndexArray

__all__ = ["TAUS", "fast_omp"]

#: Values of tau for ``tau="auto"``.
TAUS = (0.25, 0.5, 0.75, 0.95)


def fast_omp(problem: Problem) -> Algorithm:
    """Run FAST_OMP, then the polish unless it is switched off."""
    tau, chosen = problem.parameters.tau, None
    rank, estimated = find_rank(problem)
    if tau == "auto":
        selected, value, chosen = yield from _best_of(problem, TAUS, rank)
    else:
        selected, value = yield from _pursue(problem, tau, rank)
    outcome = Outcome(selected, tau=chosen, rank=rank, rank_estimated=estimated)
    if problem.parameters.polish == "none":
        return outcome
    return replace(outcome, selected=polish(problem, selected, value), unpolished=selected)


def _best_of(problem: Problem, taus: Sequence[float], rank: int) -> Steps[tuple[IndexArray, float, float]]:
    """Run one pursuit per tau in shared sweeps; return the best set, its f and its tau, the first among equals."""
    children = [replace(problem, counters=Counters(traffic=problem.counters.traffic)) for _ in taus]
    pursuits = [_pursue(child, tau, rank) for child, tau in zip(children, taus, strict=True)]
    found: dict[int, IndexArray] = {}
    answers: dict[int, Sequence[Gradients] | None] = dict.fromkeys(range(len(taus)))
    while answers:
        waiting: dict[int, Query] = {}
        for place, answer in answers.items():
            try:
                step = pursuits[place].send(answer)
                while not isinstance(step, Query):
                    yield step
                    step = pursuits[place].send(None)
                waiting[place] = step
            except StopIteration as stop:
                found[place] = stop.value[0]
        _add_up(problem.counters, [child.counters for child in children])
        answers = {}
        if waiting:
            ahead = max(waiting.values(), key=lambda query: query.value)
            answered = yield Query(ahead.selected, ahead.value, tuple(query.asks[0] for query in waiting.values()))
            assert answered is not None
            answers = {place: (gradients,) for place, gradients in zip(waiting, answered, strict=True)}
    # A pursuit knows its f to the precision of its products; refits are compared instead.
    values = [problem.objective.refit(problem.pool.columns(found[place])).value for place in range(len(taus))]
    best = 0
    for place in range(1, len(taus)):  # the same set found in another order differs by rounding only
        if values[place] > values[best] and set(found[place].tolist()) != set(found[best].tolist()):
            best = place
    return found[best], values[best], taus[best]


def _add_up(total: Counters, parts: Sequence[Counters]) -> None:
    """Add the counters of parallel runs, rounds by their maximum and calls by their sum; reset the parts."""
    total.gradient_rounds += max(part.gradient_rounds for part in parts)
    total.gradient_calls += sum(part.gradient_calls for part in parts)
    total.independence_rounds += max(part.independence_rounds for part in parts)
    total.independence_calls += sum(part.independence_calls for part in parts)
    for part in parts:
        part.gradient_rounds = part.gradient_calls = part.independence_rounds = part.independence_calls = 0


def _pursue(problem: Problem, tau: float, rank: int) -> Steps[tuple[IndexArray, float]]:
    """Run Algorithm 1 with ``rank`` for r; return the set and its f."""
    parameters, epsilon, model = problem.parameters, problem.parameters.epsilon, problem.objective.null()
    selected = np.empty(0, dtype=np.int64)
    candidates = problem.usable
    outer, block = 0, SMALLEST_BLOCK
    while parameters.until == "full" or outer < math.ceil(1.0 / epsilon):
        extends = problem.extensions(selected, candidates)
        candidates = candidates if extends.all() else candidates[extends]  # line 3: X = Cond(S), which only shrinks
        if not candidates.size:
            break
        (gradients,) = yield from problem.ask(len(selected), lambda: model.value, [model.residual], candidates)
        threshold = (1.0 - epsilon) * tau * gradients.top_mean(rank)  # line 4
        survivors, inner = gradients.at_least(threshold), 1
        if not len(survivors) < (1.0 - epsilon) * len(candidates):  # j* = 0 does not qualify: X stays as it is
            survivors, inner = (survivors if parameters.skip_weak else candidates), 0
        following = model.follow(problem.pool.columns(survivors), gradients.of(survivors))
        del gradients  # frees an n-vector
        while following.features.size:  # members of X extend S, so Cond(S) is not empty either
            added, iterations, block = inner_iterations(problem, following, selected, threshold, outer, inner, block)
            selected = np.concatenate((selected, added))
            inner += iterations
            yield Round(len(selected), lambda: model.value)
        del following  # frees columns before the next outer iteration
        outer += 1
    problem.objective.remember(selected, model)
    return selected, model.value
