"""The interfaces of objectives: models that grow, candidates whose gradients follow them, and gains for greedy selection.

An objective never sees the design matrix. It gets the selected columns, standardised (dense, float64), and the
:class:`~fastomp_nvm.matrix.pool.Columns` of the candidates, which it multiplies with vectors. For the linear model and every GLM
with canonical link the gradient is ``A_std @ residual``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.matrix.fixed import Fixed
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.objectives.compiled import Rounds

__all__ = ["Candidates", "Extends", "Fit", "GainTracker", "Model", "Objective"]

#: Callback ``extends(added, others)``: returns (o,) bool, the ``others`` (o,) that may be added to ``added`` (a,), by position.
Extends: TypeAlias = Callable[[IndexArray, IndexArray], BoolArray]


class Fit(NamedTuple):
    """A model fitted on a set of standardised columns.

    Attributes
    ----------
    coef : (n_columns,) float64
        Coefficients of the standardised columns, in units of the response (or of the linear predictor).
    intercept : float
        Value of the linear predictor where every standardised column is zero.
    value : float
        The objective f(S) that algorithms compare; larger is better; zero for the empty set.
    score : float
        The score in the result: R^2 for the linear model, mean log-likelihood for a GLM.
    summary : mapping of str to float
        Further figures for the result: ``pseudo_r2`` and ``null_score`` of a GLM.
    remainder : float
        Smallest share of a column's squared length that earlier columns do not explain; 0 where that is not known.
    fixed : (q,) float64
        Coefficients of the fixed directions, beside columns as the pool hands them out.
    """

    coef: Float64Array
    intercept: float
    value: float
    score: float
    summary: Mapping[str, float] = MappingProxyType({})
    remainder: float = 0.0
    fixed: Float64Array = np.empty(0)


class Candidates(ABC):
    """Candidates X whose gradients follow a growing model: the interface behind Algorithm 1's inner iterations.

    Attributes
    ----------
    features : (f,) int64
        The candidates.
    in_model : (f,) bool
        Candidates that are in the model.
    """

    features: IndexArray
    in_model: BoolArray

    def run(self, rounds: Rounds) -> tuple[int, int]:
        """Run inner iterations in compiled code; return the additions and the iterations that found j*.

        Model and candidates are moved as by ``adopt`` and ``keep``. (0, 0): not supported here, use the other methods.
        """
        return 0, 0

    @abstractmethod
    def prefix_scores(self, positions: IndexArray) -> Float64Array:
        """Return (f, b): the scores after adding the first 1, 2, ..., b of the candidates at ``positions``.

        The models are kept until the next call, for ``adopt``.
        """

    @abstractmethod
    def adopt(self, prefixes: int) -> None:
        """Add to the model the first ``prefixes`` candidates of the last call to ``prefix_scores``."""

    def at_once(self) -> int:
        """Return the number of additions to evaluate together: evaluations beyond j* are wasted."""
        return len(self.features)

    @abstractmethod
    def scores(self) -> Float64Array:
        """Return (f,): the score of each candidate at the model."""

    @abstractmethod
    def keep(self, positions: IndexArray) -> None:
        """Drop all candidates except those at ``positions``."""


class GainTracker(ABC):
    """Gains of adding each candidate to a growing set, for greedy selection over columns in memory."""

    @property
    @abstractmethod
    def value(self) -> float:
        """F of the set so far."""

    @abstractmethod
    def gains(self) -> Float64Array:
        """Return (n_features,): the increase of f with each feature; exact or, for GLMs, to second order."""

    def best(self, open_: BoolArray, prices: Float64Array | None = None) -> tuple[int, float]:
        """Return the candidate with the largest gain among ``open_`` (n_features,) bool, and its gain.

        With ``prices`` (n_features,), all above 0, the one with the largest gain per price. Of equal ones the first wins; the gain
        is -1.0 when no candidate is open.
        """
        gains = np.where(open_, self.gains(), -1.0)
        place = int((gains if prices is None else gains / prices).argmax())
        return place, float(gains[place])

    def grow(self, open_: BoolArray, count: int, least: float, last: bool = False) -> list[tuple[int, float]]:
        """Add the best open candidate ``count`` times; return the candidates added and their gains.

        Stops early when no candidate is open, or when the best gain is at most ``least``. Added candidates are removed from
        ``open_``. ``last``: no call to ``add`` or ``grow`` follows.
        """
        taken: list[tuple[int, float]] = []
        while len(taken) < count:
            place, gain = self.best(open_)
            if gain < 0.0 or gain <= least:
                break
            self.add(place)
            open_[place] = False
            taken.append((place, gain))
        return taken

    @abstractmethod
    def add(self, position: int) -> None:
        """Add the candidate at ``position``, the best feasible one as ``best`` was last asked.

        Without prices candidates with larger gains are infeasible, and can be dropped.
        """

    def settle(self) -> None:  # noqa: B027 - optional
        """Leave the fit of the set to a later refit; no candidate is added afterwards."""


class Model(ABC):
    """The model of the features selected so far; grows, never shrinks."""

    @property
    @abstractmethod
    def residual(self) -> Float64Array:
        """(n_obs,) float64: the gradient is its product with all columns. Sums to zero when centred."""

    @property
    @abstractmethod
    def value(self) -> float:
        """f(S) of the features so far."""

    @abstractmethod
    def add(self, columns: Float64Array) -> None:
        """Add standardised ``columns`` (n_obs, d)."""

    @abstractmethod
    def branch(self) -> Self:
        """Return a model of the same features that grows by itself.

        The two share memory: of a model and its branches, the one that grew last is valid beyond the features they have in common.
        """

    @abstractmethod
    def follow(self, columns: Columns, gradient: Float64Array) -> Candidates:
        """Return ``columns`` as candidates of this model; ``gradient`` (n_columns,) is theirs at this model."""


class Objective(ABC):
    """A goodness of fit bound to a response.

    Parameters of the constructors of subclasses: ``response`` (n_obs,), ``weights`` (n_obs,) or None, ``ridge``,
    ``centred`` (False when the columns are neither centred nor scaled: then there is no intercept), ``fixed`` (directions that
    every model has, never penalised; only where ``centred``: the null model is these and the intercept), ``offset`` (n_obs,) (a
    part of the linear predictor that is given).

    Attributes
    ----------
    projects : bool
        Whether the pool is to project the fixed directions out of its columns.
    """

    centred: bool
    fixed: Fixed | None
    offset: Float64Array | None
    projects: bool = False

    @abstractmethod
    def null(self) -> Model:
        """Return the model of the empty set."""

    @abstractmethod
    def fit(self, columns: Float64Array) -> Fit:
        """Fit all ``columns`` (n_obs, d) from scratch."""

    def refit(self, columns: Columns, exact: bool = True) -> Fit:
        """Fit ``columns`` at the end of a run, reusing products and fits of the run.

        ``exact=False``: twelve digits of the score suffice, as intermediate fits have them.
        """
        return self.fit(columns.dense(np.arange(len(columns.features))))

    @abstractmethod
    def path(self, columns: Columns, fit: Fit, every: bool) -> tuple[Float64Array, IndexArray]:
        """Return the scores and the ranks of the first of ``columns``' features, the first two, ..., all of them.

        The rank is the number of independent columns. ``fit`` is that of all features. Without ``every`` only the figures of all
        features are returned where those of fewer would cost fits.
        """

    def deviance(self, score: float, n_obs: int, total: float) -> float:
        """Return -2 times the log-likelihood of a model with this ``score``.

        ``total`` is the sum of the weights of the ``n_obs`` observations, which count as if the weights were 1 in the mean.
        """
        return -2.0 * n_obs * score

    def remember(self, features: IndexArray, model: Model) -> None:  # noqa: B027 - optional
        """Remember the ``model`` of ``features``, in this order, as the start of a later refit."""

    @abstractmethod
    def score(self, eta: Float64Array, weights: Float64Array) -> float:
        """Return the score of the linear predictor ``eta`` (n_obs,) on observations weighted by ``weights`` (n_obs,).

        These may be observations held out from the objective. NaN where the score is undefined: R^2 of a constant response.
        """

    @abstractmethod
    def gains(self, columns: Columns, extends: Extends | None = None) -> GainTracker:
        """Return a tracker of the gains of ``columns``, starting from the empty set.

        ``extends`` is a hint for computing Gram columns ahead, without effect on the answer.
        """
