"""MCAS, several users and its known faults: nobody is told anything wrong, no answer is lost, few requests are sent."""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from ado_plugin.mcas.message import value_of
from ado_plugin.mcas.session import McasSession
from fastomp_nvm.errors import FastompError, ServerError

DOUBLES = Path(__file__).parents[1] / "doubles"
sys.path.append(str(DOUBLES))

from running_mcas import RunningMcas  # noqa: E402

sys.path.remove(str(DOUBLES))

pytestmark = pytest.mark.crash


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningMcas]:
    """Run a server double, with its modules in reach of this test alone, and pools of 64 MiB."""
    monkeypatch.syspath_prepend(str(DOUBLES))
    monkeypatch.setenv("MCAS_DOUBLE_TIMEOUT", "20")
    monkeypatch.setenv("FASTOMP_MCAS_POOL_BYTES", str(64 << 20))
    monkeypatch.delenv("FASTOMP_TOKEN", raising=False)
    running = RunningMcas(tmp_path / "mcas")
    yield running
    running.kill()


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """(80, 600) observations by features, and a response."""
    generator = np.random.default_rng(5)
    X = generator.normal(size=(80, 600)).astype(np.float32)
    return X, X[:, :6] @ np.arange(1.0, 7.0) + generator.normal(size=80)


@pytest.fixture
def client(server: RunningMcas, data: tuple[np.ndarray, np.ndarray]) -> Iterator[fo.Client]:
    """Put the data and keep the pool open: without clients the server would end its ADO."""
    with fo.connect(f"{server.url}/d") as found:
        found.put(*data)
        yield found


def value_names(server: RunningMcas) -> list[str]:
    """Return the keys of all values of the pool."""
    return list(json.loads((server.folder / "lab.map").read_text())["values"])


def together(*works: Callable[[], object]) -> list[object]:
    """Run functions in threads that begin at once; return their results, or the errors of this package that they raised."""
    barrier, found = threading.Barrier(len(works)), [None] * len(works)

    def run(place: int) -> None:
        barrier.wait()
        try:
            found[place] = works[place]()
        except FastompError as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_value_that_another_client_has_locked_is_not_missing(server, client, exclusive) -> None:
    """A selection, a description and a prediction wait for a locked part of the store."""
    (matrix,) = (name for name in value_names(server) if name.endswith("matrix/0"))
    (header,) = (name for name in value_names(server) if name.endswith("/header.json"))
    expected = client.select(k=4)
    for held, call in (
        (matrix, lambda: client.select(k=4, seed=0).features == expected.features),
        (header, lambda: client.info()["n_features"] == 600),
        (matrix, lambda: len(client.predict(expected)) == 80),
    ):
        server.control(pool="lab", hold=held, exclusive=exclusive)
        releasing = threading.Timer(0.7, server.control, kwargs={"pool": "lab", "release": held})
        releasing.start()
        assert call()
        releasing.join()


def test_a_put_waits_for_a_locked_value(server, client) -> None:
    """A value that is locked for a moment is overwritten afterwards."""
    session = McasSession("127.0.0.1", server.port)
    session.open("lab", 30)
    session.put("lab", "k", value_of("k", b"a"), 5)
    server.control(pool="lab", hold="k", exclusive=True)
    threading.Timer(0.5, server.control, kwargs={"pool": "lab", "release": "k"}).start()
    session.put("lab", "k", value_of("k", b"b"), 10)
    session.close()


def test_a_failed_open_proves_nothing(server, client) -> None:
    """An open that fails is tried again; one that fails for good is not called absence."""
    server.control(refuse_opens=2)
    with fo.connect(f"{server.url}/d") as other:
        assert other.info()["n_features"] == 600
    with fo.connect(f"{server.url}/d", timeout=3) as other:
        server.control(refuse_opens=1000)
        with pytest.raises(FastompError, match="cannot be opened") as caught:
            other.select(k=3)
        assert "does not exist yet" in str(caught.value)
        assert "busy" in str(caught.value)


def test_a_dead_start_is_named(server, data, monkeypatch) -> None:
    """An ADO that dies as it starts takes the server with it: the error says that, and not that the pool is missing."""
    with fo.connect(f"{server.url}/d") as first:
        first.put(*data)
    monkeypatch.setenv("MCAS_DOUBLE_START_TIMEOUT", "1")
    server.control(hang_starts=1)
    with fo.connect(f"{server.url}/d", timeout=4) as other, pytest.raises(FastompError, match="ADO") as caught:
        other.select(k=3)
    assert "there is no" not in str(caught.value)
    assert "deleted" not in str(caught.value)


def test_a_foreign_reply_names_its_cause(server, client) -> None:
    """A personality made for another NumPy leaves replies that cannot be read: the error says so."""
    server.control(foreign=True)
    with pytest.raises(ServerError, match=r"(?i)another major version of numpy"):
        client.select(k=3)


def test_one_name_begins_one_run(server, client) -> None:
    """The same request submitted twice at once is followed twice; of two different requests one gets one clear error."""
    with fo.connect(f"{server.url}/d") as other:
        for turn in range(6):
            found = together(*(lambda each=each, turn=turn: each.submit(k=3, run=f"same{turn}") for each in (client, other)))
            assert found == [f"same{turn}"] * 2
            found = together(
                lambda turn=turn: client.submit(k=3, run=f"other{turn}"), lambda turn=turn: other.submit(k=4, run=f"other{turn}")
            )
            (error,) = (each for each in found if isinstance(each, FastompError))
            assert "another request" in str(error)
            begun = 3 if isinstance(found[1], FastompError) else 4
            assert len(client.result(f"other{turn}")[0].features) == begun


def test_two_readers_are_never_needed(server, client) -> None:
    """With upstream's defect that hangs a second reader of a value, two users at once get their answers: clients read no value."""
    server.control(two_readers=True)
    with fo.connect(f"{server.url}/d") as other:
        model = client.select(k=3)
        found = together(*(lambda each=each: [len(each.predict(model)) for _ in range(10)] for each in (client, other)))
    assert found == [[80] * 10] * 2
    assert "get_direct" not in server.control()


def select_twenty(url: str, first: int) -> list[list[int]]:
    """Return the features of 20 selections."""
    with fo.connect(url) as user:
        return [user.select(k=3 + (first + turn) % 7, seed=turn).indices.tolist() for turn in range(20)]


def test_two_users_are_right_forty_times(server, client, data) -> None:
    """Two processes with twenty selections each get the answers of one alone."""
    with multiprocessing.get_context("spawn").Pool(2) as users:
        found = users.starmap(select_twenty, [(f"{server.url}/d", 0), (f"{server.url}/d", 3)])
    with fo.create_store("dram:mcas-users", *data, replace=True) as store:
        alone = [[fo.select(store, k=3 + (first + turn) % 7, seed=turn).indices.tolist() for turn in range(20)] for first in (0, 3)]
    assert found == alone


def test_two_drivers_are_right_forty_times(server, client, data, monkeypatch) -> None:
    """Twenty runs that two clients submit and drive at once end with the same answer for both."""
    with fo.create_store("dram:mcas-drivers", *data, replace=True) as store:
        alone = {k: fo.select(store, k=k).features for k in range(3, 8)}
    with fo.connect(f"{server.url}/d") as other:

        def drive(user: fo.Client) -> list[list[str]]:
            return [user.select(k=3 + turn % 5, run=f"r{turn}").features for turn in range(20)]

        found = together(lambda: drive(client), lambda: drive(other))
    assert found == [[alone[3 + turn % 5] for turn in range(20)]] * 2


def test_three_hundred_selections_fit_a_small_pool(server, client, data) -> None:
    """With a tenth of the calls lost, 300 selections in a pool of 64 MiB lose no answer, and little room is taken."""
    with fo.create_store("dram:mcas-lost", *data, replace=True) as store:
        alone = {k: fo.select(store, k=k).features for k in range(2, 6)}
    keeper = McasSession("127.0.0.1", server.port)
    keeper.open("lab", 30)  # a session whose reply is lost is given up, and without a client the ADO ends
    server.control(lossy=0.1)
    for turn in range(300):
        assert client.select(k=2 + turn % 4).features == alone[2 + turn % 4]
    server.control(lossy=0.0)
    assert json.loads((server.folder / "lab.map").read_text())["next"] < 32 << 20
    keeper.close()


def test_a_full_pool_says_what_fills_it(server, data, monkeypatch, tmp_path) -> None:
    """Runs that are kept fill a small pool; the error counts them, and forgetting one makes room."""
    monkeypatch.setenv("FASTOMP_MCAS_POOL_BYTES", str(6 << 20))
    with fo.connect(f"{server.url}/d") as user:
        user.put(*data)

        def fill() -> None:
            for turn in range(400):
                user.select(k=2, run=f"kept{turn}")

        with pytest.raises(ServerError, match=r"is full: \d+ bytes of runs, \d+ of stores; forget .* or delete"):
            fill()
        from fastomp_nvm.cli.main import main

        assert main(["forget", "kept0", server.url]) == 0
        assert len(user.select(k=2, run="after").features) == 2
        assert "kept0" not in [run.name for run in user.jobs()]
        with pytest.raises(FastompError, match="no run"):
            user.result("kept0")


def test_an_operation_takes_six_requests_at_most(server, client) -> None:
    """A connection for one operation sends six requests or fewer, opening, closing and the acknowledgement included."""
    model = client.select(k=3)
    client.select(k=3, run="done")
    client.submit(k=3, run="waiting")
    operations: dict[str, Callable[[fo.Client], object]] = {
        "select": lambda user: user.select(k=3),
        "submit": lambda user: user.submit(k=3, run="new"),
        "progress": lambda user: user.progress("waiting"),
        "result": lambda user: user.result("done"),
        "grid": lambda user: user.grid(over={"k": [2, 3]}),
        "cv": lambda user: user.cross_validate(k_max=2, folds=3),
        "verify": lambda user: user.verify(),
        "check": lambda user: user.check_constraint({"cardinality": 2}),
        "extract": lambda user: user.extract(model),
        "predict": lambda user: user.predict(model),
        "info": lambda user: user.info(),
        "list": lambda user: user.list(),
        "jobs": lambda user: user.jobs(),
        "cancel": lambda user: user.cancel("waiting"),
        "resume": lambda user: user.resume("waiting"),
        "forget": lambda user: user.forget("done"),
    }
    found = {}
    for name, operation in operations.items():
        for _ in range(
            7 if name in ("grid", "cv", "verify") else 1
        ):  # the first ones make the slots that the runs above have taken
            server.control(reset=True)
            with fo.connect(f"{server.url}/d") as user:
                operation(user)
        found[name] = server.control()
    assert {name: counts for name, counts in found.items() if sum(counts.values()) > 6} == {}
    assert found["select"]["invoke"] == 3
    for _ in range(6):
        client.select(k=3)  # makes the slots that the runs above have taken
    server.control(reset=True)
    client.select(k=3)
    assert server.control() == {"invoke": 2}  # on a connection that is open; the next call acknowledges
