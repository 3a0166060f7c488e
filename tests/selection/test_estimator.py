"""The scikit-learn estimators: scikit-learn's own checks, pipelines, searches, tables, stores and weights."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import fastomp_nvm as fo
from fastomp_nvm.constraints import Partition

TRUE = [3, 11]


@parametrize_with_checks(
    [fo.FastOMPSelector(), fo.FastOMPRegressor(), fo.FastOMPClassifier(), fo.FastOMPClassifier(missing="mean")]
)
def test_scikit_learn_checks(estimator, check) -> None:
    """What scikit-learn expects of an estimator holds, check by check."""
    check(estimator)


def test_parameters_mirror_the_request() -> None:
    """Every field of a request can be set, but values per row, as weights that go to fit, and held-out rows."""
    fields = set(fo.SelectionRequest.__dataclass_fields__) - {"weights", "offset", "covariates", "test_fraction"}
    assert fields <= set(fo.FastOMPSelector().get_params())


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(300, 20))
    return X, 2 * X[:, 3] - 3 * X[:, 11] + 0.1 * rng.normal(size=300)


@pytest.fixture
def table(data) -> pd.DataFrame:
    return pd.DataFrame(data[0], columns=[f"column {place}" for place in range(20)])


@pytest.fixture
def url(data, tmp_path) -> str:
    """Return the URL of a store with both a number and a class as targets."""
    X, y = data
    address = f"mmap://{tmp_path}/store"
    names = [f"c{place}" for place in range(20)]
    targets = {"response": y, "label": np.where(y > 0, "up", "down")}
    fo.create_store(address, X, targets, names=names, dtype="float64").close()
    return address


def test_the_selection_is_that_of_select(data) -> None:
    """The estimator adds nothing of its own: same features, same model."""
    X, y = data
    fitted = fo.FastOMPRegressor(k=4, epsilon=0.2, tau=0.7, seed=3).fit(X, y)
    direct = fo.select(X, y, k=4, epsilon=0.2, tau=0.7, seed=3)
    assert fitted.selection_.indices.tolist() == direct.indices.tolist()
    assert np.array_equal(fitted.predict(X), direct.predict(X))
    assert np.allclose(X @ fitted.coef_ + fitted.intercept_, fitted.predict(X))
    assert fitted.get_support(indices=True).tolist() == sorted(direct.indices.tolist())


def test_auto_takes_the_objective_from_the_target(data) -> None:
    """Two classes are a matter of logistic regression, other numbers of the linear model, three labels of neither."""
    X, y = data
    assert fo.FastOMPSelector().fit(X, y).objective_ == "linear"
    assert fo.FastOMPSelector().fit(X, np.where(y > 0, "a", "b")).objective_ == "logistic"
    assert fo.FastOMPSelector().fit(X, (y > 0).astype(int)).objective_ == "logistic"
    assert fo.FastOMPSelector(objective="poisson").fit(X, np.abs(y).round()).objective_ == "poisson"
    with pytest.raises(fo.DataError, match="multiclass"):
        fo.FastOMPSelector().fit(X, np.array(["a", "b", "c"])[np.digitize(y, (-1, 1))])


def test_tables_keep_their_names(data, table) -> None:
    """Names go in, select by constraint, and come out, in pandas when asked for."""
    constraint = {"partition": {"groups": {"first": ["column 3", "column 4"]}, "caps": {"first": 0}}}
    selector = fo.FastOMPSelector(k=2, constraint=constraint).set_output(transform="pandas").fit(table, data[1])
    assert "column 11" in selector.get_feature_names_out()
    assert "column 3" not in selector.get_feature_names_out()
    assert list(selector.transform(table).columns) == list(selector.get_feature_names_out())
    free = fo.FastOMPSelector(k=2, exclude=["column 11"]).fit(table, data[1])
    assert "column 3" in free.get_feature_names_out()
    assert "column 11" not in free.get_feature_names_out()


def test_inverse_transform_puts_columns_back(data) -> None:
    """Selected columns return to their places, the others are zero."""
    X, y = data
    selector = fo.FastOMPSelector(k=2).fit(X, y)
    back = selector.inverse_transform(selector.transform(X))
    assert np.array_equal(back[:, TRUE], X[:, TRUE])
    assert not np.delete(back, TRUE, axis=1).any()


def test_works_in_a_pipeline_and_a_search(data) -> None:
    """A search over k and the constraint clones, fits and scores as with any estimator."""
    X, y = data
    pipeline = make_pipeline(fo.FastOMPSelector(), LinearRegression())
    grid = {"fastompselector__k": [1, 2], "fastompselector__constraint": [None, Partition(20, [0] * 10 + [1] * 10, [1, 1])]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_params_["fastompselector__k"] == 2
    assert search.best_estimator_[0].get_support(indices=True).tolist() == TRUE
    assert search.best_score_ > 0.99
    labels = np.where(y > 0, "up", "down")
    classifier = GridSearchCV(fo.FastOMPClassifier(), {"k": [1, 2]}, scoring="roc_auc", cv=3).fit(X, labels)
    assert classifier.best_params_ == {"k": 2}
    assert make_pipeline(fo.FastOMPSelector(k=2), LogisticRegression()).fit(X, labels).score(X, labels) > 0.95


def test_three_classes_by_one_against_the_rest(data) -> None:
    """The classifier tells two classes apart and says how to get more."""
    X, y = data
    classes = np.digitize(y, (-2, 2))
    with pytest.raises(ValueError, match="OneVsRestClassifier"):
        fo.FastOMPClassifier().fit(X, classes)
    assert OneVsRestClassifier(fo.FastOMPClassifier(k=2)).fit(X, classes).score(X, classes) > 0.6


@pytest.mark.parametrize("opened", [False, True])
def test_a_store_or_its_url(data, url, opened) -> None:
    """Fitting and predicting on a store equals doing so on its array, with the store's own target and names."""
    X, y = data
    url = fo.open_store(url) if opened else url
    selector = fo.FastOMPSelector(k=2).fit(url)
    assert selector.objective_ == "linear"
    assert selector.get_feature_names_out().tolist() == ["c3", "c11"]
    assert np.array_equal(selector.transform(url), X[:, TRUE])
    regressor = fo.FastOMPRegressor(k=2).fit(url, y)
    assert regressor.predict(url) == pytest.approx(fo.FastOMPRegressor(k=2).fit(X, y).predict(X), rel=1e-9, abs=1e-9)
    classifier = fo.FastOMPClassifier(k=2, target="label").fit(url)
    assert classifier.classes_.tolist() == ["down", "up"]
    assert (classifier.predict(url) == np.where(y > 0, "up", "down")).mean() > 0.95
    assert make_pipeline(fo.FastOMPSelector(k=2), LinearRegression()).fit(url, y).score(url, y) > 0.99
    with pytest.raises(fo.RequestError, match="no target 'nothing'"):
        fo.FastOMPSelector(target="nothing").fit(url)


def test_transforming_a_store_reads_the_selected_columns_only(url, monkeypatch) -> None:
    """Two columns out of twenty are asked for, once each."""
    selector = fo.FastOMPSelector(k=2).fit(url)
    asked = []

    class Watched(np.ndarray):
        """A matrix that notes what is taken from it."""

        def __getitem__(self, rows):
            asked.extend(np.asarray(rows).tolist())
            return np.asarray(self)[rows]

    kept = type(fo.open_store(url)).matrix
    monkeypatch.setattr(type(fo.open_store(url)), "matrix", property(lambda store: kept.fget(store).view(Watched)))
    assert selector.transform(url).shape == (300, 2)
    assert asked == TRUE


def test_another_store_is_refused(url, tmp_path) -> None:
    """A store with other columns is not silently taken for the one of fit."""
    selector = fo.FastOMPSelector(k=2).fit(url)
    rng = np.random.default_rng(0)
    for width, complaint in ((19, "19 columns"), (20, "called 'f3'")):
        other = f"mmap://{tmp_path}/other{width}"
        fo.create_store(other, rng.normal(size=(10, width))).close()
        with pytest.raises(fo.DataError, match=complaint):
            selector.transform(other)


def test_a_feature_of_several_columns_comes_out_whole(tmp_path) -> None:
    """Support counts columns; a categorical is in or out as one."""
    rng = np.random.default_rng(1)
    category = rng.integers(3, size=200)
    X = np.column_stack((rng.normal(size=(200, 3)), np.eye(3)[category]))
    url = f"mmap://{tmp_path}/store"
    names = ["a", "b", "c", "kind=0", "kind=1", "kind=2"]
    fo.create_store(url, X, 4.0 * category, names=names, groups={"kind": names[3:]}).close()
    selector = fo.FastOMPSelector(k=1, objective="linear").fit(url)
    assert selector.get_feature_names_out().tolist() == names[3:]
    assert selector.selection_.features == ["kind"]


@pytest.mark.parametrize("kind", [fo.FastOMPRegressor, fo.FastOMPClassifier])
def test_weights_stand_for_repetitions(data, kind) -> None:
    """A weight of two is the row twice, a weight of zero is no row."""
    X, y = data
    target = y if kind is fo.FastOMPRegressor else y > 1
    weights = np.random.default_rng(2).integers(0, 3, size=len(y))
    weighted = kind(k=3).fit(X, target, sample_weight=weights)
    repeated = kind(k=3).fit(np.repeat(X, weights, axis=0), np.repeat(target, weights))
    assert weighted.get_support(indices=True).tolist() == repeated.get_support(indices=True).tolist()
    assert np.allclose(weighted.coef_, repeated.coef_, rtol=1e-6, atol=1e-9)
    with pytest.raises(fo.DataError, match="one weight for each of 300"):
        kind().fit(X, target, sample_weight=weights[:-1])


def test_progress_is_told(data) -> None:
    """The observer hears of every round."""
    heard = []
    fo.FastOMPSelector(k=3, observer=heard.append).fit(*data)
    assert heard
    assert heard[-1].target == 3


def test_fitted_estimators_survive_pickling_and_cloning(data) -> None:
    """A pickled model predicts the same, a clone is unfitted."""
    X, y = data
    fitted = fo.FastOMPRegressor(k=3).fit(X, y)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))
    with pytest.raises(NotFittedError):
        clone(fitted).predict(X)


@pytest.mark.parametrize("missing", ["mean", "median"])
def test_missing_cells_are_filled_in_on_request(data, table, missing) -> None:
    """Gaps of arrays and tables, in ``fit`` and later, are filled by the column's mean or median of ``fit``, otherwise refused."""
    X, y = data[0].copy(), data[1]
    X[np.random.default_rng(1).random(X.shape) < 0.05] = np.nan
    middle = np.nanmean(X, axis=0) if missing == "mean" else np.nanmedian(X, axis=0)
    filled = np.where(np.isnan(X), middle, X)
    fitted, reference = fo.FastOMPRegressor(k=2, missing=missing).fit(X, y), fo.FastOMPRegressor(k=2).fit(filled, y)
    assert fitted.get_support(indices=True).tolist() == reference.get_support(indices=True).tolist() == TRUE
    np.testing.assert_allclose(fitted.predict(X[:50]), reference.predict(filled[:50]), rtol=1e-10)
    np.testing.assert_allclose(fitted.transform(X[:50]), filled[:50, TRUE], rtol=1e-12)
    gaps, labels = pd.DataFrame(X, columns=table.columns), np.where(y > 0, "up", "down")
    words = gaps.assign(word=np.random.default_rng(2).choice(np.array(["a", "b", None], dtype=object), len(y)))
    for given in (gaps, words):
        classifier = fo.FastOMPClassifier(k=3, missing=missing).fit(given, labels)
        assert {"column 3", "column 11"} <= set(classifier.selection_.features)
        assert classifier.score(given, labels) > 0.9
        assert classifier.transform(given).shape[0] == len(y)
        with pytest.raises(ValueError, match=r"NaN|missing"):
            fo.FastOMPClassifier(k=3).fit(given, labels)
    with pytest.raises(fo.RequestError, match="missing is 'drop': expected error, mean or median"):
        fo.FastOMPRegressor(missing="drop").fit(X, y)


def test_unusable_input_is_refused_clearly(data) -> None:
    """Sparse matrices, wrong objectives and bad parameters each get one sentence."""
    X, y = data
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        fo.FastOMPSelector().fit(scipy.sparse.csr_matrix(X), y)
    with pytest.raises(fo.RequestError, match="FastOMPClassifier"):
        fo.FastOMPRegressor(objective="logistic").fit(X, y)
    with pytest.raises(fo.RequestError, match="FastOMPRegressor"):
        fo.FastOMPClassifier(objective="linear").fit(X, y > 0)
    with pytest.raises(fo.RequestError, match="k is 0"):
        fo.FastOMPSelector(k=0).fit(X, y)


def test_callbacks_of_scikit_learn_hear_every_round(data: tuple[Any, Any]) -> None:
    """A fit is a task with a subtask per round, set up and torn down once; a search hands its callbacks to its estimators."""
    pytest.importorskip("sklearn.callback", reason="scikit-learn before 1.9 has no callbacks")

    class Listener:
        max_propagation_depth = None

        def __init__(self) -> None:
            self.heard: list[tuple[str, str]] = []

        def setup(self, estimator: Any, context: Any) -> None:
            self.heard.append(("setup", context.task_name))

        def teardown(self, estimator: Any, context: Any) -> None:
            self.heard.append(("teardown", context.task_name))

        def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
            self.heard.append(("begin", context.task_name))

        def on_fit_task_end(self, estimator: Any, context: Any, *, fitted_estimator: Any = None) -> None:
            self.heard.append(("end", context.task_name))
            if context.task_name == "fit" and isinstance(estimator, fo.FastOMPRegressor):
                assert fitted_estimator.predict(data[0]).shape == (len(data[0]),)

    listener, rounds = Listener(), []
    fo.FastOMPRegressor(k=3, observer=lambda step: rounds.append(step.ended)).set_callbacks(listener).fit(*data)
    one = [("begin", "round"), ("end", "round")]
    assert listener.heard == [("setup", "fit"), ("begin", "fit"), *one * rounds.count(False), ("end", "fit"), ("teardown", "fit")]
    listener = Listener()
    GridSearchCV(fo.FastOMPRegressor(), {"k": [1, 2]}, cv=2).set_callbacks(listener).fit(*data)
    assert listener.heard.count(("begin", "round")) >= 5
    assert listener.heard.count(("setup", "fit")) == 1
    with pytest.raises(fo.RequestError):
        fo.FastOMPRegressor(k=-1).set_callbacks(failing := Listener()).fit(*data)
    assert failing.heard[-1] == ("teardown", "fit")
