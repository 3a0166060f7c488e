"""A measurement in a process of its own, which leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

__all__ = ["run_alone"]


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
