"""A model on a store of an MCAS server, page by page.

A reply of the server holds less than 2 MB, so the linear predictor comes in pages of observations, and a page that is lost is asked
for again. The identifiers are a value of the pool, which is read as it is, whatever their length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ado_plugin.mcas.message import data_of, plugin_message, read_plugin_reply
from ado_plugin.mcas.session import McasSession
from fastomp_nvm.errors import CallFailedError, StoreError, StoreURLError, UnreachableError

__all__ = ["ROWS_PER_PAGE", "predicted_pages"]

#: Observations of one reply: 1.4 MB in base64.
ROWS_PER_PAGE = 1 << 17

#: Attempts at one page; the server's helper process may die or be slow.
_ATTEMPTS = 4


def predicted_pages(session: McasSession, pool: str, key: str, model: object, timeout: float) -> Iterator[dict[str, Any]]:
    """Yield the linear predictor of a model for a store, and the identifiers, in parts.

    Parameters
    ----------
    session : McasSession
    pool, key : str
    model : object
        As ``Selection.linear_model`` returns it; the server checks it.
    timeout : float
        Seconds for one call.
    """
    value = session.get(pool, f"fo/{key}", timeout) if session.open(pool, timeout) else None
    if value is None:
        raise StoreURLError(f"there is no store {key!r} in the pool {pool!r} of {session.server}")
    manifest = json.loads(data_of(value))
    ids = None
    if "ids.json" in manifest["files"]:
        found = session.get(pool, f"fo/{key}/{manifest['token']}/ids.json", timeout)
        if found is None:
            raise StoreError(f"the store {key!r} was replaced while a model was evaluated on it: predict again")
        ids = json.loads(data_of(found))
    call = {"operation": "predict", "key": key, "token": manifest["token"], "model": model}
    for first in range(0, manifest["n_obs"], ROWS_PER_PAGE):
        last = min(first + ROWS_PER_PAGE, manifest["n_obs"])
        message = plugin_message({**call, "first": first, "last": last})
        yield {**_page(session, pool, key, message, timeout), "ids": None if ids is None else ids[first:last]}


def _page(session: McasSession, pool: str, key: str, message: bytes, timeout: float) -> dict[str, Any]:
    """Return the reply to one call, which is repeated if it is lost."""
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            reply = session.invoke_when_free(pool, f"fo/{key}", message, timeout)
            break
        except (CallFailedError, UnreachableError):
            if not attempts_left:
                raise
            session.open(pool, timeout)  # raises if the server does not answer
    return read_plugin_reply(reply)
