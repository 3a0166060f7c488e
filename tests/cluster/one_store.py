"""The one store that shards are cut from, and what it means that an answer is the same."""

from __future__ import annotations

from typing import Any

import numpy as np

import fastomp_nvm as fo
from fastomp_nvm.stores.contract import FeatureStore

__all__ = ["make_store", "same"]


def make_store(url: str, n_obs: int = 90, n_columns: int = 1900, **options: Any) -> FeatureStore:
    """Build a store with features of one, two and four columns, some of them with means far from 0, some constant."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n_obs, n_columns)).astype(np.float32)
    X[:, 500:520] += 3000.0
    X[:, 700] = 2.5
    eta = X[:, 800:830] @ rng.standard_normal(30) + X[:, :4].sum(axis=1)
    groups = {f"g{start}": list(range(start, start + 2 + start % 3)) for start in range(0, 450, 5)}
    y = {"y": eta + rng.standard_normal(n_obs), "c": (eta > np.median(eta)).astype(int).astype(str)}
    return fo.create_store(url, X, y, groups=groups, **options)


def same(one: fo.Selection, other: fo.Selection) -> None:
    """Assert that two answers are equal, bit for bit."""
    assert one.indices.tolist() == other.indices.tolist()
    assert [part.tobytes() for part in one.coef] == [part.tobytes() for part in other.coef]
    assert (one.intercept, one.score) == (other.intercept, other.score)
    assert one.gradient_rounds == other.gradient_rounds
