"""Fairness among owners: jobs of one do not keep those of another waiting, and interruptions change no bit of an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from ado_plugin.service import schedule
from ado_plugin.service.access import Principal
from ado_plugin.service.jobs import Jobs
from ado_plugin.service.limits import JobLimits
from ado_plugin.service.operations import Caller
from ado_plugin.service.records import JobRecords
from ado_plugin.service.turns import Turns
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import CancelledError, ServerError
from fastomp_nvm.matrix import sweeper
from tests.service.running import small_data
from tests.service.test_jobs import Gate, finished, noticed, request
from tests.service.test_operations import Host


class Endless(Gate):
    """An executor whose jobs make one step after the other until they may end; ``seen`` holds their requests."""

    def __init__(self) -> None:
        super().__init__()
        self.journals = True
        self.may_end: set[str] = set()
        self.seen: dict[str, Any] = {}

    def run(self, jobs: Any, observer: Any, stopped: Any, dropped: Any, ended: Any) -> None:
        self.batches.append([job.name for job in jobs])
        self.seen |= {job.name: job.request.requests for job in jobs}
        left, sweep = list(jobs), 0
        while left:
            sweep += 1
            observer(Progress(0, sweep, 1, 2, 0.5, 7, 0.1, sweep=sweep))
            if stopped():
                raise CancelledError("cancelled")
            for job in [job for job in left if job.name in self.may_end or dropped(job)]:
                left.remove(job)
                ended(job, None if dropped(job) else [{"of": job.name} for _ in job.request.requests])
            time.sleep(0.001)


@pytest.fixture
def executor() -> Endless:
    return Endless()


@pytest.fixture
def queue_with(tmp_path: Path, executor: Endless) -> Iterator[Callable[..., Jobs]]:
    """Return a function that starts a queue with some limits."""
    made: list[Jobs] = []

    def make(**limits: Any) -> Jobs:
        made.append(Jobs(JobRecords(tmp_path / "jobs"), executor, JobLimits(**limits)))
        made[-1].start()
        return made[-1]

    yield make
    for jobs in made:
        jobs.drain(0.0)


def test_an_owner_does_not_wait_for_the_end_of_anothers_job(queue_with: Callable[..., Jobs], executor: Endless) -> None:
    """While a job that never ends and many more of one owner are there, a job of another owner starts and ends."""
    queue = queue_with()
    for place in range(5):
        queue.submit(f"long{place}", request(key=f"k{place}"))
    assert noticed(lambda: executor.batches == [["long0"]])
    executor.may_end.add("short")
    queue.submit("short", request("bob", key="k3"))
    assert finished(queue, "short") == ["done"]
    assert queue.find("long0", None).state == "running"
    assert executor.batches == [["long0"], ["short"]], "one batch of an owner at a time, and no other joined"


def test_a_batch_without_room_waits_for_one_that_leaves(queue_with: Callable[..., Jobs], executor: Endless) -> None:
    """A job that needs the memory of a running one gets it: that one is interrupted after a round and continued later."""
    queue = queue_with(memory=10)
    queue.submit("large", request(memory=8))
    assert noticed(lambda: executor.batches == [["large"]])
    executor.may_end.add("other")
    queue.submit("other", request("bob", memory=8))
    assert finished(queue, "other") == ["done"]
    executor.may_end.add("large")
    assert finished(queue, "large") == ["done"]
    assert executor.batches == [["large"], ["other"], ["large"]]
    assert queue.find("large", None).crashes == 0


def test_more_owners_than_batches_are_all_served(
    queue_with: Callable[..., Jobs], executor: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner beyond the most batches takes the place of another, which continues later."""
    monkeypatch.setattr(schedule, "MOST_BATCHES", 2)
    queue = queue_with()
    for owner in ("ann", "bob", "eve"):
        queue.submit(owner, request(owner, key=owner))
    assert noticed(lambda: ["eve"] in executor.batches)
    executor.may_end |= {"ann", "bob", "eve"}
    assert finished(queue, "ann", "bob", "eve") == ["done"] * 3


def test_a_job_has_a_time_limit(queue_with: Callable[..., Jobs], executor: Endless) -> None:
    """A job that has had the processor for longer than allowed fails with the limit; resumed, it has the time again."""
    queue = queue_with(seconds=0.05)
    job = queue.submit("endless", request())
    assert finished(queue, "endless") == ["failed"]
    with pytest.raises(ServerError, match=r"more than 0\.05 s"):
        queue.answer(job)
    executor.may_end.add("endless")
    queue.resume(job)
    assert finished(queue, "endless") == ["done"]


def test_an_owner_has_a_share_of_the_queue(queue_with: Callable[..., Jobs]) -> None:
    """Beyond its share an owner's job is refused while another's is accepted."""
    queue = queue_with(queued=6, owned=2)
    for place in range(2):
        queue.submit(f"j{place}", request())
    with pytest.raises(ServerError, match="2 jobs of 'ann' are waiting"):
        queue.submit("j2", request())
    queue.submit("other", request("bob"))


def test_long_lists_wait_on_disk(tmp_path: Path, queue_with: Callable[..., Jobs], executor: Endless) -> None:
    """Waiting jobs, of an earlier server too, hold digests of long lists in memory; a running job has the lists themselves."""
    names = [f"feature{place}" for place in range(10_000)]
    wanted = request(requests=[{"k": 2, "exclude": names}])
    queue = queue_with()
    queue.submit("first", request())
    assert noticed(lambda: executor.batches == [["first"]])  # otherwise both would be one batch
    job = queue.submit("long", wanted)
    assert queue.submit("long", wanted) is job
    assert len(str(job.request)) < 2000
    recovered = Jobs(JobRecords(tmp_path / "jobs"), executor, JobLimits())
    assert len(str(recovered.find("long", None).request)) < 2000
    executor.may_end |= {"first", "long"}
    assert finished(queue, "long") == ["done"]
    assert executor.seen["long"] == [{"k": 2, "exclude": names}]
    assert noticed(lambda: len(str(job.request)) < 2000)


def test_the_turn_goes_round() -> None:
    """The turn passes to whoever has waited longest, at an offer, and every holder's time counts as its own."""
    turns = Turns(slice_seconds=0.0, patience=60.0)
    places = [turns.join() for _ in range(3)]
    order: list[int] = []

    def take(place: int) -> None:
        for _ in range(4):
            places[place].offer()
            order.append(place)
        places[place].leave()

    threads = [threading.Thread(target=take, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert order[:3] == [0, 1, 2]
    assert sorted(order) == [0] * 4 + [1] * 4 + [2] * 4
    assert all(place.seconds > 0 and place.silence == 0 for place in places)


def test_a_holder_that_offers_nothing_loses_the_turn() -> None:
    """A phase that cannot be interrupted does not keep others waiting; the holder's next offer waits for the others."""
    turns = Turns(slice_seconds=0.0, patience=0.0)
    deaf, other = turns.join(), turns.join()
    deaf.offer()
    other.offer()  # returns although the holder has offered nothing
    assert deaf.silence > 0
    back = threading.Event()
    threading.Thread(target=lambda: (deaf.offer(), back.set()), daemon=True).start()
    other.leave()
    assert back.wait(60)


def test_taking_turns_and_leaving_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of three owners that pass the processor on at every step, and leave for each other, have the answers of jobs alone."""
    host = Host(tmp_path, start=False, limits=JobLimits(memory=1 << 23))
    monkeypatch.setattr(host.jobs._schedule.turns, "_slice", 0.0)
    left: list[str] = []
    end = host.jobs._end
    monkeypatch.setattr(host.jobs, "_end", lambda batch, *rest: (left.append(batch.owner), end(batch, *rest)))
    X, y = small_data(n_obs=300, n_features=400)
    folder = tmp_path / "pools" / "lab"
    folder.mkdir()
    fo.create_store(str(folder / "data"), X, y).close()
    asked: dict[str, Any] = {"k": 40, "algorithm": "sds_omp", "polish": "none", "plain": True}
    try:
        for place, owner in enumerate(("ann", "bob", "eve")):
            caller = Caller(Principal(owner, "read"), "1")
            reply = host.call("select", caller, pool="lab", key="data", job=owner, request={**asked, "seed": place}, verify=True)
            assert reply["state"] == "queued", reply
        monkeypatch.setattr(schedule, "MOST_BATCHES", 2)
        host.jobs.start()
        for owner in ("ann", "bob", "eve"):
            caller = Caller(Principal(owner, "read"), "1")
            assert host.call("progress", caller, job=owner, wait=60)["state"] == "done"
            (answer,) = host.call("result", caller, job=owner)["answers"]
            alone = fo.select(str(folder / "data"), **asked)
            assert answer["json"]["features"] == list(alone.features)
            assert answer["json"]["coef"] == alone.column_coef.tolist()
            assert answer["json"]["bytes_read"] == alone.bytes_read
        assert left, "a job was to leave for another"
    finally:
        host.close()


def test_a_report_that_waits_pauses_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a report waits, every other thread of the sweep finishes at most the block that it has begun."""
    for name in ("REPORT_SECONDS", "TASK_BYTES", "INLINE_PRODUCTS"):
        monkeypatch.setattr(sweeper, name, 0)
    threads, used, during = 3, list[int](), list[int]()

    def use(block: Any, first: int, last: int) -> None:
        used.append(first)  # atomic, unlike a count

    def report(share: float) -> None:
        before = len(used)
        time.sleep(0.02)
        during.append(len(used) - before)

    sweeping = sweeper.Sweeper(threads)
    sweeping.report = report
    sweeping.share(np.zeros((240, 1)), 8, 1, sweeping._reported(use, 240))
    assert len(used) == 30
    assert max(during) < threads
