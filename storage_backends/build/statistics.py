"""The block grid and the fingerprints of a store."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.stores.contract import BLOCK_COLUMNS, Sidecars

__all__ = ["column_grid", "fingerprint", "label_digest"]


def column_grid(offsets: IndexArray) -> IndexArray:
    """Return the block grid over features given by ``offsets``.

    Parameters
    ----------
    offsets : (n_features + 1,) int64

    Returns
    -------
    (n_blocks + 1,) int64
        Edges of blocks of as many whole features as fit into ``BLOCK_COLUMNS`` columns.
    """
    edges = [0]
    while edges[-1] < offsets[-1]:
        last = int(np.searchsorted(offsets, edges[-1] + BLOCK_COLUMNS, side="right")) - 1
        edges.append(int(offsets[last]))
    return np.array(edges, dtype=np.int64)


def fingerprint(n_obs: int, dtype: str, offsets: IndexArray, blocks: IndexArray, checksums: IndexArray) -> str:
    """Return a digest (32 hexadecimal digits) of shape, dtype, grouping and the checksums of all blocks."""
    description = {"kind": "fastomp-matrix-1", "n_obs": n_obs, "n_columns": int(offsets[-1]), "dtype": dtype}
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode("ascii"))
    for array in (offsets, blocks, checksums):
        digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return digest.hexdigest()[:32]


def label_digest(sidecars: Sidecars) -> str:
    """Return a digest (32 hexadecimal digits) of names, targets, encoding and identifiers."""
    digest = hashlib.sha256(json.dumps([list(sidecars.names), list(sidecars.column_names)]).encode("ascii"))
    if sidecars.encoding is not None or sidecars.ids is not None:
        kept = sidecars.encoding and sidecars.encoding.to_json()
        digest.update(json.dumps([kept, list(sidecars.ids or ())], sort_keys=True).encode("ascii"))
    for name, target in sidecars.targets.items():
        digest.update(json.dumps([name, target.classes]).encode("ascii"))
        digest.update(np.ascontiguousarray(target.values, dtype="<f8").tobytes())
    return digest.hexdigest()[:32]
