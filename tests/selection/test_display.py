"""Results in interactive use: short ``repr``, escaped HTML, tables of pandas, pictures, and what ``dir`` lists."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo

EVIL = "<script>alert('x')</script>\x1b[31m"


@pytest.fixture(scope="module")
def data() -> tuple[Any, Any]:
    """Return a table with a column of texts and a name that no page may run, and a response."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    table = pandas.DataFrame({EVIL: rng.normal(size=300), "job": rng.choice(["a", "b", "c"], 300)})
    for place in range(40):
        table[f"x{place}"] = rng.normal(size=300)
    y = 3 * table[EVIL] - 0.5 * table["x3"] + 2 * (table["job"] == "a") + 0.3 * rng.normal(size=300)
    return table, y.to_numpy()


@pytest.fixture(scope="module")
def store(data: tuple[Any, Any]) -> fo.FeatureStore:
    """Build a store of the table."""
    return fo.create_store("dram:display", *data, replace=True)


class _Reader(HTMLParser):
    """Reads tags and texts; every tag that was opened must be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: str) -> _Reader:
    """Read a page and return its tags and texts."""
    reader = _Reader()
    reader.feed(page)
    assert reader.open == []
    assert set(reader.tags) <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert "\x1b" not in page
    return reader


def test_a_selection_is_three_lines(store: fo.FeatureStore) -> None:
    """Objective, score, size, first names and passes; no array, no control character."""
    shown = repr(fo.select(store, k=20))
    lines = shown.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("<Selection: 20 of 42 features, linear, R^2 0.9")
    assert lines[1].endswith(" more")
    assert "passes" in lines[2]
    assert "array" not in shown
    assert shown.replace("\n", "").isprintable()
    assert max(map(len, lines)) < 90
    assert len(repr(fo.select(store, k=3, test_fraction=0.2)).splitlines()) == 3


def test_a_selection_in_a_notebook(store: fo.FeatureStore) -> None:
    """One row per column with its coefficient, score, intercept and costs; names cannot inject anything."""
    found = fo.select(store, k=3)
    page = read(found._repr_html_())
    assert page.tags.count("tr") == 1 + 5 + 1  # head, two features of one column and one of three, intercept
    assert "intercept" in page.texts
    assert "job=a" in page.texts
    assert any("passes" in text for text in page.texts)
    assert f"{found.coef[0][0]:.6g}" in page.texts


def test_many_rows_are_counted() -> None:
    """A page shows 50 rows and says how many more there are; the table has all of them."""
    pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 90))
    found = fo.select(X, X.sum(axis=1), k=80)
    page = read(found._repr_html_())
    assert page.tags.count("tr") == 51
    assert "and 31 more rows; to_frame() has all of them" in page.texts
    assert len(found.to_frame()) == 80


def test_a_selection_as_a_table(store: fo.FeatureStore) -> None:
    """One row per column: feature, column, coefficient and order, from which predictions follow."""
    found = fo.select(store, k=3)
    table = found.to_frame()
    assert list(table.columns) == ["feature", "column", "coefficient", "order"]
    assert table["column"].tolist() == [name for part in found.columns for name in part]
    assert table.drop_duplicates("feature")["feature"].tolist() == list(found.features)
    assert table["order"].max() == 3
    assert np.array_equal(table["coefficient"], np.concatenate(list(map(np.atleast_1d, found.coef))))


@pytest.mark.numerics
@pytest.mark.parametrize("request_", [{}, {"ridge": 0.05}, {"standardize": False}, {"test_fraction": 0.3}, {"weights": True}])
def test_the_path_is_that_of_refits(store: fo.FeatureStore, request_: dict[str, Any]) -> None:
    """The score after each feature is that of a selection of this prefix alone, and ends at the score of the selection."""
    request = dict(request_)
    if "weights" in request:
        request["weights"] = np.random.default_rng(2).integers(0, 3, 300).astype(float)
    found = fo.select(store, k=5, **request)
    assert found.path[-1].score == pytest.approx(found.score, abs=1e-10)
    assert [point.k for point in found.path] == [1, 2, 3, 4, 5]
    for size in (1, 3):
        others = [name for name in store.names if name not in found.features[:size]]
        alone = fo.select(store, k=size, exclude=others, **request)
        assert found.path[size - 1].score == pytest.approx(alone.score, abs=1e-10)


@pytest.mark.numerics
def test_the_path_of_dependent_columns() -> None:
    """A column that adds nothing leaves the score and the number of parameters where they are."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(50, 3))
    X = np.column_stack((X, X[:, 0] + X[:, 1]))
    found = fo.select(X, X[:, 0] + 0.1 * rng.normal(size=50), k=4, algorithm="top_k")
    assert found.path[-1].score == pytest.approx(found.score, abs=1e-9)
    assert (np.diff([point.score for point in found.path]) >= -1e-12).all()
    assert [point.parameters for point in found.path] == [2, 3, 3, 4]


def test_the_path_survives_json(store: fo.FeatureStore) -> None:
    """It is part of the JSON object, and of what a server or a durable run hands over."""
    from fastomp_nvm.selection.codec import decode_selection, encode_selection

    found = fo.select(store, k=3)
    assert found.to_json()["path"] == [point._asdict() for point in found.path]
    encoded = encode_selection(found)
    assert decode_selection(encoded).path == found.path
    encoded["json"]["path"] = [point.score for point in found.path]  # as earlier releases wrote it
    assert [point.score for point in decode_selection(encoded).path] == encoded["json"]["path"]


def test_pictures(store: fo.FeatureStore, data: tuple[Any, Any]) -> None:
    """They return the axes, draw into given ones, and show every bar and point that they announce."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = fo.select(store, k=4, test_fraction=0.2)
    ax = found.plot_coefficients()
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == pytest.approx(np.concatenate(list(map(np.atleast_1d, found.coef))))
    assert len(found.plot_coefficients(most=2).patches) == 2
    ax = found.plot_path()
    assert ax.lines[0].get_ydata() == pytest.approx([point.score for point in found.path])
    assert ax.lines[1].get_ydata() == [found.test_score]
    _, mine = pyplot.subplots()
    assert found.plot_path(mine) is mine
    y = (data[1] > 0).astype(int)
    classes = fo.select(store, y, k=2, objective="logistic")
    with pytest.raises(fo.DataError, match="sds_omp and sds_ma only"):
        classes.plot_path()
    groups = np.random.default_rng(4).choice(["men", "wo$men$"], 300)
    with pytest.raises(fo.DataError, match="has no fairness report: select with protected="):
        classes.plot_fairness()
    ax = fo.select(store, y, k=2, objective="logistic", protected=groups).plot_fairness()
    ax.figure.canvas.draw()
    assert len(ax.patches) == 2 * 6  # selection rate, accuracy, both error rates, AUC and calibration error
    assert fo.fairness_report(classes, store, y, groups).plot_fairness(mine) is mine
    pyplot.close("all")


@pytest.mark.parametrize(("module", "call"), [("matplotlib", "plot_coefficients()"), ("pandas", "to_frame()")])
def test_a_missing_library_is_one_sentence(module: str, call: str) -> None:
    """Pictures and tables name the library they need; nothing else does."""
    program = f"""
import sys
sys.modules[{module!r}] = None
sys.modules["matplotlib.pyplot"] = None if {module!r} == "matplotlib" else sys.modules.get("matplotlib.pyplot")
import numpy as np, fastomp_nvm as fo
found = fo.select(np.eye(6), np.arange(6.0) / 2, k=2)
repr(found), found._repr_html_()
try:
    found.{call}
except fo.UnavailableError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert f"needs {module}, which is not installed: pip install {module}" in done.stdout, done.stderr


def test_results_of_many_selections(store: fo.FeatureStore) -> None:
    """Grids, cross-validations and stability selections have a short repr, a page and a table."""
    grid = fo.grid(store, over={"k": [2, 4], "tau": [0.3, 0.5]}, test_fraction=0.2)
    cv = fo.cross_validate(store, ks=[1, 2, 4], folds=3)
    stable = fo.stability(store, k=3, subsamples=6)
    path = fo.path(store, k=3, test_fraction=0.2)
    results = (grid, "Grid", 4), (cv, "CrossValidation", 3), (stable, "Stability", len(stable.features)), (path, "SelectionPath", 3)
    for found, name, rows in results:
        shown = repr(found)
        assert shown.startswith(f"<{name}: ")
        assert len(shown.splitlines()) <= 3
        assert shown.replace("\n", "").isprintable()
        assert read(found._repr_html_()).tags.count("tr") == 1 + rows
        assert len(found.to_frame()) == rows
    assert grid.to_frame()["score"].tolist() == [cell.selection.score for cell in grid.cells]
    assert cv.to_frame()["fold_2"].tolist() == cv.scores[:, 2].tolist()
    assert stable.to_frame()["frequency"].is_monotonic_decreasing


def test_cross_validation_has_the_names_of_scikit_learn(store: fo.FeatureStore) -> None:
    """``cv_results_`` has the keys, lengths and ranks of a search of scikit-learn."""
    cv = fo.cross_validate(store, ks=[1, 2, 4, 8], folds=3)
    found = cv.cv_results_
    expected = {"param_k", "params", "mean_test_score", "std_test_score", "rank_test_score"}
    assert set(found) == expected | {f"split{fold}_test_score" for fold in range(3)}
    splits = np.column_stack([found[f"split{fold}_test_score"] for fold in range(3)])
    assert found["mean_test_score"] == pytest.approx(splits.mean(axis=1))
    assert found["std_test_score"] == pytest.approx(splits.std(axis=1))
    assert found["param_k"].tolist() == [each["k"] for each in found["params"]] == [1, 2, 4, 8]
    assert found["param_k"][found["rank_test_score"].tolist().index(1)] == cv.best_k
    assert sorted(found["rank_test_score"].tolist()) == [1, 2, 3, 4]


def test_a_grid_has_the_names_of_scikit_learn(store: fo.FeatureStore) -> None:
    """``cv_results_`` has a row per cell, in their order, and ranks by the score that ``best`` compares."""
    for fields in ({}, {"test_fraction": 0.3}):
        grid = fo.grid(store, over={"k": [1, 8, 3], "tau": [0.3, 0.5]}, **fields)
        found = grid.cv_results_
        assert set(found) == {"param_k", "param_tau", "params", "mean_test_score", "rank_test_score"}
        assert found["params"].tolist() == [dict(cell.settings) for cell in grid.cells]
        assert found["param_k"].tolist() == [1, 1, 8, 8, 3, 3]
        scores = [getattr(cell.selection, grid.ranked_by) for cell in grid.cells]
        assert found["mean_test_score"].tolist() == scores
        assert found["params"][found["rank_test_score"].argmin()] in [
            dict(cell.settings) for cell, score in zip(grid.cells, scores, strict=True) if score == max(scores)
        ]
        assert found["rank_test_score"].min() == 1


def test_a_fairness_report_is_short(store: fo.FeatureStore, data: tuple[Any, Any]) -> None:
    """It has a short repr, a page and a table of groups."""
    report = fo.fairness_report(fo.select(store, k=2), store, data[1], np.repeat(["a", EVIL], 150))
    assert len(repr(report).splitlines()) == 1
    assert read(report._repr_html_()).tags.count("tr") == 3 + 2  # groups and proxies
    table = report.to_frame()
    assert table["group"].tolist() == sorted(["a", EVIL])
    assert (table["mean_residual_low"] <= table["mean_residual"]).all()
    assert (table["mean_residual"] <= table["mean_residual_high"]).all()
    found = fo.select(store, k=2, protected=np.repeat(["a", EVIL], 150))
    assert found.fairness._repr_html_() in found._repr_html_()


def test_dir_lists_the_public_names_alone() -> None:
    """The estimators are there, and names that the module itself needs are not, whatever was used before."""
    fo.select(np.eye(6), np.arange(6.0) / 2, k=2)
    assert dir(fo) == sorted(fo.__all__)
    assert {"FastOMPClassifier", "FastOMPRegressor", "FastOMPSelector"} <= set(dir(fo))
    assert not {"Any", "Lazy", "TYPE_CHECKING", "annotations"} & set(dir(fo))
    found = fo.select(np.eye(6), np.arange(6.0) / 2, k=2)
    methods = {name for name in dir(found) if not name.startswith("_")} - set(found.__dataclass_fields__)
    assert {"to_frame", "to_json", "predict", "plot_coefficients", "plot_path"} <= methods
    assert not {"display", "plots", "np", "Any"} & methods
