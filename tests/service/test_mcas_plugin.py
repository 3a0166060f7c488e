"""The plugin of MCAS in this process, over values in memory: slots, leases, parked passes and the ledger."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from ado_plugin.mcas import jobs, ledger
from ado_plugin.mcas import slice as mcas_slice
from ado_plugin.mcas import transport as mcas_transport
from ado_plugin.mcas.calls import Plugin
from ado_plugin.mcas.ledger import LEDGER, Ledger, RoomNeededError
from ado_plugin.mcas.message import value_of
from ado_plugin.mcas.session import PoolFullError
from ado_plugin.mcas.staging import Staging
from ado_plugin.mcas.transport import McasTransport
from fastomp_nvm.errors import CallFailedError, CancelledError, FastompError, LockedError, ServerError, StoreError
from fastomp_nvm.matrix import sweeper
from fastomp_nvm.remote.address import ServerURL
from fastomp_nvm.remote.client import Client
from fastomp_nvm.stores.verification import verify_store
from storage_backends import opened
from storage_backends.media.mcas import BusyValueError

DOUBLES = Path(__file__).parents[1] / "doubles"
sys.path.append(str(DOUBLES))

from mcas_personality import array_of, execute  # noqa: E402

sys.path.remove(str(DOUBLES))


class LocalPool:
    """A pool in memory, with the calls of a session and those of the personality."""

    server, connections = "mcas://local", 1

    def __init__(self, size: int = 1 << 40) -> None:
        self.values: dict[str, bytearray] = {}
        self.locked: set[str] = set()
        self.left = size

    def open(self, pool: str, timeout: float, create: int = 0, *, once: bool = False) -> None:
        """Do nothing: it is open."""

    def put(self, pool: str, key: str, value: bytes, timeout: float) -> None:
        """Put a value where there is room."""
        if len(value) > self.left:
            raise PoolFullError("the pool is full")
        self.left -= len(value)
        self.values[key] = bytearray(value)

    def put_file(self, pool: str, key: str, prefix: bytes, path: str, offset: int, length: int, timeout: float) -> None:
        """Put a part of a file."""
        self.put(pool, key, prefix + Path(path).read_bytes()[offset : offset + length], timeout)

    def size(self, pool: str, key: str, timeout: float) -> int:
        """Return the bytes of a value."""
        return len(self.values.get(key, b""))

    def erase(self, pool: str, key: str, timeout: float) -> None:
        """Erase a value."""
        self.left += len(self.values.pop(key, b""))

    def invoke(self, pool: str, key: str, message: bytes, timeout: float) -> bytes:
        """Call the plugin."""
        if key in self.locked:
            raise LockedError("locked")
        reply = execute(self, key, [], message)
        assert reply is not None
        return reply

    def view(self, key: str, place: list[int]) -> np.ndarray:
        """Return the array in a value."""
        return array_of(key, memoryview(self.values[key]))

    def load(self, key: str) -> Any:
        """Return the array in a value, or None."""
        return self.view(key, []) if key in self.values and key not in self.locked else None

    save = load

    def close(self) -> None:
        """Do nothing: the next client finds the same values."""


Connect = Callable[[], Client]


@pytest.fixture
def pool() -> LocalPool:
    """Return an empty pool."""
    return LocalPool()


@pytest.fixture
def connect(pool: LocalPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Return a function that connects a client to the key ``d`` of the pool, as in a helper process of its own."""
    monkeypatch.setattr(mcas_slice, "_founder", ("", 0.0))

    def connected() -> Client:
        address = ServerURL.parse("mcas://127.0.0.1:1/lab/d")
        transport: Any = McasTransport(address)
        transport._session, transport.plugin, transport._staging = pool, Plugin(pool), Staging(pool)  # type: ignore[arg-type]
        return Client(address, transport, 5.0)

    yield connected
    for runner in jobs._runners.values():
        assert runner.discard()
    jobs._runners.clear()
    jobs._drivers.clear()


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """(100, 4000) observations by features, and a response."""
    generator = np.random.default_rng(7)
    X = generator.normal(size=(100, 4000)).astype(np.float32)
    return X, X[:, :6] @ np.arange(1.0, 7.0) + generator.normal(size=100)


def ledger_of(pool: LocalPool) -> Ledger:
    """Return the ledger of a pool."""

    def load(key: str) -> np.ndarray:
        found = pool.load(key)
        if found is None:
            raise BusyValueError(key)
        return found

    return Ledger(load, "lab", lambda job, entry: None)


def test_a_pass_is_parked_between_two_calls(pool, connect, data, monkeypatch) -> None:
    """Calls that are over at once leave a pass at a block of columns and go on there: it takes many calls, with the same bits."""
    X, y = np.random.default_rng(1).normal(size=(100, 40_000)).astype(np.float32), data[1]
    monkeypatch.setattr(sweeper, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(mcas_transport, "SLICE_SECONDS", 1e-9)
    with connect() as client:
        client.put(X, y, tier="none")
        job = client.submit(k=3, algorithm="sds_omp", polish="none")
        shares: dict[int, set[float]] = {}
        for state in client.follow(job):
            shares.setdefault(state["progress"][0]["round"], set()).add(state["progress"][0]["share"])
        assert max(len({share for share in seen if 0 < share < 1}) for seen in shares.values()) >= 2
        (parked,) = client.result(job)
    with fo.create_store("dram:mcas-parked", X, y, tier="none", replace=True) as store:
        whole = fo.select(store, k=3, algorithm="sds_omp", polish="none")
    assert parked.features == whole.features
    assert parked.column_coef.tobytes() == whole.column_coef.tobytes()


def test_a_store_is_verified_in_slices(pool, connect, data, monkeypatch) -> None:
    """Every column there is compared with its checksum, in calls that end at once; a damaged one is named."""
    monkeypatch.setattr(opened, "_VERIFIED_BYTES", 100_000)
    monkeypatch.setattr(mcas_transport, "SLICE_SECONDS", 1e-9)
    with connect() as client:
        client.put(*data)
        calls: list[bytes] = []
        invoke = pool.invoke
        monkeypatch.setattr(pool, "invoke", lambda *arguments: calls.append(b"") or invoke(*arguments))
        with fo.create_store("dram:mcas-verified", *data, replace=True) as store:
            assert client.verify() == dataclasses.replace(verify_store(store), unchecked="")
        assert len(calls) > 10
        assert [run.kind for run in client.jobs()] == ["verify"]
        calls.clear()
        client.path(k=1, verify=True)
        assert len(calls) > 10
        (matrix,) = (name for name in pool.values if name.endswith("matrix/0"))
        pool.values[matrix][-1] ^= 1
        with pytest.raises(StoreError, match="column 3999"):
            client.verify()
        with pytest.raises(FastompError, match="no request"):
            client.select_many([])


def test_a_driver_that_is_gone_is_replaced(connect, data, monkeypatch) -> None:
    """While one client drives, another follows without a step; once the first one is silent for a slice the other one drives."""
    monkeypatch.setattr(mcas_transport, "SLICE_SECONDS", 1e-9)
    monkeypatch.setattr(jobs, "SLICE_SECONDS", 3600.0)
    with connect() as client, connect() as other:
        client.put(*data)
        job = client.submit(k=6, algorithm="sds_omp", polish="none", run="shared")
        transports = [each._transport for each in (client, other)]

        def step(which: int) -> dict[str, Any]:
            return transports[which].plugin.call("lab", "progress", 5.0, job=job, seconds=1e-9)

        assert not step(0)["following"]
        before = step(1)
        assert before["following"]
        assert step(1)["progress"] == before["progress"]
        with pytest.raises(ServerError, match="cancel it first"):
            other.forget(job)
        ((run, (driver, _)),) = jobs._drivers.items()
        jobs._drivers[run] = driver, 0.0
        assert not step(1)["following"]
        assert step(0)["following"]
        monkeypatch.setattr(jobs, "SLICE_SECONDS", 3.0)
        jobs._drivers.clear()
        assert other.result(job)[0].features == client.result(job)[0].features


def test_more_runs_than_threads_all_end(connect, data, monkeypatch) -> None:
    """Runs beyond those kept in progress wait for them, or take the place of one that nobody drives."""
    monkeypatch.setattr(jobs, "_MOST_RUNNERS", 2)
    monkeypatch.setattr(mcas_transport, "SLICE_SECONDS", 1e-9)
    with connect() as client:
        client.put(*data)
        for _ in range(2):  # left alone in the middle
            other = connect()
            job = other.submit(k=5)
            next(other.follow(job))
        jobs._drivers.clear()
        runs = [client.submit(k=4, run=f"r{turn}") for turn in range(3)]
        assert len({tuple(client.result(job)[0].features) for job in runs}) == 1


def test_a_thread_that_was_slow_to_end_is_replaced(connect, data, monkeypatch) -> None:
    """A run whose thread was given up, at once or late, goes on from its journal in a new one."""
    monkeypatch.setattr(mcas_transport, "SLICE_SECONDS", 1e-9)
    with connect() as client:
        client.put(*data)
        job = client.submit(k=6, algorithm="sds_omp", polish="none")
        follow = client.follow(job)
        for _ in range(4):
            next(follow)
        ((_, runner),) = jobs._runners.items()
        runner._discarded = True
        assert len(client.result(job)[0].features) == 6
        assert isinstance(runner.error, CancelledError)


def test_an_answer_is_kept_until_it_is_acknowledged(pool, connect, data, monkeypatch) -> None:
    """Slots of a run are recycled after its answer was acknowledged, or after a lease; never those of a named run."""
    monkeypatch.setattr(ledger, "_RETAINED", 0)
    with connect() as client, connect() as other:
        client.put(*data)
        lost = client.submit(k=2)
        list(client.follow(lost))  # the answer is here, and the next call would say so
        client._transport.plugin.acknowledged.clear()
        client.select(k=2, run="named")
        for turn in range(12):
            other.select(k=3, seed=turn)
        kept = ledger_of(pool).runs
        assert lost in kept
        assert "named" in kept
        assert len(kept) < 14
        assert len(client.result(lost)[0].features) == 2
        client.list()  # acknowledges
        for turn in range(8):
            other.select(k=3, seed=turn)
        assert lost not in ledger_of(pool).runs
        silent = client.submit(k=2)
        for name in ("LEASE_SECONDS", "_ABANDONED_SECONDS"):
            monkeypatch.setattr(ledger, name, -1.0)
        for turn in range(8):
            other.select(k=3, seed=turn)
        assert silent not in ledger_of(pool).runs
        assert "named" in ledger_of(pool).runs


def test_a_pool_grows_to_a_limit(pool, connect, data) -> None:
    """Many selections of one client take the room of a few."""
    with connect() as client:
        client.put(*data)
        for turn in range(8):
            client.select(k=2, seed=turn)
        before = set(pool.values)
        for turn in range(20):
            client.select(k=2, seed=turn)
        assert set(pool.values) == before


def test_a_full_pool_recycles_and_then_says_so(pool, connect, data) -> None:
    """Without room for slots ended runs give theirs; free ones make room for a store; only then is it an error with figures."""
    X, y = data
    with connect() as client:
        client.put(X, y, tier="none")
        pool.left = 0
        for turn in range(12):
            assert len(client.select(k=2, seed=turn).features) == 2

        def keep() -> None:
            for turn in range(12):
                client.select(k=2, run=f"kept{turn}")

        with pytest.raises(ServerError, match=r"full: \d+ bytes of runs, \d+ of stores; forget .* or delete"):
            keep()
        with pytest.raises(ServerError, match=r"full: \d+ bytes of runs, \d+ of stores"):
            client.put(X, y, key="lab/other")
        assert [each["key"] for each in client.list()] == ["d"]
        for run in client.jobs():
            client.forget(run.name)
        client.put(X[:, :100], y, key="lab/small", tier="none")
        assert client.jobs() == []


def test_a_long_response_travels_as_a_value(pool, connect, data, monkeypatch) -> None:
    """A request beyond the parameters of a call is put as a value, erased after the end of the run, and answered alike."""
    X, y = data
    monkeypatch.setattr(mcas_transport, "_LARGEST_RECORD", 100)
    with connect() as client:
        client.put(X, y)
        short = client.select(k=4)
        job = client.submit(2 * y, k=4)
        assert client.submit(2 * y, k=4, run=job) == job
        assert sum(name.startswith("fastomp/input/") for name in pool.values) == 1
        assert client.result(job)[0].features == short.features
        with pytest.raises(ServerError, match="another request"):
            client.submit(3 * y, k=4, run=job)
        client.list()
        client.list()
        assert not [name for name in pool.values if name.startswith("fastomp/input/")]


def test_a_name_does_not_outlive_its_store(connect, data) -> None:
    """A run on a store that was replaced is not the answer to the same request on the new one."""
    X, y = data
    with connect() as client:
        client.put(X, y)
        client.select(k=2, run="nightly")
        assert len(client.select(k=2, run="nightly").features) == 2
        client.put(-X[:, :50], y, replace=True)
        with pytest.raises(ServerError, match="was replaced"):
            client.select(k=2, run="nightly")
        client.forget("nightly")
        assert len(client.select(k=2, run="nightly").features) == 2


def test_a_long_answer_comes_in_parts(connect, data, monkeypatch) -> None:
    """An answer beyond one reply is put together from several, bit for bit."""
    with connect() as client:
        client.put(*data)
        whole = client.select(k=4)
        monkeypatch.setattr(jobs, "_CHARACTERS", 100)
        assert client.select(k=4, seed=0).column_coef.tobytes() == whole.column_coef.tobytes()
        (again,) = client.path(k=4, algorithm="fast_omp").selections[-1:]
        assert again.column_coef.tobytes() == whole.column_coef.tobytes()


def test_calls_whose_replies_are_lost_are_repeated(pool, connect, data, monkeypatch) -> None:
    """Every change made by a call whose reply was lost is the one that the repeated call reports."""
    invoke, losing = pool.invoke, [True]

    def losing_every_other(*arguments: Any) -> bytes:
        reply = invoke(*arguments)
        losing[0] = not losing[0]
        if not losing[0]:
            raise CallFailedError("lost")
        return reply

    monkeypatch.setattr(pool, "invoke", losing_every_other)
    with connect() as client:
        client.put(*data)
        assert len(client.select(k=3, run="a").features) == 3
        client.submit(k=2, run="b")
        assert client.cancel("b")["state"] == "cancelled"
        assert client.resume("b")["state"] == "running"
        client.cancel("b")
        client.forget("a")
        with pytest.raises(ServerError, match="no run"):
            client.forget("a")
        client.put(data[0][:, :50], data[1], replace=True)
        client.delete()
        with pytest.raises(FastompError, match="no store"):
            client.delete()
        assert ledger_of(pool).unfinished == []
        assert not [name for name in pool.values if name.startswith("fo/")]


def test_a_ledger_survives_a_torn_write(pool, connect, data) -> None:
    """Whatever part of the newer state is lost, the one before it is found; two damaged states are an error."""
    with connect() as client:
        client.put(*data)
        client.select(k=2, run="a")
        content = ledger_of(pool)
        kept = bytes(pool.values[LEDGER])
        del content.runs["a"]
        content.save()
        written = bytes(pool.values[LEDGER])
        differing = [place for place in range(len(kept)) if kept[place] != written[place]]
        for place in differing[:: max(len(differing) // 40, 1)]:
            for torn in (kept[:place] + written[place:], written[:place] + kept[place:]):
                pool.values[LEDGER][:] = torn
                assert set(ledger_of(pool).runs) in ({"a"}, set())
        pool.values[LEDGER][-(1 << 19) :] = b"x" * (1 << 19)
        pool.values[LEDGER][:64] = b"x" * len(pool.values[LEDGER][:64])
        broken = bytearray(b"x" * (1 << 20))
        pool.values[LEDGER] = bytearray(value_of(LEDGER, bytes(broken)))
        with pytest.raises(StoreError, match="damaged"):
            client.list()


def test_a_value_that_stays_locked_or_missing_is_named(pool, connect, data, monkeypatch) -> None:
    """After the time limit the error says what is known: locked by another client, or missing."""
    with connect() as client:
        client.put(*data)
        monkeypatch.setattr(client, "_timeout", 0.3)
        (matrix,) = (name for name in pool.values if name.endswith("matrix/0"))
        pool.locked = {matrix}
        with pytest.raises(ServerError, match="stayed locked"):
            client.info()
        pool.locked = set()
        del pool.values[matrix]
        with pytest.raises(StoreError, match="lacks the value"):
            client.info()


def test_every_door_is_tried(pool, connect, data, monkeypatch) -> None:
    """A call goes through any door that is free; without one the error names the lock."""
    with connect() as client:
        client.put(*data)
        doors = {name for name in pool.values if "door" in name}
        pool.locked = doors - {"fastomp/door/3"}
        assert len(client.list()) == 1
        pool.locked = doors
        monkeypatch.setattr(client, "_timeout", 0.3)
        with pytest.raises(FastompError, match="locked"):
            client.list()


def test_two_founders_make_one_ledger(pool, connect, data) -> None:
    """Of clients that find no ledger one creates it, and the others wait: none is overwritten."""
    first, second = Plugin(pool), Plugin(pool)  # type: ignore[arg-type]
    first.found("lab", 5.0)
    second.found("lab", 5.0)
    asked: list[str] = []
    put = pool.put

    def slow(name: str, key: str, value: bytes, timeout: float) -> None:
        asked.append(key)
        with pytest.raises(StoreError, match="lacks the value"):
            second.call("lab", "list", 0.2)
        put(name, key, value, timeout)

    pool.put = slow  # type: ignore[method-assign]
    assert first.call("lab", "list", 5.0)["keys"] == []
    assert asked == [LEDGER]
    assert second.call("lab", "list", 5.0)["keys"] == []


def test_slots_are_taken_together_or_not_at_all(pool, connect, data) -> None:
    """A run that needs more slots than there are takes none, and is told every one that is missing."""
    with connect() as client:
        client.put(*data)
    found = ledger_of(pool)
    with pytest.raises(RoomNeededError) as needed:
        found.take("run", {"a": 16 << 10, "b": 1 << 30, "c": 3 << 30})
    assert sorted(needed.value.slots.values()) == [1 << 30, 4 << 30]
    assert list(found.regions("run")) == []
    assert json.loads(json.dumps(needed.value.slots)) == needed.value.slots
