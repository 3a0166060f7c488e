"""Lasso: the support of an l1-penalised fit, at the penalty where it has the wanted size. Needs scikit-learn.

From the penalty at which the first column enters, the penalty falls along a geometric path, each fit started from the one before,
until more than k features are in use; bisection then looks for the last penalty with at most k. Features are ordered by the size
of their coefficients. Columns are those of the objective: standardised, whitened within a feature, observations weighted; a feature
of several columns is in use when one of its columns is, which is weaker than a group Lasso.

The standardised matrix must be in memory, so this is a baseline for small data: above ``gather_bytes`` it is refused. A cardinality
is the only constraint, and the ridge of the request does not apply to the path.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Protocol

import numpy as np

from fastomp_nvm.algorithms.cardinality_only import only_cardinality
from fastomp_nvm.algorithms.protocol import Algorithm, Outcome, Problem, Round
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.errors import RequestError, UnavailableError, how_to_install
from fastomp_nvm.objectives.linear import Linear
from fastomp_nvm.objectives.logistic import Logistic

__all__ = ["lasso"]

#: Ratio of consecutive penalties, and of the smallest to the largest: about a hundred steps, as in scikit-learn.
STEP, SMALLEST = 0.93, 1e-3

#: Bisections between two consecutive penalties.
BISECTIONS = 12

#: A coefficient below this share of the largest is rounding: of two equal columns, the second one's is not quite zero.
NEGLIGIBLE = 1e-9

#: Sweeps of the solvers over the columns per penalty; an unconverged fit is good enough for a support.
SOLVER_STEPS = 1000


def lasso(problem: Problem) -> Algorithm:
    """Follow the l1 path."""
    k = only_cardinality(problem, "lasso")
    objective, usable = problem.objective, problem.usable
    if not isinstance(objective, (Linear, Logistic)):
        raise RequestError(f"lasso supports the objectives linear and logistic, not {type(objective).__name__.lower()}")
    if isinstance(objective, Logistic) and (objective.fixed is not None or objective.offset is not None):
        raise RequestError("lasso has no kept columns and no offset for the logistic objective: choose fast_omp or sds_omp")
    offsets = problem.design.standardisation.subset(usable).offsets
    needed = 8 * int(offsets[-1]) * problem.design.matrix.shape[1]
    if needed > problem.pool.budget:
        raise RequestError(
            f"lasso needs the standardised matrix in memory, {needed:,} bytes, and gather_bytes allows {problem.pool.budget:,}: "
            "raise gather_bytes, or choose fast_omp, which reads the data in place"
        )
    answers = yield from problem.ask(0, 0.0, [objective.null().residual], usable)
    largest = float(np.abs(answers[0].of(usable)).max(initial=0.0))
    columns = problem.pool.columns(usable).dense(np.arange(len(usable)))
    fit = _linear_path(objective, columns) if isinstance(objective, Linear) else _logistic_path(objective, columns)

    def support(penalty: float) -> IndexArray:
        """Return the features in use, largest coefficients first."""
        weights = np.maximum.reduceat(np.abs(fit(penalty)), offsets[:-1])
        used = np.count_nonzero(weights > NEGLIGIBLE * weights.max(initial=0.0))
        return usable[np.argsort(-weights, kind="stable")[:used]]

    chosen = np.empty(0, dtype=np.int64)
    penalty, high, low = largest * STEP, largest, 0.0
    while penalty > SMALLEST * largest and not low:
        yield Round(len(chosen), 0.0, members=chosen)
        found = support(penalty)
        if len(found) > k:
            low = penalty
        else:
            chosen, high, penalty = found, penalty, penalty * STEP
    for _ in range(BISECTIONS if low and len(chosen) < k else 0):
        yield Round(len(chosen), 0.0, members=chosen)
        middle = 0.5 * (low + high)
        found = support(middle)
        if len(found) > k:
            low = middle
        else:
            high = middle
            chosen = found if len(found) >= len(chosen) else chosen
    return Outcome(chosen)


def _linear_path(objective: Linear, columns: Float64Array) -> Callable[[float], Float64Array]:
    """Return the coefficients of ``|y - X b|^2 / 2 + penalty |b|_1`` as a function of the penalty."""
    linear_model = _scikit_learn()
    design = np.asfortranarray(objective.weighted(columns))
    model = linear_model.Lasso(fit_intercept=False, warm_start=True, max_iter=SOLVER_STEPS)

    def fit(penalty: float) -> Float64Array:
        model.set_params(alpha=penalty / len(design))
        return _fitted(model, design, objective.response, None)

    return fit


def _logistic_path(objective: Logistic, columns: Float64Array) -> Callable[[float], Float64Array]:
    """Return the coefficients of the l1-penalised likelihood, intercept free, as a function of the penalty."""
    linear_model = _scikit_learn()
    scale = np.sqrt(len(columns))  # the solver's steps suit columns of unit variance
    design = np.ascontiguousarray(columns * scale)
    model = linear_model.LogisticRegression(
        solver="saga", l1_ratio=1.0, warm_start=True, fit_intercept=objective.centred, max_iter=SOLVER_STEPS, random_state=0
    )
    if "deprecated" not in str(model.penalty):  # before 1.8 the norm was a parameter of its own
        model.set_params(penalty="l1", l1_ratio=None)

    def fit(penalty: float) -> Float64Array:
        model.set_params(C=1.0 / (scale * penalty))  # coefficients shrink as columns grow
        return _fitted(model, design, objective.response, objective.weights)

    return fit


def _scikit_learn() -> ModuleType:
    """Import scikit-learn's linear models."""
    try:
        from sklearn import linear_model
    except ModuleNotFoundError as error:
        raise UnavailableError(f"lasso needs scikit-learn, which is not installed: {how_to_install('sklearn')}") from error
    found: ModuleType = linear_model
    return found


class _Estimator(Protocol):
    """A linear model of scikit-learn."""

    coef_: Float64Array

    def fit(self, X: Float64Array, y: Float64Array, sample_weight: Float64Array | None = None) -> object:
        """Fit the model."""
        ...


def _fitted(model: _Estimator, design: Float64Array, response: Float64Array, weights: Float64Array | None) -> Float64Array:
    """Fit and return the coefficients, without warnings: an unconverged fit is good enough for a support."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(design, response, sample_weight=weights)
    return np.asarray(model.coef_, dtype=np.float64).ravel()
