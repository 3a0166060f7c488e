"""Locks of runs: one driver per run, one run per name, and the list of runs meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fastomp_nvm as fo
from fastomp_nvm.runs import directory, drive
from tests.durability.conftest import REQUEST


def test_a_lock_on_a_forgotten_run_is_refused(stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waited for the lock while the run was removed, and its name reused, drives neither run."""
    flock, waited = fcntl.flock, []

    def forgotten_meanwhile(descriptor: int, operation: int) -> None:
        if not waited:
            waited.append(1)
            drive.forget("half")
            with directory.registered("half", "run.json", b"another"):
                pass
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", forgotten_meanwhile)
    with pytest.raises(fo.RequestError, match="forgotten meanwhile"):
        fo.resume("half")


def test_a_file_system_without_locks_is_our_error(stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locks are not to be had a run is neither started nor resumed, and the list says why."""

    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(fo.MediumError, match="cannot lock"):
        fo.resume("half")
    with pytest.raises(fo.MediumError, match="cannot lock"):
        fo.select(stopped, run="new", **REQUEST)
    assert "No locks available" in fo.list_runs()[0].detail


def begin(name: str, together: threading.Barrier) -> str:
    """Register a run at the same time as the others; return the outcome."""
    together.wait()
    try:
        with directory.registered(name, "run.json", b"{}"):
            return "won"
    except fo.RequestError:
        return "used"


def test_of_simultaneous_starts_one_wins(own_home: Path) -> None:
    """Of several runs begun at once under one name, one is registered and the others are refused because the name is used."""
    outcomes: Counter[str] = Counter()
    with ThreadPoolExecutor(4) as threads:
        for attempt in range(30):
            outcomes.update(threads.map(begin, [f"name-{attempt}"] * 4, [threading.Barrier(4)] * 4))
    assert outcomes == {"won": 30, "used": 90}
    assert sorted(directory.names()) == sorted(path.name for path in (own_home / "runs").iterdir())


def test_a_run_that_finishes_while_it_is_listed_is_finished(stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is gone because the run has ended does not look like a run without rounds."""
    original = drive._records

    def too_late(*arguments: Any) -> Any:
        monkeypatch.setattr(drive, "_records", original)
        fo.resume("half")
        return original(*arguments)

    monkeypatch.setattr(drive, "_records", too_late)
    assert [(info.status, info.rounds) for info in fo.list_runs()] == [("finished", 5)]
