"""Requests, selections and vectors as JSON: the one format of messages to servers and of files on disk.

A request is an object of the fields of a ``SelectionRequest`` and nothing else: data, never code. Floats survive JSON bit for bit;
vectors are base64 of their bytes with an element type out of a short list. Everything decoded here may come from someone else, so
every shape and type is checked before it is used.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from fastomp_nvm.algorithms.certificate import Certificate
from fastomp_nvm.arrays import AnyArray, Float64Array, JSONObject
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.errors import DataError, FastompError, RequestError
from fastomp_nvm.limits import MESSAGE_BYTES
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.selection.answer import DataSize, KeptColumn
from fastomp_nvm.selection.covariates import Covariates, as_covariates
from fastomp_nvm.selection.criteria import PathPoint
from fastomp_nvm.selection.fairness import FairnessReport
from fastomp_nvm.selection.model import ModelColumns
from fastomp_nvm.selection.proof import Proof
from fastomp_nvm.selection.request import SelectionRequest, make_request
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.stores.encoding import TableEncoding

__all__ = [
    "as_names",
    "decode_linear_model",
    "decode_message",
    "decode_request",
    "decode_selection",
    "decode_vector",
    "encode_constraint",
    "encode_message",
    "encode_request",
    "encode_selection",
    "encode_vector",
]

_VECTOR_TYPES = ("<f2", "<f4", "<f8", "|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8")
_TEXT_FIELDS = ("algorithm", "quality", "objective", "until", "polish", "target")


def encode_message(message: Mapping[str, object]) -> bytes:
    """Return a message as JSON; ``RequestError`` if it is too large or holds a value that JSON has not."""
    try:
        data = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"the request cannot be sent ({error}): expected plain, finite values") from error
    if len(data) > MESSAGE_BYTES:
        raise RequestError(f"the message has {len(data)} bytes, at most {MESSAGE_BYTES} are possible")
    return data


def decode_message(data: bytes | memoryview) -> JSONObject:
    """Return the JSON object in ``data``."""
    if len(data) > MESSAGE_BYTES:
        raise RequestError(f"the message has {len(data)} bytes, at most {MESSAGE_BYTES} are possible")
    try:
        message = json.loads(bytes(data), parse_constant=_no_constant)
    except RecursionError as error:
        raise RequestError("the message is nested too deeply: expected one object of plain fields") from error
    except ValueError as error:
        raise RequestError(f"the message is not JSON ({str(error)[:80]}): expected one object") from error
    if not isinstance(message, dict):
        raise RequestError(f"the message is a {type(message).__name__}: expected one object")
    return message


def encode_vector(values: object) -> dict[str, str] | list[str]:
    """Return a vector (n,) of numbers, truth values or text in JSON terms."""
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


def decode_vector(sent: object, name: str) -> AnyArray:
    """Return the vector (n,) that ``encode_vector`` encoded; ``name`` is used in errors."""
    if isinstance(sent, list) and all(isinstance(value, str) for value in sent):
        return np.array(sent, dtype=np.str_)
    if not isinstance(sent, Mapping) or set(sent) - {"shape"} != {"dtype", "base64"}:
        raise RequestError(f"{name} is not a vector: expected a list of texts, or an object of dtype and base64")
    if sent["dtype"] not in _VECTOR_TYPES or not isinstance(sent["base64"], str):
        raise RequestError(f"{name} has the type {str(sent['dtype'])[:20]!r}: expected one of {', '.join(_VECTOR_TYPES)}")
    try:
        array = np.frombuffer(base64.b64decode(sent["base64"], validate=True), dtype=sent["dtype"])
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{name} is damaged ({error}): send it again") from error
    if sent.get("shape", [len(array)]) not in ([len(array)], [len(array), 1], [1, len(array)]):  # older files state it
        raise RequestError(f"{name} has the shape {str(sent['shape'])[:40]}: expected {len(array)} values in a row")
    return array.astype(array.dtype.newbyteorder("="))


def encode_covariates(covariates: Covariates) -> JSONObject:
    """Return covariates in JSON terms."""
    ids = {} if covariates.ids is None else {"ids": list(covariates.ids)}
    return {"names": list(covariates.names), "values": list(map(encode_vector, covariates.values.T)), **ids}


def decode_covariates(sent: object) -> Covariates:
    """Return the covariates that ``encode_covariates`` encoded; ``RequestError`` unless the parts fit together."""
    if not isinstance(sent, Mapping) or set(sent) - {"ids"} != {"names", "values"} or not isinstance(sent["values"], list):
        raise RequestError("covariates are no object of names, values and ids")
    names = as_names(sent["names"], "the names of covariates")
    if len(names) != len(sent["values"]) or len(set(names)) < len(names):
        raise RequestError(f"covariates have {len(names)} names for {len(sent['values'])} columns: expected one each, no two alike")
    found = as_covariates({name: decode_vector(each, name[:100]) for name, each in zip(names, sent["values"], strict=True)})
    assert found is not None
    ids = None if sent.get("ids") is None else tuple(as_names(sent["ids"], "the identifiers of covariates"))
    if ids is not None and len(ids) != len(found.values):
        raise RequestError(f"covariates have {len(ids)} identifiers for {len(found.values)} rows: expected one each")
    return found._replace(ids=ids)


def encode_request(request: SelectionRequest, *, complete: bool = False) -> JSONObject:
    """Return the fields of a request in JSON terms.

    Parameters
    ----------
    request : SelectionRequest
    complete : bool
        Include fields at their defaults, which another release may change.

    Raises
    ------
    RequestError
        The constraint cannot be written as JSON.
    """
    fields: JSONObject = {}
    for name, field in SelectionRequest.__dataclass_fields__.items():
        value = getattr(request, name)
        if name in ("weights", "offset"):
            if complete or value is not None:
                fields[name] = value if value is None or isinstance(value, str) else encode_vector(value)
        elif name == "covariates":
            if complete or value is not None:
                fields[name] = None if value is None else encode_covariates(value)
        elif name in ("exclude", "keep"):
            if complete or len(value):
                fields[name] = [str(feature) for feature in value]
        elif complete or name == "objective" or (value is not field.default and value != field.default):
            fields[name] = value.item() if isinstance(value, np.generic) else value
    if request.constraint is not None:
        fields["constraint"] = encode_constraint(request.constraint)
    return fields


def encode_constraint(given: Constraint | Mapping[str, object] | str | os.PathLike[str]) -> object:
    """Return a constraint in JSON terms; a file with the files that it names written into it."""
    if isinstance(given, Constraint):
        raise RequestError(
            f"the constraint is a {type(given).__name__} object, which cannot be written as JSON: "
            "give its description, a mapping or YAML text"
        )
    if isinstance(given, os.PathLike):
        from fastomp_nvm.constraints.written.side_files import read_inlined  # needs a YAML parser

        return read_inlined(Path(given))
    try:
        plain: object = json.loads(json.dumps(given if isinstance(given, str) else dict(given), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"the constraint cannot be written as JSON ({error}): expected plain, finite values") from error
    return plain


def decode_request(sent: object) -> SelectionRequest:
    """Return the request that ``encode_request`` encoded.

    Raises
    ------
    RequestError
        It is not an object of known fields, each of its type and in its domain.
    """
    if not isinstance(sent, Mapping):
        raise RequestError(f"the request is a {type(sent).__name__}: expected an object of fields")
    fields: JSONObject = {"objective": "linear", **sent}  # releases that left it out meant linear
    for name, value in fields.items():
        if name in ("weights", "offset"):
            fields[name] = value if value is None or isinstance(value, str) else decode_vector(value, name)
        elif name == "covariates":
            fields[name] = None if value is None else decode_covariates(value)
        elif name in ("exclude", "keep"):
            if not isinstance(value, list) or not all(isinstance(feature, str) for feature in value):
                raise RequestError(f"{name} is not a list of feature names")
        elif name == "constraint":
            if not (value is None or isinstance(value, (str, Mapping))):
                raise RequestError(f"the constraint is a {type(value).__name__}: expected a mapping or YAML text")
        elif name in _TEXT_FIELDS:
            if not (value is None or isinstance(value, str)):
                raise RequestError(f"{name} is a {type(value).__name__}: expected text")
        elif not (value is None or isinstance(value, (bool, int, float, str))):
            raise RequestError(f"{name[:100]} is a {type(value).__name__}: expected a single value")
    if not isinstance(fields.get("standardize", True), bool):
        raise RequestError(f"standardize is {fields['standardize']!r}: expected true or false")
    try:
        return make_request(fields, files=False)
    except FastompError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"the request cannot be understood ({error})") from error


def encode_selection(selection: Selection) -> JSONObject:
    """Return a selection in JSON terms: the object of ``to_json``, and the columns that it leaves out."""
    return {
        "json": selection.to_json(),
        "columns": [list(part) for part in selection.columns],
        "column_positions": selection.column_positions.tolist(),
        **({} if selection.encoding is None else {"encoding": selection.encoding.to_json()}),
    }


def decode_selection(sent: JSONObject) -> Selection:
    """Return the selection that ``encode_selection`` encoded.

    Raises
    ------
    ValueError
        A field is missing, unknown or of the wrong type, or the parts do not fit together.
    """
    try:
        fields = {name: value for name, value in sent["json"].items() if name in Selection.__dataclass_fields__}
        certificate, fairness, proof = fields.get("certificate"), fields.get("fairness"), fields.get("proof")
        columns = [list(part) for part in sent["columns"]]
        coef = [np.atleast_1d(np.array(part, dtype=np.float64)) for part in fields["coef"]]
        encoding = sent.get("encoding")  # results of earlier releases have none
        path = enumerate(fields.get("path", []), start=1)  # theirs has scores alone
        fields |= {
            "indices": np.array(fields["indices"], dtype=np.int64),
            "coef": np.concatenate([np.empty(0), *coef]) if all(len(part) == 1 for part in coef) else coef,
            "intercept": float(fields["intercept"]),
            "score": float(fields["score"]),
            "columns": columns,
            "column_positions": np.array(sent["column_positions"], dtype=np.int64),
            "encoding": None if encoding is None else TableEncoding.from_json(encoding),
            "certificate": None if certificate is None else Certificate(**certificate),
            "fairness": None if fairness is None else FairnessReport.from_json(fairness),
            "proof": None if proof is None else Proof.from_json(proof),
            "store": DataSize(**fields["store"]),
            "kept": [KeptColumn(**column) for column in fields.get("kept", [])],
            "path": [PathPoint(**point) if isinstance(point, dict) else PathPoint(k, float(point)) for k, point in path],
            "choices": {str(name): Choice(**choice) for name, choice in fields.get("choices", {}).items()},
        }
        selection = Selection(**fields)
        names = [name for part in (selection.features, *columns) for name in part]
        for column in selection.kept:
            names += [column.feature, column.column]
            if not isinstance(column.coef, float) or not (column.position is None or isinstance(column.position, int)):
                raise ValueError(f"the coefficient or the position of {str(column.column)[:100]!r} is no number")
        fits = all(isinstance(name, str) for name in names) and len(selection.indices) == len(selection.features)
        if not (
            fits and list(map(len, columns)) == list(map(len, coef)) and sum(map(len, coef)) == len(selection.column_positions)
        ):
            raise ValueError("its parts do not fit together")
        return selection
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"a field is missing or of the wrong type ({error!r})") from error


def decode_linear_model(sent: object) -> tuple[ModelColumns, Float64Array, float]:
    """Return the columns, the coefficients and the intercept that ``Selection.linear_model`` wrote.

    Raises
    ------
    RequestError
        A field is missing or of the wrong type, or the parts do not fit together.
    """
    try:
        fields: JSONObject = dict(sent) if isinstance(sent, Mapping) else {}
        names, encoding = as_names(fields["columns"], "columns"), fields["encoding"]
        positions, coef = np.array(fields["column_positions"], dtype=np.int64), np.array(fields["coef"], dtype=np.float64)
        intercept, n_columns = float(fields["intercept"]), int(fields["n_columns"])
        if positions.shape != (len(names),) or coef.shape != positions.shape or not np.isfinite([*coef, intercept]).all():
            raise ValueError("its parts do not fit together")
        if positions.size and not (positions.min() >= 0 and positions.max() < n_columns):
            raise ValueError("a column is none of the store")
        plain = None if encoding is None else TableEncoding.from_json(encoding)
        return ModelColumns(names, positions, n_columns, plain), coef, intercept
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"the model cannot be used ({str(error)[:100]}): send it as a client does") from error


def _no_constant(text: str) -> NoReturn:
    """Refuse NaN and infinity, which JSON does not have and Python's parser accepts."""
    raise ValueError(f"{text} is not a JSON value")


def as_names(sent: object, kind: str) -> Sequence[str]:
    """Return ``sent`` if it is a list of names; ``kind`` says of what, for the error."""
    if not isinstance(sent, list) or not all(isinstance(name, str) for name in sent):
        raise RequestError(f"{kind} are not a list of texts")
    return sent
