"""``fastomp path STORE --k 100``: the selection for every number of features up to k, from one run where greedy is nested."""

from __future__ import annotations

import argparse
import io
import json
import os
from pathlib import Path

from rich.table import Table

from fastomp_nvm.analysis.path import SelectionPath
from fastomp_nvm.cli.analyses import add_job_arguments, analysed
from fastomp_nvm.cli.arguments import (
    add_allow_infeasible_argument,
    add_replace_argument,
    add_request_arguments,
    add_store_arguments,
)
from fastomp_nvm.cli.output import clean
from fastomp_nvm.cli.results import infeasible
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.durable_files import write_atomically
from fastomp_nvm.errors import InputError, RequestError
from fastomp_nvm.selection.criteria import CRITERIA, OPTIMISTIC
from fastomp_nvm.selection.display import SCALES
from fastomp_nvm.selection.plots import pyplot

__all__ = ["add_arguments", "run", "show"]

#: Endings of pictures.
_PICTURES = ("png", "svg", "pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Select for every number of features up to k. By default full greedy runs once, verified over all features: sds_ma, "
        "for logistic and poisson sds_omp. Its first 1, 2, ... features are the selections. Beside lower bounds, with --quality "
        f"or another --algorithm each k is a run of its own, in shared scans. AIC, BIC and EBIC: {OPTIMISTIC}."
    )
    add_store_arguments(parser)
    add_request_arguments(parser)
    add_job_arguments(parser)
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help=f"draw scores and criteria into a file: {', '.join(_PICTURES)} (default: none)"
    )
    add_replace_argument(parser)
    add_allow_infeasible_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Select for every k and print."""
    if arguments.plot is not None:
        _check_plot(arguments.plot, arguments.replace)
    found = analysed(arguments, "path", {})
    if found is None:
        return 0
    if arguments.plot is not None:
        picture = io.BytesIO()
        found.plot()
        pyplot().savefig(picture, format=arguments.plot.suffix[1:].lower(), dpi=110)
        write_atomically(arguments.plot, picture.getvalue(), replace=arguments.replace, mode=0o644)
    return show(found, as_json=arguments.json, allow_infeasible=arguments.allow_infeasible)


def show(found: SelectionPath, *, as_json: bool, allow_infeasible: bool) -> int:
    """Print a path; return the exit code."""
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        _show(found)
    broken = [
        f"k = {k}: {'; '.join(each.violations)}" for k, each in zip(found.ks, found.selections, strict=True) if not each.feasible
    ]
    return 0 if not broken or allow_infeasible else infeasible(broken)


def _check_plot(file: Path, replace: bool) -> None:
    """Refuse a picture that cannot be written, before anything is computed."""
    if file.suffix[1:].lower() not in _PICTURES:
        raise RequestError(f"--plot is {str(file)!r}: expected a file name that ends in .{', .'.join(_PICTURES)}")
    if os.path.lexists(file) and not replace:
        raise InputError(f"{file} exists: choose another name or ask to replace it (--replace)")
    if not file.parent.is_dir():
        raise InputError(f"there is no folder {file.parent} to write {file.name} into: create it first")
    pyplot()


def _show(found: SelectionPath) -> None:
    """Print the path for a person."""
    console, last = Screen(), found.selections[-1]
    scale = SCALES.get(last.objective, "log-likelihood")
    held_out = last.test_fraction is not None
    table = Table(title=f"k = {found.ks[0]} to {found.ks[-1]}; AIC, BIC, EBIC {OPTIMISTIC}")
    table.add_column("k", justify="right")
    table.add_column("feature" if found.nested else "features that enter and leave", overflow="fold")
    for name in (scale, *(["held out"] if held_out else []), *map(str.upper, CRITERIA)):
        table.add_column(name, justify="right")
    table.add_column("least")
    for k, changes, selection, point in zip(found.ks.tolist(), found.changes, found.selections, found.points, strict=True):
        values = [selection.score, *([selection.test_score] if held_out else []), *(getattr(point, name) for name in CRITERIA)]
        least = ", ".join(name.upper() for name, best in found.best.items() if best == k)
        feature = changes[0][1:] if found.nested else ", ".join(changes)
        table.add_row(str(k), clean(feature, 30), *("-" if value is None else f"{value:.5g}" for value in values), least)
    console.print(table)
    console.print(found.reason)
    if any(point.aic is None for point in found.points):
        console.print("no criterion is given where there are fewer than two observations per parameter, or the fit is exact")
    console.print(f"{OPTIMISTIC}: the criteria ignore that features were chosen (EBIC in part); 'fastomp cv' does not")
    if last.objective_reason is not None:
        console.print(f"objective {last.objective}: {clean(last.objective_reason, None)}")
    for note in last.notes:
        console.print(f"note: {clean(note, None)}")
    console.print(f"{last.algorithm} on {last.medium}: {found.sharing.in_words()}")
