"""The queue: bounded, fair, merging jobs on the same data, isolating failures, recovering after crashes, parking crashing jobs."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ado_plugin.service.job import Job, JobRequest
from ado_plugin.service.jobs import Jobs
from ado_plugin.service.limits import JobLimits
from ado_plugin.service.records import JobRecords
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import CancelledError, DataError, MediumError, RequestError, ServerError


class Gate:
    """An executor that notes its batches, answers with the keys, and can be held."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.open = threading.Event()
        self.open.set()
        self.forgotten: list[str] = []
        self.journals = False

    def keeps_journals(self, jobs: Sequence[Job]) -> bool:
        return self.journals

    def run(
        self,
        jobs: Sequence[Job],
        observer: Callable[[Progress], None],
        stopped: Callable[[], bool],
        dropped: Callable[[Job], bool],
        ended: Callable[[Job, list[dict[str, Any]] | None], None],
    ) -> None:
        self.batches.append([job.name for job in jobs])
        for place in range(sum(len(job.request.requests) for job in jobs)):
            observer(Progress(place, 1, 2, 3, 0.5, 7, 0.1))
        observer(Progress(0, 1, 2, 3, 0.5, 9, 0.2, runs=9, sweep=2, share=0.25))
        left = list(jobs)
        while left and not self.open.wait(0.01):
            if stopped():
                raise CancelledError("cancelled")
            for job in [job for job in left if dropped(job)]:
                left.remove(job)
                ended(job, None)
        for job in left:
            ended(job, None if dropped(job) else [{"of": job.name} for _ in job.request.requests])

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


class Disk:
    """The module ``os`` as the records see it; opening a file fails with ``code`` while that is set."""

    def __init__(self) -> None:
        self.code: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, *arguments: Any, **options: Any) -> int:
        if self.code is not None:
            raise OSError(self.code, os.strerror(self.code))
        return os.open(*arguments, **options)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Return the switch of the disk under the records; the worker tries again soon."""
    found = Disk()
    monkeypatch.setattr("fastomp_nvm.durable_files.os", found)
    monkeypatch.setattr("ado_plugin.service.jobs._RETRY_SECONDS", 0.01)
    return found


def noticed(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; False when it does not for long."""
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_job_outlives_a_disk_that_takes_no_records(
    queue: Jobs, gate: Gate, disk: Disk, tmp_path: Path, state: str, code: int
) -> None:
    """A record that cannot be written for a while, at a job's start or end, delays the job; the reason is known meanwhile."""
    job = queue.submit("secret", request())
    if state == "running":
        gate.open.clear()
        queue.start()
        assert noticed(lambda: bool(gate.batches))
        disk.code = code
        gate.open.set()
    else:
        disk.code = code
        queue.start()
    assert noticed(lambda: queue.trouble == f"job records cannot be written: {os.strerror(code)}")
    with pytest.raises(MediumError):
        queue.submit("refused", request())
    if state == "queued":
        with pytest.raises(MediumError):
            queue.cancel(job)
    assert (job.state, job.error) == (state, None)
    disk.code = None
    assert finished(queue, "secret") == ["done"]
    assert queue.trouble is None
    assert queue.answer(job) == [{"of": "secret"}]
    assert [(name, record["state"]) for name, _, record in JobRecords(tmp_path / "jobs").load()] == [("secret", "done")]


def test_a_job_that_waits_for_room_can_be_cancelled(queue: Jobs, gate: Gate, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that never fits does not hold the worker for ever: its job is cancelled and the next one runs."""
    full = MediumError("full")

    def refuse(*_: Any) -> None:
        tried.set()
        raise full

    tried = threading.Event()
    monkeypatch.setattr(JobRecords, "write_answer", refuse)
    job = queue.submit("large", request())
    queue.start()
    assert tried.wait(20)
    queue.cancel(job)
    assert finished(queue, "large") == ["cancelled"]
    monkeypatch.undo()
    queue.submit("next", request())
    assert finished(queue, "next") == ["done"]


def test_the_worker_survives_a_bug(queue: Jobs, monkeypatch: pytest.MonkeyPatch, disk: Disk) -> None:
    """An unexpected error fails the current job, and the worker continues; a dead worker is reported."""
    failing = ["a bug"]
    original = queue._run

    def run(*arguments: Any) -> None:
        if failing:
            raise RuntimeError(failing.pop())
        original(*arguments)

    monkeypatch.setattr(queue, "_run", run)
    queue.submit("first", request())
    queue.start()
    assert finished(queue, "first") == ["failed"]
    queue.submit("second", request())
    assert finished(queue, "second") == ["done"]
    assert queue.trouble is None
    monkeypatch.setattr(queue, "_workers", [threading.Thread(target=int)])
    queue.start()
    assert noticed(lambda: queue.trouble == "a job worker is not running")


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
    finished(queue, "one-more")
    gate.open.clear()
    for place in range(6):
        queue.submit(f"k{place}", request(key="other"))
    stopped = queue.find("k5", None)
    queue.cancel(stopped)
    queue.submit("in-its-place", request(key="other"))
    with pytest.raises(ServerError, match="6 jobs are waiting"):
        queue.resume(stopped)


def test_a_mistake_is_its_owners_alone(queue: Jobs, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a batch fails its jobs are run one by one; a bug is reported as one sentence, not as a traceback."""
    bad = {"bad": DataError("this one is bad"), "bug": KeyError("a bug")}

    def run(jobs: Sequence[Job], *callbacks: Any) -> None:
        gate.batches.append([job.name for job in jobs])
        for job in jobs:
            if job.name in bad:
                raise bad[job.name]
            callbacks[-1](job, [{"of": job.name}])

    monkeypatch.setattr(gate, "run", run)
    for name in ("good", "bad", "bug", "last"):
        queue.submit(name, request())
    queue.start()
    assert finished(queue, "good", "bad", "bug", "last") == ["done", "failed", "failed", "done"]
    assert gate.batches == [["good", "bad", "bug", "last"], ["bad"], ["bug"], ["last"]], (
        "an answer that stood is not asked for again"
    )
    with pytest.raises(DataError, match="this one is bad"):
        queue.answer(queue.find("bad", None))
    with pytest.raises(ServerError, match="see its log"):
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
    assert finished(queue, "a") == ["cancelled"]
    assert other.state == "running", "one of a batch ends while the others go on"
    gate.open.set()
    assert finished(queue, "b") == ["done"]
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


@pytest.mark.parametrize("noticed", [False, True])
def test_resuming_what_is_only_being_cancelled(tmp_path: Path, noticed: bool) -> None:
    """A job resumed before it ended of its cancellation has its answer, whether or not it was being dropped at that moment."""

    class Hesitant(Gate):
        """Reads the cancellation while the job is being resumed, and acts on the value read."""

        def run(self, jobs: Any, observer: Any, stopped: Any, dropped: Any, ended: Any) -> None:
            if self.forgotten or self.batches:
                super().run(jobs, observer, stopped, dropped, ended)
                return
            self.batches.append([job.name for job in jobs])
            queue.cancel(jobs[0])
            heard = noticed and dropped(jobs[0])
            queue.resume(jobs[0])
            ended(jobs[0], None if heard else [{"of": "a"}])

    gate = Hesitant()
    gate.open.set()
    queue = Jobs(JobRecords(tmp_path / "jobs"), gate, JobLimits())
    job = queue.submit("a", request())
    queue.start()
    assert finished(queue, "a") == ["done"]
    assert queue.answer(job) == [{"of": "a"}]
    assert len(gate.batches) == 1 + noticed
    queue.drain(1.0)


def test_draining_leaves_jobs_for_the_next_server(tmp_path: Path, gate: Gate) -> None:
    """A drained queue takes no jobs, ends those it can, and the next queue runs the rest; no crash is counted."""
    records = JobRecords(tmp_path / "jobs")
    queue = Jobs(records, gate, JobLimits())
    gate.open.clear()
    job = queue.submit("a", request())
    queue.start()
    while job.state != "running":
        time.sleep(0.01)
    queue.drain(0.05)
    assert job.state == "queued"
    with pytest.raises(ServerError, match="shutting down"):
        queue.submit("b", request())
    gate.open.set()
    after = Jobs(records, gate, JobLimits())
    after.start()
    assert finished(after, "a") == ["done"]
    assert after.find("a", None).crashes == 0
    after.drain(1.0)


def test_a_stop_that_its_worker_does_not_hear_is_no_crash(tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a worker that is still in a sweep when the server gives up wait for the next one; its late answer is not kept."""
    records = JobRecords(tmp_path / "jobs")
    queue = Jobs(records, gate, JobLimits())
    begun, late = threading.Event(), threading.Event()

    def deaf(jobs: Sequence[Job], *callbacks: Any) -> None:
        begun.set()
        late.wait(60)
        callbacks[-1](jobs[0], [{"of": "the dead"}])

    monkeypatch.setattr(gate, "run", deaf)
    monkeypatch.setattr(threading.Thread, "join", lambda worker, timeout: None)
    job = queue.submit("a", request())
    queue.start()
    assert begun.wait(60)
    queue.drain(0.0)
    after = Jobs(records, Gate(), JobLimits())
    assert (after.find("a", None).state, after.find("a", None).crashes) == ("queued", 0)
    monkeypatch.undo()
    late.set()
    for worker in queue._workers:
        worker.join(60)
    assert job.state == "queued"
    assert not list((tmp_path / "jobs").glob("*.answer.json"))


def test_crashes_alone_do_not_park_a_job(tmp_path: Path, gate: Gate) -> None:
    """A job found running however often is queued again, as a suspect that shares no sweep with others."""
    records = JobRecords(tmp_path / "jobs")
    Jobs(records, gate, JobLimits()).submit("suspect", request())
    for crash in (1, 2, 3, 4):
        state = {"order": 1, "state": "running", "crashes": crash - 1, "error": None, "changed": time.time()}
        records.write_state("suspect", state)
        queue = Jobs(records, gate, JobLimits())
        assert (queue.find("suspect", None).state, queue.find("suspect", None).crashes) == ("queued", crash)
    queue.submit("innocent", request())
    queue.start()
    assert finished(queue, "suspect", "innocent") == ["done", "done"]
    assert gate.batches == [["suspect"], ["innocent"]]
    queue.drain(1.0)


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


def test_what_ended_is_kept_light_and_bounded(tmp_path: Path, gate: Gate) -> None:
    """Vectors leave memory when a job ends and come back with resume; so many jobs and bytes of an owner are kept."""
    long = {"dtype": "<f8", "base64": "A" * 100_000}
    records = JobRecords(tmp_path / "jobs")
    queue = Jobs(records, gate, JobLimits(kept=3))
    gate.open.clear()
    first = queue.submit("first", request(y=long, requests=[{"k": 2, "weights": long}]))
    queue.start()
    while first.state != "running":
        time.sleep(0.01)
    queue.cancel(first)
    assert finished(queue, "first") == ["cancelled"]
    assert len(str(first.request)) < 2000
    assert queue.submit("first", request(y=long, requests=[{"weights": long, "k": 2}])) is first
    with pytest.raises(RequestError, match="exists already"):
        queue.submit("first", request(y={**long, "base64": "B" * 100_000}, requests=[{"k": 2, "weights": long}]))
    gate.open.set()
    queue.resume(first)
    assert finished(queue, "first") == ["done"]
    assert sum(path.stat().st_size for path in (tmp_path / "jobs").iterdir()) < 10_000, "a job that is done needs no vectors"
    queue.submit("of-another", request("bob"))
    finished(queue, "of-another")
    for place in range(4):
        queue.submit(f"j{place}", request())
        finished(queue, f"j{place}")
    assert sorted(queue._jobs) == ["j1", "j2", "j3", "of-another"]
    assert {path.name.split(".")[0] for path in (tmp_path / "jobs").iterdir()} == set(queue._jobs)
    queue.drain(1.0)
    small = Jobs(records, gate, JobLimits(kept_bytes=1))
    small.start()
    small.submit("last", request())
    assert finished(small, "last") == ["done"]
    assert sorted(small._jobs) == ["last", "of-another"]
    small.drain(1.0)


def test_a_session_for_each_job_is_no_privilege(queue: Jobs, gate: Gate) -> None:
    """A session that has waited is served before those that were opened since, however many of them there are."""
    queue.submit("first", request(key="k0", session="patient"))
    queue.submit("waiting", request(key="k1", session="patient"))
    gate.open.clear()
    queue.start()
    while not gate.batches:
        time.sleep(0.01)
    for place in range(4):
        queue.submit(f"new{place}", request(key=f"n{place}", session=f"shell{place}"))
    gate.open.set()
    finished(queue, "waiting", *(f"new{place}" for place in range(4)))
    assert [name for (name,) in gate.batches][:2] == ["first", "waiting"]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("state", "[]"),
        ("state", "{}"),
        ("state", '{"order": null, "state": "queued", "crashes": 0, "error": null, "changed": 0}'),
        ("state", '{"order": 1, "state": "lost", "crashes": 0, "error": null, "changed": 0}'),
        ("request", "3"),
        ("request", '{"owner": "ann", "colour": 1}'),
        ("request", "[" * 100_000),
    ],
)
def test_one_odd_record_does_not_stop_a_server(tmp_path: Path, gate: Gate, suffix: str, text: str) -> None:
    """A job with invalid records is skipped, and the others are recovered."""
    records = JobRecords(tmp_path / "jobs")
    queue = Jobs(records, gate, JobLimits())
    queue.submit("good", request())
    queue.submit("odd", request())
    (tmp_path / "jobs" / f"odd.{suffix}.json").write_text(text)
    again = Jobs(records, gate, JobLimits())
    assert list(again._jobs) == ["good"]


def test_a_large_job_on_other_data_does_not_stop_merging(tmp_path: Path, gate: Gate) -> None:
    """Only jobs that can be merged count against the limits of a batch."""
    queue = Jobs(JobRecords(tmp_path / "jobs"), gate, JobLimits(memory=10))
    for name, wanted in {"a": request(), "big": request(key="other", memory=10), "b": request(), "c": request(memory=9)}.items():
        queue.submit(name, wanted)
    queue.start()
    finished(queue, "a", "b", "c", "big")
    assert gate.batches[0] == ["a", "b"]
    queue.drain(1.0)


def test_followers_hear_progress_and_the_end(queue: Jobs, gate: Gate) -> None:
    """A follower gets the state at once, at changes and at the end; without changes it returns in time."""
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


def test_jobs_that_share_a_pass_hear_of_it(queue: Jobs, gate: Gate) -> None:
    """Every job counts its own requests as runs, and all jobs of a batch see the share of the pass in flight."""
    gate.open.clear()
    jobs = [queue.submit("one", request(requests=[{}, {}])), queue.submit("other", request(owner="bob"))]
    queue.start()
    while not all(job.progress and job.progress[0] is not None and job.progress[0].share for job in jobs):
        assert all(worker.is_alive() for worker in queue._workers)
    assert [[(step.run, step.runs) for step in job.progress if step is not None] for job in jobs] == [[(0, 2), (1, 2)], [(0, 1)]]
    assert [(job.progress[0].sweep, job.progress[0].bytes_read) for job in jobs] == [(2, 9), (2, 9)]
    assert gate.batches == [["one", "other"]]
