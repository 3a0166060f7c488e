"""The client's operations on an MCAS server: the same as on a pool server, but driven by the client.

MCAS has no queue and no jobs: it runs one function next to one value. A run is therefore a set of values in the pool (the record of
its request, arrays for its journal, the result), and following its progress *is* what drives it, slice by slice; any client can
continue it from the journal. Two drivers do no harm: each slice names the sequence it expects, and the server's key lock keeps them
apart. Keys are listed from a separate index value, because upstream's scan is not safe. Knows upstream's client module only through
:mod:`ado_plugin.mcas.session`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ado_plugin.mcas.message import data_of, plugin_message, read_plugin_reply, value_of
from ado_plugin.mcas.prediction import predicted_pages
from ado_plugin.mcas.session import LARGEST_VALUE, LOCK_POLL_SECONDS, REOPEN_SECONDS, McasSession
from ado_plugin.mcas.slice import FIRST_ROOM, RESULT, log_identifier, log_name
from ado_plugin.mcas.staging import MANIFEST_BYTES, Staging, is_held, padded_json, values_of_store
from ado_plugin.service.operations import OPERATIONS
from ado_plugin.service.uploads import UploadPlan, field_of
from fastomp_nvm.durable_files import check_name
from fastomp_nvm.errors import (
    CallFailedError,
    CancelledError,
    FastompError,
    InputError,
    LockedError,
    RequestError,
    ServerError,
    StoreURLError,
    UnreachableError,
    encode_error,
    raise_error,
)
from fastomp_nvm.remote.address import ServerURL
from fastomp_nvm.remote.protocol import WireTile
from fastomp_nvm.runs.log import read_state
from fastomp_nvm.selection.codec import decode_message, encode_message
from fastomp_nvm.selection.run_info import describe_job
from fastomp_nvm.version import __version__
from storage_backends.media.mcas import RunRegions
from storage_backends.opened import already_exists

__all__ = ["SLICE_SECONDS", "McasTransport"]

#: Seconds for which one call drives a run; upstream's client gives up after 30.
SLICE_SECONDS = 3.0

_INDEX = "fastomp/index"
_INDEX_BYTES = 256 << 10
_INDEX_ATTEMPTS = 5
_LARGEST_REQUEST = 1 << 30
_MOST_FAILURES = 3
#: Bytes of a pool created by its first upload, unless FASTOMP_MCAS_POOL_BYTES is set or the data needs more.
_POOL_BYTES = 1 << 30


class McasTransport:
    """The operations on one MCAS server.

    Parameters
    ----------
    address : ServerURL
    token, certificates
        MCAS has neither; they are refused rather than ignored.
    """

    def __init__(self, address: ServerURL, token: str | None = None, certificates: bytes | None = None) -> None:
        if token is not None or certificates is not None:
            raise InputError(f"{address.server} has neither tokens nor TLS: leave them out, and use it on a trusted network only")
        self._pool = address.pool
        self._session = McasSession(address.host, address.port)
        self._staging = Staging(self._session)
        self._failed: dict[str, dict[str, str]] = {}  # by job: its error, as seen by this client
        self._failures: dict[str, int] = {}  # by job: consecutive slices that failed
        self._locked_since: dict[str, float] = {}
        self._sequences: dict[str, int] = {}  # by job: the last sequence seen
        self._versions: dict[str, int] = {}
        self._timeout = 30.0

    def call(self, operation: str, body: bytes, timeout: float) -> Iterator[bytes]:
        """Carry out an operation and yield its replies."""
        carry_out = getattr(self, f"_{operation}", None) if operation in OPERATIONS else None
        if carry_out is None:
            raise RequestError(f"an MCAS server cannot do {operation!r}: copy the store, or use a server of 'fastomp serve'")
        self._timeout = timeout
        for reply in carry_out(decode_message(body)):
            yield encode_message(reply)

    def send(self, upload: str, tiles: Iterable[WireTile], timeout: float) -> bytes:
        """Write tiles of an upload."""
        return encode_message(self._staging.write(upload, tiles))

    def close(self) -> None:
        """Close the connection; runs stay in the pool."""
        self._staging.close()
        self._session.close()

    def invoke(self, pool: str, key: str, parameters: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Call the plugin in the server on a value that exists; return its reply."""
        timeout = self._timeout if timeout is None else timeout
        return read_plugin_reply(self._session.invoke(pool, key, plugin_message(parameters), timeout))

    def _ping(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Check that the server answers."""
        self._session.open(self._pool or "fastomp", self._timeout)
        yield {"version": __version__, "name": "anybody", "role": "admin"}

    def _list(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """List the keys of a pool."""
        if body.get("pool") is None:
            raise InputError("an MCAS server does not list its pools: name one, mcas://host:port/pool")
        pool = self._open(body)
        keys = []
        for key in self._index(pool)["keys"]:
            manifest = self._json(pool, f"fo/{key}")
            if manifest is not None:
                keys.append({"key": key, **{name: manifest.get(name) for name in ("n_features", "n_obs", "dtype", "bytes")}})
        yield {"pool": pool, "keys": keys}

    def _info(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Describe a store."""
        pool, key = self._open(body), check_name(body.get("key"), "key")
        self._manifest(pool, key)
        facts = self.invoke(
            pool, f"fo/{key}", {"operation": "info", "key": key, **{part: body.get(part) for part in ("name", "names", "columns")}}
        )
        yield {**facts, "url": f"{pool}/{key}"}

    def _delete(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Delete a store that no unfinished run uses, with its finished runs."""
        pool, key = self._open(body), check_name(body.get("key"), "key")
        self._clear(pool, key)
        manifest = self._manifest(pool, key)
        runs = [job for job, of in self._index(pool)["runs"].items() if of == key]
        busy = [job for job in runs if self._is_open(pool, job)]
        if busy:
            raise ServerError(f"{len(busy)} runs on {pool}/{key} are not finished ({busy[0]} is one): cancel them or wait")
        self._session.erase(pool, f"fo/{key}", self._timeout)
        for value in values_of_store(key, manifest):
            self._session.erase(pool, value, self._timeout)
        for job in runs:
            self._erase_run(pool, job)

        def without(index: dict[str, Any]) -> None:
            index["keys"] = [other for other in index["keys"] if other != key]
            index["runs"] = {job: of for job, of in index["runs"].items() if of != key}

        self._change_index(pool, without)
        yield {}

    def _put(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Begin an upload."""
        plan = UploadPlan.decode(body)
        _pool_bytes()  # raises for a wrong setting before the data is sent
        if self._session.open(plan.pool, self._timeout):
            self._replaced(plan)
        yield self._staging.begin(plan)

    def _commit(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Seal an upload and put it."""
        plan, report, folder = self._staging.finish(body)
        pool, key = plan.pool, plan.key
        try:
            needed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            self._session.open(pool, self._timeout, max(_pool_bytes(), 3 * needed))
            before = self._replaced(plan)
            self._clear(pool, key)
            manifest = self._staging.manifest(folder)
            try:
                self._announce(pool, key, [manifest, *before])
                self._staging.push(pool, key, folder, manifest, self._timeout)
                # Another client that puts the same key treats unfinished values as abandoned and erases them, the first one first.
                if not self._session.has(pool, next(values_of_store(key, manifest)), self._timeout):
                    raise ServerError(f"another client has put {pool}/{key} meanwhile: put it again to replace that store")
                self._session.put(pool, f"fo/{key}", value_of(f"fo/{key}", padded_json(manifest, MANIFEST_BYTES)), self._timeout)
            except UnreachableError:
                raise  # the next put or delete removes the values
            except BaseException as error:
                with contextlib.suppress(FastompError):
                    self._session.open(pool, self._timeout)
                    self._clear(pool, key)
                if isinstance(error, CallFailedError):
                    raise ServerError(
                        f"{error}; the pool {pool!r} may be full: a pool keeps the size it was made with (FASTOMP_MCAS_POOL_BYTES)"
                    ) from error
                raise
            self._clear(pool, key)
        finally:
            self._staging.drop(body["upload"])
        report["url"] = f"{pool}/{key}"
        yield {"state": "done", "report": report}

    def _abort(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Remove an upload."""
        self._staging.drop(str(body.get("upload")))
        yield {}

    def _select(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Put the record of a run of one or more requests and the arrays for its journal; ``progress`` drives it.

        A repetition changes nothing.
        """
        requests = field_of(body, "requests", list, "a list of requests", [body.get("request")])
        pool, key, job = self._open(body), check_name(body.get("key"), "key"), check_name(body.get("job"), "run")
        manifest = self._manifest(pool, key)
        asked = {"job": job, "key": key, "requests": requests, "y": body.get("y"), "verify": bool(body.get("verify"))}
        record = self._json(pool, f"run/{job}")
        if record is None:
            record = {**asked, "id": secrets.token_hex(16), "fingerprint": manifest["fingerprint"]}
            encoded = json.dumps(record, separators=(",", ":")).encode()
            if len(encoded) > min(_LARGEST_REQUEST, LARGEST_VALUE):
                raise RequestError(f"the request has {len(encoded)} bytes, an MCAS value holds fewer: keep the target in the store")
            for number in range(len(requests)):
                self._make_room(pool, job, f"{log_name(number)}.0", FIRST_ROOM)
            # In the index before it exists: a run that is not listed could never be removed.
            self._change_index(pool, lambda index: index["runs"].update({job: key}))
            self._session.put(pool, f"run/{job}", value_of(f"run/{job}", encoded), self._timeout)
        elif {name: record.get(name) for name in asked} != asked:
            raise ServerError(f"a run {job!r} with another request exists: choose another name")
        yield self._state(pool, job, record, 0.0)

    _select_many = _select

    def _predict(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Evaluate a model on a store; the linear predictor and the identifiers come in parts."""
        pool, key = check_name(body.get("pool"), "pool"), check_name(body.get("key"), "key")
        yield from predicted_pages(self._session, pool, key, body.get("model"), self._timeout)

    def _jobs(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """List the runs in a pool, or those on a key, without driving them."""
        if body.get("pool") is None:
            raise InputError("the pool of the runs is not known: name it in the URL, mcas://host:port/pool")
        pool, key = self._open(body), body.get("key")
        records = {job: self._json(pool, f"run/{job}") for job, of in self._index(pool)["runs"].items() if key in (None, of)}
        yield {"jobs": [self._listed(pool, job, record) for job, record in records.items() if record is not None]}

    def _listed(self, pool: str, job: str, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a run as lists of runs show it."""
        state, answers = self._state(pool, job, record, 0.0), []
        if state["state"] == "done":
            answers = decode_message(self._answers(pool, job, record)[-1])["answers"]
        return {**state, **describe_job(record["requests"][0], answers)}

    def _progress(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Drive a run for as long as the caller waits; yield its state after each slice."""
        pool, job, record = self._find(body)
        wait = float(body.get("wait", 0.0))
        end = time.monotonic() + wait
        while True:
            now = self._state(pool, job, record, min(SLICE_SECONDS, max(end - time.monotonic(), 0.1)) if wait else 0.0)
            yield now
            if now["state"] != "running" or time.monotonic() >= end:
                return

    def _result(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Read the answers of a finished run."""
        pool, job, record = self._find(body)
        if answers := self._answers(pool, job, record):
            yield decode_message(answers[-1])
        elif job in self._failed:
            raise_error(self._failed[job])
        else:
            raise ServerError(f"the run {job!r} is not finished: follow its progress, which drives it")

    def _cancel(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Mark a run as cancelled, so that no client drives it."""
        pool, job, record = self._find(body)
        mark = f"run/{job}/cancelled"
        self._session.put(pool, mark, value_of(mark, b"1"), self._timeout)
        yield self._state(pool, job, record, 0.0)

    def _resume(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Remove the mark of cancellation and the error."""
        pool, job, record = self._find(body)
        self._session.erase(pool, f"run/{job}/cancelled", self._timeout)
        self._failed.pop(job, None)
        self._failures.pop(job, None)
        yield self._state(pool, job, record, 0.0)

    def _state(self, pool: str, job: str, record: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the state of a run, after driving it for ``seconds`` if that is not 0."""
        if self._session.has(pool, f"run/{job}/cancelled", self._timeout):
            self._failed[job] = encode_error(CancelledError(f"the run {job!r} was cancelled"))
        elif self._failed.get(job, {}).get("kind") == "CancelledError":
            del self._failed[job]  # another client has resumed it
        reply = {} if job in self._failed else self._advance(pool, job, record, seconds)
        if error := self._failed.get(job):
            state = "cancelled" if error["kind"] == "CancelledError" else "failed"
        else:
            state = "done" if reply.get("state") == "done" else "running"
        self._versions[job] = self._versions.get(job, 0) + 1
        return {
            "job": job,
            "pool": pool,
            "key": record["key"],
            "state": state,
            "version": self._versions[job],
            "progress": reply.get("progress", []),
            "error": error,
        }

    def _advance(self, pool: str, job: str, record: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the reply of a slice of ``seconds``; 0 only reads the sequence."""
        call = {"operation": "slice", "run": record["id"], "seconds": seconds}
        try:
            now = self.invoke(pool, f"run/{job}", {**call, "expected": self._sequences.get(job, -1) if seconds else -1})
            while seconds and now["state"] in ("moved", "room"):
                if now["state"] == "room":
                    self._make_room(pool, job, now["region"], now["size"])
                now = self.invoke(pool, f"run/{job}", {**call, "expected": now["sequence"]})
            self._sequences[job] = now["sequence"]
            self._failures.pop(job, None)
            self._locked_since.pop(job, None)
            return now
        except LockedError as error:
            return self._wait_for_lock(pool, job, error)
        except (CallFailedError, UnreachableError) as error:
            # A slice took too long, or a helper process died; the journal in the pool is intact.
            self._failures[job] = self._failures.get(job, 0) + 1
            if self._failures[job] > _MOST_FAILURES:
                self._failed[job] = encode_error(
                    ServerError(f"{_MOST_FAILURES} consecutive slices of the run {job!r} failed ({error}): see fastomp ado check")
                )
                return {}
            self._session.open(pool, self._timeout)  # raises if the server does not answer
            return {}
        except FastompError as error:
            self._failed[job] = encode_error(error)
            return {}

    def _wait_for_lock(self, pool: str, job: str, error: LockedError) -> dict[str, Any]:
        """Wait for another driver; a lock that is never released was left by a helper process that died."""
        since = self._locked_since.setdefault(job, time.monotonic())
        if time.monotonic() - since > self._timeout:
            self._locked_since.pop(job)
            raise UnreachableError(
                f"the run {job!r} stays locked ({error}): the server's helper process died; close the pool {pool!r} in all clients"
            )
        time.sleep(LOCK_POLL_SECONDS)
        if time.monotonic() - since > REOPEN_SECONDS:
            self._session.reopen(pool, self._timeout)
        return {}

    def _announce(self, pool: str, key: str, manifests: Sequence[Mapping[str, Any]]) -> None:
        """Note in the index the values about to be put, and those they replace: values that no index names are never erased."""
        place = {"key": key, "host": platform.node(), "folder": self._staging.folder}
        noted = [{**place, **{name: each[name] for name in ("token", "pieces", "files", "arrays")}} for each in manifests]

        def note(index: dict[str, Any]) -> None:
            others = [each for each in index.get("unfinished", ()) if each not in noted]
            index["unfinished"] = [*others, *noted]

        self._change_index(pool, note)

    def _clear(self, pool: str, key: str) -> None:
        """Erase replaced values and those of unfinished puts: to this key, and by dead clients of this machine."""
        left = [
            each
            for each in self._index(pool).get("unfinished", ())
            if each["key"] == key or (each["host"] == platform.node() and not is_held(each["folder"]))
        ]
        published = []
        for each in left:
            manifest = self._json(pool, f"fo/{each['key']}")
            if manifest is not None and manifest["token"] == each["token"]:
                published.append(each["key"])
                continue
            for value in values_of_store(each["key"], each):
                self._session.erase(pool, value, self._timeout)

        def settle(index: dict[str, Any]) -> None:
            index["unfinished"] = [each for each in index.get("unfinished", ()) if each not in left]
            index["keys"] += [new for new in dict.fromkeys(published) if new not in index["keys"]]

        if left:
            self._change_index(pool, settle)

    def _make_room(self, pool: str, job: str, region: str, size: int) -> None:
        """Create an array of zeros for a region of a run, unless it exists."""
        key = f"run/{job}/{region}"
        if size > LARGEST_VALUE:
            raise ServerError(
                f"the journal of the run {job!r} needs {size} bytes, more than an MCAS value holds: split the request"
            )
        if not self._session.has(pool, key, self._timeout):
            self._session.put(pool, key, value_of(key, bytes(size)), self._timeout)

    def _open(self, body: Mapping[str, Any]) -> str:
        """Open the pool of a call and return its name."""
        pool = check_name(body.get("pool"), "pool")
        if not self._session.open(pool, self._timeout):
            raise StoreURLError(f"there is no pool {pool!r} on {self._session.server}: put a store into it first")
        return pool

    def _find(self, body: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
        """Return the pool, the name and the record of the run of a call."""
        job = check_name(body.get("job"), "run")
        if self._pool is None:
            raise InputError("the pool of the run is not known: name it in the URL, mcas://host:port/pool")
        pool = self._open({"pool": self._pool})
        record = self._json(pool, f"run/{job}")
        if record is None:
            raise ServerError(f"there is no run {job!r} in the pool {pool!r}")
        return pool, job, record

    def _is_open(self, pool: str, job: str) -> bool:
        """Return whether a run is neither finished nor cancelled nor failed."""
        if self._session.has(pool, f"run/{job}/cancelled", self._timeout) or job in self._failed:
            return False
        record = self._json(pool, f"run/{job}")
        return record is not None and not self._answers(pool, job, record)

    def _answers(self, pool: str, job: str, record: Mapping[str, Any]) -> Sequence[bytes]:
        """Return the records in the log of a run's result; none while the run is not finished."""

        def load(key: str) -> Any:
            value = self._session.get(pool, key, self._timeout)
            return None if value is None else np.frombuffer(bytearray(data_of(value)), dtype=np.uint8)

        regions = RunRegions(functools.cache(load), f"run/{job}", [RESULT])
        return read_state(regions, RESULT, log_identifier(record["id"], RESULT)).records

    def _erase_run(self, pool: str, job: str) -> None:
        """Erase every value of a run, its record last."""
        record = self._json(pool, f"run/{job}")
        names = [RESULT, *(log_name(number) for number in range(len((record or {}).get("requests", ()))))]
        for name in names:
            generation = 0
            while self._session.has(pool, region := f"run/{job}/{name}.{generation}", self._timeout):
                self._session.erase(pool, region, self._timeout)
                generation += 1
        for key in (f"run/{job}/cancelled", f"run/{job}"):
            self._session.erase(pool, key, self._timeout)

    def _replaced(self, plan: UploadPlan) -> list[dict[str, Any]]:
        """Return the manifest of the store that an upload replaces, if there is one; raise unless it may."""
        manifest = self._json(plan.pool, f"fo/{plan.key}")
        if manifest is not None and not plan.settings["replace"]:
            raise already_exists(f"{plan.pool}/{plan.key}")
        return [] if manifest is None else [manifest]

    def _manifest(self, pool: str, key: str) -> dict[str, Any]:
        """Return the manifest of a store that exists."""
        manifest = self._json(pool, f"fo/{key}")
        if manifest is None:
            raise StoreURLError(f"there is no store {key!r} in the pool {pool!r} of {self._session.server}")
        return manifest

    def _json(self, pool: str, key: str) -> dict[str, Any] | None:
        """Return the JSON object in a value, or None if the value does not exist."""
        value = self._session.get(pool, key, self._timeout)
        return None if value is None else decode_message(data_of(value).rstrip(b" "))

    def _index(self, pool: str) -> dict[str, Any]:
        """Return the index of a pool: names of stores, and runs with the name of their store."""
        return self._json(pool, _INDEX) or {"keys": [], "runs": {}}

    def _change_index(self, pool: str, change: Callable[[dict[str, Any]], Any]) -> None:
        """Change the index, again if another client overwrote the change. Only listing and removal depend on the index."""
        for _ in range(_INDEX_ATTEMPTS):
            index = self._index(pool)
            change(index)
            encoded = padded_json(index, _INDEX_BYTES)
            if len(encoded) > _INDEX_BYTES:
                raise ServerError(f"the index of the pool {pool!r} is full: delete stores or runs")
            self._session.put(pool, _INDEX, value_of(_INDEX, encoded), self._timeout)
            if self._index(pool) == index:
                return


def _pool_bytes() -> int:
    """Return the size of a new pool in bytes."""
    wished = os.environ.get("FASTOMP_MCAS_POOL_BYTES") or str(_POOL_BYTES)
    if not wished.isdecimal():
        raise InputError(f"FASTOMP_MCAS_POOL_BYTES is {wished!r}: expected a whole number of bytes, such as {_POOL_BYTES}")
    return int(wished)
