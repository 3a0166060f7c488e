"""The directories of durable runs: one per name under ``FASTOMP_HOME``, locked by the process that drives the run.

Invariants: a directory appears under its name in one step, complete, durable and locked; a lock ends with the process that holds
it, however it ends. A failure of the device is a ``MediumError``. Knows nothing of the content of a run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from fastomp_nvm.durable_files import (
    check_name,
    device_errors,
    is_name,
    lock,
    opened_directory,
    remove_abandoned,
    sync_directory,
    write_atomically,
)
from fastomp_nvm.errors import RequestError, near
from fastomp_nvm.home import home

__all__ = ["existing", "is_locked", "locked", "names", "registered", "remove", "write"]

_LOCK_ATTEMPTS = 20  # ``is_locked`` in another process holds the lock for microseconds


def names() -> list[str]:
    """Return the names of all runs, in order."""
    return sorted(entry.name for entry in _parent().iterdir() if is_name(entry.name))


def existing(name: str) -> Path:
    """Return the directory of the run ``name``."""
    directory = _parent() / check_name(name, "run")
    if not directory.is_dir():
        raise RequestError(f"there is no run {name!r}{near(name, names())}: 'fastomp runs' lists the runs")
    return directory


@contextlib.contextmanager
def registered(name: str, file: str, data: bytes) -> Iterator[Path]:
    """Make a directory with one file appear under ``name``, locked for the duration of a ``with`` block."""
    parent = _parent()
    partial = parent / f".{name}.partial-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, partial, ignore_errors=True)
        # Registrations take turns: a directory that is made and not yet locked looks abandoned to another registration.
        with device_errors(f"register the run {name!r}"), opened_directory(parent) as turn:
            with device_errors(f"lock {parent}"):
                lock(turn, wait=True)
            for leftover in (*parent.glob(f".{name}.partial-*"), *parent.glob(f".{name}.retired-*")):
                remove_abandoned(leftover)
            os.mkdir(partial, 0o700)
            stack.enter_context(locked(partial, name))
            write(partial / file, data)
            if (parent / name).exists():
                raise RequestError(f"the name {name!r} is used by another run: resume that run, or choose a new name")
            os.rename(partial, parent / name)
            sync_directory(parent)
            sync_directory(parent.parent)  # the process that made the directory of all runs may have died before this
        yield parent / name


@contextlib.contextmanager
def locked(directory: Path, name: str) -> Iterator[None]:
    """Hold the lock of a run for the duration of a ``with`` block."""
    with contextlib.ExitStack() as stack:
        with device_errors(f"lock the run {name!r}"):
            descriptor = stack.enter_context(opened_directory(directory))
            attempts = _LOCK_ATTEMPTS
            while not lock(descriptor):
                attempts -= 1
                if not attempts:
                    raise RequestError(f"the run {name!r} is being driven by another process: wait for it or stop it")
                time.sleep(0.01)
        if not _leads_to(directory, descriptor):
            raise RequestError(f"the run {name!r} was forgotten meanwhile: 'fastomp runs' lists the runs")
        yield


def is_locked(directory: Path) -> bool:
    """Return whether a process drives the run."""
    with device_errors(f"read the lock of {directory}"), opened_directory(directory) as descriptor:
        return not lock(descriptor, shared=True)


def remove(directory: Path) -> None:
    """Remove a run's directory; its name is free from the first step on."""
    retired = directory.with_name(f".{directory.name}.retired-{secrets.token_hex(4)}")
    with device_errors(f"remove {directory}"):
        os.rename(directory, retired)
        shutil.rmtree(retired, ignore_errors=True)
        sync_directory(retired.parent)


def write(path: Path, data: bytes) -> None:
    """Write a file of a run, atomically and durably."""
    with device_errors(f"write {path}"):
        write_atomically(path, data)


def _parent() -> Path:
    """Return the directory of all runs, made if absent."""
    directory = home() / "runs"
    with device_errors(f"make {directory}"):
        directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _leads_to(directory: Path, descriptor: int) -> bool:
    """Return whether a path still leads to an open directory."""
    try:
        return os.path.samestat(os.stat(directory), os.fstat(descriptor))
    except OSError:
        return False
