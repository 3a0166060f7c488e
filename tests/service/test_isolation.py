"""Jobs suspected of a crash run in a process of their own, which they may end without harm to the server."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastomp_nvm as fo
from ado_plugin.service.execution import Execution
from ado_plugin.service.job import Job, JobRequest
from ado_plugin.service.pools import Pools
from fastomp_nvm.engine.engine import Progress
from tests.service.running import small_data

#: A process that dies of a segmentation fault.
CRASHING = ("-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
#: A process that never ends by itself.
ENDLESS = ("-c", "import time; time.sleep(1000)")


class Suspect:
    """A job that was running in a crash, and what becomes of it.

    Parameters
    ----------
    folder : Path
    **changes
        Fields of the request.
    """

    def __init__(self, folder: Path, **changes: Any) -> None:
        pools = Pools(str(folder / "pools"))
        X, y = small_data()
        (folder / "pools" / "lab").mkdir()
        store = fo.create_store(pools._url(folder / "pools" / "lab" / "data"), X, y)
        request = JobRequest("ann", "", "lab", "data", store.layout.fingerprint, [{"k": 3, **changes}], None, False, 1, 1, 0.0)
        self.job = Job("suspect", 1, request, state="running", crashes=1)
        self.execution = Execution(pools, folder / "journals")
        self.steps: list[Progress] = []
        self.answers: list[Any] = []

    def run(self, stopped: Callable[[], bool] = lambda: False, dropped: Callable[[Job], bool] = lambda job: False) -> None:
        self.execution.run([self.job], self.steps.append, stopped, dropped, lambda job, found: self.answers.append(found))


def test_the_answer_is_that_of_the_server(tmp_path: Path) -> None:
    """A suspect that is innocent has its progress reported, and gets the answer that the server itself computes."""
    suspect = Suspect(tmp_path)
    suspect.run()
    assert list(suspect.steps[-1].features) == suspect.answers[0][0]["json"]["indices"]
    suspect.job = dataclasses.replace(suspect.job, crashes=0)
    suspect.run()
    alone, within = ({**answers[0]["json"], "seconds": 0, "choices": 0} for answers in suspect.answers)
    assert alone == within


def test_a_job_that_ends_its_process_is_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that the job ended its process, and by which signal."""
    monkeypatch.setattr("ado_plugin.service.isolation._PROGRAM", CRASHING)
    with pytest.raises(fo.ServerError, match=r"exit code -11\), so it is parked"):
        Suspect(tmp_path).run()


def test_an_error_is_no_crash(tmp_path: Path) -> None:
    """An error of the job arrives as what it is."""
    with pytest.raises(fo.ConstraintError, match="unknown constraint"):
        Suspect(tmp_path, constraint="colour: 3").run()


def test_a_suspect_can_be_cancelled_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that computes for ever ends with its job's cancellation, and with the server's stop."""
    monkeypatch.setattr("ado_plugin.service.isolation._PROGRAM", ENDLESS)
    suspect = Suspect(tmp_path)
    soon = time.monotonic() + 0.3
    suspect.run(dropped=lambda job: time.monotonic() > soon)
    assert suspect.answers == [None]
    with pytest.raises(fo.CancelledError):
        suspect.run(stopped=lambda: True)
