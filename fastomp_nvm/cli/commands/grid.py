"""``fastomp grid STORE``: selections for every combination of parameters, in shared scans."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from fastomp_nvm.analysis.grid import Grid
from fastomp_nvm.cli.analyses import add_job_arguments, analysed
from fastomp_nvm.cli.arguments import add_request_arguments, add_store_arguments
from fastomp_nvm.cli.fairness import add_protected_arguments, show_fairness
from fastomp_nvm.cli.output import clean
from fastomp_nvm.cli.results import sharing_in_words
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.errors import RequestError
from fastomp_nvm.selection.fairness import figure_in_words, named

__all__ = ["add_arguments", "run", "show"]

#: Options that take comma-separated values.
SEVERAL = ("k", "tau", "epsilon", "ridge")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_arguments(parser)
    add_request_arguments(parser, several=SEVERAL)
    add_job_arguments(parser)
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds to try, from --seed on (default 1)")
    parser.add_argument(
        "--lambda", dest="limits", metavar="X,...", help="limits to put into the fairness constraints (default: theirs)"
    )
    add_protected_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Select for every combination and print."""
    over: dict[str, list[Any]] = {}
    for field in SEVERAL:
        if isinstance(values := getattr(arguments, field), list):
            over[field] = values
            setattr(arguments, field, None)
    if arguments.seeds < 1:
        raise RequestError(f"--seeds is {arguments.seeds}: expected a whole number of at least 1")
    if arguments.seeds > 1:
        first = arguments.seed or 0
        over["seed"] = list(range(first, first + arguments.seeds))
    if arguments.limits is not None:
        try:
            over["lambda"] = [float(part) for part in arguments.limits.split(",")]
        except ValueError:
            raise RequestError(f"--lambda is {arguments.limits!r}: expected comma-separated numbers") from None
        arguments.seed = None
    found = analysed(arguments, "grid", {"over": over})
    if found is not None:
        show(found, as_json=arguments.json)
    return 0


def show(found: Grid, *, as_json: bool) -> None:
    """Print a grid."""
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return
    over = found.cells[0].settings
    console = Screen()
    table = Table(title=f"{len(found.cells)} selections")
    held_out = found.ranked_by == "test_score"
    gaps = found.gaps
    scores = ["score", *(["held-out score"] if held_out else []), *map(named, gaps)]
    for name in (*over, "features", *scores, "feasible", "passes alone"):
        table.add_column(name, justify="right")
    for cell in found.cells:
        selection = cell.selection
        table.add_row(
            *(f"{value:g}" if isinstance(value, float) else str(value) for value in cell.settings.values()),
            str(len(selection.indices)),
            f"{selection.score:.6g}",
            *([_number(selection.test_score)] if held_out else []),
            *(figure_in_words(found.gap(cell, name)) for name in gaps),
            "yes" if selection.feasible else "no",
            f"{selection.full_passes:.2f}",
        )
    console.print(table)
    best = found.best.selection
    scale = "R^2" if best.objective == "linear" else "mean log-likelihood"
    settings = _described(found.best.settings)
    if held_out:
        rows = f"{best.test_rows:,} observations held out" + (", others for each seed" if "seed" in over else "")
        console.print(f"best: {settings} with {scale} {_number(best.test_score)} on the {rows}")
    else:
        console.print(
            f"best: {settings} with {scale} {best.score:.6g} on the observations it was fitted on, which favours the largest k: "
            "--test-fraction 0.25 ranks by observations held out"
        )
    if best.objective_reason is not None:
        console.print(f"objective {best.objective}: {clean(best.objective_reason, None)}")
    if best.fairness is not None:
        show_fairness(best.fairness)
    console.print(sharing_in_words(found.sharing))


def _number(score: float | None) -> str:
    """Return a score as text; one of a constant target is undefined."""
    return "undefined" if score is None else f"{score:.6g}"


def _described(settings: Mapping[str, Any]) -> str:
    """Return the settings of a cell as text."""
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "the only selection"
