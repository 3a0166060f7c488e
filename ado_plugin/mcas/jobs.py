"""Operations of the plugin on runs: begin, drive or follow, read, cancel, resume, forget.

A run, of selections or an analysis, is an entry of the ledger and slots for its record, its journals and its answer. ``running``
runs advance while a client drives them. One client is the driver; it stays so as long as it calls within ``SLICE_SECONDS``. Ended
runs keep the slot of their answer alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ado_plugin.mcas.ledger import Ledger, RunSlots
from ado_plugin.mcas.runner import Runner
from ado_plugin.service.analysis import checked_analysis
from ado_plugin.service.limits import JobLimits
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import check_name
from fastomp_nvm.errors import (
    CancelledError,
    FastompError,
    RequestError,
    ServerError,
    StoreError,
    StoreURLError,
    encode_error,
    raise_error,
)
from fastomp_nvm.limits import REQUEST_SECONDS, limited
from fastomp_nvm.runs.journal import recorded_progress
from fastomp_nvm.runs.log import PAGE, StateLog, read_state
from fastomp_nvm.selection.run_info import describe_job
from storage_backends.media.mcas import PoolStore, open_pool_store, values_of_store, writable_bytes
from storage_backends.opened import ArrayRegion

__all__ = ["OPERATIONS", "SLICE_SECONDS", "WaitError", "end_runner", "manifest_of", "opened"]

#: Most seconds for which one call drives a run; upstream's client gives up after 30. Also the lease of a driver.
SLICE_SECONDS = 3.0

#: Bytes of the first region of a journal, and of a usual answer.
_FIRST_ROOM = 64 * PAGE
_RESULT_ROOM = 8 * PAGE

#: Characters of an answer that travel in one reply.
_CHARACTERS = 1_000_000

#: Runs that are kept in progress between calls; the memory of each is that of a selection.
_MOST_RUNNERS = 8

_RECORD, _RESULT = "record", "result"

#: Runs in progress by their id, the least recently driven first; and the driver of each, with the end of its lease.
_runners: dict[str, Runner] = {}
_drivers: dict[str, tuple[str, float]] = {}

#: Runs forgotten lately, with the call: its reply may be lost, and the call repeated.
_forgotten: deque[tuple[str, str]] = deque(maxlen=64)

Load = Callable[[str], AnyArray]
Operation = Callable[[Ledger, Load, Mapping[str, Any]], dict[str, Any]]


class WaitError(Exception):
    """The call cannot be carried out at this moment: the client repeats it."""


def manifest_of(ledger: Ledger, key: object) -> dict[str, Any]:
    """Return the manifest of a store that exists."""
    if key not in ledger.stores:
        raise StoreURLError(f"there is no store {key!r} in the pool {ledger.pool!r}")
    return ledger.stores[str(key)]


def opened(ledger: Ledger, load: Load, key: str) -> PoolStore:
    """Open a store that exists."""
    return open_pool_store(load, key, manifest_of(ledger, key))


def end_runner(job: str, entry: Mapping[str, Any]) -> None:
    """End the thread of a run, whose journal stays; ``WaitError`` while it cannot be ended."""
    runner = _runners.get(entry["id"])
    if runner is not None and not runner.discard():
        raise WaitError(f"the run {job!r} does not stop: try again")
    _runners.pop(entry["id"], None)
    _drivers.pop(entry["id"], None)


def _select(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Begin a run, unless it was begun: the same request is followed, another one is an error."""
    try:
        return _begin(ledger, load, sent)
    except FastompError:
        if sent.get("input"):
            ledger.discard(sent["input"])
            ledger.save()
        raise


def _begin(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Begin a run, or return the state of the one that was begun by the same request."""
    key, job = check_name(sent.get("key"), "key"), check_name(sent.get("job"), "run")
    manifest, given = manifest_of(ledger, key), sent.get("input")
    record = load(given).tobytes() if given else json.dumps(sent["record"], separators=(",", ":"), sort_keys=True).encode()
    digest = hashlib.blake2b(key.encode() + b"/" + record, digest_size=16).hexdigest()
    entry = ledger.runs.get(job)
    if entry is not None:
        if entry["digest"] != digest:
            raise ServerError(f"a run {job!r} with another request exists: choose another name, or forget it")
        if entry["fingerprint"] != manifest["fingerprint"]:
            raise ServerError(f"the run {job!r} is on a store that was replaced: choose another name, or forget it")
        if given not in (None, entry["input"]):
            ledger.discard(given)
    else:
        kind, asked, journals = _checked(ledger, load, key, json.loads(record))
        logs = {f"{_log(place)}.0": _FIRST_ROOM for place in range(journals)}
        ledger.take(job, {**({} if given else {_RECORD: len(record)}), **logs, f"{_RESULT}.0": _RESULT_ROOM})
        RunSlots(ledger, job).clear()
        if not given:
            array = ledger.region(job, _RECORD)
            assert array is not None, "it was just taken"
            ArrayRegion(_RECORD, writable_bytes(array)).write(0, record)
        entry = ledger.runs[job] = {
            "id": secrets.token_hex(16),
            "key": key,
            "fingerprint": manifest["fingerprint"],
            "digest": digest,
            "input": given,
            "bytes": len(record),
            "kind": kind,
            "journals": journals,
            "named": bool(sent.get("named", True)),
            "state": "running",
            "error": None,
            "changed": time.time(),
            "waiting": {},
            "progress": None,
            "about": describe_job(asked[0] if isinstance(asked[0], dict) else {}, kind=kind),
        }
    _note_follower(entry, sent)
    return _standing(ledger, job, entry)


def _checked(ledger: Ledger, load: Load, key: str, record: Mapping[str, Any]) -> tuple[str, list[Any], int]:
    """Return kind and requests of a run to begin, and how many journals it keeps; an analysis is checked against the data."""
    asked = record["requests"]
    if not isinstance(asked, list) or not asked:
        raise RequestError("no request was sent: expected at least one")
    if "kind" not in record:
        return "select", asked, len(asked)
    with opened(ledger, load, key) as store, limited(REQUEST_SECONDS, lambda: False):
        checked_analysis(record["kind"], asked[0], record["options"], None, store, JobLimits())
    return record["kind"], asked, 0


def _progress(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Drive a run for some seconds, or follow the client that does; return its state, with the answer where it is short."""
    job, entry = _find(ledger, sent)
    seconds, client, now = float(sent.get("seconds", 0.0)), str(sent.get("client")), time.monotonic()
    following = False
    if seconds and entry["state"] == "running":
        _note_follower(entry, sent)
        driver, until = _drivers.get(entry["id"], ("", 0.0))
        following = driver != client and now < until
        if not following:
            active = sum(now < end for other, (_, end) in _drivers.items() if other != entry["id"])
            _advance(ledger, load, job, entry, now + min(seconds, SLICE_SECONDS) / (1 + active))
            if entry["state"] == "running":
                _drivers[entry["id"]] = (client, time.monotonic() + SLICE_SECONDS)
    reply = {**_standing(ledger, job, entry), "following": following}
    if entry["state"] == "done" and seconds:
        text = _answer(ledger, job, entry)
        if len(text) <= _CHARACTERS:
            reply["answer"] = text
    return reply


def _advance(ledger: Ledger, load: Load, job: str, entry: dict[str, Any], end: float) -> None:
    """Drive a run until ``end`` on the clock, and record its end."""
    slots, identifier = RunSlots(ledger, job), entry["id"]
    if not _answers(ledger, job, entry):
        try:
            runner = _runner(ledger, load, job, entry)
        except FastompError as error:
            _end(ledger, job, entry, "failed", error)
            return
        if runner is None:
            return
        for key in runner.values:
            load(key)  # locks it as long as this call lasts
        for region in slots.regions():
            ledger.region(job, region)
        runner.advance(end, slots)
        if not runner.finished:
            return
        if runner.answers is None:
            _end(ledger, job, entry, "failed", _explained(runner.error))
            del _runners[identifier]
            _drivers.pop(identifier, None)
            return
        size = max(_RESULT_ROOM, 4 * PAGE + -(-len(runner.answers) // PAGE) * PAGE)
        with contextlib.closing(StateLog(slots, _RESULT, _log_id(entry, _RESULT), size)) as log:
            log.append(runner.answers)
    answers = json.loads(_answer(ledger, job, entry))["answers"]
    entry["about"]["result"] = describe_job({}, answers, entry["kind"]).get("result")
    _end(ledger, job, entry, "done", None)
    _runners.pop(identifier, None)
    _drivers.pop(identifier, None)


def _runner(ledger: Ledger, load: Load, job: str, entry: Mapping[str, Any]) -> Runner | None:
    """Return the thread of a run, a new one where there is none; None where too many others are in progress."""
    runner = _runners.pop(entry["id"], None)
    if runner is not None and runner.discarded and not runner.discard():
        _runners[entry["id"]] = runner  # it ends at its next step
        return None
    if runner is None or runner.discarded:
        now = time.monotonic()
        idle = [other for other in _runners if _drivers.get(other, ("", 0.0))[1] < now]
        if len(_runners) >= _MOST_RUNNERS:
            if not idle or not _runners[idle[0]].discard():
                return None
            del _runners[idle[0]]
        manifest = ledger.stores.get(entry["key"])
        if manifest is None:
            raise StoreError(f"the store {entry['key']!r} was deleted after the run was begun")
        if manifest["fingerprint"] != entry["fingerprint"]:
            raise StoreError(f"the store {entry['key']!r} was replaced after the run was begun: begin a new one")
        record = json.loads(_record(ledger, load, job, entry))
        logs = {_log(place): _log_id(entry, _log(place)) for place in range(entry["journals"])}
        values = list(values_of_store(entry["key"], manifest))
        store = open_pool_store(load, entry["key"], manifest)
        runner = Runner(record, store, logs, _FIRST_ROOM, values)
    _runners[entry["id"]] = runner
    return runner


def _result(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of the answer of a finished run, from character ``first`` on."""
    job, entry = _find(ledger, sent)
    if entry["error"] is not None:
        raise_error(entry["error"])
    if entry["state"] != "done":
        raise ServerError(f"the run {job!r} is not finished: follow its progress, which drives it")
    text, first = _answer(ledger, job, entry), int(sent.get("first", 0))
    last = first + _CHARACTERS
    return {"text": text[first:last], "next": last if last < len(text) else None}


def _cancel(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Cancel a run; an ended one stays as it is."""
    job, entry = _find(ledger, sent)
    if entry["state"] == "running":
        end_runner(job, entry)
        entry.update(state="cancelled", error=encode_error(CancelledError(f"the run {job!r} was cancelled")), changed=time.time())
    return _standing(ledger, job, entry)


def _resume(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Let a failed or cancelled run go on."""
    job, entry = _find(ledger, sent)
    if entry["state"] in ("failed", "cancelled"):
        entry.update(state="running", error=None, changed=time.time(), progress=None)
    _note_follower(entry, sent)
    return _standing(ledger, job, entry)


def _forget(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Remove a run that nobody drives."""
    call = str(sent.get("call")), str(sent.get("job"))
    if call in _forgotten:
        return {}
    job, entry = _find(ledger, sent)
    if entry["state"] == "running" and time.monotonic() < _drivers.get(entry["id"], ("", 0.0))[1]:
        raise ServerError(f"the run {job!r} is not finished: cancel it first", reason="busy")
    ledger.forget(job)
    _forgotten.append(call)
    return {}


def _jobs(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """List the runs of the pool, or those on a key, without driving them, each with the progress of its first request."""
    found = [
        (_standing(ledger, job, entry), entry) for job, entry in ledger.runs.items() if sent.get("key") in (None, entry["key"])
    ]
    return {"jobs": [{**standing, "progress": standing["progress"][:1], **entry["about"]} for standing, entry in found]}


def _find(ledger: Ledger, sent: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the entry of the run of a call."""
    job = check_name(sent.get("job"), "run")
    if job not in ledger.runs:
        raise ServerError(
            f"there is no run {job!r} in the pool {ledger.pool!r}: it was never submitted here, or it ended and was forgotten"
        )
    return job, ledger.runs[job]


def _note_follower(entry: dict[str, Any], sent: Mapping[str, Any]) -> None:
    """Note that a client waits for the answer of a run, which is kept until it has acknowledged it."""
    client, now = str(sent.get("client")), time.time()
    if now - entry["waiting"].get(client, 0.0) > 60.0:  # seldom, because each change is written to the pool
        entry["waiting"][client] = entry["changed"] = now


def _standing(ledger: Ledger, job: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a run."""
    progress = entry["progress"]
    if progress is None:
        progress = _recorded(ledger, job, entry)
    return {"job": job, "progress": progress, **{name: entry[name] for name in ("key", "kind", "state", "error")}}


def _recorded(ledger: Ledger, job: str, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the progress of the requests of a run according to their journals; of an analysis, that of its runs in memory."""
    runner, slots = _runners.get(entry["id"]), RunSlots(ledger, job)
    if entry["kind"] != "select":
        return [step.to_json(features=False) for _, step in sorted(runner.steps.copy().items())] if runner is not None else []
    share = 0.0 if runner is None or runner.finished else runner.share
    names = [_log(place) for place in range(entry["journals"])]
    states = [read_state(slots, name, _log_id(entry, name)) for name in names]
    return [asdict(replace(recorded_progress(state.records, place), share=share)) for place, state in enumerate(states)]


def _end(ledger: Ledger, job: str, entry: dict[str, Any], state: str, error: FastompError | None) -> None:
    """Record the end of a run; a finished one keeps the slot of its answer alone."""
    progress = _recorded(ledger, job, entry)
    entry.update(progress=progress if entry["kind"] == "select" else progress[:1], state=state, changed=time.time())
    entry["error"] = None if error is None else encode_error(error)
    if state == "done":
        for region in RunSlots(ledger, job).regions():
            if not region.startswith(f"{_RESULT}."):
                ledger.release(job, region)
        if entry["input"]:
            ledger.discard(entry["input"])
            entry["input"] = None


def _explained(error: BaseException | None) -> FastompError:
    """Return the error of a run as its clients see it."""
    if isinstance(error, FastompError):
        return error
    if isinstance(error, MemoryError):
        return ServerError("the server has not enough memory for this: lower gather_bytes")
    return ServerError(f"the plugin failed ({type(error).__name__}: {str(error)[:300]})")


def _record(ledger: Ledger, load: Load, job: str, entry: Mapping[str, Any]) -> bytes:
    """Return the encoded requests of a run."""
    array = load(entry["input"]) if entry["input"] else ledger.region(job, _RECORD)
    if array is None:
        raise StoreError(f"the record of the run {job!r} is lost: forget it and begin again")
    return array.view(np.uint8)[: entry["bytes"]].tobytes()


def _answers(ledger: Ledger, job: str, entry: Mapping[str, Any]) -> list[bytes]:
    """Return the records of the log of the answer: none, or one."""
    return list(read_state(RunSlots(ledger, job), _RESULT, _log_id(entry, _RESULT)).records)


def _answer(ledger: Ledger, job: str, entry: Mapping[str, Any]) -> str:
    """Return the answer of a finished run as text."""
    found = _answers(ledger, job, entry)
    if not found:
        raise StoreError(f"the answer of the run {job!r} is lost: forget it and begin again")
    return found[-1].decode("ascii")


def _log(place: int) -> str:
    """Return the name of the journal of one request."""
    return f"log{place}"


def _log_id(entry: Mapping[str, Any], name: str) -> bytes:
    """Return the id of one log of a run."""
    return hashlib.blake2b(f"mcas/{entry['id']}/{name}".encode(), digest_size=16).digest()


OPERATIONS: Mapping[str, Operation] = {
    "select": _select,
    "progress": _progress,
    "result": _result,
    "cancel": _cancel,
    "resume": _resume,
    "forget": _forget,
    "jobs": _jobs,
}
