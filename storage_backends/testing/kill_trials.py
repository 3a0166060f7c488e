"""Trials with real processes: a run is killed again and again, and must come to the answer that its parent keeps.

A trial forks a child that starts or resumes a durable run and dies by SIGKILL, at a named point or at a random time; then the next
child takes over, until the run is finished. The expected answer lives in the parent, outside the store. Kill points are
wrappers that the child puts around the code under test after the fork: production code knows nothing of them.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from fastomp_nvm import durable_runs, run_directory
from fastomp_nvm.checkpoint import StateLog
from fastomp_nvm.errors import FastompError
from fastomp_nvm.request import Selection
from fastomp_nvm.stores import open_store
from storage_backends.mapped_files import MappedRegion

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

#: A call that a process does not survive: (owner, attribute, whether it dies before the call or after it).
KillPoint: TypeAlias = tuple[Any, str, bool]

#: Where a child can be told to die.
KILL_POINTS: Mapping[str, KillPoint] = {
    "before registration": (run_directory, "write_durably", True),
    "registered": (durable_runs, "_drive", True),
    "log opened": (durable_runs, "_open_log", False),
    "record written": (MappedRegion, "write", False),
    "before persist": (MappedRegion, "persist", True),
    "persisted": (MappedRegion, "persist", False),
    "record acknowledged": (StateLog, "append", False),
    "before result": (durable_runs, "seal", True),
    "result published": (StateLog, "drop", True),
    "state dropped": (StateLog, "drop", False),
}


@dataclass(frozen=True, slots=True)
class TrialReport:
    """What one trial took.

    Attributes
    ----------
    kills : int
        Children that died by SIGKILL.
    processes : int
        Children in all.
    """

    kills: int
    processes: int


class WrongAnswerError(Exception):
    """A run that was killed came to another answer, or to none."""


def comparable(selection: Selection) -> dict[str, Any]:
    """Return an answer without the time it took."""
    answer = selection.to_json()
    del answer["seconds"]
    return answer


def kill_at_point(name: str, url: str, request: Mapping[str, Any], expected: Selection, point: str) -> TrialReport:
    """Kill one child after the other at ``point``, each at a later call of it, until a child is done before it dies."""
    return _trial(name, url, request, expected, lambda attempt: lambda: die_at(KILL_POINTS[point], attempt), None)


def kill_at_random_times(
    name: str, url: str, request: Mapping[str, Any], expected: Selection, longest: float, chance: random.Random
) -> TrialReport:
    """Kill one child after the other after up to ``longest`` seconds (more with each), until one is done before that."""

    def patience(attempt: int) -> float:
        return chance.random() * longest * (attempt + 1) / 4

    return _trial(name, url, request, expected, lambda attempt: lambda: None, patience)


def _trial(
    name: str,
    url: str,
    request: Mapping[str, Any],
    expected: Selection,
    prepare: Callable[[int], Callable[[], None]],
    patience: Callable[[int], float] | None,
) -> TrialReport:
    """Fork children until one finishes the run; compare and forget it."""
    kills = attempt = 0
    while True:
        registered = any(info.name == name for info in durable_runs.runs())
        child = os.fork()
        if not child:
            _be_child(name, url, request, registered, prepare(attempt))
        attempt += 1
        if patience is not None:
            time.sleep(patience(attempt - 1))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise WrongAnswerError(f"{name}: child {attempt} failed with exit code {os.WEXITSTATUS(status)}")
        kills += os.WIFSIGNALED(status)
        with open_store(url) as store:
            store.verify()
        if os.WIFEXITED(status):
            break
    if comparable(durable_runs.resume(name)) != comparable(expected):
        raise WrongAnswerError(f"{name}: the result after {kills} kills is not that of the uninterrupted run")
    durable_runs.forget(name)
    with open_store(url) as store:
        if store.regions():
            raise WrongAnswerError(f"{name}: the store still holds {store.regions()}")
    return TrialReport(kills, attempt)


def _be_child(name: str, url: str, request: Mapping[str, Any], registered: bool, prepare: Callable[[], None]) -> NoReturn:
    """Drive the run to its end, unless killed; never returns."""
    code = 1
    try:
        prepare()
        if registered:
            durable_runs.resume(name, threads=1)
        else:
            durable_runs.start(name, url, threads=1, **request)
        code = 0
    except FastompError as error:
        os.write(2, f"{name}: {error}\n".encode())
    finally:
        os._exit(code)


def die_at(point: KillPoint, call: int) -> None:
    """Arrange for this process to die at the ``call``-th call (from 0) of a kill point."""
    owner, attribute, before = point
    original, count = getattr(owner, attribute), 0

    def dying(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if before and count > call:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if count > call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, dying)
