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
_FULL = ("[status:-55]",)
_ORIGIN = "the real one is built from https://github.com/IBM/mcas (src/python/mcas-python-api); PyPI does not have it"


class _ModuleError(Exception):
    """Upstream's module is missing, or another module has its name."""


class _OpenError(Exception):
    """A pool cannot be opened: it does not exist, or the server is busy or does not start its helper process."""


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
            if isinstance(error, _OpenError):
                kind = "open"
            for name, statuses in (("locked", _LOCKED), ("full", _FULL)):
                if any(status in str(error) for status in statuses):
                    kind = name
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
        try:
            self._pool(request)
        except _OpenError:
            if not request["create"]:
                raise
            self._pools[request["pool"]] = self._session.create_pool(request["pool"], request["create"], 1000)
        return {}, b""

    def _pool(self, request: Mapping[str, Any]) -> Any:
        """Return the pool of a request, opened by the first one."""
        name = request["pool"]
        if name not in self._pools:
            try:
                self._pools[name] = self._session.open_pool(name)
            except RuntimeError as error:
                raise _OpenError(str(error)) from error
        return self._pools[name]

    def _put(self, request: Mapping[str, Any], data: bytes) -> Reply:
        self._pool(request).put_direct(request["key"], bytearray(data))
        return {}, b""

    def _put_file(self, request: Mapping[str, Any], data: bytes) -> Reply:
        with open(request["path"], "rb") as file:
            file.seek(request["offset"])
            value = bytearray(len(data) + request["length"])
            value[: len(data)] = data
            with memoryview(value) as whole:
                if file.readinto(whole[len(data) :]) < request["length"]:
                    raise EOFError(f"{request['path']} is shorter than expected")
        self._pool(request).put_direct(request["key"], value)
        return {}, b""

    def _size(self, request: Mapping[str, Any], data: bytes) -> Reply:
        """Return the length of a value, 0 if it does not exist."""
        try:
            return {"size": int(self._pool(request).get_size(request["key"]))}, b""
        except RuntimeError as error:
            if any(status in str(error) for status in _MISSING):
                return {"size": 0}, b""
            raise

    def _erase(self, request: Mapping[str, Any], data: bytes) -> Reply:
        try:
            self._pool(request).erase(request["key"])
        except RuntimeError as error:
            if not any(status in str(error) for status in _MISSING):
                raise
        return {}, b""

    def _invoke(self, request: Mapping[str, Any], data: bytes) -> Reply:
        reply = self._pool(request).invoke_ado(request["key"], bytearray(data))
        return {}, bytes(reply or b"")


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
