"""The sweep kernel in NumPy: the reference, and the fallback without the compiled extension.

Row-invariant: products are computed element by element and summed by ``np.add.reduce`` along the rows of a work tile of fixed
shape, so the pairwise summation of a row does not depend on the number of rows or its position. BLAS is not used for floats,
because its bits change with width, position and threads. Sums of integers are exact in any order, so ``dots_int8`` uses it.
"""

from __future__ import annotations

import numpy as np

from fastomp_nvm.arrays import AnyArray, DType, Float64Array, IndexArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.matrix.moments import moments as moments_of

__all__ = ["INT8_RESIDUAL_LIMIT", "KERNEL_ID", "dots", "dots_at", "dots_codes", "dots_int8", "gather", "measure", "unpacked"]

KERNEL_ID = "numpy-1"

#: Largest absolute value in the residuals of ``dots_int8``.
INT8_RESIDUAL_LIMIT = 8191

#: Types of rows for float32 residuals, in native byte order; float64 residuals go with any real numbers.
_SINGLE = (np.float16, np.float32)

_TILE_ROWS = 32
_CHUNK = 1024  # observations summed in the precision of the residuals before they are added to the float64 total
_COPY_BYTES = 1 << 18  # size of the copies of rows selected by index, so that they stay in the cache


def dots(rows: AnyArray, residuals: AnyArray, out: Float64Array) -> None:
    """Fill ``out[i, j]`` with the dot product of ``rows[i]`` and ``residuals[j]``.

    Parameters
    ----------
    rows : (c, n_obs) real numbers
    residuals : (m, n_obs) float64, or float32 where rows are float16 or float32
        Products and the sums of a chunk have this precision; chunks are added in float64.
    out : (c, m) float64
    """
    real = rows.dtype.kind in "fiub" and rows.itemsize <= 8 and rows.dtype.isnative
    if not (real and residuals.dtype == np.float64) and not (residuals.dtype == np.float32 and rows.dtype in _SINGLE):
        raise DataError(
            f"rows of {rows.dtype} do not fit residuals of {residuals.dtype}: expected native real numbers of up to 8 bytes and "
            "float64 residuals, or float32 residuals for rows of float16 and float32"
        )
    _check_layout(rows, residuals, out, np.dtype(np.float64))
    out[...] = 0.0
    n_obs = rows.shape[1]
    work = np.zeros((_TILE_ROWS, _CHUNK), dtype=residuals.dtype)
    for top in range(0, len(rows), _TILE_ROWS):
        height = min(_TILE_ROWS, len(rows) - top)
        for begin in range(0, n_obs, _CHUNK):
            length = min(_CHUNK, n_obs - begin)
            tile = rows[top : top + height, begin : begin + length]
            for j, residual in enumerate(residuals[:, begin : begin + length]):
                np.multiply(tile, residual, out=work[:height, :length])
                # All rows of the tile, also unused ones: the loop order of the reduction must not depend on their number.
                sums = np.add.reduce(work[:, :length], axis=1)
                out[top : top + height, j] += sums[:height]


def dots_at(rows: AnyArray, index: IndexArray, residuals: AnyArray, out: Float64Array) -> None:
    """Fill ``out[i, j]`` with the dot product of ``rows[index[i]]`` and ``residuals[j]``; otherwise as :func:`dots`."""
    if len(out) != len(index):
        raise DataError(f"out has {len(out)} rows: expected {len(index)}, one per index")
    height = max(1, _COPY_BYTES // max(1, rows.shape[1] * rows.itemsize))
    for top in range(0, len(index), height):
        selected = index[top : top + height]
        tile = np.empty((len(selected), rows.shape[1]), dtype=rows.dtype)
        gather(rows, selected, tile)
        dots(tile, residuals, out[top : top + height])


def dots_int8(rows: AnyArray, residuals: AnyArray, out: IndexArray) -> None:
    """Fill ``out[i, j]`` with the exact integer dot product of ``rows[i]`` and ``residuals[j]``.

    Parameters
    ----------
    rows : (c, n_obs) int8
    residuals : (m, n_obs) int16, at most ``INT8_RESIDUAL_LIMIT`` in absolute value
    out : (c, m) int64
    """
    if rows.dtype != np.int8 or residuals.dtype != np.int16:
        raise DataError(f"rows of {rows.dtype} do not fit residuals of {residuals.dtype}: expected int8 and int16")
    _check_layout(rows, residuals, out, np.dtype(np.int64))
    if residuals.size and max(int(residuals.max()), -int(residuals.min())) > INT8_RESIDUAL_LIMIT:
        raise DataError(f"an int16 residual exceeds {INT8_RESIDUAL_LIMIT} in size: rescale the residuals")
    # float64 sums of integers below 2**20 are exact up to 2**33 observations.
    factors = np.ascontiguousarray(residuals.T, dtype=np.float64)
    for top in range(0, len(rows), _TILE_ROWS):
        out[top : top + _TILE_ROWS] = rows[top : top + _TILE_ROWS].astype(np.float64) @ factors


def dots_codes(codes: AnyArray, values: Float64Array, residuals: AnyArray, out: Float64Array) -> None:
    """Fill ``out[i, j]`` with the dot product of the genotypes in ``codes[i]`` and ``residuals[j]``.

    Parameters
    ----------
    codes : (c, bytes) uint8
        Four per byte, the first in the lowest bits.
    values : (c, 4) float64
        What each code stands for.
    residuals : (m, n_obs) float32 or float64
        Genotypes become numbers of this type.
    out : (c, m) float64
    """
    n_obs = residuals.shape[-1]
    if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != -(-n_obs // 4) or values.shape != (len(codes), 4):
        raise DataError(
            f"codes are {codes.dtype} {codes.shape}: expected uint8, four per byte of {n_obs} observations, with 4 values"
        )
    if residuals.dtype not in (np.float32, np.float64) or len(out) != len(codes):
        raise DataError(f"residuals are {residuals.dtype}, out is {out.shape}: expected floats, and a row of out per row of codes")
    height = max(1, _COPY_BYTES // max(1, n_obs * residuals.itemsize))
    for top in range(0, len(codes), height):
        here = slice(top, top + height)
        apart = unpacked(codes[here])[:, :n_obs]
        dots(np.take_along_axis(values[here], apart, axis=1).astype(residuals.dtype), residuals, out[here])


def unpacked(codes: AnyArray) -> IndexArray:
    """Return codes of two bits in bytes, the first in the lowest bits, one per entry: (c, 4 bytes)."""
    shifted = codes[:, :, np.newaxis] >> np.array([0, 2, 4, 6], dtype=np.uint8)
    return np.asarray((shifted & 3).reshape(len(codes), -1), dtype=np.int64)


def gather(rows: AnyArray, index: IndexArray, out: AnyArray) -> None:
    """Copy ``rows[index[i]]`` to ``out[i]``.

    Parameters
    ----------
    rows : (c, n_obs) array
    index : (k,) int64, each in ``range(c)``
    out : (k, n_obs) array of the same type, or float64
    """
    if index.dtype != np.int64 or index.ndim != 1:
        raise DataError(f"index has type {index.dtype} and {index.ndim} dimensions: expected int64 and 1")
    if rows.ndim != 2 or out.shape != (len(index), rows.shape[1]) or out.dtype not in (rows.dtype, np.float64):
        raise DataError(f"out is {out.dtype} {out.shape}: expected the type of rows, or float64, and one row per index")
    if not out.flags.writeable:
        raise DataError("out is read-only: expected a writable array")
    if index.size and not (int(index.min()) >= 0 and int(index.max()) < len(rows)):
        raise DataError(f"indices reach from {index.min()} to {index.max()}: expected 0 to {len(rows) - 1}")
    for position, row in enumerate(index):
        out[position] = rows[row]


def measure(rows: AnyArray, residuals: AnyArray, moments: Float64Array, out: Float64Array) -> None:
    """Fill ``moments`` (4, c) with mean, centred norm and range of each of ``rows``, and ``out`` as :func:`dots`."""
    found = moments_of(rows)
    moments[...] = found.mean, found.norm, found.minimum, found.maximum
    dots(rows, residuals, out)


def _check_layout(rows: AnyArray, residuals: AnyArray, out: AnyArray, result: DType) -> None:
    """Check shapes, strides and the type of ``out``."""
    if rows.ndim != 2 or residuals.ndim != 2 or rows.shape[1] != residuals.shape[1]:
        raise DataError(f"rows are {rows.shape} and residuals {residuals.shape}: expected matrices of equal width")
    if len(rows) > 1 and rows.shape[1] > 1 and rows.itemsize not in rows.strides:
        raise DataError(f"the entries of rows are {rows.strides} bytes apart: expected contiguous rows, or contiguous columns")
    if not residuals.flags.c_contiguous:
        raise DataError("residuals are not C-contiguous: pass numpy.ascontiguousarray(residuals)")
    if out.dtype != result or not (out.flags.carray and out.flags.writeable):
        raise DataError(f"out is not an aligned writable C-contiguous {result} array")
    if out.shape != (len(rows), len(residuals)):
        raise DataError(f"out is {out.shape}: expected {(len(rows), len(residuals))}, rows by residuals")
