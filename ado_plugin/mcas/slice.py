"""The plugin inside the Python of an MCAS server: one call of a client, over zero-copy views of the pool.

The server carries out one call at a time, so whatever a call does to the ledger of the pool is atomic: two clients that submit one
run, or put one store, are told apart here. Runs advance in slices of a few seconds (:mod:`ado_plugin.mcas.runner`); one client
drives a run, the others follow it, and take over when the driver has not called for a slice. Every operation may be repeated. Calls
and replies are JSON. A reply may also say that the client has to create values (``room``) or to wait (``busy``: for a value that
cannot be seen; ``wait``), and then to repeat the call; and which values nobody needs any more (``garbage``). Needs numpy and scipy
only, and imports nothing of MCAS.
"""

from __future__ import annotations

import functools
import json
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ado_plugin.mcas.ledger import LEDGER, LEDGER_BYTES, Ledger, RoomNeededError
from ado_plugin.mcas.operations import OPERATIONS, WaitError, end_runner
from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.engine.identity import numeric_build
from fastomp_nvm.errors import FastompError, RequestError, ServerError, encode_error
from fastomp_nvm.matrix.kernels import kernel
from fastomp_nvm.selection.codec import encode_message
from fastomp_nvm.version import __version__
from storage_backends.media.mcas import BusyValueError

__all__ = ["answer"]

#: Seconds that a client has to create the ledger before another one may.
_FOUNDING_SECONDS = 10.0

_MOST_GARBAGE = 64

#: The client that creates the ledger, and since when.
_founder: tuple[str, float] = ("", 0.0)


def answer(target: AnyArray, load: Callable[[str], Any], parameters: str) -> str:
    """Carry out one call and return its reply.

    Parameters
    ----------
    target : (n,) int8
        The value that was called, one of the doors of the pool.
    load : callable
        Returns a view of the value of another key, or None; it works once per key.
    parameters : str
        JSON: ``operation``, ``client`` and the parameters of the operation.

    Returns
    -------
    str
        JSON; an error is one sentence under ``error``.
    """

    @functools.cache  # a server returns each value once per call; a second request gets None
    def view(key: str) -> AnyArray:
        found = load(key)
        if not isinstance(found, np.ndarray):
            raise BusyValueError(key)
        return found

    try:
        sent = json.loads(parameters)
        if isinstance(sent, dict) and sent.get("operation") == "ping":
            reply = _ping(target)
        elif not isinstance(sent, dict) or sent.get("operation") not in OPERATIONS:
            raise RequestError(
                f"release {__version__} of the plugin does not know this call: install the client's release in the server"
            )
        else:
            reply = _carry_out(sent, view)
    except BusyValueError as busy:
        reply = {"busy": busy.key}
    except WaitError as wait:
        reply = {"wait": str(wait)}
    except FastompError as error:
        reply = {"error": encode_error(error)}
    except MemoryError:
        reply = {"error": encode_error(ServerError("the server has not enough memory for this: lower gather_bytes"))}
    except Exception as error:
        reply = {"error": encode_error(ServerError(f"the plugin failed ({type(error).__name__}: {str(error)[:300]})"))}
    return encode_message(reply).decode()


def _carry_out(sent: Mapping[str, Any], load: Callable[[str], AnyArray]) -> dict[str, Any]:
    """Carry out an operation that needs the ledger; save what it changes."""
    try:
        ledger = Ledger(load, str(sent.get("pool")), end_runner, full=bool(sent.get("full")))
    except BusyValueError:
        return _found(sent)
    ledger.add(sent.get("made") or {})
    ledger.erased(sent.get("erased") or ())
    for job in sent.get("acknowledged") or ():
        if (entry := ledger.runs.get(job)) is not None:
            entry["waiting"].pop(sent.get("client"), None)
    ledger.save()
    try:
        reply = OPERATIONS[sent["operation"]](ledger, load, sent)
    except RoomNeededError as needed:
        reply = {"room": needed.slots}
    ledger.save()
    return {**reply, "garbage": ledger.garbage[:_MOST_GARBAGE]} if ledger.garbage else reply


def _found(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Have one client create the ledger, if it does not exist, and the others wait."""
    global _founder
    client = str(sent.get("client"))
    if sent.get("full"):
        raise ServerError(f"the pool {sent.get('pool')!r} has no room for a ledger of {LEDGER_BYTES} bytes: make a larger pool")
    if client != _founder[0] and time.monotonic() - _founder[1] < _FOUNDING_SECONDS and _founder[0]:
        return {"busy": LEDGER}
    _founder = (client, time.monotonic())
    return {"room": {LEDGER: LEDGER_BYTES}}


def _ping(target: AnyArray) -> dict[str, Any]:
    """Return the versions of plugin and Python, the software that bits depend on, and how the view of the value lies in memory."""
    return {
        "version": __version__,
        "python": platform.python_version(),
        "build": numeric_build(kernel().id),
        "extension": bool(native.extension),
        "owns_data": bool(target.flags.owndata),
        "address": int(target.__array_interface__["data"][0]),
    }
