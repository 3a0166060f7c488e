"""FAST_OMP, Algorithm 1 of the paper: adaptive sequencing with matching pursuit under a p-system.

An outer iteration asks for the gradient of every candidate once (the only full pass), sets the threshold ``t`` and keeps the
candidates that reach it. Those columns are gathered into memory; inner iterations then draw random feasible sequences of them
and adopt the shortest prefix after which enough candidates have fallen below ``t``, without touching the medium.

Readings of Algorithm 1 (line numbers as printed):

* line 2: the test precedes the body, so there are at most ``ceil(1 / epsilon)`` outer iterations; ``until="full"`` goes on until
  nothing extends the set.
* line 4: ``r`` is the rank of the whole constraint (estimated where it knows only a bound, see :mod:`fastomp_nvm.selectors.rank`),
  ``m / M`` is the parameter ``tau``.
* line 8: prefixes run over ``j = 0..k``. ``j = 0`` can qualify in the first inner iteration only, where it filters with the
  gradient at hand; then no sequence is drawn and no question asked. ``|X_j|`` is not monotone in ``j``, so prefixes are evaluated
  in growing blocks up to the first that qualifies. At ``j = k`` the set is maximal and ``X_k`` empty: ``j*`` always exists.

Two additions of ours. ``tau="auto"`` runs the algorithm once per member of ``TAUS`` side by side, in the same sweeps and over one
pool of columns; the polish then sees what any of them gathered, and the best set is kept. ``skip_weak`` is a variant outside
Theorem 1: an element of the sequence whose own score has fallen below ``t`` when its turn comes is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from fastomp_nvm.algorithms.draws import RandomSequence
from fastomp_nvm.algorithms.polish import polish
from fastomp_nvm.algorithms.protocol import Algorithm, Ask, Counters, Gradients, Outcome, Problem, Query, Round
from fastomp_nvm.algorithms.rank import find_rank
from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.objectives.base import Candidates, Walk

__all__ = ["TAUS", "fast_omp"]

#: What ``tau="auto"`` tries.
TAUS = (0.25, 0.5, 0.75, 0.95)

#: Prefixes evaluated at once: at least, at most. Starting at the last j* wastes little and needs few sweeps.
SMALLEST_BLOCK, LARGEST_BLOCK = 2, 32

#: FAST_OMP at one tau in flight; returns the set and its f.
_Pursuit: TypeAlias = Generator[Round, "Sequence[Gradients] | None", tuple[IndexArray, float]]


def fast_omp(problem: Problem) -> Algorithm:
    """Run FAST_OMP, then the polish when asked for."""
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


def _best_of(
    problem: Problem, taus: Sequence[float], rank: int
) -> Generator[Round, Sequence[Gradients] | None, tuple[IndexArray, float, float]]:
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
            told = yield Query(ahead.selected, ahead.value, tuple(query.asks[0] for query in waiting.values()))
            assert told is not None
            answers = {place: (gradients,) for place, gradients in zip(waiting, told, strict=True)}
    # A pursuit knows its f to the precision of its products; refits are compared instead.
    values = [problem.objective.refit(problem.pool.columns(found[place])).value for place in range(len(taus))]
    best = int(np.argmax(values))
    return found[best], values[best], taus[best]


def _add_up(total: Counters, parts: Sequence[Counters]) -> None:
    """Add what went on side by side, rounds of the longest part and calls of all; the parts start afresh."""
    total.gradient_rounds += max(part.gradient_rounds for part in parts)
    total.gradient_calls += sum(part.gradient_calls for part in parts)
    total.independence_rounds += max(part.independence_rounds for part in parts)
    total.independence_calls += sum(part.independence_calls for part in parts)
    for part in parts:
        part.gradient_rounds = part.gradient_calls = part.independence_rounds = part.independence_calls = 0


def _pursue(problem: Problem, tau: float, rank: int) -> _Pursuit:
    """Run Algorithm 1 with ``rank`` for r."""
    parameters, counters, constraint = problem.parameters, problem.counters, problem.constraint
    epsilon = parameters.epsilon
    model = problem.objective.null()
    selected = np.empty(0, dtype=np.int64)
    candidates = problem.usable
    outer, block = 0, SMALLEST_BLOCK
    while parameters.until == "full" or outer < math.ceil(1.0 / epsilon):
        counters.independence_rounds += 1
        counters.independence_calls += len(candidates)
        extends = constraint.extensions(selected, candidates)
        candidates = candidates if extends.all() else candidates[extends]  # line 3: X = Cond(S), which only shrinks
        if not candidates.size:
            break
        answers = yield Query(len(selected), lambda: model.value, (Ask(model.residual, candidates),))
        assert answers is not None
        gradients = answers[0]
        counters.gradient_rounds += 1
        counters.gradient_calls += 1
        threshold = (1.0 - epsilon) * tau * gradients.top_mean(rank)  # line 4
        survivors, inner = gradients.at_least(threshold), 1
        if not len(survivors) < (1.0 - epsilon) * len(candidates):  # j* = 0 does not qualify: X stays as it is
            survivors, inner = (survivors if parameters.skip_weak else candidates), 0
        following = model.follow(problem.pool.columns(survivors), gradients.of(survivors))
        del gradients, answers  # an n-vector: not needed while the inner iterations run
        while following.features.size:  # members of X extend S, so Cond(S) is not empty either
            walk = _walk(problem, following, selected, threshold, outer, inner)
            if walk is not None:
                selected = np.concatenate((selected, walk.added))
                inner += len(walk.sizes)
                yield Round(len(selected), lambda: model.value)
                continue
            drawing = RandomSequence(constraint, selected, following.features, seed=parameters.seed, outer=outer, inner=inner)
            adopted = _adopt_prefix(problem, following, selected, drawing, threshold, block)
            counters.independence_rounds += drawing.rounds + 1
            counters.independence_calls += drawing.calls
            counters.gradient_rounds += 1
            selected = np.concatenate((selected, adopted))
            block = min(max(len(adopted), SMALLEST_BLOCK), LARGEST_BLOCK)
            inner += 1
            yield Round(len(selected), lambda: model.value)
        del following  # columns that the next outer iteration need not hold as well
        outer += 1
    problem.objective.remember(selected, model)
    return selected, model.value


def _walk(problem: Problem, following: Candidates, selected: IndexArray, threshold: float, outer: int, inner: int) -> Walk | None:
    """Go through inner iterations at once where the constraint only says how many features there may be; count what they cost."""
    constraint, parameters, counters = problem.constraint, problem.parameters, problem.counters
    room = constraint.rank - len(selected)
    if parameters.skip_weak or not 0 < room <= constraint.free(selected):
        return None
    walk = following.walk((parameters.seed, outer, inner), room, threshold, 1.0 - parameters.epsilon)
    if walk is not None:
        sizes, lengths = walk.sizes, walk.lengths
        counters.gradient_rounds += len(sizes)
        counters.gradient_calls += len(walk.added)
        counters.independence_rounds += 2 * len(sizes)  # each draws a whole sequence at once, and asks once about all prefixes
        drawn = np.minimum(sizes, room - np.cumsum(lengths) + lengths)
        counters.independence_calls += int((2 * sizes - drawn + lengths * sizes).sum())
    return walk


def _adopt_prefix(
    problem: Problem, following: Candidates, selected: IndexArray, drawing: RandomSequence, threshold: float, block: int
) -> IndexArray:
    """Find j* along the sequence (lines 7-9), move the model to S_j* and ``following`` from X to X_j*; return what S gained."""
    counters, X, skip_weak = problem.counters, following.features, problem.parameters.skip_weak
    enough = (1.0 - problem.parameters.epsilon) * len(X)
    places, first = drawing.places, 0
    while True:
        if skip_weak:  # needs all of it, for what is passed over may leave room for the rest
            if drawing.reach():
                places = drawing.places
        else:  # j* mostly comes early: the rest is not drawn or not looked at
            drawing.reach(first + block)
            places = drawing.places[: first + block]
        blocked = _blocked(problem, selected, X, places, first)
        # Without j* in this block it lies beyond, and S_j* contains all of it.
        added, found = following.advance(places[first : first + block], blocked, threshold, enough, skip_weak)
        counters.gradient_calls += added
        counters.independence_calls += added * len(X)
        first, block = first + added, min(2 * block, LARGEST_BLOCK)
        if found:
            return X[places[:first]]
        if skip_weak:
            scores = following.scores()
            weak = scores[places[first:]] < threshold
            places = np.delete(places, np.arange(first, first + int(np.argmin(np.append(weak, False)))))
            if first == len(places):  # what was passed over left room: X goes on without it
                left, blocked = scores >= threshold, _blocked(problem, selected, X, places, first)
                left[places] = False
                following.keep(np.flatnonzero(left if blocked is None else left & (blocked > 0)))
                return X[places]


def _blocked(problem: Problem, selected: IndexArray, X: IndexArray, places: IndexArray, first: int) -> IndexArray | None:
    """Return how many additions of those at ``places`` of X, beyond the ``first``, block each member of X; None: none does."""
    if problem.constraint.free(selected) > len(places):
        return None
    return problem.constraint.blocking(selected, X[places], X) - first
