"""``fastomp cv STORE``: choose how many features to select by cross-validation, all folds in shared scans."""

from __future__ import annotations

import argparse
import json
import warnings

from rich.table import Table

from fastomp_nvm.analysis.cross_validation import cross_validate
from fastomp_nvm.cli.arguments import add_request_arguments, add_store_arguments, opened_request
from fastomp_nvm.cli.fairness import add_protected_arguments, protection, show_fairness
from fastomp_nvm.cli.output import run_progress
from fastomp_nvm.cli.results import sharing_in_words, show_selection
from fastomp_nvm.cli.screen import Screen

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_arguments(parser)
    add_request_arguments(parser, several=("k",))
    parser.add_argument("--k-max", type=int, metavar="K", help="try 1 to K, instead of the values of --k (default: only those)")
    parser.add_argument("--folds", type=int, default=5, metavar="N", help="folds, drawn by --seed (default 5)")
    parser.add_argument(
        "--rule", default="best", metavar="RULE", help="best, or one-standard-error: the smallest k that is nearly as good"
    )
    add_protected_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Cross-validate and print."""
    ks, arguments.k = arguments.k, None
    with opened_request(arguments) as request, run_progress("cv", arguments.progress) as observer, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cross_validate(
            request.store,
            request.response,
            folds=arguments.folds,
            ks=ks,
            k_max=arguments.k_max,
            rule=arguments.rule,
            observer=observer,
            **protection(arguments, request.store),
            **request.reading,
            **request.fields,
        )
    if arguments.json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return 0
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
    return 0
