"""The features that may win steps of exact-gain greedy, from a pass over the tier, and their exact gains from their columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from fastomp_nvm.algorithms.exact_gains import Directions, LinearGains
from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.matrix.gradients import SAMPLE, first_places
from fastomp_nvm.matrix.joint import JointGains, JointPath, Move
from fastomp_nvm.matrix.tier import TierErrors
from fastomp_nvm.objectives.linear import Linear

__all__ = ["Compared", "Contenders", "Window"]

#: Share of all features that may be compared besides those of the draft: for more, exact passes cost less.
MOST_COMPARED = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Steps of a draft that are compared with all features.

    Attributes
    ----------
    spans : sequence of Directions
        Of the features added, one after the other.
    feasible : sequence of (c,) int64
        Features that extend the set at each step.
    known : bool
        True where the first step precedes the first of ``spans``; otherwise it follows it.
    """

    spans: Sequence[Directions]
    feasible: Sequence[IndexArray]
    known: bool

    @property
    def ends(self) -> list[int]:
        """Number of directions before each step."""
        return list(accumulate((len(span.vectors) for span in self.spans), initial=0))[0 if self.known else 1 :]

    def moves(self, objective: Linear) -> list[Move]:
        """Return the directions as they are swept."""
        pairs = (pair for span in self.spans for pair in zip(span.vectors, span.moves, strict=True))
        return [Move(objective.weighted(vector), coefficient) for vector, coefficient in pairs]

    def along(self, gains: LinearGains, products: Iterable[Float64Array]) -> Iterator[LinearGains]:
        """Yield the gains at each step, from those at the start and the products of all columns with each direction."""
        following = iter(products)
        if self.known:
            yield gains
        for span in self.spans:
            gains = next(gains.walk(span, following))
            yield gains


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Features to compare at the steps of a window.

    Attributes
    ----------
    steps : iterable of LinearGains
        Their exact gains at each step.
    feasible : sequence of (c,) int64
        Those that extend the set at each step: the two best of all features are among them.
    places : (n_features,) int64
        Positions of features among those of ``steps``.
    closest : callable
        Returns the features near the lead at a step, given ``feasible`` and the gains there.
    settle : callable
        Called with the last step that was decided: the verified set is the one before it.
    """

    steps: Iterable[LinearGains]
    feasible: Sequence[IndexArray]
    places: IndexArray
    closest: Callable[[int, IndexArray, Float64Array], IndexArray]
    settle: Callable[[int], None] = lambda step: None


class Contenders:
    """Bounds of the gains of all features over the verified set.

    Parameters
    ----------
    start : LinearGains
        The gains over the empty set, their gradient unknown.
    first : sequence of Move
        The residual of the empty model, and the fixed directions.
    joint : JointGains
    """

    def __init__(self, start: LinearGains, first: Sequence[Move], joint: JointGains) -> None:
        self._start, self._first, self._joint = start, list(first), joint

    @classmethod
    def over_tier(cls, start: LinearGains, first: Sequence[Move]) -> Contenders | None:
        """Return the contenders over the tier; None where there is none, or features of several columns or not standardised."""
        problem, standardisation = start.problem, start.standardisation
        if problem.tier is None or standardisation.whiteners or not start.objective.centred or not len(start.features):
            return None
        dtype = problem.design.matrix.dtype
        errors = problem.tier.errors(problem.design.standardisation, single=dtype != np.float64, in_lanes=True)
        errors = TierErrors(*(bound[start.features] for bound in errors))
        remainder, smallest = float(start.pivot[0]), float(start.smallest[0])
        return cls(start, first, JointGains(errors, dtype, remainder, smallest, problem.pool.sweeper.share_out))

    @property
    def moves(self) -> list[Move]:
        """The vectors swept up to the verified set."""
        return [move for move, _ in self._joint.moves] or self._first

    def exactly(self, at: LinearGains, features: IndexArray, window: Sequence[Move]) -> tuple[LinearGains, Float64Array]:
        """Return the exact gains of ``features`` over the verified set, and their products with the vectors of ``window``.

        They have the bits of passes over the matrix. ``at`` are gains over that set of some features, not computed again.
        """
        pool, few, known = self._start.problem.pool, self._start.among(features), _members(features, at.features)
        gradient, pivot, here = few.gradient, few.pivot, np.searchsorted(at.features, features[known])
        gradient[known], pivot[known] = at.gradient[here], at.pivot[here]
        if not known.all():
            moves = self.moves
            products = np.ascontiguousarray(pool.products(features[~known], _stacked(moves)).T)
            added, left = products[0], pivot[~known]
            for move, coordinates in zip(moves[1:], products[1:], strict=True):
                added, left = added - coordinates * move.coefficient, left - coordinates**2
            gradient[~known], pivot[~known] = added, left
        few = replace(few, span=at.span, size=at.size, value=at.value)
        return few, np.ascontiguousarray(pool.products(features, _stacked(window)).T) if window else np.empty((0, len(features)))

    def compare(
        self,
        at: LinearGains,
        window: Window,
        moves: Sequence[Move],
        products: Sequence[tuple[Float64Array, bool]],
        certain: IndexArray,
        near: int,
    ) -> Compared | None:
        """Return the features to compare at the steps of ``window``; None where they are too many.

        Parameters
        ----------
        at : LinearGains
            Over the verified set, of any features.
        window : Window
        moves : sequence of Move
            What was swept: the directions of ``window``, after those of ``first`` where this is the first sweep.
        products : sequence of (n_usable,) float64 and bool
            Of all features with each, and whether they are exact.
        certain : (c,) int64
            Features to compare in any case, ascending.
        near : int
            Features near the lead that are returned for a step.
        """
        path, usable = self._joint.along(moves, products), self._start.features
        before = len(moves) - sum(len(span.vectors) for span in window.spans)
        directions, ends = moves[before:], [before + end for end in window.ends]
        for end, candidates in zip(ends, window.feasible, strict=True):
            if np.count_nonzero(_members(certain, candidates)) < 2:  # the best of them are needed to judge the others
                above = next(path.above(np.searchsorted(usable, candidates), [end]))
                certain = np.union1d(certain, candidates[first_places(above, 2)])
        at, along = self.exactly(at, certain, directions)
        bars = []  # the second largest gain among them
        for gains, candidates in zip(window.along(at, along), window.feasible, strict=True):
            growth = gains.all()[_members(certain, candidates)]
            bars.append(float(np.partition(growth, len(growth) - 2)[-2]) if len(growth) > 1 else -math.inf)
        reaching, compared = list[tuple[IndexArray, Float64Array]](), np.zeros(len(usable), dtype=np.bool_)
        compared[np.searchsorted(usable, certain)] = True
        thresholds = _lowered(path, ends, bars, near, len(usable)) if near else bars
        for (places, above), candidates, bar in zip(path.reaching(ends, thresholds), window.feasible, bars, strict=True):
            open_ = _members(usable[places], candidates)
            places, above = places[open_], above[open_]
            compared[places[~(above < bar)]] = True
            reaching.append((usable[places], above))
        features = usable[compared]
        if len(features) - len(certain) > MOST_COMPARED * len(usable):
            return None

        def closest(step: int, _: IndexArray, __: Float64Array) -> IndexArray:
            found, above = reaching[step]
            return np.sort(found[np.argsort(-above, kind="stable")[:near]])

        steps = window.along(*self.exactly(at, features, directions))
        feasible = [features[_members(features, candidates)] for candidates in window.feasible]
        places = np.zeros(self._start.problem.design.standardisation.n_features, dtype=np.int64)
        places[features] = np.arange(len(features))
        return Compared(steps, feasible, places, closest, lambda step: path.advance(ends[step]))


def _stacked(moves: Sequence[Move]) -> Float64Array:
    """Return (n_obs, m): the vectors of ``moves``."""
    return np.stack([move.vector for move in moves], axis=1)


def _lowered(path: JointPath, ends: Sequence[int], bars: Sequence[float], near: int, count: int) -> list[float]:
    """Return thresholds up to ``bars`` that about 2 ``near`` of ``count`` features reach, judged by a sample of these."""
    stride = max(count // SAMPLE, 1)
    likely = 2 * near // stride + 8
    sampled = path.above(slice(None, None, stride), ends)
    return [min(bar, float(np.sort(above)[-likely:][0])) for bar, above in zip(bars, sampled, strict=True)]


def _members(features: IndexArray, candidates: IndexArray) -> BoolArray:
    """Return (f,): which of ``features`` are among ``candidates`` (ascending)."""
    if not len(candidates):
        return np.zeros(len(features), dtype=np.bool_)
    places = np.minimum(np.searchsorted(candidates, features), len(candidates) - 1)
    return np.asarray(candidates[places] == features)
