"""Processes of a benchmark: measurements in a process of their own, servers, and a private ``FASTOMP_HOME``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.memory import MemoryGroup
from fastomp_nvm.errors import FastompError

__all__ = ["CellError", "private_home", "run_alone", "run_cell", "server"]


class CellError(FastompError):
    """A measurement gave no figures; the message says why."""


def run_alone(words: Sequence[str], timeout: float | None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command under further environment ``variables``, capture its output, and kill what it started, however this ends.

    Raises
    ------
    subprocess.TimeoutExpired
        After ``timeout`` seconds.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes, text=True, start_new_session=True, env=_environment() | variables) as child:
        try:
            output, errors = child.communicate(timeout=timeout)
        finally:
            # Workers and servers that it started would compete with the next measurement.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(words, child.returncode, output, errors)


def _environment() -> dict[str, str]:
    """Return the environment of a child that imports the packages of this tree."""
    paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_cell(
    module: str, cell: Mapping[str, Any], timeout: float | None = 1800, group: MemoryGroup | None = None
) -> dict[str, Any]:
    """Run ``python -m MODULE --cell JSON`` alone, within a memory limit if there is one; return the object it prints last.

    Raises
    ------
    CellError
        When it fails, is killed, or is not done after ``timeout`` seconds.
    """
    words = [sys.executable, "-P", "-m", module, "--cell", json.dumps(cell)]
    try:
        done = run_alone(words if group is None else group.command(words), timeout)
    except subprocess.TimeoutExpired as error:
        raise CellError(f"not done after {error.timeout:.0f} s") from error
    if done.returncode == -signal.SIGKILL:
        raise CellError("killed: the memory allowed does not suffice")
    if done.returncode:
        raise CellError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@contextlib.contextmanager
def server(*words: str) -> Iterator[tuple[int, int]]:
    """Run ``python -m WORDS``, a server that prints its address on loopback; yield its process id and port."""
    command = [sys.executable, "-P", "-m", *words]  # -P: packages of the working directory are not searched
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True, env=_environment()) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"grpc://127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found is not None, "the server did not start"
            yield process.pid, int(found[1])
        finally:
            process.terminate()


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
