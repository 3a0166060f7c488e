"""Jobs: a bounded queue, fair among clients; jobs on the same data share their sweeps and survive connection and server.

A job is durable before it is acknowledged. A worker takes the next job of the least recently served owner together with every
waiting job on the same data, and answers all of them in shared sweeps, each as soon as it has all its selections. If that fails,
each is run alone, so that one job's error does not fail the others. Batches of different owners share the processor in turns, in
the middle of sweeps too; an owner leads one batch at a time. Where a further one has no room, one that keeps journals leaves and is
continued later. While a record cannot be written, as on a full disk, a worker pauses and tries again: no job is lost. A job that
was running when the server died is run again as a suspect of the crash, alone. Ended jobs are kept for a while, up to a limit per
owner. Only running jobs have the long values of their requests in memory. Knows nothing of how a job is executed.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Protocol

from ado_plugin.service.job import Job, JobRequest, State
from ado_plugin.service.limits import JobLimits
from ado_plugin.service.machine import is_shortage
from ado_plugin.service.metrics import Histogram
from ado_plugin.service.records import JobRecords
from ado_plugin.service.schedule import MOST_BATCHES, Batch, Schedule
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import CancelledError, FastompError, MediumError, RequestError, ServerError, encode_error, raise_error
from fastomp_nvm.selection.run_info import describe_job

__all__ = ["Executor", "Jobs"]

_FINISHED = ("done", "failed", "cancelled")
#: Seconds between two reports of progress: rounds on small data take microseconds.
_NOTICE_SECONDS = 0.1
#: Seconds between two attempts of a worker to write a record.
_RETRY_SECONDS = 1.0
#: Seconds without a step after which a batch counts as stuck.
_STUCK_SECONDS = 600.0

#: Upper bounds of the histogram of waits, in seconds.
_WAIT_BOUNDS = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)

_INTERRUPTED = CancelledError("the job was cancelled")

_log = logging.getLogger(__name__)


class Executor(Protocol):
    """Executes jobs."""

    def run(
        self,
        jobs: Sequence[Job],
        observer: Callable[[Progress], None],
        stopped: Callable[[], bool],
        dropped: Callable[[Job], bool],
        ended: Callable[[Job, list[dict[str, Any]] | None], None],
    ) -> None:
        """Answer jobs on the same data; call ``ended`` with each job and its encoded selections as soon as it has all of them.

        ``stopped`` is asked at every round and during sweeps, pauses the jobs while others have the processor, and ends all of
        them with ``CancelledError`` when true. ``dropped`` is asked at every round of a job and ends this job alone; ``ended`` is
        then called with None.
        """
        ...

    def keeps_journals(self, jobs: Sequence[Job]) -> bool:
        """Return whether jobs that are answered together can be stopped and continued later."""
        ...

    def forget(self, job: Job) -> None:
        """Remove the journals of a job."""
        ...


class Jobs:
    """The jobs of a server.

    Parameters
    ----------
    records : JobRecords
        Unfinished jobs found there are queued again.
    executor : Executor
    limits : JobLimits
    """

    def __init__(self, records: JobRecords, executor: Executor, limits: JobLimits) -> None:
        self._records = records
        self._executor = executor
        self._limits = limits
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._startable = threading.Condition(lock)
        self._schedule = Schedule(limits)
        self._jobs: dict[str, Job] = {}
        self._sweeping = threading.Lock()
        self._order = 0
        self._accepting = True
        self._stopping = False
        self._failing = False
        self.finished: collections.Counter[str] = collections.Counter()
        #: Seconds between the queueing of a job and its start.
        self.waits = Histogram(_WAIT_BOUNDS)
        #: Bytes that sweeps have read, passes in flight included.
        self.bytes_swept = 0
        with self._changed:
            self._recover()
        # One more than can be busy: it notices jobs for which a batch has to make room.
        self._workers = [threading.Thread(target=self._work, name="jobs", daemon=True) for _ in range(MOST_BATCHES + 1)]

    def start(self) -> None:
        """Start the workers."""
        for worker in self._workers:
            worker.start()

    def submit(self, name: str, request: JobRequest) -> Job:
        """Queue a job durably; a job that was submitted before is returned as it is.

        Raises
        ------
        ServerError
            The queue is full, or the server is shutting down.
        RequestError
            Another job has the name.
        """
        short = request.shortened()
        with self._changed:
            existing = self._jobs.get(name)
            if existing is not None:
                if (existing.short or existing.request).same_as(short):
                    return existing
                raise RequestError(f"a job called {name!r} exists already: choose another name")
            self._records.require_whole(name)
            self._admit(request.owner)
            self._schedule.arrive(request)
            self._order += 1
            job = Job(name, self._order, short)
            self._records.write_state(name, job.state_record())
            self._records.write_request(name, asdict(request))
            self._jobs[name] = job
            self._changed.notify_all()
            self._startable.notify()
            return job

    def find(self, name: str, owner: str | None) -> Job:
        """Return a job of this owner (None: of any owner)."""
        job = self._jobs.get(name)
        self._records.require_whole(name)
        if job is None or owner not in (None, job.request.owner):
            raise RequestError(f"there is no job {name!r}: it was never submitted here, or has been removed")
        return job

    def standings(self, owner: str | None) -> list[dict[str, Any]]:
        """Return the jobs of an owner (None: of all owners) as lists of jobs show them, in order of submission."""
        with self._changed:
            seen = [job for job in self._jobs.values() if owner in (None, job.request.owner)]
            return [
                {
                    **job.describe(),
                    **describe_job(job.request.requests[0] if job.request.requests else {}, kind=job.request.kind),
                    "owner": job.request.owner,
                    "result": job.result,
                    "submitted": job.request.submitted,
                }
                for job in seen
            ]

    def follow(self, job: Job, since: int, wait: float) -> Iterator[dict[str, Any]]:
        """Yield the state of a job whenever it is newer than the last version seen, first ``since``, for ``wait`` seconds."""
        end = time.monotonic() + wait
        while True:
            with self._changed:
                while job.version <= since and job.state not in _FINISHED and (left := end - time.monotonic()) > 0:
                    self._changed.wait(left)
                state = job.describe(features=True)
            since = state["version"]
            yield state
            if state["state"] in _FINISHED or time.monotonic() >= end:
                return

    def answer(self, job: Job) -> list[dict[str, Any]]:
        """Return the encoded selections of a job, or raise its error."""
        if job.state == "done":
            answers: list[dict[str, Any]] = self._records.answer(job.name)["answers"]
            return answers
        if job.error is not None:
            raise_error(job.error)
        raise ServerError(f"the job {job.name!r} is {job.state}: wait for its end")

    def cancel(self, job: Job) -> None:
        """Cancel a job; an ended job stays as it is."""
        with self._changed:
            if job.state == "queued":
                self._finish(job, "cancelled", _INTERRUPTED)
            elif job.state == "running":
                job.cancelled = True  # takes effect at the next round
                self._notify(job)

    def resume(self, job: Job) -> None:
        """Queue a failed or cancelled job again; any other job stays as it is."""
        with self._changed:
            job.cancelled = False  # a cancellation that has not taken effect yet is withdrawn
            if job.state in ("failed", "cancelled"):
                self._admit(job.request.owner)
                job.seconds = 0.0
                self._set_state(job, "queued")
                job.progress = []
                self._startable.notify()

    def forget(self, job: Job) -> None:
        """Remove an ended job; ``ServerError`` for one that has not ended."""
        with self._changed:
            if job.state not in _FINISHED:
                raise ServerError(f"the job {job.name!r} is {job.state}: cancel it first", reason="busy")
            if self._jobs.get(job.name) is job:
                self._forget(job)

    def uses(self, pool: str, key: str) -> int:
        """Return the number of unfinished jobs on this key."""
        with self._changed:
            return sum(
                (job.request.pool, job.request.key) == (pool, key) for job in self._jobs.values() if job.state not in _FINISHED
            )

    @property
    def active(self) -> int:
        """Jobs waiting or running."""
        return sum(job.state not in _FINISHED for job in list(self._jobs.values()))

    @property
    def trouble(self) -> str | None:
        """The reason why jobs make no progress, without names, or None."""
        if not self._stopping and any(worker.ident is not None and not worker.is_alive() for worker in self._workers):
            return "a job worker is not running"
        with self._changed:
            if (silence := max((batch.turn.silence for batch in self._schedule.batches.values()), default=0.0)) > _STUCK_SECONDS:
                return f"a job has made no step for {silence:.0f} s"
            return "the job workers fail: see the log" if self._failing else self._records.trouble()

    @property
    def workers_alive(self) -> int:
        """Threads that run jobs."""
        return sum(worker.is_alive() for worker in self._workers)

    @property
    def longest_wait(self) -> float:
        """Seconds since the submission of the oldest job that has not ended; 0 without one."""
        submitted = [job.request.submitted for job in list(self._jobs.values()) if job.state not in _FINISHED]
        return max(time.time() - min(submitted), 0.0) if submitted else 0.0

    @property
    def full(self) -> bool:
        """Whether no more jobs are accepted."""
        return not self._accepting or self.active >= self._limits.queued

    def reap(self) -> int:
        """Remove jobs that ended long ago; return their number."""
        with self._changed:
            oldest = time.time() - self._limits.keep_seconds
            old = [job for job in self._jobs.values() if job.state in _FINISHED and job.changed < oldest]
            for job in old:
                self._forget(job)
            self._schedule.forget_others(job.request for job in self._jobs.values())
        return len(old)

    def drain(self, seconds: float) -> None:
        """Accept no more jobs; wait ``seconds`` for the running ones, then leave them for the next server."""
        with self._changed:
            self._accepting = False
            self._changed.wait_for(lambda: all(job.state != "running" for job in self._jobs.values()), seconds)
            self._stopping = True
            self._changed.notify_all()
            self._startable.notify_all()
        self._schedule.turns.close()
        end = time.monotonic() + seconds + 5.0
        for worker in self._workers:
            if worker.is_alive():
                worker.join(max(end - time.monotonic(), 0.0))
        # The jobs of a worker that is still in a sweep wait for the next server; its later reports about them are ignored, because
        # its batch has lost them.
        with self._changed, contextlib.suppress(FastompError):
            for batch in self._schedule.batches.values():
                self._end(batch, _INTERRUPTED)

    def _recover(self) -> None:
        """Load the jobs of an earlier server; the caller holds the lock."""
        found = []
        for name, request, state in self._records.load():
            try:
                found.append(Job.of_records(name, request, state))
            except (KeyError, TypeError, ValueError, AttributeError) as reason:
                _log.error("a job cannot be recovered", extra={"job": name, "reason": repr(reason)})
        for job in sorted(found, key=lambda each: (each.order, each.name)):
            self._order = max(self._order, job.order)
            self._jobs[job.name] = job
            if job.state in _FINISHED:
                job.size = self._records.size(job.name)
                self._executor.forget(job)  # the server may have died after the job's end and before this
            if job.state != "running":
                continue
            job.crashes += 1  # the executor runs it in a process of its own
            try:
                self._set_state(job, "queued")
            except MediumError as reason:  # a server starts on a full disk, too
                job.state = "queued"
                _log.error("a recovered job cannot be recorded", extra={"job": job.name, "reason": str(reason)})
            _log.warning("job recovered", extra={"job": job.name, "crashes": job.crashes, "state": job.state})

    def _work(self) -> None:
        """Run batches until the server stops, whatever error one of them raises."""
        me = threading.get_ident()
        while not self._stopping:
            try:
                if (failed := self._schedule.batches.get(me)) is not None:
                    with self._changed:
                        self._retry(lambda: self._end(failed, ServerError("the server failed at this job: see its log")))
                    self._close(me)
                if (batch := self._start_batch(me)) is not None:
                    batch.turn.offer()
                    self._run(batch, list(batch.running))
                    self._close(me)
            except BaseException:  # short of memory too: nothing would start the worker again
                self._failing = True
                with contextlib.suppress(BaseException):
                    _log.exception("a job worker failed and continues")
                    with self._changed:
                        self._pause()

    def _start_batch(self, worker: int) -> Batch | None:
        """Wait for jobs that can start and mark them as running; None when the server stops or no record can be written."""
        with self._changed:
            while not self._stopping and not (jobs := self._schedule.next_jobs(self._jobs.values())):
                self._failing = False
                self._startable.wait()
            self._failing = False
            if self._stopping:
                return None
            batch = self._schedule.begin(worker, jobs, self._executor.keeps_journals(jobs))
            try:
                for job in jobs:
                    job.progress = []
                    waited = time.time() - job.changed
                    self._set_state(job, "running")
                    batch.running.append(job)
                    self.waits.observe("", max(waited, 0.0))
            except MediumError as error:
                _log.error("a job waits because its record cannot be written", extra={"job": job.name, "reason": str(error)})
            if not batch.running:
                self._close(worker)
                self._pause()
                return None
            self._startable.notify()  # there may be jobs for another worker
            return batch

    def _close(self, worker: int) -> None:
        """Forget the batch of a worker, whose jobs have all left it."""
        with self._changed:
            self._schedule.end(worker)
            self._startable.notify()

    def _retry(self, write: Callable[[], None]) -> None:
        """Repeat ``write`` until it succeeds or the server stops; the caller holds the lock, which is released in between."""
        while True:
            try:
                return write()
            except MediumError as error:
                if self._stopping:
                    return None
                _log.error("a record cannot be written and is tried again", extra={"reason": str(error)})
                self._pause()

    def _pause(self) -> None:
        """Wait before another attempt, unless the server stops; the caller holds the lock, which is released meanwhile."""
        self._changed.wait_for(lambda: self._stopping, _RETRY_SECONDS)

    def _run(self, batch: Batch, jobs: list[Job]) -> None:
        """Run jobs of a batch together; if that fails, one by one."""
        read = 0
        analysis = jobs[0].request.kind != "select"  # it is alone, and its first report tells how many runs it makes
        positions = [(job, place) for job in jobs for place in range(len(job.request.requests))]
        for job in jobs:
            job.progress = [None] * len(job.request.requests)

        def observe(step: Progress) -> None:
            nonlocal read
            batch.sweeps = step.sweep
            if step.bytes_read > read:  # an estimate during a pass, which the end of the pass may lower
                with self._sweeping:
                    self.bytes_swept += step.bytes_read - read
                read = step.bytes_read
            if analysis:
                job, place = jobs[0], step.run
                if len(job.progress) < step.runs:
                    job.progress = [*job.progress, *[None] * (step.runs - len(job.progress))]
            else:
                job, place = positions[step.run]
            job.progress[place] = replace(step, run=place, runs=len(job.progress))
            now = time.monotonic()
            running = [other for other in jobs if other in batch.running]
            for other in running if step.share else [job]:  # a pass in flight is one of all jobs that have not ended
                first = other.progress[0] if other.progress else None
                if other is not job and first is not None:
                    other.progress[0] = replace(
                        first, share=step.share, sweep=step.sweep, bytes_read=step.bytes_read, seconds=step.seconds
                    )
                if now - other.notified >= _NOTICE_SECONDS:
                    other.notified = now
                    with self._changed:
                        self._notify(other)

        def stopped() -> bool:
            batch.turn.offer()
            batch.charge()
            return self._stopping or batch.must_leave or all(map(dropped, jobs))

        def dropped(job: Job) -> bool:
            return job.cancelled or job not in batch.running or job.seconds > self._limits.seconds

        reason: FastompError
        try:
            for job in jobs:
                job.load(JobRequest(**self._records.request(job.name)))
            self._executor.run(jobs, observe, stopped, dropped, partial(self._keep, batch))
            return
        except Exception as error:
            if is_shortage(error):
                _log.error("a job is run again later", extra={"job": jobs[0].name, "reason": str(error)})
                with self._changed:
                    self._retry(lambda: self._end(batch, _INTERRUPTED, jobs))
                    self._pause()
                return
            if isinstance(error, FastompError):
                reason = error
            else:
                _log.exception("a job failed", extra={"job": jobs[0].name})
                text = "this machine has not enough memory for it" if isinstance(error, MemoryError) else "see its log"
                reason = ServerError(f"the server failed at this job: {text}")
        if len(jobs) == 1 or isinstance(reason, CancelledError):
            with self._changed:
                self._retry(lambda: self._end(batch, reason, jobs))
            return
        for job in jobs:
            if job in batch.running:
                self._run(batch, [job])

    def _keep(self, batch: Batch, job: Job, answers: list[dict[str, Any]] | None) -> None:
        """Record the answers of a job of a batch, unless it was cancelled."""

        def keep() -> None:
            if job not in batch.running:
                return
            if job.cancelled or answers is None:
                self._end(batch, _INTERRUPTED, [job])
                return
            self._records.write_answer(job.name, {"answers": answers})
            job.result = describe_job({}, answers, job.request.kind).get("result")
            self._finish(job, "done", None)
            batch.running.remove(job)

        with self._changed:
            self._retry(keep)

    def _end(self, batch: Batch, error: FastompError, jobs: Sequence[Job] | None = None) -> None:
        """End jobs of a batch, all unless given, with an error, or queue interrupted ones again; the caller holds the lock."""
        for job in [job for job in batch.running if jobs is None or job in jobs]:
            if job.state != "running":
                pass  # it has ended, and what failed came after that
            elif not isinstance(error, CancelledError):
                self._finish(job, "failed", error)
            elif job.cancelled:
                self._finish(job, "cancelled", error)
            elif job.seconds > self._limits.seconds:
                overdue = ServerError(f"the job has used more than {self._limits.seconds:g} s, the most one may: split it")
                self._finish(job, "failed", overdue)
            else:
                self._set_state(job, "queued")
                job.unload()
            batch.running.remove(job)

    def _admit(self, owner: str) -> None:
        """Raise ``ServerError`` when the server is shutting down or the queue, or this owner's part, is full.

        The caller holds the lock.
        """
        if not self._accepting:
            raise ServerError("the server is shutting down and takes no more jobs: try again when it is back", reason="busy")
        active = [job for job in self._jobs.values() if job.state not in _FINISHED]
        if len(active) >= self._limits.queued:
            raise ServerError(f"{len(active)} jobs are waiting, the most this server takes: try later", reason="busy")
        if (owned := sum(job.request.owner == owner for job in active)) >= self._limits.owned:
            raise ServerError(
                f"{owned} jobs of {owner!r} are waiting, the most this server takes of one user: try later", reason="busy"
            )

    def _finish(self, job: Job, state: State, error: FastompError | None) -> None:
        """End a job; a ``MediumError`` leaves it as it was."""
        self._set_state(job, state, None if error is None else encode_error(error))
        self.finished[state] += 1
        try:  # records that cannot be removed only take room
            self._executor.forget(job)
            if job.unload() and state == "done":  # any other may be resumed
                with contextlib.suppress(FastompError):
                    self._records.write_request(job.name, asdict(job.request))
            job.size = self._records.size(job.name)
            for surplus in self._surplus(job.request.owner):
                self._forget(surplus)
        except OSError as reason:
            _log.error("records of ended jobs cannot be removed", extra={"job": job.name, "reason": str(reason)})
        _log.info("job ended", extra={"job": job.name, "owner": job.request.owner, "state": state, "error": job.error})

    def _surplus(self, owner: str) -> list[Job]:
        """Return the oldest ended jobs of an owner, beyond the limits of number and size."""
        ended = [job for job in self._jobs.values() if job.state in _FINISHED and job.request.owner == owner]
        ended.sort(key=lambda job: (job.changed, job.order), reverse=True)
        count, total = 0, 0
        for job in ended:
            total += job.size
            if count and (count >= self._limits.kept or total > self._limits.kept_bytes):
                break
            count += 1
        return ended[count:]

    def _forget(self, job: Job) -> None:
        """Remove an ended job with its records."""
        del self._jobs[job.name]
        self._records.remove(job.name)

    def _set_state(self, job: Job, state: State, error: dict[str, str] | None = None) -> None:
        """Change the state of a job, on disk first: if its record cannot be written, the job stays as it was."""
        changed = replace(job, state=state, error=error, changed=time.time())
        self._records.write_state(job.name, changed.state_record())
        job.state, job.error, job.changed = changed.state, changed.error, changed.changed
        self._notify(job)

    def _notify(self, job: Job) -> None:
        """Wake the followers of a job."""
        job.version += 1
        self._changed.notify_all()
