"""The certificate never falls below the optimum, costs one pass, and says what it rests on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.algorithms.certificate import certificate_in_words, theorem1_factor
from fastomp_nvm.constraints import Cardinality, Constraint, Graphic, Intersection, Knapsack, Laminar, Partition
from tests import oracles

pytestmark = pytest.mark.numerics

N_FEATURES = 9


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all features be too many for bounds from all of them."""
    monkeypatch.setattr("fastomp_nvm.algorithms.certificate.MOST_COLUMNS", 0)


def instance(seed: int, objective: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a small problem, correlated in every second one."""
    rng = np.random.default_rng((seed, 11))
    X = rng.normal(size=(30, N_FEATURES))
    if seed % 2:
        X += rng.normal(size=(30, 1))
    y = X @ rng.normal(size=N_FEATURES) + rng.normal(size=30)
    return X, (y > np.median(y)).astype(float) if objective == "logistic" else y


def systems(seed: int) -> dict[str, Constraint]:
    """Return constraints: matroids and others."""
    rng = np.random.default_rng((seed, 12))
    labels = rng.integers(-1, 3, N_FEATURES)
    edges = rng.integers(0, 5, (N_FEATURES, 2))
    return {
        "cardinality": Cardinality(N_FEATURES, 3),
        "partition": Partition(N_FEATURES, labels, [1, 2, 1]),
        "laminar": Laminar(N_FEATURES, [np.arange(3), np.arange(6)], [1, 2]),
        "graphic": Graphic(N_FEATURES, edges),
        "truncated": Intersection([Cardinality(N_FEATURES, 3), Partition(N_FEATURES, labels, [1, 2, 1])]),
        "knapsack": Knapsack(N_FEATURES, rng.uniform(0.2, 2, N_FEATURES), 2.5),
        "two": Intersection([Partition(N_FEATURES, labels, [1, 2, 1]), Graphic(N_FEATURES, edges)]),
    }


#: Families whose instances here are so tight that two outer iterations fill them.
ALWAYS_MAXIMAL = ("cardinality", "truncated", "knapsack")


def is_maximal(constraint: Constraint, features: np.ndarray) -> bool:
    """Tell whether nothing extends ``features``, by the definition."""
    others = set(range(N_FEATURES)) - set(features.tolist())
    return not any(constraint.independent(np.array([*features.tolist(), other])) for other in others)


def asked(constraint: Constraint) -> Callable[[frozenset[int]], bool]:
    return lambda features: constraint.independent(np.array(sorted(features), dtype=np.int64))


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("family", list(systems(0)))
@pytest.mark.parametrize("ridge", [0.0, 0.2])
def test_linear_bound_holds_against_brute_force(family: str, ridge: float) -> None:
    """With the true smallest eigenvalue, and with the ridge alone, no feasible set passes the bound, S maximal or not."""
    maximal = set()
    for seed in range(4):
        X, y = instance(seed, "linear")
        constraint = systems(seed)[family]
        model: dict[str, Any] = {"objective": "linear", "ridge": ridge}
        optimum, _ = oracles.brute_force_optimum(X, y, None, asked(constraint), **model)
        smallest = oracles.rsc_rsm(X, N_FEATURES)[0]
        for until in ("paper", "full"):
            # Two outer iterations that want nearly everything of the threshold stop before the set is maximal.
            request = {"constraint": constraint, "epsilon": 0.6, "tau": 1.0, "until": until, "polish": "none", "certificate": True}
            found = fo.select(X, y, lambda_min=smallest, seed=seed, **request, **model)
            maximal.add(is_maximal(constraint, found.indices))
            wanted = oracles.certificate_bound(X, y, None, asked(constraint), found.indices.tolist(), **model)
            certificate = found.certificate
            assert certificate.value == pytest.approx(oracles.Model(X, y, **model).value(found.indices), abs=1e-10)
            assert certificate.unconditional
            assert certificate.upper_bound >= optimum - 1e-10
            assert certificate.upper_bound >= wanted.bound - 1e-10  # the oracle minimises over the supports that can occur
            assert certificate.ratio == pytest.approx(certificate.value / certificate.upper_bound)
            if constraint.p == 1:
                assert certificate.score_sum == pytest.approx(wanted.score_sum, abs=1e-12)
            else:
                assert certificate.score_sum >= wanted.score_sum - 1e-12
            if ridge:
                alone = fo.select(X, y, seed=seed, **request, **model).certificate
                assert alone.unconditional
                assert alone.curvature == ridge
                assert alone.upper_bound >= certificate.upper_bound >= optimum - 1e-10
    assert maximal == ({True} if family in ALWAYS_MAXIMAL else {True, False})


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("family", ["cardinality", "partition", "knapsack"])
@pytest.mark.parametrize("ridge", [2.0, 0.01])
def test_logistic_bound_is_unconditional_with_a_ridge(family: str, ridge: float) -> None:
    """The ridge alone bounds the penalised likelihood of every feasible set; so does the likelihood of a perfect fit."""
    informative, maximal = 0, set()
    for seed in range(3):
        X, y = instance(seed, "logistic")
        constraint = systems(seed)[family]
        model: dict[str, Any] = {"objective": "logistic", "ridge": ridge}
        optimum, _ = oracles.brute_force_optimum(X, y, None, asked(constraint), **model)
        found = fo.select(X, y, constraint=constraint, epsilon=0.6, tau=1.0, seed=seed, polish="none", certificate=True, **model)
        wanted = oracles.certificate_bound(X, y, None, asked(constraint), found.indices.tolist(), **model)
        perfect = -len(y) * found.null_score
        certificate = found.certificate
        assert certificate.unconditional
        assert certificate.condition is None
        assert optimum - 1e-8 <= certificate.upper_bound
        if constraint.p == 1:
            assert certificate.upper_bound == pytest.approx(min(wanted.bound, perfect), rel=1e-6)
        informative += certificate.upper_bound < perfect
        maximal.add(is_maximal(constraint, found.indices))
    assert informative == (3 if ridge > 1 else 0)
    assert maximal == ({True} if family in ALWAYS_MAXIMAL else {True, False})


@pytest.mark.usefixtures("many")
def test_a_poisson_bound_stops_at_the_perfect_model() -> None:
    """No model of counts is more likely than that with every count as its own mean, and the bound knows it."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 6))
    y = rng.poisson(np.exp(1.0 + X[:, 0])).astype(float)
    certificate = fo.select(X, y, k=2, objective="poisson", certificate=True).certificate
    mean = float(y.mean())
    perfect = sum(count * (math.log(count / mean) if count else 0.0) - count + mean for count in y)  # half the null deviance
    assert certificate.upper_bound == pytest.approx(perfect)
    assert certificate.ratio > 0.5


def test_a_maximal_selection_does_not_certify_itself() -> None:
    """A bad maximal set has a large G: what fits beside it is ignored."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    y = X[:, 5] + 0.1 * rng.normal(size=60)
    # A threshold near zero takes any feature, and one is all that fits.
    found = fo.select(X, y, k=1, tau=1e-9, until="full", polish="none", seed=2, certificate=True)
    assert len(found.indices) == 1
    assert found.indices[0] != 5
    assert found.certificate.score_sum > 0.5
    assert found.certificate.ratio < 0.5


@pytest.mark.parametrize(("objective", "ridge"), [("linear", 0.3), ("logistic", 1.0)])
def test_features_of_several_columns_keep_the_bound(objective: str, ridge: float) -> None:
    """The ridge acts on whitened coordinates: the bound holds for every pair of one-hot and other wide features."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 3, 80)
    X = np.column_stack([np.eye(3)[codes], rng.normal(size=(80, 5))])
    y = codes + X @ rng.normal(size=8) + rng.normal(size=80)
    y = (y > np.median(y)).astype(float) if objective == "logistic" else y
    store = fo.create_store("dram:certified", X, dtype="float64", groups={"town": [0, 1, 2], "pair": [3, 4]}, replace=True)
    common: dict[str, Any] = {"objective": objective, "ridge": ridge, "certificate": True}
    values = []
    for pair in itertools.combinations(range(5), 2):
        only = Partition(5, np.isin(np.arange(5), pair).astype(np.int64), [0, 2])
        forced = fo.select(store, y, constraint=only, until="full", **common)
        assert set(forced.indices.tolist()) == set(pair)
        values.append(forced.certificate.value)
    for seed in range(4):
        found = fo.select(store, y, k=2, tau=1e-6, epsilon=0.9, polish="none", seed=seed, **common)
        assert found.certificate.upper_bound >= max(values) - 1e-10


@pytest.mark.usefixtures("many")
def test_without_ridge_the_bound_names_its_condition() -> None:
    """A linear bound without a given eigenvalue is conditional and says on what."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(400, 300))
    y = X[:, :10].sum(axis=1) + rng.normal(size=400)
    found = fo.select(X, y, k=8, certificate=True).certificate
    assert not found.unconditional
    assert f"lambda_min is at least {found.curvature:.4g} on any 16 features" == found.condition
    assert found.upper_bound == pytest.approx(found.value + found.score_sum / found.curvature)


@pytest.mark.parametrize("family", list(systems(0)))
@pytest.mark.parametrize(("objective", "ridge"), [("linear", 0.0), ("linear", 0.2), ("logistic", 0.5)])
def test_few_features_give_a_bound_that_holds(family: str, objective: str, ridge: float) -> None:
    """With fewer columns than observations the bound needs no assumption, holds against brute force, and is never looser."""
    for seed in range(4):
        X, y = instance(seed, objective)
        constraint = systems(seed)[family]
        model: dict[str, Any] = {"objective": objective, "ridge": ridge}
        optimum, _ = oracles.brute_force_optimum(X, y, None, asked(constraint), **model)
        for tau in (1e-6, 0.9):
            request = {"constraint": constraint, "tau": tau, "epsilon": 0.6, "seed": seed, "polish": "none", "certificate": True}
            certificate = fo.select(X, y, **request, **model).certificate
            assert certificate.unconditional
            assert certificate.upper_bound >= optimum - 1e-9
            together = oracles.Model(X, y, **model).value(np.arange(N_FEATURES))
            assert certificate.upper_bound <= together + 1e-9
            assert f"because {certificate.reason}" in certificate_in_words(certificate)


def test_a_good_answer_is_certified_by_the_smallest_eigenvalue_of_all_columns() -> None:
    """Where few of many features explain all, lambda_min of all columns proves more than f of all, which fits the noise too."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(1000, 150))
    y = X[:, :3].sum(axis=1) + rng.normal(size=1000)
    certificate = fo.select(X, y, k=3, certificate=True).certificate
    assert "lambda_min of all 150 features" in certificate.reason
    assert certificate.upper_bound == pytest.approx(certificate.value + certificate.score_sum / certificate.curvature)
    assert certificate.ratio > 0.9


def test_the_certificate_costs_one_pass_and_changes_nothing_else() -> None:
    """Same selection, one more sweep, one more gradient round; the same bits in company."""
    rng = np.random.default_rng(6)
    X = rng.normal(size=(100, 200)).astype(np.float32)
    y = X[:, :5].sum(axis=1) + rng.normal(size=100)
    for request in ({"k": 7}, {"k": 7, "tau": "auto"}, {"k": 4, "algorithm": "sds_omp"}):
        plain = fo.select(X, y, **request)
        found = fo.select(X, y, certificate=True, **request)
        assert found.indices.tolist() == plain.indices.tolist()
        assert found.sweeps == plain.sweeps + 1
        assert found.bytes_read == plain.bytes_read + X.nbytes
        assert found.gradient_rounds == plain.gradient_rounds + 1
        in_company = fo.select_many(X, [{"k": 3}, {**request, "certificate": True}], y)[1]
        assert in_company.certificate == found.certificate
        assert plain.certificate is None


def test_theorem_1_factor() -> None:
    """As the theorem prints it; silent where it does not apply."""
    cardinality, partition = Cardinality(9, 3), Partition(9, np.zeros(9, dtype=np.int64), [2])
    assert theorem1_factor(cardinality, 0.1, 0.5) == oracles.theorem1_bound(0.5, 1.0, 0.1, 1, cardinality=True)
    assert theorem1_factor(partition, 0.1, 0.5) == oracles.theorem1_bound(0.5, 1.0, 0.1, 1, cardinality=False)
    assert theorem1_factor(fo.constraints.Oracle(9, lambda features: True), 0.1, 0.5) is None
    X, y = instance(0, "linear")
    asked_for = {"k": 3, "certificate": True}
    assert fo.select(X, y, tau=1, **asked_for).certificate.theorem1_factor == theorem1_factor(cardinality, 0.1, 1)
    assert fo.select(X, y, skip_weak=True, **asked_for).certificate.theorem1_factor is None
    assert fo.select(X, y, algorithm="sds_omp", **asked_for).certificate.theorem1_factor is None
