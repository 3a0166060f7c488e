"""The client's side of an upload: a builder like that of a local store, whose tiles go to a server.

Tiles are cut to the size of a message, converted to the element type of the store, numbered, and chained by one CRC-32 over all
bytes, each while its predecessor is being sent. They are sent in segments, the unit of repetition: after a lost connection the
client asks for the number of tiles that arrived and sends the rest of the segment. If the server still has the beginning of an
earlier attempt, those tiles are not sent again, only added to the checksum, which shows whether they are the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol

import numpy as np

from fastomp_nvm.arrays import AnyArray, JSONObject
from fastomp_nvm.errors import DataError, FastompError, ServerError, UnreachableError, UploadLostError
from fastomp_nvm.matrix.checksum import crc32
from fastomp_nvm.remote.address import ServerURL
from fastomp_nvm.selection.codec import encode_vector
from fastomp_nvm.stores.contract import Target
from fastomp_nvm.stores.names import NumberedNames
from fastomp_nvm.stores.reports import BuildReport

__all__ = ["Upload", "WireTile"]

#: Bytes of one tile: smaller tiles cost more thread switches, larger ones do not stay in the processor caches.
_TILE_BYTES = 4 << 20
#: Most bytes of a segment, and the fewest that are worth a call.
_SEGMENT_BYTES = 128 << 20
_SMALL_SEGMENT_BYTES = 16 << 20
_CHECK_POLL_SECONDS = 0.5
_SEAL_POLL_SECONDS = 0.1
#: Attempts to send a segment of which nothing arrives.
_FRUITLESS_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, eq=False)
class WireTile:
    """A numbered tile of an upload, as it is sent; see ``ado_plugin.service.uploads.Tile``.

    Attributes
    ----------
    header : mapping
        Number, checksum, position, shape and element type, in JSON terms.
    data : (n,) uint8
        The values as bytes.
    """

    header: Mapping[str, Any]
    data: AnyArray


class Connection(Protocol):
    """The part of a ``Client`` that an upload uses."""

    @property
    def poll_seconds(self) -> float:
        """Most seconds that a call may wait at the server."""
        ...

    def call(self, operation: str, body: Mapping[str, object]) -> JSONObject:
        """Carry out an operation and return its reply."""
        ...

    def send_tiles(self, upload: str, tiles: Iterable[WireTile]) -> JSONObject:
        """Send tiles once and return the reply."""
        ...


@dataclass(slots=True, eq=False)
class _Piece:
    """A tile (rows, columns) of the caller's values; its checksum is None until it was sent once."""

    number: int
    first_obs: int
    first_column: int
    values: AnyArray
    layout: Literal["columns", "rows"]
    checksum: int | None = None


class Upload:
    """A store being built on a server; a context manager that drops the upload after an error in the data.

    Parameters
    ----------
    client : Connection
    address : ServerURL
        With pool and key.
    schema : TableSchema
    dtype, missing, tier : str
    replace : bool
    progress : callable, optional
        Called with (bytes done, bytes to do).
    """

    def __init__(
        self,
        client: Connection,
        address: ServerURL,
        schema: Any,
        *,
        dtype: str = "float32",
        missing: str = "error",
        tier: str = "int8",
        replace: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._client = client
        self._dtype = np.dtype(dtype) if dtype in ("float16", "float32", "float64") else np.dtype("float64")
        self._progress = progress
        self._total = schema.n_obs * schema.n_columns * self._dtype.itemsize
        self._done = 0
        plain = schema.columns is schema.features
        self._plan = {
            "pool": address.pool,
            "key": address.key,
            "n_obs": schema.n_obs,
            "features": _names(schema.features),
            **({} if plain else {"columns": _names(schema.columns), "widths": np.diff(schema.offsets).tolist()}),
            "dtype": dtype,
            "missing": missing,
            "tier": tier,
            "replace": replace,
        }
        begun = self._begin()
        self._name: str = begun["upload"]
        self._known, self._known_checksum = begun["next"], begun["crc"]
        self._number = 0
        self._arrived = self._known  # tiles that the server has
        self._checksum = 0
        self._segment: list[_Piece] = []
        self._segment_bytes = 0
        self._open = True

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # After a lost connection or an interrupt the upload stays on the server and can be continued.
        if self._open and isinstance(error, FastompError) and not isinstance(error, ServerError):
            self._drop()

    def write_tile(self, first_obs: int, first_column: int, values: AnyArray) -> None:
        """Send a rectangle of the table, (rows, columns); see ``StoreBuilder.write_tile``."""
        values = np.asarray(values)
        if values.ndim != 2 or values.dtype.kind not in "fiub":
            raise DataError(f"a tile of shape {values.shape} and type {values.dtype} was given: expected a matrix of numbers")
        waiting = len(self._segment)
        for top, left, piece, layout in _pieces(values, self._dtype):
            self._add(_Piece(self._number, first_obs + top, first_column + left, piece, layout))
        if self._segment_bytes >= _SMALL_SEGMENT_BYTES:
            self.flush()
        # The caller may overwrite its memory after this call.
        for piece_left in self._segment[min(waiting, len(self._segment)) :]:
            piece_left.values = piece_left.values.copy(order="K")

    def finish(self, targets: Mapping[str, Target] | None = None, provenance: Mapping[str, Any] | None = None) -> Any:
        """Have the server seal and publish the store, and return the ``BuildReport``."""
        self.flush()
        described = {
            name: {"values": encode_vector(target.values), "classes": list(target.classes)}
            for name, target in (targets or {}).items()
        }
        body = {
            "upload": self._name,
            "tiles": self._number,
            "crc": self._checksum,
            "targets": described,
            "provenance": dict(provenance or {}),
            "wait": self._client.poll_seconds,
        }
        while True:
            try:
                reply = self._client.call("commit", body)
            except UploadLostError:
                # A server restarted meanwhile may still have all tiles; if it has not, the caller must repeat the upload.
                if self._position()["next"] < self._number:
                    raise
                body["targets"] = described
                continue
            if reply["state"] == "done":
                break
            body["targets"] = {}  # the server has them
            time.sleep(_SEAL_POLL_SECONDS)  # with too many clients waiting the server answers at once
        self._open = False
        report = reply["report"]
        report |= {field: tuple(report[field]) for field in ("dropped", "constant")}
        return BuildReport(**report)

    def _add(self, piece: _Piece) -> None:
        """Queue a piece, unless the server has it from an earlier attempt."""
        self._number += 1
        self._done += piece.values.size * self._dtype.itemsize
        if self._progress is not None:
            self._progress(self._done, self._total)
        if self._number > self._known:
            self._segment.append(piece)
            self._segment_bytes += piece.values.size * self._dtype.itemsize
            if self._segment_bytes >= _SEGMENT_BYTES:
                self.flush()
            return
        self._tile(piece)
        if self._number == self._known and self._checksum != self._known_checksum:
            self._drop()
            raise UploadLostError("the server holds the beginning of an upload of other data, which was dropped: send all again")

    def flush(self) -> None:
        """Send the queued tiles; after a lost connection ask how many arrived and send the rest."""
        attempts = 0
        while self._segment:
            try:
                reply = self._client.send_tiles(self._name, map(self._tile, self._segment))
            except (UnreachableError, UploadLostError):
                attempts += 1
                if attempts > _FRUITLESS_ATTEMPTS:
                    raise
                time.sleep(0.1 * 2**attempts)
                reply = self._position()
            self._arrived = reply["next"]
            left = [piece for piece in self._segment if piece.number >= self._arrived]
            attempts = attempts if len(left) == len(self._segment) else 0
            self._segment = left
        self._segment_bytes = 0

    def _begin(self) -> dict[str, Any]:
        """Begin or continue the upload; return its name and the number of tiles that the server has."""
        while True:
            reply = self._client.call("put", {**self._plan, "wait": self._client.poll_seconds})
            if not reply.get("checking"):
                return reply
            time.sleep(_CHECK_POLL_SECONDS)  # the restarted server reads its tiles

    def _position(self) -> dict[str, Any]:
        """Return how many tiles of this upload the server has; ``UploadLostError`` if it lost some."""
        reply = self._begin()
        if reply["upload"] != self._name or reply["next"] < self._arrived:
            raise UploadLostError("the server lost tiles of the upload: send all again")
        return reply

    def _tile(self, piece: _Piece) -> WireTile:
        """Return a piece as it is sent; its checksum continues that of the piece before it."""
        values = _converted(piece.values, self._dtype)
        data = np.ascontiguousarray(values.T if piece.layout == "columns" else values).reshape(-1)
        if piece.checksum is None:
            piece.checksum = self._checksum = crc32(data.view(np.uint8).data, self._checksum)
        header = {
            "number": piece.number,
            "crc": piece.checksum,
            "first_obs": piece.first_obs,
            "first_column": piece.first_column,
            "rows": values.shape[0],
            "columns": values.shape[1],
            "layout": piece.layout,
            "dtype": data.dtype.str,
        }
        return WireTile(header, data.view(np.uint8))

    def _drop(self) -> None:
        """Tell the server to drop the upload; it does so by itself after a while."""
        self._open = False
        with contextlib.suppress(ServerError):
            self._client.call("abort", {"upload": self._name})


def _names(names: Any) -> Any:
    """Return names in JSON terms; numbered names as their count and prefix."""
    if isinstance(names, NumberedNames):
        return {"numbered": len(names), "prefix": names.prefix}
    return list(names)


def _pieces(values: AnyArray, dtype: np.dtype[Any]) -> Iterator[tuple[int, int, AnyArray, Literal["columns", "rows"]]]:
    """Yield views of at most the size of a message, cut along the contiguous axis."""
    by_columns = abs(values.strides[0]) <= abs(values.strides[1])
    count, length = values.shape[::-1] if by_columns else values.shape
    itemsize = max(dtype.itemsize, values.dtype.itemsize)
    longest = max(1, _TILE_BYTES // itemsize)
    step = max(1, longest // max(1, length))
    for start in range(0, count, step):
        for begin in range(0, length, longest):
            across, along = slice(start, start + step), slice(begin, begin + longest)
            piece = values[along, across] if by_columns else values[across, along]
            top, left = (begin, start) if by_columns else (start, begin)
            yield top, left, piece, "columns" if by_columns else "rows"


def _converted(piece: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
    """Return a piece in the store's element type; unconverted if a value does not fit, so that the server can name the cell."""
    if piece.dtype == dtype:
        return piece
    with np.errstate(over="ignore", invalid="ignore"):
        converted = piece.astype(dtype)
    if piece.dtype.itemsize > 8:
        return converted
    lost = ~np.isfinite(converted) & (np.isfinite(piece) if piece.dtype.kind == "f" else True)
    return piece.astype(piece.dtype.newbyteorder("<"), copy=False) if lost.any() else converted
