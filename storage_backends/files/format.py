"""The file format of a store: encoders and validating decoders of its files.

::

    header.json      format, version, layout, fingerprint, length (and CRC-32) of each file below, provenance, its own CRC-32
    matrix.npy       the exact matrix, n_columns x n_obs, C order; its data begin at byte 4096, after the fingerprint
    tier.npy         int8 codes of the tier, if there is one, in the same layout
    tier.npz         bounds of the tier: scale, error, norm, checksums, fingerprint of the exact matrix
    statistics.npz   mean, norm, minimum, maximum; concatenated Gram matrices of features with several columns;
                     offsets, blocks, checksums
    targets.npz      values, n_targets x n_obs
    checksums.npz    CRC-32 of each column of the matrix and of the tier; not in version 1
    names.json       names of features, columns and targets; classes of targets; encoding of the source, if it is known
    ids.json         identifiers of the observations, if the source has them
    regions/         durable regions, one file NAME.bin each
    checked.json     columns that were compared with their checksums (:mod:`storage_backends.files.checked`); may be removed

Decoders raise ``StoreError`` with the reason; the caller adds the path.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, UInt32Array
from fastomp_nvm.errors import InputError, StoreError
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.tier import TierSidecar
from fastomp_nvm.stores.contract import BLOCK_COLUMNS, STORE_DTYPES, Sidecars, StoreLayout, Target
from fastomp_nvm.stores.encoding import TableEncoding
from fastomp_nvm.stores.names import NumberedNames

__all__ = [
    "CHECKSUMS",
    "DATA_OFFSET",
    "FORMAT",
    "HEADER",
    "MATRIX",
    "SIDECARS",
    "TIER",
    "TIER_STATISTICS",
    "VERSION",
    "Header",
    "Shape",
    "decode_header",
    "decode_sidecars",
    "element_type",
    "encode_checksums",
    "encode_header",
    "encode_sidecars",
    "matrix_header",
    "matrix_length",
    "owner_of",
    "with_checksums",
]

FORMAT = "fastomp-store"
VERSION = 2
#: Without checksums of columns, and perhaps without fingerprints in matrix.npy and tier.npy.
OLDER_VERSION = 1
HEADER = "header.json"
MATRIX = "matrix.npy"
STATISTICS = "statistics.npz"
TARGETS = "targets.npz"
NAMES = "names.json"
SIDECARS = (STATISTICS, TARGETS, NAMES)
IDS = "ids.json"
CHECKSUMS = "checksums.npz"
TIER = "tier.npy"
TIER_STATISTICS = "tier.npz"

#: Where the data of matrix.npy begin: a page, hence 64-byte aligned in every mapping and addressable by direct input/output. The
#: length of the NPY header does not depend on the shape, so that a draft can shrink in place.
DATA_OFFSET = 4096


#: Begins the fingerprint in the header of a matrix file.
_OWNER = "  # fastomp-store "

#: Columns, observations and element type of a matrix file.
Shape = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Header:
    """The verified content of header.json.

    Attributes
    ----------
    n_features : int
    matrix : Shape
        Of matrix.npy.
    tier : Shape, optional
        Of tier.npy; None in a store without a tier.
    fingerprint : str
    older : bool
        Whether the store has the older version.
    files : mapping of str to (int, int)
        Length and CRC-32 of each sidecar file.
    provenance : mapping
    """

    n_features: int
    matrix: Shape
    tier: Shape | None
    fingerprint: str
    older: bool
    files: Mapping[str, tuple[int, int]]
    provenance: Mapping[str, Any]


def element_type(dtype: str) -> np.dtype[Any]:
    """Return the little-endian NumPy type of a store's elements."""
    return np.dtype(dtype).newbyteorder("<")


def matrix_header(n_columns: int, n_obs: int, dtype: str, fingerprint: str = "") -> bytes:
    """Return the ``DATA_OFFSET`` bytes that precede the data of matrix.npy (NPY format, version 1.0).

    The fingerprint of the store follows as a comment, which NumPy ignores; a matrix that is being built has none.
    """
    description = f"{{'descr': '{element_type(dtype).str}', 'fortran_order': False, 'shape': ({n_columns}, {n_obs}), }}"
    if fingerprint:
        description += _OWNER + fingerprint
    magic = b"\x93NUMPY\x01\x00"
    room = DATA_OFFSET - len(magic) - 2
    return magic + struct.pack("<H", room) + description.encode("ascii").ljust(room - 1) + b"\n"


def owner_of(header: bytes) -> str:
    """Return the fingerprint in the first bytes of a matrix file; empty where there is none."""
    _, found, rest = header.partition(_OWNER.encode("ascii"))
    return rest.strip().decode("ascii", "replace")[:32] if found else ""


def matrix_length(n_columns: int, n_obs: int, dtype: str) -> int:
    """Return the length of matrix.npy in bytes."""
    return DATA_OFFSET + n_columns * n_obs * element_type(dtype).itemsize


def encode_sidecars(sidecars: Sidecars) -> dict[str, bytes]:
    """Return the content of each sidecar file."""
    statistics, layout = sidecars.statistics, sidecars.layout
    values = np.empty((len(sidecars.targets), layout.n_obs))
    for row, target in enumerate(sidecars.targets.values()):
        values[row] = target.values
    names = {
        "features": _encode_names(sidecars.names),
        "columns": None if sidecars.column_names is sidecars.names else _encode_names(sidecars.column_names),
        "targets": [{"name": name, "classes": list(target.classes)} for name, target in sidecars.targets.items()],
        **({} if sidecars.encoding is None else {"encoding": sidecars.encoding.to_json()}),
    }
    files = {
        STATISTICS: _encode_arrays(
            mean=statistics.mean,
            norm=statistics.norm,
            minimum=statistics.minimum,
            maximum=statistics.maximum,
            grams=np.concatenate([np.empty(0), *(gram.reshape(-1) for gram in statistics.grams)]),
            offsets=layout.offsets,
            blocks=layout.blocks,
            checksums=sidecars.checksums,
        ),
        TARGETS: _encode_arrays(values=values),
        NAMES: json.dumps(names, separators=(",", ":")).encode("ascii"),
    }
    if sidecars.column_checksums is not None:
        files[CHECKSUMS] = encode_checksums(
            sidecars.column_checksums, None if sidecars.tier is None else sidecars.tier.column_checksums
        )
    if sidecars.ids is not None:
        files[IDS] = json.dumps(list(sidecars.ids), separators=(",", ":")).encode("ascii")
    if (tier := sidecars.tier) is not None:
        fingerprint = np.array(tier.fingerprint)
        files[TIER_STATISTICS] = _encode_arrays(
            scale=tier.scale, error=tier.error, norm=tier.norm, checksums=tier.checksums, fingerprint=fingerprint
        )
    return files


def encode_checksums(matrix: UInt32Array, tier: UInt32Array | None = None) -> bytes:
    """Return checksums.npz."""
    return _encode_arrays(matrix=matrix, **({} if tier is None else {"tier": tier}))


def with_checksums(header: bytes, checksums: bytes) -> bytes:
    """Return header.json of the older version with the file ``checksums`` added."""
    content = json.loads(header)
    del content["crc32"]
    content["files"][CHECKSUMS] = _describe(checksums)
    return _canonical({**content, "version": VERSION})


def encode_header(sidecars: Sidecars, files: Mapping[str, bytes]) -> bytes:
    """Return header.json for these sidecars and the encoded ``files`` that hold them."""
    layout = sidecars.layout
    try:
        provenance = json.loads(json.dumps(dict(sidecars.provenance), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"the provenance of a store must be plain JSON: {error}") from error
    lengths: dict[str, dict[str, int]] = {name: _describe(data) for name, data in files.items()}
    lengths[MATRIX] = {"bytes": matrix_length(layout.n_columns, layout.n_obs, layout.dtype)}
    if sidecars.tier is not None:
        lengths[TIER] = {"bytes": matrix_length(layout.n_columns, layout.n_obs, "int8")}
    return _canonical(
        {
            "format": FORMAT,
            "version": VERSION if CHECKSUMS in files else OLDER_VERSION,
            "n_obs": layout.n_obs,
            "n_features": layout.n_features,
            "n_columns": layout.n_columns,
            "dtype": layout.dtype,
            "fingerprint": layout.fingerprint,
            "files": lengths,
            "provenance": provenance,
        }
    )


def decode_header(raw: bytes) -> Header:
    """Return the validated header encoded in ``raw``."""
    try:
        found = json.loads(raw)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise StoreError(f"{HEADER} is not the header of a fastomp store")
        version = found.get("version")
        if version not in (OLDER_VERSION, VERSION):
            raise StoreError(
                f"its format version is {version!r} and this release reads {OLDER_VERSION} and {VERSION}: ingest the data again"
            )
        found.pop("crc32", None)
        if _canonical(found) != raw:
            raise StoreError(f"{HEADER} does not match its own checksum")
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{HEADER} is not readable JSON: it may be truncated or overwritten") from error
    try:
        n_features, n_columns, n_obs = sizes = (found["n_features"], found["n_columns"], found["n_obs"])
        dtype, fingerprint, provenance, files = found["dtype"], found["fingerprint"], found["provenance"], found["files"]
        sound = set(map(type, sizes)) == {int} and min(sizes) > 0 and dtype in STORE_DTYPES
        sound = sound and isinstance(fingerprint, str) and isinstance(provenance, dict)
        matrix, tier = (n_columns, n_obs, dtype), (n_columns, n_obs, "int8") if TIER in files else None
        sound = sound and files[MATRIX]["bytes"] == matrix_length(*matrix)
        sound = sound and (tier is None or files[TIER]["bytes"] == matrix_length(*tier))
        sidecars = {}
        optional = [*([] if tier is None else [TIER_STATISTICS]), *([IDS] if IDS in files else [])]
        optional += [] if version == OLDER_VERSION else [CHECKSUMS]
        for name in (*SIDECARS, *optional):
            sidecars[name] = files[name]["bytes"], files[name]["crc32"]
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise StoreError(f"{HEADER} lacks a field or holds one that is out of its domain")
    return Header(n_features, matrix, tier, fingerprint, version == OLDER_VERSION, sidecars, provenance)


def decode_sidecars(header: Header, read: Callable[[str, int], bytes]) -> Sidecars:
    """Return the sidecars of a store.

    Parameters
    ----------
    header : Header
    read : callable
        Returns the content of a file given its name and the length it must have.
    """
    content: dict[str, Any] = {}
    for name, (length, checksum) in header.files.items():
        data = read(name, length)
        if zlib.crc32(data) != checksum:
            raise StoreError(f"{name} does not match its checksum")
        try:
            plain = name in (NAMES, IDS)
            content[name] = json.loads(data) if plain else dict(np.load(io.BytesIO(data), allow_pickle=False))
        except Exception as error:  # json, zipfile, zlib and numpy each raise their own types
            raise StoreError(f"{name} is not a readable {'JSON' if plain else 'NPZ'} file") from error
    arrays, values, tier = content[STATISTICS], content[TARGETS], content.get(TIER_STATISTICS)
    n_columns, n_obs, dtype = header.matrix
    sums: Mapping[str, AnyArray] = content.get(CHECKSUMS, {})
    targets: dict[str, Target] = {}
    grams: list[Float64Array] = []
    try:
        offsets, blocks = arrays["offsets"], arrays["blocks"]
        names = _decode_names(content[NAMES]["features"])
        columns = names if content[NAMES]["columns"] is None else _decode_names(content[NAMES]["columns"])
        of_columns, of_blocks = (np.float64, (n_columns,)), (np.int64, (len(blocks) - 1,))
        _check_arrays(arrays, offsets=(np.int64, (header.n_features + 1,)), blocks=(np.int64, (len(blocks),)), checksums=of_blocks)
        _check_arrays(arrays, mean=of_columns, norm=of_columns, minimum=of_columns, maximum=of_columns)
        _check_arrays(values, values=(np.float64, (len(content[NAMES]["targets"]), n_obs)))
        for name in [] if header.older else ["matrix"] if tier is None else ["matrix", "tier"]:
            _check_arrays(sums, **{name: (np.uint32, (n_columns,))})
        if tier is not None:
            _check_arrays(tier, scale=of_columns, error=of_columns, norm=of_columns, checksums=of_blocks)
        for edges, largest in ((offsets, n_columns), (blocks, BLOCK_COLUMNS)):
            steps = np.diff(edges)
            if edges[0] != 0 or edges[-1] != n_columns or steps.min() <= 0 or steps.max() > largest:
                raise ValueError("the columns are not divided into features and blocks")
        if (
            len(names) != header.n_features
            or len(columns) != n_columns
            or (offsets[np.searchsorted(offsets, blocks)] != blocks).any()
        ):
            raise ValueError("a feature or column lacks a name, or a feature spans two blocks")
        widths = np.diff(offsets)
        widths = widths[widths > 1]
        _check_arrays(arrays, grams=(np.float64, (int(widths @ widths),)))
        position = 0
        for width in widths.tolist():
            grams.append(arrays["grams"][position : position + width * width].reshape(width, width))
            position += width * width
        for entry, response in zip(content[NAMES]["targets"], values["values"], strict=True):
            name, *classes = _texts([entry["name"], *entry["classes"]])
            targets[name] = Target(response, tuple(classes))
        kept = content[NAMES].get("encoding")
        encoding = None if kept is None else TableEncoding.from_json(kept)
        ids = _texts(content[IDS]) if IDS in content else None
        if ids is not None and len(ids) != n_obs:
            raise ValueError("an observation lacks an identifier")
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise StoreError(f"a sidecar disagrees with {HEADER} about the shape of the store, or lacks a field") from error
    if tier is not None and str(tier.get("fingerprint")) != header.fingerprint:
        raise StoreError("its int8 tier was made from another matrix: build the store again")
    return Sidecars(
        StoreLayout(n_obs, dtype, offsets, blocks, header.fingerprint),
        ColumnStatistics(arrays["mean"], arrays["norm"], arrays["minimum"], arrays["maximum"], tuple(grams)),
        arrays["checksums"],
        names,
        columns,
        targets,
        header.provenance,
        tier and TierSidecar(tier["scale"], tier["error"], tier["norm"], tier["checksums"], header.fingerprint, sums.get("tier")),
        encoding,
        ids,
        sums.get("matrix"),
    )


def _check_arrays(arrays: Mapping[str, AnyArray], **expected: tuple[type[np.generic], tuple[int, ...]]) -> None:
    """Raise ``ValueError`` unless ``arrays`` has an array of each name with the element type and the shape given for it."""
    for name, (dtype, shape) in expected.items():
        if arrays[name].dtype != dtype or arrays[name].shape != shape:
            raise ValueError(f"{name} should be of type {dtype.__name__} and shape {shape}")


def _describe(data: bytes) -> dict[str, int]:
    """Return the entry of a file in header.json."""
    return {"bytes": len(data), "crc32": zlib.crc32(data)}


def _canonical(header: dict[str, Any]) -> bytes:
    """Return the unique encoding of a header, its own CRC-32 included."""
    body = zlib.crc32(json.dumps(header, sort_keys=True).encode("ascii"))
    return json.dumps({**header, "crc32": body}, sort_keys=True, indent=1).encode("ascii") + b"\n"


def _encode_arrays(**arrays: AnyArray) -> bytes:
    """Return arrays as the bytes of an NPZ file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _encode_names(names: Sequence[str]) -> Any:
    """Return names as JSON data; numbered names as prefix and length."""
    return {"prefix": names.prefix, "length": len(names)} if isinstance(names, NumberedNames) else list(names)


def _decode_names(entry: Any) -> Sequence[str]:
    """Return the names encoded by ``_encode_names``."""
    if isinstance(entry, dict):
        return NumberedNames(int(entry["length"]), *_texts([entry["prefix"]]))
    return _texts(entry)


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    """Return ``values`` when all are text; raise ``TypeError`` otherwise."""
    if not set(map(type, values)) <= {str}:
        raise TypeError("a name is not text")
    return tuple(values)
