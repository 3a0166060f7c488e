"""Claims about the moments of columns: right against exact sums, compiled or not, and a function of the column's values alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastomp_nvm import native
from fastomp_nvm.matrix.kernels import kernel
from fastomp_nvm.matrix.moments import moments

pytestmark = pytest.mark.numerics

ways = pytest.mark.parametrize(
    "compiled", [pytest.param(True, marks=pytest.mark.skipif(not native.extension, reason="not built")), False]
)


def columns(n: int, dtype: type, seed: int) -> np.ndarray:
    """Return five columns of very different sizes and offsets, one of them constant."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((5, n)) * 10.0 ** np.array([[-3], [0], [2], [5], [0]]) + np.array([[0], [1000], [0], [-7e4], [0]])
    values[4] = 3.25
    return values.astype(dtype)


@ways
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("n", [1, 3, 8, 17, 1000, 4097, 70_001])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_are_those_of_exact_sums(monkeypatch, compiled: bool, dtype: type, n: int, weighted: bool) -> None:
    """Mean and norm to the digits of math.fsum, also with weights, some of them zero; range and constant columns exactly."""
    if not compiled:
        monkeypatch.setattr(native, "extension", None)
    values = columns(n, dtype, n) if dtype is not np.float16 else columns(n, np.float32, n)[[0, 1, 4]].astype(np.float16)
    weights = np.random.default_rng(1).random(n) * (np.arange(n) % 3 != 1) if weighted else None
    found = moments(values, weights)
    each = np.ones(n) if weights is None else weights
    for row, column in enumerate(values.astype(np.float64)):
        mean = math.fsum(each * column) / math.fsum(each)
        counted = column[each > 0]
        assert (found.minimum[row], found.maximum[row]) == (counted.min(), counted.max())
        assert found.mean[row] == pytest.approx(mean, rel=1e-11, abs=1e-11 * np.abs(column).max())
        norm = math.sqrt(math.fsum(each * (column - mean) ** 2))
        assert found.norm[row] == pytest.approx(norm, rel=1e-9, abs=1e-11 * np.abs(column).max())
    assert found.norm[-1] == 0.0
    assert found.mean[-1] == 3.25


@ways
@given(n=st.integers(1, 40), seed=st.integers(0, 100), shift=st.integers(0, 7))
def test_moments_depend_on_the_column_alone(compiled: bool, n: int, seed: int, shift: int) -> None:
    """Alone, among others, with another stride or alignment: the same bits."""
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(native, "extension", None)
        values = columns(n, np.float32, seed)
        together = moments(values)
        buffer = np.zeros(5 * (n + 3) * 4 + shift, dtype=np.uint8)
        apart = buffer[shift:].view(np.float32).reshape(5, n + 3)[:, :n] if shift % 4 == 0 else None
        for row in range(5):
            alone = moments(values[row : row + 1])
            assert (alone.mean[0], alone.norm[0]) == (together.mean[row], together.norm[row])
        if apart is not None:
            apart[...] = values
            moved = moments(apart)
            assert (moved.mean.tolist(), moved.norm.tolist()) == (together.mean.tolist(), together.norm.tolist())


@ways
@settings(deadline=None)
@given(
    n=st.one_of(st.integers(1, 70), st.sampled_from([4096, 4097, 9001])),
    dtype=st.sampled_from(["float16", "float32", "float64", "bool", "int8", "uint8", "int16", "int32", "int64", "uint64"]),
    width=st.one_of(st.integers(1, 20), st.sampled_from([129, 300])),
    weights=st.sampled_from(["none", "positive", "some zero"]),
    seed=st.integers(0, 100),
)
def test_layout_and_type_change_no_bit(compiled: bool, n: int, dtype: str, width: int, weights: str, seed: int) -> None:
    """Moments of the transpose of an array in C order, and of integers, are those of contiguous float64 columns."""
    rng = np.random.default_rng(seed)
    values = np.abs(rng.standard_normal((width, n)) * rng.choice([0.0, 1.0, 50.0], (width, 1))).astype(dtype)
    each = None if weights == "none" else rng.random(n) + 0.1
    if each is not None and weights == "some zero":
        each[rng.random(n) < 0.5] = 0.0
        each[0] = 1.0
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(native, "extension", None)
        expected = moments(values.astype(np.float64), each)
        for layout in (values, values.T.copy().T):
            found = moments(layout, each)
            for name in ("mean", "norm", "minimum", "maximum"):
                assert getattr(found, name).tobytes() == getattr(expected, name).tobytes()


@pytest.mark.parametrize("name", ["c", "c-generic", "numpy"])
@settings(deadline=None)
@given(
    n=st.one_of(st.integers(1, 70), st.sampled_from([511, 1023, 1024, 1025, 2000, 4097])),
    dtype=st.sampled_from(["float32", "float64", "float16", "int16"]),
    width=st.one_of(st.integers(1, 20), st.sampled_from([127, 128, 129, 300])),
    seed=st.integers(0, 100),
)
def test_one_pass_has_the_bits_of_two(name: str, n: int, dtype: str, width: int, seed: int) -> None:
    """Moments and products from the same pass are those of separate passes, for every kernel, in both layouts."""
    if name != "numpy" and not native.extension:
        pytest.skip("not built")
    rng, each = np.random.default_rng(seed), kernel(name)
    values = (10.0 * rng.standard_normal((width, n)) + rng.choice([0.0, 90.0, 1e4], (width, 1))).astype(dtype)
    residual = rng.standard_normal((1, n)).astype(np.float32 if dtype == "float32" else np.float64)
    for layout in (values, values.T.copy().T):
        found, products, alone = np.empty((4, width)), np.empty((width, 1)), np.empty((width, 1))
        each.measure(layout, residual, found, products)
        each.dots(layout, residual, alone)
        apart = moments(layout)
        assert products.tobytes() == alone.tobytes()
        assert found.tobytes() == np.stack([apart.mean, apart.norm, apart.minimum, apart.maximum]).tobytes()


@ways
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 9, 16])
def test_a_value_that_is_not_finite_shows_in_the_norm(monkeypatch, compiled: bool, value: float, place: int) -> None:
    """Unless its weight is zero: then it counts for nothing."""
    if not compiled:
        monkeypatch.setattr(native, "extension", None)
    values = columns(17, np.float64, 0)
    expected = moments(values, (np.arange(17) != place).astype(np.float64))
    values[:, place] = value
    assert not np.isfinite(moments(values).norm).any()
    found = moments(values, (np.arange(17) != place).astype(np.float64))
    assert found.mean.tolist() == expected.mean.tolist()
    assert found.norm.tolist() == expected.norm.tolist()


@pytest.mark.skipif(not native.extension, reason="the compiled extension is not built")
def test_arrays_that_do_not_fit_are_refused() -> None:
    """Before anything is written."""
    out = np.full((4, 2), 7.0)
    for rows, weights in ((np.ones((3, 5)), None), (np.ones((2, 5)), np.ones(4)), (np.ones((2, 5), dtype=np.complex64), None)):
        with pytest.raises(ValueError, match=r"do not fit|element format"):
            native.extension.moments(rows, weights, out, None, None, False)
    products = np.full((2, 1), 7.0)
    for residuals in (np.ones((1, 4)), np.ones((2, 5)), np.ones((1, 5), dtype=np.float32)):
        with pytest.raises(ValueError, match=r"do not fit|expected float32"):
            native.extension.moments(np.ones((2, 5)), None, out, residuals, products, False)
    assert (out == 7.0).all()
    assert (products == 7.0).all()
