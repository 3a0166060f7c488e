"""Execution of jobs: the journal that a job leaves, and the next server that continues from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import fastomp_nvm as fo
from ado_plugin.service import execution as module
from ado_plugin.service.execution import Execution
from ado_plugin.service.job import Job, JobRequest
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.runs import drive
from fastomp_nvm.runs.log import StateLog, read_state
from fastomp_nvm.selection.codec import encode_request
from fastomp_nvm.selection.request import make_request
from storage_backends.files.regions import DirectoryRegions
from tests.service.running import small_data


class OnePool:
    """Pools of which one store is asked for."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, pool: str, key: str) -> str:
        """Return the URL of the store, whatever its name."""
        return self._url


@pytest.fixture
def execution(tmp_path: Path) -> Execution:
    """Return an executor that keeps a journal of every job."""
    fo.create_store(str(tmp_path / "store"), *small_data()).close()
    return Execution(OnePool(str(tmp_path / "store")), tmp_path / "journals", threads=1, journal_from=0)


def job(number: int, **request: Any) -> Job:
    """Return a job over the store."""
    with fo.create_store("dram:layout", *small_data(), replace=True) as store:
        fingerprint = store.layout.fingerprint
    sent = [encode_request(make_request({"k": 6, "algorithm": "sds_omp", **request}))]
    return Job(f"job-{number}", number, JobRequest("me", "1", "lab", "data", fingerprint, sent, None, False, 1, 1, 0.0))


def after(rounds: int) -> Callable[[], bool]:
    """Return a ``cancelled`` that says yes once it was asked ``rounds`` times."""
    asked = iter(range(rounds))
    return lambda: next(asked, None) is None


def carried_out(
    execution: Execution,
    one: Job,
    observer: Callable[[Progress], None] = lambda step: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Have a job of one request carried out alone; return its answer in JSON terms."""
    found: list[Any] = []
    execution.run([one], observer, stopped, lambda job: False, lambda job, answers: found.append(answers))
    ((answer,),) = found
    return dict(answer["json"])


def records(folder: Path, of: Job) -> Sequence[bytes]:
    """Return the records in a job's journal."""
    run_id = module._run_id(of, 0)
    return read_state(DirectoryRegions(folder / "journals"), f"job-{run_id.hex()}", run_id).records


def test_jobs_leave_no_threads(execution: Execution) -> None:
    """However many jobs were carried out or cancelled, there are as many threads as before."""
    before = threading.active_count()
    for number in range(6):
        if number % 2:
            with pytest.raises(fo.CancelledError):
                carried_out(execution, job(number), stopped=after(3))
        else:
            carried_out(execution, job(number))
    assert threading.active_count() == before


def test_the_last_round_of_a_cancelled_job_is_kept(execution: Execution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that was answered is durable when a job has ended, however slow the device, and is not swept again."""
    persist = StateLog.persist

    def slow(log: StateLog) -> None:
        time.sleep(0.05)
        persist(log)

    monkeypatch.setattr(StateLog, "persist", slow)
    asked = []
    with pytest.raises(fo.CancelledError):
        carried_out(execution, job(1), asked.append, after(4))
    answered = len(asked) - 1
    assert len(records(tmp_path, job(1))) == 1 + answered == 4


def test_a_job_that_goes_on_has_the_counters_of_one_that_was_not_disturbed(
    execution: Execution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget of gathered columns is that of the first server, and the time of both is counted."""
    request = {"algorithm": "fast_omp", "k": 8}
    budgets = iter((4_000, 40_000_000, 4_000))
    monkeypatch.setattr(drive, "automatic_budget", lambda needed, pools: next(budgets))
    # Not after so many questions: without the extension inner rounds ask, too.
    with pytest.raises(fo.CancelledError):
        carried_out(
            execution, job(1, **request), lambda step: time.sleep(0.02), lambda: len(records(tmp_path, job(1, **request))) > 1
        )
    resumed, whole = carried_out(execution, job(1, **request)), carried_out(execution, job(2, **request))
    assert resumed["seconds"] >= 0.02
    assert {**resumed, "seconds": 0} == {**whole, "seconds": 0}
