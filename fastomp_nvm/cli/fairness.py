"""Protected attributes on the command line, and the fairness report as text for people."""

from __future__ import annotations

import argparse
import os
from typing import TypedDict

from rich.table import Table

from fastomp_nvm.cli.output import clean
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.errors import RequestError, near
from fastomp_nvm.selection.fairness import EVALUATED_ON, FairnessReport, GroupReport, figure_in_words, named
from fastomp_nvm.selection.honesty import definition
from fastomp_nvm.stores.builders import READ_TARGET
from fastomp_nvm.stores.contract import FeatureStore

__all__ = ["Protection", "add_protected_arguments", "protection", "show_fairness"]


class Protection(TypedDict):
    """Keyword arguments of ``select``, ``grid`` and ``cross_validate`` about protected attributes."""

    protected: object
    keep_protected: bool
    bootstrap: int | None


def add_protected_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the protected attributes and what to do with them."""
    parser.add_argument(
        "--protected",
        metavar="COL|FILE,...",
        help="targets, features (then not selected) or files with groups to report fairness for, and for their intersection; "
        "./FILE forces a file (default: none)",
    )
    parser.add_argument("--keep-protected", action="store_true", help="let features of --protected be selected")
    parser.add_argument(
        "--bootstrap",
        type=int,
        metavar="N",
        help="replicates behind the intervals of --protected, 0 for none (default 1000, fewer for many observations)",
    )


def protection(arguments: argparse.Namespace, store: FeatureStore) -> Protection:
    """Return the protected attributes, by name or as the values of files."""
    given = arguments.protected
    if given is None:
        return {"protected": None, "keep_protected": arguments.keep_protected, "bootstrap": arguments.bootstrap}
    whole = _is_name(given, store) or os.path.isfile(given)
    parts = [given] if whole else [part.strip() for part in given.split(",")]
    if len(set(parts)) < len(parts):
        raise RequestError(f"--protected {given!r} names an attribute twice: name each once")
    protected = {part: part if _is_name(part, store) else _read(part, store) for part in parts}
    return {"protected": protected, "keep_protected": arguments.keep_protected, "bootstrap": arguments.bootstrap}


def show_fairness(report: FairnessReport) -> None:
    """Print a fairness report for a person."""
    console = Screen()
    for place, groups in enumerate(report.attributes):
        _show_groups(console, groups, report, defined=place == 0)
    if report.process_unfairness is not None:
        console.print(f"process unfairness {report.process_unfairness:.4g} ({definition('process_unfairness')})")
    if report.replicates:
        console.print(report.intervals_in_words(), soft_wrap=True)
    for proxy in report.strongest_proxies():
        console.print(proxy.sentence(), soft_wrap=True)


def _show_groups(console: Screen, groups: GroupReport, report: FairnessReport, *, defined: bool) -> None:
    """Print the figures of the groups of an attribute, and their differences, with definitions where ``defined``."""
    table = Table(title=f"groups of {clean(groups.attribute)}, {EVALUATED_ON[report.evaluated_on]}")
    table.add_column("group", overflow="fold")
    for figure in groups.figures:
        table.add_column(named(figure), justify="right")
    for label, figures in groups.groups.items():
        table.add_row(clean(label), *map(figure_in_words, figures.values()))
    console.print(table)
    for name, value in groups.differences.items():
        interval = groups.difference_intervals.get(name)
        between = "" if interval is None else f" [{interval[0]:.4g}, {interval[1]:.4g}]"
        shown = "undefined" if value is None else f"{value:.4g}{between}"
        console.print(f"{named(name)} {shown}" + (f" ({definition(name)})" if defined else ""), soft_wrap=True)
    for sentence in groups.sentences():
        console.print(sentence, soft_wrap=True)


def _is_name(name: str, store: FeatureStore) -> bool:
    """Return whether the store has a target or feature of this name."""
    return name in store.targets or name in store.names


def _read(name: str, store: FeatureStore) -> object:
    """Return the values of a file."""
    if os.path.isfile(name):
        return READ_TARGET.load()(name, store.layout.n_obs)[1]
    hint = near(name, [*store.targets, *store.names])
    raise RequestError(f"--protected {name!r} is neither a target, nor a feature, nor a file{hint}: name one of these")
