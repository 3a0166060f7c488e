"""A client of a pool server: the computation goes to the data, k indices and k floats come back.

The methods are the same for every transport, which is chosen by the scheme of the URL. A call is repeated after a lost connection
only if it is idempotent; a submission therefore carries a name chosen by the client, and an upload asks for its position before it
continues. No answer within ``timeout`` is an error. A token is sent in clear to another machine only on request.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Unpack

import numpy as np

from fastomp_nvm.arrays import Float64Array, JSONObject
from fastomp_nvm.durable_files import check_name
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import (
    InputError,
    RequestError,
    ServerError,
    StoreURLError,
    UnreachableError,
    UntrustedError,
    UploadLostError,
    raise_error,
)
from fastomp_nvm.remote.address import ServerURL
from fastomp_nvm.remote.analyses import RemoteAnalyses
from fastomp_nvm.remote.credentials import credentials
from fastomp_nvm.remote.protocol import WireTile
from fastomp_nvm.remote.transport import TRANSPORTS, Transport
from fastomp_nvm.remote.upload import Upload
from fastomp_nvm.selection.codec import (
    decode_message,
    decode_vector,
    encode_message,
    encode_request,
    encode_vector,
)
from fastomp_nvm.selection.progress import watched
from fastomp_nvm.selection.request import RequestFields, SelectionRequest, make_request
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.run_info import RunInfo
from fastomp_nvm.stores.builders import BUILD_FROM_ARRAYS, INGEST, Sources

__all__ = ["Client", "connect"]

#: Idempotent operations, which may be repeated.
_REPEATABLE = frozenset(
    {"ping", "list", "info", "put", "commit", "select", "select_many", "analyse", "jobs", "progress", "result", "cancel", "resume"}
)
_UPLOAD_ATTEMPTS = 3
#: Most seconds that one call waits for a change.
_POLL_SECONDS = 10.0
#: Seconds between two calls when the server answers at once without a change, because too many clients wait already.
_BUSY_SECONDS = 0.25
#: Seconds for which a server that has not answered yet is called again, because it may just be starting.
_FIRST_CONTACT_SECONDS = 5.0


def connect(
    url: str,
    *,
    token: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    timeout: float = 30.0,
    insecure: bool = False,
) -> Client:
    """Return a client of the server at ``url``.

    Parameters
    ----------
    url : str
        ``grpc://host:port`` or ``grpc+tls://host:port`` of ``fastomp serve``, or ``mcas://host:port`` of an MCAS server; with
        ``/pool`` or ``/pool/key`` as the default of all calls.
    token : str, optional
        By default ``FASTOMP_TOKEN`` or, for a server on this machine, the token file of a server of this user.
    tls_ca : path, optional
        PEM file of the authority that signed the server's certificate; by default ``FASTOMP_TLS_CA`` or the system's.
    timeout : float
        Seconds without an answer after which a call fails.
    insecure : bool
        Send the token in clear to another machine.

    Returns
    -------
    Client

    Examples
    --------
    >>> client = fo.connect("grpc://127.0.0.1:7010/lab/genes")  # doctest: +SKIP
    >>> client.select(k=20).features  # doctest: +SKIP
    """
    address = ServerURL.parse(url)
    if address.scheme not in TRANSPORTS:
        raise StoreURLError(f"there is no transport for {address.scheme}://: expected one of {', '.join(TRANSPORTS)}")
    if not timeout > 0:
        raise InputError(f"timeout is {timeout!r}: expected seconds above 0")
    transport = TRANSPORTS.load(address.scheme)(address, *credentials(address, token, tls_ca, insecure=insecure))
    return Client(address, transport, timeout)


class Client(RemoteAnalyses):
    """A connection to a pool server, returned by ``connect``; a context manager that closes it.

    ``key`` is ``pool/key``, or ``key`` alone if the URL names the pool; by default the one in the URL.

    Parameters
    ----------
    address : ServerURL
    transport : Transport
    timeout : float
    """

    def __init__(self, address: ServerURL, transport: Transport, timeout: float) -> None:
        self._address = address
        self._transport = transport
        self._timeout = timeout
        self._answered = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; jobs continue."""
        self._transport.close()

    @property
    def poll_seconds(self) -> float:
        """Most seconds that one call may wait at the server; half the time limit or less, so that a dead server is noticed."""
        return min(_POLL_SECONDS, self._timeout / 2)

    def ping(self) -> JSONObject:
        """Return the server's version and the identity of this client."""
        return self.call("ping", {})

    def list(self, pool: str | None = None) -> Sequence[JSONObject]:
        """Return the pools, or the keys of ``pool`` (or of the pool in the URL)."""
        pool = pool or self._address.pool
        reply = self.call("list", {} if pool is None else {"pool": check_name(pool, "pool")})
        found: Sequence[JSONObject] = reply["pools"] if pool is None else reply["keys"]
        return found

    def info(self, key: str | None = None, *, name: str | None = None, columns: str | None = None) -> JSONObject:
        """Return the facts of the store at ``key``.

        With ``name`` also whether it has a target or feature of that name, with ``columns`` those that match the pattern.
        """
        asked = {option: value for option, value in (("name", name), ("columns", columns)) if value is not None}
        facts = self.call("info", {**self._place(key), **asked})
        facts["url"] = f"{self._address.server}/{facts['url']}"
        return facts

    def names(self, pattern: str | None = None, *, key: str | None = None) -> Iterator[tuple[str, int]]:
        """Yield name and number of columns of the features at ``key`` that match a shell pattern, or part of a name."""
        first: int | None = 0
        while first is not None:
            reply = self.call("info", {**self._place(key), "names": {"pattern": pattern, "first": first}})
            if "names" not in reply:
                raise ServerError("the server does not list names: it is of an earlier release")
            yield from ((str(name), int(columns)) for name, columns in reply["names"]["features"])
            first = reply["names"]["next"]

    def delete(self, key: str | None = None) -> None:
        """Delete the store at ``key``; refused while jobs need it."""
        self.call("delete", self._place(key))

    def put(
        self,
        X: object,
        y: object = None,
        *,
        key: str | None = None,
        names: Iterable[str] | None = None,
        dtype: str = "float32",
        rows: str = "observations",
        missing: str = "error",
        groups: Mapping[str, Sequence[str | int]] | None = None,
        tier: str = "int8",
        replace: bool = False,
    ) -> JSONObject:
        """Build a store on the server from an array or a table; parameters as for ``create_store``.

        Returns
        -------
        dict
            Shape, dtype and fingerprint of the store, and the columns that were imputed or dropped.
        """
        table: dict[str, Any] = {"names": names, "rows": rows, "groups": groups, "missing": missing}
        build = BUILD_FROM_ARRAYS.load()

        def send(begin: Callable[..., Upload]) -> Any:
            return build(self._name(key), X, y, **table, dtype=dtype, tier=tier, replace=replace, open_builder=begin)

        return asdict(self._upload(send))

    def ingest(self, source: Sources, *, key: str | None = None, **options: Any) -> Any:
        """Build a store on the server from files of this machine; options as for ``fastomp_nvm.ingest``.

        Returns
        -------
        IngestReport
        """
        ingest = INGEST.load()
        return self._upload(lambda open_builder: ingest(source, self._name(key), open_builder=open_builder, **options))

    def select(
        self,
        y: object = None,
        *,
        key: str | None = None,
        run: str | None = None,
        verify: bool = False,
        observer: Observer | None = None,
        progress: bool | None = None,
        **request: Unpack[RequestFields],
    ) -> Selection:
        """Select features next to the data.

        Parameters
        ----------
        y : (n_obs,) array, optional
            The response; the store's target when left out.
        key : str, optional
        run : str, optional
            Name of the job, under which ``result`` finds it later.
        verify : bool
            Check the store's checksums first.
        observer, progress
            As for ``fastomp_nvm.select``.
        **request
            Fields of ``SelectionRequest``; the constraint is a description or a file, not an object.

        Returns
        -------
        Selection
        """
        with watched(observer, progress, "select") as watching:
            return self.result(self.submit(y, key=key, run=run, verify=verify, **request), observer=watching)[0]

    def select_many(
        self,
        requests: Sequence[SelectionRequest | RequestFields],
        y: object = None,
        *,
        key: str | None = None,
        run: str | None = None,
    ) -> Sequence[Selection]:
        """Answer several requests over the same data in shared sweeps, next to the data."""
        wanted = [request if isinstance(request, SelectionRequest) else make_request(request) for request in requests]
        return self.result(self._queue("select_many", y, key, run, requests=[encode_request(each) for each in wanted]))

    def predict(
        self, model: Selection, *, key: str | None = None, covariates: object = None, offset: object = None
    ) -> Float64Array:
        """Return the mean response (n_obs,) of a model for the observations of a store on the server, as ``Selection.predict``."""
        eta, ids = self.linear_predictor(model, key=key)
        return model.mean_response(eta + model.given_beside(len(eta), ids, covariates, offset))

    def linear_predictor(self, model: Selection, *, key: str | None = None) -> tuple[Float64Array, Sequence[str] | None]:
        """Return what the store's columns make of the linear predictor (n_obs,), and the observations' identifiers, if any."""
        parts: list[Float64Array] = []
        ids: list[str] = []
        for reply in self._calls("predict", {**self._place(key), "model": model.linear_model()}, self._timeout):
            parts.append(decode_vector(reply["values"], "the answer").astype(np.float64))
            ids += reply.get("ids") or ()
        return np.concatenate(parts), ids or None

    def submit(
        self,
        y: object = None,
        *,
        key: str | None = None,
        run: str | None = None,
        verify: bool = False,
        **request: Unpack[RequestFields],
    ) -> str:
        """Queue a selection and return the name of its job; the job outlives this client. Parameters as for ``select``."""
        return self._queue("select", y, key, run, verify=verify, request=encode_request(make_request(request)))

    def jobs(self) -> Sequence[RunInfo]:
        """Return this caller's jobs as ``list_runs`` does; those on the pool and key of the URL if it names them."""
        place = {"pool": self._address.pool, "key": self._address.key}
        return [RunInfo.of_job(job, self._address.server) for job in self.call("jobs", place)["jobs"]]

    def progress(self, job: str) -> JSONObject:
        """Return the state of a job and, per request, the round, features, score and bytes read."""
        return self.call("progress", {"job": job})

    def follow(self, job: str) -> Iterator[JSONObject]:
        """Yield the progress of a job, at once and at every change, until it has ended; survives lost connections."""
        version, silent_since = -1, time.monotonic()
        while True:
            asked, known = time.monotonic(), version
            try:
                body = {"job": job, "since": version, "wait": self.poll_seconds}
                for progress in self._calls("progress", body, self._timeout):
                    silent_since, version = time.monotonic(), progress["version"]
                    yield progress
                    if progress["state"] in ("done", "failed", "cancelled"):
                        return
                if version == known and time.monotonic() - asked < self.poll_seconds / 2:
                    time.sleep(_BUSY_SECONDS)
            except UnreachableError as error:
                if isinstance(error, UntrustedError) or time.monotonic() - silent_since > self._patience:
                    raise
                version = -1  # a restarted server counts from the beginning
                time.sleep(0.2)

    def result(self, job: str, *, observer: Observer | None = None) -> Sequence[Selection]:
        """Wait for a job to end and return its selections, one per request; raise its error if it failed."""
        found = self.fetch(job, observer=observer)
        if not isinstance(found, list):
            raise RequestError(f"the job {job!r} is no selection but a {type(found).__name__}: use fetch")
        return found

    def cancel(self, job: str) -> JSONObject:
        """End a job and return its progress."""
        return self.call("cancel", {"job": job})

    def resume(self, job: str) -> JSONObject:
        """Queue a failed or cancelled job again and return its progress."""
        return self.call("resume", {"job": job})

    def forget(self, job: str) -> None:
        """Remove an ended job with its answer; its name is free again."""
        self.call("forget", {"job": job})

    @property
    def _patience(self) -> float:
        """Seconds for which a server that cannot be reached is called again."""
        return self._timeout if self._answered else min(self._timeout, _FIRST_CONTACT_SECONDS)

    def _queue(self, operation: str, y: object, key: str | None, run: str | None, **fields: Any) -> str:
        """Queue a job and return its name, which is chosen here so that the submission can be repeated."""
        name = secrets.token_hex(12) if run is None else check_name(run, "run")
        fields["named"] = run is not None
        response = {} if y is None else {"y": encode_vector(y)}
        job: str = self.call(operation, {**self._place(key), "job": name, **response, **fields})["job"]
        return job

    def _place(self, key: str | None) -> dict[str, str]:
        """Return the pool and key that ``key`` or the URL names."""
        pool, name = self._address.pool, self._address.key
        if key is not None:
            *before, name = key.split("/")
            if len(before) > 1:
                raise InputError(f"{key!r} is not a key: expected KEY or POOL/KEY")
            pool = before[0] if before else pool
        if pool is None or name is None:
            raise InputError("the URL does not name a store: expected scheme://host:port/POOL/KEY")
        return {"pool": check_name(pool, "pool"), "key": check_name(name, "key")}

    def _name(self, key: str | None) -> str:
        """Return the URL of a key."""
        place = self._place(key)
        return f"{self._address.server}/{place['pool']}/{place['key']}"

    def upload(self, schema: Any, *, key: str | None = None, **options: Any) -> Upload:
        """Begin an upload whose tiles the caller writes; the basis of ``put`` and ``ingest``.

        Parameters
        ----------
        schema : TableSchema
        key : str, optional
        **options
            ``dtype``, ``missing``, ``tier``, ``replace``, ``progress`` of ``Upload``.
        """
        return Upload(self, ServerURL.parse(self._name(key)), schema, **options)

    def _upload(self, send: Callable[[Callable[..., Upload]], Any]) -> Any:
        """Call ``send`` with a function that opens uploads; repeat if the server lost the upload."""

        def begin(url: str, schema: Any, **options: Any) -> Upload:
            return Upload(self, ServerURL.parse(url), schema, **options)

        for _ in range(_UPLOAD_ATTEMPTS - 1):
            with contextlib.suppress(UploadLostError):
                return send(begin)
        return send(begin)

    def send_tiles(self, upload: str, tiles: Iterable[WireTile]) -> JSONObject:
        """Send tiles once and return the server's reply; for ``Upload``."""
        return _checked_reply(self._transport.send(upload, tiles, self._timeout))

    def call(self, operation: str, body: Mapping[str, object]) -> JSONObject:
        """Carry out an operation by name and return its one reply; see ``replies``."""
        for reply in self.replies(operation, body):
            return reply
        raise ServerError(f"the server gave no reply to {operation}: it may be of another version")

    def replies(self, operation: str, body: Mapping[str, object]) -> Sequence[JSONObject]:
        """Carry out an operation by name and return all of its replies; an idempotent one is repeated within the time limit."""
        began, pause = time.monotonic(), 0.05
        while True:
            try:
                return list(self._calls(operation, body, max(began + self._timeout - time.monotonic(), 0.05)))
            except UnreachableError as error:
                lasting = isinstance(error, UntrustedError) or operation not in _REPEATABLE
                if lasting or time.monotonic() + pause >= began + self._patience:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 1.0)

    def _calls(self, operation: str, body: Mapping[str, object], timeout: float) -> Iterator[JSONObject]:
        """Carry out an operation once and yield its replies; raise an error among them."""
        for data in self._transport.call(operation, encode_message(body), timeout):
            self._answered = True
            yield _checked_reply(data)


def _checked_reply(data: bytes) -> JSONObject:
    """Return a reply of the server; raise the error if it is one."""
    reply = decode_message(data)
    if set(reply) == {"error"}:
        raise_error(reply["error"])
    return reply
