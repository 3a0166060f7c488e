"""``fastomp export RUN OUT``: write the selected columns, their names and the target to a file for other programs."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.cli.arguments import add_ray_argument, open_local
from fastomp_nvm.cli.output import add_progress_argument, byte_progress
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import MediumError, RequestError, UnavailableError, how_to_install, near
from fastomp_nvm.matrix.memory import aligned_empty
from fastomp_nvm.matrix.standardisation import column_index
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.runs.drive import list_runs, registration, resume
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.selection.response import resolve_response

__all__ = ["add_arguments", "run"]

#: Rows written, and columns read, between two reports of progress.
_ROWS_AT_ONCE, _COLUMNS_AT_ONCE = 4096, 64

#: Columns (n_obs,) by name.
Columns = Mapping[str, AnyArray]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_name", metavar="RUN", help="a finished run, or a file with the output of 'select --json'")
    parser.add_argument("out", metavar="OUT", help=f"file to write: {', '.join(_WRITERS)}")
    parser.add_argument("--store", metavar="STORE", help="store of the selection; needed for a file (default: that of the run)")
    add_ray_argument(parser)
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the reduced matrix."""
    out = Path(arguments.out)
    if out.suffix not in _WRITERS:
        raise RequestError(f"{arguments.out} has an unknown extension: expected one of {', '.join(_WRITERS)}")
    with byte_progress("export", arguments.progress) as progress:
        n_obs, names, label = _export(*_source(arguments), out, progress)
    print(f"{n_obs:,} observations of {len(names):,} columns and the target {label!r} written to {out}")
    return 0


def _export(
    url: str,
    indices: IndexArray,
    objective: str,
    target: str | None,
    response: Any,
    out: Path,
    progress: Callable[[int, int], None],
) -> tuple[int, Sequence[str], str]:
    """Write the selected columns of a store; return the number of observations, the names of the columns and of the target."""
    with open_local(url) as store:
        dataset = Dataset.of_store(store)
        if indices.size and not (indices.min() >= 0 and indices.max() < dataset.n_features):
            raise RequestError(
                f"the selection names feature {int(indices.max())}, the store has {dataset.n_features}: name its own"
            )
        columns = column_index(dataset.offsets, indices)
        sweeper, gathered = Sweeper(1), aligned_empty((len(columns), dataset.n_obs), dataset.matrix.dtype)
        total = 2 * gathered.nbytes  # to read, then to write
        for first in range(0, len(columns), _COLUMNS_AT_ONCE):
            part = slice(first, first + _COLUMNS_AT_ONCE)
            sweeper.gather(dataset.matrix, columns[part], gathered[part])
            progress(gathered[: part.stop].nbytes, total)
        values = gathered.T
        names = [dataset.column_names[column] for column in columns.tolist()]
        found = resolve_response(dataset, SelectionRequest(k=1, objective=objective, target=target), response)
        ids = None if store.ids is None else np.array(store.ids, dtype=str)
    y, label = found.values, found.name
    if found.classes:
        y = _labels(found.classes)[y.astype(np.int64)]
    while label in names:
        label += "_target"
    identified = "id"
    while identified in (*names, label):
        identified += "_"
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            for done in _WRITERS[out.suffix](file, values, names, {label: y}, {} if ids is None else {identified: ids}):
                progress(gathered.nbytes + values[:done].nbytes, total)
        partial.replace(out)
    except OSError as error:
        raise MediumError(f"cannot write {out}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return len(y), names, label


def _source(arguments: argparse.Namespace) -> tuple[str, IndexArray, str, str | None, Any]:
    """Return store, selected features, objective, target and the response of the run, if it was given one."""
    name = arguments.run_name
    states = {info.name: info.status for info in list_runs()}
    if name in states:
        if states[name] != "finished":
            raise RequestError(f"the run {name!r} is {states[name]}, and only a finished one can be exported: resume it first")
        found, selection = registration(name), resume(name)
        return (
            arguments.store or found.store,
            selection.indices,
            selection.objective,
            found.target,
            found.decoded_response(),
        )
    if not os.path.isfile(name):
        raise RequestError(f"{name!r} is neither a run nor a file{near(name, states)}: 'fastomp runs' lists the runs")
    if arguments.store is None:
        raise RequestError(f"the file {name} does not say where its store is: name it with --store")
    try:
        result = json.loads(Path(name).read_bytes())
        target = result["target"]
        return arguments.store, np.array(result["indices"], dtype=np.int64), result["objective"], target, None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise RequestError(
            f"{name} is not the output of 'fastomp select --json' ({reason}): write one with that command"
        ) from error


def _labels(classes: Sequence[str]) -> AnyArray:
    """Return class labels as text, or as numbers if all of them are numbers."""
    labels = np.array(classes, dtype=str)
    try:
        return labels.astype(np.float64)
    except ValueError:
        return labels


def _write_csv(file: Any, values: AnyArray, names: Sequence[str], target: Columns, ids: Columns) -> Iterator[int]:
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


def _write_npy(file: Any, values: AnyArray, names: Sequence[str], target: Columns, ids: Columns) -> Iterator[int]:
    """Write one structured array, a field per column."""
    columns = {**ids, **{name: values[:, column] for column, name in enumerate(names)}, **target}
    table = np.empty(len(values), dtype=[(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        table[name] = column
    np.save(file, table, allow_pickle=False)
    yield len(values)


def _write_npz(file: Any, values: AnyArray, names: Sequence[str], target: Columns, ids: Columns) -> Iterator[int]:
    """Write the arrays ``X``, ``y``, ``names`` and ``target``, and ``ids`` where there are some."""
    ((label, y),) = target.items()
    arrays: dict[str, Any] = {"X": values, "y": y, "names": np.array(names, dtype=str), "target": np.array(label)}
    if ids:
        (arrays["ids"],) = ids.values()
    np.savez(file, **arrays)
    yield len(values)


def _write_parquet(file: Any, values: AnyArray, names: Sequence[str], target: Columns, ids: Columns) -> Iterator[int]:
    """Write a Parquet table."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UnavailableError(f"Parquet needs pyarrow: {how_to_install('pyarrow')}") from error
    columns = {**ids, **{name: np.ascontiguousarray(values[:, column]) for column, name in enumerate(names)}, **target}
    pyarrow.parquet.write_table(pyarrow.table(list(columns.values()), names=list(columns)), file)
    yield len(values)


_WRITERS: Mapping[str, Callable[[Any, AnyArray, Sequence[str], Columns, Columns], Iterator[int]]] = MappingProxyType(
    {".csv": _write_csv, ".npy": _write_npy, ".npz": _write_npz, ".parquet": _write_parquet}
)
