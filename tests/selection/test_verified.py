"""Verified greedy returns plain greedy's set, in plain greedy's order, whatever the data, the constraint and the medium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.algorithms import sds_ma, sds_omp, verified
from fastomp_nvm.constraints import Cardinality, Constraint, Intersection, Knapsack, Partition
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import CancelledError
from fastomp_nvm.stores.open import create_store

pytestmark = pytest.mark.numerics


@pytest.fixture(autouse=True)
def verifying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the verified way however small the data, with so few features in drafts that many of their steps are lost."""
    for module in (sds_omp, sds_ma):
        monkeypatch.setattr(module, "pays", lambda problem: True)
    monkeypatch.setattr(verified, "FIRST_NEAR", 12)
    monkeypatch.setattr(verified, "SMALL", 0)
    monkeypatch.setattr(verified, "NEAR", 4)
    monkeypatch.setattr(verified, "FIRST", 4)


class Instance:
    """A random problem with ties: duplicates, opposite columns, near-duplicates at 1e-8 and orthogonal columns of equal score."""

    def __init__(self, seed: int, objective: str = "linear") -> None:
        rng = np.random.default_rng((seed, 18))
        n_obs, n_features = int(rng.integers(20, 60)), int(rng.integers(15, 60))
        widths = rng.integers(1, 4, n_features) if seed % 4 == 0 else np.ones(n_features, dtype=int)
        edges = np.concatenate(([0], np.cumsum(widths)))
        X = rng.normal(size=(n_obs, int(edges[-1])))
        if seed % 2:
            X += rng.normal(size=(n_obs, 1))
        singles = edges[:-1][widths == 1]
        for place, kind in enumerate(rng.permutation(4)):  # of one column each: the group of several has no equal
            if len(singles) >= 2 * place + 2:
                twin, original = singles[[-1 - place, place]] if kind % 2 else singles[[place, -1 - place]]
                X[:, twin] = X[:, original] * (-1.0 if kind == 1 else 1.0) + (1e-8 * rng.normal(size=n_obs) if kind == 2 else 0.0)
        signal = X @ (rng.normal(size=X.shape[1]) * (rng.uniform(size=X.shape[1]) < 0.3))
        y = signal + 0.3 * rng.normal(size=n_obs) * (signal.std() + 0.1)
        if seed % 7 == 3:  # columns with exactly equal scores at every step: their order is that of their indices
            X, y, n_features = np.eye(n_obs)[:, : n_obs - 5].copy(), np.ones(n_obs), n_obs - 5
            y[: n_obs // 2] = -1.0
            widths, edges = np.ones(n_features, dtype=int), np.arange(n_features + 1)
        self.y = (
            y if objective == "linear" else (y > np.median(y)).astype(float) if objective == "logistic" else rng.poisson(1.5, n_obs)
        )
        k = int(rng.integers(4, min(n_features, 20)))
        self.constraint: Constraint = Cardinality(n_features, k)
        if seed % 3 == 1:
            labels = rng.integers(-1, 4, n_features)
            self.constraint = Intersection([self.constraint, Partition(n_features, labels, rng.integers(1, 4, 4))])
        elif seed % 3 == 2:
            self.constraint = Intersection([self.constraint, Knapsack(n_features, rng.uniform(0.2, 2.0, n_features), 0.7 * k)])
        self.request: dict[str, Any] = {"objective": objective, "constraint": self.constraint}
        if seed % 5 == 1:
            self.request["weights"] = rng.integers(0, 3, n_obs).astype(float)
        if seed % 5 == 2:
            self.request["ridge"] = 0.3
        if seed % 5 == 3 and objective == "linear":
            self.request["test_fraction"] = 0.2
        if seed % 11 == 5 and widths.max() == 1:
            self.request["standardize"] = False
        dtype = "float32" if seed % 2 else "float64"
        self.widths, self.X, self.dtype = widths, X.astype(dtype), dtype
        self.groups = {f"g{f}": list(range(edges[f], edges[f + 1])) for f in range(n_features) if widths[f] > 1}

    def dataset(self) -> Dataset:
        names = [f"c{column}" for column in range(self.X.shape[1])]
        return Dataset.of_store(
            create_store("dram:verified", self.X, names=names, dtype=self.dtype, groups=self.groups, replace=True)
        )


def both(data: Any, y: Any, **request: Any) -> Iterator[fo.Selection]:
    return (fo.select(data, y, plain=plain, **request) for plain in (True, False))


def check(plain: fo.Selection, found: fo.Selection, what: object) -> None:
    assert found.indices.tolist() == plain.indices.tolist(), what
    assert found.score == pytest.approx(plain.score, rel=1e-12)


@pytest.mark.parametrize("algorithm", ["sds_omp", "sds_ma"])
def test_verified_is_plain_on_random_instances_with_ties(algorithm: str) -> None:
    """Same features in the same order on 200 linear instances: ties, constraints, weights, ridge, several columns, raw columns."""
    fewer = 0
    for seed in range(200):
        case = Instance(seed)
        plain, found = both(case.dataset(), case.y, algorithm=algorithm, **case.request)
        check(plain, found, seed)
        fewer += found.gradient_rounds < plain.gradient_rounds
    assert fewer > 100


@pytest.mark.parametrize("objective", ["logistic", "poisson"])
def test_verified_matching_pursuit_of_a_glm_is_plain(objective: str) -> None:
    """Same features in the same order on GLMs, whose models are warm-started: the start is that of the plain run."""
    for seed in range(40):
        if seed % 7 == 3:
            continue
        case = Instance(seed, objective)
        case.request.pop("weights", None)
        plain, found = both(case.dataset(), case.y, algorithm="sds_omp", **case.request)
        check(plain, found, seed)


@pytest.fixture(scope="module")
def wide() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    X = (rng.normal(size=(150, 900)) + 0.5 * rng.normal(size=(150, 1))).astype(np.float32)
    X[:, 700:720] = X[:, 100:120]
    y = X[:, :80] @ rng.normal(size=80) + rng.normal(size=150)
    return X, y


@pytest.mark.parametrize("algorithm", ["sds_omp", "sds_ma"])
@pytest.mark.parametrize("tier", ["int8", "exact"])
def test_verified_is_plain_over_the_tier(tmp_path: Any, wide: Any, algorithm: str, tier: str) -> None:
    """A pass over the int8 tier verifies what a pass over the matrix verifies, in fewer passes than plain greedy's."""
    X, y = wide
    store = create_store(str(tmp_path / "s"), X, tier="int8")
    plain, found = both(store, y, k=25, algorithm=algorithm, tier=tier)
    check(plain, found, tier)
    assert found.gradient_rounds < plain.gradient_rounds
    check(plain, fo.select(X, y, k=25, algorithm=algorithm), "array")


@pytest.mark.parametrize("tier", ["int8", "exact"])
@pytest.mark.parametrize("algorithm", ["sds_omp", "sds_ma"])
def test_verified_resumes_in_the_middle(tmp_path: Any, wide: Any, algorithm: str, tier: str) -> None:
    """A durable run that was stopped after any pass goes on to the same answer."""
    X, y = wide
    store = str(tmp_path / "s")
    create_store(store, X, {"y": y}, tier="int8").close()
    request: dict[str, Any] = {"k": 20, "algorithm": algorithm, "target": "y", "tier": tier}
    expected = fo.select(store, plain=True, **request)
    whole = fo.select(store, run=f"{algorithm}-{tier}-whole", **request)
    check(expected, whole, "whole")
    for stop in range(1, whole.gradient_rounds):
        seen = iter(range(10_000))
        with pytest.raises(CancelledError):
            fo.select(
                store,
                run=f"{algorithm}-{tier}-stopped-{stop}",
                cancelled=lambda seen=seen, stop=stop: next(seen) >= stop,
                **request,
            )
        resumed = fo.resume(f"{algorithm}-{tier}-stopped-{stop}")
        check(expected, resumed, stop)
        assert (resumed.vectors, resumed.gradient_calls) == (whole.vectors, whole.gradient_calls)


@pytest.mark.parametrize("algorithm", ["sds_omp", "sds_ma"])
def test_verified_with_little_memory_is_plain(tmp_path: Any, wide: Any, algorithm: str) -> None:
    """A gather budget of a few columns makes drafts useless, never wrong."""
    X, y = wide
    store = create_store(str(tmp_path / "s"), X)
    plain, found = both(store, y, k=12, algorithm=algorithm, gather_bytes=4000)
    check(plain, found, "budget")


def test_hopeless_drafts_end_in_plain_greedy(wide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no drafted step ever wins, a quarter of the passes are verifications, and none is made in vain afterwards."""
    X, y = wide
    monkeypatch.setattr(verified.MatchingPursuit, "scores", lambda self: -np.arange(len(self._columns.features)) + 1e6)
    plain, found = both(X, y, k=40, algorithm="sds_omp")
    check(plain, found, "hopeless")
    assert found.gradient_rounds <= 40
    assert found.vectors <= 40 + 10 * (verified.FIRST + 4)


def test_drafts_among_all_of_a_few_features_never_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all features fit beside the draft, one pass finds the first feature and one reads them all."""
    monkeypatch.undo()
    monkeypatch.setattr(sds_omp, "pays", lambda problem: True)
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(20, 80)), rng.normal(size=20)
    plain, found = both(X, y, k=16, algorithm="sds_omp")
    check(plain, found, "few")
    assert found.gradient_rounds == 1
    assert found.full_passes == 2.0


def test_vectors_are_counted(wide: Any) -> None:
    """Plain greedy sweeps one vector per feature; verified greedy sweeps more vectors in fewer passes, and counts both."""
    X, y = wide
    plain, found = both(X, y, k=30, algorithm="sds_omp")
    assert plain.vectors == plain.gradient_rounds == 30
    assert found.vectors == found.gradient_calls > 30 > found.gradient_rounds


@pytest.mark.parametrize("design", ["independent", "autoregressive", "factors"])
@pytest.mark.parametrize("algorithm", ["sds_omp", "sds_ma"])
def test_a_hundred_features_take_a_dozen_passes(design: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With drafts of their real size, k = 100 takes at most 12 passes and 2.5 k vectors."""
    monkeypatch.undo()
    for module in (sds_omp, sds_ma):
        monkeypatch.setattr(module, "pays", lambda problem: True)
    rng = np.random.default_rng(18)
    X = rng.normal(size=(1000, 3000))
    if design == "autoregressive":
        for column in range(1, 3000):
            X[:, column] = 0.9 * X[:, column - 1] + np.sqrt(1 - 0.81) * X[:, column]
    elif design == "factors":
        X += rng.normal(size=(1000, 20)) @ rng.normal(size=(20, 3000)) / np.sqrt(20)
    signal = X[:, rng.choice(3000, 100, replace=False)] @ rng.normal(size=100)
    y = signal + 0.5 * signal.std() * rng.normal(size=1000)
    found = fo.select(X.astype(np.float32), y, k=100, algorithm=algorithm)
    assert found.vectors is not None
    assert found.gradient_rounds <= 12
    assert found.vectors <= 250


def test_the_choice_is_by_size_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data is swept once per feature; a matrix beyond the caches with many features to select is verified."""
    monkeypatch.undo()

    class Matrix:
        def __init__(self, columns: int, n_obs: int) -> None:
            self.shape, self.itemsize, self.nbytes = (columns, n_obs), 4, 4 * columns * n_obs

    class Stated:
        def __init__(self, columns: int, n_obs: int, k: int) -> None:
            self.design = type("Design", (), {"matrix": Matrix(columns, n_obs)})()
            self.constraint, self.usable = Cardinality(columns, k), range(columns)

    assert not verified.pays(Stated(500, 300, 20))
    assert not verified.pays(Stated(784, 60_000, 100))
    assert not verified.pays(Stated(20_000, 2000, 3))
    assert not verified.pays(Stated(5000, 300, 50))
    assert verified.pays(Stated(5000, 1000, 30))
    assert verified.pays(Stated(20_000, 300, 30))
    assert verified.pays(Stated(20_000, 2000, 10))
    assert verified.pays(Stated(20_000, 2000, 100))
    assert verified.pays(Stated(1_000_000, 10_000, 300))
