"""The long harness works: it reaches small goals, continues where it was stopped, and reports both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import durability_cost
from tests.harness import crash

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")]


def test_the_crash_harness_reaches_its_goals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A session without time does nothing, the next reaches the goals, and a third finds nothing left to do."""
    goals = {"simulated images": 300, "SIGKILLs": 12, "SIGKILLs of a server": 8, "mutated files": 120}
    goals["broken logs caught"] = len(crash.BROKEN_LOGS)
    monkeypatch.setattr(crash, "QUICK_GOALS", goals)
    state = tmp_path / "tallies.jsonl"
    words = ["--quick", "--state", str(state)]
    assert crash.main([*words, "--minutes", "0"]) == 3
    assert crash.main(words) == 0
    lines = len(state.read_text().splitlines())
    assert crash.main(words) == 0
    assert len(state.read_text().splitlines()) == lines
    printed = capsys.readouterr().out
    assert "0 lost runs, 0 wrong results" in printed
    assert "0 lost or wrong of" in printed


def test_the_cost_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The cost benchmark prints a ratio per algorithm."""
    small = ["--quick", "--features", "600", "--observations", "60", "--repeats", "2", "--json", "--folder", str(tmp_path)]
    assert durability_cost.main(small) == 0
    printed = json.loads(capsys.readouterr().out)
    for name in durability_cost.REQUESTS:
        ratio = printed[name]["ratio"]
        assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
        assert printed[name]["cost"] > 0
        assert printed[name]["persisting_per_round"] > 0
