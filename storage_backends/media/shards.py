"""Opening the stores of shards, which are file stores."""

from __future__ import annotations

from fastomp_nvm.cluster.shard import ShardAddress
from fastomp_nvm.errors import FastompError, StoreError
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.url import StoreURL
from storage_backends.media import mmap, pmem

__all__ = ["open_shard"]

#: Media of shards by URL scheme; unlike ``MEDIA`` without ``cluster``, because a shard is never a cluster.
_MEDIA = {"mmap": mmap.MEDIUM, "pmem": pmem.MEDIUM}


def open_shard(address: ShardAddress, *, tier_in_memory: bool = False) -> FeatureStore:
    """Open the store of a shard, optionally with its tier copied into memory.

    Raises ``StoreError``, naming the shard, when the store is missing or does not have the fingerprint in the manifest.
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
