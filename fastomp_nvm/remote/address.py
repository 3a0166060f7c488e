"""Addresses of servers: ``scheme://host:port/pool/key``."""

from __future__ import annotations

import ipaddress
import urllib.parse
from dataclasses import dataclass

from fastomp_nvm.durable_files import check_name
from fastomp_nvm.errors import StoreURLError
from fastomp_nvm.stores.url import REMOTE_SCHEMES

__all__ = ["ServerURL", "is_loopback", "is_remote", "split_host_port"]


@dataclass(frozen=True, slots=True)
class ServerURL:
    """A parsed address.

    Attributes
    ----------
    scheme : str
        ``grpc``, ``grpc+tls`` or ``mcas``.
    host : str
        Without brackets.
    port : int
    pool, key : str or None
        The parts of the path.
    """

    scheme: str
    host: str
    port: int
    pool: str | None = None
    key: str | None = None

    @classmethod
    def parse(cls, text: str) -> ServerURL:
        """Parse ``grpc://host:port/pool/key``, ``grpc+tls://...`` or ``mcas://...``; key, or pool and key, may be left out."""
        expected = "expected grpc://host:port/pool/key, grpc+tls://host:port/pool/key or mcas://host:port/pool/key"
        try:
            parts = urllib.parse.urlsplit(text)
            host, port = parts.hostname, parts.port
        except (ValueError, AttributeError) as error:
            raise StoreURLError(f"{text!r} is not the address of a server ({error}): {expected}") from error
        if parts.scheme not in REMOTE_SCHEMES or not host or port is None or parts.query or parts.fragment or parts.username:
            raise StoreURLError(f"{text!r} is not the address of a server: {expected}")
        names = [name for name in parts.path.split("/") if name]
        if len(names) > 2:
            raise StoreURLError(f"{text!r} names more than a pool and a key: {expected}")
        pool = check_name(names[0], "pool") if names else None
        key = check_name(names[1], "key") if len(names) == 2 else None
        return cls(parts.scheme, host, port, pool, key)

    @property
    def server(self) -> str:
        """The address without pool and key."""
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def is_remote(text: str) -> bool:
    """Return whether a store address names a server."""
    return isinstance(text, str) and text.partition("://")[0] in REMOTE_SCHEMES and "://" in text


def is_loopback(host: str) -> bool:
    """Return whether a host is the loopback interface of this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_host_port(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port``."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise StoreURLError(f"{text!r} is not an address to listen on: expected HOST:PORT, for example 127.0.0.1:7010")
    return host, int(port)
