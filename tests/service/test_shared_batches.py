"""Jobs answered in shared sweeps: each ends when it is done or cancelled, not when the last of them is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastomp_nvm as fo
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.selection.select import select_shared
from tests.service.running import small_data
from tests.service.test_operations import Host

GREEDY = {"algorithm": "sds_omp", "polish": "none"}


def test_a_dropped_run_leaves_the_others_their_bits() -> None:
    """A run is dropped within a round and handed over as None; the others reach the answers they have alone."""
    X, y = small_data()
    requests: list[Any] = [{"k": 30, **GREEDY}, {"k": 40, **GREEDY}, {"k": 2, **GREEDY}]
    rounds = [0, 0, 0]
    ends: list[tuple[int, list[int]]] = []
    found: dict[int, fo.Selection | None] = {}

    def observer(step: Progress) -> None:
        rounds[step.run] = step.round

    def ended(place: int, selection: fo.Selection | None) -> None:
        ends.append((place, list(rounds)))
        found[place] = selection

    returned, _ = select_shared(X, requests, y, observer=observer, dropped=lambda place: place == 1 and rounds[1] >= 5, ended=ended)
    assert returned == []
    assert [place for place, _ in ends] == [2, 1, 0]
    (_, after_short), (_, after_drop), _ = ends
    assert after_short[0] < after_drop[0] < rounds[0], "the others were to go on"
    assert rounds[1] == 5
    assert found[1] is None
    for place in (0, 2):
        alone = fo.select(X, y, **requests[place]).to_json()
        assert found[place] is not None
        assert {**found[place].to_json(), "seconds": 0} == {**alone, "seconds": 0}


class Held:
    """Holds the rounds of one request of a batch until they are released."""

    def __init__(self, host: Host, run: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = {5: threading.Event(), 20: threading.Event()}
        self.released = {5: threading.Event(), 20: threading.Event()}
        original = host.jobs._executor.run

        def held(jobs: Any, observer: Callable[[Progress], None], *callbacks: Any) -> None:
            def observe(step: Progress) -> None:
                observer(step)
                if step.run == run and step.selected in self.reached:
                    self.reached[step.selected].set()
                    assert self.released[step.selected].wait(60)

            original(jobs, observe, *callbacks)

        monkeypatch.setattr(host.jobs._executor, "run", held)


@pytest.mark.parametrize("journal_from", [0, 1 << 60])
def test_members_of_a_batch_end_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal_from: int) -> None:
    """While a long job still runs, a short one has its answer and a cancelled one has ended; the long one is not disturbed."""
    host = Host(tmp_path, start=False, journal_from=journal_from)
    X, y = small_data()
    (tmp_path / "pools" / "lab").mkdir()
    fo.create_store(str(tmp_path / "pools" / "lab" / "data"), X, y).close()
    held = Held(host, 0, monkeypatch)
    place = {"pool": "lab", "key": "data"}
    try:
        host.call("select", **place, job="long", request={"k": 40, **GREEDY})
        host.call("select", **place, job="short", request={"k": 2})
        host.call("select_many", **place, job="cancelled", requests=[{"k": 2}, {"k": 50, **GREEDY}, {"k": 45, **GREEDY}])
        host.jobs.start()
        assert held.reached[5].wait(60)
        assert host.call("progress", job="cancelled")["state"] == "running", "the three were to run together"
        assert host.call("progress", job="short", wait=20)["state"] == "done"
        assert host.call("cancel", job="cancelled")["state"] == "running"
        held.released[5].set()
        assert held.reached[20].wait(60)
        assert host.call("progress", job="cancelled")["state"] == "cancelled"
        assert host.call("progress", job="long")["state"] == "running"
        assert len(host.call("result", job="short")["answers"]) == 1
        held.released[20].set()
        assert host.call("progress", job="long", wait=20)["state"] == "done"
        (answer,) = host.call("result", job="long")["answers"]
        alone = fo.select(str(tmp_path / "pools" / "lab" / "data"), k=40, **GREEDY)
        assert answer["json"]["features"] == list(alone.features)
        assert answer["json"]["coef"] == alone.column_coef.tolist()
        assert list((tmp_path / "pools" / ".fastomp" / "journals").iterdir()) == []
    finally:
        for event in held.released.values():
            event.set()
        host.close()
