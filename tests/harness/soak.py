"""A server under steady load and repeated misfortune: ``python -m tests.harness.soak [--seconds 1800]``.

Clients of three users select all the time and compare every answer with the expected one. Meanwhile the server is killed, its disk
is full for a while, and its descriptors are used up, in turn and each at least twice. After each the service has to come back by
itself: every user gets an answer again, and ``/health`` says ``ok``. The memory of the server after the first round and at the end
is printed. The disk is a small tmpfs in a mount namespace of this process; where the system allows none, that part is left out.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

import fastomp_nvm as fo
from fastomp_nvm.errors import FastompError
from tests.service.running import RunningServer, small_data

__all__ = ["main"]

_USERS = ("ann", "bob", "eve")
#: Seconds that a misfortune lasts, and within which the service is to be back.
_TROUBLE, _BACK = 3.0, 30.0
_PLACE = "FASTOMP_SOAK_DISK"


def main() -> int:
    """Run the soak; return 1 if an answer was wrong or the service did not come back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if _PLACE not in os.environ:
            again = f'exec "$0" -m tests.harness.soak --seconds {arguments.seconds}'
            mounted = f'mount -t tmpfs -o size=256m tmpfs "{folder}" && {again}'
            words = ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted, sys.executable]
            if subprocess.run([*words[:3], "true"], capture_output=True).returncode == 0:
                return subprocess.run(words, env={**os.environ, _PLACE: folder}).returncode
            print("no mount namespace here: the disk is not filled")
        return _Soak(Path(os.environ.get(_PLACE, folder)), arguments.seconds).run()


class _Soak:
    """A server, its clients, and what befell them."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.end = time.monotonic() + seconds
        self.answers: Counter[str] = Counter()
        self.faults: list[str] = []
        tokens = folder / "tokens.yaml"
        users = [{"name": name, "sha256": hashlib.sha256(name.encode() * 8).hexdigest(), "role": "write"} for name in _USERS]
        tokens.touch(mode=0o600)
        tokens.write_text(json.dumps(users))
        options = ("--metrics", "127.0.0.1:0", "--token-file", str(tokens), "--journal-from", "1B")
        self.server = RunningServer(folder / "server", *options)
        X, y = small_data(n_obs=400, n_features=300)
        self.expected = {k: list(fo.select(X, y, k=k).features) for k in (2, 5, 9)}
        with self.client("ann") as client:
            client.put(X, y)

    def client(self, name: str) -> fo.Client:
        """Return a client of a user."""
        return self.server.connect("/lab/data", token=name * 8)

    def run(self) -> int:
        """Have misfortune after misfortune until the time is over; return the exit code."""
        loads = [threading.Thread(target=self._load, args=(name,), daemon=True) for name in _USERS]
        for load in loads:
            load.start()
        misfortunes: list[Callable[[], None]] = [self._use_descriptors, self._kill]
        if _PLACE in os.environ:
            misfortunes.insert(0, self._fill_disk)
        rounds, early = 0, 0
        while rounds < 2 or time.monotonic() < self.end:
            for misfortune in misfortunes:
                misfortune()
                self._wait_for_service(misfortune.__name__.strip("_"))
            rounds += 1
            early = early or self._memory()
        self.end = 0.0
        for load in loads:
            load.join(60)
        late = self._memory()
        self.server.stop()
        print(f"{rounds} rounds; {sum(self.answers.values())} answers; memory {early >> 20} MiB early, {late >> 20} MiB late")
        for fault in self.faults:
            print(f"FAULT: {fault}")
        return 1 if self.faults else 0

    def _load(self, name: str) -> None:
        """Select all the time and compare the answers; errors are part of misfortunes, wrong answers are not."""
        with self.client(name) as client:
            while self.end:
                for k, expected in self.expected.items():
                    try:
                        found = list(client.select(k=k).features)
                    except FastompError:
                        time.sleep(0.2)
                        continue
                    self.answers[name] += 1
                    if found != expected:
                        self.faults.append(f"{name}: {found} for k = {k}, expected {expected}")

    def _wait_for_service(self, after: str) -> None:
        """Wait until every user has an answer again and the health is good."""
        began, before = time.monotonic(), self.answers.copy()
        while time.monotonic() < began + _BACK:
            if all(self.answers[name] > before[name] for name in _USERS) and self._healthy():
                print(f"after {after}: back in {time.monotonic() - began:.1f} s", flush=True)
                return
            time.sleep(0.1)
        self.faults.append(f"after {after}: not back in {_BACK:g} s")

    def _healthy(self) -> bool:
        """Return whether the server says that it is well."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.server.metrics_port}/health", timeout=5) as reply:
                return bool(reply.readline() == b"ok\n")
        except OSError:
            return False

    def _fill_disk(self) -> None:
        """Leave no byte on the disk for a while."""
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        time.sleep(_TROUBLE)
        filler.unlink()

    def _use_descriptors(self) -> None:
        """Allow the server no further descriptor for a while."""
        pid = self.server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), hard))
        time.sleep(_TROUBLE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    def _kill(self) -> None:
        """Kill the server and start it again."""
        self.server.kill()
        self.server.start()

    def _memory(self) -> int:
        """Return the resident bytes of the server."""
        return int(psutil.Process(self.server.process.pid).memory_info().rss)


if __name__ == "__main__":
    sys.exit(main())
