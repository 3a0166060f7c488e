"""The operations, free of any transport: whatever is sent, the answer is data, and nothing outside the pools is touched."""

from __future__ import annotations

import json
import os
import threading
import time
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastomp_nvm as fo
from ado_plugin.flight.server import _tile
from ado_plugin.service import needs, operations
from ado_plugin.service.access import Access, Principal
from ado_plugin.service.execution import Execution
from ado_plugin.service.jobs import Jobs
from ado_plugin.service.limits import JobLimits
from ado_plugin.service.operations import OPERATIONS, Caller, Operations
from ado_plugin.service.pools import Pools
from ado_plugin.service.records import JobRecords
from ado_plugin.service.uploads import Tile, Uploads
from fastomp_nvm import errors
from fastomp_nvm.selection.codec import decode_vector, encode_vector
from tests.service.running import small_data

ADMIN = Caller(Principal("root", "admin"), "1")


class Host:
    """The least a host can be: it carries bytes."""

    def __init__(
        self,
        folder: Path,
        quota: int | None = None,
        limits: JobLimits | None = None,
        *,
        start: bool = True,
        journal_from: int = 0,
    ) -> None:
        limits = limits or JobLimits()
        self.folder = folder
        self.pools = Pools(str(folder / "pools"), quota)
        self.uploads = Uploads(self.pools, idle_seconds=0.0)
        execution = Execution(self.pools, self.pools.own_folder / "journals", threads=1, journal_from=journal_from)
        self.jobs = Jobs(JobRecords(self.pools.own_folder / "jobs"), execution, limits)
        self.operations = Operations(self.pools, self.uploads, self.jobs, limits)
        if start:
            self.jobs.start()

    def close(self) -> None:
        self.jobs.drain(5.0)
        self.uploads.close(60.0)
        self.pools.close()

    def call(self, operation: str, caller: Caller = ADMIN, **body: Any) -> Any:
        replies = [json.loads(data) for data in self.operations.call(caller, operation, json.dumps(body).encode())]
        return replies[-1]

    def refused(self, operation: str, caller: Caller = ADMIN, **body: Any) -> str:
        reply = self.call(operation, caller, **body)
        assert set(reply) == {"error"}, reply
        assert reply["error"]["kind"] in errors.__all__
        return str(reply["error"]["message"])


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    running = Host(tmp_path)
    X, y = small_data()
    (tmp_path / "pools" / "lab").mkdir()
    fo.create_store(str(tmp_path / "pools" / "lab" / "data"), X, y).close()
    yield running
    running.close()


def put_plan(**changes: Any) -> dict[str, Any]:
    plan = {
        "pool": "lab",
        "key": "new",
        "n_obs": 4,
        "features": ["a", "b"],
        "dtype": "float32",
        "missing": "error",
        "tier": "none",
        "replace": False,
    }
    return {**plan, **changes}


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../lab",
        "a/b",
        "/etc",
        "plink:///data/all.bed",
        ".hidden",
        "-x",
        "a\0b",
        "a\nb",
        "é",
        "a" * 101,
        5,
        None,
        ["lab"],
    ],
)
def test_names_never_become_paths(host: Host, name: Any) -> None:
    """A pool, key or run whose name is not plain is refused by every operation that takes one, and nothing is made."""
    before = sorted(path.name for path in (host.folder / "pools").rglob("*"))
    for operation in OPERATIONS:
        body = {**put_plan(), "request": {"k": 2}, "requests": [{"k": 2}], "job": "j", "upload": "u", "tiles": 0, "crc": 0}
        for field in ("pool", "key", "job"):
            if operation in ("ping", "commit", "abort") or (field == "job") == (
                operation in ("info", "delete", "put", "list", "jobs", "predict", "check_constraint", "extract")
            ):
                continue
            if operation in ("progress", "result", "cancel", "resume") and field != "job":
                continue
            if (operation == "list" and field == "key") or (operation in ("list", "jobs") and name is None):
                continue
            assert "is no name of a" in host.refused(operation, **{**body, field: name}), (operation, field)
    assert sorted(path.name for path in (host.folder / "pools").rglob("*")) == before


def test_long_identifiers_are_cut_into_several_replies(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply of ``predict`` keeps below its limit whatever the length of the identifiers, and none is lost."""
    monkeypatch.setattr(operations, "_REPLY_BYTES", 20_000)
    ids = [f"\N{GRINNING FACE}{row:0120d}" for row in range(200)]
    (tmp_path / "t.csv").write_text("who,a,y\n" + "".join(f"{name},{row},{3 * row}\n" for row, name in enumerate(ids)))
    fo.ingest(str(tmp_path / "t.csv"), str(tmp_path / "pools" / "lab" / "people"), targets=["y"], id_column="who", dtype="float64")
    model = fo.select(str(tmp_path / "pools" / "lab" / "people"), k=1)
    body = json.dumps({"pool": "lab", "key": "people", "model": model.linear_model()}).encode()
    replies = list(host.operations.call(ADMIN, "predict", body))
    assert len(replies) > 1
    assert max(map(len, replies)) < 20_000
    found = [json.loads(reply) for reply in replies]
    assert [name for reply in found for name in reply["ids"]] == ids
    values = np.concatenate([decode_vector(reply["values"], "values") for reply in found])
    np.testing.assert_allclose(values, 3.0 * np.arange(200), atol=1e-9)


def test_symbolic_links_are_refused(host: Host, tmp_path: Path) -> None:
    """A pool, a key or a file of a store that is a link is neither listed, opened, replaced nor deleted."""
    pools = host.folder / "pools"
    outside = tmp_path / "outside"
    fo.create_store(str(outside), *small_data()).close()
    os.symlink(outside, pools / "lab" / "link")
    os.symlink(tmp_path, pools / "linked")
    assert [entry["key"] for entry in host.call("list", pool="lab")["keys"]] == ["data"]
    assert [entry["pool"] for entry in host.call("list")["pools"]] == ["lab"]
    for operation in ("info", "delete", "select", "put"):
        body = {**put_plan(replace=True), "request": {"k": 2}, "job": "j"}
        assert "symbolic link" in host.refused(operation, **{**body, "key": "link"})
        assert "symbolic link" in host.refused(operation, **{**body, "pool": "linked", "key": "outside"})
    assert (outside / "matrix.npy").exists()
    os.rename(pools / "lab" / "data" / "matrix.npy", tmp_path / "matrix.npy")
    os.symlink(tmp_path / "matrix.npy", pools / "lab" / "data" / "matrix.npy")
    assert "symbolic link" in host.refused("select", pool="lab", key="data", job="j", request={"k": 2})


def test_roles_and_pools(host: Host) -> None:
    """Each operation needs its role; a principal of some pools sees no other, nor the jobs of others."""
    reader = Caller(Principal("ann", "read", frozenset({"lab"})), "1")
    writer = Caller(Principal("bob", "write", frozenset({"other"})), "1")
    for operation in ("put", "delete", "commit", "abort"):
        assert "needs 'write'" in host.refused(operation, reader, **put_plan())
    assert "needs 'write'" in json.loads(host.operations.write(reader, "u", []))["error"]["message"]
    assert host.call("info", reader, pool="lab", key="data")["n_obs"] == 80
    assert "no access" in host.refused("info", writer, pool="lab", key="data")
    assert "no access" in host.refused("list", writer, pool="lab")
    assert "no access" in host.refused("put", writer, **put_plan())
    assert host.call("list", writer)["pools"] == []
    assert host.call("select", reader, pool="lab", key="data", job="mine", request={"k": 2})["job"] == "mine"
    assert "no job" in host.refused("result", writer, job="mine")
    assert "no job" in host.refused("cancel", writer, job="mine")
    assert host.call("jobs", writer)["jobs"] == []
    assert [job["job"] for job in host.call("jobs", reader)["jobs"]] == ["mine"]
    assert [job["job"] for job in host.call("jobs", pool="lab", key="data")["jobs"]] == ["mine"]
    assert host.call("jobs", key="other")["jobs"] == []
    assert host.call("progress", ADMIN, job="mine", wait=20)["state"] == "done"


def test_admission_names_the_limit(tmp_path: Path) -> None:
    """A job that needs more memory or reads more than allowed is refused before it is queued."""
    running = Host(tmp_path, limits=JobLimits(memory=20_000, work=10**6))
    try:
        (tmp_path / "pools" / "lab").mkdir()
        fo.create_store(str(tmp_path / "pools" / "lab" / "data"), *small_data()).close()
        assert "20000 are allowed" in running.refused("select", pool="lab", key="data", job="j", request={"k": 2})
        light = {"k": 2, "gather_bytes": 1000, "epsilon": 0.5}
        assert running.call("select", pool="lab", key="data", job="j", request=light)["job"] == "j"
        heavy = {**light, "epsilon": 0.01}
        assert "1000000 are allowed" in running.refused("select", pool="lab", key="data", job="h", request=heavy)
    finally:
        running.close()


def test_vectors_must_fit_the_data(host: Host) -> None:
    """A response or weights of another length than the observations are refused before anything is queued or kept."""
    vector = encode_vector(np.ones(79))
    place = {"pool": "lab", "key": "data", "job": "j"}
    assert "79 values for 80" in host.refused("select", **place, y=vector, request={"k": 2})
    assert "79 weights were given for 80" in host.refused("select_many", **place, requests=[{"k": 2}, {"k": 2, "weights": vector}])
    assert os.listdir(host.pools.own_folder / "jobs") == []


def tile(number: int, data: Any, checksum: int, first: int = 0) -> Tile:
    values = np.asarray(data, dtype=np.float32)
    return Tile(number, checksum, 0, first, values.shape[1], values.shape[0], "columns", values.reshape(-1))


def test_an_upload_is_checked_and_goes_on(host: Host) -> None:
    """Damaged, missing and repeated tiles are detected; an upload can be continued; only a correct commit publishes."""
    blocks = [np.arange(4, dtype=np.float32)[None], np.arange(4, 8, dtype=np.float32)[None]]
    sums = [zlib.crc32(blocks[0].tobytes())]
    sums.append(zlib.crc32(blocks[1].tobytes(), sums[0]))

    def write(*tiles: Tile) -> Any:
        return json.loads(host.operations.write(ADMIN, begun["upload"], tiles))

    begun = host.call("put", **put_plan())
    assert (begun["next"], begun["crc"]) == (0, 0)
    assert "was damaged on its way" in write(tile(0, blocks[0], 1))["error"]["message"]
    assert write(tile(0, blocks[0], sums[0])) == {"next": 1, "crc": sums[0]}
    assert "tile 1 was expected" in write(tile(3, blocks[1], sums[1], 1))["error"]["message"]
    again = host.call("put", **put_plan())
    assert again == {"upload": begun["upload"], "next": 1, "crc": sums[0]}
    commit = {"upload": begun["upload"], "targets": {}, "wait": 20}
    assert "have arrived" in host.refused("commit", **commit, tiles=2, crc=sums[1])
    assert "expected 4" in host.refused("commit", **commit, tiles=1, crc=sums[0])
    assert "new" not in [entry["key"] for entry in host.call("list", pool="lab")["keys"]]
    begun = host.call("put", **put_plan())
    assert write(tile(0, blocks[0], sums[0]), tile(1, blocks[1], sums[1], 1)) == {"next": 2, "crc": sums[1]}
    assert write(tile(0, blocks[0], 99)) == {"next": 2, "crc": sums[1]}
    commit["upload"] = begun["upload"]
    done = host.call("commit", **commit, tiles=2, crc=sums[1])
    assert done["state"] == "done"
    assert host.call("commit", **commit, tiles=2, crc=sums[1]) == done
    assert "exists already in the pool" in host.refused("put", **put_plan())
    assert "no such upload" in host.refused("commit", **{**commit, "upload": "other"}, tiles=2, crc=sums[1])
    with host.pools.open("lab", "new") as store:
        assert store.matrix.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def begin_again(host: Host) -> None:
    """Put another server in the place of this one, as if it had been killed: nothing is closed but the lock of the pools."""
    host.pools.close()
    host.pools = Pools(str(host.folder / "pools"))
    for upload in list(host.uploads._staged.values()):
        if upload.builder is not None:
            upload.builder._draft._release()  # what the death of a process does to its descriptors
    host.uploads = Uploads(host.pools, idle_seconds=0.0)
    host.operations = Operations(host.pools, host.uploads, host.jobs, JobLimits())


def test_an_upload_survives_its_server(host: Host) -> None:
    """The next server keeps the tiles up to the first damaged one, in any layout; a published upload is not begun again."""
    values = np.arange(40, dtype=np.float32).reshape(4, 10)  # observations by columns
    plan = put_plan(features={"numbered": 10, "prefix": "f"}, missing="mean")
    values[2, 7] = np.nan
    tiles, checksum = [], 0
    for number, (first, last, layout) in enumerate([(0, 3, "columns"), (3, 6, "rows"), (6, 8, "columns"), (8, 10, "columns")]):
        piece = values[:, first:last]
        data = np.ascontiguousarray(piece.T if layout == "columns" else piece).reshape(-1)
        checksum = zlib.crc32(data.tobytes(), checksum)
        tiles.append(Tile(number, checksum, 0, first, 4, last - first, layout, data))  # type: ignore[arg-type]

    def write(*sent: Tile) -> Any:
        return json.loads(host.operations.write(ADMIN, begun["upload"], sent))

    begun = host.call("put", **plan)
    assert write(*tiles[:3])["next"] == 3
    begin_again(host)
    assert "restarted" in write(tiles[3])["error"]["message"]
    assert "restarted" in host.refused("commit", upload=begun["upload"], tiles=3, crc=tiles[2].checksum)
    assert host.call("put", **plan) == {"upload": begun["upload"], "next": 3, "crc": tiles[2].checksum}
    (staged,) = (host.folder / "pools" / "lab").glob(".new.partial-*")
    begin_again(host)
    matrix = np.load(staged / "matrix.npy", mmap_mode="r+")
    matrix[6, 1] += 1
    matrix.flush()
    with (host.pools.own_folder / "uploads" / f"{begun['upload']}.tiles").open("ab") as log:
        log.write(b"[12, 0, 8, 4, 2")  # torn
    assert host.call("put", **plan) == {"upload": begun["upload"], "next": 2, "crc": tiles[1].checksum}
    assert write(*tiles[2:])["next"] == 4
    commit = {"upload": begun["upload"], "tiles": 4, "crc": checksum, "targets": {}, "wait": 20}
    done = host.call("commit", **commit)
    assert done["report"]["imputed"] == {"f7": 1}
    begin_again(host)
    assert host.call("commit", **commit) == done, "a reply that was lost with its server is given again"
    with host.pools.open("lab", "new") as store:
        filled = np.where(np.isnan(values), np.nanmean(values[:, 7]), values)
        assert store.matrix.T.tolist() == filled.tolist()
    host.call("delete", pool="lab", key="new")
    begin_again(host)
    assert "no such upload" in host.refused("commit", **commit)
    assert os.listdir(host.pools.own_folder / "uploads") == []


def test_an_upload_left_by_a_server_is_reaped(host: Host) -> None:
    """An upload that no client continues after a restart is removed with its records; so is one that cannot be continued."""
    lab = host.folder / "pools" / "lab"
    host.call("put", **put_plan())
    begin_again(host)
    assert list(lab.glob(".new.partial-*"))
    assert host.uploads.reap() == 1
    begun = host.call("put", **put_plan())
    begin_again(host)
    (staged,) = lab.glob(".new.partial-*")
    os.truncate(staged / "matrix.npy", 5000)
    fresh = host.call("put", **put_plan())
    assert fresh["upload"] != begun["upload"]
    assert [path.name for path in lab.glob(".new.partial-*")] != [staged.name]
    assert host.call("abort", upload=fresh["upload"]) == {}
    assert os.listdir(lab) == ["data"]
    assert os.listdir(host.pools.own_folder / "uploads") == []


def test_quota_counts_what_is_staged_until_it_is_reaped(tmp_path: Path) -> None:
    """An upload takes its room at once, a second one does not fit, reaping and giving up make room again."""
    running = Host(tmp_path, quota=100_000)
    try:
        big = {"n_obs": 1000, "features": {"numbered": 20, "prefix": "f"}}
        running.call("put", **put_plan(**big))
        assert running.call("list")["pools"][0]["bytes"] >= 80_000
        assert "at most 100000" in running.refused("put", **put_plan(**big, key="second"))
        assert running.uploads.reap() == 1
        assert running.call("list")["pools"][0]["bytes"] == 0
        begun = running.call("put", **put_plan(**big, key="second"))
        assert running.call("abort", upload=begun["upload"]) == {}
        assert os.listdir(tmp_path / "pools" / "lab") == []
        vast = put_plan(n_obs=2**39, features={"numbered": 2**20, "prefix": "f"})
        assert "do not fit" in running.refused("put", **vast)
    finally:
        running.close()


def test_delete_waits_for_jobs_and_replace_does_not_disturb_them(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is not deleted while a job needs it; a job queued before a replacement fails rather than answer about other data."""
    monkeypatch.setattr(host.jobs._schedule, "next_jobs", lambda jobs: [])
    host.call("select", pool="lab", key="data", job="j", request={"k": 2})
    assert "1 jobs on lab/data are not finished" in host.refused("delete", pool="lab", key="data")
    fo.create_store(str(host.folder / "pools" / "lab" / "data"), *small_data(1), replace=True).close()
    monkeypatch.undo()
    host.call("select", pool="lab", key="data", job="after", request={"k": 2})
    assert host.call("progress", job="after", wait=20)["state"] == "done"
    assert "was replaced after" in host.refused("result", job="j")
    assert host.call("delete", pool="lab", key="data") == {}
    missing = host.refused("info", pool="lab", key="data")
    assert "no key 'data'" in missing
    assert "'fastomp list URL' shows its keys" in missing
    assert os.listdir(host.folder / "pools" / "lab") == []


def test_two_servers_cannot_have_the_same_pools(host: Host) -> None:
    """The pools of a living server are refused to another; unfinished builds of a dead server are removed."""
    with pytest.raises(fo.ServerError, match="another server"):
        Pools(str(host.folder / "pools"))
    dead = host.folder / "pools" / "lab" / ".x.partial-4194305-aa"
    dead.mkdir()
    host.close()
    again = Pools(str(host.folder / "pools"))
    Uploads(again)
    assert not dead.exists()
    again.close()
    host.pools = again  # closed twice below is what the fixture would do
    host.pools.close = lambda: None  # type: ignore[method-assign]


def test_only_so_many_calls_wait(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many calls that want to wait for news so many do, each of which has a thread; one more is answered at once."""
    monkeypatch.setattr("ado_plugin.service.operations._MOST_WAITING", 3)
    monkeypatch.setattr("ado_plugin.service.operations._LONGEST_WAIT", 600.0)
    monkeypatch.setattr(host.jobs._schedule, "next_jobs", lambda jobs: [])
    version = host.call("select", pool="lab", key="data", job="j", request={"k": 2})["version"]
    poll = {"job": "j", "since": version, "wait": 600}
    waiting = [threading.Thread(target=host.call, args=("progress",), kwargs=poll) for _ in range(3)]
    for thread in waiting:
        thread.start()
    while host.operations._waiters < 3:
        time.sleep(0.01)
    assert host.call("progress", **poll)["state"] == "queued"
    assert all(thread.is_alive() for thread in waiting)
    host.call("cancel", job="j")
    for thread in waiting:
        thread.join(60)
    assert host.operations._waiters == 0


def test_a_client_says_how_long_a_put_may_wait(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """While tiles of an earlier server are checked, begin answers within the client's time limit; the upload continues."""
    begun = host.call("put", **put_plan())
    begin_again(host)
    checking = threading.Event()
    original = host.uploads._build
    monkeypatch.setattr(host.uploads, "_build", lambda *words: (checking.wait(60), original(*words))[1])
    assert host.call("put", **put_plan(), wait=0.01)["checking"]
    checking.set()
    assert host.call("put", **put_plan(), wait=20) == {"upload": begun["upload"], "next": 0, "crc": 0}
    assert host.call("abort", upload=begun["upload"]) == {}


def test_closing_does_not_wait_for_ever(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload that is being checked when the server stops is left as it is."""
    host.call("put", **put_plan())
    begin_again(host)
    checking = threading.Event()
    original = host.uploads._build
    monkeypatch.setattr(host.uploads, "_build", lambda *words: (checking.wait(60), original(*words))[1])
    host.call("put", **put_plan(), wait=0.01)
    host.uploads.close(0.01)
    assert host.uploads.staged == 1
    checking.set()


def test_what_is_refused_leaves_no_pool(tmp_path: Path) -> None:
    """A put into a pool that does not exist makes it only when it is begun."""
    running = Host(tmp_path, quota=1000)
    try:
        assert "do not fit" in running.refused("put", **put_plan(n_obs=10_000))
        running.refused("put", **put_plan(dtype="float8"))
        assert running.call("list")["pools"] == []
        running.call("put", **put_plan())
        assert [entry["pool"] for entry in running.call("list")["pools"]] == ["lab"]
    finally:
        running.close()


def test_an_epsilon_without_an_inverse_is_a_sentence(host: Host) -> None:
    """Numbers so small that their inverse overflows are refused as a parameter, not met as a failure of the server."""
    for epsilon in (5e-324, 1e-300, 1e-7, 0.0):
        assert "at least 1e-06" in host.refused("select", pool="lab", key="data", job="j", request={"k": 2, "epsilon": epsilon})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
plausible = st.fixed_dictionaries(
    {},
    optional={
        "pool": st.sampled_from(["lab", "none"]) | json_values,
        "key": st.sampled_from(["data", "none"]) | json_values,
        "job": st.sampled_from(["a", "b"]) | json_values,
        "request": st.dictionaries(st.sampled_from([*fo.SelectionRequest.__dataclass_fields__, "other"]), json_values, max_size=3)
        | json_values,
        "requests": st.lists(
            st.dictionaries(st.sampled_from(["k", "tau", "weights", "constraint"]), json_values, max_size=2), max_size=3
        ),
        "y": json_values | st.fixed_dictionaries({"dtype": st.sampled_from(["<f8", "<i4", "|O"]), "base64": st.text(max_size=12)}),
        "verify": json_values,
        "wait": st.sampled_from([0, 0.01, -1, "x", None]),
        "since": json_values,
        "upload": json_values,
        "tiles": json_values,
        "crc": json_values,
        "targets": st.dictionaries(st.text(max_size=3), json_values, max_size=2) | json_values,
        "provenance": json_values,
        "n_obs": st.integers(-2, 50) | json_values,
        "features": st.lists(st.text(max_size=3), max_size=4) | json_values,
        "columns": json_values,
        "widths": st.lists(st.integers(-1, 4), max_size=4) | json_values,
        "dtype": st.sampled_from(["float32", "float64", "object"]) | json_values,
        "missing": st.sampled_from(["error", "mean"]) | json_values,
        "tier": st.sampled_from(["int8", "none"]) | json_values,
        "replace": st.booleans() | json_values,
        "name": json_values,
        "kind": st.sampled_from(["grid", "cv", "stability", "path", "verify", "proof"]) | json_values,
        "options": st.fixed_dictionaries(
            {},
            optional={
                "over": st.dictionaries(st.sampled_from(["k", "tau", "lambda", "weights", "constraint"]), json_values, max_size=2),
                **dict.fromkeys(("folds", "ks", "k_max", "rule", "subsamples", "fraction", "threshold", "claim"), json_values),
            },
        )
        | st.sampled_from([{}, {"over": {"k": [1, 2]}}, {"ks": [1], "k_max": None, "folds": 3, "rule": "best"}])
        | json_values,
        "constraint": json_values,
        "samples": json_values,
        "indices": json_values,
        "objective": json_values,
    },
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("fuzzed")
    running = Host(folder, quota=10**6)
    (folder / "pools" / "lab").mkdir()
    fo.create_store(str(folder / "pools" / "lab" / "data"), *small_data(), tier="none").close()
    yield running
    running.close()
    unforeseen = [job.error for job in running.jobs._jobs.values() if job.error and "its log" in job.error["message"]]
    assert not unforeseen, "a job that was let in failed in a way nobody had foreseen"


@pytest.mark.parametrize("operation", [*OPERATIONS, "unknown"])
@settings(max_examples=20)
@given(body=plausible)
def test_malformed_requests_get_clean_errors(fuzzed: Host, operation: str, body: Any) -> None:
    """Whatever JSON an operation is given, the reply is JSON, an error is one of this project in one line; nothing is raised."""
    for data in fuzzed.operations.call(ADMIN, operation, json.dumps(body).encode()):
        reply = json.loads(data)
        if "error" in reply and reply["error"] and set(reply) == {"error"}:
            assert reply["error"]["kind"] in errors.__all__
            assert "\n" not in reply["error"]["message"]
            assert "its log" not in reply["error"]["message"], "the server met something it had not foreseen"
    if operation == "delete":
        folder = fuzzed.folder / "pools" / "lab"
        if not (folder / "data").exists():
            fo.create_store(str(folder / "data"), *small_data(), tier="none").close()


header_values = st.sampled_from([0, 1, 4, -1, 2**39, 2**41, True, None, "columns", "rows", "<f4", "<f8", "|O"]) | json_values


@settings(max_examples=60)
@given(
    header=st.fixed_dictionaries({}, optional=dict.fromkeys((*Tile.NUMBERS, "layout", "dtype"), header_values)) | json_values,
    lucky=st.booleans(),
    values=st.sampled_from(
        [pa.array(np.zeros(16, np.uint8)), pa.array([1, None], pa.uint8()), pa.array(["text"]), pa.array([1.5])]
    ),
)
def test_malformed_tiles_get_clean_errors(fuzzed: Host, header: Any, lucky: bool, values: Any) -> None:
    """Whatever a batch of an upload holds and says of itself, it is taken or refused in one line, and nothing fails inside."""
    if lucky and isinstance(header, dict):
        good = {"number": 0, "crc": 0, "first_obs": 0, "first_column": 0, "rows": 4, "columns": 1, "layout": "rows", "dtype": "<f4"}
        header = {**good, **dict(list(header.items())[:2])}
    upload = fuzzed.call("put", **put_plan(key="tiles"))["upload"]
    chunk = types.SimpleNamespace(
        app_metadata=pa.py_buffer(json.dumps(header).encode()), data=pa.RecordBatch.from_arrays([values], ["bytes"])
    )
    reply = json.loads(fuzzed.operations.write(ADMIN, upload, (_tile(each) for each in [chunk])))
    if "error" in reply:
        assert reply["error"]["kind"] in errors.__all__
        assert "\n" not in reply["error"]["message"]
        assert "its log" not in reply["error"]["message"], "the server met something it had not foreseen"


@settings(max_examples=100)
@given(data=st.binary(max_size=200) | st.sampled_from([b"", b"[]", b"NaN", b'{"k": 1e999}', b"[" * 5000, b'{"a": Infinity}']))
def test_bytes_that_are_no_request(fuzzed: Host, data: bytes) -> None:
    """Bytes that are not a JSON object are refused in one sentence."""
    (reply,) = [json.loads(reply) for reply in fuzzed.operations.call(ADMIN, "info", data)]
    assert reply["error"]["kind"] in errors.__all__


def test_token_files(tmp_path: Path) -> None:
    """One token or a list of digests is read; anything else, and a file that others can read, is refused with the reason."""
    import hashlib

    path = tmp_path / "tokens"

    def write(text: str, mode: int = 0o600) -> Path:
        path.write_text(text)
        path.chmod(mode)
        return path

    access = Access(write("correct-horse-battery-staple\n"))
    assert access.authenticate("correct-horse-battery-staple") == Principal("admin", "admin")
    assert access.authenticate("wrong") is None
    assert access.authenticate("") is None
    digest = hashlib.sha256(b"secret").hexdigest()
    access = Access(
        write(f"- {{name: ann, sha256: '{digest}', role: read, pools: [lab]}}\n- {{name: bob, sha256: '{'0' * 64}', role: admin}}")
    )
    assert access.authenticate("secret") == Principal("ann", "read", frozenset({"lab"}))
    assert access.authenticate(digest) is None
    for text in (
        "short",
        "two words of length",
        "[]",
        "- {name: a}",
        f"- {{name: a, sha256: '{digest}', role: king}}",
        "- !!python/object:os.x {}",
    ):
        write(text)
        with pytest.raises(fo.InputError):
            access.reload()
        assert access.authenticate("secret") is not None, "a file that cannot be used changes nothing"
    with pytest.raises(fo.InputError, match="chmod 600"):
        Access(write("correct-horse-battery-staple", 0o644))
    assert Access().authenticate("anything") is None


def test_long_answers_come_in_several_replies(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The selections of a large result are divided among replies, in order, and none is lost."""
    body = {"pool": "lab", "key": "data", "job": "many", "kind": "grid", "options": {"over": {"k": [1, 2, 3, 4, 5]}}}
    assert host.call("analyse", **body, request={"objective": "linear"})["kind"] == "grid"
    while host.call("progress", job="many", wait=5.0)["state"] not in ("done", "failed"):
        pass
    (whole,) = [json.loads(reply) for reply in host.operations.call(ADMIN, "result", b'{"job": "many"}')]
    monkeypatch.setattr(operations, "MESSAGE_BYTES", 8000)
    replies = [json.loads(reply) for reply in host.operations.call(ADMIN, "result", b'{"job": "many"}')]
    assert len(replies) > 2
    assert all(reply["kind"] == "grid" for reply in replies)
    assert [answer for reply in replies for answer in reply["answers"]] == whole["answers"]


def test_a_constraint_check_ends_at_the_deadline(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples without end are refused once the time of a request is over."""
    monkeypatch.setattr(operations, "REQUEST_SECONDS", 0.05)
    said = host.refused("check_constraint", pool="lab", key="data", constraint={"cardinality": 40}, samples=2**31 - 1)
    assert "the request takes longer than 0.05 s" in said


def test_the_memory_of_an_analysis_is_bounded(tmp_path: Path) -> None:
    """Columns that many runs gather share a part of the limit, a budget of the request is kept, and what needs more is refused."""
    X, y = small_data(n_obs=400, n_features=20_000)
    with fo.create_store("dram:bounded", X, y, tier="none") as store:
        options = {"subsamples": 100, "fraction": 0.5, "threshold": 0.6}
        limits = JobLimits(memory=8 << 30)
        sent, memory, work = needs.needs_of_analysis("stability", {"objective": "linear", "k": 5}, options, None, store, limits)
        assert sent["gather_bytes"] == limits.memory // 4 // 100
        assert memory < limits.memory
        assert work < 20 * store.matrix.nbytes, "sweeps are shared"
        own = {"objective": "linear", "k": 5, "gather_bytes": 1 << 30}
        assert needs.needs_of_analysis("stability", own, options, None, store, limits)[:1] == (own,)
        weights = {"weights": encode_vector(np.ones(3))}
        with pytest.raises(fo.RequestError, match="3 weights were given for 400 observations"):
            needs.needs_of_analysis("path", {"k": 2, **weights}, {}, None, store, limits)
    with fo.create_store("dram:tall", *small_data(n_obs=60_000, n_features=80), tier="none") as store:
        request = {"objective": "linear"}
        crossed = {"ks": list(range(1, 21)), "k_max": None, "folds": 5, "rule": "best"}
        _, tall, _ = needs.needs_of_analysis("cv", request, crossed, None, store, limits)
        _, rows, _ = needs.needs_of_analysis("cv", {**request, "gram": "never"}, crossed, None, store, limits)
        assert tall < rows, "the runs work on as many rows as there are columns"


def test_columns_leave_in_parts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of ``extract`` carries a few columns, however long, in replies below the limit; together they are all of them."""
    monkeypatch.setattr(operations, "_REPLY_BYTES", 1000)
    asked = {"pool": "lab", "key": "data", "indices": [5, 2, 40, 7], "objective": "linear"}
    body = {**asked, "target": None}
    head, *parts = [json.loads(reply) for reply in host.operations.call(ADMIN, "extract", json.dumps(body).encode())]
    X, y = small_data()
    assert head["names"] == ["f5", "f2", "f40", "f7"]
    np.testing.assert_allclose(np.concatenate([decode_vector(part["target"], "y") for part in parts]), y)
    values, first = [], 0
    while first < 4:
        sent = json.dumps({**body, "first": first}).encode()
        replies = list(host.operations.call(ADMIN, "extract", sent))
        assert max(map(len, replies)) < 2000
        values += [decode_vector(json.loads(reply)["values"], "values") for reply in replies]
        assert json.loads(replies[-1])["next"] > first
        first = json.loads(replies[-1])["next"]
    assert np.array_equal(np.concatenate(values).reshape(4, 80).T, X[:, [5, 2, 40, 7]].astype(np.float32))
    assert "first is 'one'" in host.refused("extract", **body, first="one")


def test_an_analysis_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """The time limit of a job ends a grid, and a verification, between two steps."""
    host = Host(tmp_path, limits=JobLimits(seconds=-1.0))
    try:
        (tmp_path / "pools" / "lab").mkdir()
        fo.create_store(str(tmp_path / "pools" / "lab" / "data"), *small_data()).close()
        for kind, options in (("grid", {"over": {"k": [2, 3]}}), ("verify", {})):
            host.call("analyse", pool="lab", key="data", job=kind, kind=kind, options=options, request={})
            while host.call("progress", job=kind, wait=5.0)["state"] not in ("done", "failed"):
                pass
            assert "the job has used more than -1 s, the most one may" in host.refused("result", job=kind)
    finally:
        host.close()
