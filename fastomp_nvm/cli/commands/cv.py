"""``fastomp cv STORE``: choose how many features to select by cross-validation, all folds in shared scans."""

from __future__ import annotations

import argparse
import json

from rich.table import Table

from fastomp_nvm.analysis.cross_validation import CrossValidation
from fastomp_nvm.cli.analyses import add_job_arguments, analysed
from fastomp_nvm.cli.arguments import add_request_arguments, add_store_arguments
from fastomp_nvm.cli.fairness import add_protected_arguments, show_fairness
from fastomp_nvm.cli.results import sharing_in_words, show_selection
from fastomp_nvm.cli.screen import Screen

__all__ = ["add_arguments", "run", "show"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_arguments(parser)
    add_request_arguments(parser, several=("k",))
    add_job_arguments(parser)
    parser.add_argument("--k-max", type=int, metavar="K", help="try 1 to K, instead of the values of --k (default: only those)")
    parser.add_argument("--folds", type=int, default=5, metavar="N", help="folds, drawn by --seed (default 5)")
    parser.add_argument(
        "--rule", default="best", metavar="RULE", help="best, or one-standard-error: the smallest k that is nearly as good"
    )
    add_protected_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Cross-validate and print."""
    ks, arguments.k = arguments.k, None
    options = {"folds": arguments.folds, "ks": ks, "k_max": arguments.k_max, "rule": arguments.rule}
    found = analysed(arguments, "cv", options)
    if found is not None:
        show(found, as_json=arguments.json)
    return 0


def show(found: CrossValidation, *, as_json: bool) -> None:
    """Print a cross-validation."""
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return
    console = Screen()
    table = Table(title=f"{found.scores.shape[1]} folds, score on held-out observations")
    for name in ("k", "mean", "standard error"):
        table.add_column(name, justify="right")
    table.add_column("")
    marks = {found.one_standard_error_k: "within one standard error", found.best_k: "best"}
    for k, mean, error in zip(found.ks.tolist(), found.mean, found.standard_error, strict=True):
        table.add_row(str(k), f"{mean:.6g}", f"{error:.2g}", marks.get(k, ""))
    console.print(table)
    show_selection(found.selection)
    if found.selection.fairness is not None:
        show_fairness(found.selection.fairness)
    console.print(sharing_in_words(found.sharing))
