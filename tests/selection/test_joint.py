"""Exact gains are compared through the int8 tier: joint intervals are sound and narrow, and greedy's steps keep their bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm.algorithms import contenders, sds_ma, sds_omp, verified
from fastomp_nvm.matrix.joint import JointGains, JointPath, Move
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.matrix.tier import TierSweep
from fastomp_nvm.stores.open import create_store
from tests.selection.test_tier import Bench, awkward_columns
from tests.selection.test_verified import Instance

pytestmark = pytest.mark.numerics

SMALLEST = 1e-6


def path_of(bench: Bench, vectors: np.ndarray, coefficients: np.ndarray, split: int = 0) -> JointPath:
    """Return the bounds along ``vectors`` (n_obs, m), of which the first is a residual; they begin after ``split`` of them."""
    dtype, standardisation = bench.design.matrix.dtype, bench.design.standardisation
    swept = TierSweep(bench.sweeper, bench.tier, Vectors(vectors, dtype))
    moves = [Move(vector, float(each), place > 0) for place, (vector, each) in enumerate(zip(vectors.T, coefficients, strict=True))]
    products = [(swept.centres(place, standardisation), False) for place in range(len(moves))]
    errors = bench.tier.errors(standardisation, single=dtype != np.float64, in_lanes=True)
    joint = JointGains(errors, dtype, 1.0, SMALLEST, bench.sweeper.share_out)
    if split:
        joint.along(moves[:split], products[:split]).advance(split)
    return joint.along(moves[split:], products[split:])


def directions(rng: np.random.Generator, columns: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a residual and orthonormal directions (n_obs, 1 + count), and the coefficients of a path along them."""
    y = 0.33 * np.sqrt(count) * rng.normal(size=columns.shape[1]) + columns[:count].sum(axis=0)
    y = (y - y.mean()) / np.linalg.norm(y - y.mean())
    centred = columns[:count].T - columns[:count].mean(axis=1)
    q, _ = np.linalg.qr(centred.astype(np.float64))
    return np.column_stack((y, q)), np.concatenate(([-1.0], q.T @ y))


def test_the_radius_after_a_hundred_steps_is_that_of_the_residual() -> None:
    """After 100 directions the interval of a gradient is at most 1.2 times that of a sweep with the residual itself.

    The intervals of the single products add up to far more than ten times as much.
    """
    rng = np.random.default_rng(3)
    columns = rng.normal(size=(400, 3000)).astype(np.float32)
    bench = Bench(columns, Sweeper(1))
    vectors, coefficients = directions(rng, columns, 100)
    joint = path_of(bench, vectors, coefficients).radii(101)[0]
    residual = vectors[:, 0] - vectors[:, 1:] @ coefficients[1:]
    assert 0.02 < residual @ residual < 0.5
    standardisation = bench.design.standardisation
    _, direct = TierSweep(bench.sweeper, bench.tier, Vectors(residual[:, None], columns.dtype)).products(0, standardisation)
    assert (joint <= 1.2 * direct).all()
    swept = TierSweep(bench.sweeper, bench.tier, Vectors(vectors, columns.dtype))
    summed = sum(abs(each) * swept.products(place, standardisation)[1] for place, each in enumerate(coefficients))
    assert (summed > 10.0 * direct).all()


@settings(max_examples=60)
@given(columns=awkward_columns(), seed=st.integers(0, 1000), data=st.data())
def test_no_gain_exceeds_its_bound(columns: np.ndarray, seed: int, data: st.DataObject) -> None:
    """Gains in plain greedy's arithmetic, after any number of directions, are at most the bounds from the tier."""
    rng, bench = np.random.default_rng(seed), Bench(columns, Sweeper(1))
    count = int(rng.integers(1, min(6, columns.shape[1])))
    q, _ = np.linalg.qr(rng.normal(size=(columns.shape[1], count)))
    y = rng.normal(size=columns.shape[1])
    vectors, coefficients = np.column_stack((y / np.linalg.norm(y), q)), np.concatenate(([-1.0], q.T @ y / np.linalg.norm(y)))
    split = data.draw(st.integers(0, count))
    exact = bench.exact_products(vectors)
    gradient, pivot, gains = exact[:, 0], np.ones(len(exact)), []
    for place in range(count + 1):
        if place:
            gradient, pivot = gradient - exact[:, place] * coefficients[place], pivot - exact[:, place] ** 2
        gains.append(np.divide(gradient**2, pivot, out=np.zeros_like(pivot), where=pivot > SMALLEST))
    path = path_of(bench, vectors, coefficients, split)
    ends = list(range(max(1 - split, 0), count + 2 - split))
    for gain, above in zip(gains[max(split - 1, 0) :], path.above(slice(None), ends), strict=True):
        assert not (gain[bench.usable] > above[bench.usable]).any()


@pytest.fixture
def verifying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify however small the data, with few features in drafts."""
    for module in (sds_omp, sds_ma):
        monkeypatch.setattr(module, "pays", lambda problem: True)
    for name, few in {"FIRST_NEAR": 12, "NEAR": 4, "FIRST": 4}.items():
        monkeypatch.setattr(verified, name, few)


@pytest.mark.usefixtures("verifying")
@pytest.mark.parametrize("most", [np.inf, 0.3, 0.0], ids=["always", "sometimes", "never"])
def test_gains_through_the_tier_choose_as_plain_greedy(most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same features, runners-up and margins as from exact passes; also where too many are in doubt, from any step on."""
    monkeypatch.setattr(contenders, "MOST_COMPARED", most)
    tiered = 0
    for seed in range(120):
        case = Instance(seed)
        data, request = case.dataset(), {"algorithm": "sds_ma", **case.request}
        plain = fo.select(data, case.y, plain=True, **request)
        exact, found = (fo.select(data, case.y, tier=tier, **request) for tier in ("exact", "int8"))
        assert found.indices.tolist() == plain.indices.tolist(), seed
        assert found.proof is not None
        assert exact.proof is not None
        assert repr(found.proof.traces) == repr(exact.proof.traces), seed
        tiered += found.bytes_read_tier > 0
    assert tiered > 60


@pytest.mark.usefixtures("verifying")
def test_few_columns_are_read(tmp_path: Any) -> None:
    """Where features differ, nearly all of them are judged by the tier, in a fraction of the bytes of exact passes."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(1000, 3000)).astype(np.float32)
    y = X[:, :40] @ rng.normal(size=40) + rng.normal(size=1000)
    store = create_store(str(tmp_path / "s"), X, tier="int8")
    exact, found = (fo.select(store, y, k=30, algorithm="sds_ma", tier=tier) for tier in ("exact", "int8"))
    assert found.indices.tolist() == exact.indices.tolist()
    assert found.bytes_read < 0.5 * exact.bytes_read
