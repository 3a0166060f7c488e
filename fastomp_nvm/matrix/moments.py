"""Mean, norm and range of columns, and Gram matrices of features, in float64, plain or under observation weights.

Invariant: the moments of a column (or a feature) depend on its values and the weights only, not on neighbours, position, threads
or medium.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array

__all__ = ["ColumnStatistics", "gram", "moments"]

#: Observations converted to float64 at a time. Part of the definition of the sums below: other values change their last bits.
_STEP = 1 << 16
_GRAM_STEP = 1 << 14

#: Entries that NumPy looks at together.
_ENTRIES = 1 << 18


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ColumnStatistics:
    """Per-column moments, each (n_columns,) float64, computed in float64 when the store was built.

    ``norm`` is the Euclidean norm of the *centred* column. ``grams`` holds, for each feature of several columns in feature
    order, the (d, d) Gram matrix of its centred columns. Compared by identity, so that derived data can be cached by it.
    """

    mean: Float64Array
    norm: Float64Array
    minimum: Float64Array
    maximum: Float64Array
    grams: Sequence[Float64Array] = ()


def moments(columns: AnyArray, weights: Float64Array | None = None) -> ColumnStatistics:
    """Return mean, centred norm and range of each column.

    Parameters
    ----------
    columns : (m, n_obs) array of real numbers
        Finite values; each row contiguous, or each column (the transpose of an array in C order).
    weights : (n_obs,) float64, optional
        Observation weights, not all zero. Observations of weight 0 are ignored, also in the range.

    Returns
    -------
    ColumnStatistics
        Exact for a constant column (norm 0); not finite where the values are too large for float64 sums.
    """
    n_columns, n_obs = columns.shape
    if native.extension:
        found = np.empty((4, n_columns))
        native.extension.moments(columns, None if weights is None else np.ascontiguousarray(weights), found, None, None, False)
        return ColumnStatistics(*found)
    most = max(_ENTRIES // max(n_obs, 1), 1)
    if n_columns > most:
        parts = [moments(columns[first : first + most], weights) for first in range(0, n_columns, most)]
        found = np.hstack([(part.mean, part.norm, part.minimum, part.maximum) for part in parts])
        return ColumnStatistics(*found)
    if columns.dtype.kind != "f":
        columns = columns.astype(np.float64)
    counted: BoolArray | bool = True if weights is None else weights > 0
    minimum = columns.min(axis=1, where=counted, initial=np.inf).astype(np.float64)
    maximum = columns.max(axis=1, where=counted, initial=-np.inf).astype(np.float64)
    total, squares = np.zeros(n_columns), np.zeros(n_columns)
    weight = float(n_obs) if weights is None else float(weights.sum())
    buffer = np.empty(n_columns * min(n_obs, _STEP))  # used again and again: fresh pages would cost more than the sums
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, n_obs, _STEP):
            some = columns[:, first : first + _STEP]
            piece = buffer[: some.size].reshape(some.shape)  # C order: sums run row by row
            piece[...] = some
            if weights is not None:
                _weigh(piece, weights, first)
            total += piece.sum(axis=1)
        mean = np.where(minimum == maximum, minimum, total / weight)
        # Scaling by a power of two is exact, and keeps the squares of very large and very small values in range.
        _, exponent = np.frexp(np.maximum(maximum - mean, mean - minimum))
        exponent = np.clip(exponent, -1000, 1000)
        scale = np.ldexp(1.0, -exponent)
        for first in range(0, n_obs, _STEP):
            some = columns[:, first : first + _STEP]
            piece = buffer[: some.size].reshape(some.shape)
            piece[...] = some
            piece -= mean[:, np.newaxis]
            piece *= scale[:, np.newaxis]
            np.multiply(piece, piece, out=piece)
            if weights is not None:
                _weigh(piece, weights, first)
            squares += piece.sum(axis=1)
        norm = np.where(minimum == maximum, 0.0, np.ldexp(np.sqrt(squares), exponent))
    return ColumnStatistics(mean, norm, minimum, maximum)


def gram(columns: AnyArray, mean: Float64Array, weights: Float64Array | None = None) -> Float64Array:
    """Return the Gram matrix of one feature's centred columns.

    Parameters
    ----------
    columns : (d, n_obs) array
    mean : (d,) float64
    weights : (n_obs,) float64, optional

    Returns
    -------
    (d, d) float64, symmetric
    """
    width, n_obs = columns.shape
    total = np.zeros((width, width))
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, n_obs, _GRAM_STEP):
            piece = np.array(columns[:, first : first + _GRAM_STEP], dtype=np.float64, order="C")
            piece -= mean[:, np.newaxis]
            # Row by row and not as a matrix product: the last bits of BLAS depend on threads and alignment.
            for row in range(width):
                products = piece[row:] * piece[row]
                if weights is not None:
                    _weigh(products, weights, first)
                total[row, row:] += products.sum(axis=1)
    upper = np.triu(total, 1)
    return np.asarray(upper + upper.T + np.diag(np.diag(total)))


def _weigh(piece: Float64Array, weights: Float64Array, first: int) -> None:
    """Scale the observations from ``first`` onward by their weights, in place."""
    here = weights[first : first + piece.shape[1]]
    piece *= here
    piece[:, here == 0.0] = 0.0  # observations without weight may have overflowed
