"""A machine that is short of descriptors, disk or memory: jobs wait and go on by themselves, and the server says what is wrong."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from ado_plugin.flight import connections
from ado_plugin.flight.connections import Connections
from ado_plugin.service import pools as pools_module
from ado_plugin.service import uploads as uploads_module
from ado_plugin.service.access import Principal
from ado_plugin.service.job import Job
from ado_plugin.service.jobs import Jobs
from ado_plugin.service.limits import JobLimits
from ado_plugin.service.machine import is_shortage
from ado_plugin.service.operations import Caller
from ado_plugin.service.pools import Pools
from ado_plugin.service.records import JobRecords
from ado_plugin.service.uploads import Tile
from fastomp_nvm.errors import MediumError
from tests.service.running import RunningServer, small_data
from tests.service.test_jobs import Gate, disk, finished, gate, noticed, queue, request  # noqa: F401
from tests.service.test_operations import ADMIN, Host, put_plan


def answered(port: int, path: str) -> tuple[int, list[str]]:
    """Return status and lines of a check."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as reply:
            return reply.status, reply.read().decode().splitlines()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().splitlines()


def selects(client: fo.Client) -> bool:
    """Return whether a selection is answered."""
    try:
        return len(client.select(k=2).features) == 2
    except (fo.MediumError, fo.ServerError):
        return False


def test_a_server_survives_more_connections_than_descriptors(tmp_path: Path) -> None:
    """Bare connections, more than the process may have descriptors, are ended; jobs meanwhile wait and end by themselves."""
    limit = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)); sys.argv = ['x', *sys.argv[1:]]; "
    program = ("-c", limit + "runpy.run_module('fastomp_nvm', run_name='__main__')")
    with RunningServer(tmp_path, "--metrics", "127.0.0.1:0", program=program) as running:
        with running.connect("/lab/data") as client, ExitStack() as stack:
            client.put(*small_data())
            for _ in range(400):
                bare = stack.enter_context(socket.socket())
                bare.settimeout(20)
                bare.connect(("127.0.0.1", running.port))
            assert noticed(lambda: selects(client)), "refused while no descriptor is left, and not for long"
            assert noticed(lambda: '"event": "connections ended"' in running.log)
        assert noticed(lambda: answered(running.metrics_port, "/health")[1][:1] == ["ok"])
        status, facts = answered(running.metrics_port, "/health")
        assert status == 200
        assert {line.split()[0] for line in facts[1:]} >= {
            "workers_alive",
            "oldest_job_seconds",
            "free_disk_bytes",
            "free_descriptors",
        }
        assert answered(running.metrics_port, "/ready") == (200, ["ok"])
        with running.connect("/lab/data") as client:
            assert len(client.select(k=3).features) == 3
        assert running.stop() == 0


def test_connections_without_a_call_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that carries no authenticated call in time is ended; beyond the limit the silent go first."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        port = server.getsockname()[1]
        watched = Connections(port, most=2)
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)]
        for _ in clients:
            stack.enter_context(server.accept()[0])
        for client in clients[:2]:
            watched.heard(f"ipv4:127.0.0.1:{client.getsockname()[1]}")
        assert watched.shed() == 1
        assert clients[2].recv(1) == b""
        monkeypatch.setattr(connections, "_GRACE_SECONDS", -1.0)
        assert watched.shed() == 1, "the third, which is not closed yet"
        for client in clients[:2]:
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(1)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
def test_a_job_that_meets_a_shortage_is_run_again(
    queue: Jobs,  # noqa: F811
    gate: Gate,  # noqa: F811
    disk: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    """A store that cannot be opened, or a journal that cannot be written, for lack of something passing, does not fail the job."""
    original, failing = gate.run, [1, 1]

    def run(jobs: Sequence[Job], *callbacks: Any) -> None:
        if failing:
            failing.pop()
            raise MediumError("cannot write the journal") from OSError(code, os.strerror(code))
        original(jobs, *callbacks)

    monkeypatch.setattr(gate, "run", run)
    queue.submit("patient", request())
    queue.start()
    assert finished(queue, "patient") == ["done"]
    assert not failing
    assert not is_shortage(MediumError("damaged"))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a bug"), SystemExit(1)])
def test_no_error_of_the_schedule_ends_a_worker(
    queue: Jobs,  # noqa: F811
    disk: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    """Whatever fails while jobs are chosen is reported as trouble while it lasts, and the jobs run afterwards."""
    broken = threading.Event()
    original = queue._schedule.next_jobs

    def next_jobs(jobs: Any) -> Any:
        if not broken.is_set():
            raise error
        return original(jobs)

    monkeypatch.setattr(queue._schedule, "next_jobs", next_jobs)
    queue.submit("waiting", request())
    queue.start()
    assert noticed(lambda: queue.trouble == "the job workers fail: see the log")
    broken.set()
    assert finished(queue, "waiting") == ["done"]
    assert noticed(lambda: queue.trouble is None)
    assert queue.workers_alive == len(queue._workers)


def test_a_server_starts_on_a_full_disk(tmp_path: Path, gate: Gate, disk: Any) -> None:  # noqa: F811
    """Jobs that ran when the server died are recovered although no record can be written, and run once there is room."""
    records = JobRecords(tmp_path / "jobs")
    Jobs(records, gate, JobLimits()).submit("interrupted", request())
    records.write_state("interrupted", {"order": 1, "state": "running", "crashes": 0, "error": None, "changed": 0.0})
    disk.code = errno.ENOSPC
    queue = Jobs(records, gate, JobLimits())  # noqa: F811
    queue.start()
    assert noticed(lambda: queue.trouble is not None)
    disk.code = None
    assert finished(queue, "interrupted") == ["done"]
    queue.drain(1.0)


def test_nothing_is_imported_for_a_job() -> None:
    """After the start of a server no kind of selection imports a module of this project."""
    code = """
import sys
from ado_plugin.service.execution import import_selectors
import_selectors()
before = set(sys.modules)
import numpy as np
from fastomp_nvm.selection.select import select_many
X = np.random.default_rng(1).normal(size=(30, 12))
for kind in ({"algorithm": "sds_ma"}, {"algorithm": "dash"}, {"quality": "best"}, {"objective": "logistic"}):
    select_many(X, [{"k": 3, "objective": "linear", **kind}], (X[:, 0] > 0).astype(float))
print([name for name in set(sys.modules) - before if name.startswith("fastomp_nvm.") and "cli" not in name])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    running = Host(tmp_path)
    yield running
    running.close()


def tile_of(values: np.ndarray) -> Tile:
    """Return the only tile of a table."""
    data = np.ascontiguousarray(values.T).reshape(-1)
    return Tile(0, zlib.crc32(data.tobytes()), 0, 0, *values.shape, "columns", data)


def test_a_failed_upload_keeps_nothing_mapped(host: Host) -> None:
    """An upload that cannot be sealed leaves neither files nor a mapping of them; the error is given again."""
    values = np.array([[1.7e308, 1.0], [-1.7e308, 2.0], [1.7e308, 3.0], [-1.7e308, 5.0]])
    begun = host.call("put", **put_plan(dtype="float64"))
    assert "upload" in begun, begun
    host.uploads.write(ADMIN.principal.name, begun["upload"], [tile_of(values)])
    folder = host.folder / "pools" / "lab"
    (staged,) = folder.iterdir()
    mapped = Path("/proc/self/maps")
    assert staged.name in mapped.read_text()
    arguments = {"upload": begun["upload"], "tiles": 1, "crc": tile_of(values).checksum, "wait": 20}
    first = host.refused("commit", **arguments)
    assert "overflows" in first
    assert staged.name not in mapped.read_text()
    assert list(folder.iterdir()) == []
    assert host.refused("commit", **arguments) == first


@pytest.mark.parametrize("quota", [None, 10**9])
def test_uploads_leave_room_for_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: int | None) -> None:
    """With or without a quota, an upload that would leave less than a reserve free is refused before it takes anything."""
    monkeypatch.setattr(pools_module, "free_bytes", lambda path: 1_000_000)
    monkeypatch.setattr(pools_module, "total_bytes", lambda path: 8_000_000)
    running = Host(tmp_path, quota=quota)
    try:
        assert (running.pools.reserve, running.pools.room()) == (400_000, 600_000)
        big = {"n_obs": 1000, "features": {"numbered": 160, "prefix": "f"}}
        assert "600000 are left, beside 400000 kept for records" in running.refused("put", **put_plan(**big))
        assert os.listdir(tmp_path / "pools") == [".fastomp"]
    finally:
        running.close()


def test_an_owner_has_a_share_of_the_uploads(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further uploads of one owner take at most half of the room, and no more than a number; another owner's are not refused."""
    caller = Caller(Principal("ann", "write"), "1")
    other = Caller(Principal("bob", "write"), "1")
    monkeypatch.setattr(uploads_module, "_MOST_OF_ONE_OWNER", 2)
    for place in range(2):
        assert "upload" in host.call("put", caller, **put_plan(key=f"k{place}"))
    assert "2 uploads of 'ann' are in progress" in host.refused("put", caller, **put_plan(key="k2"))
    monkeypatch.setattr(uploads_module, "_MOST_OF_ONE_OWNER", 16)
    monkeypatch.setattr(Pools, "room", lambda pools: 64)
    assert "more than half of the room" in host.refused("put", caller, **put_plan(key="k2"))
    assert "upload" in host.call("put", other, **put_plan(key="k2"))


def test_a_reservation_expires(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beginning an upload again and again does not keep its room: only tiles do."""
    monkeypatch.setattr(host.uploads, "_idle_seconds", 900.0)
    begun = host.call("put", **put_plan())
    (upload,) = host.uploads._staged.values()
    upload.touched -= 200.0
    assert host.call("put", **put_plan())["upload"] == begun["upload"]
    assert host.uploads.reap() == 1
    assert list((host.folder / "pools" / "lab").iterdir()) == []
