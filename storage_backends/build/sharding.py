"""Cutting a store into shards: stores of whole blocks, described by a manifest.

Blocks are copied with their checksums, columns with their moments and codes, so the shards together have the fingerprint of the
original store. Every block is verified. The directory of shards and manifest appears atomically.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastomp_nvm.arrays import Float64Array
from fastomp_nvm.cluster.shard import ShardAddress
from fastomp_nvm.durable_files import device_errors
from fastomp_nvm.errors import RequestError, StoreError, StoreURLError
from fastomp_nvm.matrix.checksum import crc32
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.tier import TierSidecar
from fastomp_nvm.stores.builders import Sources
from fastomp_nvm.stores.contract import FeatureStore, Sidecars, StoreLayout
from fastomp_nvm.stores.media import medium_of
from fastomp_nvm.stores.open import open_store
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build.ingest import ingest
from storage_backends.build.manifest import FILE_MEDIA, MANIFEST, Manifest
from storage_backends.build.statistics import fingerprint, label_digest
from storage_backends.files import format as store_format
from storage_backends.files.draft import hidden_directory, publish
from storage_backends.files.durable import give_back, write_file

__all__ = ["block_ranges", "cut", "ingest_shards", "part_of"]


def block_ranges(n_blocks: int, into: int | Sequence[float]) -> list[tuple[int, int]]:
    """Return the range of blocks of each shard.

    Parameters
    ----------
    n_blocks : int
    into : int or sequence of float
        Number of shards of about equal size, or the share of each.
    """
    shares = _shares(into)
    if len(shares) > n_blocks:
        raise RequestError(f"{len(shares)} shards cannot be made of {n_blocks} blocks of 256 columns: ask for at most {n_blocks}")
    edges = np.rint(np.concatenate(([0.0], np.cumsum(shares))) * (n_blocks / shares.sum())).astype(np.int64)
    for place in range(1, len(edges)):  # every shard has at least one block
        edges[place] = max(edges[place], edges[place - 1] + 1)
    edges = np.minimum(edges, n_blocks - len(shares) + np.arange(len(edges)))
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _shares(into: int | Sequence[float]) -> Float64Array:
    """Return the relative size of each shard."""
    shares = np.ones(into) if isinstance(into, int) and into > 0 else np.asarray(into, dtype=np.float64)
    if shares.ndim != 1 or not shares.size or not (shares > 0).all() or not np.isfinite(shares).all():
        raise RequestError(f"{into!r} shards cannot be made: expected a whole number of at least 1, or shares such as 2,1,1")
    return shares


def cut(
    source: FeatureStore | str,
    out: str,
    into: int | Sequence[float],
    *,
    pin: bool = False,
    replace_existing: bool = False,
    consume: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Cut a store into shards and return the path of their manifest.

    Parameters
    ----------
    source : FeatureStore or store URL
    out : str
        Directory for shards and manifest: a path, ``mmap:///path`` or ``pmem:///path``.
    into : int or sequence of float
        See ``block_ranges``.
    pin : bool
        Serve shard N only on machines with the Ray resource ``shard-N``.
    replace_existing : bool
        Replace a sharded store at ``out``.
    consume : bool
        Free the disk space of each block of ``source``, a file store, once it is copied; this destroys the source.
    progress : callable, optional
        Called with (bytes done, bytes to do).
    """
    scheme, final = _destination(out, replace_existing)
    with contextlib.ExitStack() as stack:
        store: Any = stack.enter_context(open_store(source)) if isinstance(source, str) else source
        if store.traits.medium == "cluster":
            raise RequestError(f"{store.url} is sharded already: cut the original store")
        sidecars: Sidecars | None = getattr(store, "sidecars", None)
        if sidecars is None:
            raise StoreURLError(f"{store.url} is used where it lies, and shards are cut from stores that were built: select there")
        ranges = block_ranges(len(sidecars.layout.blocks) - 1, into)
        partial, directory = stack.enter_context(_hidden_directory(final))
        free = stack.enter_context(_freeing(store)) if consume else None
        addresses = []
        for place, (first, last) in enumerate(ranges):
            name = f"shard-{place}"
            part = part_of(sidecars, first, last, {"shard": place, "shards": len(ranges)})
            _copy(store, sidecars, (first, last), _url(scheme, partial / name), part, free, progress)
            columns = (int(sidecars.layout.blocks[first]), int(sidecars.layout.blocks[last]))
            features = tuple(np.searchsorted(sidecars.layout.offsets, columns).tolist())
            url = name if scheme == "mmap" else f"{scheme}:{name}"
            labels = label_digest(part)
            addresses.append(ShardAddress(name, url, part.layout.fingerprint, features, columns, name if pin else "", labels))
        layout = sidecars.layout
        tier = "none" if sidecars.tier is None else "int8"
        manifest = Manifest(
            layout.fingerprint, layout.n_obs, layout.n_features, layout.n_columns, layout.dtype, tier, tuple(addresses)
        )
        with device_errors(f"write {partial / MANIFEST}"):
            write_file(directory, MANIFEST, manifest.to_yaml().encode("utf-8"))
            os.fsync(directory)
            publish(str(partial), str(final), replaces=(final / MANIFEST).exists())
    return final / MANIFEST


def ingest_shards(
    source: Sources, out: str, into: int | Sequence[float], *, replace: bool = False, **options: Any
) -> tuple[Any, Path]:
    """Ingest files into shards; return the report of ``ingest`` and the path of the manifest.

    The data are ingested into a temporary store, whose blocks are freed as they are copied: features with missing values may be
    dropped, so block boundaries are known only after the last row. Needs disk space for the data and one shard.
    """
    _, final = _destination(out, replace)
    _shares(into)
    with _hidden_directory(final) as (folder, _):
        staged = _url("mmap", folder / "store")
        report = ingest(source, staged, **options)
        return report, cut(staged, out, into, replace_existing=replace, consume=True)


def part_of(sidecars: Sidecars, first: int, last: int, provenance: dict[str, Any]) -> Sidecars:
    """Return the sidecars of a store of blocks ``first:last``."""
    layout, statistics = sidecars.layout, sidecars.statistics
    start, end = int(layout.blocks[first]), int(layout.blocks[last])
    low, high = np.searchsorted(layout.offsets, (start, end)).tolist()
    columns, features = slice(start, end), slice(low, high)
    wide = np.flatnonzero(np.diff(layout.offsets) > 1)
    members = np.flatnonzero((wide >= low) & (wide < high)).tolist()
    offsets, blocks = layout.offsets[low : high + 1] - start, layout.blocks[first : last + 1] - start
    checksums = sidecars.checksums[first:last]
    names = tuple(sidecars.names[features])
    whole = {"whole": layout.fingerprint, **provenance}
    mark = fingerprint(layout.n_obs, layout.dtype, offsets, blocks, checksums)
    tier = sidecars.tier
    if tier is not None:
        codes = None if tier.column_checksums is None else tier.column_checksums[columns]
        tier = TierSidecar(tier.scale[columns], tier.error[columns], tier.norm[columns], tier.checksums[first:last], mark, codes)
    return Sidecars(
        StoreLayout(layout.n_obs, layout.dtype, offsets, blocks, mark),
        ColumnStatistics(
            statistics.mean[columns],
            statistics.norm[columns],
            statistics.minimum[columns],
            statistics.maximum[columns],
            tuple(statistics.grams[member] for member in members),
        ),
        checksums,
        names,
        names if sidecars.column_names is sidecars.names else tuple(sidecars.column_names[columns]),
        sidecars.targets,
        {**sidecars.provenance, "cut": whole},
        tier,
        sidecars.encoding and sidecars.encoding.restricted(sidecars.column_names[columns]),
        sidecars.ids,
        None if sidecars.column_checksums is None else sidecars.column_checksums[columns],
    )


def _copy(
    store: FeatureStore,
    whole: Sidecars,
    blocks: tuple[int, int],
    url: str,
    part: Sidecars,
    free: Callable[[int, int], None] | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Build one shard from a range of blocks of a store."""
    parsed, layout, matrix = StoreURL.parse(url), part.layout, store.matrix
    tier = "none" if part.tier is None else "int8"
    draft = medium_of(parsed).draft(parsed, layout.n_columns, layout.n_obs, layout.dtype, replace=False, tier=tier)
    try:
        for block in range(*blocks):
            start, end = int(whole.layout.blocks[block]), int(whole.layout.blocks[block + 1])
            here = int(layout.blocks[block - blocks[0]])
            columns = np.ascontiguousarray(matrix[start:end])
            _check(columns, int(whole.checksums[block]), block, store.url)
            draft.write_columns(here, columns)
            if draft.tier is not None and store.tier is not None and whole.tier is not None:
                codes = np.ascontiguousarray(store.tier.codes[start:end])
                _check(codes, int(whole.tier.checksums[block]), block, store.url)
                draft.tier[here : here + len(codes)] = codes
            draft.forget(here, here + len(columns))
            if free is not None:
                free(start, end)
            if progress is not None:
                progress(end * columns.shape[1] * columns.itemsize, matrix.nbytes)
        draft.commit(part)
    finally:
        draft.abort()


@contextlib.contextmanager
def _freeing(store: FeatureStore) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that frees the disk space of columns ``first:last`` of a file store."""
    folder, layout = Path(StoreURL.parse(store.url).path), store.layout
    widths = {store_format.MATRIX: layout.n_obs * np.dtype(layout.dtype).itemsize}
    if store.tier is not None:
        widths[store_format.TIER] = layout.n_obs
    with contextlib.ExitStack() as stack:
        files = [(stack.enter_context(open(folder / name, "r+b", buffering=0)), width) for name, width in widths.items()]

        def free(first: int, last: int) -> None:
            with device_errors("free the disk space of copied blocks"):
                for file, width in files:
                    give_back(file.fileno(), store_format.DATA_OFFSET + first * width, (last - first) * width)

        yield free


def _check(columns: Any, expected: int, block: int, url: str) -> None:
    """Raise ``StoreError`` when a block is damaged."""
    if crc32(columns.reshape(-1).view(np.uint8).data) != expected:
        raise StoreError(f"the store {url} is damaged: block {block} does not match its checksum; build the store again")


def _url(scheme: str, path: Path) -> str:
    """Return the URL of a file store."""
    return f"{scheme}://{urllib.parse.quote(str(path))}"


@contextlib.contextmanager
def _hidden_directory(final: Path) -> Iterator[tuple[Path, int]]:
    """Make a directory beside ``final`` for the duration of a ``with``; yield its path and its descriptor."""
    with device_errors(f"make a directory beside {final}"):
        hidden, descriptor = hidden_directory(str(final))
    try:
        yield Path(hidden), descriptor
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
        os.close(descriptor)


def _destination(out: str, replace_existing: bool) -> tuple[str, Path]:
    """Return medium and directory of the shards; raise ``StoreURLError`` when they may not be put there."""
    target = StoreURL.parse(out)
    if target.scheme not in FILE_MEDIA or target.query or target.fragment:
        raise StoreURLError(f"shards cannot be built at {out!r}: expected a path, mmap:///path or pmem:///path")
    final = Path(os.path.realpath(target.path))
    if not final.parent.is_dir():
        raise StoreURLError(f"the directory {final.parent} does not exist: create it before putting shards there")
    if not final.exists():
        return target.scheme, final
    if not (final / MANIFEST).exists():
        if not final.is_dir() or any(final.iterdir()):
            raise StoreURLError(f"{final} exists and is not a sharded store: choose another place or remove it yourself")
    elif not replace_existing:
        raise StoreURLError(f"there is a sharded store at {final} already: choose another place or ask to replace it (--replace)")
    return target.scheme, final
