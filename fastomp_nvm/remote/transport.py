"""The contract of a transport, and the transports by URL scheme."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from fastomp_nvm.registry import Table
from fastomp_nvm.remote.address import ServerURL
from fastomp_nvm.remote.upload import WireTile

__all__ = ["TRANSPORTS", "Transport"]


class Transport(Protocol):
    """Carries calls to a server."""

    def call(self, operation: str, body: bytes, timeout: float) -> Iterator[bytes]:
        """Carry out an operation and yield its replies; ``UnreachableError`` when no answer comes in ``timeout`` seconds."""
        ...

    def send(self, upload: str, tiles: Iterable[WireTile], timeout: float) -> bytes:
        """Send tiles of an upload and return the reply."""
        ...

    def close(self) -> None:
        """Release the connection."""
        ...


#: URL scheme -> class, constructed with the address, the token and the PEM certificates.
TRANSPORTS: Table[Callable[[ServerURL, str | None, bytes | None], Transport]] = Table(
    "transport",
    {
        "grpc": "ado_plugin.flight.transport:FlightTransport",
        "grpc+tls": "ado_plugin.flight.transport:FlightTransport",
        "mcas": "ado_plugin.mcas.transport:McasTransport",
    },
)
