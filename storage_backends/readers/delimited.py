"""CSV and TSV, plain or gzip: one observation per line, or one feature per line.

The first line names the columns if some cell of it is neither a number nor missing, or if it is ``,0,1,2,...``. A column is
categorical when no filled cell among the first rows is a number; a later cell of the other kind is an error. Two passes: the first
counts records and collects labels, the second parses. The parsers are in :mod:`storage_backends.readers.records`.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.readers.base import Chunk, LabelCollector, Reader, ReaderOptions, Scan, slab_chunks
from storage_backends.readers.records import (
    Dialect,
    RecordBlock,
    arrow_texts,
    cell_rows,
    first_record,
    parse_arrow,
    parse_cells,
    parse_loadtxt,
    record_blocks,
)
from storage_backends.readers.text import BLOCK_BYTES, MISSING_TOKENS, decode, parse_number

__all__ = ["DelimitedReader"]

_SAMPLE_ROWS = 1000
_SAMPLE_BYTES = 4 << 20
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_LONE_RETURN = re.compile(r"\r(?!\n)")
_QUOTED = re.compile(r'"[^"]*"')


class DelimitedReader(Reader):
    """A delimited text file.

    With ``rows="features"`` each line is a numeric feature. Its name is in the first column if the cells there are not numbers or
    its heading is empty, or in ``id_column``.
    """

    passes = 2

    def __init__(self, path: str, options: ReaderOptions) -> None:
        super().__init__(path, options)
        cells, delimiter = self._heading()
        named = any(parse_number(cell) is None and cell not in MISSING_TOKENS for cell in cells)
        # As pandas writes a table without names: row labels without a heading, columns numbered from 0.
        numbered = len(cells) > 1 and cells == ["", *map(str, range(len(cells) - 1))]
        self._has_header = named or numbered
        if self._has_header and any(parse_number(cell) is not None for cell in cells):
            what = "numbers the columns from 0" if numbered else "mixes numbers with text"
            self.notes.append(f"the first line {what} and was taken as column names")
        self._dialect = Dialect(path, delimiter, cells if self._has_header else NumberedNames(len(cells)))
        self._is_text = self._sample()
        # pandas and R write row labels as a first column without a heading.
        labelled = self._has_header and cells[0] == "" and len(cells) > 1
        if options.rows == "features":
            self._sources, self.names = self._line_names(labelled)
        else:
            self._sources, self.names = self._column_names(labelled)

    def scan(self, columns: IndexArray) -> Scan:
        """Count the records and collect the labels of the text columns."""
        if self.options.rows == "features":
            return Scan(len(self._sources))
        sources = self._sources[columns]
        texts = [int(source) for source in sources[self._is_text[sources]]]
        collectors = {source: LabelCollector(self.label, self._dialect.names[source]) for source in texts}
        n_obs = 0
        for block in self._blocks():
            n_obs += block.rows
            for source, cells in (self._distinct_cells(block, texts) if texts else {}).items():
                collectors[source].add(cells)
        if not n_obs:
            raise DataError(f"{self.label} has a header but no rows: at least one observation is needed")
        positions = np.searchsorted(sources, texts).tolist()
        return Scan(n_obs, {position: collectors[source].result() for position, source in zip(positions, texts, strict=True)})

    def chunks(self, columns: IndexArray, scan: Scan) -> Iterator[Chunk]:
        """Yield the values, one run of records at a time."""
        if self.options.rows == "features":
            for block in self._blocks():
                yield from slab_chunks(columns, block.first_row, self._parse(block, self._sources, {}).T)
            return
        sources = self._sources[columns]
        codes = {int(sources[position]): categories.codes() for position, categories in scan.categories.items()}
        for block in self._blocks():
            yield Chunk(block.first_row, 0, self._parse(block, sources, codes))

    def _blocks(self) -> Iterator[RecordBlock]:
        """Yield the runs of data records."""
        block_bytes = min(BLOCK_BYTES, self.options.chunk_bytes // 4)
        return record_blocks(self.path, skip_first=self._has_header, block_bytes=block_bytes, consumed=self.options.consumed)

    def _parse(self, block: RecordBlock, sources: IndexArray, codes: dict[int, dict[str, float]]) -> Float64Array:
        """Parse a run with the first parser that accepts it."""
        values = parse_arrow(self._dialect, block, sources, codes)
        if values is None and not codes:
            values = parse_loadtxt(self._dialect, block, sources)
        return parse_cells(self._dialect, block, sources, codes) if values is None else values

    def _distinct_cells(self, block: RecordBlock, texts: Sequence[int]) -> dict[int, set[str]]:
        """Return the distinct cells of each text column of a run."""
        found = arrow_texts(self._dialect, block, texts)
        if found is None:
            found = {source: set() for source in texts}
            for _, _, cells in cell_rows(self._dialect, block):
                for source in texts:
                    found[source].add(cells[source].strip())
        return found

    def _heading(self) -> tuple[list[str], str]:
        """Return the cells of the first record, and the delimiter."""
        record = first_record(self.path)
        if record is None:
            raise DataError(f"{self.label} holds nothing but blank lines: a table was expected")
        text = decode(record, self.path, 1).rstrip("\r\n")
        if _LONE_RETURN.search(text):
            raise DataError(f"{self.label} ends its lines with lone carriage returns: convert them to newlines")
        delimiter = _delimiter(self.path, text)
        try:
            cells = next(csv.reader([text], delimiter=delimiter, strict=True))
        except csv.Error as error:
            raise DataError(f"{self.label}: the first line is not well quoted: {error}") from error
        return [cell.strip() for cell in cells], delimiter

    def _sample(self) -> BoolArray:
        """Return a mask of the text columns: those with filled cells among the first rows, none of them a number."""
        width = self._dialect.width
        numbers, filled, commas = np.zeros((3, width), dtype=np.int64)
        block = next(record_blocks(self.path, skip_first=self._has_header, block_bytes=_SAMPLE_BYTES), None)
        if block is not None:
            for _, _, cells in itertools.islice(cell_rows(self._dialect, block), _SAMPLE_ROWS):
                for column, cell in enumerate(map(str.strip, cells)):
                    if cell in MISSING_TOKENS:
                        continue
                    filled[column] += 1
                    if parse_number(cell) is not None:
                        numbers[column] += 1
                    elif _DECIMAL_COMMA.fullmatch(cell):
                        commas[column] += 1
        decimal_comma = np.flatnonzero((commas > 0) & (commas + numbers == filled))
        if decimal_comma.size:
            name = self._dialect.names[int(decimal_comma[0])]
            raise DataError(f"{self.label}: column {name!r} writes decimals with a comma, expected a point: convert the file")
        return np.asarray((filled > 0) & (numbers == 0))

    def _column_names(self, labelled: bool) -> tuple[IndexArray, Sequence[str]]:
        """Return the positions of the columns in a record, and their names."""
        names = self._dialect.names
        if not self._has_header:
            self.notes.append(f"the first line holds no names and was read as data: columns are named {names[0]} to {names[-1]}")
        if labelled:
            self.notes.append("the first column has no heading and was taken as row labels")
            names = names[1:]
        return np.arange(int(labelled), self._dialect.width), names

    def _line_names(self, labelled: bool) -> tuple[IndexArray, Sequence[str]]:
        """Return the positions of the observations in a record, and the names of the lines."""
        headings = self._dialect.names
        key = 0 if labelled or self._is_text[0] else None
        if self.options.id_column is not None:
            if self.options.id_column not in headings:
                raise InputError(f"{self.label} has no column {self.options.id_column!r} to take feature names from")
            key = headings.index(self.options.id_column)
            self.names_from_id = True
        samples = np.flatnonzero(np.arange(len(headings)) != key) if key is not None else np.arange(len(headings))
        if not samples.size:
            raise DataError(f"{self.label} has names but no values: expected one column per observation")
        if key is None:
            count = sum(block.rows for block in self._blocks())
            self.notes.append("the lines have no names: features are named by their number")
            return samples, NumberedNames(count)
        names: list[str] = []
        for block in self._blocks():
            if key == 0 and b'"' not in block.data:  # much faster than splitting the whole line
                lines = decode(block.data, self.path, block.first_line).split("\n")
                names.extend(line.partition(self._dialect.delimiter)[0].strip() for line in lines if line.strip("\r"))
            else:
                names.extend(cells[key].strip() for _, _, cells in cell_rows(self._dialect, block))
        return samples, names


def _delimiter(path: str, heading: str) -> str:
    """Return the delimiter, from the extension and, if that allows several, from the first line."""
    stem = path.lower().removesuffix(".gz")
    if stem.endswith(".tsv"):
        return "\t"
    bare = _QUOTED.sub("", heading)
    candidates = ",;" if stem.endswith(".csv") else "\t,;"
    return max(candidates, key=bare.count)
