"""A transport that carries calls to shards of this process, through pickle as a real one would."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastomp_nvm.cluster.shard import Shard, ShardAddress
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.url import StoreURL
from storage_backends.media.cluster import ClusterMedium, ClusterSettings
from storage_backends.media.shards import open_shard

__all__ = ["InProcessShards", "in_process_medium", "open_in_process"]


class _Handle:
    """Stands for a shared value."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class InProcessShards:
    """Shards of this process; ``forgetful`` ones are opened anew for every call, as if their actor had just been restarted."""

    def __init__(
        self, addresses: Sequence[ShardAddress], settings: ClusterSettings, tier_in_memory: bool, forgetful: bool = False
    ) -> None:
        self._make = lambda place: Shard(addresses[place], open_shard(addresses[place], tier_in_memory=tier_in_memory), 1)
        self._forgetful = forgetful
        self._shards: dict[int, Shard] = {}
        self.calls: list[str] = []

    def share(self, value: Any) -> Any:
        return _Handle(pickle.dumps(value))

    def watch(self, report: Callable[[Sequence[float]], None] | None) -> None:
        pass

    def call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        self.calls.append(method)
        return {place: self._one(place, method, given) for place, given in arguments.items()}

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()
        self._shards = {}

    def _one(self, place: int, method: str, given: tuple[Any, ...]) -> Any:
        shard = self._shards.get(place) or self._make(place)
        given = tuple(
            pickle.loads(value.data) if isinstance(value, _Handle) else pickle.loads(pickle.dumps(value)) for value in given
        )
        result = pickle.loads(pickle.dumps(getattr(shard, method)(*given)))
        if self._forgetful:
            shard.close()
        else:
            self._shards[place] = shard
        return result


def in_process_medium(forgetful: bool = False) -> ClusterMedium:
    """Return the medium whose shards are asked in this process."""

    def connect(addresses: Sequence[ShardAddress], settings: ClusterSettings, tier_in_memory: bool) -> InProcessShards:
        return InProcessShards(addresses, settings, tier_in_memory, forgetful)

    return ClusterMedium(connect)


def open_in_process(manifest: Path | str, forgetful: bool = False) -> FeatureStore:
    """Open a manifest whose shards are asked in this process."""
    return in_process_medium(forgetful).open(StoreURL.parse(f"cluster://{manifest}"))
