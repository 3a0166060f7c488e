"""The operations of a pool server, independent of any transport: hosts only carry bytes.

An operation takes a JSON object and returns one or more. All input is untrusted: names are checked before they become part of a
path, requests before they are queued, and constraints may name neither files nor code. Every error is a reply, one sentence under
``error``; no input makes ``call`` raise.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ado_plugin.service.access import Principal, Role
from ado_plugin.service.analysis import checked_analysis
from ado_plugin.service.body import decode_body
from ado_plugin.service.job import Job, JobRequest
from ado_plugin.service.jobs import Jobs
from ado_plugin.service.limits import JobLimits
from ado_plugin.service.metrics import Histogram
from ado_plugin.service.needs import check_vectors, estimate, rank_of
from ado_plugin.service.pools import Pools
from ado_plugin.service.reading import constraint_facts, extract_pages, slices
from ado_plugin.service.uploads import Tile, UploadPlan, Uploads, decode_ids, decode_targets, field_of
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import check_name
from fastomp_nvm.errors import (
    CancelledError,
    DataError,
    FastompError,
    InputError,
    MediumError,
    RequestError,
    ServerError,
    StoreError,
    encode_error,
)
from fastomp_nvm.limits import MESSAGE_BYTES, REQUEST_SECONDS, checkpoint, limited
from fastomp_nvm.selection.codec import (
    decode_linear_model,
    decode_request,
    decode_vector,
    encode_message,
    encode_vector,
)
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.describe import describe
from fastomp_nvm.stores.listing import list_names
from fastomp_nvm.version import __version__

__all__ = ["OPERATIONS", "REFUSALS", "Caller", "Operations"]

_log = logging.getLogger(__name__)

#: Longest time in seconds that one call waits; the client then calls again.
_LONGEST_WAIT = 20.0
#: Calls that may wait at a time, each in a thread; further calls are answered at once.
_MOST_WAITING = 128
_MOST_REQUESTS = 1000
#: Bytes of one reply of several: less than the largest message.
_REPLY_BYTES = 16 << 20


#: Upper bounds of the histogram of latencies, in seconds; ``progress`` waits up to 20 s on purpose.
_LATENCY_BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0)

#: Reasons by which refusals are counted: that of a ``ServerError``, invalid input, a damaged store, a device, a client that left or
#: a deadline, and an unexpected error of the server. ``token`` (no accepted token) is counted by ``Access``.
REFUSALS = ("access", "busy", "limit", "space", "input", "store", "medium", "cancelled", "failed", "other")

#: Operations by name, and the role that each needs; each is a method of ``Operations``.
OPERATIONS: Mapping[str, Role] = {
    **dict.fromkeys(("ping", "list", "info"), "read"),
    **dict.fromkeys(("delete", "put", "commit", "abort"), "write"),
    **dict.fromkeys(
        (
            "select",
            "select_many",
            "analyse",
            "predict",
            "check_constraint",
            "extract",
            "jobs",
            "progress",
            "result",
            "cancel",
            "resume",
            "forget",
        ),
        "read",
    ),
}


@dataclass(frozen=True, slots=True)
class Caller:
    """The author of a call.

    Attributes
    ----------
    principal : Principal
    session : str
        Identifies the principal's client, for fairness among clients.
    """

    principal: Principal
    session: str

    @property
    def sees(self) -> str | None:
        """Owner of the jobs that the caller sees in its pools: itself, or None for all."""
        return None if self.principal.role == "admin" else self.principal.name


class Operations:
    """The operations over pools.

    Parameters
    ----------
    pools : Pools
    uploads : Uploads
    jobs : Jobs
    limits : JobLimits
    """

    def __init__(self, pools: Pools, uploads: Uploads, jobs: Jobs, limits: JobLimits) -> None:
        self._pools = pools
        self._uploads = uploads
        self._queue = jobs
        self._limits = limits
        self._predicting = threading.Lock()
        #: Calls so far, by operation and outcome.
        self.calls: collections.Counter[tuple[str, str]] = collections.Counter()
        self._waiters = 0
        self._counting = threading.Lock()
        #: Seconds that the server took for calls, by operation.
        self.latency = Histogram(_LATENCY_BOUNDS)
        #: Calls that were refused or failed, by reason.
        self.refusals: collections.Counter[str] = collections.Counter(dict.fromkeys(REFUSALS, 0))

    def call(
        self, caller: Caller, operation: str, body: bytes | memoryview, gone: Callable[[], bool] = lambda: False
    ) -> Iterator[bytes]:
        """Carry out an operation; yield its replies, the last of which may be an error.

        The computation of each reply has a deadline, and ends when ``gone`` says that the client is.
        """
        known = operation in OPERATIONS
        outcome, seconds, began = "ok", 0.0, time.monotonic()
        try:
            if not known:
                raise RequestError(f"there is no operation {operation[:40]!r}: expected one of {', '.join(OPERATIONS)}")
            caller.principal.require(OPERATIONS[operation])
            replies = getattr(self, f"_{operation}")(caller, decode_body(operation, body))
            while True:
                with limited(REQUEST_SECONDS, gone):
                    reply = next(replies, None)
                if reply is None:
                    break
                message = encode_message(reply)
                seconds += time.monotonic() - began
                yield message
                began = time.monotonic()  # the time that the client takes for a reply does not count
        except Exception as error:
            outcome = "error"
            seconds += time.monotonic() - began
            yield encode_message({"error": self.explain(error, caller, operation)})
        finally:
            self._count(operation if known else "unknown", outcome, seconds)

    def write(self, caller: Caller, upload: str, tiles: Iterable[Tile]) -> bytes:
        """Write tiles of an upload; the reply holds the number of the next tile."""
        outcome, began = "ok", time.monotonic()
        try:
            caller.principal.require("write")
            self._require_pool_of(caller, upload)
            return encode_message(self._uploads.write(caller.principal.name, upload, tiles))
        except Exception as error:
            outcome = "error"
            return encode_message({"error": self.explain(error, caller, "write")})
        finally:
            self._count("write", outcome, time.monotonic() - began)

    def _count(self, operation: str, outcome: str, seconds: float) -> None:
        """Count a call that has ended."""
        with self._counting:
            self.calls[operation, outcome] += 1
        self.latency.observe(operation, seconds)

    def explain(self, error: Exception, caller: Caller, operation: str) -> dict[str, str]:
        """Return an error as the client may see it; count it by reason and log the details."""
        with self._counting:
            self.refusals[_reason(error)] += 1
        if isinstance(error, FastompError):
            answer = encode_error(error)
            answer["message"] = answer["message"].replace(f"{self._pools.root}/", "")  # clients do not learn where the pools are
            _log.info("refused", extra={"operation": operation, "principal": caller.principal.name, "reason": answer["message"]})
            return answer
        event = uuid.uuid4().hex[:12]
        _log.exception("failed", extra={"operation": operation, "principal": caller.principal.name, "event_id": event})
        return encode_error(ServerError(f"the server failed at this request: see event {event} in its log"))

    def _ping(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Return the release of the server, and the caller's name and role."""
        yield {"version": __version__, "name": caller.principal.name, "role": caller.principal.role}

    def _list(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """List pools, or the keys of one."""
        if body.get("pool") is None:
            names = [name for name in self._pools.names() if caller.principal.reaches(name)]
            yield {"pools": [{"pool": name, "bytes": self._pools.usage(name), "quota": self._pools.quota} for name in names]}
            return
        pool = self._pool(caller, body)
        keys = []
        for key in self._pools.keys(pool):
            try:
                with self._pools.open(pool, key) as store:
                    shape = {name: getattr(store.layout, name) for name in ("n_features", "n_obs", "dtype")}
                    keys.append({"key": key, **shape, "bytes": int(store.matrix.nbytes)})
            except FastompError as error:
                keys.append({"key": key, "error": encode_error(error)["message"]})
        yield {"pool": pool, "keys": keys}

    def _info(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Describe a store; with ``name`` tell whether a target or feature is called so, with ``names`` list features."""
        pool, key = self._pool(caller, body), check_name(body.get("key"), "key")
        with self._pools.open(pool, key) as store:
            wanted = body.get("columns")
            facts = describe(store, wanted if isinstance(wanted, str) else None)
            facts["url"] = f"{pool}/{key}"
            if isinstance(name := body.get("name"), str):
                facts["has_name"] = name in store.targets or name in store.names
            if "names" in body:
                facts["names"] = list_names(store, body["names"])
            yield facts

    def _delete(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Delete a key that no unfinished job uses."""
        pool, key = self._pool(caller, body), check_name(body.get("key"), "key")
        if count := self._queue.uses(pool, key):
            raise ServerError(f"{count} jobs on {pool}/{key} are not finished: cancel them or wait", reason="busy")
        self._pools.delete(pool, key)
        _log.info("deleted", extra={"pool": pool, "key": key, "principal": caller.principal.name})
        yield {}

    def _put(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Begin or continue an upload; tiles follow, then ``commit``."""
        self._pool(caller, body)
        plan = UploadPlan.decode({name: value for name, value in body.items() if name != "wait"})
        with self._waiting(body, default=10.0) as wait:
            reply = self._uploads.begin(caller.principal.name, plan, wait)
        yield reply

    def _commit(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Seal and publish an upload."""
        provenance = field_of(body, "provenance", dict, "an object", {})
        arguments = (
            field_of(body, "upload", str, "the name of an upload"),
            field_of(body, "tiles", int, "the number of tiles"),
            field_of(body, "crc", int, "the checksum of all tiles"),
            decode_targets(body),
            {**provenance, "uploaded_by": caller.principal.name},
        )
        self._require_pool_of(caller, arguments[0])
        with self._waiting(body) as wait:
            reply = self._uploads.commit(caller.principal.name, *arguments, wait, decode_ids(body))
        yield reply

    def _abort(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Remove an upload."""
        upload = field_of(body, "upload", str, "the name of an upload")
        self._require_pool_of(caller, upload)
        yield self._uploads.abort(caller.principal.name, upload)

    def _select(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Check one request, or several to be answered in shared sweeps, against the data; queue them and return their state."""
        sent = field_of(body, "requests", list, "a list of requests", [body.get("request")])
        if not 1 <= len(sent) <= _MOST_REQUESTS:
            raise RequestError(f"{len(sent)} requests were sent: expected 1 to {_MOST_REQUESTS}")

        def needs(store: FeatureStore, y: AnyArray | None) -> tuple[list[Any], int, int]:
            requests = [decode_request(each) for each in sent]
            for request in requests:
                check_vectors(request, store)
            found = [estimate(request, store.layout, rank_of(request, store)) for request in requests]
            memory, work = map(sum, zip(*found, strict=True))
            return sent, memory, work

        yield self._submit(caller, self._place(caller, body), body, needs)

    _select_many = _select

    def _analyse(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Check a grid, a cross-validation or the like against the data; queue it and return its state."""

        def needs(store: FeatureStore, y: AnyArray | None) -> tuple[list[Any], int, int]:
            sent = field_of(body, "request", dict, "an object of fields")
            sent, memory, work = checked_analysis(kind, sent, options, y, store, self._limits)
            return [sent], memory, work

        place = self._place(caller, body)
        kind = field_of(body, "kind", str, "the name of an analysis")
        options = field_of(body, "options", dict, "an object", {})
        yield self._submit(caller, place, body, needs, kind, options)

    def _submit(
        self,
        caller: Caller,
        place: tuple[str, str, str],
        body: Mapping[str, Any],
        needs: Callable[[FeatureStore, AnyArray | None], tuple[list[Any], int, int]],
        kind: str = "select",
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Queue a job of this pool, key and name, and return its state.

        ``needs`` checks the rest of ``body`` against a store and a response, and returns the requests, and estimates of the memory
        and of the bytes read.
        """
        pool, key, name = place
        verify = field_of(body, "verify", bool, "true or false", False)
        y = body.get("y")
        response = None if y is None else decode_vector(y, "y")
        with self._pools.open(pool, key) as store:
            if response is not None and len(response) != store.layout.n_obs:
                raise DataError(f"the target has {len(response)} values for {store.layout.n_obs} observations")
            requests, memory, work = needs(store, response)
            fingerprint = store.layout.fingerprint
        if memory > self._limits.memory:
            raise ServerError(
                f"the job needs about {memory} bytes of memory, {self._limits.memory} are allowed: lower gather_bytes or split it",
                reason="limit",
            )
        if work > self._limits.work:
            raise ServerError(
                f"the job reads about {work} bytes and {self._limits.work} are allowed: raise epsilon, lower k or split it",
                reason="limit",
            )
        whose = caller.principal.name, caller.session
        request = JobRequest(*whose, pool, key, fingerprint, requests, y, verify, memory, work, time.time(), kind, dict(options))
        job = self._queue.submit(name, request)
        _log.info("submitted", extra={"job": name, "kind": kind, "pool": pool, "key": key, "principal": caller.principal.name})
        return job.describe()

    def _predict(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Evaluate a model on a store; the linear predictor and the identifiers come in parts."""
        pool, key = self._pool(caller, body), check_name(body.get("key"), "key")
        columns, coef, intercept = decode_linear_model(body.get("model"))
        with self._pools.open(pool, key) as store:
            memory = store.layout.n_obs * (len(coef) * (8 + store.matrix.dtype.itemsize) + 8)
            if memory > self._limits.memory:
                raise ServerError(
                    f"the model needs about {memory} bytes of memory, {self._limits.memory} are allowed: select fewer",
                    reason="limit",
                )
            with self._predicting:  # one at a time: the limit is for each
                checkpoint()
                rows = columns.of(store)
                values = rows.values @ coef + intercept
                rows = replace(rows, values=rows.values[:, :0])
        longest = 0 if rows.ids is None else max(map(len, rows.ids))
        for part in slices(len(values), 16 + 12 * longest, _REPLY_BYTES):  # a character is at most 12 bytes of JSON
            yield {"values": encode_vector(values[part]), "ids": None if rows.ids is None else list(rows.ids[part])}

    def _check_constraint(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Read a constraint against a store, and test that it is downward closed."""
        pool, key = self._pool(caller, body), check_name(body.get("key"), "key")
        with self._pools.open(pool, key) as store:
            yield constraint_facts(body, store)

    def _extract(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Return the names of columns of a store, the target and the identifiers, in parts; with ``first`` columns from that on."""
        pool, key = self._pool(caller, body), check_name(body.get("key"), "key")
        with self._pools.open(pool, key) as store:
            for page in extract_pages(body, store, _REPLY_BYTES):
                yield page()

    def _jobs(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """List the jobs that the caller sees, or those on a pool or key, each with the progress of its first request."""
        place = {name: check_name(body[name], name) for name in ("pool", "key") if body.get(name) is not None}
        seen = [job for job in self._queue.standings(caller.sees) if caller.principal.reaches(job["pool"])]
        found = [job for job in seen if all(job[name] == value for name, value in place.items())]
        yield {"jobs": [{**job, "progress": job["progress"][:1]} for job in found]}

    def _progress(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Return the state of a job, then every change for as long as the caller waits."""
        since = field_of(body, "since", int, "a version of the job", -1)
        job = self._job(caller, body)
        with self._waiting(body) as wait:
            yield from self._queue.follow(job, since, wait)

    def _result(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Return the answers of a finished job, in several replies where they are too large for one."""
        job = self._job(caller, body)
        kind, answers, size = job.request.kind, list[dict[str, Any]](), 0
        for answer in self._queue.answer(job):
            own = len(encode_message(answer))
            if answers and size + own > MESSAGE_BYTES // 2:
                yield {"kind": kind, "answers": answers}
                answers, size = [], 0
            answers.append(answer)
            size += own
        yield {"kind": kind, "answers": answers}

    def _cancel(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Cancel a job."""
        job = self._job(caller, body)
        self._queue.cancel(job)
        yield job.describe()

    def _resume(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Queue a failed or cancelled job again."""
        job = self._job(caller, body)
        self._queue.resume(job)
        yield job.describe()

    def _forget(self, caller: Caller, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Remove an ended job with its answer."""
        self._queue.forget(self._job(caller, body))
        yield {}

    @contextlib.contextmanager
    def _waiting(self, body: Mapping[str, Any], default: float = 0.0) -> Iterator[float]:
        """Yield the seconds that this call may wait: those asked for, up to a limit, and 0 when too many calls wait."""
        wait = body.get("wait", default)
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not wait >= 0:
            raise RequestError("wait is not a number of seconds")
        with self._counting:
            self._waiters += 1
            may_wait = self._waiters <= _MOST_WAITING
        try:
            yield min(float(wait), _LONGEST_WAIT) if may_wait else 0.0
        finally:
            with self._counting:
                self._waiters -= 1

    def _pool(self, caller: Caller, body: Mapping[str, Any]) -> str:
        """Return the pool of a call, if the caller has access to it."""
        pool = check_name(body.get("pool"), "pool")
        caller.principal.require_pool(pool)
        return pool

    def _place(self, caller: Caller, body: Mapping[str, Any]) -> tuple[str, str, str]:
        """Return pool, key and name of a submission, if the caller has access to the pool."""
        return self._pool(caller, body), check_name(body.get("key"), "key"), check_name(body.get("job"), "run")

    def _job(self, caller: Caller, body: Mapping[str, Any]) -> Job:
        """Return the job of a call, if the caller sees it and has access to its pool now."""
        job = self._queue.find(check_name(body.get("job"), "run"), caller.sees)
        caller.principal.require_pool(job.request.pool)
        return job

    def _require_pool_of(self, caller: Caller, upload: str) -> None:
        """Raise ``ServerError`` for an upload to a pool that the caller has no access to now."""
        if (pool := self._uploads.pool_of(upload)) is not None:
            caller.principal.require_pool(pool)


def _reason(error: Exception) -> str:
    """Return the element of ``REFUSALS`` that an error counts as."""
    if isinstance(error, ServerError):
        return error.reason
    kinds = {InputError: "input", StoreError: "store", MediumError: "medium", CancelledError: "cancelled", FastompError: "other"}
    return next((reason for kind, reason in kinds.items() if isinstance(error, kind)), "failed")
