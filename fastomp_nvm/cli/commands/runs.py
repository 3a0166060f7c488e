"""``fastomp runs``: the durable runs of this user, or their jobs on a server, with their progress."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from fastomp_nvm.cli.output import clean, human_seconds
from fastomp_nvm.cli.remote_arguments import add_connection_arguments, connected
from fastomp_nvm.errors import InputError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.runs.drive import RunInfo, forget, list_runs

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "store",
        nargs="?",
        metavar="URL",
        help="list the jobs there instead: grpc://host:port, or .../pool/key for those on a store",
    )
    parser.add_argument("--forget", metavar="NAME", help="remove this run of this machine with its state and its result")
    parser.add_argument("--cancel", metavar="NAME", help="end this job of the server; 'resume NAME URL' goes on with it")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the runs, or forget or cancel one."""
    if arguments.store is not None:
        return _run_remotely(arguments)
    if arguments.cancel is not None:
        raise InputError(
            "--cancel is for jobs on a server: name its URL; a run of this machine ends with the command that drives it"
        )
    if arguments.forget is not None:
        forget(arguments.forget)
        return 0
    found = list_runs()
    if arguments.json:
        print(json.dumps([info.to_json() for info in found]))
    elif not found:
        print("there are no runs: start one with 'fastomp select STORE --run NAME'")
    else:
        _show(map(_row, found))
    return 0


def _run_remotely(arguments: argparse.Namespace) -> int:
    """List the jobs on a server, or cancel one."""
    if not is_remote(arguments.store):
        raise InputError(f"{arguments.store!r} is no server: expected grpc://host:port or the like, or nothing for this machine")
    if arguments.forget is not None:
        raise InputError("--forget is for runs of this machine: a server forgets ended jobs by itself, --cancel ends one")
    with connected(arguments) as client:
        if arguments.cancel is not None:
            client.cancel(arguments.cancel)
            return 0
        found = client.jobs()
    if arguments.json:
        print(json.dumps(found))
    elif not found:
        print(f"there are no jobs of yours: start one with 'fastomp select {arguments.store} --run NAME'")
    else:
        _show(map(_job_row, found))
    return 0


def _row(info: RunInfo) -> tuple[str, ...]:
    """Return what the table says of a run."""
    if info.status == "damaged":
        return info.name, info.status, "", "", "", "", "", clean(info.detail, 200)
    bound = "" if info.k is None else f" of {info.k}"
    figures = (str(info.rounds), f"{info.selected}{bound}", f"{info.value:.6g}", human_seconds(info.seconds))
    return info.name, info.status, *figures, info.algorithm, clean(info.store, 200)


def _job_row(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the table says of a job on a server."""
    store = f"{job['pool']}/{job['key']}" + (f": {job['error']['message']}" if job["error"] else "")
    figures = ("", "", "", "")
    if job["progress"] and (step := job["progress"][0]):
        figures = (str(step["round"]), str(step["selected"]), f"{step['value']:.6g}", human_seconds(step["seconds"]))
    return clean(job["job"], 200), job["state"], *figures, "", clean(store, 200)


def _show(rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table of runs per store, whose address would be folded to shreds in a column of its own."""
    by_store: dict[str, list[list[str]]] = {}
    for *figures, store in rows:
        by_store.setdefault(store, []).append(figures)
    console = Console(highlight=False, markup=False)
    for store, members in by_store.items():
        table = Table()
        for column in ("run", "status", "rounds", "features", "value", "time", "algorithm"):
            justify: Literal["left", "right"] = "right" if column in ("rounds", "features", "value", "time") else "left"
            table.add_column(column, overflow="fold", justify=justify, no_wrap=column != "run")
        for figures in members:
            table.add_row(*figures)
        console.print(store, soft_wrap=True)
        console.print(table)
