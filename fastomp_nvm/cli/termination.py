"""SIGTERM and SIGHUP in commands that build stores, and how to go on after Ctrl-C."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastomp_nvm.errors import FastompError
from fastomp_nvm.remote.address import is_remote

__all__ = ["after_interrupt", "terminating_cleanly"]


#: Commands that run as jobs on a server.
_JOBS = ("select", "path", "grid", "cv", "stability", "verify")


@contextmanager
def terminating_cleanly() -> Iterator[None]:
    """End on SIGTERM and SIGHUP through every ``finally``, as on Ctrl-C: drafts are removed, the exit code is 143 or 129."""
    if threading.current_thread() is not threading.main_thread():  # handlers can only be set there
        yield
        return
    # The end of a terminal asks for the same, unless it is ignored (nohup).
    numbers = [signal.SIGTERM, *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL else [])]
    before = {number: signal.signal(number, lambda number, frame: sys.exit(128 + number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def after_interrupt(arguments: argparse.Namespace) -> str:
    """Return in one or two sentences what Ctrl-C left of a command, and the command that goes on."""
    command, store = arguments.command, getattr(arguments, "store", None)
    if command in (*_JOBS, "resume") and store is not None and is_remote(store):
        return _of_job(arguments, getattr(arguments, "job", None) or getattr(arguments, "name", None))
    if command in ("select", "resume"):
        name = getattr(arguments, "run_name", None) or getattr(arguments, "name", None)
        if name is not None and _is_registered(name):
            return f"interrupted; continue with: {_typed('resume', name, *_given(arguments, 'other_build', 'ray'))}"
        return "interrupted: nothing was kept; a selection with --run NAME can be continued"
    if command == "ingest" and store is not None and is_remote(store):
        return "interrupted: what was sent stays on the server for a while; the same command continues the upload"
    if command in ("ingest", "shard", "export", "predict"):
        return "interrupted: nothing was left behind; the same command starts again"
    if command in ("path", "grid", "cv", "stability"):
        return "interrupted: nothing was kept; the same command starts again"
    if command in ("delete", "cancel", "forget", "serve", "ado", "bench", "demo"):
        return "interrupted"
    return "interrupted: nothing was changed; the same command starts again"


def _of_job(arguments: argparse.Namespace, job: str | None) -> str:
    """Return how to go on with a job on a server; ``job`` is None where it was not submitted yet."""
    options = _given(arguments, "token_file", "tls_ca", "insecure")
    listing = _typed("runs", arguments.store, *options)
    if job is None:
        return f"interrupted before the server had the job; see its jobs with: {listing}"
    there = "stays on the server where it is" if arguments.store.startswith("mcas:") else "continues on the server"
    resume, cancel = (_typed(command, job, arguments.store, *options) for command in ("resume", "cancel"))
    return f"interrupted here, but the job {there}; see it with: {listing}; wait for it with: {resume}; end it with: {cancel}"


def _is_registered(name: str) -> bool:
    """Return whether there is a durable run of this name."""
    from fastomp_nvm.runs.directory import existing

    try:
        existing(name)
    except FastompError:
        return False
    return True


def _typed(*words: str) -> str:
    """Return a command as a user types it."""
    return shlex.join(("fastomp", *words))


def _given(arguments: argparse.Namespace, *names: str) -> list[str]:
    """Return those of some options that the command was given, as they are typed."""
    words: list[str] = []
    for name in names:
        value = getattr(arguments, name, None)
        if value not in (None, False):
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words
