"""What a reader is: a source file seen as a table of observations x columns, handed out in bounded chunks.

A reader answers three questions in order: which columns there are (``names``, cheap), what the chosen ones hold (``scan``, which
may read the file once), and their values (``chunks``). A chunk spans either all chosen columns of some observations, or all
observations of some chosen columns, and never more than the budget of bytes unless a single row or column exceeds it. Missing
cells are NaN; cells of a categorical column are codes into its sorted labels.

A reader knows neither stores nor targets: what a column is for is decided by :mod:`storage_backends.build.ingest`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.errors import DataError, FastompError

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
    "as_float",
    "float_type",
    "library_errors",
    "pick_columns",
    "rows_are_efficient",
    "spans",
]

RowsOf = Literal["observations", "features"]

#: Bytes of values in one chunk.
CHUNK_BYTES = 64 << 20

#: Labels of one categorical feature; more look like an identifier.
MAX_CATEGORIES = 256

# Below this many observations a row chunk writes less than a page into each column of the feature-major store.
_EFFICIENT_ROWS = 1024


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """How to look at a source.

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
        Told the bytes of the source that a pass has read since it was last told.
    """

    rows: RowsOf = "observations"
    dataset: str | None = None
    id_column: str | None = None
    chunk_bytes: int = CHUNK_BYTES
    consumed: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class Categories:
    """Labels of a categorical column in code order (sorted), and whether some of its cells are missing."""

    labels: tuple[str, ...]
    has_missing: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found in the chosen columns.

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
    """

    #: One-dimensional arrays of the file besides the table, each with one value per observation: usable as targets.
    vectors: tuple[str, ...] = ()
    #: The vector to take as target when none is asked for.
    default_target: str | None = None
    #: True when ``id_column`` was used to name the features, so that it is no column of the table.
    names_from_id: bool = False
    #: Passes over the source that are told to ``ReaderOptions.consumed``; binary formats are read only as chunks are handed out.
    passes: int = 0

    def __init__(self, path: str, options: ReaderOptions) -> None:
        self.path = path
        self.options = options
        self.label = os.path.basename(path)
        #: Sentences for the report on what was assumed about the file.
        self.notes: list[str] = []

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Names of all columns, in file order."""

    @abstractmethod
    def scan(self, columns: IndexArray) -> Scan:
        """Count observations and find the labels of the categorical ones among ``columns``.

        Parameters
        ----------
        columns : (c,) int64
            Chosen columns, ascending.
        """

    @abstractmethod
    def chunks(self, columns: IndexArray, scan: Scan) -> Iterator[Chunk]:
        """Yield the values of ``columns``, each cell once, given what ``scan`` of the same columns returned."""

    def vector(self, name: str) -> AnyArray:
        """Return the (n_obs,) array ``name``, one of ``vectors``."""
        raise DataError(f"{self.label} has no array {name!r} besides its table")

    def close(self) -> None:
        """Release the file."""
        return

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class LabelCollector:
    """Gathers the labels of a categorical column and refuses it once they look like an identifier.

    Parameters
    ----------
    source, column : str
        Named in the error.
    """

    def __init__(self, source: str, column: str) -> None:
        self._where = f"{source}: column {column!r}"
        self._labels: set[str] = set()
        self._has_missing = False

    def add(self, labels: set[str], *, missing: bool) -> None:
        """Take in labels, and whether missing cells were among them."""
        self._has_missing |= missing
        self._labels |= labels
        if len(self._labels) > MAX_CATEGORIES:
            raise DataError(
                f"{self._where} holds text with more than {MAX_CATEGORIES} different values: "
                "leave it out with --drop (or --id if it identifies the rows), or merge rare values"
            )

    def result(self) -> Categories:
        """Return what was gathered."""
        return Categories(tuple(sorted(self._labels)), self._has_missing)


@contextmanager
def library_errors(found: str) -> Iterator[None]:
    """Turn what a library raises over a damaged file into a ``DataError`` that begins with ``found``.

    Libraries promise no type: damaged bytes were seen to end in a ``KeyError``, a ``UnicodeDecodeError`` and a ``TokenError``.
    """
    try:
        yield
    except (FastompError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{found}: {str(error) or type(error).__name__}") from error


def spans(total: int, unit_bytes: int, budget: int) -> Iterator[tuple[int, int]]:
    """Split ``range(total)`` into runs of units that fit the budget, at least one unit each."""
    step = max(1, budget // max(1, unit_bytes))
    for first in range(0, total, step):
        yield first, min(total, first + step)


def rows_are_efficient(n_obs: int, n_columns: int, budget: int) -> bool:
    """Tell whether chunks of whole rows are tall enough to be written well into a feature-major matrix."""
    return budget // max(1, n_columns * 8) >= min(n_obs, _EFFICIENT_ROWS)


def float_type(dtype: np.dtype[np.generic], where: str) -> np.dtype[np.generic]:
    """Return the native floating-point type that holds ``dtype``, or refuse what is no number."""
    if dtype.kind == "f":
        return np.dtype(f"f{min(dtype.itemsize, 8)}")
    if dtype.kind in "iub":
        return np.dtype(np.float64)
    raise DataError(f"{where} holds elements of type {dtype}, expected real numbers: convert it first")


def as_float(values: AnyArray, where: str) -> AnyArray:
    """Return ``values`` in native floating point, copied only if needed."""
    return values.astype(float_type(values.dtype, where), copy=False)


def pick_columns(columns: IndexArray, first: int, values: AnyArray) -> Chunk | None:
    """Cut a chunk out of whole columns ``first, first + 1, ...`` of the file: those among ``columns``, or None.

    Parameters
    ----------
    columns : (c,) int64
        Chosen columns, ascending.
    first : int
    values : (n_obs, w)
    """
    low, high = np.searchsorted(columns, (first, first + values.shape[1]))
    if low == high:
        return None
    wanted = columns[low:high] - first
    return Chunk(0, int(low), values if len(wanted) == values.shape[1] else values[:, wanted])
