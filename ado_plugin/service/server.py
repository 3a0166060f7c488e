"""The pool server: pools, uploads, jobs, operations, a Flight host, metrics, and an orderly shutdown.

Beyond the loopback interface it does not start without token and TLS unless ``insecure`` is set. ``stop`` accepts no more jobs,
waits for the running ones or leaves them for the next server, and closes everything.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ado_plugin.flight.server import FlightHost
from ado_plugin.service.access import Access
from ado_plugin.service.execution import Execution, import_selectors
from ado_plugin.service.jobs import Jobs
from ado_plugin.service.machine import (
    RESERVED_DESCRIPTORS,
    connection_room,
    free_bytes,
    free_descriptors,
    raise_descriptor_limit,
)
from ado_plugin.service.metrics import Condition, Figure, Labels, MetricsServer
from ado_plugin.service.operations import Operations
from ado_plugin.service.pools import Pools
from ado_plugin.service.records import JobRecords
from ado_plugin.service.settings import ServiceSettings, refuse_exposure, tls_pair
from ado_plugin.service.uploads import Uploads
from fastomp_nvm.errors import ServerError, UnavailableError, how_to_install
from fastomp_nvm.matrix.kernels import kernel
from fastomp_nvm.remote.address import is_loopback
from fastomp_nvm.version import __version__

if TYPE_CHECKING:
    from ado_plugin.page.host import PageHost

__all__ = ["Service"]

_log = logging.getLogger(__name__)

_REAP_SECONDS = 1.0


class Service:
    """A running server.

    Parameters
    ----------
    settings : ServiceSettings

    Raises
    ------
    InputError
        The server would be open to other machines without protection, or a file cannot be used.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        tls = tls_pair(settings)
        refuse_exposure(settings)
        local = is_loopback(settings.host)
        raise_descriptor_limit()
        import_selectors()
        self._settings = settings
        self._access = Access(settings.token_file)
        self._pools = Pools(settings.pools, settings.quota)
        own, limits = self._pools.own_folder, settings.limits
        self._uploads = Uploads(self._pools, settings.upload_idle)
        execution = Execution(self._pools, own / "journals", settings.threads, settings.journal_from)
        self._jobs = Jobs(JobRecords(own / "jobs"), execution, limits)
        self._operations = Operations(self._pools, self._uploads, self._jobs, limits)
        self._build: Labels = (
            ("version", __version__),
            ("kernel", kernel().id),
            ("python", platform.python_version()),
            ("numpy", np.__version__),
        )
        self._ended = threading.Event()
        self._draining = False
        self._metrics: MetricsServer | None = None
        self._page: PageHost | None = None
        try:
            if settings.metrics is not None:
                checks = {"/health": self._health, "/ready": self._readiness}
                self._metrics = MetricsServer(*settings.metrics, self._figures, checks)
            connections = connection_room(settings.connections)
            self._host = FlightHost(settings.host, settings.port, self._operations, self._access, tls, connections)
            if settings.page is not None:
                self._page = self._serve_page(*settings.page)
        except OSError as error:
            if self._metrics is not None:
                self._metrics.close()
            self._pools.close()
            raise ServerError(f"the server cannot listen there ({error}): choose another port") from error
        if settings.token_file is None:
            if local:
                self._access.admit_local(self._host.port)
            else:
                self._access.admit_anyone()
        self._reaper = threading.Thread(target=self._reap, name="reaper", daemon=True)
        scheme = "grpc" if tls is None else "grpc+tls"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"{scheme}://{host}:{self._host.port}"

    @property
    def metrics_port(self) -> int | None:
        """Port of the metrics; None if they are off."""
        return None if self._metrics is None else self._metrics.port

    @property
    def page_url(self) -> str | None:
        """Address of the live page; None if it is off."""
        return None if self._page is None else self._page.url

    def start(self) -> None:
        """Start to run jobs."""
        self._jobs.start()
        self._reaper.start()
        _log.info("serving", extra={"url": self.url, "pid": os.getpid(), "medium": self._pools.scheme})

    def reload(self) -> None:
        """Read the token file again; a file that cannot be used changes nothing."""
        try:
            self._access.reload()
            _log.info("tokens read again")
        except Exception as error:  # whatever is wrong with a file must not end the server
            _log.error("the old tokens stay in force", extra={"reason": str(error)})

    def _serve_page(self, host: str, port: int) -> PageHost:
        """Start the live page."""
        try:
            from ado_plugin.page.host import PageHost
        except ImportError as error:
            raise UnavailableError(f"the page needs {error.name}: {how_to_install(error.name or 'starlette')}") from error
        cert, key = self._settings.tls_cert, self._settings.tls_key
        tls = None if cert is None or key is None else (cert, key)
        return PageHost(host, port, self._operations, self._jobs, self._pools, self._access, self._figures, tls)

    def stop(self) -> bool:
        """Drain and close; return False when clients still hold calls open."""
        self._draining = True
        _log.info("draining", extra={"jobs": self._jobs.active})
        self._jobs.drain(self._settings.drain)
        self._ended.set()
        # ``shutdown`` waits for open calls, and a client that stalls would make it wait for ever.
        closing = threading.Thread(target=self._host.shutdown, name="shutdown", daemon=True)
        closing.start()
        closing.join(self._settings.drain)
        self._uploads.close(self._settings.drain)
        if self._metrics is not None:
            self._metrics.close()
        if self._page is not None:
            self._page.close()
        self._pools.close()
        _log.info("stopped", extra={"orderly": not closing.is_alive()})
        return not closing.is_alive()

    def _health(self) -> Condition:
        """Return the reason why jobs make no progress, or will soon make none, and the facts of workers, disk and descriptors."""
        room, descriptors = free_bytes(self._pools.root), free_descriptors()
        facts = {
            "workers_alive": self._jobs.workers_alive,
            "jobs_active": self._jobs.active,
            "oldest_job_seconds": round(self._jobs.longest_wait),
            "free_disk_bytes": room,
            "free_descriptors": descriptors,
        }
        reason = self._jobs.trouble
        if reason is None and room < self._pools.reserve // 16:
            reason = f"{room} bytes are free on the disk of the pools"
        if reason is None and descriptors < RESERVED_DESCRIPTORS // 8:
            reason = f"{descriptors} descriptors are left"
        return reason, facts

    def _readiness(self) -> Condition:
        """Return why new jobs are not accepted now."""
        if self._draining or not self._reaper.is_alive():
            return "draining" if self._draining else "starting", {}
        return ("the queue is full" if self._jobs.full else self._health()[0]), {}

    def _reap(self) -> None:
        """Periodically remove idle uploads, old jobs and connections that nobody uses."""
        while not self._ended.wait(min(_REAP_SECONDS, self._settings.upload_idle / 4)):
            try:
                if count := self._host.connections.shed():
                    _log.warning("connections ended", extra={"count": count})
                self._uploads.reap()
                self._jobs.reap()
            except Exception:
                _log.exception("reaping failed")

    def _figures(self) -> Sequence[Figure]:
        """Collect the metrics."""
        calls: dict[Labels, float] = {
            (("operation", name), ("outcome", outcome)): count for (name, outcome), count in self._operations.calls.copy().items()
        }
        finished: dict[Labels, float] = {(("state", state),): count for state, count in self._jobs.finished.copy().items()}
        latency = self._operations.latency.distributions(())
        refusals: dict[Labels, float] = {(("reason", reason),): count for reason, count in self._operations.refusals.copy().items()}
        return (
            Figure("build_info", "Release, kernel of sweeps, Python and NumPy of the server.", "gauge", {self._build: 1}),
            Figure(
                "healthy", "1 while jobs make progress, as /health says, else 0.", "gauge", {(): int(self._health()[0] is None)}
            ),
            Figure("calls_total", "Operations carried out.", "counter", calls),
            Figure(
                "call_seconds",
                "Time that the server took for a call, waits included, by operation.",
                "histogram",
                distributions={(("operation", name),): found for name, found in latency.items()},
            ),
            Figure(
                "refusals_total",
                "Calls that were refused or failed, by reason.",
                "counter",
                {**refusals, (("reason", "token"),): self._access.refused},
            ),
            Figure(
                "job_wait_seconds",
                "Time between the queueing of a job and its start.",
                "histogram",
                distributions={(): self._jobs.waits.distributions(("",))[""]},
            ),
            Figure(
                "swept_bytes_total",
                "Bytes that jobs reported as read: estimates during passes, and work before a resumption, included.",
                "counter",
                {(): self._jobs.bytes_swept},
            ),
            Figure("jobs_finished_total", "Jobs that ended, by state.", "counter", finished),
            Figure("jobs_active", "Jobs waiting or running.", "gauge", {(): self._jobs.active}),
            Figure("uploads_staged", "Uploads in progress.", "gauge", {(): self._uploads.staged}),
            Figure("upload_bytes_total", "Bytes of values received.", "counter", {(): self._uploads.bytes_received}),
            Figure("oldest_job_seconds", "Age of the oldest job that has not ended.", "gauge", {(): self._jobs.longest_wait}),
            Figure("free_disk_bytes", "Bytes free on the disk of the pools.", "gauge", {(): free_bytes(self._pools.root)}),
            Figure("free_descriptors", "Descriptors that may still be opened.", "gauge", {(): free_descriptors()}),
            Figure("pools", "Pools served.", "gauge", {(): len(self._pools.names())}),
        )
