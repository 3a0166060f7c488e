"""JSON on disk: the type of its values, and objects sealed with their kind, format and CRC-32."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import TypeAlias, Union

from fastomp_nvm.errors import StoreError

__all__ = ["FORMAT", "Json", "seal", "unseal"]

#: Any value that JSON has.
Json: TypeAlias = Union[bool, int, float, str, "list[Json]", "dict[str, Json]", None]

#: Version of registrations, results and records; a run of another version is refused.
FORMAT = 1


def seal(kind: str, content: Mapping[str, Json]) -> bytes:
    """Return ``content`` as JSON that names its kind and format and carries a CRC-32 over all of it."""
    body = json.dumps({"kind": kind, "format": FORMAT, **content})
    return json.dumps({"crc32": zlib.crc32(body.encode("ascii")), "body": body}).encode("ascii")


def unseal(kind: str, data: bytes) -> dict[str, Json]:
    """Return the content of sealed JSON; the message of its ``StoreError`` is the reason alone."""
    try:
        outer = json.loads(data)
        body = outer["body"]
        if not isinstance(body, str) or zlib.crc32(body.encode("ascii")) != outer["crc32"]:
            raise StoreError("it does not match its checksum")
        content: dict[str, Json] = json.loads(body)
        found = content["kind"], content["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError("it is cut off or was overwritten") from error
    if found[0] != kind:
        raise StoreError(f"it is a {found[0]!r} and not a {kind!r}")
    if found[1] != FORMAT:
        raise StoreError(f"its format version is {found[1]!r} and this release reads {FORMAT}: use the release that wrote it")
    return content
