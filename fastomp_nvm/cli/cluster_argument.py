"""Arguments that concern shards, shared by several commands."""

from __future__ import annotations

import argparse

from fastomp_nvm.errors import RequestError
from fastomp_nvm.stores.url import StoreURL

__all__ = ["add_ray_argument", "refuse_settings_of_sweeps", "shard_counts"]


def add_ray_argument(parser: argparse.ArgumentParser) -> None:
    """Declare where the shards of a ``cluster://`` store are asked."""
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="Ray cluster to ask the shards of a cluster:// store (HOST:PORT, or auto); otherwise Ray is started on this machine",
    )


def refuse_settings_of_sweeps(store: str, arguments: argparse.Namespace) -> None:
    """Refuse to be told how this machine sweeps where the shards of a ``cluster://`` store do, each on its own."""
    if StoreURL.parse(store).scheme != "cluster":
        return
    for option in ("threads", "io"):
        if getattr(arguments, option, None) is not None:
            raise RequestError(
                f"--{option} is for sweeps of this machine, and the shards of {store} are swept by their own: leave it out"
            )


def shard_counts(text: str) -> int | list[float]:
    """Read how many shards to make, or the share of each."""
    try:
        return [float(part) for part in text.split(",")] if "," in text else int(text)
    except ValueError as error:
        raise RequestError(f"{text!r} does not say how many shards to make: expected a number, or shares such as 2,1,1") from error
