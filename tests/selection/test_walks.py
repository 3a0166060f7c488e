"""FAST_OMP's inner iterations run in one compiled call, where only the number of features is constrained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm import native
from fastomp_nvm.algorithms import sequence
from fastomp_nvm.objectives import glm_candidates
from fastomp_nvm.objectives.compiled import Rounds
from fastomp_nvm.objectives.glm_candidates import GLMCandidates
from fastomp_nvm.objectives.linear_candidates import FewLinearCandidates

pytestmark = [
    pytest.mark.numerics,
    pytest.mark.skipif(not native.extension, reason="the compiled rounds are not built"),
]

KINDS = {"linear": FewLinearCandidates, "logistic": GLMCandidates, "poisson": GLMCandidates}

COUNTS = ("gradient_rounds", "gradient_calls", "independence_rounds", "independence_calls", "sweeps", "full_passes", "bytes_read")


def problem(objective: str, n_obs: int, n_features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated columns and a response of the kind."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_obs, n_features)) + 0.5 * rng.normal(size=(n_obs, 1))
    signal = X[:, :5] @ rng.normal(size=min(5, n_features)) / 2.0
    if objective == "linear":
        return X, signal + rng.normal(size=n_obs)
    if objective == "logistic":
        return X, np.r_[0, 1, signal[2:] + rng.logistic(size=n_obs - 2) > 0].astype(np.int64)
    return X, rng.poisson(np.exp(np.clip(signal, -3.0, 2.0)))


def outcome(found: Any) -> tuple[Any, ...]:
    """Return the fields in which two selections must agree."""
    coef = [np.atleast_1d(each).tolist() for each in found.coef]
    return found.indices.tolist(), coef, found.score, [found.to_json()[name] for name in COUNTS]


@pytest.mark.parametrize("objective", KINDS)
@pytest.mark.parametrize("grouped", [False, True])
@given(
    seed=st.integers(0, 2**64 - 1),
    n_features=st.integers(6, 60),
    k=st.integers(1, 70),
    epsilon=st.sampled_from([0.05, 0.1, 0.3]),
    tau=st.sampled_from([0.2, 0.5, 0.9, "auto"]),
    until=st.sampled_from(["paper", "full"]),
    polish=st.sampled_from(["pool", "none"]),
    standardize=st.booleans(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
def test_at_once_is_one_by_one(objective, grouped, seed, n_features, k, **options) -> None:
    """The same features, bits and counters, whatever the draw, however few candidates, and where all of them fit."""
    X, y = problem(objective, 40, n_features, seed % 1000)
    groups = {"two": [1, 3], "three": [0, 4, 5]} if grouped else None
    with fo.create_store("dram:walks", X, y, groups=groups, tier="none", replace=True) as store:
        request: dict[str, Any] = {"k": k, "objective": objective, "seed": seed, "ridge": 0.05, **options}
        at_once = outcome(fo.select(store, **request))
        run = KINDS[objective].run
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KINDS[objective], "run", lambda self, rounds: run(self, rounds) if rounds.given else (0, 0))
            assert outcome(fo.select(store, **request)) == at_once


@pytest.mark.parametrize("objective", KINDS)
def test_a_constraint_that_says_more_is_asked(monkeypatch, objective) -> None:
    """Under a partition, and where weak members are skipped, sequences are drawn in Python; under a cardinality none is."""
    walked: list[int] = []
    run = KINDS[objective].run

    def watched(self: Any, rounds: Rounds) -> tuple[int, int]:
        total, iterations = run(self, rounds)
        if not rounds.given:
            walked.append(total)
        return total, iterations

    monkeypatch.setattr(KINDS[objective], "run", watched)
    X, y = problem(objective, 60, 50, 3)
    request: dict[str, Any] = {"k": 12, "objective": objective, "ridge": 0.05}
    fo.select(X, y, constraint=fo.constraints.Partition(50, np.arange(50) % 5, [3] * 5), **request)
    fo.select(X, y, skip_weak=True, **request)
    assert not walked
    found = fo.select(X, y, polish="none", **request)
    assert sum(walked) == len(found.indices) == 12


def test_a_long_walk_is_watched_and_ended(monkeypatch) -> None:
    """Compiled iterations return after some effort: with less effort more rounds are reported, and the answer is the same."""
    X, y = problem("logistic", 80, 60, 4)
    request: dict[str, Any] = {"k": 20, "objective": "logistic", "ridge": 0.05}
    rounds: list[int] = []
    quick = outcome(fo.select(X, y, observer=lambda progress: rounds.append(progress.selected), **request))
    few = len(rounds)
    monkeypatch.setattr(sequence, "EFFORT", 0.0)
    rounds.clear()
    assert outcome(fo.select(X, y, observer=lambda progress: rounds.append(progress.selected), **request)) == quick
    assert len(rounds) > few
    assert sorted(rounds) == rounds

    asked = iter(range(100))
    with pytest.raises(fo.CancelledError):
        fo.select(X, y, cancelled=lambda: next(asked) > 4, **request)


def test_a_large_fit_is_not_walked(monkeypatch) -> None:
    """Where the design would be large, iterations are called one by one, with the same answer."""
    X, y = problem("logistic", 80, 60, 5)
    request: dict[str, Any] = {"k": 20, "objective": "logistic", "ridge": 0.05}
    quick = outcome(fo.select(X, y, **request))
    monkeypatch.setattr(glm_candidates, "MOST_ENTRIES", 100)
    assert outcome(fo.select(X, y, **request)) == quick
