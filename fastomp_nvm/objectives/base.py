"""What an objective is: it turns a growing set of columns into gradients of candidates, and sees nothing but those columns.

An objective never sees the design matrix. It is handed the few standardised columns that were chosen (dense, float64) and the
:class:`~fastomp_nvm.matrix.sweeper.Columns` of the candidates, whose products with vectors it asks for. For the linear model and
every GLM with canonical link the gradient is ``A_std @ residual``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.objectives.compiled import Rounds

__all__ = ["Candidates", "Extends", "Fit", "GainTracker", "Model", "Objective"]

#: Which of some features may be added to others, (o,) bool: given what was added (a,) and the features in question (o,).
Extends: TypeAlias = Callable[[IndexArray, IndexArray], BoolArray]


@dataclass(frozen=True, slots=True)
class Fit:
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
        What users read: R^2 for the linear model, mean log-likelihood for a GLM.
    """

    coef: Float64Array
    intercept: float
    value: float
    score: float


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
        """F of the set so far; a refit of it may start from here."""

    @abstractmethod
    def gains(self) -> Float64Array:
        """Return (n_features,): how much f grows with each feature; exact or, for GLMs, to second order."""

    def best(self, open_: BoolArray) -> tuple[int, float]:
        """Return the first of the candidates marked in ``open_`` (n_features,) with the largest gain, and it; -1.0 when none is."""
        gains = np.where(open_, self.gains(), -1.0)
        place = int(gains.argmax())
        return place, float(gains[place])

    def grow(self, open_: BoolArray, count: int, least: float, last: bool = False) -> list[tuple[int, float]]:
        """Add the best of the open candidates ``count`` times over; return them and their gains.

        Ends early where none is open, or where no more than ``least`` is gained. Those that were added are open no longer. The
        ``last`` time nothing will be added afterwards.
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
        """Add the candidate at ``position``: the best of those that may still be added, so that better ones never will be."""


class Model(ABC):
    """The model of the features selected so far; grows, never shrinks."""

    @property
    @abstractmethod
    def residual(self) -> Float64Array:
        """(n_obs,) float64: the vector whose products with all columns are the gradient. Sums to zero when centred."""

    @property
    @abstractmethod
    def value(self) -> float:
        """f(S) of the features so far."""

    @abstractmethod
    def add(self, columns: Float64Array) -> None:
        """Add standardised ``columns`` (n_obs, d)."""

    @abstractmethod
    def follow(self, columns: Columns, gradient: Float64Array) -> Candidates:
        """Return ``columns`` as candidates of this model, their gradient (n_columns,) at it given."""


class Objective(ABC):
    """A goodness of fit bound to a response.

    Parameters are those of the constructor of each subclass: ``response`` (n_obs,), ``weights`` (n_obs,) or None, ``ridge``,
    ``centred`` (False when the columns are neither centred nor scaled: then there is no intercept).
    """

    @abstractmethod
    def null(self) -> Model:
        """Return the model of the empty set."""

    @abstractmethod
    def fit(self, columns: Float64Array) -> Fit:
        """Fit all ``columns`` (n_obs, d) from scratch; dependent columns get the coefficients of least norm."""

    def refit(self, columns: Columns) -> Fit:
        """Fit the ``columns`` of a run that is done; what it knows of them may be used."""
        return self.fit(columns.dense(np.arange(len(columns.features))))

    def refit_score(self, columns: Columns) -> float:
        """Return the score of a ``refit``."""
        return self.refit(columns).score

    def remember(self, features: IndexArray, model: Model) -> None:  # noqa: B027 - most have nothing to remember
        """Note the ``model`` of ``features``, in this order: a refit of them may start from it."""

    @abstractmethod
    def score(self, eta: Float64Array, weights: Float64Array) -> float:
        """Return the score of the linear predictor ``eta`` (n_obs,) on the observations that ``weights`` (n_obs,) counts.

        These may be observations the objective itself leaves out. NaN where they tell nothing: R^2 of a constant response.
        """

    @abstractmethod
    def summary(self, fit: Fit) -> dict[str, float]:
        """Return further figures of a fit for the result (``pseudo_r2`` for GLMs)."""

    @abstractmethod
    def gains(self, columns: Columns, extends: Extends | None = None) -> GainTracker:
        """Return a tracker of the gains of ``columns``, starting from the empty set.

        ``extends(added, others)`` tells who works ahead which of ``others`` may be added to what was added, all by position: a
        hint, without effect on the answer.
        """
