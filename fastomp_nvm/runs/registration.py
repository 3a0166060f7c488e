"""What a durable run is, as plain JSON: enough to carry it out again in another process, and to notice that something changed.

A registration holds everything the answer depends on: the request by value (weights and a response given as arrays included), the
store's address and fingerprints, the numeric build, and the text of a constraint file with a digest of what it meant. It is sealed
with a CRC and written before the first sweep. Knows neither where it is kept nor how a run is driven.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import platform
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from fastomp_nvm import registry
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import FastompError, RequestError, StoreError
from fastomp_nvm.matrix.blas import blas_libraries
from fastomp_nvm.objectives import compiled
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.stores.contract import BLOCK_COLUMNS

__all__ = [
    "FORMAT",
    "ConstraintFile",
    "Registration",
    "describe_request",
    "describe_response",
    "numeric_build",
    "seal",
    "sweep_build",
    "target_digest",
    "unseal",
]

#: Version of registrations, results and records; a run of another version is refused.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class ConstraintFile:
    """A constraint file by value.

    Attributes
    ----------
    text : str
    source : str
        Its name, for errors.
    folder : str
        Where its side files stand.
    digest : str
        Of the constraint it meant; side files that changed since then change it.
    """

    text: str
    source: str
    folder: str
    digest: str

    @classmethod
    def read(cls, path: Path, dataset: Dataset) -> ConstraintFile:
        """Take a constraint file as it is now."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"the constraint file {path} cannot be read ({error}): check path and encoding") from error
        file = cls(text, path.name, str(path.parent.resolve()), "")
        return dataclasses.replace(file, digest=_digest(file._parse(dataset)))

    def constraint(self, dataset: Dataset) -> Constraint:
        """Return the constraint, provided that it still means what it did."""
        constraint = self._parse(dataset)
        if _digest(constraint) != self.digest:
            raise StoreError(
                f"the constraint file {self.source} now means something else than when the run was started: a file that it names "
                f"in {self.folder} has changed; put it back or start a new run"
            )
        return constraint

    def _parse(self, dataset: Dataset) -> Constraint:
        """Parse the text over the features of ``dataset``."""
        parse = registry.load("fastomp_nvm.constraints.written.description:parse_constraint")
        usable = dataset.design().standardisation.usable()
        found: Constraint = parse(self.text, dataset.names, base_path=Path(self.folder), source=self.source, usable=usable)
        return found


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
        Fields of the ``SelectionRequest``, encoded.
    response : object
        A response given as an array, encoded; None for one of the store's.
    constraint : ConstraintFile, optional
    load : {"dram", "tier"}, optional
        What is copied into memory first: matrix and tier, or the tier alone.
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
    request: Mapping[str, Any]
    response: Any
    constraint: ConstraintFile | None
    load: str | None
    verify: bool
    build: Mapping[str, str]

    @property
    def run_id(self) -> bytes:
        """The id as 16 bytes."""
        return bytes.fromhex(self.id)

    def identity(self) -> dict[str, Any]:
        """Return what a state must have been made from to belong to this run."""
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
        fields = {name: _decode(value) for name, value in self.request.items()}
        unknown = [name for name in fields if name not in SelectionRequest.__dataclass_fields__]
        if unknown:
            raise StoreError(f"the run {self.name!r} has a parameter {unknown[0]!r}, which this release does not know")
        if self.constraint is not None:
            fields["constraint"] = self.constraint.constraint(dataset)
        try:
            return SelectionRequest(**fields)
        except FastompError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError(f"the run {self.name!r} has a parameter of the wrong kind: forget it") from error

    def decoded_response(self) -> Any:
        """Return the response given as an array, or None."""
        return _decode(self.response)

    def to_bytes(self) -> bytes:
        """Return the sealed registration."""
        return seal("fastomp-run", dataclasses.asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Registration:
        """Return the registration in ``data`` after checking every byte of it."""
        found = unseal("fastomp-run", data)
        try:
            constraint = found["constraint"]
            values = {field.name: found[field.name] for field in dataclasses.fields(cls)}
            values["constraint"] = None if constraint is None else ConstraintFile(**constraint)
            registration = cls(**values)
            texts = [registration.name, registration.created, registration.store, registration.fingerprint, registration.targets]
            if registration.constraint is not None:
                texts += dataclasses.astuple(registration.constraint)
            sound = all(isinstance(text, str) for text in texts) and len(registration.run_id) == 16
            sound &= isinstance(registration.request, dict) and isinstance(registration.build, dict)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError("it lacks a field or holds one of the wrong kind") from error
        if not sound:
            raise StoreError("it holds a field that is out of its domain")
        return registration


def describe_request(request: SelectionRequest) -> dict[str, Any]:
    """Return the fields of a request as plain JSON.

    Raises ``RequestError`` for a constraint built in Python, of which nothing could be written down.
    """
    if isinstance(request.constraint, Constraint):
        raise RequestError(
            f"a durable run needs a constraint that can be written down, not a {type(request.constraint).__name__} object: "
            "give its description, as a mapping or as YAML text"
        )
    out: dict[str, Any] = {}
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        if isinstance(value, Mapping):
            value = dict(value)
        out[field.name] = value.item() if isinstance(value, np.generic) else _encode(value)
        try:
            out[field.name] = json.loads(json.dumps(out[field.name]))
        except (TypeError, ValueError) as error:
            raise RequestError(f"a durable run needs a {field.name} that JSON can hold ({error})") from error
    return out


def describe_response(y: Any) -> Any:
    """Return a response given by the caller as plain JSON, or None when there is none."""
    if y is None:
        return None
    values = np.asarray(y)
    return _encode(values if values.dtype.kind in "fiub" else [str(label) for label in values.ravel().tolist()])


def numeric_build(kernel: str) -> dict[str, str]:
    """Return what the bits of an answer depend on beside the request and the data: those of sweeps, and what computes the rest."""
    return {**sweep_build(kernel), "fits": compiled.fits(), "rounds": compiled.rounds()}


def sweep_build(kernel: str) -> dict[str, str]:
    """Return what the bits of a sweep, its decisions and its columns depend on beside the data: all that a shard computes.

    The kernel and the grid of blocks; the BLAS behind NumPy and SciPy with the processor it was tuned for, which stands for the
    instruction set that NumPy's own loops choose too; and their releases. Not the number of threads of a sweep, which changes no
    bit.
    """
    return {
        "kernel": kernel,
        "block": str(BLOCK_COLUMNS),
        "blas": "; ".join(blas_libraries()) or "unknown",
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": platform.machine(),
    }


def target_digest(dataset: Dataset) -> str:
    """Return a digest of the store's targets, which its fingerprint does not cover."""
    digest = hashlib.blake2b(digest_size=16)
    for name, target in dataset.targets.items():
        digest.update(json.dumps([name, *target.classes]).encode("ascii"))
        digest.update(np.ascontiguousarray(target.values, dtype="<f8").tobytes())
    return digest.hexdigest()


def seal(kind: str, content: Mapping[str, Any]) -> bytes:
    """Return ``content`` as JSON that names its kind and format and carries a CRC-32 over all of it."""
    body = json.dumps({"kind": kind, "format": FORMAT, **content})
    return json.dumps({"crc32": zlib.crc32(body.encode("ascii")), "body": body}).encode("ascii")


def unseal(kind: str, data: bytes) -> dict[str, Any]:
    """Return the content of sealed JSON, or raise ``StoreError`` with the reason alone."""
    try:
        outer = json.loads(data)
        body = outer["body"]
        if not isinstance(body, str) or zlib.crc32(body.encode("ascii")) != outer["crc32"]:
            raise StoreError("it does not match its checksum")
        content: dict[str, Any] = json.loads(body)
        found = content["kind"], content["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError("it is cut off or was overwritten") from error
    if found[0] != kind:
        raise StoreError(f"it is a {found[0]!r} and not a {kind!r}")
    if found[1] != FORMAT:
        raise StoreError(f"its format version is {found[1]!r} and this release reads {FORMAT}: use the release that wrote it")
    return content


def _encode(value: Any) -> Any:
    """Return an array as JSON, exactly; other values as they are."""
    if not isinstance(value, np.ndarray):
        return list(value) if isinstance(value, tuple) else value
    little = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
    return {"dtype": little.dtype.str, "shape": list(value.shape), "base64": base64.b64encode(little.tobytes()).decode("ascii")}


def _decode(value: Any) -> Any:
    """Return what ``_encode`` was given."""
    if not (isinstance(value, dict) and value.keys() == {"dtype", "shape", "base64"}):
        return value
    try:
        array = np.frombuffer(base64.b64decode(value["base64"]), value["dtype"]).reshape(value["shape"])
        return array.astype(array.dtype.newbyteorder("="))
    except (TypeError, ValueError) as error:
        raise StoreError("an array of the run cannot be decoded: its registration was not written by this program") from error


def _digest(value: Any) -> str:
    """Return a digest of an object as it was built: its class and, recursively, its attributes."""
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    """Feed a value to a digest, with its type, so that different values cannot look alike."""
    digest.update(type(value).__qualname__.encode())
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode() + value.tobytes())
    elif value is None or isinstance(value, (bool, int, float, str, bytes, np.generic)):
        digest.update(repr(value).encode())
    elif isinstance(value, Mapping):
        _feed(digest, list(value.items()))
    elif isinstance(value, (set, frozenset)):
        _feed(digest, sorted(map(repr, value)))
    elif isinstance(value, Sequence):
        for part in (len(value), *value):
            _feed(digest, part)
    elif callable(value) and hasattr(value, "__qualname__"):
        digest.update(f"{value.__module__}:{value.__qualname__}".encode())
    else:
        _feed(digest, {name: getattr(value, name) for name in _attributes(value)})


def _attributes(value: Any) -> list[str]:
    """Return the names of an object's attributes, slots included, in order."""
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
    return sorted(name for name in slots | set(getattr(value, "__dict__", {})) if hasattr(value, name))
