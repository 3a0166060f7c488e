"""``fastomp names STORE [PATTERN]``: the features of a store, one per line, with their number of columns."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from fastomp_nvm.cli.arguments import add_connection_arguments, add_json_argument, add_ray_argument, add_store_argument, connected
from fastomp_nvm.cli.output import clean
from fastomp_nvm.errors import RequestError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.stores.listing import list_names
from fastomp_nvm.stores.open import open_store

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_argument(parser)
    parser.add_argument(
        "pattern", nargs="?", metavar="PATTERN", help="shell pattern such as 'income_*', or a part of the names (default: all)"
    )
    add_json_argument(parser)
    add_ray_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the names."""
    if arguments.json:
        print(json.dumps([{"name": name, "columns": columns} for name, columns in _features(arguments)]))
        return 0
    for name, columns in _features(arguments):
        print(clean(name, longest=None) + (f"  ({columns} columns)" if columns > 1 else ""))
    return 0


def _features(arguments: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield name and number of columns of each feature that matches; raise where none does."""
    found = 0
    for name, columns in _remote(arguments) if is_remote(arguments.store) else _local(arguments):
        found += 1
        yield name, columns
    if not found and arguments.pattern is not None:
        raise RequestError(f"no feature matches {arguments.pattern!r}: 'fastomp names {arguments.store}' lists all of them")


def _local(arguments: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield the features of a store of this machine."""
    with open_store(arguments.store) as store:
        first: int | None = 0
        while first is not None:
            page = list_names(store, {"pattern": arguments.pattern, "first": first})
            yield from map(tuple, page["features"])
            first = page["next"]


def _remote(arguments: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield the features of a store on a server."""
    with connected(arguments) as client:
        yield from client.names(arguments.pattern)
