"""Requests made to exhaust a server: each is refused in one sentence that names a limit, soon, and other clients do not notice."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import flight

import fastomp_nvm as fo
from ado_plugin.service.body import decode_body
from fastomp_nvm import limits
from fastomp_nvm.constraints.written.description import parse_constraint
from fastomp_nvm.selection.codec import encode_message, encode_vector
from tests.harness.frames import PREFACE, FrameFuzzer, recorded
from tests.harness.hostile import Hostility
from tests.service.running import ROOT, RunningServer

#: Names without wildcards for which a pattern has to be compared with every feature.
WIDE = 20_000


@pytest.fixture(scope="module")
def call(server: RunningServer) -> Iterator[Callable[[str, bytes], dict[str, Any]]]:
    """Return a function that sends raw bytes to an operation and returns the last reply; the server holds a wide store."""
    X = np.random.default_rng(0).normal(size=(12, WIDE)).astype(np.float32)
    with server.connect("/hostile/wide") as client:
        client.put(X, X[:, 0].astype(np.float64))
    options = flight.FlightCallOptions(timeout=60, headers=[(b"authorization", b"Bearer " + server.token().encode())])
    with flight.connect(server.url) as raw:

        def send(operation: str, body: bytes) -> dict[str, Any]:
            replies = [result.body.to_pybytes() for result in raw.do_action(flight.Action(operation, body), options)]
            last: dict[str, Any] = json.loads(replies[-1])
            return last

        yield send


def selection(constraint: object, **fields: object) -> bytes:
    """Return the body of a selection under a constraint."""
    request = {"k": 2, "constraint": constraint, **fields}
    return encode_message({"pool": "hostile", "key": "wide", "job": f"job{time.time_ns()}", "request": request})


def partition(patterns: list[str]) -> str:
    """Return a partition with one group of these patterns, as YAML."""
    return json.dumps({"partition": {"groups": {"a": patterns}, "caps": {"a": 1}}})


def described(**fields: object) -> bytes:
    """Return the body of a question about the wide store."""
    return encode_message({"pool": "hostile", "key": "wide", **fields})


def flood(unit: bytes, count: int) -> bytes:
    """Return an object with a list of many small values."""
    return b'{"a": [' + unit * count + b"1]}"


@pytest.mark.parametrize(
    ("operation", "body", "limit"),
    [
        ("ping", lambda: flood(b"[],", 20_000_000), limits.REQUEST_BYTES),
        ("put", lambda: flood(b"[],", 20_000_000), limits.REQUEST_LISTS),
        ("select", lambda: flood(b"1,", 30_000_000), limits.REQUEST_VALUES),
        ("select", lambda: selection(None, exclude=["name"] * 200_000), limits.REQUEST_BYTES),
        ("select", lambda: selection("[" * 25_000), limits.YAML_LEVELS),
        ("select", lambda: selection('{"a": ' * 25_000), limits.YAML_LEVELS),
        ("select", lambda: selection(partition(["[" * 1_100_000])), limits.REQUEST_LISTS),
        ("select", lambda: selection(partition(["*a" * 600_000])), limits.REQUEST_BYTES),
        ("select", lambda: selection(partition(["[" * 100_000])), limits.PATTERN_CHARACTERS),
        ("select", lambda: selection(partition([f"*{number}*?" for number in range(2_000)])), limits.PATTERN_COMPARISONS),
        ("info", lambda: described(names={"pattern": "[" * 9_999}), limits.PATTERN_CHARACTERS),
        ("info", lambda: described(columns="[" * 9_999), limits.PATTERN_CHARACTERS),
    ],
)
def test_what_exceeds_a_limit_is_refused(
    call: Callable[[str, bytes], dict[str, Any]], operation: str, body: Callable[[], bytes], limit: int
) -> None:
    """The refusal is one short sentence that names the limit, and comes before the work."""
    message = call(operation, body())["error"]["message"]
    assert str(limit) in message
    assert len(message) < 400


def test_aliases_are_refused_in_requests_alone(call: Callable[[str, bytes], dict[str, Any]]) -> None:
    """A request may have no YAML alias, whether there is one or 20,000; a user's own description may."""
    for count in (1, 20_000):
        text = "a: &a [x]\nb: [" + ",".join(["*a"] * count) + "]"
        assert "aliases" in call("select", selection(text))["error"]["message"]
    own = "all: [&two {cardinality: 2}, *two]"
    assert parse_constraint(own, ["a", "b", "c"]).rank == 2


def test_long_vectors_do_not_count() -> None:
    """Response and weights may be far longer than the rest of a request, as numbers and as texts."""
    for y in (encode_vector(np.zeros(300_000)), ["label"] * 300_000):
        body = encode_message({"y": y, "requests": [{"k": 2, "weights": encode_vector(np.ones(300_000))}]})
        assert len(body) > 2 * limits.REQUEST_BYTES
        assert decode_body("select", body)["y"] == y
    with pytest.raises(fo.RequestError, match=f"at most {limits.REQUEST_BYTES}"):
        decode_body("select", encode_message({"requests": [{"k": 2, "weights": None, "exclude": ["x" * limits.REQUEST_BYTES]}]}))


def test_work_ends_with_its_client_and_at_its_deadline() -> None:
    """The comparison of patterns with names stops when its client is gone, and when it takes longer than it may."""
    names = [f"feature{number}" for number in range(20_000)]
    document = partition([f"*{number}?" for number in range(500)])
    looks = 0

    def gone() -> bool:
        nonlocal looks
        looks += 1
        return looks > 5

    with limits.limited(1e9, gone), pytest.raises(fo.CancelledError, match="gone"):
        parse_constraint(document, names)
    assert looks == 6
    with limits.limited(0.0, lambda: False), pytest.raises(fo.ServerError, match="longer than 0 s"):
        parse_constraint(document, names)


def test_a_call_hears_that_its_client_is_gone(server: RunningServer, call: Callable[[str, bytes], dict[str, Any]]) -> None:
    """A server stops comparing patterns for a client that left: the log says so."""
    before = server.log.count("the client of the request is gone")
    body = selection(partition([f"*{number}*{number}?" for number in range(900)]))
    options = flight.FlightCallOptions(timeout=1.0, headers=[(b"authorization", b"Bearer " + server.token().encode())])
    with flight.connect(server.url) as raw, pytest.raises(flight.FlightTimedOutError):
        list(raw.do_action(flight.Action("select", body), options))
    end = time.monotonic() + limits.REQUEST_SECONDS
    while server.log.count("the client of the request is gone") == before:
        assert time.monotonic() < end, "the server still works for a client that is gone"
        time.sleep(0.05)


def test_a_sample_of_hostile_requests(tmp_path: Path) -> None:
    """Of a few hundred requests, streams, raw frames, token files and damaged records none ends, delays or fills the server."""
    hostility = Hostility(tmp_path, seed=1, raw=0.5)
    hostility.run(300)
    assert not {name: count for name, count in hostility.findings.items() if count}


def test_raw_frames_are_those_of_a_client(server: RunningServer) -> None:
    """A recorded conversation is made of frames, and a server answers it when it is sent again as it was; a changed one differs."""

    def talk(port: int) -> None:
        with fo.connect(f"grpc://127.0.0.1:{port}", token=server.token()) as client:
            client.ping()

    frames = recorded(server.port, talk)
    assert {frame.kind for frame in frames} >= {0, 1, 4}, "data, headers and settings"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(PREFACE + b"".join(map(bytes, frames)))
        reply = b""
        while b'"name"' not in reply:
            data = connection.recv(1 << 14)
            assert data, reply
            reply += data
    fuzzer = FrameFuzzer(random.Random(0), [frames])
    assert len({fuzzer.message() for _ in range(200)}) > 150


def test_the_limits_are_documented() -> None:
    """SECURITY.md lists every limit with its value."""
    text = Path(ROOT, "SECURITY.md").read_text()
    listed = {name: value.replace(",", "") for name, value in re.findall(r"^\| `([A-Z_]+)` \| ([0-9,.]+)", text, re.MULTILINE)}
    constants = {name: f"{value:.15g}" for name, value in vars(limits).items() if name.isupper()}
    assert listed == constants
