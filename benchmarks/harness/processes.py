"""Processes of a benchmark: commands that leave no process behind, and a private ``FASTOMP_HOME``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["private_home", "run_alone"]


def run_alone(words: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and capture what it says; however this ends, its own children are gone afterwards.

    Raises
    ------
    subprocess.TimeoutExpired
        After ``timeout`` seconds.
    """
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        try:
            said, complaints = child.communicate(timeout=timeout)
        finally:
            # Workers and servers that it started would compete with whatever is measured next.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(words, child.returncode, said, complaints)


@contextlib.contextmanager
def private_home() -> Iterator[Path]:
    """Yield a temporary folder whose subfolder ``home`` is ``FASTOMP_HOME`` for the duration of a ``with``."""
    before = os.environ.get("FASTOMP_HOME")
    with tempfile.TemporaryDirectory(prefix="fastomp-") as name:
        os.environ["FASTOMP_HOME"] = f"{name}/home"
        try:
            yield Path(name)
        finally:
            os.environ.pop("FASTOMP_HOME") if before is None else os.environ.update(FASTOMP_HOME=before)
