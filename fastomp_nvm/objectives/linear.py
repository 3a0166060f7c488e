r"""Linear model: :math:`f(S) = R^2` of least squares on standardised columns, optionally with a ridge.

The model keeps the selected columns ``C``, the Cholesky factor of their Gram matrix, ``C'C + ridge = U'U``, and ``z = U^-T C'y``,
so that ``f = |z|^2``. In the orthonormal directions ``Q = C U^-1`` a candidate ``a`` has coordinates ``l = U^-T C'a``; a further
direction changes its gradient by ``l`` times the matching entry of ``z``. So all prefixes of a block of columns follow from the
candidates' products with that block alone: everything else is as small as the selection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.columns import Columns
from fastomp_nvm.design import Standardisation, column_index
from fastomp_nvm.errors import DataError
from fastomp_nvm.objectives.base import Candidates, Fit, GainTracker, Model, Objective

__all__ = ["Linear"]

#: A unit column whose squared remainder is below this lies in the span of the others and contributes nothing.
DEPENDENT = 1e-10

#: The same where products are accumulated in float32 lanes, which carry about eight digits.
DEPENDENT_IN_FLOAT32 = 1e-6

#: Squared remainder below which an exact gain is not computed: products in float32 do not carry it.
SMALLEST_PIVOT = 1e-6

#: Columns of the Gram matrix computed at once when the greedy meets one it does not have.
GRAM_BLOCK = 16


class Linear(Objective):
    """R^2 of a response.

    Parameters
    ----------
    response : (n_obs,) float64
    weights : (n_obs,) float64, optional
        Observation weights; zero leaves an observation out.
    ridge : float
        Penalty on the squared coefficients of the standardised columns, for a response of unit norm.
    centred : bool
        False: no intercept, the response as it is.
    """

    def __init__(
        self, response: Float64Array, weights: Float64Array | None = None, ridge: float = 0.0, centred: bool = True
    ) -> None:
        self.ridge = ridge
        self.centred = centred
        self.root_weights = None if weights is None else np.sqrt(weights)
        total = float(len(response)) if weights is None else float(weights.sum())
        mean = float(response.mean() if weights is None else (weights @ response) / total) if centred else 0.0
        scaled = self.weighted(response - mean)
        self.mean = mean
        self.given = response
        self.norm = float(np.linalg.norm(scaled))
        largest = float(np.abs(response).max(initial=0.0))
        if not self.norm > 1e-12 * max(largest, 1e-300) * np.sqrt(max(total, 1.0)):
            raise DataError("the target is constant: a linear model has nothing to explain; choose another target")
        self.response = scaled / self.norm

    def weighted(self, vectors: Float64Array) -> Float64Array:
        """Scale each observation by the root of its weight."""
        if self.root_weights is None:
            return vectors
        return np.asarray((self.root_weights if vectors.ndim == 1 else self.root_weights[:, None]) * vectors)

    def unit(self, columns: Float64Array) -> Float64Array:
        """Return ``columns`` (n_obs, d) weighted and of unit length; standardised ones have it already."""
        weighted = self.weighted(columns)
        if self.centred:
            return weighted
        lengths = np.linalg.norm(weighted, axis=0)
        return np.asarray(weighted / np.where(lengths > 0, lengths, 1.0))

    def penalties(self, columns: Float64Array) -> Float64Array | float:
        """Return the penalty on the squared coefficient of each of ``unit(columns)``: more, the shorter the column is."""
        if self.centred or not self.ridge:
            return self.ridge
        squared = (self.weighted(columns) ** 2).sum(axis=0)
        return np.asarray(self.ridge / np.where(squared > 0, squared, 1.0))

    def null(self) -> LinearModel:
        """Return the model of the empty set."""
        return LinearModel(self)

    def fit(self, columns: Float64Array) -> Fit:
        """Fit by Cholesky with one step of refinement, or by a rank-revealing solve where columns are dependent."""
        design, size = self.weighted(columns), columns.shape[1]
        gram = design.T @ design
        gram[np.diag_indices(size)] += self.ridge
        factor, failed = lapack.dpotrf(gram, lower=0, clean=1) if size else (gram, 0)
        if size and (failed or np.diag(factor).min() ** 2 < DEPENDENT * max(gram.max(), 1.0)):
            rows = np.vstack((design, np.sqrt(self.ridge) * np.eye(size))) if self.ridge else design
            target = np.concatenate((self.response, np.zeros(size))) if self.ridge else self.response
            coef = np.asarray(np.linalg.lstsq(rows, target, rcond=np.sqrt(DEPENDENT) * 1e-3)[0], dtype=np.float64)
        else:
            coef = np.zeros(size)
            for _ in range(2 if size else 0):
                remainder = self.response - design @ coef
                coef = coef + lapack.dpotrs(factor, design.T @ remainder - self.ridge * coef)[0]
        remainder = self.response - design @ coef
        unexplained = float(remainder @ remainder)
        return Fit(coef * self.norm, self.mean, 1.0 - unexplained - self.ridge * float(coef @ coef), 1.0 - unexplained)

    def score(self, eta: Float64Array, weights: Float64Array) -> float:
        """Return R^2 about the mean of these observations (about zero without intercept)."""
        mean = float(weights @ self.given) / float(weights.sum()) if self.centred else 0.0
        spread = float(weights @ (self.given - mean) ** 2)
        return 1.0 - float(weights @ (self.given - eta) ** 2) / spread if spread > 0.0 else math.nan

    def summary(self, fit: Fit) -> dict[str, float]:
        """Return nothing beyond the score."""
        return {}

    def gains(self, columns: Columns, likely: IndexArray) -> LinearGains:
        """Return a tracker of exact gains over ``columns``."""
        return LinearGains(self, columns, likely)

    def remainders(self, standardisation: Standardisation, columns: Columns | None) -> tuple[Float64Array, list[Float64Array]]:
        """Return what no selection has explained yet of the features of ``standardisation``, the ridge included.

        Parameters
        ----------
        standardisation : Standardisation
        columns : Columns, optional
            Of the same features; looked at only where columns are taken as they are.

        Returns
        -------
        (n_columns,) float64
            Squared length of each column.
        list of (f, d, d) float64
            Gram matrices of the features of several columns, one array per whitener.
        """
        if self.centred or columns is None:  # columns have unit length and features are whitened; dependent directions are zero
            kept = [group.matrices.any(axis=2) for group in standardisation.whiteners]
            groups = [np.einsum("fi,ij->fij", part + self.ridge, np.eye(part.shape[1])) for part in kept]
            return np.full(int(standardisation.offsets[-1]), 1.0 + self.ridge), groups
        blocks = [self.weighted(columns.dense(np.array([position]))) for position in range(standardisation.n_features)]
        grams = [block.T @ block + self.ridge * np.eye(block.shape[1]) for block in blocks]
        wide = [np.stack([grams[feature] for feature in group.features.tolist()]) for group in standardisation.whiteners]
        return np.concatenate([np.diag(gram) for gram in grams]), wide


class LinearModel(Model):
    """Selected columns, the Cholesky factor of their Gram matrix, and the response's coordinates in their directions.

    Columns handed over by candidates wait in ``_pending``; they are factored, in float64 and all at once, when next needed.
    """

    def __init__(self, objective: Linear) -> None:
        self.objective = objective
        self.coordinates = np.empty(0)
        self._columns = np.empty((len(objective.response), 16), order="F")
        self._factor = np.zeros((16, 16), order="F")
        self._pending: list[Float64Array] = []
        self._pending_value = 0.0

    @property
    def columns(self) -> Float64Array:
        """(n_obs, s) float64: the selected columns that are not dependent, of unit length, observations weighted."""
        return self._columns[:, : len(self.coordinates)]

    @property
    def factor(self) -> Float64Array:
        """(s, s) float64: upper Cholesky factor of their Gram matrix."""
        return self._factor[: len(self.coordinates), : len(self.coordinates)]

    @property
    def residual(self) -> Float64Array:
        """Sweep vector: the residual (times the root weights), refined once against rounding in the factor."""
        self.settle()
        response = self.objective.response
        if not self.coordinates.size:
            return self.objective.weighted(response)
        coef = lapack.dtrtrs(self.factor, self.coordinates)[0]
        remainder = response - self.columns @ coef
        if not self.objective.ridge:
            remainder -= self.columns @ lapack.dpotrs(self.factor, self.columns.T @ remainder)[0]
        return self.objective.weighted(remainder)

    @property
    def value(self) -> float:
        """R^2, less the penalty; to the precision of the products while columns wait."""
        return float(self.coordinates @ self.coordinates) + self._pending_value

    def add(self, columns: Float64Array) -> None:
        """Add columns."""
        self._pending.append(columns)
        self.settle()

    def hand_over(self, columns: Float64Array, gain: float) -> None:
        """Add columns whose gain is known, to be factored later."""
        self._pending.append(columns)
        self._pending_value += gain

    def settle(self) -> None:
        """Factor the waiting columns; dependent ones contribute nothing and are left out."""
        if not self._pending:
            return
        raw = np.hstack(self._pending)
        block = self.objective.unit(raw)
        self._pending, self._pending_value = [], 0.0
        schur = block.T @ block
        schur[np.diag_indices_from(schur)] += self.objective.penalties(raw)
        moves = block.T @ self.objective.response
        overlaps = np.empty((0, len(schur)))
        if self.coordinates.size:
            overlaps = lapack.dtrtrs(self.factor, self.columns.T @ block, trans=1)[0]
            schur -= overlaps.T @ overlaps
            moves -= overlaps.T @ self.coordinates
        factor, kept = cholesky_of_independent(schur, DEPENDENT)
        if not len(kept):
            return
        size = len(self.coordinates)
        total = size + len(kept)
        if total > self._columns.shape[1]:
            columns, factors = self._columns, self._factor
            self._columns = np.empty((len(columns), 2 * total), order="F")
            self._factor = np.zeros((2 * total, 2 * total), order="F")
            self._columns[:, :size], self._factor[:size, :size] = columns[:, :size], factors[:size, :size]
        self._columns[:, size:total] = block[:, kept]
        self._factor[:size, size:total], self._factor[size:total, size:total] = overlaps[:, kept], factor
        self.coordinates = np.concatenate((self.coordinates, lapack.dtrtrs(factor, moves[kept], trans=1)[0]))

    def follow(self, columns: Columns, gradient: Float64Array) -> LinearCandidates:
        """Return candidates of this model."""
        self.settle()
        return LinearCandidates(self, columns, gradient)


def cholesky_of_independent(gram: Float64Array, tolerance: float) -> tuple[Float64Array, IndexArray]:
    """Return U and ``kept`` with ``gram[kept, kept] = U'U``; columns that earlier ones explain are left out.

    Parameters
    ----------
    gram : (d, d) float64
        Gram matrix of columns of about unit length, or what a projection left of it.
    tolerance : float
        Squared remainder below which a column counts as explained.
    """
    factor, failed = lapack.dpotrf(gram, lower=0, clean=1)
    if not failed and np.diag(factor).min(initial=1.0) ** 2 > tolerance:
        return factor, np.arange(len(gram))
    # The careful path, one column at a time.
    factor = np.zeros((0, 0))
    kept: list[int] = []
    for column in range(len(gram)):
        above = lapack.dtrtrs(factor, gram[:, column][kept], trans=1)[0] if kept else np.empty(0)
        pivot = float(gram[column, column] - above @ above)
        if pivot > tolerance:
            kept.append(column)
            grown = np.zeros((len(kept), len(kept)))
            grown[:-1, :-1], grown[:-1, -1], grown[-1, -1] = factor, above, math.sqrt(pivot)
            factor = grown
    return factor, np.array(kept, dtype=np.int64)


class LinearCandidates(Candidates):
    """Candidates by their gradient and their coordinates (n_columns, s) in the model's directions.

    The columns of a block are candidates themselves, so their overlaps with the model and their products with the residual are at
    hand: evaluating prefixes costs one product of the candidates with the block and nothing else of the size of the data.
    """

    def __init__(self, model: LinearModel, columns: Columns, gradient: Float64Array) -> None:
        self.columns = columns
        self._model = model
        self._gradient = gradient
        self._coordinates = np.empty((len(gradient), 0))
        if model.coordinates.size:
            products = columns.products(model.objective.weighted(model.columns))
            self._coordinates = lapack.dtrtrs(model.factor, products.T, trans=1)[0].T
        self._tolerance = DEPENDENT if columns.exact else DEPENDENT_IN_FLOAT32
        # Of the last block: its columns, directions (n_columns, d) of the candidates in it, gradients after each, ends, moves.
        self._block = self._directions = self._steps = self._moves = np.empty(0)
        self._ends = self._kept = np.empty(0, dtype=np.int64)

    def gradients(self, positions: IndexArray) -> Float64Array:
        """Return ``g - cumsum(l z)`` at the end of each prefix."""
        objective, offsets = self._model.objective, self.columns.standardisation.offsets
        rows = column_index(offsets, positions)
        block = self.columns.dense(positions)
        directions = self.columns.products(objective.weighted(objective.unit(block)))
        overlaps, moves, lengths = self._coordinates[rows].T, self._gradient[rows], None
        if not objective.centred:  # the block was scaled to unit length, the candidates were not
            lengths = np.linalg.norm(objective.weighted(block), axis=0)
            overlaps, moves = overlaps / lengths, moves / lengths
        if overlaps.size:
            directions -= self._coordinates @ overlaps
        schur = directions[rows] if lengths is None else directions[rows] / lengths[:, None]
        schur[np.diag_indices_from(schur)] += objective.penalties(block)
        factor, kept = cholesky_of_independent(schur, self._tolerance)
        inverse = lapack.dtrtri(factor)[0] if len(kept) else factor
        if len(kept) < len(rows):  # dependent columns move nothing
            padded = np.zeros((len(rows), len(rows)))
            padded[np.ix_(kept, kept)] = inverse
            inverse = padded
        directions = directions @ inverse
        moves = inverse.T @ moves
        steps = directions * moves
        np.subtract(self._gradient, steps[:, 0], out=steps[:, 0])
        for column in range(1, steps.shape[1]):
            np.subtract(steps[:, column - 1], steps[:, column], out=steps[:, column])
        self._ends = np.cumsum(offsets[positions + 1] - offsets[positions])
        self._block, self._directions, self._steps, self._moves, self._kept = block, directions, steps, moves, kept
        return steps if len(self._ends) == steps.shape[1] else steps[:, self._ends - 1]

    def adopt(self, prefixes: int) -> None:
        """Move model and candidates to that prefix."""
        end = int(self._ends[prefixes - 1])
        kept = self._kept[: int(np.searchsorted(self._kept, end))]
        self._model.hand_over(self._block[:, :end], float(self._moves[:end] @ self._moves[:end]))
        self._gradient = np.ascontiguousarray(self._steps[:, end - 1])
        self._coordinates = np.hstack((self._coordinates, self._directions[:, kept]))

    def keep(self, positions: IndexArray) -> None:
        """Drop the others."""
        rows = column_index(self.columns.standardisation.offsets, positions)
        self._gradient, self._coordinates = self._gradient[rows], self._coordinates[rows]
        self.columns = self.columns.keep(positions)


def exact_gains(
    standardisation: Standardisation, gradient: Float64Array, pivot: Float64Array, groups: Sequence[Float64Array]
) -> Float64Array:
    """Return (n_features,): ``g^2 / d`` of each feature, ``g' D^+ g`` for several columns; 0 where nothing remains.

    Parameters
    ----------
    standardisation : Standardisation
    gradient, pivot : (n_columns,) float64
    groups : sequence of (f, d, d) float64
        One array per whitener.
    """
    gains = np.zeros(len(gradient))
    np.divide(gradient**2, pivot, out=gains, where=pivot > SMALLEST_PIVOT)
    if not standardisation.whiteners:
        return gains
    per_feature = gains[standardisation.offsets[:-1]]
    for group, pivots in zip(standardisation.whiteners, groups, strict=True):
        values, bases = np.linalg.eigh(pivots)
        rotated = np.einsum("fji,fj->fi", bases, gradient[group.columns])
        inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > SMALLEST_PIVOT)
        per_feature[group.features] = (rotated**2 * inverse).sum(axis=1)
    return per_feature


class LinearGains(GainTracker):
    """Exact gains ``g^2 / d`` over columns in memory, no refits.

    ``g`` is the gradient and ``d`` the squared remainder of each column; a new direction in which the columns have coordinates
    ``l`` gives ``g -= l z`` and ``d -= l^2``. The coordinates follow from columns of the Gram matrix, computed in blocks. A feature
    of several columns keeps a small matrix for ``d``.
    """

    def __init__(self, objective: Linear, columns: Columns, likely: IndexArray) -> None:
        self._objective, self._columns = objective, columns
        self._offsets = columns.standardisation.offsets
        self._gradient = columns.products(objective.weighted(objective.response)[:, None])[:, 0]
        self._pivot, self._groups = objective.remainders(columns.standardisation, columns)
        self._coordinates = np.empty((len(self._gradient), 64), order="F")
        self._size, self._value = 0, 0.0
        self._blocks: dict[int, Float64Array] = {}  # position -> its columns of the Gram matrix
        self._compute(likely)

    @property
    def value(self) -> float:
        """F of the set so far."""
        return self._value

    def gains(self) -> Float64Array:
        """Return the exact gain of each feature; 0 for dependent ones."""
        return exact_gains(self._columns.standardisation, self._gradient, self._pivot, self._groups)

    def add(self, position: int) -> None:
        """Add the feature at ``position``, one direction per column that is not dependent."""
        if position not in self._blocks:
            best = np.argsort(-self.gains(), kind="stable")[: 2 * GRAM_BLOCK]
            others = [other for other in best.tolist() if other not in self._blocks and other != position]
            self._compute(np.array([position, *others[: GRAM_BLOCK - 1]]))
        first = int(self._offsets[position])
        for column, gram in enumerate(self._blocks[position].T, first):
            pivot = float(self._pivot[column])
            if pivot <= SMALLEST_PIVOT:
                continue
            root = math.sqrt(pivot)
            used = self._coordinates[:, : self._size]
            direction = gram - used @ used[column]
            direction /= root
            direction[column] = root
            move = float(self._gradient[column]) / root
            self._gradient -= direction * move
            self._pivot -= direction * direction
            for group, pivots in zip(self._columns.standardisation.whiteners, self._groups, strict=True):
                part = direction[group.columns]
                pivots -= part[:, :, None] * part[:, None, :]
            self._value += move * move
            self._append(direction)

    def _append(self, direction: Float64Array) -> None:
        """Keep the coordinates of a new direction."""
        if self._size == self._coordinates.shape[1]:
            grown = np.empty((len(self._coordinates), 2 * self._size), order="F")
            grown[:, : self._size] = self._coordinates
            self._coordinates = grown
        self._coordinates[:, self._size] = direction
        self._size += 1

    def _compute(self, positions: IndexArray) -> None:
        """Compute the Gram columns of the features at ``positions``: one product of all columns with theirs."""
        if not positions.size:
            return
        dense = self._objective.weighted(self._objective.weighted(self._columns.dense(positions)))
        widths = self._offsets[positions + 1] - self._offsets[positions]
        parts = np.split(self._columns.products(dense), np.cumsum(widths)[:-1], axis=1)
        self._blocks.update(zip(positions.tolist(), map(np.ascontiguousarray, parts), strict=True))
