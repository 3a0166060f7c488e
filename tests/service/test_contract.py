"""The contract of every server, whatever the transport: the pool server, the double of MCAS, a real MCAS where there is one."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from ado_plugin.mcas.session import McasSession
from fastomp_nvm.stores.listing import PAGE
from tests.service.running import ROOT, RunningServer, small_data

DOUBLES = ROOT / "tests" / "doubles"
HOSTS = ["embedded", "mcas double", *(["mcas"] if os.environ.get("FASTOMP_TEST_MCAS") else [])]


@pytest.fixture(scope="module", params=HOSTS)
def connect(
    request: pytest.FixtureRequest, server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], fo.Client]]:
    """Return a function that connects to a key of a pool, for each kind of server."""
    patch = pytest.MonkeyPatch()
    patch.delenv("FASTOMP_TOKEN", raising=False)
    if request.param == "embedded":
        yield lambda key: server.connect(f"/contract{key}")
    elif request.param == "mcas":
        yield lambda key: fo.connect(f"mcas://{os.environ['FASTOMP_TEST_MCAS']}/fastomp_test{key}")
    else:
        patch.setattr(sys, "path", [*sys.path, str(DOUBLES)])
        patch.setenv("FASTOMP_MCAS_POOL_BYTES", str(64 << 20))
        from running_mcas import RunningMcas

        double = RunningMcas(tmp_path_factory.mktemp("contract"))
        keeper = McasSession("127.0.0.1", double.port)
        keeper.open("contract", 60, create=64 << 20)  # as long as a client has it open, its ADO lives on
        yield lambda key: fo.connect(f"mcas://127.0.0.1:{double.port}/contract{key}")
        keeper.close()
        double.kill()
    patch.undo()


@pytest.fixture
def client(connect: Callable[[str], fo.Client]) -> Iterator[fo.Client]:
    """Return a client of a key that does not exist yet, and does not when the test is over."""
    with connect(f"/k{uuid.uuid4().hex[:8]}") as connected:
        yield connected
        with contextlib.suppress(fo.StoreURLError):
            connected.delete()


def local(X: Any, y: Any, **request: Any) -> dict[str, Any]:
    """Return the answer of a store in this process."""
    with fo.create_store(f"dram:contract-{uuid.uuid4().hex}", X, y) as store:
        return plain(fo.select(store, **request))


def plain(selection: fo.Selection) -> dict[str, Any]:
    """Return a selection without the fields that name the medium or depend on it."""
    found = selection.to_json()
    return {name: value for name, value in found.items() if name not in ("seconds", "medium", "durability", "emulated", "choices")}


def test_names_in_pages(client: fo.Client) -> None:
    """The features of a store are listed by pattern, in as many replies as it takes; a bad pattern is refused."""
    names = [f"gene_{place}" for place in range(PAGE + 900)]
    client.put(np.random.default_rng(0).normal(size=(8, len(names))), names=names)
    assert list(client.names()) == [(name, 1) for name in names]
    assert [name for name, _ in client.names("gene_?")] == names[:10]
    assert [name for name, _ in client.names("_58")] == [name for name in names if "_58" in name]
    with pytest.raises(fo.RequestError, match="not a text of at most 1000 characters"):
        next(client.names("x" * 2000))


def test_put_list_info_delete(client: fo.Client) -> None:
    """A store that was put is listed and described, replaced only on request, and absent once deleted."""
    X, y = small_data()
    report = client.put(X, y)
    facts = client.info()
    assert (facts["n_obs"], facts["n_features"], facts["fingerprint"]) == (80, 60, report["fingerprint"])
    key = facts["url"].rpartition("/")[2]
    assert key in [entry["key"] for entry in client.list()]
    with pytest.raises(fo.StoreURLError):
        client.put(-X, y)
    assert client.info()["fingerprint"] == report["fingerprint"]
    assert client.put(-X, y, replace=True)["fingerprint"] == client.info()["fingerprint"] != report["fingerprint"]
    client.delete()
    assert key not in [entry["key"] for entry in client.list()]
    with pytest.raises(fo.StoreURLError):
        client.info()


def test_answers_are_those_of_this_machine(client: fo.Client) -> None:
    """select, select_many, an own response, a constraint: bit for bit the selections of a local store."""
    X, y = small_data()
    client.put(X, y)
    constraint = {"partition": {"groups": {"g": [f"f{number}" for number in range(30)]}, "caps": {"g": 2}}}
    for request in ({"k": 5}, {"k": 4, "algorithm": "sds_omp"}, {"k": 4, "constraint": constraint, "seed": 3}):
        assert plain(client.select(**request)) == local(X, y, **request)
    other = X[:, 9] - X[:, 12]
    assert plain(client.select(other, k=2)) == local(X, other, k=2)
    many = client.select_many([{"k": 2}, {"k": 3, "seed": 1}])
    assert [one.features for one in many] == [local(X, y, k=2)["features"], local(X, y, k=3, seed=1)["features"]]


def test_jobs_have_names(client: fo.Client, connect: Callable[[str], fo.Client]) -> None:
    """A job is found by its name, by any client, repeatedly; a name belongs to one request."""
    client.put(*small_data())
    job = client.submit(k=3, run=f"r{uuid.uuid4().hex[:8]}")
    with connect("") as other:
        (found,) = other.result(job)
        assert other.progress(job)["state"] == "done"
    assert client.result(job)[0].to_json() == found.to_json()
    assert client.submit(k=3, run=job) == job
    assert [(info.name, info.status, info.k, info.selected) for info in client.jobs()] == [(job, "finished", 3, 3)]
    (listed,) = client.jobs()
    assert (listed.objective, listed.algorithm, listed.score, listed.rounds > 0) == ("linear", "fast_omp", found.score, True)
    with pytest.raises(fo.FastompError, match="exist"):
        client.submit(k=4, run=job)
    with pytest.raises(fo.FastompError, match=r"no (job|run)"):
        client.result("never-begun")


def test_cancelled_jobs_can_be_resumed(client: fo.Client) -> None:
    """Cancelling ends an unfinished job, and a cancelled job can be resumed."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2000), dtype=np.float32)
    client.put(X, X[:, 0] + rng.normal(size=200), tier="none")
    request = {"k": 150, "algorithm": "sds_omp", "polish": "none"}
    job = client.submit(**request)
    client.cancel(job)
    try:
        client.result(job)
    except fo.CancelledError:
        assert client.resume(job)["state"] in ("queued", "running", "done")
    assert len(client.result(job)[0].features) == 150


def test_an_ended_job_is_forgotten(client: fo.Client) -> None:
    """A forgotten job is not listed, has no answer, and leaves its name to another request; an unknown one is a sentence."""
    client.put(*small_data())
    job = client.submit(k=3, run=f"r{uuid.uuid4().hex[:8]}")
    client.result(job)
    assert (found := next(run for run in client.jobs() if run.name == job)).selected == 3
    assert found.status == "finished"
    client.forget(job)
    assert job not in [run.name for run in client.jobs()]
    for call in (client.result, client.forget):
        with pytest.raises(fo.FastompError, match=f"there is no (job|run) '{job}'"):
            call(job)
    assert len(client.result(client.submit(k=2, run=job))[0].features) == 2


def test_mistakes_are_sentences(client: fo.Client, tmp_path: Path) -> None:
    """Bad input, code and files in a request are refused with errors of this project, and the server keeps serving."""
    X, y = small_data()
    client.put(X, y)
    (tmp_path / "costs.csv").write_text("f0,1\n")
    for request in (
        {"k": 3, "constraint": {"oracle": "os:system"}},
        {"k": 3, "constraint": {"knapsack": {"costs": str(tmp_path / "costs.csv"), "budget": 1}}},
        {"k": 3, "constraint": {"partition": {"groups": {"g": ["nobody"]}, "caps": {"g": 1}}}},
        {"k": 3, "target": "nobody"},
        {"k": 0},
    ):
        with pytest.raises(fo.FastompError) as caught:
            client.select(**request)
        assert "\n" not in str(caught.value)
    with pytest.raises(fo.DataError):
        client.put(np.full((4, 2), np.inf), replace=True)
    assert len(client.select(k=2).features) == 2


def test_tables_keep_their_encoding(client: fo.Client) -> None:
    """A table with text is encoded on every server as here, so that a model from there predicts from such tables."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"age": rng.normal(40, 9, 120), "town": rng.choice(["Bern", "Oslo", "Rome"], 120)})
    table.loc[[3, 50], "age"], table.loc[7, "town"] = np.nan, None
    y = table["age"].fillna(40) + 20 * (table["town"] == "Oslo") + rng.normal(size=120)
    client.put(table, y.to_numpy(), missing="median", dtype="float64")
    found = client.select(k=2)
    with fo.create_store(f"dram:contract-{uuid.uuid4().hex}", table, y.to_numpy(), missing="median", dtype="float64") as store:
        assert found.encoding == fo.select(store, k=2).encoding
        np.testing.assert_allclose(found.predict(table.iloc[::-1, ::-1]), found.predict(store)[::-1], rtol=1e-12)
