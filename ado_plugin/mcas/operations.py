"""Operations of the plugin on the ledger of a pool: stores that clients put, describe and delete, and what they read at once.

Those on runs are in :mod:`ado_plugin.mcas.jobs`. Each receives the ledger, a function that loads a value, and the parameters.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from ado_plugin.mcas import jobs
from ado_plugin.mcas.jobs import WaitError, end_runner, manifest_of, opened
from ado_plugin.mcas.ledger import Ledger
from ado_plugin.service.reading import constraint_facts, extract_pages
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import check_name
from fastomp_nvm.errors import RequestError, ServerError, StoreError
from fastomp_nvm.limits import REQUEST_SECONDS, limited
from fastomp_nvm.selection.codec import decode_linear_model, encode_message, encode_vector
from fastomp_nvm.stores.describe import describe
from fastomp_nvm.stores.listing import list_names
from storage_backends.opened import already_exists

__all__ = ["OPERATIONS", "WaitError", "end_runner"]

Load = Callable[[str], AnyArray]
Operation = Callable[[Ledger, Load, Mapping[str, Any]], dict[str, Any]]

#: Bytes of a page of predictions; the server's helper process dies of a reply of 2.2 MB.
_PAGE_BYTES = 1_400_000

#: Bytes of numbers or identifiers in one page of an extract, before base64, and characters of a reply that holds several.
_EXTRACT_BYTES = 1 << 20
_REPLY_CHARACTERS = 1_500_000

#: Slots made with the first store of a pool, so that the first selections need not ask for any.
_STOCK = [16 << 10, 256 << 10] * 2 + [32 << 10] * 6


def _list(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stores of the pool."""
    wanted = ("n_features", "n_obs", "dtype", "bytes")
    return {"keys": [{"key": key, **{name: each.get(name) for name in wanted}} for key, each in sorted(ledger.stores.items())]}


def _info(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a store."""
    with opened(ledger, load, sent["key"]) as store:
        wanted = sent.get("columns")
        facts = describe(store, wanted if isinstance(wanted, str) else None)
        if isinstance(name := sent.get("name"), str):
            facts["has_name"] = name in store.targets or name in store.names
        if sent.get("names") is not None:
            facts["names"] = list_names(store, sent["names"])
        return facts


def _predict(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the linear predictor of a model, and the identifiers, for as many observations from ``first`` on as a page holds."""
    key, manifest = sent["key"], manifest_of(ledger, sent["key"])
    if sent.get("token") not in (None, manifest["token"]):
        raise StoreError(f"the store {key!r} was replaced while a model was evaluated on it: predict again")
    columns, coef, intercept = decode_linear_model(sent.get("model"))
    first, n_obs, ids = int(sent["first"]), manifest["n_obs"], None
    last, room = min(first + int(sent["rows"]), n_obs), _PAGE_BYTES
    if "ids.json" in manifest["files"]:
        ids = json.loads(load(f"fo/{key}/{manifest['token']}/ids.json").tobytes())[first:last]
        for number, each in enumerate(ids):
            room -= 16 + len(json.dumps(each))
            if room < 0 and number:
                ids = ids[:number]
                break
        last = first + len(ids)
    with opened(ledger, load, key) as store:
        rows = columns.of_store(store, (first, last))
        values = encode_vector(rows.values @ coef + intercept)
    return {"values": values, "ids": ids, "token": manifest["token"], "next": last if last < n_obs else None}


def _check_constraint(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Read a constraint against a store, and test that it is downward closed."""
    with opened(ledger, load, sent["key"]) as store, limited(REQUEST_SECONDS, lambda: False):
        return constraint_facts(sent, store)


def _extract(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return pages of an extract, from number ``page`` on, as many as a reply holds."""
    key, manifest = sent["key"], manifest_of(ledger, sent["key"])
    if sent.get("token") not in (None, manifest["token"]):
        raise StoreError(f"the store {key!r} was replaced while columns were read from it: export again")
    replies: list[dict[str, Any]] = []
    number, room = int(sent["page"]), _REPLY_CHARACTERS
    with opened(ledger, load, key) as store:
        for page in itertools.islice(extract_pages(sent, store, _EXTRACT_BYTES), number, None):
            reply = page()
            room -= len(encode_message(reply))
            if room < 0:
                if not replies:
                    raise RequestError("the names or identifiers of these columns fit no reply: select fewer, or use shorter names")
                break
            replies.append(reply)
        else:
            return {"replies": replies, "token": manifest["token"], "next": None}
    return {"replies": replies, "token": manifest["token"], "next": number + len(replies)}


def _announce(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Note the values that a client is about to put: values that the ledger does not name are never erased.

    ``clear`` are values to erase; ``left`` those of unfinished puts from the same machine, whose clients may be dead.
    """
    manifest = sent["manifest"]
    key, token = check_name(manifest["key"], "key"), manifest["token"]
    if key in ledger.stores and not sent["replace"]:
        raise already_exists(f"{ledger.pool}/{key}")
    ledger.stock(_STOCK)
    for each in ledger.unfinished:
        each["gone"] |= each["key"] == key and each["token"] != token
    if all(each["token"] != token for each in ledger.unfinished):
        ledger.unfinished.append({**manifest, "gone": False})
    left = [each for each in ledger.unfinished if each["host"] == manifest["host"] and each["token"] != token and not each["gone"]]
    return {"clear": _gone(ledger), "left": left}


def _publish(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Make a store visible whose values were all put; return the values to erase, those of the store it replaces among them."""
    key, token = sent["key"], sent["token"]
    if ledger.stores.get(key, {}).get("token") == token:
        return {"clear": _gone(ledger)}
    found = [each for each in ledger.unfinished if each["token"] == token and not each["gone"]]
    if not found:
        raise ServerError(f"another client has put {ledger.pool}/{key} meanwhile: put it again to replace that store")
    _leave(ledger, key)
    ledger.unfinished.remove(found[0])
    ledger.stores[key] = {name: value for name, value in found[0].items() if name != "gone"}
    return {"clear": _gone(ledger)}


def _settle(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Forget values that a client has erased."""
    ledger.unfinished[:] = [each for each in ledger.unfinished if each["token"] not in sent["tokens"]]
    return {}


def _clear(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Give up the unfinished puts of these tokens; return all values to erase."""
    for each in ledger.unfinished:
        each["gone"] |= each["token"] in sent["tokens"]
    return {"clear": _gone(ledger)}


def _delete(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Delete a store that no unfinished run uses, with its runs; return the values to erase."""
    key = check_name(sent.get("key"), "key")
    for each in ledger.unfinished:
        each["gone"] |= each["key"] == key
    if key not in ledger.stores:
        deleted = any(each["key"] == key and each.get("published") for each in ledger.unfinished)  # by a call whose reply was lost
        return {"clear": _gone(ledger), "found": deleted}
    busy = [job for job, entry in ledger.runs.items() if entry["key"] == key and entry["state"] == "running"]
    if busy:
        raise ServerError(
            f"{len(busy)} runs on {ledger.pool}/{key} are not finished ({busy[0]} is one): cancel them or wait", reason="busy"
        )
    for job in [job for job, entry in ledger.runs.items() if entry["key"] == key]:
        ledger.forget(job)
    _leave(ledger, key)
    return {"clear": _gone(ledger), "found": True}


def _trim(ledger: Ledger, load: Load, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Leave the slots that no run needs to be erased, so that a store finds room; return what is in the pool as an error."""
    ledger.trim()
    return {"left": len(ledger.garbage), "full": str(ledger.full_error())}


def _gone(ledger: Ledger) -> list[dict[str, Any]]:
    """Return the manifests whose values are to be erased."""
    return [each for each in ledger.unfinished if each["gone"]]


def _leave(ledger: Ledger, key: str) -> None:
    """Leave the values of a published store to be erased, once no run in progress reads them."""
    for job, entry in ledger.runs.items():
        if entry["key"] == key:
            end_runner(job, entry)
    if key in ledger.stores:
        ledger.unfinished.append({**ledger.stores.pop(key), "gone": True, "published": True})


OPERATIONS: Mapping[str, Operation] = {
    "list": _list,
    "info": _info,
    "predict": _predict,
    "check_constraint": _check_constraint,
    "extract": _extract,
    "announce": _announce,
    "publish": _publish,
    "settle": _settle,
    "clear": _clear,
    "delete": _delete,
    "trim": _trim,
    **jobs.OPERATIONS,
}
