r"""Newton's method for canonical-link GLMs with few curvatures: a factored curvature is reused as long as steps converge.

* Steps with an old factor converge linearly, by two orders of magnitude of the decrement or more each, and cost two products of the
  columns with a vector; a curvature costs the Gram matrix of the columns. A fit started from another one extends its factor by the
  new columns; the factor is replaced when the decrement falls too slowly. The change of the gradient along the last step corrects
  it (a BFGS update of one pair), which saves one step in seven. A factor need not be exact: its products are taken in float32,
  until such a factor fails.
* The likelihood is concave: where the gradient at the end of a step still points along it, the step has gained. So it has where
  the maximum along the step was passed, but not by far (``OVERSHOT``). Only otherwise is the likelihood evaluated, and the step
  halved until the likelihood grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, Float32Array, Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.objectives import compiled
from fastomp_nvm.objectives.compiled import ColumnArrays, FitArrays

if TYPE_CHECKING:
    from fastomp_nvm.objectives.glm import GLM

__all__ = [
    "EXACT",
    "PASSING",
    "Coefficients",
    "Curvature",
    "can_multiply",
    "curvature_left",
    "likelihood",
    "maximise",
    "products",
    "roots",
    "settings",
]

#: A fit ends when the decrement (twice the remaining gain) predicted after the next step is below this fraction of the total
#: weight. EXACT: fits that are reported. PASSING: intermediate fits.
EXACT, PASSING = 1e-16, 1e-12

#: A reused factor is replaced when a step leaves more than this fraction of the decrement.
SLOW = 0.05

#: A step that moves no linear predictor by more than SMALL, and ends past the maximum along it with a slope of at most OVERSHOT
#: times the slope at its start, has gained. Where a predictor moves by t, the variances of a family change by no more than the
#: factor e^t, and so does the curvature along a step. Of all functions with slope 1 at 0 and -s at 1, the one that gains least
#: bends as early as that allows, and gains 1 - 0.582 (1 + s): nothing at s = 0.718.
SMALL, OVERSHOT = 1.0, 0.5

#: Newton steps allowed; damped steps on concave functions need a dozen, separable data a few dozen.
MAX_STEPS = 200

NOT_DEFINITE = "the curvature of the likelihood is not positive definite"


@dataclass(frozen=True, slots=True)
class Coefficients:
    """A fit: coefficients of standardised columns, and quantities at this point.

    Attributes
    ----------
    free : (f,) float64
        Those without penalty: the intercept, where there is one, and the coefficients of fixed directions.
    coef : (d,) float64
    eta, residual : (n_obs,) float64
        Linear predictor; weighted residual.
    factor : (d, d) float64, optional
        Upper Cholesky factor of a penalised curvature near this point.
    left : float
        The decrement it was fitted to, as a fraction of the total weight.
    """

    free: Float64Array
    coef: Float64Array
    eta: Float64Array
    residual: Float64Array
    factor: Float64Array | None = None
    left: float = np.inf


def can_multiply(family: GLM, columns: Columns) -> bool:
    """Return True where compiled code can multiply ``columns`` and fit them."""
    return (
        bool(native.extension)
        and family.native is not None
        and not columns.standardisation.whiteners
        and columns.dtype in (np.float32, np.float64)
    )


def products(family: GLM, columns: Columns, residuals: Float64Array) -> Float64Array:
    """Return (n_columns, m): ``columns`` times ``residuals`` (m, n_obs), with the bits of compiled inner iterations."""
    if not can_multiply(family, columns):
        return columns.products(residuals.T)
    mean, scale, wide = columns.standardisation.mean, columns.standardisation.scale, columns.standardisation.wide
    out = np.empty((len(mean), len(residuals)))
    for local, array, places in columns.pieces():
        if len(local) == len(out):
            native.extension.gradients(ColumnArrays(array, places, mean, scale, wide), residuals, out)
        else:
            found = np.empty((len(local), len(residuals)))
            native.extension.gradients(ColumnArrays(array, places, mean[local], scale[local], wide[local]), residuals, found)
            out[local] = found
    return out


def settings(family: GLM, left: float) -> tuple[float, float, float, float, float, int, int]:
    """Return the settings of a compiled fit to a decrement of ``left``."""
    return family.ridge, left * family.total, SLOW, SMALL, OVERSHOT, MAX_STEPS, family.free


def maximise(family: GLM, design: Float64Array, start: Coefficients, left: float = PASSING) -> Coefficients:
    """Maximise the penalised likelihood, in compiled code where available.

    Parameters
    ----------
    family : GLM
    design : (d, n_obs) float64, C order
        One row per coefficient; those without penalty come first.
    start : Coefficients
        Fit of the first rows of ``design``; the other coefficients start at zero.
    left : float
        Decrement to reach, as a fraction of the total weight.
    """
    first = family.free
    if not len(design):
        return start
    beta = np.zeros(len(design))
    beta[:first] = start.free
    beta[first : first + len(start.coef)] = start.coef
    eta, residual = start.eta.copy(), start.residual.copy()
    settled = first + len(start.coef) if start.left <= left else -1
    if native.extension and family.native is not None:
        square = np.empty((len(design), len(design)))
        fit = FitArrays(family.native, settings(family, left), design, family.response, family.weights, beta, eta, residual, square)
        status = native.extension.maximise(fit, None if start.factor is None else start.factor.T, settled)
        if status == compiled.NOT_DEFINITE:
            raise np.linalg.LinAlgError(NOT_DEFINITE)
        factor = square.T if status == compiled.FACTORED else None
    else:
        factor = _climb(family, design, beta, eta, residual, start.factor, left * family.total, settled)
    return Coefficients(beta[:first], beta[first:], eta, residual, factor, left)


def _climb(
    family: GLM,
    design: Float64Array,
    beta: Float64Array,
    eta: Float64Array,
    residual: Float64Array,
    known: Float64Array | None,
    tolerance: float,
    settled: int,
) -> Float64Array | None:
    """Move ``beta`` (d,) and ``eta`` (n_obs,) to the maximum; fill ``residual``; return the last factor, or None.

    The first ``settled`` coefficients are fitted to the tolerance, with this residual; -1: none is, and the residual is not read.
    """
    first, penalty = family.free, family.penalty(len(design))
    mean, variance = family.moments(eta)
    factor, before = _bordered(known, design, family.weights * variance, penalty), np.inf
    if settled < 0:
        gradient = design @ (family.weights * (family.response - mean)) - penalty * beta
    else:
        gradient = np.concatenate((np.zeros(settled), design[settled:] @ residual))
    pair: tuple[Float64Array, Float64Array] | None = None  # the last step, and the decrease of the gradient along it
    single, made = True, -2  # the latter: step at which a float32 factor was made
    for count in range(MAX_STEPS):
        fresh = factor is None
        if factor is None:
            weights, pair = family.weights * variance, None
            if single:
                factor = curvature_factor(design, weights, penalty, np.float32)
                single = factor is not None
            factor = curvature_at(design, weights, penalty) if factor is None else factor
            made = count if single else -2
        step = _corrected(factor, gradient, pair)
        decrement = float(gradient @ step)
        if decrement > SLOW * before and not fresh:
            single = single and count > made + 1  # the float32 factor served one step only: the columns may be nearly dependent
            factor = None
            continue
        move, length = step @ design, 1.0
        beta += step
        eta += move
        mean, variance = family.moments(eta)
        if decrement * (decrement / before if before < np.inf else 1.0) <= tolerance:
            break
        before, old = decrement, gradient
        gradient = design @ (family.weights * (family.response - mean)) - penalty * beta
        pair = (step, old - gradient)
        slope = float(gradient @ step)
        if not (slope >= 0.0 or (slope >= -OVERSHOT * decrement and np.abs(move[family.weights > 0.0]).max(initial=0.0) <= SMALL)):
            pair = None
            beta -= step
            eta -= move
            length = _growing_length(family, eta, move, beta[first:], step[first:])
            beta += length * step
            eta += length * move
            mean, variance = family.moments(eta)
            gradient = design @ (family.weights * (family.response - mean)) - penalty * beta
            if not length:
                if fresh and not single:
                    break
                single = single and not fresh
                factor, before = None, np.inf
    np.multiply(family.weights, family.response - mean, out=residual)
    if first:  # centre: the fit makes the sum vanish up to its tolerance
        residual -= family.weights * (np.add.reduce(residual) / family.total)
    return factor


def _corrected(factor: Float64Array, gradient: Float64Array, pair: tuple[Float64Array, Float64Array] | None) -> Float64Array:
    """Return the step: the inverse of the curvature, corrected by ``pair``, times the gradient."""
    if pair is None or not (product := float(pair[0] @ pair[1])) > 0.0:
        return np.asarray(lapack.dpotrs(factor, gradient)[0])
    last, fall = pair
    along = float(last @ gradient) / product
    step = lapack.dpotrs(factor, gradient - along * fall)[0]
    return np.asarray(step + (along - float(fall @ step) / product) * last)


def likelihood(family: GLM, at: Coefficients) -> float:
    """Return the penalised log-likelihood, up to a constant of the data."""
    if not native.extension or family.native is None:
        each = family.response * at.eta - family.partition(at.eta)
        return float(family.weights @ each) - 0.5 * family.ridge * float(at.coef @ at.coef)
    return native.extension.likelihood(family.native, at.eta, family.response, family.weights, at.coef, family.ridge)


def roots(family: GLM, eta: Float64Array) -> tuple[Float64Array, float]:
    """Return the square roots of the weighted variances at ``eta`` (n_obs,), and the largest weighted variance."""
    if not native.extension or family.native is None:
        variances = family.weights * family.moments(eta)[1]
        return np.sqrt(variances), float(variances.max())
    out = np.empty(len(eta))
    return out, native.extension.roots(family.native, eta, family.weights, out)


@dataclass(frozen=True, slots=True)
class Curvature:
    """The penalised curvature of a fit and of columns that may be added to it.

    Attributes
    ----------
    left : (c, c) float64
        Curvature of the columns after projecting out the fit, divided by ``unit``.
    factor : (d, d) float64
        Upper Cholesky factor of the curvature of the fit.
    above : (d, c) float64
        The block beside ``factor`` in the factor of the curvature of all columns.
    unit : float
    """

    left: Float64Array
    factor: Float64Array
    above: Float64Array
    unit: float

    def extended(self, columns: IndexArray, directions: Float64Array) -> Float64Array:
        """Return the upper factor of the fit with ``columns`` (m,) added.

        ``directions`` (m, c) are the coordinates of all columns along each of ``columns``: rows of the factor of ``left``.
        """
        size, more = len(self.factor), len(columns)
        factor = np.zeros((size + more, size + more), order="F")
        factor[:size, :size], factor[:size, size:] = self.factor, self.above[:, columns]
        np.multiply(directions[:, columns], math.sqrt(self.unit), out=factor[size:, size:])  # rounding errors below the diagonal
        return factor


def curvature_left(family: GLM, design: Float64Array, roots: Float64Array, scaled: Float32Array, unit: float) -> Curvature:
    """Return the penalised curvature of columns after projecting out the rows of ``design`` (d, n_obs).

    ``roots`` (n_obs,) are the square roots of the weighted variances. ``scaled`` (d + c, n_obs) has room for the rows of
    ``design``, then the columns, each observation times its root: in float32, because products of float32 columns carry no more
    digits, and this is most of the work.
    """
    size, near = len(design), len(scaled) - len(design)
    if native.extension:
        out, factor, above = np.empty((near, near)), np.zeros((size, size)), np.empty((near, size))
        if native.extension.curvature(design, roots, scaled, (family.ridge, unit, family.free), out, factor, above):
            return Curvature(out, factor.T, above.T, unit)
    np.multiply(design, roots, out=scaled[:size], casting="same_kind")
    gram = (scaled @ scaled.T).astype(np.float64)
    selected, above, left = gram[:size, :size].copy(), gram[:size, size:], gram[size:, size:]
    factor = selected
    if size:
        selected.reshape(-1)[:: size + 1] += family.penalty(size)
        factor, failed = lapack.dpotrf(selected)
        if failed:  # nearly dependent: float32 does not suffice
            factor = curvature_at(design, roots * roots, family.penalty(size))
        above = lapack.dtrtrs(factor, above, trans=1)[0]
        left -= above.T @ above
    left = left / unit
    left.reshape(-1)[:: len(left) + 1] += family.ridge / unit
    return Curvature(left, factor, above, unit)


def curvature_at(design: Float64Array, weights: Float64Array, penalty: Float64Array) -> Float64Array:
    """Return the factor of ``design diag(weights) design' + diag(penalty)``; ``weights`` (n_obs,) are weighted variances."""
    factor = curvature_factor(design, weights, penalty)
    if factor is None:
        raise np.linalg.LinAlgError(NOT_DEFINITE)
    return factor


def curvature_factor(
    design: Float64Array, weights: Float64Array, penalty: Float64Array, dtype: type = np.float64
) -> Float64Array | None:
    """Return the same from products in ``dtype``; None where the matrix is not positive definite."""
    scaled: AnyArray = (design * np.sqrt(weights)).astype(dtype, copy=False)
    matrix = (scaled @ scaled.T).astype(np.float64)
    matrix.flat[:: len(matrix) + 1] += penalty + 1e-12 * (1.0 + np.trace(matrix) / len(matrix))
    factor, failed = lapack.dpotrf(matrix)
    return None if failed else np.asarray(factor)


def _bordered(
    known: Float64Array | None, design: Float64Array, weights: Float64Array, penalty: Float64Array
) -> Float64Array | None:
    """Return ``known``, the factor of the first rows of ``design``, extended by the others; None where a new one is as cheap."""
    if known is None or 3 * len(known) < 2 * len(design):
        return None
    size = len(known)
    if size == len(design):
        return known
    cross = design @ (design[size:] * weights).T
    corner = cross[size:] + np.diag(penalty[size:])
    above = lapack.dtrtrs(known, cross[:size], trans=1)[0]
    below, failed = lapack.dpotrf(corner - above.T @ above)
    if failed:  # dependent columns, or a factor too old
        return None
    factor = np.zeros((len(design), len(design)), order="F")
    factor[:size, :size], factor[:size, size:], factor[size:, size:] = known, above, below
    return factor


def _growing_length(family: GLM, eta: Float64Array, move: Float64Array, coef: Float64Array, step: Float64Array) -> float:
    """Return 1, 1/2, 1/4, ...: the first length of the step that increases the likelihood; 0 when none does."""
    value, length = family.likelihood(eta, coef), 1.0
    while not family.likelihood(eta + length * move, coef + length * step) > value:  # concave: a short enough step always does
        length *= 0.5
        if length < 1e-10:
            return 0.0
    return length
