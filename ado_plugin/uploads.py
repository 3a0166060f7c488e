"""Uploads on their way into a pool: staged, checked tile by tile, resumable, published only by an explicit commit.

A client sends numbered tiles; each carries the CRC-32 of all bytes up to its end, so that a tile that is damaged, missing, repeated
or out of another upload is noticed before it is written. Whoever begins the same upload again is told how far it is and goes on
from there. What nobody goes on with is reaped. Sealing a large store takes a while, so ``commit`` can be asked again and again.
Knows neither sockets nor roles.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from ado_plugin.pools import Pools
from fastomp_nvm import registry
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import DataError, FastompError, RequestError, ServerError, UploadLostError
from fastomp_nvm.names import NumberedNames
from fastomp_nvm.stores import Target
from fastomp_nvm.wire import as_names

__all__ = ["LARGEST_TILE", "Tile", "UploadPlan", "Uploads", "decode_schema"]

#: Bytes of one tile.
LARGEST_TILE = 32 << 20

_MOST_STAGED = 64
_MOST_FEATURES = 1 << 25
_MOST_REMEMBERED = 1000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class UploadPlan:
    """What is going to be uploaded.

    Attributes
    ----------
    pool, key : str
    schema : TableSchema
    dtype, missing, tier : str
    replace : bool
    digest : str
        Equal for equal plans: whoever begins with the same one goes on with the same upload.
    """

    pool: str
    key: str
    schema: Any
    dtype: str
    missing: str
    tier: str
    replace: bool
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A rectangle of the table on its way.

    Attributes
    ----------
    number : int
        Place in the sequence of tiles.
    checksum : int
        CRC-32 of the bytes of all tiles up to and including this one.
    first_obs, first_column, rows, columns : int
    layout : {"columns", "rows"}
        What is contiguous in ``data``.
    data : (n,) array
        Values, in any of the number types.
    """

    number: int
    checksum: int
    first_obs: int
    first_column: int
    rows: int
    columns: int
    layout: Literal["columns", "rows"]
    data: AnyArray

    def values(self) -> AnyArray:
        """Return the values, (rows, columns)."""
        if self.layout == "rows":
            return self.data.reshape(self.rows, self.columns)
        return self.data.reshape(self.columns, self.rows).T


@dataclass(slots=True, eq=False)
class _Upload:
    """One upload in progress."""

    name: str
    owner: str
    plan: UploadPlan
    builder: Any
    next: int = 0
    checksum: int = 0
    touched: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    sealing: threading.Thread | None = None
    outcome: dict[str, Any] | FastompError | None = None


class Uploads:
    """The uploads of a server.

    Parameters
    ----------
    pools : Pools
    idle_seconds : float
        How long an upload may lie still before it is reaped.
    """

    def __init__(self, pools: Pools, idle_seconds: float = 900.0) -> None:
        self._pools = pools
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._staged: dict[str, _Upload] = {}
        self._ended: dict[str, _Upload] = {}  # so that a repeated commit hears the same answer
        self.bytes_received = 0

    def begin(self, owner: str, plan: UploadPlan) -> dict[str, Any]:
        """Start an upload, or find the one that was left; return its name, the next tile and the checksum so far."""
        with self._lock:
            for upload in list(self._staged.values()):
                if (upload.plan.pool, upload.plan.key) != (plan.pool, plan.key):
                    continue
                if upload.owner != owner:
                    raise ServerError(f"someone else is uploading {plan.pool}/{plan.key}: choose another key or try later")
                if upload.plan.digest == plan.digest:
                    upload.touched = time.monotonic()
                    return {"upload": upload.name, "next": upload.next, "crc": upload.checksum}
                self._drop(upload, "its owner began another upload to the same key")
            if len(self._staged) >= _MOST_STAGED:
                raise ServerError(f"{_MOST_STAGED} uploads are under way, the most this server takes: try later")
            builder = self._pools.build(
                plan.pool, plan.key, plan.schema, dtype=plan.dtype, missing=plan.missing, tier=plan.tier, replace=plan.replace
            )
            upload = _Upload(secrets.token_hex(16), owner, plan, builder)
            self._staged[upload.name] = upload
            return {"upload": upload.name, "next": 0, "crc": 0}

    def write(self, owner: str, name: object, tiles: Iterable[Tile]) -> dict[str, Any]:
        """Take in tiles; return the number of the next one expected.

        Raises
        ------
        DataError
            A value cannot be stored (the upload is given up), or a tile did not arrive as it was sent.
        """
        upload = self._find(owner, name)
        for tile in tiles:
            with upload.lock:
                refusal = self._take(upload, tile)
            if refusal is not None:
                with self._lock:
                    self._drop(upload, "a value cannot be stored")
                raise refusal
        return {"next": upload.next, "crc": upload.checksum}

    def commit(
        self,
        owner: str,
        name: object,
        tiles: int,
        checksum: int,
        targets: Mapping[str, Target],
        provenance: Mapping[str, Any],
        wait: float,
    ) -> dict[str, Any]:
        """Seal and publish what was uploaded; return ``{"state": "sealing"}`` or the report once it is done.

        Parameters
        ----------
        tiles, checksum : int
            How many tiles were sent, and the CRC-32 of all their bytes.
        targets : mapping of str to Target
        provenance : mapping
        wait : float
            Seconds to wait for the end before saying that it goes on.
        """
        upload = self._ended.get(name) if isinstance(name, str) else None
        if upload is None or upload.owner != owner:
            upload = self._find(owner, name)
        with upload.lock:
            if upload.sealing is None:
                if (tiles, checksum) != (upload.next, upload.checksum):
                    raise DataError(
                        f"{upload.next} tiles with checksum {upload.checksum} have arrived, {tiles} with {checksum} were sent: "
                        "send what is missing first"
                    )
                arguments = (upload, targets, provenance)
                upload.sealing = threading.Thread(target=self._seal, args=arguments, name="seal", daemon=True)
                upload.sealing.start()
        upload.sealing.join(wait)
        if upload.outcome is None:
            return {"state": "sealing"}
        if isinstance(upload.outcome, FastompError):
            raise upload.outcome
        return {"state": "done", "report": upload.outcome}

    def abort(self, owner: str, name: object) -> dict[str, Any]:
        """Give an upload up."""
        upload = self._find(owner, name)
        with self._lock:
            self._drop(upload, "its owner gave it up")
        return {}

    def reap(self) -> int:
        """Give up what has lain still for too long; return how many."""
        with self._lock:
            idle = [
                upload
                for upload in self._staged.values()
                if upload.sealing is None and time.monotonic() - upload.touched > self._idle_seconds
            ]
            for upload in idle:
                self._drop(upload, "nobody went on with it")
        return len(idle)

    @property
    def staged(self) -> int:
        """Uploads under way."""
        return len(self._staged)

    def close(self) -> None:
        """Give everything up that is not being sealed; wait for that."""
        with self._lock:
            uploads = list(self._staged.values())
        for upload in uploads:
            if upload.sealing is not None:
                upload.sealing.join()
            else:
                with self._lock:
                    self._drop(upload, "the server stopped")

    def _find(self, owner: str, name: object) -> _Upload:
        """Return an upload of this owner."""
        upload = self._staged.get(name) if isinstance(name, str) else None
        if upload is None or upload.owner != owner:
            raise UploadLostError("the server knows no such upload (it was given up, or the server was restarted): begin again")
        return upload

    def _take(self, upload: _Upload, tile: Tile) -> FastompError | None:
        """Check a tile and write it, one that is known already is passed over; return why its values cannot be stored."""
        if upload.name not in self._staged or upload.sealing is not None:
            raise UploadLostError("the upload was given up or committed: begin again")
        upload.touched = time.monotonic()
        if tile.number < upload.next:
            return None
        if tile.number > upload.next:
            raise DataError(f"tile {tile.number} arrived, tile {upload.next} was expected: send it again from there")
        if tile.data.nbytes > LARGEST_TILE or tile.data.size != tile.rows * tile.columns:
            raise RequestError(
                f"a tile of {tile.rows} x {tile.columns} holds {tile.data.nbytes} bytes: at most {LARGEST_TILE}, and all of it"
            )
        checksum = zlib.crc32(tile.data.view(np.uint8).data, upload.checksum)
        if checksum != tile.checksum:
            raise DataError(f"tile {tile.number} did not arrive as it was sent: send it again")
        try:
            upload.builder.write_tile(tile.first_obs, tile.first_column, tile.values())
        except FastompError as error:
            return error
        upload.next += 1
        upload.checksum = checksum
        self.bytes_received += tile.data.nbytes
        return None

    def _seal(self, upload: _Upload, targets: Mapping[str, Target], provenance: Mapping[str, Any]) -> None:
        """Finish the store and keep the report, or the reason why not."""
        try:
            with upload.builder:
                report = asdict(upload.builder.finish(targets, provenance))
            upload.outcome = {**report, "url": f"{upload.plan.pool}/{upload.plan.key}"}
            _log.info("published", extra={"pool": upload.plan.pool, "key": upload.plan.key, "owner": upload.owner})
        except FastompError as error:
            upload.outcome = error
        except Exception:
            _log.exception("sealing failed", extra={"pool": upload.plan.pool, "key": upload.plan.key})
            upload.outcome = ServerError("the server failed to seal the upload: its log says why")
        with self._lock:
            self._staged.pop(upload.name, None)
            self._ended[upload.name] = upload
            while len(self._ended) > _MOST_REMEMBERED:
                self._ended.pop(next(iter(self._ended)))

    def _drop(self, upload: _Upload, reason: str) -> None:
        """Forget an upload and everything it staged; the caller holds the lock of all uploads."""
        with upload.lock:  # nobody is writing into files that are about to be closed
            if upload.sealing is not None:
                raise ServerError("the upload is being sealed and cannot be given up any more")
            if self._staged.pop(upload.name, None) is None:
                return
            upload.builder.__exit__(None, None, None)
            _log.info("upload given up", extra={"pool": upload.plan.pool, "key": upload.plan.key, "reason": reason})


def decode_schema(sent: Mapping[str, Any]) -> Any:
    """Return the ``TableSchema`` that a client described."""

    def names(key: str) -> Any:
        found = sent.get(key)
        if isinstance(found, dict) and set(found) == {"numbered", "prefix"}:
            count, prefix = found["numbered"], found["prefix"]
            if (
                not isinstance(count, int)
                or isinstance(count, bool)
                or not 0 <= count <= _MOST_FEATURES
                or not isinstance(prefix, str)
            ):
                raise RequestError(f"{key} are not numbered names: expected a count and a prefix")
            return NumberedNames(count, prefix)
        return tuple(as_names(found, key))

    n_obs, widths = sent.get("n_obs"), sent.get("widths")
    if not isinstance(n_obs, int) or isinstance(n_obs, bool) or not 1 <= n_obs < 2**40:
        raise RequestError(f"n_obs is {str(n_obs)[:40]!r}: expected a number of observations")
    schema = registry.load("storage_backends.schema:TableSchema")
    features = names("features")
    if widths is None:
        return schema.plain(n_obs, features)
    if not isinstance(widths, list) or not all(isinstance(width, int) and 0 < width < 2**20 for width in widths):
        raise RequestError("widths are not a list of column counts, one per feature")
    return schema(n_obs, names("columns"), features, np.concatenate(([0], np.cumsum(np.array(widths, dtype=np.int64)))))
