"""``fastomp export RUN OUT``: write the selected columns, their names and the target to a file for other programs."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.cli.arguments import add_ray_argument, open_local
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import MediumError, RequestError, UnavailableError, how_to_install, near
from fastomp_nvm.matrix.standardisation import column_index
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.runs.drive import list_runs, registration, resume
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.selection.response import resolve_response

__all__ = ["add_arguments", "run"]

_ROWS_AT_ONCE = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_name", metavar="RUN", help="a finished run, or a file with the output of 'select --json'")
    parser.add_argument("out", metavar="OUT", help=f"file to write: {', '.join(_WRITERS)}")
    parser.add_argument("--store", metavar="STORE", help="store of the selection; needed for a file (default: that of the run)")
    add_ray_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the reduced matrix."""
    out = Path(arguments.out)
    if out.suffix not in _WRITERS:
        raise RequestError(f"{arguments.out} has an unknown extension: expected one of {', '.join(_WRITERS)}")
    url, indices, objective, target, response = _source(arguments)
    with open_local(url) as store:
        dataset = Dataset.of_store(store)
        if indices.size and not (indices.min() >= 0 and indices.max() < dataset.n_features):
            raise RequestError(
                f"the selection names feature {int(indices.max())}, the store has {dataset.n_features}: name its own"
            )
        columns = column_index(dataset.offsets, indices)
        sweeper = Sweeper(1)
        values = sweeper.gather(dataset.matrix, columns).T
        names = [dataset.column_names[column] for column in columns.tolist()]
        found = resolve_response(dataset, SelectionRequest(k=1, objective=objective, target=target), response)
    y, label = found.values, found.name
    while label in names:
        label += "_target"
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            _WRITERS[out.suffix](file, values, names, y, label)
        partial.replace(out)
    except OSError as error:
        raise MediumError(f"cannot write {out}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    print(f"{len(y):,} observations of {len(names):,} columns and the target {label!r} written to {out}")
    return 0


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


def _write_csv(file: Any, values: AnyArray, names: Sequence[str], y: AnyArray, label: str) -> None:
    """Write comma-separated values with a line of names; numbers in the fewest digits that read back the same."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow([*names, label])
    for first in range(0, len(y), _ROWS_AT_ONCE):
        here = slice(first, first + _ROWS_AT_ONCE)
        for row, response in zip(values[here].astype(str).tolist(), y[here].tolist(), strict=True):
            writer.writerow([*row, repr(response)])
    text.detach()


def _write_npy(file: Any, values: AnyArray, names: Sequence[str], y: AnyArray, label: str) -> None:
    """Write one structured array, a field per column."""
    table = np.empty(len(y), dtype=[*((name, values.dtype) for name in names), (label, np.float64)])
    for column, name in enumerate(names):
        table[name] = values[:, column]
    table[label] = y
    np.save(file, table, allow_pickle=False)


def _write_npz(file: Any, values: AnyArray, names: Sequence[str], y: AnyArray, label: str) -> None:
    """Write the arrays ``X``, ``y``, ``names`` and ``target``."""
    np.savez(file, X=values, y=y, names=np.array(names, dtype=str), target=np.array(label))


def _write_parquet(file: Any, values: AnyArray, names: Sequence[str], y: AnyArray, label: str) -> None:
    """Write a Parquet table."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UnavailableError(f"Parquet needs pyarrow: {how_to_install('pyarrow')}") from error
    columns = [np.ascontiguousarray(values[:, column]) for column in range(len(names))]
    pyarrow.parquet.write_table(pyarrow.table([*columns, y], names=[*names, label]), file)


_WRITERS: Mapping[str, Callable[[Any, AnyArray, Sequence[str], AnyArray, str], None]] = MappingProxyType(
    {".csv": _write_csv, ".npy": _write_npy, ".npz": _write_npz, ".parquet": _write_parquet}
)
