"""Grids, cross-validations and other analyses on a server: the answers of the same call here, as jobs like any other."""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.analysis.constraint_check import check_constraint
from fastomp_nvm.cli.main import main
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.selection.codec import encode_vector
from fastomp_nvm.selection.export import Extract, Extraction
from fastomp_nvm.selection.select import bind_constraint
from fastomp_nvm.stores.verification import verify_store
from tests.service.gated_server import HELD_FROM, GatedServer
from tests.service.running import RunningServer, small_data, token_of, write_tokens

#: Function of the package, method of a client, parameters.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "grid": ("grid", {"over": {"k": [2, 4], "tau": [0.3, "auto"]}, "test_fraction": 0.25}),
    "grid, other fields": (
        "grid",
        {"over": {"algorithm": ["fast_omp", "sds_omp"], "seed": [np.int64(3)]}, "k": 3, "exclude": ["f3"]},
    ),
    "grid, constraints": (
        "grid",
        {
            "over": {"constraint": [{"cardinality": 2}, "cardinality: 3\n", "partition: {groups: {a: [f3, f4]}, caps: {a: 1}}"]},
            "k": 4,
        },
    ),
    "grid, weights": ("grid", {"over": {"weights": [np.arange(80) % 3, None]}, "k": 3}),
    "grid, GLM": ("grid", {"over": {"ridge": [0.01, 1.0]}, "k": 3, "target": "sign"}),
    "cv": ("cross_validate", {"k_max": 4}),
    "cv, sizes": (
        "cross_validate",
        {"ks": [5, 2], "folds": 3, "rule": "one-standard-error", "algorithm": "sds_omp", "verify": True},
    ),
    "cv, own folds": ("cross_validate", {"ks": [3], "folds": np.arange(80) % 4, "weights": 1.0 + np.arange(80) % 2}),
    "cv, GLM": ("cross_validate", {"k_max": 3, "folds": 3, "target": "sign", "constraint": {"cardinality": 2}}),
    "stability": ("stability", {"k": 4, "subsamples": 12}),
    "stability, shares": ("stability", {"k": 3, "subsamples": 8, "fraction": 0.25, "threshold": 0.5, "target": "sign", "seed": 5}),
    "path": ("path", {"k": 6}),
    "path, runs": ("path", {"k": 4, "algorithm": "fast_omp"}),
    "path, verified": ("path", {"k": 4, "quality": "verified", "test_fraction": 0.2}),
    "path, bounds": ("path", {"k": 5, "constraint": {"bounds": {"groups": {"a": ["f1*"]}, "lower": {"a": 2}, "total": 5}}}),
}


def plain(value: object) -> Any:
    """Return a result in plain terms, without what depends on the clock and on the memory and threads of a process."""
    if isinstance(value, fo.Selection):
        found = value.to_json()
        del found["seconds"], found["choices"]
        return {**found, "columns": value.columns}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(each) for each in value]
    return value


def same(found: Any, expected: Any, place: str = "") -> None:
    """Compare plain values: numbers that are no integers with a tolerance, everything else exactly."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for name, value in expected.items():
            same(found[name], value, f"{place}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            same(one, other, f"{place}[{number}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), place
    else:
        assert found == expected, place


def write_survey(folder: Path) -> None:
    """Write the judgements of four people of every feature."""
    people = [",".join(str((column + row) % 2) for column in range(60)) for row in range(4)]
    (folder / "survey.csv").write_text("\n".join([",".join(f"f{column}" for column in range(60)), *people]))


@pytest.fixture(scope="module")
def store(server: RunningServer) -> str:
    """Upload the small data with a numeric and a class target; return the path of the store."""
    X, y = small_data()
    with server.connect("/lab/analyses") as client:
        client.put(X, {"y": y, "sign": np.where(y > 0, "up", "down")}, replace=True)
    return f"pmem://{server.pools}/lab/analyses"


@pytest.mark.parametrize("case", CASES)
def test_a_result_equals_that_of_the_function(server: RunningServer, store: str, case: str) -> None:
    """Every field of the result, of the same class, equals that of the same call on the store itself."""
    name, parameters = CASES[case]
    with server.connect("/lab/analyses") as client:
        found = getattr(client, name)(**parameters)
    expected = getattr(fo, name)(store, **parameters)
    assert type(found) is type(expected)
    same(plain(found), plain(expected))
    assert repr(found) == repr(expected)
    assert plain(found.to_json()).keys() == plain(expected.to_json()).keys()


def test_a_response_of_the_client_and_a_limit_on_fairness(server: RunningServer, store: str, tmp_path: Path) -> None:
    """A vector given by the client is the response; a grid over lambda and a constraint file, with a side file, work as here."""
    y = np.random.default_rng(1).normal(size=80)
    labels = np.where(y > 0, "yes", "no")
    write_survey(tmp_path)
    (tmp_path / "fair.yaml").write_text("all: [{cardinality: 6}, {fairness: {judgements: survey.csv, lambda: 0.9}}]\n")
    limits = {"over": {"lambda": [0.3, 0.9], "k": [2, 3]}, "constraint": tmp_path / "fair.yaml"}
    with server.connect("/lab/analyses") as client:
        same(plain(client.cross_validate(labels, k_max=2, folds=3)), plain(fo.cross_validate(store, labels, k_max=2, folds=3)))
        same(plain(client.path(y, k=3)), plain(fo.path(store, y, k=3)))
        same(plain(client.grid(**limits)), plain(fo.grid(store, **limits)))
        with pytest.raises(fo.ConstraintError, match="needs a fairness part"):
            client.grid(over={"lambda": [0.3]}, k=2, constraint={"cardinality": 2})


MISTAKES: list[tuple[str, dict[str, Any]]] = [
    ("grid", {"over": {"k": []}}),
    ("grid", {"over": {"tau": "auto"}, "k": 2}),
    ("grid", {"over": {"kk": [1]}}),
    ("grid", {"over": {"k": [0]}}),
    ("grid", {"over": {"lambda": [0.1]}, "k": 2}),
    ("grid", {"over": {"k": [2]}, "constraint": {"partition": {"groups": {"a": ["nothing"]}, "caps": {"a": 1}}}}),
    ("grid", {"over": {"target": ["nothing"]}, "k": 2}),
    ("cross_validate", {}),
    ("cross_validate", {"ks": [2], "k_max": 3}),
    ("cross_validate", {"ks": []}),
    ("cross_validate", {"k_max": 2, "k": 2}),
    ("cross_validate", {"k_max": 2, "rule": "worst"}),
    ("cross_validate", {"k_max": 2, "folds": 1}),
    ("cross_validate", {"k_max": 2, "folds": 81}),
    ("cross_validate", {"k_max": 2, "folds": [0, 1]}),
    ("cross_validate", {"k_max": 2, "test_fraction": 0.5}),
    ("stability", {"k": 2, "subsamples": 0}),
    ("stability", {"k": 2, "fraction": 1.0}),
    ("stability", {"k": 2, "threshold": 0.0}),
    ("stability", {}),
    ("path", {}),
    ("path", {"k": 3, "weights": np.ones(3)}),
]


@pytest.mark.parametrize(("name", "parameters"), MISTAKES)
def test_a_mistake_is_refused_in_the_same_words(server: RunningServer, store: str, name: str, parameters: dict[str, Any]) -> None:
    """The class and the sentence of an error are those of the same call on the store itself."""
    with pytest.raises(fo.InputError) as here:
        getattr(fo, name)(store, **parameters)
    with server.connect("/lab/analyses") as client, pytest.raises(fo.InputError) as there:
        getattr(client, name)(**parameters)
    assert (type(there.value), str(there.value)) == (type(here.value), str(here.value))


def test_checksums_proofs_and_constraints(server: RunningServer, store: str, tmp_path: Path) -> None:
    """A store is verified, a proof is checked again and a constraint is read where the data is, with the same findings."""
    rules = {"partition": {"groups": {"a": ["f1*"], "b": ["f2*"]}, "caps": {"a": 2, "b": 1}}}
    (tmp_path / "rules.yaml").write_text("cardinality: 7\n")
    with server.connect("/lab/analyses") as client, fo.open_store(store) as opened:
        seen: list[float] = []
        assert client.verify(observer=lambda step: seen.append(step.share)) == verify_store(opened)
        assert seen[-1] == 1.0
        chosen = client.select(k=4, quality="verified")
        assert client.verify_proof(chosen) == fo.verify(chosen, store)
        other = dataclasses.replace(chosen, score=chosen.score / 2)
        assert plain(client.verify_proof(other)) == plain(fo.verify(other, store))
        assert not client.verify_proof(other).holds
        with pytest.raises(fo.RequestError, match="carries no proof"):
            client.verify_proof(client.select(k=2))
        dataset = Dataset.of_store(opened)
        for given in (rules, json.dumps(rules), tmp_path / "rules.yaml"):
            bound = bind_constraint(given, dataset, dataset.design().standardisation.usable())
            assert client.check_constraint(given, samples=20, seed=3) == check_constraint(bound, dataset, 20, 3)
        for wrong, sentence in (
            ({"oracle": "os:getpid"}, "locally"),
            ({"knapsack": {"costs": "/etc/passwd", "budget": 3}}, "files cannot be opened here"),
            ({"partition": {"groups": {"a": ["f999"]}, "caps": {"a": 1}}}, "there is no feature 'f999'"),
        ):
            with pytest.raises(fo.ConstraintError, match=sentence):
                client.check_constraint(wrong)


def test_a_damaged_store_is_found_at_the_server(server: RunningServer) -> None:
    """A changed byte is named by the job, and no path of the server is."""
    X, y = small_data()
    with server.connect("/lab/damaged") as client:
        client.put(X, y, tier="none", replace=True)
        matrix = server.pools / "lab" / "damaged" / "matrix.npy"
        data = bytearray(matrix.read_bytes())
        data[-3] ^= 1
        matrix.write_bytes(data)
        with pytest.raises(fo.StoreError, match=r"the store lab/damaged is damaged: column 59 .*does not match its checksum"):
            client.verify(run="damage")
        assert str(server.pools) not in json.dumps(client.progress("damage"))


def write_people(path: Path, rows: int, length: int = 1) -> None:
    """Write a table of a numeric and a categorical feature, two targets, and identifiers of ``length`` digits or more."""
    lines = ["who,size,town,y,kind"]
    lines += [
        f"p{row:0{length}d},{row / 7!r},{'Bern' if row % 3 else 'Oslo'},{row % 5},{'up' if row % 2 else 'down'}"
        for row in range(rows)
    ]
    path.write_text("\n".join(lines))


def same_extract(found: Extract, expected: Extract) -> None:
    """Assert that two extracts agree exactly."""
    assert (list(found.names), found.label) == (list(expected.names), expected.label)
    assert found.values.dtype == expected.values.dtype
    for mine, theirs in ((found.values, expected.values), (found.y, expected.y), (found.ids, expected.ids)):
        assert np.array_equal(mine, theirs)


def test_columns_leave_the_server_as_they_are(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns, names, target and identifiers equal those read from the store; class labels come as texts."""
    write_people(tmp_path / "t.csv", 90)
    with server.connect("/lab/people") as client:
        client.ingest(str(tmp_path / "t.csv"), targets=["y", "kind"], id_column="who", dtype="float64", replace=True)
        for request in ({"k": 2, "objective": "linear"}, {"k": 1, "target": "kind"}):
            chosen = client.select(**request)
            found = client.extract(chosen)
            with fo.open_store(f"pmem://{server.pools}/lab/people") as opened:
                expected = Extraction(opened, chosen.indices, chosen.objective, chosen.target).whole(lambda done, total: None)
            same_extract(found, expected)
            assert client.export(chosen, tmp_path / "x.npz").label == found.label
            with np.load(tmp_path / "x.npz") as written:
                assert np.array_equal(written["X"], expected.values)
                assert written["ids"][4] == "p4"
        with pytest.raises(fo.RequestError, match="the selection names feature 7, the store has 2"):
            client.extract_columns(np.array([7]), "linear", "y")
        with pytest.raises(fo.RequestError, match="no target or feature is called 'nothing'"):
            client.extract_columns(np.array([0]), "linear", "nothing")
        with pytest.raises(fo.RequestError, match="unknown extension"):
            client.export(chosen, tmp_path / "x.xls")


def test_a_job_is_left_alone_and_fetched_later(server: RunningServer, store: str) -> None:
    """The result of a detached job is there for another client; a submission sent twice is one job; a name is taken once."""
    with server.connect("/lab/analyses") as client:
        job = client.submit_analysis("cv", options={"k_max": 3, "folds": 3}, run="later", seed=4)
        assert client.submit_analysis("cv", options={"k_max": 3, "folds": 3}, run="later", seed=4) == job == "later"
        with pytest.raises(fo.RequestError, match="a job called 'later' exists already"):
            client.submit_analysis("cv", options={"k_max": 2, "folds": 3}, run="later", seed=4)
        with pytest.raises(fo.RequestError, match="there is no analysis 'gird'"):
            client.submit_analysis("gird")
        with pytest.raises(fo.RequestError, match="options of cv"):
            client.submit_analysis("cv", options={"kmax": 2})
    with server.connect() as client:
        found = client.fetch("later")
        same(plain(found), plain(fo.cross_validate(store, k_max=3, folds=3, seed=4)))
        with pytest.raises(fo.RequestError, match="is no selection but a CrossValidation: use fetch"):
            client.result("later")
        (listed,) = [info for info in client.jobs() if info.name == "later"]
        assert (listed.kind, listed.status, listed.selected) == ("cv", "finished", found.k)
        assert listed.score == found.selection.score


HALVES = encode_vector([0.5, 1.0])

LIMITS: list[tuple[str, dict[str, Any], str]] = [
    ("grid", {"over": {"k": list(range(1, 60)), "seed": list(range(20))}}, "at most 1000 are made in one job"),
    (
        "cv",
        {"request": {}, "options": {"k_max": 10**9, "folds": 5, "ks": None, "rule": "best"}},
        "at most 1000 are made in one job",
    ),
    (
        "cv",
        {"request": {}, "options": {"k_max": 2, "folds": 10**12, "ks": None, "rule": "best"}},
        "at most 1000 are made in one job",
    ),
    ("cv", {"options": {"k_max": 2, "folds": "5", "ks": None, "rule": "best"}}, "folds must be a whole number"),
    ("cv", {"options": {"k_max": 2, "folds": 5, "ks": None}}, "expected folds, ks, k_max, rule"),
    ("stability", {"options": {"subsamples": 10**9, "fraction": 0.5, "threshold": 0.6}}, "at most 1000 are made in one job"),
    ("stability", {"options": {"subsamples": 5, "fraction": "half", "threshold": 0.6}}, "fraction is 'half'"),
    ("path", {"request": {"k": 2, "constraint": "/etc/hosts.yaml"}}, "expected a mapping"),
    ("grid", {"options": {"over": {"constraint": ["/etc/hosts.yml"]}}}, "expected a mapping"),
    ("grid", {"options": {"over": {"constraint": [{"oracle": "os:getpid"}]}}}, "locally"),
    ("grid", {"options": {"over": [1]}}, "not an object of lists"),
    (
        "cv",
        {"request": {}, "options": {"folds": encode_vector([0.5]), "ks": [1], "k_max": None, "rule": "best"}},
        "not whole numbers",
    ),
    ("verify", {"request": {"threads": 2}}, "no parameter 'threads'"),
    ("select", {}, "there is no analysis 'select'"),
    ("proof", {"options": {"claim": {"indices": "all"}}}, "it lacks indices"),
]


@pytest.mark.parametrize(("kind", "changes", "sentence"), LIMITS)
def test_what_a_server_does_not_begin(server: RunningServer, store: str, kind: str, changes: dict[str, Any], sentence: str) -> None:
    """More selections than allowed, options of the wrong type, files and code are refused before anything is computed."""
    changes = dict(changes)
    if "over" in changes:
        changes["options"] = {"over": changes.pop("over")}
    body = {"pool": "lab", "key": "analyses", "job": "refused", "kind": kind, "request": {"k": 2}, "options": {}, **changes}
    with server.connect() as client:
        before = time.monotonic()
        with pytest.raises(fo.FastompError, match=sentence):
            client.call("analyse", body)
        assert time.monotonic() - before < 20.0, "the deadline of a request"
        with pytest.raises(fo.RequestError, match="there is no job"):
            client.progress("refused")


def test_a_text_is_never_the_name_of_a_file(server: RunningServer, store: str, tmp_path: Path) -> None:
    """A description on one line that ends like a file name is read as YAML by every analysis, even where such a file exists."""
    text = "{cardinality: 2} #.yaml".replace(": ", ":\t")
    with server.connect("/lab/analyses") as client:
        place = {"pool": "lab", "key": "analyses", "verify": False}
        folds = {"k_max": None, "ks": [3], "folds": 3, "rule": "best"}
        for kind, request, options in (
            ("path", {"k": 3}, {}),
            ("cv", {}, folds),
            ("grid", {}, {"over": {"k": [3]}}),
            ("grid", {"k": 3}, {"over": {"constraint": [text]}}),
        ):
            job = f"text-{kind}-{len(options)}-{len(request)}"
            fields = {"objective": "linear", "constraint": text, **request}
            client.call("analyse", {**place, "job": job, "kind": kind, "request": fields, "options": options})
            client.fetch(job)


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Return what a command printed, without figures of time and place."""
    assert main(list(words)) == code, capsys.readouterr().err
    found = capsys.readouterr()
    return found.out if code == 0 else found.err


WORDS: list[list[str]] = [
    ["grid", "URL", "--k", "2,3", "--tau", "0.3,0.5", "--test-fraction", "0.25"],
    ["grid", "URL", "--lambda", "0.3,0.9", "--constraint", "fair.yaml"],
    ["cv", "URL", "--k-max", "3", "--folds", "3", "--target", "sign"],
    ["cv", "URL", "--k", "2,4", "--weights", "weights.csv"],
    ["stability", "URL", "--k", "3", "--subsamples", "9", "--threshold", "0.7"],
    ["path", "URL", "--k", "4", "--target", "other.txt", "--objective", "linear"],
    ["check-constraint", "fair.yaml", "URL", "--samples", "30"],
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: RunningServer) -> Path:
    """Make a folder of files for commands and go there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FASTOMP_TOKEN", server.token())
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "160")
    write_survey(tmp_path)
    (tmp_path / "fair.yaml").write_text("all: [{cardinality: 6}, {fairness: {judgements: survey.csv, lambda: 0.9}}]\n")
    (tmp_path / "weights.csv").write_text("\n".join(str(1 + row % 2) for row in range(80)))
    (tmp_path / "other.txt").write_text("\n".join(str(row * 7 % 11) for row in range(80)))
    return tmp_path


@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words[:4]))
@pytest.mark.usefixtures("folder")
def test_a_command_prints_the_same(server: RunningServer, store: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` and the text for people of a server's URL equal those of the store's path, apart from times."""
    found = []
    for url in (f"{server.url}/lab/analyses", store):
        command = [url if word == "URL" else word for word in words]
        found.append(json.loads(printed(capsys, *command, "--json")))
        found.append(printed(capsys, *command).splitlines())
    there, shown_there, here, shown_here = found

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: timeless(each) for name, each in value.items() if name not in ("seconds", "choices")}
        return [timeless(each) for each in value] if isinstance(value, list) else value

    same(timeless(there), timeless(here))
    assert [line for line in shown_there if " rounds, " not in line] == [line for line in shown_here if " rounds, " not in line]


def test_verify_export_predict_and_report_from_the_shell(
    server: RunningServer, store: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands on a URL print and write what they do on the path; a run may be one of the server, a file or one of here."""
    url = f"{server.url}/lab/analyses"
    assert printed(capsys, "verify", url) == printed(capsys, "verify", store)
    result = printed(capsys, "select", url, "--k", "3", "--quality", "verified", "--run", "there", "--json")
    (folder / "found.json").write_text(result)
    printed(capsys, "select", store, "--k", "3", "--quality", "verified", "--run", "here")
    (expected,) = {printed(capsys, "verify", name, "--store", store) for name in ("here", "found.json")}
    for name in ("there", "here", "found.json"):
        assert printed(capsys, "verify", name, "--store", url) == expected
    assert "--store" in printed(capsys, "verify", "there", "--store", store, code=2)
    printed(capsys, "export", "here", "here.csv")
    for place, name in enumerate(("there", "here", "found.json")):
        said = printed(capsys, "export", name, f"out{place}.csv", "--store", url)
        assert said == f"80 observations of 3 columns and the target 'y' written to out{place}.csv\n"
        assert (folder / f"out{place}.csv").read_bytes() == (folder / "here.csv").read_bytes()
    printed(capsys, "predict", "here", store, "here-predicted.csv")
    printed(capsys, "predict", "there", url, "predicted.csv")
    assert (folder / "predicted.csv").read_bytes() == (folder / "here-predicted.csv").read_bytes()
    assert "no job 'nowhere'" in printed(capsys, "export", "nowhere", "o.csv", "--store", url, code=2)
    assert "no job 'nowhere'" in printed(capsys, "predict", "nowhere", url, "o.csv", code=2)
    assert not (folder / "o.csv").exists()
    printed(capsys, "report", "there", "there.html", url)
    assert "f3" in (folder / "there.html").read_text()


def test_detached_from_the_shell(server: RunningServer, store: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--detach`` prints the name of the job; ``resume`` prints its result as the command does, ``runs`` its kind."""
    url = f"{server.url}/lab/analyses"
    commands = {
        "grid": ["--k", "2,3"],
        "cv": ["--k-max", "2", "--folds", "3"],
        "stability": ["--k", "2", "--subsamples", "5"],
        "path": ["--k", "3"],
    }
    for command, words in commands.items():
        assert json.loads(printed(capsys, command, url, *words, "--detach", "--run", f"d-{command}", "--json")) == {
            "job": f"d-{command}"
        }
        again = printed(capsys, "resume", f"d-{command}", url, "--json")
        assert printed(capsys, command, url, *words, "--run", f"d-{command}", "--json") == again, "the same job"
        assert printed(capsys, "resume", f"d-{command}", url) == printed(capsys, command, url, *words, "--run", f"d-{command}")
    shown = printed(capsys, "runs", url)
    for command in commands:
        (line,) = [line for line in shown.splitlines() if f"d-{command} " in line]
        assert f" {command}" in line
    printed(capsys, "report", "d-grid", "grid.html", url)
    assert "made no selection" in printed(capsys, "report", "d-stability", "s.html", url, code=2)
    assert "2 selections" in printed(capsys, "export", "d-grid", "g.csv", "--store", url, code=2)
    assert "has 2 answers" in printed(capsys, "resume", "d-grid", url, "--save", "m.json", code=2)


PRINCIPALS: dict[str, tuple[str, list[str] | None]] = {"ada": ("admin", None), "bob": ("read", ["lab"]), "eve": ("read", ["other"])}


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedServer]:
    """Run a server of several principals whose jobs can be held in the middle."""
    folder = tmp_path_factory.mktemp("mortal")
    tokens = folder / "tokens.yaml"
    write_tokens(tokens, PRINCIPALS)
    with GatedServer(folder, "--token-file", str(tokens), "--drain", "0.2") as running:
        with running.connect("/lab/data", token=token_of("ada")) as client:
            client.put(*small_data(n_features=300), tier="none")
        yield running
        running.open_gate()
        assert running.stop() == 0


def held(client: fo.Client, job: str) -> None:
    """Return once one of the runs of a job is held in the middle."""
    for standing in client.follow(job):
        assert standing["state"] in ("queued", "running"), "the job was to be held"
        if any(step.get("selected", 0) >= HELD_FROM for step in standing["progress"]):
            return


CROSS = {"options": {"ks": [4, 8], "folds": 3}, "algorithm": "sds_omp", "plain": True}


def test_an_analysis_is_cancelled_and_resumed(mortal: GatedServer) -> None:
    """A running cross-validation ends when it is cancelled, keeps its kind, and gives the whole result when it is resumed."""
    with mortal.connect("/lab/data", token=token_of("bob")) as client:
        mortal.close_gate()
        job = client.submit_analysis("cv", run="cancelled", **CROSS)
        held(client, job)
        assert client.progress(job)["kind"] == "cv"
        assert len(client.progress(job)["progress"]) == 4, "greedy runs once for each fold, and on all observations"
        client.cancel(job)
        with pytest.raises(fo.CancelledError):
            client.fetch(job)
        (listed,) = [info for info in client.jobs() if info.name == job]
        assert (listed.kind, listed.status) == ("cv", "cancelled")
        mortal.open_gate()
        client.resume(job)
        expected = fo.cross_validate(f"pmem://{mortal.pools}/lab/data", ks=[4, 8], folds=3, algorithm="sds_omp", plain=True)
        same(plain(client.fetch(job)), plain(expected))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_analysis_survives_the_server(mortal: GatedServer, number: int) -> None:
    """An analysis that was running when the server was killed, or stopped, starts again and gives its whole result."""
    job = f"survivor-{number}"
    with mortal.connect("/lab/data", token=token_of("bob")) as client:
        mortal.close_gate()
        client.submit_analysis("cv", run=job, **CROSS)
        held(client, job)
        if number == signal.SIGKILL:
            mortal.kill()
        else:
            mortal.stop()
        mortal.start()
        found = client.fetch(job)
        finished = client.submit_analysis("cv", run=job, **CROSS)
        assert finished == job, "the job and its result are kept"
    expected = fo.cross_validate(f"pmem://{mortal.pools}/lab/data", ks=[4, 8], folds=3, algorithm="sds_omp", plain=True)
    same(plain(found), plain(expected))


def test_roles_pools_and_owners(mortal: GatedServer) -> None:
    """A read token may do all of it in its pools; a token of other pools and another owner get neither data nor results."""
    with mortal.connect("/lab/data", token=token_of("bob")) as client:
        client.grid(over={"k": [2]}, run="of-bob")
        client.verify()
        client.check_constraint({"cardinality": 2})
        client.extract_columns(np.array([0]), "linear", None)
    with mortal.connect("/lab/data", token=token_of("eve")) as client:
        for refused in (
            lambda: client.grid(over={"k": [2]}),
            lambda: client.verify(),
            lambda: client.check_constraint({"cardinality": 2}),
            lambda: client.extract_columns(np.array([0]), "linear", None),
        ):
            with pytest.raises(fo.ServerError, match="eve has no access to the pool 'lab'"):
                refused()
        with pytest.raises(fo.RequestError, match="there is no job 'of-bob'"):
            client.fetch("of-bob")
    with mortal.connect("/lab/data", token="no token of anybody") as client, pytest.raises(fo.ServerError):
        client.grid(over={"k": [2]})
    tokens = mortal.folder / "tokens.yaml"
    write_tokens(tokens, {**PRINCIPALS, "bob": ("read", ["other"])})
    mortal.signal(signal.SIGHUP)
    with mortal.connect("/lab/data", token=token_of("bob")) as client:
        end = time.monotonic() + 60
        while (said := refusal(client, "of-bob")) is None and time.monotonic() < end:  # until the tokens are read again
            time.sleep(0.05)
        assert said == "bob has no access to the pool 'lab': ask for another token"
    write_tokens(tokens, PRINCIPALS)
    mortal.signal(signal.SIGHUP)


def refusal(client: fo.Client, job: str) -> str | None:
    """Return why a result is refused, or None."""
    try:
        client.fetch(job)
    except fo.ServerError as error:
        return str(error)
    return None
