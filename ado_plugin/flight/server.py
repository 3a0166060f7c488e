"""The operations carried over Arrow Flight: the only server-side importer of ``pyarrow.flight``.

An operation is an action: its body is the request, its results are an empty one, sent at once, and the replies. Tiles of an upload
are a stream of batches, each one column of bytes with metadata. The end of a stream does not mean success (a client that died ends
it too): only ``commit`` publishes. Only Flight errors of one sentence leave this module: any other exception would send the client
a traceback.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ado_plugin.flight.connections import Connections
from ado_plugin.service.access import Access
from ado_plugin.service.operations import OPERATIONS, Caller, Operations
from ado_plugin.service.uploads import LARGEST_TILE, Tile, field_of
from fastomp_nvm.errors import FastompError, RequestError, ServerError
from fastomp_nvm.limits import MESSAGE_BYTES, NOTE_BYTES
from fastomp_nvm.selection.codec import decode_message

__all__ = ["FlightHost"]

_log = logging.getLogger(__name__)

_TILE_TYPES = ("<f2", "<f4", "<f8", "|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8")
#: Batches read ahead.
_READ_AHEAD = 3
#: Upload streams that one principal may have open. A stream whose client stalls keeps two threads until the client disconnects or
#: its own deadline ends the call: the library can neither time out a read nor end a call on the server's side.
_MOST_STREAMS = 64


class _Admission(flight.ServerMiddleware):  # type: ignore[misc]
    """Carries the caller from the headers to the handler."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.caller = caller


class _AdmissionFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without a valid token before they reach a handler."""

    def __init__(self, access: Access) -> None:
        super().__init__()
        self._access = access

    def start_call(self, info: Any, headers: Any) -> _Admission:
        """Authenticate a call."""
        token = _header(headers, "authorization").removeprefix("Bearer ")
        principal = self._access.authenticate(token)
        if principal is None:
            _log.warning("unauthenticated call")
            raise flight.FlightUnauthenticatedError(
                "the token is missing or not known to this server: check --token-file or FASTOMP_TOKEN"
            )
        return _Admission(Caller(principal, _header(headers, "x-fastomp-session")[:64]))


def _header(headers: Any, name: str) -> str:
    """Return the first value of a header."""
    value = (headers.get(name) or [""])[0]
    return value if isinstance(value, str) else value.decode("ascii", "replace")


class FlightHost(flight.FlightServerBase):  # type: ignore[misc]
    """Serves operations; listening once constructed.

    Parameters
    ----------
    host : str
    port : int
        0 for any; the attribute ``port`` holds the actual one.
    operations : Operations
    access : Access
    tls : (bytes, bytes), optional
        Certificate chain and its key, PEM.
    connections : int
        Most connections at a time.

    Attributes
    ----------
    connections : Connections

    Raises
    ------
    OSError
        The server cannot listen on the address.
    """

    def __init__(
        self,
        host: str,
        port: int,
        operations: Operations,
        access: Access,
        tls: tuple[bytes, bytes] | None = None,
        connections: int = 1000,
    ) -> None:
        self._operations = operations
        self._streams: collections.Counter[str] = collections.Counter()  # open ones, by principal
        self._counting = threading.Lock()
        # With grpc:// the library would ignore the certificates and serve without encryption.
        location = f"{'grpc' if tls is None else 'grpc+tls'}://{f'[{host}]' if ':' in host else host}:{port}"
        if port:
            # The library would share a port with another server, which would get every other call.
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        super().__init__(location, tls_certificates=tls and [tls], middleware={"admission": _AdmissionFactory(access)})
        self.connections = Connections(self.port, connections)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Carry out an operation."""
        body = action.body
        caller = self._caller(context)
        if body.size > MESSAGE_BYTES:
            raise flight.FlightServerError(f"the request has {body.size} bytes, at most {MESSAGE_BYTES} are possible")
        return self._results(caller, action.type, body.to_pybytes(), context.is_cancelled)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Write tiles of an upload; the reply is sent when the stream has ended."""
        caller = self._caller(context)
        if len(descriptor.command or b"") > NOTE_BYTES:
            raise flight.FlightServerError(f"the command of an upload has more than {NOTE_BYTES} bytes")
        try:
            upload = field_of(decode_message(descriptor.command or b""), "upload", str, "the name of an upload")
        except FastompError as error:
            raise flight.FlightServerError(str(error)) from None
        with self._stream_of(caller.principal.name):
            chunks = _chunks(reader)
            reply = self._operations.write(caller, upload, (_tile(chunk) for chunk in chunks))
            for _ in chunks:
                pass  # after an error: a client that is still sending would not read the reply
            writer.write(reply)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Return the operations."""
        return [(name, f"needs the role {role}") for name, role in OPERATIONS.items()]

    def _refuse(self, *_: Any) -> NoReturn:
        """Refuse: there are no streams of data to a client."""
        raise flight.FlightServerError("this server has no flights: send a selection or a prediction by its actions")

    do_get = do_exchange = list_flights = get_flight_info = _refuse

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Return an empty schema: in this call the library sends tracebacks even of Flight errors."""
        return flight.SchemaResult(pa.schema([]))

    def _caller(self, context: Any) -> Caller:
        """Return the author of a call, and note that its connection is used."""
        self.connections.heard(context.peer())
        caller: Caller = context.get_middleware("admission").caller
        return caller

    @contextlib.contextmanager
    def _stream_of(self, principal: str) -> Iterator[None]:
        """Count a stream of a principal, and refuse one too many."""
        with self._counting:
            if self._streams[principal] >= _MOST_STREAMS:
                raise flight.FlightServerError(f"{_MOST_STREAMS} upload streams of {principal!r} are open: end some, or try later")
            self._streams[principal] += 1
        try:
            yield
        finally:
            with self._counting:
                self._streams[principal] -= 1

    def _results(self, caller: Caller, operation: str, body: bytes, gone: Callable[[], bool]) -> Iterator[bytes]:
        """Yield the results of an action, the first at once: a client that drops the call before its first result would hang."""
        yield b""
        yield from self._operations.call(caller, operation, body, gone)


def _chunks(reader: Any) -> Iterator[Any]:
    """Yield the batches of a stream, a few of them read ahead, so that receiving overlaps with writing."""
    ahead: queue.Queue[Any] = queue.Queue(maxsize=_READ_AHEAD)

    def receive() -> None:
        try:
            while True:
                ahead.put(reader.read_chunk())
        except StopIteration:
            ahead.put(None)
        except Exception as error:
            # Any error of the stream (a client that died, invalid data) ends it; that publishes nothing.
            _log.info("an upload stream broke", extra={"reason": type(error).__name__})
            ahead.put(ServerError("the stream of the upload broke: begin it again, and it continues"))

    threading.Thread(target=receive, name="receive", daemon=True).start()
    while (chunk := ahead.get()) is not None:
        if isinstance(chunk, Exception):
            raise chunk
        yield chunk


def _tile(chunk: Any) -> Tile:
    """Return the tile in a batch after checking its metadata."""
    if chunk.app_metadata is None or chunk.data is None:
        raise RequestError("a batch without metadata arrived")
    if chunk.app_metadata.size > NOTE_BYTES:
        raise RequestError(f"the metadata of a tile has more than {NOTE_BYTES} bytes")
    described = decode_message(chunk.app_metadata.to_pybytes())
    numbers = [described.get(name) for name in Tile.NUMBERS]
    if not all(isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**40 for number in numbers):
        raise RequestError(f"a tile needs {', '.join(Tile.NUMBERS)} as whole numbers")
    if described.get("layout") not in ("columns", "rows") or described.get("dtype") not in _TILE_TYPES:
        raise RequestError(f"a tile needs a layout of columns or rows and a dtype of {', '.join(_TILE_TYPES)}")
    batch = chunk.data
    if batch.num_columns != 1 or str(batch.schema.types[0]) != "uint8" or batch.num_rows > LARGEST_TILE:
        raise RequestError(f"a tile is one column of at most {LARGEST_TILE} bytes")
    element = np.dtype(described["dtype"])
    if batch.num_rows != described["rows"] * described["columns"] * element.itemsize:
        raise RequestError(f"a tile of {described['rows']} x {described['columns']} {element} has {batch.num_rows} bytes")
    # May be misaligned, as received: checking and writing it so costs less than a copy.
    column = batch.column(0)
    if column.null_count:
        raise RequestError("a tile holds nulls: expected bytes only")
    data = np.frombuffer(column.buffers()[1], np.uint8, batch.num_rows, column.offset).view(element)
    return Tile.of(described, data)
