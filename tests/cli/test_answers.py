"""What grid, stability, runs and select say about their own answers, typed as a user types it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a store in which two features matter and many more fit the noise; its path has a space."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(90, 60))
    y = X[:, 3] + X[:, 8] + rng.normal(size=90)
    path = tmp_path_factory.mktemp("answers") / "noisy data"
    fo.create_store(f"mmap://{path}", X, {"amount": y, "class": np.where(y > 0, "good", "bad")}).close()
    return str(path)


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command and return its output in one line."""
    capsys.readouterr()
    assert main(words) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("target", ["amount", "class"])
def test_grid_ranks_by_observations_held_out(noisy: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With --test-fraction the best cell has the highest held-out score, which a larger k does not win; the output says so."""
    words = ["grid", noisy, "--k", "2,8,30", "--target", target, "--test-fraction", "0.3"]
    found = json.loads(printed([*words, "--json"], capsys))
    assert found["ranked_by"] == "test_score"
    scores = [cell["test_score"] for cell in found["cells"]]
    assert scores[found["best"]] == max(scores)
    assert found["cells"][found["best"]]["settings"]["k"] == 2
    assert max(found["cells"], key=lambda cell: cell["score"])["settings"]["k"] == 30
    shown = printed(words, capsys)
    assert "held-out score" in shown
    assert re.search(r"best: k 2 with (R\^2|mean log-likelihood) \S+ on the 27 observations held out", shown)


def test_grid_says_that_training_scores_favour_a_large_k(noisy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --test-fraction the training score ranks, and the sentence names an option that works when typed."""
    words = ["grid", noisy, "--k", "2,8"]
    assert json.loads(printed([*words, "--json"], capsys))["ranked_by"] == "score"
    shown = printed(words, capsys)
    assert "best: k 8" in shown
    assert "favours the largest k" in shown
    option = re.search(r"--test-fraction \S+", shown)
    assert option is not None
    assert json.loads(printed([*words, *option[0].split(), "--json"], capsys))["ranked_by"] == "test_score"


def test_equal_cells_go_to_fewer_features() -> None:
    """Of cells with the same score the one with fewest features is best."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    constraint = {"partition": {"groups": {"all": ["f0"]}, "caps": {"all": 1}}}
    y = X[:, 0] + 0.1 * rng.normal(size=60)
    found = fo.grid(X, y, over={"k": [3, 1]}, test_fraction=0.3, exclude=["f1", "f2", "f3"], constraint=constraint)
    assert [len(cell.selection.indices) for cell in found.cells] == [1, 1]
    assert found.best is found.cells[0]
    worse = fo.grid(X, y, over={"k": [2, 1]}, standardize=False, ridge=0.0)
    assert worse.best.settings["k"] == 2  # the training score favours the largest


@pytest.mark.parametrize("command", ["grid", "cv"])
def test_help_says_that_k_takes_several_values(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--k of grid and cv is several numbers, and the form in the help works."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "--k K,... most features to select, several numbers with commas" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit):
        main(["select", "--help"])
    assert "--k K most features to select" in " ".join(capsys.readouterr().out.split())


def test_stability_says_when_its_bound_says_nothing(noisy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A bound that exceeds the stable set is said to say nothing, and the remedy in the sentence gives a smaller one."""
    loose = ["stability", noisy, "--k", "25", "--subsamples", "10", "--threshold", "0.6"]
    shown = printed(loose, capsys)
    assert "says nothing about them: a higher threshold or a smaller k sharpens it" in shown
    assert "are to be expected" not in shown
    assert "says nothing" in json.loads(printed([*loose, "--json"], capsys))["notes"][0]
    sharp = ["stability", noisy, "--k", "2", "--subsamples", "10", "--threshold", "0.9"]
    assert "irrelevant features are to be expected" in printed(sharp, capsys)
    assert "notes" not in json.loads(printed([*sharp, "--json"], capsys))
    assert "has no bound here" in printed([*sharp, "--fraction", "0.7"], capsys)


def test_a_durable_run_ends_with_commands_that_work(
    noisy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After select --run the commands in the output work as they stand."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    shown = printed(["select", noisy, "--k", "2", "--run", "my-run"], capsys)
    commands = [shlex.split(quoted) for quoted in re.findall(r"'fastomp ([^']+)'", shown)]
    assert [words[0] for words in commands] == ["resume", "export"]
    for words in commands:
        printed(words, capsys)
    assert (tmp_path / "my-run.csv").exists()


def test_runs_of_this_machine(
    noisy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finished and stopped runs are listed with the score of the result, mean log-likelihood for classes."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    assert "start one with 'fastomp select STORE --k 10 --run NAME'" in printed(["runs"], capsys)
    found = fo.select(noisy, k=3, target="class", run="classes")
    asked = iter([False, False, False, False, True])
    with pytest.raises(fo.CancelledError):
        fo.select(noisy, k=6, algorithm="sds_omp", run="half", cancelled=lambda: next(asked))
    runs: dict[str, Any] = {run["name"]: run for run in json.loads(printed(["runs", "--json"], capsys))}
    assert (runs["classes"]["status"], runs["classes"]["score"]) == ("finished", found.score)
    assert (runs["half"]["status"], runs["half"]["objective"], runs["half"]["k"]) == ("stopped", "linear", 6)
    assert 0 < runs["half"]["score"] < 1
    shown = printed(["runs"], capsys)
    for word in ("finished", "stopped", f"{found.score:.6g}", "3 of 3"):
        assert word in shown
