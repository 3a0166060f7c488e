"""Exact gains of every feature over a growing set, for baselines that need f itself rather than its gradient.

A :class:`Gains` belongs to one set and is immutable; adding features returns another. For the linear model it is two vectors with
one entry per column, the gradient ``g`` and the squared remainder ``d``: a new direction ``q``, with ``c = A_std q``, gives
``g - c (q.y)`` and ``d - c^2``, and the gain of a column is ``g^2 / d``. One sweep per added column, no refits. Other objectives
have no such shortcut: their gains are **refits, one per candidate**, over columns read in chunks: exact and slow.

Algorithms call the methods with ``yield from``: reads from the medium are queries like any other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastomp_nvm.algorithms.protocol import Gradients, Members, Problem, Round, Steps
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.errors import RequestError
from fastomp_nvm.matrix.standardisation import Standardisation, column_index
from fastomp_nvm.objectives.glm import GLM
from fastomp_nvm.objectives.independent import DEPENDENT
from fastomp_nvm.objectives.linear import Linear
from fastomp_nvm.objectives.linear_gains import SMALLEST_PIVOT, exact_gains, left_beside
from fastomp_nvm.objectives.newton import Coefficients

__all__ = ["Directions", "Gains", "LinearGains", "gains_of_nothing"]

#: Candidates refitted between two points at which a run may be cancelled.
REFITS = 256


class Gains(ABC):
    """The increase of f of a set with each further feature.

    Attributes
    ----------
    size : int
        Features in the set.
    value : float
        f of the set.
    members : sequence of int, or (size,) int64
        The set.
    """

    size: int
    value: float
    members: Members

    @abstractmethod
    def of(self, candidates: IndexArray) -> Steps[Float64Array]:
        """Return (c,): the gain of each candidate, ascending usable features; 0 for a dependent one."""

    @abstractmethod
    def after(self, sets: Sequence[IndexArray]) -> Steps[list[Iterator[Gains]]]:
        """Return, per set, the gains after adding its first, first two, ... features; all sets in one round."""


def gains_of_nothing(problem: Problem) -> Steps[Gains]:
    """Return the gains over the empty set."""
    if isinstance(problem.objective, Linear):
        return (yield from LinearGains.of_nothing(problem, problem.objective))
    if isinstance(problem.objective, GLM):
        yield Round(0, 0.0)
        return _RefittedGains(problem, problem.objective, np.empty(0, dtype=np.int64), problem.objective.null_coefficients, 0.0)
    raise RequestError(f"exact gains of {type(problem.objective).__name__} are unknown: choose fast_omp or sds_omp")


class Span:
    """Orthonormal directions, the rows of memory that longer spans with the same first directions share.

    Parameters
    ----------
    room : (m, n_obs) float64
    written : list of int
        Number of rows of ``room`` in use.
    size : int
        Number of directions of this span.
    """

    __slots__ = ("_room", "_size", "_written")

    def __init__(self, room: Float64Array, written: list[int], size: int) -> None:
        self._room, self._written, self._size = room, written, size

    @classmethod
    def of_nothing(cls, n_obs: int) -> Span:
        """Return a span without a direction."""
        return cls(np.empty((0, n_obs)), [0], 0)

    @property
    def basis(self) -> Float64Array:
        """(n_obs, size): the directions."""
        return self._room[: self._size].T

    def grown(self, vector: Float64Array) -> Span:
        """Return the span with one more direction."""
        size, room, written = self._size, self._room, self._written
        if written[0] > size or size == len(room):  # another span has the next row, or there is none
            room, written = np.empty((max(2 * size, 16), room.shape[1])), [size]
            room[:size] = self._room[:size]
        room[size], written[0] = vector, size + 1
        return Span(room, written, size + 1)


@dataclass(frozen=True, slots=True)
class Directions:
    """The directions that a sequence of features adds to the span of a set.

    Attributes
    ----------
    features : (n,) int64
    vectors : list of (n_obs,) float64
        One per column that is not dependent.
    spans : list of Span
        The span with each of them.
    moves : list of float
        The response's coordinate along each.
    ends : list of int
        Number of vectors up to and with each feature.
    """

    features: IndexArray
    vectors: list[Float64Array]
    spans: list[Span]
    moves: list[float]
    ends: list[int]


@dataclass(frozen=True, slots=True)
class LinearGains(Gains):
    """Gradient and squared remainders (n_columns,) of some features; a small matrix of remainders per feature of several columns.

    Attributes
    ----------
    features : (f,) int64
        Ascending; the usable features, or some of them.
    standardisation : Standardisation
        Of these features.
    span : Span
        The directions of the set.
    """

    problem: Problem
    objective: Linear
    features: IndexArray
    standardisation: Standardisation
    gradient: Float64Array
    pivot: Float64Array
    groups: tuple[Float64Array, ...]
    smallest: Float64Array  # (n_columns,): pivots up to this count as dependent
    span: Span
    size: int
    value: float
    members: Members

    @classmethod
    def of_nothing(cls, problem: Problem, objective: Linear) -> Steps[LinearGains]:
        """Ask for the gradient at the empty model, and for what the fixed directions leave of the features."""
        vectors = [objective.null().residual, *objective.along_fixed()]
        answers = yield from problem.ask(0, 0.0, vectors, problem.usable, exact=True)
        return cls.unswept(problem, objective).swept(answer.of(problem.usable) for answer in answers)

    def swept(self, products: Iterable[Float64Array]) -> LinearGains:
        """Return the gains over the empty set from ``products`` of its residual and of each fixed direction."""
        gradient, *fixed = products
        pivot, groups = self.pivot, list(self.groups)
        for along in fixed:
            pivot, groups = left_beside(self.standardisation, pivot, groups, along)
        return replace(self, gradient=gradient, pivot=pivot, groups=tuple(groups))

    @classmethod
    def unswept(cls, problem: Problem, objective: Linear) -> LinearGains:
        """Return the gains over the empty set before its residual and the fixed directions are ``swept``."""
        columns = None if objective.centred else problem.pool.columns(problem.usable)
        standardisation = problem.design.standardisation.subset(problem.usable)
        pivot, groups = objective.remainders(standardisation, columns)
        gradient = np.zeros_like(pivot)
        span, exact = Span.of_nothing(len(objective.response)), problem.design.matrix.dtype == np.float64
        smallest = (DEPENDENT if exact else SMALLEST_PIVOT) * pivot
        return cls(problem, objective, problem.usable, standardisation, gradient, pivot, tuple(groups), smallest, span, 0, 0.0, ())

    def of(self, candidates: IndexArray) -> Steps[Float64Array]:
        """Return ``g^2 / d``."""
        yield Round(self.size, self.value, members=self.members)
        return self.all()[np.searchsorted(self.features, candidates)]

    def all(self) -> Float64Array:
        """Return (f,): the gain of each of ``features``."""
        return exact_gains(self.standardisation, self.gradient, self.pivot, self.groups, self.smallest)

    def among(self, features: IndexArray) -> LinearGains:
        """Return the gains of ``features`` alone, ascending and some of these."""
        positions = np.searchsorted(self.features, features)
        columns, groups = column_index(self.standardisation.offsets, positions), list[Float64Array]()
        for group, pivots in zip(self.standardisation.whiteners, self.groups, strict=True):
            here = pivots[np.isin(group.features, positions, assume_unique=True)]
            groups += [here] if len(here) else []
        return replace(
            self,
            features=features,
            standardisation=self.standardisation.subset(positions),
            gradient=self.gradient[columns],
            pivot=self.pivot[columns],
            groups=tuple(groups),
            smallest=self.smallest[columns],
        )

    def after(self, sets: Sequence[IndexArray]) -> Steps[list[Iterator[Gains]]]:
        """Sweep all new directions at once."""
        spans = [self.directions(features) for features in sets]
        vectors = [self.objective.weighted(vector) for span in spans for vector in span.vectors]
        answers: Sequence[Gradients] = ()
        if vectors:
            answers = yield from self.problem.ask(self.size, self.value, vectors, self.features, exact=True, members=self.members)
        starts = np.cumsum([0, *(len(span.vectors) for span in spans)]).tolist()
        return [
            self.walk(span, (answer.of(self.features) for answer in answers[start : start + len(span.vectors)]))
            for span, start in zip(spans, starts, strict=False)
        ]

    def directions(self, features: IndexArray) -> Directions:
        """Orthogonalise the columns of ``features``, one after the other, against the set and each other."""
        objective, span, grown = self.objective, Directions(features, [], [], [], []), self.span
        dense = objective.weighted(self.problem.pool.columns(features).dense(np.arange(len(features))))
        offsets = self.problem.design.standardisation.subset(features).offsets
        for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            for column in dense.T[first:last]:
                basis = grown.basis
                overlaps = basis.T @ column
                remainder = column - basis @ overlaps
                squared = float(column @ column)
                if objective.ridge:
                    pivot = squared + objective.ridge - float(overlaps @ overlaps)
                else:  # once more: cancellation leaves a part in the span
                    remainder -= basis @ (basis.T @ remainder)
                    pivot = float(remainder @ remainder)
                if pivot > DEPENDENT * squared:
                    vector = remainder / math.sqrt(pivot)
                    grown = grown.grown(vector)
                    span.vectors.append(vector)
                    span.spans.append(grown)
                    span.moves.append(float(vector @ objective.response))
            span.ends.append(len(span.vectors))
        return span

    def walk(self, span: Directions, coordinates: Iterable[Float64Array]) -> Iterator[LinearGains]:
        """Yield the gains after each feature of ``span``; ``coordinates`` are those of all columns, one array per vector."""
        gains, following, first = self, iter(coordinates), 0
        for feature, end in zip(span.features.tolist(), span.ends, strict=True):
            for grown, move in zip(span.spans[first:end], span.moves[first:end], strict=True):
                gains = gains._moved(grown, move, next(following))
            first = end
            gains = replace(gains, size=gains.size + 1, members=(*gains.members, feature))
            yield gains

    def _moved(self, span: Span, move: float, coordinates: Float64Array) -> LinearGains:
        """Return the gains after one more direction."""
        pivot, groups = left_beside(self.standardisation, self.pivot, self.groups, coordinates)
        return replace(
            self,
            gradient=self.gradient - coordinates * move,
            pivot=pivot,
            groups=tuple(groups),
            span=span,
            value=self.value + move * move,
        )


@dataclass(frozen=True, slots=True)
class _RefittedGains(Gains):
    """A fitted model; the gain of a candidate is that of a refit with it, started from this one."""

    problem: Problem
    objective: GLM
    features: IndexArray
    at: Coefficients
    value: float

    @property
    def size(self) -> int:  # type: ignore[override]
        """Features in the set."""
        return len(self.features)

    @property
    def members(self) -> Members:  # type: ignore[override]
        """The set."""
        return self.features

    def of(self, candidates: IndexArray) -> Steps[Float64Array]:
        """Refit with each candidate."""
        fitted = self._dense(self.features)
        gains = np.zeros(len(candidates))
        for start in range(0, len(candidates), REFITS):
            yield Round(self.size, self.value, members=self.members)
            chunk = candidates[start : start + REFITS]
            rows = self.problem.design.standardisation.subset(chunk)
            dense = self.problem.pool.read_dense(chunk)
            for place, (first, last) in enumerate(zip(rows.offsets[:-1].tolist(), rows.offsets[1:].tolist(), strict=True), start):
                gains[place] = self._fit(np.hstack((fitted, dense[:, first:last])))[1] - self.value
        return np.maximum(gains, 0.0)

    def after(self, sets: Sequence[IndexArray]) -> Steps[list[Iterator[Gains]]]:
        """Return lazy fits of the prefixes."""
        yield Round(self.size, self.value, members=self.members)
        self.problem.counters.gradient_rounds += 1
        self.problem.counters.gradient_calls += sum(map(len, sets))
        return [self._walk(features) for features in sets]

    def _walk(self, features: IndexArray) -> Iterator[Gains]:
        """Yield the models of the prefixes of ``features``, each started from the one before."""
        model = self
        for feature in features:
            grown = np.append(model.features, feature)
            model = _RefittedGains(self.problem, self.objective, grown, *model._fit(self._dense(grown)))
            yield model

    def _dense(self, features: IndexArray) -> Float64Array:
        """Return the standardised columns of ``features``."""
        return self.problem.pool.columns(features).dense(np.arange(len(features)))

    def _fit(self, columns: Float64Array) -> tuple[Coefficients, float]:
        """Fit ``columns``, which begin with the columns of this model; return the coefficients and f."""
        at = self.objective.newton(columns, self.at)
        return at, self.objective.likelihood(at.eta, at.coef) - self.objective.null_likelihood
