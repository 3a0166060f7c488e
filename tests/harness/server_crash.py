"""Servers killed by SIGKILL with jobs in flight and during uploads, at named points and at random times; answers are compared.

A *forker* is a process that has imported everything and forks ``fastomp serve`` on request, so that a server starts quickly and
hundreds can be killed. Kill points are wrappers that the fork installs before it serves: production code contains nothing of them.
Pools, port and token outlive the server; clients are made by ``fo.connect`` and wait for its restart. The expected
answers are in this process.

A job that was running when the server died is a suspect, and runs in a process of its own: ``suspect`` kills a server three times
under the same job, which is answered all the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import fastomp_nvm as fo
from ado_plugin.service.execution import Execution
from ado_plugin.service.records import JobRecords
from fastomp_nvm.errors import StoreURLError
from fastomp_nvm.runs.log import StateLog
from storage_backends.build.builder import StoreBuilder
from storage_backends.files.regions import FileRegion
from tests.harness.kill_trials import KillPoint, WrongAnswerError, comparable, die_at

__all__ = ["JOB_POINTS", "UPLOAD_POINTS", "KillableServer", "ServerReport", "ServerTrials"]

#: Kill points of a server with jobs in flight.
JOB_POINTS: Mapping[str, KillPoint] = {
    "before a job is recorded": (JobRecords, "write_request", True),
    "job recorded": (JobRecords, "write_request", False),
    "job state changed": (JobRecords, "write_state", False),
    "record written": (FileRegion, "write", False),
    "persist begun": (FileRegion, "start", False),
    "before persist": (FileRegion, "persist", True),
    "persisted": (FileRegion, "persist", False),
    "record acknowledged": (StateLog, "persist", False),
    "before the answer is kept": (JobRecords, "write_answer", True),
    "answer kept": (JobRecords, "write_answer", False),
    "before the journal is dropped": (Execution, "forget", True),
    "journal dropped": (Execution, "forget", False),
}

#: Kill points of a server that is receiving a store.
UPLOAD_POINTS: Mapping[str, KillPoint] = {
    "upload begun": (StoreBuilder, "__init__", False),
    "tile written": (StoreBuilder, "write_tile", False),
    "before sealing": (StoreBuilder, "finish", True),
    "sealed": (StoreBuilder, "_seal", False),
    "published": (StoreBuilder, "finish", False),
}

_ROOT = Path(__file__).parents[2]  # `tests` is found from here
_POOL, _KEY = "lab", "data"
_CLIENT_SECONDS = 60.0
_START_SECONDS = 60.0
_LONGEST_LIFE = 120.0
_POINT_SECONDS = 4.0  # in which a server reaches its point, if it does
_MOST_KILLS = 2  # of one set of jobs; the third death parks them


@dataclass(frozen=True, slots=True)
class ServerReport:
    """Counts of trials.

    Attributes
    ----------
    kills : int
        Servers that died by SIGKILL.
    jobs : int
        Jobs whose answers were compared.
    in_flight : int
        Jobs that were waiting or running at a kill, counted at each.
    uploads : int
        Uploads during which the server was killed.
    tried : list of str
        Kill points, once per server.
    reached : list of str
        Kill points that were reached; otherwise the server was killed after a time limit.
    """

    kills: int
    jobs: int = 0
    in_flight: int = 0
    uploads: int = 0
    tried: list[str] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)


class KillableServer:
    """``fastomp serve``, restarted on the same pools and the same port.

    Parameters
    ----------
    folder : Path
        Holds pools and log.
    medium : str
    """

    def __init__(self, folder: Path, medium: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.pools = folder / "pools"
        self.medium = medium
        self.kills = 0
        self._port = 0
        self._log = folder / "log"
        self._pid = 0
        words = [sys.executable, "-m", "tests.harness.server_crash"]
        # A session of its own: an interrupt typed at the terminal is this process's to handle.
        self._forker = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=_ROOT
        )

    def __enter__(self) -> KillableServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pid:
            _kill(self._pid)
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        self._forker.stdin.close()
        self._forker.wait(_START_SECONDS)
        self._forker.stdout.close()

    def start(self, point: str = "", call: int = 0) -> None:
        """Start it, to be killed at the ``call``-th call of a kill point if one is given, which may be before it serves."""
        assert self._forker.stdin is not None
        words = ["serve", "--pools", f"{self.medium}://{self.pools}", "--listen", f"127.0.0.1:{self._port}"]
        words += ["--journal-from", "0", "--threads", "1"]
        before = self._log.stat().st_size if self._log.exists() else 0
        self._forker.stdin.write(json.dumps({"words": words, "log": str(self._log), "point": point, "call": call}) + "\n")
        self._forker.stdin.flush()
        self._pid = int(self._answer())
        end = time.monotonic() + _START_SECONDS
        while not (found := re.search(rb"serving \S+ at grpc://127\.0\.0\.1:(\d+)\n", self._printed(before))):
            alive = _alive(self._pid)  # once: it may die at its point between two looks
            if point and self._port and not alive:
                return
            if time.monotonic() > end or not alive:
                raise WrongAnswerError(f"the server did not start again:\n{self.last_output()}")
            time.sleep(0.01)
        self._port = int(found[1])

    def die(self, patience: float) -> bool:
        """Wait until it is killed; return True if at its kill point, False if after ``patience`` seconds."""
        status, timed_out = self._ended(patience)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise WrongAnswerError(f"the server ended by itself with status {status}:\n{self.last_output()}")
        self.kills += 1
        return not timed_out

    def stop(self) -> None:
        """End it by SIGTERM."""
        os.kill(self._pid, signal.SIGTERM)
        status, _ = self._ended(_LONGEST_LIFE)
        if status:
            raise WrongAnswerError(f"a server ended by SIGTERM has status {status}:\n{self.last_output()}")

    def connect(self) -> fo.Client:
        """Return a client that waits through the deaths of the server."""
        client = fo.connect(f"grpc://127.0.0.1:{self._port}/{_POOL}/{_KEY}", timeout=_CLIENT_SECONDS)
        client._heard = True  # the client waits for a restart from the first call on
        return client

    def unfinished_jobs(self) -> int:
        """Return how many jobs a dead server left waiting or running."""
        states = (state["state"] for _, _, state in JobRecords(self.pools / ".fastomp" / "jobs").load())
        return sum(state in ("queued", "running") for state in states)

    def leftovers(self) -> list[str]:
        """Return files that belong to no store and to no unfinished job."""
        journals = (self.pools / ".fastomp" / "journals").glob("[!.]*")
        return sorted(path.name for path in (*journals, *(self.pools / _POOL).glob(".*")))

    def last_output(self) -> str:
        """Return the end of the servers' output."""
        return self._printed(0)[-4000:].decode(errors="replace")

    def _ended(self, patience: float) -> tuple[int, bool]:
        """Wait until it has ended; return its status as waitpid(2) has it, and whether we killed it after ``patience`` seconds."""
        timed_out = threading.Event()

        def kill(pid: int) -> None:
            timed_out.set()
            _kill(pid)

        killer = threading.Timer(patience, kill, (self._pid,))
        killer.start()
        try:
            status, self._pid = int(self._answer()), 0
        finally:
            killer.cancel()
        return status, timed_out.is_set()

    def _answer(self) -> str:
        """Return the next line from the forker."""
        assert self._forker.stdout is not None
        line = self._forker.stdout.readline()
        if not line:
            raise WrongAnswerError("the process that starts the servers has ended")
        return line

    def _printed(self, since: int) -> bytes:
        """Return the output of the server after an offset in the log."""
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(since)
            return file.read()
        return b""


class ServerTrials:
    """A server per medium, and the answers its clients must get.

    Parameters
    ----------
    folder : Path
    X : (n_obs, n_features) array
    targets : mapping of str to (n_obs,) array
    requests : mapping of str to mapping
        Fields of ``SelectionRequest``, by a name for each.
    media : sequence of str
    """

    def __init__(
        self, folder: Path, X: Any, targets: Mapping[str, Any], requests: Mapping[str, Mapping[str, Any]], media: Sequence[str]
    ) -> None:
        self._requests = requests
        self._data = X, dict(targets)
        self._expected: dict[tuple[str, str], dict[str, Any]] = {}
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self._servers = [stack.enter_context(KillableServer(folder / f"server-{medium}", medium)) for medium in media]
            for server in self._servers:
                server.start()
                with server.connect() as client:
                    self._fingerprint = client.put(*self._data)["fingerprint"]
                server.stop()
                for name, request in requests.items():
                    found = fo.select(f"{server.medium}://{server.pools}/{_POOL}/{_KEY}", threads=1, **request)
                    self._expected[server.medium, name] = comparable(found)
            self._stack = stack.pop_all()

    def __enter__(self) -> ServerTrials:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:  # the logs are removed with the folder
            for server in self._servers:
                sys.stderr.write(f"output of the server on {server.medium}:\n{server.last_output()}\n")
        self._stack.close()

    def kill_with_jobs(self, trial: int) -> ServerReport:
        """Kill a server twice that has a job of every kind in flight from two clients; all must be answered in the end."""
        server, chance = self._servers[trial % len(self._servers)], random.Random(trial)
        names, report = list(self._requests), ServerReport(0, len(self._requests))
        kills, in_flight = server.kills, 0
        chance.shuffle(names)
        point = list(JOB_POINTS)[trial // 2 // len(self._servers) % len(JOB_POINTS)] if trial // len(self._servers) % 2 else ""

        def start() -> None:
            """Start a server, with its kill point if there is one."""
            server.start(point, chance.randrange(len(names)) if point else 0)

        def die() -> None:
            """See the server die, at its point or at a random time."""
            if server.die(_POINT_SECONDS if point else 0.6 * chance.random()) and point:
                report.reached.append(point)
            if point:
                report.tried.append(point)

        start()
        with ThreadPoolExecutor(2) as clients:
            parts = [clients.submit(self._ask, server, trial, names[first::2]) for first in (0, 1)]
            for death in range(1, _MOST_KILLS + 1):
                die()
                in_flight += server.unfinished_jobs()
                if death < _MOST_KILLS:
                    start()
            server.start()
            found = {name: answer for part in parts for name, answer in part.result(_LONGEST_LIFE).items()}
        server.stop()
        for name in names:
            if found[name] != self._expected[server.medium, name]:
                raise WrongAnswerError(f"trial {trial}: the answer to {name} is not that of the uninterrupted run")
        self._check_clean(server, f"trial {trial}")
        return replace(report, kills=server.kills - kills, in_flight=in_flight)

    def kill_with_upload(self, trial: int) -> ServerReport:
        """Kill a server that is receiving a store: the store is absent afterwards, or whole; the client returns."""
        server, chance = self._servers[trial % len(self._servers)], random.Random(trial)
        turn, kills = trial // len(self._servers), server.kills
        path = server.pools / _POOL / "new"
        point = list(UPLOAD_POINTS)[turn // 2 % len(UPLOAD_POINTS)] if turn % 2 else ""
        server.start(point)
        with ThreadPoolExecutor(1) as clients:
            sent: Future[Any] = clients.submit(self._put, server)
            reached = server.die(_POINT_SECONDS if point else 0.2 * chance.random())
            there = path.exists()
            if there:
                self._check_whole(server, path)
            server.start()
            outcome = sent.result(_LONGEST_LIFE)
        # Published, but killed before it could answer: the client gets the error that the key exists.
        if isinstance(outcome, StoreURLError) and not there:
            raise WrongAnswerError(f"upload {trial}: {outcome}")
        self._check_whole(server, path)
        with server.connect() as client:
            client.delete(f"{_POOL}/new")
        server.stop()
        self._check_clean(server, f"upload {trial}")
        tried = [point] if point else []
        return ServerReport(server.kills - kills, uploads=1, tried=tried, reached=tried if reached else [])

    def suspect(self, place: int) -> ServerReport:
        """Kill a server three times under the same job: nobody shows that the job did it, so the job is answered after all."""
        server = self._servers[place % len(self._servers)]
        kills, (name, request) = server.kills, next(iter(self._requests.items()))
        server.start("before the answer is kept")
        with server.connect() as client:
            job = client.submit(run=f"suspect-{place}", **request)
            for death in range(3):
                if not server.die(10.0):
                    raise WrongAnswerError("a server with one job did not reach its answer")
                if death < 2:
                    server.start("before the answer is kept")
            server.start()
            answer = comparable(client.result(job)[0])
        server.stop()
        if answer != self._expected[server.medium, name]:
            raise WrongAnswerError("a job under which the server died three times came to another answer")
        self._check_clean(server, "a suspected job")
        return ServerReport(server.kills - kills, 1, 3)

    def _ask(self, server: KillableServer, trial: int, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Submit jobs as a client and return their answers."""
        with server.connect() as client:
            jobs = {name: client.submit(run=f"{trial}-{name}", **self._requests[name]) for name in names}
            return {name: comparable(client.result(job)[0]) for name, job in jobs.items()}

    def _put(self, server: KillableServer) -> Any:
        """Upload a store as a client; return the report, or the error that the key exists."""
        with server.connect() as client:
            try:
                return client.put(*self._data, key=f"{_POOL}/new")
            except StoreURLError as error:
                return error

    def _check_whole(self, server: KillableServer, path: Path) -> None:
        """Check that a visible store is complete."""
        with fo.open_store(f"{server.medium}://{path}") as store:
            store.verify()
            if store.layout.fingerprint != self._fingerprint:
                raise WrongAnswerError(f"{path} does not hold the data that were sent")

    def _check_clean(self, server: KillableServer, what: str) -> None:
        """Check that the store is sound and nothing else is left."""
        self._check_whole(server, server.pools / _POOL / _KEY)
        if leftovers := server.leftovers():
            raise WrongAnswerError(f"{what}: the server left {leftovers} behind")


def _kill(pid: int) -> None:
    """Kill a process, unless it has died already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    """Tell whether a process exists and is not only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def _fork_servers() -> None:
    """Fork a server per line of standard input; print its process id, and its status when it has ended."""
    _die_with_parent()
    from fastomp_nvm.cli.main import main

    for module in (
        "ado_plugin.service.server",
        "ado_plugin.service.logs",
        "ado_plugin.commands.serve",
        "fastomp_nvm.selection.select",
    ):
        importlib.import_module(module)
    for medium in ("mmap", "pmem"):
        importlib.import_module(f"storage_backends.media.{medium}")
    for line in sys.stdin:
        wanted = json.loads(line)
        child = os.fork()
        if not child:
            _serve(main, wanted)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


def _serve(main: Callable[[Sequence[str]], int], wanted: Mapping[str, Any]) -> NoReturn:
    """Serve, with a kill point if one is wanted."""
    code = 1
    try:
        _die_with_parent()
        log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        if wanted["point"]:
            die_at({**JOB_POINTS, **UPLOAD_POINTS}[wanted["point"]], wanted["call"])
        code = main(wanted["words"])
    finally:
        os._exit(code)


def _die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    _fork_servers()
