"""The sweep kernels: ``out[i, j] = rows[i] . residuals[j]``.

Every kernel is *row-invariant*: the bits of ``out[i, j]`` depend on the values of that row and that residual and on the number of
observations, not on position, neighbouring rows, alignment, layout, stride or thread. Two kernels agree to rounding, not to bits,
so results record the ``id`` of their kernel.

In order of preference: ``c`` (compiled extension, AVX2 where the processor has it), ``c-generic`` (the same extension without
AVX2, with the bits of a machine that lacks it), ``numpy`` (the reference).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.errors import RequestError, UnavailableError
from fastomp_nvm.matrix.kernels import numpy_kernel
from fastomp_nvm.matrix.kernels.numpy_kernel import INT8_RESIDUAL_LIMIT

__all__ = ["INT8_RESIDUAL_LIMIT", "Kernel", "available", "kernel"]


class Kernel(NamedTuple):
    """The functions of one kernel. All raise ``ValueError`` for arguments that do not fit, before writing anything.

    Attributes
    ----------
    id : str
        Kernels with equal ids compute equal bits.
    dots : callable
        ``dots(rows, residuals, out)``: rows (c, n_obs), each row contiguous or each column (the transpose of an array in C order),
        any stride and alignment; residuals (m, n_obs) C-contiguous; out (c, m) C-contiguous float64. Residuals are float64, and
        everything is computed in float64, for rows of any real numbers of up to 8 bytes; or they are float32, and so are products
        and short sums, for rows of float32 in either layout and float16 in contiguous rows.
    dots_at : callable
        ``dots_at(rows, index, residuals, out)``: ``dots`` of ``rows[index]``, contiguous and not copied; index (c,) int64.
    dots_int8 : callable
        ``dots_int8(rows, residuals, out)``: int8 rows, int16 residuals within ``INT8_RESIDUAL_LIMIT``, int64 out; exact.
    gather : callable
        ``gather(rows, index, out)``: copies ``rows[index[i]]``, in either layout, to ``out[i]``, of the same type or float64; index
        (k,) int64.
    dots_codes : callable
        ``dots_codes(codes, values, residuals, out)``: ``dots`` of genotypes in codes of two bits, uint8 (c, n_obs / 4, rounded
        up), of the type of the residuals; values (c, 4) float64 is what the codes of each row stand for.
    measure : callable
        ``measure(rows, residuals, moments, out)``: ``dots``, and mean, centred norm, minimum and maximum of each row, as
        :func:`~fastomp_nvm.matrix.moments.moments` computes them, in ``moments`` (4, c) C-contiguous float64.
    """

    id: str
    dots: Callable[[AnyArray, AnyArray, Float64Array], None]
    dots_at: Callable[[AnyArray, IndexArray, AnyArray, Float64Array], None]
    dots_int8: Callable[[AnyArray, AnyArray, IndexArray], None]
    dots_codes: Callable[[AnyArray, Float64Array, AnyArray, Float64Array], None]
    gather: Callable[[AnyArray, IndexArray, AnyArray], None]
    measure: Callable[[AnyArray, AnyArray, Float64Array, Float64Array], None]


def kernel(name: str | None = None) -> Kernel:
    """Return a kernel by name.

    Parameters
    ----------
    name : {"c", "c-generic", "numpy"}, optional
        Default: the kernel named by the environment variable ``FASTOMP_KERNEL``, else the first that is available.

    Returns
    -------
    Kernel
    """
    wanted = name or os.environ.get("FASTOMP_KERNEL") or None
    if wanted is None:
        return _load("c" if native.extension else "numpy")
    if wanted not in _LOADERS:
        raise RequestError(f"unknown kernel {wanted!r}: expected one of {', '.join(_LOADERS)}")
    return _load(wanted)


def available() -> dict[str, str]:
    """Return the id of each kernel, or the reason why it is missing, by name in order of preference."""
    found = {}
    for name in _LOADERS:
        try:
            found[name] = _load(name).id
        except UnavailableError as error:
            found[name] = str(error)
    return found


def _compiled(plain: bool) -> Kernel:
    """Return the compiled kernel, ``plain`` without AVX2."""
    if not native.extension:
        name = "c-generic" if plain else "c"
        raise UnavailableError(f"the {name} kernel is not built: install a C compiler, then reinstall fastomp-nvm")
    extension = native.extension

    def dots(rows: AnyArray, residuals: AnyArray, out: Float64Array | IndexArray) -> None:
        extension.dots(rows, None, residuals, out, plain)

    def dots_at(rows: AnyArray, index: IndexArray, residuals: AnyArray, out: Float64Array) -> None:
        extension.dots(rows, index, residuals, out, plain)

    def dots_codes(codes: AnyArray, values: Float64Array, residuals: AnyArray, out: Float64Array) -> None:
        extension.dots_codes(codes, values, residuals, out, plain)

    def measure(rows: AnyArray, residuals: AnyArray, moments: Float64Array, out: Float64Array) -> None:
        extension.moments(rows, None, moments, residuals, out, plain)

    return Kernel(
        extension.plain_kernel_id if plain else extension.kernel_id, dots, dots_at, dots, dots_codes, extension.gather, measure
    )


def _numpy() -> Kernel:
    """Return the kernel in NumPy."""
    each = numpy_kernel
    return Kernel(each.KERNEL_ID, each.dots, each.dots_at, each.dots_int8, each.dots_codes, each.gather, each.measure)


_LOADERS: Mapping[str, Callable[[], Kernel]] = MappingProxyType(
    {"c": functools.partial(_compiled, False), "c-generic": functools.partial(_compiled, True), "numpy": _numpy}
)


@functools.cache
def _load(name: str) -> Kernel:
    """Return the kernel ``name``."""
    return _LOADERS[name]()
