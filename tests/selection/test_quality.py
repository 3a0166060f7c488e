"""How good and how cheap: R^2 against matching pursuit, and passes over the data, on the sizes the project promises."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.analysis.synthetic import PaperDesign, ar_design, sparse_design
from fastomp_nvm.engine.dataset import Dataset


@pytest.fixture(scope="module")
def small() -> tuple[Dataset, np.ndarray]:
    """Return the paper's small synthetic set, 1000 x 500."""
    design = PaperDesign(1000, 500)
    return Dataset.of_array(design.matrix().T), design.response()


@pytest.fixture(scope="module")
def middle() -> tuple[Dataset, np.ndarray]:
    """Return 2000 x 20000 with more true features than may be selected."""
    X, y = sparse_design(2000, 20_000, 200, 0.1)
    return Dataset.of_array(X), y


@pytest.mark.numerics
def test_small_set_without_polish_is_within_two_percent(small) -> None:
    """1000 x 500, k = 150: R^2 of FAST_OMP as in the paper is within 2 % of SDS_OMP's."""
    data, y = small
    pursuit = fo.select(data, y, k=150, algorithm="sds_omp")
    fast = fo.select(data, y, k=150, tau=0.9, polish="none", until="full")
    assert len(fast.indices) == len(pursuit.indices) == 150
    assert fast.score >= 0.98 * pursuit.score


def test_wide_set_without_polish_is_within_two_percent(middle) -> None:
    """2000 x 20000, k = 100: within 2 % of SDS_OMP at a good tau, with a twentieth of its passes."""
    data, y = middle
    pursuit = fo.select(data, y, k=100, algorithm="sds_omp", plain=True)
    fast = fo.select(data, y, k=100, tau=0.9, polish="none", until="full")
    assert fast.score >= 0.98 * pursuit.score
    assert fast.full_passes < pursuit.full_passes / 20


def test_polish_reaches_matching_pursuit_at_no_extra_pass(middle) -> None:
    """2000 x 20000: the polished set is at least as good as SDS_OMP's and costs no pass more than the unpolished one."""
    data, y = middle
    pursuit = fo.select(data, y, k=100, algorithm="sds_omp")
    polished = fo.select(data, y, k=100)
    plain = fo.select(data, y, k=100, polish="none")
    assert polished.score >= pursuit.score * (1 - 1e-9)  # often the same features, met in another order
    assert polished.score_unpolished == pytest.approx(plain.score, rel=1e-9)
    assert polished.full_passes == plain.full_passes
    assert polished.bytes_read == plain.bytes_read


@pytest.mark.numerics
def test_polish_on_a_correlated_design_is_within_half_a_percent() -> None:
    """AR(0.7), 1000 x 4000, k = 60: the polished set is within 0.5 % of SDS_OMP's R^2."""
    X, y = ar_design(1000, 4000, 60, 0.25, 0.7)
    data = Dataset.of_array(X)
    pursuit = fo.select(data, y, k=60, algorithm="sds_omp")
    for seed in range(3):
        assert fo.select(data, y, k=60, tau=0.9, seed=seed).score >= 0.995 * pursuit.score


@pytest.mark.parametrize("epsilon", [0.1, 0.2])
@pytest.mark.parametrize("tau", [0.25, 0.5, 0.9])
def test_passes_are_bounded(small, middle, epsilon: float, tau: float) -> None:
    """until=paper needs at most ceil(1/epsilon) + 1 passes, until=full returns k features in at most 1.5/epsilon."""
    for (data, y), k in ((small, 150), (middle, 100)):
        paper = fo.select(data, y, k=k, epsilon=epsilon, tau=tau)
        assert paper.full_passes <= math.ceil(1 / epsilon) + 1
        full = fo.select(data, y, k=k, epsilon=epsilon, tau=tau, until="full")
        assert len(full.indices) == k
        assert full.full_passes <= 1.5 / epsilon


@pytest.mark.parametrize("seed", range(3))
def test_passes_are_bounded_on_the_papers_design_at_width(seed: int) -> None:
    """2000 x 20000 of the paper's covariance, where a tenth of the features is strong: the same bounds hold."""
    design = PaperDesign(2000, 20_000, seed)
    data, y = Dataset.of_array(design.matrix().T), design.response()
    paper = fo.select(data, y, k=100, seed=seed)
    full = fo.select(data, y, k=100, seed=seed, until="full")
    assert paper.full_passes <= 11
    assert len(full.indices) == 100
    assert full.full_passes <= 15
