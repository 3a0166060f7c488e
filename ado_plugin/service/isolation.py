"""A job in a process of its own: evidence whether it was this job that ended the server.

A job that was running when a server died is a suspect, not a culprit: the server may have died of anything. It is run again by
``python -m ado_plugin.service.isolation``, which reads the job from its standard input, writes progress, answers or an error to its
standard output, a line of JSON each, and ends with the server. A job that ends this process is parked; the server goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from ado_plugin.service.job import Job, JobRequest
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import CancelledError, FastompError, ServerError, encode_error, raise_error
from fastomp_nvm.matrix import lost_pages

__all__ = ["run_isolated"]

#: Arguments of Python that start the process.
_PROGRAM = ("-m", "ado_plugin.service.isolation")
#: Seconds between two questions whether the job is still wanted.
_STEP_SECONDS = 0.1


def run_isolated(
    job: Job,
    settings: dict[str, Any],
    observer: Callable[[Progress], None],
    stopped: Callable[[], bool],
    dropped: Callable[[Job], bool],
    ended: Callable[[Job, list[dict[str, Any]] | None], None],
) -> None:
    """Run a job in a process of its own.

    Parameters
    ----------
    job : Job
    settings : dict
        Arguments of ``Execution`` for the process: ``url`` of the store, ``folder``, ``threads`` and ``journal_from``.
    observer, stopped, dropped, ended : callable
        As for ``Executor.run``.

    Raises
    ------
    ServerError
        The job ended its process.
    """
    process = subprocess.Popen([sys.executable, *_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader = threading.Thread(target=_forward, args=(process.stdout, lines), name="isolated", daemon=True)
    reader.start()
    try:
        sent = {"name": job.name, "order": job.order, "request": asdict(job.request), "settings": settings}
        with contextlib.suppress(BrokenPipeError):  # it has ended, as its exit code will tell
            process.stdin.write(json.dumps(sent).encode() + b"\n")
            process.stdin.flush()
        while True:
            if stopped():
                raise CancelledError("the job was cancelled")
            if dropped(job):
                return ended(job, None)
            try:
                line = lines.get(timeout=_STEP_SECONDS)
            except queue.Empty:
                continue
            if not line:
                raise ServerError(
                    f"the server crashed while this job ran, and alone it ended its process (exit code {process.wait()}), "
                    "so it is parked: resume it to try once more"
                )
            report = json.loads(line)
            if "error" in report:
                raise_error(report["error"])
            if "answers" in report:
                return ended(job, report["answers"])
            observer(Progress.of_json(report["step"]))
    finally:
        process.kill()
        process.wait()
        reader.join()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):  # the process did not read all of the job
                pipe.close()


def _forward(source: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Put the lines of a pipe into a queue; an empty or incomplete one means the end."""
    while (line := source.readline()).endswith(b"\n"):
        lines.put(line)
    lines.put(b"")


class _OneStore:
    """The store of the job, in place of the pools, which belong to the server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, pool: str, key: str) -> str:
        """Return the URL of the store."""
        return self._url


def _main() -> None:
    """Run the job that standard input describes."""
    from ado_plugin.service.execution import Execution  # which imports this module

    sent = json.loads(sys.stdin.buffer.readline())
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else writes to standard output must not mix with the reports
    lost_pages.install_guard()
    warnings.simplefilter("ignore")

    def report(**content: Any) -> None:
        output.write(json.dumps(content).encode() + b"\n")
        output.flush()

    def follow_server() -> None:
        sys.stdin.buffer.read()  # returns when the server has ended
        os._exit(1)

    threading.Thread(target=follow_server, daemon=True).start()
    job = Job(sent["name"], sent["order"], JobRequest(**sent["request"]))
    settings = sent["settings"]
    execution = Execution(_OneStore(settings["url"]), Path(settings["folder"]), settings["threads"], settings["journal_from"])
    try:
        execution.run(
            [job],
            lambda step: report(step=step.to_json()),
            lambda: False,
            lambda _: False,
            lambda _, answers: report(answers=answers),
        )
    except FastompError as error:
        report(error=encode_error(error))
    os._exit(0)


if __name__ == "__main__":
    _main()
