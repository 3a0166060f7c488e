"""What new users stumbled over, typed again on real tables: each test is one complaint."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from tests.sessions import real_tables

pandas = pytest.importorskip("pandas")


def fastomp(words: str, code: int = 0) -> None:
    """Run a command that must end with this exit code."""
    assert main(shlex.split(words)) == code


@pytest.fixture
def german(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return German credit, and work in a folder with it as german.csv."""
    monkeypatch.chdir(tmp_path)
    table = real_tables.german()
    table["decision"] = np.where(table.pop("credit-label") == 1, "bad", "good")
    table.to_csv("german.csv", index=False)
    return table


def test_a_grid_is_ranked_by_rows_held_out(german: Any, capsys: Any) -> None:
    """The best cell is that of the largest held-out score, and the answer says by what it was ranked."""
    fastomp("ingest german.csv german --target decision")
    capsys.readouterr()
    fastomp("grid german --k 2,5,12 --test-fraction 0.3 --json")
    found = json.loads(capsys.readouterr().out)
    scores = [cell["test_score"] for cell in found["cells"]]
    assert found["ranked_by"] == "test_score"
    assert found["best"] == int(np.argmax(scores))


def test_the_suggested_command_works(german: Any, capsys: Any, tmp_path: Path) -> None:
    """For a text target, a target of whole numbers, and a store whose name has a space."""
    for target, place in (("decision", "two classes"), ("residence-since", "whole numbers"), ("credit-amount", "amounts")):
        fastomp(f"ingest german.csv '{place}' --target {target}")
        suggested = capsys.readouterr().out.splitlines()[-1].removeprefix("next: fastomp ")
        fastomp(suggested)
        assert "features selected" in capsys.readouterr().out


def test_a_column_of_amounts_in_dollars(german: Any, capsys: Any) -> None:
    """It is refused as almost numeric, not one-hot; the option that the sentence names reads it; the columns are listed."""
    german["credit-amount"] = [f"${value:,}" for value in german["credit-amount"]]
    german.loc[5, "month"] = None
    german["month"] = german["month"].astype(object).where(german["month"].notna(), "n/a")
    german.to_csv("german.csv", index=False)
    fastomp("ingest german.csv store --target decision", 2)
    refused = capsys.readouterr().err
    assert "'credit-amount' is almost numeric" in refused
    assert "--thousands ," in refused
    fastomp("ingest german.csv store --target decision --thousands , --missing mean")
    capsys.readouterr()
    fastomp("info store --columns --json")
    columns = {each["name"]: each for each in json.loads(capsys.readouterr().out)["columns"]}
    assert columns["credit-amount"]["type"] == "number"
    assert columns["month"]["missing"] == 1
    assert columns["purpose"]["type"] == "category"


def test_identifiers_and_labels_reach_the_files(german: Any, capsys: Any) -> None:
    """``--id`` is kept through select, export and predict, and classes are written as their labels."""
    german.insert(0, "person", [f"p{place}" for place in range(len(german))])
    german.to_csv("german.csv", index=False)
    fastomp("ingest german.csv german --target decision --id person")
    fastomp("select german --k 3 --run kept --save model.json")
    fastomp("export kept kept.csv")
    fastomp("predict model.json german.csv predicted.csv --id person")
    exported, predicted = pandas.read_csv("kept.csv"), pandas.read_csv("predicted.csv")
    assert exported.iloc[:, 0].tolist() == predicted["person"].tolist() == german["person"].tolist()
    assert exported["decision"].tolist() == german["decision"].tolist()
    assert set(predicted["prediction"]) == {"bad", "good"}


def test_traps_are_said(german: Any) -> None:
    """A leaking column, and more features than observations."""
    german["copy"] = (german["decision"] == "bad").astype(float)
    table, y = german.drop(columns=["decision"]), german["decision"]
    with fo.create_store("dram:traps", table, y, replace=True) as store:
        (leak, *_) = fo.select(store, k=3).notes
        assert "'copy' alone separates the classes" in leak
        few = np.arange(len(table)) < 4
        assert any("fit any target exactly" in note for note in fo.select(store, k=6, exclude=["copy"], weights=few * 1.0).notes)


def test_a_model_is_short_and_plots(german: Any) -> None:
    """A repr of three lines, a flat coef where every feature is one column, a table and a picture."""
    plt = pytest.importorskip("matplotlib.pyplot")
    numbers = german.select_dtypes("number")
    found = fo.select(numbers.drop(columns=["credit-amount"]), numbers["credit-amount"].to_numpy(float), k=3)
    assert len(repr(found).splitlines()) <= 3
    assert found.coef.shape == (3,)
    assert len(plt.barh(found.features, found.coef)) == 3
    assert found.to_frame().shape[0] == 3
    assert found.plot_coefficients() is not None
    plt.close("all")
