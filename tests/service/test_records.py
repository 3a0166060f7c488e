"""Records of jobs: sealed with checksums; a damaged one is reported and set aside, never served."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import fastomp_nvm as fo
from ado_plugin.service.jobs import JobLimits, Jobs
from ado_plugin.service.records import JobRecords
from tests.service.running import RunningServer, small_data
from tests.service.test_jobs import Gate, finished, request


def test_a_coefficient_changed_by_hand_is_not_served(tmp_path: Path) -> None:
    """An answer edited on disk is refused as damaged, now and after a restart, and its files are kept for the operator."""
    with RunningServer(tmp_path / "server") as running:
        X, y = small_data()
        with running.connect("/lab/data") as client:
            client.put(X, y)
            job = client.submit(k=2)
            (found,) = client.result(job)
        folder = running.pools / ".fastomp" / "jobs"
        (path,) = folder.glob("*.answer.json")
        digits = f"{found.coef[0]:.6f}"
        text = path.read_text()
        assert digits in text
        path.write_text(text.replace(digits, f"{found.coef[0] + 1:.6f}"))
        for _ in range(2):
            with running.connect("/lab/data") as client, pytest.raises(fo.StoreError, match="damaged and were set aside"):
                client.result(job)
            running.stop()
            running.start()
        assert {path.name for path in (folder / "damaged").iterdir()} == {
            f"{job}.{kind}.json" for kind in ("request", "state", "answer")
        }
        with running.connect("/lab/data") as client:
            assert len(client.select(k=2).features) == 2


@pytest.mark.parametrize("kind", ["request", "state", "answer"])
def test_flipped_bits_are_found(tmp_path: Path, kind: str) -> None:
    """Of two jobs the damaged one is set aside whichever bit of whichever record is flipped, and its name is not used again."""
    draw = random.Random(kind)
    for case in range(20):
        records = JobRecords(tmp_path / f"jobs{case}")
        first = Jobs(records, Gate(), JobLimits())
        for name in ("hit", "well"):
            first.submit(name, request())
        first.start()
        assert finished(first, "hit", "well") == ["done", "done"]
        first.drain(1.0)
        path = tmp_path / f"jobs{case}" / f"hit.{kind}.json"
        data = bytearray(path.read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        again = Jobs(records, Gate(), JobLimits())
        with pytest.raises(fo.StoreError, match="damaged"):
            again.answer(again.find("hit", None))
        with pytest.raises(fo.StoreError, match="damaged"):
            Jobs(records, Gate(), JobLimits()).submit("hit", request())
        assert again.answer(again.find("well", None)) == [{"of": "well"}]


def test_a_record_of_another_job_is_damage(tmp_path: Path) -> None:
    """An intact answer under the name of another job is not served."""
    records = JobRecords(tmp_path)
    for name in ("a", "b"):
        records.write_request(name, {})
        records.write_answer(name, {"answers": [name]})
    (tmp_path / "a.answer.json").replace(tmp_path / "b.answer.json")
    with pytest.raises(fo.StoreError, match="damaged"):
        records.answer("b")
