"""Savings of selecting next to the data: the benchmark runs, and its counts (not its times) hold on small data too."""

from __future__ import annotations

import json

import pytest

from benchmarks import push_down


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
