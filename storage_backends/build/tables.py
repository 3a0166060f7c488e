"""Arrays, pandas and pyarrow tables as a schema and a stream of tiles.

Tiles are observations x columns and small, so the data are never copied as a whole. A text column becomes one feature with one
indicator column per category; missing texts are recognised as in files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.indicators import Indicators
from storage_backends.build.schema import TableSchema
from storage_backends.readers.base import Categories
from storage_backends.readers.text import ARROW_NUMBERS, ARROW_TEXTS, MISSING_TOKENS

__all__ = ["Table", "as_table"]

Tile = tuple[int, int, AnyArray]
Groups = Mapping[str, Sequence[str | int]]

_TILE_CELLS = 1 << 22
_TILE_COLUMNS = 1024  # at least a page of a row-major source per row read
_LONGEST_COLUMN = 1 << 20


class Table(Protocol):
    """A schema and its values."""

    @property
    def schema(self) -> TableSchema:
        """Shape, names and grouping."""
        ...

    @property
    def filled(self) -> Mapping[str, int]:
        """Missing texts that became a category of their own, by feature; complete once all tiles were produced."""
        ...

    def tiles(self) -> Iterator[Tile]:
        """Yield (first observation, first column, (rows, columns) values); every cell is in exactly one tile."""
        ...


def as_table(X: Any, *, names: Iterable[str] | None, rows: str, groups: Groups | None, missing: str = "error") -> Table:
    """Return ``X`` as a table.

    Parameters
    ----------
    X : array, pandas DataFrame or pyarrow Table
    names : iterable of str or None
        Column names that replace those of ``X``.
    rows : {"observations", "features"}
        What a row of an array is.
    groups : mapping or None
        Feature name -> its columns, by name or position.
    missing : {"error", "mean", "median", "drop-feature"}
        How to treat missing cells. With ``mean`` and ``median`` a missing text becomes the category ``(missing)``.

    Returns
    -------
    Table
    """
    if rows not in ("observations", "features"):
        raise DataError(f"unknown rows {rows!r}: expected observations or features")
    library = type(X).__module__.partition(".")[0]
    if library in ("pandas", "pyarrow") and hasattr(X, "columns"):
        if rows == "features":
            raise DataError("a table has observations in its rows: pass rows='observations', or an array")
        columns = _pandas_columns(X) if library == "pandas" else _arrow_columns(X)
        return _ColumnTable(len(X), columns, names, groups, missing)
    return _ArrayTable(X, names, rows, groups)


class _ArrayTable:
    """A two-dimensional array of numbers."""

    filled: Mapping[str, int] = MappingProxyType({})

    def __init__(self, X: Any, names: Iterable[str] | None, rows: str, groups: Groups | None) -> None:
        if hasattr(X, "toarray"):
            raise DataError("the data is a sparse matrix: pass X.toarray(), or ingest it from an SVMlight or .mtx file")
        array: AnyArray = X if isinstance(X, np.ndarray) else np.asarray(X)
        if array.ndim != 2:
            raise DataError(f"the data has shape {array.shape}: two dimensions are needed, observations and columns")
        if array.dtype.kind not in "fiubO":
            raise DataError(f"the array holds {array.dtype}: numbers are needed (text goes into a table, column by column)")
        self._array = array if rows == "observations" else array.T
        n_obs, n_columns = self._array.shape
        labels = _column_names(names, n_columns)
        self._order: IndexArray | None = None
        if groups:
            features = _arrange(labels, groups)
            self._order = np.array([position for _, members in features for position in members], dtype=np.int64)
            self.schema = TableSchema.grouped(n_obs, [(name, [labels[member] for member in members]) for name, members in features])
        else:
            self.schema = TableSchema.plain(n_obs, labels)

    def tiles(self) -> Iterator[Tile]:
        """Yield tiles in memory order."""
        n_obs, n_columns = self._array.shape
        row_major = abs(self._array.strides[1]) <= abs(self._array.strides[0])
        height = min(n_obs, _TILE_CELLS // _TILE_COLUMNS if row_major and n_columns >= _TILE_COLUMNS else _LONGEST_COLUMN)
        width = max(1, _TILE_CELLS // height)
        for left in range(0, n_columns, width):
            columns = slice(left, left + width) if self._order is None else self._order[left : left + width]
            for top in range(0, n_obs, height):
                yield top, left, self._numbers(self._array[top : top + height, columns], top, left)

    def _numbers(self, tile: AnyArray, top: int, left: int) -> AnyArray:
        """Return a tile as numbers, masked entries as NaN."""
        if tile.dtype.kind == "O":
            try:
                tile = tile.astype(np.float64)
            except (TypeError, ValueError) as error:
                row, column = next(cell for cell in np.ndindex(tile.shape) if not _is_number(tile[cell]))
                raise DataError(
                    f"row {top + row + 1} of column {self.schema.columns[left + column]!r} holds {tile[row, column]!r}: "
                    "a number is needed (text goes into a table, column by column)"
                ) from error
        return np.ma.filled(tile.astype(np.float64), np.nan) if isinstance(tile, np.ma.MaskedArray) else tile


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table: numbers, or (with ``categories``) codes of categories; NaN where missing."""

    name: str
    categories: Categories | None
    load: Callable[[], AnyArray]


class _ColumnTable:
    """A table whose columns each have their own type."""

    def __init__(
        self, n_obs: int, columns: Sequence[_Column], names: Iterable[str] | None, groups: Groups | None, missing: str
    ) -> None:
        labels = [column.name for column in columns] if names is None else _column_names(names, len(columns))
        texts = [
            None if column.categories is None else Indicators(name, column.categories, missing)
            for name, column in zip(labels, columns, strict=True)
        ]
        features = _arrange(labels, groups or {})
        # Feature, values and encoding of each column, in the order of the store.
        self._columns = [(name, columns[member], texts[member]) for name, members in features for member in members]
        self.filled: dict[str, int] = {}
        grouped: list[tuple[str, list[str]]] = []
        for name, members in features:
            grouped.append((name, []))
            for member in members:
                text = texts[member]
                grouped[-1][1].extend([labels[member]] if text is None else text.columns)
        self.schema = TableSchema.grouped(n_obs, grouped)

    def tiles(self) -> Iterator[Tile]:
        """Yield the columns, one after the other."""
        left = 0
        for feature, column, text in self._columns:
            values = column.load()
            if text is None:
                yield 0, left, values[:, np.newaxis]
                left += 1
                continue
            for first_obs, tile in text.tiles(0, values):
                yield first_obs, left, tile
            left += len(text.columns)
            if text.filled:
                self.filled[feature] = self.filled.get(feature, 0) + text.filled


def _column_names(names: Iterable[str] | None, n_columns: int) -> Sequence[str]:
    """Return ``names``, or numbered names if None."""
    if names is None:
        return NumberedNames(n_columns)
    kept = names if isinstance(names, NumberedNames) else tuple(names)
    if len(kept) != n_columns:
        raise DataError(f"there are {len(kept)} names for {n_columns} columns")
    return kept


def _arrange(names: Sequence[str], groups: Groups) -> list[tuple[str, list[int]]]:
    """Return each feature with the positions of its columns; a group takes the place of its first column."""
    position_of = {name: position for position, name in enumerate(names)}
    group_of: dict[int, str] = {}
    for feature, members in groups.items():
        if isinstance(members, str) or not len(members):
            raise DataError(f"group {feature!r} needs a list of one or more columns, not {members!r}")
        for member in members:
            position = position_of.get(member, -1) if isinstance(member, str) else int(member)
            if not 0 <= position < len(names):
                raise DataError(f"group {feature!r} names the column {member!r}, which is not among the {len(names)} columns")
            if position in group_of:
                raise DataError(f"column {names[position]!r} is listed twice, in groups {group_of[position]!r} and {feature!r}")
            group_of[position] = feature
    members_of: dict[str, list[int]] = {}
    for position, feature in group_of.items():
        members_of.setdefault(feature, []).append(position)
    features: list[tuple[str, list[int]]] = []
    for position, name in enumerate(names):
        group = group_of.get(position)
        if group is None:
            features.append((name, [position]))
        elif position == min(members_of[group]):
            features.append((group, members_of[group]))
    return features


def _pandas_columns(frame: Any) -> list[_Column]:
    """Return the columns of a pandas DataFrame."""
    from pandas.api import types

    columns = []
    for position, label in enumerate(frame.columns):
        series, name = frame.iloc[:, position], str(label)
        kind = series.dtype
        if types.is_bool_dtype(kind) or (types.is_numeric_dtype(kind) and not types.is_complex_dtype(kind)):
            columns.append(_Column(name, None, functools.partial(series.to_numpy, dtype=np.float64, na_value=np.nan)))
        elif types.is_object_dtype(kind) or types.is_string_dtype(kind) or str(kind) == "category":
            columns.append(_object_column(name, np.asarray(series, dtype=object), series.isna().to_numpy(dtype=bool), str(kind)))
        else:
            raise DataError(f"column {name!r} holds {kind}: convert it to numbers or text, or drop it")
    return columns


def _arrow_columns(table: Any) -> list[_Column]:
    """Return the columns of a pyarrow Table."""
    from pyarrow import types

    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if types.is_dictionary(kind) or str(kind) in ARROW_TEXTS:
            dense = column.cast(kind.value_type) if types.is_dictionary(kind) else column
            missing = dense.is_null().to_numpy()
            columns.append(_object_column(name, np.array(dense.to_pylist(), dtype=object), missing, "category"))
        elif ARROW_NUMBERS.match(str(kind)):
            columns.append(_Column(name, None, functools.partial(_arrow_numbers, column)))
        else:
            raise DataError(f"column {name!r} holds {kind}: convert it to numbers or text, or drop it")
    return columns


def _arrow_numbers(column: Any) -> AnyArray:
    """Return a numeric pyarrow column as float64, nulls as NaN."""
    return np.asarray(column.cast("float64", safe=False).to_numpy(), dtype=np.float64)


def _object_column(name: str, values: AnyArray, missing: AnyArray, kind: str) -> _Column:
    """Return a column of Python objects: categories if they are text or ``kind`` is ``category``, else numbers."""
    present = values[~missing]
    texts = [isinstance(value, str) for value in present]
    if len(texts) and all(texts):
        cells = np.array([value.strip() for value in present], dtype=object)
        absent = np.array([cell in MISSING_TOKENS for cell in cells])
        missing, present = missing.copy(), cells[~absent]
        missing[~missing] = absent
    if kind != "category" and not any(texts):
        if not all(_is_number(value) for value in present):
            raise DataError(f"column {name!r} holds {type(present[0]).__name__} objects: convert it to numbers or text, or drop it")
        numbers = np.full(len(values), np.nan)
        numbers[~missing] = present.astype(np.float64)
        return _Column(name, None, lambda: numbers)
    if any(texts) and not all(texts):
        row = int(np.flatnonzero(~missing)[texts.index(False)])
        raise DataError(f"column {name!r} mixes text with other values: row {row + 1} holds {values[row]!r}")
    labels, inverse = np.unique(present, return_inverse=True)
    codes = np.full(len(values), np.nan, dtype=np.float32)
    codes[~missing] = inverse.reshape(-1)
    return _Column(name, Categories(tuple(map(str, labels)), bool(missing.any())), lambda: codes)


def _is_number(value: Any) -> bool:
    """Return whether ``value`` converts to a float."""
    try:
        float(np.nan if value is None else value)
    except (TypeError, ValueError):
        return False
    return True
