r"""Linear model: :math:`f(S) = R^2` of least squares on standardised columns, optionally with a ridge.

The model keeps the selected columns ``C``, the Cholesky factor of their Gram matrix, ``C'C + ridge = U'U``, and ``z = U^-T C'y``,
so that ``f = |z|^2``. In the orthonormal directions ``Q = C U^-1`` a candidate ``a`` has coordinates ``l = U^-T C'a``; a further
direction changes its gradient by ``l`` times the matching entry of ``z``. So all prefixes of a block of columns follow from the
candidates' products with that block alone; all other arrays are as small as the selection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from typing import NamedTuple, Self

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.matrix.fixed import Fixed
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.matrix.standardisation import Standardisation
from fastomp_nvm.objectives.base import Extends, Fit, Model, Objective
from fastomp_nvm.objectives.independent import DEPENDENT, cholesky_of_independent
from fastomp_nvm.objectives.known_columns import KnownColumns
from fastomp_nvm.objectives.linear_candidates import FewLinearCandidates, LinearCandidates, ManyLinearCandidates
from fastomp_nvm.objectives.linear_gains import LinearGains

__all__ = ["Linear"]

# Squares of values above this, or below its inverse, overflow or underflow float64, alone or summed.
_LARGEST = 1e150


class _Factored(NamedTuple):
    """Some columns and the response.

    Attributes
    ----------
    factor : (m, m) float64
        Upper Cholesky factor of the penalised Gram matrix of the independent columns, scaled to unit length.
    kept : (m,) int64
        Which columns are independent of earlier ones.
    lengths : (m,) float64
        Of these.
    moves : (d,) float64
        Products of all columns with the response.
    """

    factor: Float64Array
    kept: IndexArray
    lengths: Float64Array
    moves: Float64Array


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
    fixed : Fixed, optional
        Directions that every model has: R^2 is the share that features explain of what these leave of the response. Columns come
        without their part along them.
    offset : (n_obs,) float64, optional
        Subtracted from the response.
    """

    projects = True

    def __init__(
        self,
        response: Float64Array,
        weights: Float64Array | None = None,
        ridge: float = 0.0,
        centred: bool = True,
        fixed: Fixed | None = None,
        offset: Float64Array | None = None,
    ) -> None:
        self.ridge = ridge
        self.centred = centred
        self.fixed, self.offset = fixed, None  # what is left of the response is explained
        if offset is not None:
            response = response - offset
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
        self.moves = np.empty(0)  # coefficients of the fixed directions
        if fixed is not None:
            self.moves, rest = np.zeros(len(fixed.basis)), response - mean
            for _ in range(2):  # cancellation leaves a part in the span
                moves = fixed.dual @ rest
                self.moves, rest = self.moves + moves, rest - moves @ fixed.basis
            scaled, whole = self.weighted(rest), self.norm
            self.norm = float(np.linalg.norm(scaled))
            if not self.norm > 1e-10 * whole:
                raise DataError("the kept columns explain the target without error, which leaves nothing to select for: keep fewer")
        self.response = scaled / self.norm
        self.known = KnownColumns(self.root_weights, self.response)
        self._refits: dict[bytes, tuple[Fit, _Factored]] = {}  # by the features, in order

    def weighted(self, vectors: Float64Array) -> Float64Array:
        """Scale each observation by the root of its weight."""
        if self.root_weights is None:
            return vectors
        return np.asarray((self.root_weights if vectors.ndim == 1 else self.root_weights[:, None]) * vectors)

    def swept(self, vector: Float64Array) -> Float64Array:
        """Return the sweep vector of ``vector`` (n_obs,), a combination of weighted columns and the response."""
        return self.weighted(vector)

    def unit(self, weighted: Float64Array) -> tuple[Float64Array, Float64Array | float]:
        """Return ``weighted`` columns (n_obs, d) scaled to unit length, and the penalty on the squared coefficient of each.

        Standardised columns have unit length already; for others the penalty is divided by the squared length.
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
        """Fit by Cholesky with one step of refinement; a column that is dependent on earlier ones gets the coefficient 0."""
        return self._fit_design(self.weighted(columns))[0]

    def refit(self, columns: Columns, exact: bool = True) -> Fit:
        """Fit columns, from products that are mostly known; a set compared before is not fitted again."""
        return self._refitted(columns)[0]

    def path(self, columns: Columns, fit: Fit, every: bool) -> tuple[Float64Array, IndexArray]:
        """Return R^2 and rank of every prefix: the Cholesky factor of a prefix is a corner of that of all columns."""
        factor, kept, lengths, moves = self._refitted(columns)[1]
        offsets = columns.standardisation.offsets
        ranks = ends = np.searchsorted(kept, offsets[1:])  # independent columns in each prefix
        coordinates = lapack.dtrtrs(factor, moves[kept] / lengths, trans=1)[0] if len(kept) else np.zeros(0)
        scores = np.append(0.0, np.cumsum(coordinates * coordinates))[ends]
        if self.ridge:  # the coordinates give R^2 less the penalty
            coefs = (lapack.dtrtrs(factor[:end, :end], coordinates[:end])[0] / lengths[:end] for end in ends)
            scores += [self.ridge * float(coef @ coef) for coef in coefs]
            places = self.known.places(columns)
            if places is None:
                design = self.weighted(columns.dense(np.arange(len(columns.features))))
                gram = design.T @ design
            else:
                gram = self.known.gram(places, places)
            ranks = np.searchsorted(self._factor(gram, moves, 0.0).kept, offsets[1:])  # a penalty makes any columns independent
        return np.asarray(scores), ranks

    def deviance(self, score: float, n_obs: int, total: float) -> float:
        """Return that of a Gaussian response whose variance is estimated with the model."""
        return n_obs * (math.log(2.0 * math.pi * (1.0 - score) * self.norm**2 / total) + 1.0)

    def _refitted(self, columns: Columns) -> tuple[Fit, _Factored]:
        """Fit columns, unless that was done before; return the factor too."""
        key = columns.features.tobytes()
        if key not in self._refits:
            known, places = self.known, self.known.places(columns)
            if places is None:
                self._refits[key] = self._fit_design(self.weighted(columns.dense(np.arange(len(columns.features)))))
            else:
                gram, moves = known.gram(places, places), known.moves[places]
                factored = self._factor(gram, moves, self.ridge)
                coef = self._solved(factored, lambda coef: moves - gram @ coef)
                # The response has unit length.
                unexplained = max(1.0 - 2.0 * float(coef @ moves) + float(coef @ gram @ coef), 0.0)
                self._refits[key] = self._fitted(factored, coef, unexplained), factored
        return self._refits[key]

    def _fit_design(self, design: Float64Array) -> tuple[Fit, _Factored]:
        """Fit weighted columns (n_obs, d)."""
        factored = self._factor(design.T @ design, design.T @ self.response, self.ridge)
        coef = self._solved(factored, lambda coef: design.T @ (self.response - design @ coef))
        remainder = self.response - design @ coef
        return self._fitted(factored, coef, float(remainder @ remainder)), factored

    def _fitted(self, factored: _Factored, coef: Float64Array, unexplained: float) -> Fit:
        """Return the fit of coefficients that leave this share of the response unexplained."""
        whole = len(factored.kept) == len(coef) and not self.ridge
        remainder = float(factored.factor.diagonal().min(initial=1.0)) ** 2 if whole else 0.0
        value = 1.0 - unexplained - self.ridge * float(coef @ coef)
        return Fit(coef * self.norm, self.mean, value, 1.0 - unexplained, remainder=remainder, fixed=self.moves)

    def _factor(self, gram: Float64Array, moves: Float64Array, ridge: float) -> _Factored:
        """Factor the penalised Gram matrix of columns scaled to unit length; ``moves`` (d,) are their products with the response.

        A column is dependent by the rule of :class:`LinearModel`: its remainder beside earlier ones, as a share of its own length.
        """
        penalised = gram.copy()
        penalised.flat[:: len(gram) + 1] += ridge
        lengths = np.ones(len(gram))
        if not self.centred:
            squared = gram.diagonal()
            lengths = np.sqrt(np.where(squared > 0, squared, 1.0))
            penalised /= lengths[:, None] * lengths
        factor, kept = cholesky_of_independent(penalised, DEPENDENT)
        return _Factored(factor, kept, lengths[kept], moves)

    def _solved(self, factored: _Factored, rest: Callable[[Float64Array], Float64Array]) -> Float64Array:
        """Return the coefficients of columns, refined once; 0 for dependent ones.

        ``rest`` returns the products (d,) of the columns with what coefficients (d,) leave of the response.
        """
        factor, kept, lengths, moves = factored
        coef = np.zeros(len(moves))
        if len(kept):
            coef[kept] = lapack.dpotrs(factor, moves[kept] / lengths)[0] / lengths
            coef[kept] += lapack.dpotrs(factor, (rest(coef) - self.ridge * coef)[kept] / lengths)[0] / lengths
        return coef

    def score(self, eta: Float64Array, weights: Float64Array) -> float:
        """Return R^2 about the mean of these observations, about zero without intercept, about the model of fixed directions."""
        if self.fixed is not None:
            spread = float(weights @ (self.given - self.mean - self.moves @ self.fixed.basis) ** 2)
        else:
            mean = float(weights @ self.given) / float(weights.sum()) if self.centred else 0.0
            spread = float(weights @ (self.given - mean) ** 2)
        with np.errstate(over="ignore", invalid="ignore"):  # predictions for outlying held-out observations may overflow
            rest = float(weights @ (self.given - eta) ** 2)
        return 1.0 - rest / spread if spread > 0.0 else math.nan

    def gains(
        self,
        columns: Columns,
        extends: Extends | None = None,
        earlier: LinearGains | None = None,
        *,
        pursuit: bool = False,
    ) -> LinearGains:
        """Return a tracker of exact gains over ``columns``, or of their scores for matching ``pursuit``.

        ``earlier`` is a tracker of the same columns, whose columns of their Gram matrix are used again.
        """
        return LinearGains(self, columns, extends, earlier, pursuit)

    def along_fixed(self) -> list[Float64Array]:
        """Return the sweep vectors of the fixed directions: the squared products with them are missing from ``remainders``."""
        return [] if self.fixed is None else list(self.fixed.dual)

    def remainders(self, standardisation: Standardisation, columns: Columns | None) -> tuple[Float64Array, list[Float64Array]]:
        """Return the squared lengths and Gram matrices of whole features before any selection, the ridge included.

        Parameters
        ----------
        standardisation : Standardisation
        columns : Columns, optional
            Of the same features; used only where columns are not standardised.

        Returns
        -------
        (n_columns,) float64
            Squared length of each column.
        list of (f, d, d) float64
            Gram matrices of the features of several columns, one array per whitener.
        """
        if self.centred or columns is None:  # columns have unit length and features are whitened; dependent directions are zero
            groups = []
            for group in standardisation.whiteners:
                kept = group.matrices.any(axis=2)
                groups.append(np.einsum("fi,ij->fij", kept + self.ridge, np.eye(kept.shape[1])))
            return np.full(int(standardisation.offsets[-1]), 1.0 + self.ridge), groups
        blocks = [self.weighted(columns.dense(np.array([position]))) for position in range(standardisation.n_features)]
        grams = [block.T @ block + self.ridge * np.eye(block.shape[1]) for block in blocks]
        wide = [np.stack([grams[feature] for feature in group.features.tolist()]) for group in standardisation.whiteners]
        return np.concatenate([np.diag(gram) for gram in grams]), wide


class LinearModel(Model):
    """Selected columns, the Cholesky factor of their Gram matrix, and the response's coordinates in their directions.

    Columns handed over by candidates are pending; they are factored, in float64 and all at once, when next needed.

    Attributes
    ----------
    value : float
        R^2 less the penalty; while columns are pending, to the precision of the products.
    coordinates : (s,) float64
        Of the response.
    factor : (s, s) float64
        Upper Cholesky factor of the Gram matrix of ``columns``.
    """

    value = 0.0

    def __init__(self, objective: Linear) -> None:
        self.objective = objective
        self.coordinates = np.empty(0)
        self._rows = np.empty((0, len(objective.response)))  # the columns, unless all are known
        self._room = np.zeros((16, 16), order="F")
        self.factor: Float64Array = self._room[:0, :0]
        self._pending: list[Float64Array] = []  # weighted columns as rows
        self._pending_places: list[IndexArray] = []  # rows of each of these
        self._pending_value = 0.0
        self._places, self._known = np.empty(0, dtype=np.int64), True  # of the columns among the known ones, if all are known

    @property
    def columns(self) -> Float64Array:
        """(n_obs, s) float64: the selected columns that are not dependent, of unit length, observations weighted."""
        if self._known:
            return np.asarray(self.objective.known.rows[self._places].T)
        return self._rows[: len(self.coordinates)].T

    @property
    def residual(self) -> Float64Array:
        """Sweep vector: the residual times the root weights, refined once against rounding errors of the factor."""
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

    def add(self, columns: Float64Array) -> None:
        """Add columns."""
        self.hand_over(self.objective.weighted(columns).T, np.arange(columns.shape[1]), 0.0)
        self.settle()

    def branch(self) -> Self:
        """Return a model of the same features that grows by itself; further rows are written into the same memory."""
        self.settle()
        branch = copy(self)
        branch._pending, branch._pending_places = [], []
        return branch

    def hand_over(self, rows: Float64Array, places: IndexArray, gain: float) -> None:
        """Add the weighted columns ``rows[places].T``, whose gain is known, without factoring them yet."""
        if self._known and not (self.objective.centred and rows is self.objective.known.rows):
            self._rows, self._known = self.objective.known.rows[self._places], False
        self._pending.append(rows)
        self._pending_places.append(places)
        self._pending_value += gain
        self.value = float(self.coordinates @ self.coordinates) + self._pending_value

    def settle(self) -> None:
        """Factor the pending columns; dependent ones contribute nothing and are left out."""
        if not self._pending:
            return
        known, pending = self.objective.known, np.concatenate(self._pending_places)
        size = len(self.coordinates)
        penalties: Float64Array | float = self.objective.ridge
        if self._known:
            schur, products, moves = known.gram(pending, pending), known.gram(self._places, pending), known.moves[pending]
        else:
            chosen = [rows[places] for rows, places in zip(self._pending, self._pending_places, strict=True)]
            block, penalties = self.objective.unit(np.concatenate(chosen).T)
            schur, products, moves = block.T @ block, self.columns.T @ block, block.T @ self.objective.response
        self._pending, self._pending_places, self._pending_value = [], [], 0.0
        schur.flat[:: len(schur) + 1] += penalties
        overlaps = products
        if size:
            overlaps = lapack.dtrtrs(self.factor, products, trans=1)[0]
            schur -= overlaps.T @ overlaps
            moves = moves - overlaps.T @ self.coordinates
        factor, kept = cholesky_of_independent(schur, DEPENDENT)
        self.value = float(self.coordinates @ self.coordinates)
        if not len(kept):
            return
        total = size + len(kept)
        if total > len(self._room):
            room = np.zeros((total + total // 2, total + total // 2), order="F")
            room[:size, :size] = self.factor
            self._room = room
        if not self._known:
            if total > len(self._rows):
                rows = self._rows
                self._rows = np.empty((total + total // 2, rows.shape[1]))
                self._rows[:size] = rows[:size]
            self._rows[size:total] = block.T[kept]
        self._room[:size, size:total], self._room[size:total, size:total] = overlaps[:, kept], factor
        self.factor = self._room[:total, :total]
        self.coordinates = np.concatenate((self.coordinates, lapack.dtrtrs(factor, moves[kept], trans=1)[0]))
        self.value = float(self.coordinates @ self.coordinates)
        self._places = np.concatenate((self._places, pending[kept]))

    def follow(self, columns: Columns, gradient: Float64Array) -> LinearCandidates:
        """Return candidates of this model."""
        self.settle()
        objective, known, places = self.objective, self.objective.known, self.objective.known.places(columns)
        coordinates = np.empty((len(gradient), 0))  # of the candidates, in the model's directions
        if self.coordinates.size:
            if places is None:
                products = columns.products(objective.weighted(self.columns)).T
            elif self._known:
                products = known.gram(self._places, places)
            else:
                products = self.columns.T @ known.rows[places].T
            coordinates = lapack.dtrtrs(self.factor, products, trans=1)[0].T
        if places is None:
            return ManyLinearCandidates(self, columns, gradient, coordinates)
        return FewLinearCandidates(self, columns, gradient, coordinates, places)
