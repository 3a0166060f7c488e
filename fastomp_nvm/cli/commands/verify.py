"""``fastomp verify STORE``: check every block against the checksum taken when the store was built."""

from __future__ import annotations

import argparse

from fastomp_nvm.cli.arguments import add_ray_argument, add_store_argument, open_local
from fastomp_nvm.cli.output import add_progress_argument, byte_progress, human_bytes

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_argument(parser)
    add_ray_argument(parser)
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Verify the store and print its size."""
    with open_local(arguments.store) as store:
        with byte_progress("verify", arguments.progress) as progress:
            store.verify(progress)
        blocks, size = len(store.layout.blocks) - 1, store.matrix.nbytes
    print(f"all {blocks:,} blocks ({human_bytes(size)}) match their checksums")
    return 0
