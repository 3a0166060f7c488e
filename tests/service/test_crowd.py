"""300 clients at once: right answers, or a clear refusal where the queue is full."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.harness.crowd import Crowd

CLIENTS = 300


@pytest.mark.slow
def test_many_clients_at_once_are_answered_or_refused(tmp_path: Path) -> None:
    """With room for all, all are right; with room for one job, each is right or told that the queue is full; it passes."""
    crowd = Crowd(tmp_path / "roomy", "--user-queue", str(CLIENTS))
    with crowd.server:
        before = psutil.Process(crowd.server.process.pid).num_fds()
        connections, outcomes = crowd.rush(CLIENTS)
        assert connections >= CLIENTS
        assert outcomes == {"right": CLIENTS}
        assert crowd.rush(1)[1] == {"right": 1}
        assert psutil.Process(crowd.server.process.pid).num_fds() < before + CLIENTS // 4
        assert crowd.server.stop() == 0
        assert "Traceback" not in crowd.server.log
    crowd = Crowd(tmp_path / "tight", "--user-queue", "1")
    with crowd.server:
        _, outcomes = crowd.rush(CLIENTS)
        assert sum(outcomes.values()) == CLIENTS
        assert set(outcomes) == {"right", "busy"}
        assert crowd.rush(1)[1] == {"right": 1}
        assert crowd.server.stop() == 0
