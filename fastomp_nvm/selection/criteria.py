"""Information criteria of the models along a selection.

They are computed *after selection* and are optimistic: a model of chosen features fits its own observations better than one of
given features, and AIC and BIC know nothing of the choice. EBIC charges for the number of sets of the same size. Scores on
observations held out, as ``cross_validate`` computes them, have no such bias.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fastomp_nvm.arrays import Float64Array
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.objectives.base import Fit, Objective

__all__ = ["CRITERIA", "OPTIMISTIC", "PathPoint", "path_points"]

#: The criteria, smaller is better.
CRITERIA = ("aic", "bic", "ebic")

#: What is to be known of them.
OPTIMISTIC = "after selection, optimistic"

#: Weight of the number of sets in EBIC, the gamma of Chen and Chen (2008).
GAMMA = 1.0

#: An R^2 this close to 1 leaves no variance to estimate.
_EXACT = 1e-10


class PathPoint(NamedTuple):
    """The model on the first ``k`` selected features.

    Attributes
    ----------
    k : int
        Features.
    score : float
        As ``Selection.score``.
    parameters : int, optional
        Independent columns, kept ones included, and 1 for the intercept; None in results of earlier releases.
    aic, bic, ebic : float, optional
        -2 log-likelihood + 2 parameters, + log(n) parameters, + log(n) parameters + 2 log(number of sets of k features), with n
        observations of positive weight; of a Gaussian response for the linear objective. After selection, optimistic. None where
        there are fewer than two observations per parameter, or the fit is exact: the likelihood then says nothing.
    """

    k: int
    score: float
    parameters: int | None = None
    aic: float | None = None
    bic: float | None = None
    ebic: float | None = None


def path_points(
    objective: Objective, columns: Columns, fit: Fit, every: bool, weights: Float64Array | None, n_obs: int, n_features: int
) -> list[PathPoint]:
    """Return the points of a selection: of every prefix for the linear objective or with ``every``, otherwise of all features.

    Parameters
    ----------
    objective : Objective
    columns : Columns
        Of the selected features, in order.
    fit : Fit
        The model on all of them.
    every : bool
    weights : (n_obs,) float64, optional
    n_obs : int
        Observations of the data.
    n_features : int
        Features to select from.
    """
    size = len(columns.features)
    if not size:
        return []
    scores, ranks = objective.path(columns, fit, every)
    used, total = (n_obs, float(n_obs)) if weights is None else (int(np.count_nonzero(weights)), float(weights.sum()))
    first, always = size - len(scores) + 1, int(objective.centred) + (0 if objective.fixed is None else len(objective.fixed.basis))
    weight, of_all = math.log(used), math.lgamma(n_features + 1)
    points = []
    for k, score, parameters in zip(range(first, size + 1), scores.tolist(), (ranks + always).tolist(), strict=True):
        if 2 * parameters > used or score >= 1.0 - _EXACT:  # no mean log-likelihood of a GLM is above 0
            points.append(PathPoint(k, score, parameters))
            continue
        deviance = objective.deviance(score, used, total)
        sets = of_all - math.lgamma(k + 1) - math.lgamma(n_features - k + 1)
        bic = deviance + weight * parameters
        points.append(PathPoint(k, score, parameters, deviance + 2.0 * parameters, bic, bic + 2.0 * GAMMA * sets))
    return points
