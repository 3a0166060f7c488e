"""One server for all tests that only talk to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow.flight", reason="the embedded server needs pyarrow with Flight")

from tests.service.running import RunningServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a server on loopback with the token that local clients find by themselves."""
    with RunningServer(tmp_path_factory.mktemp("service"), "--metrics", "127.0.0.1:0") as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log
