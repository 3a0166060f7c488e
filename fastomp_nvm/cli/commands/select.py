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
    request_fields,
)
from fastomp_nvm.cli.output import run_progress
from fastomp_nvm.cli.results import infeasible, show_fairness, show_selection
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import InputError, RequestError, near
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.runs.select import select
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.stores.builders import READ_TARGET
from fastomp_nvm.stores.contract import FeatureStore

if TYPE_CHECKING:
    from fastomp_nvm.remote.client import Client

__all__ = ["add_arguments", "run"]

#: Options that concern this machine, and what to do instead on a server.
_LOCAL_ONLY = {
    "threads": "leave it out, and start the server with 'fastomp serve --threads N' where its own choice will not do",
    "load": "leave it out, and keep the server's pools on a tmpfs ('fastomp serve --pools') where they shall be in memory",
    "check": "leave it out, the server compares columns when it first reads them",
    "tier_load": "leave it out, the server reads the tier through its own page cache",
    "io": "leave it out, the server chooses how it reads its own files",
    "maf": "leave it out, a server has no genotypes in place",
    "missing_rate": "leave it out, a server has no genotypes in place",
    "protected": "leave it out, and report on the selection where the data is: run this command there on the store's path",
}


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
    parser.add_argument(
        "--protected",
        metavar="COL|FILE",
        help="target, feature (then not selected) or file with groups to report fairness for; ./FILE forces a file (default: none)",
    )
    parser.add_argument("--keep-protected", action="store_true", help="let the feature of --protected be selected")
    add_allow_infeasible_argument(parser)
    add_connection_arguments(parser)
    parser.add_argument(
        "--detach", action="store_true", help="on a server: submit the job, print its name and do not wait; 'resume NAME URL' does"
    )


def run(arguments: argparse.Namespace) -> int:
    """Select and print."""
    if arguments.save is not None and os.path.lexists(arguments.save) and not arguments.replace:
        raise InputError(f"{arguments.save} exists: choose another name or ask to replace it (--replace)")
    if arguments.detach:
        return _detach(arguments)
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
            protected=None if arguments.protected is None else _protected(arguments.protected, request.store),
            keep_protected=arguments.keep_protected,
            **request.reading,
            **request.fields,
        )


def _next_commands(arguments: argparse.Namespace) -> str:
    """Return what to type to see or use the result of a durable run again."""
    name = shlex.quote(arguments.run_name)
    if is_remote(arguments.store):
        return f"kept on the server: 'fastomp resume {name} {shlex.quote(arguments.store)}' prints it again"
    return f"kept: 'fastomp resume {name}' prints it again, 'fastomp export {name} {name}.csv' writes the selected columns"


def _protected(name: str, store: FeatureStore) -> object:
    """Return the protected attribute, by name or as the values of a file."""
    if name in store.targets or name in store.names:
        return name
    if os.path.isfile(name):
        return READ_TARGET.load()(name, store.layout.n_obs)[1]
    hint = near(name, [*store.targets, *store.names])
    raise RequestError(f"--protected {name!r} is neither a target, nor a feature, nor a file{hint}: name one of these")


def _detach(arguments: argparse.Namespace) -> int:
    """Submit a job to a server and print its name."""
    if not is_remote(arguments.store):
        raise InputError(f"--detach is for stores on a server, and {arguments.store} is on this machine: leave it out")
    if arguments.save is not None:
        raise InputError("--detach does not wait for the model of --save: leave one of the two out")
    with connected(arguments) as client:
        job = _submit(client, arguments)
    if arguments.json:
        print(json.dumps({"job": job}))
    else:
        place = shlex.quote(arguments.store)
        print(f"{job}\n'fastomp resume {job} {place}' waits for its answer, 'fastomp runs {place}' shows its progress")
    return 0


def _select_remotely(arguments: argparse.Namespace, observer: Observer | None) -> Selection:
    """Select on a server."""
    with connected(arguments) as client:
        arguments.job = _submit(client, arguments)  # Ctrl-C names it
        return client.result(arguments.job, observer=observer)[0]


def _submit(client: Client, arguments: argparse.Namespace) -> str:
    """Submit the job that the arguments describe and return its name."""
    for name, advice in _LOCAL_ONLY.items():
        if getattr(arguments, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} is for stores on this machine, and this one is on a server: {advice}")
    fields, values = request_fields(
        arguments, lambda name: bool(client.info(name=name)["has_name"]), lambda: int(client.info()["n_obs"])
    )
    return client.submit(values, run=arguments.run_name, verify=arguments.verify, **fields)
