"""``fastomp serve``: serve pools of stores, so that selections run next to the data."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import urllib.parse
import warnings
from dataclasses import fields
from pathlib import Path

import psutil

from ado_plugin.commands.configuration import check_numbers, place, read_configuration, seconds, settings_of, size
from ado_plugin.service.limits import JobLimits
from ado_plugin.service.logs import log_to_stderr
from ado_plugin.service.preflight import Findings, preflight
from ado_plugin.service.settings import ServiceSettings
from fastomp_nvm.cli.arguments import add_threads_argument
from fastomp_nvm.cli.output import clean
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.home import local_token_file
from fastomp_nvm.matrix import lost_pages
from fastomp_nvm.remote.address import split_host_port

__all__ = ["ArrivingSignals", "add_arguments", "declare", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; those that are not given have no value, because the file may have one."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="F",
        help="YAML file with these options as keys, without dashes; the command line wins over it (default: no file)",
    )
    parser.add_argument(
        "--check", action="store_true", help="say what the server would do and what keeps it from starting, and end"
    )
    declare(parser)
    for action in settings_of(parser).values():
        action.default = argparse.SUPPRESS


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the settings of a server with their defaults: the one table of command line, file and schema."""
    parser.add_argument(
        "--pools",
        type=place,
        metavar="DIR|URL",
        help="place of the pools, needed here or in --config: a directory, mmap:///DIR or pmem:///DIR (no default)",
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:7010",
        metavar="HOST:PORT",
        help="address to serve at (default 127.0.0.1:7010); port 0 takes any",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="F",
        help="one admin token, or a YAML list of name, sha256, role, pools (default: a token for users of this machine)",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="F", help="certificate chain, PEM (default: no TLS)")
    parser.add_argument("--tls-key", type=Path, metavar="F", help="key of --tls-cert, PEM (default: no TLS)")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve /metrics, /health and /ready there; off by default")
    parser.add_argument(
        "--page",
        metavar="HOST:PORT",
        help="serve a live page of pools, jobs and answers there, such as 127.0.0.1:7011; off by default",
    )
    parser.add_argument("--insecure", action="store_true", help="serve beyond this machine without token or TLS")
    parser.add_argument(
        "--quota", type=size, metavar="SIZE", help="largest size of a pool, uploads included, such as 500GB (default: the disk's)"
    )
    parser.add_argument("--connections", type=int, default=1000, metavar="N", help="most connections at a time (default 1000)")
    add_threads_argument(parser)
    parser.add_argument("--queue", type=int, default=1024, metavar="N", help="most jobs waiting or running (default 1024)")
    parser.add_argument("--user-queue", type=int, default=256, metavar="N", help="most of them from one user (default 256)")
    parser.add_argument(
        "--job-memory", type=size, metavar="SIZE", help="most memory of all jobs that have begun (default half of this machine's)"
    )
    parser.add_argument(
        "--job-seconds", type=float, default=604800.0, metavar="S", help="most processor time of one job (default a week)"
    )
    parser.add_argument("--job-work", type=size, default=10**14, metavar="SIZE", help="most bytes one job may read (default 100TB)")
    parser.add_argument(
        "--upload-idle", type=float, default=900.0, metavar="S", help="remove uploads that are idle this long (default 900)"
    )
    parser.add_argument(
        "--drain", type=seconds, default=20.0, metavar="S", help="time for running jobs to end on SIGTERM (default 20)"
    )
    parser.add_argument(
        "--journal-from", type=size, metavar="SIZE", help="jobs that read more are continued after a crash (default 4GB)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, or say what would be done."""
    settings = _settings(arguments)
    lost_pages.install_guard()  # before stores are opened: a truncated file must not end the server
    if arguments.check:
        return _report(preflight(settings))
    from ado_plugin.service.server import Service  # needs pyarrow

    log_to_stderr()
    warnings.simplefilter("ignore")  # an infeasible selection says so in its fields
    service = Service(settings)
    signals = ArrivingSignals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    service.start()
    print(f"serving {settings.pools} at {service.url}", flush=True)
    if service.metrics_port is not None:
        print(f"metrics at port {service.metrics_port}", flush=True)
    if service.page_url is not None:
        print(f"page at {service.page_url}{_sign_in(service.url, settings.token_file)}", flush=True)
    while (number := signals.wait()) not in (signal.SIGTERM, signal.SIGINT):
        if number == signal.SIGHUP:
            service.reload()
    if not service.stop():
        # Calls that clients hold open would keep the process alive; everything durable is on disk.
        sys.stdout.flush()
        os._exit(0)
    return 0


def _settings(arguments: argparse.Namespace) -> ServiceSettings:
    """Return the settings of the command line, of the file where they are not given there, or their defaults."""
    table = argparse.ArgumentParser(add_help=False)
    declare(table)
    check_numbers(table, arguments)
    written = {} if arguments.config is None else read_configuration(arguments.config, table)
    chosen = argparse.Namespace(**{**vars(table.parse_args([])), **written, **vars(arguments)})
    if chosen.pools is None:
        raise InputError("missing: --pools, or pools in the file of --config")
    host, port = split_host_port(chosen.listen)
    metrics, page = (None if where is None else split_host_port(where) for where in (chosen.metrics, chosen.page))
    limits = JobLimits(
        queued=chosen.queue,
        owned=chosen.user_queue,
        memory=psutil.virtual_memory().total // 2 if chosen.job_memory is None else chosen.job_memory,
        work=chosen.job_work,
        seconds=chosen.job_seconds,
    )
    plain = {field.name: getattr(chosen, field.name) for field in fields(ServiceSettings) if field.name in chosen}
    return ServiceSettings(**plain | {"host": host, "port": port, "metrics": metrics, "page": page, "limits": limits})


def _report(found: Findings) -> int:
    """Print what was found; raise if the server could not start."""
    for subject, text in found.facts:
        print(f"{clean(subject):<12} {clean(text, longest=None)}")
    for warning in found.warnings:
        print(f"{'warning':<12} {clean(warning, longest=None)}")
    if found.problems:
        sys.stdout.flush()
        count = "a problem" if len(found.problems) == 1 else f"{len(found.problems)} problems"
        raise DataError(f"the server would not start, for {count}:", problems=found.problems)
    print("the server would start")
    return 0


def _sign_in(url: str, token_file: Path | None) -> str:
    """Return how to sign in at the page: for the owner of a terminal a link that does, otherwise where the token is."""
    if token_file is not None:
        return f", tokens as in {token_file}"
    path = local_token_file(urllib.parse.urlsplit(url).port or 0)
    if not path.is_file():
        return ""
    return f"#token={path.read_text(encoding='ascii').strip()}" if sys.stdout.isatty() else f", its token is in {path}"


class ArrivingSignals:
    """Signals as bytes of a pipe, so that none is lost whenever it arrives.

    A handler that sets a ``threading.Event`` deadlocks when it interrupts the start of the ``wait`` that it should end, whose lock
    is then held, and a signal that arrives just before a blocking call is seen only after the call.

    Parameters
    ----------
    *numbers : int
    """

    def __init__(self, *numbers: int) -> None:
        self._arrivals, arrivals = os.pipe()
        os.set_blocking(arrivals, False)
        for number in numbers:
            signal.signal(number, lambda *_: None)  # the C handler has written the number into the pipe
        signal.set_wakeup_fd(arrivals)

    def wait(self) -> int:
        """Return the next signal's number."""
        return os.read(self._arrivals, 1)[0]
