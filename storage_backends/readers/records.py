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
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.errors import DataError
from storage_backends.readers.cells import CellRules, ColumnRule, Convert
from storage_backends.readers.problems import Problem, Problems
from storage_backends.readers.text import BLOCK_BYTES, Consumed, decode, open_bytes, read_some, shorten

__all__ = [
    "Dialect",
    "RecordBlock",
    "arrow_texts",
    "cell_rows",
    "column_cells",
    "first_record",
    "known_blocks",
    "parse_arrow",
    "parse_cells",
    "parse_loadtxt",
    "record_blocks",
]

_NEWLINE, _RETURN, _QUOTE = b"\n"[0], b"\r"[0], b'"'[0]
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Bytes searched for newlines at once.
_CACHED_BYTES = 128 << 10

# A longer record is taken for an unclosed quote.
_MAX_RECORD_BYTES = 256 << 20

# In runs of fewer records the overhead of pyarrow per column outweighs its speed per cell.
_ARROW_ROWS = 256


@dataclass(frozen=True, slots=True)
class Dialect:
    """Path, delimiter, column names, meaning of cells and encoding of a file."""

    path: str
    delimiter: str
    names: Sequence[str]
    rules: CellRules = field(default_factory=CellRules)
    #: What a cell should be, by column, for columns that are not plain numbers.
    expected: dict[int, str] = field(default_factory=dict)

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
    """A run of whole records: its bytes, the 0-based row and 1-based line of the first record, and the number of records.

    ``begin`` and ``end`` are its place in the UTF-8 text.
    """

    data: bytes
    first_row: int
    first_line: int
    rows: int
    begin: int
    end: int


def record_blocks(
    path: str,
    *,
    skip_first: bool = False,
    block_bytes: int = BLOCK_BYTES,
    consumed: Consumed = None,
    encoding: str = "utf-8",
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
    encoding : str
        Of the file; the runs are UTF-8.
    """
    row, line, pending, position = 0, 1, b"", 0
    with open_bytes(path, encoding) as stream:
        while (data := read_some(stream, block_bytes, path, consumed)) or pending:
            buffer = pending + (data or b"\n")  # the last line may lack its newline
            if line == 1 and buffer.startswith(_BYTE_ORDER_MARK):
                buffer, position = buffer.removeprefix(_BYTE_ORDER_MARK), len(_BYTE_ORDER_MARK)
            ends, filled, newlines = _record_ends(buffer)
            cut = int(ends[-1]) if len(ends) else 0
            pending = buffer[cut:]
            if len(pending) > _MAX_RECORD_BYTES or (pending and not data):
                line += int(np.searchsorted(newlines, cut))
                what = f"the record at line {line} has a quote that is never closed"
                raise DataError(f"{os.path.basename(path)}: {what}: close it, or double a quote inside a cell")
            start, rows = 0, int(filled.sum())
            if skip_first and rows:
                start, rows, skip_first = int(ends[filled.argmax()]), rows - 1, False
            before = int(np.searchsorted(newlines, start))
            if rows:
                yield RecordBlock(buffer[start:cut], row, line + before, rows, position + start, position + cut)
            row += rows
            line += int(np.searchsorted(newlines, cut))
            position += cut


def known_blocks(path: str, known: Iterable[RecordBlock], consumed: Consumed = None) -> Iterator[RecordBlock]:
    """Read again the runs of a file in UTF-8 whose places are known; the ``data`` of ``known`` is not used."""
    position = 0
    with open_bytes(path) as stream:
        for block in known:
            read_some(stream, block.begin - position, path, consumed)
            data, position = read_some(stream, block.end - block.begin, path, consumed), block.end
            data = data if data.endswith(b"\n") else data + b"\n"
            if len(data) != block.end - block.begin:
                raise DataError(f"{os.path.basename(path)} has changed while it was read: start again")
            yield replace(block, data=data)


def first_record(path: str, encoding: str = "utf-8") -> bytes | None:
    """Return the first record of a file, or None if all lines are blank."""
    block = next(record_blocks(path, block_bytes=1 << 16, encoding=encoding), None)
    if block is None:
        return None
    ends, filled, _ = _record_ends(block.data)
    position = int(filled.argmax())
    return block.data[int(ends[position - 1]) if position else 0 : int(ends[position])]


def _record_ends(buffer: bytes) -> tuple[IndexArray, BoolArray, IndexArray]:
    """Return the position after each newline outside quotes, whether the record it ends is not blank, and all newlines."""
    view = np.frombuffer(buffer, dtype=np.uint8)
    # Parts that fit a processor's cache: a comparison of the whole buffer writes as many bytes as it reads.
    firsts = range(0, max(len(view), 1), _CACHED_BYTES)
    ends = newlines = np.concatenate([np.flatnonzero(view[first : first + _CACHED_BYTES] == _NEWLINE) + first for first in firsts])
    if b'"' in buffer:
        quotes = np.flatnonzero(view == _QUOTE)
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]  # doubled quotes inside quotes keep the parity
    starts = np.concatenate((np.zeros(min(1, len(ends)), dtype=np.int64), ends[:-1] + 1))
    returns = (view[ends - 1] == _RETURN) & (ends > starts)
    return ends + 1, ends - starts - returns > 0, newlines


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
    """Return a pyarrow table of the given columns, named by position, or None if pyarrow does not accept the run.

    It is parsed as one part on this thread: others are parsed at the same time, and a column in one part need not be joined.
    """
    pyarrow = _arrow()
    if pyarrow is None or block.rows < _ARROW_ROWS:
        return None
    number, text = pyarrow.float64(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    types = {str(column): number for column in numeric} | {str(column): text for column in texts}
    try:
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(block.data),
            read_options=pyarrow.csv.ReadOptions(
                column_names=[str(column) for column in range(dialect.width)], block_size=len(block.data) + 1, use_threads=False
            ),
            parse_options=pyarrow.csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=b'"' in block.data),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=sorted(dialect.rules.missing),
                strings_can_be_null=False,
                decimal_point=dialect.rules.decimal,
            ),
        )
    except pyarrow.ArrowException:
        return None
    return table if table.num_rows == block.rows else None


def parse_arrow(dialect: Dialect, block: RecordBlock, columns: IndexArray, converts: Mapping[int, Convert]) -> Float64Array | None:
    """Parse a run with pyarrow, as ``parse_cells`` does; return None if pyarrow does not accept it."""
    table = _arrow_table(dialect, block, columns[~np.isin(columns, list(converts))], list(converts))
    if table is None:
        return None
    values = np.empty((len(columns), block.rows))
    for position, column in enumerate(columns.tolist()):
        chunked = table.column(str(column))
        if column not in converts:
            values[position] = chunked.to_numpy()
            continue
        first = 0
        for array in chunked.chunks:
            numbers = [converts[column](cell.strip()) for cell in array.dictionary.to_pylist()]
            if None in numbers:
                return None
            lookup = np.array(numbers or [np.nan], dtype=np.float64)
            values[position, first : first + len(array)] = lookup[array.indices.to_numpy()]
            first += len(array)
    return values.T


def arrow_texts(dialect: Dialect, block: RecordBlock, texts: Sequence[int]) -> dict[int, Counter[str]] | None:
    """Return the counts of the stripped cells of the columns ``texts``, or None if pyarrow does not accept the run."""
    table = _arrow_table(dialect, block, np.empty(0, dtype=np.int64), texts)
    if table is None:
        return None
    found: dict[int, Counter[str]] = {column: Counter() for column in texts}
    for column in texts:
        for array in table.column(str(column)).chunks:
            counts = np.bincount(array.indices.to_numpy(), minlength=len(array.dictionary)).tolist()
            for cell, count in zip(array.dictionary.to_pylist(), counts, strict=True):
                found[column][cell.strip()] += count
    return found


def column_cells(dialect: Dialect, block: RecordBlock, column: int, problems: Problems | None = None) -> list[str]:
    """Return the stripped cells of a column; ``problems`` as for ``cell_rows``."""
    table = _arrow_table(dialect, block, np.empty(0, dtype=np.int64), [column])
    if table is None:
        return [cells[column].strip() for _, _, cells in cell_rows(dialect, block, problems)]
    found: list[str] = []
    for array in table.column(str(column)).chunks:
        texts = [cell.strip() for cell in array.dictionary.to_pylist()]
        found.extend(texts[index] for index in array.indices.to_numpy().tolist())
    return found


def parse_loadtxt(dialect: Dialect, block: RecordBlock, columns: IndexArray) -> Float64Array | None:
    """Parse a run whose ``columns`` are numbers without missing cells; return None for any other."""
    if b'"' in block.data or not dialect.rules.plain or not _is_regular(dialect, block):
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


def cell_rows(dialect: Dialect, block: RecordBlock, problems: Problems | None = None) -> Iterator[tuple[int, int, list[str]]]:
    """Yield (0-based row, 1-based line, cells) of each record.

    A malformed record raises ``DataError``; with ``problems`` it is added there, and the record gets or loses cells at its end.
    """
    source = csv.reader(io.StringIO(_text(dialect, block, problems), newline=""), delimiter=dialect.delimiter, strict=True)
    row, line = block.first_row, block.first_line
    last = block.first_row + block.rows
    while True:
        line = block.first_line + source.line_num
        try:
            cells = next(source, None)
        except csv.Error as error:
            what = f"line {line} (row {row + 1}) is not well quoted: {error}"
            if problems is None:
                raise DataError(f"{dialect.label}: {what}") from error
            problems.add_line(Problem(dialect.label, line, 0, f"not well quoted: {error}", f"{dialect.label}: {what}"))
            cells = [""] * dialect.width
        if cells is None:
            break
        if not cells:
            continue
        if len(cells) != dialect.width:
            what = f"{len(cells)} cells, expected {dialect.width} as in the first line"
            message = f"{dialect.label}: line {line} (row {row + 1}) has {what}"
            if problems is None:
                raise DataError(f"{message}: correct the line or remove it")
            problems.add_line(Problem(dialect.label, line, 0, what, f"{message}: correct the line or remove it"))
            cells = (cells + [""] * dialect.width)[: dialect.width]
        if row < last:
            yield row, line, cells
        row += 1
    if row != last:  # csv takes a quote inside an unquoted cell literally, so it finds other records than record_blocks
        what = "has a quote in its middle: write the cell in quotes and double the quote"
        message = f"{dialect.label}: a cell between line {block.first_line} and line {line} {what}"
        if problems is None:
            raise DataError(message)
        problems.add(Problem(dialect.label, block.first_line, 0, f"a cell from here to line {line} {what}", message))
        problems.malformed = line
        for missing in range(row, last):
            yield missing, line, [""] * dialect.width


def _text(dialect: Dialect, block: RecordBlock, problems: Problems | None) -> str:
    """Return a run as text; bytes that are none raise ``DataError`` or, with ``problems``, are added there and replaced."""
    try:
        return decode(block.data, dialect.path, block.first_line)
    except DataError as error:
        if problems is None:
            raise
        line = block.first_line + block.data.count(b"\n", 0, cast("UnicodeDecodeError", error.__cause__).start)
        problems.add(Problem(dialect.label, line, 0, "a byte that is not UTF-8: name the encoding with --encoding", str(error)))
        return block.data.decode("utf-8", "replace")


def parse_cells(
    dialect: Dialect,
    block: RecordBlock,
    columns: IndexArray,
    converts: Mapping[int, Convert],
    problems: Problems | None = None,
    complete: Collection[int] = (),
) -> Float64Array:
    """Parse a run cell by cell.

    Parameters
    ----------
    dialect : Dialect
    block : RecordBlock
    columns : (c,) int64
        Columns to return.
    converts : mapping
        Column -> function of a cell, for each column that is not plain numbers.
    problems : Problems, optional
        Collects cells that cannot be read, which are NaN then.
    complete : collection of int
        Columns whose missing cells are ``problems``, too.

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
    rules = dialect.rules
    # Python's float also accepts underscores and non-ASCII digits; without these it needs no check.
    plain = rules.plain and not converts and problems is None and block.data.isascii() and b"_" not in block.data
    default = rules.convert(ColumnRule("number"))
    for row, line, cells in cell_rows(dialect, block, problems):
        target = values[row - block.first_row]
        if plain:
            try:
                target[:] = [float(cells[column]) for column in wanted]
                continue
            except ValueError:
                pass
        for position, column in enumerate(wanted):
            cell = cells[column].strip()
            number = converts.get(column, default)(cell)
            if number is None:
                problem = _unfit(dialect, row, line, column, cell)
                if problems is None:
                    hint = "correct the cell, fill it in or remove the row"
                    raise DataError(f"{problem.message}: {hint}")
                problems.add_cell(problem, dialect.names[column], cell)
                number = np.nan
            elif problems is not None and column in complete and number != number and line != problems.malformed:
                name = dialect.names[column]
                message = f"{dialect.label}: row {row + 1} (line {line}), column {name!r} is missing"
                found = Problem(dialect.label, line, column + 1, f"column {name!r} is missing", message)
                problems.add_missing(found, name)
            target[position] = number
    return values


def _unfit(dialect: Dialect, row: int, line: int, column: int, cell: str) -> Problem:
    """Return the problem of a cell that is not what its column needs."""
    name = dialect.names[column]
    expected = dialect.expected.get(column, "a number")
    what = f"column {name!r} holds {shorten(cell)}, expected {expected}"
    return Problem(dialect.label, line, column + 1, what, f"{dialect.label}: row {row + 1} (line {line}), {what}")
