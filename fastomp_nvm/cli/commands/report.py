"""``fastomp report RUN|FILE OUT.html [URL]``: the answer of a run as one HTML file that needs nothing else."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from fastomp_nvm.cli.analyses import as_selections
from fastomp_nvm.cli.arguments import add_connection_arguments, add_replace_argument, connected
from fastomp_nvm.durable_files import write_atomically
from fastomp_nvm.errors import InputError, MediumError, RequestError, near
from fastomp_nvm.runs.drive import list_runs, resume
from fastomp_nvm.selection.model_file import read_selections
from fastomp_nvm.selection.report import report_page
from fastomp_nvm.selection.result import Selection

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="RUN|FILE", help="a finished run, or a file of 'select --save' or 'select --json'")
    parser.add_argument("out", metavar="OUT.html", help="file to write")
    parser.add_argument(
        "store", nargs="?", metavar="URL", help="the server the run is on: grpc://host:port, mcas://host:port/pool (default: here)"
    )
    add_replace_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the report."""
    out = Path(arguments.out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise RequestError(f"{arguments.out} has an unknown extension: expected .html")
    if os.path.lexists(out) and not arguments.replace:
        raise InputError(f"{out} exists: choose another name or ask to replace it (--replace)")
    selections = _selections(arguments)
    text = report_page(f"Selection {Path(arguments.name).name}", selections)
    try:
        write_atomically(out, text.encode("utf-8", "replace"), replace=arguments.replace, mode=0o644)
    except OSError as error:
        raise MediumError(f"cannot write {out}: {error.strerror}") from error
    print(
        f"{len(selections[0].features):,} features written to {out}"
        if len(selections) == 1
        else f"{len(selections)} selections written to {out}"
    )
    return 0


def _selections(arguments: argparse.Namespace) -> Sequence[Selection]:
    """Return the selections of a job on a server, of a run or in a file."""
    name = arguments.name
    if arguments.store is not None:
        with connected(arguments) as client:
            return as_selections(name, client.fetch(name))
    states = {info.name: info.status for info in list_runs()}
    if name in states:
        if states[name] != "finished":
            raise RequestError(f"the run {name!r} is {states[name]}, and only a finished one has an answer: resume it first")
        return [resume(name)]
    if not os.path.isfile(name):
        raise RequestError(f"{name!r} is neither a run nor a file{near(name, states)}: 'fastomp runs' lists the runs")
    return read_selections(name)
