"""Messages of MCAS's Python personality: values that it reads as NumPy arrays, calls, and replies, which are read safely.

Values and calls are size-prefixed FlatBuffers of the schema ``pp.fbs``; only two shapes occur, so they are laid out here without a
library. A table is its vtable, itself, and the objects it points to, and can be moved as a whole. A reply is a pickle made by the
server: one text or one byte string is accepted, nothing that names a class or a function. Knows no connection.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import pickle
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fastomp_nvm.errors import RequestError, ServerError, raise_error

__all__ = [
    "LARGEST_PARAMETERS",
    "array_prefix",
    "data_of",
    "invoke_message",
    "plugin_message",
    "read_plugin_reply",
    "read_reply",
    "stub_source",
    "value_of",
]

#: Bytes of parameters that a call can carry; upstream breaks at about 1.4 MB.
LARGEST_PARAMETERS = 1_000_000

_MAGIC = 0x0C0FFEE0
_VERSION = 1
_INVOKE_REQUEST, _DATA_DESCRIPTOR = 1, 3  # members of the union Element
_NUMPY_ARRAY = 2  # DataType
_CPYTHON = 1  # CodeType

Field = tuple[str, Any]  # a struct code and a number, "text" and bytes, "table" and (blob, position)


def array_prefix(key: str, shape: Sequence[int], dtype: np.dtype[Any]) -> bytes:
    """Return the bytes before the data of a C-ordered array in a value.

    Parameters
    ----------
    key : str
        Key of the value, which the personality compares.
    shape : sequence of int
    dtype : dtype
        float16, float32, float64 or int8: the types that the personality preserves.
    """
    strides = np.ones(len(shape), dtype=np.int64)
    strides[:-1] = np.cumprod(np.array(shape[:0:-1], dtype=np.int64))[::-1]
    dimensions = [*shape, *(strides * dtype.itemsize).tolist()]
    header = struct.pack(f"<iq{len(dimensions)}qii", len(shape), dtype.itemsize, *dimensions, 1, dtype.num)
    count = int(np.prod(shape)) * dtype.itemsize
    descriptor = _table([("I", _NUMPY_ARRAY), ("text", key.encode()), ("Q", len(header)), ("Q", count)])
    return _message(_DATA_DESCRIPTOR, descriptor) + header


def value_of(key: str, data: bytes) -> bytes:
    """Return the value that holds ``data`` as an array of int8."""
    return array_prefix(key, (len(data),), np.dtype(np.int8)) + data


def data_of(value: bytes) -> bytes:
    """Return the data of a value that ``value_of`` made."""
    length = struct.unpack_from("<I", value)[0] if len(value) >= 4 else len(value)
    start = 4 + length + struct.calcsize("<iqqqii")
    if start > len(value):
        raise ServerError("a value of the pool is truncated or was not written by this program: put the store again")
    return value[start:]


def invoke_message(function: str, code: str, parameters: str) -> bytes:
    """Return the message that calls ``function``, whose source is ``code``, with one text as its parameters."""
    # The personality unpickles its parameters; this project sends text only.
    packed = base64.b64encode(pickle.dumps(parameters, protocol=2))
    if len(packed) > LARGEST_PARAMETERS:
        raise RequestError(
            f"the call has {len(packed)} bytes of parameters, at most {LARGEST_PARAMETERS} are possible: use shorter names"
        )
    operation = _table([("I", _CPYTHON), ("text", function.encode()), ("text", packed), ("text", code.encode())])
    return _message(_INVOKE_REQUEST, _table([("table", operation)]))


def plugin_message(parameters: Mapping[str, Any]) -> bytes:
    """Return the message that calls the plugin in the server with an operation and its parameters."""
    return invoke_message("fastomp_slice", stub_source(), json.dumps(parameters, separators=(",", ":")))


def read_plugin_reply(data: bytes | bytearray) -> dict[str, Any]:
    """Return the object in a reply of the plugin; raise the error if it is one."""
    try:
        found = json.loads(read_reply(data))
    except (ValueError, RecursionError) as error:
        raise ServerError("the reply of the MCAS server is not JSON: is another plugin installed there?") from error
    if not isinstance(found, dict):
        raise ServerError("the reply of the MCAS server is not an object: is another plugin installed there?")
    if set(found) == {"error"}:
        raise_error(found["error"])
    return found


@functools.cache
def stub_source() -> str:
    """Return the source of ``fastomp_slice``, read as text: importing it here would import the plugin for every message."""
    return "def " + Path(__file__).with_name("stub.py").read_text("utf-8").partition("\ndef ")[2]


def read_reply(data: bytes | bytearray) -> str | bytes:
    """Return the text or bytes in a reply; raise ``ServerError`` for any other pickle."""
    if not data:  # NumPy refused to be imported by the personality, which then ends its work without a word
        raise ServerError(
            "the reply of the MCAS server is empty: its personality was compiled against headers of another major version of numpy "
            "than its Python has, so compile it again, or give it the other numpy with 'fastomp ado install --numpy'"
        )
    try:
        found = _PlainUnpickler(io.BytesIO(bytes(data))).load()
    except ServerError:
        raise
    except Exception as error:  # damaged pickles raise almost anything
        raise ServerError(
            f"the reply of the MCAS server cannot be read ({type(error).__name__}): its personality was compiled for another major "
            "version of NumPy than its Python has (deploy/MCAS.md), or is another one"
        ) from error
    if not isinstance(found, (str, bytes)):
        raise ServerError(
            f"the MCAS server replied with a {type(found).__name__}: expected text; is another plugin installed there?"
        )
    return found


class _PlainUnpickler(pickle.Unpickler):
    """Reads text, bytes and containers of them; refuses everything that needs an import."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ServerError(f"the reply of the MCAS server names {module}.{name} and is refused: only text is expected")


def _message(kind: int, element: tuple[bytes, int]) -> bytes:
    """Return a size-prefixed Message around a table."""
    blob, position = _table([("I", _MAGIC), ("h", _VERSION), ("B", kind), ("table", element)])
    body = struct.pack("<II", 8 + position, 0) + blob  # the root offset, and zeros so that the blob stays aligned
    return struct.pack("<I", len(body)) + body


def _table(fields: Sequence[Field]) -> tuple[bytes, int]:
    """Return a table with the objects it points to, and its position in these bytes."""
    slots, end = [], 4  # behind the offset of the vtable
    for code, _ in fields:
        size = struct.calcsize(code) if len(code) == 1 else 4
        end = -(-end // size) * size
        slots.append(end)
        end += size
    vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), end, *slots)
    start = _padded(len(vtable))
    out = bytearray(vtable.ljust(start + _padded(end), b"\0"))
    struct.pack_into("<i", out, start, start)
    for slot, (code, value) in zip(slots, fields, strict=True):
        here = start + slot
        if len(code) == 1:
            struct.pack_into(f"<{code}", out, here, value)
            continue
        child, position = (struct.pack("<I", len(value)) + value + b"\0", 0) if code == "text" else value
        struct.pack_into("<I", out, here, len(out) + position - here)
        out += child.ljust(_padded(len(child)), b"\0")
    return bytes(out), start


def _padded(length: int) -> int:
    """Return the next multiple of 8."""
    return -(-length // 8) * 8
