"""Grids, cross-validations and the like in the shell, of stores of this machine or as jobs on a server."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastomp_nvm.analysis.wire import ANALYSES, Result, selections_of
from fastomp_nvm.cli.arguments import add_connection_arguments, connected, opened_request
from fastomp_nvm.cli.fairness import protection
from fastomp_nvm.cli.output import run_progress
from fastomp_nvm.cli.servers import add_detach_argument, detached, remote_request
from fastomp_nvm.errors import InputError, RequestError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.selection.result import Selection

if TYPE_CHECKING:
    from fastomp_nvm.remote.client import Client

__all__ = ["add_job_arguments", "analysed", "as_selections", "only_selection"]


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the connection to a server, and the job of an analysis there."""
    parser.add_argument(
        "--run",
        dest="run_name",
        metavar="NAME",
        help="as for select, on a server alone: name of the job, for 'resume NAME URL' (default: random)",
    )
    add_detach_argument(parser)
    add_connection_arguments(parser)


def analysed(arguments: argparse.Namespace, kind: str, options: Mapping[str, Any]) -> Any:
    """Return the result of an analysis of a store, here or on a server; None where its job was detached.

    ``options`` are keyword arguments of the function in ``ANALYSES`` beside the store and the request.
    """

    def submit(client: Client) -> str:
        fields, response = remote_request(client, arguments)
        return client.submit_analysis(kind, response, options, run=arguments.run_name, verify=arguments.verify, **fields)

    if arguments.detach:
        return detached(arguments, submit)
    with run_progress(kind, arguments.progress) as observer, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the output shows which answers are feasible
        if is_remote(arguments.store):
            with connected(arguments) as client:
                arguments.job = submit(client)  # Ctrl-C names it
                return client.fetch(arguments.job, observer=observer)
        if arguments.run_name is not None:
            raise InputError(f"--run names a job on a server here, and {arguments.store} is on this machine: leave it out")
        with opened_request(arguments) as request:
            protected: Mapping[str, Any] = dict(protection(arguments, request.store)) if "protected" in arguments else {}
            return ANALYSES[kind].run(
                request.store,
                request.response,
                observer=observer,
                **options,
                **protected,
                **request.reading,
                **request.fields,
            )


def as_selections(name: str, found: Sequence[Selection] | Result) -> Sequence[Selection]:
    """Return the selections of the job ``name``; ``RequestError`` where it made none."""
    selections = found if isinstance(found, Sequence) else selections_of(found)
    if not selections:
        raise RequestError(f"the job {name!r} made no selection: 'fastomp resume' prints its result")
    return selections


def only_selection(name: str, client: Client) -> Selection:
    """Return the selection of a job on the server that has one."""
    selections = as_selections(name, client.fetch(name))
    if len(selections) != 1:
        raise RequestError(f"the job {name!r} has {len(selections)} selections: name one that has a single one")
    return selections[0]
