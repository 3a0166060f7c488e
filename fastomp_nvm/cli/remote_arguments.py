"""What commands do when the store or the run is on a server: the same arguments, the same output."""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

from fastomp_nvm.constraints.written.side_files import read_inlined
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import InputError
from fastomp_nvm.remote.client import Client, connect
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.stores.builders import READ_TARGET

__all__ = ["add_connection_arguments", "connected", "select_remotely"]

#: Arguments of ``select`` that are about this machine, and what to do instead on a server.
_LOCAL_ONLY = {
    "threads": "leave it out, and start the server with 'fastomp serve --threads N' where its own choice will not do",
    "load": "leave it out, and keep the server's pools on a tmpfs ('fastomp serve --pools') where they shall be in memory",
    "tier_load": "leave it out, the server reads the tier through its own page cache",
    "io": "leave it out, the server chooses how it reads its own files",
    "protected": "leave it out, and report on the selection where the data is: run this command there on the store's path",
}


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that a server needs."""
    group = parser.add_argument_group("stores on a server (grpc://host:port/pool/key, grpc+tls://..., mcas://...)")
    group.add_argument("--token-file", type=Path, metavar="F", help="file with the token; otherwise FASTOMP_TOKEN")
    group.add_argument(
        "--tls-ca", type=Path, metavar="F", help="authority of the server's certificate, PEM; otherwise FASTOMP_TLS_CA"
    )
    group.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="seconds without an answer that mean failure (default 30)"
    )
    group.add_argument("--insecure", action="store_true", help="send the token in clear to another machine")


def connected(arguments: argparse.Namespace) -> Client:
    """Connect to the server that the command names."""
    token = None
    if arguments.token_file is not None:
        try:
            token = arguments.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the token file {arguments.token_file} cannot be read: {error}") from error
    return connect(arguments.store, token=token, tls_ca=arguments.tls_ca, timeout=arguments.timeout, insecure=arguments.insecure)


def select_remotely(arguments: argparse.Namespace, fields: dict[str, Any], observer: Observer | None) -> Selection:
    """Send the request of ``select`` to the server; ``fields`` are those that need no data."""
    for name, advice in _LOCAL_ONLY.items():
        if getattr(arguments, name, None) is not None:
            raise InputError(f"--{name.replace('_', '-')} is for stores on this machine, and this one is on a server: {advice}")
    if arguments.constraints is not None:
        fields["constraint"] = read_inlined(Path(arguments.constraints))
    values, target = None, arguments.target
    with connected(arguments) as client:
        # A name on the server wins over a file of that name; ./FILE forces the file.
        if target is not None and os.path.isfile(target) and not client.info(name=target)["has_name"]:
            read = READ_TARGET.load()
            _, values = read(target, client.info()["n_obs"])
            target = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an infeasible answer is told by the caller, once
            return client.select(
                values, run=arguments.run_name, verify=arguments.verify, observer=observer, target=target, **fields
            )
