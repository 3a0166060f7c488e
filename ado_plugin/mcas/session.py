"""A connection to an MCAS server, kept in a child process (:mod:`ado_plugin.mcas.worker`).

Upstream's client polls without releasing the interpreter, may wait for ever when the server dies, aborts the process on some
errors, and after a timeout returns the old reply to the next call. It therefore runs in a child process with a time limit on every
call; a child whose call failed or timed out is killed together with its session.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from ado_plugin.mcas.worker import FRAME, write_frame
from fastomp_nvm.errors import CallFailedError, LockedError, ServerError, UnavailableError, UnreachableError
from fastomp_nvm.remote.address import is_loopback

__all__ = ["LARGEST_VALUE", "LOCK_POLL_SECONDS", "REOPEN_SECONDS", "McasSession"]

#: Largest value in bytes: upstream accepts 1.9 GiB and fails above 2.
LARGEST_VALUE = int(1.9 * 2**30)

#: Seconds between two attempts at a locked value.
LOCK_POLL_SECONDS = 0.2

#: Seconds after which a lock more likely belongs to a dead helper process than to a slice, which is shorter.
REOPEN_SECONDS = 7.5

_CONNECT_SECONDS = 30.0


class McasSession:
    """A connection, made on the first call and again after any failure.

    Parameters
    ----------
    host : str
    port : int
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._device = os.environ.get("FASTOMP_MCAS_DEVICE") or ("lo" if is_loopback(host) else "mlx5_0")
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> str:
        """The address, for errors."""
        return f"mcas://{self._host}:{self._port}"

    def open(self, pool: str, timeout: float, create: int = 0) -> bool:
        """Open a pool, created with ``create`` bytes if it does not exist; return whether it is open."""
        return bool(self._call({"operation": "open", "pool": pool, "create": create}, b"", timeout)[0]["open"])

    def put(self, pool: str, key: str, value: bytes, timeout: float) -> None:
        """Put a value."""
        self._call({"operation": "put", "pool": pool, "key": key}, value, timeout)

    def put_file(self, pool: str, key: str, prefix: bytes, path: str, offset: int, length: int, timeout: float) -> None:
        """Put ``prefix`` and a range of a file as one value; the child reads the file."""
        place = {"path": path, "offset": offset, "length": length}
        self._call({"operation": "put_file", "pool": pool, "key": key, **place}, prefix, timeout)

    def get(self, pool: str, key: str, timeout: float) -> bytes | None:
        """Return a value, or None if it does not exist; wait while a running call has it locked."""
        began = time.monotonic()
        while True:
            left = began + timeout - time.monotonic()
            try:
                reply, data = self._call({"operation": "get", "pool": pool, "key": key}, b"", left)
                return data if reply["found"] else None
            except LockedError:
                if left < LOCK_POLL_SECONDS:
                    raise
            if time.monotonic() - began > REOPEN_SECONDS:
                self.reopen(pool, left)
            time.sleep(LOCK_POLL_SECONDS)

    def reopen(self, pool: str, timeout: float) -> None:
        """Close the pool and open it again, so that the server starts a new helper once no other client has it open.

        Only if necessary: a connection takes a second, and many in a row were seen to hang.
        """
        self.close()
        self.open(pool, timeout)

    def has(self, pool: str, key: str, timeout: float) -> bool:
        """Return whether a value exists. Call it before every ``invoke``, which would create an invalid value and then fail."""
        return bool(self._call({"operation": "has", "pool": pool, "key": key}, b"", timeout)[0]["found"])

    def erase(self, pool: str, key: str, timeout: float) -> None:
        """Erase a value if it exists."""
        self._call({"operation": "erase", "pool": pool, "key": key}, b"", timeout)

    def delete_pool(self, pool: str, timeout: float) -> None:
        """Close and delete a pool."""
        self._call({"operation": "delete_pool", "pool": pool}, b"", timeout)

    def invoke(self, pool: str, key: str, message: bytes, timeout: float) -> bytes:
        """Send a message to a key that exists and return the reply; ``LockedError`` while another call uses the key."""
        return self._call({"operation": "invoke", "pool": pool, "key": key}, message, timeout)[1]

    def discard(self) -> None:
        """Kill the child; the next call makes a new session."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):
                    pipe.close()

    def close(self) -> None:
        """End the session in order, so that the server closes its pools."""
        if self._child is not None:
            with contextlib.suppress(ServerError, UnavailableError):
                self._exchange(self._child, {"operation": "close"}, b"", time.monotonic() + 5.0)
        self.discard()

    def _call(self, request: Mapping[str, Any], data: bytes, timeout: float) -> tuple[dict[str, Any], bytes]:
        """Carry out one call in the child within ``timeout`` seconds."""
        end = time.monotonic() + timeout
        return self._exchange(self._connected(end), request, data, end)

    def _connected(self, end: float) -> subprocess.Popen[bytes]:
        """Return a child with a session."""
        if self._child is None or self._child.poll() is not None:
            self.discard()
            command = [sys.executable, "-m", "ado_plugin.mcas.worker"]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
            request = {"operation": "connect", "host": self._host, "port": self._port, "device": self._device}
            self._exchange(self._child, request, b"", min(end, time.monotonic() + _CONNECT_SECONDS))
        return self._child

    def _exchange(
        self, child: subprocess.Popen[bytes], request: Mapping[str, Any], data: bytes, end: float
    ) -> tuple[dict[str, Any], bytes]:
        """Send a frame and wait for the reply."""
        assert child.stdin is not None
        assert child.stdout is not None
        began = time.monotonic()
        try:
            write_frame(child.stdin, request, data)
            header = _receive(child.stdout.fileno(), FRAME.size, end)
            length, size = FRAME.unpack(header)
            reply = json.loads(_receive(child.stdout.fileno(), length, end))
            received = _receive(child.stdout.fileno(), size, end)
        except TimeoutError:
            self.discard()
            raise UnreachableError(
                f"{self.server} did not answer within {time.monotonic() - began:.3g} s: is it up, and is this its address?"
            ) from None
        except (OSError, EOFError, ValueError) as error:
            self.discard()
            raise UnreachableError(f"{self.server} cannot be reached: upstream's client ended ({error})") from error
        except BaseException:
            self.discard()  # an interrupt: the reply would be read by the next call
            raise
        if "failed" in reply:
            if reply["failed"] == "locked":
                raise LockedError(f"{self.server}: {reply['message']}")
            self.discard()
            if reply["failed"] == "module":
                raise UnavailableError(reply["message"])
            if reply["failed"] == "connect":
                raise UnreachableError(f"{self.server} cannot be reached ({reply['message']}): is it up, and is this its address?")
            raise CallFailedError(f"{self.server} failed ({reply['message']}): 'fastomp ado check' finds the cause")
        return reply, received


def _receive(descriptor: int, length: int, end: float) -> bytes:
    """Return ``length`` bytes of a pipe; raise ``TimeoutError`` if they have not arrived by ``end``."""
    out = bytearray()
    while len(out) < length:
        if not select.select([descriptor], [], [], max(end - time.monotonic(), 0.0))[0]:
            raise TimeoutError
        piece = os.read(descriptor, min(length - len(out), 1 << 20))
        if not piece:
            raise EOFError("its process died")
        out += piece
    return bytes(out)
