"""A double of upstream's client module ``mcas``: the same calls, limits and traps, over a socket to ``mcas_server.py``.

Faithful to what was seen of the real one: calls give up after a fixed time while the server goes on, and the next call on the same
session then gets the *old* reply; a lost server hangs the caller; an empty buffer aborts the process; ``find_key`` corrupts it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time

_FRAME = struct.Struct("<IQ")
_LARGEST_PUT = 2 * 2**30


class Session:
    """A connection."""

    def __init__(self, ip: str, port: int = 11911, device: str = "mlx5_0", extra: str | None = None, debug: int = 0) -> None:
        print(f"mcas double: session to {ip}:{port} on {device}", flush=True)
        if ip == "127.0.0.1" and device != "lo":
            raise RuntimeError("mcas.Session failed to create session")
        try:
            self._socket = socket.create_connection((ip, port), timeout=10)
        except OSError as error:
            raise RuntimeError("mcas.Session failed to create session") from error
        self._limit = float(os.environ.get("MCAS_DOUBLE_TIMEOUT", "30"))
        self._start_limit = float(os.environ.get("MCAS_DOUBLE_START_TIMEOUT", "30"))

    def open_pool(self, name: str) -> Pool:
        if self._call({"call": "open_pool", "pool": name})[0]["status"]:
            raise RuntimeError("mcas.Session.open_pool failed")
        return Pool(self, name)

    def create_pool(self, name: str, size: int, objcount: int = 0, create_only: bool = False) -> Pool:
        if self._call({"call": "create_pool", "pool": name, "size": size})[0]["status"]:
            raise RuntimeError("mcas.Session.create_pool failed")
        return Pool(self, name)

    def delete_pool(self, name: str) -> None:
        status = self._call({"call": "delete_pool", "pool": name})[0]["status"]
        if status:
            raise RuntimeError(f"mcas.Session.create_pool failed [status:{status}]")

    def get_stats(self) -> None:
        self._socket.sendall(b"\0" * 3)  # desynchronises the session

    def _call(self, request: dict, data: bytes = b"") -> tuple[dict, bytes]:
        encoded = json.dumps(request).encode()
        try:
            self._socket.sendall(_FRAME.pack(len(encoded), len(data)) + encoded + data)
            end = time.monotonic() + (self._start_limit if request["call"].endswith("_pool") else self._limit)
            length, size = _FRAME.unpack(self._read(_FRAME.size, end))
            reply, found = json.loads(self._read(length, end)), self._read(size, end)
        except (OSError, EOFError):
            while True:  # the real client polls for ever when the server is gone
                time.sleep(1)
        if reply.get("lost"):
            raise RuntimeError("invoke_ado failed (-9)")  # after its limit; the double does not wait for that
        return reply, found

    def _read(self, length: int, end: float) -> bytes:
        out = b""
        while len(out) < length:
            if not select.select([self._socket], [], [], max(end - time.monotonic(), 0))[0]:
                raise RuntimeError("invoke_ado failed (-9)")
            piece = self._socket.recv(min(length - len(out), 1 << 20))
            if not piece:
                raise EOFError
            out += piece
        return out


class Pool:
    """An open pool."""

    outstanding = 0

    def __init__(self, session: Session, name: str) -> None:
        self._session, self._name = session, name

    def put_direct(self, key: str, value: bytearray | memoryview) -> Pool:
        if not isinstance(value, (bytearray, memoryview)):
            raise RuntimeError("bad arguments")
        if len(value) == 0:
            os.abort()
        if len(value) > _LARGEST_PUT:
            raise RuntimeError("pool.put_direct failed [status:-55]")
        self._checked("put_direct", key, bytes(value))
        return self

    def put(self, key: str, value: str | bytearray) -> None:
        if len(value) >= 2 << 20:
            raise RuntimeError("pool.put failed [status:-55]")
        self._checked("put_direct", key, value.encode() if isinstance(value, str) else bytes(value))

    def get_direct(self, key: str) -> memoryview:
        found = memoryview(bytearray(self._checked("get_direct", key)[1]))
        Pool.outstanding += 1
        return found

    def free_direct_memory(self, view: memoryview) -> None:
        Pool.outstanding -= 1

    def get_size(self, key: str) -> int:
        return int(self._checked("get_size", key)[0]["size"])

    def erase(self, key: str) -> bool:
        self._checked("erase", key)
        return True

    def find_key(self, expression: str, offset: int = 0) -> None:
        os.abort()

    def invoke_ado(self, key: str, command: bytearray | str, ondemand_size: int = 64, flags: int = 0) -> bytearray | None:
        if not isinstance(command, (bytearray, str)):
            raise RuntimeError("bad value parameter")
        request = {"call": "invoke", "pool": self._name, "key": key, "ondemand": ondemand_size}
        reply, data = self._session._call(request, bytes(command) if isinstance(command, bytearray) else command.encode())
        if reply["status"]:
            raise RuntimeError(f"invoke_ado failed ({reply['status']})")
        return bytearray(data) or None

    def close(self) -> None:
        self._session._call({"call": "close_pool", "pool": self._name})

    def _checked(self, call: str, key: str, data: bytes = b"") -> tuple[dict, bytes]:
        reply, found = self._session._call({"call": call, "pool": self._name, "key": key}, data)
        if reply["status"]:
            raise RuntimeError(f"pool.{call} failed [status:{reply['status']}]")
        return reply, found
