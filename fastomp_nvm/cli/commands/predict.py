"""``fastomp predict RUN|MODEL.json DATA OUT``: predictions of a fitted model for the rows of a file or a store."""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array
from fastomp_nvm.cli.analyses import only_selection
from fastomp_nvm.cli.arguments import add_connection_arguments, add_ray_argument, add_replace_argument, connected
from fastomp_nvm.cli.covariates import add_covariates_arguments, covariates_of
from fastomp_nvm.cli.output import add_progress_argument, byte_progress, clean
from fastomp_nvm.durable_files import is_name, write_atomically
from fastomp_nvm.errors import InputError, MediumError, RequestError, UnavailableError, near
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.runs.drive import list_runs, resume
from fastomp_nvm.selection.model import EncodedRows
from fastomp_nvm.selection.model_file import load
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.stores.builders import READ_TARGET

__all__ = ["add_arguments", "run"]

_FORMATS = (".csv", ".parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "model", metavar="RUN|MODEL.json", help="a finished run, a file of 'select --save', or a job on the server of DATA"
    )
    parser.add_argument(
        "store", metavar="DATA", help="new rows: a file in a format that ingest reads, a store, or a store on a server"
    )
    parser.add_argument("out", metavar="OUT", help=f"file to write: {', '.join(_FORMATS)}; - prints CSV")
    parser.add_argument(
        "--id",
        dest="id_column",
        metavar="COL",
        help="column of a file that identifies its rows (default: none; a store has its own)",
    )
    parser.add_argument("--encoding", default="utf-8", metavar="NAME", help="encoding of the text, such as latin-1 (default utf-8)")
    add_covariates_arguments(parser)
    parser.add_argument(
        "--offset",
        metavar="FILE",
        help="as for select, from a file, where the model has one beside the store (default: none)",
    )
    add_replace_argument(parser)
    add_ray_argument(parser)
    add_connection_arguments(parser)
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Predict and write."""
    out = arguments.out
    if out != "-":
        if Path(out).suffix not in _FORMATS:
            raise RequestError(f"{out} has an unknown extension: expected one of {', '.join(_FORMATS)}, or - to print CSV")
        if os.path.lexists(out) and not arguments.replace:
            raise InputError(f"{out} exists: choose another name or ask to replace it (--replace)")
    model = _model(arguments)
    if arguments.id_column in (outputs := _output_names(model)):
        raise RequestError(
            f"--id {arguments.id_column!r} has the name of a column that is written ({', '.join(outputs)}): rename it"
        )
    if is_remote(arguments.store):
        if arguments.id_column is not None:
            raise RequestError("--id is for files, and a store on a server keeps its own identifiers: leave it out")
        with byte_progress("predict", arguments.progress), connected(arguments) as client:
            eta, ids = client.linear_predictor(model)
        rows = EncodedRows(np.empty((len(eta), 0)), ids=ids)
    else:
        with byte_progress("predict", arguments.progress) as progress:
            rows = model.encode(arguments.store, id_column=arguments.id_column, text_encoding=arguments.encoding, progress=progress)
        eta = model.linear_predictor(rows.values)
    offset = None if arguments.offset is None else READ_TARGET.load()(arguments.offset, len(eta))[1]
    eta = eta + model.given_beside(len(eta), rows.ids, covariates_of(arguments, [column.column for column in model.beside]), offset)
    columns = _columns(model, eta, rows.ids, arguments.id_column or "id")
    if out == "-":
        sys.stdout.write(_csv(columns).decode())
    else:
        data = _csv(columns) if out.endswith(".csv") else _parquet(columns)
        try:
            write_atomically(Path(out), data, replace=arguments.replace, durable=False, mode=0o644)
        except FileExistsError as error:
            raise InputError(f"{out} exists: choose another name or ask to replace it (--replace)") from error
        except OSError as error:
            raise MediumError(f"cannot write {out}: {error.strerror}") from error
    print(_summary(len(eta), out, rows), file=sys.stderr if out == "-" else sys.stdout)
    return 0


def _model(arguments: argparse.Namespace) -> Selection:
    """Return the selection of a finished run, of a file, or of a job on the server that the data is on."""
    name = arguments.model
    states = {info.name: info.status for info in list_runs()}
    if name in states:
        if states[name] != "finished":
            raise RequestError(f"the run {name!r} is {states[name]}, and only a finished one can predict: resume it first")
        return resume(name)
    if not os.path.isfile(name) and is_remote(arguments.store) and is_name(name):
        with connected(arguments) as client:
            return only_selection(name, client)
    if not os.path.isfile(name):
        folder = Path(name).parent
        files = [str(each) for each in folder.glob("*.json")] if folder.is_dir() else []
        raise RequestError(
            f"{name!r} is neither a run nor a file{near(name, [*states, *files])}: 'fastomp runs' lists the runs, and the model of "
            "a run on a server is saved with 'select URL --save MODEL.json' or 'resume RUN URL --save MODEL.json'"
        )
    return load(name)


def _output_names(model: Selection) -> list[str]:
    """Return the names of the columns to write beside the identifiers."""
    labelled = model.objective == "logistic" and model.classes is not None
    return ["prediction", *(f"probability={label}" for label in (model.classes or () if labelled else ()))]


def _columns(model: Selection, eta: Float64Array, ids: Sequence[str] | None, id_name: str) -> dict[str, list[Any]]:
    """Return the columns to write: identifiers, predictions and, for classes, their probabilities."""
    columns: dict[str, list[Any]] = {} if ids is None else {id_name: list(ids)}
    response = model.mean_response(eta)
    found: list[AnyArray] = [response]
    if model.objective == "logistic" and model.classes is not None:
        found = [np.array(model.classes)[(eta >= 0).astype(np.int64)], 1.0 - response, response]
    return columns | {name: values.tolist() for name, values in zip(_output_names(model), found, strict=True)}


def _csv(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Return comma-separated values with a line of names; numbers in the fewest digits that read back the same."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _parquet(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Return a Parquet table."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UnavailableError("Parquet needs pyarrow, which is not installed here: write .csv") from error
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), buffer)
    return buffer.getvalue()


def _summary(count: int, out: str, rows: EncodedRows) -> str:
    """Return the line about the predictions: how many, labels that are new, cells that were missing."""
    parts = [f"{count:,} prediction{'' if count == 1 else 's'}" + ("" if out == "-" else f" written to {out}")]
    for name, found in rows.unseen.items():
        parts.append(f"{_cells(found)} of {clean(name)!r} with a label unknown to the store")
    for name, found in rows.filled.items():
        parts.append(f"{_cells(found, 'missing ')} of {clean(name)!r} filled in")
    return "; ".join(parts)


def _cells(count: int, kind: str = "") -> str:
    """Return a number of cells in words."""
    return f"{count:,} {kind}cell{'s' if count > 1 else ''}"
