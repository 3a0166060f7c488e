"""Type aliases of arrays and JSON objects, and missing values in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "AnyArray",
    "BoolArray",
    "DType",
    "Float32Array",
    "Float64Array",
    "IndexArray",
    "JSONObject",
    "RowIndex",
    "UInt32Array",
    "first_missing",
    "is_missing",
]

AnyArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]
UInt32Array = npt.NDArray[np.uint32]
JSONObject = dict[str, Any]

DType = np.dtype[Any]

#: Rows by number, slice, list or mask.
RowIndex = int | slice | Sequence[int] | IndexArray | BoolArray


def is_missing(value: Any) -> bool:
    """Return whether ``value`` is a missing value: None, NaN, ``pandas.NA`` or ``pandas.NaT``."""
    # By name, because pandas may be absent and comparisons with pandas.NA have no truth value.
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def first_missing(values: AnyArray) -> int | None:
    """Return the index of the first missing value in ``values`` (n,), or None."""
    if values.dtype.kind == "f":
        rows = np.flatnonzero(np.isnan(values))
        return int(rows[0]) if rows.size else None
    if values.dtype.kind == "O":
        return next((row for row, value in enumerate(values) if is_missing(value)), None)
    return None
