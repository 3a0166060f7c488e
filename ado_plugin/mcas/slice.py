"""The plugin inside the Python of an MCAS server: one slice of a selection per call, over zero-copy views of the pool.

A call there must end within seconds, so a selection is driven in slices: each replays the journal in the pool, continues for a few
seconds, leaves its decisions in the pool and returns. A caller names the run and the sequence it expects; a call that is late,
repeated or from a second driver expects another sequence and changes nothing. When the journal needs a larger region the reply says
so, and the client creates it. Calls and replies are JSON. Needs numpy and scipy only, and imports nothing of MCAS.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.constraints.written.description import parse_constraint
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.identity import numeric_build
from fastomp_nvm.errors import FastompError, RequestError, ServerError, StoreError, encode_error
from fastomp_nvm.matrix.kernels import kernel
from fastomp_nvm.runs.drive import JournaledRun, drive
from fastomp_nvm.runs.journal import recorded_progress
from fastomp_nvm.runs.log import PAGE, RegionPlace, StateLog, read_state
from fastomp_nvm.selection.codec import (
    decode_linear_model,
    decode_request,
    decode_vector,
    encode_message,
    encode_selection,
    encode_vector,
)
from fastomp_nvm.stores.describe import describe
from fastomp_nvm.stores.listing import list_names
from fastomp_nvm.version import __version__
from storage_backends.media.mcas import RoomNeededError, RunRegions, open_pool_store, read_json

__all__ = ["FIRST_ROOM", "RESULT", "answer", "log_identifier", "log_name"]

#: Bytes of the first region of a run's journal.
FIRST_ROOM = 64 * PAGE

#: Name of the log that holds the answers.
RESULT = "result"

#: Results of runs that ended in this process and wait for a region; lost with the process, and then computed again.
_computed: dict[str, bytes] = {}


def answer(target: AnyArray, load: Callable[[str], Any], parameters: str) -> str:
    """Carry out one call and return its reply.

    Parameters
    ----------
    target : (n,) int8
        The value that was called: the manifest of a store, or the record of a run.
    load : callable
        Returns a view of the value of another key, or None; it works once per key.
    parameters : str
        JSON: ``operation`` and its parameters.

    Returns
    -------
    str
        JSON; an error is one sentence under ``error``.
    """
    try:
        sent = json.loads(parameters)
        operation = _OPERATIONS.get(str(sent.get("operation"))) if isinstance(sent, dict) else None
        if operation is None:
            raise RequestError(
                f"release {__version__} of the plugin does not know this call: install the client's release in the server"
            )
        # A server returns each value once per call; a second request gets None.
        reply = operation(target, functools.cache(load), sent)
    except FastompError as error:
        reply = {"error": encode_error(error)}
    except MemoryError:
        reply = {"error": encode_error(ServerError("the server has not enough memory for this: lower gather_bytes"))}
    except Exception as error:
        reply = {"error": encode_error(ServerError(f"the plugin failed ({type(error).__name__}: {str(error)[:300]})"))}
    return encode_message(reply).decode()


def log_identifier(run: str, name: str) -> bytes:
    """Return the id of one log of the run with the id ``run``."""
    return hashlib.blake2b(f"mcas/{run}/{name}".encode(), digest_size=16).digest()


def log_name(place: int) -> str:
    """Return the name of the journal of one request."""
    return f"log{place}"


def _ping(target: AnyArray, load: Callable[[str], Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions of plugin and Python, the software that bits depend on, and how the view of the value lies in memory."""
    return {
        "version": __version__,
        "python": platform.python_version(),
        "build": numeric_build(kernel().id),
        "extension": bool(native.extension),
        "owns_data": bool(target.flags.owndata),
        "address": int(target.__array_interface__["data"][0]),
    }


def _info(target: AnyArray, load: Callable[[str], Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a store."""
    with open_pool_store(load, sent["key"], read_json(target, "the manifest")) as store:
        wanted = sent.get("columns")
        facts = describe(store, wanted if isinstance(wanted, str) else None)
        if isinstance(name := sent.get("name"), str):
            facts["has_name"] = name in store.targets or name in store.names
        if sent.get("names") is not None:
            facts["names"] = list_names(store, sent["names"])
        return facts


def _predict(target: AnyArray, load: Callable[[str], Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the linear predictor of a model for the observations from ``first`` to ``last``."""
    manifest, key = read_json(target, "the manifest"), sent["key"]
    if manifest.get("token") != sent["token"]:
        raise StoreError(f"the store {key!r} was replaced while a model was evaluated on it: predict again")
    columns, coef, intercept = decode_linear_model(sent.get("model"))
    with open_pool_store(load, key, manifest) as store:
        rows = columns.of_store(store, (int(sent["first"]), int(sent["last"])))
        return {"values": encode_vector(rows.values @ coef + intercept)}


def _slice(target: AnyArray, load: Callable[[str], Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Drive a run for some seconds, if it is at the sequence that the caller expects."""
    run = read_json(target, "the record of the run")
    job = run["job"]
    if sent.get("run") != run["id"]:
        raise ServerError(f"the run {job!r} is another one than the caller's: it was removed and begun again")
    names = [log_name(number) for number in range(len(run["requests"]))]
    place: RegionPlace = RunRegions(load, f"run/{job}", [*names, RESULT])

    def reply(state: str, **more: Any) -> dict[str, Any]:
        return {"state": state, **more, **_progress(run["id"], place, names)}

    result_id = log_identifier(run["id"], RESULT)
    if read_state(place, RESULT, result_id).sequence:
        return reply("done")
    before = reply("moved")
    if sent.get("expected") != before["sequence"]:
        return before
    end = time.monotonic() + float(sent["seconds"])
    try:
        if run["id"] not in _computed:
            verify = run["verify"] and not before["sequence"]  # in the first slice alone
            result = _drive(run, load, place, lambda: time.monotonic() >= end, verify=verify)
            if result is None:
                return reply("running")
            _computed.clear()  # one run at a time ends here, and its client reads the result at once
            _computed[run["id"]] = result
        _keep_result(place, _computed[run["id"]], result_id)
        del _computed[run["id"]]
    except RoomNeededError as needed:
        return reply("room", region=needed.region, size=needed.size)
    return reply("done")


def _drive(
    run: Mapping[str, Any], load: Callable[[str], Any], place: RegionPlace, deadline: Callable[[], bool], *, verify: bool
) -> bytes | None:
    """Drive a run until it ends or the deadline has passed; return the encoded answers, or None where the deadline came first."""
    manifest = load(f"fo/{run['key']}")
    if manifest is None:
        raise StoreError(f"the store {run['key']!r} was deleted after the run was begun")
    runs = []
    for number, sent in enumerate(run["requests"]):
        name = log_name(number)
        open_log = functools.partial(StateLog, place, name, log_identifier(run["id"], name), FIRST_ROOM)
        runs.append(JournaledRun(decode_request(sent), open_log, {"request": sent, "response": run["y"]}))
    with open_pool_store(load, run["key"], read_json(manifest, "the manifest")) as store:
        if store.layout.fingerprint != run["fingerprint"]:
            raise StoreError(f"the store {run['key']!r} was replaced after the run was begun: begin a new one")
        for each in runs:
            if each.request.constraint is not None:
                parse_constraint(each.request.constraint, store.names, base_path=None, allow_oracle=False)  # type: ignore[arg-type]
        if verify:
            store.verify()
        response = None if run["y"] is None else decode_vector(run["y"], "y")
        if not drive(Dataset.of_store(store), runs, response, verified=run["verify"], deadline=deadline):
            return None
    return encode_message({"answers": [encode_selection(each.selection) for each in runs if each.selection is not None]})


def _keep_result(place: RegionPlace, result: bytes, identifier: bytes) -> None:
    """Write the result into the pool, where the client reads it."""
    size = 4 * PAGE + -(-len(result) // PAGE) * PAGE
    if f"{RESULT}.0" in place.regions():
        size = place.region(f"{RESULT}.0").size  # made for an answer with other digits; the log grows if needed
    with contextlib.closing(StateLog(place, RESULT, identifier, size)) as log:
        log.append(result)


def _progress(run: str, place: RegionPlace, names: list[str]) -> dict[str, Any]:
    """Return the sequence of a run, which counts every durable step, and the progress of its requests."""
    states = [read_state(place, name, log_identifier(run, name)) for name in names]
    progress = [asdict(recorded_progress(state.records, number)) for number, state in enumerate(states)]
    return {"sequence": sum(state.sequence for state in states), "progress": progress}


_OPERATIONS: Mapping[str, Callable[[AnyArray, Callable[[str], Any], Mapping[str, Any]], dict[str, Any]]] = {
    "ping": _ping,
    "info": _info,
    "predict": _predict,
    "slice": _slice,
}
