"""The contract of a medium, and the media by URL scheme."""

from __future__ import annotations

from typing import Protocol

from fastomp_nvm.errors import StoreURLError, near
from fastomp_nvm.registry import Table
from fastomp_nvm.stores.contract import FeatureStore, StoreDraft
from fastomp_nvm.stores.url import REMOTE_SCHEMES, StoreURL

__all__ = ["MEDIA", "Medium", "medium_of"]


class Medium(Protocol):
    """Opens and creates stores of one URL scheme."""

    def open(self, url: StoreURL) -> FeatureStore:
        """Open a store; ``StoreURLError`` when there is none, ``StoreError`` when it is damaged."""
        ...

    def draft(self, url: StoreURL, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none") -> StoreDraft:
        """Start a new store; ``StoreURLError`` when one exists and ``replace`` is false, ``MediumError`` when there is no space."""
        ...

    def exists(self, url: StoreURL) -> bool:
        """Return whether there is a store at ``url``."""
        ...


#: URL scheme -> medium.
MEDIA: Table[Medium] = Table(
    "medium",
    {
        "cluster": "storage_backends.media.cluster:MEDIUM",
        "dram": "storage_backends.media.dram:MEDIUM",
        "mmap": "storage_backends.media.mmap:MEDIUM",
        "plink": "storage_backends.plink.store:MEDIUM",
        "pmem": "storage_backends.media.pmem:MEDIUM",
        "shelf": "storage_backends.pymm.shelf:MEDIUM",
    },
)


def medium_of(url: StoreURL) -> Medium:
    """Return the medium that the scheme of ``url`` names."""
    if url.scheme in REMOTE_SCHEMES:
        raise StoreURLError(
            f"{url.text} is on a server, and this reads stores of this machine: connect to the server, or run it there"
        )
    if url.scheme not in MEDIA:
        raise StoreURLError(f"unknown medium {url.scheme!r}{near(url.scheme, MEDIA)}: expected one of {', '.join(MEDIA)}")
    return MEDIA.load(url.scheme)
