"""The benchmark of checksums compares selections with and without them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import checks
from fastomp_nvm import native


def test_the_cost_of_checksums_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It judges first and later selections with and without the tier, prints the rate of each CRC-32, and leaves nothing behind."""
    assert checks.main(["--quick", "--json", "--folder", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [(bar["limit"], bar["at_most"]) for bar in printed["bars"]] == [(1.10, True), (1.05, True)] * 2
    assert set(printed["bytes_per_second"]) == {"sweep", "crc32", "zlib", *(["tables"] if native.extension else [])}
    assert not list(tmp_path.iterdir())
