"""Mistakes of a person at a shell: one or two short lines, nothing written, and a remedy that works when typed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from fastomp_nvm.cli.main import main

#: Typed, exit code, text of the message, remedy (empty where the message can only name the fault).
MISTAKES = [
    # commands
    ("slect houses --k 2", 2, "there is no command 'slect' (did you mean 'select'?)", "select houses --k 2"),
    ("Info houses", 2, "did you mean 'info'", "info houses"),
    ("predit houses", 2, "there is no command", "help"),
    ("houses select", 2, "select comes first", "select houses --k 2"),
    ("help slect", 2, "did you mean 'select'", "help select"),
    ("help constraint", 2, "did you mean 'constraints'", "help constraints"),
    ("completion tcsh", 2, "expected one of bash, zsh, fish", "completion bash"),
    ("ado chek mcas://h:1/p", 2, "did you mean 'check'", ""),
    ("--verison", 2, "did you mean '--version'", ""),
    # options
    ("select houses --K 2", 2, "unknown option --K (did you mean '--k'?)", "select houses --k 2"),
    ("select houses --k 2 --objectve linear", 2, "did you mean '--objective'", "select houses --k 2 --objective linear"),
    ("select houses --k 2 --test_fraction 0.2", 2, "did you mean '--test-fraction'", "select houses --k 2 --test-fraction 0.2"),
    ("select houses --k 2 --thread 1", 2, "did you mean '--threads'", "select houses --k 2 --threads 1"),
    ("select houses --k 2 --constrain rules.yaml", 2, "did you mean '--constraint'", "select houses --k 2 --constraint rules.yaml"),
    ("select houses --k", 2, "--k needs a value", "select houses --k 2"),
    ("select houses --k 2 --json=yes", 2, "--json takes no value", "select houses --k 2 --json"),
    ("select --k 2", 2, "missing: STORE", "select houses --k 2"),
    ("select houses town --k 2", 2, "unexpected 'town'", "select houses --k 2 --target price"),
    ("ingest houses.csv", 2, "name the source and then the store", "ingest houses.csv new"),
    ("ingest houses.csv new --target price --mising mean", 2, "did you mean '--missing'", "ingest houses.csv new --missing mean"),
    ("shard houses out", 2, "missing: --into", "shard houses out --into 1"),
    ("plan --features 1e6 --obs 1000 --k 20", 2, "did you mean '--observations'", "plan --features 1e6 --observations 1000 --k 20"),
    # values
    ("select houses --k 0", 2, "--k is 0: expected a whole number of at least 1", "select houses --k 1"),
    ("select houses --k -3", 2, "--k is -3: expected a whole number of at least 1", "select houses --k 1"),
    ("select houses --k two", 2, "--k is 'two': expected a whole number", "select houses --k 2"),
    ("select houses --k 2.5", 2, "--k is '2.5': expected a whole number", "select houses --k 2"),
    ("select houses", 2, "--k", "select houses --k 2"),
    ("select houses --k 2 --algorithm fast-omp", 2, "did you mean 'fast_omp'", "select houses --k 2 --algorithm fast_omp"),
    (
        "select houses --k 2 --objective logit",
        2,
        "expected one of auto, linear, logistic, poisson",
        "select houses --k 2 --objective linear",
    ),
    ("select houses --k 2 --epsilon 2", 2, "--epsilon is 2.0: expected a number", "select houses --k 2 --epsilon 0.2"),
    ("select houses --k 2 --tau high", 2, "--tau is 'high': expected a number or auto", "select houses --k 2 --tau auto"),
    ("select houses --k 2 --test-fraction 20", 2, "--test-fraction is 20.0: expected", "select houses --k 2 --test-fraction 0.2"),
    ("select houses --k 2 --until end", 2, "--until is 'end': expected paper or full", "select houses --k 2 --until full"),
    ("select houses --k 2 --io disk", 2, "--io is 'disk': expected one of auto, mmap, direct", "select houses --k 2 --io mmap"),
    ("select houses --k 2 --threads 0", 2, "--threads is 0: expected", "select houses --k 2 --threads 1"),
    ("select houses --k 2 --seed -1", 2, "--seed is -1: expected", "select houses --k 2 --seed 1"),
    ("select houses --k 2 --gather-bytes 0", 2, "--gather-bytes is 0: expected", "select houses --k 2 --gather-bytes 100000"),
    ("grid houses --k 1,x", 2, "--k is '1,x': expected whole numbers with commas", "grid houses --k 1,2"),
    ("grid houses --k 2 --lambda a", 2, "--lambda is 'a': expected comma-separated numbers", ""),
    ("cv houses", 2, "--k-max", "cv houses --k-max 2 --folds 2"),
    ("cv houses --k-max 2 --folds 1", 2, "--folds is 1: expected", "cv houses --k-max 2 --folds 2"),
    (
        "stability houses --k 2 --fraction 2",
        2,
        "--fraction is 2.0: expected",
        "stability houses --k 2 --fraction 0.5 --subsamples 4",
    ),
    ("check-constraint rules.yaml houses --samples x", 2, "--samples is 'x': expected", "check-constraint rules.yaml houses"),
    # names of features and targets
    ("select houses --k 2 --target pric", 2, "did you mean 'price'", "select houses --k 2 --target price"),
    ("select houses --k 2 --exclude Town", 2, "did you mean 'town'", "select houses --k 2 --exclude town"),
    ("select houses --k 2 --protected twn", 2, "did you mean 'town'", "select houses --k 2 --protected town"),
    ("names houses 'tawn*'", 2, "no feature matches 'tawn*'", "names houses"),
    ("ingest houses.csv new --target prise", 2, "did you mean 'price'", "ingest houses.csv new --target price"),
    ("ingest houses.csv new --drop 'X_*'", 2, "no column of houses.csv matches 'X_*'", "ingest houses.csv new --drop 'c*'"),
    ("ingest houses.csv new --id number", 2, "has no column 'number'", "ingest houses.csv new --id a"),
    # data that the model cannot use
    ("select houses --k 2 --objective logistic", 2, "logistic", "select houses --k 2 --objective logistic --target sold"),
    ("select houses --k 2 --target sold --objective linear", 2, "logistic", "select houses --k 2 --target sold"),
    ("select plain --k 2", 2, "no target", "select plain --k 2 --target a"),
    # files and folders
    ("ingest nowhere.csv new", 2, "there is no file nowhere.csv", "ingest houses.csv new"),
    ("ingest empty.csv new", 2, "empty.csv is empty", "ingest houses.csv new"),
    ("ingest ragged.csv new", 2, "line 3", ""),
    ("ingest word.csv new", 2, "'two'", "ingest word.csv new --drop b"),
    ("ingest holes.csv new", 2, "--missing", "ingest holes.csv new --missing mean"),
    ("ingest quote.csv new", 2, "quote", ""),
    ("ingest latin.csv new", 2, "UTF-8", "ingest latin.csv new --encoding latin-1"),
    ("predict found.json houses.csv out.csv", 2, "is not a model", "predict model.json houses.csv out.csv"),
    ("predict model.json towns.csv out.csv", 2, "with --encoding", "predict model.json towns.csv out.csv --encoding latin-1"),
    ("ingest sheet.xlsx new", 2, "save its sheet as a .csv file", "ingest houses.csv new"),
    ("ingest comma.csv new --target y --thousands ,", 2, "'b' is almost numeric", "ingest comma.csv new --target y --decimal ,"),
    ("select houses --k 1 --target town", 2, "make it one when the store is built", "ingest houses.csv new --target town"),
    ("verify houses --progress bars", 2, "did you mean 'bar'", "verify houses --progress bar"),
    ("ingest houses.csv new --na-values", 2, "--na-values needs a value", "ingest houses.csv new --na-values -999,-1"),
    ("ingest houses.csv new --missing men", 2, "did you mean 'mean'", "ingest houses.csv new --missing mean"),
    ("ingest houses.odt new", 2, "no extension of a known format", "ingest houses.csv new"),
    ("ingest folder new", 2, "is a directory", "ingest houses.csv new"),
    ("ingest houses.csv houses", 2, "--replace", "ingest houses.csv houses --replace"),
    ("ingest houses.csv missing/new", 2, "missing", ""),
    ("ingest houses.csv dram:new", 2, "at a path", "ingest houses.csv new"),
    ("ingest houses.csv notes.txt", 2, "notes.txt", "ingest houses.csv new"),
    ("select nowhere --k 2", 2, "there is no store at", "select houses --k 2"),
    ("select houses.csv --k 2", 2, "'fastomp ingest'", "ingest houses.csv new"),
    ("info folder", 2, "folder", "info houses"),
    ("info dram:houses", 2, "one in memory ends with its process", "info houses"),
    ("stability houses --k 2 --test-fraction 0.5", 2, "leave --test-fraction out", "stability houses --k 2 --subsamples 4"),
    ("select houses --k 2 --tier-load nowhere", 2, "nowhere", "select houses --k 2 --tier-load dram"),
    ("info mmpa:///houses", 2, "did you mean 'mmap'", ""),
    ("verify grpc://127.0.0.1:1/lab/houses --add-checksums", 2, "run it where the store is", "verify houses"),
    ("verify grpc://127.0.0.1:1/lab/houses --timeout 1", 1, "cannot be reached", ""),
    ("select houses --k 2 --weights nowhere.csv", 2, "nowhere.csv", ""),
    ("select houses --k 2 --weights short.csv", 2, "expected one for each of 60 observations", ""),
    # constraints
    ("select houses --k 2 --constraint nowhere.yaml", 2, "nowhere.yaml", "select houses --k 2 --constraint rules.yaml"),
    ("select houses --k 2 --constraint broken.yaml", 2, "broken.yaml:2: this is not YAML", "help constraints"),
    ("select houses --k 2 --constraint blank.yaml", 2, "blank.yaml: the description is empty", "help constraints"),
    ("select houses --k 2 --constraint family.yaml", 2, "did you mean 'partition'", "help constraints"),
    ("select houses --k 2 --constraint feature.yaml", 2, "feature.yaml:1: there is no feature 'twon' (did you mean 'town'?)", ""),
    ("select houses --k 2 --constraint pattern.yaml", 2, "matches no feature", "names houses"),
    ("select houses --k 2 --constraint twice.yaml", 2, "put several in a list under all", "help constraints"),
    ("check-constraint houses rules.yaml", 2, "the file first, then the store", "check-constraint rules.yaml houses"),
    # runs and results
    ("resume nightly", 2, "there is no run 'nightly': 'fastomp runs' lists the runs", "runs"),
    ("forget nightly", 2, "there is no run 'nightly'", "runs"),
    ("export nightly out.csv", 2, "neither a run nor a file", "runs"),
    ("export nightly out.xls", 2, "unknown extension", ""),
    ("export found.json out.csv", 2, "--store", "export found.json out.csv --store houses"),
    ("export rules.yaml out.csv --store houses", 2, "not the output of 'fastomp select --json'", ""),
    ("select houses --k 2 --run 'my run'", 2, "is no name of a run", "select houses --k 2 --run my_run"),
    ("select houses --k 2 --run a --protected town", 2, "leave one of the two out", "select houses --k 2 --protected town"),
    # servers
    ("list houses", 2, "is not a server", "info houses"),
    ("list grpc://127.0.0.1:1 --timeout 1", 1, "cannot be reached", ""),
    ("select grpc://127.0.0.1:1/lab/houses --k 2 --timeout 1", 1, "cannot be reached", ""),
    ("info grpc://127.0.0.1:1 --timeout 1", 2, "does not name a store", ""),
    ("info grpc://127.0.0.1/lab/houses", 2, "expected grpc://host:port/pool/key", ""),
    ("info grpc://127.0.0.1:1/a/b/c", 2, "more than a pool and a key", ""),
    ("list grpc://127.0.0.1:1 --token-file nowhere", 2, "the token file nowhere cannot be read", ""),
    ("list grpc://127.0.0.1:1 --timeout 0", 2, "--timeout is 0.0: expected seconds above 0", ""),
    ("delete houses", 2, "is not on a server", ""),
    ("cancel nightly houses", 2, "is not a server", ""),
    ("select grpc://127.0.0.1:1/lab/houses --k 2 --threads 2", 2, "--threads is for stores on this machine", ""),
    ("grid grpc://127.0.0.1:1/lab/houses --k 2 --io direct", 2, "--io is for stores on this machine", ""),
    ("grid grpc://127.0.0.1:1/lab/houses --k 2 --timeout 1", 1, "cannot be reached", ""),
    ("cv houses --k 2 --detach", 2, "--detach is for stores on a server", "cv houses --k 2"),
    ("stability houses --k 2 --run a", 2, "--run names a job on a server", "stability houses --k 2 --subsamples 4"),
    ("path grpc://127.0.0.1:1/lab/houses --k 2 --plot a.png --detach", 2, "--detach does not wait for the picture", ""),
    ("check-constraint rules.yaml grpc://127.0.0.1:1/lab/houses --timeout 1", 1, "cannot be reached", ""),
    ("export nightly out.csv --store grpc://127.0.0.1:1/lab/houses --timeout 1", 1, "cannot be reached", ""),
    ("serve", 2, "missing: --pools", ""),
    ("serve --pools new --quota much", 2, "expected a number with kB, MB, GB or TB", ""),
    ("serve --pools new --listen 7010", 2, "expected HOST:PORT", ""),
    ("bench nothing", 2, "unknown benchmark 'nothing'", "help bench"),
    ("doctor --jason", 2, "did you mean '--json'", "doctor --json"),
]

#: What a person at a shell has no use for: calls, keyword arguments and classes of Python, its literals, its modules.
PYTHON = re.compile(
    r"Traceback|\w\(\)|\bconnect\(|create_store|open_store|\bkey=|\b\w+=(?:True|False|None|'|\[)|\b(?:True|False|None)\b|\b\w+Error\b"
    r"|\bfastomp_nvm\b|\bstorage_backends\b|\bado_plugin\b|\bargparse\b|<class|\bn_features\b|\bk_max\b"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a store, the files it came from, and broken ones."""
    path = tmp_path_factory.mktemp("mistakes")
    rng = np.random.default_rng(5)
    numbers, towns = rng.normal(size=(60, 4)), rng.choice(["leeds", "york"], 60)
    price = 3 * numbers[:, 0] - numbers[:, 1] + (towns == "york")
    rows = [
        ",".join([*map(str, row), town, str(value), "yes" if value > 0 else "no"])
        for row, town, value in zip(numbers.round(3), towns, price.round(3), strict=True)
    ]
    (path / "houses.csv").write_text("\n".join(["a,b,c,d,town,price,sold", *rows]) + "\n")
    texts = {
        "empty.csv": "",
        "ragged.csv": "a,b\n1,2\n1,2,3\n",
        "word.csv": "a,b\n1,2\n3,4\n5,6\n7,two\n" + "8,9\n" * 100,
        "holes.csv": "a,b\n1,2\n,4\n3,1\n",
        "quote.csv": 'a,b\n1,"2\n3,4\n',
        "houses.odt": "x",
        "sheet.xlsx": "x",
        "comma.csv": "a;b;y\n" + "".join(f"{row};0,{row + 100};{row}\n" for row in range(40)),
        "notes.txt": "to do\n",
        "short.csv": "1\n2\n",
        "rules.yaml": "partition: {groups: {first: [a, b]}, caps: {first: 1}}\n",
        "broken.yaml": "partition: {groups: [a\n",
        "blank.yaml": "",
        "family.yaml": "partitoin: {}\n",
        "feature.yaml": "partition: {groups: {first: [a, twon]}, caps: {first: 1}}\n",
        "pattern.yaml": "partition: {groups: {first: ['q*']}, caps: {first: 1}}\n",
        "twice.yaml": "cardinality: 3\nknapsack: {costs: {a: 1}, budget: 2, default: 1}\n",
        "found.json": '{"indices": [0, 1], "objective": "linear", "target": "price"}\n',
    }
    for name, text in texts.items():
        (path / name).write_text(text)
    (path / "latin.csv").write_bytes("größe,b\n1,2\n2,3\n".encode("latin-1"))
    (path / "towns.csv").write_bytes("a,b,town\n1,2,g\xf6rlitz\n".encode("latin-1"))
    (path / "folder").mkdir()
    here = os.getcwd()
    os.chdir(path)
    try:
        assert main(["ingest", "houses.csv", "houses", "--target", "price", "--target", "sold"]) == 0
        assert main(["ingest", "houses.csv", "plain"]) == 0
        assert (
            main(["select", "houses", "--k", "2", "--exclude", "b", "--exclude", "c", "--exclude", "d", "--save", "model.json"])
            == 0
        )
    finally:
        os.chdir(here)
    return path


@pytest.fixture
def here(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a copy of the folder, with a home of its own."""
    copy = tmp_path / "work"
    shutil.copytree(folder, copy)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FASTOMP_TOKEN", raising=False)
    return tmp_path


def run(typed: str) -> int:
    """Run a command as it is typed and return its exit code."""
    try:
        return main(shlex.split(typed))
    except SystemExit as stopped:
        return int(stopped.code or 0)


def contents(path: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of every file below a folder."""
    found = {}
    for each in path.rglob("*"):
        if each.is_file() or "home" not in each.parts:  # empty folders of FASTOMP_HOME do not count
            about = each.stat()
            found[str(each.relative_to(path))] = (0, 0) if each.is_dir() else (about.st_size, about.st_mtime_ns)
    return found


@pytest.mark.parametrize(("typed", "code", "message", "remedy"), MISTAKES, ids=[typed for typed, *_ in MISTAKES])
def test_a_mistake(typed: str, code: int, message: str, remedy: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code, one or two short lines on stderr in terms of the shell, nothing written; the remedy works when typed.

    Cells of a file that are refused follow, one in a line with its place.
    """
    before = contents(here)
    assert run(typed) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = [line for line in shown.err.splitlines() if not re.match(r"  [\w.]+:\d+:\d+: ", line)]
    assert lines[0].startswith("fastomp: ")
    assert len(lines) <= 2
    assert lines[1:] == [] or re.fullmatch(r"see: fastomp [a-z -]+", lines[1])
    assert max(map(len, lines)) <= 330
    assert message in lines[0]
    assert not PYTHON.search(shown.err.replace(str(here), "")), shown.err
    assert contents(here) == before
    if len(lines) == 2:
        assert run(lines[1].removeprefix("see: fastomp ")) == 0
    if remedy:
        assert run(remedy) == 0, capsys.readouterr().err


def test_there_are_enough_mistakes() -> None:
    """At least sixty different mistakes, at least twenty-five of them with a remedy."""
    assert len({typed for typed, *_ in MISTAKES}) == len(MISTAKES) >= 60
    assert sum(bool(remedy) for *_, remedy in MISTAKES) >= 25
