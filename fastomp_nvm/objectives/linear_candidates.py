"""Candidates of a linear model: their gradients along a sequence of additions, from products with the block alone.

In the model's orthonormal directions a candidate has coordinates ``l``; a further direction changes its gradient by ``l`` times the
response's coordinate ``z``. The columns of a block are candidates themselves, so what the model has explained of them, and their
products with the residual, are at hand.

Where the Gram matrix of all candidates is at hand, a compiled extension does the same column by column (``_gram.c``).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.matrix.standardisation import column_index
from fastomp_nvm.objectives import compiled
from fastomp_nvm.objectives.base import Candidates
from fastomp_nvm.objectives.compiled import Rounds
from fastomp_nvm.objectives.independent import DEPENDENT, DEPENDENT_IN_FLOAT32, cholesky_of_independent

if TYPE_CHECKING:
    from fastomp_nvm.objectives.linear import LinearModel

__all__ = ["FewLinearCandidates", "LinearCandidates", "ManyLinearCandidates"]


class LinearCandidates(Candidates):
    """Candidates by their gradient; what the model leaves of their products with a block of them is all that prefixes need."""

    def __init__(self, model: LinearModel, columns: Columns, gradient: Float64Array) -> None:
        self.features = columns.features
        self._standardisation = columns.standardisation
        self._model = model
        self._gradient, self.in_model = gradient, np.zeros(len(columns.features), dtype=np.bool_)
        self._tolerance = DEPENDENT if columns.exact else DEPENDENT_IN_FLOAT32
        # Of the last block: where its features end, directions (n_columns, d) of the candidates in it, gradients before and after
        # each, moves, directions that are not dependent.
        self._ends = self._kept = np.empty(0, dtype=np.int64)
        self._directions = self._steps = self._moves = np.empty(0)

    def scores(self) -> Float64Array:
        """Return the squared gradients, summed by feature."""
        return self._standardisation.scores(self._gradient[:, None])[:, 0]

    def prefix_scores(self, positions: IndexArray) -> Float64Array:
        """Return the scores of ``g - cumsum(l z)`` at the end of each prefix."""
        ridge, offsets = self._model.objective.ridge, self._standardisation.offsets
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
        else:
            self._ends = np.cumsum(offsets[positions + 1] - offsets[positions])
        return self._standardisation.scores(steps[:, self._ends])

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
        rows = column_index(self._standardisation.offsets, positions)
        self._gradient = self._gradient[rows]
        self.features, self.in_model = self.features[positions], self.in_model[positions]
        self._standardisation = self._standardisation.subset(positions)
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

    def __init__(
        self, model: LinearModel, columns: Columns, gradient: Float64Array, coordinates: Float64Array, places: IndexArray
    ) -> None:
        super().__init__(model, columns, gradient)
        self._known, self._places, self._rows = model.objective.known, places, places[:0]  # the last: of the last block
        self._gram = self._known.gram(places, places)
        self._lengths = None if model.objective.centred else np.sqrt(self._gram.diagonal())
        self._tolerance = DEPENDENT
        self._gram -= coordinates @ coordinates.T
        if compiled.available:  # which writes to all of them
            self._gradient, self._offsets = gradient.copy(), self._standardisation.offsets.copy()

    def run(self, rounds: Rounds) -> tuple[int, int]:
        """Run inner iterations over the Gram matrix."""
        if not compiled.available:
            return 0, 0
        arrays = self._gram, self._gradient, self._lengths, self._offsets, self.in_model
        total, left, iterations, columns, gain = compiled.native.gram_rounds(
            *arrays, self._model.objective.ridge, self._tolerance, rounds
        )
        offsets, kept = self._standardisation.offsets, rounds.origin[:left]
        self._model.hand_over(self._known.rows, self._places[column_index(offsets, rounds.added[:total])], gain)
        if iterations:
            self._places, self.features = self._places[column_index(offsets, kept)], self.features[kept]
            self._standardisation = self._standardisation.subset(kept)
            self._gram = self._gram.reshape(-1)[: columns * columns].reshape(columns, columns)
            self._gradient, self._offsets, self.in_model = self._gradient[:columns], self._offsets[: left + 1], self.in_model[:left]
            self._lengths = None if self._lengths is None else self._lengths[:columns]
        return total, iterations

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
        self._offsets = self._standardisation.offsets.copy()


class ManyLinearCandidates(LinearCandidates):
    """Candidates with their coordinates (n_columns, s) in the model's directions.

    The columns of a block are candidates themselves, so their overlaps with the model and their products with the residual are at
    hand: evaluating prefixes costs one product of the candidates with the block and nothing else of the size of the data.
    """

    def __init__(self, model: LinearModel, columns: Columns, gradient: Float64Array, coordinates: Float64Array) -> None:
        super().__init__(model, columns, gradient)
        self._columns, self._last, self._coordinates = columns, np.empty((0, 0)), coordinates

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
