"""The rehearsal predicts passes, gathered columns and rounds of real FAST_OMP runs, from the shape of the problem alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm.analysis.synthetic import PaperDesign, sparse_design
from fastomp_nvm.planning.rehearsal import KINDS, rehearse


def within(predicted: float, real: float, factor: float) -> bool:
    """Tell whether two numbers agree up to a factor."""
    return real / factor <= predicted <= real * factor


@pytest.mark.parametrize(("tau", "k"), [(0.25, 40), (0.5, 40), (0.5, 120), (0.9, 60)])
def test_it_predicts_runs_on_the_papers_design(monkeypatch: pytest.MonkeyPatch, tau: float, k: int) -> None:
    """Passes within a factor of 1.4; columns gathered and rounds, which vary more from run to run, within 1.6 and 2."""
    monkeypatch.setattr("fastomp_nvm.algorithms.again.PASSES", 0)  # it foresees the runs and the polish
    design = PaperDesign(400, 10_000, seed=1)
    real = fo.select(design.matrix().T, design.response(), k=k, tau=tau).to_json()
    predicted = rehearse(10_000, 400, k, kind=KINDS["paper"], tau=tau)
    passes = math.floor(real["full_passes"])
    assert within(len(predicted.passes), passes, 1.4)
    assert within(predicted.gathered, (real["full_passes"] - passes) * 10_000, 1.6)
    assert within(predicted.inner_iterations, real["gradient_rounds"] - passes, 2.0)


@pytest.mark.parametrize(("tau", "k"), [(0.25, 60), (0.5, 120)])
def test_it_predicts_runs_on_sparse_data(tau: float, k: int) -> None:
    """The same for independent features of which a hundred make up the response."""
    X, y = sparse_design(500, 10_000, true=100, noise=0.3, seed=1)
    real = fo.select(X, y, k=k, tau=tau).to_json()
    predicted = rehearse(10_000, 500, k, kind=KINDS["sparse"], tau=tau)
    passes = math.floor(real["full_passes"])
    assert abs(len(predicted.passes) - passes) <= 1
    assert within(predicted.gathered, (real["full_passes"] - passes) * 10_000, 1.6)
    assert within(predicted.inner_iterations, real["gradient_rounds"] - passes, 2.0)


@settings(max_examples=25, deadline=None)
@given(
    n_features=st.integers(1, 10**10),
    n_obs=st.integers(10, 10**6),
    k=st.integers(1, 60),
    epsilon=st.sampled_from((0.05, 0.1, 0.4)),
    tau=st.sampled_from((0.1, 0.5, 1.0)),
    kind=st.sampled_from(sorted(KINDS)),
)
def test_it_keeps_what_the_algorithm_promises(n_features: int, n_obs: int, k: int, epsilon: float, tau: float, kind: str) -> None:
    """At most ceil(1 / epsilon) passes and k features; nothing negative, not finite, or gathered twice."""
    played = rehearse(n_features, n_obs, min(k, n_obs), kind=KINDS[kind], epsilon=epsilon, tau=tau)
    assert 1 <= len(played.passes) <= math.ceil(1 / epsilon)
    assert 1 <= played.selected <= min(k, n_features, n_obs)
    for each in played.passes:
        assert 0 <= each.fresh <= each.survivors * (1 + 1e-9)
        assert each.survivors <= n_features * (1 + 1e-9)
        assert each.unclear >= 0
    assert np.isfinite((played.columns_walked, played.multiply_adds)).all()
    assert played.inner_iterations <= played.selected


def test_it_is_the_same_every_time() -> None:
    """The seed decides."""
    one, other = (rehearse(10**6, 1000, 50, kind=KINDS["paper"], seed=3) for _ in range(2))
    assert one == other


def test_survivors_of_the_papers_design_are_a_share_of_the_features() -> None:
    """A thousand times the features gather a thousand times the columns, within a fifth."""
    few, many = (rehearse(n_features, 20_000, 50, kind=KINDS["paper"]).passes[0].survivors for n_features in (10**6, 10**9))
    assert within(many, 1000 * few, 1.2)
