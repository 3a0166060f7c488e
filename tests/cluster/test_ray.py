"""Shards as Ray actors: the same answer in processes of their own, whatever is killed, or an end in bounded time."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import fastomp_nvm as fo
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import StoreError, UnreachableError
from fastomp_nvm.runs.drive import list_runs
from fastomp_nvm.stores.contract import FeatureStore
from storage_backends.build.sharding import cut
from tests.cluster.command_line import COMMANDS, said

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or not os.environ.get("FASTOMP_TEST_CLUSTER"),
    reason="these start Ray: make test-cluster installs it and runs them",
)

REQUEST: dict[str, Any] = {"k": 10, "constraint": {"partition": {"groups": {"a": ["f1*"]}, "caps": {"a": 3}}}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def store(place: Path) -> FeatureStore:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((200, 6000)).astype(np.float32)
    y = X[:, 100:140] @ rng.standard_normal(40) + rng.standard_normal(200)
    groups = {f"g{start}": list(range(start, start + 3)) for start in range(0, 90, 3)}
    return fo.create_store(f"mmap://{place}/whole", X, y, groups=groups)


@pytest.fixture(scope="module")
def manifest(place: Path, store: FeatureStore) -> Path:
    return cut(store, f"{place}/cut", 2)


@pytest.fixture(scope="module")
def ray_session(place: Path) -> Iterator[Any]:
    """One Ray for the module, as the commands start it."""
    from storage_backends.ray import shards as ray_cluster
    from storage_backends.ray.session import session

    patch = pytest.MonkeyPatch()
    patch.setattr(ray_cluster, "PULSE_SECONDS", 0.02)
    for name in ("RAY_ADDRESS", "FASTOMP_RAY"):
        patch.delenv(name, raising=False)
    with session("") as running:
        yield running
    patch.undo()


def same(one: fo.Selection, other: fo.Selection) -> None:
    assert one.indices.tolist() == other.indices.tolist()
    assert [part.tobytes() for part in one.coef] == [part.tobytes() for part in other.coef]
    assert one.score == other.score


@pytest.fixture(scope="module")
def uneven(ray_session: Any, store: FeatureStore, place: Path) -> Iterator[FeatureStore]:
    """Three uneven shards in three processes."""
    with fo.open_store(f"cluster://{cut(store, f'{place}/three', [4, 1, 2])}") as opened:
        yield opened


@pytest.mark.parametrize("tier", ["exact", "int8"])
@pytest.mark.parametrize("algorithm", ["fast", "fast_omp", "random", "sds_ma", "sds_omp", "top_k"])
def test_actors_answer_as_the_one_store_does(store: FeatureStore, uneven: FeatureStore, algorithm: str, tier: str) -> None:
    """Every algorithm that takes general constraints, exact and with the tier."""
    found = fo.select(uneven, **REQUEST, algorithm=algorithm, tier=tier)
    same(fo.select(store, **REQUEST, algorithm=algorithm, tier=tier), found)
    assert found.medium == "cluster"
    assert found.bytes_sent > 0 < found.bytes_received


@pytest.mark.parametrize("fields", [{"test_fraction": 0.3}, {"tau": "auto"}, {"standardize": False}], ids=str)
def test_actors_answer_alike_under_other_standardisations(
    store: FeatureStore, uneven: FeatureStore, fields: dict[str, Any]
) -> None:
    """Moments under weights are computed by the actors; several models share a sweep."""
    same(fo.select(store, **REQUEST, **fields), fo.select(uneven, **REQUEST, **fields))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_say_of_actors_what_they_say_of_the_one_store(
    ray_session: Any, store: FeatureStore, manifest: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Grids, folds and subsamples share sweeps over the actors as well, to the same numbers."""
    assert said(COMMANDS[command], f"cluster://{manifest}", capsys) == said(COMMANDS[command], store.url, capsys)


def test_ray_started_here_listens_on_loopback_alone_and_asks_for_a_token(ray_session: Any) -> None:
    """No process of it can be reached from another machine, and none on this one without the token."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    sockets = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker that Ray has just ended
            sockets += [each for each in process.net_connections("inet") if each.status == "LISTEN"]
    assert sockets
    assert {each.laddr.ip for each in sockets} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert os.stat(ray_session._directory).st_mode & 0o077 == 0  # sockets of its object store included
    address = ray_session.ray.get_runtime_context().gcs_address
    code = "import sys; from ray._raylet import GcsClient; print(GcsClient(address=sys.argv[1]).check_alive([], timeout=30))"
    for token, known in ((os.environ["RAY_AUTH_TOKEN"], True), ("f" * 64, False)):
        environment = {**os.environ, "RAY_AUTH_TOKEN": token}
        command = [sys.executable, "-c", code, address]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert (done.returncode == 0) is known
        assert ("AuthenticationError" in done.stderr) is not known


@pytest.mark.crash
def test_a_shard_killed_in_the_middle_of_a_sweep_changes_nothing(
    ray_session: Any, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL of an actor's process while its sweep is half done: Ray restarts it, it sweeps again, the answers are the same."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((2000, 8192)).astype(np.float32)
    with fo.create_store(f"mmap://{place}/long", X, X[:, 0] + X[:, 5000], tier="none") as whole:
        manifest = cut(whole, f"{place}/long-cut", 2)
        requests = [{"k": 3, "algorithm": "sds_omp", "seed": seed, "ridge": 0.1 * seed} for seed in range(256)]
        expected = fo.select_many(whole, requests)
    killed: list[float] = []
    with fo.open_store(f"cluster://{manifest}") as sharded:
        rows: Any = sharded.matrix
        processes = rows.connection.transport.processes()

        def observe(step: Progress) -> None:
            for shard, share in enumerate(step.shards):
                if 0.0 < share < 1.0 and not killed:
                    killed.append(share)
                    os.kill(processes[shard], signal.SIGKILL)

        found = fo.select_many(sharded, requests, observer=observe)
        assert killed, "no sweep was met half done"
        assert rows.connection.transport.processes() != processes
    assert capfd.readouterr().out == ""  # where a result belongs; Ray likes to report there
    for one, other in zip(expected, found, strict=True):
        same(one, other)


def test_a_shard_lost_after_opening_ends_the_run_with_its_name(ray_session: Any, store: FeatureStore, place: Path) -> None:
    """A store that is gone when its actor wants to map it is an error, not a hang."""
    manifest = cut(store, f"{place}/lost", 2)
    with fo.open_store(f"cluster://{manifest}") as sharded:
        shutil.rmtree(manifest.parent / "shard-1")
        with pytest.raises(StoreError, match=r"shard 1 .*missing"):
            fo.select(sharded, **REQUEST)


def test_a_shard_that_no_machine_may_serve_is_an_error(ray_session: Any, store: FeatureStore, place: Path) -> None:
    """Its actor is never placed; the run ends after the timeout, naming shard and resource."""
    manifest = cut(store, f"{place}/pinned-nowhere", 2, pin=True)
    with pytest.raises(UnreachableError, match=r"shard 0 .*no heartbeat for 2 seconds.*resource 'shard-0'"):
        fo.select(f"cluster://{manifest}?timeout=2", **REQUEST)


@pytest.mark.crash
@pytest.mark.slow
def test_a_node_killed_is_replaced_or_ends_the_run_with_a_sentence(store: FeatureStore, manifest: Path, place: Path) -> None:
    """A spare node takes the shard over, to the same answer; without one the run ends in bounded time, naming the shard."""
    namespace = ["unshare", "--net"]
    try:
        subprocess.run([*namespace, "ip", "link", "set", "lo", "up"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this account may not make a network namespace: {error}")
    pinned = cut(store, f"{place}/pinned", 2, pin=True)  # the first shard to the head, the second to the node that is killed
    command = [*namespace, sys.executable, "-m", "tests.cluster.two_nodes", str(manifest), str(pinned)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [len(shards) for shards in found["killed"]] == [1, 1]  # shards that were on the node when it was killed
    assert found["killed"][1] == [1]
    expected = fo.select(store, k=12, algorithm="sds_omp")
    assert found["indices"] == expected.indices.tolist()
    assert found["coef"] == [part.tolist() for part in expected.coef]
    assert "shard 1" in found["error"]
    assert "no heartbeat" in found["error"]
    assert found["seconds"] < 150


@pytest.mark.crash
@pytest.mark.slow
def test_a_driver_killed_is_resumed_to_the_same_answer(
    ray_session: Any, store: FeatureStore, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of ``select --run --ray`` in the middle; ``resume``, with a Ray of its own, ends where the one store does."""
    manifest = cut(store, f"{place}/driven", 2)
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    fastomp = [sys.executable, "-m", "fastomp_nvm"]
    address = ray_session.ray.get_runtime_context().gcs_address
    words = ["select", f"cluster://{manifest}", "--run", "r", "--algorithm", "sds_omp", "--k", "100", "--ray", address]
    driver = subprocess.Popen([*fastomp, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    regions = manifest.parent / "regions"
    deadline = time.monotonic() + 100
    while not any(info.selected >= 5 for info in list_runs()):
        assert driver.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    driver.kill()
    driver.communicate()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    listed = subprocess.run([*fastomp, "runs", "--json"], env=environment, capture_output=True, text=True, check=True)
    (left,) = json.loads(listed.stdout)
    assert left["status"] == "stopped"
    assert 5 <= left["selected"] < 100
    done = subprocess.run([*fastomp, "resume", "r", "--json"], env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert "Ray is started here" in done.stderr
    found, expected = json.loads(done.stdout), fo.select(store, algorithm="sds_omp", k=100)
    assert found["indices"] == expected.indices.tolist()
    assert found["coef"] == expected.to_json()["coef"]
    assert not list(regions.iterdir())


def test_a_cluster_that_is_not_there_is_one_sentence(ray_session: Any, manifest: Path) -> None:
    """``--ray`` to a port where nobody listens does not wait for Ray's own patience, a quarter of an hour, nor show its log."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and never listens
        done = joined(manifest, f"127.0.0.1:{closed.getsockname()[1]}", os.environ)
    assert done.returncode == 1
    assert "no Ray cluster answers" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_wrong_token_is_one_sentence(ray_session: Any, manifest: Path) -> None:
    """A cluster that refuses the token is not reported line by line as often as it refused."""
    address = ray_session.ray.get_runtime_context().gcs_address
    done = joined(manifest, address, {**os.environ, "RAY_AUTH_TOKEN": "f" * 64})
    assert done.returncode == 1
    assert "token" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def joined(manifest: Path, address: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Select with ``--ray``."""
    words = [sys.executable, "-m", "fastomp_nvm", "select", f"cluster://{manifest}", "--k", "3", "--ray", address]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=150)


def test_without_the_extra_one_sentence_says_how_to_get_it(manifest: Path, tmp_path: Path) -> None:
    """``select`` on a cluster names the extra; ``info`` and ``verify`` need no Ray."""
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\", name='ray')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    fastomp = [sys.executable, "-m", "fastomp_nvm"]
    found = subprocess.run(
        [*fastomp, "select", f"cluster://{manifest}", "--k", "3"], env=environment, capture_output=True, text=True
    )
    assert found.returncode == 1
    assert "pip install 'ray>=" in found.stderr
    assert len(found.stderr.splitlines()) == 1
    for command in ("info", "verify"):
        subprocess.run([*fastomp, command, f"cluster://{manifest}"], env=environment, check=True, capture_output=True)
