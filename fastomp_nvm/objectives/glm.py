r"""Generalised linear models with canonical link: penalised maximum likelihood by damped Newton steps.

:math:`l(\beta) = \sum_i w_i (y_i \eta_i - b(\eta_i)) - \frac{ridge}{2} |\beta|^2`, where :math:`b' = \mu` is the mean and
:math:`b'' = v` the variance. The intercept is fitted and never penalised; the null model is the intercept alone. The gradient
with respect to an unselected column is ``A_std @ (w * (y - mu))``: the penalty is zero there.

Each family is a small class giving ``mean``, ``variance`` and ``log_likelihood``. Prefix models are fitted one after the other,
each started from the one before.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.columns import Columns
from fastomp_nvm.objectives.base import Candidates, Fit, GainTracker, Model, Objective

__all__ = ["GLM", "GLMGains"]

#: Newton stops when the decrement (twice the gain it still promises) falls below this fraction of the log-likelihood's scale.
DECREMENT = 1e-14

#: Newton steps allowed; damped steps on concave functions need a dozen, separable data a few dozen.
MAX_STEPS = 200

#: Features whose gains are computed together.
GAIN_CHUNK = 1024

#: Curvature below this is not divided by in the greedy's gain: the column is all but dependent.
SMALLEST_CURVATURE = 1e-6


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
    """

    def __init__(
        self, response: Float64Array, weights: Float64Array | None = None, ridge: float = 1e-4, centred: bool = True
    ) -> None:
        self.check(response)
        self.response = response
        self.weights = np.ones(len(response)) if weights is None else weights
        self.total = float(self.weights.sum())
        self.ridge = ridge
        self.centred = centred
        start = Coefficients(self.null_intercept() if centred else 0.0, np.zeros(0))
        self.null_coefficients = self.newton(np.empty((len(response), 0)), start) if centred else start
        self.null_likelihood = self.likelihood(np.full(len(response), self.null_coefficients.intercept), np.zeros(0))
        # log-likelihood the response itself would reach, the scale of convergence
        self.scale = max(abs(self.null_likelihood), 1.0)

    @abstractmethod
    def check(self, response: Float64Array) -> None:
        """Raise ``DataError`` when ``response`` is not one of this family."""

    @abstractmethod
    def mean(self, eta: Float64Array) -> Float64Array:
        """Return the mean at linear predictor ``eta`` (n_obs,)."""

    @abstractmethod
    def variance(self, eta: Float64Array) -> Float64Array:
        """Return the variance at ``eta`` (n_obs,)."""

    @abstractmethod
    def log_likelihood(self, eta: Float64Array) -> Float64Array:
        """Return each observation's log-likelihood at ``eta`` (n_obs,)."""

    @abstractmethod
    def null_intercept(self) -> float:
        """Return the intercept of the empty model."""

    def likelihood(self, eta: Float64Array, coef: Float64Array) -> float:
        """Return the penalised total log-likelihood."""
        return float(self.weights @ self.log_likelihood(eta)) - 0.5 * self.ridge * float(coef @ coef)

    def newton(self, columns: Float64Array, start: Coefficients) -> Coefficients:
        """Maximise the penalised likelihood over ``columns`` (n_obs, d), from ``start`` padded with zeros."""
        size = columns.shape[1]
        first = int(self.centred)
        design = np.column_stack((np.ones(len(columns)), columns)) if self.centred else columns
        beta = np.zeros(size + first)
        if self.centred:
            beta[0] = start.intercept
        beta[first : first + len(start.coef)] = start.coef
        if not len(beta):
            return Coefficients(0.0, beta)
        penalty = np.full(len(beta), self.ridge)
        penalty[:first] = 0.0
        eta = design @ beta
        value = self.likelihood(eta, beta[first:])
        scale = abs(value) + 1.0
        for _ in range(MAX_STEPS):
            gradient = design.T @ (self.weights * (self.response - self.mean(eta))) - penalty * beta
            scaled = design * np.sqrt(self.weights * self.variance(eta))[:, None]
            curvature = scaled.T @ scaled
            curvature.flat[:: len(beta) + 1] += penalty + 1e-12 * (1.0 + np.trace(curvature) / len(beta))
            factor, failed = lapack.dpotrf(curvature)
            if failed:
                raise np.linalg.LinAlgError("the curvature of the likelihood is not positive definite")
            step = lapack.dpotrs(factor, gradient)[0]
            if float(gradient @ step) <= DECREMENT * scale:
                beta = beta + step  # convergence is quadratic by now: this last step squares the error
                break
            move, length = design @ step, 1.0
            while True:  # halve until the likelihood grows: l is concave, so a short enough step always does
                trial = self.likelihood(eta + length * move, beta[first:] + length * step[first:])
                if trial > value or length < 1e-10:
                    break
                length *= 0.5
            if trial <= value:
                break
            beta, value = beta + length * step, trial
            eta = design @ beta
        return Coefficients(float(beta[0]) if self.centred else 0.0, beta[first:])

    def predictor(self, columns: Float64Array, at: Coefficients) -> Float64Array:
        """Return the linear predictor (n_obs,)."""
        return columns @ at.coef + at.intercept if len(at.coef) else np.full(len(self.response), at.intercept)

    def residual(self, eta: Float64Array) -> Float64Array:
        """Return the weighted residual, summing to zero when there is an intercept."""
        raw = self.weights * (self.response - self.mean(eta))
        # The fit makes the sum vanish up to its tolerance; take the rest out where it cannot matter.
        return raw - self.weights * (raw.sum() / self.total) if self.centred else raw

    def null(self) -> GLMModel:
        """Return the intercept-only model."""
        return GLMModel(self)

    def fit(self, columns: Float64Array) -> Fit:
        """Fit from scratch."""
        at = self.newton(columns, self.null_coefficients)
        eta = self.predictor(columns, at)
        value = self.likelihood(eta, at.coef) - self.null_likelihood
        return Fit(at.coef, at.intercept, value, float(self.weights @ self.log_likelihood(eta)) / self.total)

    def score(self, eta: Float64Array, weights: Float64Array) -> float:
        """Return the mean log-likelihood."""
        return float(weights @ self.log_likelihood(eta)) / float(weights.sum())

    def summary(self, fit: Fit) -> dict[str, float]:
        """Return McFadden's pseudo R^2 and the null model's mean log-likelihood."""
        null = self.null_likelihood / self.total
        return {"pseudo_r2": 1.0 - fit.score / null if null else 0.0, "null_score": null}

    def gains(self, columns: Columns, likely: IndexArray) -> GLMGains:
        """Return a tracker of second-order gains over ``columns``, starting from the empty set."""
        return GLMGains(self, columns)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Intercept and coefficients (d,) of standardised columns."""

    intercept: float
    coef: Float64Array


class GLMModel(Model):
    """Selected columns and their coefficients."""

    def __init__(self, objective: GLM) -> None:
        self.objective = objective
        self.columns = np.empty((len(objective.response), 0))
        self.at = objective.null_coefficients
        self.eta = objective.predictor(self.columns, self.at)

    @property
    def residual(self) -> Float64Array:
        """Sweep vector ``w (y - mu)``."""
        return self.objective.residual(self.eta)

    @property
    def value(self) -> float:
        """Penalised log-likelihood above the null model's."""
        return self.objective.likelihood(self.eta, self.at.coef) - self.objective.null_likelihood

    def add(self, columns: Float64Array) -> None:
        """Add columns and refit, warm-started."""
        self.columns = np.hstack((self.columns, columns))
        self.at = self.objective.newton(self.columns, self.at)
        self.eta = self.objective.predictor(self.columns, self.at)

    def follow(self, columns: Columns, gradient: Float64Array) -> GLMCandidates:
        """Return candidates of this model."""
        return GLMCandidates(self, columns)


class GLMCandidates(Candidates):
    """Candidates whose gradient at each prefix is their product with that prefix model's residual."""

    def __init__(self, model: GLMModel, columns: Columns) -> None:
        self.features, self.standardisation = columns.features, columns.standardisation
        self._columns = columns
        self._model = model
        self._joined = np.empty((0, 0))
        self._fits: list[tuple[int, Coefficients]] = []

    def gradients(self, positions: IndexArray) -> Float64Array:
        """Fit each prefix, started from the one before, and sweep all residuals at once."""
        model, objective, offsets = self._model, self._model.objective, self.standardisation.offsets
        self._joined = np.hstack((model.columns, self._columns.dense(positions)))
        ends = model.columns.shape[1] + np.cumsum(offsets[positions + 1] - offsets[positions])
        self._fits, residuals, at = [], [], model.at
        for end in ends.tolist():
            here = self._joined[:, :end]
            at = objective.newton(here, at)
            self._fits.append((end, at))
            residuals.append(objective.residual(objective.predictor(here, at)))
        return self._columns.products(np.stack(residuals, axis=1))

    def adopt(self, prefixes: int) -> None:
        """Take over the fit of that prefix."""
        end, at = self._fits[prefixes - 1]
        self._model.columns, self._model.at = self._joined[:, :end], at
        self._model.eta = self._model.objective.predictor(self._model.columns, at)

    def keep(self, positions: IndexArray) -> None:
        """Drop the others."""
        self._columns = self._columns.keep(positions)
        self.features, self.standardisation = self._columns.features, self._columns.standardisation


class GLMGains(GainTracker):
    """Gains to second order: what one Newton step on the candidate, others refitted, promises (half Rao's score statistic).

    ``gain = g' C^-1 g / 2`` with ``C`` the candidate's curvature after projecting out the selected columns in the metric of the
    current variances. Exact gains would need a refit per candidate.
    """

    def __init__(self, objective: GLM, columns: Columns) -> None:
        self._objective = objective
        self._columns = columns
        self._offsets = columns.standardisation.offsets
        self._several = np.diff(self._offsets).max(initial=1) > 1
        self._model = objective.null()
        # Always the same grid, because the bits of a product by BLAS depend on its width.
        self._chunks = np.split(np.arange(len(columns.features)), range(GAIN_CHUNK, len(columns.features), GAIN_CHUNK))
        self._dense: list[Float64Array] = []
        if 8 * int(self._offsets[-1]) * len(objective.weights) <= columns.budget:
            self._dense = [columns.dense(chunk) for chunk in self._chunks]

    @property
    def value(self) -> float:
        """F of the set so far."""
        return self._model.value

    def gains(self) -> Float64Array:
        """Return the second-order gain of each feature."""
        objective, model = self._objective, self._model
        curvature = objective.weights * objective.variance(model.eta)
        selected = np.column_stack((np.ones(len(curvature)), model.columns)) if objective.centred else model.columns
        weighted = selected * np.sqrt(curvature)[:, None]
        if weighted.shape[1]:
            # The penalty of the selected columns as further observations; candidates are zero there.
            penalty = np.full(weighted.shape[1], math.sqrt(objective.ridge))
            penalty[: weighted.shape[1] - model.columns.shape[1]] = 0.0
            basis = np.linalg.qr(np.vstack((weighted, np.diag(penalty))))[0][: len(weighted)]
        else:
            basis = weighted
        residual = model.residual
        parts = []
        for number, chunk in enumerate(self._chunks):
            dense = self._dense[number] if self._dense else self._columns.dense(chunk)
            scaled = dense * np.sqrt(curvature)[:, None]
            parts.append(self._gains_of(chunk, dense.T @ residual, scaled, basis.T @ scaled, float(curvature.max(initial=0.0))))
        return np.concatenate(parts)

    def _gains_of(
        self, features: IndexArray, gradient: Float64Array, scaled: Float64Array, projected: Float64Array, largest: float
    ) -> Float64Array:
        """Return the gains of ``features`` from their ``gradient`` (n_columns,) and weighted columns, whole and projected."""
        ridge = self._objective.ridge
        if not self._several:
            remaining = np.einsum("ij,ij->j", scaled, scaled) - np.einsum("ij,ij->j", projected, projected) + ridge
            usable = remaining > SMALLEST_CURVATURE * (largest + ridge)
            return np.asarray(0.5 * np.divide(gradient**2, remaining, out=np.zeros_like(gradient), where=usable))
        gains = np.zeros(len(features))
        offsets = self._offsets[features[0] : features[-1] + 2] - self._offsets[features[0]]
        for place, (first, last) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            block = scaled[:, first:last].T @ scaled[:, first:last] - projected[:, first:last].T @ projected[:, first:last]
            values, vectors = np.linalg.eigh(block + ridge * np.eye(block.shape[0]))
            rotated = vectors.T @ gradient[first:last]
            usable = values > SMALLEST_CURVATURE * (largest + ridge)
            gains[place] = 0.5 * float((rotated[usable] ** 2 / values[usable]).sum())
        return gains

    def add(self, position: int) -> None:
        """Add the feature at ``position`` and refit."""
        self._model.add(self._columns.dense(np.array([position])))
