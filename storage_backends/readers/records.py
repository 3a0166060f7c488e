"""Splitting delimited text into runs of whole records, and three parsers of a run.

A newline inside quotes does not end a record. pyarrow parses tall runs, ``numpy.loadtxt`` wide ones (pyarrow takes tens of
microseconds per column, however short), and the standard library's ``csv`` all others. The fast parsers return None for input they
do not accept; only ``csv`` reports errors. All three agree on every cell they accept.
"""

from __future__ import annotations

import csv
import functools
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.errors import DataError
from storage_backends.readers.text import (
    BLOCK_BYTES,
    MISSING_TOKENS,
    Consumed,
    decode,
    open_bytes,
    parse_number,
    read_some,
    shorten,
)

__all__ = [
    "Dialect",
    "RecordBlock",
    "arrow_texts",
    "cell_rows",
    "first_record",
    "parse_arrow",
    "parse_cells",
    "parse_loadtxt",
    "record_blocks",
]

_NEWLINE, _RETURN, _QUOTE = b"\n"[0], b"\r"[0], b'"'[0]
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# A longer record is taken for an unclosed quote.
_MAX_RECORD_BYTES = 256 << 20

# In runs of fewer records the overhead of pyarrow per column outweighs its speed per cell.
_ARROW_ROWS = 256


@dataclass(frozen=True, slots=True)
class Dialect:
    """Path, delimiter and column names of a file."""

    path: str
    delimiter: str
    names: Sequence[str]

    @property
    def width(self) -> int:
        """Cells per record."""
        return len(self.names)

    @property
    def label(self) -> str:
        """Name of the file in messages."""
        return os.path.basename(self.path)


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """A run of whole records: its bytes, the 0-based row and 1-based line of the first record, and the number of records."""

    data: bytes
    first_row: int
    first_line: int
    rows: int


def record_blocks(
    path: str, *, skip_first: bool = False, block_bytes: int = BLOCK_BYTES, consumed: Consumed = None
) -> Iterator[RecordBlock]:
    """Yield the records of a file in runs; blank lines are not records.

    Parameters
    ----------
    path : str
    skip_first : bool
        Skip the first record (the header).
    block_bytes : int
        Bytes read at once; a run holds at least one record.
    consumed : callable, optional
        Called with the number of bytes of the file consumed by each read.
    """
    row, line, pending = 0, 1, b""
    with open_bytes(path) as stream:
        while (data := read_some(stream, block_bytes, path, consumed)) or pending:
            buffer = pending + (data or b"\n")  # the last line may lack its newline
            if line == 1:
                buffer = buffer.removeprefix(_BYTE_ORDER_MARK)
            ends, filled = _record_ends(buffer)
            cut = int(ends[-1]) if len(ends) else 0
            pending = buffer[cut:]
            if len(pending) > _MAX_RECORD_BYTES or (pending and not data):
                line += buffer.count(b"\n", 0, cut)
                raise DataError(f"{os.path.basename(path)}: the record at line {line} has a quote that is never closed")
            start, rows = 0, int(filled.sum())
            if skip_first and rows:
                start, rows, skip_first = int(ends[filled.argmax()]), rows - 1, False
                line += buffer.count(b"\n", 0, start)
            if rows:
                yield RecordBlock(buffer[start:cut], row, line, rows)
            row += rows
            line += buffer.count(b"\n", start, cut)


def first_record(path: str) -> bytes | None:
    """Return the first record of a file, or None if all lines are blank."""
    block = next(record_blocks(path, block_bytes=1 << 16), None)
    if block is None:
        return None
    ends, filled = _record_ends(block.data)
    position = int(filled.argmax())
    return block.data[int(ends[position - 1]) if position else 0 : int(ends[position])]


def _record_ends(buffer: bytes) -> tuple[IndexArray, BoolArray]:
    """Return the position after each newline outside quotes, and whether the record it ends is not blank."""
    view = np.frombuffer(buffer, dtype=np.uint8)
    ends = np.flatnonzero(view == _NEWLINE)
    if b'"' in buffer:
        quotes = np.flatnonzero(view == _QUOTE)
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]  # doubled quotes inside quotes keep the parity
    starts = np.concatenate((np.zeros(min(1, len(ends)), dtype=np.int64), ends[:-1] + 1))
    returns = (view[ends - 1] == _RETURN) & (ends > starts)
    return ends + 1, ends - starts - returns > 0


@functools.cache
def _arrow() -> Any:
    """Return pyarrow with its CSV module, or None if it is not installed."""
    try:
        import pyarrow
        import pyarrow.csv
    except ModuleNotFoundError:
        return None
    return pyarrow


def _arrow_table(dialect: Dialect, block: RecordBlock, numeric: IndexArray, texts: Sequence[int]) -> Any:
    """Return a pyarrow table of the given columns, named by position, or None if pyarrow does not accept the run."""
    pyarrow = _arrow()
    if pyarrow is None or block.rows < _ARROW_ROWS:
        return None
    number, text = pyarrow.float64(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    types = {str(column): number for column in numeric} | {str(column): text for column in texts}
    try:
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(block.data),
            read_options=pyarrow.csv.ReadOptions(
                column_names=[str(column) for column in range(dialect.width)], block_size=len(block.data) + 1
            ),
            parse_options=pyarrow.csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=b'"' in block.data),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=sorted(MISSING_TOKENS), strings_can_be_null=False
            ),
        )
    except pyarrow.ArrowException:
        return None
    return table if table.num_rows == block.rows else None


def parse_arrow(
    dialect: Dialect, block: RecordBlock, columns: IndexArray, codes: dict[int, dict[str, float]]
) -> Float64Array | None:
    """Parse a run with pyarrow, as ``parse_cells`` does; return None if pyarrow does not accept it."""
    table = _arrow_table(dialect, block, columns[~np.isin(columns, list(codes))], list(codes))
    if table is None:
        return None
    values = np.empty((len(columns), block.rows))
    for position, column in enumerate(columns.tolist()):
        chunked = table.column(str(column))
        if column not in codes:
            values[position] = chunked.to_numpy()
            continue
        known = codes[column]
        first = 0
        for array in chunked.chunks:
            cells = [cell.strip() for cell in array.dictionary.to_pylist()]
            if any(cell not in known and cell not in MISSING_TOKENS for cell in cells):
                return None
            lookup = np.array([known.get(cell, np.nan) for cell in cells] or [np.nan])
            values[position, first : first + len(array)] = lookup[array.indices.to_numpy()]
            first += len(array)
    return values.T


def arrow_texts(dialect: Dialect, block: RecordBlock, texts: Sequence[int]) -> dict[int, set[str]] | None:
    """Return the distinct stripped cells of the columns ``texts``, or None if pyarrow does not accept the run."""
    table = _arrow_table(dialect, block, np.empty(0, dtype=np.int64), texts)
    if table is None:
        return None
    return {
        column: {cell.strip() for array in table.column(str(column)).chunks for cell in array.dictionary.to_pylist()}
        for column in texts
    }


def parse_loadtxt(dialect: Dialect, block: RecordBlock, columns: IndexArray) -> Float64Array | None:
    """Parse a run whose ``columns`` are numbers without missing cells; return None for any other."""
    if b'"' in block.data or not _is_regular(dialect, block):
        return None
    everything = len(columns) == dialect.width
    try:
        values: Float64Array = np.loadtxt(
            io.BytesIO(block.data),
            delimiter=dialect.delimiter,
            comments=None,
            ndmin=2,
            usecols=None if everything else columns.tolist(),
        )
    except ValueError:
        return None
    return values if len(values) == block.rows else None


def _is_regular(dialect: Dialect, block: RecordBlock) -> bool:
    """Return whether each line of a run without quotes has the right number of cells, which loadtxt does not check."""
    view = np.frombuffer(block.data, dtype=np.uint8)
    before = np.searchsorted(np.flatnonzero(view == ord(dialect.delimiter)), np.flatnonzero(view == _NEWLINE))
    return bool((np.diff(before, prepend=0) == dialect.width - 1).all())


def cell_rows(dialect: Dialect, block: RecordBlock) -> Iterator[tuple[int, int, list[str]]]:
    """Yield (0-based row, 1-based line, cells) of each record; raise ``DataError`` for a malformed one."""
    source = csv.reader(
        io.StringIO(decode(block.data, dialect.path, block.first_line), newline=""), delimiter=dialect.delimiter, strict=True
    )
    row, line = block.first_row, block.first_line
    last = block.first_row + block.rows
    while True:
        line = block.first_line + source.line_num
        try:
            cells = next(source, None)
        except csv.Error as error:
            raise DataError(f"{dialect.label}: line {line} (row {row + 1}) is not well quoted: {error}") from error
        if cells is None:
            break
        if not cells:
            continue
        if len(cells) != dialect.width:
            raise DataError(
                f"{dialect.label}: line {line} (row {row + 1}) has {len(cells)} cells, expected {dialect.width} "
                "as in the first line"
            )
        if row < last:
            yield row, line, cells
        row += 1
    if row != last:  # csv takes a quote inside an unquoted cell literally, so it finds other records than record_blocks
        raise DataError(
            f"{dialect.label}: a cell between line {block.first_line} and line {line} has a quote in its middle: "
            "write the cell in quotes and double the quote"
        )


def parse_cells(dialect: Dialect, block: RecordBlock, columns: IndexArray, codes: dict[int, dict[str, float]]) -> Float64Array:
    """Parse a run cell by cell.

    Parameters
    ----------
    dialect : Dialect
    block : RecordBlock
    columns : (c,) int64
        Columns to return.
    codes : dict
        Column -> label -> code, for each categorical column.

    Returns
    -------
    (rows, c) float64
        Missing cells are NaN.

    Raises
    ------
    DataError
        Names the row, the line, the column and the cell.
    """
    values = np.empty((block.rows, len(columns)))
    wanted = columns.tolist()
    # Python's float also accepts underscores and non-ASCII digits; without these it needs no check.
    plain = not codes and block.data.isascii() and b"_" not in block.data
    for row, line, cells in cell_rows(dialect, block):
        target = values[row - block.first_row]
        if plain:
            try:
                target[:] = [float(cells[column]) for column in wanted]
                continue
            except ValueError:
                pass
        for position, column in enumerate(wanted):
            cell = cells[column].strip()
            number = codes[column].get(cell) if column in codes else parse_number(cell)
            if number is None:
                if cell not in MISSING_TOKENS:
                    raise DataError(
                        f"{dialect.label}: row {row + 1} (line {line}), column {dialect.names[column]!r} holds {shorten(cell)}, "
                        "expected a number: correct the cell or leave the column out with --drop"
                    )
                number = np.nan
            target[position] = number
    return values
