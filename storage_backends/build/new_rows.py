"""New observations for a model: the columns it needs of a table in memory or of a file, read as the store's source was."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding
from fastomp_nvm.stores.raw_tables import RawColumn, RawTable
from fastomp_nvm.stores.reports import first_names
from storage_backends.build.columns import table_columns
from storage_backends.readers import open_reader
from storage_backends.readers.base import Reader, ReaderOptions, Scan
from storage_backends.readers.cells import CellRules, ColumnRule
from storage_backends.readers.sources import local_files
from storage_backends.readers.text import shorten

__all__ = ["read_new_rows"]

_TRUTH = {"true": 1.0, "false": 0.0}


def read_new_rows(
    data: Any,
    wanted: Container[str],
    encoding: TableEncoding,
    *,
    id_column: str | None = None,
    text_encoding: str = "utf-8",
    progress: Callable[[int, int], None] | None = None,
) -> RawTable | None:
    """Return the columns of a table or file that are named in ``wanted``; see ``fastomp_nvm.stores.builders.TableReader``.

    Parameters
    ----------
    data : pandas or polars DataFrame, pyarrow Table, or path of a file
    wanted : container of str
    encoding : TableEncoding
        How texts are read: which columns are categories or dates, what is missing, and how numbers are written.
    id_column : str, optional
        Column of identifiers of the rows.
    text_encoding : str
        Of a text file.
    progress : callable, optional
        Called with (bytes read, bytes to read) of a file.

    Returns
    -------
    RawTable or None
        None if ``data`` is neither a table nor a path.
    """
    if isinstance(data, (str, os.PathLike)):
        return _read_file(os.fspath(data), wanted, encoding, id_column, text_encoding, progress)
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


def _read_file(
    path: str,
    wanted: Container[str],
    encoding: TableEncoding,
    id_column: str | None,
    text_encoding: str,
    progress: Callable[[int, int], None] | None,
) -> RawTable:
    """Return columns of a file, read by the reader of its format."""
    done, passes = 0, 2  # as readers of text need, until this one is open

    def consumed(count: int) -> None:
        """Count bytes of the file."""
        nonlocal done
        done += count
        if progress is not None:
            progress(done, passes * os.path.getsize(path))

    rules = CellRules.of(encoding.na_values, encoding.thousands, encoding.decimal)
    with (
        local_files([path]) as (file,),
        open_reader(file, ReaderOptions(rules=rules, encoding=text_encoding, consumed=consumed)) as reader,
    ):
        passes, names = reader.passes + (id_column is not None), list(reader.names)
        if id_column is not None and id_column not in names:
            raise InputError(f"{reader.label} has no column {id_column!r} of identifiers: its columns are {first_names(names)}")
        chosen = np.array([place for place, name in enumerate(names) if name in wanted], dtype=np.int64)
        ids = None if id_column is None else reader.identifiers(names.index(id_column))
        if not chosen.size:  # the caller names the column that is absent
            return RawTable(reader.label, 0, {}, ids)
        reader.assign({place: rule for place in chosen.tolist() if (rule := _rule(reader, place, encoding)) is not None})
        scan = reader.scan(chosen)
        crowded = [place for place, categories in scan.categories.items() if categories.overflow]
        values, read = np.empty((len(chosen), scan.n_obs)), np.delete(chosen, crowded)
        kept = {int(np.searchsorted(read, chosen[place])): each for place, each in scan.categories.items() if not each.overflow}
        for chunk in reader.read(read, Scan(scan.n_obs, kept)) if read.size else ():
            places = np.searchsorted(chosen, read[chunk.first_column : chunk.first_column + chunk.values.shape[1]])
            values[places, chunk.first_obs : chunk.first_obs + len(chunk.values)] = chunk.values.T
        found = {}
        for place, column in enumerate(chosen.tolist()):
            labels = scan.categories[place].labels if place in scan.categories else None
            if place in crowded:  # more labels than a category may have, hence most of them unknown
                cells = np.array(reader.identifiers(column), dtype=object)
                distinct, codes = np.unique(cells.astype(str), return_inverse=True)
                labels = tuple(distinct.tolist())
                values[place] = np.where([cell in rules.missing for cell in cells], np.nan, codes.reshape(-1))
            found[names[column]] = _read(names[column], values[place], labels, encoding, reader.label)
        return RawTable(reader.label, scan.n_obs, found, ids)


def _rule(reader: Reader, column: int, encoding: TableEncoding) -> ColumnRule | None:
    """Return the rule by which a column of a file is read; None if the file knows, or if ``_read`` has to look at the texts."""
    settings, is_number = encoding.columns.get(reader.names[column], ColumnEncoding()), reader.kind_of(column) == "number"
    if reader.typed and is_number:
        return None
    if settings.kind == "number" and settings.format != "lenient":
        return None
    return _column_rule(settings)


def _column_rule(settings: ColumnEncoding) -> ColumnRule:
    """Return the rule for the cells of a column."""
    lenient = settings.kind == "number" and settings.format == "lenient"
    return ColumnRule(settings.kind, lenient, settings.format if settings.kind == "date" else "")


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
    rules = CellRules.of(encoding.na_values, encoding.thousands, encoding.decimal)
    if labels is None:
        return RawColumn(np.where(np.isin(values, rules.missing_numbers), np.nan, values) if encoding.na_values else values)
    gaps = np.isnan(values)
    codes = np.where(gaps, len(labels), values).astype(np.int64)
    if settings.kind == "category":
        known = [label not in encoding.na_values for label in labels]
        return RawColumn(np.where(np.array([*known, False])[codes], values, np.nan), tuple(labels))
    convert = rules.convert(_column_rule(settings))
    numbers: AnyArray = np.full(len(labels) + 1, np.nan)
    for position, label in enumerate(labels):
        number = convert(label.strip())
        if number is None and settings.kind == "number":
            number = _TRUTH.get(label.strip().lower())
        if number is None:
            row = int(np.argmax(codes == position)) + 1
            what = "a date" if settings.kind == "date" else "a number"
            raise DataError(f"row {row} of the column {name!r} of {table} holds {shorten(label)}: the model needs {what} there")
        numbers[position] = number
    return RawColumn(numbers[codes])
