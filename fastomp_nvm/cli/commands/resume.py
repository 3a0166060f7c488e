"""``fastomp resume NAME``: continue a run where it stopped, here or on a server, or print the result of a finished one."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Sequence

from fastomp_nvm.analysis.cross_validation import CrossValidation
from fastomp_nvm.analysis.grid import Grid
from fastomp_nvm.analysis.path import SelectionPath
from fastomp_nvm.analysis.wire import Result, selections_of
from fastomp_nvm.cli.arguments import (
    add_allow_infeasible_argument,
    add_connection_arguments,
    add_json_argument,
    add_ray_argument,
    add_replace_argument,
    add_threads_argument,
    connected,
    refuse_sweep_settings,
)
from fastomp_nvm.cli.commands import cv, grid, path, stability, verify
from fastomp_nvm.cli.output import add_progress_argument, run_progress
from fastomp_nvm.cli.results import infeasible, show_selection
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import InputError, RequestError
from fastomp_nvm.runs.drive import registration, resume
from fastomp_nvm.selection.recheck import Verification
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.stores.verification import StoreVerification

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", help="name given with select --run")
    parser.add_argument(
        "store",
        nargs="?",
        metavar="URL",
        help="the server it is on: grpc://host:port, mcas://host:port/pool (default: this machine)",
    )
    add_ray_argument(parser)
    parser.add_argument("--other-build", action="store_true", help="allow another kernel, BLAS or NumPy; the result says so")
    parser.add_argument("--save", metavar="MODEL.json", help="write the model to a file, which 'predict' reads (default: none)")
    add_replace_argument(parser)
    add_threads_argument(parser)
    add_allow_infeasible_argument(parser)
    add_json_argument(parser)
    add_progress_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Resume, print and save."""
    if arguments.save is not None and os.path.lexists(arguments.save) and not arguments.replace:
        raise InputError(f"{arguments.save} exists: choose another name or ask to replace it (--replace)")
    if arguments.store is None:
        refuse_sweep_settings(registration(arguments.name).store, arguments)
    with run_progress("resume", arguments.progress) as observer:
        if arguments.store is not None:
            found = _resume_remotely(arguments, observer)
        else:
            options = {"other_build": arguments.other_build, "threads": arguments.threads}
            found = [resume(arguments.name, observer=observer, **options)]
    selections = found if isinstance(found, Sequence) else selections_of(found)
    if arguments.save is not None:
        if len(selections) != 1:
            raise RequestError(f"{arguments.name!r} has {len(selections)} answers, and --save writes one model: leave it out")
        selections[0].save(arguments.save, replace=arguments.replace)
    if not isinstance(found, Sequence):
        return _show_result(found, arguments)
    if arguments.json:
        printed = [selection.to_json() for selection in selections]
        print(json.dumps(printed[0] if len(printed) == 1 else printed, allow_nan=False))
    else:
        for selection in selections:
            show_selection(selection)
            for difference in selection.other_build or ():
                print(f"finished with another numeric build: {difference}")
    broken = [violation for selection in selections for violation in selection.violations]
    return 0 if not broken or arguments.allow_infeasible else infeasible(broken)


def _resume_remotely(arguments: argparse.Namespace, observer: Observer | None) -> Sequence[Selection] | Result:
    """Have a server continue a job that failed or was cancelled, and return the result of the job once it has ended."""
    if arguments.other_build or arguments.threads is not None:
        raise InputError("--other-build and --threads are for runs of this machine, and this one is on a server: leave them out")
    with connected(arguments) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # violations are printed by the caller
        client.resume(arguments.name)
        return client.fetch(arguments.name, observer=observer)


def _show_result(found: Result, arguments: argparse.Namespace) -> int:
    """Print the result of an analysis as its command does; return the exit code."""
    as_json = bool(arguments.json)
    if isinstance(found, SelectionPath):
        return path.show(found, as_json=as_json, allow_infeasible=arguments.allow_infeasible)
    if isinstance(found, StoreVerification | Verification):
        if not as_json:
            return verify.show(found)
        print(json.dumps(found.to_json()))
    elif isinstance(found, Grid):
        grid.show(found, as_json=as_json)
    elif isinstance(found, CrossValidation):
        cv.show(found, as_json=as_json)
    else:
        stability.show(found, as_json=as_json)
    return 0
