"""Ray for the duration of a command: a cluster is joined where an address is given, otherwise Ray is started on this machine.

A Ray started here listens on the loopback interface only, requires a random token, has no dashboard, sends no usage statistics and
keeps its files in a private directory that is removed with it. A Ray that the program already runs is used and left running.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import warnings
from typing import Any

from fastomp_nvm.errors import RequestError, UnavailableError, UnreachableError, how_to_install
from storage_backends.files.durable import scratch_directory

__all__ = ["RaySession", "session"]

#: Bytes of the object store of a Ray started here: vectors, and a few answers in transit.
OBJECT_STORE_BYTES = 512 << 20

#: Prefix of private directories, and the longest name of their parent: paths of sockets below must stay under 107 bytes.
_PREFIX, _LONGEST_PARENT = "fastomp-ray.", 12

#: Set before Ray is imported: loopback only (Ray's own switch), no statistics, a quiet log.
_LOCAL_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

#: Token of every Ray started by this process: Ray reads it once.
_TOKEN = secrets.token_hex(32)

#: Set for any Ray: results that are never fetched are those of heartbeats, which may fail.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}

#: Most seconds to wait for the head of a cluster to accept a connection.
CONNECT_SECONDS = 10.0


class RaySession:
    """A connection to Ray, shared by all callers of ``session``.

    Attributes
    ----------
    ray : module
    address : str
        Address of the cluster; empty when Ray was started here.
    """

    def __init__(self, address: str, timeout: float) -> None:
        self.address = address
        self._users = 0
        self._started = False
        self._undo = contextlib.ExitStack()  # restores the environment and removes the files of a Ray started here
        try:
            self.ray = self._join(address, timeout) if address else self._start()
        except BaseException:
            self._undo.close()
            raise

    def __enter__(self) -> RaySession:
        self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            self.end()

    def end(self) -> None:
        """End the connection, and Ray itself where it was started here."""
        global _current
        if _current is self:
            _current = None
        if self._started:
            self._started = False
            with _quiet():  # Ray leaves the pipes of its processes to the garbage collector
                self.ray.shutdown()
        self._undo.close()

    def _join(self, address: str, timeout: float) -> Any:
        """Connect to a running cluster."""
        self._set(_ENVIRONMENT)
        ray = _import_ray()
        if ray.is_initialized():
            return ray
        _knock(address, min(timeout, CONNECT_SECONDS))
        try:
            with _quiet(), _without_stderr():
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UnreachableError(
                f"no Ray cluster answers at {address!r} ({reason}): check the address, the firewall and its token (RAY_AUTH_TOKEN)"
            ) from error
        except Exception as error:  # Ray's own exceptions share no base with these
            reason = " ".join(str(error).split())[:200]
            raise UnreachableError(f"the Ray cluster at {address!r} refused this program: {reason}") from error
        self._started = True
        self._keep_stdout_clean()
        if not _asks_for_a_token():
            print(
                f"fastomp: the Ray cluster at {address} asks for no token, so whoever reaches its ports can run programs on it: "
                "start it with RAY_AUTH_MODE=token",
                file=sys.stderr,
            )
        return ray

    def _start(self) -> Any:
        """Start Ray on this machine."""
        running = sys.modules.get("ray")
        if running is not None and running.is_initialized():
            return running
        self._set({**_ENVIRONMENT, **_LOCAL_ENVIRONMENT, "RAY_AUTH_TOKEN": _TOKEN})
        ray = _import_ray()
        constants = ray._private.ray_constants  # Ray reads the variable only when it is imported
        self._undo.callback(setattr, constants, "ENABLE_RAY_CLUSTER", True)
        constants.ENABLE_RAY_CLUSTER = False
        cores = len(os.sched_getaffinity(0))
        print(
            f"fastomp: no Ray cluster was named, so Ray is started here for this command ({cores} cores, loopback only); "
            "--ray ADDRESS joins a cluster",
            file=sys.stderr,
        )
        parent = tempfile.gettempdir()
        # Private: Ray opens its own directory to all users.
        self._directory, lock = scratch_directory(_PREFIX, parent if len(parent) <= _LONGEST_PARENT else "/tmp")
        self._undo.callback(os.close, lock)
        self._undo.callback(shutil.rmtree, self._directory, ignore_errors=True)
        try:
            with _quiet():
                ray.init(
                    address="local",
                    num_cpus=cores,
                    object_store_memory=OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    _temp_dir=f"{self._directory}/r",
                )
        except Exception as error:  # any failure to start
            raise UnavailableError(f"Ray does not start on this machine: {' '.join(str(error).split())[:300]}") from error
        self._started = True
        self._keep_stdout_clean()
        return ray

    def _keep_stdout_clean(self) -> None:
        """Suppress Ray's reports of dead processes, which it prints on stdout regardless of its settings."""
        worker: Any = importlib.import_module("ray._private.worker")
        if hasattr(worker, "print_to_stdstream"):
            self._undo.callback(setattr, worker, "print_to_stdstream", worker.print_to_stdstream)
            worker.print_to_stdstream = lambda *_, **__: None

    def _set(self, variables: dict[str, str]) -> None:
        """Set environment variables until the session ends."""
        self._undo.callback(os.environ.update, {name: os.environ[name] for name in variables if name in os.environ})
        for name in variables:
            self._undo.callback(os.environ.pop, name, None)  # before the update: an ExitStack goes backwards
        os.environ.update(variables)


_current: RaySession | None = None


def session(address: str, timeout: float = CONNECT_SECONDS) -> RaySession:
    """Return the connection of this process to the cluster at ``address``; start Ray here when it is empty.

    A cluster that does not accept a connection within ``timeout`` seconds is unreachable.
    """
    global _current
    if _current is None:
        _current = RaySession(address, timeout)
        atexit.register(_current.end)
    elif _current.address != address:
        raise RequestError(
            f"this process is connected to the Ray cluster {_current.address or 'it started'!r} and can reach no other meanwhile"
        )
    return _current


def _knock(address: str, timeout: float) -> None:
    """Raise where nothing accepts connections at HOST:PORT: Ray itself would try for a quarter of an hour."""
    host, _, port = address.rpartition(":")
    if "/" in host or not port.isdecimal():  # for example ``auto``: Ray finds the address
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except (OSError, OverflowError) as error:
        raise UnreachableError(f"no Ray cluster answers at {address!r} ({error}): check the address and the firewall") from error


def _import_ray() -> Any:
    """Import Ray."""
    with _quiet():
        try:
            import ray
        except ModuleNotFoundError as error:
            raise UnavailableError(
                f"a selection over shards needs Ray, which is not installed here: {how_to_install('ray')}"
            ) from error
    return ray


def _asks_for_a_token() -> bool:
    """Tell whether the connected Ray has token authentication enabled."""
    try:
        enabled = importlib.import_module("ray._private.authentication.authentication_utils").is_token_auth_enabled
    except (ImportError, AttributeError):  # another release of Ray: unknown
        return True
    return bool(enabled())


def _quiet() -> Any:
    """Return a context in which Ray's developer warnings are suppressed."""
    return warnings.catch_warnings(action="ignore")


@contextlib.contextmanager
def _without_stderr() -> Any:
    """Suppress the log of Ray's core, a line per attempt to connect: no setting applies before it is connected."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
