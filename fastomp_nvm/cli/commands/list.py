"""``fastomp list URL``: the pools of a server, or the stores of a pool."""

from __future__ import annotations

import argparse
import json

from rich.table import Table

from fastomp_nvm.cli.arguments import add_connection_arguments, add_json_argument, connected
from fastomp_nvm.cli.output import clean
from fastomp_nvm.cli.screen import Screen

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("store", metavar="URL", help="grpc://host:port for its pools, grpc://host:port/pool for the stores there")
    add_json_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the list."""
    with connected(arguments) as client:
        found = client.list()
    if arguments.json:
        print(json.dumps(found))
    elif not found:
        print(f"there is nothing at {arguments.store}")
    else:
        table = Table(*found[0])
        for entry in found:
            table.add_row(*(clean("none" if value is None else str(value)) for value in entry.values()))
        Screen().print(table)
    return 0
