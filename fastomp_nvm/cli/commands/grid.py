"""``fastomp grid STORE``: selections for every combination of parameters, in shared scans."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from fastomp_nvm.analysis.many import Sharing, grid
from fastomp_nvm.cli.commands.select import add_request_arguments, add_store_arguments, opened_dataset, request_fields
from fastomp_nvm.cli.output import human_bytes, run_progress
from fastomp_nvm.errors import RequestError

__all__ = ["add_arguments", "run", "sharing_in_words"]

#: Options that take comma-separated values.
SEVERAL = ("k", "tau", "epsilon", "ridge")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_arguments(parser)
    add_request_arguments(parser, several=SEVERAL)
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds to try, from --seed on (default 1)")
    parser.add_argument("--lambda", dest="limits", metavar="X,...", help="limits to put into the fairness constraints")


def run(arguments: argparse.Namespace) -> int:
    """Select for every combination and print."""
    over: dict[str, list[Any]] = {}
    for field in SEVERAL:
        if isinstance(values := getattr(arguments, field), list):
            over[field] = values
            setattr(arguments, field, values[0])
    if arguments.seeds < 1:
        raise RequestError(f"--seeds is {arguments.seeds}: expected a whole number of at least 1")
    if arguments.seeds > 1:
        over["seed"] = list(range(arguments.seed, arguments.seed + arguments.seeds))
    if arguments.limits is not None:
        try:
            over["lambda"] = [float(part) for part in arguments.limits.split(",")]
        except ValueError:
            raise RequestError(f"--lambda is {arguments.limits!r}: expected comma-separated numbers") from None
    with opened_dataset(arguments) as dataset, run_progress("grid") as observer, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether an answer is feasible stands in the table
        fields, values = request_fields(arguments, dataset)
        fixed = {name: value for name, value in fields.items() if name not in over}
        found = grid(dataset, values, over=over, threads=arguments.threads, observer=observer, **fixed)
    if arguments.json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return 0
    console = Console(highlight=False, markup=False)
    table = Table(title=f"{len(found.cells)} selections")
    for name in (*over, "features", "score", "feasible", "passes alone"):
        table.add_column(name, justify="right")
    for cell in found.cells:
        selection = cell.selection
        table.add_row(
            *(f"{value:g}" if isinstance(value, float) else str(value) for value in cell.settings.values()),
            str(len(selection.indices)),
            f"{selection.score:.6g}",
            "yes" if selection.feasible else "no",
            f"{selection.full_passes:.2f}",
        )
    console.print(table)
    console.print(f"best: {_described(found.best.settings)} with score {found.best.selection.score:.6g}")
    console.print(sharing_in_words(found.sharing))
    return 0


def _described(settings: Mapping[str, Any]) -> str:
    """Name a point of the grid."""
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "the only selection"


def sharing_in_words(sharing: Sharing) -> str:
    """Say what sharing the scans saved."""
    return (
        f"{human_bytes(sharing.bytes_read)} read in {sharing.full_passes:.1f} passes; one by one it would have been "
        f"{human_bytes(sharing.bytes_read_alone)} in {sharing.full_passes_alone:.1f}"
    )
