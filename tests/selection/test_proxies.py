"""Proxies: how well features predict a protected attribute, over every kind of data, and what looking for them costs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.selection import compression
from fastomp_nvm.selection.group_figures import auc
from fastomp_nvm.selection.held_out import held_out_rows
from storage_backends.build.sharding import cut
from tests.cluster.in_process import open_in_process

N_OBS, N_FEATURES = 600, 40


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a store in which ``job``, a category, stands for ``sex``, and ``x3`` for ``age``."""
    rng = np.random.default_rng(11)
    sex, age = rng.choice(["f", "m"], N_OBS), rng.integers(20, 70, N_OBS).astype(float)
    job = np.where(rng.random(N_OBS) < 0.8, np.where(sex == "m", "welder", "nurse"), rng.choice(["cook", "clerk"], N_OBS))
    X = rng.normal(size=(N_OBS, N_FEATURES))
    X[:, 3] += age / 10
    y = (X[:, 0] + X[:, 3] - 4 + 1.5 * (job == "welder") + rng.normal(size=N_OBS) > 0).astype(int)
    columns = {f"x{place}": X[:, place] for place in range(N_FEATURES)} | {"sex": sex, "job": job, "age": age, "y": y}
    folder = tmp_path_factory.mktemp("people")
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    assert main(["ingest", str(folder / "table.csv"), str(folder / "store"), "--target", "y"]) == 0
    return str(folder / "store")


@pytest.mark.numerics
def test_auc_is_the_share_of_ordered_pairs() -> None:
    """Counted pair by pair, ties as a half; undefined for a single class."""
    rng = np.random.default_rng(0)
    score, positive = rng.integers(0, 6, 60).astype(float), rng.random(60) < 0.4
    pairs = score[positive][:, None] - score[~positive]
    assert auc(score, positive) == pytest.approx((pairs > 0).mean() + 0.5 * (pairs == 0).mean(), abs=1e-12)
    assert np.isnan(auc(score, np.ones(60, dtype=bool)))


def test_the_strongest_proxy_is_named(people: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a sentence, with AUC for two groups and R^2 for a number, of the selected ones and of all, without the attributes."""
    words = ["--k", "6", "--objective", "logistic", "--protected", "sex,age", "--test-fraction", "0.3", "--bootstrap", "0"]
    assert main(["select", people, *words]) == 0
    shown = capsys.readouterr().out
    found = fo.select(people, k=6, objective="logistic", protected=["sex", "age"], test_fraction=0.3, bootstrap=0)
    assert {"job", "x3"} <= set(found.features)
    by_sex, by_age = found.fairness.proxies
    assert (by_sex.strongest[0], by_sex.best_feature, by_sex.measure, by_sex.held_out) == ("job", "job", "auc", True)
    assert (by_age.strongest[0], by_age.best_feature, by_age.measure) == ("x3", "x3", "r2")
    assert f"job predicts sex with AUC {by_sex.strongest[1]:.3f} (held out)" in shown
    assert f"x3 predicts age with R^2 {by_age.strongest[1]:.3f} (held out)" in shown
    assert set(by_sex.selected) == set(found.features)


def test_figures_are_those_of_least_squares_on_the_other_rows(people: str) -> None:
    """R^2 of each feature, of the set and of all of them equals NumPy's least squares fitted on the rows not held out."""
    found = fo.select(people, k=6, objective="logistic", protected="age", test_fraction=0.3, bootstrap=0)
    (proxy,) = found.fairness.proxies
    out = held_out_rows(N_OBS, 0.3, 0)
    with fo.open_store(people) as store:
        columns = {
            name: np.asarray(store.matrix[slice(*store.layout.offsets[place : place + 2])])
            for place, name in enumerate(store.names)
        }
    age = columns.pop("age")[0].astype(float)

    def r2(names: list[str]) -> float:
        X = np.column_stack([np.ones(N_OBS), *(columns[name].T for name in names)]).astype(float)
        predicted = X[out] @ np.linalg.lstsq(X[~out], age[~out], rcond=None)[0]
        return 1 - ((age[out] - predicted) ** 2).sum() / ((age[out] - age[out].mean()) ** 2).sum()

    for name in found.features:
        assert proxy.selected[name] == pytest.approx(r2([name]), abs=1e-8)
    assert proxy.together == pytest.approx(r2(list(found.features)), abs=1e-8)
    assert proxy.everything == pytest.approx(r2(list(columns)), abs=1e-8)


def test_looking_for_proxies_takes_no_pass_of_its_own(people: str) -> None:
    """The attribute's indicators are further vectors of the first sweep: the answer and the bytes read stay the same."""
    words = {"k": 4, "objective": "logistic", "seed": 3}
    before: list[fo.Progress] = []
    steps: list[fo.Progress] = []
    plain = fo.select(people, exclude=["sex", "age"], observer=before.append, **words)
    found = fo.select(people, protected=["sex", "age"], bootstrap=0, observer=steps.append, **words)
    assert found.features == plain.features
    assert np.array_equal(found.column_coef, plain.column_coef)
    assert max(step.sweep for step in steps) == max(step.sweep for step in before)
    assert (found.sweeps, found.bytes_read) == (plain.sweeps, plain.bytes_read)
    assert {step.runs for step in steps} == {1}


def test_sweeps_of_a_grid_are_shared_and_counted(people: str) -> None:
    """Cells on the same rows share one question; the traffic of a grid holds it."""
    fields = {"over": {"k": [2, 4]}, "objective": "logistic", "test_fraction": 0.3}
    plain = fo.grid(people, exclude=["sex"], **fields)
    found = fo.grid(people, protected="sex", bootstrap=0, **fields)
    assert found.sharing.bytes_read == plain.sharing.bytes_read
    assert found.cells[0].selection.fairness.proxies[0].best_feature == "job"


@pytest.mark.parametrize(
    "how", [{"tier": "int8"}, {"load": "dram"}, {"standardize": False}, {"weights": np.arange(N_OBS) % 2 + 0.5}]
)
def test_proxies_do_not_depend_on_how_the_selection_reads_or_weighs(people: str, how: dict) -> None:
    """Through the tier, from memory, without standardisation and under weights the best of the data and its figure are the same."""
    common = {"k": 4, "objective": "logistic", "protected": ["sex", "age"], "bootstrap": 0}
    plain, found = fo.select(people, **common), fo.select(people, **common, **how)
    for one, other in zip(plain.fairness.proxies, found.fairness.proxies, strict=True):
        assert (one.best_feature, one.best, one.everything) == (other.best_feature, other.best, other.everything)


def test_shards_have_the_same_report(tmp_path: Path) -> None:
    """Figures, intervals and proxies of a store in two shards are those of the whole store."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(200, 300))
    url, group = f"mmap://{tmp_path}/store", X[:, 9] + rng.normal(size=200) > 0
    fo.create_store(url, X, (X[:, 9] - X[:, 280] > 0).astype(int), names=[f"c{place}" for place in range(300)]).close()
    common = {"k": 4, "objective": "logistic", "protected": {"g": group, "c3": "c3"}, "test_fraction": 0.4, "bootstrap": 40}
    whole = fo.select(url, **common)
    assert whole.fairness.proxies[0].best_feature == "c9"
    with open_in_process(cut(f"{tmp_path}/store", f"{tmp_path}/shards", 2)) as sharded:
        assert fo.select(sharded, **common).fairness == whole.fairness


def test_held_out_values_beyond_all_bounds_are_undefined_figures() -> None:
    """What files are filled with where nothing was measured neither stops the report nor makes it other than JSON."""
    rng = np.random.default_rng(0)
    X, rows = rng.normal(size=(400, 6)), held_out_rows(400, 0.25, 4)
    X[np.flatnonzero(rows)[:3]] = [[1e30], [-3.4e38], [1e200]]
    y = X[:, 0].clip(-3, 3) + X[:, 2].clip(-3, 3)
    protected = {"age": rng.integers(18, 80, 400), "sex": rng.choice(["a", "b"], 400)}
    for objective, response in (("linear", y), ("logistic", (y > 0).astype(int))):
        found = fo.select(X, response, k=3, objective=objective, test_fraction=0.25, seed=4, protected=protected)
        json.dumps(found.to_json(), allow_nan=False)
        assert found.fairness.proxies[0].together is None
        assert found.fairness.proxies[1].together is not None


def test_compressed_data_has_proxies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tall linear data, of which selections read Gram matrices only."""
    monkeypatch.setattr(compression, "FEWEST_ENTRIES", 1)
    rng = np.random.default_rng(5)
    X = rng.normal(size=(20_000, 12))
    group = X[:, 7] + 0.3 * rng.normal(size=20_000) > 0
    found = fo.grid(
        X,
        X[:, 0] - X[:, 7] + rng.normal(size=20_000),
        over={"k": [1, 2, 3], "seed": [0, 1, 2]},
        protected={"g": group},
        bootstrap=0,
    )
    for cell in found.cells:
        assert cell.selection.choices["gram"].value == "used"
        assert cell.selection.fairness.proxies[0].best_feature == "f7"


def test_an_attribute_that_is_kept_is_no_proxy_of_itself(people: str) -> None:
    """It is named as selected itself; what the others say of it is still told."""
    found = fo.select(people, k=40, until="full", objective="logistic", protected="sex", keep_protected=True, bootstrap=0)
    (proxy,) = found.fairness.proxies
    assert "sex" in found.features
    assert (proxy.itself, "sex" in proxy.selected, proxy.best_feature) == (True, False, "job")
    assert proxy.together == pytest.approx(1.0)
    assert "it is selected itself" in proxy.sentence()


@pytest.mark.numerics
def test_a_feature_that_is_constant_where_it_is_fitted_predicts_nothing() -> None:
    """What rounding leaves of a constant beside its mean is no predictor."""
    rng = np.random.default_rng(6)
    X, group, rows = rng.normal(size=(400, 3)), rng.choice(["a", "b"], 400), held_out_rows(400, 0.3, 0)
    X[:, 2] = np.where(rows, 100.0 * (group == "b") + 0.1, 0.1)
    found = fo.select(X, X[:, 0], k=2, test_fraction=0.3, protected=group, bootstrap=0)
    assert abs(found.fairness.proxies[0].everything - 0.5) < 0.2  # 0 or 1 with it
    trained = fo.select(X[:, [2, 0]] + 1e-9 * X[:, [1, 1]], X[:, 0], k=2, protected=group, bootstrap=0)
    assert trained.fairness.proxies[0].together > 0.6


def test_levels_and_small_groups() -> None:
    """Of more than two groups each has its proxies, unless it is small; values that name no feature are compared with all."""
    rng = np.random.default_rng(8)
    group = rng.choice(["a", "b", "c", "d"], 400, p=[0.4, 0.3, 0.28, 0.02])
    X = rng.normal(size=(400, 8)) + 2.0 * np.outer(group == "b", np.arange(8) == 5)
    found = fo.select(X, (X[:, 5] + rng.normal(size=400) > 1).astype(int), k=2, objective="logistic", protected={"kind": group})
    assert [proxy.target for proxy in found.fairness.proxies] == ["kind = a", "kind = b", "kind = c"]
    (strongest,) = found.fairness.strongest_proxies()
    assert (strongest.level, strongest.strongest[0], strongest.held_out) == ("b", "f5", False)
    assert "f5 predicts kind = b with AUC 0.9" in strongest.sentence()
