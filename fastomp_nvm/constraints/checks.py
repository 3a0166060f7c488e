"""Checks of constructor arguments: each returns the value in a fixed type or raises ``ConstraintError``."""

from __future__ import annotations

import math
import operator
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import AnyArray, BoolArray, IndexArray
from fastomp_nvm.errors import ConstraintError

__all__ = ["array_of", "finite_number", "mask_of", "whole_number", "whole_numbers"]


def whole_number(value: Any, what: str, *, minimum: int = 0, maximum: float = math.inf) -> int:
    """Return ``value`` as an int between the limits."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ConstraintError(f"{what} is {value!r}: expected a whole number")
    if number < minimum:
        raise ConstraintError(f"{what} is {number}: expected at least {minimum}")
    if number > maximum:
        raise ConstraintError(f"{what} is {number}: expected at most {maximum}")
    return number


def array_of(values: npt.ArrayLike, what: str) -> AnyArray:
    """Return ``values`` as an array of numbers or booleans; ragged lists and other types are errors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy before 1.24 warns about ragged lists and returns objects
            array = np.asarray(values)
    except ValueError:
        raise ConstraintError(f"{what} are lists of different lengths: expected a table") from None
    if array.size and array.dtype.kind not in "biuf":
        raise ConstraintError(f"{what} are of type {array.dtype}: expected numbers")
    return array


def whole_numbers(values: npt.ArrayLike, what: str, *, length: int | None = None, minimum: int = 0) -> IndexArray:
    """Return ``values`` as a read-only one-dimensional int64 array of the given length, no entry below ``minimum``."""
    array = array_of(values, what)
    if array.ndim != 1:
        raise ConstraintError(f"{what} have shape {array.shape}: expected one dimension")
    if array.size and array.dtype.kind not in "iu":
        raise ConstraintError(f"{what} are of type {array.dtype}: expected whole numbers")
    if length is not None and len(array) != length:
        raise ConstraintError(f"{what} have {len(array)} entries: expected {length}")
    if array.size and array.min() < minimum:
        raise ConstraintError(f"{what} hold {array.min()} at position {array.argmin()}: expected at least {minimum}")
    checked = array.astype(np.int64)
    checked.flags.writeable = False
    return checked


def mask_of(values: npt.ArrayLike, what: str, length: int) -> BoolArray:
    """Return ``values`` as a one-dimensional array of booleans of the given length."""
    mask = array_of(values, what)
    if mask.shape != (length,) or mask.dtype != np.bool_:
        raise ConstraintError(f"{what} has shape {mask.shape} and type {mask.dtype}: expected {length} booleans")
    return mask


def finite_number(value: Any, what: str, *, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """Return ``value`` as a finite float between the limits."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConstraintError(f"{what} is {value!r}: expected a number") from None
    if not math.isfinite(number) or not minimum <= number <= maximum:
        limits = f" of at least {minimum:g}" if maximum == math.inf else f" from {minimum:g} to {maximum:g}"
        raise ConstraintError(f"{what} is {number:g}: expected a finite number{limits if minimum > -math.inf else ''}")
    return number
