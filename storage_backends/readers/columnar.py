"""Parquet and Feather (Arrow IPC), read in slabs of whole columns within the budget, the next one while one is in use.

A file of many small row groups is read in batches of rows, because a slab would read crumbs of each group. Columns whose cells
float32 holds exactly are read as float32. Text and dictionary columns are categorical.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from fastomp_nvm.arrays import AnyArray, DType, IndexArray
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.encoding import Kind
from storage_backends.readers.base import Chunk, LabelCollector, Reader, ReaderOptions, Scan, ahead, library_errors, spans
from storage_backends.readers.text import ARROW_NUMBERS, ARROW_TEXTS

__all__ = ["FeatherReader", "ParquetReader"]

# Memory of a column being decoded: a data page, a dictionary page and their unpacked copies.
_DECODER_BYTES = 4 << 20

# Row groups of a file from which on slabs of columns would be read in crumbs.
_MOST_GROUPS = 256

# Runs of columns of one width from which on all are read as float64.
_MOST_RUNS = 16

_EXACT_IN_FLOAT32 = frozenset({"float", "halffloat", "int8", "uint8", "int16", "uint16", "bool"})

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


class _ColumnarReader(Reader):
    """Base of both formats: a pyarrow schema and record batches of any subset of the columns."""

    _schema: Any
    _groups: int
    _column_bytes: int

    def __init__(self, path: str, options: ReaderOptions) -> None:
        super().__init__(path, options)
        if options.rows == "features":
            raise InputError(f"{self.label}: columns of this format are always features: leave out --rows features")
        with library_errors(f"{self.label} cannot be read"):
            self._open()
            index = _pandas_index(self._schema)
        if index:
            self.notes.append("the row labels that pandas wrote with the table were left out")
        #: Which fields of the file are columns of the table.
        self._fields = [field for field, name in enumerate(self._schema.names) if name not in index]
        self.names = tuple(self._schema.names[field] for field in self._fields)

    @abstractmethod
    def _open(self) -> None:
        """Open the file and set ``_schema``, ``n_obs``, ``_groups`` and ``_column_bytes`` (of one column while a batch is read)."""

    @abstractmethod
    def _read(self, fields: list[int], batch_rows: int) -> Iterator[Any]:
        """Yield record batches of these fields in row order, of ``batch_rows`` rows if the format allows a choice."""

    def scan(self, columns: IndexArray) -> Scan:
        """Check the types and collect the labels of the text columns."""
        texts = [position for position, column in enumerate(columns.tolist()) if self.kind_of(column) == "category"]
        collectors = {position: LabelCollector(self.options.rules.missing) for position in texts}
        for group in (texts[first:last] for first, last in spans(len(texts), _DECODER_BYTES, self.options.chunk_bytes)):
            for batch in self._batches([int(columns[position]) for position in group], 1 << 16):
                for position, array in zip(group, batch.columns, strict=True):
                    collectors[position].add(_counts(array))
        rules = {position: self.rules.get(int(columns[position])) for position in texts}
        return Scan(self.n_obs, {position: collector.result(rules[position]) for position, collector in collectors.items()})

    def identifiers(self, column: int) -> list[str]:
        """Return the cells of a column as text."""
        found: list[str] = []
        for batch in self._batches([column], 1 << 16):
            found.extend("" if cell is None else str(cell).strip() for cell in batch.column(0).to_pylist())
        return found

    def chunks(self, columns: IndexArray, scan: Scan) -> Generator[Chunk, None, None]:
        """Yield slabs of whole columns, or parts of batches of rows where there are many groups and a batch of them fits."""
        budget, runs = self.options.chunk_bytes, self._runs(columns)
        codes = {position: categories.codes() for position, categories in scan.categories.items()}

        def fill(values: AnyArray, first_column: int, arrays: Sequence[Any]) -> None:
            for position, array in enumerate(arrays, first_column):
                values[position - first_column] = self._cells(array, int(columns[position]), codes.get(position))

        if self._groups > _MOST_GROUPS and len(columns) * self._column_bytes <= 4 * budget:
            first_obs = 0
            for batch in self._batches(columns.tolist(), max(1, budget // (8 * len(columns)))):
                for top, bottom in spans(batch.num_rows, 8 * len(columns), budget):
                    for first, last, dtype in runs:
                        values = np.empty((last - first, bottom - top), dtype)
                        fill(values, first, [array.slice(top, bottom - top) for array in batch.columns[first:last]])
                        yield Chunk(first_obs + top, first, values.T)
                first_obs += batch.num_rows
            return

        def load(slab: tuple[int, int, DType]) -> Chunk:
            first, last, dtype = slab
            values = np.empty((last - first, self.n_obs), dtype)
            first_obs = 0
            for batch in self._batches(columns[first:last].tolist(), 1 << 16):
                fill(values[:, first_obs : first_obs + batch.num_rows], first, batch.columns)
                first_obs += batch.num_rows
            return Chunk(0, first, values.T)

        slabs = (
            (begin + first, begin + last, dtype)
            for begin, end, dtype in runs
            for first, last in spans(end - begin, dtype.itemsize * self.n_obs, budget // 2)
        )
        with closing(ahead(slabs, load)) as chunks:
            yield from chunks

    def _runs(self, columns: IndexArray) -> list[tuple[int, int, DType]]:
        """Return runs of ``columns`` (first, last) with the type that holds their cells: float32 where that is exact."""
        types = [self._schema.field(self._fields[column]).type for column in columns.tolist()]
        narrow = np.array([str(kind) in _EXACT_IN_FLOAT32 for kind in types])
        edges = [0, *(np.flatnonzero(np.diff(narrow)) + 1).tolist(), len(columns)]
        if len(edges) - 1 > _MOST_RUNS:
            return [(0, len(columns), np.dtype(np.float64))]
        return [(first, last, np.dtype(np.float32 if narrow[first] else np.float64)) for first, last in pairwise(edges)]

    def _batches(self, columns: list[int], batch_rows: int) -> Iterator[Any]:
        """Yield record batches; a damaged file is a ``DataError``."""
        with library_errors(f"{self.label} is damaged"):
            for batch in self._read([self._fields[column] for column in columns], batch_rows):
                batch.validate(full=True)  # offsets of damaged text could point outside the buffers
                yield batch

    def kind_of(self, column: int) -> Kind:
        """Return the kind by the explicit rule, or else by the type; ``DataError`` for a type of another kind."""
        if column in self.rules:
            return self.rules[column].kind
        field = self._schema.field(self._fields[column])
        kind = _value_type(field.type)
        if _is_moment(kind):
            return "date"
        if str(kind) in ARROW_TEXTS or ARROW_NUMBERS.match(str(kind)):
            return "category" if str(kind) in ARROW_TEXTS else "number"
        raise DataError(
            f"{self.label}: column {field.name!r} is of type {field.type}, expected numbers, text or dates: "
            "convert it or leave it out with --drop"
        )

    def _cells(self, array: Any, column: int, codes: dict[str, float] | None) -> Any:
        """Return the (rows,) numbers, days or codes of an array, NaN where missing."""
        if _is_moment(array.type):
            zone = getattr(array.type, "tz", None)
            moments = array.cast(pyarrow.timestamp("us", tz=zone)).cast(pyarrow.int64())
            return moments.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False) / 86_400e6
        if str(_value_type(array.type)) in ARROW_TEXTS:
            convert = self.convert(column, codes)
            encoded = _encoded(array)
            lookup = [np.nan if cell is None else convert(cell) for cell in encoded.dictionary.to_pylist()]
            # A missing cell has a null index, which is mapped to an extra entry at the end.
            return np.array([*lookup, np.nan])[encoded.indices.fill_null(len(lookup)).to_numpy(zero_copy_only=False)]
        if pyarrow.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pyarrow.types.is_floating(array.type):
            return array.to_numpy(zero_copy_only=False)
        try:
            return array.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        except pyarrow.ArrowException as error:
            raise DataError(f"{self.label}: column {self.names[column]!r} cannot be read as numbers: {error}") from error


def _value_type(kind: Any) -> Any:
    """Return the type of the cells of a column."""
    return kind.value_type if pyarrow.types.is_dictionary(kind) else kind


def _is_moment(kind: Any) -> bool:
    """Return whether a type is a date or a moment."""
    return bool(pyarrow.types.is_date(kind) or pyarrow.types.is_timestamp(kind))


def _encoded(array: Any) -> Any:
    """Return an array of text as codes and a dictionary."""
    return array if pyarrow.types.is_dictionary(array.type) else array.dictionary_encode()


def _counts(array: Any) -> dict[str | None, int]:
    """Return the number of cells of each text."""
    encoded = _encoded(array)
    counts: dict[str | None, int] = {None: array.null_count} if array.null_count else {}
    found = np.bincount(encoded.indices.drop_null().to_numpy(), minlength=len(encoded.dictionary)).tolist()
    for cell, count in zip(encoded.dictionary.to_pylist(), found, strict=True):
        if count:
            counts[cell] = counts.get(cell, 0) + count
    return counts


def _pandas_index(schema: Any) -> frozenset[str]:
    """Return the fields in which pandas stored an unnamed index."""
    listed = (schema.pandas_metadata or {}).get(
        "index_columns", ()
    )  # an entry that is not text describes a range and is not a field
    return frozenset(name for name in listed if isinstance(name, str) and _UNNAMED_INDEX.fullmatch(name))


class ParquetReader(_ColumnarReader):
    """A Parquet file."""

    def _open(self) -> None:
        # Mapped, so that the packed bytes of a row group are never copied to memory.
        self._file = pyarrow.parquet.ParquetFile(self.path, memory_map=True, pre_buffer=False)
        self._schema = self._file.schema_arrow
        metadata = self._file.metadata
        self.n_obs, self._groups = metadata.num_rows, metadata.num_row_groups
        largest = max((metadata.row_group(group).num_rows for group in range(self._groups)), default=0)
        self._column_bytes = min(_DECODER_BYTES, 8 * largest)

    def _read(self, fields: list[int], batch_rows: int) -> Iterator[Any]:
        names = [self._schema.names[field] for field in fields]
        for batch in self._file.iter_batches(batch_size=batch_rows, columns=names):
            yield batch.select(names)  # iter_batches returns the order of the file

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class FeatherReader(_ColumnarReader):
    """A Feather (version 2) or Arrow IPC file."""

    def _open(self) -> None:
        self._source = pyarrow.memory_map(self.path)
        with pyarrow.ipc.open_file(self._source) as reader:
            self._schema = reader.schema
        rows = [batch.num_rows for batch in self._read([0], 0)]
        self.n_obs, self._groups = sum(rows), len(rows)
        self._column_bytes = 8 * max(rows, default=0)  # a batch is unpacked whole

    def _read(self, fields: list[int], batch_rows: int) -> Iterator[Any]:
        options = pyarrow.ipc.IpcReadOptions(included_fields=fields)
        with pyarrow.ipc.open_file(self._source, options=options) as reader:
            for batch in range(reader.num_record_batches):
                yield reader.get_batch(batch)

    def close(self) -> None:
        """Close the file."""
        self._source.close()
