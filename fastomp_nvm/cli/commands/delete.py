"""``fastomp delete URL``: delete a store from a pool of a server."""

from __future__ import annotations

import argparse

from fastomp_nvm.cli.arguments import add_connection_arguments, connected
from fastomp_nvm.errors import InputError
from fastomp_nvm.remote.address import is_remote

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("store", metavar="URL", help="grpc://host:port/pool/key and the like; refused while jobs need it")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Delete the store."""
    if not is_remote(arguments.store):
        raise InputError(f"{arguments.store!r} is not on a server: a store of this machine is a directory, remove that")
    with connected(arguments) as client:
        client.delete()
    return 0
