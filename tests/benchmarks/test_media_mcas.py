"""The media benchmark on an MCAS server, here the double: its rows are measured, and nothing stays in the pool."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastomp_nvm as fo
from benchmarks import media

DOUBLES = Path(__file__).parents[1] / "doubles"
sys.path.append(str(DOUBLES))

from running_mcas import RunningMcas  # noqa: E402

sys.path.remove(str(DOUBLES))

pytestmark = pytest.mark.crash

DATA = media.Data("small", 60, 300, "float32", 5, 2)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningMcas]:
    """Run the double, with its modules in reach of this test alone."""
    monkeypatch.syspath_prepend(str(DOUBLES))
    monkeypatch.setenv("MCAS_DOUBLE_TIMEOUT", "10")
    monkeypatch.setenv("FASTOMP_MCAS_POOL_BYTES", str(64 << 20))
    monkeypatch.delenv("FASTOMP_TOKEN", raising=False)
    running = RunningMcas(tmp_path / "mcas")
    yield running
    running.kill()


def rows_of(tmp_path: Path, address: str | None, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Return the rows of MCAS, measured in this process."""
    media.build(DATA, f"mmap://{tmp_path / 'store'}")
    monkeypatch.setattr(media, "run_process", lambda cell, data: {**media.asdict(cell), **media.measure_cell(cell)})
    return list(media._in_mcas(DATA, tmp_path / "store", address))


def test_selections_are_pushed_down_to_a_server(server: RunningMcas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both algorithms select the same features inside the server and from the store, and the key is deleted afterwards."""
    address = f"127.0.0.1:{server.port}"
    rows = rows_of(tmp_path, address, monkeypatch)
    assert [row["algorithm"] for row in rows] == ["fast_omp", "sds_omp"]
    with fo.open_store(f"mmap://{tmp_path / 'store'}") as store:
        for row in rows:
            asked = {"k": 5, "algorithm": row["algorithm"], "tier": "exact", **DATA.asked(str(row["algorithm"]))}
            assert row["indices"] == fo.select(store, **asked).indices.tolist()
            assert len(row["all_seconds"]) == 2
    with fo.connect(f"mcas://{address}/fastomp-bench") as client:
        assert not client.list("fastomp-bench")


def test_a_cell_that_was_killed_does_not_keep_the_data(
    server: RunningMcas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that nobody drives any more is cancelled, and the key deleted."""
    address = f"127.0.0.1:{server.port}"

    def begin(cell: media.Cell) -> dict[str, object]:
        with fo.connect(cell.url) as client:
            client.submit(k=3)
        return {}

    monkeypatch.setattr(media, "measure_cell", begin)
    rows_of(tmp_path, address, monkeypatch)
    with fo.connect(f"mcas://{address}/fastomp-bench") as client:
        assert not client.list("fastomp-bench")


def test_without_a_server_the_rows_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server named, none there, or no client module: one row that says so."""
    (unnamed,) = rows_of(tmp_path, None, monkeypatch)
    assert "--mcas" in str(unnamed["skipped"])
    (absent,) = media._in_mcas(DATA, tmp_path / "store", "127.0.0.1:1")
    assert absent["skipped"]
