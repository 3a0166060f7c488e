"""Parquet and Feather (Arrow IPC), read in batches of rows or slabs of columns within the budget.

A file whose row groups are small is read batch by batch. Otherwise a few columns are read at a time for all rows, because decoding
a batch keeps a page of every column in memory. Text and dictionary columns are categorical.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.encoding import Kind
from storage_backends.readers.base import Chunk, LabelCollector, Reader, ReaderOptions, Scan, library_errors, spans
from storage_backends.readers.text import ARROW_NUMBERS, ARROW_TEXTS

__all__ = ["FeatherReader", "ParquetReader"]

# Memory of a column being decoded: a data page, a dictionary page and their unpacked copies.
_DECODER_BYTES = 4 << 20

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


class _ColumnarReader(Reader):
    """Base of both formats: a pyarrow schema and record batches of any subset of the columns."""

    _schema: Any
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
        """Open the file and set ``_schema``, ``n_obs`` and ``_column_bytes`` (memory of one column while a batch is read)."""

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
        """Yield batches of rows, or slabs of columns when a batch would not fit."""
        budget = self.options.chunk_bytes
        codes = {position: categories.codes() for position, categories in scan.categories.items()}
        if len(columns) * self._column_bytes <= 4 * budget:
            step = max(1, budget // (8 * len(columns)))
            first_obs = 0
            for batch in self._batches(columns.tolist(), step):
                for first, last in spans(batch.num_rows, 8 * len(columns), budget):
                    values = np.empty((len(columns), last - first))
                    for position, array in enumerate(batch.columns):
                        values[position] = self._cells(
                            array.slice(first, last - first), int(columns[position]), codes.get(position)
                        )
                    yield Chunk(first_obs, 0, values.T)
                    first_obs += last - first
            return
        for first, last in spans(len(columns), 8 * self.n_obs, budget):
            values = np.empty((last - first, self.n_obs))
            first_obs = 0
            for batch in self._batches(columns[first:last].tolist(), 1 << 16):
                for position, array in enumerate(batch.columns):
                    cells = self._cells(array, int(columns[first + position]), codes.get(first + position))
                    values[position, first_obs : first_obs + batch.num_rows] = cells
                first_obs += batch.num_rows
            yield Chunk(0, first, values.T)

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
        if pyarrow.types.is_floating(array.type) and not array.null_count:
            return array.to_numpy()
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
        self.n_obs = metadata.num_rows
        largest = max((metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)), default=0)
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
        self.n_obs = sum(rows)
        self._column_bytes = 8 * max(rows, default=0)  # a batch is unpacked whole

    def _read(self, fields: list[int], batch_rows: int) -> Iterator[Any]:
        options = pyarrow.ipc.IpcReadOptions(included_fields=fields)
        with pyarrow.ipc.open_file(self._source, options=options) as reader:
            for batch in range(reader.num_record_batches):
                yield reader.get_batch(batch)

    def close(self) -> None:
        """Close the file."""
        self._source.close()
