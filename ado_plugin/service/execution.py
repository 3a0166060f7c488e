"""Execution of a server's jobs: with the same driver as local runs, next to the data, all jobs of a batch in shared sweeps.

A job that reads much keeps a journal in the server's own folder, from which the next server continues after a crash;
a small job is faster run again. A journal is bound to data, request and numeric build, and dropped when these differ. A job that
was running when a server crashed runs in a process of its own. A grid, a cross-validation or the like runs alone and keeps no
journal: it starts again. Knows neither queues nor clients.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ado_plugin.service.analysis import carry_out
from ado_plugin.service.isolation import run_isolated
from ado_plugin.service.job import Job, JobRequest
from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Observer, Progress
from fastomp_nvm.errors import FastompError, MediumError, StoreError
from fastomp_nvm.objectives.table import OBJECTIVES
from fastomp_nvm.runs.drive import JournaledRun, drive
from fastomp_nvm.runs.log import RegionPlace, StateLog, drop_log
from fastomp_nvm.selection.codec import decode_request, decode_vector, encode_selection
from fastomp_nvm.selection.request import RequestFields
from fastomp_nvm.selection.select import select_many
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import open_store
from storage_backends.files.regions import DirectoryRegions

__all__ = ["Execution", "import_selectors"]

#: Bytes of work from which a job keeps a journal; a smaller job is run again after a crash.
_JOURNAL_FROM = 4 << 30


def import_selectors() -> None:
    """Import what jobs need, by small ones: a server that is short of descriptors can import nothing.

    The lasso is left out: it takes scikit-learn, and longer than all others together.
    """
    X = np.random.default_rng(0).normal(size=(12, 6))
    kinds: list[RequestFields] = [{"algorithm": name} for name in ALGORITHMS if name != "lasso"]
    kinds += [{"objective": name, "quality": quality} for name in OBJECTIVES for quality in ("fast", "verified", "best")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        select_many(X, [{"k": 2, **kind} for kind in kinds], X[:, 0] > 0)


class Stores(Protocol):
    """Where stores are found."""

    def url(self, pool: str, key: str) -> str:
        """Return the URL of a store."""
        ...


class Execution:
    """The executor over pools.

    Parameters
    ----------
    pools : Stores
    folder : Path
        Where journals are kept; created when absent.
    threads : int, optional
        Threads of a sweep.
    journal_from : int, optional
        Bytes of work from which a job keeps a journal; 4 GiB when None.
    """

    def __init__(self, pools: Stores, folder: Path, threads: int | None = None, journal_from: int | None = None) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._pools = pools
        self._folder = folder
        self._threads = threads
        self._journal_from = _JOURNAL_FROM if journal_from is None else journal_from
        self._place: RegionPlace = DirectoryRegions(folder)

    def run(
        self,
        jobs: Sequence[Job],
        observer: Callable[[Progress], None],
        stopped: Callable[[], bool],
        dropped: Callable[[Job], bool],
        ended: Callable[[Job, list[dict[str, Any]] | None], None],
    ) -> None:
        """Answer jobs on the same data; hand over the selections of each, encoded, as soon as it has all of them."""
        asked = jobs[0].request
        url = self._pools.url(asked.pool, asked.key)
        if jobs[0].crashes:  # it is alone
            settings = {"url": url, "folder": str(self._folder), "threads": self._threads, "journal_from": self._journal_from}
            return run_isolated(jobs[0], settings, observer, stopped, dropped, ended)
        owners = [job for job in jobs for _ in job.request.requests]
        answers: dict[Job, dict[int, dict[str, Any] | None]] = {job: {} for job in jobs}

        def take(place: int) -> None:
            job, selection = owners[place], runs[place].selection
            answers[job][place] = None if selection is None else encode_selection(selection)
            if len(answers[job]) == len(job.request.requests):
                found = [each for _, each in sorted(answers[job].items()) if each is not None]
                ended(job, found if len(found) == len(answers[job]) else None)

        with _named(url, f"{asked.pool}/{asked.key}"), open_store(url) as store:
            if store.layout.fingerprint != asked.fingerprint:
                raise StoreError(f"{asked.pool}/{asked.key} was replaced after the job was submitted: submit it again")
            if asked.kind != "select":
                return ended(jobs[0], self._analyse(asked, store, observer, lambda: stopped() or dropped(jobs[0])))
            verified = any(job.request.verify for job in jobs)
            if verified:
                store.verify()

            def drive_all() -> None:
                drive(
                    Dataset.of_store(store),
                    runs,
                    None if asked.y is None else decode_vector(asked.y, "y"),
                    verified=verified,
                    threads=self._threads,
                    observer=observer,
                    cancelled=stopped,
                    dropped=lambda place: dropped(owners[place]),
                    ended=take,
                )

            journaled = self.keeps_journals(jobs)
            runs = [run for job in jobs for run in self._runs(job, journaled=journaled)]
            try:
                drive_all()
            except StoreError:
                if not journaled:
                    raise
                # A journal of another release or numeric build: start over without it.
                for job in jobs:
                    self.forget(job)
                runs = [run for job in jobs for run in self._runs(job, journaled=False)]
                drive_all()

    def _analyse(
        self, asked: JobRequest, store: FeatureStore, observer: Observer, cancelled: Callable[[], bool]
    ) -> list[dict[str, Any]]:
        """Carry out a grid, a cross-validation or the like and return its answers, encoded."""
        return carry_out(
            asked.kind,
            asked.requests[0],
            asked.options,
            asked.y,
            store,
            verify=asked.verify,
            observer=observer,
            cancelled=cancelled,
            threads=self._threads,
        )

    def keeps_journals(self, jobs: Sequence[Job]) -> bool:
        """Return whether jobs that are answered together keep journals."""
        return jobs[0].request.kind == "select" and sum(job.request.work for job in jobs) >= self._journal_from

    def forget(self, job: Job) -> None:
        """Remove the journals of a job."""
        with contextlib.suppress(FastompError):  # a journal left behind only takes room
            for place in range(len(job.request.requests)):
                drop_log(self._place, _log_name(_run_id(job, place)))

    def _runs(self, job: Job, *, journaled: bool) -> Iterator[JournaledRun]:
        """Yield the requests of a job as runs, with their journals where they keep any."""
        for place, sent in enumerate(job.request.requests):
            request, run_id = decode_request(sent), _run_id(job, place)
            identity: dict[str, Any] = {"request": dict(sent), "response": job.request.y}
            if request.gather_bytes is not None:
                identity["gather_bytes"] = request.gather_bytes
            open_log = partial(StateLog, self._place, _log_name(run_id), run_id) if journaled else None
            yield JournaledRun(request, open_log, identity)


@contextlib.contextmanager
def _named(url: str, name: str) -> Iterator[None]:
    """Have errors of the block call the store ``name``: clients do not learn where the pools are."""
    try:
        yield
    except (StoreError, MediumError) as error:
        raise type(error)(str(error).replace(url, name)) from error


def _log_name(run_id: bytes) -> str:
    """Return the name of the log of one request."""
    return f"job-{run_id.hex()}"


def _run_id(job: Job, place: int) -> bytes:
    """Return the id of the run that one request of a job is."""
    return hashlib.blake2b(f"{job.name}/{job.order}/{place}".encode(), digest_size=16).digest()
