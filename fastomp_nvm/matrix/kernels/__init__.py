"""The sweep kernels, and which of them runs here.

A kernel computes ``out[i, j] = rows[i] . residuals[j]``. Every kernel is *row-invariant*: the bits of ``out[i, j]`` depend on the
values of that row, that residual and the number of observations, and on nothing else: not on position, company, alignment, stride
or thread. Two kernels agree to rounding, not to bits, so results name the kernel by its ``id``.

In order of preference: ``c`` (compiled extension, AVX2 where the processor has it), ``c-generic`` (the same extension without
AVX2: the bits of a machine that lacks it), ``numba``, ``numpy``. Knows no store and no thread.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.errors import RequestError, UnavailableError

__all__ = ["INT8_RESIDUAL_LIMIT", "Kernel", "available", "kernel"]

#: Largest size of an entry of a residual of ``dots_int8``.
INT8_RESIDUAL_LIMIT = 8191


@dataclass(frozen=True, slots=True)
class Kernel:
    """The functions of one kernel; all raise ``ValueError`` on arguments that do not fit, before writing anything.

    Attributes
    ----------
    id : str
        Names the bits: equal ids mean equal sums.
    dots : callable
        ``dots(rows, residuals, out)``: rows (c, n_obs) float16, float32 or float64, the entries of a row side by side, any row
        stride and alignment; residuals (m, n_obs) C-contiguous float32 or float64, at least as wide; out (c, m) C-contiguous
        float64. Residuals of float32 mean float32 products in short sums, of float64 mean float64 throughout.
    dots_at : callable
        ``dots_at(rows, index, residuals, out)``: ``dots`` of ``rows[index[i]]``, in place; index (c,) int64.
    dots_int8 : callable
        ``dots_int8(rows, residuals, out)``: int8 rows, int16 residuals of at most ``INT8_RESIDUAL_LIMIT``, int64 out; exact.
    gather : callable
        ``gather(rows, index, out)``: copies ``rows[index[i]]`` to ``out[i]``; index (k,) int64.
    """

    id: str
    dots: Callable[[AnyArray, AnyArray, Float64Array], None]
    dots_at: Callable[[AnyArray, IndexArray, AnyArray, Float64Array], None]
    dots_int8: Callable[[AnyArray, AnyArray, IndexArray], None]
    gather: Callable[[AnyArray, IndexArray, AnyArray], None]


def kernel(name: str | None = None) -> Kernel:
    """Return a kernel by name.

    Parameters
    ----------
    name : {"c", "c-generic", "numba", "numpy"}, optional
        By default what the environment variable ``FASTOMP_KERNEL`` names, else the first that is available.

    Returns
    -------
    Kernel
    """
    wanted = name or os.environ.get("FASTOMP_KERNEL") or None
    if wanted is None:
        return _preferred()
    if wanted not in _LOADERS:
        raise RequestError(f"unknown kernel {wanted!r}: expected one of {', '.join(_LOADERS)}")
    return _load(wanted)


def available() -> dict[str, str]:
    """Return, for each kernel name in order of preference, its id or why it is missing."""
    found = {}
    for name in _LOADERS:
        try:
            found[name] = _load(name).id
        except UnavailableError as error:
            found[name] = str(error)
    return found


def _load_c() -> Kernel:
    """Load the compiled extension at its best."""
    native = importlib.import_module("fastomp_nvm.matrix.kernels._native")
    return Kernel(native.kernel_id, native.dots, native.dots_at, native.dots_int8, native.gather)


def _load_c_generic() -> Kernel:
    """Load the compiled extension without AVX2."""
    native = importlib.import_module("fastomp_nvm.matrix.kernels._native")

    def dots(rows: AnyArray, residuals: AnyArray, out: Float64Array) -> None:
        native.dots(rows, residuals, out, True)

    def dots_at(rows: AnyArray, index: IndexArray, residuals: AnyArray, out: Float64Array) -> None:
        native.dots_at(rows, index, residuals, out, True)

    def dots_int8(rows: AnyArray, residuals: AnyArray, out: IndexArray) -> None:
        native.dots_int8(rows, residuals, out, True)

    return Kernel(native.plain_kernel_id, dots, dots_at, dots_int8, native.gather)


def _load_python(module_name: str) -> Kernel:
    """Load a kernel written in Python."""
    module = importlib.import_module(module_name)
    return Kernel(module.KERNEL_ID, module.dots, module.dots_at, module.dots_int8, module.gather)


_LOADERS: Mapping[str, Callable[[], Kernel]] = MappingProxyType(
    {
        "c": _load_c,
        "c-generic": _load_c_generic,
        "numba": functools.partial(_load_python, "fastomp_nvm.matrix.kernels.numba_kernel"),
        "numpy": functools.partial(_load_python, "fastomp_nvm.matrix.kernels.numpy_kernel"),
    }
)

_REMEDIES = MappingProxyType(
    {
        "c": "reinstall fastomp-nvm on a machine with a C compiler",
        "c-generic": "reinstall fastomp-nvm on a machine with a C compiler",
        "numba": "pip install 'fastomp-nvm[fast]'",
        "numpy": "reinstall numpy",
    }
)


@functools.cache
def _load(name: str) -> Kernel:
    """Return the kernel ``name``, or raise ``UnavailableError`` with the remedy."""
    try:
        return _LOADERS[name]()
    except ImportError as error:
        raise UnavailableError(f"the {name} kernel does not load here ({error}): {_REMEDIES[name]}") from error


@functools.cache
def _preferred() -> Kernel:
    """Return the first kernel that loads."""
    for name in _LOADERS:
        try:
            return _load(name)
        except UnavailableError:
            continue
    raise UnavailableError("no sweep kernel loads here: reinstall fastomp-nvm and numpy")
