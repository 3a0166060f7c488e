"""The columns of a fitted model in new data: tables, arrays, files and stores, encoded as the store of the selection was.

Columns are found by name, in any order, and other columns are ignored. A label that the store does not know is 0 in all indicator
columns. A missing cell is treated as the store treated its own: by the mean, the median or a category; otherwise it is refused.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.stores.builders import READ_TABLE
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding
from fastomp_nvm.stores.open import open_store
from fastomp_nvm.stores.raw_tables import RawColumn, RawTable
from fastomp_nvm.stores.url import REMOTE_SCHEMES

__all__ = ["EncodedRows", "ModelColumns", "is_remote", "resolved_encoding"]


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRows:
    """New observations in the columns of a model.

    Attributes
    ----------
    values : (n, c) float64
    unseen : mapping of str to int
        Cells with a label that the store does not know, by column of the table.
    filled : mapping of str to int
        Missing cells that were filled in, by column of the table.
    ids : sequence of str, optional
        Identifiers of the observations, from the store or the requested column.
    """

    values: Float64Array
    unseen: Mapping[str, int] = field(default_factory=dict)
    filled: Mapping[str, int] = field(default_factory=dict)
    ids: Sequence[str] | None = None


def resolved_encoding(encoding: TableEncoding, columns: Sequence[str], means: Float64Array) -> TableEncoding:
    """Return the encoding of the table's columns behind ``columns`` of a store alone, the mean of each number written out.

    ``means`` are those of ``columns``.
    """
    kept = encoding.restricted(columns)
    found, indicators = dict(kept.columns), kept.indicators()
    for name, mean in zip(columns, means.tolist(), strict=True):
        if name not in indicators:
            plain = found.setdefault(name, ColumnEncoding())
            if encoding.missing == "mean" and plain.fill is None:
                found[name] = replace(plain, fill=mean)
    return replace(kept, columns=found)


@dataclass(frozen=True, slots=True, eq=False)
class ModelColumns:
    """The columns of a model, and how to find them in new data.

    Parameters
    ----------
    names : sequence of str
        Names of the columns of the store, in the order of their coefficients.
    positions : (c,) int64
        Their positions in the store.
    n_columns : int
        Columns of the store.
    encoding : TableEncoding, optional
        Of the table's columns that they came from; None: each is a number.
    """

    names: Sequence[str]
    positions: IndexArray
    n_columns: int
    encoding: TableEncoding | None

    def of(
        self,
        data: object,
        id_column: str | None = None,
        text_encoding: str = "utf-8",
        progress: Callable[[int, int], None] | None = None,
    ) -> EncodedRows:
        """Return the observations in ``data``; see ``Selection.predict`` for the kinds of data."""
        if isinstance(data, (str, os.PathLike)) and (str(data).endswith(".bed") or not os.path.isfile(data)):
            if is_remote(data):
                raise RequestError(f"the columns of {data} stay on the server: predict there, by its URL")
            with open_store(str(data)) as store, store.complete() as whole:
                return self.of(whole, id_column)
        if isinstance(data, FeatureStore):
            if id_column is not None:
                raise RequestError(f"{data.url} is a store, which keeps its own identifiers: leave the column {id_column!r} out")
            return self.of_store(data)
        sources = self._sources()
        wanted = {*self.names, *sources}
        table = READ_TABLE.load()(
            data, wanted, self.encoding or TableEncoding(), id_column=id_column, text_encoding=text_encoding, progress=progress
        )
        if table is not None:
            return self._of_table(table, sources)
        if id_column is not None:
            raise RequestError(f"an array has no column {id_column!r} of identifiers: leave it out")
        return self._of_array(data)

    def _sources(self) -> dict[str, list[tuple[int, int | None]]]:
        """Return, by column of the table, the places of its columns in the model, each with the position of its label."""
        indicators: Mapping[str, tuple[str, int | None]] = {} if self.encoding is None else {**self.encoding.indicators()}
        sources: dict[str, list[tuple[int, int | None]]] = {}
        for place, name in enumerate(self.names):
            source, label = indicators.get(name, (name, None))
            sources.setdefault(source, []).append((place, label))
        return sources

    def _settings(self, source: str) -> ColumnEncoding:
        """Return the encoding of a column of the table."""
        return ColumnEncoding() if self.encoding is None else self.encoding.columns.get(source, ColumnEncoding())

    def of_store(self, store: FeatureStore, observations: tuple[int, int] | None = None) -> EncodedRows:
        """Read the columns of another store, and no others; for all observations with the identifiers, or for some without."""
        positions: list[int] = []
        places: list[int] = []
        if len(store.column_names) == self.n_columns and all(
            store.column_names[position] == name for position, name in zip(self.positions.tolist(), self.names, strict=True)
        ):
            positions, places = self.positions.tolist(), list(range(len(self.names)))
        else:
            theirs, features = _labelled_columns(store), set(store.names)
            texts = {source for source, label in theirs if label is not None}
            for source, members in self._sources().items():
                labels = self._settings(source).labels
                for place, label in members:
                    key = (source, None if label is None else labels[label])
                    if key in theirs:
                        positions.append(theirs[key])
                        places.append(place)
                    elif label is None or source not in texts:
                        what = "as a number" if label is None and source in features else "which the model uses"
                        raise DataError(f"the store {store.url} lacks the column {source!r}, {what}")
        rows = Dataset.of_store(store).matrix
        if observations is not None:
            first, last = observations
            values = np.zeros((last - first, len(self.names)))
            for position, place in zip(positions, places, strict=True):
                values[:, place] = rows[position][first:last]
            return EncodedRows(values)
        values, filled = np.zeros((store.layout.n_obs, len(self.names))), Counter[str]()
        if positions:
            columns = np.array(positions, dtype=np.int64)
            values[:, places] = Sweeper(1).gather(rows, columns).T
            missing = store.missing(columns)
            for member, (position, place) in enumerate(zip(positions, places, strict=True)):
                settings = self._settings(name := self.names[place])
                if (alleles := store.alleles(position)) is not None and _swapped(settings.format, alleles, name, store.url):
                    values[:, place] = 2.0 - values[:, place]
                if missing is not None and missing[member].any() and settings.fill is not None:
                    values[missing[member], place] = settings.fill
                    filled[name] += int(missing[member].sum())
        return EncodedRows(values, filled=dict(filled), ids=store.ids)

    def _of_array(self, data: object) -> EncodedRows:
        """Take the columns of an array that has all columns of the store, in its order."""
        array: AnyArray = np.asarray(data)
        mask = data.mask if isinstance(data, np.ma.MaskedArray) else False
        if array.ndim != 2 or array.shape[1] != self.n_columns:
            raise DataError(f"X has shape {array.shape}: expected (n, {self.n_columns}), the columns of the store")
        try:
            values = array[:, self.positions].astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"X holds elements that are no numbers ({error}): give a table with named columns") from error
        values[np.broadcast_to(mask, array.shape)[:, self.positions]] = np.nan
        filled: Counter[str] = Counter()
        for place, name in enumerate(self.names):
            values[:, place] = _filled(values[:, place], name, self._settings(name), filled, "X")
        return EncodedRows(values, filled=dict(filled))

    def _of_table(self, table: RawTable, sources: Mapping[str, Sequence[tuple[int, int | None]]]) -> EncodedRows:
        """Encode the columns of a table."""
        values = np.empty((table.n_obs, len(self.names)))
        unseen: Counter[str] = Counter()
        filled: Counter[str] = Counter()
        for source, members in sources.items():
            settings, column = self._settings(source), table.columns.get(source)
            if settings.kind == "category" and column is not None:
                codes = _codes(column, settings)
                if settings.fill is None and self.encoding is not None and self.encoding.missing in ("mean", "median"):
                    codes = np.nan_to_num(codes, nan=-1.0)  # the rows of the store had no gap here: a label that it does not know
                unseen[source] += int((codes < 0).sum())
                codes = _filled(codes, source, settings, filled, table.label)
                for place, label in members:
                    values[:, place] = codes == label
                continue
            for place, _ in members:  # a number, a date, or indicator columns
                name = self.names[place]
                column = table.columns.get(name)
                if column is None:
                    raise DataError(f"{table.label} lacks the column {source!r}, which the model uses")
                plain = settings if settings.kind != "category" else ColumnEncoding()
                values[:, place] = _filled(column.values, name, plain, filled, table.label)
        return EncodedRows(values, dict(+unseen), dict(filled), table.ids)


def is_remote(data: object) -> bool:
    """Tell whether ``data`` is the URL of a store on a server."""
    return isinstance(data, str) and "://" in data and data.partition("://")[0] in REMOTE_SCHEMES


def _labelled_columns(store: FeatureStore) -> dict[tuple[str, str | None], int]:
    """Return the position of each column of a store by column of the table and label, None for numbers."""
    encoding = store.encoding or TableEncoding()
    indicators = encoding.indicators()
    offsets = store.layout.offsets.tolist()
    found: dict[tuple[str, str | None], int] = {}
    for feature, (name, first, last) in enumerate(zip(store.names, offsets, offsets[1:], strict=False)):
        for position in range(first, last):
            column = store.column_names[position]
            if (indicator := indicators.get(column)) is not None:
                source, label = indicator
                found[source, encoding.columns[source].labels[label]] = position
            elif last - first > 1 and column.startswith(f"{name}="):  # a store of a release that kept no encoding
                found[store.names[feature], column.removeprefix(f"{name}=")] = position
            else:
                found[column, None] = position
    return found


def _swapped(written: str, theirs: tuple[str, str], name: str, url: str) -> bool:
    """Return whether a store counts the other allele of a variant than the model; 0 stands for an allele that nobody has."""
    kind, *ours = written.split(" ")
    if kind != "allele":
        return False
    for swapped, other in ((False, theirs), (True, theirs[::-1])):
        if all(a == b or "0" in (a, b) for a, b in zip(ours, other, strict=True)):
            return swapped
    raise DataError(
        f"{name!r} has the alleles {'/'.join(theirs)} in {url} and {'/'.join(ours)} in the model: it is another variant, or "
        "written for the other strand"
    )


def _filled(values: Float64Array, name: str, settings: ColumnEncoding, filled: Counter[str], table: str) -> Float64Array:
    """Return the values of a column with missing ones filled in and counted; ``DataError`` if there is no value for them."""
    if not np.isfinite(values.sum()) and np.isinf(values).any():
        row = int(np.isinf(values).argmax()) + 1
        raise DataError(f"row {row} of the column {name!r} of {table} is infinite: a finite number is needed")
    gaps = np.isnan(values)
    if not gaps.any():
        return values
    if settings.fill is None:
        row = int(gaps.argmax()) + 1
        raise DataError(f"row {row} of the column {name!r} of {table} is missing, and the store has no value for it: fill it in")
    filled[name] += int(gaps.sum())
    return np.where(gaps, settings.fill, values)


def _codes(column: RawColumn, settings: ColumnEncoding) -> Float64Array:
    """Return the position of each label in ``settings``, -1 for another label, NaN for a missing cell."""
    known = {label: float(position) for position, label in enumerate(settings.labels)}
    gaps = np.isnan(column.values)
    if column.labels is not None:
        new = np.array([*(known.get(label, -1.0) for label in column.labels), np.nan])
        return np.asarray(new[np.where(gaps, len(column.labels), column.values).astype(np.int64)])
    by_number: dict[float, float] = {}  # labels such as 1, 01 and True that are numbers in this table
    for label, position in known.items():
        by_number.setdefault(_number(label), position)
    distinct, inverse = np.unique(column.values[~gaps], return_inverse=True)
    codes = np.full(len(column.values), np.nan)
    codes[~gaps] = np.array([by_number.get(number, -1.0) for number in distinct.tolist()])[inverse.reshape(-1)]
    return codes


def _number(label: str) -> float:
    """Return the number that a label stands for, NaN for none."""
    try:
        return float({"true": 1, "false": 0}.get(label.lower(), label))
    except ValueError:
        return np.nan
