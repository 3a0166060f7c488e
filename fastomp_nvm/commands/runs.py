"""``fastomp runs``: the durable runs of this user, with their progress."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.table import Table

from fastomp_nvm.display import clean, human_seconds
from fastomp_nvm.durable_runs import forget, runs

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--forget", metavar="NAME", help="remove this run with its state and its result")
    parser.add_argument("--json", action="store_true", help="print one JSON list")


def run(arguments: argparse.Namespace) -> int:
    """List the runs, or forget one."""
    if arguments.forget is not None:
        forget(arguments.forget)
        return 0
    found = runs()
    if arguments.json:
        print(json.dumps([info.to_json() for info in found]))
        return 0
    if not found:
        print("there are no runs: start one with 'fastomp select STORE --run NAME'")
        return 0
    table = Table()
    for column in ("run", "status", "rounds", "features", "value", "time", "algorithm", "store"):
        table.add_column(column, overflow="fold", justify="right" if column in ("rounds", "features", "value", "time") else "left")
    for info in found:
        if info.status == "damaged":
            table.add_row(info.name, info.status, "", "", "", "", "", clean(info.detail, 200))
            continue
        bound = "" if info.k is None else f" of {info.k}"
        figures = (str(info.rounds), f"{info.selected}{bound}", f"{info.value:.6g}", human_seconds(info.seconds))
        table.add_row(info.name, info.status, *figures, info.algorithm, clean(info.store, 200))
    Console(highlight=False, markup=False).print(table)
    return 0
