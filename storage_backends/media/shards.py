"""Opens the stores of shards, which lie in files."""

from __future__ import annotations

from fastomp_nvm.cluster.shard import ShardAddress
from fastomp_nvm.errors import FastompError, StoreError
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.url import StoreURL
from storage_backends.media import mmap, pmem

__all__ = ["open_shard"]

#: Media of shards by URL scheme. Not looked up in ``MEDIA``: a cluster is itself a medium there, and its shards never are clusters.
_MEDIA = {"mmap": mmap.MEDIUM, "pmem": pmem.MEDIUM}


def open_shard(address: ShardAddress, *, tier_in_memory: bool = False) -> FeatureStore:
    """Open the store of a shard, if so wished with its tier copied into memory.

    Raises ``StoreError``, naming the shard, when the store is missing or holds another matrix than the manifest says.
    """
    try:
        url = StoreURL.parse(address.url)
        if tier_in_memory and not url.query:
            url = StoreURL.parse(f"{address.url}?tier=dram")
        store = _MEDIA[url.scheme].open(url)
    except (FastompError, OSError) as error:
        raise StoreError(f"{address.name} is missing or damaged: {error}") from error
    if store.layout.fingerprint != address.fingerprint:
        found = store.layout.fingerprint
        store.close()
        raise StoreError(
            f"{address.name} at {address.url} is stale or foreign: it holds the matrix {found[:16]} where the manifest names "
            f"{address.fingerprint[:16]}; put the right store back or cut the shards again"
        )
    return store
