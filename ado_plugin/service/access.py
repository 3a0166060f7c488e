"""Access control: tokens, roles and pools.

Tokens are kept as SHA-256 digests and compared in constant time. A token file holds one admin token, or a YAML list of
``{name, sha256, role, pools}``; it is read again on request, and a file that cannot be used leaves the old list in force. Knows
neither stores nor sockets.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from fastomp_nvm.bounded_yaml import load_yaml
from fastomp_nvm.durable_files import check_name, write_atomically
from fastomp_nvm.errors import InputError, ServerError
from fastomp_nvm.home import local_token_file
from fastomp_nvm.limits import TOKEN_FILE_BYTES

__all__ = ["ROLES", "Access", "Principal", "Role", "read_tokens", "token_digest"]

Role = Literal["read", "write", "admin"]

#: Roles in ascending order; each includes the rights of those before it.
ROLES: tuple[Role, ...] = ("read", "write", "admin")

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of a token.

    Attributes
    ----------
    name : str
        Shown in logs; owns uploads and jobs.
    role : {"read", "write", "admin"}
    pools : frozenset of str or None
        Pools it has access to; None for all.
    """

    name: str
    role: Role
    pools: frozenset[str] | None = None

    def require(self, role: Role) -> None:
        """Raise ``ServerError`` unless the principal has this role or a higher one."""
        if ROLES.index(self.role) < ROLES.index(role):
            raise ServerError(
                f"{self.name} has the role {self.role!r}, and this needs {role!r}: ask for another token", reason="access"
            )

    def reaches(self, pool: str) -> bool:
        """Return whether the principal has access to ``pool``."""
        return self.pools is None or pool in self.pools

    def require_pool(self, pool: str) -> None:
        """Raise ``ServerError`` for a pool without access, whether it exists or not."""
        if not self.reaches(pool):
            raise ServerError(f"{self.name} has no access to the pool {pool!r}: ask for another token", reason="access")


class Access:
    """The tokens that a server accepts; none at first.

    Parameters
    ----------
    file : Path, optional
        Token file.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._principals: Mapping[str, Principal] = {}  # by the digest of their token
        self._refusing = threading.Lock()
        #: Calls without an accepted token.
        self.refused = 0
        self.reload()

    def reload(self) -> None:
        """Read the token file again; if it cannot be used, raise and keep the old tokens."""
        if self._file is not None:
            self._principals = read_tokens(self._file)

    def admit_local(self, port: int) -> None:
        """Accept the token file of this user's home, created when absent, which the user's own clients find."""
        self._principals = {token_digest(_local_token(port)): Principal("local", "admin")}

    def admit_anyone(self) -> None:
        """Accept callers without a token as administrators (``--insecure``)."""
        self._principals = {"": Principal("anyone", "admin")}

    def authenticate(self, token: str) -> Principal | None:
        """Return the principal of ``token``, or None."""
        digest, found = token_digest(token), None
        for accepted, principal in self._principals.items():  # no early exit: the time taken says nothing about the token
            if accepted == "" or (hmac.compare_digest(accepted, digest) and token):
                found = principal
        if found is None:
            with self._refusing:
                self.refused += 1
        return found


def token_digest(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _local_token(port: int) -> str:
    """Return the token for a server on this port of the loopback interface, created when there is none."""
    path = local_token_file(port)
    if not path.is_symlink() and not path.exists():
        with contextlib.suppress(FileExistsError):  # another server was quicker
            write_atomically(path, f"{secrets.token_urlsafe(32)}\n".encode("ascii"), replace=False)
    return _one_token(path, _secret(path), "remove it, and the server makes a new one")


def _one_token(path: Path, text: str, remedy: str) -> str:
    """Return the content of a token file if it is one token."""
    if len(text) < _SHORTEST_TOKEN or len(text.split()) != 1:
        raise InputError(f"the token file {path} holds no usable token: {remedy}")
    return text


def _secret(path: Path) -> str:
    """Return the content of a file that only its owner may read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # no wait for a pipe's writer
        with open(descriptor, encoding="utf-8") as file:
            status = os.fstat(descriptor)
            mode, fits = stat.S_IMODE(status.st_mode), status.st_size <= TOKEN_FILE_BYTES
            text = file.read() if stat.S_ISREG(status.st_mode) and fits else None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token file {path} cannot be read ({error}): check its path and that it is no link") from error
    if text is None:
        raise InputError(f"the token file {path} is no regular file of at most {TOKEN_FILE_BYTES} bytes: name another")
    if mode & 0o077:
        raise InputError(f"the token file {path} has mode {mode:04o}, so others can read it: chmod 600 it")
    return text.strip()


def read_tokens(path: Path) -> Mapping[str, Principal]:
    """Return the principals of a token file, by the digest of their token."""
    text = _secret(path)
    try:
        content = load_yaml(text)
    except yaml.YAMLError as error:
        raise InputError(f"the token file {path} is neither one token nor YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(content, list):
        token = _one_token(path, text, f"expected one word of at least {_SHORTEST_TOKEN} characters")
        return {token_digest(token): Principal("admin", "admin")}
    entries = [_entry(item, f"{path.name}, entry {place}") for place, item in enumerate(content, start=1)]
    if not entries:
        raise InputError(f"the token file {path} is an empty list: add an entry of name, sha256 and role")
    if len({principal.name for _, principal in entries}) < len(entries):
        raise InputError(f"the token file {path} has two entries of the same name: rename one")
    return dict(entries)


def _entry(item: object, place: str) -> tuple[str, Principal]:
    """Read one entry of the list."""
    if not isinstance(item, dict) or not {"name", "sha256", "role"} <= set(item) <= {"name", "sha256", "role", "pools"}:
        raise InputError(f"{place}: expected name, sha256, role and optionally pools")
    if not isinstance(item["sha256"], str) or not _DIGEST.fullmatch(item["sha256"].lower()):
        raise InputError(f"{place}: sha256 is not 64 hexadecimal digits: take it from sha256sum, and quote it if it is all digits")
    if item["role"] not in ROLES:
        raise InputError(f"{place}: the role is {item['role']!r}, expected {', '.join(ROLES)}")
    pools = item.get("pools")
    if pools is not None:
        if not isinstance(pools, list):
            raise InputError(f"{place}: pools are {pools!r}, expected a list of names")
        pools = frozenset(check_name(pool, "pool") for pool in pools)
    name = check_name(item["name"], "principal")
    return item["sha256"].lower(), Principal(name, item["role"], pools)
