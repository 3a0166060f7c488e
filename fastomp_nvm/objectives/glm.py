r"""Generalised linear models with canonical link: penalised maximum likelihood.

:math:`l(\beta) = \sum_i w_i (y_i \eta_i - b(\eta_i)) - \frac{ridge}{2} |\beta|^2`, where :math:`b' = \mu` is the mean and
:math:`b'' = v` the variance. The intercept and fixed directions are fitted and never penalised; the null model is these alone. An
offset is a part of :math:`\eta` that is given: fits move the predictor from where it starts. The gradient
with respect to an unselected column is ``A_std @ (w * (y - mu))``: the penalty is zero there.

Each family is a small class giving ``moments`` (mean and variance) and ``partition`` (``b``). Where a predictor moves by ``t``, the
variances of a family change by no more than the factor ``e^t``: fits rely on it (:mod:`fastomp_nvm.objectives.newton`).
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.matrix.fixed import Fixed
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.objectives import compiled, newton
from fastomp_nvm.objectives.base import Extends, Fit, Model, Objective
from fastomp_nvm.objectives.compiled import FitArrays
from fastomp_nvm.objectives.glm_candidates import GLMCandidates
from fastomp_nvm.objectives.glm_gains import GLMGains
from fastomp_nvm.objectives.independent import DEPENDENT, cholesky_of_independent
from fastomp_nvm.objectives.newton import EXACT, PASSING, Coefficients, maximise

__all__ = ["GLM", "GLMModel"]


#: Log-likelihood per observation that kept columns leave at least.
PERFECT = 1e-7


class GLM(Objective):
    """A canonical-link GLM bound to a response.

    Parameters
    ----------
    response : (n_obs,) float64
    weights : (n_obs,) float64, optional
    ridge : float
        Penalty on the coefficients of the standardised (unit-norm) columns. Greater than zero keeps separable data finite.
    centred : bool
        False: columns are neither centred nor scaled; then there is no intercept.
    fixed : Fixed, optional
        Directions that every fit contains.
    offset : (n_obs,) float64, optional
        Part of the linear predictor.

    Attributes
    ----------
    native : str or None
        Name of the family in compiled code; None where it has none.
    free : int
        Coefficients without penalty, which come first.
    """

    native: ClassVar[str | None] = None

    def __init__(
        self,
        response: Float64Array,
        weights: Float64Array | None = None,
        ridge: float = 1e-4,
        centred: bool = True,
        fixed: Fixed | None = None,
        offset: Float64Array | None = None,
    ) -> None:
        self.check(response)
        # Contiguous float64, as compiled fits need them.
        self.response = np.ascontiguousarray(response, dtype=np.float64)
        self.weights = np.ones(len(response)) if weights is None else np.ascontiguousarray(weights, dtype=np.float64)
        self.total = float(self.weights.sum())
        self.ridge = ridge
        self.centred, self.fixed = centred, fixed
        self.offset = offset
        directions = np.empty((0, len(response))) if fixed is None else fixed.basis
        self._free_rows = np.concatenate((np.ones((int(centred), len(response))), directions))
        self.free = len(self._free_rows)
        free = np.zeros(self.free)
        given = np.zeros(len(response)) if offset is None else offset
        if centred:
            free[0] = self.null_intercept() - float(self.weights @ given) / self.total
        eta = given + (free[0] if centred else 0.0)
        residual = self.weights * (self.response - self.moments(eta)[0])
        perfect = False
        try:
            self.null_coefficients = self.newton(np.empty((len(response), 0)), Coefficients(free, np.zeros(0), eta, residual))
            self.null_likelihood = self.likelihood(self.null_coefficients.eta, np.zeros(0))
            perfect = self.null_likelihood >= self.best_likelihood() - PERFECT * self.total
        except np.linalg.LinAlgError:
            if fixed is None:
                raise
            perfect = True
        if perfect and fixed is not None:
            raise DataError("the kept columns explain the target without error, which leaves nothing to select for: keep fewer")
        self._remembered: dict[bytes, Coefficients] = {}

    @abstractmethod
    def check(self, response: Float64Array) -> None:
        """Raise ``DataError`` when ``response`` is not one of this family."""

    @abstractmethod
    def moments(self, eta: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return mean and variance at linear predictor ``eta`` (n_obs,)."""

    def mean(self, eta: Float64Array) -> Float64Array:
        """Return the mean at ``eta`` (n_obs,)."""
        return self.moments(eta)[0]

    @abstractmethod
    def partition(self, eta: Float64Array) -> Float64Array:
        """Return ``b`` at ``eta`` (n_obs,), whose derivative is the mean."""

    def log_likelihood(self, eta: Float64Array) -> Float64Array:
        """Return each observation's log-likelihood at ``eta`` (n_obs,)."""
        return self.response * eta - self.partition(eta)

    def best_likelihood(self) -> float:
        """Return an upper bound on the total log-likelihood: 0, because the probability of an observation is at most 1."""
        return 0.0

    @abstractmethod
    def null_intercept(self) -> float:
        """Return the intercept of the empty model."""

    def likelihood(self, eta: Float64Array, coef: Float64Array) -> float:
        """Return the penalised total log-likelihood."""
        return float(self.weights @ self.log_likelihood(eta)) - self._penalised(coef)

    def _penalised(self, coef: Float64Array) -> float:
        """Return the penalty on ``coef``."""
        return 0.5 * self.ridge * float(coef @ coef)

    def penalty(self, size: int) -> Float64Array:
        """Return the penalty of each of ``size`` coefficients; the ``free`` ones come first and have none."""
        penalty = np.full(size, self.ridge)
        penalty[: self.free] = 0.0
        return penalty

    def design(self, columns: Float64Array) -> Float64Array:
        """Return (d, n_obs) in C order: ``columns`` (n_obs, d) as rows, below a row of ones and the fixed directions."""
        rows = np.empty((self.free + columns.shape[1], len(columns)))
        rows[: self.free], rows[self.free :] = self._free_rows, columns.T
        return rows

    def newton(self, columns: Float64Array, start: Coefficients) -> Coefficients:
        """Return the exact fit of ``columns`` (n_obs, d), started from ``start`` padded with zeros."""
        return maximise(self, self.design(columns), start, EXACT)

    def null(self) -> GLMModel:
        """Return the model of the intercept and the fixed directions."""
        return GLMModel(self)

    def fit(self, columns: Float64Array) -> Fit:
        """Fit from scratch."""
        return self._summed_up(self.newton(columns, self.null_coefficients))

    def refit(self, columns: Columns, exact: bool = True) -> Fit:
        """Fit, starting from the remembered model of these features, if any."""
        start = self._remembered.get(columns.features.tobytes())
        if start is not None and (start.left <= EXACT or not exact):
            return self._summed_up(start)
        return self._summed_up(self.newton(columns.dense(np.arange(len(columns.features))), start or self.null_coefficients))

    def path(self, columns: Columns, fit: Fit, every: bool) -> tuple[Float64Array, IndexArray]:
        """Return mean log-likelihood and rank of every prefix, fitted one from the other, or of all features alone.

        The rank of all features alone is the number of their columns where these would have to be read again.
        """
        offsets, model, scores = columns.standardisation.offsets, self.null(), [fit.score]
        if every:
            scores.clear()
            for place in range(len(columns.features)):
                model.add(columns.dense(np.array([place])))
                scores.append(self.score(model.at.eta, self.weights))
        elif not columns.held:
            return np.array(scores), offsets[-1:]
        rows = np.empty((int(offsets[-1]), len(self.response)))
        columns.fill(rows, np.sqrt(self.weights))
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        rows /= np.where(lengths > 0, lengths, 1.0)[:, None]
        ranks = np.searchsorted(cholesky_of_independent(rows @ rows.T, DEPENDENT)[1], offsets[1:])
        return np.array(scores), ranks[-len(scores) :]

    def remember(self, features: IndexArray, model: Model) -> None:
        """Remember the fit of ``features``."""
        if isinstance(model, GLMModel):
            self._remembered[features.tobytes()] = model.at

    def _summed_up(self, at: Coefficients) -> Fit:
        """Return value, score, McFadden's pseudo R^2 and the null model's score of a fit."""
        total = float(self.weights @ self.log_likelihood(at.eta))
        value = total - self._penalised(at.coef) - self.null_likelihood
        score, null = total / self.total, self.null_likelihood / self.total
        first = int(self.centred)
        summary = {"pseudo_r2": 1.0 - score / null if null else 0.0, "null_score": null}
        return Fit(at.coef, float(at.free[0]) if first else 0.0, value, score, summary, fixed=at.free[first:])

    def score(self, eta: Float64Array, weights: Float64Array) -> float:
        """Return the mean log-likelihood."""
        return float(weights @ self.log_likelihood(eta)) / float(weights.sum())

    def gains(self, columns: Columns, extends: Extends | None = None) -> GLMGains:
        """Return a tracker of second-order gains over ``columns``, starting from the empty set."""
        return GLMGains(self, columns)


class GLMModel(Model):
    """Selected columns, as rows of ``design`` below those without penalty, and their coefficients."""

    def __init__(self, objective: GLM) -> None:
        self.objective = objective
        self._at: Coefficients | None
        self._factored, self._left = False, np.inf
        self._rows = objective.design(np.empty((len(objective.response), 0)))
        self.move(len(self._rows), objective.null_coefficients)

    @property
    def design(self) -> Float64Array:
        """(d, n_obs) in C order."""
        return self._rows[: self._size]

    def extended(self, width: int) -> Float64Array:
        """Return the design with ``width`` further rows, to be filled; they are valid until the next call."""
        size = self._size + width
        if size > len(self._rows):
            grown = np.empty((size + size // 2, self._rows.shape[1]))
            grown[: self._size] = self.design
            self._rows = grown
        return self._rows[:size]

    def move(self, size: int, at: Coefficients) -> None:
        """Take over a fit of the first ``size`` rows of the design last extended."""
        self._size, self._at = size, at
        self._arrays: FitArrays | None = None

    @property
    def at(self) -> Coefficients:
        """The current fit."""
        if self._at is None:
            assert self._arrays is not None
            size, first = self._size, self.objective.free
            _, _, _, _, _, beta, eta, residual, square = self._arrays
            factor = square[: size * size].reshape(size, size).T.copy(order="F") if self._factored else None
            self._at = Coefficients(beta[:first].copy(), beta[first:size].copy(), eta.copy(), residual.copy(), factor, self._left)
        return self._at

    def arrays(self, width: int) -> tuple[FitArrays, bool]:
        """Return the fit with room for ``width`` further coefficients, for compiled code, and whether it has a factor."""
        design, objective = self.extended(width), self.objective
        rows = len(design)
        if self._arrays is None or rows > len(self._arrays.beta):
            at, room = self.at, 2 * rows
            beta, factor = np.zeros(room), np.empty(room * room)
            beta[: self._size] = np.concatenate((at.free, at.coef))
            if at.factor is not None:
                factor[: self._size * self._size] = at.factor.T.reshape(-1)
            self._factored, self._left = at.factor is not None, at.left
            name, with_ = str(objective.native), newton.settings(objective, PASSING)
            self._arrays = FitArrays(
                name, with_, design, objective.response, objective.weights, beta, at.eta.copy(), at.residual.copy(), factor
            )
        some = self._arrays._replace(design=design, beta=self._arrays.beta[:rows], factor=self._arrays.factor[: rows * rows])
        return some, self._factored

    def grown(self, added: int, status: int, left: float = PASSING) -> None:
        """Take over the fit that compiled code made in ``arrays``, with ``added`` coefficients more."""
        if status == compiled.NOT_DEFINITE:
            raise np.linalg.LinAlgError(newton.NOT_DEFINITE)
        if added:
            self._size, self._factored, self._left, self._at = self._size + added, status == compiled.FACTORED, left, None

    @property
    def residual(self) -> Float64Array:
        """Sweep vector ``w (y - mu)``."""
        return self.at.residual

    @property
    def value(self) -> float:
        """Penalised log-likelihood above the null model's."""
        return self.objective.likelihood(self.at.eta, self.at.coef) - self.objective.null_likelihood

    def add(self, columns: Float64Array) -> None:
        """Add columns and refit, warm-started."""
        self.extended(columns.shape[1])[self._size :] = columns.T
        self.grow(columns.shape[1])

    def branch(self) -> Self:
        """Return a model of the same features that grows by itself; further rows are written into the same memory."""
        branch = copy(self)
        branch.move(self._size, self.at)
        return branch

    def grow(self, width: int, left: float = PASSING, factor: Float64Array | None = None) -> None:
        """Refit with the last ``width`` rows of the extended design, to a decrement of ``left``.

        ``factor`` is the upper factor of a curvature of all rows, where known.
        """
        design, at = self.extended(width), self.at
        self.move(len(design), maximise(self.objective, design, at if factor is None else replace(at, factor=factor), left))

    def follow(self, columns: Columns, gradient: Float64Array) -> GLMCandidates:
        """Return candidates of this model."""
        return GLMCandidates(self, columns, gradient)
