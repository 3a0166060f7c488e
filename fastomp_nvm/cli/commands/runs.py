"""``fastomp runs``: the durable runs of this user, or their jobs on a server, with their progress."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rich.table import Table

from fastomp_nvm.cli.arguments import add_connection_arguments, add_json_argument, connected
from fastomp_nvm.cli.output import clean, human_seconds
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.runs.drive import RunInfo, list_runs

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "store",
        nargs="?",
        metavar="URL",
        help="list the jobs there instead: grpc://host:port, or .../pool/key for those on a store (default: runs of this machine)",
    )
    add_json_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the runs of this machine, or the jobs on a server."""
    if arguments.store is None:
        runs = list_runs()
        found, rows = [info.to_json() for info in runs], map(_row, runs)
    else:
        with connected(arguments) as client:
            found = list(client.jobs())
        rows = map(_job_row, found)
    if arguments.json:
        print(json.dumps(found))
    elif not found:
        print(f"there are no runs: start one with 'fastomp select {arguments.store or 'STORE'} --run NAME'")
    else:
        _show(rows)
    return 0


def _row(info: RunInfo) -> tuple[str, ...]:
    """Return the cells of a run in the table."""
    if info.status == "damaged":
        return info.name, info.status, "", "", "", "", "", clean(info.detail, 200)
    bound = "" if info.k is None else f" of {info.k}"
    figures = (str(info.rounds), f"{info.selected}{bound}", f"{info.value:.6g}", human_seconds(info.seconds))
    return info.name, info.status, *figures, info.algorithm, clean(info.store, 200)


def _job_row(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a job on a server in the table."""
    store = f"{job['pool']}/{job['key']}" + (f": {job['error']['message']}" if job["error"] else "")
    figures = ("", "", "", "")
    if job["progress"] and (step := job["progress"][0]):
        figures = (str(step["round"]), str(step["selected"]), f"{step['value']:.6g}", human_seconds(step["seconds"]))
    return clean(job["job"], 200), job["state"], *figures, "", clean(store, 200)


def _show(rows: Iterable[tuple[str, ...]]) -> None:
    """Print one table of runs per store: its address is too long for a column."""
    by_store: dict[str, list[list[str]]] = {}
    for *figures, store in rows:
        by_store.setdefault(store, []).append(figures)
    console = Screen()
    for store, members in by_store.items():
        table = Table()
        for column in ("run", "status", "rounds", "features", "value", "time", "algorithm"):
            justify: Literal["left", "right"] = "right" if column in ("rounds", "features", "value", "time") else "left"
            table.add_column(column, overflow="fold", justify=justify, no_wrap=column != "run")
        for figures in members:
            table.add_row(*figures)
        console.print(store, soft_wrap=True)
        console.print(table)
