"""The contract of a reader: a source file as a table of observations x columns, returned in chunks of bounded size.

A reader provides, in this order: the column names (``names``, cheap), the number of observations and the labels of the chosen
categorical columns (``scan``, which may read the file once), and the values (``chunks``). A chunk spans some observations of some
adjacent chosen columns, all of either where the format allows it. It exceeds the budget of bytes only where a single row or column
does. Missing cells are NaN; cells of a categorical column are codes into its sorted labels.

A reader knows neither stores nor targets: :mod:`storage_backends.build.ingest` decides which columns are features.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Literal, TypeVar

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.errors import DataError, FastompError, InputError
from fastomp_nvm.stores.encoding import Kind
from storage_backends.readers.cells import CellRules, ColumnRule
from storage_backends.readers.problems import Problems
from storage_backends.readers.text import MISSING_TOKENS, shorten

__all__ = [
    "CHUNK_BYTES",
    "MAX_CATEGORIES",
    "Categories",
    "Chunk",
    "LabelCollector",
    "Reader",
    "ReaderOptions",
    "RowsOf",
    "Scan",
    "ahead",
    "as_float",
    "as_text",
    "float_type",
    "library_errors",
    "rows_are_efficient",
    "slab_chunks",
    "spans",
]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

RowsOf = Literal["observations", "features"]

#: Bytes of values in one chunk.
CHUNK_BYTES = 64 << 20

#: Largest number of labels of a categorical feature; a column with more is taken for an identifier.
MAX_CATEGORIES = 256

# Below this many observations a row chunk writes less than a page into each column of the feature-major store.
_EFFICIENT_ROWS = 1024


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """How to interpret a source.

    Attributes
    ----------
    rows : {"observations", "features"}
        What one line of the file, or one row of its matrix, is.
    dataset : str, optional
        Which array of a container (NPZ, HDF5) holds the table.
    id_column : str, optional
        Column of identifiers: with ``rows="features"`` it holds the feature names.
    chunk_bytes : int
        Budget of one chunk.
    consumed : callable, optional
        Called during a pass with the number of bytes of the source read since the previous call.
    rules : CellRules
        What cells of text mean.
    encoding : str
        Of text files.
    format : str, optional
        Extension that stands for the format, without a point, in place of the file's own.
    """

    rows: RowsOf = "observations"
    dataset: str | None = None
    id_column: str | None = None
    chunk_bytes: int = CHUNK_BYTES
    consumed: Callable[[int], None] | None = None
    rules: CellRules = field(default_factory=CellRules)
    encoding: str = "utf-8"
    format: str | None = None


@dataclass(frozen=True, slots=True)
class Categories:
    """Labels of a categorical column.

    Attributes
    ----------
    labels : tuple of str
        In code order (sorted).
    has_missing : bool
        Whether some cells are missing.
    counts : tuple of int
        Cells of each label, where a reader counts them.
    missing : int
        Missing cells, where a reader counts them.
    overflow : bool
        Whether there are more labels than are listed and allowed.
    """

    labels: tuple[str, ...]
    has_missing: bool
    counts: tuple[int, ...] = ()
    missing: int = 0
    overflow: bool = False

    def codes(self) -> dict[str, float]:
        """Return the code of each label."""
        return {label: float(code) for code, label in enumerate(self.labels)}


@dataclass(frozen=True, slots=True)
class Scan:
    """Size and categories of the chosen columns.

    Attributes
    ----------
    n_obs : int
        Observations.
    categories : mapping of int to Categories
        The categorical columns, by position among the chosen ones.
    """

    n_obs: int
    categories: Mapping[int, Categories] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A rectangle of values.

    Attributes
    ----------
    first_obs : int
        Observation of the first row.
    first_column : int
        Position, among the chosen columns, of the first column.
    values : (rows, columns) floating point
    """

    first_obs: int
    first_column: int
    values: AnyArray


class Reader(ABC):
    """One source file. Use as a context manager.

    Parameters
    ----------
    path : str
        An existing, non-empty, readable file.
    options : ReaderOptions

    Attributes
    ----------
    names : sequence of str
        Names of all columns, in file order.
    n_obs : int
        Observations; readers that find it only in ``scan`` do not set it.
    notes : list of str
        Sentences for the report on what was assumed about the file.
    """

    names: Sequence[str]
    n_obs: int
    #: One-dimensional arrays of the file besides the table, each with one value per observation: usable as targets.
    vectors: tuple[str, ...] = ()
    #: The vector that is the target if none is requested.
    default_target: str | None = None
    #: True when ``id_column`` was used to name the features, so that it is no column of the table.
    names_from_id: bool = False
    #: Passes over the source reported to ``ReaderOptions.consumed``; 0 for binary formats, which are read chunk by chunk.
    passes: int = 0
    #: Whether the file itself tells text from numbers, so that text that looks like numbers is meant as text.
    typed: bool = True

    def __init__(self, path: str, options: ReaderOptions) -> None:
        self.path = path
        self.options = options
        self.label = os.path.basename(path)
        self.notes: list[str] = []
        #: Explicit rules of columns, by position.
        self.rules: dict[int, ColumnRule] = {}

    def assign(self, rules: Mapping[int, ColumnRule]) -> None:
        """Read columns by explicit rules, given by position; before ``scan``."""
        for column, rule in rules.items():
            if self.kind_of(column) == "number" and rule.kind != "number":
                name, option = self.names[column], "--date" if rule.kind == "date" else "--categorical"
                raise InputError(f"{self.label}: column {name!r} holds numbers, expected text for {option}: leave the option out")
            self.rules[column] = rule

    def kind_of(self, column: int) -> Kind:
        """Return what a column holds, as far as it is known before ``scan``."""
        return self.rules[column].kind if column in self.rules else "number"

    def convert(self, column: int, codes: dict[str, float] | None) -> Callable[[str], float]:
        """Return the function that turns a cell of a text column into a number, a day or a code; ``DataError`` if it is none."""
        rule = self.rules.get(column, ColumnRule("category"))
        read = self.options.rules.convert(rule, codes)

        def converted(cell: str) -> float:
            number = read(cell.strip())
            if number is None:
                expected = {"number": "a number", "date": "a date", "category": "a label of the schema"}[rule.kind]
                raise DataError(
                    f"{self.label}: column {self.names[column]!r} holds {shorten(cell)}, expected {expected}: correct it"
                )
            return number

        return converted

    def scan(self, columns: IndexArray) -> Scan:
        """Count observations and find the labels of the categorical ones among ``columns``.

        Parameters
        ----------
        columns : (c,) int64
            Chosen columns, ascending.
        """
        return Scan(self.n_obs)

    @abstractmethod
    def chunks(self, columns: IndexArray, scan: Scan) -> Generator[Chunk, None, None]:
        """Yield the values of ``columns``, each cell once, given the result of ``scan`` for the same columns."""

    def read(self, columns: IndexArray, scan: Scan) -> Generator[Chunk, None, None]:
        """Yield ``chunks``, in which numbers that mean "missing" are NaN: text files know them as text only, others not at all."""
        missing = self.options.rules.missing_numbers
        with closing(self.chunks(columns, scan)) as chunks:
            for chunk in chunks:
                if not missing:
                    yield chunk
                    continue
                span = range(chunk.first_column, chunk.first_column + chunk.values.shape[1])
                coded = [position in scan.categories or self.kind_of(int(columns[position])) != "number" for position in span]
                yield replace(chunk, values=np.where(np.isin(chunk.values, missing) & ~np.array(coded), np.nan, chunk.values))

    def vector(self, name: str) -> AnyArray:
        """Return the (n_obs,) array ``name``, one of ``vectors``."""
        raise DataError(f"{self.label} has no array {name!r} besides its table")

    def identifiers(self, column: int) -> list[str]:
        """Return the cells of a column as text; may read the file once."""
        columns = np.array([column])
        scan = self.scan(columns)
        cells = np.empty(scan.n_obs)
        for chunk in self.chunks(columns, scan):
            cells[chunk.first_obs : chunk.first_obs + len(chunk.values)] = chunk.values[:, 0]
        labels = scan.categories[0].labels if 0 in scan.categories else None
        return [as_text(cell) if labels is None or cell != cell else labels[int(cell)] for cell in cells.tolist()]

    def collect(self, problems: Problems) -> None:
        """From now on add cells and lines that cannot be read to ``problems`` in place of raising, where the format allows it."""
        return

    def explain(self, error: DataError, columns: IndexArray, complete: Collection[int]) -> DataError:
        """Return ``error``, or a better one that lists all problems of ``columns``; cells of ``complete`` must not be missing."""
        return error

    def close(self) -> None:
        """Release the file."""
        return

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class LabelCollector:
    """Collects the labels of a categorical column and their counts.

    Parameters
    ----------
    missing : frozenset of str
        Cells that mean "missing".
    """

    def __init__(self, missing: frozenset[str] = MISSING_TOKENS) -> None:
        self._tokens = missing
        self._counts: Counter[str] = Counter()
        self._missing = 0
        self._overflow = False

    def add(self, cells: Mapping[str | None, int] | Mapping[str, int]) -> None:
        """Add counts of cells; None and missing tokens are missing cells."""
        for cell, count in cells.items():
            label = "" if cell is None else cell.strip()
            if label in self._tokens:
                self._missing += count
            elif label in self._counts or len(self._counts) <= MAX_CATEGORIES:
                self._counts[label] += count
        self._overflow = len(self._counts) > MAX_CATEGORIES

    def result(self, rule: ColumnRule | None = None) -> Categories:
        """Return the categories found; a rule with labels lists all that are allowed."""
        labels = tuple(sorted(self._counts)) if rule is None or rule.labels is None else rule.labels
        counts = tuple(self._counts[label] for label in labels)
        return Categories(
            labels, self._missing > 0, counts, self._missing, self._overflow and (rule is None or rule.labels is None)
        )


def as_text(value: float) -> str:
    """Return a number as text: whole numbers without a point, nothing for NaN."""
    if value != value:
        return ""
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else repr(value)


@contextmanager
def library_errors(found: str) -> Iterator[None]:
    """Turn an exception of a library about a damaged file into a ``DataError`` that begins with ``found``.

    Libraries promise no type: damaged bytes were seen to end in a ``KeyError``, a ``UnicodeDecodeError`` and a ``TokenError``.
    """
    try:
        yield
    except (FastompError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{found}: {str(error) or type(error).__name__}") from error


def ahead(items: Iterator[_Item], work: Callable[[_Item], _Result], threads: int = 1) -> Generator[_Result, None, None]:
    """Yield ``work(item)`` for each item, in order, computed on ``threads`` threads while earlier results are in use.

    At most ``threads`` results wait. Close the iterator to end the threads.
    """
    waiting: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(threads, "fastomp-read") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def spans(total: int, unit_bytes: int, budget: int, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Split ``range(total)`` into runs that fit the budget and end on multiples of ``multiple``, at least one multiple each."""
    step = multiple * max(1, budget // max(1, unit_bytes * multiple))
    for first in range(0, total, step):
        yield first, min(total, first + step)


def rows_are_efficient(n_obs: int, n_columns: int, budget: int) -> bool:
    """Return whether chunks of whole rows are tall enough to be written efficiently into a feature-major matrix."""
    return budget // max(1, n_columns * 8) >= min(n_obs, _EFFICIENT_ROWS)


def float_type(dtype: np.dtype[np.generic], where: str) -> np.dtype[np.generic]:
    """Return the native floating-point type that holds ``dtype``; refuse a type that is not a real number."""
    if dtype.kind == "f":
        return np.dtype(f"f{min(dtype.itemsize, 8)}")
    if dtype.kind in "iub":
        return np.dtype(np.float64)
    raise DataError(f"{where} holds elements of type {dtype}, expected real numbers: convert it first")


def as_float(values: AnyArray, where: str) -> AnyArray:
    """Return ``values`` in native floating point, copied only if needed."""
    return values.astype(float_type(values.dtype, where), copy=False)


def slab_chunks(columns: IndexArray, first: int, slab: AnyArray, *, by_rows: bool = False) -> Iterator[Chunk]:
    """Yield the chosen columns of a slab of the file as a chunk, or nothing where it holds none of them.

    Parameters
    ----------
    columns : (c,) int64
        Chosen columns, ascending.
    first : int
        Row (``by_rows``) or column of the file at which the slab begins.
    slab : (rows, w)
        Whole rows of the file (``by_rows``), or all observations of adjacent columns.
    """
    if by_rows:
        yield Chunk(first, 0, slab if len(columns) == slab.shape[1] else slab[:, columns])
        return
    low, high = np.searchsorted(columns, (first, first + slab.shape[1])).tolist()
    if low < high:
        wanted = columns[low:high] - first
        yield Chunk(0, low, slab if len(wanted) == slab.shape[1] else slab[:, wanted])
