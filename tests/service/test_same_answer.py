"""The same data and request through Python, the command line and the server give the same answer, bit for bit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.schema import TableSchema
from tests.service.running import RunningServer, small_data

REQUESTS: list[dict[str, Any]] = [
    {"k": 6},
    {"k": 4, "algorithm": "sds_omp", "seed": 3},
    {"k": 4, "algorithm": "sds_ma", "plain": True},
    {"k": 4, "quality": "verified"},
    {"k": 4, "quality": "best"},
    {"k": 5, "epsilon": 0.3, "tau": 0.9, "polish": "none", "until": "full"},
    {"k": 3, "ridge": 0.25, "standardize": False},
    {"k": 8, "constraint": {"partition": {"groups": {"low": ["f1*"], "high": ["f2*"]}, "caps": {"low": 2, "high": 1}}}},
    {"k": 5, "exclude": ["f3"], "test_fraction": 0.25},
    {"k": 4, "keep": ["f1", "f2?"], "covariates": np.cos(np.arange(160.0)).reshape(80, 2), "test_fraction": 0.25},
    {"k": 4, "quality": "verified", "keep": ["f4"], "weights": "y2", "offset": "f9", "exclude": ["f5"]},
    {"k": 3, "covariates": {"wave": np.sin(np.arange(80.0))}, "offset": np.linspace(-1.0, 1.0, 80)},
]


def answer(selection: fo.Selection | dict[str, Any]) -> dict[str, Any]:
    """Return an answer without the fields that depend on the clock and on the memory and threads of a process."""
    found = dict(selection) if isinstance(selection, dict) else selection.to_json()
    found.pop("seconds")
    found.pop("choices")
    return found


@pytest.fixture(scope="module")
def key(server: RunningServer) -> str:
    """Upload the small data, with a numeric and a class target."""
    X, y = small_data()
    with server.connect("/lab/same") as client:
        client.put(X, {"y": y, "sign": np.where(y > 0, "up", "down"), "y2": y**2}, replace=True)
    return f"{server.url}/lab/same"


def test_python_and_server(server: RunningServer, key: str) -> None:
    """Selections of the server equal local ones over the same store in every field but the time."""
    local = f"pmem://{server.pools}/lab/same"
    with server.connect("/lab/same") as client:
        for request in REQUESTS:
            assert answer(client.select(**request)) == answer(fo.select(local, **request)), request
        for logistic in ({"k": 3, "objective": "logistic", "target": "sign"}, {"k": 3, "target": "sign"}):
            assert answer(client.select(**logistic)) == answer(fo.select(local, **logistic))
        together = client.select_many(REQUESTS)
        assert [answer(found) for found in together] == [answer(fo.select(local, **request)) for request in REQUESTS]


def test_choices_come_with_the_answer(server: RunningServer, key: str) -> None:
    """The algorithm that the server chose for ``auto``, and why, reach the client as they do locally; so does the tier."""
    with server.connect("/lab/same") as client:
        found = client.select(k=4, algorithm="auto")
    expected = fo.select(f"pmem://{server.pools}/lab/same", k=4, algorithm="auto")
    assert answer(found) == answer(expected)
    assert found.choices["algorithm"] == expected.choices["algorithm"]
    assert found.choices["algorithm"].value == found.algorithm
    assert found.choices["tier"] == expected.choices["tier"]


def test_own_response_and_weights(server: RunningServer, key: str) -> None:
    """Vectors given by the client, numbers or labels, give the same answer as locally."""
    local = f"pmem://{server.pools}/lab/same"
    rng = np.random.default_rng(1)
    weights, y = rng.integers(0, 3, 80).astype(float), rng.normal(size=80)
    labels = np.where(y > 0, "yes", "no")
    with server.connect("/lab/same") as client:
        assert answer(client.select(y, k=4, weights=weights)) == answer(fo.select(local, y, k=4, weights=weights))
        chosen = client.select(labels, k=3)
        assert answer(chosen) == answer(fo.select(local, labels, k=3))
        assert (chosen.objective, chosen.objective_reason) == ("logistic", "the target 'y' has two classes, no and yes")
        with pytest.raises(fo.DataError, match="3 classes"):
            client.select(np.where(y > 1, "often", labels), k=3)
        found = client.select(labels, k=3, objective="logistic")
        assert answer(found) == answer(fo.select(local, labels, k=3, objective="logistic"))
        X, _ = small_data()
        assert np.array_equal(found.predict(X), fo.select(local, labels, k=3, objective="logistic").predict(X))


def test_command_line(server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """ingest, info and select take a remote URL like a path and print the same JSON."""
    monkeypatch.setenv("FASTOMP_TOKEN", server.token())
    X, y = small_data()
    table, costs, limits = tmp_path / "data.csv", tmp_path / "costs.csv", tmp_path / "limits.yaml"
    town = np.random.default_rng(0).choice(["Bern", "Oslo"], 80)
    lines = [",".join([*(f"f{column}" for column in range(60)), "town", "y", "key"])]
    lines += [
        ",".join([*map(repr, row.tolist()), where, repr(value), f"p{int(10 * value)}"])
        for row, where, value in zip(X, town, y.tolist(), strict=True)
    ]
    table.write_text("\n".join(lines))
    costs.write_text("feature,cost\n" + "\n".join(f"f{column},{1 + column % 3}" for column in range(60)))
    limits.write_text("all:\n  - knapsack: {costs: costs.csv, budget: 9, default: 1}\n  - cardinality: 6\n")
    remote, here = f"{server.url}/lab/cli", str(tmp_path / "store")
    for store in (remote, here):
        assert main(["ingest", str(table), store, "--target", "y", "--id", "key", "--replace", "--json"]) == 0
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert reports[0] == reports[1]
    facts = []
    for store in (remote, here):
        assert main(["info", store, "--columns", "[ty]*", "--json"]) == 0
        facts.append(json.loads(capsys.readouterr().out))
    for name in ("n_features", "n_columns", "n_obs", "fingerprint", "targets", "identifiers", "columns", "names_shown"):
        assert facts[0][name] == facts[1][name]
    assert [(column["name"], column["type"]) for column in facts[0]["columns"]] == [("town", "category"), ("y", "target")]
    assert facts[0]["identifiers"]["column"] == "key"
    beside = tmp_path / "beside.csv"
    beside.write_text(
        "who,wave\n" + "\n".join(f"p{key},{float(np.cos(key))!r}" for key in {int(10 * value) for value in y.tolist()})
    )
    kept = ["--k", "2", "--keep", "town,f1?", "--covariates", str(beside), "--covariates-id", "who", "--offset", "f4"]
    kept += ["--weights", str(tmp_path / "weights.txt")]
    (tmp_path / "weights.txt").write_text("\n".join(str(1 + row % 3) for row in range(80)))
    for words in (kept, ["--k", "5"], ["--constraint", str(limits)], ["--k", "3", "--target", "f7"], ["--k", "2", "--verify"]):
        found = []
        for store in (remote, here):
            assert main(["select", store, *words, "--json"]) == 0
            found.append(answer(json.loads(capsys.readouterr().out)))
        for name in ("medium", "emulated", "durability"):  # the pools are on emulated pmem, the path is not
            found[0].pop(name), found[1].pop(name)
        assert found[0] == found[1], words
    values = tmp_path / "other.txt"
    values.write_text("\n".join(str(number % 7) for number in range(80)))
    assert main(["select", remote, "--k", "2", "--target", str(values), "--objective", "linear", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["features"]) == 2
    for words in (["--load", "dram"], ["--tier-load", "dram"], ["--threads", "1"], ["--io", "mmap"], ["--protected", "f1"]):
        assert main(["select", remote, "--k", "2", *words]) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert f"{words[0]} is for stores on this machine" in message
        assert "leave it out" in message


def test_side_files_travel_inside_the_request(server: RunningServer, key: str, tmp_path: Path) -> None:
    """Every family that may name a file gives the same constraint when the file is written into its description."""
    from fastomp_nvm.constraints.written.description import parse_constraint
    from fastomp_nvm.constraints.written.side_files import inline_side_files

    names = ["a", "b[1]", "on", "1e5", "x*"]
    (tmp_path / "groups.csv").write_text("feature,group\na,1\nb[1],1\non,2\nx*,2\n")
    (tmp_path / "costs.csv").write_text("feature,cost\na,1\nb[1],2.5\non,1e-3\n1e5,4\nx*,5\n")
    (tmp_path / "edges.csv").write_text("feature,u,v\na,p,q\nb[1],q,r\non,p,r\n")
    (tmp_path / "survey.csv").write_text("a,b[1],on,1e5,x*\n1,0,1,1,1\n1,1,0,1,0\n1,1,1,1,1\n")
    texts = [
        "partition: {groups: groups.csv, caps: {'1': 1, '2': 1}}",
        "laminar: {groups: groups.csv, caps: {1: 1, 2: 2}}",
        "knapsack: {costs: costs.csv, budget: 5}",
        "graphic: {edges: edges.csv}",
        "fairness: {judgements: survey.csv, lambda: 0.4}",
        "all: [{fairness: {judgements: survey.csv, lambda: 0.4}}, {cardinality: 2}, {cardinality: 3}]",
    ]
    for text in texts:
        inlined = inline_side_files(text, tmp_path)
        assert ".csv" not in inlined
        mine, theirs = parse_constraint(text, names, base_path=tmp_path), parse_constraint(inlined, names, allow_oracle=False)
        for number in range(32):
            chosen = np.array([feature for feature in range(5) if number >> feature & 1], dtype=np.int64)
            assert mine.independent(chosen) == theirs.independent(chosen), (text, chosen)
    plain = "cardinality: 3  # as it was\n"
    assert inline_side_files(plain, tmp_path) is plain


def test_code_and_files_stay_at_home(server: RunningServer, key: str) -> None:
    """A request that names a function or a file of the server is refused; an object cannot be sent at all."""
    with server.connect("/lab/same") as client:
        for constraint in ({"oracle": "os:getpid"}, {"monotone": {"function": "os:getpid", "threshold": 1}}, "oracle: os:getpid"):
            with pytest.raises(fo.ConstraintError, match="locally"):
                client.select(k=2, constraint=constraint)
        with pytest.raises(fo.ConstraintError, match="files cannot be opened here"):
            client.select(k=2, constraint={"knapsack": {"costs": "/etc/passwd", "budget": 3}})
        with pytest.raises(fo.RequestError, match="description"):
            client.select(k=2, constraint=fo.constraints.Cardinality(60, 2))


def test_row_chunks_and_column_blocks_make_the_same_store(server: RunningServer) -> None:
    """However the values lie in memory and whatever their type, the store has the fingerprint of one built locally."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 41)).astype(np.float32)
    with server.connect() as client:
        for name, given in {"rows": X, "columns": np.asfortranarray(X), "wide": X.astype(np.float64)}.items():
            report = client.put(given, key=f"lab/{name}", replace=True)
            local = fo.create_store(f"dram:{name}", given, replace=True)
            assert report["fingerprint"] == local.layout.fingerprint
            assert client.info(f"lab/{name}")["fingerprint"] == local.layout.fingerprint
        upload = client.upload(TableSchema.plain(300, NumberedNames(41)), key="lab/reused", tier="none", replace=True)
        buffer = np.empty((100, 41), dtype=np.float32)
        for first in (0, 100, 200):
            buffer[:] = X[first : first + 100]
            upload.write_tile(first, 0, buffer)
        assert upload.finish().fingerprint == client.info("lab/rows")["fingerprint"], "a caller may use its buffer again"
        with pytest.raises(fo.DataError, match="row 3 of column 'f0' is 1e\\+300, too large for float32"):
            client.put(np.where(np.arange(8)[:, None] == 2, 1e300, np.ones((8, 2))), key="lab/large")
        with pytest.raises(fo.DataError, match="row 1 of column 'f0' is missing"):
            client.put(np.full((8, 2), np.nan), key="lab/gaps")
        assert client.put(np.where(np.eye(8, 3) > 0, np.nan, X[:8, :3]), key="lab/gaps", missing="mean")["imputed"] == {
            "f0": 1,
            "f1": 1,
            "f2": 1,
        }


def test_runs_here_and_there_speak_alike(
    server: RunningServer, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """The same request as a run here and as a job on a server has the same line in ``runs``, apart from place and time."""
    monkeypatch.setenv("FASTOMP_TOKEN", server.token())
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    local = f"pmem://{server.pools}/lab/same"

    def lines(*words: str) -> tuple[dict[str, Any], list[str]]:
        assert main(["runs", *words, "--json"]) == 0
        (found,) = [run for run in json.loads(capsys.readouterr().out) if run["name"] == "alike"]
        assert main(["runs", *words]) == 0
        shown = capsys.readouterr().out.splitlines()
        cells = [re.split(r"\s\s+", line.strip()) for line in shown if "alike" in line or "status" in line]
        return found, [cell for row in (cells[0], cells[-1]) for cell in row]

    assert main(["select", local, "--k", "3", "--target", "sign", "--run", "alike"]) == 0
    assert main(["select", key, "--k", "3", "--target", "sign", "--run", "alike"]) == 0
    assert f"'fastomp resume alike {key}'" in " ".join(capsys.readouterr().out.split())
    (here, shown_here), (there, shown_there) = lines(), lines(key)
    assert (here["status"], here["objective"], here["k"], here["selected"]) == ("finished", "logistic", 3, 3)
    assert here["score"] == fo.select(local, k=3, target="sign").score
    places = {"store", "seconds", "created"}
    assert here.keys() == there.keys()
    assert {name: here[name] for name in here.keys() - places} == {name: there[name] for name in there.keys() - places}
    assert (here["store"], there["store"]) == (local, key)
    assert there["created"]
    time = shown_here.index("time")
    for shown in (shown_here, shown_there):
        del shown[time + len(shown) // 2]
    assert shown_here == shown_there
    with server.connect("/lab/same") as client:
        with pytest.raises(fo.DataError):
            client.select(np.arange(80) % 3, k=2, run="refused")
        (failed,) = [info for info in client.jobs() if info.name == "refused"]
    assert (failed.status, failed.score) == ("failed", None)
    assert "3 distinct values" in failed.detail


def test_jobs_from_the_shell(server: RunningServer, key: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Commands list, cancel, resume and fetch jobs on a server, and delete a key."""
    monkeypatch.setenv("FASTOMP_TOKEN", server.token())
    monkeypatch.setenv("COLUMNS", "200")

    def printed(*words: str, code: int = 0) -> str:
        assert main(list(words)) == code
        found = capsys.readouterr()
        return found.out if code == 0 else found.err

    sent = printed("select", key, "--k", "4", "--run", "shell.1", "--json")
    assert printed("resume", "shell.1", server.url, "--json") == sent
    (listed,) = [job for job in json.loads(printed("runs", key, "--json")) if job["name"] == "shell.1"]
    assert (listed["status"], listed["store"]) == ("finished", f"{server.url}/lab/same")
    with server.connect("/lab") as client:
        assert json.loads(printed("list", f"{server.url}/lab", "--json")) == list(client.list())
    assert "same" in printed("list", f"{server.url}/lab")
    assert "lab" in printed("list", server.url)
    shown = printed("runs", server.url).splitlines()
    assert f"{server.url}/lab/same" in shown
    assert any("shell.1" in line and "finished" in line for line in shown)
    with server.connect("/lab/same") as client:
        many = client.submit(k=40, algorithm="sds_omp", run="shell.2")
        printed("cancel", many, server.url)
        assert json.loads(printed("resume", many, server.url, "--json"))["features"] == list(client.result(many)[0].features)
        client.select_many([{"k": 2}, {"k": 3}], run="shell.3")
    assert [len(found["features"]) for found in json.loads(printed("resume", "shell.3", server.url, "--json"))] == [2, 3]
    assert "no job 'absent'" in printed("resume", "absent", server.url, code=2)
    for words in (
        ("resume", "shell.1", server.url, "--threads", "2"),
        ("resume", "shell.1", "somewhere"),
        ("runs", "somewhere"),
        ("cancel", "shell.1", "somewhere"),
        ("list", "somewhere"),
        ("delete", "somewhere"),
    ):
        assert "server" in printed(*words, code=2)
    with server.connect("/lab/unwanted") as client:
        client.put(*small_data(), replace=True)
        printed("delete", f"{server.url}/lab/unwanted")
        assert "unwanted" not in [entry["key"] for entry in client.list()]
    assert "no key" in printed("delete", f"{server.url}/lab/unwanted", code=2)
