r"""Newton's method for canonical-link GLMs, with few curvatures: a factored one serves as long as it is nearly right.

Every family here has :math:`|b'''| \le b''` (logistic: :math:`|v'| = v |1 - 2\mu|`; Poisson: :math:`v' = v`), so where no linear
predictor has moved by more than ``t`` the curvature is the old one up to a factor :math:`e^{\pm t}`. Two things follow:

* A factor may be used again after a small move. The steps then converge linearly, by an order of magnitude or more each, and cost
  two products of the columns with a vector where a curvature costs one with themselves. A fit started from another passes its
  factor on, bordered by what is new.
* With ``s`` the move since the factor and ``t`` that of the step, a full step gains at least
  :math:`\lambda^2 (1 - e^s (e^t - t - 1) / t^2)`. Where this is positive the likelihood need not be looked at; other steps are
  halved until it grows.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.arrays import Float64Array

if TYPE_CHECKING:
    from fastomp_nvm.objectives.glm import GLM

try:
    native: Any = importlib.import_module("fastomp_nvm.objectives._newton")
except ImportError:  # installed on a machine without a compiler
    native = None

__all__ = ["Coefficients", "Curvature", "curvature_at", "implementation", "maximise"]

#: Newton stops after the step whose decrement (twice the gain it promises) is below this fraction of the total weight.
DECREMENT = 1e-14

#: A factor that is not fresh is replaced when the decrement does not fall at least to this fraction from step to step.
SLOW = 0.05

#: A factor is replaced when a linear predictor has moved farther since.
FAR = 0.5

#: Newton steps allowed; damped steps on concave functions need a dozen, separable data a few dozen.
MAX_STEPS = 200

NOT_DEFINITE = "the curvature of the likelihood is not positive definite"


@dataclass(frozen=True, slots=True)
class Curvature:
    """Upper Cholesky factor (d, d) of the penalised curvature, or of more, where no linear predictor was farther than ``moved``."""

    factor: Float64Array
    moved: float


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Intercept and coefficients (d,) of standardised columns, and what is known there.

    Attributes
    ----------
    intercept : float
    coef : (d,) float64
    eta, residual : (n_obs,) float64
        Linear predictor; weighted residual.
    curvature : Curvature, optional
        The one last factored on the way there.
    """

    intercept: float
    coef: Float64Array
    eta: Float64Array
    residual: Float64Array
    curvature: Curvature | None = None


def implementation() -> str:
    """Return what names the last bits of fits by the families of this package: ``c-1`` or ``python``."""
    return "python" if native is None else "c-1"


def maximise(family: GLM, design: Float64Array, start: Coefficients) -> Coefficients:
    """Maximise the penalised likelihood, in C where that is built and knows the family.

    Parameters
    ----------
    family : GLM
    design : (d, n_obs) float64, C order
        One row per coefficient; the intercept's comes first when there is one.
    start : Coefficients
        Of the first rows of ``design``; the others start at zero.
    """
    first = int(family.centred)
    if not len(design):
        return start
    beta = np.zeros(len(design))
    beta[:first] = start.intercept
    beta[first : first + len(start.coef)] = start.coef
    eta, residual = start.eta.copy(), np.empty(len(start.eta))
    climb = _climb if native is None or family.native is None else _climb_in_c
    curvature = climb(family, design, beta, eta, residual, start.curvature)
    if first:  # the fit makes the sum vanish up to its tolerance; take the rest out where it cannot matter
        residual -= family.weights * (np.add.reduce(residual) / family.total)
    return Coefficients(float(beta[0]) if first else 0.0, beta[first:], eta, residual, curvature)


def _climb_in_c(
    family: GLM,
    design: Float64Array,
    beta: Float64Array,
    eta: Float64Array,
    residual: Float64Array,
    known: Curvature | None,
) -> Curvature | None:
    """Do what ``_climb`` does."""
    factor = np.empty((len(design), len(design)))
    moved = native.maximise(
        family.native,
        design,
        family.response,
        family.weights,
        family.ridge,
        family.centred,
        (DECREMENT * family.total, SLOW, FAR, MAX_STEPS),
        None if known is None else known.factor.T,
        0.0 if known is None else known.moved,
        beta,
        eta,
        residual,
        factor,
    )
    if moved == -2.0:
        raise np.linalg.LinAlgError(NOT_DEFINITE)
    return Curvature(factor.T, moved) if moved >= 0.0 else None


def _climb(
    family: GLM,
    design: Float64Array,
    beta: Float64Array,
    eta: Float64Array,
    residual: Float64Array,
    known: Curvature | None,
) -> Curvature | None:
    """Move ``beta`` (d,) and ``eta`` (n_obs,) to the maximum; fill ``residual``; return the curvature last factored, if any."""
    first = int(family.centred)
    penalty = family.penalty(len(design))
    mean, variance = family.moments(eta)
    curvature = _bordered(known, design, family.weights * variance, penalty)
    before = np.inf
    for _ in range(MAX_STEPS):
        gradient = design @ (family.weights * (family.response - mean)) - penalty * beta
        fresh = curvature is None
        if curvature is None:
            curvature = curvature_at(design, family.weights * variance, penalty)
        step = lapack.dpotrs(curvature.factor, gradient)[0]
        decrement = float(gradient @ step)
        if decrement > SLOW * before and not fresh:
            curvature = None
            continue
        move, length = step @ design, 1.0
        if decrement <= DECREMENT * family.total:
            beta += step
            eta += move
            mean, variance = family.moments(eta)
            break
        before = decrement
        reach = float(np.abs(move[family.counted]).max())
        if not _surely_gains(curvature.moved, reach):
            length = _growing_length(family, eta, move, beta[first:], step[first:])
            if not length and fresh:
                break
        beta += length * step
        eta += length * move
        mean, variance = family.moments(eta)
        moved = curvature.moved + length * reach
        curvature = Curvature(curvature.factor, moved) if moved <= FAR else None
    np.multiply(family.weights, family.response - mean, out=residual)
    return curvature


def curvature_at(design: Float64Array, weights: Float64Array, penalty: Float64Array) -> Curvature:
    """Return the factor of ``design diag(weights) design' + diag(penalty)``; ``weights`` (n_obs,) are weighted variances."""
    scaled = design * np.sqrt(weights)
    matrix = scaled @ scaled.T
    matrix.flat[:: len(matrix) + 1] += penalty + 1e-12 * (1.0 + np.trace(matrix) / len(matrix))
    factor, failed = lapack.dpotrf(matrix)
    if failed:
        raise np.linalg.LinAlgError(NOT_DEFINITE)
    return Curvature(factor, 0.0)


def _bordered(known: Curvature | None, design: Float64Array, weights: Float64Array, penalty: Float64Array) -> Curvature | None:
    """Return ``known``, of the first rows of ``design``, extended by the others; None where a fresh one is as cheap.

    What is known is stretched by how far it may be off, so that the whole is no less than the curvature here.
    """
    if known is None or 3 * len(known.factor) < 2 * len(design):
        return None
    size = len(known.factor)
    if size == len(design):
        return known
    stretched = known.factor * math.exp(0.5 * known.moved)
    cross = design @ (design[size:] * weights).T
    corner = cross[size:] + np.diag(penalty[size:])
    above = lapack.dtrtrs(stretched, cross[:size], trans=1)[0]
    below, failed = lapack.dpotrf(corner - above.T @ above)
    if failed:  # dependent columns: the fresh one has its diagonal raised a little
        return None
    factor = np.zeros((len(design), len(design)), order="F")
    factor[:size, :size], factor[:size, size:], factor[size:, size:] = stretched, above, below
    return Curvature(factor, 0.0)


def _surely_gains(moved: float, reach: float) -> bool:
    """Say whether a full step that moves predictors by ``reach`` grows the likelihood, the factor being ``moved`` away."""
    return reach < 2.0 and math.exp(moved) * (math.expm1(reach) - reach) < reach * reach


def _growing_length(family: GLM, eta: Float64Array, move: Float64Array, coef: Float64Array, step: Float64Array) -> float:
    """Return 1, 1/2, 1/4, ...: the first length of the step with which the likelihood grows; 0 when none does."""
    value, length = family.likelihood(eta, coef), 1.0
    while not family.likelihood(eta + length * move, coef + length * step) > value:  # concave: a short enough step always does
        length *= 0.5
        if length < 1e-10:
            return 0.0
    return length
