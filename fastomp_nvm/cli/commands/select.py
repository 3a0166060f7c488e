"""``fastomp select STORE``: select features and refit a model on them."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import warnings
from typing import TYPE_CHECKING

from fastomp_nvm.cli.arguments import (
    add_allow_infeasible_argument,
    add_connection_arguments,
    add_replace_argument,
    add_request_arguments,
    add_store_arguments,
    connected,
    opened_request,
)
from fastomp_nvm.cli.fairness import add_protected_arguments, protection, show_fairness
from fastomp_nvm.cli.output import run_progress
from fastomp_nvm.cli.results import infeasible, show_selection
from fastomp_nvm.cli.servers import add_detach_argument, detached, remote_request
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import InputError, RequestError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.runs.select import select
from fastomp_nvm.selection.result import Selection

if TYPE_CHECKING:
    from fastomp_nvm.remote.client import Client

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_store_arguments(parser)
    add_request_arguments(parser)
    parser.add_argument(
        "--run",
        dest="run_name",
        metavar="NAME",
        help="make it a durable run, which 'resume NAME' continues ('resume NAME URL' for one on a server; default: not durable)",
    )
    parser.add_argument("--save", metavar="MODEL.json", help="write the model to a file, which 'predict' reads (default: none)")
    add_replace_argument(parser)
    add_protected_arguments(parser)
    add_allow_infeasible_argument(parser)
    add_connection_arguments(parser)
    add_detach_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Select and print."""
    if arguments.save is not None and os.path.lexists(arguments.save) and not arguments.replace:
        raise InputError(f"{arguments.save} exists: choose another name or ask to replace it (--replace)")
    if arguments.detach:
        detached(arguments, lambda client: _submit(client, arguments))
        return 0
    with run_progress("select", arguments.progress) as observer, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # violations are printed below
        selection = (_select_remotely if is_remote(arguments.store) else _select)(arguments, observer)
    if arguments.save is not None:
        selection.save(arguments.save, replace=arguments.replace)
    if arguments.json:
        print(json.dumps(selection.to_json(), allow_nan=False))
    else:
        show_selection(selection)
        if selection.fairness is not None:
            show_fairness(selection.fairness)
        if arguments.run_name is not None:
            print(_next_commands(arguments))
    return 0 if selection.feasible or arguments.allow_infeasible else infeasible(selection.violations)


def _select(arguments: argparse.Namespace, observer: Observer | None) -> Selection:
    """Select from a store of this machine."""
    if arguments.run_name is not None:
        if arguments.protected is not None:
            raise RequestError("--run cannot report on --protected: leave one of the two out")
        if arguments.io is not None:
            raise RequestError(f"--run reads as --io auto does, so that it can be resumed anywhere: leave --io {arguments.io} out")
    with opened_request(arguments) as request:
        return select(
            request.store,
            request.response,
            observer=observer,
            run=arguments.run_name,
            **protection(arguments, request.store),
            **request.reading,
            **request.fields,
        )


def _next_commands(arguments: argparse.Namespace) -> str:
    """Return what to type to see or use the result of a durable run again."""
    name = shlex.quote(arguments.run_name)
    if is_remote(arguments.store):
        return f"kept on the server: 'fastomp resume {name} {shlex.quote(arguments.store)}' prints it again"
    return f"kept: 'fastomp resume {name}' prints it again, 'fastomp export {name} {name}.csv' writes the selected columns"


def _select_remotely(arguments: argparse.Namespace, observer: Observer | None) -> Selection:
    """Select on a server."""
    with connected(arguments) as client:
        arguments.job = _submit(client, arguments)  # Ctrl-C names it
        return client.result(arguments.job, observer=observer)[0]


def _submit(client: Client, arguments: argparse.Namespace) -> str:
    """Submit the job that the arguments describe and return its name."""
    fields, values = remote_request(client, arguments)
    return client.submit(values, run=arguments.run_name, verify=arguments.verify, **fields)
