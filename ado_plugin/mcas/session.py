"""A connection to an MCAS server, kept in a child process (:mod:`ado_plugin.mcas.worker`).

Upstream's client polls without releasing the interpreter, may wait for ever when the server dies, aborts the process on some
errors, and after a timeout returns the old reply to the next call. It therefore runs in a child process with a time limit on every
call; a child whose call failed or timed out is killed together with its session.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from fastomp_nvm.errors import CallFailedError, LockedError, ServerError, StoreURLError, UnavailableError, UnreachableError
from fastomp_nvm.remote.address import is_loopback

__all__ = ["LARGEST_VALUE", "LOCK_POLL_SECONDS", "McasSession", "PoolFullError"]

#: Largest value in bytes: upstream accepts 1.9 GiB and fails above 2.
LARGEST_VALUE = int(1.9 * 2**30)

#: Seconds between two attempts at a locked value.
LOCK_POLL_SECONDS = 0.2

#: Most seconds for which an open that fails is tried again: a busy server refuses one, and so does one without the pool.
_OPEN_SECONDS = 3.0

_CONNECT_SECONDS = 30.0


class PoolFullError(ServerError):
    """A pool has no room for a value."""


class _FailedOpenError(ServerError):
    """An open failed, which proves nothing."""


class McasSession:
    """A connection, made on the first call and again after any failure.

    Parameters
    ----------
    host : str
    port : int

    Attributes
    ----------
    connections : int
        Connections made so far.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._device = os.environ.get("FASTOMP_MCAS_DEVICE") or ("lo" if is_loopback(host) else "mlx5_0")
        self._child: subprocess.Popen[bytes] | None = None
        self.connections = 0
        self._pipe: Connection  # to the child, while there is one

    @property
    def server(self) -> str:
        """The address, for errors."""
        return f"mcas://{self._host}:{self._port}"

    def open(self, pool: str, timeout: float, create: int = 0, *, once: bool = False) -> None:
        """Open a pool, created with ``create`` bytes if it does not exist. Other calls open an existing pool by themselves.

        ``once``: an open that fails is not tried again.
        """
        request = {"operation": "open", "pool": pool, "create": create}
        self._call_when_free(request, b"", timeout, patience=0.0 if once else _OPEN_SECONDS)

    def put(self, pool: str, key: str, value: bytes, timeout: float) -> None:
        """Put a value; wait while another client has it locked."""
        self._call_when_free({"operation": "put", "pool": pool, "key": key}, value, timeout)

    def put_file(self, pool: str, key: str, prefix: bytes, path: str, offset: int, length: int, timeout: float) -> None:
        """Put ``prefix`` and a range of a file as one value; the child reads the file."""
        place = {"path": path, "offset": offset, "length": length}
        self._call_when_free({"operation": "put_file", "pool": pool, "key": key, **place}, prefix, timeout)

    def size(self, pool: str, key: str, timeout: float) -> int:
        """Return the bytes of a value, 0 if it does not exist.

        Call it before the first ``invoke`` of a key, which would create an invalid value and end the server's helper process.
        """
        return int(self._call_when_free({"operation": "size", "pool": pool, "key": key}, b"", timeout)[0]["size"])

    def erase(self, pool: str, key: str, timeout: float) -> None:
        """Erase a value if it exists; wait while another client has it locked."""
        self._call_when_free({"operation": "erase", "pool": pool, "key": key}, b"", timeout)

    def invoke(self, pool: str, key: str, message: bytes, timeout: float) -> bytes:
        """Send a message to a key that exists and return the reply; ``LockedError`` while another call uses the key."""
        return self._call_when_free({"operation": "invoke", "pool": pool, "key": key}, message, timeout, waits=False)[1]

    def discard(self) -> None:
        """Kill the child; the next call makes a new session."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._pipe.close()
            self._child = None

    def close(self) -> None:
        """End the session in order, so that the server closes its pools."""
        if self._child is not None:
            with contextlib.suppress(ServerError, UnavailableError):
                self._exchange({"operation": "close"}, b"", time.monotonic() + 5.0)
        self.discard()

    def _call_when_free(
        self, request: Mapping[str, Any], data: bytes, timeout: float, *, waits: bool = True, patience: float = _OPEN_SECONDS
    ) -> tuple[dict[str, Any], bytes]:
        """Carry out one call, again while the value is locked or the pool cannot be opened, within ``timeout`` seconds."""
        began = time.monotonic()
        while True:
            passed = time.monotonic() - began
            try:
                return self._call(request, data, timeout - passed)
            except LockedError:
                if not waits or passed > timeout - LOCK_POLL_SECONDS:
                    raise
            except _FailedOpenError as error:
                if passed >= min(patience, timeout / 2):
                    raise StoreURLError(
                        f"the pool {request['pool']!r} of {self.server} cannot be opened ({error}): it does not exist yet, and "
                        "the first put makes it; or the server is busy; or its ADO died at its start, a known defect "
                        "(deploy/MCAS.md), and the server has to be started again: 'fastomp ado check' tells which"
                    ) from None
            time.sleep(LOCK_POLL_SECONDS)

    def _call(self, request: Mapping[str, Any], data: bytes, timeout: float) -> tuple[dict[str, Any], bytes]:
        """Carry out one call in the child within ``timeout`` seconds; start a child with a session if there is none."""
        end = time.monotonic() + timeout
        if self._child is None or self._child.poll() is not None:
            self.discard()
            command = [sys.executable, "-m", "ado_plugin.mcas.worker"]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            self.connections += 1
            self._pipe, theirs = Pipe()
            silent = subprocess.DEVNULL  # upstream prints on every call
            self._child = subprocess.Popen(command, stdin=theirs.fileno(), stdout=silent, stderr=silent, env=environment)
            theirs.close()
            connect = {"operation": "connect", "host": self._host, "port": self._port, "device": self._device}
            self._exchange(connect, b"", min(end, time.monotonic() + _CONNECT_SECONDS))
        return self._exchange(request, data, end)

    def _exchange(self, request: Mapping[str, Any], data: bytes, end: float) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for the reply."""
        began = time.monotonic()
        try:
            self._pipe.send_bytes(json.dumps(request).encode())
            self._pipe.send_bytes(data)
            if not self._pipe.poll(max(end - time.monotonic(), 0.0)):
                raise TimeoutError
            reply, received = json.loads(self._pipe.recv_bytes()), self._pipe.recv_bytes()
        except TimeoutError:
            self.discard()
            raise UnreachableError(
                f"{self.server} did not answer within {time.monotonic() - began:.3g} s: is it up, is this its address, and does "
                "its ADO live? 'fastomp ado check' tells"
            ) from None
        except (OSError, EOFError, ValueError) as error:
            self.discard()
            reason = str(error) or "its process died"
            raise UnreachableError(f"{self.server} cannot be reached: upstream's client ended ({reason})") from error
        except BaseException:
            self.discard()  # an interrupt: the reply would be read by the next call
            raise
        if "failed" in reply:
            if reply["failed"] == "locked":
                raise LockedError(
                    f"{self.server}: {reply['message']}: another client uses the value, or the lock is that of one that died"
                )
            if reply["failed"] == "full":
                raise PoolFullError(f"{self.server}: {reply['message']}: the pool is full")
            if reply["failed"] == "open":
                if time.monotonic() - began > LOCK_POLL_SECONDS:
                    self.discard()  # upstream may have given up, and would give its reply to the next call
                raise _FailedOpenError(reply["message"])
            self.discard()
            if reply["failed"] == "module":
                raise UnavailableError(reply["message"])
            if reply["failed"] == "connect":
                raise UnreachableError(f"{self.server} cannot be reached ({reply['message']}): is it up, and is this its address?")
            told = "its ADO may have died of upstream's reference-count fault, " if request["operation"] == "invoke" else ""
            raise CallFailedError(f"{self.server} failed ({reply['message']}): {told}'fastomp ado check' finds the cause")
        return reply, received
