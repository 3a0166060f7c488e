"""Inner iterations of FAST_OMP: lines 6 to 9 of Algorithm 1.

An iteration draws a random feasible sequence of the candidates X and adds its members to the model one by one, until fewer than
``(1 - epsilon) |X|`` candidates are left: that prefix is S_j*, and the candidates left are X_j*. ``advance`` is that loop, for
every objective and constraint. ``Candidates.run`` is the same loop in C (``native/rounds.c``), with the same decisions.
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.algorithms.draws import RandomSequence
from fastomp_nvm.algorithms.protocol import Problem
from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.objectives.base import Candidates
from fastomp_nvm.objectives.compiled import Rounds

__all__ = ["LARGEST_BLOCK", "SMALLEST_BLOCK", "advance", "inner_iterations"]

#: Members of a sequence drawn and evaluated at once: at least, at most. Starting at the last j* wastes little and needs few sweeps.
SMALLEST_BLOCK, LARGEST_BLOCK = 2, 32

#: Multiplications after which compiled iterations return, so that a run can be observed and cancelled: about 10 ms.
EFFORT = 5e7


def inner_iterations(
    problem: Problem, X: Candidates, selected: IndexArray, threshold: float, outer: int, inner: int, block: int
) -> tuple[IndexArray, int, int]:
    """Run one inner iteration, or several in one call where only the number of features is constrained.

    Moves the model to S_j*, and X to X_j*.

    Parameters
    ----------
    problem : Problem
    X : Candidates
    selected : (s,) int64
        S.
    threshold : float
        t of line 4.
    outer, inner : int
        Number of the iteration: part of the key of its draw.
    block : int
        Members of the sequence evaluated first.

    Returns
    -------
    (a,) int64, int, int
        Features added to S; iterations; ``block`` for the next one.
    """
    constraint, parameters, counters, features = problem.constraint, problem.parameters, problem.counters, X.features
    draw, skip_weak, share = (parameters.seed, outer, inner), parameters.skip_weak, 1.0 - parameters.epsilon
    room = constraint.rank - len(selected)
    if not skip_weak and 0 < room <= constraint.free(selected):
        room = min(room, len(features))
        origin, added, sizes = np.arange(len(features)), np.empty(room, dtype=np.int64), np.empty((room, 2), dtype=np.int64)
        rounds = Rounds(features, origin, added, sizes, None, draw, threshold, share, EFFORT, False, False)
        total, iterations = X.run(rounds)
        if iterations:
            before, lengths = sizes[:iterations].T
            counters.gradient_rounds += iterations
            counters.gradient_calls += total
            counters.independence_rounds += 2 * iterations  # each draws a whole sequence at once, and asks once about all prefixes
            drawn = np.minimum(before, room - np.cumsum(lengths) + lengths)
            counters.independence_calls += int((2 * before - drawn + lengths * before).sum())
            return features[added[:total]], iterations, block
    drawing = RandomSequence(constraint, selected, features, seed=parameters.seed, outer=outer, inner=inner)
    adopted = _adopt_prefix(problem, X, selected, drawing, threshold, block)
    counters.independence_rounds += drawing.rounds + 1
    counters.independence_calls += drawing.calls
    counters.gradient_rounds += 1
    return adopted, 1, min(max(len(adopted), SMALLEST_BLOCK), LARGEST_BLOCK)


def _adopt_prefix(
    problem: Problem, X: Candidates, selected: IndexArray, drawing: RandomSequence, threshold: float, block: int
) -> IndexArray:
    """Find j* along the sequence, move the model to S_j* and X to X_j*; return the features added to S."""
    counters, constraint, skip_weak = problem.counters, problem.constraint, problem.parameters.skip_weak
    features, places, first = X.features, drawing.places, 0
    while True:
        if skip_weak:  # needs the whole sequence: skipped members may leave room for the others
            if drawing.reach():
                places = drawing.places
        else:  # j* mostly comes early: the rest is not drawn
            drawing.reach(first + block)
            places = drawing.places[: first + block]
        blocked = None
        if constraint.free(selected) <= len(places):
            blocked = constraint.blocking(selected, features[places], features) - first
        # Without j* in this block it lies beyond, and S_j* contains all of the block.
        added, found = advance(X, places[first : first + block], blocked, threshold, 1.0 - problem.parameters.epsilon, skip_weak)
        counters.gradient_calls += added
        counters.independence_calls += added * len(features)
        first, block = first + added, min(2 * block, LARGEST_BLOCK)
        if found:
            return features[places[:first]]
        if skip_weak:
            scores = X.scores()
            weak = scores[places[first:]] < threshold
            places = np.delete(places, np.arange(first, first + int(np.argmin(np.append(weak, False)))))
            if first == len(places):  # skipped members left room: X goes on without them
                left = scores >= threshold
                left[places] = False
                if constraint.free(selected) <= len(places):
                    left &= constraint.blocking(selected, features[places], features) > first
                X.keep(np.flatnonzero(left))
                return features[places]


def advance(
    X: Candidates, positions: IndexArray, blocked: IndexArray | None, threshold: float, share: float, skip_weak: bool
) -> tuple[int, bool]:
    """Add candidates to the model, one after the other, until fewer than ``share`` of X are left; then drop the others.

    Parameters
    ----------
    X : Candidates
    positions : (b,) int64
        The candidates to add.
    blocked : (f,) int64, optional
        Additions after which each candidate cannot extend the set; None where none is blocked.
    threshold : float
        A candidate is left while it is not in the model, not blocked, and its score reaches this.
    share : float
    skip_weak : bool
        Stop before a candidate, not the first, whose own score has fallen below ``threshold``.

    Returns
    -------
    int, bool
        Candidates added; whether fewer than ``share`` of X were left.
    """
    count = len(X.features)
    if len(positions):
        sizes = np.empty((len(positions), 2), dtype=np.int64)
        origin, draw = np.arange(count), (0, 0, 0)
        rounds = Rounds(X.features, origin, positions, sizes, blocked, draw, threshold, share, EFFORT, True, skip_weak)
        total, iterations = X.run(rounds)
        if total:
            return total, iterations > 0
    out_at = np.full(count, len(positions) + 1) if blocked is None else blocked.copy()
    out_at[X.in_model] = 0
    out_at[positions] = np.minimum(out_at[positions], 1 + np.arange(len(positions)))
    added, step = 0, X.at_once()
    while added < len(positions):
        here = positions[added : added + step]
        scores = X.prefix_scores(here)
        whole = len(here)
        if skip_weak:
            before = np.concatenate((X.scores()[here[:1]], scores[here[1:], np.arange(whole - 1)]))
            weak = np.flatnonzero(before[int(not added) :] < threshold)
            whole = int(weak[0]) + int(not added) if weak.size else whole
        after = np.arange(added + 1, added + whole + 1)
        alive = (scores[:, :whole] >= threshold) & (out_at[:, None] > after)
        few = (alive.sum(axis=0) < share * count).nonzero()[0]
        taken = int(few[0]) + 1 if few.size else whole
        if taken:
            X.adopt(taken)
            X.in_model[here[:taken]] = True
            added += taken
        if few.size:
            X.keep(alive[:, taken - 1].nonzero()[0])
            return added, True
        if whole < len(here):
            break
    return added, False
