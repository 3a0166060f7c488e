"""The child process of an MCAS session: the only importer of upstream's client module ``mcas``.

Its standard input is a connection to its parent. It receives a JSON object and bytes, calls upstream, and replies in the same form;
every error is a reply. Imports nothing else of this project, so that it starts quickly.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["main"]

Reply = tuple[dict[str, Any], bytes]

_MISSING = ("[status:-52]", "[status:-4]")  # E_KEY_NOT_FOUND, E_NOT_FOUND
_LOCKED = ("(-33)", "[status:-33]")  # of an invoke; of other calls
_ORIGIN = "the real one is built from https://github.com/IBM/mcas (src/python/mcas-python-api); PyPI does not have it"


class _ModuleError(Exception):
    """Upstream's module is missing, or another module has its name."""


def main() -> None:
    """Serve the parent process until it closes the connection."""
    session, parent = _Upstream(), Connection(0)
    while True:
        try:
            request, data = json.loads(parent.recv_bytes()), parent.recv_bytes()
        except EOFError:
            return
        reply, sent = session.answer(request, data)
        parent.send_bytes(json.dumps(reply).encode())
        parent.send_bytes(sent)
        if request["operation"] == "close":
            return


class _Upstream:
    """Upstream's session and its open pools."""

    def __init__(self) -> None:
        self._session: Any = None
        self._pools: dict[str, Any] = {}

    def answer(self, request: Mapping[str, Any], data: bytes) -> Reply:
        """Carry out one request; every error is a reply."""
        try:
            return getattr(self, f"_{request['operation']}")(request, data)  # type: ignore[no-any-return]
        except _ModuleError as error:
            return {"failed": "module", "message": str(error)}, b""
        except Exception as error:
            kind = "connect" if request["operation"] == "connect" else "call"
            if any(status in str(error) for status in _LOCKED):
                kind = "locked"
            return {"failed": kind, "message": f"{request['operation']}: {error}"}, b""

    def _connect(self, request: Mapping[str, Any], data: bytes) -> Reply:
        module = _import_mcas()
        self._session = module.Session(request["host"], request["port"], request["device"])
        return {}, b""

    def _close(self, request: Mapping[str, Any], data: bytes) -> Reply:
        while self._pools:
            self._pools.popitem()[1].close()
        self._session = None
        return {}, b""

    def _open(self, request: Mapping[str, Any], data: bytes) -> Reply:
        pool = request["pool"]
        if pool not in self._pools:
            try:
                self._pools[pool] = self._session.open_pool(pool)
            except RuntimeError:
                if not request["create"]:
                    return {"open": False}, b""
                self._pools[pool] = self._session.create_pool(pool, request["create"], 1000)
        return {"open": True}, b""

    def _put(self, request: Mapping[str, Any], data: bytes) -> Reply:
        self._pools[request["pool"]].put_direct(request["key"], bytearray(data))
        return {}, b""

    def _put_file(self, request: Mapping[str, Any], data: bytes) -> Reply:
        with open(request["path"], "rb") as file:
            file.seek(request["offset"])
            value = bytearray(len(data) + request["length"])
            value[: len(data)] = data
            with memoryview(value) as whole:
                if file.readinto(whole[len(data) :]) < request["length"]:
                    raise EOFError(f"{request['path']} is shorter than expected")
        self._pools[request["pool"]].put_direct(request["key"], value)
        return {}, b""

    def _get(self, request: Mapping[str, Any], data: bytes) -> Reply:
        if not self._size(request):
            return {"found": False}, b""
        pool = self._pools[request["pool"]]
        try:
            view = pool.get_direct(request["key"])
        except RuntimeError as error:  # "-1" although the value has a size: a running call has it locked
            raise RuntimeError(f"{error} {_LOCKED[0]}") from error
        value = bytes(view)
        pool.free_direct_memory(view)
        return {"found": True}, value

    def _has(self, request: Mapping[str, Any], data: bytes) -> Reply:
        return {"found": bool(self._size(request))}, b""

    def _erase(self, request: Mapping[str, Any], data: bytes) -> Reply:
        if self._size(request):
            self._pools[request["pool"]].erase(request["key"])
        return {}, b""

    def _invoke(self, request: Mapping[str, Any], data: bytes) -> Reply:
        if not self._size(request):
            raise RuntimeError(f"there is no value {request['key']!r} to call")
        reply = self._pools[request["pool"]].invoke_ado(request["key"], bytearray(data))
        return {}, bytes(reply or b"")

    def _size(self, request: Mapping[str, Any]) -> int:
        """Return the length of a value, 0 if it does not exist."""
        try:
            return int(self._pools[request["pool"]].get_size(request["key"]))
        except RuntimeError as error:
            if any(status in str(error) for status in _MISSING):
                return 0
            raise


def _import_mcas() -> Any:
    """Import upstream's client module and check that it is the right one."""
    try:
        module = importlib.import_module("mcas")
    except ImportError as error:
        raise _ModuleError(f"the MCAS client module 'mcas' cannot be imported here ({error}): {_ORIGIN}") from error
    if not hasattr(module, "Session"):
        where = getattr(module, "__file__", None)
        raise _ModuleError(f"the module 'mcas' at {where} is another package of that name: {_ORIGIN}")
    return module


if __name__ == "__main__":
    main()
