"""Uploads on their way into a pool: staged, checked tile by tile, resumable, published only by an explicit commit.

A client sends numbered tiles; each carries the CRC-32 of all bytes up to its end, so that a tile that is damaged, missing, repeated
or out of another upload is noticed before it is written. Whoever begins the same upload again is told how far it is and goes on
from there, also when the server died in between: the tiles it had are then read again and checked. What nobody goes on with is
reaped. Sealing a large store takes a while, so ``commit`` can be asked again and again; asked after the store was published, it
gives the report once more. Knows neither sockets nor roles.
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
from typing import Any, Literal

import numpy as np

from ado_plugin.service.pools import Pools
from ado_plugin.service.records import TileLog, UploadRecord, UploadRecords
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import check_name
from fastomp_nvm.errors import DataError, FastompError, RequestError, ServerError, UploadLostError
from fastomp_nvm.matrix.checksum import crc32
from fastomp_nvm.selection.codec import as_names
from fastomp_nvm.stores.contract import Target
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.schema import TableSchema

__all__ = ["LARGEST_TILE", "Tile", "UploadPlan", "Uploads", "decode_schema"]

#: Bytes of one tile.
LARGEST_TILE = 32 << 20

_MOST_FEATURES = 1 << 25
_MOST_STAGED = 64
_MOST_REMEMBERED = 1000
_REMEMBERED_SECONDS = 3600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class UploadPlan:
    """A client's description of an upload, checked.

    Attributes
    ----------
    pool, key : str
    schema : TableSchema
    dtype, missing, tier : str
    replace : bool
        Whether the key may exist.
    sent : mapping
        The description as the client sent it.
    digest : str
        Equal for equal plans: a client that begins an equal one goes on with the same upload.
    """

    pool: str
    key: str
    schema: TableSchema
    dtype: str
    missing: str
    tier: str
    replace: bool
    sent: Mapping[str, Any]
    digest: str

    @classmethod
    def decode(cls, sent: Mapping[str, Any]) -> UploadPlan:
        """Return the plan that a client sent; access to its pool is not checked here."""
        pool, key = check_name(sent.get("pool"), "pool"), check_name(sent.get("key"), "key")
        settings = {name: sent.get(name) for name in ("dtype", "missing", "tier")}
        if not all(isinstance(value, str) for value in settings.values()) or not isinstance(sent.get("replace"), bool):
            raise RequestError(f"an upload needs {', '.join(settings)} as text and replace as true or false")
        digest = hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()
        return cls(pool, key, decode_schema(sent), sent["dtype"], sent["missing"], sent["tier"], sent["replace"], sent, digest)


def decode_schema(sent: Mapping[str, Any]) -> TableSchema:
    """Return the table that a client described."""
    n_obs, widths = sent.get("n_obs"), sent.get("widths")
    if not isinstance(n_obs, int) or isinstance(n_obs, bool) or not 1 <= n_obs < 2**40:
        raise RequestError(f"n_obs is {str(n_obs)[:40]!r}: expected a number of observations")
    features = _decode_names(sent, "features")
    if widths is None:
        return TableSchema.plain(n_obs, features)
    if not isinstance(widths, list) or not all(isinstance(width, int) and 0 < width < 2**20 for width in widths):
        raise RequestError("widths are not a list of column counts, one per feature")
    offsets = np.concatenate(([0], np.cumsum(np.array(widths, dtype=np.int64))))
    return TableSchema(n_obs, _decode_names(sent, "columns"), features, offsets)


def _decode_names(sent: Mapping[str, Any], key: str) -> Sequence[str]:
    """Return names that a client listed, or gave as a prefix and a count."""
    found = sent.get(key)
    if not (isinstance(found, dict) and set(found) == {"numbered", "prefix"}):
        return tuple(as_names(found, key))
    count, prefix = found["numbered"], found["prefix"]
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST_FEATURES or not isinstance(prefix, str):
        raise RequestError(f"{key} are not numbered names: expected a count and a prefix")
    return NumberedNames(count, prefix)


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

    @property
    def line(self) -> tuple[int | str, ...]:
        """What a record says of it; see ``_checked``."""
        return (self.checksum, self.first_obs, self.first_column, self.rows, self.columns, self.layout, self.data.dtype.name)

    def values(self) -> AnyArray:
        """Return the values, (rows, columns)."""
        if self.layout == "rows":
            return self.data.reshape(self.rows, self.columns)
        return self.data.reshape(self.columns, self.rows).T


@dataclass(slots=True, eq=False)
class _Upload:
    """One upload in progress; without a builder while it is as an earlier server left it."""

    name: str
    owner: str
    plan: UploadPlan
    folder: str
    builder: Any = None
    tiles: TileLog | None = None
    next: int = 0
    checksum: int = 0
    touched: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    checking: threading.Thread | None = None
    sealing: threading.Thread | None = None
    outcome: dict[str, Any] | FastompError | None = None


class Uploads:
    """The uploads of a server; those that an earlier one left are gone on with when somebody asks for them.

    Parameters
    ----------
    pools : Pools
    idle_seconds : float
        How long an upload may lie still before it is reaped.
    """

    def __init__(self, pools: Pools, idle_seconds: float = 900.0) -> None:
        self._pools = pools
        self._records = UploadRecords(pools.own_folder / "uploads")
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._staged: dict[str, _Upload] = {}
        self._ended: dict[str, _Upload] = {}  # so that a repeated commit hears the same answer
        self.bytes_received = 0
        for record in self._records.load():
            self._take_over(record)
        pools.sweep({pools.root / upload.plan.pool / upload.folder for upload in self._staged.values()})

    def begin(self, owner: str, plan: UploadPlan, wait: float = 10.0) -> dict[str, Any]:
        """Start an upload, or find the one that was left; return its name, the next tile and the checksum so far.

        When tiles of an earlier server are still being checked after ``wait`` seconds, ``checking`` stands in the reply: ask again.
        """
        with self._lock:
            upload = self._begun(owner, plan)
            upload.touched = time.monotonic()
            if upload.builder is None and upload.checking is None:
                upload.checking = threading.Thread(target=self._check, args=(upload,), name="check", daemon=True)
                upload.checking.start()
        if upload.checking is not None:
            upload.checking.join(wait)
            if upload.checking.is_alive():
                return {"upload": upload.name, "next": 0, "crc": 0, "checking": True}
            if upload.name not in self._staged:  # nothing of it could be used
                return self.begin(owner, plan, wait)
        return {"upload": upload.name, "next": upload.next, "crc": upload.checksum}

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
            if upload.sealing is None and upload.outcome is None:
                if upload.builder is None:
                    raise UploadLostError("the server was restarted during this upload: begin again, it tells how far it is")
                if (tiles, checksum) != (upload.next, upload.checksum):
                    raise DataError(
                        f"{upload.next} tiles with checksum {upload.checksum} have arrived, {tiles} with {checksum} were sent: "
                        "send what is missing first"
                    )
                arguments = (upload, targets, provenance)
                upload.sealing = threading.Thread(target=self._seal, args=arguments, name="seal", daemon=True)
                upload.sealing.start()
        if upload.sealing is not None:
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
        """Give up what has lain still for too long; return how many. What ended is forgotten in time, too."""
        with self._lock:
            for upload in list(self._ended.values()):
                if time.monotonic() - upload.touched > _REMEMBERED_SECONDS:
                    self._forget(upload.name)
            idle = [
                upload
                for upload in self._staged.values()
                if upload.sealing is None
                and (upload.checking is None or not upload.checking.is_alive())
                and time.monotonic() - upload.touched > self._idle_seconds
            ]
            for upload in idle:
                self._drop(upload, "nobody went on with it")
        return len(idle)

    @property
    def staged(self) -> int:
        """Uploads under way."""
        return len(self._staged)

    def close(self, seconds: float) -> None:
        """Give what is being sealed or checked ``seconds`` to end; leave the rest for the next server."""
        end = time.monotonic() + seconds
        with self._lock:
            uploads = list(self._staged.values())
        for upload in uploads:
            threads = [thread for thread in (upload.checking, upload.sealing) if thread is not None]
            for thread in threads:
                thread.join(max(end - time.monotonic(), 0.0))
            if any(thread.is_alive() for thread in threads):
                continue  # it has the upload's files, and the next server finds them as it leaves them
            with upload.lock:
                if self._staged.pop(upload.name, None) is not None and upload.builder is not None:
                    upload.builder.leave()
                    _close(upload)

    def _take_over(self, record: UploadRecord) -> None:
        """Find out what became of an upload of an earlier server."""
        try:
            plan = UploadPlan.decode(record.plan)
            upload = _Upload(record.name, record.owner, plan, record.folder)
            if record.report is not None and self._holds(plan, record.name):
                upload.outcome = dict(record.report)
                self._ended[record.name] = upload
                self._forget_oldest()
            elif self._pools.left_build(plan.pool, record.folder) is not None:
                self._staged[record.name] = upload
            else:
                self._records.remove(record.name)
        except FastompError as error:
            _log.error("an upload cannot be recovered", extra={"upload": record.name, "reason": str(error)})
            self._records.remove(record.name)

    def _holds(self, plan: UploadPlan, name: str) -> bool:
        """Tell whether what stands at the key is what this upload brought."""
        try:
            with self._pools.open(plan.pool, plan.key) as store:
                provenance: Mapping[str, Any] = getattr(store, "provenance", {})
                return provenance.get("upload") == name
        except FastompError:
            return False

    def _begun(self, owner: str, plan: UploadPlan) -> _Upload:
        """Return the upload that a plan goes on with, or a new one; the caller holds the lock of all uploads."""
        for upload in list(self._staged.values()):
            if (upload.plan.pool, upload.plan.key) != (plan.pool, plan.key):
                continue
            if upload.owner != owner:
                raise ServerError(f"someone else is uploading {plan.pool}/{plan.key}: choose another key or try later")
            if upload.plan.digest == plan.digest:
                return upload
            self._drop(upload, "its owner began another upload to the same key")
        if len(self._staged) >= _MOST_STAGED:
            raise ServerError(f"{_MOST_STAGED} uploads are under way, the most this server takes: try later")
        upload = _Upload(secrets.token_hex(16), owner, plan, "", self._build(plan))
        upload.folder = upload.builder.folder
        try:
            upload.tiles = self._records.tiles(upload.name)
            self._records.write_plan(upload.name, owner, plan.sent, upload.folder)
        except BaseException:
            upload.builder.__exit__(None, None, None)
            raise
        self._staged[upload.name] = upload
        return upload

    def _build(self, plan: UploadPlan, folder: str | None = None) -> Any:
        """Return a builder for a plan."""
        settings: dict[str, Any] = {"dtype": plan.dtype, "missing": plan.missing, "tier": plan.tier, "replace": plan.replace}
        return self._pools.build(plan.pool, plan.key, plan.schema, **settings, folder=folder)

    def _check(self, upload: _Upload) -> None:
        """Go on with what an earlier server left: every tile that is still as it was sent counts, up to the first that is not."""
        with upload.lock:
            try:
                builder, tiles = self._build(upload.plan, upload.folder), self._records.tiles(upload.name)
                count = checksum = 0
                for line in tiles.lines():
                    if (claimed := _checked(builder, line, upload.plan.dtype, checksum)) is None:
                        break
                    count, checksum = count + 1, claimed
                tiles.cut(count)
            except Exception:  # whatever it is, the upload can still be sent again
                _log.exception("an upload cannot be gone on with", extra={"upload": upload.name})
                self._staged.pop(upload.name, None)
                self._pools.discard(upload.plan.pool, upload.folder)
                self._records.remove(upload.name)
                return
            upload.builder, upload.tiles, upload.next, upload.checksum = builder, tiles, count, checksum
            upload.touched = time.monotonic()
            _log.info("upload gone on with", extra={"pool": upload.plan.pool, "key": upload.plan.key, "tiles": count})

    def _find(self, owner: str, name: object) -> _Upload:
        """Return an upload of this owner."""
        upload = self._staged.get(name) if isinstance(name, str) else None
        if upload is None or upload.owner != owner:
            raise UploadLostError("the server knows no such upload (it was given up, or the server was restarted): begin again")
        return upload

    def _take(self, upload: _Upload, tile: Tile) -> FastompError | None:
        """Check a tile and write it, one that is known already is passed over; return why its values cannot be stored."""
        if upload.name not in self._staged or upload.sealing is not None or upload.tiles is None:
            raise UploadLostError("the upload was given up or committed, or the server was restarted: begin again")
        upload.touched = time.monotonic()
        if tile.number < upload.next:
            return None
        if tile.number > upload.next:
            raise DataError(f"tile {tile.number} arrived, tile {upload.next} was expected: send it again from there")
        if tile.data.nbytes > LARGEST_TILE or tile.data.size != tile.rows * tile.columns:
            raise RequestError(
                f"a tile of {tile.rows} x {tile.columns} holds {tile.data.nbytes} bytes: at most {LARGEST_TILE}, and all of it"
            )
        checksum = crc32(tile.data.view(np.uint8).data, upload.checksum)
        if checksum != tile.checksum:
            raise DataError(f"tile {tile.number} did not arrive as it was sent: send it again")
        try:
            upload.builder.write_tile(tile.first_obs, tile.first_column, tile.values())
        except FastompError as error:
            return error
        upload.tiles.append(tile.line)
        upload.next += 1
        upload.checksum = checksum
        self.bytes_received += tile.data.nbytes
        return None

    def _seal(self, upload: _Upload, targets: Mapping[str, Target], provenance: Mapping[str, Any]) -> None:
        """Finish the store and keep the report, or the reason why not."""
        try:
            place = f"{upload.plan.pool}/{upload.plan.key}"

            def announce(report: Any) -> None:
                # With the name of the upload in the store: whoever asks after a crash can tell whether it was published.
                self._records.write_report(upload.name, {**asdict(report), "url": place})

            with upload.builder:
                report = upload.builder.finish(targets, {**provenance, "upload": upload.name}, announce)
            upload.outcome = {**asdict(report), "url": place}
            _log.info("published", extra={"pool": upload.plan.pool, "key": upload.plan.key, "owner": upload.owner})
        except FastompError as error:
            upload.outcome = error
        except Exception:
            _log.exception("sealing failed", extra={"pool": upload.plan.pool, "key": upload.plan.key})
            upload.outcome = ServerError("the server failed to seal the upload: its log says why")
        _close(upload)
        upload.touched = time.monotonic()
        if isinstance(upload.outcome, FastompError):
            self._records.remove(upload.name)
        with self._lock:
            self._staged.pop(upload.name, None)
            self._ended[upload.name] = upload
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Bound what is remembered of uploads that ended."""
        while len(self._ended) > _MOST_REMEMBERED:
            self._forget(next(iter(self._ended)))

    def _forget(self, name: str) -> None:
        """Forget an upload that ended; a commit asked again then begins anew."""
        del self._ended[name]
        self._records.remove(name)

    def _drop(self, upload: _Upload, reason: str) -> None:
        """Forget an upload and everything it staged; the caller holds the lock of all uploads."""
        if upload.checking is not None and upload.checking.is_alive():
            raise ServerError("what an earlier server left of the upload is being checked: try again in a while")
        with upload.lock:  # nobody is writing into files that are about to be closed
            if upload.sealing is not None:
                raise ServerError("the upload is being sealed and cannot be given up any more")
            if self._staged.pop(upload.name, None) is None:
                return
            if upload.builder is None:
                self._pools.discard(upload.plan.pool, upload.folder)
            else:
                upload.builder.__exit__(None, None, None)
                _close(upload)
            self._records.remove(upload.name)
            _log.info("upload given up", extra={"pool": upload.plan.pool, "key": upload.plan.key, "reason": reason})


def _close(upload: _Upload) -> None:
    """Close the lines of an upload."""
    if upload.tiles is not None:
        upload.tiles.close()
        upload.tiles = None


def _checked(builder: Any, line: list[Any], dtype: str, before: int) -> int | None:
    """Take over the tile that a line speaks of and return the checksum so far, or None where its bytes are not what was sent.

    ``before`` is the checksum of all tiles before it. A tile that came in another type than it is stored in cannot be compared.
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
