"""``fastomp resume NAME``: go on with a run where it stopped, here or on a server, or print the result of a finished one."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence

from fastomp_nvm.cli.cluster_argument import add_ray_argument, refuse_settings_of_sweeps
from fastomp_nvm.cli.commands.select import show_selection
from fastomp_nvm.cli.output import run_progress
from fastomp_nvm.cli.remote_arguments import add_connection_arguments, connected
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import InfeasibleError, InputError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.runs.drive import registration, resume
from fastomp_nvm.selection.result import Selection

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", help="name given with select --run")
    parser.add_argument("store", nargs="?", metavar="URL", help="the server it is on: grpc://host:port, mcas://host:port/pool")
    add_ray_argument(parser)
    parser.add_argument("--other-build", action="store_true", help="go on with another kernel, BLAS or NumPy; the result says so")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a sweep; the answer does not depend on it")
    parser.add_argument("--allow-infeasible", action="store_true", help="exit 0 even if the answer breaks the constraint")
    parser.add_argument("--json", action="store_true", help="print one JSON object (of many requests a list) and nothing else")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Resume and print."""
    if arguments.store is None:
        refuse_settings_of_sweeps(registration(arguments.name).store, arguments)
    with run_progress("resume") as observer:
        if arguments.store is not None:
            selections = _resume_remotely(arguments, observer)
        else:
            options = {"other_build": arguments.other_build, "threads": arguments.threads}
            selections = [resume(arguments.name, observer=observer, **options)]
    if arguments.json:
        found = [selection.to_json() for selection in selections]
        print(json.dumps(found[0] if len(found) == 1 else found, allow_nan=False))
    else:
        for selection in selections:
            show_selection(selection)
            for difference in selection.details.get("other_build", ()):
                print(f"finished with another numeric build: {difference}")
    broken = [violation for selection in selections for violation in selection.violations]
    if broken and not arguments.allow_infeasible:
        print(f"fastomp: the answer breaks the constraint: {'; '.join(broken)}", file=sys.stderr)
        return InfeasibleError.exit_code
    return 0


def _resume_remotely(arguments: argparse.Namespace, observer: Observer | None) -> Sequence[Selection]:
    """Have a server go on with a job that failed or was cancelled, and wait for the answers of any."""
    if not is_remote(arguments.store):
        raise InputError(f"{arguments.store!r} is no server: expected grpc://host:port or the like, or nothing for this machine")
    if arguments.other_build or arguments.threads is not None:
        raise InputError("--other-build and --threads are for runs of this machine, and this one is on a server: leave them out")
    with connected(arguments) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an infeasible answer is told by the caller, once
        client.resume(arguments.name)
        return client.result(arguments.name, observer=observer)
