"""Savings of selecting next to the data: the benchmark runs, and its counts (not its times) hold on small data too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import push_down
from benchmarks.push_down_mcas import break_even

DOUBLES = Path(__file__).parents[1] / "doubles"
sys.path.append(str(DOUBLES))

from running_mcas import RunningMcas  # noqa: E402

sys.path.remove(str(DOUBLES))


def test_a_push_down_moves_next_to_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The same features come back for a few kilobytes where pulling moves the whole matrix, and every bar is judged."""
    push_down.main(["--observations", "500", "--features", "4000", "--k", "5", "--json"])
    printed = json.loads(capsys.readouterr().out)
    figures = printed["figures"]
    assert figures["same_features"]
    assert figures["pull_bytes"] > figures["bytes"] == 8_000_000
    assert figures["push_bytes"] < 50_000
    assert figures["server_anonymous_bytes"] < 300e6
    *bars, changed = printed["bars"]
    assert len(bars) == 4
    assert all(bar["found"] > 0 for bar in bars)
    assert changed["found"] == 0


@pytest.mark.parametrize(("lead", "found"), [((1, 1, 1), None), ((-1, 1, 1), 1.0), ((2, -2, 1), 2.0), ((3, 1, -1), 6.5)])
def test_the_break_even_lies_between_two_sizes(lead: tuple[int, ...], found: float | None) -> None:
    """It is where a straight line between the sizes before and after the first win of the push-down crosses zero."""
    sizes = (1.0, 3.0, 10.0)
    rows = [{"megabytes": size, "push_seconds": 5 + each, "pull_seconds": 5} for size, each in zip(sizes, lead, strict=True)]
    assert break_even(rows) == found


@pytest.mark.slow
def test_a_double_of_mcas_is_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ways select the same features over each size, and the table says that a double answered."""
    monkeypatch.syspath_prepend(str(DOUBLES))
    monkeypatch.setenv("PYTHONPATH", str(DOUBLES))
    server = RunningMcas(tmp_path / "mcas")
    try:
        words = ["--mcas", f"127.0.0.1:{server.port}", "--megabytes", "0.2", "0.4", "--k", "4", "--json"]
        assert push_down.main(words) == 0
    finally:
        server.kill()
    printed = json.loads(capsys.readouterr().out)
    assert "double" in printed["server"]
    assert [row["megabytes"] for row in printed["rows"]] == [0.2, 0.4]
    assert all(row["same_features"] for row in printed["rows"])
