"""``quality``: sets never below full greedy, and sets that no exchange improves; against refits, enumeration and plain greedy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.algorithms import exchange, splicing
from fastomp_nvm.algorithms.protocol import Algorithm, Problem
from fastomp_nvm.constraints import Bounds, Cardinality, Constraint, Fairness, Intersection, Knapsack, Partition
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import CancelledError, RequestError
from fastomp_nvm.objectives.linear import Linear
from fastomp_nvm.stores.open import create_store
from tests import oracles

pytestmark = pytest.mark.numerics

FAMILIES = ("none", "partition", "two partitions", "knapsack", "fairness")


def family(name: str, n: int, k: int, rng: np.random.Generator) -> Constraint:
    """Return a random constraint of a family, with at most ``k`` features."""
    parts: list[Constraint] = [Cardinality(n, k)]
    if "partition" in name:
        parts += [Partition(n, rng.integers(0, 4, n), [2] * 4) for _ in range(1 + (name == "two partitions"))]
    if name == "knapsack":
        parts.append(Knapsack(n, rng.uniform(0.2, 2.0, n), 4.0))
    if name == "fairness":
        parts.append(Fairness(n, rng.random((11, n)) < 0.9, 0.4))
    return Intersection(parts)


def correlated(rng: np.random.Generator, n_obs: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return columns that share a factor, and a response that all of them explain."""
    X = rng.normal(size=(n_obs, n)) + rng.choice([0, 1, 3]) * rng.normal(size=(n_obs, 1))
    X = X @ (np.eye(n) + 0.3 * rng.normal(size=(n, n)) * rng.integers(0, 2))
    return X, X @ rng.normal(size=n) + 2 * rng.normal(size=n_obs)


def oracle_of(constraint: Constraint) -> Any:
    return lambda features: constraint.independent(np.array(sorted(features), dtype=np.int64))


@pytest.mark.parametrize("name", FAMILIES)
def test_no_exchange_improves_the_best_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refits of every feasible addition and exchange find nothing better; weights, ridge, several columns and float32 included."""
    monkeypatch.setattr(exchange, "KICKS", 1)  # swap-optimality must not depend on them
    for seed in range(8):
        rng = np.random.default_rng((seed, 3))
        X, y = correlated(rng, 50, 30)
        groups, model = [[s] for s in range(30)], dict[str, Any]()
        if seed % 3 == 1:
            groups = [[0, 1, 2], [3, 4], *([s] for s in range(5, 30))]
            for group in groups[:2]:  # the ridge acts on whitened columns
                X[:, group] = np.linalg.qr(X[:, group] - X[:, group].mean(axis=0))[0] * 7
        if seed % 4 == 1:
            model["ridge"] = 0.2
        if seed % 4 == 2:
            model["weights"] = rng.integers(1, 4, 50).astype(float) if seed % 3 != 1 else None
        dtype = "float32" if seed % 2 else "float64"
        X = X.astype(dtype)
        named = {f"g{place}": group for place, group in enumerate(groups) if len(group) > 1}
        store = create_store("dram:better", X, dtype=dtype, groups=named, replace=True)
        constraint = family(name, len(groups), 7, rng)
        found = fo.select(Dataset.of_store(store), y, constraint=constraint, quality="best", objective="linear", **model)
        f = oracles.Model(X, y, groups, **model)
        assert found.guarantee == "swap-optimal"
        assert oracles.best_exchange(f, oracle_of(constraint), found.indices.tolist()) < 2e-9, seed


@pytest.mark.parametrize("name", FAMILIES)
def test_the_best_set_is_nearly_always_the_optimum(name: str) -> None:
    """Of 13 features the best set of at most 5 is found, or a set within 5 % of it."""
    ratios = []
    for seed in range(5):
        rng = np.random.default_rng((seed, 5))
        X, y = correlated(rng, 40, 13)
        constraint = family(name, 13, 5, rng)
        f = oracles.Model(X, y)
        sets = (S for size in range(1, 6) for S in itertools.combinations(range(13), size) if constraint.independent(np.array(S)))
        moves, gram = f.X.T @ f.y, f.X.T @ f.X
        optimum = max(float(moves[[*S]] @ np.linalg.solve(gram[np.ix_(S, S)], moves[[*S]])) for S in sets)
        found = fo.select(X, y, constraint=constraint, quality="best", objective="linear")
        assert found.feasible
        ratios.append(found.score / optimum)
    assert max(ratios) <= 1 + 1e-9
    assert min(ratios) >= 0.95
    assert np.count_nonzero(np.array(ratios) > 1 - 1e-9) >= 4


@pytest.mark.parametrize("name", FAMILIES)
def test_verified_is_never_below_full_greedy(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """At least the scores of SDS_OMP and SDS_MA, on designs where FAST_OMP's set is below one of them."""
    monkeypatch.setattr("fastomp_nvm.algorithms.again.PASSES", 0)  # among 90 features it is not below them
    below = 0
    for seed in range(6):
        rng = np.random.default_rng((seed, 8))
        X, y = correlated(rng, 60, 90)
        request: dict[str, Any] = {"constraint": family(name, 90, 9, rng), "objective": "linear"}
        greedy = max(fo.select(X, y, algorithm=algorithm, **request).score for algorithm in ("sds_omp", "sds_ma"))
        fast, found = (fo.select(X, y, quality=quality, **request) for quality in ("fast", "verified"))
        below += fast.score < greedy - 1e-9
        assert found.score >= max(greedy, fast.score) - 1e-12
        assert (fast.guarantee, fast.features_covered) == ("paper", None)
        assert (found.guarantee, found.features_covered) == ("greedy", 90)
        assert found.feasible
    best = fo.select(X, y, quality="best", **request)
    assert best.score >= found.score - 1e-12
    assert best.feasible
    assert below


def test_noise_is_verified_in_a_dozen_passes() -> None:
    """Where all features fit about equally well and their columns are small, drafts consider all of them and seldom lose."""
    X, y = np.random.default_rng(12).normal(size=(2, 30, 3000))
    assert fo.select(X, y[:, 0], k=20, quality="verified", objective="linear").full_passes <= 12


@pytest.mark.parametrize("name", FAMILIES)
def test_splicing_improves_on_the_best_single_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The set that splices lead to is feasible, never below that of the largest scores, and better in most problems."""
    found = list[tuple[float, bool]]()

    def watched(problem: Problem, objective: Linear, most: int) -> Algorithm:
        outcome = yield from splicing.spliced(problem, objective, most)
        value = objective.refit(problem.pool.columns(outcome.selected)).score
        found.append((value, problem.constraint.independent(outcome.selected)))
        return outcome

    monkeypatch.setattr("fastomp_nvm.algorithms.quality.spliced", watched)
    monkeypatch.setattr(exchange, "KICKS", 1)  # what follows splicing does not matter here
    better = 0
    for seed in range(6):
        rng = np.random.default_rng((seed, 11))
        X, y = correlated(rng, 60, 90)
        request: dict[str, Any] = {"constraint": family(name, 90, 9, rng), "objective": "linear"}
        oblivious = fo.select(X, y, algorithm="top_k", **request).score
        fo.select(X, y, quality="best", **request)
        assert all(feasible for _, feasible in found)
        assert min(score for score, _ in found) >= oblivious - 1e-12
        better += max(score for score, _ in found) > oblivious + 1e-6
        found.clear()
    assert better >= 4


def test_verified_logistic_is_never_below_matching_pursuit() -> None:
    """For a GLM the guarantee is full matching pursuit's."""
    for seed in range(6):
        rng = np.random.default_rng((seed, 9))
        X, y = correlated(rng, 80, 60)
        request: dict[str, Any] = {"k": 5, "objective": "logistic"}
        y = np.where(y > np.median(y), 1.0, 0.0)
        greedy = fo.select(X, y, algorithm="sds_omp", **request)
        for quality, guarantee in (("verified", "greedy"), ("best", "swap-optimal (quadratic model)")):
            found = fo.select(X, y, quality=quality, **request)
            assert found.score >= greedy.score - 1e-9
            assert found.guarantee == guarantee


def test_a_perfect_fit_is_swap_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the set explains the response, nothing can improve it, and no pass is spent on looking for a better one."""
    monkeypatch.setattr(exchange, "survey", None)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3000)), rng.normal(size=30)
    verified, best = (fo.select(X, y, k=24, quality=quality, objective="linear") for quality in ("verified", "best"))
    assert verified.score > 1 - 1e-9
    assert best.guarantee == "swap-optimal"
    assert best.full_passes <= 25


def test_lower_bounds_survive_exchanges() -> None:
    """A set that meets the lower bounds is never exchanged for one that does not."""
    for seed in range(4):
        rng = np.random.default_rng((seed, 4))
        X, y = correlated(rng, 40, 24)
        labels = np.repeat(np.arange(3), 8)
        found = fo.select(X, y, constraint=Bounds(24, labels, [2, 2, 2], [4, 4, 4], 8), quality="best", objective="linear")
        assert found.feasible
        assert np.bincount(labels[found.indices], minlength=3).min() >= 2


def test_full_sets_stay_maximal() -> None:
    """With ``until="full"`` nothing extends the best set, though a copy of a selected feature would gain nothing."""
    for seed in (1, 10):
        rng = np.random.default_rng(seed)
        X, y = correlated(rng, 40, 10)
        X = np.hstack((X, X[:, [0] * 4]))
        constraint = Knapsack(14, np.concatenate((rng.uniform(0.5, 2.0, 10), [0.3] * 4)), 4.0)
        found = fo.select(X, y, constraint=constraint, quality="best", until="full", objective="linear")
        assert not constraint.extensions(found.indices, np.arange(14)).any()
        assert found.feasible


def test_a_durable_best_run_resumes(tmp_path: Any) -> None:
    """A run stopped in the middle of its exchanges goes on to the same answer, with the same counters, over the tier too."""
    rng = np.random.default_rng(2)
    X, y = correlated(rng, 60, 300)
    store = str(tmp_path / "s")
    create_store(store, X.astype(np.float32), {"y": y}).close()
    request: dict[str, Any] = {"k": 8, "quality": "best", "objective": "linear"}
    expected = fo.select(store, tier="exact", **request)
    assert fo.select(store, tier="int8", **request).indices.tolist() == expected.indices.tolist()
    for stop in (2, 5, 9):
        seen = iter(range(10_000))
        with pytest.raises(CancelledError):
            fo.select(store, tier="exact", run=f"best-{stop}", cancelled=lambda seen=seen, stop=stop: next(seen) >= stop, **request)
        resumed = fo.resume(f"best-{stop}")
        assert resumed.indices.tolist() == expected.indices.tolist()
        assert (resumed.vectors, resumed.guarantee) == (expected.vectors, "swap-optimal")


def test_a_certificate_that_is_reached_names_the_optimum() -> None:
    """Where the unconditional bound of the certificate is f of the selection, the guarantee is that it is optimal."""
    rng = np.random.default_rng(3)
    X = np.linalg.qr(rng.normal(size=(50, 6)) - 0.0)[0]
    X -= X.mean(axis=0)
    found = fo.select(X, X @ np.array([3.0, 2.0, 1.0, 0.0, 0.0, 0.0]), k=3, certificate=True, objective="linear")
    assert found.score == pytest.approx(1.0)
    assert found.guarantee == "optimal"


@pytest.mark.parametrize("quality", ["verified", "best"])
def test_nothing_feasible_is_an_empty_set(quality: Any) -> None:
    """Where no feature fits, nothing is selected; where one fits, it is the best one."""
    X, y = correlated(np.random.default_rng(1), 30, 9)
    for budget, size in ((0.5, 0), (1.0, 1)):
        found = fo.select(X, y, constraint=Knapsack(9, np.ones(9), budget), quality=quality, objective="linear")
        assert len(found.indices) == size
    assert found.score == pytest.approx(max(oracles.Model(X, y).value([s]) for s in range(9)))


def test_quality_belongs_to_fast_omp() -> None:
    """Another algorithm with a quality, and an unknown quality, are refused in one sentence."""
    with pytest.raises(RequestError, match="improves on fast_omp, not on top_k"):
        fo.SelectionRequest(k=3, algorithm="top_k", quality="best")
    with pytest.raises(RequestError, match="quality is 'great': expected fast or verified or best"):
        fo.SelectionRequest(k=3, quality="great")  # type: ignore[arg-type]
