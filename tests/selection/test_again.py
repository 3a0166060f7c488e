"""Passes after FAST_OMP: sets about as good as full greedy's, and no pass where none can help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.algorithms import again
from fastomp_nvm.algorithms.fast_omp import TAUS
from fastomp_nvm.analysis.synthetic import sparse_design
from fastomp_nvm.errors import CancelledError

pytestmark = pytest.mark.numerics


@pytest.fixture(scope="module")
def wide() -> tuple[np.ndarray, np.ndarray]:
    """Return 80 observations of 4000 features, and a response of more features than are selected."""
    return sparse_design(80, 4000, 40, 0.3)


def without(monkeypatch: pytest.MonkeyPatch, *data: Any, **request: Any) -> Any:
    """Return the selection that no further pass has changed."""
    with monkeypatch.context() as patch:
        patch.setattr(again, "PASSES", 0)
        return fo.select(*data, **request)


PARTITION = fo.constraints.Partition(4000, np.arange(4000) % 6, [2] * 6)
KNAPSACK = fo.constraints.Knapsack(4000, 1.0 + np.arange(4000) % 5, 30.0)


@pytest.mark.parametrize("request_", [{}, {"constraint": PARTITION}, {"constraint": KNAPSACK}, {"ridge": 0.1}, {"until": "full"}])
def test_wide_data_reaches_full_greedy_for_two_passes(monkeypatch, request_) -> None:
    """Over six responses: never below FAST_OMP and its polish, on average within .002 of the better full greedy."""
    lacking, gained = [], []
    for seed in range(6):
        X, y = sparse_design(80, 4000, 40, 0.3, seed)
        found, first = fo.select(X, y, k=12, **request_), without(monkeypatch, X, y, k=12, **request_)
        greedy = max(fo.select(X, y, k=12, algorithm=each, **request_).score for each in ("sds_omp", "sds_ma"))
        assert found.score >= first.score - 1e-9
        assert found.full_passes < first.full_passes + 3.0  # two passes, and the columns gathered
        assert found.score_unpolished == pytest.approx(first.score_unpolished, rel=1e-9)
        lacking.append(greedy - found.score)
        gained.append(found.score - first.score)
    assert np.mean(lacking) <= 0.002
    assert np.mean(gained) > 0.005


@pytest.mark.parametrize("tau", [0.5, "auto"])
def test_other_data_reaches_full_greedy_for_one_pass(monkeypatch, tau) -> None:
    """Over six responses of 1500 features: on average within .0005 of the better full greedy, and verified is not below."""
    lacking, gained = [], []
    for seed in range(6):
        X, y = sparse_design(200, 1500, 60, 0.3, seed)
        found, first = fo.select(X, y, k=12, tau=tau), without(monkeypatch, X, y, k=12, tau=tau)
        greedy = max(fo.select(X, y, k=12, algorithm=each).score for each in ("sds_omp", "sds_ma"))
        assert first.full_passes < found.full_passes < first.full_passes + 2.0  # a pass, and the columns gathered
        assert found.score >= first.score - 1e-9
        assert fo.select(X, y, k=12, tau=tau, quality="verified").score >= max(found.score, greedy) - 1e-12
        lacking.append(greedy - found.score)
        gained.append(found.score - first.score)
    assert np.mean(lacking) <= 0.0005
    assert np.mean(gained) > 0.0005


def test_automatic_tau_is_never_below_one_threshold() -> None:
    """Each of its runs gathers again, in shared sweeps: the best is at least that of any run alone."""
    for seed in range(4):
        X, y = sparse_design(150, 1200, 60, 0.3, seed)
        alone = max(fo.select(X, y, k=12, tau=tau).score for tau in TAUS)
        assert fo.select(X, y, k=12, tau="auto").score >= alone - 1e-9


def test_few_features_are_all_compared() -> None:
    """Of a few hundred features none is left out: the set is at least as good as both full greedies'."""
    for seed in range(6):
        X, y = sparse_design(100, 400, 30, 0.3, seed)
        greedy = max(fo.select(X, y, k=10, algorithm=each).score for each in ("sds_omp", "sds_ma"))
        assert fo.select(X, y, k=10).score >= greedy - 1e-9


def test_more_observations_than_columns_make_no_further_pass(monkeypatch) -> None:
    """Such data may have been replaced by its products, which must not change the set."""
    X, y = sparse_design(400, 300, 30, 0.3)
    found, first = fo.select(X, y, k=10), without(monkeypatch, X, y, k=10)
    assert (found.indices.tolist(), found.sweeps) == (first.indices.tolist(), first.sweeps)


def test_a_settled_set_costs_no_pass(monkeypatch) -> None:
    """Where every member explains far more than chance does, the run is that of FAST_OMP and its polish."""
    X, y = sparse_design(200, 8000, 4, 0.1)
    found, first = fo.select(X, y, k=4), without(monkeypatch, X, y, k=4)
    assert (found.indices.tolist(), found.sweeps, found.bytes_read) == (first.indices.tolist(), first.sweeps, first.bytes_read)


@pytest.mark.parametrize("untouched", [{"polish": "none"}, {"objective": "poisson"}])
def test_other_requests_make_no_further_pass(monkeypatch, wide, untouched) -> None:
    """The paper's own set, other qualities and other objectives are as without it."""
    X, y = wide
    y = np.abs(np.rint(y)) if untouched.get("objective") == "poisson" else y
    found, first = fo.select(X, y, k=6, **untouched), without(monkeypatch, X, y, k=6, **untouched)
    assert (found.indices.tolist(), found.sweeps) == (first.indices.tolist(), first.sweeps)


@pytest.mark.parametrize("constraint", [None, PARTITION])
def test_tier_budget_and_groups_of_runs_change_nothing(tmp_path: Path, wide, constraint) -> None:
    """The same set through the int8 tier, with memory for a few columns, and beside another run."""
    X, y = wide
    with fo.create_store(f"mmap://{tmp_path / 'store'}", X, y) as store:
        request: dict[str, Any] = {"k": 12, "constraint": constraint}
        expected = fo.select(store, tier="exact", **request)
        others = [fo.select(store, tier="int8", **request), fo.select(store, gather_bytes=4000, tier="exact", **request)]
        others.append(fo.select_many(store, [{**request, "tier": "exact"}, {"k": 3, "seed": 5, "tier": "exact"}])[0])
    assert expected.vectors > again.WIDE_RESIDUALS  # a further pass was made
    for other in others:
        assert other.indices.tolist() == expected.indices.tolist()
        assert other.score == pytest.approx(expected.score, rel=1e-12)


def test_a_durable_run_resumes_in_a_further_pass(tmp_path: Path, wide) -> None:
    """Stopped after any round, the run goes on to the same set."""
    X, y = wide
    store = str(tmp_path / "store")
    fo.create_store(store, X, y).close()
    expected = fo.select(store, k=12)
    assert expected.vectors > again.WIDE_RESIDUALS
    for stop in range(1, 40):
        seen = iter(range(10_000))
        try:
            fo.select(store, k=12, run=f"stopped-{stop}", cancelled=lambda seen=seen, stop=stop: next(seen) >= stop)
        except CancelledError:
            found = fo.resume(f"stopped-{stop}")
            assert (found.indices.tolist(), found.vectors) == (expected.indices.tolist(), expected.vectors)
        else:
            break
    assert stop > 3
