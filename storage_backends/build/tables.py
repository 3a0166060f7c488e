"""Arrays and pandas, polars and pyarrow tables as a schema and a stream of tiles.

Tiles are observations x columns and small, so the data are never copied as a whole. A text column becomes one feature with one
indicator column per category; missing texts are recognised as in files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.columns import Column, is_number, table_columns
from storage_backends.build.indicators import Indicators
from storage_backends.build.schema import TableSchema

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
    X : array, pandas or polars DataFrame, or pyarrow Table
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
    columns = table_columns(X)
    if columns is None:
        return _ArrayTable(X, names, rows, groups, missing)
    if rows == "features":
        raise DataError("a table has observations in its rows: pass rows='observations', or an array")
    return _ColumnTable(len(X), columns, names, groups, missing)


class _ArrayTable:
    """A two-dimensional array of numbers."""

    filled: Mapping[str, int] = MappingProxyType({})

    def __init__(self, X: Any, names: Iterable[str] | None, rows: str, groups: Groups | None, missing: str) -> None:
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
        encoding = TableEncoding(missing=missing)
        self._order: IndexArray | None = None
        if groups:
            features = _arrange(labels, groups)
            self._order = np.array([position for _, members in features for position in members], dtype=np.int64)
            grouped = [(name, [labels[member] for member in members]) for name, members in features]
            self.schema = TableSchema.grouped(n_obs, grouped, encoding)
        else:
            self.schema = TableSchema.plain(n_obs, labels, encoding)

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
                row, column = next(cell for cell in np.ndindex(tile.shape) if not is_number(tile[cell]))
                raise DataError(
                    f"row {top + row + 1} of column {self.schema.columns[left + column]!r} holds {tile[row, column]!r}: "
                    "a number is needed (text goes into a table, column by column)"
                ) from error
        return np.ma.filled(tile.astype(np.float64), np.nan) if isinstance(tile, np.ma.MaskedArray) else tile


class _ColumnTable:
    """A table whose columns each have their own type."""

    def __init__(
        self, n_obs: int, columns: Sequence[Column], names: Iterable[str] | None, groups: Groups | None, missing: str
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
        special = {
            name: ColumnEncoding(column.kind) if text is None else text.encoding
            for name, column, text in zip(labels, columns, texts, strict=True)
            if text is not None or column.kind != "number"
        }
        self.schema = TableSchema.grouped(n_obs, grouped, TableEncoding(special, missing))

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
            raise DataError(f"group {feature!r} needs a list of two or more columns, not {members!r}")
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
    for feature, positions in members_of.items():
        if len(positions) == 1:
            raise DataError(f"group {feature!r} has the one column {names[positions[0]]!r}: name two or more, or leave it out")
    features: list[tuple[str, list[int]]] = []
    for position, name in enumerate(names):
        group = group_of.get(position)
        if group is None:
            features.append((name, [position]))
        elif position == min(members_of[group]):
            features.append((group, members_of[group]))
    return features
