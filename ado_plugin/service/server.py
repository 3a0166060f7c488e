"""The pool server: pools, uploads, jobs, operations, a Flight host, metrics, and an orderly shutdown.

Beyond the loopback interface it does not start without token and TLS unless ``insecure`` is set. ``stop`` accepts no more jobs,
waits for the running ones or leaves them for the next server, and closes everything.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ado_plugin.flight.server import FlightHost
from ado_plugin.service.access import Access
from ado_plugin.service.execution import Execution
from ado_plugin.service.jobs import JobLimits, Jobs
from ado_plugin.service.metrics import Figure, Labels, MetricsServer
from ado_plugin.service.operations import Operations
from ado_plugin.service.pools import Pools
from ado_plugin.service.records import JobRecords
from ado_plugin.service.uploads import Uploads
from fastomp_nvm.errors import InputError, ServerError
from fastomp_nvm.remote.address import is_loopback

__all__ = ["Service", "ServiceSettings"]

_log = logging.getLogger(__name__)

_REAP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Settings of a server.

    Attributes
    ----------
    pools : str
        Directory or URL of the pools.
    host, port : str, int
        Address to listen on; port 0 for any.
    token_file, tls_cert, tls_key : Path, optional
    metrics : (host, port), optional
    insecure : bool
        Serve beyond loopback without token or TLS.
    quota : int, optional
        Bytes per pool.
    threads : int, optional
        Threads of a sweep.
    upload_idle : float
        Seconds without a call after which an upload is removed.
    drain : float
        Seconds for running jobs to end when the server is stopped.
    journal_from : int, optional
        Bytes of work from which a job keeps a journal.
    limits : JobLimits
    """

    pools: str
    host: str = "127.0.0.1"
    port: int = 0
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    metrics: tuple[str, int] | None = None
    insecure: bool = False
    quota: int | None = None
    threads: int | None = None
    upload_idle: float = 900.0
    drain: float = 20.0
    journal_from: int | None = None
    limits: JobLimits = field(default_factory=JobLimits)


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
        tls = _tls(settings)
        local = is_loopback(settings.host)
        if not local and not settings.insecure and (tls is None or settings.token_file is None):
            raise InputError(
                f"{settings.host} is reachable from other machines: it needs --token-file, --tls-cert and --tls-key (or --insecure)"
            )
        if settings.metrics is not None and not is_loopback(settings.metrics[0]) and not settings.insecure:
            raise InputError(
                f"{settings.metrics[0]} is reachable from other machines and the metrics need no token: --insecure allows that"
            )
        self._settings = settings
        self._access = Access(settings.token_file)
        self._pools = Pools(settings.pools, settings.quota)
        own, limits = self._pools.own_folder, settings.limits
        self._uploads = Uploads(self._pools, settings.upload_idle)
        execution = Execution(self._pools, own / "journals", settings.threads, settings.journal_from)
        self._jobs = Jobs(JobRecords(own / "jobs"), execution, limits)
        self._operations = Operations(self._pools, self._uploads, self._jobs, limits)
        self._ended = threading.Event()
        self._draining = False
        self._metrics: MetricsServer | None = None
        try:
            if settings.metrics is not None:
                self._metrics = MetricsServer(*settings.metrics, self._figures, self._trouble)
            self._host = FlightHost(settings.host, settings.port, self._operations, self._access, tls)
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
        self._pools.close()
        _log.info("stopped", extra={"orderly": not closing.is_alive()})
        return not closing.is_alive()

    def _trouble(self) -> str | None:
        """Return the reason why the server is not healthy, or None."""
        return "draining" if self._draining else self._jobs.trouble

    def _reap(self) -> None:
        """Periodically remove idle uploads and old jobs."""
        while not self._ended.wait(min(_REAP_SECONDS, self._settings.upload_idle / 4)):
            try:
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
        return (
            Figure("calls_total", "Operations carried out.", "counter", calls),
            Figure("jobs_finished_total", "Jobs that ended, by state.", "counter", finished),
            Figure("jobs_active", "Jobs waiting or running.", "gauge", {(): self._jobs.active}),
            Figure("uploads_staged", "Uploads in progress.", "gauge", {(): self._uploads.staged}),
            Figure("upload_bytes_total", "Bytes of values received.", "counter", {(): self._uploads.bytes_received}),
            Figure("pools", "Pools served.", "gauge", {(): len(self._pools.names())}),
        )


def _tls(settings: ServiceSettings) -> tuple[bytes, bytes] | None:
    """Return certificate and key after checking that they belong together."""
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise InputError("TLS needs both --tls-cert and --tls-key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
        return settings.tls_cert.read_bytes(), settings.tls_key.read_bytes()
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"the certificate {settings.tls_cert} cannot be used with its key ({error}): expected PEM files"
        ) from error
