"""Many clients at once against a real server: each gets the right answer or a clear refusal: ``python -m tests.harness.crowd``.

Every client has a connection of its own, open before all of them select at the same moment. Printed are how many got the answer
that this process computes by itself, how many were told that the queue is full, and what else came, which is a failure.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from pyarrow import flight

import fastomp_nvm as fo
from tests.service.running import ROOT, RunningServer, small_data

__all__ = ["Crowd", "main"]

#: Requests of the clients, in turn.
REQUESTS: list[dict[str, Any]] = [
    *({"k": k} for k in range(1, 6)),
    {"k": 4, "algorithm": "sds_omp"},
    {"k": 3, "exclude": ["f3", "f4"]},
    {"k": 5, "constraint": "partition: {groups: {a: [f3, f4, f5]}, caps: {a: 1}}"},
]
#: Clients of one process, the time limit of their calls, long because they share one machine, and a refusal for a full queue.
_PER_PROCESS, _SECONDS = 60, 240.0
_BUSY = re.compile(r"jobs( of '\w+')? are waiting, the most this server takes")


class Crowd:
    """A server with a store, and the answers to ``REQUESTS``.

    Parameters
    ----------
    folder : Path
    *options : str
        Of the server.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        X, y = small_data()
        self._expected = [_answer(fo.select(X, y, **request)) for request in REQUESTS]
        self.server = RunningServer(folder, *options)
        with self.server.connect("/lab/data") as client:
            client.put(X, y, dtype="float64")

    def rush(self, clients: int) -> tuple[int, Counter[str]]:
        """Have clients select at once; return their connections, and what they got: right, wrong, busy, or something else."""
        counts = [min(_PER_PROCESS, clients - first) for first in range(0, clients, _PER_PROCESS)]
        words = [
            sys.executable,
            "-m",
            "tests.harness.crowd",
            "--url",
            f"{self.server.url}/lab/data",
            "--token",
            self.server.token(),
        ]
        groups = [
            subprocess.Popen([*words, "--clients", str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            for count in counts
        ]
        outcomes: Counter[str] = Counter()
        try:
            for group in groups:
                assert group.stdout is not None
                assert group.stdout.readline() == "ready\n"
            opened = [each for each in psutil.net_connections("tcp") if each.laddr.port == self.server.port and each.raddr]
            for group in groups:
                assert group.stdin is not None
                group.stdin.write("go\n")
                group.stdin.flush()
            for group in groups:
                for number, found in enumerate(json.loads(group.communicate()[0])):
                    outcomes[self._outcome(number, found)] += 1
        finally:
            for group in groups:
                group.kill()
                group.communicate()
        return len(opened), outcomes

    def _outcome(self, number: int, found: Any) -> str:
        """Return the kind of what a client got."""
        if isinstance(found, str):
            return "busy" if _BUSY.search(found) else found
        return "right" if found == self._expected[number % len(REQUESTS)] else "wrong"


def _answer(found: fo.Selection) -> list[Any]:
    """Return what is compared of an answer."""
    return [found.indices.tolist(), found.coef.tolist()]


def _be_clients(url: str, token: str, count: int) -> None:
    """Connect so many clients, wait for a line, have all select at once, and print what each got."""
    connect = flight.connect

    def separately(place: str, generic_options: Sequence[tuple[str, int]] = (), **settings: Any) -> Any:
        return connect(place, generic_options=[*generic_options, ("grpc.use_local_subchannel_pool", 1)], **settings)

    flight.connect = separately  # the library would share one connection among the clients of a process
    found: list[Any] = [None] * count
    at_once = threading.Barrier(count)

    def select(place: int, client: fo.Client) -> None:
        at_once.wait()
        try:
            found[place] = _answer(client.select(**REQUESTS[place % len(REQUESTS)]))
        except fo.FastompError as error:
            found[place] = str(error)

    clients = [fo.connect(url, token=token, timeout=_SECONDS) for _ in range(count)]
    for client in clients:
        client.ping()
    print("ready", flush=True)
    sys.stdin.readline()
    threads = [threading.Thread(target=select, args=each) for each in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(found))


def main(words: Sequence[str] | None = None) -> int:
    """Run the crowd against servers with a large and a small queue; the exit code is 1 where a client got something else."""
    parser = argparse.ArgumentParser(prog="crowd", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--token", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.url:
        _be_clients(arguments.url, arguments.token, arguments.clients)
        return 0
    failed = False
    for queue in (arguments.clients, max(arguments.clients // 10, 1)):
        with tempfile.TemporaryDirectory() as folder:
            crowd = Crowd(Path(folder), "--user-queue", str(queue))
            with crowd.server:
                connections, outcomes = crowd.rush(arguments.clients)
                crowd.server.stop()
        shown = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        print(f"{arguments.clients} clients over {connections} connections, a queue of {queue}: {shown}", flush=True)
        failed = failed or not set(outcomes) <= {"right", "busy"} or not outcomes["right"]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
