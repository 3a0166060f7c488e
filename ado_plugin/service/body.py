"""The body of a call: its size is checked before it is parsed, because parsing may take a hundred times its bytes of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastomp_nvm.errors import RequestError
from fastomp_nvm.limits import REQUEST_BYTES, REQUEST_LISTS, REQUEST_VALUES
from fastomp_nvm.selection.codec import decode_message, encode_message

__all__ = ["decode_body"]

#: Operations whose bodies may hold a vector or a list of texts per observation or feature.
_UPLOADS = ("put", "commit")
_SELECTIONS = ("select", "select_many", "analyse")


def decode_body(operation: str, body: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object of a call.

    Raises
    ------
    RequestError
        It is not JSON, or larger than its operation allows.
    """
    size, data = len(body), bytes(body)
    if size > REQUEST_BYTES and operation not in (*_UPLOADS, *_SELECTIONS):
        raise RequestError(f"the request has {size} bytes, at most {REQUEST_BYTES} are possible for {operation}")
    if data.count(b"[") + data.count(b"{") > REQUEST_LISTS or data.count(b",") > REQUEST_VALUES:
        raise RequestError(
            f"the request has more than {REQUEST_LISTS} lists and objects or {REQUEST_VALUES} values: send less at a time"
        )
    message = decode_message(data)
    if size > REQUEST_BYTES and operation in _SELECTIONS and (rest := _without_vectors(message)) > REQUEST_BYTES:
        raise RequestError(f"the request has {rest} bytes beside vectors, at most {REQUEST_BYTES} are possible: use patterns")
    return message


def _without_vectors(message: Mapping[str, Any]) -> int:
    """Return the bytes of the body of a selection or an analysis without response, weights, offset, covariates and folds."""
    requests = message.get("requests", [message.get("request")])
    if isinstance(requests, list):
        without = dict.fromkeys(("weights", "offset", "covariates"))
        requests = [{**each, **without} if isinstance(each, Mapping) else each for each in requests]
    plain = {**message, "y": None, "request": None, "requests": requests}
    if isinstance(options := message.get("options"), Mapping):
        plain["options"] = {**options, "folds": None}
    return len(encode_message(plain))
