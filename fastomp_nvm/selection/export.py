"""The selected columns of a store, their names and the target, for files of other programs."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import MediumError, RequestError, UnavailableError, how_to_install
from fastomp_nvm.matrix.memory import aligned_empty
from fastomp_nvm.matrix.standardisation import column_index
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.selection.response import resolve_response
from fastomp_nvm.stores.contract import FeatureStore

__all__ = ["FORMATS", "Extract", "Extraction", "check_format", "labelled", "write_extract"]

#: Rows written between two reports of progress, and bytes of columns read.
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 4096, 16 << 20

#: Columns (n_obs,) by name.
Columns = Mapping[str, AnyArray]


class Extract(NamedTuple):
    """Selected columns with their names and the target.

    Attributes
    ----------
    values : (n_obs, n_columns) array
    names : sequence of str
    label : str
        Name of the target.
    y : (n_obs,) array
        Numbers or texts.
    ids : (n_obs,) str, optional
        Identifiers of the observations.
    """

    values: AnyArray
    names: Sequence[str]
    label: str
    y: AnyArray
    ids: AnyArray | None


class Extraction:
    """An extract of a store that is read piece by piece.

    Parameters
    ----------
    store : FeatureStore
        Open for as long as it is read.
    indices : (f,) int64
        The features.
    objective : str
    target : str, optional
        As in the result of the selection.
    response : (n_obs,) array, optional
        In place of the target.

    Attributes
    ----------
    names : sequence of str
        Of the columns.
    n_obs : int
    dtype : dtype
        Of the columns.
    label : str
        Name of the target.
    codes : (n_obs,) float64
        Its values; numbers of classes where there are some.
    classes, ids : sequence of str or None
    """

    def __init__(
        self, store: FeatureStore, indices: IndexArray, objective: str, target: str | None, response: object = None
    ) -> None:
        self._dataset = dataset = Dataset.of_store(store)
        if indices.size and not (indices.min() >= 0 and indices.max() < dataset.n_features):
            raise RequestError(
                f"the selection names feature {int(indices.max())}, the store has {dataset.n_features}: name its own"
            )
        self._columns = column_index(dataset.offsets, indices)
        found = resolve_response(dataset, SelectionRequest(k=1, objective=objective, target=target), response)
        self.names = [dataset.column_names[column] for column in self._columns.tolist()]
        self.n_obs, self.dtype = dataset.n_obs, dataset.matrix.dtype
        self.label, self.codes, self.classes = found.name, found.values, list(found.classes) or None
        self.ids = store.ids

    def blocks(self, first: int = 0, most: int = _BYTES_AT_ONCE) -> Iterator[AnyArray]:
        """Yield the columns (count, n_obs) from number ``first`` on, about ``most`` bytes at a time."""
        sweeper, step = Sweeper(1), max(most // (self.n_obs * self.dtype.itemsize), 1)
        for begin in range(first, len(self._columns), step):
            part = self._columns[begin : begin + step]
            gathered = aligned_empty((len(part), self.n_obs), self.dtype)
            sweeper.gather(self._dataset.matrix, part, gathered)
            yield gathered

    def whole(self, progress: Callable[[int, int], None]) -> Extract:
        """Return the extract; ``progress`` is called with (bytes read, bytes to read)."""
        values = np.empty((len(self.names), self.n_obs), self.dtype)
        done = 0
        for block in self.blocks():
            values[done : done + len(block)] = block
            done += len(block)
            progress(values[:done].nbytes, values.nbytes)
        return Extract(values.T, self.names, self.label, labelled(self.codes, self.classes), _texts(self.ids))


def labelled(codes: AnyArray, classes: Sequence[str] | None) -> AnyArray:
    """Return a target as its labels: text, or numbers if all of them are numbers."""
    if not classes:
        return codes
    labels = np.array(classes, dtype=str)
    with contextlib.suppress(ValueError):
        labels = labels.astype(np.float64)
    return labels[codes.astype(np.int64)]


def _texts(ids: Sequence[str] | None) -> AnyArray | None:
    """Return identifiers as an array."""
    return None if ids is None else np.array(ids, dtype=str)


def check_format(out: str | os.PathLike[str]) -> Path:
    """Return the path of a file to write; ``RequestError`` for an unknown extension."""
    path = Path(out)
    if path.suffix not in FORMATS:
        raise RequestError(f"{os.fspath(out)} has an unknown extension: expected one of {', '.join(FORMATS)}")
    return path


def write_extract(found: Extract, out: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> Extract:
    """Write an extract in the format of the extension, atomically; return it with the names that the target was given.

    ``progress`` is called with (bytes written, bytes to write).
    """
    values, names, label, y, ids = found
    while label in names:
        label += "_target"
    identified = "id"
    while identified in (*names, label):
        identified += "_"
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            for done in FORMATS[out.suffix](file, values, names, {label: y}, {} if ids is None else {identified: ids}):
                progress(values[:done].nbytes, values.nbytes)
        partial.replace(out)
    except OSError as error:
        raise MediumError(f"cannot write {out}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return found._replace(label=label)


def _write_csv(file: IO[bytes], values: AnyArray, names: Sequence[str], target: Columns, ids: Columns) -> Iterator[int]:
    """Write comma-separated values with a line of names; numbers in the fewest digits that read back the same.

    Yields the number of rows written so far.
    """
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow([*ids, *names, *target])
    columns = [*ids.values(), *values.T, *target.values()]
    for first in range(0, len(values), _ROWS_AT_ONCE):
        here = (column[first : first + _ROWS_AT_ONCE] for column in columns)
        # NumPy writes a float32 in fewer digits than Python, which knows float64 alone.
        writer.writerows(zip(*((part.astype(str) if part.dtype != np.float64 else part).tolist() for part in here), strict=True))
        yield min(first + _ROWS_AT_ONCE, len(values))
    text.detach()


def _write_npy(file: IO[bytes], values: AnyArray, names: Sequence[str], target: Columns, ids: Columns) -> Iterator[int]:
    """Write one structured array, a field per column."""
    columns = {**ids, **{name: values[:, column] for column, name in enumerate(names)}, **target}
    table = np.empty(len(values), dtype=[(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        table[name] = column
    np.save(file, table, allow_pickle=False)
    yield len(values)


def _write_npz(file: IO[bytes], values: AnyArray, names: Sequence[str], target: Columns, ids: Columns) -> Iterator[int]:
    """Write the arrays ``X``, ``y``, ``names`` and ``target``, and ``ids`` where there are some."""
    ((label, y),) = target.items()
    arrays: dict[str, AnyArray] = {"X": values, "y": y, "names": np.array(names, dtype=str), "target": np.array(label)}
    if ids:
        (arrays["ids"],) = ids.values()
    np.savez(file, allow_pickle=False, **arrays)
    yield len(values)


def _write_parquet(file: IO[bytes], values: AnyArray, names: Sequence[str], target: Columns, ids: Columns) -> Iterator[int]:
    """Write a Parquet table."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UnavailableError(f"Parquet needs pyarrow: {how_to_install('pyarrow')}") from error
    columns = {**ids, **{name: np.ascontiguousarray(values[:, column]) for column, name in enumerate(names)}, **target}
    pyarrow.parquet.write_table(pyarrow.table(list(columns.values()), names=list(columns)), file)
    yield len(values)


#: Writers by extension; each yields the number of rows written so far.
FORMATS: Mapping[str, Callable[[IO[bytes], AnyArray, Sequence[str], Columns, Columns], Iterator[int]]] = MappingProxyType(
    {".csv": _write_csv, ".npy": _write_npy, ".npz": _write_npz, ".parquet": _write_parquet}
)
