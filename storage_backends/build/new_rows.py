"""New observations for a model: the columns it needs of a table in memory or of a file, read as the store's source was."""

from __future__ import annotations

import datetime
import os
from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding
from fastomp_nvm.stores.raw_tables import RawColumn, RawTable
from storage_backends.build.columns import table_columns
from storage_backends.readers import open_reader
from storage_backends.readers.base import ReaderOptions
from storage_backends.readers.text import parse_number

__all__ = ["read_new_rows"]

_EPOCH = datetime.datetime(1970, 1, 1)
_TRUTH = {"true": 1.0, "false": 0.0}


def read_new_rows(data: Any, wanted: Container[str], encoding: TableEncoding, *, id_column: str | None = None) -> RawTable | None:
    """Return the columns of a table or file that are named in ``wanted``; see ``fastomp_nvm.stores.builders.TableReader``.

    Parameters
    ----------
    data : pandas or polars DataFrame, pyarrow Table, or path of a file
    wanted : container of str
    encoding : TableEncoding
        How texts are read: which columns are categories or dates, what is missing, and how numbers are written.
    id_column : str, optional
        Column of identifiers of the rows.

    Returns
    -------
    RawTable or None
        None if ``data`` is neither a table nor a path.
    """
    if isinstance(data, (str, os.PathLike)):
        return _read_file(os.fspath(data), wanted, encoding, id_column)
    columns = table_columns(data, wanted)
    if columns is None:
        return None
    found = {}
    for column in columns:
        labels = None if column.categories is None else column.categories.labels
        found[column.name] = _read(column.name, column.load().astype(np.float64), labels, encoding, "the table")
    ids = None
    if id_column is not None:
        ids = _table_ids(data, id_column)
    return RawTable("the table", len(data), found, ids)


def _read_file(path: str, wanted: Container[str], encoding: TableEncoding, id_column: str | None) -> RawTable:
    """Return columns of a file, read by the reader of its format."""
    with open_reader(path, ReaderOptions()) as reader:
        chosen = np.array([place for place, name in enumerate(reader.names) if name in wanted], dtype=np.int64)
        names = [reader.names[place] for place in chosen.tolist()]
        scan = reader.scan(chosen)
        values = np.empty((len(names), scan.n_obs))
        for chunk in reader.chunks(chosen, scan):
            (rows, columns), first = chunk.values.shape, chunk.first_column
            values[first : first + columns, chunk.first_obs : chunk.first_obs + rows] = chunk.values.T
        found = {}
        for place, name in enumerate(names):
            labels = scan.categories[place].labels if place in scan.categories else None
            found[name] = _read(name, values[place], labels, encoding, reader.label)
        ids = None
        if id_column is not None and id_column not in reader.names:
            raise InputError(f"{reader.label} has no column {id_column!r} of identifiers: name one of its columns")
        return RawTable(reader.label, scan.n_obs, found, ids)


def _table_ids(data: Any, name: str) -> list[str]:
    """Return a column of a table in memory as text."""
    names = data.column_names if hasattr(data, "column_names") else list(data.columns)
    if name not in names:
        raise InputError(f"the table has no column {name!r} of identifiers: name one of its columns")
    column = data[name]
    return [str(value) for value in (column.to_pylist() if hasattr(column, "to_pylist") else column.to_list())]


def _read(name: str, values: Float64Array, labels: Sequence[str] | None, encoding: TableEncoding, table: str) -> RawColumn:
    """Return a column as the encoding wants it: categories with their labels, texts of other columns as numbers."""
    settings = encoding.columns.get(name, ColumnEncoding())
    if labels is None:
        return RawColumn(values)
    gaps = np.isnan(values)
    codes = np.where(gaps, len(labels), values).astype(np.int64)
    if settings.kind == "category":
        known = [label not in encoding.na_values for label in labels]
        return RawColumn(np.where(np.array([*known, False])[codes], values, np.nan), tuple(labels))
    read = _days if settings.kind == "date" else _number
    numbers: AnyArray = np.full(len(labels) + 1, np.nan)
    for position, label in enumerate(labels):
        if label in encoding.na_values:
            continue
        number = read(label.strip(), encoding)
        if number is None:
            row = int(np.argmax(codes == position)) + 1
            what = "a date" if settings.kind == "date" else "a number"
            raise DataError(f"row {row} of the column {name!r} of {table} holds {label[:40]!r}: the model needs {what} there")
        numbers[position] = number
    return RawColumn(numbers[codes])


def _number(text: str, encoding: TableEncoding) -> float | None:
    """Return the number in a text, or None."""
    plain = text.replace(encoding.thousands, "") if encoding.thousands else text
    number = parse_number(plain.replace(encoding.decimal, "."))
    return _TRUTH.get(plain.lower()) if number is None else number


def _days(text: str, encoding: TableEncoding) -> float | None:
    """Return an ISO date or point in time as days since 1970-01-01, or None."""
    try:
        point = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if point.tzinfo is not None:
        point = point.astimezone(datetime.UTC).replace(tzinfo=None)
    return (point - _EPOCH) / datetime.timedelta(days=1)
