"""Grids, folds and subsamples: the answers of the requests alone, from shared scans, with nothing leaking from held-out rows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.constraints import Cardinality, Fairness, Intersection

pytestmark = pytest.mark.numerics

N_OBS, N_FEATURES = 150, 600


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """Return the paper's synthetic data, float32."""
    design = PaperDesign(N_OBS, N_FEATURES, seed=9)
    return design.matrix().T.astype(np.float32), design.response()


def bits(selection: fo.Selection) -> tuple[Any, ...]:
    coef = selection.column_coef
    return (selection.indices.tolist(), coef.tobytes(), selection.intercept, selection.score, selection.bytes_read)


def test_progress_tells_what_was_really_read(data) -> None:
    """A merged sweep counts once in the bytes reported to an observer, as it does in the figures of the grid."""
    X, y = data
    heard: list[Any] = []
    found = fo.grid(X, y, over={"seed": range(6)}, k=10, observer=heard.append)
    told = [progress.bytes_read for progress in heard]
    assert told == sorted(told)
    assert X.nbytes < told[-1] <= found.sharing.bytes_read < found.sharing.bytes_read_alone


def test_each_cell_of_a_grid_equals_the_request_alone(data) -> None:
    """Every combination is there, in order, with the bits of ``select``."""
    X, y = data
    over = {"tau": [0.3, 0.9, "auto"], "epsilon": [0.1, 0.4], "k": [5, 12], "seed": [0, 1]}
    found = fo.grid(X, y, over=over, until="full")
    assert [tuple(cell.settings.values()) for cell in found.cells] == list(itertools.product(*over.values()))
    for cell in found.cells:
        assert bits(cell.selection) == bits(fo.select(X, y, until="full", **cell.settings)), cell.settings
    assert found.best.selection.score == max(cell.selection.score for cell in found.cells)


def test_a_grid_reads_far_less_than_its_cells_alone(data) -> None:
    """The bytes of merged sweeps and of every gather are counted, and are a fraction of the sum of the runs alone."""
    X, y = data
    found = fo.grid(X, y, over={"seed": range(12)}, k=10, polish="none")
    assert found.sharing.bytes_read_alone == sum(cell.selection.bytes_read for cell in found.cells)
    assert found.sharing.bytes_read < 0.5 * found.sharing.bytes_read_alone
    most = max(cell.selection.full_passes for cell in found.cells)
    assert most // 1 <= found.sharing.full_passes < found.sharing.full_passes_alone
    single = fo.grid(X, y, over={"seed": [3]}, k=10)
    assert single.sharing.bytes_read == single.sharing.bytes_read_alone


def test_shared_bytes_are_what_a_counting_kernel_saw(data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighted and plain requests together: sweeps and gathers are counted once per byte that was touched."""
    from fastomp_nvm.engine.dataset import Dataset
    from fastomp_nvm.matrix.kernels import kernel
    from fastomp_nvm.matrix.sweeper import Sweeper
    from fastomp_nvm.selection.select import select_shared

    X, y = data
    dataset = Dataset.of_store(fo.create_store(f"mmap://{tmp_path}/s", X))
    real, seen = kernel(), {"bytes": 0}
    low, high = dataset.matrix.array.ctypes.data, dataset.matrix.array.ctypes.data + dataset.matrix.nbytes

    class Counting:
        id = real.id

        def dots(self, rows, residuals, out) -> None:
            seen["bytes"] += rows.nbytes if low <= rows.ctypes.data < high else 0
            real.dots(rows, residuals, out)

        def dots_at(self, rows, index, residuals, out) -> None:
            real.dots_at(rows, index, residuals, out)

        def gather(self, rows, index, out) -> None:
            seen["bytes"] += out.nbytes if low <= rows.ctypes.data < high else 0
            real.gather(rows, index, out)

    original = Sweeper.__init__

    def counting(self, threads=None, implementation=None, **others) -> None:
        original(self, threads, Counting(), **others)

    monkeypatch.setattr(Sweeper, "__init__", counting)
    rng = np.random.default_rng(0)
    halves = [(rng.random(N_OBS) < 0.5).astype(float) for _ in range(3)]
    _, traffic = select_shared(dataset, [{"k": 8, "weights": half} for half in halves] + [{"k": 8}, {"k": 3, "tau": "auto"}], y)
    assert traffic.bytes_read == seen["bytes"] + dataset.matrix.nbytes  # the one pass of moments goes without the kernel


def test_lambda_replaces_the_limit_of_the_fairness_part(data) -> None:
    """A grid over lambda selects under the same judgements with each limit, however the constraint was given."""
    X, y = data
    judgements = np.random.default_rng(4).random((40, N_FEATURES)) < 0.7
    limits = [0.2, 0.5, 0.9]
    constraint = Intersection([Cardinality(N_FEATURES, 8), Fairness(N_FEATURES, judgements, 0.0)])
    found = fo.grid(X, y, over={"lambda": limits}, constraint=constraint)
    for cell, limit in zip(found.cells, limits, strict=True):
        alone = fo.select(X, y, constraint=Intersection([Cardinality(N_FEATURES, 8), Fairness(N_FEATURES, judgements, limit)]))
        assert bits(cell.selection) == bits(alone)
    sizes = [len(cell.selection.indices) for cell in found.cells]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    with pytest.raises(fo.ConstraintError, match="fairness part"):
        fo.grid(X, y, over={"lambda": [0.1]}, constraint=Cardinality(N_FEATURES, 8))
    with pytest.raises(fo.ConstraintError, match="fairness part"):
        fo.grid(X, y, over={"lambda": [0.1]}, k=8)


@pytest.mark.parametrize("people", [1, 40, 64, 200])
def test_another_limit_keeps_the_judgements(people: int) -> None:
    """``with_limit`` is the constraint built with that limit, for any number of people."""
    rng = np.random.default_rng(people)
    judgements = rng.random((people, 30)) < 0.8
    changed, built = Fairness(30, judgements, 0.0).with_limit(0.6), Fairness(30, judgements, 0.6)
    assert changed.rank == built.rank
    for _ in range(50):
        features = rng.choice(30, rng.integers(1, 8), replace=False)
        assert changed.unfairness(features) == built.unfairness(features)
        assert changed.independent(features) == built.independent(features)


@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_cross_validation_equals_a_loop_over_smaller_tables(data, objective: str) -> None:
    """Deleting the held-out rows for real gives the same selections and the same held-out scores."""
    X, y = data[0].astype(np.float64), data[1]
    if objective == "logistic":
        y = (y > np.median(y)).astype(float)
    common: dict[str, Any] = {"objective": objective, "seed": 2, "ridge": 0.1}  # without a ridge nine features separate the classes
    found = fo.cross_validate(X, y, folds=4, ks=[9, 3], **common)
    assert found.ks.tolist() == [3, 9]
    sizes = np.bincount(found.fold_of)
    assert sizes.max() - sizes.min() <= 1
    if objective == "logistic":
        shares = [y[found.fold_of == fold].sum() for fold in range(4)]
        assert max(shares) - min(shares) <= 1
    for place, k in enumerate([3, 9]):
        for fold in range(4):
            out = found.fold_of == fold
            naive = fo.select(X[~out], y[~out], k=k, **common)
            assert found.fold_selections[place][fold].indices.tolist() == naive.indices.tolist()
            predicted = naive.predict(X[out])
            if objective == "linear":
                wanted = 1 - ((y[out] - predicted) ** 2).sum() / ((y[out] - y[out].mean()) ** 2).sum()
            else:
                wanted = np.mean(np.log(np.where(y[out] == 1, predicted, 1 - predicted)))
            assert found.scores[place, fold] == pytest.approx(wanted, rel=1e-6)
    assert found.mean == pytest.approx(found.scores.mean(axis=1))
    assert found.standard_error == pytest.approx(found.scores.std(axis=1, ddof=1) / 2)


def test_held_out_rows_do_not_leak(data) -> None:
    """Rewriting a fold's rows and responses changes nothing that was selected or fitted without them."""
    X, y = data
    before = fo.cross_validate(X, y, folds=5, ks=[4, 8])
    for fold in (0, 3):
        out = before.fold_of == fold
        changed, response = X.copy(), y.copy()
        changed[out] = 1000 * np.random.default_rng(1).normal(size=(int(out.sum()), N_FEATURES)) + 77
        changed[out, ::3] = 1e30  # what files are filled with where nothing was measured
        response[out] = -500 * response[out] + 9
        after = fo.cross_validate(changed, response, folds=before.fold_of, ks=[4, 8])
        for place in range(2):
            left, right = before.fold_selections[place][fold], after.fold_selections[place][fold]
            assert left.indices.tolist() == right.indices.tolist()
            assert left.column_coef == pytest.approx(right.column_coef, rel=1e-5)
            assert left.score == pytest.approx(right.score, rel=1e-5)
            assert before.scores[place, fold] != pytest.approx(after.scores[place, fold])


def test_the_rule_chooses_k_and_the_final_selection_sees_all_rows(data) -> None:
    """The best mean, or the smallest k within one standard error; then the selection of that k on everything."""
    X, y = data
    found = {rule: fo.cross_validate(X, y, folds=5, k_max=12, rule=rule) for rule in ("best", "one-standard-error")}
    best = found["best"]
    place = int(np.argmax(best.mean))
    assert best.k == best.best_k == place + 1
    smaller = [k for k in range(1, 13) if best.mean[k - 1] >= best.mean[place] - best.standard_error[place]]
    assert found["one-standard-error"].k == best.one_standard_error_k == smaller[0]
    for answer in found.values():
        assert bits(answer.selection) == bits(fo.select(X, y, k=answer.k))
    sharing = best.sharing
    assert sharing.bytes_read < 0.5 * sharing.bytes_read_alone  # 72 selections
    json.dumps(best.to_json())


def test_observation_weights_are_kept_in_folds(data) -> None:
    """A row of weight zero might as well not be there."""
    X, y = data
    weights = np.ones(N_OBS)
    weights[::7] = 0
    folds = np.arange(N_OBS) % 3
    kept = weights > 0
    found = fo.cross_validate(X.astype(np.float64), y, folds=folds, ks=[5], weights=weights)
    smaller = fo.cross_validate(X[kept].astype(np.float64), y[kept], folds=folds[kept], ks=[5])
    assert found.scores == pytest.approx(smaller.scores, rel=1e-6)


def test_stability_counts_selections_on_subsamples(data) -> None:
    """Frequencies follow from the seed, equal the naive count, and subsamples hold their share of the rows."""
    X, y = data
    found = fo.stability(X, y, k=6, subsamples=10, seed=3)
    again = fo.stability(X, y, k=6, subsamples=10, seed=3)
    assert np.array_equal(found.frequencies, again.frequencies)
    assert not np.array_equal(found.frequencies, fo.stability(X, y, k=6, subsamples=10, seed=4).frequencies)
    assert found.average_size == pytest.approx(found.frequencies.sum())
    assert found.frequencies[found.indices].tolist() == sorted(found.frequencies[found.frequencies > 0], reverse=True)
    assert found.stable == [f"f{index}" for index in found.indices if found.frequencies[index] >= 0.6]
    assert found.expected_false == pytest.approx(found.average_size**2 / (0.2 * N_FEATURES))
    assert found.sharing.bytes_read < 0.6 * found.sharing.bytes_read_alone
    json.dumps(found.to_json())


def test_strong_features_are_stable_and_noise_is_not() -> None:
    """Three strong features among two hundred are selected every time; the rest come and go."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(200, 200))
    y = (2 * X[:, 4] - 2 * X[:, 90] + 2 * X[:, 150] + rng.normal(size=200)) > 0
    found = fo.stability(X, y, k=6, objective="logistic", subsamples=20)
    assert set(found.stable) == {"f4", "f90", "f150"}
    assert found.frequencies[[4, 90, 150]].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, y: fo.grid(X, y, over={"k": []}), "at least one value"),
        (lambda X, y: fo.grid(X, y, over={"kk": [1]}), "no parameter 'kk'"),
        (lambda X, y: fo.cross_validate(X, y, folds=1, ks=[2]), "folds is 1"),
        (lambda X, y: fo.cross_validate(X, y, folds=5), "either a list of sizes"),
        (lambda X, y: fo.cross_validate(X, y, ks=[2], k_max=3), "either a list of sizes"),
        (lambda X, y: fo.cross_validate(X, y, ks=[0]), "k is 0"),
        (lambda X, y: fo.cross_validate(X, y, ks=[2], k=2), "chooses k itself"),
        (lambda X, y: fo.cross_validate(X, y, ks=[2], test_fraction=0.2), "leave test_fraction out"),
        (lambda X, y: fo.cross_validate(X, y, ks=[2], rule="worst"), "rule is 'worst'"),
        (lambda X, y: fo.cross_validate(X, y, ks=[2], folds=np.zeros(N_OBS, dtype=int)), "at least two different"),
        (lambda X, y: fo.cross_validate(X, y, ks=[2], folds=np.arange(N_OBS) % 2 * 2), "fewer folds"),
        (lambda X, y: fo.stability(X, y, k=2, subsamples=0), "subsamples is 0"),
        (lambda X, y: fo.stability(X, y, k=2, fraction=1.0), "fraction is 1.0"),
        (lambda X, y: fo.stability(X, y, k=2, threshold=0), "threshold is 0"),
    ],
)
def test_bad_input_is_one_sentence(data, call, message: str) -> None:
    """What cannot be meant is refused before anything is read."""
    with pytest.raises(fo.RequestError, match=message):
        call(*data)
