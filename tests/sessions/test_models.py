"""Models of real tables: predictions for held-out rows equal those of a scikit-learn pipeline with the same columns, to 1e-8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fastomp_nvm as fo
from tests.sessions import real_tables


@pytest.mark.parametrize(
    ("name", "target", "left_out"),
    [
        ("adult", "age", []),
        ("german", "credit-amount", []),
        ("credit", "LIMIT_BAL", ["ID"]),
        ("compas", "priors-count", ["c-charge-desc"]),  # more labels than a category may have
        ("diabetes", "target", []),
        ("breast_cancer", "mean area", []),
    ],
)
def test_held_out_rows(name: str, target: str, left_out: list[str], tmp_path: Path) -> None:
    """With missing cells, unseen labels and shuffled columns, from memory, from a CSV file and from a saved model alike."""
    table: Any = getattr(real_tables, name)().drop(columns=left_out)
    rng = np.random.default_rng(0)
    response = table.pop(target).to_numpy(dtype=float)
    for column in table.columns[::3]:
        numbers = table[column].dtype.kind in "fi"
        table[column] = (table[column].astype(float) if numbers else table[column]).mask(rng.random(len(table)) < 0.05)
    test = rng.random(len(table)) < 0.2
    train, new = table[~test], table[test].iloc[:, ::-1]
    with fo.create_store(f"dram:{name}", train, response[~test], missing="mean", dtype="float64", replace=True) as store:
        model = fo.select(store, k=6)
    features = list(model.features)
    texts = [column for column in features if table[column].dtype.kind not in "fi"]
    numbers = [column for column in features if column not in texts]
    fill = SimpleImputer(strategy="constant", fill_value="(missing)")
    encoder = make_pipeline(fill, OneHotEncoder(handle_unknown="ignore", sparse_output=False))
    # Scaled, because scikit-learn drops directions below 1e-6 of the largest column.
    columns = make_column_transformer((make_pipeline(SimpleImputer(), StandardScaler()), numbers), (encoder, texts))
    pipeline = make_pipeline(columns, LinearRegression()).fit(train[features], response[~test])
    seen = np.ones(len(new), dtype=bool)
    for column in texts:  # the coefficients of a whole set of indicators are only known up to a constant
        seen &= (new[column].isna() | new[column].isin(train[column])).to_numpy()
    found, scale = model.predict(new), np.abs(response).max()
    np.testing.assert_allclose(found[seen] / scale, pipeline.predict(new[features])[seen] / scale, atol=1e-8, rtol=0)
    new = new.assign(**({texts[0]: new[texts[0]].mask(rng.random(len(new)) < 0.1, "never seen")} if texts else {}))
    found = model.predict(new)
    np.testing.assert_allclose(model.to_sklearn().predict(new) / scale, found / scale, atol=1e-8, rtol=0)
    model.save(tmp_path / "model.json")
    new.to_csv(tmp_path / "new.csv", index=False)
    np.testing.assert_allclose(fo.load(tmp_path / "model.json").predict(tmp_path / "new.csv") / scale, found / scale, atol=1e-12)


@pytest.mark.parametrize("name", ["adult", "german", "breast_cancer"])
def test_an_onnx_file_of_a_real_table(name: str, tmp_path: Path) -> None:
    """Numbers and one-hot columns: the file, run by another program, gives the predictions to the precision of float32."""
    skl2onnx = pytest.importorskip("skl2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    table: Any = getattr(real_tables, name)().head(3000)
    target = {"adult": "age", "german": "credit-amount", "breast_cancer": "mean area"}[name]
    response = table.pop(target).to_numpy(dtype=float)
    with fo.create_store(f"dram:onnx-{name}", table, response, dtype="float64", replace=True) as store:
        model = fo.select(store, k=4)
    used = table[list(model.features)]
    kinds = {column: FloatTensorType if used[column].dtype.kind in "fi" else StringTensorType for column in used.columns}
    file = tmp_path / "model.onnx"
    initial = [(column, kind([None, 1])) for column, kind in kinds.items()]
    file.write_bytes(skl2onnx.convert_sklearn(model.to_sklearn(), initial_types=initial, target_opset=17).SerializeToString())
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    # The file has names without spaces and hyphens, in the same order.
    cells = [used[[column]].to_numpy(np.float32 if kind is FloatTensorType else object) for column, kind in kinds.items()]
    (found,) = session.run(None, {given.name: each for given, each in zip(session.get_inputs(), cells, strict=True)})
    scale = np.abs(response).max()
    np.testing.assert_allclose(found[:, 0] / scale, model.predict(table) / scale, atol=1e-4)
