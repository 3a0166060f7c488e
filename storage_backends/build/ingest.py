"""Building a store from a source file: assigns a role to each column and passes chunks from a reader to the builder.

A column of the source is a feature, a target, or left out. A text column becomes one feature with several indicator columns. The
store becomes visible once it is complete; nothing is left behind when ingest fails.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray
from fastomp_nvm.errors import DataError, InputError, MediumError, near
from fastomp_nvm.stores.contract import Target
from fastomp_nvm.stores.media import medium_of
from fastomp_nvm.stores.names import NumberedNames
from fastomp_nvm.stores.reports import IngestReport, first_names
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.indicators import Indicators
from storage_backends.build.schema import TableSchema
from storage_backends.build.targets import make_target
from storage_backends.opened import already_exists
from storage_backends.readers import open_reader
from storage_backends.readers.base import Chunk, Reader, ReaderOptions, RowsOf, Scan
from storage_backends.readers.target_files import is_target_file, read_target_file

__all__ = ["ingest"]

_INTEGER = re.compile(r"-?\d{1,9}")


def ingest(
    source: str,
    url: str,
    *,
    targets: Sequence[str] = (),
    rows: RowsOf = "observations",
    dtype: str = "float32",
    missing: str = "error",
    id_column: str | None = None,
    drop: Sequence[str] = (),
    tier: str = "int8",
    replace: bool = False,
    dataset: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    open_builder: Callable[..., Any] | None = None,
) -> IngestReport:
    """Build a store from a file.

    Parameters
    ----------
    source : str
        The file; its extension determines the format.
    url : str
        Where to build the store.
    targets : sequence of str
        Each a column name, a column position (when no column has that name; negative counts from the end), or a file with one
        value per observation. A column takes precedence over a file of that name; ``./file`` is the file. Default: the target of
        the format, if any (``y`` of a container, the labels of SVMlight).
    rows : {"observations", "features"}
        What one line of the file, or one row of its matrix, is.
    dtype : {"float32", "float64", "float16"}
        Element type of the store.
    missing : {"error", "mean", "median", "drop-feature"}
        How to treat missing cells. With ``mean`` and ``median`` a missing text becomes the category ``(missing)``.
    id_column : str, optional
        Column that identifies rows and is not a feature; with ``rows="features"`` the column of feature names.
    drop : sequence of str
        Names or patterns (``*``, ``?``, ``[...]``) of columns to leave out.
    tier : {"int8", "none"}
        What to keep next to the exact matrix.
    replace : bool
        Replace a store that exists.
    dataset : str, optional
        Which array of a container holds the table.
    progress : callable, optional
        Called with (bytes done, bytes to do) as the source is read and the store is written; the total is an estimate at first.
    open_builder : callable, optional
        Used in place of ``StoreBuilder``: a remote one sends the values to a server.

    Returns
    -------
    IngestReport

    Raises
    ------
    InputError
        The source, a name or a cell is not as expected; the message names it.
    """
    if rows not in ("observations", "features"):
        raise InputError(f"unknown rows {rows!r}: expected observations or features")
    if open_builder is None:
        parsed = StoreURL.parse(url)
        if not replace and medium_of(parsed).exists(parsed):  # before the source is read; the draft checks again
            raise already_exists(url)
        open_builder = StoreBuilder
    meter = _Meter(progress, source)
    options = ReaderOptions(rows=rows, dataset=dataset, id_column=id_column, consumed=meter.consumed)
    try:
        with open_reader(source, options) as reader:
            meter.passes = reader.passes
            columns, sources = _plan(reader, targets, id_column, drop)
            scan = reader.scan(columns)
            layout = _Layout(reader, columns, sources, scan, missing)
            with open_builder(
                url, layout.schema, dtype=dtype, missing=missing, tier=tier, replace=replace, progress=meter.built
            ) as builder:
                for chunk in reader.chunks(columns, scan):
                    layout.write(builder, chunk)
                responses = layout.responses()
                provenance = {
                    "source": os.path.basename(source),
                    "source_bytes": os.path.getsize(source),
                    "rows": rows,
                    "missing": missing,
                }
                built = builder.finish(responses, provenance)
            return IngestReport(
                n_obs=built.n_obs,
                n_features=built.n_features,
                n_columns=built.n_columns,
                bytes=built.n_obs * built.n_columns * np.dtype(built.dtype).itemsize,
                imputed=sum(built.imputed.values()) + layout.filled,
                dropped=built.dropped,
                constant=built.constant,
                targets=tuple(responses),
                notes=tuple(reader.notes),
                fingerprint=built.fingerprint,
            )
    except OSError as error:
        raise MediumError(f"reading {source} failed: {error.strerror or error}") from error


class _Meter:
    """Progress of reading the source and building the store, as one sum."""

    def __init__(self, progress: Callable[[int, int], None] | None, source: str) -> None:
        self._progress = progress
        self._source_bytes = os.path.getsize(source) if os.path.isfile(source) else 0
        self._read = self._built = 0
        # Estimates until the reader and the builder exist; readers that read on opening make two passes.
        self.passes, self._to_build = 2, 2 * self._source_bytes

    def consumed(self, count: int) -> None:
        """Count bytes of the source."""
        self._read += count
        self._report()

    def built(self, done: int, total: int) -> None:
        """Set the progress of the builder."""
        self._built, self._to_build = done, total
        self._report()

    def _report(self) -> None:
        """Report the sum."""
        if self._progress is not None:
            self._progress(self._read + self._built, self.passes * self._source_bytes + self._to_build)


@dataclass(frozen=True, slots=True)
class _TargetSource:
    """A target: a column of the table, or ``load``, which returns its name and values given the number of observations."""

    name: str
    column: int = -1
    load: Callable[[int], tuple[str, AnyArray]] | None = None


def _plan(
    reader: Reader, targets: Sequence[str], id_column: str | None, drop: Sequence[str]
) -> tuple[IndexArray, list[_TargetSource]]:
    """Return the columns of features and targets, in file order, and the targets in the requested order."""
    names = reader.names
    _check_names(reader)
    asked = list(targets) or ([reader.default_target] if reader.default_target else [])
    sources = [_target_source(reader, text) for text in asked]
    keep = np.ones(len(names), dtype=bool)
    if id_column is not None and not reader.names_from_id:
        found = _column(names, id_column)
        if found is None:
            raise InputError(f"{reader.label} has no column {id_column!r} to leave out as identifier{_hint(names, id_column)}")
        keep[found] = False
    for pattern in drop:
        matched = _matching(names, pattern)
        if not matched.any():
            raise InputError(f"no column of {reader.label} matches {pattern!r}, so nothing is dropped{_hint(names, pattern)}")
        keep &= ~matched
    chosen = [source.column for source in sources if source.load is None]
    if len(set(chosen)) < len(chosen):
        raise InputError(f"two targets are the same column of {reader.label}: name each once")
    keep[chosen] = True
    if int(keep.sum()) == len(chosen):
        raise DataError(f"{reader.label} has no features: at least one column besides targets and dropped ones is needed")
    return np.flatnonzero(keep), sources


def _target_source(reader: Reader, text: str) -> _TargetSource:
    """Return the source that a target argument names."""
    names = reader.names
    if not text.startswith(("./", "../", "/")):
        if text in reader.vectors and text not in names:
            return _TargetSource(text, load=lambda _: (text, reader.vector(text)))
        column = _column(names, text)
        if column is not None:
            return _TargetSource(names[column], column=column)
        if not is_target_file(text):
            raise InputError(
                f"the target {text!r} is neither a column of {reader.label} nor a file with one value per observation"
                f"{_hint(names, text)}"
            )
    if not os.path.isfile(text):
        raise InputError(f"there is no file {text} to take a target from")
    return _TargetSource(os.path.basename(text), load=functools.partial(read_target_file, text))


def _column(names: Sequence[str], text: str) -> int | None:
    """Return the position of a column given by name, or else by number."""
    if text in names:
        return names.index(text)
    if _INTEGER.fullmatch(text) and -len(names) <= int(text) < len(names):
        return int(text) % len(names)
    return None


def _matching(names: Sequence[str], pattern: str) -> BoolArray:
    """Return a mask of the names that equal or match a pattern."""
    match = re.compile(fnmatch.translate(pattern)).match
    return np.fromiter((name == pattern or match(name) is not None for name in names), dtype=bool, count=len(names))


def _check_names(reader: Reader) -> None:
    """Raise ``DataError`` for an empty or repeated name."""
    if isinstance(reader.names, NumberedNames):
        return
    first: dict[str, int] = {}
    for position, name in enumerate(reader.names, start=1):
        if not name:
            raise DataError(f"{reader.label}: column {position} has no name: give it one")
        if name in first:
            raise DataError(f"{reader.label}: columns {first[name]} and {position} are both named {name!r}: rename one of them")
        first[name] = position


class _Layout:
    """Maps each chosen column to columns of the store or to a target."""

    def __init__(self, reader: Reader, columns: IndexArray, targets: Sequence[_TargetSource], scan: Scan, missing: str) -> None:
        self._reader = reader
        self._categories = scan.categories
        #: Name of each target with the target, or with the position of its column.
        self._targets: list[tuple[str, Target | int]] = []
        #: Values of the targets that are columns, by position.
        self._target_values: dict[int, Float64Array] = {}
        for source in targets:
            if source.load is not None:  # before the chunks, so that a target that does not fit is refused early
                name, values = source.load(scan.n_obs)
                self._targets.append((name, make_target(name, values)))
            else:
                position = int(np.searchsorted(columns, source.column))
                self._targets.append((source.name, position))
                self._target_values[position] = np.empty(scan.n_obs)
        given = [name for name, _ in self._targets]
        if len(set(given)) < len(given):
            raise InputError(f"two targets have the same name among {first_names(given)}: rename one of them")
        self._texts = {
            position: Indicators(reader.names[int(columns[position])], categories, missing)
            for position, categories in scan.categories.items()
            if position not in self._target_values
        }
        widths = np.ones(len(columns), dtype=np.int64)
        widths[list(self._target_values)] = 0
        for position, text in self._texts.items():
            widths[position] = len(text.columns)
        self._first_column = np.concatenate(([0], np.cumsum(widths)))
        self._special = np.array(sorted([*self._target_values, *self._texts]), dtype=np.int64)
        if not self._special.size and len(columns) == len(reader.names):
            self.schema = TableSchema.plain(scan.n_obs, reader.names)
            return
        groups: list[tuple[str, Sequence[str]]] = []
        for position in np.flatnonzero(widths).tolist():
            name = reader.names[int(columns[position])]
            groups.append((name, self._texts[position].columns if position in self._texts else [name]))
        self.schema = TableSchema.grouped(scan.n_obs, groups)

    def write(self, builder: StoreBuilder, chunk: Chunk) -> None:
        """Write a chunk to the builder: runs of numeric columns, text as indicators; keep the values of targets."""
        first, last = chunk.first_column, chunk.first_column + chunk.values.shape[1]
        begin = first
        for special in (
            *self._special[np.searchsorted(self._special, first) : np.searchsorted(self._special, last)].tolist(),
            last,
        ):
            if begin < special:
                builder.write_tile(
                    chunk.first_obs, int(self._first_column[begin]), chunk.values[:, begin - first : special - first]
                )
            begin = special + 1
            if special == last:
                break
            cells = chunk.values[:, special - first]
            if special in self._target_values:
                self._target_values[special][chunk.first_obs : chunk.first_obs + len(cells)] = cells
            else:
                for first_obs, tile in self._texts[special].tiles(chunk.first_obs, cells, self._reader.options.chunk_bytes):
                    builder.write_tile(first_obs, int(self._first_column[special]), tile)

    @property
    def filled(self) -> int:
        """Missing texts that became a category of their own so far."""
        return sum(text.filled for text in self._texts.values())

    def responses(self) -> dict[str, Target]:
        """Return the targets; complete once all chunks were written."""
        found = {}
        for name, target in self._targets:
            if isinstance(target, int):  # numbers, or codes of a text column
                values = make_target(name, self._target_values[target]).values
                found[name] = Target(values, self._categories[target].labels if target in self._categories else ())
            else:
                found[name] = target
        return found


def _hint(names: Sequence[str], text: str) -> str:
    """Return the end of a message: similar names, or the first names."""
    return near(text, names) or f": its columns are {first_names(names)}"
