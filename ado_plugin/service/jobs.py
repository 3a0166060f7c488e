"""Jobs: a bounded queue, fair among clients; jobs on the same data share their sweeps and survive connection and server.

A job is durable before it is acknowledged. One worker takes the next job of the least recently served owner together with every
waiting job on the same data, and answers all of them in shared sweeps, each as soon as it has all its selections. If that fails,
each is run alone, so that one job's error does not fail the others. While a record cannot be written, as on a full disk, the worker
pauses and tries again: no job is lost. A job that was running when the server died is run again as a suspect of the crash, alone.
Ended jobs are kept for a while, up to a limit per owner, with digests in place of the long values of their requests. Knows nothing
of how a job is executed.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from ado_plugin.service.job import Job, JobRequest, State
from ado_plugin.service.records import JobRecords
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import CancelledError, FastompError, MediumError, RequestError, ServerError, encode_error, raise_error
from fastomp_nvm.selection.run_info import describe_job

__all__ = ["Executor", "JobLimits", "Jobs"]

_FINISHED = ("done", "failed", "cancelled")
#: Seconds between two reports of progress: rounds on small data take microseconds.
_NOTICE_SECONDS = 0.1
#: Seconds between two attempts of the worker to write a record.
_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of the queue.

    Attributes
    ----------
    queued : int
        Jobs waiting or running.
    merged : int
        Requests answered in shared sweeps at a time.
    memory : int
        Estimated bytes of memory for requests answered together.
    work : int
        Estimated bytes that one job may read.
    keep_seconds : float
        Time for which ended jobs are kept.
    kept, kept_bytes : int
        Most ended jobs of one owner, and bytes of their records; the oldest are removed first, the last one never.
    """

    queued: int = 256
    merged: int = 64
    memory: int = 8 << 30
    work: int = 100 << 40
    keep_seconds: float = 7 * 86400.0
    kept: int = 1000
    kept_bytes: int = 1 << 30


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

        ``stopped`` is asked at every round and ends all jobs with ``CancelledError``. ``dropped`` is asked at every round of a job
        and ends this job alone; ``ended`` is then called with None.
        """
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
        self._changed = threading.Condition()
        self._jobs: dict[str, Job] = {}
        self._served: collections.Counter[object] = collections.Counter()  # last turn of each owner and session
        self._turn = 0
        self._order = 0
        self._accepting = True
        self._stopping = False
        self.finished: collections.Counter[str] = collections.Counter()
        with self._changed:
            self._recover()
        self._worker = threading.Thread(target=self._work, name="jobs", daemon=True)

    def start(self) -> None:
        """Start the worker."""
        self._worker.start()

    def submit(self, name: str, request: JobRequest) -> Job:
        """Queue a job durably; a job that was submitted before is returned as it is.

        Raises
        ------
        ServerError
            The queue is full, or the server is shutting down.
        RequestError
            Another job has the name.
        """
        with self._changed:
            existing = self._jobs.get(name)
            if existing is not None:
                if existing.request.same_as(request):
                    return existing
                raise RequestError(f"a job called {name!r} exists already: choose another name")
            self._records.require_whole(name)
            self._admit()
            # A new session counts as just served: otherwise a client that opens one per job would always be next.
            self._served.setdefault((request.owner, request.session), self._turn)
            self._order += 1
            job = Job(name, self._order, request)
            self._records.write_state(name, job.state_record())
            self._records.write_request(name, asdict(request))
            self._jobs[name] = job
            self._changed.notify_all()
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
                    **describe_job(job.request.requests[0] if job.request.requests else {}),
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
                state = job.describe()
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
                self._finish(job, "cancelled", CancelledError("the job was cancelled"))
            elif job.state == "running":
                job.cancelled = True  # takes effect at the next round
                self._notify(job)

    def resume(self, job: Job) -> None:
        """Queue a failed or cancelled job again; any other job stays as it is."""
        with self._changed:
            job.cancelled = False  # a cancellation that has not taken effect yet is withdrawn
            if job.state in ("failed", "cancelled"):
                self._admit()
                whole = JobRequest(**self._records.request(job.name))
                self._set_state(job, "queued")
                job.request, job.progress = whole, []

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
        if self._worker.ident is not None and not self._worker.is_alive() and not self._stopping:
            return "the job worker is not running"
        with self._changed:
            return self._records.trouble()

    def reap(self) -> int:
        """Remove jobs that ended long ago; return their number."""
        with self._changed:
            oldest = time.time() - self._limits.keep_seconds
            old = [job for job in self._jobs.values() if job.state in _FINISHED and job.changed < oldest]
            for job in old:
                self._forget(job)
            sessions = {(job.request.owner, job.request.session) for job in self._jobs.values()}
            for served in [each for each in self._served if isinstance(each, tuple) and each not in sessions]:
                del self._served[served]
        return len(old)

    def drain(self, seconds: float) -> None:
        """Accept no more jobs; wait ``seconds`` for the running ones, then leave them for the next server."""
        with self._changed:
            self._accepting = False
            self._changed.wait_for(lambda: all(job.state != "running" for job in self._jobs.values()), seconds)
            self._stopping = True
            self._changed.notify_all()
        if self._worker.is_alive():
            self._worker.join(seconds + 5.0)
        # The jobs of a worker that is still in a sweep wait for the next server; its later reports about them are ignored, because
        # they are no longer running.
        with self._changed, contextlib.suppress(FastompError):
            self._end(list(self._jobs.values()), CancelledError("the job was cancelled"))

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
                job.request, job.size = job.request.shortened(), self._records.size(job.name)
                self._executor.forget(job)  # the server may have died after the job's end and before this
            if job.state != "running":
                continue
            job.crashes += 1  # the executor runs it in a process of its own
            self._set_state(job, "queued")
            _log.warning("job recovered", extra={"job": job.name, "crashes": job.crashes, "state": job.state})

    def _work(self) -> None:
        """Run batches until the server stops, whatever error one of them raises."""
        error = ServerError("the server failed at this job: see its log")
        while not self._stopping:
            try:
                if batch := self._start_batch():
                    self._run(batch)
            except Exception:
                _log.exception("the job worker failed and continues")
                with self._changed:  # all running jobs were started by this worker
                    self._retry(lambda: self._end(list(self._jobs.values()), error))
                    self._pause()

    def _start_batch(self) -> list[Job]:
        """Wait for jobs and mark a batch as running; empty when the server stops or no record can be written."""
        with self._changed:
            while not self._stopping and not (batch := self._next_batch()):
                self._changed.wait()
            if self._stopping:
                return []
            try:
                for job in batch:
                    job.progress = []
                    self._set_state(job, "running")
            except MediumError as error:
                _log.error("a job waits because its record cannot be written", extra={"job": job.name, "reason": str(error)})
                batch = [job for job in batch if job.state == "running"]
                if not batch:
                    self._pause()
            return batch

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

    def _next_batch(self) -> list[Job]:
        """Choose the next job, and the jobs that can share its sweeps; the caller holds the lock."""
        waiting = [job for job in self._jobs.values() if job.state == "queued"]
        if not waiting:
            return []

        def turn(job: Job) -> tuple[int, int, int]:
            owner = job.request.owner
            return self._served[owner], self._served[owner, job.request.session], job.order

        waiting.sort(key=turn)
        batch = [waiting[0]]
        memory, requests = batch[0].request.memory, len(batch[0].request.requests)
        for job in waiting[1:]:
            if not (batch[0].mergeable and job.mergeable and job.data == batch[0].data):
                continue
            memory += job.request.memory
            requests += len(job.request.requests)
            if memory > self._limits.memory or requests > self._limits.merged:
                break
            batch.append(job)
        self._turn += 1
        for job in batch:
            self._served[job.request.owner] = self._served[job.request.owner, job.request.session] = self._turn
        return batch

    def _run(self, batch: list[Job]) -> None:
        """Run jobs together; if that fails, one by one."""
        positions = [(job, place) for job in batch for place in range(len(job.request.requests))]
        for job in batch:
            job.progress = [None] * len(job.request.requests)

        def observe(step: Progress) -> None:
            job, place = positions[step.run]
            job.progress[place] = replace(step, run=place, runs=len(job.progress))
            now = time.monotonic()
            running = [other for other in batch if other.state == "running"]
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

        def dropped(job: Job) -> bool:
            return job.cancelled or job.state != "running"

        reason: FastompError
        try:
            self._executor.run(batch, observe, lambda: self._stopping, dropped, self._keep)
            return
        except FastompError as error:
            reason = error
        except Exception as error:
            _log.exception("a job failed", extra={"job": batch[0].name})
            text = "this machine has not enough memory for it" if isinstance(error, MemoryError) else "see its log"
            reason = ServerError(f"the server failed at this job: {text}")
        if len(batch) == 1 or isinstance(reason, CancelledError):
            with self._changed:
                self._retry(lambda: self._end(batch, reason))
            return
        for job in batch:
            if job.state == "running":
                self._run([job])

    def _keep(self, job: Job, answers: list[dict[str, Any]] | None) -> None:
        """Record the answers of a running job, unless it was cancelled."""

        def keep() -> None:
            if job.state != "running":
                return
            if job.cancelled or answers is None:
                self._end([job], CancelledError("the job was cancelled"))
                return
            self._records.write_answer(job.name, {"answers": answers})
            job.result = describe_job({}, answers).get("result")
            self._finish(job, "done", None)

        with self._changed:
            self._retry(keep)

    def _end(self, batch: Sequence[Job], error: FastompError) -> None:
        """End the running jobs of a batch with an error, or queue interrupted ones again; the caller holds the lock."""
        for job in batch:
            if job.state != "running":
                continue
            if isinstance(error, CancelledError) and not job.cancelled:
                self._set_state(job, "queued")
            else:
                self._finish(job, "cancelled" if isinstance(error, CancelledError) else "failed", error)

    def _admit(self) -> None:
        """Raise ``ServerError`` when the server is shutting down or the queue is full; the caller holds the lock."""
        if not self._accepting:
            raise ServerError("the server is shutting down and takes no more jobs: try again when it is back")
        if self.active >= self._limits.queued:
            raise ServerError(f"{self.active} jobs are waiting, the most this server takes: try later")

    def _finish(self, job: Job, state: State, error: FastompError | None) -> None:
        """End a job; a ``MediumError`` leaves it as it was."""
        self._set_state(job, state, None if error is None else encode_error(error))
        self.finished[state] += 1
        try:  # records that cannot be removed only take room
            self._executor.forget(job)
            whole, job.request = job.request, job.request.shortened()
            if state == "done" and job.request != whole:  # any other may be resumed
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
