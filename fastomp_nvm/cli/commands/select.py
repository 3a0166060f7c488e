"""``fastomp select STORE``: select features and refit a model on them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.parse
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fastomp_nvm.algorithms.certificate import certificate_in_words
from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.analysis.group_fairness import FairnessReport, fairness_report
from fastomp_nvm.cli.cluster_argument import add_ray_argument, refuse_settings_of_sweeps
from fastomp_nvm.cli.output import clean, human_bytes, human_seconds, run_progress
from fastomp_nvm.cli.remote_arguments import add_connection_arguments, select_remotely
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import InfeasibleError, RequestError
from fastomp_nvm.matrix.reader import WAYS
from fastomp_nvm.objectives.table import OBJECTIVES
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import select
from fastomp_nvm.stores.builders import READ_TARGET
from fastomp_nvm.stores.open import open_store

__all__ = [
    "add_arguments",
    "add_request_arguments",
    "add_store_arguments",
    "opened_dataset",
    "request_fields",
    "run",
    "show_fairness",
    "show_selection",
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_arguments(parser)
    add_request_arguments(parser)
    parser.add_argument(
        "--run",
        dest="run_name",
        metavar="NAME",
        help="make it a durable run, which 'resume NAME' continues ('resume NAME URL' for one on a server)",
    )
    parser.add_argument(
        "--protected",
        metavar="COL|FILE",
        help="target, feature or file with groups to report fairness for; a feature is then not selected; ./FILE forces a file",
    )
    parser.add_argument("--keep-protected", action="store_true", help="let the feature of --protected be selected")
    parser.add_argument("--allow-infeasible", action="store_true", help="exit 0 even if the answer breaks the constraint")
    add_connection_arguments(parser)


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say where the data is and how to go about it."""
    parser.add_argument("store", metavar="STORE", help="store URL or path")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a sweep; the answer does not depend on it")
    parser.add_argument("--load", choices=("dram",), help="copy the store into memory first")
    parser.add_argument(
        "--tier-load",
        metavar="dram|DIR",
        help="copy the int8 tier, and nothing else, into memory first, or into a file of DIR, which is used again the next time",
    )
    parser.add_argument(
        "--io",
        choices=WAYS,
        help="how to read files colder than memory: direct (past the page cache), mmap, or auto; the answer does not depend on it",
    )
    parser.add_argument("--verify", action="store_true", help="check every block against its checksum first")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    add_ray_argument(parser)


def add_request_arguments(parser: argparse.ArgumentParser, several: Collection[str] = ()) -> None:
    """Declare the arguments that describe a selection; those named in ``several`` take comma-separated values."""

    def kind(name: str, convert: Callable[[str], Any]) -> Callable[[str], Any]:
        return _listed(convert) if name in several else convert

    parser.add_argument(
        "--k", type=kind("k", int), metavar="K", help="most features to select (may be left out if the constraint bounds it)"
    )
    parser.add_argument("--algorithm", default="fast_omp", help=f"one of {', '.join(ALGORITHMS)} (default fast_omp)")
    parser.add_argument("--objective", default="linear", help=f"one of {', '.join(OBJECTIVES)} (default linear)")
    parser.add_argument("--constraints", metavar="FILE.yaml", help="constraint file; see the published schema")
    parser.add_argument("--target", metavar="NAME|FILE", help="which target, feature or file is the response; ./FILE forces a file")
    parser.add_argument(
        "--epsilon", type=kind("epsilon", float), default=0.1, help="accuracy: about 1/epsilon passes (default 0.1)"
    )
    parser.add_argument(
        "--tau",
        type=kind("tau", _tau),
        default=0.5,
        help="the m/M of the threshold: higher is choosier (default 0.5); auto tries several in the same sweeps, keeps the best",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random sequences (default 0)")
    parser.add_argument("--until", default="paper", help="paper: at most ceil(1/epsilon) outer iterations; full: until maximal")
    parser.add_argument("--polish", default="pool", help="pool: exact greedy over the gathered columns, better set kept; none")
    parser.add_argument(
        "--skip-weak", action="store_true", help="pass over sequence elements that fell below the threshold (variant)"
    )
    parser.add_argument(
        "--certificate", action="store_true", help="bound how far from the optimum the answer can be, by one more pass"
    )
    parser.add_argument(
        "--lambda-min", type=float, metavar="X", help="smallest eigenvalue that the certificate may take for granted"
    )
    parser.add_argument(
        "--ridge", type=kind("ridge", float), help="penalty on squared standardised coefficients (linear 0, GLMs 1e-4)"
    )
    parser.add_argument("--test-fraction", type=float, metavar="F", help="hold out this share of observations and score on them")
    parser.add_argument("--tier", default="auto", help="what full passes read: int8, exact, or auto; the answer is the same")
    parser.add_argument("--no-standardize", action="store_true", help="take the columns as they are, without intercept")


def _tau(text: str) -> float | str:
    """Read a number or ``auto``."""
    return "auto" if text == "auto" else float(text)


_tau.__name__ = "number or auto"  # argparse names it in its error


def _listed(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return what reads comma-separated values of a kind."""

    def values(text: str) -> list[Any]:
        return [convert(part) for part in text.split(",")]

    values.__name__ = f"comma-separated {convert.__name__.strip('_')}"  # argparse names it in its error
    return values


def _with_tier_place(arguments: argparse.Namespace) -> str:
    """Return the URL of the store, which says where its tier is read from unless that is beside the matrix or in memory."""
    store: str = arguments.store
    if arguments.tier_load in (None, "dram"):
        return store
    if "://" not in store:
        store = f"mmap://{urllib.parse.quote(os.path.abspath(store))}"
    return f"{store}{'&' if '?' in store else '?'}tier={urllib.parse.quote(os.path.abspath(arguments.tier_load))}"


@contextmanager
def opened_dataset(arguments: argparse.Namespace) -> Iterator[Dataset]:
    """Open the store of the command, verified and loaded into memory when asked for."""
    refuse_settings_of_sweeps(arguments.store, arguments)
    with open_store(_with_tier_place(arguments)) as store:
        if arguments.verify:
            store.verify()
        if arguments.tier_load == "dram" or (arguments.load == "dram" and store.tier is not None):
            store.load_tier()
        dataset = Dataset.of_store(store, arguments.io or "auto")
        yield dataset.loaded(store.url) if arguments.load == "dram" else dataset


def _plain_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the request that need no data."""
    fields: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("k", "algorithm", "objective", "epsilon", "tau", "seed", "until", "polish", "ridge", "test_fraction")
    }
    fields |= {name: getattr(arguments, name) for name in ("skip_weak", "certificate", "lambda_min", "tier")}
    fields["standardize"] = not arguments.no_standardize
    return fields


def request_fields(arguments: argparse.Namespace, dataset: Dataset) -> tuple[dict[str, Any], Any]:
    """Return the fields of the request and, when the target is a file, its values."""
    fields = _plain_fields(arguments)
    if arguments.constraints is not None:
        from fastomp_nvm.constraints.written.description import read_constraint as read

        fields["constraint"] = read(Path(arguments.constraints), dataset.names, usable=dataset.design().standardisation.usable())
    target, values = arguments.target, None
    if target is not None and not (target in dataset.targets or target in dataset.names) and os.path.isfile(target):
        _, values = READ_TARGET.load()(target, dataset.n_obs)
        target = None
    fields["target"] = target
    return fields, values


def _protected(arguments: argparse.Namespace, dataset: Dataset, fields: dict[str, Any]) -> Any:
    """Return the protected attribute, by name or as the values of a file; a feature is excluded from the request ``fields``."""
    name = arguments.protected
    if name is None or name in dataset.targets:
        return name
    if name in dataset.names:
        if not arguments.keep_protected:
            fields["exclude"] = [name]
        return name
    if os.path.isfile(name):
        return READ_TARGET.load()(name, dataset.n_obs)[1]
    raise RequestError(f"--protected {name!r} is neither a target, nor a feature, nor a file: name one of these")


def _select(arguments: argparse.Namespace) -> tuple[Selection, FairnessReport | None]:
    """Select where the data is."""
    if is_remote(arguments.store):
        with run_progress("select") as observer:
            return select_remotely(arguments, _plain_fields(arguments), observer), None
    if arguments.run_name is not None:
        return _select_durably(arguments), None
    with opened_dataset(arguments) as dataset, run_progress("select") as observer, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an infeasible answer is told below, once
        fields, values = request_fields(arguments, dataset)
        protected = _protected(arguments, dataset, fields)
        selection = select(dataset, values, threads=arguments.threads, observer=observer, **fields)
        report = None
        if protected is not None:
            report = fairness_report(selection, dataset, values, protected, constraint=fields.get("constraint"))
    return selection, report


def _select_durably(arguments: argparse.Namespace) -> Selection:
    """Select as a durable run."""
    if arguments.protected is not None:
        raise RequestError("--run cannot report on --protected: leave one of the two out")
    if arguments.io is not None:
        raise RequestError(f"--run reads as --io auto does, so that it can be resumed anywhere: leave --io {arguments.io} out")
    refuse_settings_of_sweeps(arguments.store, arguments)
    from fastomp_nvm.runs.drive import start

    with open_store(_with_tier_place(arguments)) as store, run_progress("select") as observer, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an infeasible answer is told by the caller, once
        fields, values = request_fields(arguments, Dataset.of_store(store))
        fields.pop("constraint", None)  # the run keeps the file's text
        file = None if arguments.constraints is None else Path(arguments.constraints)
        load = arguments.load or ("tier" if arguments.tier_load == "dram" else None)
        options = {"constraint_file": file, "load": load, "verify": arguments.verify, "threads": arguments.threads}
        selection: Selection = start(arguments.run_name, store, values, observer=observer, **options, **fields)
    return selection


def run(arguments: argparse.Namespace) -> int:
    """Select and print."""
    selection, report = _select(arguments)
    result = selection.to_json()
    if report is not None:
        result["fairness"] = report.to_json()
    result["verified"] = bool(arguments.verify)
    if arguments.json:
        print(json.dumps(result, allow_nan=False))
    else:
        show_selection(selection)
        if report is not None:
            show_fairness(report)
    if not selection.feasible and not arguments.allow_infeasible:
        print(f"fastomp: the answer breaks the constraint: {'; '.join(selection.violations)}", file=sys.stderr)
        return InfeasibleError.exit_code
    return 0


def show_selection(selection: Selection) -> None:
    """Print a selection for a person."""
    console = Console(highlight=False, markup=False)
    table = Table(title=f"{len(selection.features)} features selected")
    table.add_column("#", justify="right")
    table.add_column("feature", overflow="fold")
    table.add_column("coefficient", justify="right")
    for place, (name, coef) in enumerate(zip(selection.features, selection.coef, strict=True)):
        shown = f"{coef[0]:.6g}" if len(coef) == 1 else f"{len(coef)} columns"
        table.add_row(str(place + 1), clean(name), shown)
    console.print(table)
    scale = "R^2" if selection.objective == "linear" else "mean log-likelihood"
    polished = f" ({selection.score_unpolished:.6g} before the polish)" if selection.polish != "none" else ""
    store = selection.store
    console.print(f"{scale} {selection.score:.6g}{polished}, intercept {selection.intercept:.6g}")
    if selection.details.get("test_score") is not None:
        console.print(f"{scale} {selection.test_score:.6g} on {selection.test_rows:,} observations held out")
    console.print(
        f"{selection.algorithm} on {selection.medium}: {selection.full_passes:.2f} passes over {store['n_features']:,} features, "
        f"{human_bytes(selection.bytes_read)} read, {selection.gradient_rounds} rounds, {human_seconds(selection.seconds)}"
    )
    estimated = selection.rank if selection.details.get("rank_estimated") else None
    if estimated is not None:
        console.print(
            f"the largest sets that the constraint allows were taken to have {estimated:,} features: an estimate by random draws"
        )
    if "tau_chosen" in selection.details:
        console.print(f"tau {selection.tau_chosen:g} was the best of those tried")
    if "certificate" in selection.details:
        console.print(certificate_in_words(selection.certificate, estimated))
    if "bytes_sent" in selection.details:
        console.print(f"{human_bytes(selection.bytes_sent)} sent to the shards, {human_bytes(selection.bytes_received)} received")
    if selection.medium == "pmem" and selection.emulated:
        console.print("persistent memory is emulated on this machine")


def show_fairness(report: FairnessReport) -> None:
    """Print a fairness report for a person."""
    console = Console(highlight=False, markup=False)
    observations = {"test": "observations held out", "all": "all observations", "given": "given observations"}
    table = Table(title=f"groups of the protected attribute, {observations[report.evaluated_on]}")
    table.add_column("group", overflow="fold")
    for column in next(iter(report.groups.values())):
        table.add_column(column.replace("_", " "), justify="right")
    for label, figures in report.groups.items():
        shown = ("-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}" for value in figures.values())
        table.add_row(clean(label), *shown)
    console.print(table)
    if report.outcome_fairness is not None:
        console.print(f"outcome fairness {report.outcome_fairness:.4g} (0 is even)")
    if report.process_unfairness is not None:
        console.print(f"process unfairness {report.process_unfairness:.4g} (share of people who object to a selected feature)")
