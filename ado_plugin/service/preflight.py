"""What a server with given settings would do, found out without starting it.

Addresses are bound for a moment and files opened; nothing is made, changed or left behind. Problems keep the server from starting;
warnings do not, but something would not work as meant.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import psutil

from ado_plugin.service.access import ROLES, Principal, read_tokens
from ado_plugin.service.certificates import validity
from ado_plugin.service.machine import connection_room, free_bytes, raise_descriptor_limit, total_bytes
from ado_plugin.service.pools import OWN, bytes_below, directories, located, reserve_of
from ado_plugin.service.settings import ServiceSettings, refuse_exposure, tls_pair
from fastomp_nvm.durable_files import device_errors, is_unlocked
from fastomp_nvm.errors import FastompError, how_to_install
from fastomp_nvm.remote.address import is_loopback
from fastomp_nvm.selection.text import human_bytes, human_seconds
from fastomp_nvm.stores.open import open_store

__all__ = ["Findings", "preflight"]

#: Days before the end of a certificate from which it is worth a warning.
_RENEWAL_DAYS = 14


@dataclass(slots=True)
class Findings:
    """What was found.

    Attributes
    ----------
    facts : list of (str, str)
        Subject and what the server would do.
    warnings, problems : list of str
    """

    facts: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Turn an error raised inside into a problem."""
        try:
            yield
        except FastompError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}")


def preflight(settings: ServiceSettings) -> Findings:
    """Return what a server with these settings would do, and what keeps it from starting."""
    found = Findings()
    needed = ["pyarrow", *(["starlette", "uvicorn"] if settings.page is not None else [])]
    found.problems += [f"{name} is not installed: {how_to_install(name)}" for name in needed if find_spec(name) is None]
    _addresses(settings, found)
    with found.collecting():
        refuse_exposure(settings)
    with found.collecting():
        _tls(settings, found)
    principals: Mapping[str, Principal] = {}
    with found.collecting():
        principals = _tokens(settings, found)
    with found.collecting():
        _pools(settings, found, {pool for each in principals.values() for pool in each.pools or ()})
    _limits(settings, found)
    return found


def _addresses(settings: ServiceSettings, found: Findings) -> None:
    """Bind all addresses at once, so that two settings with one address are noticed too."""
    scheme, web = ("grpc", "http") if settings.tls_cert is None else ("grpc+tls", "https")
    places = {
        "listen": (scheme, (settings.host, settings.port)),
        "page": (web, settings.page),
        "metrics": ("http", settings.metrics),
    }
    with contextlib.ExitStack() as opened:
        for name, (protocol, address) in places.items():
            if address is None:
                found.facts.append((name, "off"))
                continue
            host, port = address
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                opened.enter_context(socket.create_server((host, port), family=family))
                reach = "this machine" if is_loopback(host) else "other machines too"
                found.facts.append((name, f"{protocol}://{shown}, free, reached from {reach}"))
            except (OSError, UnicodeError) as error:
                number = error.errno if isinstance(error, OSError) else None
                reason = os.strerror(number) if number and number > 0 else str(error)  # negative: of the names of hosts
                found.problems.append(f"{name} {shown} cannot be bound ({reason}): end what uses it, or choose another address")


def _tls(settings: ServiceSettings, found: Findings) -> None:
    """Check certificate and key."""
    pair = tls_pair(settings)
    if pair is None or settings.tls_cert is None or settings.tls_key is None:
        found.facts.append(("TLS", "off"))
        return
    begin, end = validity(pair[0])
    now = datetime.now(UTC)
    days, span = (end - now).days, f"valid from {begin:%Y-%m-%d} until {end:%Y-%m-%d}"
    found.facts.append(("TLS", f"{settings.tls_cert} with its key, {span}"))
    if end <= now:
        found.warnings.append(f"the certificate {settings.tls_cert} expired on {end:%Y-%m-%d}, so clients refuse it: renew it")
    elif begin > now:
        found.warnings.append(f"the certificate {settings.tls_cert} is valid from {begin:%Y-%m-%d} only, so clients refuse it now")
    elif days < _RENEWAL_DAYS:
        found.warnings.append(f"the certificate {settings.tls_cert} expires in {days} days, on {end:%Y-%m-%d}: renew it")
    mode = stat.S_IMODE(settings.tls_key.stat().st_mode)
    if mode & 0o007:
        found.warnings.append(f"the key {settings.tls_key} has mode {mode:04o}, so everybody can read it: chmod 600 it")


def _tokens(settings: ServiceSettings, found: Findings) -> Mapping[str, Principal]:
    """Read the token file; return its principals."""
    if settings.token_file is None:
        anyone = not is_loopback(settings.host)
        found.facts.append(
            ("tokens", "none" if anyone else "one of this user, made when there is none, which its own clients find")
        )
        if anyone and settings.insecure:
            found.warnings.append("without a token file, anyone who reaches the server may read, write and delete everything")
        return {}
    principals = read_tokens(settings.token_file)
    counts = Counter(principal.role for principal in principals.values())
    shown = ", ".join(f"{counts[role]} {role}" for role in ROLES if counts[role])
    found.facts.append(("tokens", f"{len(principals)} in {settings.token_file}: {shown}"))
    if not counts["write"] and not counts["admin"]:
        found.warnings.append(f"no token in {settings.token_file} has the role write or admin: nobody can upload")
    return principals


def _pools(settings: ServiceSettings, found: Findings, named: set[str]) -> None:
    """Check the place of the pools, list what is in it, and compare with the quota and the names in the token file."""
    scheme, root = located(settings.pools)
    existing = next(path for path in (root, *root.parents) if path.exists())
    for path in (existing, root / OWN):
        if path.exists():
            with device_errors(f"write to {path}"), tempfile.TemporaryFile(dir=path):
                pass  # the only way to know that files can be written: rights, read-only file systems and full disks
    if (lock := root / OWN / "lock").exists() and not is_unlocked(lock):
        found.problems.append(f"the pools in {root} are those of another server: stop it, or choose another place")
    found.facts.append(("pools", f"{root} on {scheme}, writable" + ("" if root.exists() else ", to be made")))
    pools = directories(root) if root.exists() else []
    for pool in pools:
        _pool(settings, found, scheme, root / pool)
    found.warnings += [f"tokens name the pool {name!r}, which does not exist yet" for name in sorted(named.difference(pools))]
    free, reserve = free_bytes(existing), reserve_of(existing)
    room = max(free - reserve, 0)
    found.facts.append(
        ("disk", f"{human_bytes(free)} free of {human_bytes(total_bytes(existing))}, {human_bytes(reserve)} of it kept for records")
    )
    quota = "as large as the disk allows" if settings.quota is None else f"at most {human_bytes(settings.quota)} each"
    found.facts.append(
        ("quota", f"pools {quota}; several uploads of one user together {human_bytes(room / 2)} now, half of the room")
    )
    if not room:
        found.warnings.append(f"{human_bytes(free)} are free on the disk of {root}, all kept for records: nothing can be uploaded")


def _pool(settings: ServiceSettings, found: Findings, scheme: str, path: Path) -> None:
    """Open the stores of a pool, and compare it with the quota."""
    keys = directories(path)
    for key in keys:
        try:
            open_store(f"{scheme}://{urllib.parse.quote(str(path / key))}").close()
        except (FastompError, OSError) as error:
            found.warnings.append(f"the store {path.name}/{key} cannot be opened, and jobs on it fail: {error}")
    used = bytes_below(path)
    share = "" if settings.quota is None else f", {used / max(settings.quota, 1):.0%} of its quota"
    found.facts.append((f"pool {path.name}", f"{len(keys)} stores, {human_bytes(used)}{share}"))
    if settings.quota is not None and used >= settings.quota:
        found.warnings.append(f"the pool {path.name!r} has reached its quota: nothing can be uploaded to it")


def _limits(settings: ServiceSettings, found: Findings) -> None:
    """State the limits of jobs, memory and connections."""
    limits, memory = settings.limits, psutil.virtual_memory().total
    threads = settings.threads or len(os.sched_getaffinity(0))
    found.facts += [
        ("jobs", f"at most {limits.queued} waiting or running, {limits.owned} of one user"),
        ("one job", f"at most {human_seconds(limits.seconds)} of processor time and {human_bytes(limits.work)} read"),
        (
            "memory",
            f"{human_bytes(limits.memory)} of {human_bytes(memory)} for all jobs that have begun; {threads} threads per sweep",
        ),
    ]
    if limits.memory > memory:
        found.warnings.append(
            f"jobs may take {human_bytes(limits.memory)} of memory, and this machine has {human_bytes(memory)}: lower --job-memory"
        )
    if limits.owned >= limits.queued:
        found.warnings.append(f"one user may fill the whole queue of {limits.queued} jobs: lower --user-queue")
    raise_descriptor_limit()
    connections = connection_room(settings.connections)
    found.facts.append(("connections", f"at most {connections}"))
    if connections < settings.connections:
        found.warnings.append(
            f"descriptors allow {connections} connections, not {settings.connections}: raise the limit (ulimit -n, LimitNOFILE=)"
        )
