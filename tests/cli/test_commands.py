"""The command line as a new user meets it: what it prints, how it fails, what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastomp_nvm.cli.main import COMMANDS, main

#: The fields of ``select --json`` that scripts rely on.
FIELDS = [
    "features",
    "indices",
    "coef",
    "intercept",
    "score",
    "objective",
    "algorithm",
    "k",
    "seed",
    "epsilon",
    "tau",
    "polish",
    "score_unpolished",
    "feasible",
    "violations",
    "gradient_rounds",
    "gradient_calls",
    "independence_rounds",
    "independence_calls",
    "sweeps",
    "full_passes",
    "bytes_read",
    "seconds",
    "medium",
    "durability",
    "tier",
    "kernel",
    "verified",
    "store",
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write a small CSV: four numeric features, a categorical one, a numeric and a class target."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 4))
    towns = rng.choice(["Bern", "Oslo", "Rome"], 60)
    price = 2 * values[:, 1] - values[:, 3] + (towns == "Oslo") + 0.1 * rng.normal(size=60)
    lines = ["a,b,c,d,town,price,sold"]
    for row, town, cost in zip(values, towns, price, strict=True):
        lines.append(",".join([*(f"{value:.6f}" for value in row), town, f"{cost:.6f}", "yes" if cost > 0 else "no"]))
    path = tmp_path / "houses.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def store(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Ingest the table."""
    assert (
        main(["ingest", str(table), str(tmp_path / "houses"), "--target", "price", "--target", "sold", "--dtype", "float64"]) == 0
    )
    capsys.readouterr()
    return str(tmp_path / "houses")


def test_ingest_info_select_verify(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The README's path from a CSV to a selection works, and JSON holds every promised field."""
    assert main(["info", store, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["n_features"], facts["n_columns"], facts["n_obs"]) == (5, 7, 60)
    assert list(facts["targets"]) == ["price", "sold"]
    assert main(["select", store, "--k", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(FIELDS) <= set(found)
    assert {"b", "d", "town"} == set(found["features"])
    assert len(found["coef"][found["features"].index("town")]) == 3
    assert found["columns"][found["features"].index("town")] == ["town=Bern", "town=Oslo", "town=Rome"]
    assert found["score"] > 0.95
    assert main(["verify", store]) == 0
    assert "match" in capsys.readouterr().out
    assert main(["select", store, "--k", "2", "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True


def test_another_target_needs_no_new_ingest(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--target takes a target of the store, a feature of it, or a file."""
    assert main(["select", store, "--k", "2", "--target", "sold", "--objective", "logistic", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["classes"] == ["no", "yes"]
    assert found["pseudo_r2"] > 0.3
    assert main(["select", store, "--k", "2", "--target", "a", "--json"]) == 0
    assert "a" not in json.loads(capsys.readouterr().out)["features"]
    values = tmp_path / "other.txt"
    values.write_text("\n".join(str(number) for number in range(60)))
    assert main(["select", store, "--k", "2", "--target", str(values), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["features"]) == 2


def test_constraints_come_from_a_file(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A YAML file limits the selection, and k may be left out when it bounds the rank."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "all:\n  - cardinality: 4\n  - partition: {groups: {first: [a, b], rest: [c, d, town]}, caps: {first: 1, rest: 2}}\n"
    )
    assert main(["select", store, "--constraint", str(rules), "--until", "full", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["feasible"] is True
    assert len(found["features"]) == 3
    assert sum(name in ("a", "b") for name in found["features"]) == 1
    rules.write_text("partition: {groups: {first: [a, nosuch]}, caps: {first: 1}}\n")
    assert main(["select", store, "--constraint", str(rules), "--k", "2"]) == 2
    assert "nosuch" in capsys.readouterr().err


def test_people_get_a_readable_answer(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json the selection, the score and the cost are printed for a person."""
    assert main(["select", store, "--k", "3"]) == 0
    shown = capsys.readouterr().out
    assert "town" in shown
    assert "R^2" in shown
    assert "passes" in shown
    assert main(["info", store]) == 0
    assert "survives power loss" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["select", "nowhere", "--k", "2"], 2, "nowhere"),
        (["select", "STORE"], 2, "k"),
        (["select", "STORE", "--k", "0"], 2, "k is 0"),
        (["select", "STORE", "--k", "2", "--target", "nobody"], 2, "nobody"),
        (["select", "STORE", "--k", "2", "--algorithm", "magic"], 2, "fast_omp"),
        (["select", "STORE", "--k", "2", "--epsilon", "2"], 2, "epsilon"),
        (["select", "STORE", "--k", "2", "--objective", "logistic"], 2, "two"),
        (["select", "STORE", "--k", "2", "--target", "sold", "--objective", "linear"], 2, "logistic"),
        (["select", "STORE", "--k", "2", "--constraint", "missing.yaml"], 2, "missing.yaml"),
        (["verify", "grpc://host:1/pool/key", "--add-checksums"], 2, "is on a server"),
        (["select", "floppy:///a", "--k", "2"], 2, "unknown medium"),
        (["info", "TABLE"], 2, "houses.csv"),
        (["ingest", "missing.csv", "new"], 2, "missing.csv"),
        (["ingest", "TABLE", "STORE", "--target", "price"], 2, "--replace"),
        (["ingest", "TABLE", "NEW", "--target", "cost"], 2, "cost"),
        (["ingest", "TABLE", "dram:houses", "--target", "price"], 2, "--load dram"),
    ],
)
def test_bad_input_is_one_sentence(words, code, message, store, table, tmp_path, capsys) -> None:
    """Exit code 2, one line on stderr naming the culprit, nothing on stdout, no traceback, nothing left behind."""
    before = sorted(path.name for path in tmp_path.iterdir())
    places = {"STORE": store, "TABLE": str(table), "NEW": str(tmp_path / "new")}
    assert main([places.get(word, word) for word in words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fastomp: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("cell", "message"), [("nan", "row 31.*column 'c'|column c"), ("inf", "row 31"), ("two", "two"), ("", "row 31")]
)
def test_bad_cells_are_named(table: Path, tmp_path: Path, cell, message, capsys) -> None:
    """A missing, infinite or non-numeric cell is named by row and column and leaves no store."""
    lines = table.read_text().splitlines()
    cells = lines[31].split(",")
    cells[2] = cell
    lines[31] = ",".join(cells)
    table.write_text("\n".join(lines))
    assert main(["ingest", str(table), str(tmp_path / "bad"), "--target", "price", "--target", "sold"]) == 2
    error = capsys.readouterr().err
    assert "31" in error
    assert "c" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["houses.csv"]
    if cell in ("nan", ""):
        arguments = ["ingest", str(table), str(tmp_path / "good"), "--target", "price", "--target", "sold", "--missing", "median"]
        assert main(arguments) == 0
        assert "1" in capsys.readouterr().out


def test_a_damaged_store_is_refused(store: str, capsys) -> None:
    """A flipped byte in the matrix is found by verify, a truncated file at once."""
    matrix = Path(store) / "matrix.npy"
    data = bytearray(matrix.read_bytes())
    data[5000] ^= 1
    matrix.write_bytes(data)
    assert main(["verify", store]) == 1
    assert "does not match its checksum" in capsys.readouterr().err
    assert main(["select", store, "--k", "2", "--verify"]) == 1
    matrix.write_bytes(data[:-8])
    assert main(["info", store]) == 1
    assert capsys.readouterr().err.count("\n") == 2


def test_debug_shows_where_an_error_came_from(capsys) -> None:
    """--debug raises instead of printing one line."""
    with pytest.raises(ValueError, match="nowhere"):
        main(["select", "nowhere", "--k", "2", "--debug"])


def test_an_unforeseen_error_is_one_line_too(store: str, monkeypatch, capsys) -> None:
    """A defect of ours is one line with its type and the way to the traceback, exit code 1; --debug shows the traceback."""

    def defective(_: object) -> int:
        raise LookupError("lost")

    monkeypatch.setattr("fastomp_nvm.cli.commands.info.run", defective)
    assert main(["info", store]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "LookupError: lost" in error
    assert "--debug" in error
    with pytest.raises(LookupError):
        main(["info", store, "--debug"])


def test_errors_hold_no_terminal_escapes(tmp_path: Path, capsys) -> None:
    """A column name cannot speak to the terminal through an error or a report."""
    (tmp_path / "t.csv").write_text("a\x1b[31m,b\n1,2\n1,x\n")
    assert main(["ingest", str(tmp_path / "t.csv"), str(tmp_path / "s"), "--target", "nobody"]) == 2
    (tmp_path / "t.csv").write_text("a\x1b[31m,b\n1,2\n1,3\n")
    assert main(["ingest", str(tmp_path / "t.csv"), str(tmp_path / "s")]) == 0
    captured = capsys.readouterr()
    assert "a\N{REPLACEMENT CHARACTER}[31m" in captured.err
    assert "a\N{REPLACEMENT CHARACTER}[31m" in captured.out  # it is constant, and the report says so
    assert "\x1b" not in captured.err + captured.out


def test_names_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    """Where output is ASCII, other characters are escaped instead of ending the command."""
    (tmp_path / "t.csv").write_text("gr\u00f6\u00dfe,b\n1,2\n1,3\n")
    words = [sys.executable, "-m", "fastomp_nvm", "ingest", str(tmp_path / "t.csv"), str(tmp_path / "s")]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert r"gr\xf6\xdfe" in done.stdout


def test_deep_text_does_not_end_the_process(store: str, tmp_path: Path) -> None:
    """A constraint and a result nested 25,000 levels deep are one sentence each and exit code 2."""
    deep = tmp_path / "deep.yaml"
    deep.write_text("[" * 25_000)
    for words in (["select", store, "--k", "2", "--constraint", str(deep)], ["export", str(deep), "x.csv", "--store", store]):
        done = subprocess.run(
            [sys.executable, "-m", "fastomp_nvm", *words], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_arguments_are_explained_in_words(store: str, capsys) -> None:
    """A word that is no number is refused in the user's terms, not in those of the code."""
    with pytest.raises(SystemExit):
        main(["select", store, "--k", "2", "--tau", "abc"])
    assert "--tau is 'abc': expected a number or auto\n" in capsys.readouterr().err


def test_help_and_version_cost_no_heavy_imports() -> None:
    """``fastomp --help`` names every command, and loads neither pyarrow nor scikit-learn nor pandas nor matplotlib."""
    script = (
        "import sys; from fastomp_nvm.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('pyarrow', 'sklearn', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    for command in COMMANDS:
        assert command in done.stdout


def test_output_survives_a_closed_pipe(store: str) -> None:
    """``fastomp info ... | true`` is not an error."""
    command = f"{sys.executable} -m fastomp_nvm info {store} | true"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_doctor_says_what_is_missing(capsys) -> None:
    """Every finding that is absent comes with a remedy."""
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert findings["kernel numpy"]["present"] is True
    for name in ("DAX file system", "libpmem", "pymm", "mcas", "pyarrow", "memory limit", "compiled extension"):
        assert findings[name]["present"] or findings[name]["remedy"]
    assert main(["doctor"]) == 0
    assert "libpmem" in capsys.readouterr().out


def test_demo_shows_its_savings(tmp_path: Path, capsys) -> None:
    """The demo selects under its fairness constraint and reads fewer bytes than matching pursuit."""
    assert main(["demo", "--features", "1500", "--observations", "300", "--dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "feasible: True" in shown
    assert "fewer bytes" in shown
    assert "(emulated)" in shown or "libpmem" in shown
    assert (tmp_path / "fair.yaml").exists()
