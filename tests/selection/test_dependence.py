"""Copies, near-copies and extreme columns: one rule of dependence for selection and refit, and plain sentences for the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main

pytestmark = pytest.mark.numerics


def near_copies(seed: int, apart: float) -> tuple[np.ndarray, np.ndarray]:
    """Return three near-copies of each of fifteen columns, and a response of the columns."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(80, 15))
    X = np.hstack([base + apart * rng.normal(size=base.shape) for _ in range(3)])
    return X, base @ rng.normal(size=15) + rng.normal(size=80)


@pytest.mark.parametrize("apart", [0.0, 1e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("options", [{}, {"until": "full"}, {"standardize": False}, {"algorithm": "sds_ma"}])
def test_near_copies_are_treated_alike_by_selection_and_refit(apart: float, options: dict[str, Any]) -> None:
    """Columns that the selection takes for dependent get no coefficient in the refit, and the polish is never worse."""
    for seed in range(6):
        X, y = near_copies(seed, apart)
        found = fo.select(X, y, k=20, seed=seed, **options)
        assert found.score >= found.score_unpolished
        assert found.path[-1].score == pytest.approx(found.score, abs=1e-9)
        if apart <= 1e-6:
            assert np.abs(found.coef).max() < 100


def test_features_of_several_columns_are_compared_as_they_are_without_standardisation() -> None:
    """Unscaled, a feature of two strong columns precedes a weak single column, and a weak pair follows a strong one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 6))
    X -= X.mean(axis=0)
    X[:, 2:4] *= 100.0  # the pair
    y = X[:, 0] + 0.01 * X[:, 2] + 0.05 * rng.normal(size=200)
    y -= y.mean()
    scores = np.array([*(X[:, [0, 1, 4, 5]].T @ y) ** 2, ((X[:, 2:4].T @ y) ** 2).sum()])
    assert scores.argmax() == 4
    request = {"k": 1, "standardize": False, "objective": "linear", "algorithm": "sds_omp"}
    with fo.create_store("dram:pairs", X, y, groups={"pair": [2, 3]}, replace=True) as store:
        assert fo.select(store, **request).features == ["pair"]
    with fo.create_store(
        "dram:pairs", X / np.where(np.isin(np.arange(6), (2, 3)), 1e4, 1), y, groups={"pair": [2, 3]}, replace=True
    ) as store:
        assert fo.select(store, **request).features == ["f0"]


def test_a_large_mean_does_not_make_a_column_constant() -> None:
    """A float64 column with mean 1e12 and standard deviation 1 has eleven bits of variation, and is selected for them."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 5))
    y = X[:, 3] + 0.1 * rng.normal(size=300)
    X[:, 3] += 1e12
    found = fo.select(X, y, k=1)
    assert found.indices.tolist() == [3]
    assert found.score > 0.95
    X[:, 4] = 1e12
    assert "1 feature is constant" in fo.select(X, y, k=1).notes[0]


def test_as_many_features_as_observations_are_noted() -> None:
    """Noise is explained without error by as many features as there are observations: a note says so."""
    rng = np.random.default_rng(2)
    found = fo.select(rng.normal(size=(20, 60)), rng.normal(size=20), k=20)
    assert found.score > 0.999
    assert "20 features may be selected from 20 observations" in found.notes[-1]


def test_a_constraint_that_is_not_downward_closed_is_an_error(tmp_path, monkeypatch, capsys) -> None:
    """A function that only allows large sets selects nothing: the sentence names an allowed set and its refused part."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(40, 6)), rng.normal(size=40)
    with pytest.raises(fo.ConstraintError, match="not downward closed, and nothing was selected: it allows"):
        fo.select(X, y, constraint=fo.constraints.Oracle(6, lambda features: len(features) >= 3))
    with pytest.raises(fo.ConstraintError, match="allows no feature alone"):
        fo.select(X, y, constraint=fo.constraints.Oracle(6, lambda features: False))
    fo.create_store(f"mmap://{tmp_path}/noise", X, y).close()
    (tmp_path / "large_sets.py").write_text("def allow(features):\n    return len(features) >= 3\n")
    (tmp_path / "large.yaml").write_text("oracle: large_sets:allow\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["select", f"mmap://{tmp_path}/noise", "--constraint", str(tmp_path / "large.yaml")]) == 2
    assert "not downward closed" in capsys.readouterr().err
