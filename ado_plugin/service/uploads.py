"""Uploads into a pool: staged, checked tile by tile, resumable, published only by an explicit commit.

A client sends numbered tiles. Each carries the CRC-32 of all bytes up to its end, so that a damaged, missing or repeated tile, or
one of another upload, is detected before it is written. A client that begins the same upload again gets the number of the next tile
and continues there, also after a crash of the server: the tiles that had arrived are then read again and checked. Idle uploads are
removed. Sealing a large store takes long, so ``commit`` can be called repeatedly; after publication it returns the report again.
Knows neither sockets nor roles.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from ado_plugin.service.pools import Pools
from ado_plugin.service.records import TileLog, UploadRecords
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import check_name
from fastomp_nvm.errors import DataError, FastompError, RequestError, ServerError, UploadLostError, encode_error, raise_error
from fastomp_nvm.matrix.checksum import crc32
from fastomp_nvm.selection.codec import as_names, decode_vector
from fastomp_nvm.stores.contract import Target
from fastomp_nvm.stores.encoding import TableEncoding
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.schema import TableSchema

__all__ = ["LARGEST_TILE", "Tile", "UploadPlan", "Uploads", "decode_ids", "decode_targets", "field_of"]

#: Bytes of one tile.
LARGEST_TILE = 32 << 20

_MOST_FEATURES = 1 << 25
_MOST_STAGED = 64
_MOST_OF_ONE_OWNER = 16
#: Seconds within which the first tile of an upload has to arrive, if idle uploads are kept for longer.
_FIRST_TILE_SECONDS = 120.0
_MOST_REMEMBERED = 1000
_REMEMBERED_SECONDS = 3600.0

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class UploadPlan:
    """A client's description of an upload, checked.

    Attributes
    ----------
    pool, key : str
    schema : TableSchema
    settings : mapping
        ``dtype``, ``missing``, ``tier`` and ``replace`` of the builder.
    sent : mapping
        The description as the client sent it.
    digest : str
        Equal for equal plans: a client that begins an equal plan continues the same upload.
    """

    pool: str
    key: str
    schema: TableSchema
    settings: Mapping[str, Any]
    sent: Mapping[str, Any]
    digest: str

    @classmethod
    def decode(cls, sent: Mapping[str, Any]) -> UploadPlan:
        """Return the plan that a client sent; access to its pool is not checked here."""
        pool, key = check_name(sent.get("pool"), "pool"), check_name(sent.get("key"), "key")
        settings: dict[str, Any] = {name: field_of(sent, name, str, "text") for name in ("dtype", "missing", "tier")}
        settings["replace"] = field_of(sent, "replace", bool, "true or false")
        digest = hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()
        return cls(pool, key, _decode_schema(sent), settings, sent, digest)


def field_of(sent: Mapping[str, Any], name: str, kind: type[T], expected: str, default: T | None = None) -> T:
    """Return a field that a client sent, if it is of this type; ``expected`` describes it in the error."""
    value = sent.get(name, default)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RequestError(f"{name} is {str(value)[:40]!r}: expected {expected}")
    return value


def decode_targets(sent: Mapping[str, Any]) -> dict[str, Target]:
    """Return the targets of an upload."""
    targets = {}
    for name, described in field_of(sent, "targets", dict, "an object of vectors by name", {}).items():
        if not isinstance(described, dict) or set(described) != {"values", "classes"} or not name:
            raise RequestError(f"the target {name[:40]!r} is not an object of values and classes")
        values = decode_vector(described["values"], f"the target {name[:40]!r}")
        classes = tuple(as_names(described["classes"], "classes"))
        if values.dtype != np.float64 or not np.isfinite(values).all():
            raise DataError(f"the target {name[:40]!r} holds a NaN or infinity: fix it and upload again")
        if classes and not np.isin(values, np.arange(len(classes))).all():
            raise DataError(f"the target {name[:40]!r} holds a code of no class")
        targets[name] = Target(values, classes)
    return targets


def decode_ids(sent: Mapping[str, Any]) -> Sequence[str] | None:
    """Return the identifiers of the observations, if the client sent them."""
    return None if sent.get("ids") is None else as_names(sent["ids"], "ids")


def _decode_schema(sent: Mapping[str, Any]) -> TableSchema:
    """Return the table that a client described."""
    n_obs, widths = field_of(sent, "n_obs", int, "a number of observations"), sent.get("widths")
    if not 1 <= n_obs < 2**40:
        raise RequestError(f"n_obs is {n_obs}: expected a number of observations")
    features = _decode_names(sent, "features")
    encoding = _decode_encoding(sent)
    if widths is None:
        return TableSchema.plain(n_obs, features, encoding)
    if not isinstance(widths, list) or not all(isinstance(width, int) and 0 < width < 2**20 for width in widths):
        raise RequestError("widths are not a list of column counts, one per feature")
    offsets = np.concatenate(([0], np.cumsum(np.array(widths, dtype=np.int64))))
    return TableSchema(n_obs, _decode_names(sent, "columns"), features, offsets, encoding)


def _decode_encoding(sent: Mapping[str, Any]) -> TableEncoding | None:
    """Return the encoding of the table, if the client sent it."""
    if sent.get("encoding") is None:
        return None
    try:
        return TableEncoding.from_json(sent["encoding"])
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise RequestError(f"the encoding of the table cannot be used ({str(error)[:100]}): send it as a client does") from error


def _decode_names(sent: Mapping[str, Any], key: str) -> Sequence[str]:
    """Return names that a client listed, or gave as a prefix and a count."""
    found = sent.get(key)
    if not (isinstance(found, dict) and set(found) == {"numbered", "prefix"}):
        return tuple(as_names(found, key))
    count, prefix = field_of(found, "numbered", int, "a count"), field_of(found, "prefix", str, "text")
    if not 0 <= count <= _MOST_FEATURES:
        raise RequestError(f"{key} are {count} numbered names: expected {_MOST_FEATURES} at most")
    return NumberedNames(count, prefix)


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A rectangle of the uploaded table.

    Attributes
    ----------
    number : int
        Position in the sequence of tiles.
    checksum : int
        CRC-32 of the bytes of all tiles up to and including this one.
    first_obs, first_column, rows, columns : int
    layout : {"columns", "rows"}
        Which of them are contiguous in ``data``.
    data : (n,) array
        Values, of any numeric type.
    """

    number: int
    checksum: int
    first_obs: int
    first_column: int
    rows: int
    columns: int
    layout: Literal["columns", "rows"]
    data: AnyArray

    #: Names of the first six fields in the header of a tile.
    NUMBERS: ClassVar = ("number", "crc", "first_obs", "first_column", "rows", "columns")

    @classmethod
    def of(cls, header: Mapping[str, Any], data: AnyArray) -> Tile:
        """Return the tile with this header, which was checked, and these values."""
        fields: list[Any] = [*(header[name] for name in cls.NUMBERS), header["layout"], data]
        return cls(*fields)

    @property
    def line(self) -> tuple[int | str, ...]:
        """The line of this tile in the upload's record; see ``_checked``."""
        return (self.checksum, self.first_obs, self.first_column, self.rows, self.columns, self.layout, self.data.dtype.name)

    def values(self) -> AnyArray:
        """Return the values, (rows, columns)."""
        if self.layout == "rows":
            return self.data.reshape(self.rows, self.columns)
        return self.data.reshape(self.columns, self.rows).T


@dataclass(slots=True, eq=False)
class _Upload:
    """One upload in progress; without a builder if an earlier server began it and no client has continued it."""

    name: str
    owner: str
    plan: UploadPlan
    folder: str
    size: int
    builder: StoreBuilder | None = None
    tiles: TileLog | None = None
    next: int = 0
    checksum: int = 0
    touched: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    checking: threading.Thread | None = None
    sealing: threading.Thread | None = None
    report: dict[str, Any] | None = None
    error: dict[str, str] | None = None  # encoded: its traceback would keep the matrix mapped, and its room on disk taken

    @property
    def is_being_checked(self) -> bool:
        """Whether tiles of an earlier server are being checked."""
        return self.checking is not None and self.checking.is_alive()

    def is_idle(self, seconds: float) -> bool:
        """Return whether no tile has arrived for so long that the room of the upload is to be free again."""
        if self.sealing is not None or self.is_being_checked:
            return False
        return time.monotonic() - self.touched > (seconds if self.next else min(seconds, _FIRST_TILE_SECONDS))


class Uploads:
    """The uploads of a server; those of an earlier server are continued when their clients begin them again.

    Parameters
    ----------
    pools : Pools
    idle_seconds : float
        Time without a new tile after which an upload is removed.
    """

    def __init__(self, pools: Pools, idle_seconds: float = 900.0) -> None:
        self._pools = pools
        self._records = UploadRecords(pools.own_folder / "uploads")
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._staged: dict[str, _Upload] = {}
        self._ended: dict[str, _Upload] = {}  # so that a repeated commit gets the same reply
        self.bytes_received = 0
        for name in self._records.names():
            self._recover(name)
        pools.sweep({pools.root / upload.plan.pool / upload.folder for upload in self._staged.values()})

    def pool_of(self, name: str) -> str | None:
        """Return the pool of an upload; None where there is no such upload."""
        upload = self._staged.get(name) or self._ended.get(name)
        return None if upload is None else upload.plan.pool

    def begin(self, owner: str, plan: UploadPlan, wait: float = 10.0) -> dict[str, Any]:
        """Begin or continue an upload; return its name, the number of the next tile and the checksum so far.

        While tiles of an earlier server are still being checked after ``wait`` seconds, the reply holds ``checking``: call again.
        """
        with self._lock:
            upload = self._find_or_begin(owner, plan)
            if upload.builder is None and upload.checking is None:
                upload.checking = threading.Thread(target=self._check, args=(upload,), name="check", daemon=True)
                upload.checking.start()
        if upload.checking is not None:
            upload.checking.join(wait)
            if upload.is_being_checked:
                return {"upload": upload.name, "next": 0, "crc": 0, "checking": True}
            if upload.name not in self._staged:  # nothing of it could be used
                return self.begin(owner, plan, wait)
        return {"upload": upload.name, "next": upload.next, "crc": upload.checksum}

    def write(self, owner: str, name: str, tiles: Iterable[Tile]) -> dict[str, Any]:
        """Write tiles; return the number of the next one expected.

        Raises
        ------
        DataError
            A value cannot be stored (the upload is removed), or a tile was damaged on its way.
        """
        upload = self._find(owner, name)
        for tile in tiles:
            with upload.lock:
                refusal = self._write_tile(upload, tile)
            if refusal is not None:
                with self._lock:
                    self._drop(upload, "a value cannot be stored")
                raise refusal
        return {"next": upload.next, "crc": upload.checksum}

    def commit(
        self,
        owner: str,
        name: str,
        tiles: int,
        checksum: int,
        targets: Mapping[str, Target],
        provenance: Mapping[str, Any],
        wait: float,
        ids: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Seal and publish an upload; return ``{"state": "sealing"}``, or the report once it is published.

        Parameters
        ----------
        tiles, checksum : int
            Number of tiles sent, and the CRC-32 of all their bytes.
        targets : mapping of str to Target
        provenance : mapping
        wait : float
            Seconds to wait for the report.
        ids : sequence of str, optional
            Identifiers of the observations.
        """
        upload = self._ended.get(name)
        if upload is None or upload.owner != owner:
            upload = self._find(owner, name)
        with upload.lock:
            if upload.sealing is None and upload.report is None:
                if upload.builder is None:
                    raise UploadLostError("the server was restarted during this upload: begin it again, and it continues")
                if (tiles, checksum) != (upload.next, upload.checksum):
                    raise DataError(
                        f"{upload.next} tiles with checksum {upload.checksum} have arrived, {tiles} with {checksum} were sent: "
                        "send the missing ones first"
                    )
                arguments = (upload, upload.builder, targets, provenance, ids)
                upload.sealing = threading.Thread(target=self._seal, args=arguments, name="seal", daemon=True)
                upload.sealing.start()
        if upload.sealing is not None:
            upload.sealing.join(wait)
        if upload.error is not None:
            raise_error(upload.error)
        return {"state": "sealing"} if upload.report is None else {"state": "done", "report": upload.report}

    def abort(self, owner: str, name: str) -> dict[str, Any]:
        """Remove an upload on request of its owner."""
        upload = self._find(owner, name)
        with self._lock:
            self._drop(upload, "aborted by its owner")
        return {}

    def reap(self) -> int:
        """Remove idle uploads and forget old ended ones; return the number of the removed."""
        with self._lock:
            for upload in list(self._ended.values()):
                if time.monotonic() - upload.touched > _REMEMBERED_SECONDS:
                    self._forget(upload.name)
            idle = [upload for upload in self._staged.values() if upload.is_idle(self._idle_seconds)]
            for upload in idle:
                self._drop(upload, "idle for too long")
        return len(idle)

    @property
    def staged(self) -> int:
        """Uploads under way."""
        return len(self._staged)

    def close(self, seconds: float) -> None:
        """Wait up to ``seconds`` for uploads that are being sealed or checked; leave the others for the next server."""
        end = time.monotonic() + seconds
        with self._lock:
            uploads = list(self._staged.values())
        for upload in uploads:
            threads = [thread for thread in (upload.checking, upload.sealing) if thread is not None]
            for thread in threads:
                thread.join(max(end - time.monotonic(), 0.0))
            if any(thread.is_alive() for thread in threads):
                continue  # the thread uses the files; the next server checks them
            with upload.lock:
                if self._staged.pop(upload.name, None) is not None and upload.builder is not None:
                    upload.builder.leave()
                    _close(upload)

    def _recover(self, name: str) -> None:
        """Take over an upload of an earlier server: as published, as staged, or not at all."""
        try:
            kept, report = self._records.plan(name), self._records.report(name)
            plan = UploadPlan.decode(kept["plan"])
            upload = _Upload(name, kept["owner"], plan, kept["folder"], self._size(plan))
            if report is not None and self._is_published(upload.plan, name):
                upload.report = report
                self._ended[name] = upload
                self._forget_oldest()
            elif self._pools.left_build(upload.plan.pool, upload.folder) is not None:
                self._staged[name] = upload
            else:
                self._records.remove(name)
        except (FastompError, KeyError, TypeError, AttributeError) as error:
            _log.error("an upload cannot be recovered", extra={"upload": name, "reason": str(error)})
            self._records.remove(name)

    def _is_published(self, plan: UploadPlan, name: str) -> bool:
        """Return whether the store at the key was made by this upload."""
        try:
            with self._pools.open(plan.pool, plan.key) as store:
                provenance: Mapping[str, Any] = getattr(store, "provenance", {})
                return provenance.get("upload") == name
        except FastompError:
            return False

    def _find_or_begin(self, owner: str, plan: UploadPlan) -> _Upload:
        """Return the upload that a plan continues, or a new one; the caller holds the lock of all uploads."""
        for upload in list(self._staged.values()):
            if (upload.plan.pool, upload.plan.key) != (plan.pool, plan.key):
                continue
            if upload.owner != owner:
                raise ServerError(f"another user is uploading {plan.pool}/{plan.key}: choose another key or try later")
            if upload.plan.digest == plan.digest:
                return upload
            self._drop(upload, "replaced by another upload of its owner to the same key")
        if len(self._staged) >= _MOST_STAGED:
            raise ServerError(f"{_MOST_STAGED} uploads are in progress, the most this server takes: try later", reason="busy")
        size, others = self._size(plan), [upload.size for upload in self._staged.values() if upload.owner == owner]
        if len(others) >= _MOST_OF_ONE_OWNER:
            raise ServerError(
                f"{len(others)} uploads of {owner!r} are in progress, the most of one user: commit or abort some", reason="busy"
            )
        staged = sum(upload.size for upload in self._staged.values())
        if others and sum(others) + size > (self._pools.room() + staged) // 2:
            raise ServerError(
                f"the uploads of {owner!r} would take more than half of the room on disk: commit or abort some first",
                reason="space",
            )
        builder = self._build(plan)
        upload = _Upload(secrets.token_hex(16), owner, plan, builder.folder, size, builder)
        try:
            upload.tiles = self._records.tiles(upload.name)
            self._records.write_plan(upload.name, owner, plan.sent, upload.folder)
        except BaseException:
            builder.__exit__(None, None, None)
            raise
        self._staged[upload.name] = upload
        return upload

    def _size(self, plan: UploadPlan) -> int:
        """Return the bytes of the matrix of a plan."""
        return self._pools.size_of(plan.schema, plan.settings["dtype"], plan.settings["tier"])

    def _build(self, plan: UploadPlan, folder: str | None = None) -> StoreBuilder:
        """Return a builder for a plan."""
        return self._pools.build(plan.pool, plan.key, plan.schema, folder, **plan.settings)

    def _check(self, upload: _Upload) -> None:
        """Continue an upload of an earlier server: accept its tiles up to the first whose bytes do not match their checksum."""
        with upload.lock:
            try:
                builder, tiles = self._build(upload.plan, upload.folder), self._records.tiles(upload.name)
                count = checksum = 0
                for line in tiles.lines():
                    if (claimed := _checked(builder, line, upload.plan.settings["dtype"], checksum)) is None:
                        break
                    count, checksum = count + 1, claimed
                tiles.cut(count)
            except Exception:  # whatever the reason, the client can send the upload again
                _log.exception("an upload cannot be continued", extra={"upload": upload.name})
                self._staged.pop(upload.name, None)
                self._pools.discard(upload.plan.pool, upload.folder)
                self._records.remove(upload.name)
                return
            upload.builder, upload.tiles, upload.next, upload.checksum = builder, tiles, count, checksum
            upload.touched = time.monotonic()
            _log.info("upload continued", extra={"pool": upload.plan.pool, "key": upload.plan.key, "tiles": count})

    def _find(self, owner: str, name: str) -> _Upload:
        """Return an upload of this owner."""
        upload = self._staged.get(name)
        if upload is None or upload.owner != owner:
            raise UploadLostError("there is no such upload here (it was removed, or the server was restarted): begin again")
        return upload

    def _write_tile(self, upload: _Upload, tile: Tile) -> FastompError | None:
        """Check and write a tile, unless it was written before; return the error of values that cannot be stored."""
        builder, lines = upload.builder, upload.tiles
        if upload.name not in self._staged or upload.sealing is not None or builder is None or lines is None:
            raise UploadLostError("the upload was removed or committed, or the server was restarted: begin again")
        upload.touched = time.monotonic()
        if tile.number < upload.next:
            return None
        if tile.number > upload.next:
            raise DataError(f"tile {tile.number} arrived, tile {upload.next} was expected: continue from there")
        if tile.data.nbytes > LARGEST_TILE or tile.data.size != tile.rows * tile.columns:
            raise RequestError(
                f"a {tile.rows} x {tile.columns} tile holds {tile.data.nbytes} bytes: expected all values, {LARGEST_TILE} at most"
            )
        checksum = crc32(tile.data.view(np.uint8).data, upload.checksum)
        if checksum != tile.checksum:
            raise DataError(f"tile {tile.number} was damaged on its way: send it again")
        try:
            builder.write_tile(tile.first_obs, tile.first_column, tile.values())
        except FastompError as error:
            return error
        lines.append(tile.line)
        upload.next += 1
        upload.checksum = checksum
        self.bytes_received += tile.data.nbytes
        return None

    def _seal(
        self,
        upload: _Upload,
        builder: StoreBuilder,
        targets: Mapping[str, Target],
        provenance: Mapping[str, Any],
        ids: Sequence[str] | None,
    ) -> None:
        """Finish the store; the upload gets the report or the error."""
        try:
            place = f"{upload.plan.pool}/{upload.plan.key}"

            def announce(report: Any) -> None:
                # The store holds the name of its upload: after a crash that shows whether it was published.
                self._records.write_report(upload.name, {**asdict(report), "url": place})

            with builder:
                report = builder.finish(targets, {**provenance, "upload": upload.name}, announce, ids)
            upload.report = {**asdict(report), "url": place}
            _log.info("published", extra={"pool": upload.plan.pool, "key": upload.plan.key, "owner": upload.owner})
        except FastompError as error:
            upload.error = encode_error(error)
        except Exception:
            _log.exception("sealing failed", extra={"pool": upload.plan.pool, "key": upload.plan.key})
            upload.error = encode_error(ServerError("the server failed to seal the upload: see its log"))
        _close(upload)
        upload.builder = None
        upload.touched = time.monotonic()
        if upload.error is not None:
            self._records.remove(upload.name)
        with self._lock:
            self._staged.pop(upload.name, None)
            self._ended[upload.name] = upload
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Bound the number of ended uploads that are remembered."""
        while len(self._ended) > _MOST_REMEMBERED:
            self._forget(next(iter(self._ended)))

    def _forget(self, name: str) -> None:
        """Forget an ended upload."""
        del self._ended[name]
        self._records.remove(name)

    def _drop(self, upload: _Upload, reason: str) -> None:
        """Remove an upload with its files; the caller holds the lock of all uploads."""
        if upload.is_being_checked:
            raise ServerError("tiles of an earlier server are being checked: try again later")
        with upload.lock:  # no thread writes into the files that are about to be closed
            if upload.sealing is not None:
                raise ServerError("the upload is being sealed and cannot be aborted any more")
            if self._staged.pop(upload.name, None) is None:
                return
            if upload.builder is None:
                self._pools.discard(upload.plan.pool, upload.folder)
            else:
                upload.builder.__exit__(None, None, None)
                _close(upload)
            self._records.remove(upload.name)
            _log.info("upload removed", extra={"pool": upload.plan.pool, "key": upload.plan.key, "reason": reason})


def _close(upload: _Upload) -> None:
    """Close the record of an upload's tiles."""
    if upload.tiles is not None:
        upload.tiles.close()
        upload.tiles = None


def _checked(builder: StoreBuilder, line: list[Any], dtype: str, before: int) -> int | None:
    """Accept the tile that a line describes and return the checksum up to it; None where its bytes do not match.

    ``before`` is the checksum of all earlier tiles. A tile that was sent in another type than it is stored in cannot be compared.
    """
    try:
        claimed, first_obs, first_column, rows, columns, layout, sent = line
    except ValueError:
        return None
    if sent != dtype or not all(isinstance(number, int) and number >= 0 for number in line[:5]):
        return None

    def is_whole(values: AnyArray) -> bool:
        data = np.ascontiguousarray(values.T if layout == "columns" else values)
        return bool(crc32(data.reshape(-1).view(np.uint8).data, before) == claimed)

    return int(claimed) if builder.adopt_tile(first_obs, first_column, (rows, columns), is_whole) else None
