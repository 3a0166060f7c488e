r"""Linear model: :math:`f(S) = R^2` of least squares on standardised columns, optionally with a ridge.

The model keeps the selected columns ``C``, the Cholesky factor of their Gram matrix, ``C'C + ridge = U'U``, and ``z = U^-T C'y``,
so that ``f = |z|^2``. In the orthonormal directions ``Q = C U^-1`` a candidate ``a`` has coordinates ``l = U^-T C'a``; a further
direction changes its gradient by ``l`` times the matching entry of ``z``. So all prefixes of a block of columns follow from the
candidates' products with that block alone: everything else is as small as the selection.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.matrix.standardisation import Standardisation
from fastomp_nvm.objectives.base import Extends, Fit, Model, Objective
from fastomp_nvm.objectives.independent import DEPENDENT, cholesky_of_independent
from fastomp_nvm.objectives.known_columns import KnownColumns
from fastomp_nvm.objectives.linear_candidates import FewLinearCandidates, LinearCandidates, ManyLinearCandidates
from fastomp_nvm.objectives.linear_gains import LinearGains

__all__ = ["Linear"]

# Squares of values beyond this, or below its inverse, leave the range of float64, alone or added up.
_LARGEST = 1e150


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
        spread = float(np.abs(scaled).max(initial=0.0))
        if spread and not 1.0 / _LARGEST < spread < _LARGEST:  # NaN is beyond both
            raise DataError(f"the target varies by {spread:.0e}, whose square float64 cannot hold: scale the target")
        self.norm = float(np.linalg.norm(scaled))
        largest = float(np.abs(response).max(initial=0.0))
        if not self.norm > 1e-12 * max(largest, 1e-300) * np.sqrt(max(total, 1.0)):
            raise DataError("the target is constant: a linear model has nothing to explain; choose another target")
        self.response = scaled / self.norm
        self.known = KnownColumns(self.root_weights, self.response)

    def weighted(self, vectors: Float64Array) -> Float64Array:
        """Scale each observation by the root of its weight."""
        if self.root_weights is None:
            return vectors
        return np.asarray((self.root_weights if vectors.ndim == 1 else self.root_weights[:, None]) * vectors)

    def unit(self, weighted: Float64Array) -> tuple[Float64Array, Float64Array | float]:
        """Return ``weighted`` columns (n_obs, d) at unit length, and the penalty on the squared coefficient of each of these.

        Standardised columns have unit length already; of others, the penalty is the larger the shorter the column was.
        """
        if self.centred:
            return weighted, self.ridge
        squared = (weighted * weighted).sum(axis=0)
        squared = np.where(squared > 0, squared, 1.0)
        return weighted / np.sqrt(squared), self.ridge / squared

    def null(self) -> LinearModel:
        """Return the model of the empty set."""
        return LinearModel(self)

    def fit(self, columns: Float64Array) -> Fit:
        """Fit by Cholesky with one step of refinement, or by a rank-revealing solve where columns are dependent."""
        design = self.weighted(columns)
        moves = design.T @ self.response
        coef = self._solved(design.T @ design, moves, lambda coef: design.T @ (self.response - design @ coef))
        coef = self._of_dependent(design) if coef is None else coef
        remainder = self.response - design @ coef
        return self._told(coef, float(remainder @ remainder))

    def refit(self, columns: Columns) -> Fit:
        """Fit columns whose products with each other, and with the response, are mostly known."""
        known, places = self.known, self.known.places(columns)
        if places is None:
            return super().refit(columns)
        gram, moves = known.gram(places, places), known.moves[places]
        coef = self._solved(gram.copy(), moves, lambda coef: moves - gram @ coef)
        coef = self._of_dependent(known.rows[places].T) if coef is None else coef
        # The response has unit length.
        return self._told(coef, max(1.0 - 2.0 * float(coef @ moves) + float(coef @ gram @ coef), 0.0))

    def _solved(
        self, gram: Float64Array, moves: Float64Array, remainder: Callable[[Float64Array], Float64Array]
    ) -> Float64Array | None:
        """Return the coefficients of columns with Gram matrix ``gram``, which is overwritten; None where they are dependent.

        ``moves`` (d,) are their products with the response, and ``remainder(coef)`` those with what coefficients leave of it.
        """
        size = len(gram)
        if not size:
            return np.zeros(0)
        gram.flat[:: size + 1] += self.ridge
        factor, failed = lapack.dpotrf(gram, lower=0, clean=0)
        if failed or factor.diagonal().min() ** 2 < DEPENDENT * max(gram.max(), 1.0):
            return None
        coef = lapack.dpotrs(factor, moves)[0]
        return np.asarray(coef + lapack.dpotrs(factor, remainder(coef) - self.ridge * coef)[0])

    def _of_dependent(self, design: Float64Array) -> Float64Array:
        """Return the coefficients of least norm of weighted columns (n_obs, d)."""
        size = design.shape[1]
        rows = np.vstack((design, np.sqrt(self.ridge) * np.eye(size))) if self.ridge else design
        target = np.concatenate((self.response, np.zeros(size))) if self.ridge else self.response
        return np.asarray(np.linalg.lstsq(rows, target, rcond=np.sqrt(DEPENDENT) * 1e-3)[0], dtype=np.float64)

    def _told(self, coef: Float64Array, unexplained: float) -> Fit:
        """Return what is told of a fit that leaves a remainder of squared length ``unexplained``."""
        return Fit(coef * self.norm, self.mean, 1.0 - unexplained - self.ridge * float(coef @ coef), 1.0 - unexplained)

    def score(self, eta: Float64Array, weights: Float64Array) -> float:
        """Return R^2 about the mean of these observations (about zero without intercept)."""
        mean = float(weights @ self.given) / float(weights.sum()) if self.centred else 0.0
        spread = float(weights @ (self.given - mean) ** 2)
        with np.errstate(over="ignore", invalid="ignore"):  # observations held out may be absurd, and so are then predictions
            rest = float(weights @ (self.given - eta) ** 2)
        return 1.0 - rest / spread if spread > 0.0 else math.nan

    def summary(self, fit: Fit) -> dict[str, float]:
        """Return nothing beyond the score."""
        return {}

    def gains(self, columns: Columns, extends: Extends | None = None) -> LinearGains:
        """Return a tracker of exact gains over ``columns``."""
        return LinearGains(self, columns, extends)

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
        self._rows = np.empty((0, len(objective.response)))  # the columns, unless they are known
        self._factor = np.zeros((16, 16), order="F")
        self._pending: list[tuple[Float64Array, IndexArray]] = []  # weighted columns as rows, and which of them
        self._places, self._known = np.empty(0, dtype=np.int64), True  # of the columns among the known ones, if all are
        self._pending_value = 0.0

    @property
    def columns(self) -> Float64Array:
        """(n_obs, s) float64: the selected columns that are not dependent, of unit length, observations weighted."""
        if self._known:
            return np.asarray(self.objective.known.rows[self._places].T)
        return self._rows[: len(self.coordinates)].T

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
        coef, known = lapack.dtrtrs(self.factor, self.coordinates)[0], self.objective.known
        if self._known:
            if not self.objective.ridge:
                rest = known.moves[self._places] - known.gram(self._places, self._places) @ coef
                coef = coef + lapack.dpotrs(self.factor, rest)[0]
            return self.objective.weighted(response - known.combination(self._places, coef))
        columns = self.columns
        remainder = response - columns @ coef
        if not self.objective.ridge:
            remainder -= columns @ lapack.dpotrs(self.factor, columns.T @ remainder)[0]
        return self.objective.weighted(remainder)

    @property
    def value(self) -> float:
        """R^2, less the penalty; to the precision of the products while columns wait."""
        return float(self.coordinates @ self.coordinates) + self._pending_value

    def add(self, columns: Float64Array) -> None:
        """Add columns."""
        self._pending.append((self.objective.weighted(columns).T, np.arange(columns.shape[1])))
        self.settle()

    def hand_over(self, rows: Float64Array, places: IndexArray, gain: float) -> None:
        """Add the weighted columns ``rows[places].T``, whose gain is known, to be factored later."""
        self._pending.append((rows, places))
        self._pending_value += gain

    def products_with(self, places: IndexArray) -> Float64Array:
        """Return (s, c) float64: products of ``columns`` with the known columns at ``places``."""
        known = self.objective.known
        return known.gram(self._places, places) if self._known else np.asarray(self.columns.T @ known.rows[places].T)

    def settle(self) -> None:
        """Factor the waiting columns; dependent ones contribute nothing and are left out."""
        if not self._pending:
            return
        known, waiting = self.objective.known, np.concatenate([places for _, places in self._pending])
        size = len(self.coordinates)
        penalties: Float64Array | float = self.objective.ridge
        if self._known and not (self.objective.centred and all(rows is known.rows for rows, _ in self._pending)):
            self._rows, self._known = known.rows[self._places], False
        if self._known:
            schur, products, moves = known.gram(waiting, waiting), known.gram(self._places, waiting), known.moves[waiting]
        else:
            block, penalties = self.objective.unit(np.concatenate([rows[places] for rows, places in self._pending]).T)
            schur, products, moves = block.T @ block, self.columns.T @ block, block.T @ self.objective.response
        self._pending, self._pending_value = [], 0.0
        schur.flat[:: len(schur) + 1] += penalties
        overlaps = products
        if size:
            overlaps = lapack.dtrtrs(self.factor, products, trans=1)[0]
            schur -= overlaps.T @ overlaps
            moves = moves - overlaps.T @ self.coordinates
        factor, kept = cholesky_of_independent(schur, DEPENDENT)
        if not len(kept):
            return
        total = size + len(kept)
        if total > len(self._factor):
            factors, room = self._factor, total + total // 2
            self._factor = np.zeros((room, room), order="F")
            self._factor[:size, :size] = factors[:size, :size]
        if not self._known:
            if total > len(self._rows):
                rows = self._rows
                self._rows = np.empty((total + total // 2, rows.shape[1]))
                self._rows[:size] = rows[:size]
            self._rows[size:total] = block.T[kept]
        self._factor[:size, size:total], self._factor[size:total, size:total] = overlaps[:, kept], factor
        self.coordinates = np.concatenate((self.coordinates, lapack.dtrtrs(factor, moves[kept], trans=1)[0]))
        self._places = np.concatenate((self._places, waiting[kept]))

    def directions_of(self, products: Float64Array) -> Float64Array:
        """Return (c, s) float64: coordinates in the model's directions of columns that have ``products`` (s, c) with its own."""
        return np.asarray(lapack.dtrtrs(self.factor, products, trans=1)[0].T)

    def follow(self, columns: Columns, gradient: Float64Array) -> LinearCandidates:
        """Return candidates of this model."""
        self.settle()
        places = self.objective.known.places(columns)
        if places is None:
            return ManyLinearCandidates(self, columns, gradient)
        return FewLinearCandidates(self, columns, gradient, places)
