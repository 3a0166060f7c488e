"""Selections over tall data from Gram matrices: the answers of sweeps, in one pass."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm import constraints
from fastomp_nvm.analysis.splits import BLOCK_SIZE, BLOCKS, draw_blocks
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import CancelledError
from fastomp_nvm.matrix import gram
from fastomp_nvm.matrix.rows import PiecedRows
from fastomp_nvm.selection import compression
from fastomp_nvm.selection.response import Response

pytestmark = pytest.mark.numerics


@pytest.fixture(autouse=True)
def _small_data_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compress small data as well, in several tiles, panels and strips."""
    monkeypatch.setattr(compression, "FEWEST_ENTRIES", 0)
    monkeypatch.setattr(gram, "TILE_BYTES", 1 << 16)
    monkeypatch.setattr(gram, "PANEL", 7)
    monkeypatch.setattr(gram, "STRIP", 4)


def tall(seed: int, n_obs: int = 900, n_columns: int = 24, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated columns of all scales and means, and a response of four of them."""
    random = np.random.default_rng(seed)
    mixing = np.eye(n_columns) + 0.4 * random.normal(size=(n_columns, n_columns)) / n_columns**0.5
    X = random.normal(size=(n_obs, n_columns)) @ mixing
    y = X[:, [1, 5, 9, 14]] @ random.normal(2.0, 1.0, size=4) + random.normal(size=n_obs)
    return (X * 10.0 ** random.integers(-3, 4, size=n_columns) + random.normal(size=n_columns)).astype(dtype), y


def both(call: Any, *args: Any, **fields: Any) -> tuple[Any, Any]:
    """Return the answers from Gram matrices and from sweeps."""
    return call(*args, **fields), call(*args, **fields, gram="never")


def used(selection: fo.Selection) -> bool:
    return "gram" in selection.choices and selection.choices["gram"].value == "used"


def assert_same(found: fo.Selection, swept: fo.Selection, tolerance: float = 1e-9) -> None:
    """Check for the same features in the same order, the same numbers, and one pass."""
    assert used(found)
    assert "gram" not in swept.choices
    assert found.indices.tolist() == swept.indices.tolist()
    assert found.column_coef == pytest.approx(swept.column_coef, rel=tolerance, abs=1e-12)
    for name in ("intercept", "score", "score_unpolished"):
        assert getattr(found, name) == pytest.approx(getattr(swept, name), rel=tolerance, abs=1e-10), name
    if swept.test_score is not None:
        assert found.test_score == pytest.approx(swept.test_score, abs=1e-9)
    assert [point.k for point in found.path] == [point.k for point in swept.path]
    assert [point.score for point in found.path] == pytest.approx([point.score for point in swept.path], abs=1e-9)
    assert (found.gradient_rounds, found.notes, found.test_rows) == (swept.gradient_rounds, swept.notes, swept.test_rows)
    assert (found.sweeps, found.full_passes) == (1, 1.0)
    size = found.store.n_columns * found.store.n_obs * np.dtype(found.store.dtype).itemsize
    assert (found.bytes_read, found.bytes_read_exact) == (size, size)


@pytest.mark.parametrize("seed", range(12))
def test_cross_validation(seed: int) -> None:
    """Folds, their held-out scores and the final selection equal those of sweeps, with and without observation weights."""
    X, y = tall(seed, dtype=np.float32 if seed % 2 else np.float64)
    weights = np.random.default_rng(seed).random(len(y)) * (np.arange(len(y)) % 11 > 0) if seed % 3 == 0 else None
    found, swept = both(fo.cross_validate, X, y, ks=[1, 3, 5], seed=seed, weights=weights)
    np.testing.assert_allclose(found.scores, swept.scores, atol=1e-9, rtol=0)
    for ours, theirs in zip(chain(*found.fold_selections), chain(*swept.fold_selections), strict=True):
        assert_same(ours, theirs)
    assert_same(found.selection, swept.selection)
    assert (found.k, found.one_standard_error_k) == (swept.k, swept.one_standard_error_k)
    assert (found.sharing.full_passes, found.sharing.bytes_read) == (1.0, X.nbytes)
    assert found.sharing.full_passes_alone == 18.0
    assert found.to_json()["gram"] == found.selection.choices["gram"]._asdict()
    assert "gram" not in swept.to_json()
    assert "one pass over 900 observations of 24 columns for 18 selections" in repr(found)


FAMILIES = {
    "cardinality": {},
    "partition": {"constraint": constraints.Partition(24, [place % 4 for place in range(24)], [1, 2, 1, 2])},
    "laminar": {"constraint": constraints.Laminar(24, [list(range(12)), list(range(24))], [2, 5])},
    "knapsack": {"constraint": constraints.Knapsack(24, np.arange(1.0, 25.0), 40.0)},
}
WAYS: dict[str, dict[str, Any]] = {
    "ridge": {"ridge": 0.05},
    "exclude": {"exclude": ["f5", "f0"]},
    "certificate": {"certificate": True},
    "test fraction": {"test_fraction": 0.3},
    "tau": {"tau": "auto"},
    "full": {"until": "full"},
    "k = all": {"k": 24},
    **{name: {"algorithm": name} for name in ("sds_omp", "sds_ma", "dash", "lasso", "top_k", "fast")},
}


@pytest.mark.parametrize("fields", [*FAMILIES.values(), *WAYS.values()], ids=[*FAMILIES, *WAYS])
def test_requests(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every algorithm, constraint and option gives the answer of sweeps."""
    if fields.get("algorithm") == "lasso":
        pytest.importorskip("sklearn")
    monkeypatch.setattr(compression, "COLUMNS_PER_PASS", 100)  # also for algorithms of one pass
    for seed in range(3):
        X, y = tall(seed)
        requests = [{"k": 5, "seed": seed, **fields}, {"k": 5, **fields, "epsilon": 0.3}]
        found, swept = (fo.select_many(X, [{**each, "gram": gram} for each in requests], y) for gram in ("auto", "never"))
        for ours, theirs in zip(found, swept, strict=True):
            assert_same(ours, theirs, 1e-7)  # the lasso's coefficients, of columns of all scales
            if theirs.certificate is not None:
                assert ours.certificate is not None
                assert ours.certificate.upper_bound == pytest.approx(theirs.certificate.upper_bound, rel=1e-9)


def test_stability_of_many_observations() -> None:
    """Subsamples are unions of blocks, so that sums over blocks serve them; frequencies equal those of sweeps."""
    X, y = tall(3, BLOCKS * BLOCK_SIZE)
    found, swept = both(fo.stability, X, y, k=6, subsamples=20, seed=5)
    assert found.frequencies.tolist() == swept.frequencies.tolist()
    assert found.sharing.gram is not None
    assert found.sharing.full_passes == 1.0 < swept.sharing.full_passes
    odd = fo.stability(X, y, k=3, subsamples=9, fraction=0.123)
    assert odd.sharing.gram is None  # no share of the blocks: observations are drawn one by one


def test_blocks_of_observations() -> None:
    """From some number on, observations are dealt into blocks of equal size, classes in proportion, by the seed alone."""
    request = fo.SelectionRequest(k=1, seed=4)
    classes = Response((np.arange(9000) % 5 == 0).astype(float), "y", objective="logistic")
    blocks = draw_blocks(0.5, request, classes)
    assert set(np.bincount(blocks)) == {150}
    assert set(np.bincount(blocks[classes.values == 1.0])) == {30}
    assert blocks.tolist() == draw_blocks(0.25, request, classes).tolist()
    assert blocks.tolist() != draw_blocks(0.5, fo.SelectionRequest(k=1, seed=5), classes).tolist()
    few = Response(np.arange(BLOCKS * BLOCK_SIZE - 1.0), "y")
    assert draw_blocks(0.5, request, few).tolist() == list(range(len(few.values)))


@pytest.mark.parametrize("medium", ["mmap", "pmem", "dram", "pieces"])
def test_media(medium: str, tmp_path: Path) -> None:
    """Media and threads do not change a bit; features of several columns, dependent ones among them, are whitened as by sweeps."""
    X, y = tall(1, dtype=np.float32)
    X[:, 3] = X[:, 2] * 3.0
    requests: list[Any] = [{"k": k} for k in range(1, 9)]
    with fo.create_store(f"mmap://{tmp_path}/first", X, y, groups={"three": [1, 2, 3], "two": [9, 10]}) as first:
        expected = fo.select_many(first, requests)
        swept = fo.select_many(first, [{**each, "gram": "never"} for each in requests])
        if medium == "pieces":
            dataset = Dataset.of_store(first)
            pieces = PiecedRows([first.matrix[:5], first.matrix[5:17], first.matrix[17:]])
            found = fo.select_many(replace(dataset, matrix=pieces), requests, threads=1)
        else:
            url = f"dram:{tmp_path.name}" if medium == "dram" else f"{medium}://{tmp_path}/store"
            with fo.create_store(url, X, y, groups={"three": [1, 2, 3], "two": [9, 10]}) as store:
                found = fo.select_many(store, requests, threads=1)
    for ours, same, theirs in zip(found, expected, swept, strict=True):
        assert used(ours)
        assert ours.indices.tolist() == theirs.indices.tolist()
        # Which column of a dependent pair has the coefficient is a matter of rounding.
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-7, atol=1e-7)
        assert ours.column_coef.tobytes() == same.column_coef.tobytes()


def test_copies_of_a_column() -> None:
    """Of columns that are copies, negated or twice another one, the lowest index is selected, on all data and on a fold alone."""
    for seed in range(6):
        X, y = tall(seed, n_columns=30)
        X[:, 20], X[:, 21], X[:, 0] = X[:, 5], -2.0 * X[:, 9], X[:, 14]
        folds = np.arange(len(y)) % 3
        X[:, 2] = np.where(folds == 0, X[:, 1].mean(), X[:, 1])  # a copy of column 1 where fold 0 is held out
        # FAST_OMP with the polish compares two sets of the same value, which differ in copies alone.
        found, swept = both(fo.cross_validate, X, y, ks=[4, 5, 6], folds=folds, algorithm="sds_omp")
        for ours, theirs in zip(chain(*found.fold_selections), chain(*swept.fold_selections), strict=True):
            assert_same(ours, theirs)
        assert {0, 1, 5, 9} <= set(found.fold_selections[1][0].indices.tolist())


def test_columns_that_vary_little() -> None:
    """Columns constant on the training observations are never selected; means may be a million times the deviation."""
    X, y = tall(2)
    folds = np.arange(len(y)) % 3
    X[:, 7], X[:, 5] = 2.5, np.where(folds == 1, X[:, 5], 0.1)
    X[:, 9] = 1e6 + X[:, 9] / X[:, 9].std()
    found, swept = both(fo.cross_validate, X, y, ks=[3, 5], folds=folds)
    for ours, theirs in zip(chain(*found.fold_selections), chain(*swept.fold_selections), strict=True):
        assert_same(ours, theirs)
    np.testing.assert_allclose(found.scores, swept.scores, atol=1e-9, rtol=0)
    assert [each.notes for each in found.fold_selections[1]] == [
        [f"{count} constant on the observations used and cannot be selected"]
        for count in ("1 feature is", "2 features are", "1 feature is")
    ]
    assert 9 in found.selection.indices


def test_dependent_columns() -> None:
    """Columns in the span of others contribute nothing, as by sweeps."""
    X, y = tall(4)
    X[:, 20] = X[:, 1] + X[:, 5]
    X[:, 21:24] = np.eye(3)[np.arange(len(y)) % 3]  # sum to one
    for ours, theirs in zip(*both_many(X, y, [{"k": k} for k in (3, 22, 24)]), strict=True):
        assert used(ours)
        assert ours.score == pytest.approx(theirs.score, abs=1e-10)
    assert ours.score == pytest.approx(fo.select(X, y, k=24, gram="never", algorithm="sds_omp").score, abs=1e-10)


def both_many(X: np.ndarray, y: np.ndarray, requests: list[Any]) -> tuple[list[fo.Selection], list[fo.Selection]]:
    return fo.select_many(X, requests, y), fo.select_many(X, [{**each, "gram": "never"} for each in requests], y)


def test_data_beyond_float64_products() -> None:
    """Nearly dependent columns, folds of means far apart and extreme values are swept; the answer says so and is that of sweeps."""
    X, y = tall(5)
    near = X.copy()
    near[:, 20] = near[:, 1] + 1e-5 * near[:, 1].std() * np.random.default_rng(0).normal(size=len(y))
    apart = X + 1e5 * X.std(axis=0) * (np.arange(len(y)) % 2)[:, None]
    extreme = X * np.where(np.arange(24) == 3, 1e170, 1.0)
    alternate = np.arange(len(y)) % 2
    for data, folds, reason in (
        (near, 3, "nearly dependent"),
        (apart, alternate, "means far apart"),
        (extreme, 3, "extreme values"),
    ):
        found, swept = both(fo.cross_validate, data, y, ks=[2, 3, 5], folds=folds)
        choice = found.selection.choices["gram"]
        assert choice.value == "not used"
        assert reason in choice.reason
        assert found.sharing.gram == choice
        assert found.scores.tobytes() == swept.scores.tobytes()
        assert found.sharing.full_passes == pytest.approx(swept.sharing.full_passes + 1.0)  # the pass that found it out


UNFIT: dict[str, dict[str, Any]] = {
    "one plain selection": {"requests": [{"k": 3}], "columns": 60},
    "wide": {"n_obs": 100},
    "logistic": {"objective": "logistic"},
    "not standardised": {"standardize": False},
    "several targets": {"requests": [{"k": 3}, {"k": 3, "objective": "linear"}]},
    "unrelated weights": {"requests": [{"k": 3, "weights": np.random.default_rng(seed).random(900)} for seed in (1, 2)]},
    "never": {"gram": "never"},
}


@pytest.mark.parametrize("case", UNFIT.values(), ids=UNFIT)
def test_requests_for_sweeps(case: dict[str, Any]) -> None:
    """Where a Gram matrix is of no use it is not computed: sweeps count more than one pass and the answer says nothing of it."""
    case = dict(case)
    X, y = tall(6, case.pop("n_obs", 900), case.pop("columns", 24))
    requests = case.pop("requests", [{"k": 3}, {"k": 4}])
    target = (y > 0).astype(float) if case.get("objective") == "logistic" else y
    for found in fo.select_many(X, [{**each, **case} for each in requests], target):
        assert "gram" not in found.choices
        assert found.full_passes > 1.0


def test_only_large_data_is_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data, or Gram matrices beyond the limit of memory, are swept."""
    X, y = tall(7)
    for name, value in (("FEWEST_ENTRIES", 1 << 22), ("MOST_BYTES", 1000), ("MOST_BLOCKS", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(compression, name, value)
            assert fo.cross_validate(X, y, ks=[2, 3]).sharing.gram is None
    assert fo.cross_validate(X, y, ks=[2, 3]).sharing.gram is not None


def test_a_target_that_does_not_vary() -> None:
    """A target that is constant where it must not be is refused as by sweeps."""
    X, y = tall(8)
    folds = np.arange(len(y)) % 3
    for held_out in (folds == 1, folds != 1):
        for gram_option in ("auto", "never"):
            with pytest.raises(fo.DataError, match="target is constant"):
                fo.cross_validate(X, np.where(held_out, 2.0, y), ks=[2, 3, 4], folds=folds, gram=gram_option)


def test_cancelling() -> None:
    """The pass over the data is cancelled between tiles."""
    X, y = tall(9)
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) == 3

    with pytest.raises(CancelledError):
        fo.cross_validate(X, y, ks=[2, 3], cancelled=cancelled)
    assert len(asked) == 3


def test_an_unknown_choice() -> None:
    """A choice other than auto and never is refused."""
    with pytest.raises(fo.RequestError, match="gram is 'always': expected auto or never"):
        fo.SelectionRequest(k=1, gram="always")  # type: ignore[arg-type]
