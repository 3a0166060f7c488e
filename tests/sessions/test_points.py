"""What new users stumbled over, typed again on real tables: each test is one complaint."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from tests.cli.test_interrupt import interrupted, typed
from tests.service.running import ROOT, RunningServer
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


@pytest.fixture
def split(german: Any) -> tuple[Any, Any]:
    """Return the rows of train.csv, and those of new.csv, which has no target and its columns in another order."""
    held_out = np.random.default_rng(1).random(len(german)) < 0.25
    train, new = german[~held_out], german[held_out].drop(columns=["decision"]).iloc[:, ::-1]
    train.to_csv("train.csv", index=False)
    new.to_csv("new.csv", index=False)
    return train, new


@pytest.mark.parametrize("words", ["cv people --k-max 3 --folds 2", "grid people --k 2,3", "stability people --k 3 --subsamples 4"])
def test_progress_is_one_account_of_all_runs(split: Any, capsys: Any, words: str) -> None:
    """Runs done only rise, reach all runs with the last report and not before; a first pass has read something."""
    fastomp("ingest train.csv people --target decision")
    capsys.readouterr()
    fastomp(f"{words} --progress json --json")
    shown = capsys.readouterr()
    json.loads(shown.out)
    steps = [json.loads(line) for line in shown.err.splitlines()]
    assert [step["runs_done"] for step in steps] == sorted(step["runs_done"] for step in steps)
    assert steps[-1]["runs_done"] == steps[-1]["runs"] > 1
    assert steps[-1]["done"] == 1.0
    assert all(step["bytes_read"] > 0 for step in steps if step["pass"] > 1)
    fastomp(f"{words} --progress none --json")
    assert capsys.readouterr().err == ""


def test_an_interrupted_run_goes_on(split: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Ctrl-C ends with the command that goes on; typed, it ends as the run would have, and the model predicts new rows."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    fastomp("ingest train.csv people --target decision")
    said = interrupted("select", "people", "--k", "4", "--algorithm", "sds_omp", "--polish", "none", "--run", "mine")
    command = said.partition("continue with: ")[2]
    assert command == "fastomp resume mine"
    assert "features selected" in typed(command)
    fastomp("predict mine new.csv resumed.csv")
    fastomp("select people --k 4 --algorithm sds_omp --polish none --save whole.json")
    fastomp("predict whole.json new.csv whole.csv")
    assert Path("resumed.csv").read_text() == Path("whole.csv").read_text()
    assert len(pandas.read_csv("whole.csv")) == len(split[1])


def test_a_server_speaks_as_this_machine(split: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """``runs`` and ``runs URL`` have the same words and scores; a mistake there names nothing of Python; predictions are equal."""
    with RunningServer(tmp_path / "server") as server:
        monkeypatch.setenv("FASTOMP_HOME", str(server.home))
        there = f"{server.url}/lab/people"
        listed = []
        for place in ("people", there):
            fastomp(f"ingest train.csv {place} --target decision")
            fastomp(f"select {place} --k 3 --run mine --save '{len(listed)}.json'")
            capsys.readouterr()
            fastomp(f"runs {place if '://' in place else ''} --json")
            (run,) = json.loads(capsys.readouterr().out)
            listed.append({name: run[name] for name in ("name", "status", "selected", "k", "objective", "score", "algorithm")})
            fastomp(f"predict {len(listed) - 1}.json new.csv {len(listed) - 1}.csv")
        assert listed[0] == listed[1]
        assert listed[0]["status"] == "finished"
        assert Path("0.csv").read_text() == Path("1.csv").read_text()
        fastomp(f"predict 1.json {there} there.csv")
        fastomp("predict 0.json people here.csv")
        assert Path("there.csv").read_text() == Path("here.csv").read_text()
        for words in (f"info {server.url}", f"info {there}x", f"select {server.url}/lab --k 2", f"resume other {there}"):
            capsys.readouterr()
            assert main(shlex.split(words)) != 0
            said = capsys.readouterr().err
            assert said.count("\n") == 1, said
            assert not any(word in said for word in ("connect(", "key=", "()", "use connect")), said


def test_a_library_that_is_missing_can_be_had(split: Any) -> None:
    """The hint names a package that indexes have; a folder with a ``benchmarks`` of its own changes nothing."""
    program = "import sys; sys.modules['matplotlib'] = sys.modules['matplotlib.pyplot'] = None\n"
    program += "import fastomp_nvm as fo\nfound = fo.load('model.json')\ntry:\n    found.plot_coefficients()\n"
    program += "except fo.UnavailableError as error:\n    print(error)"
    Path("benchmarks").mkdir()
    Path("benchmarks/__init__.py").write_text("raise SystemExit('a stranger was imported')")
    fastomp("ingest train.csv people --target decision")
    fastomp("select people --k 3 --save model.json")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words, expected in ((["-c", program], "pip install matplotlib"), (["-m", "fastomp_nvm", "help", "bench"], "tier-noise")):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
    fastomp("predict model.json new.csv out.csv")
    assert len(pandas.read_csv("out.csv")) == len(split[1])
