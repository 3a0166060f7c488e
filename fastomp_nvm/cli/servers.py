"""Stores on a server in the shell: requests to it, jobs that run there, detached or waited for."""

from __future__ import annotations

import argparse
import json
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastomp_nvm.analysis.wire import ANALYSES, Result, selections_of
from fastomp_nvm.cli.arguments import add_connection_arguments, connected, opened_request, request_fields
from fastomp_nvm.cli.output import run_progress
from fastomp_nvm.errors import InputError, RequestError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.selection.request import RequestFields
from fastomp_nvm.selection.result import Selection

if TYPE_CHECKING:
    from fastomp_nvm.remote.client import Client

__all__ = ["add_detach_argument", "add_job_arguments", "analysed", "as_selections", "detached", "only_selection", "remote_request"]

#: Options that concern this machine, and what to do instead on a server.
_LOCAL_ONLY = {
    "threads": "leave it out, and start the server with 'fastomp serve --threads N' where its own choice will not do",
    "load": "leave it out, and keep the server's pools on a tmpfs ('fastomp serve --pools') where they shall be in memory",
    "check": "leave it out, the server compares columns when it first reads them",
    "tier_load": "leave it out, the server reads the tier through its own page cache",
    "io": "leave it out, the server chooses how it reads its own files",
    "protected": "leave it out, and report on the selection where the data is: run this command there on the store's path",
}


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the connection to a server, and the job of an analysis there."""
    parser.add_argument(
        "--run",
        dest="run_name",
        metavar="NAME",
        help="as for select, but on a server alone: name of the job, for 'resume NAME URL'",
    )
    add_detach_argument(parser)
    add_connection_arguments(parser)


def add_detach_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--detach``."""
    parser.add_argument(
        "--detach", action="store_true", help="on a server: submit the job, print its name and do not wait; 'resume NAME URL' does"
    )


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
            return ANALYSES[kind].run(
                request.store, request.response, observer=observer, **options, **request.reading, **request.fields
            )


def detached(arguments: argparse.Namespace, submit: Callable[[Client], str]) -> None:
    """Submit a job to a server and print its name."""
    if not is_remote(arguments.store):
        raise InputError(f"--detach is for stores on a server, and {arguments.store} is on this machine: leave it out")
    for name, content in (("save", "model"), ("plot", "picture")):
        if getattr(arguments, name, None) is not None:
            raise InputError(f"--detach does not wait for the {content} of --{name}: leave one of the two out")
    with connected(arguments) as client:
        job = submit(client)
    if arguments.json:
        print(json.dumps({"job": job}))
    else:
        place = shlex.quote(arguments.store)
        print(f"{job}\n'fastomp resume {job} {place}' waits for its answer, 'fastomp runs {place}' shows its progress")


def remote_request(client: Client, arguments: argparse.Namespace) -> tuple[RequestFields, object]:
    """Return the fields of a request on a server's store, and the response if it is in a file; refuse options of this machine."""
    for name, advice in _LOCAL_ONLY.items():
        if getattr(arguments, name, None) is not None:
            raise InputError(f"--{name.replace('_', '-')} is for stores on this machine, and this one is on a server: {advice}")
    return request_fields(arguments, lambda name: bool(client.info(name=name)["has_name"]), lambda: int(client.info()["n_obs"]))


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
