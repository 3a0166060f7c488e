"""Exchanges for the linear model: a set is improved until no addition and no exchange improves it, proven over all features.

Let ``C`` be the coordinates of all columns in the orthonormal directions of the set, ``z`` those of the response, ``g`` and ``d``
gradient and squared remainder of each column. Removing members takes the directions ``U`` out that only they provide: with
``V = C'U`` and ``w = U'z`` it turns ``g`` into ``g + V w`` and ``d`` into ``d + V V'``. The gain of a feature added then is the
usual ``g^2 / d``, less the ``w'w`` that the removal costs. A ridge enters as further rows of the columns: through the factor of
the Gram matrix, and through ``d``.

Moves are sought among columns in memory, in float64: additions, exchanges of one for one and, where the constraint is no matroid,
of two for one and one for two. A *survey* then computes the gain of every addition and every exchange of one for one, for all
features, in one pass or, where memory is short, a few. Features of improving moves join the columns in memory, until none is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.algorithms.protocol import Gradients, Problem, Steps
from fastomp_nvm.algorithms.verified import PRODUCT_BYTES
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.constraints.intersection import parts_of
from fastomp_nvm.constraints.knapsack import Knapsack
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.matrix.standardisation import Standardisation
from fastomp_nvm.objectives.independent import DEPENDENT, cholesky_of_independent
from fastomp_nvm.objectives.linear import Linear
from fastomp_nvm.objectives.linear_gains import SMALLEST_PIVOT, FollowedGains, exact_gains
from fastomp_nvm.random_keys import first_of

__all__ = [
    "MOST_SURVEYS",
    "TOLERANCE",
    "Move",
    "Neighbourhood",
    "Point",
    "QuadraticObjective",
    "affordable",
    "exchanged",
    "near",
    "survey",
]

#: A move must improve f by more than this share of it.
TOLERANCE = 1e-9

#: Gains of a survey above this are computed again in float64: products of float32 columns carry about seven digits.
SURVEYED = {4: -1e-6, 8: -1e-10}

#: Surveys, at most.
MOST_SURVEYS = 10

#: Members of which pairs are exchanged for one feature, at most.
MOST_PAIRED = 24

#: Sets from which exchanges of one for two are tried, at most, at a set that nothing else improves.
MOST_TRIED = 256

#: Times in a row that random members of a set are replaced in vain before the set is taken for the best among the columns in
#: memory; the most members replaced; and the features of which each of the first two replacements is drawn.
KICKS, MOST_KICKED, PROMISING = 128, 10, 8

#: Sets of at most so many features are tried with exchanges of pairs after every kick, others where a kick led to a better set.
FEW = 8

#: Features in memory beside the set, at most.
MOST_NEAR = 1024


class QuadraticObjective(Protocol):
    """What exchanges need of an objective: least squares of a response of unit length on weighted columns, with a ridge."""

    @property
    def response(self) -> Float64Array:
        """(n_obs,) float64: the weighted response."""
        ...

    @property
    def ridge(self) -> float:
        """Penalty on squared coefficients."""
        ...

    def weighted(self, columns: Float64Array) -> Float64Array:
        """Return standardised columns (n_obs, d) weighted."""
        ...

    def swept(self, vector: Float64Array) -> Float64Array:
        """Return the sweep vector of ``vector`` (n_obs,), a combination of weighted columns and the response."""
        ...

    def along_fixed(self) -> list[Float64Array]:
        """Return the sweep vectors of fixed directions, the squared products with which are missing from ``remainders``."""
        ...

    def remainders(self, standardisation: Standardisation, columns: Columns | None) -> tuple[Float64Array, list[Float64Array]]:
        """Return squared lengths and Gram matrices of features as ``Linear.remainders`` does; of all usable ones by default."""
        ...


@dataclass(frozen=True, slots=True)
class Remainders:
    """What a set leaves of some features: gradient and squared remainders (n_columns,), and a matrix per feature of several."""

    standardisation: Standardisation
    gradient: Float64Array
    pivot: Float64Array
    groups: Sequence[Float64Array]
    smallest: Float64Array

    def without(self, coordinates: Sequence[Float64Array], directions: Float64Array) -> Remainders:
        """Return what is left after a direction (or several) is taken out of the set.

        ``coordinates`` are those of the columns along each, ``directions`` (b,) those of the response.
        """
        gradient, pivot, groups = self.gradient, self.pivot, self.groups
        for along, move in zip(coordinates, directions.tolist(), strict=True):
            gradient, pivot = gradient + along * move, pivot + along * along
            groups = _changed(self.standardisation, groups, along, 1.0)
        return Remainders(self.standardisation, gradient, pivot, groups, self.smallest)

    def gains(self) -> Float64Array:
        """Return (n_features,): the gain of adding each feature."""
        return exact_gains(self.standardisation, self.gradient, self.pivot, self.groups, self.smallest)


def _changed(
    standardisation: Standardisation, groups: Sequence[Float64Array], along: Float64Array, sign: float
) -> list[Float64Array]:
    """Return the matrices of features of several columns with the outer products of ``along`` (n_columns,) added."""
    parts = [along[group.columns] for group in standardisation.whiteners]
    return [old + sign * part[:, :, None] * part[:, None, :] for old, part in zip(groups, parts, strict=True)]


class Neighbourhood:
    """Features whose columns are in memory, among which moves are sought.

    Parameters
    ----------
    problem : Problem
    objective : QuadraticObjective
    features : (f,) int64
        Ascending.
    """

    def __init__(self, problem: Problem, objective: QuadraticObjective, features: IndexArray) -> None:
        self.problem, self.objective, self.features = problem, objective, features
        columns = problem.pool.columns(features)
        self.standardisation = columns.standardisation
        self.dense = objective.weighted(columns.dense(np.arange(len(features))))
        self.gram, self.moves = self.dense.T @ self.dense, self.dense.T @ objective.response
        self.pivot, self.groups = objective.remainders(columns.standardisation, columns)
        self.smallest = SMALLEST_PIVOT * self.pivot
        if objective.along_fixed():
            left = self.gram + objective.ridge * np.eye(len(self.gram))
            blocks = [group.columns for group in self.standardisation.whiteners]
            self.pivot, self.groups = left.diagonal().copy(), [left[at[:, :, None], at[:, None, :]] for at in blocks]

    def extends(self, members: Sequence[int], others: IndexArray) -> IndexArray:
        """Return those of ``others`` that may be added to ``members``, by position."""
        chosen = self.features[np.array(members, dtype=np.int64)]
        return others[self.problem.extensions(chosen, self.features[others])]

    def completed(self, members: Sequence[int], per_cost: Float64Array | None = None, growing: Growing | None = None) -> list[int]:
        """Return ``members`` grown by the feature with the largest gain (per cost), until nothing extends them.

        ``growing`` are the gains at ``members``, where they are known.
        """
        grown, open_ = list(members), np.arange(len(self.features))
        growing = Growing(self, members) if growing is None else growing
        while (open_ := self.extends(grown, open_)).size:
            gains = growing.gains()[open_]
            grown.append(int(open_[int(np.argmax(gains if per_cost is None else gains / per_cost[open_]))]))
            growing.add(grown[-1])
        return grown

    def climbed(self, members: Sequence[int], *, pairs: bool = True) -> Point:
        """Return the set that ``members`` lead to by moves, the best of the first kind that has any, until none improves f.

        ``pairs`` allows exchanges of two for one and one for two, which cost far more to find.
        """
        members, pairs = list(members), pairs and self.problem.constraint.p != 1.0
        while True:
            point = Point(self, members)
            kinds = (point.exchanges(0), point.exchanges(1))
            further = (point.exchanges(2), point.one_for_two()) if pairs else ()
            for gain, out, into in (_best(kind) for kind in (*kinds, *further)):
                if gain > TOLERANCE * point.value:
                    members = [member for member in members if member not in out] + list(into)
                    break
            else:
                return point


class Growing(FollowedGains):
    """Gains of the features of a neighbourhood, given a set that only grows."""

    def __init__(self, hood: Neighbourhood, members: Sequence[int]) -> None:
        groups = [group.copy() for group in hood.groups]
        super().__init__(hood.standardisation, hood.moves.copy(), hood.pivot.copy(), groups, hood.smallest)
        self._gram, self._offsets = hood.gram, hood.standardisation.offsets
        for member in members:
            self.add(member)

    def add(self, member: int) -> None:
        """Add a feature to the set."""
        for column in range(int(self._offsets[member]), int(self._offsets[member + 1])):
            self.follow(column, self._gram[column])


#: A move: by how much it improves f, the members removed, the features added; positions.
Move = tuple[float, Sequence[int], Sequence[int]]


def _best(moves: Iterable[Move]) -> Move:
    """Return the best of some moves, the first among equals."""
    return max(moves, key=lambda move: move[0], default=(0.0, (), ()))


class Point:
    """A set of features of a neighbourhood: its directions, and what it leaves of all features.

    Attributes
    ----------
    members : list of int
        Positions.
    value : float
        f of the set.
    remainders : Remainders
        Of all features of the neighbourhood.
    directions : list of (m, b)
        Per member: the directions of the span, in coordinates of the basis, that the others do not provide.
    """

    def __init__(self, hood: Neighbourhood, members: Sequence[int]) -> None:
        self.hood, self.members = hood, list(members)
        offsets = hood.standardisation.offsets
        spans = [np.arange(offsets[member], offsets[member + 1]) for member in self.members]
        columns = np.concatenate([np.empty(0, dtype=np.int64), *spans])
        gram = hood.gram[np.ix_(columns, columns)]
        gram.flat[:: len(gram) + 1] += hood.objective.ridge
        self.factor, kept = cholesky_of_independent(gram, DEPENDENT)
        self.columns = columns[kept]
        owners = np.repeat(np.arange(len(spans)), [len(span) for span in spans])[kept]
        if len(kept):
            self._coordinates = lapack.dtrtrs(self.factor, hood.gram[self.columns], trans=1)[0]
            self.along = lapack.dtrtrs(self.factor, hood.moves[self.columns], trans=1)[0]
            apart = lapack.dtrtrs(self.factor, np.eye(len(kept)), trans=1)[0]
        else:
            self._coordinates, self.along, apart = np.zeros((0, len(hood.moves))), np.zeros(0), np.zeros((0, 0))
        self.value = float(self.along @ self.along)
        self._apart = [apart[:, owners == place] for place in range(len(spans))]
        pivot, groups = hood.pivot - (self._coordinates**2).sum(axis=0), hood.groups
        for along in self._coordinates if groups else ():
            groups = _changed(hood.standardisation, groups, along, -1.0)
        gradient = hood.moves - self.along @ self._coordinates
        self.remainders = Remainders(hood.standardisation, gradient, pivot, groups, hood.smallest)

    def basis(self) -> Float64Array:
        """Return (n_obs, m): an orthonormal basis of the set's span."""
        columns = self.hood.dense[:, self.columns]
        return np.asarray(lapack.dtrtrs(self.factor, columns.T, trans=1)[0].T) if len(self.columns) else columns

    def residual(self) -> Float64Array:
        """Return (n_obs,): what the set leaves of the response."""
        return np.asarray(self.hood.objective.response - self.basis() @ self.along)

    @property
    def perfect(self) -> bool:
        """True where no set can improve on this one, which explains the response."""
        response = self.hood.objective.response
        return float(response @ response) <= (1.0 + TOLERANCE) * self.value

    def directions(self, places: Sequence[int]) -> Float64Array:
        """Return (m, b): an orthonormal basis of the directions that only the members at ``places`` provide."""
        if not places:
            return np.empty((len(self.along), 0))
        return np.asarray(np.linalg.qr(np.hstack([self._apart[place] for place in places]))[0])

    def exchanges(self, removed: int) -> Iterator[Move]:
        """Yield the best feasible exchange of each ``removed`` members for one feature."""
        least, outside = TOLERANCE * self.value, np.ones(len(self.hood.features), dtype=np.bool_)
        outside[self.members] = False
        for places, gains in self.single_exchanges() if removed == 1 else self._exchanges(removed):
            better = np.flatnonzero(outside & (gains > least))
            if not better.size:
                continue
            left = [member for place, member in enumerate(self.members) if place not in places]
            if (better := self.hood.extends(left, better)).size:
                best = int(better[int(np.argmax(gains[better]))])
                least = float(gains[best])
                yield least, [self.members[place] for place in places], [best]

    def _exchanges(self, removed: int) -> Iterator[tuple[Sequence[int], Float64Array]]:
        """Yield places of ``removed`` members and the gains (n_features,) of exchanging them for each feature.

        Of many members only those are paired whose removal costs least.
        """
        paired: Sequence[int] = range(len(self.members))
        if removed > 1 and len(paired) > MOST_PAIRED:
            losses = [float(np.square(self.along @ self.directions([place])).sum()) for place in paired]
            paired = np.sort(np.argsort(losses, kind="stable")[:MOST_PAIRED]).tolist()
        for places in combinations(paired, removed):
            directions = self.directions(places)
            moves = self.along @ directions
            left = self.remainders.without(directions.T @ self._coordinates, moves)
            yield places, left.gains() - float(moves @ moves)

    def single_exchanges(self) -> Iterator[tuple[Sequence[int], Float64Array]]:
        """Yield as ``_exchanges(1)`` does, from one product for all members where features have one column each.

        Members whose exchange for no feature improves f may be left out.
        """
        left = self.remainders
        if left.groups or len(self.columns) < len(self.members):
            yield from self._exchanges(1)
            return
        directions = np.hstack(self._apart)
        directions /= np.sqrt((directions**2).sum(axis=0))
        along, moves = directions.T @ self._coordinates, (self.along @ directions)[:, None]
        pivot = left.pivot + along**2
        gains = np.zeros_like(pivot)
        np.divide((left.gradient + along * moves) ** 2, pivot, out=gains, where=pivot > left.smallest)
        gains -= moves**2
        for place in np.flatnonzero(gains.max(axis=1, initial=0.0) > TOLERANCE * self.value).tolist():
            yield [place], gains[place]

    def one_for_two(self) -> Iterator[Move]:
        """Yield exchanges of one member for two features, the best second for each of the most promising first ones."""
        tried = max(MOST_TRIED // max(len(self.members), 1), 1)
        for place, member in enumerate(self.members):
            directions, left = self.directions([place]), [*self.members[:place], *self.members[place + 1 :]]
            gains = self.remainders.without(directions.T @ self._coordinates, self.along @ directions).gains()
            gains[self.members] = -1.0
            first = np.argsort(-gains, kind="stable")[: 4 * tried]
            for one in self.hood.extends(left, first[gains[first] >= 0.0])[:tried].tolist():
                grown = Point(self.hood, [*left, one])
                for gain, _, into in grown.exchanges(0):
                    yield grown.value + gain - self.value, [member], [one, *into]


def exchanged(problem: Problem, objective: Linear, starts: Sequence[IndexArray]) -> Steps[tuple[IndexArray, bool]]:
    """Return the best set that moves lead to from any of ``starts``, and whether no exchange for any feature improves it."""
    most = affordable(problem, MOST_NEAR)
    hood = Neighbourhood(problem, objective, np.union1d(np.concatenate(starts), near(problem, starts[0], most)))
    found = [np.searchsorted(hood.features, start).tolist() for start in starts]
    costs = [part.costs for part in parts_of(problem.constraint) if isinstance(part, Knapsack)]
    found += [hood.completed([], np.maximum(each[hood.features], 1e-12)) for each in costs]
    climbed = {frozenset(point.members): point for point in map(hood.climbed, found)}
    best = max(map(_settled, climbed.values()), key=lambda point: point.value)
    for _ in range(MOST_SURVEYS):
        members = hood.features[best.members]
        if best.perfect:
            return members, True
        better, close = yield from survey(best)
        if np.isin(better, hood.features).all():
            return members, True
        joining = np.concatenate((members, better[: most // 2], close[: most // 2]))
        hood = Neighbourhood(problem, objective, np.unique(joining))
        start = np.searchsorted(hood.features, members).tolist()
        best = _settled(hood.climbed(start))
        if len(better) <= most // 2 and set(best.members) == set(start):
            return members, True
    return hood.features[best.members], False


def affordable(problem: Problem, most: int) -> int:
    """Return how many columns the memory for gathered ones holds in float64, at most ``most``."""
    return min(most, problem.pool.budget // (8 * problem.design.matrix.shape[1]))


def near(problem: Problem, start: IndexArray, most: int) -> IndexArray:
    """Return ``most`` features to seek moves among, gathered so far, that fit best beside ``start``; all, where they are fewer."""
    if len(problem.usable) <= most:
        return problem.usable
    features = np.intersect1d(problem.pool.features, problem.usable, assume_unique=True)
    model, columns = problem.objective.null(), problem.pool.columns(features)
    model.add(problem.pool.columns(start).dense(np.arange(len(start))))
    scores = columns.standardisation.scores(columns.products(model.residual[:, None]))[:, 0]
    return features[np.argsort(-scores, kind="stable")[:most]]


def _settled(best: Point) -> Point:
    """Return the best set found from that of ``best``, a local optimum, and from sets near it."""
    kick = vain = 0
    while vain < KICKS:
        tried = best.hood.climbed(_kicked(best, kick), pairs=len(best.members) <= FEW)
        better = tried.value > (1.0 + TOLERANCE) * best.value
        best, vain, kick = (best.hood.climbed(tried.members), 0, kick + 1) if better else (best, vain + 1, kick + 1)
    return best


def _kicked(point: Point, kick: int) -> list[int]:
    """Return a maximal set near that of ``point``: members removed, two promising features added, the rest by gain."""
    hood, members = point.hood, np.array(point.members, dtype=np.int64)
    name = (hood.problem.parameters.seed, kick)
    grown = members[first_of((*name, 0), members, len(members) - min(len(members) // 3 + 1, MOST_KICKED))].tolist()
    outside = np.ones(len(hood.features), dtype=np.bool_)
    outside[members] = False
    growing, others = Growing(hood, grown), np.flatnonzero(outside)
    for place in (1, 2):
        others = hood.extends(grown, others)
        gains = growing.gains()[others]
        promising = others[np.argsort(-gains, kind="stable")[:PROMISING]]
        for added in promising[first_of((*name, place), promising, min(len(promising), 1))].tolist():
            grown.append(added)
            growing.add(added)
    return hood.completed(grown, growing=growing)


def survey(point: Point) -> Steps[tuple[IndexArray, IndexArray]]:
    """Return the features of feasible additions and exchanges that improve f, and all features; those with the best moves first."""
    hood, problem, objective = point.hood, point.hood.problem, point.hood.objective
    selected, usable = hood.features[point.members], problem.usable
    standardisation = problem.design.standardisation.subset(usable)
    basis = point.basis()
    taken = [point.directions([place]) for place in range(len(point.members))]
    vectors, fixed = [*basis.T, *(vector for each in taken for vector in (basis @ each).T)], objective.along_fixed()
    first = [objective.swept(objective.response - basis @ point.along), *fixed]
    products = _Products(problem, [*first, *map(objective.swept, vectors)], selected, point.value)
    pivot, groups = objective.remainders(standardisation, None)
    smallest = SMALLEST_PIVOT * pivot
    gradient = yield from products.next()
    for _ in (*fixed, *point.columns):
        along = yield from products.next()
        pivot, groups = pivot - along * along, _changed(standardisation, groups, along, -1.0)
    left = Remainders(standardisation, gradient, pivot, groups, smallest)
    outside, bar = ~np.isin(usable, selected), SURVEYED.get(problem.design.matrix.itemsize, SURVEYED[4])
    gains, any_gains = np.full((2, len(usable)), -np.inf)  # of feasible moves that improve f, and of all moves

    def include(gained: Float64Array, kept: IndexArray) -> None:
        np.maximum(any_gains, gained, out=any_gains, where=outside)
        better = np.flatnonzero(outside & (gained > np.maximum(bar, gains)))
        better = better[problem.extensions(kept, usable[better])] if better.size else better
        gains[better] = gained[better]

    include(left.gains(), selected)
    for place, directions in enumerate(taken):
        moves, coordinates = point.along @ directions, list[Float64Array]()
        while len(coordinates) < len(moves):
            coordinates.append((yield from products.next()))
        include(left.without(coordinates, moves).gains() - float(moves @ moves), np.delete(selected, place))
    better = np.flatnonzero(gains > bar)
    return usable[better[np.argsort(-gains[better], kind="stable")]], usable[np.argsort(-any_gains, kind="stable")]


class _Products:
    """Products of the usable columns with vectors, in as few queries as memory allows."""

    def __init__(self, problem: Problem, vectors: Sequence[Float64Array], selected: IndexArray, value: float) -> None:
        self._problem, self._vectors, self._selected, self._value = problem, vectors, selected, value
        self._width = max(PRODUCT_BYTES // (8 * int(problem.design.standardisation.offsets[-1])), 1)
        self._answers: Iterator[Gradients] = iter(())
        self._asked = 0

    def next(self) -> Steps[Float64Array]:
        """Return the products with the next vector."""
        answer = next(self._answers, None)
        if answer is None:
            chunk = self._vectors[self._asked : self._asked + self._width]
            self._asked += len(chunk)
            asked = self._problem.ask(
                len(self._selected), self._value, chunk, self._problem.usable, exact=True, members=self._selected
            )
            self._answers = iter((yield from asked))
            answer = next(self._answers)
        return answer.of(self._problem.usable)
