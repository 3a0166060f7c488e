"""A client's calls carried over Arrow Flight: the only client-side importer of ``pyarrow.flight``.

Every call has a time limit. Errors of the library become errors of this project: no answer is ``UnreachableError`` (which may be
retried), a certificate that is not trusted ``UntrustedError``, a refusal ``ServerError``.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from fastomp_nvm.errors import FastompError, RequestError, ServerError, UnreachableError, UntrustedError
from fastomp_nvm.remote.address import ServerURL, is_loopback
from fastomp_nvm.remote.credentials import local_token
from fastomp_nvm.remote.protocol import WireTile

__all__ = ["FlightTransport"]

_BYTES = pa.schema([pa.field("bytes", pa.uint8())])


class FlightTransport:
    """One connection.

    Parameters
    ----------
    address : ServerURL
    token : str or None
        By default that of a server of this user on this machine, looked up at every call: the server may just be starting.
    certificates : bytes or None
        PEM of the authorities to trust; the system's when None.
    """

    def __init__(self, address: ServerURL, token: str | None, certificates: bytes | None) -> None:
        self._server = address.server
        self._tls = address.scheme == "grpc+tls"
        self._token, self._local = token, address.port if is_loopback(address.host) else None
        self._headers = [(b"x-fastomp-session", secrets.token_hex(8).encode())]
        if token is not None and not (token.isascii() and token.isprintable()):
            raise RequestError("the token holds characters that cannot be sent: expected printable ASCII")
        # A restarted server must be found again soon, not after the minutes of the library's default.
        options: list[tuple[str, int]] = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000)]
        if is_loopback(address.host):
            options.append(("grpc.enable_http_proxy", 0))
        trusted = {"tls_root_certs": certificates} if certificates is not None and self._tls else {}
        try:
            self._client = flight.connect(self._server, generic_options=options, **trusted)
        except (pa.ArrowException, ValueError) as error:
            raise UnreachableError(f"cannot connect to {self._server}: {_sentence(error)}") from error

    def call(self, operation: str, body: bytes, timeout: float) -> Iterator[bytes]:
        """Carry out an operation and yield its replies."""
        try:
            results = self._client.do_action(flight.Action(operation, body), self._options(timeout))
            for result in results:
                if result.body.size:  # the first one is empty
                    yield result.body.to_pybytes()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._translated(error, timeout) from error

    def send(self, upload: str, tiles: Iterable[WireTile], timeout: float) -> bytes:
        """Send tiles of an upload and return the reply."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"upload": upload}).encode())
        try:
            writer, reader = self._client.do_put(descriptor, _BYTES, self._options(timeout))
            with contextlib.closing(writer):
                for tile in tiles:
                    array = pa.Array.from_buffers(pa.uint8(), tile.data.size, [None, pa.py_buffer(tile.data)])
                    batch = pa.RecordBatch.from_arrays([array], schema=_BYTES)
                    writer.write_with_metadata(batch, json.dumps(dict(tile.header)).encode())
                writer.done_writing()
                reply = reader.read()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._translated(error, timeout) from error
        if reply is None:
            raise UnreachableError(f"{self._server} ended the upload without a reply")
        return bytes(reply.to_pybytes())

    def close(self) -> None:
        """Release the connection."""
        self._client.close()

    def _options(self, timeout: float) -> Any:
        """Return the options of a call."""
        token = local_token(self._local) if self._token is None and self._local is not None else self._token
        shown = [] if token is None else [(b"authorization", b"Bearer " + token.encode("ascii"))]
        return flight.FlightCallOptions(timeout=timeout, headers=self._headers + shown)

    def _translated(self, error: Exception, timeout: float) -> FastompError:
        """Return an error of the library as one of this project."""
        text = _sentence(error)
        if isinstance(error, flight.FlightUnauthenticatedError):
            return ServerError(f"{self._server} refuses the token: {text}")
        if isinstance(error, flight.FlightTimedOutError):
            return UnreachableError(f"{self._server} did not answer within {timeout:g} s: is it up, and is this its address?")
        if isinstance(error, flight.FlightServerError) or not isinstance(error, (flight.FlightError, OSError, pa.ArrowException)):
            return ServerError(f"{self._server} refuses: {text}")
        if self._tls and "certificate" in text:
            return UntrustedError(
                f"the certificate of {self._server} is not trusted ({text}): name its authority (--tls-ca) or the host it is for"
            )
        hint = (
            "is it up, and is its certificate valid and trusted (--tls-ca)?"
            if self._tls
            else "is it up, and does it speak without TLS?"
        )
        return UnreachableError(f"{self._server} cannot be reached ({text}): {hint}")


def _sentence(error: Exception) -> str:
    """Return the first line of an error of the library, without its debug context."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    text = text.rpartition("error, with message: ")[2]
    for tail in (". gRPC client debug context", ". Client context", ". Detail: "):
        text = text.partition(tail)[0]
    if "failed to connect to all addresses" in text:
        text = text.rpartition(": ")[2]  # the reason, after the addresses that were tried
    return text[:300]
