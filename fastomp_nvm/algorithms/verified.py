"""Plain greedy's set, in its order, in a handful of passes: choices are drafted in memory and verified over all features.

Plain greedy takes, among the features that extend the set, the one with the largest score, the lowest index among equals: one pass
per feature. Here a *draft* of the next choices is made among a few columns in memory, and one pass *verifies* it: it computes every
feature's score at every step of the draft, in plain greedy's own arithmetic. As far as the drafted choices win, they are plain
greedy's, by induction: the sets before them are its sets, so the same features extend them. The winner of the first step that is
lost, or of the step after the draft, is plain greedy's choice too. So every pass adds at least one feature, no tolerance decides
anything, and the constraint need only be downward closed, which gives each feature one blocking index along the draft.

The features near the lead at the steps after the agreed ones join those among which the next draft is made. Drafts that keep losing
get shorter. Where they cost more than they save, or after a quarter as many passes as there are features to select, the rest is
plain greedy: drafts without a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import ClassVar

import numpy as np

from fastomp_nvm.algorithms.contenders import Compared, Contenders, Window
from fastomp_nvm.algorithms.exact_gains import Directions, LinearGains
from fastomp_nvm.algorithms.protocol import Algorithm, Ask, Gradients, Outcome, Problem, Query, Round, Steps
from fastomp_nvm.algorithms.together import together
from fastomp_nvm.algorithms.trace import CLOSE, Trace
from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.matrix.gradients import first_places
from fastomp_nvm.matrix.joint import Move
from fastomp_nvm.objectives.base import Model
from fastomp_nvm.objectives.linear import Linear

__all__ = ["exact_gain_greedy", "matching_pursuit", "pays", "retraced"]

#: Steps of a draft: at most, and of the first one; and the drafts that many steps are divided among, at least: the longer drafts
#: are, the more vectors they lose.
LONGEST, FIRST, DRAFTS = 64, 16, 3

#: Bytes of products that a verification may hold.
PRODUCT_BYTES = 1 << 29

#: Features near the lead that join the drafts: before the first, more where their columns take fewer bytes than ``SMALL``, and per
#: step looked at after a lost one.
FIRST_NEAR, SMALL, NEAR = 512, 1 << 22, 512

#: What the choice between plain and verified greedy assumes of a machine: bytes per second of a pass in memory, multiply-adds per
#: second of a pass with many vectors, seconds per product of a column and a vector besides, and seconds of a drafted step besides
#: its products. On slower media verification pays more.
BANDWIDTH, RATE, PRODUCT, STEP = 10e9, 40e9, 16e-9, 150e-6

#: Passes that drafts may lose before the rest is plain.
LOST = 2.0

#: What it assumes of the data: passes, passes per step, vectors per step and drafted steps per step.
PASSES, PASSES_PER_STEP, VECTORS_PER_STEP, DRAFTS_PER_STEP = 3, 1 / 16, 2.0, 2.0


class Greedy(ABC):
    """A greedy algorithm at a verified set, whose next choices are drafted and verified.

    Parameters
    ----------
    problem : Problem
    recorded : Trace, optional
        An earlier run to compare with: its features keep their places where they fall short by less than ``CLOSE``.

    Attributes
    ----------
    trace : Trace
        The verified steps.
    """

    kind: ClassVar[str]

    def __init__(self, problem: Problem, recorded: Trace | None) -> None:
        self.problem, self._recorded = problem, recorded
        self._winners, self._runners_up, self._margins = list[int](), list[int](), list[float]()
        self.trace = Trace(self.kind, self._winners, self._runners_up, self._margins)

    @property
    def size(self) -> int:
        """Features in the verified set."""
        return len(self._winners)

    @property
    @abstractmethod
    def value(self) -> float:
        """F after the steps of the draft so far."""

    @abstractmethod
    def look_ahead(self, near: IndexArray) -> None:
        """Begin a draft at the verified set, among the features ``near`` (ascending)."""

    @abstractmethod
    def scores(self) -> Float64Array:
        """Return (n,): the scores of the features of the draft after its steps so far."""

    @abstractmethod
    def step(self, feature: int) -> None:
        """Add a step to the draft."""

    @abstractmethod
    def verify(
        self, drafted: Sequence[int], feasible: Sequence[IndexArray], near: int
    ) -> Steps[tuple[int, int | None, IndexArray]]:
        """Compare the draft with all features in one pass, and move the verified set on.

        Parameters
        ----------
        drafted : sequence of int
            The steps of the draft.
        feasible : sequence of (c,) int64
            Features that extend the set before each step; one more where any extends the set after the last.
        near : int
            Features near the lead to return for each step looked at.

        Returns
        -------
        int
            Steps that won.
        int or None
            The winner after them, now in the verified set as well; None where no feature extends it.
        (n,) int64
            Features near the lead at or after the first step that was lost.
        """

    def decide(self, leaders: IndexArray, scores: Float64Array, candidates: IndexArray, score_of: Callable[[int], float]) -> int:
        """Add the winner of a step to the verified set, and return it.

        ``leaders`` are the two best of ``candidates``, if there are two, ``scores`` theirs; ``score_of`` returns that of any.
        """
        ranked, wanted = dict(zip(leaders.tolist(), scores.tolist(), strict=True)), (-1, -1)
        if self._recorded is not None and self.size < len(self._recorded.winners):
            wanted = self._recorded.winners[self.size], self._recorded.runners_up[self.size]
            ranked |= {feature: score_of(feature) for feature in wanted if feature not in ranked and feature in candidates}
        winner = _first(ranked, wanted[0])
        largest = ranked.pop(winner)
        second = _first(ranked, wanted[1]) if ranked else -1
        self._winners.append(winner)
        self._runners_up.append(second)
        self._margins.append((largest - ranked.get(second, 0.0)) / largest if largest > 0.0 else 0.0)
        return winner


def _first(scores: dict[int, float], wanted: int) -> int:
    """Return the feature with the largest score, the first among equals; ``wanted`` where it is closer than ``CLOSE``."""
    best = max(scores, key=scores.__getitem__)
    return wanted if wanted in scores and scores[wanted] >= (1.0 - CLOSE) * scores[best] else best


def _greedy(problem: Problem, rules: Greedy, considered: BoolArray | None) -> Algorithm:
    """Run a greedy algorithm; ``considered`` (n_features,) are features of its drafts, to which it adds others."""
    rank = min(problem.constraint.rank, len(problem.usable))
    longest = min(LONGEST, max(rank // DRAFTS, FIRST), _most_steps(problem))
    begun = considered is not None and considered.any()
    considered = np.zeros(problem.design.standardisation.n_features, dtype=np.bool_) if considered is None else considered
    column = max(problem.design.matrix.shape[1] * problem.design.matrix.itemsize, 1)
    room, first = problem.pool.budget // column, max(FIRST_NEAR, SMALL // column)
    selected, candidates, passes, spent = np.empty(0, dtype=np.int64), problem.usable, 0, 0.0
    length = min(FIRST, longest) if begun else 0
    plainly, (vector, scan) = False, _costs(problem)
    while True:
        candidates = candidates[problem.extensions(selected, candidates)]
        if not candidates.size:
            break
        near = candidates[considered[candidates]]
        rules.look_ahead(near)
        if len(near) == len(candidates):
            selected = yield from _in_memory(problem, rules, selected, candidates)
            break
        drafted = _draft(problem, rules, selected, near, min(length, rank - len(selected)))
        feasible = _feasible(problem, selected, drafted, candidates)
        plainly = plainly or 4 * passes > rank or spent > (len(selected) + LOST) * (scan + vector)
        agreed, winner, close = yield from rules.verify(drafted, feasible, 0 if plainly else NEAR if passes else first)
        selected = np.concatenate((selected, np.array(drafted[:agreed], dtype=np.int64)))
        if winner is None:
            break
        selected = np.append(selected, winner)
        if np.count_nonzero(considered) + len(close) <= room:  # beyond it, drafts would read columns again
            considered[close] = True
        passes, spent = passes + 1, spent + scan + vector * (len(drafted) + 1)
        if plainly:
            length = 0
        elif not length:
            length = min(FIRST, longest)
        else:
            length = min(2 * length if agreed == len(drafted) else max(2 * agreed + 4, FIRST), longest)
    return Outcome(selected, guarantee="greedy", traces=(rules.trace,), greedy=[selected])


def _most_steps(problem: Problem) -> int:
    """Return how many steps memory allows to verify at once."""
    return max(PRODUCT_BYTES // (8 * int(problem.design.standardisation.offsets[-1])), 1)


def _draft(problem: Problem, rules: Greedy, selected: IndexArray, near: IndexArray, length: int) -> list[int]:
    """Return the next ``length`` choices among ``near``, fewer where nothing extends the set."""
    drafted, together = list[int](), np.concatenate((selected, np.zeros(length, dtype=np.int64)))
    closed = np.zeros(len(near), dtype=np.bool_)
    while len(drafted) < length and not closed.all():
        scores = rules.scores()
        scores[closed] = -1.0
        while scores[place := int(np.argmax(scores))] >= 0.0:
            together[len(selected) + len(drafted)] = near[place]
            closed[place], scores[place] = True, -1.0  # chosen, or infeasible from here on
            problem.counters.independence_calls += 1
            if problem.constraint.independent(together[: len(selected) + len(drafted) + 1]):
                drafted.append(int(near[place]))
                rules.step(drafted[-1])
                break
        else:
            break
    return drafted


def _in_memory(problem: Problem, rules: Greedy, selected: IndexArray, near: IndexArray) -> Steps[IndexArray]:
    """Add features of the draft, which leaves out none that extends ``selected``, as plain greedy does; return the set."""
    candidates = near
    while True:
        scores = rules.scores()[np.searchsorted(near, candidates)]
        first = first_places(scores, 2)
        winner = rules.decide(candidates[first], scores[first], candidates, partial(_among, candidates, scores))
        selected = np.append(selected, winner)
        candidates = candidates[problem.extensions(selected, candidates)]
        if not candidates.size:
            return selected
        rules.step(winner)
        yield Round(len(selected), rules.value)


def _feasible(problem: Problem, selected: IndexArray, drafted: Sequence[int], candidates: IndexArray) -> list[IndexArray]:
    """Return the features that extend ``selected`` and the first 0, 1, ... of ``drafted``; the last only where there are any."""
    if not drafted:
        return [candidates]
    sequence = np.array(drafted, dtype=np.int64)
    problem.counters.independence_rounds += 1
    problem.counters.independence_calls += len(candidates)
    blocked = problem.constraint.blocking(selected, sequence, candidates)
    blocked[np.searchsorted(candidates, sequence)] = np.arange(1, len(sequence) + 1)  # a member blocks itself
    leaving = np.flatnonzero(blocked <= len(sequence))  # few of many, as a rule
    last = blocked[leaving]
    feasible = [candidates, *(np.delete(candidates, leaving[last <= step]) for step in range(1, len(sequence) + 1))]
    return feasible if feasible[-1].size else feasible[:-1]


def _looked_at(first: int, last: int) -> list[int]:
    """Return the steps whose leaders join the drafts: the first, and others ever further apart."""
    steps, gap = [], 1
    while first <= last:
        steps.append(first)
        first, gap = first + gap, 2 * gap
    return steps


class MatchingPursuit(Greedy):
    """SDS_OMP: the score at the current model."""

    kind = "omp"

    def __init__(self, problem: Problem, recorded: Trace | None = None) -> None:
        super().__init__(problem, recorded)
        self._model: Model = problem.objective.null()

    @property
    def value(self) -> float:
        """F of the last model."""
        return self._models[-1].value

    def look_ahead(self, near: IndexArray) -> None:
        """Begin a draft."""
        self._columns = self.problem.pool.columns(near)
        self._models, self._residuals = [self._model], [self._model.residual]

    def scores(self) -> Float64Array:
        """Return the scores, with the bits of a pass."""
        products = self._columns.products(self._residuals[-1][:, None])
        return self._columns.standardisation.scores(products)[:, 0]

    def step(self, feature: int) -> None:
        """Grow the model of the last step."""
        self._models.append(self._grown(self._models[-1], feature))
        self._residuals.append(self._models[-1].residual)

    def _grown(self, model: Model, feature: int) -> Model:
        """Return a model with one feature more."""
        model = model.branch()
        model.add(self.problem.pool.columns(np.array([feature])).dense(np.zeros(1, dtype=np.int64)))
        return model

    def verify(
        self, drafted: Sequence[int], feasible: Sequence[IndexArray], near: int
    ) -> Steps[tuple[int, int | None, IndexArray]]:
        """Sweep the residuals of all drafted models at once."""
        asks = tuple(map(Ask, self._residuals, feasible))
        answers = yield Query(self.size, self._model.value, asks, members=self._winners)
        assert answers is not None
        self.problem.counters.gradient_rounds += 1
        self.problem.counters.gradient_calls += len(asks)
        agreed, winner = len(drafted), None
        for step, answer in enumerate(answers):
            best = self.decide(*answer.leaders(2), feasible[step], partial(self._score, answer))
            if step == len(drafted) or best != drafted[step]:
                agreed, winner = step, best
                break
        close = [np.empty(0, dtype=np.int64)]
        for step in _looked_at(agreed, len(answers) - 1) if near else ():
            few, answer = len(feasible[step]) <= near, answers[step]
            close.append(feasible[step] if few else answer.at_least(answer.top_mean(3 * near))[: 2 * near])
        self._model = self._models[agreed]
        if winner is not None:
            self._model = self._grown(self._model, winner)
        return agreed, winner, np.concatenate(close)

    def _score(self, answer: Gradients, feature: int) -> float:
        """Return the score of a feature."""
        features = np.array([feature])
        return float(self.problem.design.standardisation.subset(features).scores(answer.of(features)[:, None])[0, 0])


class ExactGainGreedy(Greedy):
    """SDS_MA for the linear model: the exact gain ``g^2 / d``.

    With a tier, a pass gives upper bounds of all gains at every step, and only features that may be among the two best of a step
    are compared, by exact gains from their columns. Where these are too many, passes over the matrix give all gains from then on.

    Parameters
    ----------
    problem : Problem
    objective : Linear
    recorded : Trace, optional
        See ``Greedy``.
    """

    kind = "exact gains"

    def __init__(self, problem: Problem, objective: Linear, recorded: Trace | None = None) -> None:
        super().__init__(problem, recorded)
        self._start = self._gains = LinearGains.unswept(problem, objective)
        # What the first sweep takes beside the directions of its window; the response has no part along the fixed ones.
        self._first = [Move(objective.null().residual, -1.0, direction=False), *(Move(q, 0.0) for q in objective.along_fixed())]
        self._swept = False
        self._contenders = Contenders.over_tier(self._start, self._first)
        if self._contenders is not None:  # gains of few features are known then
            self._gains = self._start.among(problem.usable[:0])
        self._last: int | None = None  # in the verified set, but not yet in ``_gains``
        self._places = np.zeros(problem.design.standardisation.n_features, dtype=np.int64)  # of features among the usable ones
        self._places[problem.usable] = np.arange(len(problem.usable))

    @property
    def value(self) -> float:
        """F after the last step."""
        return self._few.value

    def look_ahead(self, near: IndexArray) -> None:
        """Begin a draft."""
        self._columns = self.problem.pool.columns(near)
        if self._contenders is not None:
            self._gains, _ = self._contenders.exactly(self._gains, near, ())
        self._few, self._spans = self._gains.among(near), list[Directions]()
        if self._contenders is None and not self._swept:
            self._few = self._few.swept(self._columns.products(np.column_stack([move.vector for move in self._first])).T)
        if self._last is not None:
            self.step(self._last)

    def scores(self) -> Float64Array:
        """Return the gains, with the bits of a pass."""
        return self._few.all()

    def step(self, feature: int) -> None:
        """Move the gains of the draft."""
        span = self._few.directions(np.array([feature]))
        products = self._columns.products(self._few.objective.weighted(np.stack(span.vectors, 1))).T if span.vectors else ()
        self._few = next(self._few.walk(span, products))
        self._spans.append(span)

    def verify(
        self, drafted: Sequence[int], feasible: Sequence[IndexArray], near: int
    ) -> Steps[tuple[int, int | None, IndexArray]]:
        """Sweep all drafted directions at once."""
        known = self._last is None  # the gains before the first step
        window = Window(self._spans[: len(feasible) - known], feasible, known)
        compared = yield from self._compared(window, near)
        lost, winner, decided, close = len(drafted), None, 0, [np.empty(0, dtype=np.int64)]
        looked_at: Sequence[int] = ()
        for step, gains in enumerate(compared.steps):
            if winner is not None and step not in looked_at:
                continue
            candidates = compared.feasible[step]
            growth = gains.all()[compared.places[candidates]]
            if winner is None:
                self._gains, decided, first = gains, step, first_places(growth, 2)
                best = self.decide(candidates[first], growth[first], candidates, partial(_among, candidates, growth))
                if step < len(drafted) and best == drafted[step]:
                    continue
                lost, winner = step, best
                looked_at = _looked_at(step, len(feasible) - 1) if near else ()
                if not looked_at:
                    break
            close.append(compared.closest(step, candidates, growth))
        compared.settle(decided)
        self._last = drafted[-1] if winner is None else winner
        return lost, winner, np.concatenate(close)

    def _compared(self, window: Window, near: int) -> Steps[Compared]:
        """Sweep the directions of ``window``; return the features to compare with the draft."""
        usable, moves = self.problem.usable, window.moves(self._start.objective)
        asked = moves if self._swept else [*self._first, *moves]
        if self._contenders is not None:
            answers = yield from self._ask(asked, exact=False)
            products = [answer.approximately(usable) for answer in answers]
            certain = self._columns.features
            if self._recorded is not None:
                recorded = np.array([*self._recorded.winners, *self._recorded.runners_up], dtype=np.int64)
                certain = np.union1d(certain, np.intersect1d(recorded, usable))
            compared = self._contenders.compare(self._gains, window, asked, products, certain, near)
            if compared is not None:
                self._swept = True
                return compared
            yield from self._sweep_again(self._contenders.moves if self._swept else [])
        gradients = (answer.of(usable) for answer in (yield from self._ask(asked, exact=True)))
        if not self._swept:
            self._gains, self._swept = self._start.swept(islice(gradients, len(self._first))), True
        return Compared(window.along(self._gains, gradients), window.feasible, self._places, partial(_nearest, near))

    def _sweep_again(self, moves: Sequence[Move]) -> Steps[None]:
        """Sweep the matrix with the vectors up to the verified set, for the exact gains of all features."""
        gradient, pivot, most = self._start.gradient, self._start.pivot, _most_steps(self.problem)
        for first in range(0, len(moves), most):
            some = moves[first : first + most]
            for move, answer in zip(some, (yield from self._ask(some, exact=True)), strict=True):
                products = answer.of(self.problem.usable)
                gradient = gradient - products * move.coefficient if move.direction else products
                pivot = pivot - products**2 if move.direction else pivot
        at, self._contenders = self._gains, None
        self._gains = replace(
            self._start, gradient=gradient, pivot=pivot, span=at.span, size=at.size, value=at.value, members=at.members
        )

    def _ask(self, moves: Sequence[Move], *, exact: bool) -> Steps[Sequence[Gradients]]:
        """Query the gradients of all features with ``moves``."""
        if not moves:
            return ()
        vectors = [move.vector for move in moves]
        return (
            yield from self.problem.ask(
                self.size, self._gains.value, vectors, self.problem.usable, exact=exact, members=self._winners
            )
        )


def _nearest(near: int, _: int, candidates: IndexArray, growth: Float64Array) -> IndexArray:
    """Return the ``near`` of ``candidates`` with the largest gains; the first ones where some are equal."""
    count = min(near, len(growth))
    return candidates[np.flatnonzero(growth >= np.partition(growth, len(growth) - count)[len(growth) - count])[:near]]


def _among(features: IndexArray, numbers: Float64Array, feature: int) -> float:
    """Return the number of one of ``features`` (ascending)."""
    return float(numbers[int(np.searchsorted(features, feature))])


def _costs(problem: Problem) -> tuple[float, float]:
    """Return the assumed seconds per vector of a pass over all columns, and of reading them."""
    (columns, n_obs), nbytes = problem.design.matrix.shape, problem.design.matrix.nbytes
    return columns * (n_obs / RATE + PRODUCT), nbytes / BANDWIDTH


def pays(problem: Problem) -> bool:
    """Return whether verified greedy is expected to be faster than a pass per feature: from sizes and constants, never a clock."""
    rank, columns, (vector, scan) = (
        min(problem.constraint.rank, len(problem.usable)),
        problem.design.matrix.shape[0],
        _costs(problem),
    )
    drafted = scan * min(FIRST_NEAR / columns, 1.0) + STEP
    verified = (PASSES + PASSES_PER_STEP * rank) * scan + rank * (VECTORS_PER_STEP * vector + DRAFTS_PER_STEP * drafted)
    return verified < rank * (scan + vector)


def matching_pursuit(problem: Problem, considered: BoolArray | None = None) -> Algorithm:
    """Run SDS_OMP; ``considered`` (n_features,) are features of its drafts, which runs side by side may share."""
    return (yield from _greedy(problem, MatchingPursuit(problem), considered))


def exact_gain_greedy(problem: Problem, considered: BoolArray | None = None) -> Algorithm:
    """Run SDS_MA for the linear model; ``considered`` is as in ``matching_pursuit``."""
    assert isinstance(problem.objective, Linear)
    return (yield from _greedy(problem, ExactGainGreedy(problem, problem.objective), considered))


def retraced(problem: Problem, traces: Sequence[Trace]) -> Algorithm:
    """Compare the steps of recorded runs with all features again, in one pass or, where memory is short, a few.

    The winners of each trace are a feasible set. The outcome has the traces as they are now. Each ends with the first step that
    another feature wins by more than ``CLOSE``, or goes on by a step where a feature extends the recorded set.
    """
    found = yield from together(problem, [partial(_retraced, trace=trace) for trace in traces])
    return Outcome(np.array(found[0].winners, dtype=np.int64), traces=tuple(found))


def _retraced(problem: Problem, trace: Trace) -> Steps[Trace]:
    """Return a trace as it is now."""
    rules: Greedy
    if trace.kind == MatchingPursuit.kind:
        rules = MatchingPursuit(problem, trace)
    else:
        assert isinstance(problem.objective, Linear)
        rules = ExactGainGreedy(problem, problem.objective, trace)
    winners, candidates, most = np.array(trace.winners, dtype=np.int64), problem.usable, _most_steps(problem)
    while (candidates := candidates[problem.extensions(winners[: rules.size], candidates)]).size:
        selected, following = winners[: rules.size], winners[rules.size : rules.size + most]
        rules.look_ahead(np.sort(following))  # which reads their columns at once
        drafted = following.tolist()
        for feature in drafted:
            rules.step(feature)
        feasible = _feasible(problem, selected, drafted, candidates)
        if len(selected) + len(drafted) < len(winners):
            feasible = feasible[: len(drafted)]  # the next one is not the leader's place but the recorded winner's
        agreed, winner, _ = yield from rules.verify(drafted, feasible, 0)
        if agreed < len(drafted) or winner is not None:
            break
    return rules.trace
