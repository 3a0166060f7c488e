"""The bytes of a file store: what stands in each of its files, and how to tell a sound one from anything else.

::

    header.json      format, version, layout, fingerprint, length (and CRC-32) of each file below, provenance, its own CRC-32
    matrix.npy       the exact matrix, n_columns x n_obs, C order; its data begin at byte 4096
    tier.npy         where there is a tier: its int8 codes, laid out alike
    tier.npz         and what makes them certain: scale, error, norm, checksums, fingerprint of the exact matrix
    statistics.npz   mean, norm, minimum, maximum; Gram matrices of features of several columns, one after the other;
                     offsets, blocks, checksums
    targets.npz      values, n_targets x n_obs
    names.json       names of features, columns and targets; classes of targets
    regions/         durable regions, NAME.bin each

Every decoder raises ``StoreError`` with the reason alone; the caller adds the place. Knows neither mappings nor URLs.
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

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.errors import InputError, StoreError
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.tier import TierSidecar
from fastomp_nvm.stores.contract import BLOCK_COLUMNS, STORE_DTYPES, Sidecars, StoreLayout, Target
from fastomp_nvm.stores.names import NumberedNames

__all__ = [
    "DATA_OFFSET",
    "FORMAT",
    "HEADER",
    "MATRIX",
    "SIDECARS",
    "TIER",
    "TIER_STATISTICS",
    "VERSION",
    "Header",
    "decode_header",
    "decode_sidecars",
    "element_type",
    "encode_header",
    "encode_sidecars",
    "matrix_header",
    "matrix_length",
]

FORMAT = "fastomp-store"
VERSION = 1
HEADER = "header.json"
MATRIX = "matrix.npy"
STATISTICS = "statistics.npz"
TARGETS = "targets.npz"
NAMES = "names.json"
SIDECARS = (STATISTICS, TARGETS, NAMES)
TIER = "tier.npy"
TIER_STATISTICS = "tier.npz"

#: Where the data of matrix.npy begin: a page, hence 64-byte aligned in every mapping and addressable by direct input/output. The
#: length of the NPY header does not depend on the shape, so that a draft can shrink in place.
DATA_OFFSET = 4096


@dataclass(frozen=True, slots=True)
class Header:
    """The verified content of header.json.

    ``files`` maps the name of each sidecar to its length and CRC-32; that of the tier is among them where there is one.
    """

    n_obs: int
    n_features: int
    n_columns: int
    dtype: str
    fingerprint: str
    files: Mapping[str, tuple[int, int]]
    provenance: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, int, str]:
        """Columns, observations and element type of matrix.npy."""
        return self.n_columns, self.n_obs, self.dtype

    @property
    def tier_shape(self) -> tuple[int, int, str]:
        """Columns, observations and element type of tier.npy."""
        return self.n_columns, self.n_obs, "int8"


def element_type(dtype: str) -> np.dtype[Any]:
    """Return the little-endian NumPy type of a store's elements."""
    return np.dtype(dtype).newbyteorder("<")


def matrix_header(n_columns: int, n_obs: int, dtype: str) -> bytes:
    """Return the ``DATA_OFFSET`` bytes that precede the data of matrix.npy (NPY format, version 1.0)."""
    description = f"{{'descr': '{element_type(dtype).str}', 'fortran_order': False, 'shape': ({n_columns}, {n_obs}), }}"
    magic = b"\x93NUMPY\x01\x00"
    room = DATA_OFFSET - len(magic) - 2
    return magic + struct.pack("<H", room) + description.encode("ascii").ljust(room - 1) + b"\n"


def matrix_length(n_columns: int, n_obs: int, dtype: str) -> int:
    """Return the exact length of matrix.npy."""
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
    if (tier := sidecars.tier) is not None:
        fingerprint = np.array(tier.fingerprint)
        files[TIER_STATISTICS] = _encode_arrays(
            scale=tier.scale, error=tier.error, norm=tier.norm, checksums=tier.checksums, fingerprint=fingerprint
        )
    return files


def encode_header(sidecars: Sidecars, files: Mapping[str, bytes]) -> bytes:
    """Return header.json for these sidecars and the encoded ``files`` that hold them."""
    layout = sidecars.layout
    try:
        provenance = json.loads(json.dumps(dict(sidecars.provenance), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"the provenance of a store must be plain JSON: {error}") from error
    lengths: dict[str, dict[str, int]] = {name: {"bytes": len(data), "crc32": zlib.crc32(data)} for name, data in files.items()}
    lengths[MATRIX] = {"bytes": matrix_length(layout.n_columns, layout.n_obs, layout.dtype)}
    if sidecars.tier is not None:
        lengths[TIER] = {"bytes": matrix_length(layout.n_columns, layout.n_obs, "int8")}
    return _canonical(
        {
            "format": FORMAT,
            "version": VERSION,
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
    """Return the header in ``raw`` after checking every byte of it."""
    try:
        found = json.loads(raw)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise StoreError(f"{HEADER} is not that of a fastomp store")
        if found.get("version") != VERSION:
            raise StoreError(
                f"its format version is {found.get('version')!r} and this release reads {VERSION}: ingest the data again"
            )
        found.pop("crc32", None)
        if _canonical(found) != raw:
            raise StoreError(f"{HEADER} does not match its own checksum")
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{HEADER} is not readable JSON, it may be cut off or overwritten") from error
    try:
        sizes = [found[key] for key in ("n_obs", "n_features", "n_columns")]
        dtype, fingerprint, provenance, files = (found[key] for key in ("dtype", "fingerprint", "provenance", "files"))
        names = (*SIDECARS, TIER_STATISTICS) if TIER in files else SIDECARS
        sidecars = {name: (files[name]["bytes"], files[name]["crc32"]) for name in names}
        numbers = [*sizes, files[MATRIX]["bytes"], *(number for pair in sidecars.values() for number in pair)]
        sound = all(type(number) is int and number >= 0 for number in numbers) and min(sizes) > 0
        sound &= dtype in STORE_DTYPES and isinstance(fingerprint, str) and isinstance(provenance, dict)
        sound = sound and files[MATRIX]["bytes"] == matrix_length(sizes[2], sizes[0], dtype)
        sound = sound and (TIER not in files or files[TIER]["bytes"] == matrix_length(sizes[2], sizes[0], "int8"))
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise StoreError(f"{HEADER} lacks a field or holds one that is out of its domain")
    return Header(sizes[0], sizes[1], sizes[2], dtype, fingerprint, sidecars, provenance)


def decode_sidecars(header: Header, read: Callable[[str, int], bytes]) -> Sidecars:
    """Return the sidecars of a store.

    Parameters
    ----------
    header : Header
    read : callable
        Returns the content of a file given its name and the length it must have.
    """
    content: dict[str, bytes] = {}
    for name, (length, checksum) in header.files.items():
        content[name] = read(name, length)
        if zlib.crc32(content[name]) != checksum:
            raise StoreError(f"{name} does not match its checksum")
    arrays = _decode_arrays(STATISTICS, content[STATISTICS])
    values = _decode_arrays(TARGETS, content[TARGETS]).get("values")
    try:
        names, columns, labels = _decode_names(content[NAMES])
        sidecars = Sidecars(
            StoreLayout(header.n_obs, header.dtype, arrays["offsets"], arrays["blocks"], header.fingerprint),
            ColumnStatistics(
                arrays["mean"],
                arrays["norm"],
                arrays["minimum"],
                arrays["maximum"],
                _split_grams(arrays["grams"], arrays["offsets"]),
            ),
            arrays["checksums"],
            names,
            columns,
            {name: Target(values[row], classes) for row, (name, classes) in enumerate(labels)},  # type: ignore[index]
            header.provenance,
            _decode_tier(content[TIER_STATISTICS]) if TIER_STATISTICS in content else None,
        )
        sound = _consistent(header, sidecars)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise StoreError("a sidecar lacks a field or holds one of the wrong kind") from error
    if not sound:
        raise StoreError(f"a sidecar disagrees with {HEADER} about the shape of the store")
    if sidecars.tier is not None and sidecars.tier.fingerprint != header.fingerprint:
        raise StoreError("its int8 tier was made from another matrix: build the store again")
    return sidecars


def _decode_tier(data: bytes) -> TierSidecar:
    """Return what ``encode_sidecars`` wrote of a tier."""
    arrays = _decode_arrays(TIER_STATISTICS, data)
    scale, error, norm, checksums = (arrays[name] for name in ("scale", "error", "norm", "checksums"))
    return TierSidecar(scale, error, norm, checksums, str(arrays["fingerprint"]))


def _consistent(header: Header, sidecars: Sidecars) -> bool:
    """Tell whether the sidecars describe a matrix of the header's shape."""
    layout, statistics = sidecars.layout, sidecars.statistics
    offsets, blocks = layout.offsets, layout.blocks
    indices = [offsets, blocks, sidecars.checksums]
    moments = [statistics.mean, statistics.norm, statistics.minimum, statistics.maximum]
    if (tier := sidecars.tier) is not None:
        if tier.checksums.shape != sidecars.checksums.shape:
            return False
        indices.append(tier.checksums)
        moments += [tier.scale, tier.error, tier.norm]
    responses = [target.values for target in sidecars.targets.values()]
    if not all(array.dtype == np.int64 and array.ndim == 1 for array in indices):
        return False
    return (
        len(offsets) == header.n_features + 1 == len(sidecars.names) + 1
        and len(sidecars.column_names) == header.n_columns
        and len(sidecars.checksums) == len(blocks) - 1
        and all(edges[0] == 0 and edges[-1] == header.n_columns and int(np.diff(edges).min()) > 0 for edges in (offsets, blocks))
        and int(np.diff(blocks).max()) <= BLOCK_COLUMNS
        and bool((offsets[np.searchsorted(offsets, blocks)] == blocks).all())
        and all(array.dtype == np.float64 and array.shape == (header.n_columns,) for array in moments)
        and all(array.dtype == np.float64 and array.shape == (header.n_obs,) for array in responses)
    )


def _split_grams(flat: AnyArray, offsets: IndexArray) -> tuple[Float64Array, ...]:
    """Return the Gram matrix of each feature of several columns from their concatenation."""
    widths = np.diff(offsets)
    widths = widths[widths > 1]
    edges = np.concatenate(([0], np.cumsum(widths * widths)))
    if flat.dtype != np.float64 or flat.shape != (edges[-1],):
        raise ValueError("the Gram matrices do not fit the grouping")
    return tuple(flat[edges[i] : edges[i + 1]].reshape(width, width) for i, width in enumerate(widths))


def _canonical(header: dict[str, Any]) -> bytes:
    """Return a header as bytes, with its own CRC-32: the only bytes that decode to it."""
    body = zlib.crc32(json.dumps(header, sort_keys=True).encode("ascii"))
    return json.dumps({**header, "crc32": body}, sort_keys=True, indent=1).encode("ascii") + b"\n"


def _encode_arrays(**arrays: AnyArray) -> bytes:
    """Return arrays as the bytes of an NPZ file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _decode_arrays(name: str, data: bytes) -> dict[str, AnyArray]:
    """Return the arrays of an NPZ file; never unpickles."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except Exception as error:  # zipfile, zlib and numpy each bring their own kinds
        raise StoreError(f"{name} is not a readable NPZ file") from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):  # a member that is no array comes as bytes
        raise StoreError(f"{name} is not a readable NPZ file")
    return arrays


def _encode_names(names: Sequence[str]) -> Any:
    """Return names in JSON terms; numbered ones by their rule."""
    return {"prefix": names.prefix, "length": len(names)} if isinstance(names, NumberedNames) else list(names)


def _decode_names(data: bytes) -> tuple[Sequence[str], Sequence[str], list[tuple[str, tuple[str, ...]]]]:
    """Return the names of features and of columns, and name and classes of each target."""
    found = json.loads(data)
    features = _names_of(found["features"])
    columns = features if found["columns"] is None else _names_of(found["columns"])
    return features, columns, [(_text(target["name"]), tuple(map(_text, target["classes"]))) for target in found["targets"]]


def _names_of(entry: Any) -> Sequence[str]:
    """Return the names that ``_encode_names`` wrote."""
    if isinstance(entry, dict):
        return NumberedNames(int(entry["length"]), _text(entry["prefix"]))
    return tuple(map(_text, entry))


def _text(value: Any) -> str:
    """Return ``value`` when it is text."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {value!r}")
    return value
