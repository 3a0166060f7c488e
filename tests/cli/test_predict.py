"""From a CSV file to predictions on new rows, as a user types it: ingest, select, predict, export."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from tests.service.running import RunningServer

ZONES = ["Bern", "Oslo", "Rome"]


def write_people(path: Path, n: int, seed: int, *, unseen: bool = False, order: int = 1) -> None:
    """Write a messy table: identifiers, money, dates of another format, numbers that are labels, missing cells."""
    rng = np.random.default_rng(seed)
    head = ["person", "town", "income", "joined", "zone", "rich"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head[::order])
        for row in range(n):
            town, income = str(rng.choice([*ZONES, *(["Paris"] if unseen else [])])), rng.normal(30_000, 8000)
            rich = 9000 * (town == "Oslo") + income + 2000 * rng.normal() > 33_000
            money = f"${income:,.2f}" if rng.random() > 0.05 else "k.A."
            day = f"{rng.integers(1, 28):02d}.{rng.integers(1, 12):02d}.2021"
            writer.writerow([f"p{row:03d}", town, money, day, int(rng.integers(3)), "yes" if rich else "no"][::order])


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with train.csv, new.csv, the store of the first and the model of a run on it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    write_people(tmp_path / "train.csv", 400, 0)
    write_people(tmp_path / "new.csv", 100, 1, unseen=True, order=-1)
    options = ["--target", "rich", "--id", "person", "--thousands", ",", "--na-values", "k.A.", "--date", "joined:%d.%m.%Y"]
    assert main(["ingest", "train.csv", "store", *options, "--categorical", "zone", "--missing", "mean", "--dtype", "float64"]) == 0
    words = ["select", "store", "--k", "4", "--objective", "logistic", "--until", "full", "--save", "model.json", "--run", "kept"]
    assert main(words) == 0
    return tmp_path


def read(path: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def identifiers(rows: list[dict[str, str]]) -> list[str]:
    """Return the identifiers of rows."""
    return [row["person"] for row in rows]


def test_new_rows(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of a file come with their identifiers, labels and probabilities; new labels and missing cells are counted."""
    capsys.readouterr()
    assert main(["predict", "model.json", "new.csv", "out.csv", "--id", "person"]) == 0
    said = capsys.readouterr().out
    new, found = read("new.csv"), read("out.csv")
    unseen, missing = (sum(row[name] == value for row in new) for name, value in (("town", "Paris"), ("income", "k.A.")))
    assert f"100 predictions written to out.csv; {unseen} cells of 'town' with a label unknown to the store" in said
    assert f"{missing} missing cell{'s' if missing > 1 else ''} of 'income' filled in" in said
    assert [row["person"] for row in found] == [row["person"] for row in new]
    model = fo.load("model.json")
    assert "joined" in model.features
    # The same by hand: days, money without signs, the mean of the training rows, no category for Paris.
    rows = read("train.csv")
    known = [float(row["income"].replace("$", "").replace(",", "")) for row in rows if row["income"] != "k.A."]
    columns = [name for part in model.columns for name in part]
    for row, answer in zip(new, found, strict=True):
        money = np.mean(known) if row["income"] == "k.A." else float(row["income"].replace("$", "").replace(",", ""))
        day, month, year = row["joined"].split(".")
        days = (np.datetime64(f"{year}-{month}-{day}") - np.datetime64("1970-01-01")).astype(int)
        values = {"income": money, "joined": days, f"town={row['town']}": 1.0, f"zone={row['zone']}": 1.0}
        eta = model.intercept + sum(coef * values.get(name, 0.0) for name, coef in zip(columns, model.column_coef, strict=True))
        assert float(answer["probability=yes"]) == pytest.approx(1 / (1 + np.exp(-eta)), abs=1e-8)
        assert float(answer["probability=no"]) + float(answer["probability=yes"]) == pytest.approx(1)
        assert answer["prediction"] == ("yes" if eta >= 0 else "no")


def test_runs_stores_and_other_outputs(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run predicts as its saved model; a store gives its own identifiers; Parquet and standard output hold the same."""
    assert main(["predict", "kept", "store", "of_store.csv"]) == 0
    assert main(["predict", "model.json", "train.csv", "of_file.csv", "--id", "person"]) == 0
    stored, filed = read("of_store.csv"), read("of_file.csv")
    assert [row["id"] for row in stored] == [row["person"] for row in filed] == identifiers(read("train.csv"))
    for one, other in zip(stored, filed, strict=True):
        assert one["prediction"] == other["prediction"]
        assert float(one["probability=yes"]) == pytest.approx(float(other["probability=yes"]), abs=1e-12)
    capsys.readouterr()
    assert main(["predict", "model.json", "train.csv", "-", "--id", "person"]) == 0
    printed = capsys.readouterr()
    assert printed.out == Path("of_file.csv").read_text()
    assert printed.err.startswith("400 predictions;")
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main(["predict", "model.json", "train.csv", "of_file.parquet", "--id", "person"]) == 0
    table = parquet.read_table("of_file.parquet").to_pylist()
    assert [row["person"] for row in table] == [row["person"] for row in filed]
    assert [repr(row["probability=yes"]) for row in table] == [row["probability=yes"] for row in filed]


def test_export_writes_labels_and_identifiers(session: Path) -> None:
    """An exported table begins with the identifiers and ends with the labels of the target."""
    assert main(["export", "kept", "reduced.csv"]) == 0
    found, source = read("reduced.csv"), read("train.csv")
    assert [(row["id"], row["rich"]) for row in found] == [(row["person"], row["rich"]) for row in source]
    assert main(["export", "kept", "reduced.npz"]) == 0
    with np.load("reduced.npz") as archive:
        assert archive["y"].tolist() == [row["rich"] for row in source]
        assert archive["ids"].tolist() == [row["person"] for row in source]
    pytest.importorskip("pyarrow")
    assert main(["export", "kept", "reduced.parquet"]) == 0
    assert main(["export", "kept", "reduced.npy"]) == 0
    table = np.load("reduced.npy")
    assert (table["id"].tolist(), table["rich"].tolist()) == (identifiers(source), [row["rich"] for row in source])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nobody", "new.csv", "x.csv"], "'nobody' is neither a run nor a file: 'fastomp runs' lists the runs"),
        (["nobody", "new.csv", "x.csv"], "a run on a server is saved with 'select URL --save MODEL.json'"),
        (["kep", "new.csv", "x.csv"], "(did you mean 'kept'?)"),
        (["modle.json", "new.csv", "x.csv"], "(did you mean 'model.json'?)"),
        (["model.json", "new.csv", "x.csv", "--id", "prediction"], "--id 'prediction' has the name of a column that is written"),
        (["model.json", "new.csv", "x.csv", "--id", "probability=no"], "(prediction, probability=no, probability=yes): rename it"),
        (["train.csv", "new.csv", "x.csv"], "train.csv is not a model"),
        (["model.json", "absent.csv", "x.csv"], "absent.csv"),
        (["model.json", "new.csv", "x.xlsx"], "x.xlsx has an unknown extension"),
        (["model.json", "new.csv", "train.csv"], "train.csv exists"),
        (["model.json", "new.csv", "x.csv", "--id", "nobody"], "no column 'nobody' of identifiers: its columns are rich, zone"),
        (["model.json", "store", "x.csv", "--id", "person"], "keeps its own identifiers"),
        (["model.json", "less.csv", "x.csv"], "less.csv lacks the column 'town'"),
        (["model.json", "odd.csv", "x.csv"], "much"),
        (["model.json", "huge.csv", "x.csv"], "row 1 of the column 'income' of huge.csv is infinite"),
    ],
)
def test_what_is_wrong(session: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str) -> None:
    """Each mistake is one sentence, exit code 2, and leaves nothing behind."""
    Path("less.csv").write_text("income,joined,zone\n1,01.02.2021,1\n")
    Path("odd.csv").write_text("town,income,joined,zone\nBern,much,01.02.2021,1\n")
    Path("huge.csv").write_text("town,income,joined,zone\nBern,inf,01.02.2021,1\nBern,12,01.02.2021,1\n")
    before = sorted(Path.cwd().iterdir())
    capsys.readouterr()
    assert main(["predict", *words]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert len(said.splitlines()) == 1
    assert sorted(Path.cwd().iterdir()) == before


def test_a_model_is_saved_where_it_may(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--save`` refuses an existing file before it selects, and replaces it on request."""
    capsys.readouterr()
    words = ["select", "store", "--k", "2", "--objective", "logistic", "--save", "model.json"]
    assert main(words) == 2
    assert "model.json exists" in capsys.readouterr().err
    assert main([*words, "--replace", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["features"] == fo.load("model.json").features


def test_a_pipeline_reads_the_dates_of_the_file(session: Path) -> None:
    """A pipeline of the model takes dates as the file writes them, and as points in time."""
    model = fo.load("model.json")
    table = pd.read_csv("train.csv", na_values="k.A.")
    table["income"] = table["income"].str.replace(r"[$,]", "", regex=True).astype(float)
    assert "joined" in model.features
    expected = model.decision_function("train.csv")
    for new in (table, table.assign(joined=pd.to_datetime(table["joined"], format="%d.%m.%Y"))):
        np.testing.assert_allclose(model.to_sklearn().decision_function(new), expected, atol=1e-9)


def test_a_run_is_saved_later(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``resume --save`` writes the model of a finished run, replaces a file on request only, and one row is one prediction."""
    assert main(["resume", "kept", "--save", "again.json"]) == 0
    np.testing.assert_array_equal(fo.load("again.json").predict("new.csv"), fo.load("model.json").predict("new.csv"))
    capsys.readouterr()
    assert main(["resume", "kept", "--save", "again.json"]) == 2
    assert "again.json exists" in capsys.readouterr().err
    assert main(["resume", "kept", "--save", "again.json", "--replace"]) == 0
    Path("one.csv").write_text("".join(Path("new.csv").read_text().splitlines(keepends=True)[:2]))
    capsys.readouterr()
    assert main(["predict", "again.json", "one.csv", "one_out.csv"]) == 0
    assert capsys.readouterr().out.startswith("1 prediction written to one_out.csv")


def test_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear model writes numbers, without identifiers where there are none."""
    monkeypatch.chdir(tmp_path)
    wine = load_wine(as_frame=True).data
    wine.to_csv("wine.csv", index=False)
    assert main(["ingest", "wine.csv", "store", "--target", "alcohol", "--dtype", "float64"]) == 0
    assert main(["select", "store", "--k", "4", "--save", "model.json"]) == 0
    assert main(["predict", "model.json", "wine.csv", "out.csv"]) == 0
    found = read("out.csv")
    assert list(found[0]) == ["prediction"]
    predicted = fo.load("model.json").predict(wine)
    np.testing.assert_array_equal([float(row["prediction"]) for row in found], predicted)


def test_on_a_server(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store on a server keeps encoding and identifiers, and the server computes the predictions, by URL in Python and shell."""
    pytest.importorskip("pyarrow.flight")
    model = fo.load("model.json")
    assert main(["predict", "model.json", "store", "local.csv"]) == 0
    with RunningServer(tmp_path / "server") as server:
        url = f"{server.url}/lab/people"
        monkeypatch.setenv("FASTOMP_TOKEN", server.token())
        with fo.connect(url) as client:
            options = {"targets": ["rich"], "id_column": "person", "thousands": ",", "na_values": ["k.A."], "missing": "mean"}
            client.ingest("train.csv", categorical=["zone"], date=["joined:%d.%m.%Y"], dtype="float64", **options)
            remote = client.select(k=4, objective="logistic", until="full")
            assert remote.encoding == model.encoding
            np.testing.assert_array_equal(remote.predict("train.csv"), model.predict("train.csv"))
            np.testing.assert_array_equal(client.predict(model), model.predict(url))
            for wrong in ({}, {**model.linear_model(), "coef": [1.0]}, {**model.linear_model(), "encoding": {"columns": 3}}):
                with pytest.raises(fo.RequestError, match="the model cannot be used"):
                    client.call("predict", {"pool": "lab", "key": "people", "model": wrong})
        np.testing.assert_allclose(model.predict(url), model.predict("store"), rtol=1e-12)
        with pytest.raises(fo.StoreURLError, match="absent"):
            model.predict(f"{server.url}/lab/absent")
        with pytest.raises(fo.RequestError, match="does not name a store"):
            model.predict(server.url)
        assert main(["predict", "model.json", url, "remote.csv"]) == 0
        words = ["--k", "4", "--objective", "logistic", "--until", "full", "--run", "srv1"]
        assert main(["select", url, *words]) == 0
        assert main(["resume", "srv1", url, "--save", "saved.json"]) == 0
        np.testing.assert_array_equal(fo.load("saved.json").predict("train.csv"), model.predict("train.csv"))
    for one, other in zip(read("remote.csv"), read("local.csv"), strict=True):
        assert (one["id"], one["prediction"]) == (other["id"], other["prediction"])
        assert float(one["probability=yes"]) == pytest.approx(float(other["probability=yes"]), abs=1e-12)
