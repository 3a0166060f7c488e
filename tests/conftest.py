"""Settings shared by all tests: hypothesis profiles and the folder of real data."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Under the oldest NumPy only the core is installed (make test-oldest).
collect_ignore = (
    ["cli/test_predict.py", "selection/test_estimator.py", "selection/test_model.py", "sessions"]
    if importlib.util.find_spec("sklearn") is None
    else []
)

# Machines are noisy: a deadline per example would test the neighbours. Where a change is judged (CI) the examples are always the
# same, so that it is judged by what it changes; everybody else's runs go on exploring.
settings.register_profile(
    "fastomp",
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("fastomp")


@pytest.fixture
def test_data() -> Path:
    """Return the folder of real data, or skip, saying so."""
    folder = os.environ.get("FASTOMP_TEST_DATA")
    if not folder:
        pytest.skip("FASTOMP_TEST_DATA is not set: no real data to test with")
    return Path(folder)


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep runs, caches and tokens of the tests out of the user's home."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path_factory.getbasetemp() / "home"))
