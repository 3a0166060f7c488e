r"""Theorem 2: rounds and calls grow as stated, with the constants written out.

With :math:`r` the rank, the outer loop makes at most :math:`\lceil 1/\varepsilon \rceil` iterations. In each, ``|X|`` falls by the
factor :math:`1 - \varepsilon` per inner iteration, of which there are at most :math:`\ln n / \varepsilon + 2`. With the round that
sets the threshold this makes :math:`(1/\varepsilon + 1)(\ln n / \varepsilon + 3)` rounds, which for :math:`\varepsilon \le 0.3` and
:math:`n \ge 100` is less than :math:`2 \varepsilon^{-2} \ln n`. So with C = 2, while real runs are held to C = 1:

* gradient rounds: :math:`\le C \varepsilon^{-2} \ln n`,
* gradient calls: :math:`\le C \varepsilon^{-2} r \ln n`,
* independence rounds, in expectation: :math:`\le C \varepsilon^{-2} \sqrt r \ln n`,
* independence calls, in expectation: :math:`\le C \varepsilon^{-2} n r \ln n`.

The expectations are compared as means over seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.constraints import Constraint, RandomSystem
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.constraints.partition import Partition

pytestmark = pytest.mark.numerics

C = 1.0
SEEDS = 3


def systems(n: int, k: int) -> dict[str, Constraint]:
    """Return constraints of rank about k over n features."""
    return {
        "cardinality": Cardinality(n, k),
        "partition": Partition(n, np.arange(n) % k, [1] * k),
        "random 2-system": RandomSystem(n, p=2, n_groups=k, cap=1, seed=1),
    }


@pytest.mark.parametrize("n", [100, 1000, 10_000, 100_000])
@pytest.mark.parametrize("family", ["cardinality", "partition", "random 2-system"])
def test_costs_stay_within_the_stated_bounds(n, family) -> None:
    """Counters of real runs, at thresholds low and high and at two epsilons."""
    rng = np.random.default_rng(n)
    X = rng.standard_normal((40, n)).astype(np.float32)
    y = X[:, :10] @ rng.normal(size=10) + rng.normal(size=40)
    limit = systems(n, 10)[family]
    settings = [(epsilon, tau) for epsilon in (0.1, 0.3) for tau in (0.05, 0.5, 0.95)]
    requests = [
        {"constraint": limit, "epsilon": epsilon, "tau": tau, "seed": seed, "polish": "none", "until": "paper"}
        for epsilon, tau in settings
        for seed in range(SEEDS)
    ]
    answers = fo.select_many(X, requests, y)
    for place, (epsilon, tau) in enumerate(settings):
        runs = answers[SEEDS * place : SEEDS * (place + 1)]
        rounds, r = C * math.log(n) / epsilon**2, limit.rank
        where = f"n {n}, {family}, epsilon {epsilon}, tau {tau}"
        for found in runs:
            assert 1 <= found.gradient_rounds <= rounds, where
            assert found.gradient_rounds <= found.gradient_calls <= rounds * r, where
        assert np.mean([found.independence_rounds for found in runs]) <= rounds * math.sqrt(r), where
        assert np.mean([found.independence_calls for found in runs]) <= rounds * n * r, where


def test_rounds_grow_with_the_logarithm_of_n() -> None:
    """From a hundred to a hundred thousand features, rounds grow no faster than the logarithm, where r would be a thousandfold."""
    counted = []
    for n in (100, 100_000):
        rng = np.random.default_rng(n)
        X = rng.standard_normal((40, n)).astype(np.float32)
        y = X[:, :10] @ rng.normal(size=10) + rng.normal(size=40)
        answers = fo.select_many(X, [{"k": 10, "tau": 0.3, "polish": "none", "seed": seed} for seed in range(5)], y)
        counted.append(np.mean([found.gradient_rounds for found in answers]))
    assert counted[1] <= 2 * math.log(100_000) / math.log(100) * counted[0]
