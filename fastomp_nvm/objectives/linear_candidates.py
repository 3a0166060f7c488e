"""Candidates of a linear model: scores along a sequence of additions, from the candidates' products with a block of it.

In the model's orthonormal directions a candidate has coordinates ``l``; a further direction changes its gradient by ``l`` times the
response's coordinate ``z``. The columns of a block are candidates themselves, so their coordinates and their products with the
residual are known already.

Where the Gram matrix of all candidates is known, ``native/gram.c`` computes the same column by column.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm import native
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.matrix.standardisation import column_index
from fastomp_nvm.objectives.base import Candidates
from fastomp_nvm.objectives.compiled import Rounds
from fastomp_nvm.objectives.independent import DEPENDENT, DEPENDENT_IN_FLOAT32, cholesky_of_independent

if TYPE_CHECKING:
    from fastomp_nvm.objectives.linear import LinearModel

__all__ = ["FewLinearCandidates", "LinearCandidates", "ManyLinearCandidates"]


class LinearCandidates(Candidates):
    """Tracks candidates' gradients.

    Prefixes need only the part of the candidate-by-block products that the model does not explain.
    """

    def __init__(self, model: LinearModel, columns: Columns, gradient: Float64Array) -> None:
        self.features = columns.features
        self._standardisation = columns.standardisation
        self._model = model
        self._gradient, self.in_model = gradient, np.zeros(len(columns.features), dtype=np.bool_)
        self._tolerance = DEPENDENT if columns.exact else DEPENDENT_IN_FLOAT32
        # Of the last block: column at which each feature ends, coordinates (n_columns, d) of the candidates along it, gradients
        # before and after each column, the response's coordinates, columns that are not dependent.
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
        if lengths is not None:  # dependence is relative to the length of a column
            schur /= lengths[:, None] * lengths
        factor, kept = cholesky_of_independent(schur, self._tolerance)
        inverse = lapack.dtrtri(factor)[0] if len(kept) else factor
        if len(kept) < len(rows):  # dependent columns change nothing
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
        """Move model and candidates to this prefix."""
        end = int(self._ends[prefixes - 1])
        moves = self._moves[:end]
        self._model.hand_over(*self._block(end), float(moves @ moves))
        self._gradient = np.ascontiguousarray(self._steps[:, end])
        kept = self._kept[: int(np.searchsorted(self._kept, end))]
        self._explain(self._directions[:, :end] if len(kept) == end else self._directions[:, kept])

    def keep(self, positions: IndexArray) -> None:
        """Drop all other candidates."""
        rows = column_index(self._standardisation.offsets, positions)
        self._gradient = self._gradient[rows]
        self.features, self.in_model = self.features[positions], self.in_model[positions]
        self._standardisation = self._standardisation.subset(positions)
        self._drop(positions, rows)

    @abstractmethod
    def _products(self, positions: IndexArray, rows: IndexArray) -> tuple[Float64Array, Float64Array | None]:
        """Return the products of the candidates with the columns ``rows`` of the features at ``positions``.

        Products are (n_columns, d), after projecting out the model; the second result is the length of each column, None for
        standardised columns.
        """

    @abstractmethod
    def _block(self, end: int) -> tuple[Float64Array, IndexArray]:
        """Return weighted dense columns as rows, and the indices of the first ``end`` columns of the last block among them."""

    @abstractmethod
    def _explain(self, directions: Float64Array) -> None:
        """Project out directions in which the candidates have coordinates ``directions`` (n_columns, d)."""

    @abstractmethod
    def _drop(self, positions: IndexArray, rows: IndexArray) -> None:
        """Drop all features except those at ``positions``, and all columns except ``rows``."""


class FewLinearCandidates(LinearCandidates):
    """Candidates with their Gram matrix after projecting out the model: no further work of the size of the data.

    ``places`` are the rows of their columns in the cache of known columns.
    """

    def __init__(
        self, model: LinearModel, columns: Columns, gradient: Float64Array, coordinates: Float64Array, places: IndexArray
    ) -> None:
        super().__init__(model, columns, gradient)
        self._known, self._places, self._rows = model.objective.known, places, places[:0]  # the last: columns of the last block
        self._gram = self._known.gram(places, places)
        self._lengths = None if model.objective.centred else np.sqrt(self._gram.diagonal())
        self._tolerance = DEPENDENT
        self._gram -= coordinates @ coordinates.T
        if native.extension:  # compiled code overwrites these
            self._gradient, self._offsets = gradient.copy(), self._standardisation.offsets.copy()

    def run(self, rounds: Rounds) -> tuple[int, int]:
        """Run inner iterations over the Gram matrix."""
        if not native.extension:
            return 0, 0
        arrays = self._gram, self._gradient, self._lengths, self._offsets, self.in_model
        total, left, iterations, columns, gain = native.extension.gram_rounds(
            *arrays, self._model.objective.ridge, self._tolerance, rounds
        )
        offsets, kept = self._standardisation.offsets, rounds.origin[:left]
        self._model.hand_over(self._known.rows, self._places[column_index(offsets, rounds.added[:total])], gain)
        if iterations:
            self._places, self.features = self._places[column_index(offsets, kept)], self.features[kept]
            if self._standardisation.whiteners:  # features of one column need nothing of it but that
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

    Evaluating the prefixes of a block costs one product of the candidates with the block, and nothing else of the size of the data.
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
