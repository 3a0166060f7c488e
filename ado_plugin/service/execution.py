"""How the jobs of a server are answered: with the same engine as local use, next to the data, all of a batch in shared sweeps.

A job that reads a lot keeps a journal of its decisions in the server's own folder, so that a killed server goes on where it was; a
small one is faster run again. Whatever is kept is bound to data, request and numeric build, and dropped when these differ. Knows
neither queues nor clients.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ado_plugin.service.jobs import Job
from ado_plugin.service.pools import Pools
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.engine.identity import numeric_build, target_digest
from fastomp_nvm.errors import FastompError, StoreError
from fastomp_nvm.matrix.kernels import kernel
from fastomp_nvm.matrix.pool import LARGEST_BUDGET, automatic_budget
from fastomp_nvm.runs.journal import DecisionJournal, recorded_identity
from fastomp_nvm.runs.log import RegionPlace, StateLog
from fastomp_nvm.selection.codec import decode_request, decode_vector, encode_selection
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import select_shared
from fastomp_nvm.stores.contract import StoreLayout
from storage_backends.files.regions import DirectoryRegions

__all__ = ["Estimate", "Execution", "estimate"]

#: A job that reads less than this many bytes is run again rather than kept a journal of.
_WORTH_A_JOURNAL = 4 << 30

#: Algorithms that read the matrix once per selected feature; the others about ``1 / epsilon`` times.
_ONE_PASS_PER_FEATURE = ("sds_omp", "sds_ma", "isk")


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a request needs, roughly and from above.

    Attributes
    ----------
    memory : int
        Bytes beside the mapped matrix.
    work : int
        Bytes read.
    """

    memory: int
    work: int


def estimate(request: SelectionRequest, layout: StoreLayout, rank: int) -> Estimate:
    """Estimate what a request over a matrix of this layout needs when it can select ``rank`` features."""
    matrix = layout.n_columns * layout.n_obs * {"float16": 2, "float32": 4, "float64": 8}[layout.dtype]
    rank = min(rank, layout.n_features)
    rounds = rank if request.algorithm in _ONE_PASS_PER_FEATURE else math.ceil(1 / request.epsilon)
    models = 4 if request.tau == "auto" else 1
    products = 3 * 8 * models * layout.n_columns
    factors = 2 * 8 * min(rank, layout.n_obs) * layout.n_obs
    return Estimate(min(request.gather_bytes or LARGEST_BUDGET, matrix) + products + factors, (rounds + 2) * matrix)


class Execution:
    """The executor over pools.

    Parameters
    ----------
    pools : Pools
    folder : Path
        Where journals are kept; created when absent.
    threads : int, optional
        Threads of a sweep.
    journal_from : int
        Bytes of work from which a job is kept a journal of.
    """

    def __init__(self, pools: Pools, folder: Path, threads: int | None = None, journal_from: int = _WORTH_A_JOURNAL) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._pools = pools
        self._threads = threads
        self._journal_from = journal_from
        self._place: RegionPlace = DirectoryRegions(folder)

    def run(
        self,
        jobs: Sequence[Job],
        observer: Callable[[Progress], None],
        stopped: Callable[[], bool],
        dropped: Callable[[Job], bool],
        ended: Callable[[Job, list[dict[str, Any]] | None], None],
    ) -> None:
        """Answer jobs on the same data, handing over each one's selections, in JSON terms, as soon as it has all of them."""
        asked = jobs[0].request
        owners = [job for job in jobs for _ in job.request.requests]
        answers: dict[Job, dict[int, dict[str, Any] | None]] = {job: {} for job in jobs}
        journals: Sequence[_Journalled] = ()

        def take(place: int, selection: Selection | None) -> None:
            job = owners[place]
            if journals:
                with contextlib.suppress(FastompError):  # not needed any more; but its thread must not write what is being dropped
                    journals[place].journal.close()
            answer = None if selection is None else encode_selection(selection)
            if answer is not None:
                answer["json"]["verified"] = verified
                answer["json"]["seconds"] += journals[place].journal.seconds_before if journals else 0.0
            answers[job][place] = answer
            if len(answers[job]) == len(job.request.requests):
                found = [each for _, each in sorted(answers[job].items()) if each is not None]
                ended(job, found if len(found) == len(answers[job]) else None)

        with self._pools.open(asked.pool, asked.key) as store:
            if store.layout.fingerprint != asked.fingerprint:
                raise StoreError(f"{asked.pool}/{asked.key} was replaced after the job was submitted: submit it again")
            verified = any(job.request.verify for job in jobs)
            if verified:
                store.verify()
            dataset = Dataset.of_store(store)
            requests = [decode_request(request) for job in jobs for request in job.request.requests]
            response = None if asked.y is None else decode_vector(asked.y, "y")
            with contextlib.ExitStack() as stack:
                try:
                    journals = self._journals(stack, jobs, requests, dataset)
                    select_shared(
                        dataset,
                        [journal.pinned for journal in journals] or requests,
                        response,
                        threads=self._threads,
                        observer=observer,
                        cancelled=stopped,
                        journals=[journal.journal for journal in journals],
                        dropped=lambda place: dropped(owners[place]),
                        ended=take,
                    )
                except StoreError:
                    # A record that other code made: start over, rather than never.
                    with contextlib.suppress(FastompError):
                        stack.close()
                    journals = ()
                    for job in jobs:
                        self.forget(job)
                    select_shared(
                        dataset,
                        requests,
                        response,
                        threads=self._threads,
                        observer=observer,
                        cancelled=stopped,
                        dropped=lambda place: dropped(owners[place]),
                        ended=take,
                    )

    def forget(self, job: Job) -> None:
        """Drop the journals of a job."""
        wanted = tuple(f"job-{_run_id(job, place).hex()}." for place in range(len(job.request.requests)))
        with contextlib.suppress(FastompError):  # what stays is only room taken
            for name in self._place.regions():
                if name.startswith(wanted):
                    self._place.drop_region(name)

    def _journals(
        self, stack: contextlib.ExitStack, jobs: Sequence[Job], requests: Sequence[SelectionRequest], dataset: Dataset
    ) -> list[_Journalled]:
        """Open a journal per request, in order; none at all where the jobs are small."""
        if sum(job.request.work for job in jobs) < self._journal_from:
            return []
        build, targets = numeric_build(kernel().id), target_digest(dataset)
        automatic = automatic_budget(8 * len(dataset.matrix) * dataset.n_obs, len(requests))
        journals = []
        places = ((job, place, sent) for job in jobs for place, sent in enumerate(job.request.requests))
        for request, (job, place, sent) in zip(requests, places, strict=True):
            run_id = _run_id(job, place)
            log = StateLog(self._place, f"job-{run_id.hex()}", run_id)
            stack.callback(log.close)
            # Counters include what is re-read, which must not depend on the memory free after a restart.
            kept = recorded_identity(log.records).get("gather_bytes")
            pinned = replace(request, gather_bytes=request.gather_bytes or (kept if isinstance(kept, int) else automatic))
            identity = {
                "fingerprint": job.request.fingerprint,
                "targets": targets,
                "request": dict(sent),
                "gather_bytes": pinned.gather_bytes,
                "response": job.request.y,
                "build": build,
            }
            # Left before the log is: the last round may still be on its way to the device, and is waited for then.
            journal = stack.enter_context(contextlib.closing(DecisionJournal(log, identity)))
            journals.append(_Journalled(pinned, journal))
        return journals


@dataclass(frozen=True, slots=True)
class _Journalled:
    """A request whose decisions are kept, with the budget it was begun with."""

    pinned: SelectionRequest
    journal: DecisionJournal


def _run_id(job: Job, place: int) -> bytes:
    """Return 16 bytes that stand for one request of a job."""
    return hashlib.blake2b(f"{job.name}/{job.order}/{place}".encode(), digest_size=16).digest()
