"""Trials with real processes: a run is killed again and again, and must end with the same answer as an uninterrupted run.

A trial forks a child that starts or resumes a durable run and dies by SIGKILL, at a named point or at a random time; then the next
child takes over, until the run is finished. The expected answer is in the parent, outside the store. Kill points are wrappers that
the child installs after the fork: production code contains nothing of them.
"""

from __future__ import annotations

import os
import random
import signal
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from fastomp_nvm.errors import FastompError
from fastomp_nvm.runs import directory, drive
from fastomp_nvm.runs.log import PAGE, StateLog
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.stores.open import open_store
from storage_backends.files import durable
from storage_backends.files.mapped import MappedRegion
from storage_backends.files.regions import FileRegion
from storage_backends.files.store import FileStore

__all__ = [
    "KILL_POINTS",
    "KillPoint",
    "TrialReport",
    "WrongAnswerError",
    "comparable",
    "die_at",
    "kill_at_point",
    "kill_at_random_times",
]

#: A call at which a process is killed: (owner or owners, attribute, True for before the call, False for after it).
KillPoint: TypeAlias = tuple[Any, str, bool]

#: The regions of the mmap and of the pmem medium.
_REGIONS = (FileRegion, MappedRegion)

#: Points at which a child can be killed.
KILL_POINTS: Mapping[str, KillPoint] = {
    "before registration": (directory, "write", True),
    "registered": (drive, "_finish", True),
    "log opened": (drive, "_open_log", False),
    "record written": (_REGIONS, "write", False),
    "persist begun": (_REGIONS, "start", False),
    "before persist": (_REGIONS, "persist", True),
    "persisted": (_REGIONS, "persist", False),
    "record acknowledged": (StateLog, "persist", False),
    "before a region": (FileStore, "_create_region", True),
    "region not yet named": (durable, "rename_with_flag", True),
    "region named": (durable, "rename_with_flag", False),
    "region durable": (FileStore, "_create_region", False),
    "before entries are durable": (os, "fsync", True),
    "before a region is dropped": (FileStore, "drop_region", True),
    "region dropped": (FileStore, "drop_region", False),
    "before result": (drive, "seal", True),
    "result published": (drive, "_drop_logs", True),
    "state dropped": (drive, "_drop_logs", False),
}


#: Bytes of the first region of a trial's log, which it soon outgrows, so that moving to a larger one is tested too.
_SMALL_REGION = 4 * PAGE

#: After this many random kills the next child is not killed, however slow the device.
_MOST_RANDOM_KILLS = 40


@dataclass(frozen=True, slots=True)
class TrialReport:
    """Counts of one trial.

    Attributes
    ----------
    kills : int
        Children that died by SIGKILL after the run was registered.
    early : int
        Children that died before it was registered.
    processes : int
        Children in all.
    """

    kills: int
    early: int
    processes: int


class WrongAnswerError(Exception):
    """A run that was killed has a wrong answer, or none."""


def comparable(selection: Selection) -> dict[str, Any]:
    """Return an answer without its run time, and without choices, which depend on free memory."""
    answer = selection.to_json()
    del answer["seconds"], answer["choices"]
    return answer


def kill_at_point(name: str, url: str, request: Mapping[str, Any], expected: Selection, point: str) -> TrialReport:
    """Kill one child after the other at ``point``, each at a later call of it, until a child finishes first."""
    return _trial(name, url, request, expected, lambda attempt: lambda: die_at(KILL_POINTS[point], attempt), lambda attempt: None)


def kill_at_random_times(
    name: str, url: str, request: Mapping[str, Any], expected: Selection, chance: random.Random
) -> TrialReport:
    """Kill one child after the other at a random time, later with each, until a child finishes first."""
    longest = _seconds_of_a_run(name, url, request)

    def patience(attempt: int) -> float | None:
        return chance.random() * longest * min(attempt + 1, 8) / 4 if attempt < _MOST_RANDOM_KILLS else None

    return _trial(name, url, request, expected, lambda attempt: lambda: None, patience)


def _seconds_of_a_run(name: str, url: str, request: Mapping[str, Any]) -> float:
    """Return the seconds of a child that is not killed: registering, sweeping, and waiting for the device."""
    started = time.perf_counter()
    child = os.fork()
    if not child:
        _be_child(name, url, request, False, lambda: None)
    if os.waitpid(child, 0)[1]:
        raise WrongAnswerError(f"{name}: a child that was not killed failed")
    seconds = time.perf_counter() - started
    drive.forget(name)
    return seconds


def _trial(
    name: str,
    url: str,
    request: Mapping[str, Any],
    expected: Selection,
    prepare: Callable[[int], Callable[[], None]],
    patience: Callable[[int], float | None],
) -> TrialReport:
    """Fork children until one finishes the run; compare and forget it."""
    kills = early = attempt = 0
    registered = False
    while True:
        child = os.fork()
        if not child:
            _be_child(name, url, request, registered, prepare(attempt))
        if (seconds := patience(attempt)) is not None:
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        attempt += 1
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise WrongAnswerError(f"{name}: child {attempt} failed with exit code {os.WEXITSTATUS(status)}")
        registered = any(info.name == name for info in drive.list_runs())
        if os.WIFSIGNALED(status):
            kills, early = kills + registered, early + (not registered)
        with open_store(url) as store:
            store.verify()
        if os.WIFEXITED(status):
            break
    if comparable(drive.resume(name)) != comparable(expected):
        raise WrongAnswerError(f"{name}: the result after {kills} kills is not that of the uninterrupted run")
    drive.forget(name)
    if left := os.listdir(os.path.join(urllib.parse.urlsplit(url).path, "regions")):
        raise WrongAnswerError(f"{name}: the store still holds {left}")
    return TrialReport(kills, early, attempt)


def _be_child(name: str, url: str, request: Mapping[str, Any], registered: bool, prepare: Callable[[], None]) -> NoReturn:
    """Run to the end, unless killed; never returns."""
    code = 1
    try:
        drive._FIRST_REGION = _SMALL_REGION
        prepare()
        if registered:
            drive.resume(name, threads=1)
        else:
            drive.start(name, url, threads=1, **request)
        code = 0
    except FastompError as error:
        os.write(2, f"{name}: {error}\n".encode())
    finally:
        os._exit(code)


def die_at(point: KillPoint, call: int) -> None:
    """Make this process die at the ``call``-th call (from 0) of a kill point."""
    owners, attribute, before = point
    count = 0

    def killing(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if before and count > call:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*arguments, **options)
            if count > call:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapper

    for owner in owners if isinstance(owners, tuple) else (owners,):
        setattr(owner, attribute, killing(getattr(owner, attribute)))
