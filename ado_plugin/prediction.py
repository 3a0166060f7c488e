"""A model on a store of a server, for ``Selection.predict``: one call, without the rest of a client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import numpy as np

from fastomp_nvm.arrays import Float64Array, JSONObject
from fastomp_nvm.errors import RequestError, raise_error
from fastomp_nvm.remote.address import ServerURL
from fastomp_nvm.remote.credentials import credentials

__all__ = ["predict_remotely"]

#: Seconds for one call.
_TIMEOUT = 600.0


def predict_remotely(url: str, model: Mapping[str, object]) -> tuple[Float64Array, Sequence[str] | None]:
    """Return the linear predictor of a model for the store at ``url``, and the store's identifiers.

    The model is the object of ``Selection.linear_model``.
    """
    address = ServerURL.parse(url)
    if address.pool is None or address.key is None:
        raise RequestError(f"{url} does not name a store: expected {address.scheme}://host:port/POOL/KEY")
    parts: list[Float64Array] = []
    ids: list[str] = []
    replies = _mcas_replies if address.scheme == "mcas" else _flight_replies
    for reply in replies(address, address.pool, address.key, model):
        parts.append(np.frombuffer(base64.b64decode(reply["values"]["base64"]), dtype="<f8").astype(np.float64))
        ids += reply["ids"] or ()
    return np.concatenate(parts), ids or None


def _flight_replies(address: ServerURL, pool: str, key: str, model: Mapping[str, object]) -> Iterator[JSONObject]:
    """Yield the replies of a pool server."""
    from ado_plugin.flight.transport import FlightTransport

    body = json.dumps({"pool": pool, "key": key, "model": dict(model)}, allow_nan=False).encode()
    with closing(FlightTransport(address, *credentials(address))) as transport:
        for data in transport.call("predict", body, _TIMEOUT):
            reply = json.loads(data)
            if "error" in reply:
                raise_error(reply["error"])
            yield reply


def _mcas_replies(address: ServerURL, pool: str, key: str, model: Mapping[str, object]) -> Iterator[JSONObject]:
    """Yield the pages of an MCAS server."""
    from ado_plugin.mcas.calls import Plugin
    from ado_plugin.mcas.prediction import predicted_pages
    from ado_plugin.mcas.session import McasSession

    with closing(McasSession(address.host, address.port)) as session:
        yield from predicted_pages(Plugin(session), pool, key, model, _TIMEOUT)
