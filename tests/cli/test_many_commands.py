"""grid, cv, stability, check-constraint and the certificate on the command line: the answers of Python, in JSON and for people."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.cli.main import main


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a small store on disk."""
    design = PaperDesign(120, 300, seed=2)
    path = tmp_path_factory.mktemp("many") / "store"
    y = design.response()
    fo.create_store(f"mmap://{path}", design.matrix().T, {"amount": y, "class": np.where(y > 0, "good", "bad")}).close()
    return str(path)


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    """Run a command with ``--json`` and return its one object."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_grid_prints_what_python_returns(store: str, capsys) -> None:
    """Comma-separated values make the grid, seeds count from --seed, and the cells are those of Python."""
    found = printed(["grid", store, "--tau", "0.3,auto", "--epsilon", "0.2", "--k", "4,6", "--seeds", "2", "--seed", "5"], capsys)
    over = {"k": [4, 6], "tau": [0.3, "auto"], "epsilon": [0.2], "seed": [5, 6]}
    wanted = fo.grid(store, over=over)
    assert [cell["settings"] for cell in found["cells"]] == [dict(cell.settings) for cell in wanted.cells]
    assert [cell["indices"] for cell in found["cells"]] == [cell.selection.indices.tolist() for cell in wanted.cells]
    assert found["cells"][found["best"]]["score"] == wanted.best.selection.score
    assert found["bytes_read"] == wanted.sharing.bytes_read < found["bytes_read_alone"]


def test_grid_varies_ridge_and_the_limit_of_fairness(store: str, tmp_path: Path, capsys) -> None:
    """--ridge and --lambda are axes of the grid; more tolerance never selects fewer features."""
    judgements = np.random.default_rng(0).random((30, 300)) < 0.7
    rows = [",".join(f"f{feature}" for feature in range(300))]
    rows += [",".join(str(int(value)) for value in row) for row in judgements]
    (tmp_path / "survey.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "fair.yaml").write_text("fairness: {judgements: survey.csv, lambda: 0}\n")
    words = ["grid", store, "--k", "6", "--constraint", str(tmp_path / "fair.yaml"), "--lambda", "0.1,0.5,1", "--ridge", "0,0.5"]
    found = printed(words, capsys)
    sizes = {(cell["settings"]["lambda"], cell["settings"]["ridge"]): len(cell["indices"]) for cell in found["cells"]}
    assert len(sizes) == 6
    assert sizes[0.1, 0] < sizes[0.5, 0] <= sizes[1.0, 0] == 6
    assert main(["grid", store, "--k", "3", "--lambda", "0.1,x"]) == 2
    assert main(["grid", store, "--k", "3", "--run", "durable"]) == 2  # durable runs are of one selection
    assert main(["grid", store, "--k", "3", "--lambda", "0.1"]) == 2
    assert "fairness part" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--k", "2,5"], ["--k", "2", "--k", "5"]])
def test_values_of_a_list_may_be_given_one_by_one(words: list[str], store: str, capsys) -> None:
    """An option of several values that is repeated keeps all of them."""
    assert main(["grid", store, *words, "--json"]) == 0
    assert [cell["k"] for cell in json.loads(capsys.readouterr().out)["cells"]] == [2, 5]
    assert main(["cv", store, *words, "--folds", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ks"] == [2, 5]


def test_cv_prints_what_python_returns(store: str, capsys) -> None:
    """Means, standard errors, both choices and the final selection."""
    found = printed(["cv", store, "--folds", "3", "--k", "2,8,5", "--rule", "one-standard-error", "--seed", "1"], capsys)
    wanted = fo.cross_validate(store, folds=3, ks=[2, 5, 8], rule="one-standard-error", seed=1)
    assert found["ks"] == [2, 5, 8]
    assert found["mean"] == wanted.mean.tolist()
    assert (found["best_k"], found["one_standard_error_k"], found["k"]) == (wanted.best_k, wanted.one_standard_error_k, wanted.k)
    assert found["selection"]["indices"] == wanted.selection.indices.tolist()
    assert len(found["selection"]["indices"]) == found["k"]
    by_range = printed(["cv", store, "--folds", "3", "--k-max", "3", "--target", "class", "--objective", "logistic"], capsys)
    assert by_range["ks"] == [1, 2, 3]


def test_stability_prints_what_python_returns(store: str, capsys) -> None:
    """Names and frequencies, the most frequent first."""
    found = printed(["stability", store, "--k", "5", "--subsamples", "6", "--fraction", "0.7", "--threshold", "0.5"], capsys)
    wanted = fo.stability(store, k=5, subsamples=6, fraction=0.7, threshold=0.5)
    assert found["features"] == list(wanted.features)
    assert found["frequencies"] == wanted.frequencies[wanted.indices].tolist()
    assert found["stable"] == list(wanted.stable)
    assert found["expected_false"] is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["grid", "STORE", "--k", "3,4", "--load", "dram"], "one by one it would have been"),
        (["cv", "STORE", "--folds", "3", "--k", "2,4"], "score on held-out observations"),
        (["stability", "STORE", "--k", "4", "--subsamples", "5"], "irrelevant features are to be expected"),
        (["select", "STORE", "--k", "4", "--certificate"], "no feasible set has more than"),
        (["select", "STORE", "--k", "4", "--certificate", "--lambda-min", "0.4"], "Theorem 1 promises"),
        (["select", "STORE", "--k", "4", "--tau", "auto"], "was the best of those tried"),
        (["select", "STORE", "--k", "4", "--quality", "verified"], "no worse than matching pursuit"),
        (["select", "STORE", "--k", "4", "--quality", "best"], "no exchange of one feature for another improves the fit"),
    ],
)
def test_people_get_words(words: list[str], expected: str, store: str, capsys) -> None:
    """Without --json there is a table and a sentence."""
    assert main([store if word == "STORE" else word for word in words]) == 0
    assert expected in " ".join(capsys.readouterr().out.split())


def test_select_prints_the_certificate(store: str, capsys) -> None:
    """The object of the result, with the condition it rests on."""
    found = printed(["select", store, "--k", "4", "--certificate", "--skip-weak"], capsys)
    certificate = found["certificate"]
    assert certificate["upper_bound"] >= certificate["value"]
    assert certificate["theorem1_factor"] is None
    assert certificate["unconditional"] == (certificate["condition"] is None)
    assert found["skip_weak"]


@pytest.mark.parametrize("words", [["grid", "--k", "3,4"], ["cv", "--folds", "3", "--k", "2,4"], ["select", "--k", "4"]])
def test_every_command_of_selections_takes_a_quality(words: list[str], store: str, capsys) -> None:
    """Grids, cross-validation and single selections say which guarantee holds; the quality is part of the request."""
    found = printed([words[0], store, *words[1:], "--quality", "verified"], capsys)
    selections = found.get("cells") or [found.get("selection", found)]
    assert {(each["quality"], each["guarantee"]) for each in selections} == {("verified", "greedy")}


def test_check_constraint_tells_rank_and_p(store: str, tmp_path: Path, capsys) -> None:
    """A good file is described."""
    (tmp_path / "good.yaml").write_text("all: [{cardinality: 7}, {partition: {groups: {a: [f1, f2]}, caps: {a: 1}}}]\n")
    found = printed(["check-constraint", str(tmp_path / "good.yaml"), store], capsys)
    assert (found["rank"], found["p"], found["downward_closed"]) == (7, 1.0, True)
    assert main(["check-constraint", str(tmp_path / "good.yaml"), store, "--samples", "5"]) == 0
    assert "at most 7 of 300 features" in capsys.readouterr().out


def test_check_constraint_shows_a_counterexample(store: str, tmp_path: Path, capsys) -> None:
    """A function that allows a set and refuses a part of it is bad input, with both sets named."""
    (tmp_path / "even_sets.py").write_text("def even(features):\n    return len(features) % 2 == 0\n")
    (tmp_path / "bad.yaml").write_text("oracle: even_sets:even\n")
    assert main(["check-constraint", str(tmp_path / "bad.yaml"), store]) == 2
    error = capsys.readouterr().err
    assert "not downward closed" in error
    assert error.count("{f") == 2
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["grid", "--k", "3,x"], ["grid", "--tau", "high"], ["cv", "--k", "1,,2"]])
def test_a_bad_list_is_refused_by_the_parser(words: list[str], store: str, capsys) -> None:
    """The option and the kind of value are named; exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        main([words[0], store, *words[1:]])
    assert stopped.value.code == 2
    assert "with commas between them" in capsys.readouterr().err


def test_numbers_out_of_their_domain_are_refused(store: str, capsys) -> None:
    """One sentence each, exit code 2."""
    assert main(["grid", store, "--k", "3", "--seeds", "0"]) == 2
    assert main(["cv", store, "--folds", "3"]) == 2
    assert main(["stability", store, "--k", "3", "--subsamples", "0"]) == 2
    assert main(["select", store, "--k", "3", "--lambda-min", "-1"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 4
