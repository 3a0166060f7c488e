"""Grids, cross-validations and other analyses inside MCAS: the answers of the same call here, driven in slices like a selection."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from ado_plugin.mcas import transport as mcas_transport
from fastomp_nvm.analysis.constraint_check import check_constraint
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.selection.export import Extraction
from fastomp_nvm.selection.select import bind_constraint
from fastomp_nvm.stores.verification import verify_store
from tests.service.running import small_data
from tests.service.test_analyses import CASES, CROSS, LIMITS, MISTAKES, plain, printed, same, same_extract, write_people

DOUBLES = Path(__file__).parents[1] / "doubles"
sys.path.append(str(DOUBLES))

from running_mcas import RunningMcas  # noqa: E402

sys.path.remove(str(DOUBLES))

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMcas]:
    """Run a server double, with its modules in reach of these tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOUBLES))
        patch.setenv("MCAS_DOUBLE_TIMEOUT", "20")
        patch.setenv("FASTOMP_MCAS_POOL_BYTES", str(128 << 20))
        patch.delenv("FASTOMP_TOKEN", raising=False)
        running = RunningMcas(tmp_path_factory.mktemp("mcas"))
        yield running
        running.kill()


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    """Return the small data with a numeric and a class target."""
    X, y = small_data()
    return {"X": X, "y": {"y": y, "sign": np.where(y > 0, "up", "down")}}


@pytest.fixture(scope="module")
def client(server: RunningMcas, data: dict[str, Any]) -> Iterator[fo.Client]:
    """Put the data, and keep the pool open: without clients the server would end its ADO."""
    with fo.connect(f"{server.url}/d") as found:
        found.put(**data)
        yield found


@pytest.fixture(scope="module")
def store(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of the same store on this machine."""
    url = f"mmap://{tmp_path_factory.mktemp('here')}/s"
    fo.create_store(url, **data).close()
    return url


def placeless(value: Any) -> Any:
    """Return a result in plain terms, without where its store is."""
    if isinstance(value, dict):
        return {name: placeless(each) for name, each in value.items() if name not in ("medium", "durability", "seconds", "choices")}
    return [placeless(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", CASES)
def test_a_result_equals_that_of_the_function(client: fo.Client, store: str, case: str) -> None:
    """Every field of the result, of the same class, equals that of the same call on the same store here."""
    name, parameters = CASES[case]
    found, expected = getattr(client, name)(**parameters), getattr(fo, name)(store, **parameters)
    assert type(found) is type(expected)
    same(placeless(plain(found)), placeless(plain(expected)))


@pytest.mark.parametrize(("name", "parameters"), MISTAKES)
def test_a_mistake_is_refused_in_the_same_words(client: fo.Client, store: str, name: str, parameters: dict[str, Any]) -> None:
    """The class and the sentence of an error are those of the same call on the store itself."""
    with pytest.raises(fo.InputError) as here:
        getattr(fo, name)(store, **parameters)
    with pytest.raises(fo.InputError) as there:
        getattr(client, name)(**parameters)
    assert (type(there.value), str(there.value)) == (type(here.value), str(here.value))


@pytest.mark.parametrize(("kind", "changes", "sentence"), LIMITS)
def test_what_the_plugin_does_not_begin(client: fo.Client, kind: str, changes: dict[str, Any], sentence: str) -> None:
    """More selections than allowed, options of the wrong type, files and code are refused, and leave no run behind."""
    changes = dict(changes)
    if "over" in changes:
        changes["options"] = {"over": changes.pop("over")}
    body = {"pool": "lab", "key": "d", "job": "refused", "kind": kind, "request": {"k": 2}, "options": {}, **changes}
    with pytest.raises(fo.FastompError, match=sentence):
        client.call("analyse", body)
    with pytest.raises(fo.ServerError, match="there is no run"):
        client.progress("refused")


def test_a_job_is_left_alone_and_fetched_later(server: RunningMcas, client: fo.Client, store: str) -> None:
    """The result of a detached analysis is there for another client; a submission sent twice is one run; it keeps its kind."""
    options = {"k_max": 3, "folds": 3}
    job = client.submit_analysis("cv", options=options, run="later", seed=4)
    assert client.submit_analysis("cv", options=options, run="later", seed=4) == job == "later"
    with pytest.raises(fo.ServerError, match="with another request exists"):
        client.submit_analysis("cv", options={"k_max": 2, "folds": 3}, run="later", seed=4)
    with fo.connect(server.url) as other:
        found = other.fetch("later")
        same(placeless(plain(found)), placeless(plain(fo.cross_validate(store, seed=4, **options))))
        with pytest.raises(fo.RequestError, match="is no selection but a CrossValidation: use fetch"):
            other.result("later")
        (listed,) = [info for info in other.jobs() if info.name == "later"]
    assert (listed.kind, listed.status, listed.selected) == ("cv", "finished", found.k)
    assert listed.score == found.selection.score


def test_an_analysis_is_cancelled_and_resumed(client: fo.Client, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An analysis that was begun ends when it is cancelled, keeps its kind, and gives the whole result when it is resumed."""
    monkeypatch.setattr(mcas_transport, "SLICE_SECONDS", 1e-6)
    job = client.submit_analysis("cv", run="cancelled", **CROSS)
    steps = client.follow(job)
    begun = next(state for state in steps if state["progress"])
    assert (begun["state"], begun["kind"], begun["progress"][0]["runs"]) == ("running", "cv", 4)
    assert client.cancel(job)["state"] == "cancelled"
    with pytest.raises(fo.CancelledError):
        client.fetch(job)
    (listed,) = [info for info in client.jobs() if info.name == job]
    assert (listed.kind, listed.status) == ("cv", "cancelled")
    client.resume(job)
    same(placeless(plain(client.fetch(job))), placeless(plain(expected_cross(store))))


def expected_cross(store: str) -> fo.CrossValidation:
    """Return the result of ``CROSS``."""
    return fo.cross_validate(store, ks=[4, 8], folds=3, algorithm="sds_omp", plain=True)


DRIVER = """
import sys
import fastomp_nvm as fo
from ado_plugin.mcas import transport
transport.SLICE_SECONDS = 1e-6
with fo.connect(sys.argv[1]) as client:
    job = client.submit_analysis("cv", run="orphan", options={"ks": [4, 8], "folds": 3}, algorithm="sds_omp", plain=True)
    for state in client.follow(job):
        if state["progress"]:
            print("begun", flush=True)
            sys.stdin.read()
"""


def test_a_dead_driver_and_a_dead_ado_are_succeeded(
    data: dict[str, Any], store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of the client that drives an analysis, and then of the ADO: another client gets the whole result."""
    monkeypatch.setenv("MCAS_DOUBLE_TIMEOUT", "2")
    own = RunningMcas(tmp_path / "own")
    try:
        with fo.connect(f"{own.url}/d") as client:
            client.put(**data)
        environment = {**os.environ, "PYTHONPATH": f"{DOUBLES}{os.pathsep}{Path(__file__).parents[2]}"}
        command = [sys.executable, "-c", DRIVER, f"{own.url}/d"]
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"begun\n"
            victim.send_signal(signal.SIGKILL)
        with fo.connect(f"{own.url}/d") as other:
            assert other.progress("orphan")["state"] == "running"
            own.kill_ado()
            same(placeless(plain(other.fetch("orphan"))), placeless(plain(expected_cross(store))))
    finally:
        own.kill()


def test_checksums_and_proofs(client: fo.Client, store: str) -> None:
    """A store is verified and a proof is checked again where the data is, with the same findings."""
    with fo.open_store(store) as opened:
        seen: list[float] = []
        assert client.verify(observer=lambda step: seen.append(step.share)) == verify_store(opened)
    assert seen[-1] == 1.0
    chosen = client.select(k=4, quality="verified")
    assert client.verify_proof(chosen) == fo.verify(chosen, store)
    other = dataclasses.replace(chosen, score=chosen.score / 2)
    assert plain(client.verify_proof(other)) == plain(fo.verify(other, store))
    assert not client.verify_proof(other).holds


def test_a_constraint_is_read_where_the_data_is(client: fo.Client, store: str) -> None:
    """Its facts equal those found here; files, code and unknown features are refused."""
    rules = {"partition": {"groups": {"a": ["f1*"], "b": ["f2*"]}, "caps": {"a": 2, "b": 1}}}
    with fo.open_store(store) as opened:
        dataset = Dataset.of_store(opened)
        bound = bind_constraint(rules, dataset, dataset.design().standardisation.usable())
        assert client.check_constraint(rules, samples=20, seed=3) == check_constraint(bound, dataset, 20, 3)
    for wrong, sentence in (
        ({"oracle": "os:getpid"}, "locally"),
        ({"knapsack": {"costs": "/etc/passwd", "budget": 3}}, "files cannot be opened here"),
        ({"partition": {"groups": {"a": ["f999"]}, "caps": {"a": 1}}}, "there is no feature 'f999'"),
    ):
        with pytest.raises(fo.ConstraintError, match=sentence):
            client.check_constraint(wrong)
    with pytest.raises(fo.RequestError, match="samples or seed is out of range"):
        client.check_constraint({"cardinality": 2}, samples=-1)


@pytest.mark.parametrize("length", [8, 4000])
def test_columns_leave_the_pool_as_they_are(server: RunningMcas, tmp_path: Path, length: int) -> None:
    """Columns, names, target and identifiers equal those read from a store here, in one page and in several."""
    write_people(tmp_path / "t.csv", 900, length)
    options: dict[str, Any] = {"targets": ["y", "kind"], "id_column": "who", "dtype": "float64"}
    fo.ingest(str(tmp_path / "t.csv"), f"mmap://{tmp_path}/s", **options)
    with fo.connect(f"{server.url}/people{length}") as client, fo.open_store(f"mmap://{tmp_path}/s") as opened:
        client.ingest(str(tmp_path / "t.csv"), **options)
        for request in ({"k": 2, "objective": "linear"}, {"k": 1, "target": "kind"}):
            chosen = client.select(**request)
            found = client.extract(chosen)
            expected = Extraction(opened, chosen.indices, chosen.objective, chosen.target).whole(lambda done, total: None)
            same_extract(found, expected)
        with pytest.raises(fo.RequestError, match="the selection names feature 7, the store has 2"):
            client.extract_columns(np.array([7]), "linear", "y")


def test_a_large_extract_comes_in_pages_that_fit(server: RunningMcas, tmp_path: Path) -> None:
    """What is larger than a reply comes whole; replacing the store between two pages is noticed; long names are refused."""
    rows = np.arange(3 * 300_000, dtype=np.float64).reshape(-1, 3)
    with fo.connect(f"{server.url}/tall") as client, fo.connect(f"{server.url}/tall") as other:
        client.put(rows, rows[:, 0] * 1e-6, dtype="float64", tier="none")
        found = client.extract_columns(np.array([2, 0]), "linear", None)
        assert np.array_equal(found.values, rows[:, [2, 0]])
        asked = {**client._place(None), "indices": [0], "objective": "linear", "target": None}
        pages = client._calls("extract", asked, 30.0)
        next(pages)
        other.put(rows + 1, rows[:, 0], dtype="float64", tier="none", replace=True)
        with pytest.raises(fo.StoreError, match="was replaced while columns were read from it: export again"):
            list(pages)
        other.put(rows[:9], rows[:9, 0], key="lab/names", names=[f"{'n' * 600_000}{each}" for each in range(3)])
        with pytest.raises(fo.RequestError, match="fit no reply"):
            client.extract_columns(np.arange(3), "linear", None, key="lab/names")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to an empty folder, with the runs of this machine inside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    return tmp_path


def test_export_from_the_shell(
    server: RunningMcas, client: fo.Client, store: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``export`` of a run of the pool, and ``check-constraint`` on a key, write and print what they do here."""
    url = f"{server.url}/d"
    printed(capsys, "select", url, "--k", "3", "--run", "there")
    printed(capsys, "select", store, "--k", "3", "--run", "here")
    printed(capsys, "export", "here", "here.csv")
    said = printed(capsys, "export", "there", "there.csv", "--store", url)
    assert said == "80 observations of 3 columns and the target 'y' written to there.csv\n"
    assert (folder / "there.csv").read_bytes() == (folder / "here.csv").read_bytes()
    assert "no run 'nowhere'" in printed(capsys, "export", "nowhere", "o.csv", "--store", url, code=1)
    assert not (folder / "o.csv").exists()
    (folder / "c.yaml").write_text("cardinality: 7\n")
    assert printed(capsys, "check-constraint", "c.yaml", url) == printed(capsys, "check-constraint", "c.yaml", store)


WORDS: list[list[str]] = [
    ["grid", "URL", "--k", "2,3", "--tau", "0.3,0.5", "--test-fraction", "0.25"],
    ["cv", "URL", "--k-max", "3", "--folds", "3", "--target", "sign"],
    ["stability", "URL", "--k", "3", "--subsamples", "9"],
    ["path", "URL", "--k", "4"],
]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words[0])
def test_a_command_prints_the_same(
    server: RunningMcas, client: fo.Client, store: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """``--json`` and the text for people of a key in a pool equal those of the store here, apart from times and its medium."""
    found = []
    for url in (f"{server.url}/d", store):
        command = [url if word == "URL" else word for word in words]
        found.append(placeless(json.loads(printed(capsys, *command, "--json"))))
        lines = printed(capsys, *command).replace(" on mcas:", " on mmap:").splitlines()
        found.append([line for line in lines if " rounds, " not in line and not line.startswith("io ")])
    same(found[0], found[2])
    assert found[1] == found[3]
    if words[0] == "cv":
        detached = [f"{server.url}/d" if word == "URL" else word for word in words]
        job = json.loads(printed(capsys, *detached, "--detach", "--json"))["job"]
        same(placeless(json.loads(printed(capsys, "resume", job, f"{server.url}/d", "--json"))), found[2])


def test_verify_from_the_shell(
    server: RunningMcas, client: fo.Client, store: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``verify`` of a key, and of a proof on it, prints what it prints of the store here."""
    url = f"{server.url}/d"
    assert printed(capsys, "verify", url) == printed(capsys, "verify", store)
    (folder / "found.json").write_text(printed(capsys, "select", url, "--k", "3", "--quality", "verified", "--json"))
    said = [printed(capsys, "verify", "found.json", "--store", place) for place in (url, store)]
    assert said[0] == said[1]
