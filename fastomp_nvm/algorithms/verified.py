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
from collections.abc import Iterator, Sequence

import numpy as np

from fastomp_nvm.algorithms.exact_gains import Directions, LinearGains
from fastomp_nvm.algorithms.protocol import Ask, Gradients, Problem, Query, Steps
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.objectives.base import Model
from fastomp_nvm.objectives.linear import Linear

__all__ = ["exact_gain_greedy", "matching_pursuit", "pays"]

#: Steps of a draft: at most, and of the first one.
LONGEST, FIRST = 64, 16

#: Bytes of products that a verification may hold.
PRODUCT_BYTES = 1 << 29

#: Features near the lead that join the drafts: before the first, and per step looked at after a lost one.
FIRST_NEAR, NEAR = 512, 256

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

    Attributes
    ----------
    size : int
        Features in the verified set.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.size = 0

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


def _greedy(problem: Problem, rules: Greedy, near: IndexArray | None = None) -> Steps[IndexArray]:
    """Return the set of a greedy algorithm, in order; ``near`` (n,) are features that its drafts should consider."""
    columns, rank = int(problem.design.standardisation.offsets[-1]), min(problem.constraint.rank, len(problem.usable))
    longest = min(LONGEST, max(PRODUCT_BYTES // (8 * columns), 1))
    considered = np.zeros(problem.design.standardisation.n_features, dtype=np.bool_)
    considered[problem.usable[:0] if near is None else near] = True
    room = problem.pool.budget // max(problem.design.matrix.shape[1] * problem.design.matrix.itemsize, 1)
    selected, candidates, length, passes, spent = np.empty(0, dtype=np.int64), problem.usable, 0, 0, 0.0
    plainly, (vector, scan) = False, _costs(problem)
    while True:
        candidates = candidates[problem.extensions(selected, candidates)]
        if not candidates.size:
            return selected
        rules.look_ahead(candidates[considered[candidates]])
        drafted = _draft(problem, rules, selected, candidates[considered[candidates]], min(length, rank - len(selected)))
        feasible = _feasible(problem, selected, drafted, candidates)
        plainly = plainly or 4 * passes > rank or spent > (len(selected) + LOST) * (scan + vector)
        agreed, winner, close = yield from rules.verify(drafted, feasible, 0 if plainly else NEAR if passes else FIRST_NEAR)
        selected = np.concatenate((selected, np.array(drafted[:agreed], dtype=np.int64)))
        if winner is None:
            return selected
        selected = np.append(selected, winner)
        if np.count_nonzero(considered) + len(close) <= room:  # beyond it, drafts would read columns again
            considered[close] = True
        passes, spent = passes + 1, spent + scan + vector * (len(drafted) + 1)
        if plainly:
            length = 0
        elif not length:
            length = min(FIRST, longest)
        else:
            length = min(2 * length if agreed == len(drafted) else 2 * agreed + 4, longest)


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

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._model: Model = problem.objective.null()

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
        answers = yield Query(self.size, self._model.value, asks)
        assert answers is not None
        self.problem.counters.gradient_rounds += 1
        self.problem.counters.gradient_calls += len(asks)
        agreed, winner = 0, None
        for agreed, answer in enumerate(answers):
            winner = answer.argmax()
            if agreed == len(drafted) or winner != drafted[agreed]:
                break
        else:
            agreed, winner = len(drafted), None
        looked_at = [answers[step] for step in _looked_at(agreed, len(answers) - 1)] if near else []
        close = [np.empty(0, dtype=np.int64), *(answer.at_least(answer.top_mean(near))[:near] for answer in looked_at)]
        self._model = self._models[agreed]
        self.size += agreed
        if winner is not None:
            self.size, self._model = self.size + 1, self._grown(self._model, winner)
        return agreed, winner, np.concatenate(close)


class ExactGainGreedy(Greedy):
    """SDS_MA for the linear model: the exact gain ``g^2 / d``.

    Parameters
    ----------
    problem : Problem
    gains : LinearGains
        Of the usable features over the empty set.
    """

    def __init__(self, problem: Problem, gains: LinearGains) -> None:
        super().__init__(problem)
        self._gains = gains
        self._last: int | None = None  # in the verified set, but not yet in ``_gains``
        self._places = np.zeros(problem.design.standardisation.n_features, dtype=np.int64)  # of features among the usable ones
        self._places[problem.usable] = np.arange(len(problem.usable))

    def look_ahead(self, near: IndexArray) -> None:
        """Begin a draft."""
        self._columns = self.problem.pool.columns(near)
        self._few, self._spans = self._gains.among(near), list[Directions]()
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
        gains, lost, winner, close = self._gains, len(drafted), None, [np.empty(0, dtype=np.int64)]
        known = self._last is None  # the gains before the first step
        spans = self._spans[: len(feasible) - known]
        vectors = [gains.objective.weighted(vector) for span in spans for vector in span.vectors]
        answers: Sequence[Gradients] = ()
        if vectors:
            answers = yield from self.problem.ask(self.size, gains.value, vectors, gains.features, exact=True)
        looked_at: Sequence[int] = ()
        for step, at in enumerate(_along(gains, spans, answers, known)):
            if winner is None:
                growth = at.all()[self._places[feasible[step]]]
                best = int(feasible[step][int(np.argmax(growth))])
                if step < len(drafted) and best == drafted[step]:
                    continue
                lost, winner, self._gains = step, best, at
                looked_at = _looked_at(step, len(feasible) - 1) if near else ()
            elif step in looked_at:
                growth = at.all()[self._places[feasible[step]]]
            else:
                continue
            if not looked_at:
                break
            count = min(near, len(growth))
            close.append(
                feasible[step][np.flatnonzero(growth >= np.partition(growth, len(growth) - count)[len(growth) - count])[:near]]
            )
        self.size += lost + (winner is not None)
        self._last = winner
        return lost, winner, np.concatenate(close)


def _along(gains: LinearGains, spans: Sequence[Directions], answers: Sequence[Gradients], known: bool) -> Iterator[LinearGains]:
    """Yield ``gains`` (only where ``known``), and the gains after the first, the first two, ... of ``spans``."""
    if known:
        yield gains
    following = (answer.of(gains.features) for answer in answers)
    for span in spans:
        gains = next(gains.walk(span, following))
        yield gains


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


def matching_pursuit(problem: Problem, near: IndexArray | None = None) -> Steps[IndexArray]:
    """Return the set of SDS_OMP, in order; ``near`` (n,) are features that drafts should consider."""
    return (yield from _greedy(problem, MatchingPursuit(problem), near))


def exact_gain_greedy(problem: Problem, near: IndexArray | None = None) -> Steps[IndexArray]:
    """Return the set of SDS_MA for the linear model, in order; ``near`` (n,) are features that drafts should consider."""
    assert isinstance(problem.objective, Linear)
    gains = yield from LinearGains.of_nothing(problem, problem.objective)
    return (yield from _greedy(problem, ExactGainGreedy(problem, gains), near))
