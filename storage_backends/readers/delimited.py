"""CSV and TSV, plain or gzip: one observation per line, or one feature per line.

The first line names the columns if some cell of it is neither a number nor missing, or if it is ``,0,1,2,...``. Without an explicit
rule a column is categorical when no filled cell among the first rows is a number. Two passes: the first counts records and collects
labels, the second parses (:mod:`storage_backends.readers.records`). After a failure, ``explain`` makes a third one that lists all
problems.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.matrix.memory import fillable_memory
from fastomp_nvm.stores.encoding import Kind
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.readers.base import Chunk, LabelCollector, Reader, ReaderOptions, Scan, ahead, slab_chunks
from storage_backends.readers.cells import ColumnRule, Convert, advice, date_option, looks_like_dates, missing_option
from storage_backends.readers.problems import Problem, Problems
from storage_backends.readers.records import (
    Dialect,
    RecordBlock,
    arrow_texts,
    cell_rows,
    column_cells,
    first_record,
    known_blocks,
    parse_arrow,
    parse_cells,
    parse_loadtxt,
    record_blocks,
)
from storage_backends.readers.text import BLOCK_BYTES, decode, is_utf8, parse_number

__all__ = ["DelimitedReader"]

#: Threads that parse runs of records while earlier ones are in use.
_PARSERS = min(max(len(os.sched_getaffinity(0)), 2), 8)
_SAMPLE_ROWS = 1000
_SAMPLE_BYTES = 4 << 20
_LONE_RETURN = re.compile(r"\r(?!\n)")
_QUOTED = re.compile(r'"[^"]*"')


class DelimitedReader(Reader):
    """A delimited text file.

    With ``rows="features"`` each line is a numeric feature. Its name is in the first column if the cells there are not numbers or
    its heading is empty, or in ``id_column``.
    """

    passes = 2
    typed = False

    def __init__(self, path: str, options: ReaderOptions) -> None:
        super().__init__(path, options)
        rules = options.rules
        is_utf8(options.encoding)  # refuses an unknown one
        cells, delimiter = self._heading()
        named = any(rules.number(cell) is None and cell not in rules.missing for cell in cells)
        # As pandas writes a table without names: row labels without a heading, columns numbered from 0.
        numbered = len(cells) > 1 and cells == ["", *map(str, range(len(cells) - 1))]
        self._has_header = named or numbered
        if self._has_header and any(parse_number(cell) is not None for cell in cells):
            what = "numbers the columns from 0" if numbered else "mixes numbers with text"
            self.notes.append(f"the first line {what} and was taken as column names; if it is data, put a line of names above it")
        self._dialect = Dialect(path, delimiter, cells if self._has_header else NumberedNames(len(cells)), rules)
        #: Rules of columns that are not plain numbers, by position in a record.
        self._source_rules: dict[int, ColumnRule] = {}
        #: Problems found by a pass that collects them in place of raising the first.
        self.problems: Problems | None = None
        self._complete: frozenset[int] = frozenset()
        #: Places of the runs of records, once a pass has found them.
        self._known: list[RecordBlock] = []
        self._sample()
        # pandas and R write row labels as a first column without a heading.
        labelled = self._has_header and cells[0] == "" and len(cells) > 1
        if options.rows == "features":
            self._sources, self.names = self._line_names(labelled)
        else:
            self._sources, self.names = self._column_names(labelled)

    def assign(self, rules: Mapping[int, ColumnRule]) -> None:
        """Read columns by explicit rules in place of what the first rows suggest."""
        plain = ColumnRule("number")
        if self.options.rows == "features":
            if all(rule == plain for rule in rules.values()):
                return
            raise InputError(
                f"{self.label}: with --rows features every line holds numbers: leave out --categorical, --date, --numeric"
            )
        for column, rule in rules.items():
            source = int(self._sources[column])
            if rule == plain:  # the fast parsers read plain numbers
                if self._source_rules.get(source, plain) != plain:
                    del self._source_rules[source]
                continue
            self._source_rules[source] = rule
            if rule.kind == "date":
                self._dialect.expected[source] = f"a date like {rule.format}" if rule.format else "a date like 2024-12-31"
            elif rule.kind == "category":
                self._dialect.expected[source] = "a label of the schema"

    def kind_of(self, column: int) -> Kind:
        """Return the kind by the explicit rule, or else by the first rows."""
        rule = self._source_rules.get(int(self._sources[column]))
        return "number" if rule is None else rule.kind

    def scan(self, columns: IndexArray) -> Scan:
        """Count the records and collect the labels of the text columns."""
        if self.options.rows == "features":
            return Scan(len(self._sources))
        sources = self._sources[columns]
        texts = [
            source for source in sources.tolist() if source in self._source_rules and self._source_rules[source].kind == "category"
        ]
        collectors = {source: LabelCollector(self.options.rules.missing) for source in texts}
        n_obs = 0

        def counted(block: RecordBlock) -> tuple[int, dict[int, Counter[str]]]:
            return block.rows, self._counted_cells(block, texts) if texts else {}

        with contextlib.closing(ahead(self._blocks(), counted, _PARSERS)) as runs:
            for rows, found in runs:
                n_obs += rows
                for source, cells in found.items():
                    collectors[source].add(cells)
        if not n_obs:
            raise DataError(f"{self.label} has a header but no rows: at least one observation is needed")
        positions = np.searchsorted(sources, texts).tolist()
        return Scan(
            n_obs,
            {
                position: collectors[source].result(self._source_rules[source])
                for position, source in zip(positions, texts, strict=True)
            },
        )

    def chunks(self, columns: IndexArray, scan: Scan) -> Generator[Chunk, None, None]:
        """Yield the values, one run of records at a time."""
        if self.options.rows == "features":
            for block in self._blocks():
                yield from slab_chunks(columns, block.first_row, self._parse(block, self._sources, {}).T)
            return
        sources = self._sources[columns]
        codes = {int(sources[position]): categories.codes() for position, categories in scan.categories.items()}
        converts = {
            source: self.options.rules.convert(self._source_rules[source], codes.get(source))
            for source in sources.tolist()
            if source in self._source_rules
        }

        def parsed(block: RecordBlock) -> Chunk:
            return Chunk(block.first_row, 0, self._parse(block, sources, converts))

        with contextlib.closing(ahead(self._blocks(), parsed, _PARSERS)) as chunks:
            yield from chunks

    def identifiers(self, column: int) -> list[str]:
        """Return the cells of a column as they are written."""
        source = int(self._sources[column])
        found: list[str] = []
        for block in self._blocks():
            found.extend(column_cells(self._dialect, block, source, self.problems))
        return found

    def collect(self, problems: Problems) -> None:
        """Add problems to ``problems`` and read on."""
        self.problems = problems

    def explain(self, error: DataError, columns: IndexArray, complete: Collection[int]) -> DataError:
        """Read the file once more and list all problems."""
        kept, self.problems = self.problems, Problems()
        self._complete = frozenset() if self.options.rows == "features" else frozenset(self._sources[sorted(complete)].tolist())
        try:
            for _ in self.chunks(columns, Scan(1)):
                pass
        except DataError as unclosed:  # a quote that is never closed ends the file
            self.problems.add(Problem(self.label, 1, 0, str(unclosed), str(unclosed)))
        found, self.problems, self._complete = self.problems, kept, frozenset()
        names = self._dialect.names
        if not found.total:
            return error
        return found.error(
            error,
            lambda problem: names[problem.column - 1],
            lambda column: self._advice(found, column),
        )

    def _advice(self, found: Problems, column: str) -> str:
        """Return the options that help with a column."""
        rule = self._source_rules.get(self._dialect.names.index(column))
        if rule is None or rule.kind == "number":
            return advice(found.examples[column], column, self.options.rules)
        name = shlex.quote(column)
        cells = found.examples[column]
        missing = missing_option(cells)
        options = [missing] if missing else []
        if rule.kind == "category":
            options = ["a schema with all labels", *options]
        elif looks_like_dates(cells):
            options = [f"{date_option(cells, column)} if all are written so"]
        return " or ".join([*options, f"--drop {name}"])

    def _blocks(self) -> Iterator[RecordBlock]:
        """Yield the runs of data records."""
        if self._known:
            yield from known_blocks(self.path, self._known, self.options.consumed)
            return
        # Several runs are in memory at a time, each as text, as parsed columns and as a chunk.
        block_bytes = int(min(BLOCK_BYTES, self.options.chunk_bytes / (2 * _PARSERS), fillable_memory() / (32 * _PARSERS)))
        found = []
        for block in record_blocks(
            self.path,
            skip_first=self._has_header,
            block_bytes=block_bytes,
            consumed=self.options.consumed,
            encoding=self.options.encoding,
        ):
            found.append(replace(block, data=b""))
            yield block
        if is_utf8(self.options.encoding):
            self._known = found

    def _parse(self, block: RecordBlock, sources: IndexArray, converts: Mapping[int, Convert]) -> Float64Array:
        """Parse a run with the first parser that accepts it."""
        values = parse_arrow(self._dialect, block, sources, converts)
        if values is None and not converts:
            values = parse_loadtxt(self._dialect, block, sources)
        if values is not None and self._complete:
            needed = np.isin(sources, list(self._complete))
            if np.isnan(values[:, needed]).any():
                values = None  # the lines of the missing cells are wanted
        if values is not None:
            return values
        return parse_cells(self._dialect, block, sources, converts, self.problems, self._complete)

    def _counted_cells(self, block: RecordBlock, texts: Sequence[int]) -> dict[int, Counter[str]]:
        """Return the counts of the cells of each text column of a run."""
        found = arrow_texts(self._dialect, block, texts)
        if found is None:
            found = {source: Counter() for source in texts}
            for _, _, cells in cell_rows(self._dialect, block, self.problems and Problems()):
                for source in texts:
                    found[source][cells[source].strip()] += 1
        return found

    def _heading(self) -> tuple[list[str], str]:
        """Return the cells of the first record, and the delimiter."""
        record = first_record(self.path, self.options.encoding)
        if record is None:
            raise DataError(f"{self.label} holds nothing but blank lines: a table was expected")
        text = decode(record, self.path, 1).rstrip("\r\n")
        if _LONE_RETURN.search(text):
            raise DataError(f"{self.label} ends its lines with lone carriage returns: convert them to newlines")
        delimiter = _delimiter(self.options.format or self.path, text)
        try:
            cells = next(csv.reader([text], delimiter=delimiter, strict=True))
        except csv.Error as error:
            raise DataError(f"{self.label}: the first line is not well quoted: {error}") from error
        return [cell.strip() for cell in cells], delimiter

    def _sample(self) -> None:
        """Make rules from the first rows: text where no filled cell is a number, and numbers that are not plain."""
        width, rules = self._dialect.width, self.options.rules
        numbers, filled, special = np.zeros((3, width), dtype=np.int64)
        blocks = record_blocks(self.path, skip_first=self._has_header, block_bytes=_SAMPLE_BYTES, encoding=self.options.encoding)
        block = next(blocks, None)
        if block is not None:
            # A malformed record is reported by the passes that follow, with all others.
            undecided = list(range(width))
            for _, _, cells in itertools.islice(cell_rows(self._dialect, block, Problems()), _SAMPLE_ROWS):
                for column in undecided:
                    cell = cells[column].strip()
                    if cell in rules.missing:
                        continue
                    filled[column] += 1
                    if rules.number(cell) is not None:
                        numbers[column] += 1
                        special[column] += bool(rules.thousands) and parse_number(cell) is None
                if not rules.thousands:  # one number tells
                    undecided = [column for column in undecided if not numbers[column]]
                    if not undecided:
                        break
        for column in np.flatnonzero((filled > 0) & (numbers == 0)).tolist():
            self._source_rules[column] = ColumnRule("category")
        for column in np.flatnonzero(special).tolist():
            self._source_rules[column] = ColumnRule("number")

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
        key = 0 if labelled or self._source_rules.get(0) == ColumnRule("category") else None
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
    if stem.endswith("tsv"):
        return "\t"
    bare = _QUOTED.sub("", heading)
    candidates = ",;\t|" if stem.endswith("csv") else "\t,;|"
    return max(candidates, key=bare.count)
