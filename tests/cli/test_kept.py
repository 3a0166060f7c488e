"""Kept features, covariates, weights and offsets from the shell, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main

N = 150


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a store with identifiers, and files of covariates, weights and offsets beside it."""
    rng = np.random.default_rng(1)
    X, age, sex = rng.normal(size=(N, 8)), rng.integers(20, 70, N), rng.choice(["F", "M"], N)
    pcs, w, exposure = rng.normal(size=(N, 2)), rng.integers(0, 4, N), rng.uniform(-1, 1, N)
    y = 0.05 * age + X[:, 1] - X[:, 4] + (sex == "M") + pcs[:, 0] + rng.normal(size=N)
    lines = [",".join(["id", *(f"g{column}" for column in range(8)), "age", "sex", "w", "exposure", "y"])]
    for row in range(N):
        cells = [f"p{row}", *map(repr, X[row].tolist()), str(age[row]), sex[row], str(w[row]), repr(exposure[row].item())]
        lines.append(",".join([*cells, repr(y[row].item())]))
    (tmp_path / "data.csv").write_text("\n".join(lines))
    order = rng.permutation(N).tolist()
    table = [f"p{row},{pcs[row, 0].item()!r},{pcs[row, 1].item()!r},x" for row in order]
    (tmp_path / "pcs.csv").write_text("\n".join(["person,pc_1,pc_2,note", *table]))
    (tmp_path / "w.txt").write_text("\n".join(map(str, w.tolist())))
    (tmp_path / "exposure.txt").write_text("\n".join(map(repr, exposure.tolist())))
    monkeypatch.chdir(tmp_path)
    assert main(["ingest", "data.csv", "store", "--target", "y", "--id", "id", "--dtype", "float64", "--json"]) == 0
    np.save(tmp_path / "pcs.npy", pcs)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main(["select", "store", "--k", "2", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_shell_gives_what_python_gives(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and files, joined by identifier, lead to the model of Python; predictions of files and stores use all of it."""
    pcs = np.load(folder / "pcs.npy")
    covariates = fo.Covariates(("pc_1", "pc_2"), pcs, tuple(f"p{row}" for row in range(N)))
    keep = ["--keep", "age,se*", "--covariates", "pcs.csv:pc_1,pc_2", "--covariates-id", "person"]
    expected = fo.select("store", k=2, keep=["age", "sex"], covariates=covariates, weights="w", offset="exposure", exclude=["g0"])
    found = answer(capsys, *keep, "--weights", "w", "--offset", "exposure", "--exclude", "g0", "--save", "model.json")
    assert found["features"] == expected.features
    assert found["coef"] == pytest.approx(expected.column_coef.tolist(), rel=1e-9)
    assert {column["column"]: column["coef"] for column in found["kept"]} == pytest.approx(
        {column.column: column.coef for column in expected.kept}, rel=1e-9
    )
    none = [word for name in ("g0", "w", "exposure") for word in ("--exclude", name)]
    files = answer(capsys, *keep, "--weights", "./w.txt", "--offset", "exposure.txt", *none)
    assert files["score"] == pytest.approx(found["score"], rel=1e-9)
    beside = ["--covariates", "pcs.csv", "--covariates-id", "person"]  # of a whole file, the model takes what it needs
    for data in (["store"], ["data.csv", "--id", "id"]):
        assert main(["predict", "model.json", data[0], "-", *data[1:], *beside]) == 0
        rows = capsys.readouterr().out.splitlines()[1:]
        predicted = [float(row.split(",")[1]) for row in rows]
        assert predicted == pytest.approx(expected.predict("store", covariates=covariates).tolist(), rel=1e-9)
    assert main(["select", "store", "--k", "2", "--keep", "age"]) == 0
    shown = capsys.readouterr()
    assert "kept  age" in shown.out
    assert "beyond the intercept and 'age'" in shown.out + shown.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--covariates", "pcs.csv:pc_1"], "identifiers and the covariates have none"),
        (["--covariates", "pcs.csv", "--covariates-id", "person"], "the column 'note'"),
        (["--covariates", "pcs.csv:pc_3", "--covariates-id", "person"], "no column 'pc_3'"),
        (["--covariates", "nothing.csv"], "no file nothing.csv to take covariates from"),
        (["--covariates-id", "person"], "give both or neither"),
        (["--keep", "ag"], "did you mean 'age'"),
        (["--keep", "sex", "--exclude", "sex"], "to be kept and to be excluded"),
        (["--weights", "nothing"], "no column and no file nothing to take the weights from (--weights)"),
        (["--offset", "nothing"], "no column and no file nothing to take the offset from (--offset)"),
        (["--offset", "sex"], "spans 2 columns"),
        (["--keep", "age", "--no-standardize"], "stand beside an intercept"),
    ],
)
def test_mistakes_are_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    """Exit 2, one line that says what was found, nothing written."""
    capsys.readouterr()
    assert main(["select", "store", "--k", "2", "--save", "model.json", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (folder / "model.json").exists()
