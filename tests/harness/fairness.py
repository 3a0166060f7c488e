"""How long a small job waits for its first round behind another owner's heavy ones: ``python -m tests.harness.fairness``.

A server has two users. One queues heavy jobs, each with a response of its own so that none can share a pass; once the first of them
runs, the other submits a small one. Printed are the seconds from there to its first round and to its answer, over several trials,
and those of the same small job on the idle server.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import fastomp_nvm as fo
from tests.service.running import RunningServer

__all__ = ["main"]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="heavy jobs in the queue")
    parser.add_argument("--columns", type=int, default=20_000, help="columns of the heavy jobs' data, of 4000 observations")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds after which a trial counts as failed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens.yaml"
        users = [{"name": name, "sha256": hashlib.sha256(_token(name)).hexdigest(), "role": "write"} for name in ("ann", "bob")]
        tokens.touch(mode=0o600)
        tokens.write_text(json.dumps(users))
        with RunningServer(Path(folder) / "server", "--token-file", str(tokens)) as server:
            _measure(server, arguments)


def _token(name: str) -> bytes:
    """Return the secret of a user."""
    return name.encode() * 8


def _measure(server: RunningServer, arguments: argparse.Namespace) -> None:
    """Queue the heavy jobs, then submit small ones one after the other."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, arguments.columns)).astype(np.float32)
    with server.connect("/lab/heavy", token=_token("ann").decode()) as ann, server.connect(token=_token("bob").decode()) as bob:
        ann.put(X, X[:, 0])
        bob.put(X[:500, :200], X[:500, 0], key="lab/small")
        print(f"idle: first round and answer after {_trial(bob, arguments)}")
        heavy: dict[str, Any] = {"k": 200, "algorithm": "sds_omp", "plain": True, "polish": "none"}
        names = [ann.submit(rng.normal(size=4000), **heavy) for _ in range(arguments.jobs)]
        while ann.progress(names[0])["state"] == "queued":
            time.sleep(0.05)
        for _ in range(arguments.trials):
            print(f"{arguments.jobs} heavy jobs of another user: first round and answer after {_trial(bob, arguments)}", flush=True)


def _trial(client: fo.Client, arguments: argparse.Namespace) -> str:
    """Submit a small job; return the seconds until its first round began and until its answer."""
    began = time.monotonic()
    job = client.submit(key="lab/small", k=5)
    started = None
    while time.monotonic() < began + arguments.timeout:
        state = client.progress(job)
        if started is None and any(state["progress"]):
            started = time.monotonic() - began
        if state["state"] == "done":
            now = time.monotonic() - began
            return f"{now if started is None else started:.2f} and {now:.2f} s"
        time.sleep(0.01)
    return f"more than {arguments.timeout:g} s (failed)"


if __name__ == "__main__":
    main()
