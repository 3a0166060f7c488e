"""Every k at once: nested greedy sets from one run, the criteria of their models, and cross-validation that uses them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.constraints import Bounds, Knapsack, Partition
from tests import oracles

pytestmark = pytest.mark.numerics

N_OBS, N_FEATURES = 120, 200


@pytest.fixture(scope="module")
def data() -> tuple[Any, Any]:
    """Return correlated features, two of them equal, and a response."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N_OBS, N_FEATURES)) + 0.7 * rng.normal(size=(N_OBS, 1))
    X[:, 50] = X[:, 3]
    return X, X[:, :9] @ rng.normal(size=9) + rng.normal(size=N_OBS)


def responses(y: Any) -> dict[str, Any]:
    """Return a response for each objective."""
    rng = np.random.default_rng(6)
    return {
        "linear": y,
        "logistic": (y + 3 * rng.normal(size=N_OBS) > 0).astype(float),
        "poisson": rng.poisson(np.exp(0.2 * y / y.std())).astype(float),
    }


def knapsack() -> Knapsack:
    """Return costs of 1 to 5, and a budget that only some sets of twelve features keep."""
    return Knapsack(N_FEATURES, 1.0 + np.arange(N_FEATURES) % 5, 30.0)


def partition() -> Partition:
    """Return ten groups, of which two features each may be selected."""
    return Partition(N_FEATURES, np.arange(N_FEATURES) % 10, np.full(10, 2))


@pytest.mark.parametrize("constraint", [None, knapsack(), partition()], ids=["none", "knapsack", "partition"])
@pytest.mark.parametrize(
    "request_",
    [{}, {"algorithm": "sds_omp"}, {"plain": True}, {"objective": "logistic"}, {"objective": "poisson"}, {"test_fraction": 0.3}],
)
def test_a_prefix_is_the_run_with_its_k(data: Any, constraint: Any, request_: dict[str, Any]) -> None:
    """The sets are nested, and each is what greedy selects, fits and scores with this k alone."""
    X, y = data
    y = responses(y)[request_.get("objective", "linear")]
    found = fo.path(X, y, k=12, constraint=constraint, **request_)
    assert found.nested
    assert "one run" in found.reason
    for shorter, longer in itertools.pairwise(found.selections):
        assert list(shorter.features) == list(longer.features)[: len(shorter.features)]
    algorithm = found.selections[-1].algorithm
    assert algorithm == ("sds_omp" if "objective" in request_ else request_.get("algorithm", "sds_ma"))
    for k, selection in zip(found.ks.tolist(), found.selections, strict=True):
        alone = fo.select(X, y, k=k, constraint=constraint, **{**request_, "algorithm": algorithm})
        assert selection.indices.tolist() == alone.indices.tolist()
        assert selection.score == pytest.approx(alone.score, abs=1e-9)
        assert selection.column_coef == pytest.approx(alone.column_coef, rel=1e-6, abs=1e-9)
        assert selection.test_score == pytest.approx(alone.test_score, abs=1e-6)
        assert (selection.k, selection.nested, len(selection.path)) == (k, True, k)
        assert selection.path[-1].aic == pytest.approx(alone.path[-1].aic, rel=1e-8)


def test_one_run_answers_every_k(data: Any, tmp_path: Path) -> None:
    """The passes of a path are those of its largest k, whose traffic is counted once."""
    X, y = data
    store = fo.create_store(f"mmap://{tmp_path}/s", X, y)
    found = fo.path(store, k=20, test_fraction=0.25)
    alone = fo.select(store, k=20, test_fraction=0.25, algorithm="sds_ma")
    assert found.sharing.full_passes == found.sharing.full_passes_alone == alone.full_passes
    assert found.sharing.bytes_read == alone.bytes_read
    assert [name for each in found.changes for name in each] == [f"+{name}" for name in alone.features]


@pytest.mark.parametrize("weights", [None, np.arange(N_OBS) % 4 / 2.0], ids=["plain", "weights"])
@pytest.mark.parametrize("objective", ["linear", "logistic", "poisson"])
def test_criteria_are_those_of_densities(data: Any, objective: str, weights: Any) -> None:
    """Parameters, AIC, BIC and EBIC agree with a slow computation from raw columns, also for one-hot and dependent columns."""
    X, y = data
    y = responses(y)[objective]
    X = X[:, :40].copy()
    kinds = np.random.default_rng(1).integers(0, 4, N_OBS)
    X[:, 8:12] = kinds[:, None] == np.arange(4)  # dependent beside an intercept
    X[:, 20] = X[:, 1] - X[:, 2]
    groups = {"kind": [8, 9, 10, 11]}
    columns = {f"f{column}": [column] for column in range(40)} | groups
    store = fo.create_store(f"dram:criteria-{objective}", X, y, groups=groups, replace=True)
    # a penalty does not change the number of parameters
    found = fo.select(
        store, y, k=30, objective=objective, algorithm="sds_omp", weights=weights, ridge=0.0 if objective == "linear" else 1e-9
    )
    family = "gaussian" if objective == "linear" else objective
    checked = 0
    for k in (1, 2, 5, 12, 30):
        point = found.path[k - 1]
        chosen = [column for name in found.features[:k] for column in columns[name]]
        if len(chosen) > 20 and objective != "linear":
            continue  # classes may be separable
        wanted = oracles.information_criteria(X, y, chosen, k, store.layout.n_features, family, weights)
        assert (point.k, point.parameters) == (k, wanted[0])
        assert (point.aic, point.bic, point.ebic) == pytest.approx(wanted[1:], rel=1e-6)
        checked += 1
    assert checked >= 3
    scaled = fo.select(
        store, y, k=5, objective=objective, algorithm="sds_omp", weights=np.full(N_OBS, 7.0) if weights is None else 7 * weights
    )
    plain = fo.select(store, y, k=5, objective=objective, algorithm="sds_omp", weights=weights)
    if objective == "linear":  # weights of a GLM weigh against its penalty
        assert scaled.path[-1].aic == pytest.approx(plain.path[-1].aic, rel=1e-8)


def test_no_criterion_near_as_many_parameters_as_observations(data: Any) -> None:
    """On noise with k near n_obs the likelihood says nothing: criteria end at one parameter per two observations."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(40, 300)), rng.normal(size=40)
    found = fo.path(X, y, k=39)
    assert [point.aic is not None for point in found.points] == [point.parameters <= 20 for point in found.points]
    assert max(k for k in found.best.values() if k is not None) <= 19
    exact = fo.path(data[0], data[0][:, 7], k=3)
    assert exact.points[0].aic is None
    assert exact.best == {"aic": None, "bic": None, "ebic": None}
    assert "undefined" in repr(exact)


def test_lower_bounds_and_exchanges_take_a_run_for_each_k(data: Any) -> None:
    """Each k is then the selection with this k alone, and the answer says so; sizes below the bounds are left out."""
    X, y = data
    bounds = Bounds(N_FEATURES, np.arange(N_FEATURES) % 3, [1, 1, 2], [9, 9, 9], 12)
    for request, first, why in (
        ({"constraint": bounds}, 4, "lower bounds"),
        ({"quality": "best"}, 1, "exchanges"),
        ({"quality": "verified"}, 1, "full greedy, which is nested, once"),
        ({"algorithm": "top_k", "certificate": True}, 1, "certificate"),
        ({"algorithm": "fast_omp"}, 1, "fast_omp are not nested"),
    ):
        found = fo.path(X, y, k=7, **request)
        assert not found.nested
        assert why in found.reason
        assert found.ks.tolist() == list(range(first, 8))
        for k, selection in zip(found.ks.tolist(), found.selections, strict=True):
            alone = fo.select(X, y, k=k, **({"algorithm": "sds_ma"} | request if "constraint" in request else request))
            assert selection.indices.tolist() == alone.indices.tolist(), request
            assert selection.path[-1].k == len(selection.features)
            assert not selection.nested


def test_a_path_ends_where_nothing_is_added(data: Any) -> None:
    """A constraint or the number of features ends it, and k may be left to the constraint."""
    X, y = data
    assert fo.path(X[:, :6], y, k=10_000_000).ks.tolist() == [1, 2, 3, 4, 5, 6]
    small = Partition(N_FEATURES, np.arange(N_FEATURES) % 2, [2, 3])
    assert fo.path(X, y, constraint=small).ks.tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(fo.RequestError, match="k is missing"):
        fo.path(X, y)
    with pytest.raises(fo.ConstraintError, match="allows no feature"):
        fo.path(X, y, k=3, constraint=Knapsack(N_FEATURES, np.full(N_FEATURES, 2.0), 1.0))


@pytest.mark.parametrize("gram", ["auto", "never"])
@pytest.mark.parametrize(
    "request_",
    [
        {"algorithm": "sds_omp"},
        {"algorithm": "sds_ma"},
        {"quality": "verified"},
        {"algorithm": "sds_omp", "objective": "logistic", "ridge": 0.1},
    ],
    ids=["sds_omp", "sds_ma", "verified", "logistic"],
)
def test_cross_validation_runs_greedy_once_per_fold(data: Any, request_: dict[str, Any], gram: Any) -> None:
    """Sets and scores are those of separate runs, with no more passes and, for greedy alone, fewer vectors than theirs."""
    X, y = data
    y = responses(y)[request_.get("objective", "linear")]
    ks, constraint = [2, 5, 9], partition()
    found = fo.cross_validate(X, y, ks=ks, folds=3, constraint=constraint, gram=gram, **request_)
    for place, k in enumerate(ks):
        for fold in range(3):
            inside = np.asarray(found.fold_of != fold, dtype=float)
            alone = fo.select(X, y, k=k, weights=inside, constraint=constraint, **request_)
            mine = found.fold_selections[place][fold]
            assert mine.indices.tolist() == alone.indices.tolist()
            assert mine.score == pytest.approx(alone.score, abs=1e-9)
            shared = "run" in mine.choices if "algorithm" in request_ else "greedy" in mine.choices
            assert shared == (k < 9)
            if k == 9:
                assert mine.full_passes == alone.full_passes
    assert found.selection.indices.tolist() == fo.select(X, y, k=found.k, constraint=constraint, **request_).indices.tolist()
    if "algorithm" in request_:  # one run per fold and one on all observations
        runs = [row for row in (*found.fold_selections[-1], found.selection) if row.k == 9]
        assert found.sharing.full_passes_alone == pytest.approx(
            sum(run.full_passes for run in runs)
            + (found.k < 9) * fo.select(X, y, k=9, constraint=constraint, **request_).full_passes
        )
        assert found.sharing.full_passes <= max(run.full_passes for run in runs) + 2


def test_cross_validation_beside_lower_bounds_runs_every_k(data: Any) -> None:
    """Greedy sets are not nested there: every selection has a run of its own."""
    X, y = data
    bounds = Bounds(N_FEATURES, np.arange(N_FEATURES) % 3, [1, 1, 2], [9, 9, 9], 12)
    found = fo.cross_validate(X, y, ks=[5, 8], folds=2, constraint=bounds, algorithm="sds_omp")
    assert not any("run" in each.choices for row in found.fold_selections for each in row)


def test_the_command_prints_what_python_returns(data: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON, a table of at most 80 columns, and a picture; a file that cannot be a picture is refused before anything runs."""
    pytest.importorskip("matplotlib").use("Agg")
    X, y = data
    fo.create_store(f"mmap://{tmp_path}/s", X, y).close()
    store, picture = str(tmp_path / "s"), tmp_path / "path.png"
    assert main(["path", store, "--k", "9", "--test-fraction", "0.3", "--json", "--plot", str(picture)]) == 0
    printed, found = json.loads(capsys.readouterr().out), fo.path(store, k=9, test_fraction=0.3).to_json()
    for one in (printed, found):
        one["selection"]["seconds"] = 0
    assert printed == found
    assert printed["criteria"] == "after selection, optimistic"
    assert [point["indices"] for point in printed["points"]] == [printed["selection"]["indices"][:k] for k in range(1, 10)]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["path", store, "--k", "9", "--test-fraction", "0.3"]) == 0
    text = capsys.readouterr().out
    table = text.splitlines()[:11]
    assert max(map(len, table)) <= 80
    assert "optimistic" in table[0]
    assert "one run of sds_ma answers every k" in text
    for words, said in (
        (["--plot", "a.bmp"], ".png"),
        (["--plot", str(picture)], "exists"),
        (["--plot", str(tmp_path / "no" / "a.png")], "no folder"),
    ):
        assert main(["path", store, "--k", "2", *words]) == 2
        assert said in capsys.readouterr().err


def test_pictures_of_a_path(data: Any) -> None:
    """Scores, scores held out, and three criteria above their least value."""
    pytest.importorskip("matplotlib").use("Agg")
    X, y = data
    found = fo.path(X, y, k=6, test_fraction=0.3)
    scores, criteria = found.plot()
    assert scores.lines[0].get_ydata() == pytest.approx([each.score for each in found.selections])
    assert scores.lines[1].get_ydata() == pytest.approx([each.test_score for each in found.selections])
    curves = [line.get_ydata() for line in criteria.lines if len(line.get_ydata()) == 6]
    assert [min(curve) for curve in curves] == [0.0] * 3
    assert "optimistic" in criteria.get_title()
