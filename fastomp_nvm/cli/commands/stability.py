"""``fastomp stability STORE``: how often each feature is selected on random subsamples, all in shared scans."""

from __future__ import annotations

import argparse
import json

from rich.table import Table

from fastomp_nvm.analysis.stability import Stability
from fastomp_nvm.cli.analyses import add_job_arguments, analysed
from fastomp_nvm.cli.arguments import add_request_arguments, add_store_arguments
from fastomp_nvm.cli.output import clean
from fastomp_nvm.cli.results import sharing_in_words
from fastomp_nvm.cli.screen import Screen

__all__ = ["add_arguments", "run", "show"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_arguments(parser)
    add_request_arguments(parser)
    add_job_arguments(parser)
    parser.add_argument("--subsamples", type=int, default=50, metavar="N", help="subsamples, drawn by --seed (default 50)")
    parser.add_argument("--fraction", type=float, default=0.5, metavar="F", help="share of the observations in each (default 0.5)")
    parser.add_argument("--threshold", type=float, default=0.6, metavar="P", help="frequency of a stable feature (default 0.6)")


def run(arguments: argparse.Namespace) -> int:
    """Select on subsamples and print."""
    names = ("subsamples", "fraction", "threshold")
    found = analysed(arguments, "stability", {name: getattr(arguments, name) for name in names})
    if found is not None:
        show(found, as_json=arguments.json)
    return 0


def show(found: Stability, *, as_json: bool) -> None:
    """Print frequencies of selection."""
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return
    console = Screen()
    shown = max(len(found.stable), 20)
    table = Table(title=f"{len(found.stable)} stable features, the {min(shown, len(found.features))} most frequent")
    table.add_column("feature", overflow="fold")
    table.add_column("selected in", justify="right")
    table.add_column("")
    for place, (name, index) in enumerate(zip(found.features[:shown], found.indices[:shown], strict=True)):
        table.add_row(clean(name), f"{found.frequencies[index]:.1%}", "stable" if place < len(found.stable) else "")
    console.print(table)
    if found.objective_reason is not None:
        console.print(f"objective {found.objective}: {clean(found.objective_reason, None)}")
    for note in found.notes:
        console.print(f"note: {note}")
    if found.expected_false is not None and not found.notes:
        console.print(f"at most {found.expected_false:.2g} irrelevant features are to be expected among the stable ones")
    console.print(sharing_in_words(found.sharing))
