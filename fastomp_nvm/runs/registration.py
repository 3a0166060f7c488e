"""The registration of a durable run, as JSON: enough to carry the run out again in another process, and to detect changes.

A registration holds everything the answer depends on: the request by value (weights and a response given as arrays included), the
store's address and fingerprints, the numeric build, and the text of a constraint file with a digest of its meaning. It is sealed
with a CRC and written before the first sweep. Knows neither where it is kept nor how a run is driven.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import RequestError, StoreError
from fastomp_nvm.runs.sealed import FORMAT, Json, seal, unseal
from fastomp_nvm.selection.codec import decode_request, decode_vector, encode_request, encode_vector
from fastomp_nvm.selection.request import SelectionRequest

__all__ = ["ConstraintFile", "Registration", "describe_request", "describe_response"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ConstraintFile:
    """A constraint file by value.

    Attributes
    ----------
    text : str
    source : str
        Its name, for errors.
    folder : str
        Directory of the files that it names.
    digest : str
        Of the constraint that it describes; a change of a file that it names changes this digest.
    """

    text: str
    source: str
    folder: str
    digest: str

    @classmethod
    def read(cls, path: Path, dataset: Dataset) -> ConstraintFile:
        """Read a constraint file."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise RequestError(f"the constraint file {path} cannot be read ({reason}): check path and encoding") from error
        file = cls(text, path.name, str(path.parent.resolve()), "")
        return dataclasses.replace(file, digest=_digest(file._parse(dataset)))

    def constraint(self, dataset: Dataset) -> Constraint:
        """Return the constraint; raise ``StoreError`` where a file that it names has changed."""
        constraint = self._parse(dataset)
        if _digest(constraint) != self.digest:
            raise StoreError(
                f"the constraint file {self.source} means another constraint than at the start of the run: a file that it names "
                f"in {self.folder} has changed; restore it or start a new run"
            )
        return constraint

    def _parse(self, dataset: Dataset) -> Constraint:
        """Parse the text over the features of ``dataset``."""
        from fastomp_nvm.constraints.written.description import parse_constraint  # needs a YAML parser

        usable = dataset.design().standardisation.usable()
        return parse_constraint(self.text, dataset.names, base_path=Path(self.folder), source=self.source, usable=usable)


@dataclass(frozen=True, slots=True)
class Registration:
    """A durable run.

    Attributes
    ----------
    name : str
    id : str
        32 hexadecimal digits, drawn when the run was registered.
    created : str
        Time of registration, ISO 8601.
    store : str
        Address of the store.
    fingerprint, targets : str
        Of the store's matrix and of its targets.
    request : mapping
        Every field of the ``SelectionRequest``, encoded.
    response : JSON value
        A response given as an array, encoded; None for a target of the store.
    constraint : ConstraintFile, optional
    load : {"dram", "tier"}, optional
        Parts to copy into memory first: matrix and tier, or the tier alone.
    verify : bool
        Whether every block is checked first.
    build : mapping
        See ``numeric_build``.
    """

    name: str
    id: str
    created: str
    store: str
    fingerprint: str
    targets: str
    request: Mapping[str, Json]
    response: Json
    constraint: ConstraintFile | None
    load: str | None
    verify: bool
    build: Mapping[str, str]

    @property
    def run_id(self) -> bytes:
        """The id as 16 bytes."""
        return bytes.fromhex(self.id)

    @property
    def target(self) -> str | None:
        """The target of the store that the run was started with, where it was named."""
        target = self.request.get("target")
        return target if isinstance(target, str) else None

    def identity(self) -> dict[str, Json]:
        """Return the identity that a log must have to belong to this run."""
        constraint = None if self.constraint is None else self.constraint.digest
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "targets": self.targets,
            "request": {**self.request, "response": self.response, "constraint_file": constraint},
            "build": dict(self.build),
        }

    def selection_request(self, dataset: Dataset) -> SelectionRequest:
        """Return the request over ``dataset``."""
        fields: dict[str, object] = dict(self.request)
        for name in ("weights", "offset"):
            if isinstance(vector := self.request.get(name), dict):
                fields[name] = _without_shape(vector)
        try:
            request = decode_request(fields)
        except RequestError as error:
            raise StoreError(f"the request of the run {self.name!r} cannot be used: {error}") from error
        if self.constraint is None:
            return request
        return dataclasses.replace(request, constraint=self.constraint.constraint(dataset))

    def decoded_response(self) -> AnyArray | None:
        """Return the response given as an array, or None."""
        if self.response is None:
            return None
        sent = _without_shape(self.response) if isinstance(self.response, dict) else self.response
        try:
            return decode_vector(sent, "the response")
        except RequestError as error:
            raise StoreError(f"the response of the run {self.name!r} cannot be used: {error}") from error

    def to_bytes(self) -> bytes:
        """Return the sealed registration."""
        return seal("fastomp-run", dataclasses.asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Registration:
        """Return the registration in ``data`` after checking every byte of it."""
        found = unseal("fastomp-run", data)
        try:
            constraint, load, verify = found["constraint"], found["load"], found["verify"]
            registration = cls(
                **{name: _typed(found[name], str) for name in ("name", "id", "created", "store", "fingerprint", "targets")},
                request=_typed(found["request"], dict),
                response=found["response"],
                constraint=None if constraint is None else ConstraintFile(**_texts(constraint)),
                load=None if load is None else _typed(load, str),
                verify=bool(verify),
                build=_texts(found["build"]),
            )
            sound = len(registration.run_id) == 16
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError("it lacks a field or holds one of the wrong type") from error
        if not sound:
            raise StoreError("its id is not 32 hexadecimal digits")
        return registration


def describe_request(request: SelectionRequest) -> dict[str, Json]:
    """Return every field of a request as JSON, those at their defaults included: a later release may have other defaults."""
    encoded = encode_request(request)
    fields = {name: encoded.get(name, field.default) for name, field in SelectionRequest.__dataclass_fields__.items()}
    for name, vector in (("weights", request.weights), ("offset", request.offset)):
        if vector is not None and not isinstance(vector, str):
            fields[name] = _with_shape(encoded[name], len(vector))
    try:
        plain: dict[str, Json] = json.loads(json.dumps(fields))
    except (TypeError, ValueError) as error:
        raise RequestError(f"a durable run needs a request that JSON can hold ({error})") from error
    return plain


def describe_response(y: object) -> Json:
    """Return a response given by the caller as JSON, or None when there is none."""
    if y is None:
        return None
    values = np.asarray(y)
    if values.dtype.kind not in "fiub":
        return [str(label) for label in values.ravel().tolist()]
    if values.dtype.itemsize > 8:
        values = values.astype(np.float64)
    return _with_shape(encode_vector(values.ravel()), values.size)


def _with_shape(vector: Mapping[str, str] | list[str], length: int) -> Json:
    """Return an encoded vector as format 1 has it: with its shape."""
    assert isinstance(vector, Mapping)
    return {**vector, "shape": [length]}


def _without_shape(vector: Mapping[str, Json]) -> dict[str, Json]:
    """Return an encoded vector as the codec has it."""
    return {name: value for name, value in vector.items() if name != "shape"}


def _typed(value: Json, kind: type[_T]) -> _T:
    """Return a value that must be of a type."""
    if not isinstance(value, kind):
        raise TypeError(f"expected a {kind.__name__}, not a {type(value).__name__}")
    return value


def _texts(value: Json) -> dict[str, str]:
    """Return a value that must be an object of texts."""
    return {name: _typed(each, str) for name, each in _typed(value, dict).items()}


def _digest(value: object) -> str:
    """Return a digest of an object as it was built: its class and, recursively, its attributes."""
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(value):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: object) -> Iterator[bytes]:
    """Yield the bytes of a value with its type, so that different values cannot look alike."""
    yield type(value).__qualname__.encode()
    if isinstance(value, np.ndarray):
        yield f"{value.dtype.str}{value.shape}".encode() + value.tobytes()
    elif value is None or isinstance(value, (bool, int, float, str, bytes, np.generic)):
        yield repr(value).encode()
    elif isinstance(value, Mapping):
        yield from _parts(list(value.items()))
    elif isinstance(value, (set, frozenset)):
        yield from _parts(sorted(map(repr, value)))
    elif isinstance(value, Sequence):
        for part in (len(value), *value):
            yield from _parts(part)
    elif callable(value) and hasattr(value, "__qualname__"):
        yield f"{value.__module__}:{value.__qualname__}".encode()
    else:
        yield from _parts({name: getattr(value, name) for name in _attributes(value)})


def _attributes(value: object) -> list[str]:
    """Return the names of an object's attributes, slots included, in order."""
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
    return sorted(name for name in slots | set(getattr(value, "__dict__", {})) if hasattr(value, name))
