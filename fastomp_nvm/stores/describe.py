"""The description of a store that ``fastomp info`` prints, locally and from a server."""

from __future__ import annotations

from typing import Any

from fastomp_nvm.stores.contract import FeatureStore

__all__ = ["describe"]


def describe(store: FeatureStore) -> dict[str, Any]:
    """Return the description of a store as plain JSON data."""
    layout, traits = store.layout, store.traits
    return {
        "url": store.url,
        "medium": traits.medium,
        "durability": traits.durability,
        "emulated": traits.emulated,
        "detail": traits.detail,
        "n_features": layout.n_features,
        "n_columns": layout.n_columns,
        "n_obs": layout.n_obs,
        "dtype": layout.dtype,
        "bytes": int(store.matrix.nbytes),
        "blocks": len(layout.blocks) - 1,
        "tier": "none" if store.tier is None else "int8",
        "tier_bytes": 0 if store.tier is None else int(store.tier.codes.nbytes),
        "fingerprint": layout.fingerprint,
        "constant_columns": int((store.statistics.norm == 0).sum()),
        "targets": {name: {"classes": list(target.classes)} for name, target in store.targets.items()},
        "features": list(store.names[:20]),
        **({"shards": list(store.shards)} if store.shards else {}),
    }
