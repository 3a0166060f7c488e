"""Arguments of the compiled code of the objectives, and identifiers of its last bits.

Every computation has a reference in Python, which runs where the extension is not built. The two differ in last bits, so durable
runs record the identifiers ``fits`` and ``rounds``.
"""

from __future__ import annotations

from typing import NamedTuple

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray

__all__ = ["FACTORED", "NOT_DEFINITE", "ColumnArrays", "FitArrays", "Rounds", "fits", "rounds"]

#: Status codes of a compiled fit, beside 0 (no reusable factor): factor available, curvature not positive definite.
FACTORED, NOT_DEFINITE = 1, -1


def fits() -> str:
    """Return the identifier of the last bits of GLM fits."""
    return "c-6" if native.extension else "python-5"


def rounds() -> str:
    """Return the identifier of the last bits of inner iterations over a Gram matrix."""
    return "c-2" if native.extension else "python"


class Rounds(NamedTuple):
    """Inner iterations of Algorithm 1: one with a given sequence, or several that draw their own.

    Attributes
    ----------
    features : (f,) int64
        The candidates X.
    origin : (f,) int64
        0, 1, ..., f - 1; overwritten with the positions of the candidates left.
    added : (r,) int64
        The given sequence, by position. Otherwise r is the number of additions after which the set is full, and the array is
        overwritten with the positions added.
    sizes : (r, 2) int64
        Overwritten with the number of candidates and the number of additions of each iteration that found j*.
    blocked : (f,) int64, optional
        Additions after which each candidate cannot extend the set; None where none is blocked.
    draw : (seed, outer, inner)
        Key of the first draw; ``inner`` grows by one with each iteration.
    threshold, share : float
        t; 1 - epsilon.
    effort : float
        Multiplications after which no further iteration begins.
    given, skip_weak : bool
        Whether ``added`` is given; whether to stop before a member, not the first, whose score is below the threshold.
    """

    features: IndexArray
    origin: IndexArray
    added: IndexArray
    sizes: IndexArray
    blocked: IndexArray | None
    draw: tuple[int, int, int]
    threshold: float
    share: float
    effort: float
    given: bool
    skip_weak: bool


class FitArrays(NamedTuple):
    """A GLM fit of d coefficients, in memory that compiled code overwrites.

    Attributes
    ----------
    family : str
    settings : tuple
        As :func:`fastomp_nvm.objectives.newton.settings` returns them.
    design : (d, n_obs) float64
    response, weights : (n_obs,) float64
    beta : (d,) float64
    eta, residual : (n_obs,) float64
    factor : (d * d,) float64
    """

    family: str
    settings: tuple[float, float, float, float, float, int, int]
    design: Float64Array
    response: Float64Array
    weights: Float64Array
    beta: Float64Array
    eta: Float64Array
    residual: Float64Array
    factor: Float64Array


class ColumnArrays(NamedTuple):
    """Columns in memory: rows ``places`` (c,) of a raw matrix, and their standardisation (c,)."""

    rows: AnyArray
    places: IndexArray
    mean: Float64Array
    scale: Float64Array
    wide: BoolArray
