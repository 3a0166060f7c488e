"""``objective="auto"``, the default: chosen by the target, said in the answer, the same for every way to ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.runs import drive
from fastomp_nvm.selection import automatic
from fastomp_nvm.selection.automatic import choose_objective

RNG = np.random.default_rng(7)
X = RNG.normal(size=(240, 12))
Y = 2 * X[:, 3] - X[:, 8] + RNG.normal(size=240)
COUNTS = RNG.poisson(np.exp(3 + 0.5 * X[:, 3]))
RATINGS = np.clip(np.round(3 + Y), 1, 5).astype(int)


@pytest.mark.parametrize(
    ("target", "objective", "reason"),
    [
        (Y, "linear", "is numeric"),
        (np.where(Y > 0, "yes", "no"), "logistic", "two classes, no and yes"),
        (np.array(np.where(Y > 0, "yes", "no"), dtype=object), "logistic", "two classes, no and yes"),
        (Y > 0, "logistic", "two classes, False and True"),
        (np.array((Y > 0).tolist(), dtype=object), "logistic", "two classes, False and True"),
        ((Y > 0).astype(int), "logistic", "two distinct values, 0 and 1"),
        (np.where(Y > 0, 2.5, -1.0), "logistic", "two distinct values, -1 and 2.5"),
        (np.array(Y.tolist(), dtype=object), "linear", "is numeric"),
        (COUNTS, "linear", "objective poisson"),
        (COUNTS - 5000, "linear", "is numeric"),
        (np.where(RATINGS == 1, 1.5, RATINGS), "linear", "is numeric"),
    ],
)
def test_the_objective_is_chosen_by_the_target(target: Any, objective: str, reason: str) -> None:
    """Text, truth values and two values are logistic, other numbers linear; Poisson is suggested for counts and never chosen."""
    found = fo.select(X, target, k=2)
    assert found.objective == objective
    assert reason in str(found.objective_reason)
    assert ("poisson" in str(found.objective_reason)) == (target is COUNTS)
    named = fo.select(X, target, k=2, objective=objective)
    assert named.objective_reason is None
    assert "objective_reason" not in named.to_json()
    assert (found.indices.tolist(), found.score, found.classes) == (named.indices.tolist(), named.score, named.classes)


@pytest.mark.parametrize(
    ("target", "phrases"),
    [
        (np.array(list("abcdefgh"))[np.arange(240) % 8], ["8 classes", "a, b, c, d, e, ...", "merge them to two", "--target"]),
        (RATINGS, ["5 distinct values", "1, 2, 3, 4, 5", "--objective linear", "--objective poisson", "--objective logistic"]),
        (np.arange(240) % 20, ["20 distinct values", "--objective linear"]),
    ],
)
def test_an_ambiguous_target_is_refused_with_the_ways_out(target: Any, phrases: list[str]) -> None:
    """More than two classes, and 3 to 20 whole numbers, are refused in one sentence that names what was found and what to do."""
    with pytest.raises(fo.DataError) as refused:
        fo.select(X, target, k=2)
    assert all(phrase in str(refused.value) for phrase in phrases), refused.value
    if target.dtype.kind == "i":
        assert fo.select(X, target, k=2, objective="linear").objective == "linear"
        assert fo.select(X, target, k=2, objective="poisson").objective == "poisson"


def test_negative_whole_numbers_are_no_counts() -> None:
    """Poisson is not offered for a target with negative values."""
    with pytest.raises(fo.DataError) as refused:
        fo.select(X, RATINGS - 3, k=2)
    assert "poisson" not in str(refused.value)


def test_late_values_count() -> None:
    """The choice looks at all observations, also where the first thousands have few distinct values."""
    values = np.repeat([0.0, 1.0, 2.0], 2000)
    with pytest.raises(fo.DataError, match="3 distinct"):
        choose_objective("y", values)
    assert choose_objective("y", np.concatenate((values, np.arange(30.0))))[0] == "linear"
    assert choose_objective("y", np.concatenate((values, [0.5])))[0] == "linear"


def test_all_runs_of_an_analysis_have_one_objective() -> None:
    """grid, cv and stability choose by all observations, whatever folds and subsamples hold, and equal the named objective."""
    target = np.where(Y > 0, "yes", "no")
    cells = fo.grid(X, target, over={"k": [1, 2]}, test_fraction=0.3).cells
    assert {cell.selection.objective for cell in cells} == {"logistic"}
    chosen, named = (fo.cross_validate(X, target, ks=[1, 3], folds=3, objective=name) for name in ("auto", "logistic"))
    assert chosen.scores.tolist() == named.scores.tolist()
    assert chosen.fold_of.tolist() == named.fold_of.tolist()
    assert "two classes" in str(chosen.selection.objective_reason)
    often, wanted = (fo.stability(X, target, k=2, subsamples=4, objective=name) for name in ("auto", "logistic"))
    assert often.frequencies.tolist() == wanted.frequencies.tolist()
    assert (often.objective, often.to_json()["objective_reason"]) == ("logistic", "the target 'y' has two classes, no and yes")
    assert (wanted.objective, wanted.objective_reason) == ("logistic", None)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Write a table with a numeric target, classes, ratings and a truth value, and ingest it."""
    rows = ["a,b,c,price,sold,stars"]
    for row, y, stars in zip(X, Y, RATINGS, strict=True):
        rows.append(f"{row[3]},{row[8]},{row[0]},{y},{'yes' if y > 0 else 'no'},{stars}")
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    words = [word for name in ("price", "sold", "stars") for word in ("--target", name)]
    assert main(["ingest", str(tmp_path / "t.csv"), str(tmp_path / "t"), *words]) == 0
    return str(tmp_path / "t")


def test_the_shell_says_which_objective_and_why(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``select`` without --objective works on a text target, says so, and refuses ratings with options that then work."""
    capsys.readouterr()
    assert main(["select", table, "--k", "2", "--target", "sold"]) == 0
    assert "objective logistic: the target 'sold' has two classes, no and yes" in capsys.readouterr().out
    assert main(["select", table, "--k", "2", "--target", "sold", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["objective"], found["classes"]) == ("logistic", ["no", "yes"])
    assert "two classes" in found["objective_reason"]
    assert main(["select", table, "--k", "2", "--target", "stars"]) == 2
    assert "--objective linear" in capsys.readouterr().err
    assert main(["select", table, "--k", "2", "--target", "stars", "--objective", "linear"]) == 0
    assert "objective linear:" not in capsys.readouterr().out
    assert main(["select", table, "--k", "2", "--objective", "automatic"]) == 2
    assert "auto" in capsys.readouterr().err


def test_a_resumed_run_keeps_its_objective(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The objective of a durable run is chosen when its log begins: another rule of a later release does not change it."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    expected = fo.select(table, k=3, target="sold", algorithm="sds_omp")
    asked = iter([False, False, True])
    with pytest.raises(fo.CancelledError):
        fo.select(table, run="half", k=3, target="sold", algorithm="sds_omp", cancelled=lambda: next(asked))
    (stopped,) = fo.list_runs()
    assert (stopped.status, stopped.objective) == ("stopped", "logistic")
    monkeypatch.setattr(automatic, "choose_objective", lambda *_: ("linear", "another rule"))
    monkeypatch.setattr("fastomp_nvm.selection.response.choose_objective", lambda *_: ("linear", "another rule"))
    found = drive.resume("half")
    assert (found.objective, found.objective_reason) == (expected.objective, expected.objective_reason)
    assert found.indices.tolist() == expected.indices.tolist()
    assert fo.list_runs()[0].objective == "logistic"


def test_a_run_that_cannot_begin_leaves_nothing(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A durable run on a target that is refused is not registered."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    with pytest.raises(fo.DataError, match="5 distinct"):
        fo.select(table, run="never", k=3, target="stars")
    assert fo.list_runs() == []
