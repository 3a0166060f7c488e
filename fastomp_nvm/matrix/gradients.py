"""Answers to the asks of a sweep as decisions: from exact gradients, or from certified intervals and the columns they leave open.

A :class:`Sweep` holds the products of one pass for several runs; given the asks of a run it returns one :class:`Gradients` each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from fastomp_nvm import native
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.matrix.standardisation import Standardisation, column_index
from fastomp_nvm.matrix.traffic import Traffic

if TYPE_CHECKING:
    from fastomp_nvm.matrix.rows import Design, LocalRows
    from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
    from fastomp_nvm.matrix.tier import TierAccount, TierSweep

__all__ = [
    "Ask",
    "CertifiedSweep",
    "ExactColumns",
    "ExactGradients",
    "ExactSweep",
    "Gradients",
    "LocalGradients",
    "Sweep",
    "TierGradients",
    "first_places",
    "largest",
]


#: Scores sampled first, to find which of all may be among the largest.
SAMPLE = 1024


class Ask(NamedTuple):
    """One model asked about.

    Attributes
    ----------
    vector : (n_obs,) float64
        Its sweep vector.
    candidates : (c,) int64
        Features the decisions are about, ascending.
    """

    vector: Float64Array
    candidates: IndexArray


class Gradients(ABC):
    """The answer to one ask: the gradient at a model, as decisions about the candidates."""

    @abstractmethod
    def top_mean(self, count: int) -> float:
        """Return the mean of the ``count`` largest scores (of all, when there are fewer)."""

    @abstractmethod
    def at_least(self, threshold: float) -> IndexArray:
        """Return the candidates whose score reaches ``threshold``, ascending."""

    @abstractmethod
    def leaders(self, count: int) -> tuple[IndexArray, Float64Array]:
        """Return the candidates with the ``count`` largest scores (all, when there are fewer), best first, and their scores.

        The lowest index comes first among equals.
        """

    def argmax(self) -> int:
        """Return the candidate with the largest score; the lowest index among equals."""
        return int(self.leaders(1)[0][0])

    @abstractmethod
    def of(self, features: IndexArray) -> Float64Array:
        """Return the gradient of the columns of ``features``, in their order."""

    @abstractmethod
    def approximately(self, features: IndexArray) -> tuple[Float64Array, bool]:
        """Return the gradient of ``features``, of one column each, and whether it is exact.

        Otherwise it is that of the codes of the tier, within the errors of ``Tier.errors``; nothing is read for it.
        """


class ExactColumns(Protocol):
    """Columns that decisions may read exactly: what a sweep needs of the pool of a run."""

    design: Design

    def products(self, features: IndexArray, vectors: Float64Array) -> Float64Array:
        """Return (n_columns, m): the standardised columns of ``features`` times ``vectors`` (n_obs, m)."""
        ...

    def count_probe(self, traffic: Traffic) -> None:
        """Count bytes that a question took elsewhere."""
        ...


class Sweep(ABC):
    """One pass over a matrix with the vectors of several runs."""

    @abstractmethod
    def answer(
        self, asks: Sequence[Ask], first: int, pool: ExactColumns, account: TierAccount | None = None
    ) -> Sequence[Gradients]:
        """Return the answer to each of the ``asks`` of a run; a place is answered once.

        Parameters
        ----------
        asks : sequence of Ask
        first : int
            Place of their first vector among those of the sweep.
        pool : ExactColumns
            Of the run: its standardisation, and the columns that must be known exactly.
        account : TierAccount, optional
            Decides when reading single columns costs more than another sweep.
        """


@dataclass(frozen=True, slots=True, eq=False)
class ExactSweep(Sweep):
    """A sweep of the exact rows.

    Attributes
    ----------
    raw : (n_columns, m) float64
        Raw products of the rows and ``vectors``.
    vectors : Vectors
    """

    raw: Float64Array
    vectors: Vectors

    def answer(
        self, asks: Sequence[Ask], first: int, pool: ExactColumns, account: TierAccount | None = None
    ) -> Sequence[LocalGradients]:
        """Return the answers, from the gradient of every column."""
        standardisation, vectors, here = pool.design.standardisation, self.vectors, slice(first, first + len(asks))
        products = standardisation.apply(np.ascontiguousarray(self.raw[:, here]), vectors.sums[here], vectors.wide_sums[here])
        return list(map(ExactGradients, asks, _transposed(products), repeat(standardisation)))


def _transposed(products: Float64Array) -> Float64Array:
    """Return a transposed C-contiguous copy, or the same numbers where there is one vector."""
    if not native.extension or products.shape[1] == 1:
        return np.ascontiguousarray(products.T)
    out = np.empty(products.shape[::-1])
    native.extension.transpose(products, out)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class CertifiedSweep(Sweep):
    """A sweep of the tier of ``rows``.

    Attributes
    ----------
    swept : TierSweep
    rows : LocalRows
        The exact rows.
    sweeper : Sweeper
    vectors : Vectors
    """

    swept: TierSweep
    rows: LocalRows
    sweeper: Sweeper
    vectors: Vectors

    def answer(
        self, asks: Sequence[Ask], first: int, pool: ExactColumns, account: TierAccount | None = None
    ) -> Sequence[LocalGradients]:
        """Return the answers, from intervals; where these decide too little, from one exact sweep for all ``asks``."""
        rows, standardisation = self.rows, pool.design.standardisation
        exact: list[Gradients] = []

        def exactly(place: int, columns: int) -> Gradients | None:
            if not exact and account is not None and account.too_much(columns * rows.shape[1] * rows.itemsize):
                pool.count_probe(Traffic(1, standardisation.n_features, rows.nbytes))
                sweep = rows.sweep(self.sweeper, self.vectors.part(first, len(asks)), standardisation.wide)
                exact.extend(sweep.answer(asks, 0, pool))
            return exact[place] if exact else None

        return [TierGradients(ask, self.swept, first + place, pool, partial(exactly, place)) for place, ask in enumerate(asks)]


class LocalGradients(Gradients):
    """Decisions that this process takes itself."""

    @abstractmethod
    def largest(self, count: int) -> Float64Array:
        """Return the ``count`` largest scores (all, when there are fewer), in no order."""

    def top_mean(self, count: int) -> float:
        """Return the mean of the ``count`` largest scores (of all, when there are fewer)."""
        scores = self.largest(count)
        return math.fsum(scores.tolist()) / len(scores) if len(scores) else 0.0


class TierGradients(LocalGradients):
    """Decisions taken from intervals, and from the exact columns where intervals do not decide.

    Parameters
    ----------
    ask : Ask
    swept : TierSweep
    place : int
        Of the vector of ``ask`` among those of the sweep.
    pool : ExactColumns
        Reads the columns that must be known exactly.
    exactly : callable, optional
        Given how many columns must be known exactly, returns the exact answer to this ask, or None where reading them costs less.
    """

    def __init__(
        self,
        ask: Ask,
        swept: TierSweep,
        place: int,
        pool: ExactColumns,
        exactly: Callable[[int], Gradients | None] | None = None,
    ) -> None:
        self._candidates = ask.candidates
        self._vector = ask.vector[:, None]
        self._swept, self._place = swept, place
        self._exact = np.zeros(len(ask.candidates), dtype=np.bool_)
        self._gradient = np.empty(int(pool.design.standardisation.offsets[-1]))  # of the columns of candidates known exactly
        self._pool = pool
        self._exactly = exactly

    @cached_property
    def _bounds(self) -> tuple[Float64Array, Float64Array]:
        """Bounds of the candidates' scores, equal where they are known exactly; formed by the first decision that needs them."""
        below, above = self._swept.scores(self._place, self._pool.design.standardisation)
        return below[self._candidates], above[self._candidates]

    def largest(self, count: int) -> Float64Array:
        """Return the ``count`` largest scores (all, when there are fewer), in no order."""
        count = min(count, len(self._candidates))
        return largest(self._bounds[0][self._leaders(count)], count) if count else np.empty(0)

    def at_least(self, threshold: float) -> IndexArray:
        """Return the candidates whose score reaches ``threshold``, ascending."""
        below, above = self._bounds
        self._read(np.flatnonzero(~(above < threshold) & ~(below >= threshold)))
        return np.asarray(self._candidates[below >= threshold])

    def leaders(self, count: int) -> tuple[IndexArray, Float64Array]:
        """Return the candidates with the ``count`` largest scores, best first, and their scores."""
        leaders = self._leaders(min(count, len(self._candidates)))
        scores = self._bounds[0][leaders]
        first = first_places(scores, count)
        return self._candidates[leaders[first]], scores[first]

    def of(self, features: IndexArray) -> Float64Array:
        """Return the gradient of the columns of ``features``, in their order."""
        positions = np.searchsorted(self._candidates, features)
        positions = positions[positions < len(self._candidates)]
        if not np.array_equal(self._candidates[positions], features):  # some are not candidates
            return self._pool.products(features, self._vector)[:, 0]
        self._read(np.sort(positions))
        return self._gradient[column_index(self._pool.design.standardisation.offsets, features)]

    def approximately(self, features: IndexArray) -> tuple[Float64Array, bool]:
        """Return the gradient of the codes."""
        return self._swept.centres(self._place, self._pool.design.standardisation)[features], False

    def _leaders(self, count: int) -> IndexArray:
        """Return positions, ascending, of candidates that include the ``count`` largest scores, all now known exactly."""
        # Reading the likely leaders first raises the bar that others must reach to be read at all.
        below, above = self._bounds
        self._read(np.sort(first_places(below, count)))
        bar = largest(below, count).min()
        leaders = np.flatnonzero(~(above < bar))  # including ties with the last one
        self._read(leaders)
        return leaders

    def _read(self, positions: IndexArray) -> None:
        """Replace the intervals of the candidates at ``positions`` (ascending) by their exact scores."""
        positions = positions[~self._exact[positions]]
        if not positions.size:
            return
        features = self._candidates[positions]
        standardisation = self._pool.design.standardisation
        columns = column_index(standardisation.offsets, features)
        exact = None if self._exactly is None else self._exactly(len(columns))
        products = self._pool.products(features, self._vector) if exact is None else exact.of(features)[:, None]
        scores = standardisation.subset(features).scores(products)[:, 0]
        self._gradient[columns] = products[:, 0]
        below, above = self._bounds
        below[positions] = above[positions] = scores
        self._exact[positions] = True


class ExactGradients(LocalGradients):
    """Decisions taken from the gradient of every column.

    Parameters
    ----------
    ask : Ask
    products : (n_columns,) float64
        Gradient of every column, standardised and whitened.
    standardisation : Standardisation
    """

    def __init__(self, ask: Ask, products: Float64Array, standardisation: Standardisation) -> None:
        self._products = products
        self._standardisation = standardisation
        self._candidates = ask.candidates
        scores = standardisation.scores(products[:, None])[:, 0]
        # Candidates are ascending: as many as there are features are all features.
        self._scores = scores if len(ask.candidates) == len(scores) else scores[ask.candidates]

    def largest(self, count: int) -> Float64Array:
        """Return the ``count`` largest scores (all, when there are fewer), in no order."""
        return largest(self._scores, count)

    def at_least(self, threshold: float) -> IndexArray:
        """Return the candidates whose score reaches ``threshold``, ascending."""
        return np.asarray(self._candidates[np.flatnonzero(self._scores >= threshold)])

    def leaders(self, count: int) -> tuple[IndexArray, Float64Array]:
        """Return the candidates with the ``count`` largest scores, best first, and their scores."""
        first = first_places(self._scores, count)
        return self._candidates[first], self._scores[first]

    def of(self, features: IndexArray) -> Float64Array:
        """Return the gradient of the columns of ``features``, in their order."""
        return self._products[column_index(self._standardisation.offsets, features)]

    def approximately(self, features: IndexArray) -> tuple[Float64Array, bool]:
        """Return the gradient of ``features``."""
        return self.of(features), True


def first_places(values: Float64Array, count: int) -> IndexArray:
    """Return the positions of the ``count`` largest of ``values`` (n,), all when there are fewer; best first, then by position."""
    if count <= 2 and len(values):
        best = int(np.argmax(values))
        first = [best]
        if count == 2 and len(values) > 1:
            others = [part for part in (values[:best], values[best + 1 :]) if part.size]
            second = [int(np.argmax(part)) for part in others]
            after = len(others) == 2 and bool(others[1][second[1]] > others[0][second[0]])
            first.append(second[after] + (best + 1 if after or best == 0 else 0))
        return np.array(first)
    places = np.flatnonzero(~(values < largest(values, count).min()))
    return places[np.argsort(-values[places], kind="stable")[:count]]


def largest(values: Float64Array, count: int) -> Float64Array:
    """Return the ``count`` largest of ``values`` (n,), all when there are fewer, in no order."""
    sample = values[:: max(len(values) // SAMPLE, 1)]
    likely = 2 * count * len(sample) // max(len(values), 1) + 8
    if likely < len(sample) < len(values):  # few of many: most are below a threshold taken from the sample
        some = values[values >= np.partition(sample, len(sample) - likely)[len(sample) - likely]]
        values = some if len(some) >= count else values
    count = min(count, len(values))
    return np.partition(values, len(values) - count)[len(values) - count :] if count else np.empty(0)
