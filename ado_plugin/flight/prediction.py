"""A model on a store of a server, for ``Selection.predict``: one call, without the rest of a client."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy as np

from ado_plugin.flight.transport import FlightTransport
from fastomp_nvm import errors
from fastomp_nvm.arrays import Float64Array
from fastomp_nvm.errors import RequestError, ServerError
from fastomp_nvm.remote.address import ServerURL
from fastomp_nvm.remote.credentials import credentials

__all__ = ["predict_remotely"]

#: Seconds for the whole answer.
_TIMEOUT = 600.0


def predict_remotely(url: str, model: Mapping[str, object]) -> tuple[Float64Array, Sequence[str] | None]:
    """Return the linear predictor of a model for the store at ``url``, and the store's identifiers.

    The model is the object of ``Selection.linear_model``.
    """
    address = ServerURL.parse(url)
    if address.scheme == "mcas":
        raise RequestError(f"{url} is in an MCAS server, which does not predict: predict where the table is")
    if address.pool is None or address.key is None:
        raise RequestError(f"{url} does not name a store: expected {address.scheme}://host:port/POOL/KEY")
    body = json.dumps({"pool": address.pool, "key": address.key, "model": dict(model)}, allow_nan=False).encode()
    parts: list[Float64Array] = []
    ids: list[str] = []
    with closing(FlightTransport(address, *credentials(address))) as transport:
        for data in transport.call("predict", body, _TIMEOUT):
            reply = json.loads(bytes(data))
            if "error" in reply:
                kind = reply["error"].get("kind")
                raise (getattr(errors, kind) if kind in errors.__all__ else ServerError)(reply["error"].get("message"))
            parts.append(np.frombuffer(base64.b64decode(reply["values"]["base64"]), dtype="<f8").astype(np.float64))
            ids += reply.get("ids") or ()
    return np.concatenate(parts), ids or None
