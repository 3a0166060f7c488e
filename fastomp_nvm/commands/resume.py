"""``fastomp resume NAME``: go on with a run where it stopped, or print the result of a finished one."""

from __future__ import annotations

import argparse
import json
import sys

from fastomp_nvm.commands.cluster_argument import add_ray_argument, refuse_settings_of_sweeps
from fastomp_nvm.commands.select import show_selection
from fastomp_nvm.display import run_progress
from fastomp_nvm.durable_runs import registration, resume
from fastomp_nvm.errors import InfeasibleError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", help="name given with select --run")
    add_ray_argument(parser)
    parser.add_argument("--other-build", action="store_true", help="go on with another kernel, BLAS or NumPy; the result says so")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a sweep; the answer does not depend on it")
    parser.add_argument("--allow-infeasible", action="store_true", help="exit 0 even if the answer breaks the constraint")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Resume and print."""
    refuse_settings_of_sweeps(registration(arguments.name).store, arguments)
    with run_progress("resume") as observer:
        selection = resume(arguments.name, other_build=arguments.other_build, threads=arguments.threads, observer=observer)
    if arguments.json:
        print(json.dumps(selection.to_json(), allow_nan=False))
    else:
        show_selection(selection)
        for difference in selection.details.get("other_build", ()):
            print(f"finished with another numeric build: {difference}")
    if not selection.feasible and not arguments.allow_infeasible:
        print(f"fastomp: the answer breaks the constraint: {'; '.join(selection.violations)}", file=sys.stderr)
        return InfeasibleError.exit_code
    return 0
