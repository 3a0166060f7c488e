"""``fastomp cancel NAME URL``: end a job on a server."""

from __future__ import annotations

import argparse

from fastomp_nvm.cli.arguments import add_connection_arguments, connected

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", help="the job; 'resume NAME URL' continues it")
    parser.add_argument("store", metavar="URL", help="the server: grpc://host:port, mcas://host:port/pool")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Cancel the job."""
    with connected(arguments) as client:
        client.cancel(arguments.name)
    return 0
