"""The ``cluster`` medium: the shards of a manifest as one store, whose matrix stays on the shards.

``cluster:///path/manifest.yaml`` opens like any other store. The small parts (moments, names, targets) are read from the shards and
merged; the fingerprint of the merged store must be that of the manifest, so that a missing, stale or foreign shard is found when
the store is opened. Shards that this machine cannot open are read through Ray. Questions about the matrix go to the shards
(``fastomp_nvm.cluster.driver``) through a transport that is created at the first question. Durable regions are kept beside the
manifest.
"""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fastomp_nvm.cluster.driver import ShardedRows, Transport
from fastomp_nvm.cluster.shard import ShardAddress
from fastomp_nvm.durable_files import device_errors
from fastomp_nvm.errors import RequestError, StoreError, StoreURLError
from fastomp_nvm.matrix.rows import Rows
from fastomp_nvm.stores.contract import DurableRegion, FeatureStore, MediumTraits, Sidecars, StoreDraft
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build.manifest import MANIFEST, Manifest, merged, read_manifest
from storage_backends.build.statistics import label_digest
from storage_backends.files.durable import file_system_type
from storage_backends.files.regions import DirectoryRegions
from storage_backends.media.mmap import sync_durability
from storage_backends.media.shards import open_shard
from storage_backends.opened import OpenedStore

__all__ = ["MEDIUM", "ClusterMedium", "ClusterSettings", "ClusterStore"]

#: Seconds without a heartbeat after which a shard counts as lost.
TIMEOUT = 60.0

_REGIONS = "regions"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of the connection to the shards.

    Attributes
    ----------
    address : str
        Address of a Ray cluster to join; empty to start Ray on this machine.
    timeout : float
        Seconds without a heartbeat after which a shard counts as lost.
    """

    address: str = ""
    timeout: float = TIMEOUT

    @classmethod
    def of(cls, query: Mapping[str, str], environment: Mapping[str, str]) -> ClusterSettings:
        """Return the settings of a query, completed from ``FASTOMP_RAY`` or ``RAY_ADDRESS`` and ``FASTOMP_RAY_TIMEOUT``."""
        for name in query:
            if name not in ("ray", "timeout"):
                raise StoreURLError(f"unknown parameter {name!r} of a cluster: expected ray=ADDRESS or timeout=SECONDS")
        address = query.get("ray") or environment.get("FASTOMP_RAY") or environment.get("RAY_ADDRESS") or ""
        text = query.get("timeout") or environment.get("FASTOMP_RAY_TIMEOUT") or str(TIMEOUT)
        try:
            timeout = float(text)
        except ValueError:
            timeout = -1.0
        if not 0.0 < timeout < 1e6:
            raise StoreURLError(f"the timeout of a cluster is {text!r}: expected a number of seconds above 0")
        return cls(address, timeout)


Connect = Callable[[Sequence[ShardAddress], ClusterSettings, bool], Transport]


def connect_ray(addresses: Sequence[ShardAddress], settings: ClusterSettings, tier_in_memory: bool) -> Transport:
    """Return the transport through Ray."""
    from storage_backends.ray.shards import RayShards

    return RayShards(addresses, settings.address, settings.timeout, tier_in_memory)


class ClusterMedium:
    """Opens manifests.

    Parameters
    ----------
    connect : callable
        Creates the transport.
    """

    def __init__(self, connect: Connect = connect_ray) -> None:
        self._connect = connect

    def open(self, url: StoreURL) -> FeatureStore:
        """Open the shards of the manifest that ``url`` names, or of the one in the directory it names."""
        settings, path = ClusterSettings.of(url.query, os.environ), _manifest_path(url)
        return ClusterStore(path, read_manifest(path), settings, self._connect)

    def draft(self, url: StoreURL, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none") -> StoreDraft:
        """Refuse: shards are cut from an existing store."""
        raise StoreURLError(
            f"a sharded store is not built at {url.text!r} directly: use 'fastomp ingest SRC OUT --shards N', or "
            "'fastomp shard STORE --into N OUT'"
        )

    def exists(self, url: StoreURL) -> bool:
        """Tell whether there is a manifest at ``url``."""
        return _manifest_path(url).is_file()


class ClusterStore(OpenedStore):
    """The shards of a manifest as one store.

    Parameters
    ----------
    path : Path
        Path of the manifest.
    manifest : Manifest
    settings : ClusterSettings
    connect : callable
        Creates the transport.
    """

    def __init__(self, path: Path, manifest: Manifest, settings: ClusterSettings, connect: Connect) -> None:
        self._path = path
        self._manifest = manifest
        self._tier_in_memory = False
        shape = (manifest.n_columns, manifest.n_obs)
        self._rows = ShardedRows(
            manifest.shards, shape, np.dtype(manifest.dtype), lambda: connect(manifest.shards, settings, self._tier_in_memory)
        )
        self._here = True  # whether this machine can open all shards
        try:
            sidecars = self._collect(settings)
        except BaseException:
            self._rows.close()
            raise
        codes = _Codes(shape, np.dtype(np.int8)) if sidecars.tier is not None else None
        super().__init__(f"cluster://{urllib.parse.quote(str(path))}", self._make_traits(), self._rows, sidecars, codes)

    @property
    def shards(self) -> list[dict[str, Any]]:
        """The entries of the manifest, one per shard, as plain data."""
        return [
            {"url": shard.url, "features": list(shard.features), "fingerprint": shard.fingerprint, "resource": shard.resource}
            for shard in self._manifest.shards
        ]

    @property
    def seals(self) -> tuple[None, None]:
        """Nothing: the shards compare columns themselves."""
        return None, None

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open a durable region beside the manifest; create it with ``size`` bytes when it is absent."""
        return self._region_place(create=bool(size)).region(name, size)

    def regions(self) -> Sequence[str]:
        """Names of the durable regions that exist."""
        return self._region_place().regions() if (self._path.parent / _REGIONS).is_dir() else ()

    def drop_region(self, name: str) -> None:
        """Remove a durable region."""
        self._region_place().drop_region(name)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Verify every block of every shard: on this machine if it can open them all, else on theirs, without progress."""
        if not self._here:
            self._rows.verify()
            return
        size, n_features = self.matrix.nbytes, self.layout.n_features
        for address in self._manifest.shards:

            def report(done: int, total: int, features: tuple[int, int] = address.features) -> None:
                """Report the bytes of all shards, by features."""
                if progress is not None:
                    first, last = features
                    progress(round(size * (first + (last - first) * done / total) / n_features), size)

            with open_shard(address) as store:
                try:
                    store.verify(report)
                except StoreError as error:
                    raise StoreError(f"{address.name}: {error}") from error

    def load_tier(self) -> None:
        """Have every shard copy its tier into its machine's memory."""
        if self.tier is None:
            super().load_tier()
        self._rows.close()  # actors are started again with the tier in memory
        self._tier_in_memory = True

    def close(self) -> None:
        """Release the shards."""
        super().close()
        self._rows.close()

    def _collect(self, settings: ClusterSettings) -> Sidecars:
        """Return the sidecars of the whole store; raise unless the shards are those of the manifest."""
        parts, elsewhere = [], []
        for place, address in enumerate(self._manifest.shards):
            try:
                with contextlib.closing(open_shard(address)) as store:
                    found: Any = store
                    parts.append(found.sidecars)
            except StoreError as error:
                if not (settings.address and isinstance(error.__cause__, StoreURLError)):
                    raise
                elsewhere.append(place)  # not on this machine: read it through Ray
                parts.append(None)
        if elsewhere:
            self._here = False
            for place, sidecars in self._rows.sidecars(elsewhere).items():
                parts[place] = sidecars
        self._check(parts)
        whole = merged(parts)
        if whole.layout.fingerprint != self._manifest.fingerprint:
            raise StoreError(
                f"the shards of {self._path} make the matrix {whole.layout.fingerprint[:16]} and the manifest names "
                f"{self._manifest.fingerprint[:16]}: the manifest was changed; cut the shards again"
            )
        return whole

    def _check(self, parts: Sequence[Sidecars]) -> None:
        """Raise for the first shard that does not match the others or its entry in the manifest."""
        manifest = self._manifest
        for address, part in zip(manifest.shards, parts, strict=True):
            layout = part.layout
            found = (layout.n_obs, layout.dtype, layout.n_features, layout.n_columns)
            features, columns = (edges[1] - edges[0] for edges in (address.features, address.columns))
            if found != (manifest.n_obs, manifest.dtype, features, columns):
                raise StoreError(f"{address.name} is foreign: its shape is not that of its place in the manifest")
            if (part.tier is None) != (manifest.tier == "none"):
                raise StoreError(f"{address.name} is stale: it and the manifest disagree about the int8 tier; cut the shards again")
            if address.labels and address.labels != label_digest(part):
                raise StoreError(
                    f"{address.name} is stale: its names or targets are not those it was cut with; put the right store back or cut "
                    "the shards again"
                )
            mine, first = (label_digest(replace(each, names=(), column_names=(), encoding=None)) for each in (part, parts[0]))
            if mine != first:
                raise StoreError(f"{address.name} is stale: its targets are not those of {manifest.shards[0].name}")

    def _make_traits(self) -> MediumTraits:
        """Return the traits: durability is that of the regions beside the manifest."""
        kind = file_system_type(str(self._path))
        count = len(self._manifest.shards)
        detail = f"{count} shard{'s' if count > 1 else ''}, asked through Ray; regions beside the manifest on {kind}"
        return MediumTraits("cluster", sync_durability(kind), False, detail)

    def _region_place(self, create: bool = False) -> DirectoryRegions:
        """Return the regions beside the manifest."""
        directory = self._path.parent / _REGIONS
        if create:
            with device_errors(f"make {directory}"):
                directory.mkdir(exist_ok=True)
        return DirectoryRegions(directory)


class _Codes(Rows):
    """Stands for the codes of the tier, which stay with the shards: only their size is known here."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise RequestError("the tier of a cluster stays with its shards")

    sweep = gather = standardisations = in_memory = __getitem__ = __array__ = _refuse


def _manifest_path(url: StoreURL) -> Path:
    """Return the path of the manifest that a URL names, or of the one in the directory it names."""
    path = Path(os.path.realpath(url.path))
    return path / MANIFEST if path.is_dir() else path


MEDIUM = ClusterMedium()
