"""A job of the server: what was asked for, how far it is, and what its records hold."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from fastomp_nvm.engine.engine import Progress

__all__ = ["Job", "JobRequest", "State"]

State = Literal["queued", "running", "done", "failed", "cancelled"]

#: Characters of JSON above which a value is replaced by its digest in the request of a job that is not running.
_SHORT = 500


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The request of a job, as JSON values.

    Attributes
    ----------
    owner : str
        Name of the principal that submitted it.
    session : str
        Identifies the owner's client, for fairness among clients.
    pool, key, fingerprint : str
        The data; a job fails if the fingerprint of the store has changed.
    requests : list of mapping
        Fields of ``SelectionRequest``, checked when the job was submitted.
    y : object
        Response in place of the store's target, encoded by ``encode_vector``, or None.
    verify : bool
        Check the store's checksums first.
    memory, work : int
        Estimated bytes of memory and bytes to read.
    submitted : float
        Seconds since the epoch.
    kind : str
        ``select``, or a name in ``ANALYSES`` of ``fastomp_nvm.analysis.wire``: then there is one request.
    options : mapping
        Of an analysis, in JSON terms.
    """

    owner: str
    session: str
    pool: str
    key: str
    fingerprint: str
    requests: Sequence[Mapping[str, Any]]
    y: Any
    verify: bool
    memory: int
    work: int
    submitted: float
    kind: str = "select"
    options: Mapping[str, Any] = field(default_factory=dict)

    def shortened(self) -> JobRequest:
        """Return the request with long values, such as vectors, replaced by their digests."""
        fields = [{name: _digest(value) for name, value in each.items()} for each in self.requests]
        options = {name: _digest(value) for name, value in self.options.items()}
        return replace(self, requests=fields, y=_digest(self.y), options=options)

    def same_as(self, other: JobRequest) -> bool:
        """Return whether two requests are equal, apart from client and time of submission."""
        return replace(self.shortened(), session="", submitted=0.0) == replace(other.shortened(), session="", submitted=0.0)


@dataclass(slots=True, eq=False)
class Job:
    """A job and its state.

    Attributes
    ----------
    request : JobRequest
        Whole while the job runs; otherwise short: long lists and vectors wait on disk.
    result : mapping, optional
        The part of the answer that lists of jobs show.
    seconds : float
        Time for which the job has had the processor; its part of it where jobs ran together.
    """

    name: str
    order: int
    request: JobRequest
    state: State = "queued"
    crashes: int = 0
    error: dict[str, str] | None = None
    changed: float = field(default_factory=time.time)
    version: int = 0
    progress: list[Progress | None] = field(default_factory=list)
    cancelled: bool = False
    notified: float = 0.0
    size: int = 0
    result: dict[str, Any] | None = None
    seconds: float = 0.0
    short: JobRequest | None = None  # while the request is whole

    def load(self, whole: JobRequest) -> None:
        """Have the whole request in memory."""
        self.request, self.short = whole, self.short or self.request

    def unload(self) -> bool:
        """Have the short request only; return whether it was another one until now."""
        whole, self.request, self.short = self.request, self.short or self.request, None
        return whole != self.request

    def describe(self, *, features: bool = False) -> dict[str, Any]:
        """Return the state of the job, for its owner; on request with the features selected so far."""
        return {
            "job": self.name,
            "pool": self.request.pool,
            "key": self.request.key,
            "kind": self.request.kind,
            "state": self.state,
            "version": self.version,
            "progress": [{} if step is None else step.to_json(features=features) for step in self.progress],
            "error": self.error,
        }

    def state_record(self) -> dict[str, Any]:
        """Return the state of the job as its record holds it."""
        return {
            "order": self.order,
            "state": self.state,
            "crashes": self.crashes,
            "error": self.error,
            "changed": self.changed,
            "result": self.result,
            "seconds": self.seconds,
        }

    @property
    def data(self) -> tuple[str, str, str]:
        """Identity of the data."""
        return self.request.pool, self.request.key, self.request.fingerprint

    @property
    def mergeable(self) -> bool:
        """Whether the job may share sweeps: selections on the store's own target that were never running in a crash."""
        asked = self.request
        return asked.kind == "select" and asked.y is None and not self.crashes and not asked.verify

    @classmethod
    def of_records(cls, name: str, request: Mapping[str, Any], state: Mapping[str, Any]) -> Job:
        """Return the job of two records, its request short.

        ``KeyError``, ``TypeError``, ``ValueError`` or ``AttributeError`` where they are none.
        """
        found = JobRequest(**request)
        if state["state"] not in get_args(State) or not all(
            isinstance(each, str) for each in (found.owner, found.session, found.kind)
        ):
            raise ValueError("state, owner, session or kind is not valid")
        numbers = int(state["order"]), int(state["crashes"]), float(state["changed"]), float(state.get("seconds", 0.0))
        result = state.get("result")  # absent in records of older releases
        if not (result is None or isinstance(result, dict)):
            raise ValueError("the result is not valid")
        short = found.shortened()  # raises unless the requests are a list of objects
        order, crashes, changed, seconds = numbers
        return cls(name, order, short, state["state"], crashes, state["error"], changed, result=result, seconds=seconds)


def _digest(value: Any) -> Any:
    """Return a short JSON value as it is, a long one as an object with its digest."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= _SHORT else {"sha256": hashlib.sha256(text.encode()).hexdigest()}
