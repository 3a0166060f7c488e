"""Every algorithm of the registry keeps the same contract, and the baselines do what their slow transcriptions do."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.algorithms.draws import permutation
from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.constraints import Bounds, Cardinality, Fairness, Intersection, Knapsack, Oracle, Partition
from tests import oracles
from tests.selection.test_against_oracles import Instance, permuted

NAMES = sorted(ALGORITHMS)

#: What a baseline can do besides a cardinality.
CARDINALITY_ONLY = {"dash", "lasso"}
FAIRNESS_TOO = {"isk"}
GENERAL = [name for name in NAMES if name not in CARDINALITY_ONLY | FAIRNESS_TOO]

#: Those that draw at random.
RANDOM = {"dash", "fast", "fast_omp", "random"}


def needs(algorithm: str) -> None:
    """Skip where the library behind an algorithm is missing."""
    if algorithm == "lasso":
        pytest.importorskip("sklearn")


def bits(found: fo.Selection) -> tuple[Any, ...]:
    """Everything of an answer that must not differ."""
    return (tuple(found.indices.tolist()), np.concatenate([[0.0], found.column_coef]).tobytes(), found.intercept, found.score)


def check(found: fo.Selection) -> None:
    """Require a sensible answer: distinct features, finite numbers, feasible, honest about the polish."""
    assert len(set(found.indices.tolist())) == len(found.indices)
    assert np.isfinite([found.score, found.intercept, found.score_unpolished, *np.concatenate([[0.0], found.column_coef])]).all()
    assert found.feasible
    assert not found.violations
    if found.algorithm != "fast_omp":
        assert found.score_unpolished == found.score
        assert found.polish == "none"


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    """Return 40 features, 5 of them constant, two of them the same, of which six matter."""
    rng = np.random.default_rng(11)
    X = rng.normal(size=(80, 40))
    X[:, [0, 9, 18, 27, 36]] = [0.0, 1.0, -3.5, 1e8, 1e-30]
    X[:, 5] = X[:, 6]
    return X, X[:, [2, 6, 11, 20, 30, 39]] @ np.array([3.0, -2.0, 2.0, 1.0, 1.0, -1.0]) + 0.5 * rng.normal(size=80)


def response(y: np.ndarray, objective: str) -> np.ndarray:
    """Turn a number into what the objective explains."""
    return {"linear": y, "logistic": y > 0, "poisson": np.floor(np.abs(y))}[objective]


@pytest.mark.numerics
@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("objective", ["linear", "logistic", "poisson"])
def test_an_answer_is_feasible_finite_and_free_of_constant_columns(data, algorithm, objective) -> None:
    """At most k features, none constant, no NaN, for each objective."""
    needs(algorithm)
    X, y = data
    request = {"k": 6, "algorithm": algorithm, "objective": objective}
    if (algorithm, objective) == ("lasso", "poisson"):
        with pytest.raises(fo.RequestError, match="linear and logistic"):
            fo.select(X, response(y, objective), **request)
        return
    found = fo.select(X, response(y, objective), **request)
    check(found)
    assert 1 <= len(found.indices) <= 6
    assert not set(found.indices.tolist()) & {0, 9, 18, 27, 36}


@pytest.mark.numerics
@pytest.mark.parametrize("algorithm", NAMES)
def test_the_seed_decides(data, algorithm) -> None:
    """The same seed gives the same bits; another seed another set, sooner or later, where the algorithm is random."""
    needs(algorithm)
    X, y = data
    request: dict[str, Any] = {"k": 6, "algorithm": algorithm, "polish": "none", "tau": 0.1, "epsilon": 0.4}
    answers = [bits(fo.select(X, y, seed=seed, **request)) for seed in range(6)]
    assert answers == [bits(fo.select(X, y, seed=seed, **request)) for seed in range(6)]
    if algorithm not in RANDOM:
        assert len(set(answers)) == 1
    elif algorithm in {"random", "fast_omp"}:
        assert len(set(answers)) > 1


@pytest.mark.parametrize("algorithm", NAMES)
def test_media_threads_and_company_agree(data, algorithm, tmp_path: Path) -> None:
    """In memory, on a read-only mapped file, with one thread and three, alone and beside others: the same bits."""
    needs(algorithm)
    X, y = data
    groups = {"wide": [12, 13, 14], "two": [21, 22]}
    dram = fo.create_store("dram:selectors", X.astype(np.float32), y, groups=groups, replace=True)
    mmap = fo.create_store(f"mmap://{tmp_path}/s", X.astype(np.float32), y, groups=groups)
    assert not mmap.matrix.flags.writeable
    request = {"k": 5, "algorithm": algorithm}
    wanted = fo.select(dram, **request)
    check(wanted)
    for store in (dram, mmap):
        for threads in (1, 3):
            assert bits(fo.select(store, threads=threads, **request)) == bits(wanted)
    company = fo.select_many(mmap, [{"k": 3}, request, {"k": 4, "algorithm": "sds_omp"}])
    assert bits(company[1]) == bits(wanted)


@pytest.mark.numerics
@pytest.mark.parametrize("algorithm", NAMES)
def test_the_data_is_never_written(data, algorithm) -> None:
    """A read-only mapping is enough, and its bytes stay as they are."""
    needs(algorithm)
    X, y = data
    before = X.copy()
    X.setflags(write=False)
    check(fo.select(X, y, k=4, algorithm=algorithm))
    assert X.tobytes() == before.tobytes()


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_features_of_several_columns_are_selected_whole(algorithm, objective) -> None:
    """A categorical that decides the response is found by every algorithm that looks at the data, as one feature."""
    needs(algorithm)
    rng = np.random.default_rng(2)
    level = rng.integers(0, 4, 120)
    X = np.column_stack((rng.normal(size=(120, 6)), np.eye(4)[level]))
    y = np.array([3.0, -3.0, 1.0, -1.0])[level] + 0.3 * rng.normal(size=120)
    store = fo.create_store("dram:wide", X, response(y, objective).astype(float), groups={"level": [6, 7, 8, 9]}, replace=True)
    found = fo.select(store, k=2, algorithm=algorithm, objective=objective)
    check(found)
    if algorithm != "random":
        assert found.features[0] == "level"
        assert len(found.coef[0]) == 4


@pytest.mark.numerics
@pytest.mark.parametrize("algorithm", NAMES)
def test_a_single_feature(algorithm) -> None:
    """One feature is selected when there is one."""
    needs(algorithm)
    x = np.arange(12.0)[:, None]
    found = fo.select(x, 3 * x[:, 0] + 1, k=1, objective="linear", algorithm=algorithm)
    check(found)
    assert found.indices.tolist() == [0]
    assert found.column_coef[0] == pytest.approx(3.0)


@pytest.mark.numerics
@pytest.mark.parametrize("algorithm", NAMES)
def test_more_asked_for_than_there_is(data, algorithm) -> None:
    """A k beyond the usable features ends with at most those, whatever is dependent among them."""
    needs(algorithm)
    X, y = data
    found = fo.select(X, y, k=1000, algorithm=algorithm, until="full")
    check(found)
    assert len(found.indices) <= 35
    if algorithm != "lasso":
        assert len(found.indices) == 35


@pytest.mark.numerics
@pytest.mark.parametrize("algorithm", NAMES)
def test_fewer_observations_than_features_wanted(algorithm) -> None:
    """A perfect fit ends neither in a NaN nor in a loop."""
    needs(algorithm)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(8, 30)), rng.normal(size=8)
    found = fo.select(X, y, k=12, algorithm=algorithm, until="full")
    check(found)
    assert len(found.indices) <= 12


@pytest.mark.numerics
@pytest.mark.parametrize("algorithm", NAMES)
def test_cancelling_ends_the_run(data, algorithm) -> None:
    """Each algorithm passes a point at which it may be cancelled, before its first answer."""
    needs(algorithm)
    X, y = data
    for objective in ("linear", "logistic"):
        with pytest.raises(fo.CancelledError):
            fo.select(X, response(y, objective), k=6, algorithm=algorithm, objective=objective, cancelled=lambda: True)


@pytest.mark.numerics
@pytest.mark.parametrize("algorithm", GENERAL)
@pytest.mark.parametrize("until", ["paper", "full"])
def test_general_constraints_are_kept(data, algorithm, until) -> None:
    """Partitions, knapsacks and their intersection hold, and ``full`` fills them up."""
    X, y = data
    rng = np.random.default_rng(4)
    partition = Partition(40, np.arange(40) % 4, [1, 2, 2, 1])
    knapsack = Knapsack(40, rng.uniform(0.5, 3.0, 40), 7.0)
    for limit in (partition, knapsack, Intersection([partition, knapsack])):
        found = fo.select(X, y, constraint=limit, algorithm=algorithm, until=until)
        check(found)
        assert limit.independent(found.indices)
        if until == "full":
            usable = np.setdiff1d(np.arange(40), [0, 9, 18, 27, 36])
            assert not limit.extensions(found.indices, usable).any()


@pytest.mark.numerics
@pytest.mark.parametrize("algorithm", GENERAL)
def test_lower_bounds_are_met(data, algorithm) -> None:
    """A group that explains nothing still gets the places it was promised."""
    X, y = data
    groups = np.where(np.isin(np.arange(40), [2, 6, 11, 20, 30, 39]), 0, 1)
    found = fo.select(X, y, constraint=Bounds(40, groups, lower=[0, 3], upper=[6, 6], total=6), algorithm=algorithm)
    check(found)
    assert np.count_nonzero(groups[found.indices]) >= 3


@pytest.mark.numerics
@pytest.mark.parametrize("algorithm", sorted(CARDINALITY_ONLY | FAIRNESS_TOO))
def test_constraints_beyond_an_algorithm_are_refused_at_the_start(data, algorithm) -> None:
    """The error names the algorithm and the constraint; a cardinality written as a constraint is welcome."""
    needs(algorithm)
    X, y = data
    fair = Fairness(40, np.ones((3, 40), dtype=bool), 0.5)
    refused: list[Any] = [Partition(40, np.arange(40) % 4, [1, 1, 1, 1]), Knapsack(40, np.ones(40), 3.0)]
    refused += [fair] if algorithm in CARDINALITY_ONLY else [Intersection([fair, fair])]
    seen: list[Any] = []
    for limit in refused:
        with pytest.raises(fo.RequestError, match=algorithm):
            fo.select(X, y, k=4, constraint=limit, algorithm=algorithm, observer=seen.append)
    assert not seen
    found = fo.select(X, y, k=4, constraint=Cardinality(40, 3), algorithm=algorithm)
    check(found)
    assert len(found.indices) <= 3


@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_lasso_finds_the_support_of_the_wanted_size(data, objective) -> None:
    """On easy data the path passes through k features, the ones that matter; above the byte limit it is refused."""
    needs("lasso")
    X, y = data
    found = fo.select(X, response(y, objective), k=3, algorithm="lasso", objective=objective)
    assert len(found.indices) == 3
    assert set(found.indices.tolist()) <= {2, 5, 6, 11, 20, 30, 39}
    with pytest.raises(fo.RequestError, match="gather_bytes"):
        fo.select(X, response(y, objective), k=3, algorithm="lasso", objective=objective, gather_bytes=10_000)


@pytest.mark.numerics
def test_weights_zero_leave_observations_out(data) -> None:
    """An algorithm on weighted data selects what it selects from the rows that are left."""
    X, y = data
    kept = np.arange(80) < 60
    for algorithm in NAMES:
        needs(algorithm)
        weighted = fo.select(X, y, k=5, algorithm=algorithm, weights=kept.astype(float))
        subset = fo.select(X[kept], y[kept], k=5, algorithm=algorithm)
        assert weighted.indices.tolist() == subset.indices.tolist(), algorithm
        assert weighted.score == pytest.approx(subset.score, abs=1e-9)


def undecided(model: oracles.Model, wanted: list[int], tolerance: float = 1e-9) -> int:
    """Return how many steps of a greedy are decided by more than rounding: those before the fit is perfect."""
    for length in range(len(wanted)):
        if model.scores(wanted[:length]).max() < tolerance:
            return length
    return len(wanted)


@pytest.mark.numerics
@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_sds_ma_is_greedy_by_refits(objective) -> None:
    """The set of the naive greedy, in its order, with features of several columns and constraints."""
    for seed in range(60 if objective == "linear" else 20):
        case = Instance(seed, objective)
        wanted = oracles.sds_ma(case.X, case.y, case.groups, case.independent, **case.model)
        found = fo.select(case.dataset("oracle"), case.y, constraint=case.constraint, algorithm="sds_ma", **case.model)
        model = oracles.Model(case.X, case.y, case.groups, **case.model)
        decided = undecided(model, wanted)
        assert found.indices.tolist()[:decided] == wanted[:decided], f"instance {seed}"
        assert len(found.indices) == len(wanted)


@pytest.mark.numerics
@pytest.mark.parametrize("options", [{"ridge": 0.3}, {"standardise": False}, {"standardise": False, "ridge": 2.0}])
def test_sds_ma_with_a_ridge_and_without_standardisation(options) -> None:
    """Gains include the penalty, and columns of any length count as they are."""
    for seed in range(25):
        case = Instance(3 * seed + 1, "linear")  # single columns: the ridge acts on whitened ones otherwise
        rng = np.random.default_rng(seed)
        weights = rng.uniform(0.2, 2.0, len(case.y)) if seed % 2 else None
        model = oracles.Model(case.X, case.y, None, weights=weights, **options)
        wanted = oracles.sds_ma(case.X, case.y, None, case.independent, weights=weights, **options)
        request = {"ridge": options.get("ridge"), "standardize": options.get("standardise", True), "weights": weights}
        found = fo.select(case.X, case.y, constraint=case.constraint, algorithm="sds_ma", **request)
        decided = undecided(model, wanted, 1e-7)
        assert found.indices.tolist()[:decided] == wanted[:decided], f"instance {seed}"


@pytest.mark.numerics
@pytest.mark.parametrize("algorithm", ["sds_ma", "fast", "dash", "fast_omp"])
def test_the_unit_of_a_column_does_not_matter_without_standardisation(data, algorithm) -> None:
    """Without a ridge f does not depend on how long columns are, so neither does what is selected."""
    X, y = data
    plain = fo.select(X, y, k=5, algorithm=algorithm, standardize=False)
    for unit in (2.0**-40, 2.0**40):
        found = fo.select(X * unit, y, k=5, algorithm=algorithm, standardize=False)
        assert found.score == pytest.approx(plain.score, rel=1e-9)
        if algorithm == "sds_ma":
            assert found.indices.tolist() == plain.indices.tolist()


@pytest.mark.numerics
def test_every_candidate_asked_about_is_counted(data) -> None:
    """A constraint that refuses almost everything was asked about everything all the same."""
    X, y = data
    allowed = Partition(40, (np.arange(40) < 4).astype(np.int64), [0, 2])
    for algorithm in ("fast_omp", "sds_omp", "sds_ma", "top_k", "random", "fast"):
        assert fo.select(X, y, algorithm=algorithm, constraint=allowed).independence_calls >= 35, algorithm


@pytest.mark.numerics
def test_nested_intersections_keep_room_for_lower_bounds(data) -> None:
    """A limit crowds no lower bound out, however deep the bounds were written."""
    X, y = data
    groups = (np.arange(40) >= 30).astype(np.int64)
    bounds = Bounds(40, groups, lower=[0, 2], upper=[10, 10], total=10)
    inner = Intersection([Intersection([bounds, Partition(40, groups, [9, 9])])])
    for request in ({"k": 3, "constraint": inner}, {"constraint": Intersection([inner, Cardinality(40, 3)])}):
        found = fo.select(X, y, **request)
        assert found.feasible
        assert len(found.indices) == 3


@pytest.mark.numerics
def test_the_polish_never_breaks_bounds_that_were_kept() -> None:
    """Of two maximal sets under bounds and something else one may be feasible alone: a better score is no reason to leave it."""
    kept = 0
    for seed in range(100, 150):  # in number 119 the better set is infeasible
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(60, 12))
        y = X @ rng.normal(size=12) + rng.normal(size=60)
        groups = rng.integers(0, 3, 12)
        bounds = Bounds(12, groups, [min(1, int((groups == group).sum())) for group in range(3)], [12] * 3, 4)
        parts = [bounds, Partition(12, rng.integers(0, 3, 12), [1, 2, 1])]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain, polished = (fo.select(X, y, constraint=Intersection(parts), polish=how) for how in ("none", "pool"))
        assert polished.feasible or not plain.feasible
        kept += plain.feasible
    assert kept > 25


@pytest.mark.numerics
def test_the_rank_of_an_oracle_is_a_limit(data) -> None:
    """Whoever writes a rank below what the function allows gets that many features, from every algorithm."""
    X, y = data
    limited = Oracle(40, lambda features: True, rank=3)
    for algorithm in ("fast_omp", "sds_omp", "sds_ma", "top_k", "random", "fast"):
        found = fo.select(X, y, algorithm=algorithm, constraint=limited)
        assert len(found.indices) <= 3
        assert found.feasible
    assert limited.violations(np.arange(4)) == ("4 features are selected, and the constraint's rank is 3",)


@pytest.mark.numerics
def test_sds_ma_costs_one_sweep_per_feature(data) -> None:
    """As many sweeps as SDS_OMP: the gradient, then one per feature but the last."""
    X, y = data
    found = fo.select(X, y, k=7, algorithm="sds_ma")
    assert found.gradient_calls == 7
    assert found.full_passes == pytest.approx(7 + 7 / 40, abs=0.01)


@pytest.mark.numerics
@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_top_k_walks_by_score(objective) -> None:
    """The oblivious selection of the transcription."""
    for seed in range(60):
        case = Instance(seed, objective)
        wanted = oracles.top_k(case.X, case.y, case.groups, case.independent, **case.model)
        found = fo.select(case.dataset("oracle"), case.y, constraint=case.constraint, algorithm="top_k", **case.model)
        assert found.indices.tolist() == wanted, f"instance {seed}"
        assert found.gradient_calls == 1


@pytest.mark.numerics
def test_random_is_rnd_seq() -> None:
    """The sequence of the transcription, given the same permutations."""
    for seed in range(60):
        case = Instance(seed, "linear")
        usable = oracles.Model(case.X, case.y, case.groups).usable

        def ordered(round_: int, features: list[int], seed: int = seed) -> list[int]:
            return permutation(seed, 0, 0, round_, np.array(features, dtype=np.int64)).tolist()

        wanted = oracles.random_base(case.independent, usable, ordered)
        found = fo.select(case.dataset("oracle"), case.y, constraint=case.constraint, algorithm="random", seed=seed)
        assert found.indices.tolist() == wanted


@pytest.mark.numerics
@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_fast_is_the_prototype_of_the_appendix(objective) -> None:
    """The set of the transcription, given the same permutations and number of iterations."""
    for seed in range(40 if objective == "linear" else 12):
        case = Instance(seed, objective)
        epsilon = max(case.parameters["epsilon"], 0.25)
        iterations = math.ceil(math.log(case.constraint.rank / epsilon) / epsilon)
        wanted = oracles.fast_prototype(
            case.X,
            case.y,
            case.groups,
            case.independent,
            epsilon=epsilon,
            iterations=iterations,
            permutation=permuted(seed),
            **case.model,
        )
        found = fo.select(
            case.dataset("oracle"),
            case.y,
            constraint=case.constraint,
            algorithm="fast",
            epsilon=epsilon,
            seed=seed,
            **case.model,
        )
        assert found.indices.tolist() == wanted, f"instance {seed}"


@pytest.mark.numerics
def test_dash_is_near_greedy_where_features_are_independent() -> None:
    """On orthogonal columns f is modular, and the filter leaves the best features alone."""
    rng = np.random.default_rng(5)
    X = np.linalg.qr(rng.normal(size=(60, 41)))[0]
    X -= X.mean(axis=0)
    y = X @ np.concatenate((np.full(6, 5.0), np.full(35, 0.1)))
    greedy = fo.select(X, y, k=6, algorithm="sds_ma")
    answers = [fo.select(X, y, k=6, algorithm="dash", seed=seed) for seed in range(20)]
    assert {len(found.indices) for found in answers} == {6}
    assert np.mean([found.score for found in answers]) >= 0.9 * greedy.score


@pytest.mark.numerics
def test_isk_keeps_the_fairness_and_uses_the_free_features(data) -> None:
    """Within the share of objectors it explains at least what the features nobody objects to explain."""
    X, y = data
    rng = np.random.default_rng(8)
    judgements = rng.random((25, 40)) < 0.85
    free = np.array([6, 12, 30])
    judgements[:, free] = True
    allowed = np.zeros((25, 40), dtype=bool)
    allowed[:, free] = True
    nothing_else = fo.select(X, y, k=6, constraint=Fairness(40, allowed, 0.0), algorithm="isk")
    assert set(nothing_else.indices.tolist()) <= set(free.tolist())
    scores = []
    for limit in (0.0, 0.2, 0.4, 0.8):
        fair = Fairness(40, judgements, limit)
        found = fo.select(X, y, k=6, constraint=fair, algorithm="isk")
        check(found)
        assert fair.unfairness(found.indices) <= limit + 1e-9
        scores.append(found.score)
    assert scores[0] >= nothing_else.score - 1e-12
    assert scores[-1] > scores[0]


@pytest.mark.numerics
def test_isk_under_a_cardinality_is_greedy(data) -> None:
    """Counting is a modular cost, its own bound: one iteration of greedy."""
    X, y = data
    greedy = fo.select(X, y, k=5, algorithm="sds_ma")
    assert fo.select(X, y, k=5, algorithm="isk").indices.tolist() == greedy.indices.tolist()
