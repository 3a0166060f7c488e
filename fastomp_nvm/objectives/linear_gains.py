"""Gains ``g^2 / d`` of features in a quadratic model, without refits: exact for the linear model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm import native
from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.matrix.standardisation import Standardisation, column_index
from fastomp_nvm.objectives.base import Extends, GainTracker
from fastomp_nvm.objectives.independent import DEPENDENT, DEPENDENT_IN_FLOAT32
from fastomp_nvm.objectives.known_columns import MOST_ENTRIES

if TYPE_CHECKING:
    from fastomp_nvm.objectives.linear import Linear

__all__ = ["SMALLEST_PIVOT", "FollowedGains", "GramColumns", "LinearGains", "exact_gains", "left_beside"]

#: A column whose squared remainder is below this share of its squared length gains nothing, where products are of float32.
SMALLEST_PIVOT = DEPENDENT_IN_FLOAT32

#: Columns of the Gram matrix computed at once, at most: in memory, and where every product reads columns again.
GRAM_BLOCK, READING_BLOCK = 32, 64

#: Features among which the next additions are predicted: a share of all, and bounds per Gram column.
NEAR_SHARE, FEWEST_NEAR, MOST_NEAR = 1 / 16, 2, 8

#: Predictions end below this share of the largest gain among the other features: one of these would come first.
LEAST_PREDICTED = 0.75


def exact_gains(
    standardisation: Standardisation,
    gradient: Float64Array,
    pivot: Float64Array,
    groups: Sequence[Float64Array],
    smallest: Float64Array,
) -> Float64Array:
    """Return (n_features,): ``g^2 / d`` of each feature, ``g' D^+ g`` for several columns; 0 where nothing remains.

    Parameters
    ----------
    standardisation : Standardisation
    gradient, pivot : (n_columns,) float64
    groups : sequence of (f, d, d) float64
        One array per whitener.
    smallest : (n_columns,) float64
        Pivots up to this count as dependent.
    """
    gains = np.zeros(len(gradient))
    np.divide(gradient * gradient, pivot, out=gains, where=pivot > smallest)
    if not standardisation.whiteners:
        return gains
    per_feature = gains[standardisation.offsets[:-1]]
    for group, pivots in zip(standardisation.whiteners, groups, strict=True):
        values, bases = np.linalg.eigh(pivots)
        rotated = np.einsum("fji,fj->fi", bases, gradient[group.columns])
        least = smallest[group.columns].max(axis=1, keepdims=True)
        inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > least)
        per_feature[group.features] = (rotated**2 * inverse).sum(axis=1)
    return per_feature


def left_beside(
    standardisation: Standardisation, pivot: Float64Array, groups: Sequence[Float64Array], coordinates: Float64Array
) -> tuple[Float64Array, list[Float64Array]]:
    """Return pivots and matrices of features less the squares of ``coordinates`` (n_columns,) along one more direction."""
    parts = [coordinates[group.columns] for group in standardisation.whiteners]
    left = [old - part[:, :, None] * part[:, None, :] for old, part in zip(groups, parts, strict=True)]
    return pivot - coordinates**2, left


class GramColumns:
    """Columns of a Gram matrix that are known, as rows.

    Parameters
    ----------
    rows : (m, n_columns) float64
        The products of the first columns with all columns.

    Attributes
    ----------
    rows : (capacity, n_columns) float64
    at : (n_columns,) int64
        The row of each column; -1 where it is not known.
    """

    def __init__(self, rows: Float64Array) -> None:
        self.rows, self._used = rows, len(rows)
        self.at = np.where(np.arange(rows.shape[1]) < len(rows), np.arange(rows.shape[1]), -1)

    def include(self, columns: IndexArray, products: Float64Array) -> None:
        """Add the products of ``columns`` (c,) with all columns, (c, n_columns)."""
        first, self._used = self._used, self._used + len(columns)
        if self._used > len(self.rows):
            grown = np.empty((2 * self._used, self.rows.shape[1]))
            grown[:first] = self.rows[:first]
            self.rows = grown
        self.rows[first : self._used] = products
        self.at[columns] = np.arange(first, self._used)


class FollowedGains:
    """Gains ``g^2 / d`` of features given a growing set, from one Gram column per addition.

    ``g`` is the gradient and ``d`` the squared remainder of each column; a new direction in which the columns have coordinates
    ``l`` gives ``g -= l z`` and ``d -= l^2``. A feature of several columns keeps a small matrix for ``d``.

    Parameters
    ----------
    standardisation : Standardisation
    gradient, pivot : (n_columns,) float64
        Overwritten.
    groups : sequence of (f, d, d) float64
        One array per whitener; overwritten.
    smallest : (n_columns,) float64
        Pivots up to this count as dependent.

    Attributes
    ----------
    value : float
        The sum of the gains of the features added so far.
    open_ : (n_features,) bool
        Features that ``best`` was last asked about.
    pursuit : bool
        True: scores, ``g^2``, take the place of gains, as in matching pursuit.
    """

    value = 0.0
    pursuit = False

    def __init__(
        self,
        standardisation: Standardisation,
        gradient: Float64Array,
        pivot: Float64Array,
        groups: Sequence[Float64Array],
        smallest: Float64Array,
    ) -> None:
        self.open_ = np.ones(len(standardisation.offsets) - 1, dtype=np.bool_)
        self._standardisation, self._groups, self._smallest = standardisation, groups, smallest
        self._gradient, self._pivot = np.ascontiguousarray(gradient), np.ascontiguousarray(pivot)
        self._directions: Float64Array = np.empty((16, len(gradient)))
        self._size = 0

    @property
    def directions(self) -> Float64Array:
        """(m, n_columns): coordinates of all columns in the directions of the independent columns added."""
        return self._directions[: self._size]

    def gains(self) -> Float64Array:
        """Return (n_features,): the gain of each feature; 0 for dependent ones."""
        if self.pursuit:
            return np.asarray(self._standardisation.scores(self._gradient[:, None])[:, 0])
        return exact_gains(self._standardisation, self._gradient, self._pivot, self._groups, self._smallest)

    def best(self, open_: BoolArray, prices: Float64Array | None = None) -> tuple[int, float]:
        """Return the feature with the largest gain (per price) among ``open_`` (n_features,) bool, and its gain; -1.0 for none."""
        self.open_ = open_
        if native.extension and not self._groups and prices is None and not self.pursuit:
            return native.extension.best(self._gradient, self._pivot, self._smallest, open_)
        gains = np.where(open_, self.gains(), -1.0)
        place = int((gains if prices is None else gains / prices).argmax())
        return place, float(gains[place])

    def follow(self, column: int, gram: Float64Array) -> None:
        """Add ``column``, whose products with all columns are ``gram`` (n_columns,), unless it is dependent."""
        if self._pivot[column] <= self._smallest[column]:
            return
        self._make_room(1)
        direction: Float64Array = self._directions[self._size]
        if native.extension:
            move = native.extension.follow(gram, self._directions, self._size, column, self._gradient, self._pivot)
        else:
            used, root = self._directions[: self._size], math.sqrt(float(self._pivot[column]))
            move = float(self._gradient[column]) / root
            np.subtract(gram, used[:, column] @ used, out=direction)
            direction /= root
            direction[column] = root
            self._gradient -= direction * move
            self._pivot -= direction * direction
        for group, pivots in zip(self._standardisation.whiteners, self._groups, strict=True):
            part = direction[group.columns]
            pivots -= part[:, :, None] * part[:, None, :]
        self.value += move * move
        self._size += 1

    def grow_known(self, gram: GramColumns, open_: BoolArray, count: int, least: float) -> list[tuple[int, float]]:
        """Add the best open column up to ``count`` times, compiled; stop where its products are not in ``gram``."""
        assert native.extension, "the caller has checked"
        self._make_room(count)
        arrays = self._gradient, self._pivot, self._smallest, open_
        taken, self._size, self.value = native.extension.grow(
            gram.rows, gram.at, self._directions, self._size, *arrays, self.value, count, least, self.pursuit
        )
        return taken

    def _make_room(self, count: int) -> None:
        """Provide room for ``count`` more directions."""
        if self._size + count > len(self._directions):
            grown = np.empty((2 * self._size + max(count, 16), len(self._gradient)))
            grown[: self._size] = self._directions[: self._size]
            self._directions = grown

    def among(self, positions: IndexArray) -> FollowedGains:
        """Return an independent copy for the features at ``positions``, ascending."""
        columns = column_index(self._standardisation.offsets, positions)
        groups = []
        for group, pivots in zip(self._standardisation.whiteners, self._groups, strict=True):
            here = pivots[np.isin(group.features, positions, assume_unique=True)]
            groups += [here] if len(here) else []
        few = FollowedGains(
            self._standardisation.subset(positions), self._gradient[columns], self._pivot[columns], groups, self._smallest[columns]
        )
        few._directions, few._size, few.pursuit = self._directions[: self._size, columns], self._size, self.pursuit
        return few


class LinearGains(FollowedGains, GainTracker):
    """Exact gains over columns in memory, no refits; columns of their Gram matrix are computed in blocks.

    A block holds the features that the greedy will probably add next, predicted by running it ahead among the few features with the
    largest gains, whose products with each other cost little. A wrong prediction costs time only; the answer is the same.
    """

    def __init__(
        self, objective: Linear, columns: Columns, extends: Extends | None, earlier: LinearGains | None, pursuit: bool
    ) -> None:
        self._objective, self._columns, self._extends, self.pursuit = objective, columns, extends, pursuit
        self._offsets = columns.standardisation.offsets
        self._added: list[int] = []
        known, places = objective.known, objective.known.places(columns)
        if places is not None:
            gradient, self._gram = known.moves[places], GramColumns(known.gram(places, places))
        else:
            gradient = columns.products(objective.weighted(objective.response)[:, None])[:, 0]
            self._gram = GramColumns(np.empty((0, len(gradient)))) if earlier is None else earlier._gram
        pivot, groups = objective.remainders(columns.standardisation, columns)
        exact = columns.exact or places is not None
        smallest = (DEPENDENT if exact else SMALLEST_PIVOT) * pivot
        if (fixed := objective.along_fixed()) and places is not None:
            pivot = known.blocks(places[:, None], objective.ridge)[:, 0, 0]
            groups = [known.blocks(places[group.columns], objective.ridge) for group in columns.standardisation.whiteners]
        elif fixed:
            for along in columns.products(np.stack(fixed, axis=1)).T:
                pivot, groups = left_beside(columns.standardisation, pivot, groups, along)
        super().__init__(columns.standardisation, gradient, pivot, groups, smallest)

    def expect(self, positions: IndexArray) -> None:
        """Compute the Gram columns of features that will probably be added, at once."""
        coming = positions[self._gram.at[self._offsets[positions]] < 0]
        self._gram.include(column_index(self._offsets, coming), self._products(self._columns, coming))

    def grow(self, open_: BoolArray, count: int, least: float, last: bool = False) -> list[tuple[int, float]]:
        """Add the best open candidate ``count`` times, in compiled calls that end where a Gram column is missing."""
        if self._groups or not native.extension:
            return super().grow(open_, count, least, last)
        taken: list[tuple[int, float]] = []
        while len(taken) < count:
            some = self.grow_known(self._gram, open_, min(count - len(taken), len(self._gram.rows)), least)
            taken += some
            self._added += [place for place, _ in some]
            if not some:
                place, gain = self.best(open_)
                if gain < 0.0 or gain <= least or self._gram.at[place] >= 0:
                    break
                self._compute(place, count - len(taken))
        return taken

    def add(self, position: int) -> None:
        """Add the feature at ``position``, one direction per column that is not dependent."""
        first, last = int(self._offsets[position]), int(self._offsets[position + 1])
        if self._gram.at[first] < 0:
            self._compute(position)
        for column in range(first, last):
            self.follow(column, self._gram.rows[self._gram.at[column]])
        self._added.append(position)

    def _compute(self, position: int, free: int = 0) -> None:
        """Compute the Gram columns of the feature at ``position`` and of those that will probably be added after it.

        ``free``: additions, this one included, that the constraint allows whatever they are.
        """
        self.expect(np.array(self._predicted(position, free)))

    def _predicted(self, position: int, free: int) -> list[int]:
        """Return the features that will probably be added next, in order, beginning with ``position``."""
        if free == 1:
            return [position]
        count = GRAM_BLOCK if self._columns.held else READING_BLOCK
        gains = np.where(self.open_, self.gains(), -1.0)
        gains[position] = np.inf
        width = min(max(int(NEAR_SHARE * len(gains)), FEWEST_NEAR * count), MOST_NEAR * count, len(gains))
        near = np.sort(np.argpartition(-gains, width - 1)[:width])
        near = near[gains[near] > 0.0]
        least = LEAST_PREDICTED * float(np.delete(gains, near).max(initial=0.0))
        few, columns = self.among(near), self._columns.only(near)
        gram = self._products(columns, np.arange(len(near)))
        offsets, open_, coming = columns.standardisation.offsets, np.ones(len(near), dtype=np.bool_), list[int]()
        place = int(np.searchsorted(near, position))
        while True:
            coming.append(int(near[place]))
            open_[place] = False
            if len(coming) == count:
                break
            for column in range(int(offsets[place]), int(offsets[place + 1])):
                few.follow(column, gram[column])
            if free:
                taken = few.grow_known(GramColumns(gram), open_, min(count, free) - 1, least)
                return coming + [int(near[place]) for place, _ in taken]
            place, gain = few.best(open_)
            while gain > least and not self._extended_by(coming, near[place : place + 1])[0]:
                left = np.flatnonzero(open_)
                open_[left] = self._extended_by(coming, near[left])
                place, gain = few.best(open_)
            if not gain > least:
                break
        return coming

    def _extended_by(self, coming: list[int], others: IndexArray) -> BoolArray:
        """Return which of ``others`` may be added to the set and ``coming``."""
        if self._extends is None:
            return np.ones(len(others), dtype=np.bool_)
        return self._extends(np.array(self._added + coming), others)

    def _products(self, columns: Columns, positions: IndexArray) -> Float64Array:
        """Return columns of a Gram matrix, as rows: products of all ``columns`` with the features at ``positions``."""
        offsets, weighted = columns.standardisation.offsets, self._objective.weighted
        out = np.empty((int((offsets[positions + 1] - offsets[positions]).sum()), int(offsets[-1])))
        entries = min(MOST_ENTRIES, columns.budget // 8)  # at most as much memory as for gathered columns
        at_once, done = max(entries // len(self._objective.response), 1), 0
        for first in range(0, len(positions), at_once):
            dense = weighted(weighted(columns.dense(positions[first : first + at_once])))
            out[done : done + dense.shape[1]] = columns.products(dense).T
            done += dense.shape[1]
        return out
