"""``fastomp token``: make, list and revoke the tokens of a server; the file holds their digests, never the tokens."""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from ado_plugin.service.access import ROLES, Principal, read_tokens, token_digest
from fastomp_nvm.cli.arguments import add_json_argument
from fastomp_nvm.durable_files import check_name, write_atomically
from fastomp_nvm.errors import InputError, MediumError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, help="what to do:")
    new = actions.add_parser(
        "new",
        help="make a token and print it, once",
        description="Make a token, add its digest to a file of tokens, and print it: it is kept nowhere else.",
    )
    revoke = actions.add_parser("revoke", help="remove a token", description="Remove the token of a name from the file.")
    known = actions.add_parser("list", help="list names, roles and pools", description="List the names in a file of tokens.")
    for each in (new, revoke):
        each.add_argument("name", metavar="NAME", help="the owner of the token, as logs and jobs name it")
    for each in (new, revoke, known):
        each.add_argument(
            "--token-file",
            type=Path,
            required=True,
            metavar="F",
            help="the file of 'fastomp serve --token-file'; a running server reads it again on SIGHUP",
        )
    new.add_argument("--role", choices=ROLES, default="read", help="read: select and predict; write: also upload; admin: all jobs")
    new.add_argument("--pools", metavar="A,B", help="pools it has access to (default: all)")
    add_json_argument(known)


def run(arguments: argparse.Namespace) -> int:
    """Carry out one of the actions."""
    actions = {"new": _new, "revoke": _revoke, "list": _list}
    return actions[arguments.action](arguments)


def _new(arguments: argparse.Namespace) -> int:
    """Add a token and print it."""
    path, name = arguments.token_file, check_name(arguments.name, "principal")
    pools = None if arguments.pools is None else frozenset(check_name(pool, "pool") for pool in arguments.pools.split(","))
    known = _known(path)
    if name in (principal.name for principal in known.values()):
        raise InputError(f"{path} has a token of {name!r} already: revoke it first, or choose another name")
    token = secrets.token_urlsafe(32)
    _write(path, {**known, token_digest(token): Principal(name, arguments.role, pools)})
    print(token)
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    """Remove a token."""
    known = _known(arguments.token_file)
    kept = {digest: principal for digest, principal in known.items() if principal.name != arguments.name}
    if len(kept) == len(known):
        raise InputError(f"{arguments.token_file} has no token of {arguments.name!r}: 'fastomp token list' shows the names")
    if not kept:
        raise InputError(
            f"{arguments.name!r} is the last name in {arguments.token_file}, and a server needs one: make another first"
        )
    _write(arguments.token_file, kept)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    """Print the names."""
    principals = list(_known(arguments.token_file).values())
    if arguments.json:
        print(json.dumps([_entry(principal) for principal in principals]))
    else:
        for principal in principals:
            pools = "all pools" if principal.pools is None else ", ".join(sorted(principal.pools))
            print(f"{principal.name}  {principal.role}  {pools}")
    return 0


def _known(path: Path) -> Mapping[str, Principal]:
    """Return the principals of a file by digest; none where there is no file."""
    if not path.exists():
        return {}
    known = read_tokens(path)
    if "sha256" not in path.read_text(encoding="utf-8"):
        raise InputError(f"{path} holds one token in clear, not a list: choose another file for the list")
    return known


def _entry(principal: Principal) -> dict[str, object]:
    """Return an entry of the file without its digest."""
    pools = {} if principal.pools is None else {"pools": sorted(principal.pools)}
    return {"name": principal.name, "role": principal.role, **pools}


def _write(path: Path, principals: Mapping[str, Principal]) -> None:
    """Replace the file in one step, one entry per line; only its owner may read it."""
    lines = (f"- {json.dumps({**_entry(principal), 'sha256': digest})}\n" for digest, principal in principals.items())
    try:
        write_atomically(path, "".join(lines).encode("ascii"), replace=True)
    except OSError as error:
        raise MediumError(f"cannot write {path}: {error.strerror}") from error
