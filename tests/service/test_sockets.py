"""The server as the network sees it: strangers, garbage, floods and stalled clients get errors, and everybody else is served."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import fastomp_nvm as fo
from ado_plugin.service.operations import REFUSALS
from fastomp_nvm.cli.main import main
from fastomp_nvm.limits import MESSAGE_BYTES
from tests.service.running import ROOT, RunningServer, small_data


@pytest.fixture(scope="module")
def store(server: RunningServer) -> str:
    """Upload the small data, and select once: what is used first starts threads, one for each processor, and keeps them."""
    X, y = small_data()
    with server.connect("/lab/sockets") as client:
        client.put(X, y, replace=True)
        client.select(k=2)
    return "/lab/sockets"


@pytest.fixture
def raw(server: RunningServer) -> Iterator[tuple[flight.FlightClient, flight.FlightCallOptions]]:
    """Return a bare Flight client and options with a valid token."""
    options = flight.FlightCallOptions(timeout=20, headers=[(b"authorization", b"Bearer " + server.token().encode())])
    with flight.connect(server.url) as client:
        yield client, options


def test_local_clients_find_the_token_by_themselves(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same FASTOMP_HOME no token is needed; the token file is private; without it the call is refused."""
    monkeypatch.setenv("FASTOMP_HOME", str(server.home))
    with fo.connect(server.url) as client:
        assert client.ping()["role"] == "admin"
    path = server.home / "tokens" / f"loopback-{server.port}"
    assert os.stat(path).st_mode & 0o777 == 0o600
    monkeypatch.setenv("FASTOMP_HOME", str(server.folder / "nobody"))
    for token in (None, "wrong", "Bearer x"):
        with fo.connect(server.url, token=token) as client, pytest.raises(fo.ServerError, match="refuses the token"):
            client.ping()


def test_no_code_path_hands_out_data(raw: Any, store: str) -> None:
    """Flight's ways of fetching data are refused in one sentence without a traceback."""
    client, options = raw
    descriptor = flight.FlightDescriptor.for_path("lab", "sockets")
    for call in (
        lambda: client.do_get(flight.Ticket(b"lab/sockets"), options).read_all(),
        lambda: client.get_flight_info(descriptor, options),
        lambda: list(client.list_flights(b"", options)),
    ):
        with pytest.raises(flight.FlightServerError) as caught:
            call()
        assert "Traceback" not in str(caught.value)
    assert len(client.get_schema(descriptor, options).schema) == 0
    assert {action.type for action in client.list_actions(options)} >= {"select", "put", "list"}


def test_oversized_and_foreign_messages(raw: Any, server: RunningServer, store: str) -> None:
    """A message beyond the limit, bytes that are no JSON and an unknown operation are refused; the server keeps serving."""
    client, options = raw
    with pytest.raises(flight.FlightServerError, match="at most"):
        list(client.do_action(flight.Action("info", bytes(MESSAGE_BYTES + 1)), options))
    for operation, body in (("info", b"\xff\xfe"), ("no-such-operation", b"{}"), ("select", b"[1, 2]")):
        replies = [
            json.loads(result.body.to_pybytes())
            for result in client.do_action(flight.Action(operation, body), options)
            if result.body.size
        ]
        assert set(replies[-1]) == {"error"}
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 40, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b""):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(garbage)
            connection.settimeout(0.2)
            with contextlib.suppress(OSError):
                connection.recv(1000)
    with server.connect(store) as ours:
        assert len(ours.select(k=2).features) == 2


def test_deep_requests(raw: Any, server: RunningServer, store: str) -> None:
    """A constraint or a message nested 25,000 levels deep is refused in one sentence; the server answers the next request."""
    client, options = raw
    with server.connect(store) as ours:
        for constraint in ("[" * 25_000, "- " * 25_000):
            with pytest.raises(fo.ConstraintError, match="nested more than"):
                ours.select(k=2, constraint=constraint)
        body = b'{"pool": "lab", "key": "sockets", "requests": [{"k": 2, "constraint": ' + b'{"all": [' * 25_000
        replies = [result.body.to_pybytes() for result in client.do_action(flight.Action("select", body), options)]
        (reply,) = [json.loads(reply) for reply in replies if reply]
        assert (reply["error"]["kind"], "nested too deeply" in reply["error"]["message"]) == ("RequestError", True)
        assert len(ours.select(k=2).features) == 2


def test_tiles_that_lie_about_themselves(raw: Any, server: RunningServer) -> None:
    """Batches of another shape, size, type or description than declared are refused, and the pool stays as it was."""
    client, options = raw
    plan = {
        "pool": "lab",
        "key": "liar",
        "n_obs": 4,
        "features": ["a"],
        "dtype": "float32",
        "missing": "error",
        "tier": "none",
        "replace": True,
    }
    with server.connect() as ours:
        upload = ours.call("put", plan)["upload"]
    good = {"number": 0, "crc": 0, "first_obs": 0, "first_column": 0, "rows": 4, "columns": 1, "layout": "columns", "dtype": "<f4"}
    values = pa.array(np.zeros(16, dtype=np.uint8))
    cases = [
        (values, {**good, "rows": 5}),
        (values, {**good, "dtype": "|O"}),
        (values, {**good, "layout": "diagonal"}),
        (values, {**good, "number": -1}),
        (values, {**good, "first_column": 7, "crc": 3968772205}),
        (values, {**good, "rows": 2**39}),
        (values, {name: good[name] for name in ("number", "crc")}),
        (pa.array(["text"]), good),
        (values, None),
    ]
    for array, header in cases:
        batch = pa.RecordBatch.from_arrays([array], ["bytes"])
        writer, reader = client.do_put(
            flight.FlightDescriptor.for_command(json.dumps({"upload": upload}).encode()), batch.schema, options
        )
        if header is None:
            writer.write_batch(batch)
        else:
            writer.write_with_metadata(batch, json.dumps(header).encode())
        writer.done_writing()
        reply = json.loads(reader.read().to_pybytes())
        writer.close()
        assert set(reply) == {"error"}, header
        if "begin again" in reply["error"]["message"] or "leaves the table" in reply["error"]["message"]:
            with server.connect() as ours:
                upload = ours.call("put", plan)["upload"]
    with server.connect("/lab") as ours:
        assert "liar" not in [entry["key"] for entry in ours.list()]


CLIENTS = """
import json, sys, threading
import fastomp_nvm as fo
url, token, expected = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
failures = []
ready = threading.Barrier(100)

def work(number):
    try:
        with fo.connect(url, token=token, timeout=60) as client:
            client.ping()
            ready.wait(60)
            found = client.select(k=3, seed=number % 5, tau=0.9).to_json()
            if {**found, "seconds": 0, "choices": 0} != {**expected[number % 5], "seconds": 0, "choices": 0}:
                failures.append(f"{number}: another answer")
    except Exception as error:
        failures.append(f"{number}: {error!r}")

threads = [threading.Thread(target=work, args=(number,)) for number in range(100)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(failures))
"""


def threads_of(server: RunningServer) -> int:
    """Return how many threads a server has."""
    return int((Path("/proc") / str(server.process.pid) / "status").read_text().split("Threads:")[1].split()[0])


def test_two_hundred_clients_at_once(server: RunningServer, store: str) -> None:
    """Two hundred clients in two processes each get their own right answer, and the server's threads are gone afterwards."""
    before = threads_of(server)
    expected = [fo.select(f"pmem://{server.pools}/lab/sockets", k=3, seed=seed, tau=0.9).to_json() for seed in range(5)]
    words = [sys.executable, "-c", CLIENTS, f"{server.url}{store}", server.token(), json.dumps(expected)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    clients = [subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(2)]
    try:
        assert [json.loads(client.communicate()[0]) for client in clients] == [[], []]
    finally:
        for client in clients:
            client.kill()
            client.wait()
    while threads_of(server) >= before + 100:
        time.sleep(0.05)


def test_clients_that_stall_do_not_stop_others(server: RunningServer, raw: Any, store: str) -> None:
    """With uploads, calls and connections that fall silent half way everybody else is served; one principal holds so many only."""
    before = threads_of(server)
    client, options = raw
    plan = {"pool": "lab", "key": "silent", "n_obs": 4, "features": ["a"]}
    plan |= {"dtype": "float32", "missing": "error", "tier": "none", "replace": True}
    with contextlib.ExitStack() as silent, server.connect(store) as ours:
        for length in range(20):
            connection = silent.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[: 4 + length])
        command = json.dumps({"upload": ours.call("put", plan)["upload"]}).encode()
        schema = pa.schema([("bytes", pa.uint8())])
        patient = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + server.token().encode())])
        stalled = [client.do_put(flight.FlightDescriptor.for_command(command), schema, patient) for _ in range(64)]
        while threads_of(server) < before + 64:
            time.sleep(0.05)
        assert len(ours.select(k=2).features) == 2
        writer, reader = client.do_put(flight.FlightDescriptor.for_command(command), schema, options)
        assert reader.read() is None
        with pytest.raises(flight.FlightServerError, match="64 upload streams"):
            writer.close()
        with pytest.raises(fo.ServerError, match="64 upload streams"):
            ours.put(*small_data(), key="lab/refused")
        for writer, _ in stalled:
            writer.close()
        ours.put(*small_data(), key="lab/afterwards", replace=True)
        ours.delete("lab/afterwards")
    while threads_of(server) >= before + 64:
        time.sleep(0.05)


def test_no_call_waits_as_long_as_its_client(server: RunningServer) -> None:
    """put, commit and progress wait at most half the client's time limit at the server: a slow reply is not taken for none."""
    waits: dict[str, float] = {}
    with server.connect("/lab/waits", timeout=8) as client:
        original = client._transport.call

        def noted(operation: str, body: bytes, timeout: float) -> Iterator[bytes]:
            waits[operation] = json.loads(body).get("wait")
            return original(operation, body, timeout)

        client._transport.call = noted  # type: ignore[method-assign]
        client.put(*small_data(), replace=True)
        client.select(k=2)
        client.delete()
    assert {name: waits[name] for name in ("put", "commit", "progress")} == {"put": 4, "commit": 4, "progress": 4}


def test_submit_detach_fetch_later(server: RunningServer, store: str) -> None:
    """A job continues without its client; another client gets its answer by name, and submitting again changes nothing."""
    with server.connect(store) as client:
        job = client.submit(k=4, run="later.1", seed=9)
    with server.connect() as client:
        (found,) = client.result(job)
        assert client.progress(job)["state"] == "done"
    with server.connect(store) as client:
        assert client.submit(k=4, run="later.1", seed=9) == job
        assert client.select(k=4, run="later.1", seed=9).to_json() == found.to_json()
        with pytest.raises(fo.RequestError, match="exists already"):
            client.submit(k=5, run="later.1")
        with pytest.raises(fo.RequestError, match="no job"):
            client.result("never")


def test_progress_reaches_an_observer(server: RunningServer, store: str) -> None:
    """The observer of a remote selection is called with the same rounds as that of a local one."""
    steps: list[Any] = []
    with server.connect(store) as client:
        client.select(k=6, algorithm="sds_omp", observer=steps.append)
    assert steps
    assert steps[-1].target == 6


def test_metrics_and_health(server: RunningServer, store: str) -> None:
    """The metrics are Prometheus text that counts calls and holds no names; health says ok; other paths do not exist."""
    with server.connect(store) as client:
        client.ping()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    assert 'fastomp_calls_total{operation="ping",outcome="ok"}' in text
    assert "# TYPE fastomp_jobs_active gauge" in text
    assert "lab" not in text
    assert "sockets" not in text
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/health", timeout=10) as reply:
        assert reply.read().startswith(b"ok\n")
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/etc/passwd", timeout=10)


def test_histograms_refusals_and_build(server: RunningServer, store: str) -> None:
    """A selection shows in latency, wait and swept bytes, a refusal under its reason; names of clients are no labels."""
    with server.connect(store) as client:
        client.select(k=3)
        with pytest.raises(fo.FastompError):
            client.select(k=-1)
    with server.connect(store, token="wrong-token-wrong-token") as client, pytest.raises(fo.ServerError):
        client.ping()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=10) as reply:
        lines = dict(line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if not line.startswith("#"))
    call = 'fastomp_call_seconds_{}{{operation="select"{}}}'
    buckets = [float(value) for name, value in lines.items() if name.startswith(call.format("bucket", "")[:-1])]
    assert buckets == sorted(buckets)
    assert buckets[-1] == float(lines[call.format("count", "")]) >= 1
    assert float(lines[call.format("sum", "")]) > 0
    assert float(lines['fastomp_job_wait_seconds_bucket{le="+Inf"}']) == float(lines["fastomp_job_wait_seconds_count"]) >= 1
    assert float(lines["fastomp_swept_bytes_total"]) > 0
    assert float(lines['fastomp_refusals_total{reason="token"}']) >= 1
    reasons = {name for name in lines if name.startswith("fastomp_refusals_total")}
    assert reasons == {f'fastomp_refusals_total{{reason="{reason}"}}' for reason in (*REFUSALS, "token")}
    (build,) = (name for name in lines if name.startswith("fastomp_build_info"))
    assert f'version="{fo.__version__}"' in build
    assert all(f'{label}="' in build for label in ("kernel", "python", "numpy"))


def test_health_tells_of_records_that_cannot_be_written(tmp_path: Path) -> None:
    """While the jobs' folder takes no records a job is refused and /health says why; afterwards both are well by themselves."""
    with RunningServer(tmp_path, "--metrics", "127.0.0.1:0") as running, running.connect("/lab/full") as client:
        url = f"http://127.0.0.1:{running.metrics_port}/health"
        client.put(*small_data())
        (folder,) = (path for path in running.pools.rglob("jobs") if path.is_dir())
        folder.rename(tmp_path / "away")
        with pytest.raises(fo.MediumError):
            client.select(k=2)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url, timeout=10)
        with caught.value as reply:
            assert reply.code == 503
            assert reply.read().startswith(b"job records cannot be written: No such file or directory\n")
        with urllib.request.urlopen(url.replace("/health", "/metrics"), timeout=10) as reply:
            assert b"\nfastomp_healthy 0\n" in reply.read()
        (tmp_path / "away").rename(folder)
        with urllib.request.urlopen(url, timeout=10) as reply:
            assert reply.read().startswith(b"ok\n")
        with urllib.request.urlopen(url.replace("/health", "/metrics"), timeout=10) as reply:
            assert b"\nfastomp_healthy 1\n" in reply.read()
        assert len(client.select(k=2).features) == 2


def test_logs_are_json_without_secrets(server: RunningServer, store: str) -> None:
    """Every line of the log is one JSON object; no token is in it, and control characters of clients are not either."""
    with server.connect() as client, pytest.raises(fo.FastompError):
        client.call("info", {"pool": "lab", "key": "a\x1b[31mred\n"})
    for line in server.log.splitlines():
        entry = json.loads(line)
        assert {"time", "level", "logger", "event"} <= set(entry)
        assert all(character.isprintable() for value in entry.values() if isinstance(value, str) for character in value)
    assert server.token() not in server.log


def test_a_dead_server_is_a_clear_error(tmp_path: Path) -> None:
    """No server at the address, and one that accepts and does not answer, both end in an error, and not in a wait."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port, seconds in ((silent.getsockname()[1], 1.0), (1, 1.0)):
            with (
                fo.connect(f"grpc://127.0.0.1:{port}", token="x" * 20, timeout=seconds) as client,
                pytest.raises(fo.UnreachableError),
            ):
                client.ping()


def test_a_server_that_was_never_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection is tried again for seconds at first contact, and for the whole time limit once the server was heard."""
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("fastomp_nvm.remote.client.time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with fo.connect("grpc://127.0.0.1:1", token="x" * 20, timeout=600) as client:
        for ask in (client.ping, lambda: client.result("any")):
            slept.clear()
            with pytest.raises(fo.UnreachableError, match="refused"):
                ask()
            assert 1 < sum(slept) < 10
        client._answered = True
        slept.clear()
        with pytest.raises(fo.UnreachableError, match="refused"):
            client.ping()
        assert sum(slept) > 500


def test_where_a_token_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is not sent in clear to another machine unless asked for; addresses are checked before anything is sent."""
    monkeypatch.delenv("FASTOMP_TOKEN", raising=False)
    with pytest.raises(fo.InputError, match="in clear"):
        fo.connect("grpc://192.0.2.1:7010", token="secret")
    fo.connect("grpc://192.0.2.1:7010", token="secret", insecure=True).close()
    fo.connect("grpc://192.0.2.1:7010").close()
    monkeypatch.setenv("FASTOMP_TOKEN", "secret")
    with pytest.raises(fo.InputError, match="in clear"):
        fo.connect("grpc://localhost.example.org:7010")
    for url in (
        "grpc://host",
        "grpc://:7010",
        "http://host:1",
        "grpc://h:1/p/k/x",
        "grpc://h:1/../k",
        "grpc://user@h:1",
        "grpc://h:99999",
    ):
        with pytest.raises(fo.InputError):
            fo.connect(url)
    with pytest.raises(fo.StoreURLError, match="is on a server"):
        fo.open_store("grpc://127.0.0.1:7010/p/k")


def test_a_detached_job_is_fetched_later(
    server: RunningServer, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``select --detach`` prints the name of a job, whose answer ``resume`` fetches: the one of a client that waited."""
    monkeypatch.setenv("FASTOMP_HOME", str(server.home))
    assert main(["select", server.url + store, "--k", "4", "--detach", "--json"]) == 0
    job = json.loads(capsys.readouterr().out)["job"]
    assert main(["resume", job, server.url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    with server.connect(store) as client:
        expected = client.select(k=4)
    assert found["features"] == list(expected.features)
    np.testing.assert_array_equal(found["coef"], expected.coef)
    assert main(["select", "somewhere", "--k", "4", "--detach"]) == 2
    assert "leave it out" in capsys.readouterr().err
