"""``fastomp forget NAME [URL]``: remove a durable run of this machine, or an ended one of a server, with its result."""

from __future__ import annotations

import argparse

from fastomp_nvm.cli.arguments import add_connection_arguments, connected
from fastomp_nvm.runs.drive import forget

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", help="the run, which is removed with its state and its result")
    parser.add_argument(
        "store",
        nargs="?",
        metavar="URL",
        help="the server it is on: grpc://host:port, mcas://host:port/pool (default: this machine)",
    )
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Remove the run."""
    if arguments.store is None:
        forget(arguments.name)
    else:
        with connected(arguments) as client:
            client.forget(arguments.name)
    return 0
