"""The client's operations on an MCAS server: the same as on a pool server, but driven by the client.

MCAS has no queue and no jobs: it runs one function next to one value. A run is therefore state in the pool, and following its
progress *is* what drives it, slice by slice; any client can continue it. All decisions are taken by the plugin in the server
(:mod:`ado_plugin.mcas.slice`), one call at a time; what is left here is to put and erase values, which only clients can do, and to
put replies together. Knows upstream's client module only through :mod:`ado_plugin.mcas.session`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ado_plugin.mcas.calls import Plugin
from ado_plugin.mcas.message import LARGEST_PARAMETERS, value_of
from ado_plugin.mcas.prediction import predicted_pages
from ado_plugin.mcas.session import LARGEST_VALUE, McasSession, PoolFullError
from ado_plugin.mcas.staging import Staging, is_held
from ado_plugin.service.operations import OPERATIONS
from ado_plugin.service.uploads import UploadPlan, field_of
from fastomp_nvm.durable_files import check_name
from fastomp_nvm.errors import FastompError, InputError, RequestError, ServerError, StoreURLError, UnreachableError
from fastomp_nvm.remote.address import ServerURL
from fastomp_nvm.remote.protocol import WireTile
from fastomp_nvm.selection.codec import decode_message, encode_message
from fastomp_nvm.version import __version__
from storage_backends.media.mcas import values_of_store
from storage_backends.opened import already_exists

__all__ = ["SLICE_SECONDS", "McasTransport"]

#: Seconds for which one call drives a run; upstream's client gives up after 30.
SLICE_SECONDS = 3.0

#: Seconds between two calls of a client that follows the driver of a run.
_FOLLOW_SECONDS = 0.1

#: Bytes of a record that travel as parameters of a call, in base64; a longer one is a value of the pool.
_LARGEST_RECORD = LARGEST_PARAMETERS // 2
_LARGEST_REQUEST = 1 << 30
_CLOSING_SECONDS = 5.0
_MOST_TRIMS = 100
#: Bytes of a pool created by its first upload, unless FASTOMP_MCAS_POOL_BYTES is set or the data needs more.
_POOL_BYTES = 1 << 30

_ENDED = ("done", "failed", "cancelled")


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
        self.plugin = Plugin(self._session)
        self._staging = Staging(self._session)
        self._answers: dict[str, str] = {}  # by job: its answer, which came with its last progress
        self._versions: dict[str, int] = {}
        self._used: str | None = None  # the pool of the last call
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
        """Acknowledge the last answers and close the connection; runs stay in the pool."""
        if self.plugin.acknowledged and self._used is not None:
            with contextlib.suppress(FastompError):
                self.plugin.call(self._used, "settle", min(self._timeout, _CLOSING_SECONDS), tokens=[])
        self._staging.close()
        self._session.close()

    def _ask(self, pool: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Carry out an operation of the plugin."""
        self._used = pool
        return self.plugin.call(pool, operation, self._timeout, **parameters)

    def _ping(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Check that the server answers, though perhaps without the pool."""
        with contextlib.suppress(StoreURLError):
            self._session.open(self._pool or "fastomp", self._timeout)
        yield {"version": __version__, "name": "anybody", "role": "admin"}

    def _list(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """List the keys of a pool."""
        if body.get("pool") is None:
            raise InputError("an MCAS server does not list its pools: name one, mcas://host:port/pool")
        pool = check_name(body["pool"], "pool")
        yield {"pool": pool, **self._ask(pool, "list")}

    def _info(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Describe a store."""
        pool, key = _place(body)
        facts = self._ask(pool, "info", key=key, **{part: body.get(part) for part in ("name", "names", "columns")})
        yield {**facts, "url": f"{pool}/{key}"}

    def _delete(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Delete a store that no unfinished run uses, with its finished runs."""
        pool, key = _place(body)
        reply = self._ask(pool, "delete", key=key)
        self._erase(pool, reply["clear"])
        if not reply["found"]:
            raise StoreURLError(f"there is no store {key!r} in the pool {pool!r} of {self._session.server}")
        yield {}

    def _put(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Begin an upload."""
        plan = UploadPlan.decode(body)
        _pool_bytes()  # raises for a wrong setting before the data is sent
        keys = []
        with contextlib.suppress(StoreURLError):  # no such pool yet, or nothing in it
            self._session.open(plan.pool, self._timeout, once=True)
            keys = [each["key"] for each in self._ask(plan.pool, "list")["keys"]]
        if plan.key in keys and not plan.settings["replace"]:
            raise already_exists(f"{plan.pool}/{plan.key}")
        yield self._staging.begin(plan)

    def _commit(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Seal an upload and put it."""
        plan, report, folder = self._staging.finish(body)
        pool, key = plan.pool, plan.key
        try:
            manifest = self._staging.manifest(key, folder)
            self._session.open(pool, self._timeout, max(_pool_bytes(), 3 * manifest["stored"]))
            self.plugin.found(pool, self._timeout)
            reply = self._ask(pool, "announce", manifest=manifest, replace=plan.settings["replace"])
            dead = [each for each in reply["left"] if not is_held(each["folder"])]
            if dead:
                reply = self._ask(pool, "clear", tokens=[each["token"] for each in dead])
            self._erase(pool, reply["clear"])
            try:
                self._with_room(pool, lambda: self._staging.push(pool, folder, manifest, self._timeout))
                reply = self._ask(pool, "publish", key=key, token=manifest["token"])
            except UnreachableError:
                raise  # the next put or delete removes the values
            except BaseException:
                with contextlib.suppress(FastompError):
                    self._erase(pool, self._ask(pool, "clear", tokens=[manifest["token"]])["clear"] or [manifest])
                raise
            self._erase(pool, reply["clear"])
        finally:
            self._staging.drop(body["upload"])
        report["url"] = f"{pool}/{key}"
        yield {"state": "done", "report": report}

    def _abort(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Remove an upload."""
        self._staging.drop(str(body.get("upload")))
        yield {}

    def _select(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Begin a run of one or more requests; ``progress`` drives it. A repetition changes nothing."""
        yield self._begin(body, {"requests": field_of(body, "requests", list, "a list of requests", [body.get("request")])})

    _select_many = _select

    def _analyse(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Begin a grid, a cross-validation or the like; ``progress`` drives it. A repetition changes nothing."""
        kind = field_of(body, "kind", str, "the name of an analysis")
        options = field_of(body, "options", dict, "an object", {})
        yield self._begin(
            body, {"kind": kind, "options": options, "requests": [field_of(body, "request", dict, "an object of fields")]}
        )

    def _begin(self, body: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a run and return its state."""
        (pool, key), job = _place(body), check_name(body.get("job"), "run")
        record = {**asked, "y": body.get("y"), "verify": bool(body.get("verify"))}
        sent: dict[str, Any] = {"record": record}
        encoded = json.dumps(record, separators=(",", ":"), sort_keys=True).encode()
        if len(encoded) > min(_LARGEST_REQUEST, LARGEST_VALUE):
            raise RequestError(f"the request has {len(encoded)} bytes, an MCAS value holds fewer: keep the target in the store")
        if len(encoded) > _LARGEST_RECORD:
            name = f"fastomp/input/{secrets.token_hex(8)}"
            self._with_room(pool, lambda: self._session.put(pool, name, value_of(name, encoded), self._timeout))
            sent = {"input": name}
        return self._standing(pool, self._ask(pool, "select", key=key, job=job, named=body.get("named", True), **sent))

    def _predict(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Evaluate a model on a store; the linear predictor and the identifiers come in parts."""
        yield from predicted_pages(self.plugin, *_place(body), body.get("model"), self._timeout)

    def _check_constraint(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Read a constraint against a store, and test that it is downward closed."""
        pool, key = _place(body)
        asked = {name: body[name] for name in ("constraint", "samples", "seed") if name in body}
        yield self._ask(pool, "check_constraint", key=key, **asked)

    def _extract(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Return names, target and identifiers of an extract, or columns of it, in parts."""
        pool, key = _place(body)
        asked = {name: body.get(name) for name in ("indices", "objective", "target", "first")}
        page, token = 0, None
        while page is not None:
            reply = self._ask(pool, "extract", key=key, page=page, token=token, **asked)
            page, token = reply["next"], reply["token"]
            yield from reply["replies"]

    def _jobs(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """List the runs in a pool, or those on a key, without driving them."""
        if body.get("pool") is None:
            raise InputError("the pool of the runs is not known: name it in the URL, mcas://host:port/pool")
        pool = check_name(body["pool"], "pool")
        yield {"jobs": [self._standing(pool, job) for job in self._ask(pool, "jobs", key=body.get("key"))["jobs"]]}

    def _progress(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Drive a run, or follow its driver, for as long as the caller waits; yield its state after each slice."""
        pool, job = self._run_of(body)
        wait = float(body.get("wait", 0.0))
        end = time.monotonic() + wait
        while True:
            seconds = min(SLICE_SECONDS, max(end - time.monotonic(), 0.1)) if wait else 0.0
            reply = self._ask(pool, "progress", job=job, seconds=seconds)
            if "answer" in reply:
                self._answers[job] = reply.pop("answer")
            if seconds and (job in self._answers or reply["state"] in ("failed", "cancelled")):
                self.plugin.acknowledged.add(job)
            following = reply.pop("following")
            yield self._standing(pool, reply)
            if reply["state"] in _ENDED or time.monotonic() >= end:
                return
            if following:
                time.sleep(_FOLLOW_SECONDS)

    def _result(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Return the answers of a finished run."""
        pool, job = self._run_of(body)
        text = self._answers.pop(job, "")
        first: int | None = None if text else 0
        while first is not None:
            reply = self._ask(pool, "result", job=job, first=first)
            text, first = text + reply["text"], reply["next"]
        self.plugin.acknowledged.add(job)
        yield decode_message(text.encode())

    def _cancel(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Cancel a run."""
        yield self._change("cancel", body)

    def _resume(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Let a failed or cancelled run go on."""
        yield self._change("resume", body)

    def _forget(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Remove a run that nobody drives."""
        pool, job = self._run_of(body)
        self._ask(pool, "forget", job=job)
        yield {}

    def _change(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change the state of a run."""
        pool, job = self._run_of(body)
        self._answers.pop(job, None)
        self.plugin.acknowledged.discard(job)
        return self._standing(pool, self._ask(pool, operation, job=job))

    def _standing(self, pool: str, reply: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of a run as clients of all servers see it."""
        job = reply["job"]
        self._versions[job] = self._versions.get(job, 0) + 1
        return {**reply, "pool": pool, "version": self._versions[job]}

    def _run_of(self, body: Mapping[str, Any]) -> tuple[str, str]:
        """Return the pool and the name of the run of a call."""
        job = check_name(body.get("job"), "run")
        if self._pool is None:
            raise InputError("the pool of the run is not known: name it in the URL, mcas://host:port/pool")
        return self._pool, job

    def _with_room(self, pool: str, put: Callable[[], None]) -> None:
        """Put values; if the pool is full, once more after erasing the slots that no run needs."""
        try:
            put()
        except PoolFullError:
            for _ in range(_MOST_TRIMS):  # each reply has some of the values erased
                reply = self._ask(pool, "trim")
                if not reply["left"]:
                    break
            try:
                put()
            except PoolFullError as error:
                raise ServerError(reply["full"], reason="space") from error

    def _erase(self, pool: str, manifests: Sequence[Mapping[str, Any]]) -> None:
        """Erase the values of stores that are not visible, and have the ledger forget them."""
        for each in manifests:
            for value in values_of_store(each["key"], each):
                self._session.erase(pool, value, self._timeout)
        if manifests:
            self._ask(pool, "settle", tokens=[each["token"] for each in manifests])


def _place(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the pool and the key of a call."""
    return check_name(body.get("pool"), "pool"), check_name(body.get("key"), "key")


def _pool_bytes() -> int:
    """Return the size of a new pool in bytes."""
    wished = os.environ.get("FASTOMP_MCAS_POOL_BYTES") or str(_POOL_BYTES)
    if not wished.isdecimal():
        raise InputError(f"FASTOMP_MCAS_POOL_BYTES is {wished!r}: expected a whole number of bytes, such as {_POOL_BYTES}")
    return int(wished)
