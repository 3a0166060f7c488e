"""Lower bounds beside another constraint: wherever a valid selection exists, one is returned."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm import constraints as fc
from fastomp_nvm.constraints import extendable

pytestmark = pytest.mark.numerics

N = 12


def beside(family: str, rng: np.random.Generator) -> fc.Constraint:
    """Return a constraint of this family that is often hard to meet together with lower bounds."""
    if family == "knapsack":
        return fc.Knapsack(N, rng.integers(1, 9, N).astype(float), float(rng.integers(8, 20)))
    if family == "partition":
        return fc.Partition(N, rng.integers(0, 4, N), rng.integers(1, 3, 4))
    if family == "laminar":
        return fc.Laminar(N, [np.arange(6), np.arange(3), np.arange(7, 10)], [2, 1, 1])
    if family == "fairness":
        return fc.Fairness(N, rng.random((30, N)) > 0.15, 0.5)
    if family == "oracle":
        costs = rng.integers(1, 9, N)
        return fc.Oracle(N, lambda features: bool(costs[features].sum() <= 15))
    return fc.RandomSystem(N, p=2, n_groups=4, cap=2, seed=int(rng.integers(1000)))


def instance(family: str, seed: int) -> tuple[np.ndarray, np.ndarray, fc.Constraint, bool]:
    """Return data, a constraint, and whether any set satisfies it as written."""
    rng = np.random.default_rng((seed, 77))
    X = rng.normal(size=(40, N))
    y = X @ rng.normal(size=N) + rng.normal(size=40)
    groups = rng.integers(0, 3, N)
    lower = np.minimum(rng.integers(0, 3, 3), np.bincount(groups, minlength=3))
    lower[0] = max(lower[0], min(1, np.count_nonzero(groups == 0)))
    both = fc.Intersection([fc.Bounds(N, groups, lower, [N] * 3, max(int(lower.sum()), 5)), beside(family, rng)])
    sets = (np.array(T, dtype=np.int64) for size in range(6) for T in itertools.combinations(range(N), size))
    return X, y, both, any(not both.violations(T) for T in sets)


@pytest.mark.parametrize("family", ["knapsack", "partition", "laminar", "fairness", "oracle", "random"])
@pytest.mark.parametrize("algorithm", ["fast_omp", "sds_omp"])
def test_a_valid_answer_is_found_where_one_exists(family: str, algorithm: str) -> None:
    """Every lower bound is met and nothing else is broken, whichever algorithm asks."""
    existing = 0
    for seed in range(30):
        X, y, constraint, exists = instance(family, seed)
        if exists:
            existing += 1
            assert fo.select(X, y, constraint=constraint, seed=seed, algorithm=algorithm).feasible
    assert existing > 15


def test_a_budget_does_not_use_up_what_lower_bounds_need() -> None:
    """200 features in 4 groups, at least 3 of each, 15 in all, a budget: the answer keeps to all of it, and k."""
    n = 200
    for seed in range(5):
        rng = np.random.default_rng((seed, 78))
        X = rng.normal(size=(100, n))
        y = X[:, :20] @ rng.normal(size=20) + rng.normal(size=100)
        costs = np.exp(0.7 * rng.normal(size=n))
        bounds = fc.Bounds(n, np.arange(n) % 4, [3] * 4, [n] * 4, 15)
        budget = fc.Knapsack(n, costs, float(np.sort(costs)[:60].mean() * 14))
        found = fo.select(X, y, k=15, constraint=fc.Intersection([bounds, budget]), seed=seed)
        assert found.feasible
        assert found.notes == []


def test_constant_features_complete_nothing() -> None:
    """A completion that is cheap because its features are constant does not count: they cannot be selected."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 8))
    y = X[:, 4:] @ np.array([3.0, 2.0, 2.0, 2.0]) + 0.1 * rng.normal(size=40)
    X[:, 0] = 1.0
    bounds = fc.Bounds(8, [0, 0, 0, 1, 1, 1, 1, 1], [2, 0], [8, 8], 4)
    found = fo.select(X, y, constraint=fc.Intersection([bounds, fc.Knapsack(8, [0.0, 2, 2, 1, 1, 1, 1, 1], 5.0)]))
    assert found.feasible
    assert {1, 2} < set(found.indices.tolist())


def test_nothing_valid_is_an_answer_that_breaks_the_bounds() -> None:
    """Where no set satisfies all parts, the answer names the group that lacks features, as with a single constraint."""
    X, y, _, _ = instance("knapsack", 0)
    bounds = fc.Bounds(N, [0] * 6 + [1] * 6, [4, 0], [N, N], 6)
    with pytest.warns(UserWarning, match="group '0' has"):
        found = fo.select(X, y, constraint=fc.Intersection([bounds, fc.Knapsack(N, np.ones(N), 3.0)]))
    assert not found.feasible


def test_questions_left_open_are_counted_and_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no effort at all for the look-ahead most answers stay valid, because the end is repaired, and a note tells."""
    monkeypatch.setattr(extendable, "SHARED", 1)
    monkeypatch.setattr(extendable, "SINGLE", 1)
    valid = exchanged = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(30):
            X, y, constraint, exists = instance("fairness", seed)
            if exists:
                found = fo.select(X, y, constraint=constraint, seed=seed)
                assert any("left open" in note for note in found.notes)
                exchanged += any("exchanged at the end" in note for note in found.notes)
                valid += found.feasible
    assert valid >= 25
    assert exchanged > 0
