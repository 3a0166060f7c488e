"""From a CSV file to class probabilities of held-out rows, typed into the shell, on real tables."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fastomp_nvm.cli.main import main
from tests.sessions import real_tables

pandas = pytest.importorskip("pandas")


def fastomp(words: str) -> None:
    """Run a command that must succeed."""
    assert main(shlex.split(words)) == 0


@pytest.mark.parametrize(("name", "target"), [("adult", "salary"), ("german", "credit-label")])
def test_a_classification(name: str, target: str, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """Ingest, select with the objective found by itself, save, predict with identifiers: as logistic regression does."""
    monkeypatch.chdir(tmp_path)
    table = getattr(real_tables, name)().head(8000)
    table.insert(0, "person", [f"p{place}" for place in range(len(table))])
    held_out = np.random.default_rng(0).random(len(table)) < 0.25
    train, new = table[~held_out], table[held_out]
    train.to_csv("train.csv", index=False)
    new.drop(columns=[target]).iloc[:, ::-1].to_csv("new.csv", index=False)

    fastomp(f"ingest train.csv people --target {target} --id person --dtype float64")
    printed = capsys.readouterr().out
    assert f"{len(train):,} observations" in printed
    assert "next: fastomp select people" in printed
    fastomp("select people --k 5 --ridge 0 --save model.json --json")
    found = json.loads(capsys.readouterr().out)
    assert found["objective"] == "logistic"
    assert target in found["objective_reason"]
    fastomp("predict model.json new.csv out.csv --id person")
    predicted = pandas.read_csv("out.csv", dtype={"person": str})
    assert predicted["person"].tolist() == new["person"].tolist()

    features = found["features"]
    texts = [column for column in features if train[column].dtype.kind not in "fi"]
    numbers = [column for column in features if column not in texts]
    encode = make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(drop="first"), texts))
    model = make_pipeline(encode, LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=200))
    seen = np.ones(len(new), dtype=bool)
    for column in texts:  # scikit-learn would refuse them
        seen &= new[column].isin(train[column]).to_numpy()
    expected = model.fit(train[features], train[target]).predict_proba(new[seen][features])
    shown = predicted[[column for column in predicted.columns if column.startswith("p(") or "probab" in column]].to_numpy()
    assert shown.shape[1] in (1, 2)
    np.testing.assert_allclose(shown[seen][:, -1], expected[:, 1], atol=1e-8, rtol=0)
