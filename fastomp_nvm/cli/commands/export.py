"""``fastomp export RUN OUT``: write the selected columns, their names and the target to a file for other programs."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.cli.analyses import only_selection
from fastomp_nvm.cli.arguments import add_connection_arguments, add_ray_argument, connected, open_local
from fastomp_nvm.cli.output import add_progress_argument, byte_progress
from fastomp_nvm.errors import RequestError, near
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.runs.drive import list_runs, registration, resume
from fastomp_nvm.selection.export import FORMATS, Extract, Extraction, check_format, labelled, write_extract
from fastomp_nvm.selection.response import encode_response

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "run_name", metavar="RUN", help="a finished run, a file with the output of 'select --json', or a job on the server"
    )
    parser.add_argument("out", metavar="OUT", help=f"file to write: {', '.join(FORMATS)}")
    parser.add_argument("--store", metavar="STORE", help="store of the selection; needed for a file (default: that of the run)")
    add_ray_argument(parser)
    add_progress_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the reduced matrix."""
    out = check_format(arguments.out)
    with byte_progress("export", arguments.progress) as progress:
        remote = arguments.store is not None and is_remote(arguments.store)
        found = _from_server(arguments) if remote else _from_store(*_source(arguments), lambda done, all_: progress(done, 2 * all_))
        found = write_extract(found, out, lambda done, all_: progress(all_ + done, 2 * all_))
    n_obs, count = found.values.shape
    print(f"{n_obs:,} observations of {count:,} columns and the target {found.label!r} written to {out}")
    return 0


def _from_store(
    url: str, indices: IndexArray, objective: str, target: str | None, response: object, progress: Callable[[int, int], None]
) -> Extract:
    """Return the selected columns of a store of this machine."""
    with open_local(url) as store:
        return Extraction(store, indices, objective, target, response).whole(progress)


def _from_server(arguments: argparse.Namespace) -> Extract:
    """Return the selected columns of a store on a server, for a run or file of this machine, or a job there."""
    name = arguments.run_name
    with connected(arguments) as client:
        if os.path.isfile(name) or any(info.name == name for info in list_runs()):
            _, indices, objective, target, response = _source(arguments)
            found = client.extract_columns(indices, objective, target)
            if response is not None:
                values, classes = encode_response(response, objective)
                found = found._replace(label="y", y=labelled(values, classes))
            return found
        return client.extract(only_selection(name, client))


def _source(arguments: argparse.Namespace) -> tuple[str, IndexArray, str, str | None, object]:
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
