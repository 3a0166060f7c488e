"""Cholesky factors of Gram matrices without linearly dependent columns."""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.arrays import Float64Array, IndexArray

__all__ = ["DEPENDENT", "DEPENDENT_IN_FLOAT32", "cholesky_of_independent"]

#: A unit column whose squared remainder is below this lies in the span of the others and contributes nothing.
DEPENDENT = 1e-10

#: The same for products accumulated in float32, which carry about eight digits.
DEPENDENT_IN_FLOAT32 = 1e-6


def cholesky_of_independent(gram: Float64Array, tolerance: float) -> tuple[Float64Array, IndexArray]:
    """Return U and ``kept`` with ``gram[kept, kept] = U'U``, leaving out columns in the span of earlier ones.

    Parameters
    ----------
    gram : (d, d) float64
        Gram matrix of columns of about unit length, possibly after projecting out others.
    tolerance : float
        Squared remainder below which a column counts as dependent.
    """
    factor, failed = lapack.dpotrf(gram, lower=0, clean=1)
    if not failed and factor.diagonal().min(initial=1.0) ** 2 > tolerance:
        return factor, np.arange(len(gram))
    # The careful path, one column at a time.
    factor = np.zeros((0, 0))
    kept: list[int] = []
    for column in range(len(gram)):
        above = lapack.dtrtrs(factor, gram[:, column][kept], trans=1)[0] if kept else np.empty(0)
        pivot = float(gram[column, column] - above @ above)
        if pivot > tolerance:
            kept.append(column)
            grown = np.zeros((len(kept), len(kept)))
            grown[:-1, :-1], grown[:-1, -1], grown[-1, -1] = factor, above, math.sqrt(pivot)
            factor = grown
    return factor, np.array(kept, dtype=np.int64)
