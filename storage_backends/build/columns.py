"""Columns of pandas, polars and pyarrow tables as numbers, dates in days, or codes of categories.

Missing texts are recognised as in files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array
from fastomp_nvm.errors import DataError
from fastomp_nvm.stores.encoding import Kind
from storage_backends.readers.base import Categories
from storage_backends.readers.text import ARROW_NUMBERS, ARROW_TEXTS, MISSING_TOKENS

__all__ = ["Column", "is_number", "table_columns"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: numbers, dates in days since 1970-01-01, or (with ``categories``) codes; NaN where missing."""

    name: str
    categories: Categories | None
    load: Callable[[], AnyArray]
    kind: Kind = "number"


def table_columns(X: Any, wanted: Container[str] | None = None) -> list[Column] | None:
    """Return the columns of a pandas, polars or pyarrow table, those in ``wanted`` alone if it is given; None for other objects."""
    read = {"pandas": _pandas_columns, "polars": _polars_columns, "pyarrow": _arrow_columns}
    library = type(X).__module__.partition(".")[0]
    if library == "polars" and hasattr(X, "collect"):
        raise DataError("the data is a polars LazyFrame: collect it first")
    if library not in read or not hasattr(X, "columns"):
        return None
    return read[library](X, wanted)


def _pandas_columns(frame: Any, wanted: Container[str] | None) -> list[Column]:
    """Return the columns of a pandas DataFrame."""
    from pandas.api import types

    columns = []
    for position, label in enumerate(frame.columns):
        name = str(label)
        if wanted is not None and name not in wanted:
            continue
        series = frame.iloc[:, position]
        kind = series.dtype
        if types.is_bool_dtype(kind) or (types.is_numeric_dtype(kind) and not types.is_complex_dtype(kind)):
            columns.append(Column(name, None, functools.partial(series.to_numpy, dtype=np.float64, na_value=np.nan)))
        elif types.is_object_dtype(kind) or types.is_string_dtype(kind) or str(kind) == "category":
            columns.append(_object_column(name, np.asarray(series, dtype=object), series.isna().to_numpy(dtype=bool), str(kind)))
        elif types.is_datetime64_any_dtype(kind):
            columns.append(Column(name, None, functools.partial(_days, series.to_numpy(dtype="datetime64[us]")), "date"))
        else:
            raise DataError(f"column {name!r} holds {kind}: convert it to numbers or text, or drop it")
    return columns


def _polars_columns(frame: Any, wanted: Container[str] | None) -> list[Column]:
    """Return the columns of a polars DataFrame."""
    import polars

    columns = []
    for series in frame.iter_columns():
        name, kind = series.name, series.dtype
        if wanted is not None and name not in wanted:
            continue
        if kind.is_numeric() or kind in (polars.Boolean, polars.Null):
            columns.append(Column(name, None, functools.partial(_polars_numbers, series)))
        elif kind in (polars.String, polars.Categorical, polars.Enum):
            values = np.array(series.cast(polars.String).to_list(), dtype=object)
            columns.append(_object_column(name, values, series.is_null().to_numpy(), "category"))
        elif kind in (polars.Date, polars.Datetime):
            days = functools.partial(_days, series.cast(polars.Datetime("us")).to_numpy())
            columns.append(Column(name, None, days, "date"))
        else:
            raise DataError(f"column {name!r} holds {kind}: convert it to numbers or text, or drop it")
    return columns


def _polars_numbers(series: Any) -> AnyArray:
    """Return a numeric polars column as float64, nulls as NaN."""
    import polars

    return np.asarray(series.cast(polars.Float64).to_numpy(), dtype=np.float64)


def _days(values: AnyArray) -> Float64Array:
    """Return points in time as days since 1970-01-01, NaN where missing."""
    times = values.astype("datetime64[us]")
    days = times.astype(np.int64) / 86_400e6
    days[np.isnat(times)] = np.nan
    return np.asarray(days)


def _arrow_columns(table: Any, wanted: Container[str] | None) -> list[Column]:
    """Return the columns of a pyarrow Table."""
    from pyarrow import types

    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if wanted is not None and name not in wanted:
            continue
        kind = column.type
        if types.is_dictionary(kind) or str(kind) in ARROW_TEXTS:
            dense = column.cast(kind.value_type) if types.is_dictionary(kind) else column
            missing = dense.is_null().to_numpy()
            columns.append(_object_column(name, np.array(dense.to_pylist(), dtype=object), missing, "category"))
        elif ARROW_NUMBERS.match(str(kind)):
            columns.append(Column(name, None, functools.partial(_arrow_numbers, column)))
        elif types.is_date(kind) or types.is_timestamp(kind):
            columns.append(Column(name, None, functools.partial(_arrow_days, column), "date"))
        else:
            raise DataError(f"column {name!r} holds {kind}: convert it to numbers or text, or drop it")
    return columns


def _arrow_numbers(column: Any) -> AnyArray:
    """Return a numeric pyarrow column as float64, nulls as NaN."""
    return np.asarray(column.cast("float64", safe=False).to_numpy(), dtype=np.float64)


def _arrow_days(column: Any) -> AnyArray:
    """Return a pyarrow column of dates or points in time as days, nulls as NaN."""
    import pyarrow

    return _days(column.cast(pyarrow.timestamp("us", getattr(column.type, "tz", None)), safe=False).to_numpy())


def _object_column(name: str, values: AnyArray, missing: AnyArray, kind: str) -> Column:
    """Return a column of Python objects: categories if they are text or ``kind`` is ``category``, else numbers."""
    present = values[~missing]
    texts = [isinstance(value, str) for value in present]
    if len(texts) and all(texts):
        cells = np.array([value.strip() for value in present], dtype=object)
        absent = np.array([cell in MISSING_TOKENS for cell in cells])
        missing, present = missing.copy(), cells[~absent]
        missing[~missing] = absent
    if kind != "category" and not any(texts):
        if not all(is_number(value) for value in present):
            raise DataError(f"column {name!r} holds {type(present[0]).__name__} objects: convert it to numbers or text, or drop it")
        numbers = np.full(len(values), np.nan)
        numbers[~missing] = present.astype(np.float64)
        return Column(name, None, lambda: numbers)
    if any(texts) and not all(texts):
        row = int(np.flatnonzero(~missing)[texts.index(False)])
        raise DataError(f"column {name!r} mixes text with other values: row {row + 1} holds {values[row]!r}")
    labels, inverse = np.unique(present, return_inverse=True)
    codes = np.full(len(values), np.nan, dtype=np.float32)
    codes[~missing] = inverse.reshape(-1)
    return Column(name, Categories(tuple(map(str, labels)), bool(missing.any())), lambda: codes)


def is_number(value: Any) -> bool:
    """Tell whether ``value`` converts to a float."""
    try:
        float(np.nan if value is None else value)
    except (TypeError, ValueError):
        return False
    return True
