"""What a client says it is going to upload, checked: data of someone else's until it has been through here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastomp_nvm.durable_files import check_name
from fastomp_nvm.errors import RequestError
from fastomp_nvm.selection.codec import as_names
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.schema import TableSchema

__all__ = ["UploadPlan", "decode_plan", "decode_schema"]

_MOST_FEATURES = 1 << 25


@dataclass(frozen=True, slots=True, eq=False)
class UploadPlan:
    """What is going to be uploaded.

    Attributes
    ----------
    pool, key : str
    schema : TableSchema
    dtype, missing, tier : str
    replace : bool
    sent : mapping
        What the client sent to say all this.
    digest : str
        Equal for equal plans: whoever begins with the same one goes on with the same upload.
    """

    pool: str
    key: str
    schema: Any
    dtype: str
    missing: str
    tier: str
    replace: bool
    sent: Mapping[str, Any]
    digest: str


def decode_plan(sent: Mapping[str, Any]) -> UploadPlan:
    """Return the plan that a client sent; who may use its pool is not decided here."""
    pool, key = check_name(sent.get("pool"), "pool"), check_name(sent.get("key"), "key")
    settings = {name: sent.get(name) for name in ("dtype", "missing", "tier")}
    if not all(isinstance(value, str) for value in settings.values()) or not isinstance(sent.get("replace"), bool):
        raise RequestError(f"an upload needs {', '.join(settings)} as text and replace as true or false")
    digest = hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()
    return UploadPlan(pool, key, decode_schema(sent), sent["dtype"], sent["missing"], sent["tier"], sent["replace"], sent, digest)


def decode_schema(sent: Mapping[str, Any]) -> Any:
    """Return the ``TableSchema`` that a client described."""

    def names(key: str) -> Any:
        found = sent.get(key)
        if isinstance(found, dict) and set(found) == {"numbered", "prefix"}:
            count, prefix = found["numbered"], found["prefix"]
            if (
                not isinstance(count, int)
                or isinstance(count, bool)
                or not 0 <= count <= _MOST_FEATURES
                or not isinstance(prefix, str)
            ):
                raise RequestError(f"{key} are not numbered names: expected a count and a prefix")
            return NumberedNames(count, prefix)
        return tuple(as_names(found, key))

    n_obs, widths = sent.get("n_obs"), sent.get("widths")
    if not isinstance(n_obs, int) or isinstance(n_obs, bool) or not 1 <= n_obs < 2**40:
        raise RequestError(f"n_obs is {str(n_obs)[:40]!r}: expected a number of observations")
    schema = TableSchema
    features = names("features")
    if widths is None:
        return schema.plain(n_obs, features)
    if not isinstance(widths, list) or not all(isinstance(width, int) and 0 < width < 2**20 for width in widths):
        raise RequestError("widths are not a list of column counts, one per feature")
    return schema(n_obs, names("columns"), features, np.concatenate(([0], np.cumsum(np.array(widths, dtype=np.int64)))))
