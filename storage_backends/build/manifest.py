"""The manifest of a sharded store: a YAML file that lists the shards and describes the whole.

::

    format: fastomp-cluster
    version: 1
    fingerprint: 32 hex digits     # of the whole matrix: that of the store it was cut from
    n_obs: 500
    n_features: 20000
    n_columns: 20000
    dtype: float32
    tier: int8                     # or none
    shards:                        # in the order of their features, without gaps
    - url: shard-0                 # a store URL or a path, relative to the manifest's directory
      features: [0, 10240]         # first, and one past the last
      columns: [0, 10240]
      fingerprint: 32 hex digits
      labels: 32 hex digits        # optional: of its names, targets, ..., which the fingerprint does not cover
      resource: shard-0            # optional: Ray resource of the machines that have this store

URLs and resources may be edited by hand; everything else is checked against the shards when the store is opened.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.bounded_yaml import load_yaml
from fastomp_nvm.cluster.shard import ShardAddress
from fastomp_nvm.errors import MediumError, StoreError, StoreURLError
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.tier import TierSidecar
from fastomp_nvm.stores.contract import STORE_DTYPES, TIERS, Sidecars, StoreLayout
from fastomp_nvm.stores.encoding import TableEncoding
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build.statistics import fingerprint

__all__ = ["FILE_MEDIA", "FORMAT", "MANIFEST", "VERSION", "Manifest", "merged", "read_manifest"]

FORMAT = "fastomp-cluster"
VERSION = 1
MANIFEST = "manifest.yaml"

#: Media of shards: those whose stores are directories.
FILE_MEDIA = ("mmap", "pmem")

_LARGEST = 1 << 26


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest; ``read_manifest`` makes the URLs of its shards absolute."""

    fingerprint: str
    n_obs: int
    n_features: int
    n_columns: int
    dtype: str
    tier: str
    shards: tuple[ShardAddress, ...]

    def to_yaml(self) -> str:
        """Return the text of the manifest file."""
        shards = []
        for shard in self.shards:
            entry: dict[str, Any] = {"url": shard.url, "features": list(shard.features), "columns": list(shard.columns)}
            entry["fingerprint"] = shard.fingerprint
            entry |= {field: getattr(shard, field) for field in ("labels", "resource") if getattr(shard, field)}
            shards.append(entry)
        fields = ("fingerprint", "n_obs", "n_features", "n_columns", "dtype", "tier")
        content = {"format": FORMAT, "version": VERSION, **{field: getattr(self, field) for field in fields}, "shards": shards}
        text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=132)
        return text


def read_manifest(path: Path) -> Manifest:
    """Read a manifest and check that it is consistent."""
    try:
        if path.stat().st_size > _LARGEST:
            raise StoreError(f"{path} has more than {_LARGEST} bytes: it is not a manifest")
        content = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StoreURLError(f"there is no manifest at {path}: make one with 'fastomp shard'") from error
    except (OSError, UnicodeDecodeError) as error:
        raise MediumError(f"cannot read the manifest {path}: {error}") from error
    except yaml.YAMLError as error:
        raise StoreError(f"the manifest {path} is not readable YAML: it may be truncated or overwritten") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StoreError(f"{path} is not the manifest of a sharded store: 'fastomp shard' writes one")
    if content.get("version") != VERSION:
        raise StoreError(f"the manifest {path} has version {content.get('version')!r} and this release reads {VERSION}")
    try:
        shards = tuple(_address(path, place, entry) for place, entry in enumerate(content["shards"]))
        sizes = [content[field] for field in ("n_obs", "n_features", "n_columns")]
        sound = all(type(size) is int and size > 0 for size in sizes) and bool(shards)
        sound = sound and content["dtype"] in STORE_DTYPES and content["tier"] in TIERS and isinstance(content["fingerprint"], str)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise StoreError(f"the manifest {path} lacks a field or holds one that is out of its domain: cut the shards again")
    ends = [(0, 0), *((shard.features[1], shard.columns[1]) for shard in shards)]
    starts = [*((shard.features[0], shard.columns[0]) for shard in shards), (sizes[1], sizes[2])]
    for place, (end, start) in enumerate(zip(ends, starts, strict=True)):
        if end != start:
            raise StoreError(
                f"the manifest {path} has a gap or an overlap before its shard {place}: features must follow each other"
            )
    return Manifest(content["fingerprint"], sizes[0], sizes[1], sizes[2], content["dtype"], content["tier"], shards)


def _address(path: Path, place: int, entry: dict[str, Any]) -> ShardAddress:
    """Return the address of one shard, its URL made absolute."""
    ranges = [tuple(entry[field]) for field in ("features", "columns")]
    if not all(len(edges) == 2 and all(type(edge) is int for edge in edges) and 0 <= edges[0] < edges[1] for edges in ranges):
        raise ValueError("a range is not two numbers")
    texts = entry["fingerprint"], entry.get("resource", ""), entry.get("labels", "")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("text is expected")
    fingerprint, resource, labels = texts
    url = _absolute(path, place, entry["url"])
    return ShardAddress(f"shard {place} ({url})", url, fingerprint, ranges[0], ranges[1], resource, labels)


def _absolute(path: Path, place: int, url: str) -> str:
    """Return a store URL with an absolute path."""
    parsed = StoreURL.parse(url)
    if parsed.scheme not in FILE_MEDIA or parsed.fragment:
        raise StoreError(f"the manifest {path} has its shard {place} at {url!r}: expected a path, mmap:///path or pmem:///path")
    query = f"?{urllib.parse.urlencode(parsed.query)}" if parsed.query else ""
    return f"{parsed.scheme}://{urllib.parse.quote(os.path.abspath(path.parent / parsed.path))}{query}"


def merged(parts: Sequence[Sidecars]) -> Sidecars:
    """Return the sidecars of the store whose consecutive shards have the sidecars ``parts``."""
    offsets = _stacked([part.layout.offsets for part in parts])
    blocks = _stacked([part.layout.blocks for part in parts])
    checksums = np.concatenate([part.checksums for part in parts])
    first = parts[0]
    mark = fingerprint(first.layout.n_obs, first.layout.dtype, offsets, blocks, checksums)
    moments = {
        field: np.concatenate([getattr(part.statistics, field) for part in parts])
        for field in ("mean", "norm", "minimum", "maximum")
    }
    names = tuple(name for part in parts for name in part.names)
    plain = all(part.column_names is part.names for part in parts)
    tiers = [part.tier for part in parts if part.tier is not None]
    tier = None
    if len(tiers) == len(parts):
        scale, error, norm, codes = (
            np.concatenate([getattr(each, field) for each in tiers]) for field in ("scale", "error", "norm", "checksums")
        )
        tier = TierSidecar(scale, error, norm, codes, mark)
    columns = [part.column_checksums for part in parts if part.column_checksums is not None]
    return Sidecars(
        StoreLayout(first.layout.n_obs, first.layout.dtype, offsets, blocks, mark),
        ColumnStatistics(**moments, grams=tuple(gram for part in parts for gram in part.statistics.grams)),
        checksums,
        names,
        names if plain else tuple(name for part in parts for name in part.column_names),
        first.targets,
        {name: value for name, value in first.provenance.items() if name != "cut"},
        tier,
        _encoding(parts),
        first.ids,
        np.concatenate(columns) if len(columns) == len(parts) else None,
    )


def _encoding(parts: Sequence[Sidecars]) -> TableEncoding | None:
    """Return the encoding of the table behind all shards."""
    kept = [part.encoding for part in parts if part.encoding is not None]
    if len(kept) < len(parts):
        return None
    return replace(kept[0], columns={name: each for part in kept for name, each in part.columns.items()})


def _stacked(edges: Sequence[IndexArray]) -> IndexArray:
    """Concatenate edges that each begin at 0."""
    out = [np.zeros(1, dtype=np.int64)]
    for each in edges:
        out.append(each[1:] + out[-1][-1])
    return np.concatenate(out)
