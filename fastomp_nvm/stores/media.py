"""The contract of a medium."""

from __future__ import annotations

from typing import Protocol

from fastomp_nvm.stores.contract import FeatureStore, StoreDraft
from fastomp_nvm.stores.url import StoreURL

__all__ = ["Medium"]


class Medium(Protocol):
    """What a medium's module offers to the registry: an object with these three methods."""

    def open(self, url: StoreURL) -> FeatureStore:
        """Open an existing store; ``StoreURLError`` when there is none, ``StoreError`` when it is not sound."""
        ...

    def draft(self, url: StoreURL, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none") -> StoreDraft:
        """Start a new store; ``StoreURLError`` when one exists and ``replace`` is false, ``MediumError`` when it cannot fit."""
        ...

    def exists(self, url: StoreURL) -> bool:
        """Tell whether a store stands at ``url``."""
        ...
