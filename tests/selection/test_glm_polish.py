"""The polish of a GLM in one compiled call, where only the number of features is constrained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm import native
from fastomp_nvm.objectives import glm_gains, newton
from fastomp_nvm.objectives.glm_gains import GLMGains
from tests.selection.test_walks import outcome, problem

pytestmark = [pytest.mark.numerics, pytest.mark.skipif(not native.extension, reason="the compiled fits are not built")]


@pytest.fixture
def grown(monkeypatch) -> list[tuple[int, int]]:
    """Return a list that records, per compiled call, the features wanted and the features added."""
    calls: list[tuple[int, int]] = []
    grow = GLMGains._grow_compiled

    def watched(self: GLMGains, open_: np.ndarray, count: int, least: float) -> list[tuple[int, float]]:
        found = grow(self, open_, count, least)
        calls.append((count, len(found)))
        return found

    monkeypatch.setattr(GLMGains, "_grow_compiled", watched)
    return calls


def one_by_one(*arguments: Any) -> list[tuple[int, float]]:
    """Replace the compiled call by one that adds nothing."""
    return []


@pytest.mark.parametrize("objective", ["logistic", "poisson"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(
    seed=st.integers(0, 2**32 - 1),
    n_features=st.integers(6, 90),
    k=st.integers(1, 50),
    until=st.sampled_from(["paper", "full"]),
    ridge=st.sampled_from([1e-4, 0.05, 3.0]),
    copies=st.integers(1, 3),
    far=st.booleans(),
    weighted=st.booleans(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
def test_at_once_is_step_by_step(objective, dtype, seed, n_features, k, until, ridge, copies, far, weighted) -> None:
    """The same features and bits: dependent columns, large means, weights of zero, nearly separated labels, and any k."""
    X, y = problem(objective, 40, n_features, seed % 1000)
    X = np.tile(X, (1, copies))
    if far:
        X[:, ::3] += 1e4
    weights = np.random.default_rng(seed).integers(0, 3, size=40).astype(np.float64) if weighted else None
    if weights is not None:
        weights[:2] = 1.0  # both labels
    with fo.create_store("dram:glm-polish", X, y, dtype=dtype, tier="none", replace=True) as store:
        request: dict[str, Any] = {"k": k, "objective": objective, "seed": seed, "ridge": ridge, "until": until, "weights": weights}
        at_once = outcome(fo.select(store, **request))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GLMGains, "_grow_compiled", one_by_one)
            assert outcome(fo.select(store, **request)) == at_once


def test_all_of_it_is_done_at_once(grown) -> None:
    """Under a cardinality; under a partition, and without an intercept, features are added step by step."""
    X, y = problem("logistic", 200, 60, 1)
    request: dict[str, Any] = {"k": 12, "objective": "logistic", "ridge": 0.05}
    fo.select(X, y, **request)
    assert grown == [(12, 12)]
    grown.clear()
    fo.select(X, y, constraint=fo.constraints.Partition(60, np.arange(60) % 5, [3] * 5), **request)
    assert all(count < 12 for count, _ in grown)
    fo.select(X, y, standardize=False, **request)
    assert not any(added for _, added in grown)


def test_candidates_outside_the_quadratic_model_are_added_in_python(grown, monkeypatch) -> None:
    """Of eight columns repeated five times only eight gain anything; a maximal set takes the rest, as without compiled code."""
    X, y = problem("logistic", 120, 8, 2)
    X = np.tile(X, (1, 5))
    request: dict[str, Any] = {"k": 12, "objective": "logistic", "ridge": 1e-8, "until": "full"}
    found = outcome(fo.select(X, y, **request))
    ((count, added),) = grown
    assert count == len(found[0]) == 12
    assert 0 < added < 12
    monkeypatch.setattr(GLMGains, "_grow_compiled", one_by_one)
    assert outcome(fo.select(X, y, **request)) == found


@pytest.mark.parametrize("objective", ["logistic", "poisson"])
@pytest.mark.parametrize("gather_bytes", [20_000, 4096])
def test_columns_that_are_read_again_polish_to_the_same_bits(tmp_path: Path, grown, objective, gather_bytes) -> None:
    """Where memory does not hold the columns, features are added step by step, with the same answer."""
    X, y = problem(objective, 90, 150, 3)
    request: dict[str, Any] = {"k": 20, "objective": objective, "ridge": 0.05}
    with fo.create_store(str(tmp_path / "store"), X, y, tier="none") as store:
        held = fo.select(store, **request)
        assert grown == [(20, 20)]
        read = fo.select(store, gather_bytes=gather_bytes, **request)
        assert grown[1:] == [(20, 0)]
    assert outcome(read)[:3] == outcome(held)[:3]


def test_large_fits_are_step_by_step(grown, monkeypatch) -> None:
    """Where the columns of the model would be large, with the same answer."""
    X, y = problem("poisson", 80, 60, 5)
    request: dict[str, Any] = {"k": 20, "objective": "poisson", "ridge": 0.05}
    quick = outcome(fo.select(X, y, **request))
    monkeypatch.setattr(glm_gains, "MOST_ENTRIES", 80 * 15)
    monkeypatch.setattr(glm_gains, "_fitting", lambda n_obs: glm_gains.MOST_COLUMNS)
    assert outcome(fo.select(X, y, **request)) == quick
    assert grown == [(20, 20), (20, 0)]


def test_the_factor_handed_over_is_that_of_the_curvature(monkeypatch) -> None:
    """A fit starts with the factor of the curvature where the last one ended, of all its columns: products in single precision."""
    X, y = problem("logistic", 300, 40, 6)
    errors: list[float] = []
    grow = newton.maximise

    def watched(family: Any, design: np.ndarray, start: Any, left: float = newton.PASSING) -> Any:
        if start.factor is not None and len(start.factor) == len(design) > 2:
            factor, variance = np.triu(start.factor), family.moments(start.eta)[1]
            curvature = (design * (family.weights * variance)) @ design.T + np.diag(family.penalty(len(design)))
            errors.append(float(np.abs(factor.T @ factor - curvature).max() / np.abs(curvature).max()))
        return grow(family, design, start, left)

    monkeypatch.setattr("fastomp_nvm.objectives.glm.maximise", watched)
    monkeypatch.setattr(GLMGains, "_grow_compiled", one_by_one)
    fo.select(X, y, k=15, objective="logistic", ridge=0.05)
    assert len(errors) > 1
    assert max(errors) < 1e-5
