"""A fitted model is whole: it predicts from tables, arrays, files and stores as they are, equal to a scikit-learn pipeline."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import fastomp_nvm as fo
from fastomp_nvm.selection.codec import decode_selection, encode_selection
from fastomp_nvm.selection.model import ModelColumns
from fastomp_nvm.selection.model_file import SCHEMA
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding

N = 300
TEXTS = ["relationship", "town"]


def people(seed: int = 0, n: int = N) -> pd.DataFrame:
    """Return a table of numbers, texts, truth values and dates."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "relationship": rng.choice(["Husband", "Wife", "Own-child", "Not-in-family"], n),
            "income": rng.normal(30, 8, n),
            "town": rng.choice(["Bern", "Oslo", "Rome"], n),
            "member": rng.random(n) < 0.4,
            "joined": np.datetime64("2020-01-01") + rng.integers(0, 900, n).astype("m8[D]"),
        }
    )


def amount(table: pd.DataFrame) -> np.ndarray:
    """Return a response of the table's columns and noise."""
    effect = table["relationship"].map({"Husband": 3.0, "Wife": -2.0, "Own-child": 0.5, "Not-in-family": 1.0}).fillna(0.0)
    noise = np.random.default_rng(9).normal(size=len(table))
    return np.asarray(0.1 * table["income"].fillna(30) + effect + (table["town"] == "Oslo") + 0.3 * table["member"] + noise)


@pytest.fixture
def fitted() -> Iterator[tuple[pd.DataFrame, fo.Selection]]:
    """Return a table and a linear model of four of its columns."""
    table = people()
    with fo.create_store("dram:people", table, amount(table), dtype="float64", replace=True) as store:
        yield table, fo.select(store, k=4, exclude=["age"])


def test_the_table_of_the_store_is_predicted_as_the_store(fitted: tuple[pd.DataFrame, fo.Selection]) -> None:
    """``create_store``, ``select`` and ``predict`` take the same table; columns may be in any order and others are ignored."""
    table, model = fitted
    assert "relationship" in model.features
    expected = model.predict("dram:people")
    np.testing.assert_allclose(model.predict(table), expected, rtol=1e-13)
    shuffled = table.iloc[:, ::-1].assign(extra="text")
    np.testing.assert_array_equal(model.predict(shuffled), model.predict(table))
    np.testing.assert_array_equal(model.predict(table.head()), model.predict(table)[:5])
    columns = [name for part in model.columns for name in part]
    with fo.open_store("dram:people") as store:
        one_hot = pd.DataFrame(store.matrix.T, columns=list(store.column_names))[columns]
        np.testing.assert_allclose(model.predict(store.matrix.T), expected, rtol=1e-13)
    np.testing.assert_allclose(model.predict(one_hot), expected, rtol=1e-13)


def test_polars_and_arrow_tables(fitted: tuple[pd.DataFrame, fo.Selection]) -> None:
    """The same table of another library builds the same store and is predicted alike."""
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    table, model = fitted
    with fo.open_store("dram:people") as first:
        encoding, fingerprint = first.encoding, first.layout.fingerprint
    for other in (polars.from_pandas(table), pyarrow.Table.from_pandas(table)):
        with fo.create_store("dram:other", other, dtype="float64", replace=True) as store:
            assert (store.encoding, store.layout.fingerprint) == (encoding, fingerprint)
        np.testing.assert_array_equal(model.predict(other), model.predict(table))
    with pytest.raises(fo.DataError, match="collect it first"):
        model.predict(polars.from_pandas(table).lazy())


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".feather"])
def test_files(fitted: tuple[pd.DataFrame, fo.Selection], tmp_path: Path, ending: str) -> None:
    """A file with the columns of the table is predicted like the table."""
    table, model = fitted
    if "joined" in model.features:
        table = table.assign(joined=(table["joined"] - pd.Timestamp(0)) / pd.Timedelta(days=1))
    path = tmp_path / f"new{ending}"
    if ending in (".csv", ".tsv"):
        table.to_csv(path, index=False, sep="\t" if ending == ".tsv" else ",")
    else:
        pytest.importorskip("pyarrow")
        (table.to_parquet if ending == ".parquet" else table.to_feather)(path)
    np.testing.assert_allclose(model.predict(path), model.predict(table), rtol=1e-12)
    np.testing.assert_allclose(model.predict(str(path)), model.predict(table), rtol=1e-12)


def reference(table: pd.DataFrame, response: np.ndarray, features: list[str], missing: str) -> Any:
    """Return a scikit-learn pipeline of the same columns, fitted by scikit-learn alone."""
    texts = [name for name in features if name in TEXTS]
    numbers = [name for name in features if name not in TEXTS]
    fill = SimpleImputer(strategy="constant", fill_value="(missing)")
    steps = [("texts", make_pipeline(fill, OneHotEncoder(handle_unknown="ignore", sparse_output=False)), texts)]
    steps.append(("numbers", SimpleImputer(strategy=missing), numbers))
    return make_pipeline(ColumnTransformer(steps), LinearRegression()).fit(table[features], response)


@pytest.mark.parametrize("missing", ["mean", "median"])
def test_equal_to_a_pipeline_of_the_same_columns(missing: str) -> None:
    """Held-out rows with missing cells and shuffled columns are predicted as by a scikit-learn pipeline, to 1e-8."""
    table = people().drop(columns="joined").astype({"member": float})
    rng = np.random.default_rng(1)
    for name in ("income", "town"):  # age stays a column of integers
        table[name] = table[name].astype(object).where(rng.random(N) > 0.1, np.nan)
    table = table.astype({"income": float})
    response = amount(table) + 0.05 * table["age"].to_numpy()
    train, test = table.iloc[:200], table.iloc[200:, ::-1]
    with fo.create_store("dram:train", train, response[:200], dtype="float64", missing=missing, replace=True) as store:
        model = fo.select(store, k=4)
    assert set(model.features) == {"relationship", "income", "town", "age"}
    pipeline = reference(train, response[:200], list(model.features), missing)
    np.testing.assert_allclose(model.predict(test), pipeline.predict(test[list(model.features)]), atol=1e-8, rtol=0)
    np.testing.assert_allclose(model.to_sklearn().predict(test), model.predict(test), atol=1e-12, rtol=0)
    # A label that fits into no category counts as none of them, in scikit-learn's encoders, too.
    unseen = test.assign(relationship=np.where(rng.random(100) < 0.5, "Robot", test["relationship"]))
    np.testing.assert_allclose(model.to_sklearn().predict(unseen), model.predict(unseen), atol=1e-8, rtol=0)
    encoded = model.encode(unseen)
    assert encoded.unseen == {"relationship": int((unseen["relationship"] == "Robot").sum())}
    assert encoded.filled["income"] == int(unseen["income"].isna().sum())


@pytest.mark.parametrize("objective", ["logistic", "poisson", "linear"])
def test_every_objective_becomes_a_pipeline(objective: str) -> None:
    """``to_sklearn`` agrees with ``predict`` and ``predict_proba`` and predicts the labels of the classes."""
    table = people().drop(columns="joined")
    response: Any = amount(table)
    if objective == "logistic":
        response = np.where(response > np.median(response), "rich", "poor")
    elif objective == "poisson":
        response = np.random.default_rng(2).poisson(np.exp(response / 4))
    with fo.create_store("dram:pipe", table, response, dtype="float64", replace=True) as store:
        model = fo.select(store, k=3, objective=objective)
    pipeline: Any = model.to_sklearn()
    if objective == "logistic":
        assert model.classes == ["poor", "rich"]
        assert pipeline.classes_.tolist() == ["poor", "rich"]
        np.testing.assert_allclose(pipeline.predict_proba(table), model.predict_proba(table), atol=1e-14)
        np.testing.assert_allclose(pipeline.decision_function(table), model.decision_function(table), atol=1e-12)
        likely = np.array(["poor", "rich"])[(model.predict(table) >= 0.5).astype(int)]
        assert pipeline.predict(table).tolist() == likely.tolist()
        np.testing.assert_array_equal(model.predict_proba(table)[:, 1], model.predict(table))
    else:
        np.testing.assert_allclose(pipeline.predict(table), model.predict(table), rtol=1e-12)
        with pytest.raises(fo.RequestError, match="no classes"):
            model.predict_proba(table)


def test_dates_and_numbers_as_labels_in_a_pipeline() -> None:
    """A pipeline takes dates, and categories of numbers or truth values, as texts or as themselves, with gaps, like ``predict``."""
    rng = np.random.default_rng(4)
    table = people()[["joined", "member", "town"]].assign(code=rng.integers(1, 4, N))
    response = (table["joined"] - pd.Timestamp("2020-01-01")).dt.days / 300 + 2.0 * (table["code"] == 2) + amount(people())
    days = table["joined"].dt.strftime("%Y-%m-%d").where(rng.random(N) > 0.1, None)
    texts = table.assign(joined=days, member=np.where(table["member"], "true", "false"), code=table["code"].astype(str))
    table["joined"] = pd.to_datetime(days)
    with fo.create_store(
        "dram:labels", table.assign(code=texts["code"], member=texts["member"]), missing="mean", replace=True
    ) as store:
        model = fo.select(store, np.asarray(response), k=4)
    assert model.encoding is not None
    assert {name: each.kind for name, each in model.encoding.columns.items()} == {
        "joined": "date",
        "member": "category",
        "town": "category",
        "code": "category",
    }
    pipeline = pickle.loads(pickle.dumps(model.to_sklearn()))
    expected = model.predict(table)
    assert np.ptp(expected) > 1
    for new in (table, texts, table.astype({"code": float}), table.iloc[:, ::-1]):
        np.testing.assert_allclose(model.predict(new), expected, rtol=1e-12)
        np.testing.assert_allclose(pipeline.predict(new), expected, rtol=1e-12)


def test_truth_values_with_a_mean_in_a_pipeline() -> None:
    """A column of truth values is a number for the imputer of a pipeline, too."""
    table = people()[["income", "member"]]
    with fo.create_store("dram:truth", table, amount(people()), dtype="float64", missing="mean", replace=True) as store:
        model = fo.select(store, k=2)
    assert set(model.features) == {"income", "member"}
    np.testing.assert_allclose(model.to_sklearn().predict(table), model.predict(table), rtol=1e-12)


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_arrays_in_a_pipeline(missing: str) -> None:
    """The pipeline of a model of an array takes arrays with all columns, and tables of their names in any order."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, 12))
    y = 3 * X[:, 7] - X[:, 10] + 0.1 * rng.normal(size=N)
    with fo.create_store("dram:array", X, y, dtype="float64", missing=missing, replace=True) as store:
        model = fo.select(store, k=2) if missing == "mean" else fo.select(X, y, k=2)
    assert set(model.features) == {"f7", "f10"}
    if missing == "mean":
        X[::9, 7] = np.nan
    pipeline = model.to_sklearn()
    np.testing.assert_allclose(pipeline.predict(X), model.predict(X), rtol=1e-12)
    with pytest.raises(ValueError, match="expecting 12 features"):
        pipeline.predict(X[:, :11])
    table = pd.DataFrame(X, columns=[f"f{place}" for place in range(12)]).iloc[:, ::-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of names that an imputer did not see
        np.testing.assert_allclose(pipeline.predict(table), model.predict(X), rtol=1e-12)


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_onnx(missing: str) -> None:
    """``skl2onnx`` takes the pipeline of numbers and categories; ONNX Runtime differs by the precision of float32."""
    skl2onnx, runtime = pytest.importorskip("skl2onnx"), pytest.importorskip("onnxruntime")
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    table = people().drop(columns=["joined", "member"])
    response = amount(table.assign(member=False))
    labels = np.where(response > np.median(response), "rich", "poor")
    with fo.create_store("dram:onnx", table, labels, dtype="float64", missing=missing, replace=True) as store:
        model = fo.select(store, k=3, objective="logistic")
    pipeline: Any = model.to_sklearn()
    kinds = [(name, (StringTensorType if name in TEXTS else FloatTensorType)([None, 1])) for name in pipeline.feature_names_in_]
    graph = skl2onnx.convert_sklearn(pipeline, initial_types=kinds, options={"zipmap": False})
    session = runtime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    table.loc[0, "relationship"] = "Robot"
    cells = {name: table[[name]].to_numpy().astype(object if name in TEXTS else np.float32) for name in pipeline.feature_names_in_}
    found, probabilities = session.run(None, cells)
    np.testing.assert_allclose(probabilities, model.predict_proba(table), atol=2e-6)
    certain = np.abs(model.decision_function(table)) > 1e-4
    assert (found == pipeline.predict(table))[certain].all()


def test_save_and_load(fitted: tuple[pd.DataFrame, fo.Selection], tmp_path: Path) -> None:
    """A model reads back bit for bit, its file is described by the published schema and is replaced on request only."""
    table, model = fitted
    path = tmp_path / "model.json"
    model.save(path)
    again = fo.load(path)
    np.testing.assert_array_equal(again.predict(table), model.predict(table))
    assert (again.encoding, again.features, again.to_json()) == (model.encoding, model.features, model.to_json())
    schema = json.loads(SCHEMA.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    content = json.loads(path.read_bytes())
    jsonschema.validate(content, schema)
    fields = set(fo.Selection.__dataclass_fields__) - {"column_positions", "encoding"}
    assert set(schema["properties"]["model"]["properties"]["json"]["properties"]) == fields
    with pytest.raises(fo.InputError, match="exists"):
        model.save(path)
    model.save(path, replace=True)
    assert [each.name for each in tmp_path.iterdir()] == ["model.json"]
    with pytest.raises(fo.MediumError, match="cannot write"):
        model.save(tmp_path / "absent" / "model.json")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda content: "[]", "is not a model"),
        (lambda content: json.dumps(content)[:-100], "is not a model"),
        (lambda content: json.dumps({**content, "format": "other"}), "is not a model"),
        (lambda content: json.dumps({**content, "version": 3}), "format version 3"),
        (lambda content: json.dumps({**content, "model": {}}), "damaged"),
        (lambda content: json.dumps({**content, "model": {**content["model"], "column_positions": [0]}}), "damaged"),
        (lambda content: json.dumps({**content, "model": {**content["model"], "encoding": {"columns": {"x": [1]}}}}), "damaged"),
    ],
)
def test_files_that_are_no_models(fitted: tuple[Any, fo.Selection], tmp_path: Path, change: Any, expected: str) -> None:
    """A file that is damaged, foreign or of another version is refused in one sentence that names it."""
    path = tmp_path / "model.json"
    fitted[1].save(path)
    path.write_text(change(json.loads(path.read_bytes())))
    with pytest.raises(fo.InputError, match=rf"{re.escape(str(path))}.*{expected}|{expected}.*{re.escape(str(path))}"):
        fo.load(path)
    with pytest.raises(fo.InputError, match="cannot be read"):
        fo.load(tmp_path / "absent.json")


def test_results_of_earlier_releases_load(fitted: tuple[pd.DataFrame, fo.Selection]) -> None:
    """A result without an encoding takes the columns of the store, by name or position."""
    _, model = fitted
    sent = encode_selection(model)
    del sent["encoding"]
    old = decode_selection(json.loads(json.dumps(sent)))
    assert old.encoding is None
    with fo.open_store("dram:people") as store:
        one_hot = pd.DataFrame(store.matrix.T, columns=list(store.column_names))
        np.testing.assert_array_equal(old.predict(one_hot), model.predict(store))
        np.testing.assert_array_equal(old.predict(store), model.predict(store))


def test_other_stores(fitted: tuple[pd.DataFrame, fo.Selection]) -> None:
    """Columns of another store are found by name; a category that it lacks has no rows there, and unknown ones count as none."""
    _, model = fitted
    new = people(3, 80)
    new["relationship"] = new["relationship"].replace({"Wife": "Robot"})
    new["town"] = "Oslo"
    with fo.create_store("dram:new", new.iloc[:, ::-1], dtype="float64", replace=True) as store:
        np.testing.assert_allclose(model.predict(store), model.predict(new), rtol=1e-12)
    with (
        fo.create_store("dram:less", new.drop(columns="relationship"), dtype="float64", replace=True) as store,
        pytest.raises(fo.DataError, match="lacks the column 'relationship'"),
    ):
        model.predict(store)


def test_a_store_is_read_in_the_selected_columns_alone(fitted: tuple[Any, fo.Selection], monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions for a store gather the columns of the model and sweep nothing."""
    from fastomp_nvm.matrix.sweeper import Sweeper

    _, model = fitted
    asked = []
    gather = Sweeper.gather
    monkeypatch.setattr(Sweeper, "gather", lambda self, rows, columns: asked.append(len(columns)) or gather(self, rows, columns))
    model.predict("dram:people")
    assert asked == [len(model.column_positions)]


def test_cells_that_cannot_be_used(fitted: tuple[pd.DataFrame, fo.Selection]) -> None:
    """A column that is absent, a missing cell without a rule and a text for a number are each one sentence with row and column."""
    table, model = fitted
    with pytest.raises(fo.DataError, match="lacks the column 'relationship'"):
        model.predict(table.drop(columns="relationship"))
    with pytest.raises(fo.DataError, match="row 4 of the column 'income' of the table is missing"):
        model.predict(table.assign(income=table["income"].where(table.index != 3)))
    with pytest.raises(fo.DataError, match=r"row 2 of the column 'relationship' of the table is missing"):
        model.predict(table.assign(relationship=table["relationship"].where(table.index != 1, None)))
    texts = table["income"].astype(str)
    np.testing.assert_allclose(model.predict(table.assign(income=texts)), model.predict(table), rtol=1e-12)
    with pytest.raises(fo.DataError, match="row 6 of the column 'income' of the table holds 'much'"):
        model.predict(table.assign(income=texts.where(table.index != 5, "much")))
    with pytest.raises(fo.DataError, match=r"expected \(n, \d+\), the columns of the store"):
        model.predict(np.zeros((3, 2)))
    with pytest.raises(fo.DataError, match="row 2 of the column"):
        model.predict(np.where(np.arange(3)[:, None] == 1, np.nan, np.zeros((3, model.store.n_columns))))


def test_the_settings_of_the_source_are_used() -> None:
    """Texts of numbers are read with the separators and the missing tokens of the store, and missing dates are filled in."""
    table = pd.DataFrame({"price": ["1'200,5", "k.A.", "7"], "day": ["2020-01-02", None, "2020-01-03"], "code": [1, 2, 3]})
    encoding = TableEncoding(
        {
            "price": ColumnEncoding("number", fill=10.0),
            "day": ColumnEncoding("date", fill=1.0),
            "code": ColumnEncoding("category", ("01", "2")),
        },
        "mean",
        ("k.A.",),
        "'",
        ",",
    )
    from fastomp_nvm.selection.model import ModelColumns

    found = ModelColumns(["price", "day", "code=01", "code=2"], np.arange(4), 4, encoding).of(table)
    days = (pd.Timestamp("2020-01-02") - pd.Timestamp(0)).days
    expected = [[1200.5, days, 1, 0], [10.0, 1.0, 0, 1], [7.0, days + 1, 0, 0]]
    np.testing.assert_array_equal(found.values, expected)
    assert (found.unseen, found.filled) == ({"code": 1}, {"price": 1, "day": 1})


def test_flat_coefficients() -> None:
    """``coef`` is one array where every feature has one column, so that it can be plotted against the names."""
    data = load_diabetes(as_frame=True)
    model = fo.select(data.data, data.target, k=4)
    assert isinstance(model.coef, np.ndarray)
    assert model.coef.shape == (4,)
    expected = LinearRegression().fit(data.data[model.features], data.target)
    np.testing.assert_allclose(model.coef, expected.coef_, rtol=1e-8)
    np.testing.assert_allclose(model.predict(data.data), expected.predict(data.data[model.features]), atol=1e-8)
    assert model.to_json()["coef"] == model.coef.tolist()
    again = decode_selection(json.loads(json.dumps(encode_selection(model))))
    np.testing.assert_array_equal(again.coef, model.coef)


def test_select_takes_tables_with_text() -> None:
    """``select`` encodes a table with text columns by itself, and leaves no store behind."""
    from storage_backends.media.dram import MEDIUM

    before, table = dict(MEDIUM._stores), people()
    model = fo.select(table, amount(table), k=3)
    assert model.encoding is not None
    np.testing.assert_array_equal(model.predict(table), model.predict(table.iloc[:, ::-1]))
    assert dict(MEDIUM._stores) == before


def test_estimators_take_tables_with_text() -> None:
    """``fit``, ``predict`` and ``transform`` of the estimators encode tables; names and support are about the table's columns."""
    table = people()
    response = amount(table)
    model = fo.FastOMPRegressor(k=3).fit(table.iloc[:200], response[:200])
    assert (model.n_features_in_, model.feature_names_in_.tolist()) == (6, list(table.columns))
    assert model.feature_names_in_[model.support_].tolist() == sorted(model.selection_.features, key=list(table.columns).index)
    new = table.iloc[200:, ::-1]
    np.testing.assert_array_equal(model.predict(new), model.selection_.predict(new))
    assert model.score(new, response[200:]) > 0.5
    names, encoded = model.get_feature_names_out().tolist(), model.transform(new)
    assert encoded.shape == (100, len(names))
    np.testing.assert_array_equal(encoded[:, names.index("relationship=Wife")], new["relationship"] == "Wife")
    classifier = make_pipeline(fo.FastOMPClassifier(k=2)).fit(table, np.where(response > 4, "rich", "poor"))
    assert set(classifier.predict(new)) <= {"rich", "poor"}
    assert classifier.predict_proba(new).shape == (100, 2)
    assert classifier[0].selection_.classes == ["poor", "rich"]
    with pytest.raises(ValueError, match="requires y"):
        fo.FastOMPSelector().fit(table)


def test_a_model_of_numbers_and_classes(tmp_path: Path) -> None:
    """Class labels, in order, come with the probabilities; a table of numbers alone needs no encoding."""
    data = load_breast_cancer(as_frame=True)
    labels = np.where(data.target == 1, "benign", "malignant")
    model = fo.select(data.data, labels, k=5, objective="logistic")
    model.save(tmp_path / "model.json")
    again = fo.load(tmp_path / "model.json")
    assert list(again.classes or ()) == ["benign", "malignant"]
    likely = np.array(again.classes)[again.predict_proba(data.data).argmax(axis=1)]
    assert (likely == labels).mean() > 0.95


def test_labels_are_looked_up_in_one_step() -> None:
    """A model of many labels, as a client may send it, is understood in time proportional to them."""
    labels = tuple(f"label {place}" for place in range(100_000))
    encoding = TableEncoding({"town": ColumnEncoding("category", labels)})
    names = [f"town={label}" for label in labels]
    sources = ModelColumns(names, np.arange(len(names)), len(names), encoding)._sources()
    assert sources == {"town": [(place, place) for place in range(len(names))]}


@pytest.mark.parametrize(
    "damage",
    [["category", "ab", None], ["number", [], True], ["number", [], 10**400], ["number", ["a"], None], ["category", ["a"], 1]],
)
def test_a_damaged_encoding_is_refused(damage: list[Any]) -> None:
    """Labels are a list of texts, a fill is a finite number or the position of a label."""
    whole = TableEncoding().to_json()
    with pytest.raises((ValueError, TypeError), match="damaged"):
        TableEncoding.from_json({**whole, "columns": {"x": damage}})
    with pytest.raises(ValueError, match="setting"):
        TableEncoding.from_json({**whole, "na_values": "NA"})


def test_a_gap_in_a_category_without_gaps_is_an_unseen_label() -> None:
    """Under a rule for missing values; an infinite number is refused, whatever the rule."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"town": rng.choice(["a", "b", "c"], 60), "x": rng.normal(size=60)})
    y = table["x"] + (table["town"] == "a")
    with fo.create_store("dram:gap", table, y, missing="mean", replace=True) as store:
        model = fo.select(store, k=2)
    new = pd.DataFrame({"town": [None, "never seen"], "x": [1.0, 1.0]})
    assert np.ptp(model.predict(new)) == 0.0
    assert model.encode(new).unseen == {"town": 2}
    with pytest.raises(fo.DataError, match=r"row 2 of the column 'x' .* is infinite"):
        model.predict(pd.DataFrame({"town": ["a", "b"], "x": [1.0, np.inf]}))
