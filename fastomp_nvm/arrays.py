"""Type aliases of arrays and JSON objects, named once so that signatures stay readable."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["AnyArray", "BoolArray", "Float32Array", "Float64Array", "IndexArray", "JSONObject", "first_missing", "is_missing"]

AnyArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]
JSONObject = dict[str, Any]


def is_missing(value: Any) -> bool:
    """Tell whether ``value`` stands for a missing one: None, NaN, ``pandas.NA`` or ``pandas.NaT``."""
    # pandas.NA has no truth value, so its name must do.
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def first_missing(values: AnyArray) -> int | None:
    """Return the first row of ``values`` (n,) that is missing, or None."""
    if values.dtype.kind == "f":
        rows = np.flatnonzero(np.isnan(values))
        return int(rows[0]) if rows.size else None
    if values.dtype.kind == "O":
        return next((row for row, value in enumerate(values) if is_missing(value)), None)
    return None
