"""Targets from numbers or text; text becomes classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, first_missing
from fastomp_nvm.errors import DataError
from fastomp_nvm.stores.contract import Target

__all__ = ["make_target"]


def make_target(name: str, values: Any) -> Target:
    """Return a target with these values.

    Parameters
    ----------
    name : str
        Used in messages.
    values : (n_obs,) array, series or sequence
        Numbers or booleans, or text, whose sorted distinct values become the classes.

    Returns
    -------
    Target

    Raises
    ------
    DataError
        The values are not one-dimensional, mix text and numbers, or one is missing or infinite.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"target {name!r} has shape {array.shape}: one value per observation is needed")
    if array.dtype.kind == "O":
        array = _homogeneous(name, array)
    if array.dtype.kind in "US":
        labels, codes = np.unique(array.astype(str), return_inverse=True)
        return Target(np.ascontiguousarray(codes.reshape(-1), dtype=np.float64), tuple(map(str, labels)))
    if array.dtype.kind not in "fiub":
        raise DataError(f"target {name!r} holds {array.dtype}: numbers or text are needed")
    numbers = np.array(array, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if bad.size:
        what = "missing" if np.isnan(numbers[bad[0]]) else "infinite"
        raise DataError(f"row {bad[0] + 1} of target {name!r} is {what}: remove the observation or fill the value in")
    return Target(numbers)


def _homogeneous(name: str, array: AnyArray) -> AnyArray:
    """Return an array of objects as text or as numbers."""
    texts = np.fromiter((isinstance(value, (str, bytes)) for value in array), dtype=bool, count=len(array))
    missing = first_missing(array)
    if missing is not None:
        raise DataError(f"row {missing + 1} of target {name!r} is missing: remove the observation or fill the value in")
    if texts.all():
        return np.array([value.decode(errors="replace") if isinstance(value, bytes) else value for value in array], dtype=str)
    if texts.any():
        other = int(np.flatnonzero(texts != texts[0])[0])
        raise DataError(f"target {name!r} mixes text and numbers: row {other + 1} holds {array[other]!r}, row 1 {array[0]!r}")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"target {name!r} holds {type(array[0]).__name__} objects: numbers or text are needed") from error
