"""Fuzzers of a real server on loopback: requests, YAML, streams, raw HTTP/2 frames, token files, records damaged between two lives.

``python -m tests.harness.hostile [REQUESTS] [SEED] [SHARE]`` (``make hostile``); SHARE of the requests (default .2) are connections
of raw bytes. Counts what must not happen: an end of the server, a reply later than the deadline, a wrong answer to a well-formed
request in between, a failure instead of a refusal, and memory, descriptors or files left behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyarrow import flight

import fastomp_nvm as fo
from ado_plugin.service.operations import OPERATIONS
from fastomp_nvm.limits import REQUEST_SECONDS
from tests.harness.frames import FrameFuzzer, recorded
from tests.service.running import RunningServer, small_data

__all__ = ["Hostility"]

#: Role and pool of each client. The token is the name with -token behind it; ann sends the well-formed requests.
_CLIENTS = {"ann": ("admin", "lab"), "ron": ("read", "lab"), "wim": ("write", "scratch")}
#: Requests between two looks at the health of the server.
_STEP = 50
#: Bytes by which the memory of the server may grow, descriptors by which it may have more, and seconds for connections to end.
_GROWTH, _MORE_DESCRIPTORS, _SETTLE_SECONDS = 300 << 20, 16, 30.0

_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 2**70, "", "lab", "../x", "\x00", "[" * 3000, "*" * 2000),
    *([], {}, [[]], ["a"] * 500),
)
_YAML = (
    "cardinality: 2",
    "partition: {groups: {a: [f1, 'f2*'], b: ['f3?']}, caps: {a: 1, b: 1}}",
    "knapsack: {costs: {'f*': 1.5}, budget: 3}",
    "all: [{cardinality: 3}, {partition: {groups: {a: ['f[1-3]']}, caps: {a: 1}}}]",
    "a: &a [x]\nb: [*a, *a]",
    "- " * 2000,
    "name: 2020-13-45",
    "? [a]\n: 1",
)
_TOKENS = (
    "- {name: 2020-13-45, sha256: x, role: read}",
    f"- {{name: {'9' * 6000}, sha256: x, role: read}}",
    "- {name: !!int '', role: !!bool x}",
    "[" * 4000,
    "short",
    "\x00",
)


class Hostility:
    """A server, its reference answer, and what was found out about it.

    Parameters
    ----------
    folder : Path
    seed : int
    raw : float
        Share of raw connections among the requests.
    """

    def __init__(self, folder: Path, seed: int, raw: float = 0.2) -> None:
        self._raw = raw
        self.findings: Counter[str] = Counter()
        self._draw = random.Random(seed)
        self._tokens = folder / "tokens.yaml"
        self._tokens.touch(0o600)
        self._accepted = "".join(
            f"- {{name: {name}, sha256: '{hashlib.sha256(f'{name}-token'.encode()).hexdigest()}', role: {role}, pools: [{pool}]}}\n"
            for name, (role, pool) in _CLIENTS.items()
        )
        self._tokens.write_text(self._accepted)
        self._server = RunningServer(folder / "server", "--token-file", str(self._tokens), "--upload-idle", "1", "--drain", "1")
        X, y = small_data()
        with self._server.connect("/scratch/data", token="wim-token") as client:
            client.put(X, y)
        with self._connect() as client:
            client.put(X, y)
            self._job = client.submit(k=3)
            (self._answer,) = client.result(self._job)
        self._frames = FrameFuzzer(self._draw, [recorded(self._server.port, talk) for talk in (self._select, self._upload)])

    def run(self, requests: int) -> None:
        """Send hostile requests, with looks at the server in between."""
        with self._server:
            memory = descriptors = 0
            for number in range(requests):
                if number % _STEP == 0:
                    self._look()
                    process = psutil.Process(self._server.process.pid)
                    memory, descriptors = memory or process.memory_info().rss, descriptors or process.num_fds()
                if number % _STEP == _STEP // 2:
                    self._replace_tokens()
                self._send()
                if self._server.process.poll() is not None:
                    self.findings["ends of the server"] += 1
                    self._server.start()
            self._look()
            process, end = psutil.Process(self._server.process.pid), time.monotonic() + _SETTLE_SECONDS
            while process.num_fds() > descriptors + _MORE_DESCRIPTORS and time.monotonic() < end:
                time.sleep(0.1)
            self.findings["descriptors"] += process.num_fds() > descriptors + _MORE_DESCRIPTORS
            self.findings["memory"] += process.memory_info().rss > memory + _GROWTH
            self._damage_records()
            time.sleep(2.5)  # uploads that nobody continues are removed
            self.findings["files"] += len(list(self._server.pools.glob("[!.]*/.*")))
            self.findings["failures"] += self._server.log.count('"event": "failed"')

    def _connect(self) -> fo.Client:
        return self._server.connect("/lab/data", token="ann-token")

    def _select(self, port: int) -> None:
        """Have a well-behaved client ask for several things."""
        with fo.connect(f"grpc://127.0.0.1:{port}/scratch/data", token="wim-token") as client:
            client.ping()
            client.info()
            client.select(k=2)

    def _upload(self, port: int) -> None:
        """Have a well-behaved client send a store."""
        with fo.connect(f"grpc://127.0.0.1:{port}/scratch/sent", token="wim-token") as client:
            client.put(*small_data())

    def _look(self) -> None:
        """Compare the answer of a well-formed request with the reference."""
        try:
            with self._connect() as client:
                found = client.select(k=3)
            self.findings["wrong answers"] += list(found.indices) != list(self._answer.indices)
        except fo.FastompError as error:
            print(f"a well-formed request is refused: {error}", file=sys.stderr)
            self.findings["wrong answers"] += 1

    def _send(self) -> None:
        """Send one hostile request, stream or connection; time its reply."""
        if self._draw.random() < self._raw:
            return self._frames.send(self._server.port)
        name = self._draw.choice(["ron", "wim"])
        headers = [(b"authorization", f"Bearer {name}-token".encode())]
        options = flight.FlightCallOptions(timeout=2 * REQUEST_SECONDS, headers=headers)
        began = time.monotonic()
        with flight.connect(self._server.url) as raw, contextlib.suppress(pa.ArrowException, OSError):
            if self._draw.random() < 0.1:
                self._stream(raw, options)
            else:
                list(raw.do_action(flight.Action(self._draw.choice(list(OPERATIONS)), self._body(_CLIENTS[name][1])), options))
        if time.monotonic() - began > REQUEST_SECONDS + 5:
            self.findings["late replies"] += 1

    def _body(self, pool: str) -> bytes:
        """Return a body: a valid one with a field or some bytes changed."""
        request = {"k": 2, "constraint": self._yaml(), "exclude": ["f1"], "epsilon": 0.1}
        name = f"job{self._draw.randrange(20)}"
        body: dict[str, Any] = {"pool": pool, "key": "data", "job": name, "request": request, "upload": "x", "wait": 0}
        for _ in range(self._draw.choice([0, 1, 2])):
            place = self._draw.choice([body, request])
            place[self._draw.choice([*place, "y", "weights", "names", "columns", "model", "requests"])] = self._draw.choice(_VALUES)
        data = bytearray(json.dumps(body).encode())
        if self._draw.random() < 0.2:
            data[self._draw.randrange(len(data))] = self._draw.randrange(256)
        if self._draw.random() < 0.02:
            data += self._draw.choice([b"[],", b'{"a":', b'"', b"1,"]) * 2_000_000
        return bytes(data)

    def _yaml(self) -> str:
        """Return a description with some characters changed."""
        text = list(self._draw.choice(_YAML))
        for _ in range(self._draw.choice([0, 0, 1, 3])):
            text[self._draw.randrange(len(text))] = self._draw.choice("[]{}:,*&!%'\"\n \t\x85f1")
        return "".join(text)

    def _stream(self, raw: Any, options: Any) -> None:
        """Send a stream of tiles that nobody expects."""
        command = self._draw.choice([b'{"upload": "x"}', b"[" * 5000, b"", b"\xff"])
        writer, _ = raw.do_put(flight.FlightDescriptor.for_command(command), pa.schema([("bytes", pa.uint8())]), options)
        with contextlib.closing(writer):
            batch = pa.record_batch([pa.array([1, 2, 3], pa.uint8())], ["bytes"])
            writer.write_with_metadata(batch, self._draw.choice([b"{}", b"[" * 5000, b'{"number": 0}']))
            writer.done_writing()

    def _replace_tokens(self) -> None:
        """Have the server read a token file that it cannot use, then the good one."""
        for text in (self._draw.choice(_TOKENS), self._accepted):
            self._tokens.write_text(text)
            self._server.signal(signal.SIGHUP)
            time.sleep(0.05)

    def _damage_records(self) -> None:
        """Flip a bit of each record of the first job between two lives of the server: it must not serve another answer."""
        folder = self._server.pools / ".fastomp" / "jobs"
        for path in sorted(folder.glob(f"{self._job}.*")):
            self._server.stop()
            if path.exists():
                data = bytearray(path.read_bytes())
                data[self._draw.randrange(len(data))] ^= 1 << self._draw.randrange(8)
                path.write_bytes(data)
            self._server.start()
            with self._connect() as client, contextlib.suppress(fo.FastompError):
                (found,) = client.result(self._job)
                self.findings["wrong answers"] += found.to_json() != self._answer.to_json()
            self._look()


def main(words: list[str]) -> int:
    """Run the fuzzers and print what they found; the exit code is 1 if that is anything."""
    requests, seed = int(words[0]) if words else 100_000, int(words[1]) if words[1:] else 0
    with tempfile.TemporaryDirectory() as folder:
        hostility = Hostility(Path(folder), seed, *map(float, words[2:3]))
        hostility.run(requests)
    findings = {name: count for name, count in hostility.findings.items() if count}
    print(f"{requests} hostile requests, seed {seed}: {findings or 'no finding'}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
