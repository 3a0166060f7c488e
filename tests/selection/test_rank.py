"""The paper's ``r`` where a constraint knows only a loose bound: good enough for the threshold, repeatable and cheap."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm import constraints as fc
from fastomp_nvm.algorithms.certificate import certificate_in_words
from fastomp_nvm.algorithms.protocol import Counters, Parameters
from fastomp_nvm.algorithms.rank import DRAWS, find_rank
from tests.numerics.constraint_systems import draw_system, every_family, subsets

pytestmark = pytest.mark.numerics

N_OBS, N_FEATURES, N_TRUE = 300, 2000, 12


class Instance:
    """A sparse linear model whose features are cheap and acceptable, among many that are not."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng((seed, 5))
        self.X = rng.normal(size=(N_OBS, N_FEATURES))
        true = rng.choice(N_FEATURES, N_TRUE, replace=False)
        self.y = self.X[:, true] @ (1 + rng.random(N_TRUE)) + 0.5 * rng.normal(size=N_OBS)
        self.costs = rng.uniform(1, 3, N_FEATURES)
        self.costs[true] = 1.5
        objections = np.full(N_FEATURES, 0.02)
        objections[true] = 0.005
        self.judgements = rng.random((1000, N_FEATURES)) >= objections

    def constraint(self, family: str) -> fc.Constraint:
        if family == "fairness":
            return fc.Fairness(N_FEATURES, self.judgements, 0.2)
        if family == "monotone":
            return fc.Monotone(N_FEATURES, lambda features: float(self.costs[features].sum()), 30.0)
        return fc.Oracle(N_FEATURES, lambda features: bool(self.costs[features].sum() <= 30.0))


def rank_of(constraint: fc.Constraint, usable: Any, seed: int = 0) -> tuple[int, bool, Counters]:
    counters = Counters()
    problem: Any = SimpleNamespace(constraint=constraint, counters=counters, parameters=Parameters(seed=seed), usable=usable)
    return *find_rank(problem), counters


@pytest.mark.parametrize("family", ["fairness", "monotone", "oracle"])
@pytest.mark.parametrize("tau", [0.5, "auto"])
def test_a_loose_bound_costs_no_quality(family: str, tau: Any) -> None:
    """Without k and rank FAST_OMP explains at least nine tenths of what it explains when told a good rank, polished or not."""
    for seed in range(1 if tau == "auto" else 3):
        case = Instance(seed)
        constraint = case.constraint(family)
        assert constraint.rank > N_FEATURES / 2
        for polish in ("none", "pool"):
            found = fo.select(case.X, case.y, constraint=constraint, seed=seed, tau=tau, polish=polish)
            told = fo.select(case.X, case.y, constraint=constraint, seed=seed, tau=tau, polish=polish, k=16)
            assert found.feasible
            assert found.rank_estimated
            assert told.score > 0.6
            assert found.score >= 0.9 * told.score


@pytest.mark.parametrize("algorithm", ["fast", "fast_omp"])
def test_the_estimate_is_repeatable_and_reads_no_data(algorithm: str) -> None:
    """Request, seed and constraint give the rank, alone or beside others; the passes are those of a run with that rank given."""
    case = Instance(0)
    request = {"constraint": case.constraint("fairness"), "algorithm": algorithm, "epsilon": 0.5, "polish": "none"}
    many = fo.select_many(case.X, [{**request, "seed": seed} for seed in range(3)], case.y)
    for seed, beside in enumerate(many):
        alone = fo.select(case.X, case.y, **request, seed=seed)
        assert (alone.rank, alone.indices.tolist()) == (beside.rank, beside.indices.tolist())
        assert alone.independence_calls == beside.independence_calls
        assert alone.to_json()["rank_estimated"] is True
    before = fo.select(case.X, case.y, **{**request, "algorithm": "sds_omp"}, seed=0)
    assert before.rank is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"fastomp_nvm.algorithms.{algorithm}.find_rank", lambda problem: (many[0].rank, True))
        told = fo.select(case.X, case.y, **request, seed=0)
    assert (told.indices.tolist(), told.full_passes) == (many[0].indices.tolist(), many[0].full_passes)
    assert told.independence_calls < many[0].independence_calls


@every_family
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_estimate_is_the_size_of_a_feasible_set(family, data):
    """It never exceeds the largest feasible set, hence no bound, and where it is not called an estimate it is that set's size."""
    n, system = draw_system(data, family)
    excluded = data.draw(st.sets(st.integers(0, max(n - 1, 0))), label="excluded")
    usable = np.array(sorted(set(range(n)) - excluded), dtype=np.int64)
    rank, estimated, counters = rank_of(system.constraint, usable, data.draw(st.integers(0, 2**64 - 1), label="seed"))
    if not system.constraint.rank_is_bound:
        assert (rank, estimated) == (system.constraint.rank, False)
        assert counters == Counters()
        return
    largest = max(len(T) for T in subsets(n) if not T & excluded and system.defined(T))
    assert rank <= largest <= system.constraint.rank
    assert estimated or rank == largest


def test_families_say_whether_their_rank_is_a_loose_bound() -> None:
    """Fairness, oracles and monotone functions do, and intersections of several families; a matroid or a knapsack does not."""
    n = 6
    fair = fc.Fairness(n, np.ones((3, n), dtype=bool), 0.5)
    loose = [fair, fc.Oracle(n, lambda features: True), fc.Monotone(n, lambda features: float(len(features)), 3.0)]
    exact = [fc.Cardinality(n, 3), fc.Partition(n, [0] * n, [2]), fc.Knapsack(n, np.ones(n), 3.0)]
    assert [constraint.rank_is_bound for constraint in [*loose, *exact]] == [True] * 3 + [False] * 3
    assert not any(fc.Intersection([exact[0], constraint]).rank_is_bound for constraint in exact)
    assert fc.Intersection(exact).rank_is_bound
    assert all(fc.Intersection([*exact, constraint]).rank_is_bound for constraint in loose)


def test_a_loose_smallest_rank_of_two_families_is_estimated() -> None:
    """The smallest rank of the parts may be far above that of the intersection; a known p turns draws into a bound again."""
    n = 400
    cheap_alone = fc.Knapsack(n, np.where(np.arange(n) < 200, 0.01, 1.0), 10.0)
    dear_only = fc.Partition(n, np.where(np.arange(n) < 200, 0, 1), [1, 200])
    both = fc.Intersection([cheap_alone, dear_only])
    rank, estimated, _ = rank_of(both, np.arange(n))
    assert both.rank > 200
    assert (rank, estimated) == (10, True)
    matroid = fc.Oracle(n, lambda features: len(features) <= 9, p=1)
    assert rank_of(matroid, np.arange(n))[:2] == (9, False)
    assert rank_of(fc.Oracle(n, lambda features: len(features) <= 9), np.arange(n))[:2] == (9, True)


def test_a_limit_below_the_estimate_wins() -> None:
    """A rank or k that a draw reaches is the rank and no estimate."""
    case = Instance(1)
    estimate = fo.select(case.X, case.y, constraint=case.constraint("oracle")).rank
    limited = fc.Oracle(N_FEATURES, lambda features: bool(case.costs[features].sum() <= 30.0), rank=estimate - 3)
    for request in ({"constraint": limited}, {"constraint": case.constraint("oracle"), "k": estimate - 3}):
        found = fo.select(case.X, case.y, **request)
        assert (found.rank, found.rank_estimated) == (estimate - 3, False)


def test_the_function_is_asked_about_few_of_many_features() -> None:
    """Of 100,000 features the draws look at a part; a function that allows everything is asked hardly at all."""
    n = 100_000
    costs = np.random.default_rng(0).uniform(1, 3, n)
    asked = []

    def affordable(features: Any) -> bool:
        asked.append(len(features))
        return bool(costs[features].sum() <= 60.0)

    rank, estimated, counters = rank_of(fc.Oracle(n, affordable), np.arange(n))
    assert estimated
    assert 30 <= rank <= 60
    assert len(asked) < n / 2
    assert len(asked) <= counters.independence_calls

    asked.clear()
    everything = fc.Oracle(n, lambda features: asked.append(len(features)) is None)
    assert rank_of(everything, np.arange(n))[:2] == (n, False)
    assert len(asked) < 200 * DRAWS


def test_theorem_1_is_said_to_rest_on_an_estimated_rank() -> None:
    """The words of a certificate name the condition, and only where the rank is an estimate."""
    case = Instance(0)
    found = fo.select(case.X, case.y, constraint=case.constraint("fairness"), certificate=True)
    assert f"and no feasible set has more than {found.rank} features" in certificate_in_words(found.certificate, found.rank)
    assert "no feasible set has more than" in certificate_in_words(found.certificate)  # the bound on f
    assert "features" not in certificate_in_words(found.certificate).split("Theorem 1")[1]
