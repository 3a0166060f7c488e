"""Claims about standardised columns: computed entry by entry in float64, whatever is computed with them."""

from __future__ import annotations

import numpy as np
import pytest

from fastomp_nvm import native
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.standardisation import Standardisation

pytestmark = pytest.mark.numerics


def standardisation(columns: int) -> Standardisation:
    """Return random means and scales; the mean of column 4 is large."""
    rng = np.random.default_rng(columns)
    mean, norm = rng.normal(size=columns), rng.uniform(0.5, 2.0, size=columns)
    mean[4] = 1e6
    largest = np.abs(mean) + 9.0
    return Standardisation.from_moments(np.arange(columns + 1), ColumnStatistics(mean, norm, -largest, largest), 50.0)


@pytest.mark.parametrize("vectors", [1, 3])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compiled", [True, False])
def test_products_are_standardised_entry_by_entry(monkeypatch, vectors: int, order: str, compiled: bool) -> None:
    """Each product has the bits of its own formula, compiled or not; columns far from zero use the float64 sums."""
    if not compiled:
        monkeypatch.setattr(native, "extension", None)
    rng, one = np.random.default_rng(vectors), standardisation(9)
    assert one.wide.tolist() == [column == 4 for column in range(9)]
    raw, sums, wide_sums = rng.normal(size=(9, vectors)), rng.normal(size=vectors), rng.normal(size=vectors)
    expected = [
        [(raw[i, j] - one.mean[i] * (wide_sums[j] if i == 4 else sums[j])) * one.scale[i] for j in range(vectors)] for i in range(9)
    ]
    assert one.apply(np.array(raw, order=order), sums, wide_sums).tolist() == expected


@pytest.mark.skipif(not native.extension, reason="the compiled extension is not built")
def test_arrays_that_do_not_fit_are_refused() -> None:
    """Lengths and sizes of entries that contradict each other are an error, and nothing is written."""
    products = np.ones((9, 2))
    good = {"products": products, "mean": np.ones(9), "scale": np.ones(9), "wide": np.zeros(9, bool), "sums": np.ones(2)}
    good["wide_sums"] = np.ones(2)
    for name, array in good.items():
        for wrong in (array[:-1], array.astype(np.float16), None):
            with pytest.raises((ValueError, TypeError), match=r"do not fit|buffer|len|format"):
                native.extension.standardise(*{**good, name: wrong}.values())
    assert (products == 1).all()
    native.extension.standardise(*good.values())
    assert (products == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("out_dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_columns_are_standardised_in_float64(dtype: str, out_dtype: str, weighted: bool) -> None:
    """Each entry is computed in float64 and rounded once, to the type of the result."""
    rng, one = np.random.default_rng(1), standardisation(7)
    rows, index = rng.normal(size=(11, 6)).astype(dtype), np.array([3, 0, 10, 3, 5, 1, 2])
    factors = rng.uniform(size=6) if weighted else None
    out = np.empty((7, 6), dtype=out_dtype)
    one.fill(rows, index, out, factors)
    expected = [
        [(float(rows[index[i], j]) - one.mean[i]) * one.scale[i] * (1.0 if factors is None else factors[j]) for j in range(6)]
        for i in range(7)
    ]
    assert out.tolist() == np.array(expected).astype(out_dtype).tolist()
