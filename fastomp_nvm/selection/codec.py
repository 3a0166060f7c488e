"""Requests, selections and vectors as plain JSON: what crosses a socket and what a server writes down.

A request on the wire is the fields of a ``SelectionRequest`` and nothing else: data, never code. Floats survive JSON bit for bit;
vectors travel as base64 of their bytes with a type out of a short list. Everything read here came from someone else, so every
shape and type is checked before it is used. Knows neither sockets nor servers.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from fastomp_nvm import errors
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.errors import DataError, FastompError, RequestError
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.selection.result import Selection

__all__ = [
    "LARGEST_MESSAGE",
    "as_names",
    "decode_message",
    "decode_request",
    "decode_selection",
    "decode_vector",
    "encode_error",
    "encode_message",
    "encode_request",
    "encode_selection",
    "encode_vector",
    "raise_error",
]

#: Bytes of one JSON message, in either direction.
LARGEST_MESSAGE = 64 << 20

_VECTOR_TYPES = ("<f2", "<f4", "<f8", "|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8")
_TEXT_FIELDS = ("algorithm", "objective", "until", "polish", "target")


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Return a message as JSON; ``RequestError`` when it is too large or holds what JSON cannot."""
    try:
        data = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"the request cannot be sent ({error}): expected plain, finite values") from error
    if len(data) > LARGEST_MESSAGE:
        raise RequestError(f"the message has {len(data)} bytes, at most {LARGEST_MESSAGE} are possible")
    return data


def decode_message(data: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object in ``data``."""
    if len(data) > LARGEST_MESSAGE:
        raise RequestError(f"the message has {len(data)} bytes, at most {LARGEST_MESSAGE} are possible")
    try:
        message = json.loads(bytes(data), parse_constant=_no_constant)
    except RecursionError as error:
        raise RequestError("the message is nested too deeply: expected one object of plain fields") from error
    except ValueError as error:
        raise RequestError(f"the message is not JSON ({str(error)[:80]}): expected one object") from error
    if not isinstance(message, dict):
        raise RequestError(f"the message is a {type(message).__name__}: expected one object")
    return message


def encode_vector(values: Any) -> dict[str, str] | list[str]:
    """Return a vector (n,) of numbers, truth values or text in JSON terms.

    Parameters
    ----------
    values : (n,) array or sequence
    """
    array = np.asarray(values)
    if array.ndim == 2 and 1 in array.shape:
        array = array.ravel()
    if array.ndim != 1:
        raise DataError(f"a vector of shape {array.shape} was given: expected one value per observation")
    if array.dtype.kind == "O":
        texts = [value for value in array.tolist() if isinstance(value, str)]
        try:
            array = array.astype(str) if texts else array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"the vector holds neither numbers nor text ({error}): convert it first") from error
    if array.dtype.kind in "US":
        return [str(value) for value in array.astype(str).tolist()]
    plain = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if plain.dtype.str not in _VECTOR_TYPES:
        raise DataError(f"the vector holds {array.dtype}: expected numbers, truth values or text")
    return {"dtype": plain.dtype.str, "base64": base64.b64encode(np.ascontiguousarray(plain).tobytes()).decode("ascii")}


def decode_vector(sent: object, what: str) -> AnyArray:
    """Return the vector (n,) behind ``sent``; ``what`` names it in errors."""
    if isinstance(sent, list) and all(isinstance(value, str) for value in sent):
        return np.array(sent, dtype=np.str_)
    if not isinstance(sent, Mapping) or set(sent) != {"dtype", "base64"}:
        raise RequestError(f"{what} is not a vector: expected a list of texts, or an object of dtype and base64")
    if sent["dtype"] not in _VECTOR_TYPES or not isinstance(sent["base64"], str):
        raise RequestError(f"{what} has the type {str(sent['dtype'])[:20]!r}: expected one of {', '.join(_VECTOR_TYPES)}")
    try:
        data = base64.b64decode(sent["base64"], validate=True)
        array = np.frombuffer(data, dtype=sent["dtype"])
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{what} is damaged ({error}): send it again") from error
    return array.astype(array.dtype.newbyteorder("="))


def encode_request(request: SelectionRequest) -> dict[str, Any]:
    """Return the fields of a request that differ from their defaults.

    Raises
    ------
    RequestError
        The constraint is an object of this process: only its description can travel.
    """
    if isinstance(request.constraint, Constraint):
        raise RequestError(
            f"the constraint is a {type(request.constraint).__name__} object, which exists in this process only: servers and "
            "durable runs need its description, a mapping or YAML text"
        )
    fields: dict[str, Any] = {}
    for name, field in SelectionRequest.__dataclass_fields__.items():
        value = getattr(request, name)
        if name == "weights":
            if value is not None:
                fields[name] = encode_vector(value)
        elif name == "exclude":
            if len(value):
                fields[name] = [str(feature) for feature in value]
        elif value != field.default:
            fields[name] = value.item() if isinstance(value, np.generic) else value
    return fields


def decode_request(sent: object) -> SelectionRequest:
    """Return the request that ``sent`` describes.

    Raises
    ------
    RequestError
        It is not an object of known fields, each of its type and in its domain.
    """
    if not isinstance(sent, Mapping):
        raise RequestError(f"the request is a {type(sent).__name__}: expected an object of fields")
    known = SelectionRequest.__dataclass_fields__
    fields: dict[str, Any] = dict(sent)
    for name, value in fields.items():
        if name not in known:
            raise RequestError(f"a selection has no parameter {name[:100]!r}: expected one of {', '.join(known)}")
        if name == "weights":
            fields[name] = None if value is None else decode_vector(value, "weights")
        elif name == "exclude":
            if not isinstance(value, list) or not all(isinstance(feature, str) for feature in value):
                raise RequestError("exclude is not a list of feature names")
        elif name == "constraint":
            if not (value is None or isinstance(value, (str, Mapping))):
                raise RequestError(f"the constraint is a {type(value).__name__}: expected a mapping or YAML text")
        elif name in _TEXT_FIELDS:
            if not (value is None or isinstance(value, str)):
                raise RequestError(f"{name} is a {type(value).__name__}: expected text")
        elif not (value is None or isinstance(value, (bool, int, float, str))):
            raise RequestError(f"{name} is a {type(value).__name__}: expected a single value")
    if not isinstance(fields.get("standardize", True), bool):
        raise RequestError(f"standardize is {fields['standardize']!r}: expected true or false")
    try:
        return SelectionRequest(**fields)
    except FastompError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"the request cannot be understood ({error})") from error


def encode_selection(selection: Selection) -> dict[str, Any]:
    """Return an answer in JSON terms: what ``select --json`` prints, and which columns are behind it."""
    return {
        "json": selection.to_json(),
        "columns": [list(part) for part in selection.columns],
        "column_positions": [int(column) for column in selection.column_positions],
    }


def decode_selection(sent: Mapping[str, Any]) -> Selection:
    """Return the answer that ``sent`` describes."""
    try:
        details = dict(sent["json"])
        details.pop("columns", None)
        coef = [np.array(part if isinstance(part, list) else [part], dtype=np.float64) for part in details.pop("coef")]
        return Selection(
            features=list(details.pop("features")),
            indices=np.array(details.pop("indices"), dtype=np.int64),
            columns=[list(part) for part in sent["columns"]],
            coef=coef,
            column_positions=np.array(sent["column_positions"], dtype=np.int64),
            intercept=float(details.pop("intercept")),
            score=float(details.pop("score")),
            details=details,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise errors.ServerError(f"the answer cannot be read ({error!r}): was it made by another release?") from error


def encode_error(error: FastompError) -> dict[str, str]:
    """Return an error in JSON terms."""
    return {"kind": type(error).__name__, "message": " ".join(str(error).split())}


def raise_error(sent: Mapping[str, Any]) -> NoReturn:
    """Raise the error that a server sent, as its own class where that is one of ours."""
    kind = getattr(errors, str(sent.get("kind")), None) if sent.get("kind") in errors.__all__ else None
    raise (kind or errors.ServerError)(str(sent.get("message", "the server failed and did not say why")))


def _no_constant(text: str) -> NoReturn:
    """Refuse NaN and infinity, which JSON does not have and Python's reader would let through."""
    raise ValueError(f"{text} is not a JSON value")


def as_names(sent: object, what: str) -> Sequence[str]:
    """Return a list of names that a client sent; ``what`` names it in errors."""
    if not isinstance(sent, list) or not all(isinstance(name, str) for name in sent):
        raise RequestError(f"{what} are not a list of texts")
    return sent
