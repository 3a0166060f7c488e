"""The polish over many columns: which Gram columns it foresees changes how many it computes, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.objectives import linear_gains
from fastomp_nvm.objectives.linear_gains import LinearGains

pytestmark = pytest.mark.numerics


@pytest.fixture
def many(monkeypatch) -> None:
    """Let no columns be few."""
    monkeypatch.setattr("fastomp_nvm.objectives.known_columns.MOST_COLUMNS", 0)


@pytest.fixture
def computed(monkeypatch) -> list[int]:
    """Return what the columns of the whole Gram matrix that are computed are counted in."""
    counts: list[int] = []
    products = LinearGains._products

    def counted(self: LinearGains, columns: Columns, positions: np.ndarray) -> np.ndarray:
        if columns is self._columns:
            counts.append(len(positions))
        return products(self, columns, positions)

    monkeypatch.setattr(LinearGains, "_products", counted)
    return counts


def data(n_obs: int = 150, n_features: int = 400, together: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Return columns that have something in common, and a response of forty of them."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(n_obs, n_features)) + together * rng.normal(size=(n_obs, 1))
    return X, X[:, :40] @ rng.normal(size=40) + rng.normal(size=n_obs)


def told(found: Any) -> tuple[Any, ...]:
    """Return what must not depend on what was foreseen."""
    return found.indices.tolist(), [np.atleast_1d(each).tolist() for each in found.coef], found.score


CONSTRAINTS: dict[str, dict[str, Any]] = {
    "cardinality": {"k": 30},
    "partition": {"k": 30, "constraint": fo.constraints.Partition(400, np.arange(400) % 10, [3] * 10)},
    "knapsack": {"k": 30, "constraint": fo.constraints.Knapsack(400, 1.0 + np.arange(400) % 7, 90.0)},
}


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("options", [{}, {"ridge": 0.1}, {"standardize": False}])
def test_what_is_foreseen_changes_nothing(monkeypatch, name, grouped, options) -> None:
    """One column at a time, blocks of any size, guesses among few and many: the same bits."""
    X, y = data()
    with fo.create_store("dram:ahead", X, y, groups={"two": [2, 3], "also": [7, 9]} if grouped else None, replace=True) as store:
        request = dict(CONSTRAINTS[name])
        if grouped and name != "cardinality":  # fewer features than columns
            n = store.layout.n_features
            made = {"partition": fo.constraints.Partition(n, np.arange(n) % 10, [3] * 10)}
            request["constraint"] = made.get(name) or fo.constraints.Knapsack(n, 1.0 + np.arange(n) % 7, 90.0)
        found = []
        for block, near in ((1, 2), (2, 1), (7, 3), (32, 8), (500, 500)):
            monkeypatch.setattr(linear_gains, "GRAM_BLOCK", block)
            monkeypatch.setattr(linear_gains, "MOST_NEAR", near)
            monkeypatch.setattr(linear_gains, "FEWEST_NEAR", near)
            found.append(told(fo.select(store, **request, **options)))
    assert all(other == found[0] for other in found)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_hardly_a_column_is_computed_that_is_not_used(monkeypatch, computed, name) -> None:
    """The greedy among the near ones foresees the one among all, the constraint included: few columns and few blocks."""
    monkeypatch.setattr("fastomp_nvm.algorithms.again.PASSES", 0)  # greedy among other columns
    X, y = data(n_obs=600, together=0.0)
    used = len(fo.select(X, y, **CONSTRAINTS[name]).indices)
    greedies = 2 if name == "knapsack" else 1  # by gain, and by gain per cost
    assert used <= sum(computed) <= 1.2 * greedies * used
    assert len(computed) <= 4 * greedies


@pytest.mark.usefixtures("many")
def test_columns_read_again_are_read_for_larger_blocks(monkeypatch, computed, tmp_path) -> None:
    """Where the budget holds no columns, more are foreseen at a time; the answer is that of columns in memory."""
    X, y = data()
    with fo.create_store(f"mmap://{tmp_path / 'store'}", X, y) as store:
        held = told(fo.select(store, k=30))
        monkeypatch.setattr(linear_gains, "GRAM_BLOCK", 1)
        computed.clear()
        assert told(fo.select(store, k=30, gather_bytes=4096)) == held
        assert max(computed) > 20
