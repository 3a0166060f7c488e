"""MCAS: the same selection inside upstream's server, in slices, through every failure known there.

Runs over doubles of upstream's modules and server, in processes of their own, built from what the real ones were seen to do; the
first part also over a real server where ``FASTOMP_TEST_MCAS=host:port`` names one.
"""

from __future__ import annotations

import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from ado_plugin.mcas import prediction as mcas_prediction
from ado_plugin.mcas import session as mcas_session
from ado_plugin.mcas import staging
from ado_plugin.mcas import transport as mcas_transport
from ado_plugin.mcas.message import array_prefix, data_of, invoke_message, plugin_message, read_reply, value_of
from ado_plugin.mcas.session import McasSession
from ado_plugin.mcas.stub import fastomp_slice
from fastomp_nvm.errors import InputError, LockedError, ServerError, StoreError, StoreURLError, UnavailableError, UnreachableError
from fastomp_nvm.matrix.rows import PiecedRows
from storage_backends.media.mcas import writable_bytes

ROOT = Path(__file__).parents[2]
DOUBLES = ROOT / "tests" / "doubles"
sys.path.append(str(DOUBLES))

from mcas_personality import Table, array_of  # noqa: E402
from running_mcas import RunningMcas  # noqa: E402

sys.path.remove(str(DOUBLES))

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module", autouse=True)
def doubles_in_reach() -> Iterator[None]:
    """Let the children of a session find the doubles, for these tests alone: elsewhere they would pass for the real modules."""
    sys.path.insert(0, str(DOUBLES))
    yield
    sys.path.remove(str(DOUBLES))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten upstream's limit of 30 seconds; make small pools."""
    monkeypatch.setenv("MCAS_DOUBLE_TIMEOUT", "2")
    monkeypatch.setenv("FASTOMP_MCAS_POOL_BYTES", str(256 << 20))
    monkeypatch.delenv("FASTOMP_TOKEN", raising=False)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMcas]:
    """Run a server for the tests that leave it in peace."""
    server = RunningMcas(tmp_path_factory.mktemp("mcas"))
    keeper = McasSession("127.0.0.1", server.port)
    keeper.open("lab", 60, create=1 << 30)  # as long as a client has it open, its ADO lives on
    yield server
    keeper.close()
    server.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningMcas]:
    """Run a server to be killed."""
    server = RunningMcas(tmp_path / "mcas")
    yield server
    server.kill()


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    """Keep the pool of a real server open: every start of its helper process may hang, and the server with it."""
    host, _, port = os.environ["FASTOMP_TEST_MCAS"].rpartition(":")
    keeper = McasSession(host, int(port))
    sys.path.remove(str(DOUBLES))
    keeper.open("fastomp_test", 60, create=1 << 30)
    sys.path.insert(0, str(DOUBLES))
    yield f"mcas://{host}:{port}/fastomp_test"
    keeper.close()


@pytest.fixture(params=["double", *(["real"] if os.environ.get("FASTOMP_TEST_MCAS") else [])])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of a key that does not exist yet."""
    key = f"k{uuid.uuid4().hex[:8]}"
    if request.param == "real":
        place = request.getfixturevalue("real")
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(DOUBLES)])
        return f"{place}/{key}"
    return f"{request.getfixturevalue('shared').url}/{key}"


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """(150, 3000) observations by features, and a response."""
    generator = np.random.default_rng(11)
    X = generator.normal(size=(150, 3000)).astype(np.float32)
    return X, X[:, :6] @ np.arange(1.0, 7.0) + generator.normal(size=150)


def same(one: fo.Selection, other: fo.Selection) -> None:
    """Assert that two selections agree bit for bit."""
    assert one.features == other.features
    assert one.column_coef.tobytes() == other.column_coef.tobytes()
    assert (one.score, one.intercept, one.gradient_rounds, one.bytes_read) == (
        other.score,
        other.intercept,
        other.gradient_rounds,
        other.bytes_read,
    )


def test_kept_columns_give_the_same_bits(url, data, tmp_path) -> None:
    """Kept features, covariates, weights and offsets give the same model inside MCAS, and the same predictions there."""
    X, y = data
    waves = np.cos(np.arange(300.0)).reshape(150, 2)
    with fo.create_store(f"mmap://{tmp_path}/s", X, {"y": y, "w": y**2}) as store, fo.connect(url) as client:
        client.put(X, {"y": y, "w": y**2})
        for more in ({"keep": ["f2", "f10?"], "offset": "f7", "weights": "w"}, {"covariates": waves, "objective": "linear"}):
            local, remote = fo.select(store, k=5, **more), client.select(k=5, **more)
            same(local, remote)
            assert remote.kept == local.kept
            beside = {"covariates": more.get("covariates")}
            assert client.predict(remote, **beside) == pytest.approx(local.predict(X, **beside), rel=1e-9)


def test_python_command_line_and_mcas_give_the_same_bits(url, data, tmp_path, capsys) -> None:
    """The same data and request through a local store, the shell, and the stub inside MCAS agree bit for bit."""
    X, y = data
    request = {"k": 10, "constraint": {"partition": {"groups": {"few": ["f0", "f1", "f2"]}, "caps": {"few": 1}}}}
    with fo.create_store(f"mmap://{tmp_path}/s", X, y) as store:
        local = fo.select(store, **request)
    with fo.connect(url) as client:
        assert client.put(X, y)["n_features"] == 3000
        remote = client.select(verify=True, **request)
        facts = client.info()
    assert (remote.medium, remote.durability, remote.verified) == ("mcas", "process", True)
    assert (facts["n_columns"], facts["tier"], facts["url"]) == (3000, "int8", url)
    same(local, remote)
    (tmp_path / "c.yaml").write_text(json.dumps(request["constraint"]))
    from fastomp_nvm.cli.main import main

    assert main(["select", url, "--k", "10", "--constraint", str(tmp_path / "c.yaml"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["features"], printed["coef"]) == (local.features, local.column_coef.tolist())
    assert main(["verify", url]) == 0
    assert "match their checksums" in capsys.readouterr().out


def test_a_matrix_of_many_values_is_swept_in_place(url, data, monkeypatch) -> None:
    """Pieces of whole blocks, at odd addresses, change nothing: with the tier, without it, in float64, and under weights."""
    X, y = data
    monkeypatch.setattr(staging, "PIECE_BYTES", 300_000)
    with fo.connect(url) as client:
        client.put(X, y)
        for request in ({"tier": "int8"}, {"tier": "exact"}, {"test_fraction": 0.3}, {"algorithm": "sds_omp"}):
            with fo.create_store("dram:mcas-pieces", X, y, replace=True) as store:
                same(fo.select(store, k=6, **request), client.select(k=6, **request))
        client.put(X.astype(np.float64) * 1.1, y, dtype="float64", replace=True)
        with fo.create_store("dram:mcas-pieces", X.astype(np.float64) * 1.1, y, dtype="float64", replace=True) as store:
            same(fo.select(store, k=6, tier="exact"), client.select(k=6, tier="exact"))


def test_slices_add_up_to_the_whole(url, data, monkeypatch) -> None:
    """A selection in slices of one round each, with a journal that outgrows its room, is the one made in one go."""
    X, y = data
    monkeypatch.setattr(mcas_transport, "SLICE_SECONDS", 1e-6)
    with fo.connect(url) as client:
        client.put(X, y)
        job = client.submit(k=70, algorithm="sds_omp", polish="none")
        standings = list(client.follow(job))
        assert len(standings) >= 60
        (sliced,) = client.result(job)
    with fo.create_store("dram:mcas-slices", X, y, replace=True) as store:
        same(fo.select(store, k=70, algorithm="sds_omp", polish="none"), sliced)


def test_two_drivers_are_harmless(url, data, monkeypatch) -> None:
    """Two clients that drive the same run both get its answer."""
    X, y = data
    monkeypatch.setattr(mcas_transport, "SLICE_SECONDS", 1e-6)
    with fo.connect(url) as client:
        client.put(X, y)
        job = client.submit(k=12, algorithm="sds_omp")
        found: list[fo.Selection] = []

        def drive() -> None:
            with fo.connect(url) as other:
                found.extend(other.result(job))

        threads = [threading.Thread(target=drive) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(found) == 2
        same(found[0], found[1])


def test_runs_are_cancelled_resumed_and_deleted(url, data) -> None:
    """Cancel stops every driver, resume lets them continue, delete is refused while a run is open and leaves no value behind."""
    X, y = data
    with fo.connect(url) as client:
        client.put(X, y)
        with pytest.raises(StoreURLError, match="replace"):
            client.put(X, y)
        job = client.submit(k=4)
        with pytest.raises(ServerError, match="not finished"):
            client.delete()
        assert client.cancel(job)["state"] == "cancelled"
        with pytest.raises(fo.errors.CancelledError):
            client.result(job)
        assert client.resume(job)["state"] == "running"
        assert len(client.result(job)[0].features) == 4
        many = client.select_many([{"k": 2}, {"k": 3, "seed": 1}])
        assert [len(each.features) for each in many] == [2, 3]
        client.delete()
        with pytest.raises(StoreURLError, match="no store"):
            client.select(k=4)
        with pytest.raises(ServerError, match="no run"):
            client.progress(job)


def table_with_ids(rows: int, length: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return data, a response, and identifiers of ``length`` characters, two of them not ASCII."""
    generator = np.random.default_rng(3)
    X = generator.normal(size=(rows, 5)).astype(np.float32)
    return X, X[:, 1] - 2 * X[:, 4] + 1, [f"é\N{GRINNING FACE}{number:0{length - 2}d}" for number in range(rows)]


@pytest.mark.parametrize(("rows_per_page", "length"), [(1 << 17, 8), (7, 8), (40, 60_000)])
def test_predictions_come_in_pages_of_any_size(url, monkeypatch, tmp_path, capsys, rows_per_page, length) -> None:
    """``predict`` by client, by URL and in the shell is the local answer with every identifier, however long, in order."""
    from fastomp_nvm.cli.main import main

    pandas = pytest.importorskip("pandas")
    monkeypatch.setattr(mcas_prediction, "ROWS_PER_PAGE", rows_per_page)
    X, y, ids = table_with_ids(100, length)
    pandas.DataFrame(X, columns=list("abcde")).assign(y=y, who=ids).to_csv(tmp_path / "t.csv", index=False)
    fo.ingest(str(tmp_path / "t.csv"), f"mmap://{tmp_path}/s", targets=["y"], id_column="who")
    with fo.open_store(f"mmap://{tmp_path}/s") as store:
        model = fo.select(store, k=2)
        expected = model.predict(store)
    with fo.connect(url) as client:
        client.ingest(str(tmp_path / "t.csv"), targets=["y"], id_column="who")
        eta, found = client.linear_predictor(model)
        np.testing.assert_allclose(client.predict(model), expected, rtol=1e-12)
    assert found == ids
    np.testing.assert_allclose(eta, expected, rtol=1e-12)
    np.testing.assert_allclose(model.predict(url), expected, rtol=1e-12)
    model.save(tmp_path / "m.json")
    assert main(["predict", str(tmp_path / "m.json"), url, str(tmp_path / "out.csv")]) == 0
    written = pandas.read_csv(tmp_path / "out.csv")
    assert written["id"].tolist() == ids
    np.testing.assert_allclose(written["prediction"], expected, rtol=1e-12)
    assert "100 predictions" in capsys.readouterr().out


def test_a_page_larger_than_a_reply_is_never_asked_for(url) -> None:
    """The largest page of numbers fits into one reply, which would end the server's helper process otherwise."""
    X = np.arange(3 * (mcas_prediction.ROWS_PER_PAGE + 5), dtype=np.float32).reshape(-1, 3)
    y = X[:, 0] * 1e-6
    model = fo.select(X, y, k=1)
    with fo.connect(url) as client:
        client.put(X, y, tier="none")
        np.testing.assert_allclose(client.predict(model), model.predict(X), rtol=1e-12)


def test_a_lost_page_is_asked_for_again(server, monkeypatch) -> None:
    """SIGKILL of the ADO between and during pages: the pool is reopened and every observation is predicted once."""
    X, y, _ = table_with_ids(400, 8)
    model = fo.select(X, y, k=2)
    monkeypatch.setattr(mcas_prediction, "ROWS_PER_PAGE", 50)
    kept = McasSession.invoke
    calls = []

    def killing(self: McasSession, *arguments: object) -> bytes:
        calls.append(arguments)
        if len(calls) in (2, 5):
            server.kill_ado()
        return kept(self, *arguments)

    with fo.connect(f"{server.url}/d") as client:
        client.put(X, y, tier="none")
        monkeypatch.setattr(McasSession, "invoke", killing)
        np.testing.assert_allclose(client.predict(model), model.predict(X), rtol=1e-12)
    assert len(calls) == 10  # eight pages, two of them twice


def test_a_store_replaced_between_pages_is_noticed(url, monkeypatch) -> None:
    """Pages of two stores are never put together; a store or a pool that is not there is named."""
    X, y, _ = table_with_ids(100, 8)
    model = fo.select(X, y, k=2)
    monkeypatch.setattr(mcas_prediction, "ROWS_PER_PAGE", 60)
    with fo.connect(url) as client, fo.connect(url) as other:
        client.put(X, y)
        pages = client._calls("predict", {**client._place(None), "model": model.linear_model()}, 30.0)
        next(pages)
        other.put(X + 1, y, replace=True)
        with pytest.raises(StoreError, match="was replaced while a model was evaluated on it: predict again"):
            next(pages)
    with pytest.raises(StoreURLError, match="there is no store 'absent' in the pool"):
        model.predict(url.rpartition("/")[0] + "/absent")
    with pytest.raises(StoreURLError, match=r"'nowhere' .* cannot be opened"):
        model.predict(url.rsplit("/", 2)[0] + "/nowhere/absent")


def test_mistakes_are_told_as_our_errors(url, data) -> None:
    """Errors inside the server come back as the classes and sentences they were there."""
    X, y = data
    with fo.connect(url) as client:
        client.put(X, y)
        with pytest.raises(fo.errors.ConstraintError):
            client.select(k=3, constraint={"partition": {"groups": {"g": ["nobody"]}, "caps": {"g": 1}}})
        with pytest.raises(fo.errors.ConstraintError):
            client.select(k=3, constraint={"oracle": "os:system"})
        with pytest.raises(fo.errors.DataError):
            client.select(np.ones(3), k=3)
    with pytest.raises(InputError, match="neither tokens nor TLS"):
        fo.connect(url, token="secret")


def test_what_the_environment_says_to_other_servers_is_ignored(url, data, monkeypatch, tmp_path) -> None:
    """FASTOMP_TOKEN and FASTOMP_TLS_CA are for servers that know them; the size of a pool is a number or a sentence."""
    monkeypatch.setenv("FASTOMP_TOKEN", "a-token-of-some-length")
    monkeypatch.setenv("FASTOMP_TLS_CA", str(tmp_path / "absent"))
    X, y = data
    with fo.connect(url) as client:
        monkeypatch.setenv("FASTOMP_MCAS_POOL_BYTES", "4GB")
        with pytest.raises(InputError, match="'4GB': expected a whole number of bytes"):
            client.put(X, y)
        monkeypatch.delenv("FASTOMP_MCAS_POOL_BYTES")
        assert client.put(X, y)["n_features"] == 3000


def test_a_killed_client_is_succeeded_by_another(server, data) -> None:
    """SIGKILL of the client in the middle of a slice loses nothing: another one finds the run and ends it."""
    X, y = data
    with fo.connect(f"{server.url}/d") as client:
        client.put(X, y, tier="none")
        expected = client.select(k=40, algorithm="sds_omp", polish="none")
    code = """
    import sys
    import fastomp_nvm as fo
    with fo.connect(sys.argv[1]) as client:
        job = client.submit(k=40, algorithm="sds_omp", polish="none", run="mine")
        print("begun", flush=True)
        client.result(job)
    """
    environment = {**os.environ, "PYTHONPATH": f"{DOUBLES}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", textwrap.dedent(code), f"{server.url}/d"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as victim:
        assert victim.stdout.readline() == b"begun\n"
        time.sleep(0.05)
        victim.send_signal(signal.SIGKILL)
    with fo.connect(server.url) as client:
        same(client.result("mine")[0], expected)


def test_a_killed_ado_is_succeeded_by_another(server, data) -> None:
    """SIGKILL of the ADO in the middle of a slice: the key stays locked, the pool is reopened, the run continues."""
    X, y = data
    with fo.connect(f"{server.url}/d") as client:
        client.put(X, y, tier="none")
        expected = client.select(k=60, algorithm="sds_omp", polish="none")
        job = client.submit(k=60, algorithm="sds_omp", polish="none")
        killer = threading.Timer(0.15, server.kill_ado)
        killer.start()
        same(client.result(job)[0], expected)
        killer.join()
        server.kill_ado()  # between two calls
        assert len(client.select(k=3).features) == 3


def test_a_killed_server_is_resumed_from_its_pool(server, data, monkeypatch) -> None:
    """SIGKILL of the server: a clear error, and not a wait; after a restart the run continues from the pool."""
    X, y = data
    monkeypatch.setattr(mcas_transport, "SLICE_SECONDS", 1e-6)
    with fo.connect(f"{server.url}/d") as client:
        client.put(X, y, tier="none")
        expected = client.select(k=20, algorithm="sds_omp", polish="none")
        job = client.submit(k=20, algorithm="sds_omp", polish="none", run="r")
        follow = client.follow(job)
        for _ in range(5):
            next(follow)
        server.kill()
        monkeypatch.setattr(client, "_timeout", 2.0)  # only now: a busy machine may need longer for what works
        with pytest.raises(UnreachableError, match="mcas://"):
            client.progress(job)
    server.start()
    with fo.connect(server.url) as client:
        assert client.progress("r")["progress"][0]["round"] >= 4
        same(client.result("r")[0], expected)


def test_an_orphan_keeps_the_port(server, data) -> None:
    """After SIGKILL of the server alone its ADO still holds the port; ending it frees the port. The guide says so."""
    with fo.connect(f"{server.url}/d") as client:
        client.put(*data)
        server.process.kill()
        server.process.wait()
        with pytest.raises(RuntimeError, match="did not start"):
            server.start()
        server.kill_ado()
        server.start()
    with fo.connect(f"{server.url}/d") as client:
        assert client.info()["n_features"] == 3000


def test_a_server_killed_during_put_leaves_the_old_store(server, data, monkeypatch) -> None:
    """An interrupted put publishes nothing: the previous store stays, and putting again works."""
    X, y = data
    with fo.connect(f"{server.url}/d") as client:
        before = client.put(X, y)["fingerprint"]
        original = McasSession.put_file

        def cut_off(self, *arguments):
            server.kill()
            return original(self, *arguments[:-1], 2.0)  # the last one is the timeout

        monkeypatch.setattr(client, "_timeout", 8.0)  # long enough to come that far on a busy machine
        monkeypatch.setattr(McasSession, "put_file", cut_off)
        with pytest.raises(UnreachableError):
            client.put(-X, y, replace=True)
    monkeypatch.setattr(McasSession, "put_file", original)
    server.start()
    with fo.connect(f"{server.url}/d") as client:
        assert client.info()["fingerprint"] == before
        assert client.put(-X, y, replace=True)["fingerprint"] == client.info()["fingerprint"] != before


def values_in(server, pool="lab"):
    """Return the names of the values in a pool of the double, except those of runs."""
    names = json.loads((server.folder / f"{pool}.map").read_text())["values"]
    return sorted(name for name in names if name.startswith("fo/"))


def unfinished_in(client: fo.Client) -> list:
    """Return the manifests in the ledger that are not published."""
    return client._transport.plugin.call("lab", "clear", 30, tokens=[])["clear"]


def test_a_put_that_fails_leaves_no_values(server, data, monkeypatch) -> None:
    """The values of a failed put, and those that a finished put replaced, are erased."""
    X, y = data
    monkeypatch.setattr(staging, "PIECE_BYTES", 300_000)
    original = McasSession.put_file
    calls = []

    def failing(self, *arguments):
        calls.append(arguments)
        if len(calls) >= 3:
            raise mcas_session.PoolFullError("no room")
        return original(self, *arguments)

    with fo.connect(f"{server.url}/d") as client:
        client.put(X[:, :300], y)
        before = values_in(server)
        monkeypatch.setattr(McasSession, "put_file", failing)
        with pytest.raises(ServerError, match="the pool is full"):
            client.put(X, y, key="lab/large")
        assert values_in(server) == before
        monkeypatch.setattr(McasSession, "put_file", original)
        client.put(-X[:, :300], y, replace=True)
        assert len(values_in(server)) == len(before)
        assert unfinished_in(client) == []
        assert client.info()["n_features"] == 300


PUTTER = """
import sys
import time
import numpy as np
import fastomp_nvm as fo
from ado_plugin.mcas import session as mcas_session, staging as mcas_staging
mcas_staging.PIECE_BYTES = 300_000
original = mcas_session.McasSession.put_file
calls = []
def stopping(self, *arguments):
    calls.append(arguments)
    if len(calls) == 3:
        print("here", flush=True)
        time.sleep(600)
    return original(self, *arguments)
mcas_session.McasSession.put_file = stopping
fo.connect(sys.argv[1]).put(np.random.default_rng(0).normal(size=(150, 3000)).astype("f4"))
"""


@pytest.mark.parametrize("clearing", ["put of another key", "put of the same", "delete"])
def test_what_a_killed_put_left_goes_with_the_next(server, data, monkeypatch, tmp_path, clearing) -> None:
    """The values and the staged files of a client that was killed are removed by the next put or delete from its machine."""
    X, y = data
    (tmp_path / "staging").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "staging"))
    monkeypatch.setattr(staging.tempfile, "tempdir", None)
    environment = {**os.environ, "PYTHONPATH": f"{DOUBLES}{os.pathsep}{ROOT}"}
    with fo.connect(f"{server.url}/d") as client:
        client.put(X[:, :300], y)
        before = values_in(server)
        with subprocess.Popen([sys.executable, "-c", PUTTER, f"{server.url}/k"], env=environment, stdout=subprocess.PIPE) as putter:
            try:
                assert putter.stdout.readline() == b"here\n"
                (staged,) = set((tmp_path / "staging").iterdir()) - {Path(client._transport._staging.folder)}
                client.put(X[:, :200], y, key="lab/other")
                assert staged.exists(), "its process lives"
                assert len(values_in(server)) > 2 * len(before), "so do its values"
                client.delete("lab/other")
            finally:
                putter.send_signal(signal.SIGKILL)
        putter.wait()
        assert set(values_in(server)) > set(before)
    with fo.connect(f"{server.url}/d") as client:
        if clearing == "delete":
            with pytest.raises(StoreURLError, match="no store"):
                client.delete("lab/k")
            assert values_in(server) == before
        else:
            key = "lab/k" if clearing == "put of the same" else "lab/other"
            client.put(X[:, :300], y, key=key)
            assert len(values_in(server)) == 2 * len(before)
            assert not staged.exists()
        assert client.info("lab/d")["n_features"] == 300


def test_a_put_overtaken_by_another_says_so(server, data, monkeypatch) -> None:
    """Of two simultaneous puts to one key the later one is complete, and the other raises an error."""
    X, y = data
    original = McasSession.put_file

    def overtaken(self, *arguments):
        original(self, *arguments)
        monkeypatch.setattr(McasSession, "put_file", original)
        with fo.connect(f"{server.url}/d") as other:
            other.put(-X, y)

    monkeypatch.setattr(McasSession, "put_file", overtaken)
    with fo.connect(f"{server.url}/d") as client:
        with pytest.raises(ServerError, match="another client"):
            client.put(X, y)
        found = client.select(k=3, verify=True)
    with fo.create_store("dram:mcas-overtaken", -X, y, replace=True) as store:
        same(fo.select(store, k=3), found)


def test_a_full_pool_is_a_sentence(server, data, monkeypatch) -> None:
    """A pool that is too small refuses a store with the reason, and still serves its other stores."""
    X, y = data
    monkeypatch.setenv("FASTOMP_MCAS_POOL_BYTES", str(3 << 20))
    with fo.connect(f"{server.url}/d") as client:
        client.put(X[:, :300], y)
        with pytest.raises(ServerError, match="the pool is full"):
            client.put(np.tile(X, (1, 2)), y, key="lab/large")
        assert [each["key"] for each in client.list()] == ["d"]
        assert client.info()["n_features"] == 300


WAIT_FOR = """
def wait_for(target, parameters):
    import os, time
    while not os.path.exists(parameters):
        time.sleep(0.01)
    return 'found ' + parameters
"""


def test_a_late_reply_is_never_taken_for_another(shared, monkeypatch, tmp_path) -> None:
    """After a call that took too long the session goes, and with it the old reply that upstream would give to the next call."""
    monkeypatch.setenv("MCAS_DOUBLE_TIMEOUT", "0.7")
    session = McasSession("127.0.0.1", shared.port)
    session.open("lab", 30)
    session.put("lab", "k", value_of("k", b"x"), 5)
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    Path(second).touch()
    with pytest.raises(ServerError, match="-9"):
        session.invoke("lab", "k", invoke_message("wait_for", WAIT_FOR, first), 60)
    session.open("lab", 30)
    with pytest.raises(LockedError):
        session.invoke("lab", "k", invoke_message("wait_for", WAIT_FOR, second), 60)
    Path(first).touch()
    while True:
        try:
            reply = session.invoke("lab", "k", invoke_message("wait_for", WAIT_FOR, second), 60)
            break
        except (LockedError, ServerError):  # not ended yet, or a busy machine
            time.sleep(0.1)
            session.open("lab", 30)
    assert read_reply(reply) == f"found {second}"
    with pytest.raises(UnreachableError, match="did not answer within"):
        session.invoke("lab", "k", invoke_message("wait_for", WAIT_FOR, third), 0.3)
    Path(third).touch()
    session.close()


def test_a_pool_of_others_is_never_called(server) -> None:
    """Calling a key that does not exist would create a junk one and end the ADO: a pool without our values is not called."""
    session = McasSession("127.0.0.1", server.port)
    session.open("foreign", 30, create=1 << 20)
    assert session.size("foreign", "nothing", 5) == 0
    with fo.connect(f"mcas://127.0.0.1:{server.port}/foreign/d") as client, pytest.raises(StoreURLError, match="no store"):
        client.select(k=1)
    assert "invoke" not in server.control()
    session.close()


def invoked(session: McasSession, pool: str, key: str, message: bytes) -> bytes:
    """Call the plugin on a value that another client has just read: the server may still hold the reader's lock."""
    end = time.monotonic() + 60
    while True:
        try:
            return session.invoke(pool, key, message, 5)
        except LockedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def test_values_are_what_upstream_reads(shared) -> None:
    """An array put by us is the same array to pymcas and to the ADO, whatever its shape and type."""
    import pymcas

    session = McasSession("127.0.0.1", shared.port)
    session.open("lab", 30)
    connection = pymcas.create_session("127.0.0.1", shared.port, device="lo")
    upstream = pymcas.Pool(connection.session.open_pool("lab"))
    for dtype in ("f2", "f4", "f8", "i1"):
        array = np.arange(15).reshape(3, 5).astype(dtype)
        session.put("lab", "v", array_prefix("v", array.shape, array.dtype) + array.tobytes(), 5)
        np.testing.assert_array_equal(upstream.load("v"), array)
        ask = "def ask(target, parameters):\n    return str((target.dtype.str, target.flags.owndata, target.sum().item()))"
        reply = read_reply(invoked(session, "lab", "v", invoke_message("ask", ask, "")))
        assert reply == str((array.dtype.str, False, array.sum().item()))
    connection.session._socket.close()
    session.close()


def test_a_region_is_written_where_the_value_lies() -> None:
    """The view of an array that refuses setflags(write=True) has the same address, keeps the array alive and writes into it."""
    value = bytearray(value_of("slot", bytes(64)))
    array = array_of("slot", memoryview(value))
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)
    address, owner = array.ctypes.data, weakref.ref(array)
    view = writable_bytes(array)
    del array
    assert owner() is not None
    assert view.__array_interface__["data"] == (address, False)
    view[60:] = np.frombuffer(b"last", np.uint8)
    assert data_of(bytes(value)) == bytes(60) + b"last"
    del view
    assert owner() is None


def test_the_stub_needs_nothing_around_it() -> None:
    """Its source compiles alone at the margin, names nothing but ``ado`` from outside, and turns every failure into a reply."""
    source = inspect.getsource(fastomp_slice)
    assert source.startswith("def fastomp_slice(")
    assert Table.root(plugin_message({})).table(3).table(0).text(3).decode() == source
    code = compile(source, "jitcode", "exec").co_consts[0]
    around = {name for name in vars(sys.modules["ado_plugin.mcas.stub"]) if not name.startswith("__")}
    assert set(code.co_names) & around == set()
    outer = {"ado": types.SimpleNamespace(load=None)}
    inner: dict = {}
    exec(source, outer, inner)
    reply = json.loads(inner["fastomp_slice"](np.zeros(1, np.int8), "{"))
    assert reply["error"]["kind"] == "ServerError"
    del outer["ado"]
    reply = json.loads(inner["fastomp_slice"](np.zeros(1, np.int8), "{}"))
    assert reply["error"]["kind"] == "UnavailableError"


def test_a_message_is_read_by_an_independent_reader() -> None:
    """Function, code and parameters come out of the FlatBuffer as they went in; a value carries its key."""
    root = Table.root(invoke_message("name", "def name(): é", '{"a": 1}'))
    operation = root.table(3).table(0)
    assert (root.number(0, "I"), root.number(1, "h"), root.number(2, "B")) == (0x0C0FFEE0, 1, 1)
    assert (operation.text(1), operation.text(3).decode()) == (b"name", "def name(): é")
    for length in range(1, 40):
        key = "k" * length
        value = value_of(key, b"content")
        assert array_of(key, memoryview(value)).tobytes() == b"content" == data_of(value)


@pytest.mark.parametrize("content", [print, [1], {"a": os.system}, 3, None, uuid.UUID(int=1), fo.SelectionRequest(k=1)])
def test_a_reply_is_text_or_bytes(content) -> None:
    """A pickle that names a class or a function is refused before anything is imported, and so is anything but text and bytes."""
    assert read_reply(pickle.dumps("text")) == "text"
    assert read_reply(pickle.dumps(b"bytes")) == b"bytes"
    with pytest.raises(ServerError):
        read_reply(pickle.dumps(content))
    with pytest.raises(ServerError):
        read_reply(b"\x80\x04junk")


def test_a_missing_or_foreign_client_module_is_told_apart(tmp_path, monkeypatch) -> None:
    """Without upstream's ``mcas``, or with another package of that name, the error says where the real one comes from."""
    (tmp_path / "mcas.py").write_text("")
    kept = [path for path in sys.path if path != str(DOUBLES)]
    for path, expected in ((str(tmp_path), "another package of that name"), (None, "cannot be imported")):
        monkeypatch.setattr(sys, "path", [*([path] if path else []), *kept])
        with fo.connect("mcas://127.0.0.1:1/p/k") as client, pytest.raises(UnavailableError, match=f"{expected}.*IBM/mcas"):
            client.select(k=1)


def test_a_server_that_is_not_there_is_an_error() -> None:
    """No server at the address: an UnreachableError, though upstream's client would wait for ever."""
    with fo.connect("mcas://127.0.0.1:1/p/k", timeout=3) as client, pytest.raises(UnreachableError, match="is it up"):
        client.info()


def test_pieces_behave_as_one_matrix() -> None:
    """Rows by number, slice, list and mask, across pieces and inside one, are those of the whole array."""
    whole = np.arange(70.0).reshape(14, 5)
    rows = PiecedRows([whole[:4], whole[4:5], whole[5:14]])
    assert (rows.shape, rows.dtype, rows.nbytes, len(rows)) == (whole.shape, whole.dtype, whole.nbytes, 14)
    np.testing.assert_array_equal(np.asarray(rows), whole)
    for first in range(15):
        for last in range(first, 15):
            np.testing.assert_array_equal(rows[first:last], whole[first:last])
    for index in (0, -1, 7, [3, 4, 5, 0], whole[:, 0] > 20, slice(1, 13, 3)):
        np.testing.assert_array_equal(rows[index], whole[index])
    assert not rows[6:9].flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        rows[6:9][0, 0] = 1.0
