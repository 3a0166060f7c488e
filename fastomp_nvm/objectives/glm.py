r"""Generalised linear models with canonical link: penalised maximum likelihood.

:math:`l(\beta) = \sum_i w_i (y_i \eta_i - b(\eta_i)) - \frac{ridge}{2} |\beta|^2`, where :math:`b' = \mu` is the mean and
:math:`b'' = v` the variance. The intercept is fitted and never penalised; the null model is the intercept alone. The gradient
with respect to an unselected column is ``A_std @ (w * (y - mu))``: the penalty is zero there.

Each family is a small class giving ``moments`` (mean and variance) and ``partition`` (``b``). Prefix models are fitted one after the
other, each started from the one before (:mod:`fastomp_nvm.objectives.newton`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, Float32Array, Float64Array, IndexArray
from fastomp_nvm.columns import Columns
from fastomp_nvm.design import Standardisation, column_index
from fastomp_nvm.objectives import newton
from fastomp_nvm.objectives.base import CandidateBlocks, Fit, GainTracker, Model, Objective
from fastomp_nvm.objectives.known_columns import MOST_COLUMNS, MOST_ENTRIES
from fastomp_nvm.objectives.linear_gains import SMALLEST_PIVOT, FollowedGains
from fastomp_nvm.objectives.newton import EXACT, PASSING, Coefficients, maximise

__all__ = ["GLM", "GLMGains"]

#: The greedy's quadratic model is good while what it promises is what a fit then gains, up to this share.
TRUST = 0.05

#: The greedy fits for the first time with this many features, and again, as long as its quadratic model is good, when as many times
#: what it has were added, or this many.
FIRST, LONGEST, FEWEST = 3, 2, 4

#: Candidates the greedy's quadratic model has: this many, and as many for each feature to be added before the next fit.
LEAST_NEAR, NEAR_PER_ADDITION = 32, 3

SMALLEST_NUMBER = float(np.finfo(np.float64).tiny)

#: Gain of other candidates as a share of what their score would make it: they come after all that the model has.
NOT_NEAR = 1e-6


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

    Attributes
    ----------
    native : str or None
        What the compiled fits call the family; None where they do not know it.
    """

    native: ClassVar[str | None] = None

    def __init__(
        self, response: Float64Array, weights: Float64Array | None = None, ridge: float = 1e-4, centred: bool = True
    ) -> None:
        self.check(response)
        # Contiguous float64: compiled fits take them as they lie in memory.
        self.response = np.ascontiguousarray(response, dtype=np.float64)
        self.weights = np.ones(len(response)) if weights is None else np.ascontiguousarray(weights, dtype=np.float64)
        self.total = float(self.weights.sum())
        self.ridge = ridge
        self.centred = centred
        eta = np.full(len(response), self.null_intercept() if centred else 0.0)
        residual = self.weights * (self.response - self.moments(eta)[0])
        start = Coefficients(float(eta[0]), np.zeros(0), eta, residual)
        self.null_coefficients = self.newton(np.empty((len(response), 0)), start)
        self.null_likelihood = self.likelihood(self.null_coefficients.eta, np.zeros(0))
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
        if newton.native is None or self.native is None:
            return self.response * eta - self.partition(eta)
        out = np.empty(len(self.response))
        newton.native.log_likelihood(self.native, np.ascontiguousarray(eta), self.response, out)
        return out

    def best_likelihood(self) -> float:
        """Return what the total log-likelihood of no model exceeds: 0, because the probability of an observation is at most 1."""
        return 0.0

    @abstractmethod
    def null_intercept(self) -> float:
        """Return the intercept of the empty model."""

    def likelihood(self, eta: Float64Array, coef: Float64Array) -> float:
        """Return the penalised total log-likelihood."""
        return float(self.weights @ self.log_likelihood(eta)) - self._penalised(coef)

    def _penalised(self, coef: Float64Array) -> float:
        """Return what the penalty takes off the likelihood."""
        return 0.5 * self.ridge * float(coef @ coef)

    def penalty(self, size: int) -> Float64Array:
        """Return the penalty of each of ``size`` coefficients, the intercept's zero included when there is one."""
        penalty = np.full(size, self.ridge)
        penalty[: int(self.centred)] = 0.0
        return penalty

    def design(self, columns: Float64Array) -> Float64Array:
        """Return (d, n_obs) in C order: ``columns`` (n_obs, d) as rows, below a row of ones when there is an intercept."""
        rows = np.ones((columns.shape[1] + int(self.centred), len(columns)))
        rows[int(self.centred) :] = columns.T
        return rows

    def newton(self, columns: Float64Array, start: Coefficients) -> Coefficients:
        """Maximise the penalised likelihood over ``columns`` (n_obs, d), from ``start`` padded with zeros, to the last digits."""
        return maximise(self, self.design(columns), start, EXACT)

    def predictor(self, columns: Float64Array, at: Coefficients) -> Float64Array:
        """Return the linear predictor (n_obs,)."""
        return columns @ at.coef + at.intercept if len(at.coef) else np.full(len(self.response), at.intercept)

    def null(self) -> GLMModel:
        """Return the intercept-only model."""
        return GLMModel(self)

    def fit(self, columns: Float64Array) -> Fit:
        """Fit from scratch."""
        return self._told(self.newton(columns, self.null_coefficients))

    def refit(self, columns: Columns) -> Fit:
        """Fit, from the model that was remembered of these features, if one was."""
        start = self._remembered.get(columns.features.tobytes(), self.null_coefficients)
        if start is not self.null_coefficients and start.left <= EXACT:
            return self._told(start)
        return self._told(self.newton(columns.dense(np.arange(len(columns.features))), start))

    def refit_score(self, columns: Columns) -> float:
        """Return the score of a fit, that of a model remembered if there is one: its likelihood is the maximum, to twelve digits."""
        at = self._remembered.get(columns.features.tobytes())
        return self.refit(columns).score if at is None else self.score(at.eta, self.weights)

    def remember(self, features: IndexArray, model: Model) -> None:
        """Note where the model of ``features`` is."""
        if isinstance(model, GLMModel):
            self._remembered[features.tobytes()] = model.at

    def _told(self, at: Coefficients) -> Fit:
        """Return what is told of a fit."""
        total = float(self.weights @ self.log_likelihood(at.eta))
        value = total - self._penalised(at.coef) - self.null_likelihood
        return Fit(at.coef, at.intercept, value, total / self.total)

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


class GLMModel(Model):
    """Selected columns, as rows of ``design`` below the intercept's, and their coefficients."""

    def __init__(self, objective: GLM) -> None:
        self.objective = objective
        self._rows = objective.design(np.empty((len(objective.response), 0)))
        self.move(len(self._rows), objective.null_coefficients)

    @property
    def design(self) -> Float64Array:
        """(d, n_obs) in C order."""
        return self._rows[: self._size]

    def extended(self, width: int) -> Float64Array:
        """Return the design with ``width`` further rows, to be filled; they are gone with the next call."""
        size = self._size + width
        if size > len(self._rows):
            grown = np.empty((size + size // 2, self._rows.shape[1]))
            grown[: self._size] = self.design
            self._rows = grown
        return self._rows[:size]

    def move(self, size: int, at: Coefficients) -> None:
        """Take over a fit of the first ``size`` rows of the design last extended."""
        self._size, self._at = size, at
        self._growing: newton.Growing | None = None

    @property
    def at(self) -> Coefficients:
        """The fit."""
        return self._at if self._growing is None else self._growing.at

    def advance(self, positions: IndexArray, *arguments: Any) -> tuple[int, int]:
        """Add candidates, compiled; see :meth:`~fastomp_nvm.objectives.newton.Growing.advance`."""
        if self._growing is None:
            self._growing = newton.Growing(self.objective, self._at)
        added, left = self._growing.advance(self.extended(len(positions)), *arguments)
        self._size += added
        return added, left

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

    def grow(self, width: int, left: float = PASSING) -> None:
        """Refit with the ``width`` rows by which the design was last extended, to a decrement of ``left``."""
        design = self.extended(width)
        self.move(len(design), maximise(self.objective, design, self.at, left))

    def follow(self, columns: Columns, gradient: Float64Array) -> GLMCandidates:
        """Return candidates of this model."""
        return GLMCandidates(self, columns, gradient)


class GLMCandidates(CandidateBlocks):
    """Candidates whose gradient at each prefix is their product with that prefix model's residual.

    Where fits are compiled, prefixes are: fits, products and decisions in one call as long as the columns are in memory; where they
    are read again the same functions are called for one block of them after the other.
    """

    def __init__(self, model: GLMModel, columns: Columns, gradient: Float64Array) -> None:
        self.features = columns.features
        self._columns, self._left = columns, np.arange(len(columns.features))  # the latter: positions of the features in the former
        self._gradient, self._added = gradient, np.zeros(len(columns.features), dtype=np.bool_)
        self._model = model
        self._fits: list[tuple[int, Coefficients]] = []
        self._prefixes = np.empty((0, 0))  # gradients at these
        self._compiled = (
            newton.native is not None
            and model.objective.native is not None
            and not columns.standardisation.whiteners
            and columns.dtype in (np.float32, np.float64)
        )
        # Where the columns are in memory: an array, rows of it, means, scales and which are wide; as of which change of that memory.
        self._here: tuple[AnyArray, IndexArray, Float64Array, Float64Array, BoolArray] | None = None
        self._as_of = -1

    @property
    def columns(self) -> Columns:
        """Those of the features, and no others."""
        if len(self._columns.features) > len(self._left):
            self._columns, self._left = self._columns.keep(self._left), np.arange(len(self._left))
        return self._columns

    @property
    def standardisation(self) -> Standardisation:
        """Of these features, by position."""
        return self.columns.standardisation

    def at_once(self) -> int:
        """Return 1 where columns are in memory, because a fit costs more than their product with its residual; else all."""
        return 1 if self.columns.held else len(self.features)

    def gradients(self, positions: IndexArray) -> Float64Array:
        """Fit each prefix, started from the one before, and multiply with all residuals at once."""
        model, offsets = self._model, self.standardisation.offsets
        widths = offsets[positions + 1] - offsets[positions]
        size, at = len(model.design), model.at
        design = model.extended(int(widths.sum()))
        self.columns.fill(positions, design[size:])
        self._fits = []
        for width in widths.tolist():
            size += width
            at = maximise(model.objective, design[:size], at)
            self._fits.append((size, at))
        self._prefixes = self._products(np.array([fit.residual for _, fit in self._fits]))
        return self._prefixes

    def _products(self, residuals: Float64Array) -> Float64Array:
        """Return (n_columns, m): the columns times ``residuals`` (m, n_obs), with the bits that compiled prefixes have."""
        if not self._compiled:
            return self.columns.products(residuals.T)
        mean, scale, wide = self.standardisation.mean, self.standardisation.scale, self.standardisation.wide
        out = np.empty((len(mean), len(residuals)))
        for local, array, places in self.columns.pieces():
            found = np.empty((len(local), len(residuals)))
            newton.native.gradients(array, places, mean[local], scale[local], wide[local], residuals, found)
            out[local] = found
        return out

    def advance(
        self, positions: IndexArray, blocked: IndexArray | None, threshold: float, enough: float, skip_weak: bool = False
    ) -> tuple[int, bool]:
        """Add one after the other, in C where that is possible."""
        if not self._locate():
            return super().advance(positions, blocked, threshold, enough, skip_weak)
        assert self._here is not None
        kept = np.empty(len(self.features), dtype=np.int64)
        mine = (*self._here, self._gradient, self._added)  # which all begin with what is left, afterwards
        added, left = self._model.advance(positions, *mine, positions, blocked, kept, (threshold, enough, skip_weak))
        if left < 0:
            return added, False
        self.features, self._left = self.features[kept[:left]], self._left[kept[:left]]
        rows, places, mean, scale, wide = self._here
        self._here = rows, places[:left], mean[:left], scale[:left], wide[:left]
        self._gradient, self._added = self._gradient[:left], self._added[:left]
        return added, True

    def _locate(self) -> bool:
        """Find where the columns are in memory, unless that is known; tell whether all are, and compiled code can have them."""
        if not self._compiled:
            return False
        if self._here is None or self._as_of != self._columns.drops:
            here, standardisation = self.columns.located(), self.standardisation
            self._as_of, self._here = self._columns.drops, None
            if here is not None:  # copies: compiled code drops those that are out
                mean, scale, wide = standardisation.mean, standardisation.scale, standardisation.wide
                self._here = here[0], here[1].copy(), mean.copy(), scale.copy(), wide.copy()
                self._gradient = self._gradient.copy()
        return self._here is not None

    def adopt(self, prefixes: int) -> None:
        """Take over the fit of that prefix."""
        self._model.move(*self._fits[prefixes - 1])
        self._gradient = self._prefixes[:, prefixes - 1]

    def keep(self, positions: IndexArray) -> None:
        """Drop the others."""
        self._gradient = self._gradient[column_index(self.standardisation.offsets, positions)]
        self._added, self._here = self._added[positions], None
        self._columns, self._left = self.columns.keep(positions), np.arange(len(positions))
        self.features = self._columns.features


class GLMGains(GainTracker):
    """Gains to second order: what one Newton step on the candidate, others refitted, promises (half Rao's score statistic).

    ``gain = g' C^-1 g / 2`` with ``C`` the candidate's curvature after projecting out the selected columns in the metric of the
    variances. Exact gains would need a refit per candidate.

    Between two fits ``g`` and ``C`` follow, exactly, the quadratic model of the likelihood at the last fit. How many features are
    added before the next one is decided as in trust-region methods: twice as many as last time when the model kept its promise,
    else half as many. Where the likelihood is nearly quadratic, 50 features take six fits; nearly separable data take more. The
    schedule is the best of eight tried on ten data sets, two of them real, where it was never worse than a fit per feature and
    0.3 % better on average; on others some percent are lost or won.

    The quadratic model is that of the features with the largest scores at the fit, several times as many as will be added; the
    others come last. How many was chosen on the same ten data sets, where the log-likelihood was within half a percent of that
    with a model of all candidates.
    """

    def __init__(self, objective: GLM, columns: Columns) -> None:
        self._objective, self._columns = objective, columns
        self._model = objective.null()
        self._added: list[int] = []  # features; the model has the first ``_fitted`` of them
        self._fitted = 0
        self._ahead, self._promised, self._reached = FIRST, 0.0, 0.0  # features until the next fit; gains since the last; f there
        self._done = np.zeros(len(columns.features), dtype=np.bool_)  # added, or of no use to who adds
        self._lengths = self._squared_lengths()
        self._scaled = np.empty((0, len(objective.response)), dtype=np.float32)
        # The quadratic model: its features, their standardisation, curvature and gains; next to nothing for the others.
        self._near: IndexArray
        self._standardisation: Standardisation
        self._curvature: Float64Array
        self._quadratic: FollowedGains
        self._others: Float64Array
        self._most_of_others: float
        self._linearise()

    @property
    def value(self) -> float:
        """F of the set so far, refitted."""
        self._refit(EXACT)
        self._objective.remember(self._columns.features[self._added], self._model)
        return self._model.value

    def gains(self) -> Float64Array:
        """Return the second-order gain of each feature; next to nothing, in the order of their scores, for those not looked at."""
        self._fit_when_due()
        gains = self._others.copy()
        gains[self._near] = 0.5 * self._quadratic.gains()
        return gains

    def best(self, open_: BoolArray) -> tuple[int, float]:
        """Return the first of the best, which is mostly one that the quadratic model has."""
        self._fit_when_due()
        place, gain = self._quadratic.best(open_[self._near])
        return (int(self._near[place]), 0.5 * gain) if 0.5 * gain > self._most_of_others else super().best(open_)

    def add(self, position: int) -> None:
        """Add the feature at ``position``."""
        place = int(np.searchsorted(self._near, position))
        near = place < len(self._near) and self._near[place] == position
        gains = 0.5 * self._quadratic.gains()
        gain = float(gains[place] if near else self._others[position])
        self._promised += gain
        # Who adds takes the best that the constraint admits. What was better is not admitted, and never will be again.
        self._done[self._near[gains > gain]] = True
        if gain < self._most_of_others:
            self._done |= self._others > gain
        self._done[position] = True
        self._added.append(position)
        if not near:
            self._next_fit = len(self._added)
        elif len(self._added) < self._next_fit:
            offsets = self._standardisation.offsets
            for column in range(int(offsets[place]), int(offsets[place + 1])):
                self._quadratic.add(column, self._curvature[column])

    def grow(self, open_: BoolArray, count: int, least: float) -> list[tuple[int, float]]:
        """Add the best of the open features ``count`` times over, all at once that come before the next fit."""
        taken: list[tuple[int, float]] = []
        while len(taken) < count:
            self._fit_when_due(count - len(taken))
            batch = min(count - len(taken), self._next_fit - len(self._added))
            bound = 2.0 * max(least, self._most_of_others)
            found = self._quadratic.grow(self._curvature, open_[self._near], batch, bound)
            if found is None:
                return taken + super().grow(open_, count - len(taken), least)
            for place, gain in found:
                position = int(self._near[place])
                self._promised += 0.5 * gain
                self._added.append(position)
                open_[position] = False
                taken.append((position, 0.5 * gain))
            self._done = ~open_  # what is not open was added, or never will be
            if len(found) < batch:  # the next is none of the near ones, or gains hardly more than those
                one = super().grow(open_, 1, least)
                if not one:
                    break
                taken += one
        return taken

    def _fit_when_due(self, wanted: int | None = None) -> None:
        """Fit again once as many features were added as the quadratic model is trusted with; no more than ``wanted`` will follow."""
        if len(self._added) >= self._next_fit:
            self._refit()
            self._judge()
            self._ahead = self._ahead if wanted is None else min(self._ahead, wanted)
            self._linearise()

    def _refit(self, left: float = PASSING) -> None:
        """Fit what was added since the last fit, to a decrement of ``left``."""
        new = np.array(self._added[self._fitted :], dtype=np.int64)
        if new.size:
            offsets, size = self._columns.standardisation.offsets, len(self._model.design)
            width = int((offsets[new + 1] - offsets[new]).sum())
            self._columns.fill(new, self._model.extended(width)[size:])
            self._model.grow(width, left)
            self._fitted = len(self._added)

    def _judge(self) -> None:
        """Decide, after a fit, how many features to add before the next one."""
        value = self._model.value
        gained = value - self._reached
        kept = abs(self._promised - gained) <= TRUST * gained
        self._ahead = max(LONGEST * self._fitted, FEWEST) if kept else max(self._ahead // 2, 1)
        self._promised, self._reached = 0.0, value

    def _linearise(self) -> None:
        """Take gradient and curvature at the model, of the candidates with the largest scores.

        Both are measured by the largest curvature a column of unit length may have: what is all but dependent gains nothing.
        """
        objective, design = self._objective, self._model.design
        self._next_fit = self._fitted + self._ahead
        standardisation = self._columns.standardisation
        roots, most = newton.roots(objective, self._model.at.eta)
        largest = max(most + objective.ridge, SMALLEST_NUMBER)
        gradient = self._columns.products(self._model.residual[:, None])
        scores = standardisation.scores(gradient)[:, 0] / self._lengths
        self._near = self._nearest(scores)
        self._standardisation = standardisation.subset(self._near)
        self._curvature = newton.curvature_left(objective, design, roots, self._scaled_rows(len(design), roots), largest)
        wide = [group.columns for group in self._standardisation.whiteners]
        blocks = [self._curvature[columns[:, :, None], columns[:, None, :]] for columns in wide]
        near = gradient[column_index(standardisation.offsets, self._near), 0] / math.sqrt(largest)
        smallest = np.full(len(near), SMALLEST_PIVOT)
        self._quadratic = FollowedGains(self._standardisation, near, self._curvature.diagonal().copy(), blocks, smallest)
        self._others = scores * (NOT_NEAR / largest)
        self._most_of_others = float(self._others.max(initial=0.0))

    def _scaled_rows(self, first: int, roots: Float64Array) -> Float32Array:
        """Return room for ``first`` rows, and the near columns as rows, each observation times its ``roots`` (n_obs,)."""
        size = first + int(self._standardisation.offsets[-1])
        if size > len(self._scaled):  # the same memory every time: fresh pages cost as much as what is written to them
            self._scaled = np.empty((2 * size, len(roots)), dtype=np.float32)
        self._columns.fill(self._near, self._scaled[first:size], roots)
        return self._scaled[:size]

    def _nearest(self, scores: Float64Array) -> IndexArray:
        """Return positions, ascending: the features with the largest scores (f,), no more columns than are quickly multiplied."""
        scores, count = np.where(self._done, 0.0, scores), LEAST_NEAR + NEAR_PER_ADDITION * self._ahead
        best = np.arange(len(scores))
        if count < len(scores):  # few of many: only these are sorted
            best = np.flatnonzero(scores >= np.partition(scores, -count)[-count])
        best = best[(-scores[best]).argsort(kind="stable")][:count]
        fitting, offsets = min(MOST_COLUMNS, MOST_ENTRIES // len(self._objective.response)), self._columns.standardisation.offsets
        if self._columns.standardisation.whiteners:
            fitting = int(np.searchsorted(np.cumsum(offsets[best + 1] - offsets[best]), fitting, side="right"))
        return np.sort(best[: max(fitting, 2 * self._ahead)])

    def _squared_lengths(self) -> Float64Array:
        """Return (f,): by what a squared gradient is divided to be a score; 1 for features that are scaled or whitened."""
        lengths = np.ones(len(self._columns.features))
        if not self._objective.centred:
            single = np.flatnonzero(np.diff(self._columns.standardisation.offsets) == 1)
            for position in single.tolist():
                column = self._columns.dense(np.array([position]))[:, 0]
                lengths[position] = max(float(column * column @ self._objective.weights), SMALLEST_NUMBER)
        return lengths
