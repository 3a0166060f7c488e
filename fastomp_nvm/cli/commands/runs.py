"""``fastomp runs``: the durable runs of this user, or their jobs on a server, with their progress."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from typing import Literal

from rich.table import Table

from fastomp_nvm.cli.arguments import add_connection_arguments, add_json_argument, connected
from fastomp_nvm.cli.output import clean, human_seconds
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.runs.drive import list_runs
from fastomp_nvm.selection.run_info import RunInfo

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
        found: Sequence[RunInfo] = list_runs()
    else:
        with connected(arguments) as client:
            found = client.jobs()
    if arguments.json:
        print(json.dumps([info.to_json() for info in found]))
    elif not found:
        print(f"there are no runs: start one with 'fastomp select {shlex.quote(arguments.store or 'STORE')} --k 10 --run NAME'")
    else:
        _show(found)
    return 0


def _show(runs: Sequence[RunInfo]) -> None:
    """Print one table of runs per store: its address is too long for a column."""
    by_store: dict[str, list[RunInfo]] = {}
    for info in runs:
        by_store.setdefault(info.store, []).append(info)
    console = Screen()
    for store, members in by_store.items():
        table = Table()
        for column in ("run", "status", "rounds", "features", "score", "time", "algorithm"):
            justify: Literal["left", "right"] = "right" if column in ("rounds", "features", "score", "time") else "left"
            table.add_column(column, overflow="fold", justify=justify, no_wrap=column != "run")
        for info in members:
            table.add_row(*_cells(info))
        if store:
            console.print(clean(store, 200), soft_wrap=True)
        console.print(table)
        for info in members:
            if info.detail:
                console.print(f"{clean(info.name, 200)}: {clean(info.detail, None)}", soft_wrap=True)


def _cells(info: RunInfo) -> tuple[str, ...]:
    """Return the cells of a run in the table; figures that are not there yet are empty."""
    features = str(info.selected) + ("" if info.k is None else f" of {info.k}")
    score = "" if info.score is None else f"{info.score:.6g}"
    figures = (str(info.rounds), features, score, human_seconds(info.seconds)) if info.rounds or info.selected else ("",) * 4
    return clean(info.name, 200), info.status, *figures, info.asked
