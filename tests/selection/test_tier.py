"""The int8 tier is certified: it changes which bytes are read and no bit of an answer."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm.algorithms.protocol import Ask
from fastomp_nvm.analysis.synthetic import PaperDesign, sparse_design
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import RequestError
from fastomp_nvm.matrix import tier as tiers
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.matrix.gradients import ExactGradients, TierGradients
from fastomp_nvm.matrix.kernels import INT8_RESIDUAL_LIMIT, available, kernel
from fastomp_nvm.matrix.moments import moments
from fastomp_nvm.matrix.pool import ColumnPool
from fastomp_nvm.matrix.rows import local_rows
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.matrix.tier import Tier, TierAccount, TierSweep, kernel_error, quantise, quantise_vectors, worthwhile
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.runs.journal import DecisionJournal
from fastomp_nvm.selection.select import select_shared
from tests.harness.memory_log import MemoryLog

pytestmark = pytest.mark.numerics

KERNELS = [name for name, found in available().items() if found.count("-") and " " not in found]


class Bench:
    """A dataset with its tier, and both ways to answer a question about it."""

    def __init__(self, matrix: np.ndarray, sweeper: Sweeper, groups: int = 0, **design: Any) -> None:
        address = "dram:tier-bench"
        named = {"group": list(range(groups))} if groups else None
        with fo.create_store(
            address, matrix, rows="features", dtype=str(matrix.dtype), groups=named, missing="error", replace=True
        ) as store:
            self.dataset = Dataset.of_store(store)
        self.sweeper = sweeper
        self.design = self.dataset.design(**design)
        self.usable = np.flatnonzero(self.design.standardisation.usable())

    @property
    def tier(self) -> Tier:
        assert self.dataset.tier is not None
        return self.dataset.tier

    def exact_products(self, vectors: np.ndarray) -> np.ndarray:
        """Return what the exact sweep finds."""
        matrix, standardisation = local_rows(self.design.matrix), self.design.standardisation
        prepared = Vectors(vectors, matrix.dtype)
        return standardisation.apply(self.sweeper.dots(matrix, prepared, standardisation.wide), prepared.sums, prepared.wide_sums)

    def both(self, vector: np.ndarray) -> tuple[ExactGradients, TierGradients, Traffic]:
        """Return the exact answer, the tier's, and the traffic behind the latter."""
        products = self.exact_products(vector[:, None])[:, 0]
        exact = ExactGradients(Ask(vector, self.usable), products, self.design.standardisation)
        pool = ColumnPool(self.design, self.sweeper, Traffic(), 1 << 24)
        swept = TierSweep(self.sweeper, self.tier, Vectors(vector[:, None], self.design.matrix.dtype))
        tiered = TierGradients(Ask(vector, self.usable), swept, 0, pool)
        return exact, tiered, pool._probes


@pytest.fixture(scope="module", params=KERNELS)
def sweeper(request) -> Sweeper:
    """Every kernel that loads here."""
    return Sweeper(1, kernel(request.param))


@st.composite
def awkward_columns(draw: st.DrawFn, dtypes: tuple[str, ...] = ("float16", "float32", "float64")) -> np.ndarray:
    """Draw columns of every unpleasant kind: outliers, duplicates, constants, tiny and huge, far from zero, sparse, binary."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_obs = draw(st.sampled_from([2, 3, 17, 64, 333, 1025, 2500]))
    dtype = draw(st.sampled_from(dtypes))
    narrow = dtype == "float16"
    kinds = draw(st.lists(st.sampled_from(range(10)), min_size=4, max_size=12))
    columns = []
    for kind in kinds:
        column = rng.normal(size=n_obs)
        if kind == 1:
            column[rng.integers(n_obs)] = 1e4 if narrow else 1e7  # one entry makes every other code zero
        elif kind == 2 and columns:
            column = columns[rng.integers(len(columns))].copy()
        elif kind == 3:
            column[:] = 3.25
        elif kind == 4:
            column *= 1e-6 if narrow else 1e-30
        elif kind == 5:
            column = column * 0.1 + (100 if narrow else 1e5)  # accumulated in float64
        elif kind == 6:
            column = (rng.random(n_obs) < 0.2).astype(float)
        elif kind == 7:
            column *= 100 if narrow else 1e25
        elif kind == 8:
            column = rng.standard_cauchy(n_obs).clip(-1e4, 1e4)
        elif kind == 9:
            column += 30
        columns.append(column)
    return np.stack(columns).astype(dtype)


@settings(max_examples=60)
@given(columns=awkward_columns())
def test_the_error_of_a_quantised_column_is_bounded(columns: np.ndarray) -> None:
    """In exact arithmetic no column is further from its codes than its error says, and no code is out of range."""
    columns = columns[:, :64]
    found = quantise(columns, statistics := moments(columns))
    assert np.abs(found.codes.astype(int)).max() <= 127
    for column, codes, scale, mean, error, norm in zip(
        columns, found.codes, found.scale, statistics.mean, found.error, found.norm, strict=True
    ):
        parts = [Fraction(float(a)) - Fraction(mean) - Fraction(scale) * int(c) for a, c in zip(column, codes, strict=True)]
        assert sum(part * part for part in parts) <= Fraction(error) ** 2
        assert sum((Fraction(scale) * int(c)) ** 2 for c in codes) <= Fraction(norm) ** 2


def test_quantisation_uses_its_range() -> None:
    """The largest entry of a column and of a vector get the largest code, and the error is that of rounding to it."""
    columns = np.random.default_rng(0).normal(size=(50, 4000)).astype(np.float32)
    found = quantise(columns, statistics := moments(columns))
    assert (np.abs(found.codes.astype(int)).max(axis=1) == 127).all()
    expected = found.scale * math.sqrt(4000 / 12)  # a uniform error within half a step
    assert np.allclose(found.error, expected, rtol=0.05)
    assert np.allclose(found.norm, statistics.norm, rtol=0.01)
    codes, _ = quantise_vectors(columns[:3])
    assert (np.abs(codes.astype(int)).max(axis=1) == INT8_RESIDUAL_LIMIT).all()


@pytest.mark.parametrize("largest", [5e-324, 1e-150, 1e150, 1e307])
def test_columns_at_the_ends_of_the_range_are_never_decided(largest: float) -> None:
    """Where scales could overflow or vanish the error is infinite, so such columns are read exactly."""
    columns = np.array([[0.0, largest, 0.0], [1.0, 2.0, 4.0]])
    found = quantise(columns, moments(columns))
    assert np.isinf(found.error[0])
    assert not found.codes[0].any()
    assert np.isfinite(found.error[1])


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("pairing", ["ff", "dd", "ef", "ed", "fd"])
def test_the_kernel_error_is_bounded(name: str, pairing: str) -> None:
    """No kernel loses more than its bound, also where every rounding of a long sum goes the same way."""
    rng = np.random.default_rng(8)
    for n_obs in (1, 100, 1024, 3000):
        row = np.full(n_obs, 1 + 2.0**-9).astype(pairing[0])
        rows = np.stack([row, np.abs(rng.normal(size=n_obs)).astype(pairing[0]), rng.normal(size=n_obs).astype(pairing[0])])
        vectors = np.stack([np.full(n_obs, 1.0 + 2.0**-20), rng.random(n_obs) * 1e-3]).astype(pairing[1])
        out = np.empty((3, 2))
        kernel(name).dots(rows, vectors, out)
        for i, j in np.ndindex(3, 2):
            terms = [Fraction(float(a)) * Fraction(float(v)) for a, v in zip(rows[i], vectors[j], strict=True)]
            bound = Fraction(kernel_error(n_obs, pairing[1] == "f", in_lanes=True)) * sum(abs(term) for term in terms)
            assert abs(Fraction(out[i, j]) - sum(terms)) <= bound


@settings(max_examples=60)
@given(columns=awkward_columns(), seed=st.integers(0, 1000), data=st.data())
def test_intervals_hold_what_the_exact_sweep_returns(sweeper: Sweeper, columns: np.ndarray, seed: int, data: st.DataObject) -> None:
    """Intervals of products and bounds of scores contain what the exact kernel returns, under every standardisation."""
    rng = np.random.default_rng(seed)
    n_obs = columns.shape[1]
    kind = data.draw(st.sampled_from(["plain", "weighted", "raw", "grouped"]))
    options: dict[str, Any] = {}
    if kind == "weighted":
        options["weights"] = rng.integers(0, 3, n_obs) + np.eye(1, n_obs)[0]
    elif kind == "raw":
        options["standardize"] = False
    bench = Bench(columns, sweeper, groups=3 if kind == "grouped" else 0, **options)
    vectors = rng.normal(size=(n_obs, 3)) * 10.0 ** rng.integers(-9, 9, 3)
    vectors[:, 1] -= vectors[:, 1].mean()
    vectors[:, 2] = columns[-1].astype(float) - columns[-1].mean(dtype=float)  # a score of one
    vectors[:, 2] /= np.abs(vectors[:, 2]).max() or 1.0
    swept = TierSweep(sweeper, bench.tier, Vectors(vectors, columns.dtype))
    exact = bench.exact_products(vectors)
    standardisation = bench.design.standardisation
    scores = standardisation.scores(exact)
    for place in range(3):
        with np.errstate(over="ignore", invalid="ignore"):
            centre, radius = swept.products(place, standardisation)
        known = np.isfinite(radius)
        assert (np.abs(exact[known, place] - centre[known]) <= radius[known]).all()
        below, above = swept.scores(place, standardisation)
        assert ((below <= scores[:, place]) & (scores[:, place] <= above)).all()


def test_intervals_are_narrow_where_they_should_be(sweeper: Sweeper) -> None:
    """On Gaussian data, also far from zero, an interval is a hundredth of the vector long: a useless bound is sound too."""
    columns = np.random.default_rng(1).normal(size=(40, 2000)).astype(np.float32)
    columns[5:9] += 1e4
    bench = Bench(columns, sweeper)
    vector = np.random.default_rng(2).normal(size=(2000, 1))
    _, radius = TierSweep(sweeper, bench.tier, Vectors(vector, columns.dtype)).products(0, bench.design.standardisation)
    assert radius.max() < 0.012 * np.linalg.norm(vector)


def agree(exact: ExactGradients, tiered: TierGradients, usable: np.ndarray, thresholds: list[float]) -> None:
    """Compare every decision, most doubtful ones first."""
    for threshold in thresholds:
        assert np.array_equal(exact.at_least(threshold), tiered.at_least(threshold))
    for count in (1, 2, 5, len(usable), len(usable) + 3):
        assert exact.top_mean(count) == tiered.top_mean(count)
    if usable.size:
        every = exact._standardisation.subset(usable).scores(exact.of(usable)[:, None])[:, 0]
        assert exact.argmax() == tiered.argmax()
        for count in (1, 2, 5, len(usable) + 3):
            (features, scores), (others, again) = exact.leaders(count), tiered.leaders(count)
            assert (features.tolist(), scores.tobytes()) == (others.tolist(), again.tobytes())
            assert features.tolist() == usable[np.lexsort((usable, -every))][:count].tolist()
    assert exact.of(usable[::-2]).tobytes() == tiered.of(usable[::-2]).tobytes()
    assert exact.of(usable).tobytes() == tiered.of(usable).tobytes()


@settings(max_examples=60)
@given(columns=awkward_columns(), seed=st.integers(0, 1000), grouped=st.booleans(), first=st.integers(0, 2))
def test_every_decision_equals_the_exact_one(sweeper: Sweeper, columns: np.ndarray, seed: int, grouped: bool, first: int) -> None:
    """Thresholds on a score, and one ulp to either side of it, means of the largest, argmax and gradients agree bit for bit."""
    rng = np.random.default_rng(seed)
    bench = Bench(columns, sweeper, groups=3 if grouped else 0)
    vector = rng.normal(size=columns.shape[1])
    vector -= vector.mean()
    exact, tiered, _ = bench.both(vector)
    standardisation = bench.design.standardisation
    scores = standardisation.scores(bench.exact_products(vector[:, None]))[bench.usable, 0]
    picked = rng.choice(scores, min(3, len(scores)), replace=False) if scores.size else scores
    thresholds = [float(np.nextafter(score, target)) for score in picked for target in (-np.inf, score, np.inf)]
    if first == 1:  # decisions after others were taken from the same answer
        exact.top_mean(2), tiered.top_mean(2)
    elif first == 2 and bench.usable.size:
        assert exact.argmax() == tiered.argmax()
    agree(exact, tiered, bench.usable, [0.0, *thresholds, math.inf])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_columns_an_ulp_from_the_threshold_are_decided_rightly(sweeper: Sweeper, dtype: str) -> None:
    """Copies of a column whose entries differ by one ulp are distinguished at the score of any of them."""
    rng = np.random.default_rng(5)
    base = rng.normal(size=500).astype(dtype)
    columns = np.nextafter(np.tile(base, (100, 1)), rng.choice([-np.inf, np.inf], (100, 500)).astype(dtype))
    bench = Bench(columns, sweeper)
    vector = base + rng.normal(size=500)  # not the column itself, where the score is flat
    vector -= vector.mean()
    scores = bench.design.standardisation.scores(bench.exact_products(vector[:, None]))[:, 0]
    assert len(np.unique(scores)) > 1
    for threshold in np.unique(scores)[:: max(len(np.unique(scores)) // 8, 1)]:
        exact, tiered, _ = bench.both(vector)
        agree(exact, tiered, bench.usable, [float(threshold)])


def test_ties_go_to_the_lowest_index(sweeper: Sweeper) -> None:
    """Among duplicates argmax takes the first and a mean over fewer than there are stays exact."""
    rng = np.random.default_rng(6)
    columns = rng.normal(size=(30, 200)).astype(np.float32)
    columns[[4, 11, 29]] = columns[17] = rng.normal(size=200)
    bench = Bench(columns, sweeper)
    exact, tiered, _ = bench.both(columns[17].astype(float) - columns[17].mean(dtype=float))
    assert tiered.argmax() == exact.argmax() == 4
    assert [tiered.top_mean(count) for count in (2, 4, 5)] == [exact.top_mean(count) for count in (2, 4, 5)]


@pytest.mark.parametrize("size", [0.0, 1e-200, 1e-45, 1e20, 1e39, 1e200])
def test_vectors_at_the_ends_of_the_range_are_answered_exactly(sweeper: Sweeper, size: float) -> None:
    """A vector of zeros, or one whose sums float32 cannot hold, gives the decisions of the exact sweep, NaN included."""
    columns = np.random.default_rng(7).normal(size=(20, 100)).astype(np.float32)
    columns[3:6] *= 1e25
    bench = Bench(columns, sweeper)
    with np.errstate(all="ignore"):
        exact, tiered, _ = bench.both(np.random.default_rng(8).normal(size=100) * size)
        assert np.array_equal(exact.at_least(0.5), tiered.at_least(0.5))
        assert np.array_equal(exact.top_mean(3), tiered.top_mean(3), equal_nan=True)
        assert exact.argmax() == tiered.argmax()


def test_gradients_of_features_that_are_no_candidates_are_exact() -> None:
    """``of`` answers for any feature, as the exact sweep does, whether the question was about it or not."""
    bench = Bench(PaperDesign(200, 50).matrix(), Sweeper(1))
    bench.usable = bench.usable[5:30]
    exact, tiered, _ = bench.both(PaperDesign(200, 50).response())
    for features in ([49, 7], [0, 1], [6, 31], [29]):
        assert exact.of(np.array(features)).tobytes() == tiered.of(np.array(features)).tobytes()


def test_a_decision_reads_only_what_is_doubtful() -> None:
    """At a threshold amid a thousand scores few columns are read, each once, and those far from it never."""
    columns = PaperDesign(1500, 1000).matrix()
    bench = Bench(columns, Sweeper(1))
    exact, tiered, traffic = bench.both(PaperDesign(1500, 1000).response())
    threshold = 0.25 * exact.top_mean(20)
    assert np.array_equal(exact.at_least(threshold), tiered.at_least(threshold))
    assert 0 < traffic.features_visited < 50
    before = traffic.bytes_read
    assert before == traffic.features_visited * 1500 * 4
    tiered.at_least(threshold)
    assert traffic.bytes_read == before


# --- whole selections ----------------------------------------------------------------------------------------------------------

COUNTERS = ("gradient_rounds", "gradient_calls", "independence_rounds", "independence_calls")


def bits(selection: fo.Selection) -> tuple[Any, ...]:
    """Everything of an answer that the tier must not change."""
    coef = selection.column_coef
    counters = [getattr(selection, counter) for counter in COUNTERS]
    return (selection.indices.tolist(), coef.tobytes(), selection.intercept, selection.score, selection.score_unpolished, counters)


@pytest.fixture(scope="module")
def store() -> fo.FeatureStore:
    """Build a store with features of several columns, a column far from zero, duplicates, outliers and two targets."""
    design = PaperDesign(400, 1200, seed=4)
    X, y = design.matrix().astype(np.float32), design.response()
    X[700] += 5000
    X[40] = X[41] = X[3]
    X[100:130, 7] = 1e4
    targets = {"amount": y, "class": np.where(y > 0, "good", "bad")}
    return fo.create_store(
        "dram:tiered", X, targets, rows="features", groups={"region": [10, 11, 12], "job": [900, 901]}, replace=True
    )


REQUESTS = {
    "fast_omp": {"k": 30},
    "unpolished": {"k": 30, "tau": 0.9, "until": "full", "polish": "none"},
    "several taus": {"k": 20, "tau": "auto"},
    "sds_omp": {"k": 10, "algorithm": "sds_omp"},
    "logistic": {"k": 12, "objective": "logistic", "target": "class"},
    "logistic sds_omp": {"k": 5, "objective": "logistic", "target": "class", "algorithm": "sds_omp"},
    "held out": {"k": 15, "test_fraction": 0.3},
    "raw": {"k": 10, "standardize": False},
    "tiny budget": {"k": 20, "gather_bytes": 40_000},
}


@pytest.mark.parametrize("name", list(REQUESTS))
def test_a_selection_is_the_same_with_and_without_the_tier(store: fo.FeatureStore, name: str) -> None:
    """Indices, bits of coefficients and scores, and the counters of rounds agree; only the bytes differ."""
    exact = fo.select(store, tier="exact", **REQUESTS[name])
    tiered = fo.select(store, tier="int8", **REQUESTS[name])
    assert bits(exact) == bits(tiered)
    assert (exact.tier, tiered.tier) == ("exact", "int8")
    assert exact.bytes_read_tier == 0 < tiered.bytes_read_tier
    if name in ("fast_omp", "sds_omp", "logistic", "several taus"):
        assert tiered.bytes_read < 0.5 * exact.bytes_read


@pytest.mark.parametrize("algorithm", ["top_k", "sds_ma", "isk"])
def test_every_gradient_comes_from_one_exact_sweep(store: fo.FeatureStore, algorithm: str) -> None:
    """Algorithms that want the gradient of every feature sweep the matrix alone: the tier would be read besides, for nothing."""
    exact = fo.select(store, k=10, algorithm=algorithm, tier="exact")
    tiered = fo.select(store, k=10, algorithm=algorithm, tier="int8")
    assert bits(exact) == bits(tiered)
    assert (tiered.bytes_read, tiered.bytes_read_tier) == (exact.bytes_read, 0)


def test_merged_runs_have_the_bits_and_costs_of_runs_alone(store: fo.FeatureStore) -> None:
    """Requests with and without the tier, standardised or not, answered together equal each answered alone."""
    names = ("fast_omp", "sds_omp", "unpolished", "raw", "held out")
    requests = [{**REQUESTS[name], "tier": tier} for name in names for tier in ("int8", "exact")]
    for request, merged in zip(requests, fo.select_many(store, requests), strict=True):
        alone = fo.select(store, **request)
        assert bits(merged) == bits(alone)
        assert (merged.bytes_read, merged.bytes_read_tier, merged.sweeps) == (alone.bytes_read, alone.bytes_read_tier, alone.sweeps)


@settings(max_examples=25)
@given(
    columns=awkward_columns(("float32", "float64")), seed=st.integers(0, 1000), algorithm=st.sampled_from(["fast_omp", "sds_omp"])
)
def test_awkward_data_are_selected_alike(columns: np.ndarray, seed: int, algorithm: str) -> None:
    """Outliers, duplicates, tiny and shifted columns: the selection is the same with and without the tier, or the same error."""
    y = np.random.default_rng(seed).normal(size=columns.shape[1])
    with fo.create_store("dram:awkward", columns, y, rows="features", dtype=str(columns.dtype), replace=True) as made:
        answers = []
        for tier in ("exact", "int8"):
            try:
                answers.append(bits(fo.select(made, k=3, tier=tier, algorithm=algorithm, epsilon=0.3)))
            except fo.FastompError as error:
                answers.append((str(error),))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("request_", [{"k": 30}, {"k": 8, "algorithm": "sds_omp"}], ids=["fast_omp", "sds_omp"])
def test_bytes_are_what_the_kernel_was_given(
    store: fo.FeatureStore, request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Bytes of tier and matrix equal those counted where the kernel reads them from the store."""
    store = fo.create_store(f"mmap://{tmp_path}/s", store.matrix, store.targets["amount"].values, rows="features", tier="int8")
    seen = {"tier": 0, "exact": 0}
    used = kernel()

    def dots_int8(rows: np.ndarray, vectors: np.ndarray, out: np.ndarray) -> None:
        seen["tier"] += rows.nbytes
        used.dots_int8(rows, vectors, out)

    def gather(rows: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
        if np.shares_memory(rows, store.matrix):
            seen["exact"] += out.nbytes
        used.gather(rows, index, out)

    def dots(rows: np.ndarray, vectors: np.ndarray, out: np.ndarray) -> None:
        assert not np.shares_memory(rows, store.matrix), "with the tier the matrix is only gathered from"
        used.dots(rows, vectors, out)

    def dots_at(rows: np.ndarray, index: np.ndarray, vectors: np.ndarray, out: np.ndarray) -> None:
        assert not np.shares_memory(rows, store.matrix), "columns of a file are multiplied in memory"
        used.dots_at(rows, index, vectors, out)

    counting = used._replace(dots=dots, dots_at=dots_at, dots_int8=dots_int8, gather=gather)
    monkeypatch.setattr("fastomp_nvm.matrix.sweeper.kernel", lambda: counting)
    found = fo.select(store, tier="int8", threads=1, **request_)
    assert found.bytes_read_tier == seen["tier"]
    assert found.bytes_read_exact == seen["exact"]
    assert found.bytes_read == seen["tier"] + seen["exact"]


def test_a_column_read_for_a_decision_is_not_read_again(store: fo.FeatureStore) -> None:
    """What a decision read is at hand when the algorithm gathers it; what nobody gathers joins no pool."""
    dataset = Dataset.of_store(store)
    traffic = Traffic()
    pool = ColumnPool(dataset.design(), Sweeper(1), traffic, 1 << 24)
    row = dataset.n_obs * 4
    pool.products(np.array([1, 5, 10]), np.ones((dataset.n_obs, 1)))  # 10 spans three columns
    pool.products(np.array([5, 6]), np.ones((dataset.n_obs, 1)))
    assert not pool.features.size
    ((_, rows, places),) = pool.columns(np.array([5, 10, 20])).pieces()
    assert rows[places].tobytes() == dataset.matrix[[5, 10, 11, 12, 22]].tobytes()
    assert pool.features.tolist() == [5, 10, 20]
    left = pool.settle()
    assert (traffic.bytes_read + left.bytes_read) == row * 7
    assert left.features_visited == 2
    assert pool.settle() == Traffic()


@pytest.mark.parametrize("name", ["fast_omp", "several taus", "sds_omp"])
def test_a_replayed_run_costs_what_it_cost(store: fo.FeatureStore, name: str) -> None:
    """Replayed after any round, decisions taken from the tier lead to the same answer, and to the same bytes, counted once."""
    request = [{**REQUESTS[name], "tier": "int8"}]
    log = MemoryLog()
    whole = select_shared(store, request, journals=[DecisionJournal(log, {})])[0][0]
    assert len(log.records) > 2
    for kept in {2, len(log.records) // 2, len(log.records)}:
        again = select_shared(store, request, journals=[DecisionJournal(MemoryLog(log.records[:kept]), {})])[0][0]
        assert bits(again) == bits(whole)
        assert (again.bytes_read, again.bytes_read_tier) == (whole.bytes_read, whole.bytes_read_tier)


def test_the_default_is_the_tier_where_it_pays(tmp_path: Path) -> None:
    """``auto`` takes the tier of a large matrix for algorithms that decide, and the exact matrix otherwise."""
    X, y = sparse_design(1200, 8000, true=5, noise=0.5, seed=1)
    with fo.create_store(f"mmap://{tmp_path}/large", X, y) as large:
        assert [fo.select(large, k=3, algorithm=name).tier for name in ("fast_omp", "sds_omp", "top_k")] == [
            "int8",
            "int8",
            "exact",
        ]
        assert fo.select(large, k=3, tier="exact").tier == "exact"
    with fo.create_store(f"mmap://{tmp_path}/small", X[:, :50], y) as small:
        assert fo.select(small, k=3).tier == "exact"
        assert json.loads(json.dumps(fo.select(small, k=3, tier="int8").to_json()))["bytes_read_tier"] > 0
    megabyte = np.broadcast_to(np.int8(0), (1 << 10, 1 << 10))
    for resident, algorithm, least in ((True, "fast_omp", 256), (False, "fast_omp", 32), (False, "sds_omp", 32)):
        matrices = [np.broadcast_to(megabyte, (size, 1 << 10, 1 << 10)).view() for size in (least - 1, least)]
        assert [worthwhile(matrix, algorithm, resident=resident) for matrix in matrices] == [False, True]
    assert not worthwhile(np.broadcast_to(megabyte, (1 << 20, 1 << 10, 1 << 10)).view(), "sds_omp", resident=True)


def test_asking_for_a_tier_that_is_not_there_is_refused() -> None:
    """``tier="int8"`` on an array or a store without one, and an unknown tier, are errors that say what to do."""
    X = np.random.default_rng(0).normal(size=(30, 5))
    with pytest.raises(RequestError, match="no int8 tier: build the store with one"):
        fo.select(X, X[:, 0], k=2, tier="int8")
    with pytest.raises(RequestError, match="tier is 'int4'"):
        fo.select(X, X[:, 0], k=2, tier="int4")


# --- where the tier does not pay -----------------------------------------------------------------------------------------------


@pytest.fixture
def always_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``auto`` begin with the tier however small the matrix is."""
    monkeypatch.setattr("fastomp_nvm.matrix.tier.WORTHWHILE_BYTES", {"fast_omp": (0, 0), "sds_omp": (0, 0)})


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> fo.FeatureStore:
    """Build a store of independent columns so long that all but three scores are below the errors of their codes."""
    X, y = sparse_design(40_000, 100, true=3, noise=0.5, seed=2)
    targets = {"y": y, "other": np.random.default_rng(3).normal(size=len(y))}
    return fo.create_store(f"mmap://{tmp_path_factory.mktemp('noise')}/s", X, targets)


@pytest.mark.usefixtures("always_worthwhile")
@pytest.mark.parametrize(
    ("algorithm", "passes", "tier", "reason"),
    [("sds_omp", 1.15, "int8", "decided too little"), ("fast_omp", 1.0, "exact", "exceed the scores of noise")],
)
def test_auto_gives_way_where_only_noise_is_left(
    noise: fo.FeatureStore, algorithm: str, passes: float, tier: str, reason: str
) -> None:
    """Where the tier alone reads nearly everything twice, ``auto`` takes few bytes more than the exact matrix: the same answer.

    The few passes of FAST_OMP are over before it tries the tier, so that it takes no byte more.
    """
    found = {name: fo.select(noise, k=30, algorithm=algorithm, tier=name) for name in ("exact", "int8", "auto")}
    assert found["int8"].full_passes > 1.6 * found["exact"].full_passes
    assert found["auto"].full_passes <= passes * found["exact"].full_passes
    assert found["auto"].bytes_read <= 1.15 * found["exact"].bytes_read
    assert (found["auto"].tier, found["auto"].choices["tier"].value) == (tier, tier)
    assert reason in found["auto"].choices["tier"].reason
    assert bits(found["auto"]) == bits(found["exact"])


@pytest.mark.usefixtures("always_worthwhile")
@pytest.mark.parametrize("name", ["fast_omp", "sds_omp", "several taus", "logistic"])
def test_auto_keeps_to_the_tier_where_it_decides(store: fo.FeatureStore, name: str) -> None:
    """Where intervals decide, ``auto`` reads what the tier alone reads: less than half of the exact matrix."""
    exact, tiered, auto = (fo.select(store, tier=tier, **REQUESTS[name]) for tier in ("exact", "int8", "auto"))
    assert (auto.bytes_read, auto.bytes_read_tier) == (tiered.bytes_read, tiered.bytes_read_tier)
    assert auto.bytes_read < 0.5 * exact.bytes_read
    assert (auto.choices["tier"].value, "left little" in auto.choices["tier"].reason) == ("int8", True)
    assert "tier" not in exact.choices


@pytest.mark.usefixtures("always_worthwhile")
def test_a_resumed_run_gives_way_as_an_uninterrupted_one(noise: fo.FeatureStore) -> None:
    """Resumed after any round, a run that left the tier takes the bytes, of tier and matrix, that it takes uninterrupted."""
    request = [{"k": 16, "algorithm": "sds_omp", "target": "y"}]
    log = MemoryLog()
    whole = select_shared(noise, request, journals=[DecisionJournal(log, {})])[0][0]
    assert 0 < whole.bytes_read_tier < whole.bytes_read_exact
    for kept in range(2, len(log.records)):
        again = select_shared(noise, request, journals=[DecisionJournal(MemoryLog(log.records[:kept]), {})])[0][0]
        assert bits(again) == bits(whole)
        assert (again.bytes_read, again.bytes_read_tier) == (whole.bytes_read, whole.bytes_read_tier)


@pytest.mark.usefixtures("always_worthwhile")
def test_runs_that_leave_the_tier_at_other_times_still_share_sweeps(noise: fo.FeatureStore) -> None:
    """In company each run costs what it costs alone, and all of them together less than three quarters of that."""
    requests = [{"k": 16, "algorithm": "sds_omp", "target": target} for target in ("y", "other")]
    alone = [fo.select(noise, **request) for request in requests]
    merged, traffic = select_shared(noise, requests)
    for one, other in zip(merged, alone, strict=True):
        assert bits(one) == bits(other)
        assert (one.bytes_read, one.bytes_read_tier, one.sweeps) == (other.bytes_read, other.bytes_read_tier, other.sweeps)
    assert traffic.bytes_read < 0.75 * sum(one.bytes_read for one in alone)


def test_sds_omp_leaves_the_tier_of_data_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing waits for a device SDS_OMP sweeps the matrix, whatever its size; from a file it begins with the tier."""
    X, y = sparse_design(300, 200, true=10, noise=0.5, seed=4)
    monkeypatch.setattr(tiers, "WORTHWHILE_BYTES", {"sds_omp": (0, tiers.WORTHWHILE_BYTES["sds_omp"][1])})
    chosen = {}
    for url in (f"mmap://{tmp_path}/s", "dram:sds-omp-tier"):
        with fo.create_store(url, X, y, tier="int8", replace=True) as store:
            chosen[store.traits.medium] = fo.select(store, k=5, algorithm="sds_omp").choices["tier"]
    assert chosen["mmap"].value == "int8"
    assert chosen["dram"] == Choice("exact", "sds_omp over 0 MB in memory is not expected to be faster with the tier")


def test_an_account_counts_the_bytes_that_are_waited_for() -> None:
    """A tier in memory pays as long as less is picked than the matrix has; beside the matrix, only if little is."""
    for apart, share, pays in ((False, 0.2, True), (False, 0.3, False), (True, 0.75, True), (True, 0.9, False)):
        account = TierAccount(400, 100, apart=apart)
        account.settle(Traffic(2, 200, 100 + int(400 * share), 100))
        assert account.pays == pays


def test_an_account_tries_again_ever_later() -> None:
    """After a try that failed 4 queries go over the matrix, then 8, then 16; after one that paid it is 4 again."""
    account, pauses = TierAccount(400, 100, apart=False), []
    for picked in (400, 400, 400, 0, 400):
        account.settle(Traffic(2, 200, 100 + picked, 100))
        pauses.append(0)
        while not account.pays:
            account.settle(Traffic(1, 100, 400, 0))
            pauses[-1] += 1
    assert pauses == [4, 8, 16, 0, 4]


def test_an_account_of_coarse_codes_begins_with_the_matrix() -> None:
    """As after an attempt that failed: 4 queries over the matrix, and 8 more when the first attempt fails as well."""
    account, before = TierAccount(400, 100, apart=False, coarse=True), []
    for _ in range(2):
        before.append(0)
        while not account.pays:
            account.settle(Traffic(1, 100, 400, 0))
            before[-1] += 1
        account.settle(Traffic(2, 200, 500, 100))
    assert before == [4, 8]


def test_codes_are_coarse_where_noise_is_below_their_errors(store: fo.FeatureStore, noise: fo.FeatureStore) -> None:
    """Those of 40,000 observations are, those of 400 are not; a tier in memory beside a file is tried all the same."""
    assert store.tier is not None
    assert noise.tier is not None
    assert (store.tier.coarse, noise.tier.coarse) == (False, True)
    with fo.open_store(f"{noise.url}?tier=dram") as loaded:
        for opened, pays in ((noise, False), (loaded, True)):
            data = Dataset.of_store(opened)
            assert data.tier is not None
            assert data.account(data.tier).pays == pays


@pytest.mark.usefixtures("always_worthwhile")
def test_a_loaded_tier_is_apart_from_a_matrix_in_a_file(
    noise: fo.FeatureStore, store: fo.FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tier and matrix are accounted for apart exactly where the first is in memory and the other in a file."""
    seen = []

    def account(*sizes: int, apart: bool, coarse: bool) -> TierAccount:
        seen.append(apart)
        return TierAccount(*sizes, apart=apart, coarse=coarse)

    monkeypatch.setattr("fastomp_nvm.matrix.tier.TierAccount", account)
    with fo.open_store(f"{noise.url}?tier=dram") as loaded:
        for data in (loaded, noise, store):
            fo.select(data, k=2)
    assert seen == [True, False, False]


def test_columns_of_a_question_take_little_memory(noise: fo.FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns read to answer a question are held up to ``PROBE_BYTES``; the others are read past, counted, with the same bits."""
    monkeypatch.setattr("fastomp_nvm.matrix.pool.PROBE_BYTES", 30 * noise.matrix[0].nbytes)
    pool = ColumnPool(Dataset.of_store(noise).design(), Sweeper(1), Traffic(), 1 << 30)
    vectors = np.random.default_rng(0).normal(size=(len(noise.matrix[0]), 2))
    first, second = np.arange(20), np.arange(30, 50)
    products = [pool.products(features, vectors) for features in (first, second)]
    assert (pool.holds(first), pool.holds(second)) == (True, False)
    assert pool.settle().bytes_read == 40 * noise.matrix[0].nbytes
    for features, found in zip((first, second), products, strict=True):
        assert pool.columns(features).products(vectors).tobytes() == found.tobytes()
