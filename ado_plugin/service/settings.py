"""Settings of a server, and the checks that they pass before anything is opened: protection and the TLS files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from ado_plugin.service.limits import JobLimits
from fastomp_nvm.errors import InputError
from fastomp_nvm.remote.address import is_loopback

__all__ = ["ServiceSettings", "refuse_exposure", "tls_pair"]


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
    page : (host, port), optional
        Address of the live page; needs Starlette and uvicorn.
    insecure : bool
        Serve beyond loopback without token or TLS.
    quota : int, optional
        Bytes per pool; by default what the disk has room for.
    connections : int
        Most connections at a time.
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
    page: tuple[str, int] | None = None
    insecure: bool = False
    quota: int | None = None
    connections: int = 1000
    threads: int | None = None
    upload_idle: float = 900.0
    drain: float = 20.0
    journal_from: int | None = None
    limits: JobLimits = field(default_factory=JobLimits)


def refuse_exposure(settings: ServiceSettings) -> None:
    """Raise ``InputError`` if the server would be open to other machines without protection."""
    reached = [host for host in (settings.host, *(settings.page or ())[:1]) if not is_loopback(str(host))]
    protected = settings.token_file is not None and settings.tls_cert is not None and settings.tls_key is not None
    if reached and not settings.insecure and not protected:
        raise InputError(
            f"{reached[0]} is reachable from other machines: it needs --token-file, --tls-cert and --tls-key (or --insecure)"
        )
    if settings.metrics is not None and not is_loopback(settings.metrics[0]) and not settings.insecure:
        raise InputError(
            f"{settings.metrics[0]} is reachable from other machines and the metrics need no token: --insecure allows that"
        )


def tls_pair(settings: ServiceSettings) -> tuple[bytes, bytes] | None:
    """Return certificate and key after checking that they belong together; None without TLS."""
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise InputError("TLS needs both --tls-cert and --tls-key")
    try:
        # With an empty password an encrypted key is refused; without one the library would ask at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key, password="")
        return settings.tls_cert.read_bytes(), settings.tls_key.read_bytes()
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"the certificate {settings.tls_cert} cannot be used with its key ({error}): expected PEM files, the key not encrypted"
        ) from error
