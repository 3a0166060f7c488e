"""Requests to stores on a server in the shell, waited for or detached."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastomp_nvm.cli.arguments import connected, request_fields
from fastomp_nvm.errors import InputError
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.selection.request import RequestFields

if TYPE_CHECKING:
    from fastomp_nvm.remote.client import Client

__all__ = ["add_detach_argument", "detached", "remote_request"]

#: Options that concern this machine, and what to do instead on a server.
_LOCAL_ONLY = {
    "threads": "leave it out, and start the server with 'fastomp serve --threads N' where its own choice will not do",
    "load": "leave it out, and keep the server's pools on a tmpfs ('fastomp serve --pools') where they shall be in memory",
    "check": "leave it out, the server compares columns when it first reads them",
    "tier_load": "leave it out, the server reads the tier through its own page cache",
    "io": "leave it out, the server chooses how it reads its own files",
    "maf": "leave it out, a server has no genotypes in place",
    "missing_rate": "leave it out, a server has no genotypes in place",
    "bootstrap": "leave it out, it is about the report of --protected",
    "protected": "leave it out, and report on the selection where the data is: run this command there on the store's path",
}


def add_detach_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--detach``."""
    parser.add_argument(
        "--detach", action="store_true", help="on a server: submit the job, print its name and do not wait; 'resume NAME URL' does"
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
