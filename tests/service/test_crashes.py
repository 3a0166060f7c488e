"""SIGKILL of client or server in the middle of put and of select: never a wrong answer, a hang, or a pool that does not reopen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from ado_plugin.service.records import JobRecords
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.schema import TableSchema
from tests.service.gated_server import HELD_FROM, GatedServer
from tests.service.running import ROOT, RunningServer

pytestmark = pytest.mark.crash

#: One pass per feature.
LONG = {"k": 380, "algorithm": "sds_omp", "polish": "none", "tier": "exact"}


def long_data() -> tuple[Any, Any]:
    """Return data of many tiles."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 20_000), dtype=np.float32)
    return X, X[:, :200] @ rng.normal(size=200) + rng.normal(size=400)


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedServer]:
    """Run a server that keeps journals of all jobs and holds the long data."""
    with GatedServer(tmp_path_factory.mktemp("mortal"), "--journal-from", "0", "--drain", "0.2") as running:
        X, y = long_data()
        with running.connect("/lab/long") as client:
            client.put(X, y)
        yield running


@pytest.fixture
def held(mortal: GatedServer) -> Iterator[None]:
    """Hold the jobs of a test in the middle, until it opens the gate or ends the server."""
    mortal.close_gate()
    yield
    mortal.open_gate()


@pytest.fixture(scope="module")
def expected(mortal: GatedServer) -> dict[str, Any]:
    """Return the answer of an undisturbed local run, without time and choices, which are those of a process."""
    found = fo.select(f"pmem://{mortal.pools}/lab/long", **LONG).to_json()
    del found["seconds"], found["choices"]
    return found


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the clients of these tests send smaller pieces than usual."""
    monkeypatch.setattr("fastomp_nvm.remote.upload._TILE_BYTES", 1 << 20)


def wait_until_running(client: fo.Client, job: str) -> None:
    """Return once a job is held in the middle."""
    for standing in client.follow(job):
        assert standing["state"] in ("queued", "running"), "the job was to be held"
        if standing["progress"] and standing["progress"][0].get("selected", 0) >= HELD_FROM:
            return


@pytest.mark.usefixtures("held")
def test_a_server_killed_during_a_selection_finishes_it_afterwards(mortal: GatedServer, expected: dict[str, Any]) -> None:
    """A client that waits through the death and restart of the server gets the answer of the undisturbed run, bit for bit."""
    answers: list[Any] = []
    with mortal.connect("/lab/long", timeout=60) as client:
        job = client.submit(**LONG)
        waiter = threading.Thread(target=lambda: answers.extend(client.result(job)))
        with mortal.connect("/lab/long") as watcher:
            wait_until_running(watcher, job)
        waiter.start()
        time.sleep(0.05)
        mortal.kill()
        assert list((mortal.pools / ".fastomp" / "journals").glob("job-*")), "the job left no journal to go on with"
        mortal.start()
        waiter.join(120)
        assert [
            {name: value for name, value in found.to_json().items() if name not in ("seconds", "choices")} for found in answers
        ] == [expected]
        assert not list((mortal.pools / ".fastomp" / "journals").glob("job-*"))


def test_crashes_that_others_cause_do_not_park_a_job(mortal: GatedServer, expected: dict[str, Any]) -> None:
    """A job that was running in three crashes of the server still gets its answer: nothing shows that it caused them."""
    with mortal.connect("/lab/long", timeout=60) as client:
        mortal.close_gate()
        job = client.submit(**LONG)
        for crash in range(3):
            if crash == 0:
                wait_until_running(client, job)
            else:
                while next(iter(client.follow(job)))["state"] != "running":
                    time.sleep(0.01)
            mortal.kill()
            mortal.close_gate()
            mortal.start()
        mortal.open_gate()
        (found,) = client.result(job)
        assert {name: value for name, value in found.to_json().items() if name not in ("seconds", "choices")} == expected


@pytest.mark.usefixtures("held")
def test_ten_jobs_in_flight_all_finish_after_a_kill(mortal: GatedServer) -> None:
    """Killed with ten jobs in flight, the server finishes all ten after its restart, each with the answer of a local run."""
    requests = [{**LONG, "k": 150 + 10 * number} for number in range(10)]
    with mortal.connect("/lab/long", timeout=60) as client:
        jobs = [client.submit(**request) for request in requests]
        wait_until_running(client, jobs[0])
        mortal.kill()
        states = {name: state["state"] for name, _, state in JobRecords(mortal.pools / ".fastomp" / "jobs").load()}
        assert {states[job] for job in jobs} <= {"queued", "running"}
        mortal.start()
        found = [client.result(job)[0].to_json() for job in jobs]
    for request, answer in zip(requests, found, strict=True):
        alone = fo.select(f"pmem://{mortal.pools}/lab/long", **request).to_json()
        assert {**answer, "seconds": 0, "choices": {}} == {**alone, "seconds": 0, "choices": {}}


@pytest.mark.usefixtures("held")
def test_sigterm_drains(mortal: GatedServer, expected: dict[str, Any]) -> None:
    """On SIGTERM the server ends orderly and soon; the job it could not finish is finished by the next one."""
    with mortal.connect("/lab/long", timeout=60) as client:
        job = client.submit(**LONG)
        wait_until_running(client, job)
        assert mortal.stop() == 0
        mortal.start()
        (found,) = client.result(job)
        assert {name: value for name, value in found.to_json().items() if name not in ("seconds", "choices")} == expected
    assert '"event": "draining"' in mortal.log


@pytest.mark.usefixtures("held")
def test_cancelling_a_running_job(mortal: GatedServer) -> None:
    """A cancelled job ends at its next round; its client hears so, and the server takes the next job."""
    with mortal.connect("/lab/long") as client:
        job = client.submit(**LONG)
        wait_until_running(client, job)
        client.cancel(job)
        with pytest.raises(fo.CancelledError):
            client.result(job)
        assert len(client.select(k=2).features) == 2


def recorded(client: fo.Client) -> list[int]:
    """Return a list to which the numbers of all tiles are added that a client sends from now on."""
    sent: list[int] = []
    original = client.send_tiles

    def noted(tiles: Iterable[Any]) -> Iterator[Any]:
        for tile in tiles:
            sent.append(tile.header["number"])
            yield tile

    client.send_tiles = lambda upload, tiles: original(upload, noted(tiles))  # type: ignore[method-assign]
    return sent


def test_a_server_killed_during_an_upload(mortal: GatedServer) -> None:
    """The client continues with the next server and sends only the missing tiles; damaged bytes are detected and sent again."""
    X, _ = long_data()
    fingerprint = fo.create_store("dram:reborn", X, replace=True).layout.fingerprint
    with mortal.connect("/lab/reborn", timeout=60) as client:
        upload = client.upload(TableSchema.plain(400, NumberedNames(20_000)))
        upload.write_tile(0, 0, X[:, :12_000])
        upload.flush()
        arrived = upload._arrived
        assert arrived > 5
        mortal.kill()
        mortal.start()
        sent = recorded(client)
        upload.write_tile(0, 12_000, X[:, 12_000:])
        assert upload.finish().fingerprint == fingerprint
        assert min(sent) == arrived
        client.delete()

        upload = client.upload(TableSchema.plain(400, NumberedNames(20_000)))
        upload.write_tile(0, 0, X[:, :12_000])
        upload.flush()
        mortal.kill()
        (staged,) = (mortal.pools / "lab").glob(".reborn.partial-*")
        np.load(staged / "matrix.npy", mmap_mode="r+")[9_000, 390] += 1  # in the last tile but one
        mortal.start()
        upload.write_tile(0, 12_000, X[:, 12_000:])
        with pytest.raises(fo.UploadLostError):
            upload.finish()
        sent.clear()
        again = client.upload(TableSchema.plain(400, NumberedNames(20_000)))
        assert 0 < again._known < arrived
        again.write_tile(0, 0, X[:, :12_000])
        again.write_tile(0, 12_000, X[:, 12_000:])
        assert again.finish().fingerprint == fingerprint
        assert min(sent) == again._known
        client.delete()


@pytest.mark.parametrize("moment", ["sending", "sealing", "published"])
def test_a_put_outlives_its_server(mortal: GatedServer, moment: str) -> None:
    """A put during which the server is killed and started again ends well, also when the store was published but not reported."""
    X, y = long_data()
    key = f"outlived-{moment}"
    folder = mortal.pools / "lab"

    def reached() -> bool:
        if moment == "published":
            return (folder / key / "header.json").exists()
        logs = set(records.glob("*.tiles")) - earlier
        return any(path.read_bytes().count(b"\n") >= (8 if moment == "sending" else 32) for path in logs)

    records = mortal.pools / ".fastomp" / "uploads"
    earlier = set(records.glob("*.tiles"))
    done: list[dict[str, Any]] = []
    with mortal.connect(f"/lab/{key}", timeout=60) as client:
        sender = threading.Thread(target=lambda: done.append(client.put(X, y)))
        sender.start()
        while not reached() and sender.is_alive():
            time.sleep(0.0005)
        mortal.kill()
        mortal.start()
        sender.join(120)
        assert len(done) == 1
        assert done[0]["fingerprint"] == client.info("lab/long")["fingerprint"] == client.info()["fingerprint"]
        client.delete()
    assert not list(folder.glob(f".{key}*"))


def test_what_nobody_goes_on_with_is_reaped(tmp_path: Path) -> None:
    """An upload whose client died, and one whose server did, give their room back after a while."""
    with RunningServer(tmp_path, "--upload-idle", "1") as impatient:
        lab = impatient.pools / "lab"

        def wait_for_room() -> None:
            end = time.monotonic() + 60
            while list(lab.iterdir()):
                assert time.monotonic() < end, "the upload was never reaped"
                time.sleep(0.1)

        kill_an_uploader(impatient, "lost", columns=0)
        wait_for_room()
        with impatient.connect("/lab/orphan") as client:
            client.upload(TableSchema.plain(400, NumberedNames(20_000)))
            impatient.kill()
            impatient.start()
        wait_for_room()


UPLOADER = """
import sys, time
import numpy as np
import fastomp_nvm as fo
import fastomp_nvm.remote.upload
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.schema import TableSchema
fastomp_nvm.remote.upload._TILE_BYTES = 1 << 20
client = fo.connect(sys.argv[1], token=sys.argv[2])
upload = client.upload(TableSchema.plain(400, NumberedNames(20_000)))
columns = int(sys.argv[3])
if columns:
    X = np.random.default_rng(0).standard_normal((400, 20_000), dtype=np.float32)
    upload.write_tile(0, 0, X[:, :columns])
    upload.flush()
print("here", flush=True)
time.sleep(600)
"""


def kill_an_uploader(server: RunningServer, key: str, columns: int = 9000) -> None:
    """Have a client upload some of the data and kill it."""
    words = [sys.executable, "-c", UPLOADER, f"{server.url}/lab/{key}", server.token(), str(columns)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        child.send_signal(signal.SIGKILL)


def test_a_client_killed_during_an_upload(mortal: GatedServer) -> None:
    """Another client continues where the dead one stopped, without sending the tiles that had arrived."""
    kill_an_uploader(mortal, "half")
    X, _ = long_data()
    with mortal.connect("/lab/half") as client:
        plan = client.upload(TableSchema.plain(400, NumberedNames(20_000)))
        assert plan._known > 0, "the server does not know how far the upload was"
        sent = recorded(client)
        plan.write_tile(0, 0, X[:, :9000])
        plan.write_tile(0, 9000, X[:, 9000:])
        report = plan.finish()
        assert min(sent) == plan._known
        assert report.fingerprint == client.info("lab/long")["fingerprint"]
        client.delete()
    assert sorted(path.name for path in (mortal.pools / "lab").iterdir()) == ["long"]


SELECTOR = """
import json, sys
import fastomp_nvm as fo
client = fo.connect(sys.argv[1], token=sys.argv[2])
client.select(run="widowed", observer=lambda step: print("here", flush=True), **json.loads(sys.argv[3]))
"""


@pytest.mark.usefixtures("held")
def test_a_client_killed_during_a_selection(mortal: GatedServer, expected: dict[str, Any]) -> None:
    """Its job continues, and any client gets the answer by the job's name."""
    words = [sys.executable, "-c", SELECTOR, f"{mortal.url}/lab/long", mortal.token(), json.dumps(LONG)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        child.send_signal(signal.SIGKILL)
    mortal.open_gate()
    with mortal.connect(timeout=60) as client:
        (found,) = client.result("widowed")
    assert {name: value for name, value in found.to_json().items() if name not in ("seconds", "choices")} == expected


def test_other_data_is_not_mixed_into_an_upload(mortal: GatedServer) -> None:
    """A client that continues an upload with other values is detected, and sends all tiles again."""
    X, _ = long_data()
    with mortal.connect("/lab/mixed") as client:
        upload = client.upload(TableSchema.plain(400, NumberedNames(20_000)))
        upload.write_tile(0, 0, np.ascontiguousarray(X[:, :9000].T).T)
        upload.flush()
        report = client.put(np.asfortranarray(X + 1))
        assert report["fingerprint"] == fo.create_store("dram:mixed", X + 1, replace=True).layout.fingerprint
        client.delete()
