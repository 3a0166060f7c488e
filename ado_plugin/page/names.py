"""Names of the features that a running job has selected so far."""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence

from ado_plugin.service.pools import Pools
from fastomp_nvm.errors import FastompError

__all__ = ["FeatureNames"]

#: Stores whose names are kept: a page asks for those of the job it shows once a second.
_MOST_STORES = 4


class FeatureNames:
    """Names of the features of stores in pools, of the stores asked about last.

    Parameters
    ----------
    pools : Pools
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._known: collections.OrderedDict[tuple[str, str, str], Sequence[str]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def of(self, pool: str, key: str, fingerprint: str, features: Sequence[int]) -> list[str]:
        """Return the names of features; numbers where the store with this fingerprint is gone."""
        place = pool, key, fingerprint
        with self._lock:
            names = self._known[place] if place in self._known else self._read(place)
            self._known[place] = names
            self._known.move_to_end(place)
            if len(self._known) > _MOST_STORES:
                self._known.popitem(last=False)
        return [names[feature] if 0 <= feature < len(names) else f"feature {feature}" for feature in features]

    def _read(self, place: tuple[str, str, str]) -> Sequence[str]:
        """Return the names in a store, none where it was removed or replaced."""
        pool, key, fingerprint = place
        try:
            with self._pools.open(pool, key) as store:
                return store.names if store.layout.fingerprint == fingerprint else ()
        except (FastompError, OSError):
            return ()
