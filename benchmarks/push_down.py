"""Sending the request to the data against fetching the data, and the server against bare sockets and bare Flight.

Over loopback: a selection pushed down to a pool server against the same matrix pulled to the client and selected there (seconds,
and bytes on the wire, counted by a relay); the upload against a plain socket copy of the same bytes, beside bare Flight and a plain
write of a file; an empty call against a bare Flight action; the anonymous memory of the server during the upload. With ``--mcas``
instead: pushing down to an MCAS server against pulling from it, over sizes, and the size from which pushing down is faster.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

import fastomp_nvm as fo
from benchmarks import push_down_mcas
from benchmarks.harness.memory import PeakMemory, resident_bytes
from benchmarks.harness.processes import server
from benchmarks.harness.report import Report, argument_parser
from benchmarks.harness.timing import paired
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.remote.client import Client
from fastomp_nvm.remote.credentials import local_token
from fastomp_nvm.stores.contract import Target
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.schema import TableSchema

_BATCH_BYTES = 8 << 20
_ROUNDS = 5


class BareServer(flight.FlightServerBase):
    """A Flight server without anything else: streams a matrix, discards uploads, answers empty actions."""

    def __init__(self, path: str) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._matrix = np.load(path, mmap_mode="r")

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Stream the matrix."""
        schema = pa.schema([("values", pa.float32())])
        flat = self._matrix.reshape(-1)
        step = _BATCH_BYTES // flat.itemsize

        def batches() -> Iterator[Any]:
            for first in range(0, len(flat), step):
                yield pa.RecordBatch.from_arrays([pa.array(flat[first : first + step])], schema=schema)

        return flight.GeneratorStream(schema, batches())

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Receive a stream and discard it."""
        size = sum(chunk.data.nbytes for chunk in reader)
        writer.write(str(size).encode())

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Return an empty answer."""
        return [b"{}"]


class Relay:
    """A loopback relay that counts the bytes it forwards, in both directions."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.bytes = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop forwarding."""
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, server]
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 18):
                self.bytes += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def plain_copy(matrix: np.ndarray) -> float:
    """Return the seconds of sending the bytes of a matrix through a plain socket to another process."""
    receiver = (
        "import socket,sys\n"
        "s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1],flush=True)\n"
        "c,_=s.accept(); b=bytearray(1<<20); n=0\n"
        "while k:=c.recv_into(b): n+=k\n"
        "print(n,flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", receiver], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as connection:
        started = time.perf_counter()
        connection.sendall(matrix.reshape(-1).view(np.uint8).data)
        connection.shutdown(socket.SHUT_WR)
        assert int(process.stdout.readline()) == matrix.nbytes
        return time.perf_counter() - started


def bare_copy(client: flight.FlightClient, matrix: np.ndarray) -> float:
    """Return the seconds of sending the bytes of a matrix to a Flight server that discards them."""
    flat = matrix.reshape(-1)
    schema, step = pa.schema([("values", pa.float32())]), _BATCH_BYTES // flat.itemsize
    started = time.perf_counter()
    writer, reader = client.do_put(flight.FlightDescriptor.for_command(b""), schema)
    for first in range(0, len(flat), step):
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array(flat[first : first + step])], schema=schema))
    writer.done_writing()
    assert int(reader.read().to_pybytes()) == matrix.nbytes
    writer.close()
    return time.perf_counter() - started


def file_write(path: Path, size: int) -> float:
    """Return the seconds of writing a file of ``size`` bytes into the page cache; it is removed afterwards.

    It also warms the page cache for the upload that follows: a virtual machine may have returned free memory to its host, and
    touching that again takes several times longer than everything else measured here.
    """
    block = bytes(_BATCH_BYTES)
    started = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for first in range(0, size, _BATCH_BYTES):
            file.write(block[: size - first])
    taken = time.perf_counter() - started
    path.unlink()
    return taken


def pull(port: int, shape: tuple[int, ...]) -> np.ndarray:
    """Fetch the matrix from the bare server."""
    client = flight.connect(f"grpc://127.0.0.1:{port}")
    matrix = np.empty(shape, dtype=np.float32)
    flat, first = matrix.reshape(-1), 0
    for chunk in client.do_get(flight.Ticket(b"")):
        values = chunk.data.column(0).to_numpy()
        flat[first : first + len(values)] = values
        first += len(values)
    client.close()
    return matrix


def push(port: int, token: str | None, k: int) -> fo.Selection:
    """Send a selection to the pool server."""
    with fo.connect(f"grpc://127.0.0.1:{port}/bench/matrix", token=token) as client:
        return client.select(k=k)


def measure(n_obs: int, n_features: int, k: int, folder: Path) -> dict[str, Any]:
    """Run everything once on one matrix."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((n_features, n_obs), dtype=np.float32)
    np.save(folder / "matrix.npy", matrix)
    os.sync()  # so that write-back does not disturb the timing
    y = 3.0 * matrix[: min(k, n_features)].sum(axis=0) + rng.standard_normal(n_obs)
    out: dict[str, Any] = {"shape": [n_obs, n_features], "bytes": int(matrix.nbytes)}
    served = ("fastomp_nvm", "serve", "--pools", f"mmap://{folder}/pools", "--listen", "127.0.0.1:0")
    with server(*served) as (process, port), server("benchmarks.push_down", "--bare", str(folder / "matrix.npy")) as (_, bare):
        url = f"grpc://127.0.0.1:{port}/bench/matrix"
        token = local_token(port)
        client = fo.connect(url, timeout=300)
        client.ping()
        raw = flight.connect(f"grpc://127.0.0.1:{bare}")
        sent: list[float] = []
        copies, bares, files, uploads, totals, memory = [], [], [], [], [], 0
        for _ in range(_ROUNDS):  # in turns, because the machine is noisy
            copies.append(plain_copy(matrix))
            bares.append(bare_copy(raw, matrix))
            files.append(file_write(folder / "scratch", matrix.nbytes))
            idle = resident_bytes(process)
            with PeakMemory(process=process) as peak:
                started = time.perf_counter()
                _put(client, matrix, y, lambda: sent.append(time.perf_counter()))
                totals.append(time.perf_counter() - started)
            uploads.append(sent[-1] - started)
            memory = max(memory, peak.peak - idle)
        out["plain_copy_seconds"], out["upload_seconds"], out["with_seal_seconds"] = min(copies), min(uploads), min(totals)
        out["bare_copy_seconds"], out["file_write_seconds"] = min(bares), min(files)
        out["upload_over_copy"], out["bare_over_copy"] = paired(copies, uploads), paired(copies, bares)
        out["server_anonymous_bytes"] = memory

        calls: list[list[float]] = [[], []]
        for _ in range(400):
            for times, call in zip(calls, (client.ping, lambda: list(raw.do_action("empty"))), strict=True):
                started = time.perf_counter()
                call()
                times.append(time.perf_counter() - started)
        out["call_seconds"], out["bare_call_seconds"] = map(median, calls)
        out["call_over_bare"] = paired(*calls)

        started = time.perf_counter()
        pushed = client.select(k=k)
        out["push_seconds"] = time.perf_counter() - started
        started = time.perf_counter()
        pulled = fo.select(pull(bare, matrix.shape).T, y, k=k)
        out["pull_seconds"] = time.perf_counter() - started
        out["same_features"] = pushed.indices.tolist() == pulled.indices.tolist()
        for name, target, action in (
            ("push_bytes", port, lambda at: push(at, token, k)),
            ("pull_bytes", bare, lambda at: pull(at, matrix.shape)),
        ):
            relay = Relay(target)
            action(relay.port)
            relay.close()
            out[name] = relay.bytes
        client.close()
        raw.close()
    return out


def _put(client: Client, matrix: np.ndarray, y: np.ndarray, sent: Callable[[], None]) -> None:
    """Upload a matrix; ``sent`` is called when its last byte has arrived, before the server seals the store."""
    schema = TableSchema.plain(matrix.shape[1], NumberedNames(len(matrix)))
    with client.upload(schema, tier="none", replace=True) as upload:
        step = max(1, (64 << 20) // matrix[0].nbytes)
        for first in range(0, len(matrix), step):
            upload.write_tile(0, first, matrix[first : first + step].T)
        upload.flush()
        sent()
        upload.finish({"y": Target(y.astype(np.float64))})


def _over_sizes(report: Report, options: argparse.Namespace) -> int:
    """Measure an MCAS server over sizes, print the table and the break-even."""
    megabytes = [1.0, 4.0, 16.0] if options.quick else options.megabytes
    label = push_down_mcas.server_label()
    rows = push_down_mcas.measure(options.mcas, megabytes, options.k, 3)
    even = push_down_mcas.break_even(rows)
    report.part("mcas")
    report.figures(server=label, rows=rows, break_even_megabytes=even)
    report.records(f"push-down to and pull from {label}, median of 3, new connection unless again", rows)
    report.say("pulling was faster at every size" if even is None else f"pushing down is faster from about {even:.3g} MB on")
    report.bar("answers that pushing down changes", sum(not row["same_features"] for row in rows), 0, at_most=True)
    return report.finish()


@terminating_cleanly()
def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("push-down", __doc__)
    parser.add_argument("--observations", type=int, default=2000)
    parser.add_argument("--features", type=int, default=25_000, help="200 MB by default; 250000 make 2 GB")
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="folder of the pools (default a temporary folder)")
    parser.add_argument("--mcas", metavar="HOST:PORT", help="measure an MCAS server instead (default none)")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1.0, 10.0, 100.0, 500.0, 2000.0], help="sizes for --mcas")
    parser.add_argument("--bare", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.bare:
        bare = BareServer(options.bare)
        print(f"grpc://127.0.0.1:{bare.port}", flush=True)
        bare.serve()
        return 0
    report = Report(options, argv)
    if options.mcas:
        return _over_sizes(report, options)
    n_obs, n_features = (500, 4000) if options.quick else (options.observations, options.features)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(n_obs, n_features, options.k, Path(folder))
    report.figures(figures=found)
    report.columns(f"matrix of {found['bytes'] / 1e6:.0f} MB, best of {_ROUNDS}", {"found": found})
    report.bar("upload rate over a plain socket copy", found["upload_over_copy"], 0.30)
    report.bar("empty call over a bare Flight action", found["call_over_bare"], 3.0, at_most=True)
    report.bar("bytes of a push-down", found["push_bytes"], 1e6, at_most=True)
    megabytes = found["server_anonymous_bytes"] / 1e6
    report.bar("anonymous memory of the server during the upload, MB above idle", megabytes, 300.0, at_most=True)
    report.bar("answers that pushing down changes", int(not found["same_features"]), 0, at_most=True)
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
