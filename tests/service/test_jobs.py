"""The queue: bounded, fair, merging jobs on the same data, isolating failures, recovering after crashes, parking what crashes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ado_plugin.job_records import JobRecords
from ado_plugin.jobs import Job, JobLimits, JobRequest, Jobs
from fastomp_nvm.engine import Progress
from fastomp_nvm.errors import CancelledError, DataError, RequestError, ServerError


class Gate:
    """An executor that notes its batches, answers with the keys, and can be held."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.open = threading.Event()
        self.open.set()
        self.forgotten: list[str] = []

    def run(self, jobs: Sequence[Job], observer: Callable[[Progress], None], cancelled: Callable[[], bool]) -> list[Any]:
        self.batches.append([job.name for job in jobs])
        for place in range(sum(len(job.request.requests) for job in jobs)):
            observer(Progress(place, 1, 2, 3, 0.5, 7, 0.1))
        while not self.open.wait(0.01):
            if cancelled():
                raise CancelledError("cancelled")
        if cancelled():
            raise CancelledError("cancelled")
        if any(job.request.key == "bad" for job in jobs):
            raise DataError("this one is bad")
        if any(job.request.key == "bug" for job in jobs):
            raise KeyError("a bug")
        return [[{"of": job.name} for _ in job.request.requests] for job in jobs]

    def forget(self, job: Job) -> None:
        self.forgotten.append(job.name)


def request(owner: str = "ann", key: str = "data", session: str = "", **changes: Any) -> JobRequest:
    fields = {
        "pool": "lab",
        "fingerprint": "",
        "requests": [{}],
        "y": None,
        "verify": False,
        "memory": 1,
        "work": 1,
        "submitted": 0.0,
    }
    return JobRequest(owner=owner, session=session, key=key, **{**fields, **changes})


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def queue(tmp_path: Path, gate: Gate) -> Iterator[Jobs]:
    jobs = Jobs(JobRecords(tmp_path / "jobs"), gate, JobLimits(queued=6, merged=4))
    yield jobs
    gate.open.set()
    jobs.drain(1.0)


def finished(jobs: Jobs, *names: str) -> list[str]:
    """Wait for jobs to end; return their states."""
    return [list(jobs.follow(jobs.find(name, None), -1, 20.0))[-1]["state"] for name in names]


def test_jobs_on_the_same_data_share_their_sweeps(queue: Jobs, gate: Gate) -> None:
    """Waiting jobs on one key run together up to the limit; those on other keys or with a response of their own do not."""
    for name, wanted in {
        "a": request(),
        "b": request("bob"),
        "c": request(key="other"),
        "d": request(y=["x"]),
        "e": request(verify=True),
        "f": request(requests=[{}, {}, {}]),
    }.items():
        queue.submit(name, wanted)
    queue.start()
    assert finished(queue, *"abcdef") == ["done"] * 6
    assert gate.batches[0] == ["a", "b"]
    assert sorted(map(tuple, gate.batches[1:])) == [("c",), ("d",), ("e",), ("f",)]
    assert queue.answer(queue.find("b", "bob")) == [{"of": "b"}]


def test_whoever_waited_longest_is_next(queue: Jobs, gate: Gate) -> None:
    """A client with many jobs does not keep another, nor a second client of its own, waiting."""
    for place in range(3):
        queue.submit(f"greedy{place}", request("ann", key=f"k{place}", session="1"))
    queue.submit("second", request("ann", key="k8", session="2"))
    queue.submit("modest", request("bob", key="k9"))
    queue.start()
    finished(queue, "greedy0", "greedy1", "greedy2", "second", "modest")
    assert [name for (name,) in gate.batches] == ["greedy0", "modest", "second", "greedy1", "greedy2"]


def test_the_queue_is_bounded(queue: Jobs, gate: Gate) -> None:
    """Beyond the limit a job is refused with the limit named; a finished one makes room."""
    for place in range(6):
        queue.submit(f"j{place}", request())
    with pytest.raises(ServerError, match="6 jobs are waiting"):
        queue.submit("one-more", request())
    queue.start()
    finished(queue, *(f"j{place}" for place in range(6)))
    queue.submit("one-more", request())


def test_a_mistake_is_its_owners_alone(queue: Jobs, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a batch fails its jobs are run one by one; a bug of ours is a sentence, not a traceback."""
    bad = {"bad": DataError("this one is bad"), "bug": KeyError("a bug")}

    def run(jobs: Sequence[Job], *_: Any) -> list[Any]:
        gate.batches.append([job.name for job in jobs])
        for job in jobs:
            if job.name in bad:
                raise bad[job.name]
        return [[{"of": job.name}] for job in jobs]

    monkeypatch.setattr(gate, "run", run)
    for name in ("good", "bad", "bug"):
        queue.submit(name, request())
    queue.start()
    assert finished(queue, "good", "bad", "bug") == ["done", "failed", "failed"]
    assert gate.batches == [["good", "bad", "bug"], ["good"], ["bad"], ["bug"]]
    with pytest.raises(DataError, match="this one is bad"):
        queue.answer(queue.find("bad", None))
    with pytest.raises(ServerError, match="its log says why"):
        queue.answer(queue.find("bug", None))


def test_submitting_twice_is_submitting_once(queue: Jobs) -> None:
    """The same job under the same name is the same job; another under that name is refused; others' jobs are not seen."""
    first = queue.submit("x", request(session="1", submitted=1.0))
    assert queue.submit("x", request(session="2", submitted=2.0)) is first
    with pytest.raises(RequestError, match="exists already"):
        queue.submit("x", request(key="other"))
    with pytest.raises(RequestError, match="no job 'x'"):
        queue.find("x", "bob")


def test_cancelling(queue: Jobs, gate: Gate) -> None:
    """A waiting job ends at once, a running one at the next round, one of a batch without the others; resume queues it again."""
    gate.open.clear()
    running, other = queue.submit("a", request()), queue.submit("b", request())
    queue.start()
    while running.state != "running":
        time.sleep(0.01)
    waiting = queue.submit("c", request())
    queue.cancel(waiting)
    assert waiting.state == "cancelled"
    queue.cancel(running)
    gate.open.set()
    assert finished(queue, "a", "b") == ["cancelled", "done"]
    with pytest.raises(CancelledError):
        queue.answer(running)
    queue.resume(running)
    assert finished(queue, "a") == ["done"]
    queue.cancel(other)
    assert other.state == "done"
    gate.open.clear()
    alone = queue.submit("d", request())
    while alone.state != "running":
        time.sleep(0.01)
    queue.cancel(alone)
    assert finished(queue, "d") == ["cancelled"]


def test_draining_leaves_jobs_for_the_next_server(tmp_path: Path, gate: Gate) -> None:
    """A drained queue takes nothing, ends what it can, and the next one runs the rest; no crash is counted."""
    records = JobRecords(tmp_path / "jobs")
    queue = Jobs(records, gate, JobLimits())
    gate.open.clear()
    job = queue.submit("a", request())
    queue.start()
    while job.state != "running":
        time.sleep(0.01)
    queue.drain(0.05)
    assert job.state == "queued"
    with pytest.raises(ServerError, match="going down"):
        queue.submit("b", request())
    gate.open.set()
    after = Jobs(records, gate, JobLimits())
    after.start()
    assert finished(after, "a") == ["done"]
    assert after.find("a", None).crashes == 0
    after.drain(1.0)


def test_a_job_that_brings_the_server_down_is_parked(tmp_path: Path, gate: Gate) -> None:
    """A job found running three times is parked as failed; after the first time it runs alone; resume gives it one more try."""
    records = JobRecords(tmp_path / "jobs")
    Jobs(records, gate, JobLimits()).submit("bomb", request())
    for crash in (1, 2):
        records.write_state("bomb", {"order": 1, "state": "running", "crashes": crash - 1, "error": None, "changed": time.time()})
        queue = Jobs(records, gate, JobLimits())
        assert (queue.find("bomb", None).state, queue.find("bomb", None).crashes) == ("queued", crash)
    queue.submit("innocent", request())
    queue.start()
    assert finished(queue, "bomb", "innocent") == ["done", "done"]
    assert gate.batches == [["bomb"], ["innocent"]]
    queue.drain(1.0)
    records.write_state("bomb", {"order": 1, "state": "running", "crashes": 2, "error": None, "changed": time.time()})
    parked = Jobs(records, gate, JobLimits())
    with pytest.raises(ServerError, match="went down 3 times"):
        parked.answer(parked.find("bomb", None))
    parked.resume(parked.find("bomb", None))
    parked.start()
    assert finished(parked, "bomb") == ["done"]
    parked.drain(1.0)


def test_what_a_dead_server_kept_of_a_finished_job_goes(tmp_path: Path, gate: Gate) -> None:
    """A server that died between the end of a job and the removal of its journal leaves that to the next one."""
    first = Jobs(JobRecords(tmp_path / "jobs"), gate, JobLimits())
    first.submit("a", request())
    first.start()
    assert finished(first, "a") == ["done"]
    first.drain(1.0)
    later = Gate()
    Jobs(JobRecords(tmp_path / "jobs"), later, JobLimits())
    assert later.forgotten == ["a"]


def test_answers_are_kept_for_a_while(tmp_path: Path, gate: Gate) -> None:
    """A finished job survives a restart with its answer, and is forgotten with its files once it is old."""
    records = JobRecords(tmp_path / "jobs")
    queue = Jobs(records, gate, JobLimits())
    queue.submit("a", request())
    queue.start()
    finished(queue, "a")
    queue.drain(1.0)
    again = Jobs(records, gate, JobLimits(keep_seconds=0.0))
    assert again.answer(again.find("a", None)) == [{"of": "a"}]
    assert again.reap() == 1
    assert not list((tmp_path / "jobs").glob("*.json"))
    assert set(gate.forgotten) == {"a"}


def test_followers_hear_progress_and_the_end(queue: Jobs, gate: Gate) -> None:
    """A follower is told at once, at changes and at the end, and a follower of no news is let go in time."""
    gate.open.clear()
    job = queue.submit("a", request())
    quiet = list(queue.follow(job, job.version, 0.05))
    assert [standing["state"] for standing in quiet] == ["queued"]
    queue.start()
    heard = []
    for standing in queue.follow(job, -1, 20.0):
        heard.append(standing)
        if standing["progress"] and standing["progress"][0]:
            gate.open.set()
    assert heard[-1]["state"] == "done"
    assert heard[-1]["progress"][0]["selected"] == 2
    assert [standing["version"] for standing in heard] == sorted({standing["version"] for standing in heard})
