"""The MCAS double as a running server: started, killed, started again on the same port and directory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["DOUBLES", "RunningMcas"]

DOUBLES = Path(__file__).parent
_FRAME = struct.Struct("<IQ")


class RunningMcas:
    """The server double as a child process.

    Parameters
    ----------
    folder : Path
        Where its pools are.
    dies_after : int
        Invokes after which an ADO dies, as upstream's does of a reference-count fault; 0 for never.
    """

    def __init__(self, folder: Path, dies_after: int = 0) -> None:
        self.folder, self.dies_after, self.port = folder, dies_after, 0
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    @property
    def url(self) -> str:
        return f"mcas://127.0.0.1:{self.port}/lab"

    @property
    def ado(self) -> int:
        """Process of the ADO that was started last."""
        return int((self.folder / "ado.pid").read_text())

    def start(self) -> None:
        """Start it, on the port it had before if it had one."""
        (self.folder / "port").unlink(missing_ok=True)
        root = DOUBLES.parents[1]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        command = [sys.executable, str(DOUBLES / "mcas_server.py"), str(self.folder), str(self.port), str(self.dies_after)]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        end = time.monotonic() + 20
        while not (self.folder / "port").exists() or not (self.folder / "port").read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the double did not start: {(self.folder / 'log').read_text()[-500:]}")
            time.sleep(0.02)
        self.port = int((self.folder / "port").read_text())

    def control(self, **settings: Any) -> dict[str, int]:
        """Change settings of the double (see ``mcas_server``); return the requests so far by kind."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection, connection.makefile("rb") as inbox:
            encoded = json.dumps({"call": "control", **settings}).encode()
            connection.sendall(_FRAME.pack(len(encoded), 0) + encoded)
            length, _ = _FRAME.unpack(inbox.read(_FRAME.size))
            counts: dict[str, int] = json.loads(inbox.read(length))["counts"]
            return counts

    def kill(self) -> None:
        """SIGKILL the server and the orphan that it leaves."""
        self.process.kill()
        self.process.wait()
        self.kill_ado()

    def kill_ado(self) -> None:
        """SIGKILL the ADO."""
        with contextlib.suppress(OSError, ValueError):
            os.kill(self.ado, signal.SIGKILL)
