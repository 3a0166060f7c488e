"""The polish keeps the best set: maximal where that was asked for, by gain per cost under a budget, never below a single tau."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.algorithms.fast_omp import TAUS
from tests import oracles

pytestmark = pytest.mark.numerics


def correlated(seed: int, n_obs: int, n_features: int, together: float) -> tuple[np.ndarray, np.ndarray]:
    """Return neighbours with correlation ``together``, and a response of fifteen of them."""
    rng = np.random.default_rng((seed, 4))
    X = rng.normal(size=(n_obs, n_features))
    for column in range(1, n_features):
        X[:, column] = together * X[:, column - 1] + np.sqrt(1 - together**2) * X[:, column]
    support = rng.choice(n_features, 15, replace=False)
    return X, X[:, support] @ rng.normal(size=15) + 0.5 * rng.normal(size=n_obs)


def test_a_full_selection_is_maximal() -> None:
    """With ``until="full"`` no feature that the budget could still pay for is left out, polished or not."""
    n = 13
    for seed in range(80):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(40, n)) + 0.5 * rng.normal(size=(40, 1))
        y = X @ rng.normal(size=n) + rng.normal(size=40)
        constraint = fo.constraints.Knapsack(n, rng.integers(1, 8, n).astype(float), 14.0)
        found = fo.select(X, y, constraint=constraint, until="full", seed=seed)
        assert found.feasible
        assert not constraint.extensions(found.indices, np.arange(n)).any()


def test_a_better_set_is_kept_however_large() -> None:
    """Under a p-system a full selection is never worse than the paper's, which may be smaller."""
    rng = np.random.default_rng((0, 9))
    X = rng.normal(size=(400, 1500))
    y = X[:, :150] @ rng.normal(size=150) + rng.normal(size=400)
    constraint = fo.constraints.RandomSystem(1500, p=2, n_groups=60, cap=2, seed=0)
    paper, full = (fo.select(X, y, k=110, constraint=constraint, until=until) for until in ("paper", "full"))
    assert full.score >= paper.score
    assert len(full.indices) == 110 or not constraint.extensions(full.indices, np.arange(1500)).any()


@pytest.mark.parametrize("until", ["paper", "full"])
def test_no_budget_misleads_the_greedy(until: str) -> None:
    """Whatever features cost, the selection explains at least eight tenths of what the best affordable set explains."""
    n = 13
    for seed in (*range(10), 32, 37, 44, 59, 64):  # in the last ones the greedy by gain alone, or by chance, reaches .32 to .74
        rng = np.random.default_rng((seed, 3))
        X = rng.normal(size=(40, n))
        y = X @ (rng.normal(size=n) * np.exp(rng.normal(size=n))) + rng.normal(size=40)
        budget = fo.constraints.Knapsack(n, np.exp(1.2 * rng.normal(size=n)), 3.0)
        allowed = lambda T: len(T) <= 5 and budget.independent(np.array(sorted(T), dtype=np.int64))  # noqa: B023, E731
        optimum, _ = oracles.brute_force_optimum(X, y, None, allowed, objective="linear")
        assert fo.select(X, y, k=5, constraint=budget, seed=seed, until=until).score >= 0.8 * optimum


@pytest.mark.parametrize("options", [{}, {"ridge": 0.3}, {"objective": "logistic"}])
def test_auto_is_never_below_a_single_tau(options: dict[str, Any]) -> None:
    """The polish of every run is among the sets that are compared."""
    for seed in range(12):
        X, y = correlated(seed, 60, 120, 0.9)
        if options.get("objective") == "logistic":
            y = y > np.median(y)
        request = {"k": 12, "seed": seed, **options}
        single = max(fo.select(X, y, tau=tau, **request).score for tau in TAUS)
        assert fo.select(X, y, tau="auto", **request).score >= single - 1e-12


@pytest.mark.parametrize("options", [{}, {"ridge": 0.5}, {"standardize": False}, {"objective": "logistic", "ridge": 3.0}])
def test_the_polish_is_never_worse_by_the_score_that_is_shown(options: dict[str, Any]) -> None:
    """R^2 and mean log-likelihood do not fall, whatever the ridge takes from f."""
    for seed, tau in itertools.product(range(12), (0.5, "auto")):
        X, y = correlated(seed, 60, 60, 0.95)
        if options.get("objective") == "logistic":
            y = y > np.median(y)
        found = fo.select(X, y, k=10, seed=seed, tau=tau, **options)
        assert found.score >= found.score_unpolished
