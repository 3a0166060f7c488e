"""``fastomp forget NAME``: remove a durable run of this machine; a server forgets ended jobs by itself."""

from __future__ import annotations

import argparse

from fastomp_nvm.runs.drive import forget

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", help="the run, which is removed with its state and its result")


def run(arguments: argparse.Namespace) -> int:
    """Remove the run."""
    forget(arguments.name)
    return 0
