"""The sweep kernel in numba, for machines without a C compiler.

Row-invariant: every pair goes through one and the same compiled loop. LLVM may reorder the sum inside a pair, but its code sees the
number of observations only. That takes a single specialisation per pairing of types, so rows always arrive contiguous, aligned and
read-only; a block of rows that is not so is copied first, and float16, which numba cannot compute with, is widened.

Compiled on first use and cached below ``FASTOMP_HOME`` (``~/.fastomp``). Knows no store and no thread; the GIL is released.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import numba
import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.home import home
from fastomp_nvm.matrix.kernels import numpy_kernel

__all__ = ["KERNEL_ID", "dots", "dots_at", "dots_int8", "gather"]

_config: Any = numba.config  # made of environment variables when imported, so unknown to type checkers
_llvm: Any = importlib.import_module("llvmlite.binding")

#: LLVM sums in vectors as wide as the processor's, so its name belongs to the identity of the bits.
KERNEL_ID = f"numba-{numba.__version__}-{_config.CPU_NAME or _llvm.get_host_cpu_name()}-1"

_CHUNK = 1024  # observations summed in the residuals' precision before they join the float64 total
_TILE_BYTES = 1 << 20  # rows copied at a time, where they must be copied


def dots(rows: AnyArray, residuals: AnyArray, out: Float64Array) -> None:
    """Fill ``out[i, j]`` with the dot product of ``rows[i]`` and ``residuals[j]``.

    Parameters
    ----------
    rows : (c, n_obs) float16, float32 or float64
    residuals : (m, n_obs) float32 or float64, at least as wide as ``rows``
        Also the precision of the products; sums of chunks are float64.
    out : (c, m) float64
    """
    numpy_kernel.check_dots(rows, residuals, out)
    residuals = _frozen(residuals)
    for top, tile in _tiles(rows):
        _dots(tile, residuals, out[top : top + len(tile)])


def dots_at(rows: AnyArray, index: IndexArray, residuals: AnyArray, out: Float64Array) -> None:
    """Fill ``out[i, j]`` with the dot product of ``rows[index[i]]`` and ``residuals[j]``; otherwise as :func:`dots`."""
    for top, tile in numpy_kernel.copied_tiles(rows, index, out):
        dots(tile, residuals, out[top : top + len(tile)])


def dots_int8(rows: AnyArray, residuals: AnyArray, out: IndexArray) -> None:
    """Fill ``out[i, j]`` with the exact integer dot product of ``rows[i]`` and ``residuals[j]``.

    Parameters
    ----------
    rows : (c, n_obs) int8
    residuals : (m, n_obs) int16, at most 8191 in size
    out : (c, m) int64
    """
    numpy_kernel.check_dots_int8(rows, residuals, out)
    residuals = _frozen(residuals)
    for top, tile in _tiles(rows):
        _dots_int8(tile, residuals, out[top : top + len(tile)])


gather = numpy_kernel.gather


def _tiles(rows: AnyArray) -> Iterator[tuple[int, AnyArray]]:
    """Yield the rows as read-only aligned C-contiguous blocks, each with its first row's position: uncopied where possible."""
    if rows.dtype != np.float16 and rows.flags.c_contiguous:
        yield 0, _frozen(rows)
        return
    height = max(1, _TILE_BYTES // max(1, rows.shape[1] * rows.itemsize))
    for top in range(0, len(rows), height):
        tile = np.ascontiguousarray(rows[top : top + height])
        if tile.dtype == np.float16:
            halves, tile = _frozen(tile.view(np.uint16)), np.empty(tile.shape, dtype=np.float32)
            _widen(halves, numpy_kernel.half_table(), tile)
        yield top, _frozen(tile)


def _frozen(array: AnyArray) -> AnyArray:
    """Return a read-only view, or an aligned copy where the array is unaligned: numba compiles anew for either property."""
    view = np.require(array, requirements="A").view(np.ndarray)
    view.flags.writeable = False
    return view


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compile lazily, cached below ``FASTOMP_HOME`` unless the user told numba another place."""
    chosen = _config.CACHE_DIR
    compiler: Any = functools.partial(numba.njit, nogil=True, fastmath={"reassoc", "nsz", "contract"})
    try:
        _config.CACHE_DIR = chosen or str(home() / "numba")  # made here, and for this user alone: numba would let everybody in
        return cast("Callable[..., None]", compiler(cache=True)(function))
    except (OSError, RuntimeError):  # there is no place to write to, or numba found none
        return cast("Callable[..., None]", compiler()(function))
    finally:
        _config.CACHE_DIR = chosen


@_compiled
def _dots(rows: AnyArray, residuals: AnyArray, out: Float64Array) -> None:
    """Sum each pair in chunks."""
    n_obs = rows.shape[1]
    out[:] = 0.0
    for i in range(rows.shape[0]):
        for begin in range(0, n_obs, _CHUNK):
            row = rows[i, begin : min(begin + _CHUNK, n_obs)]
            for j in range(residuals.shape[0]):
                residual = residuals[j, begin : min(begin + _CHUNK, n_obs)]
                total = residuals.dtype.type(0)
                for k in range(row.shape[0]):
                    total += row[k] * residual[k]
                out[i, j] += total


@_compiled
def _dots_int8(rows: AnyArray, residuals: AnyArray, out: IndexArray) -> None:
    """Sum each pair in int64."""
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(residuals.shape[0]):
            residual = residuals[j]
            total = 0
            for k in range(row.shape[0]):
                total += row[k] * residual[k]
            out[i, j] = total


@_compiled
def _widen(halves: AnyArray, table: AnyArray, out: AnyArray) -> None:
    """Look up the float32 value of each float16 bit pattern."""
    for i in range(halves.shape[0]):
        for k in range(halves.shape[1]):
            out[i, k] = table[halves[i, k]]
