"""A real pool server in a process of its own, for tests: started, killed, started again on the same port."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import fastomp_nvm as fo

__all__ = ["RunningServer", "small_data", "token_of", "write_tokens"]

ROOT = Path(fo.__file__).parents[1]


class RunningServer:
    """``fastomp serve`` as a child process.

    Parameters
    ----------
    folder : Path
        Pools, home and log live there.
    *options : str
        Further words of the command.
    program : sequence of str
        What Python is to run with these words.
    """

    def __init__(self, folder: Path, *options: str, scheme: str = "grpc", program: Sequence[str] = ("-m", "fastomp_nvm")) -> None:
        self.folder = folder
        self.program = program
        self.options = options
        self.scheme = scheme
        self.port = 0
        self.metrics_port = 0
        self.page = ""
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    @property
    def pools(self) -> Path:
        return self.folder / "pools"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self) -> None:
        """Start it, on the port it had before if it had one."""
        words = ["serve", "--pools", str(self.pools), "--listen", f"127.0.0.1:{self.port}", *self.options]
        environment = {**os.environ, "FASTOMP_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        self.home.mkdir(exist_ok=True)
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, *words], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        self.port = int(self._line(r"//127\.0\.0\.1:(\d+)"))
        if "--metrics" in self.options:
            self.metrics_port = int(self._line(r"metrics at port (\d+)"))
        if "--page" in self.options:
            self.page = self._line(r"page at (http://[^ ,]+/)")

    def token(self) -> str:
        """Return the token that clients of the same user find."""
        return (self.home / "tokens" / f"loopback-{self.port}").read_text().strip()

    def connect(self, place: str = "", **options: Any) -> fo.Client:
        """Return a client, by default with the local token."""
        if "token" not in options:
            options["token"] = self.token() if "--token-file" not in self.options else None
        return fo.connect(f"{self.url}{place}", **options)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it without warning."""
        self.process.kill()
        self.process.wait()
        self._close()

    def stop(self, timeout: float = 60.0) -> int:
        """End it orderly; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout)
        self._close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close()

    def _close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _line(self, pattern: str) -> str:
        """Wait for a line of its output that matches."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(60, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                if found := re.search(pattern, line):
                    return found[1]
        finally:
            watchdog.cancel()
        self.process.wait()
        raise AssertionError(f"the server did not start:\n{self.log[-3000:]}")


def small_data(seed: int = 0, n_obs: int = 80, n_features: int = 60) -> tuple[Any, Any]:
    """Return observations (n_obs, n_features) and a response that five features explain."""
    import numpy as np

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_obs, n_features))
    return X, X[:, 3:8] @ np.array([3.0, -2.0, 1.5, 1.0, 0.5]) + 0.1 * rng.normal(size=n_obs)


def token_of(name: str) -> str:
    """Return the token of a principal of ``write_tokens``."""
    return f"token-of-{name}-0123456789"


def write_tokens(path: Path, principals: Mapping[str, tuple[str, Sequence[str] | None]]) -> None:
    """Write a token file of principals, each with a role and, unless None, the pools that it reaches."""
    entries = []
    for name, (role, pools) in principals.items():
        digest = hashlib.sha256(token_of(name).encode()).hexdigest()
        entries.append({"name": name, "sha256": digest, "role": role, **({} if pools is None else {"pools": list(pools)})})
    path.write_text(json.dumps(entries))
    path.chmod(0o600)
