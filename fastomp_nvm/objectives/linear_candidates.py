"""Candidates of a linear model: their gradients along a sequence of additions, from products with the block alone.

In the model's orthonormal directions a candidate has coordinates ``l``; a further direction changes its gradient by ``l`` times the
response's coordinate ``z``. The columns of a block are candidates themselves, so what the model has explained of them, and their
products with the residual, are at hand.

Where the Gram matrix of all candidates is at hand, a compiled extension does the same column by column (``_gram.c``).
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.matrix.standardisation import Standardisation, column_index
from fastomp_nvm.objectives.base import CandidateBlocks, Walk
from fastomp_nvm.objectives.independent import DEPENDENT, DEPENDENT_IN_FLOAT32, cholesky_of_independent

if TYPE_CHECKING:
    from fastomp_nvm.objectives.linear import LinearModel

try:
    native: Any = importlib.import_module("fastomp_nvm.objectives._gram")
except ImportError:  # installed on a machine without a compiler
    native = None

__all__ = ["FewLinearCandidates", "LinearCandidates", "ManyLinearCandidates", "implementation"]


def implementation() -> str:
    """Return what names the last bits of rounds over a Gram matrix: ``c-2`` or ``python``."""
    return "python" if native is None else "c-2"


class LinearCandidates(CandidateBlocks):
    """Candidates by their gradient; what the model leaves of their products with a block of them is all that prefixes need."""

    def __init__(self, model: LinearModel, columns: Columns, gradient: Float64Array) -> None:
        self.features = columns.features
        self._standardisation = columns.standardisation
        self._model = model
        self._gradient, self._added = gradient, np.zeros(len(columns.features), dtype=np.bool_)
        self._tolerance = DEPENDENT if columns.exact else DEPENDENT_IN_FLOAT32
        # Of the last block: where its features end, directions (n_columns, d) of the candidates in it, gradients before and after
        # each, moves, directions that are not dependent.
        self._ends = self._kept = np.empty(0, dtype=np.int64)
        self._directions = self._steps = self._moves = np.empty(0)

    @property
    def standardisation(self) -> Standardisation:
        """Of these features, by position."""
        return self._standardisation

    def gradients(self, positions: IndexArray) -> Float64Array:
        """Return ``g - cumsum(l z)`` at the end of each prefix."""
        ridge, offsets = self._model.objective.ridge, self.standardisation.offsets
        rows = column_index(offsets, positions)
        products, lengths = self._products(positions, rows)
        schur = products[rows]
        if ridge:
            schur.flat[:: len(rows) + 1] += ridge
        if lengths is not None:  # columns count as dependent by what is left of their length
            schur /= lengths[:, None] * lengths
        factor, kept = cholesky_of_independent(schur, self._tolerance)
        inverse = lapack.dtrtri(factor)[0] if len(kept) else factor
        if len(kept) < len(rows):  # dependent columns move nothing
            padded = np.zeros((len(rows), len(rows)))
            padded[np.ix_(kept, kept)] = inverse
            inverse = padded
        if lengths is not None:
            inverse = inverse / lengths[:, None]
        self._directions, self._moves, self._kept = products @ inverse, self._gradient[rows] @ inverse, kept
        steps = np.empty((len(products), len(rows) + 1))
        steps[:, 0] = self._gradient
        np.multiply(self._directions, -self._moves, out=steps[:, 1:])
        self._steps = np.add.accumulate(steps, axis=1, out=steps)
        if len(positions) == len(rows):  # one column each
            self._ends = np.arange(1, len(rows) + 1)
            return steps[:, 1:]
        self._ends = np.cumsum(offsets[positions + 1] - offsets[positions])
        return steps[:, self._ends]

    def adopt(self, prefixes: int) -> None:
        """Move model and candidates to that prefix."""
        end = int(self._ends[prefixes - 1])
        moves = self._moves[:end]
        self._model.hand_over(*self._block(end), float(moves @ moves))
        self._gradient = np.ascontiguousarray(self._steps[:, end])
        kept = self._kept[: int(np.searchsorted(self._kept, end))]
        self._explain(self._directions[:, :end] if len(kept) == end else self._directions[:, kept])

    def keep(self, positions: IndexArray) -> None:
        """Drop the others."""
        rows = column_index(self.standardisation.offsets, positions)
        self._gradient = self._gradient[rows]
        self.features, self._added = self.features[positions], self._added[positions]
        self._standardisation = self.standardisation.subset(positions)
        self._drop(positions, rows)

    @abstractmethod
    def _products(self, positions: IndexArray, rows: IndexArray) -> tuple[Float64Array, Float64Array | None]:
        """Return the products with the columns ``rows`` (of the features at ``positions``) and, not centred, the lengths of these.

        Products are (n_columns, d), as far as the model does not explain them.
        """

    @abstractmethod
    def _block(self, end: int) -> tuple[Float64Array, IndexArray]:
        """Return dense columns as rows, weighted, and which of them are the first ``end`` of the last block."""

    @abstractmethod
    def _explain(self, directions: Float64Array) -> None:
        """Note that the model explains these directions (n_columns, d) from now on."""

    @abstractmethod
    def _drop(self, positions: IndexArray, rows: IndexArray) -> None:
        """Drop all features but those at ``positions``, all columns but ``rows``."""


class FewLinearCandidates(LinearCandidates):
    """Candidates with what the model leaves of their Gram matrix: after that, nothing of the size of the data is touched.

    ``places`` are their columns among those that are known.
    """

    def __init__(self, model: LinearModel, columns: Columns, gradient: Float64Array, places: IndexArray) -> None:
        super().__init__(model, columns, gradient)
        self._known, self._places, self._rows = model.objective.known, places, places[:0]  # the last: of the last block
        self._gram = self._known.gram(places, places)
        self._lengths = None if model.objective.centred else np.sqrt(self._gram.diagonal())
        self._tolerance = DEPENDENT
        if model.coordinates.size:
            self._explain(model.directions_of(model.products_with(places)))
        if native is not None:  # which writes to all of them
            self._gradient, self._offsets = gradient.copy(), self.standardisation.offsets.copy()

    def advance(
        self, positions: IndexArray, blocked: IndexArray | None, threshold: float, enough: float, skip_weak: bool = False
    ) -> tuple[int, bool]:
        """Add one after the other, in C where that is built."""
        if native is None:
            return super().advance(positions, blocked, threshold, enough, skip_weak)
        kept = np.empty(len(self.features), dtype=np.int64)
        rule = (threshold, enough, self._model.objective.ridge, self._tolerance)
        added, left, columns, gain = native.advance(
            self._gram, self._gradient, self._lengths, self._offsets, self._added, positions, blocked, kept, rule, skip_weak
        )
        self._handed_over(positions[:added], gain)
        if left < 0:
            return added, False
        self._left_are(kept[:left], columns)
        return added, True

    def walk(self, name: tuple[int, int, int], room: int, threshold: float, share: float) -> Walk | None:
        """Go through all inner iterations, in C where that is built."""
        if native is None:
            return None
        features, origin = self.features, np.arange(len(self.features))
        added, sizes, lengths = np.empty((3, min(room, len(features))), dtype=np.int64)
        rule = (threshold, share, self._model.objective.ridge, self._tolerance)
        mine = (self._gram, self._gradient, self._lengths, self._offsets, self._added)
        total, left, columns, gain, iterations = native.walk(*mine, features, origin, added, sizes, lengths, name, rule)
        self._handed_over(added[:total], gain)
        self._left_are(origin[:left], columns)
        return Walk(features[added[:total]], sizes[:iterations], lengths[:iterations])

    def _handed_over(self, positions: IndexArray, gain: float) -> None:
        """Have the model take over the features at ``positions``, which compiled code has added."""
        rows = column_index(self.standardisation.offsets, positions)
        self._model.hand_over(self._known.rows, self._places[rows], gain)

    def _left_are(self, positions: IndexArray, columns: int) -> None:
        """Go on with the features at ``positions``, of so many columns, as compiled code has."""
        self._places = self._places[column_index(self.standardisation.offsets, positions)]
        self.features, left = self.features[positions], len(positions)
        if self.standardisation.whiteners:  # of single columns nothing is needed but that they are
            self._standardisation = self.standardisation.subset(positions)
        self._gram = self._gram.reshape(-1)[: columns * columns].reshape(columns, columns)
        self._gradient, self._offsets, self._added = self._gradient[:columns], self._offsets[: left + 1], self._added[:left]
        self._lengths = None if self._lengths is None else self._lengths[:columns]

    def _products(self, positions: IndexArray, rows: IndexArray) -> tuple[Float64Array, Float64Array | None]:
        self._rows = rows
        return self._gram.take(rows, axis=1), None if self._lengths is None else self._lengths[rows]

    def _block(self, end: int) -> tuple[Float64Array, IndexArray]:
        return self._known.rows, self._places[self._rows[:end]]

    def _explain(self, directions: Float64Array) -> None:
        self._gram -= directions @ directions.T

    def _drop(self, positions: IndexArray, rows: IndexArray) -> None:
        self._gram, self._places = self._gram.take(rows, axis=0).take(rows, axis=1), self._places[rows]
        self._lengths = None if self._lengths is None else self._lengths[rows]
        self._offsets = self.standardisation.offsets.copy()


class ManyLinearCandidates(LinearCandidates):
    """Candidates with their coordinates (n_columns, s) in the model's directions.

    The columns of a block are candidates themselves, so their overlaps with the model and their products with the residual are at
    hand: evaluating prefixes costs one product of the candidates with the block and nothing else of the size of the data.
    """

    def __init__(self, model: LinearModel, columns: Columns, gradient: Float64Array) -> None:
        super().__init__(model, columns, gradient)
        self._columns, self._last = columns, np.empty((0, 0))
        self._coordinates = np.empty((len(gradient), 0))
        if model.coordinates.size:
            self._coordinates = model.directions_of(columns.products(model.objective.weighted(model.columns)).T)

    def _products(self, positions: IndexArray, rows: IndexArray) -> tuple[Float64Array, Float64Array | None]:
        objective = self._model.objective
        self._last = weighted = objective.weighted(self._columns.dense(positions))
        products = self._columns.products(objective.weighted(weighted))
        if self._coordinates.size:
            products -= self._coordinates @ self._coordinates[rows].T
        return products, None if objective.centred else np.linalg.norm(weighted, axis=0)

    def _block(self, end: int) -> tuple[Float64Array, IndexArray]:
        return self._last.T, np.arange(end)

    def _explain(self, directions: Float64Array) -> None:
        self._coordinates = np.hstack((self._coordinates, directions))

    def _drop(self, positions: IndexArray, rows: IndexArray) -> None:
        self._coordinates, self._columns = self._coordinates[rows], self._columns.keep(positions)
