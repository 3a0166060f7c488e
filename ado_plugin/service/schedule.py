"""The schedule of a server's jobs: which of them start next, together with which others, and what they have of the machine.

The job that starts is one of the owner, and of this owner's client, served least recently. It takes with it the waiting jobs on the
same data. An owner leads one batch at a time, and whoever leads one joins no other, so that no owner's jobs burden another's. Knows
neither records nor threads; whoever calls a schedule holds the lock of the jobs.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from ado_plugin.service.job import Job, JobRequest
from ado_plugin.service.limits import JobLimits
from ado_plugin.service.turns import Turn, Turns

__all__ = ["MOST_BATCHES", "Batch", "Schedule"]

#: Batches that have begun and not ended.
MOST_BATCHES = 8


class Batch:
    """Jobs on the same data that one thread answers in shared sweeps.

    Parameters
    ----------
    jobs : sequence of Job
        The first is the one whose owner's turn it was.
    turn : Turn
    resumable : bool
        Whether the jobs keep journals, so that they can be interrupted and continued later.

    Attributes
    ----------
    running : list of Job
        Those that this batch has started and not yet ended. A job that has left a batch may run in another.
    leaving : bool
        Whether the batch is to make room for another one.
    sweeps : int
        Passes that the batch has begun.
    """

    def __init__(self, jobs: Sequence[Job], turn: Turn, resumable: bool) -> None:
        self.owner = jobs[0].request.owner
        self.memory = sum(job.request.memory for job in jobs)
        self.turn = turn
        self.resumable = resumable
        self.running: list[Job] = []
        self.leaving = False
        self.sweeps = 0
        self._charged = 0.0

    @property
    def must_leave(self) -> bool:
        """Whether to stop now: asked to, and with a round recorded, so that every start makes progress."""
        return self.leaving and self.sweeps > 1

    def charge(self) -> None:
        """Divide the time used since the last call among the running jobs."""
        used, running = self.turn.seconds, list(self.running)
        for job in running:
            job.seconds += (used - self._charged) / len(running)
        self._charged = used


class Schedule:
    """Batches that have begun, and the order of the jobs that wait.

    Parameters
    ----------
    limits : JobLimits

    Attributes
    ----------
    turns : Turns
        The processor.
    batches : dict of int to Batch
        Those that have begun, each under the number with which it began.
    """

    def __init__(self, limits: JobLimits) -> None:
        self._limits = limits
        self._served: collections.Counter[object] = collections.Counter()  # last start of each owner and client
        self._starts = 0
        self.turns = Turns()
        self.batches: dict[int, Batch] = {}

    def arrive(self, request: JobRequest) -> None:
        """Count a new client as just served: otherwise one that opens a session per job would always be next."""
        self._served.setdefault((request.owner, request.session), self._starts)

    def forget_others(self, requests: Iterable[JobRequest]) -> None:
        """Forget the clients that none of these requests is from."""
        sessions = {(request.owner, request.session) for request in requests}
        for served in [each for each in self._served if isinstance(each, tuple) and each not in sessions]:
            del self._served[served]

    def next_jobs(self, jobs: Iterable[Job]) -> list[Job]:
        """Choose the next of the queued jobs and those that can share its sweeps; none while they have no room."""
        leading = {batch.owner for batch in self.batches.values()}
        waiting = [job for job in jobs if job.state == "queued" and job.request.owner not in leading]
        if not waiting:
            return []

        def turn(job: Job) -> tuple[int, int, int]:
            owner = job.request.owner
            return self._served[owner], self._served[owner, job.request.session], job.order

        waiting.sort(key=turn)
        chosen = waiting[:1]
        memory, requests = chosen[0].request.memory, len(chosen[0].request.requests)
        for job in waiting[1:]:
            if not (chosen[0].mergeable and job.mergeable and job.data == chosen[0].data):
                continue
            memory += job.request.memory
            requests += len(job.request.requests)
            if memory > self._limits.memory // 2 or requests > self._limits.merged:
                break
            chosen.append(job)
        return chosen if self._has_room(sum(job.request.memory for job in chosen)) else []

    def begin(self, number: int, jobs: Sequence[Job], resumable: bool) -> Batch:
        """Return a new batch of jobs, last in line for the processor."""
        self._starts += 1
        for job in jobs:
            self._served[job.request.owner] = self._served[job.request.owner, job.request.session] = self._starts
        batch = self.batches[number] = Batch(jobs, self.turns.join(), resumable)
        return batch

    def end(self, number: int) -> None:
        """Forget a batch, whose jobs have all left it."""
        self.batches.pop(number).turn.leave()

    def _has_room(self, memory: int) -> bool:
        """Return whether another batch may begin; if not, ask the one that has used most time to leave if it can continue later."""
        begun = list(self.batches.values())
        if len(begun) < MOST_BATCHES and memory + sum(batch.memory for batch in begun) <= self._limits.memory:
            return True
        able = [batch for batch in begun if batch.resumable]
        if able and not any(batch.leaving for batch in able):
            max(able, key=lambda batch: batch.turn.seconds).leaving = True
        return not begun
