"""Comparisons with other libraries: skipped with a reason in the usual environment, and not to be skipped in that of the peers."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

#: Set by ``make test-peers``, which installs the libraries.
REQUIRED = "FASTOMP_TEST_PEERS" in os.environ


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder where the libraries are not expected."""
    if not REQUIRED:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(
                    pytest.mark.skip(reason="other libraries are compared in an environment of their own: make test-peers")
                )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Turn a skip into a failure where the libraries must be there."""
    report = yield
    if REQUIRED and report.skipped and Path(__file__).parent in item.path.parents:
        report.outcome, report.longrepr = "failed", f"{item.nodeid} was skipped: {report.longrepr[2]}"
    return report
