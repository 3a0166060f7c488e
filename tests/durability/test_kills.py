"""Real processes, really killed: at every named point and at random times, on every durable medium."""

from __future__ import annotations

import random
from typing import Any

import pytest

import fastomp_nvm as fo
from fastomp_nvm.runs import drive
from fastomp_nvm.runs.log import StateLog
from tests.harness.kill_trials import KILL_POINTS, WrongAnswerError, kill_at_point, kill_at_random_times

pytestmark = [pytest.mark.crash, pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")]

REQUEST: dict[str, Any] = {"k": 4, "algorithm": "sds_omp", "target": "amount"}


@pytest.mark.parametrize("medium", ["mmap", "pmem"])
@pytest.mark.parametrize("point", KILL_POINTS)
def test_killed_at_a_point(media: dict[str, str], medium: str, point: str) -> None:
    """Whichever call the process does not survive, its successors come to the expected answer and leave the store clean."""
    expected = fo.select(media[medium], threads=1, **REQUEST)
    report = kill_at_point("killed", media[medium], REQUEST, expected, point)
    assert (report.early if point == "before registration" else report.kills) >= 1


@pytest.mark.parametrize("medium", ["mmap", "pmem"])
@pytest.mark.parametrize("request_", [REQUEST, {"k": 4, "target": "class", "objective": "logistic"}], ids=["sds_omp", "logistic"])
def test_killed_at_random_times(media: dict[str, str], medium: str, request_: dict[str, Any]) -> None:
    """Whenever the process is killed, its successors come to the expected answer."""
    expected = fo.select(media[medium], threads=1, **request_)
    reports = [kill_at_random_times("killed", media[medium], request_, expected, random.Random(seed)) for seed in range(3)]
    assert sum(report.kills for report in reports) >= 1


def test_a_run_that_forgets_is_caught(media: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial itself fails when a resumed run continues from a wrong state."""
    expected = fo.select(media["mmap"], threads=1, **REQUEST)
    original = drive._open_log

    def forgetful(*arguments: Any) -> StateLog:
        log = original(*arguments)
        if len(log.records) > 2:
            log.records[1], log.records[2] = log.records[2], log.records[1]
        return log

    monkeypatch.setattr(drive, "_open_log", forgetful)
    with pytest.raises(WrongAnswerError):
        kill_at_point("killed", media["mmap"], REQUEST, expected, "record acknowledged")
    drive.forget("killed")
