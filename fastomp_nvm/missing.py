"""What counts as missing among values that come from Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray

__all__ = ["first_missing", "is_missing"]


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
