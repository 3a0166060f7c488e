"""A run resumed from any of its rounds comes to the uninterrupted answer, bit for bit, counters included."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.runs import drive
from fastomp_nvm.runs.journal import DecisionJournal, recorded_progress
from fastomp_nvm.runs.log import StateLog, read_state
from fastomp_nvm.selection.request import make_request
from storage_backends.files.regions import DirectoryRegions, FileRegion
from tests.harness.kill_trials import comparable

LINEAR: dict[str, Any] = {"k": 5, "objective": "linear", "target": "amount"}
LOGISTIC: dict[str, Any] = {"k": 3, "objective": "logistic", "target": "class"}


class PulledPlugError(Exception):
    """The process ends here."""


def stop_after(patch: pytest.MonkeyPatch, states: int) -> None:
    """Let the process that appends state ``states + 1`` end before it does."""
    original = StateLog.write

    def write(log: StateLog, *records: bytes) -> None:
        if log.sequence == states:
            raise PulledPlugError
        original(log, *records)

    patch.setattr(StateLog, "write", write)


def resume_from_every_round(url: str, request: dict[str, Any]) -> int:
    """Interrupt a run after 0, 1, 2, ... rounds, resume it each time and compare; return the number of rounds."""
    expected = comparable(fo.select(url, **request))
    for rounds in range(1000):
        with pytest.MonkeyPatch.context() as patch:
            stop_after(patch, rounds)
            try:
                found = fo.select(url, run="interrupted", **request)
            except PulledPlugError:
                (info,) = fo.list_runs()
                assert (info.status, info.rounds) == ("stopped", rounds)
                patch.undo()
                found = fo.resume("interrupted")
                finished = False
            else:
                finished = True
        assert comparable(found) == expected, rounds
        assert comparable(fo.resume("interrupted")) == expected
        drive.forget("interrupted")
        if finished:
            return rounds
    raise AssertionError("the run never ended")


@pytest.mark.parametrize("medium", ["mmap", "pmem"])
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_linear_runs_resume_from_every_round(media: dict[str, str], medium: str, algorithm: str) -> None:
    """Every algorithm, every durable medium, the linear objective."""
    resume_from_every_round(media[medium], {**LINEAR, "algorithm": algorithm})


@pytest.mark.slow
@pytest.mark.parametrize("medium", ["mmap", "pmem"])
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_logistic_runs_resume_from_every_round(media: dict[str, str], medium: str, algorithm: str) -> None:
    """Every algorithm, every durable medium, the logistic objective."""
    resume_from_every_round(media[medium], {**LOGISTIC, "algorithm": algorithm})


@pytest.mark.parametrize(
    "request_",
    [
        {**LINEAR, "tau": "auto"},
        {**LINEAR, "until": "full", "polish": "none", "epsilon": 0.3},
        {**LINEAR, "gather_bytes": 4000},
        {**LINEAR, "certificate": True},
        {**LINEAR, "test_fraction": 0.25},
        {**LINEAR, "weights": np.linspace(0.5, 2.0, 120)},
        {**LINEAR, "k": None, "constraint": {"partition": {"groups": {"all": ["*"]}, "caps": {"all": 4}}}},
        {**LINEAR, "k": None, "constraint": {"monotone": {"function": "numpy:size", "threshold": 4}}},
        {**LINEAR, "standardize": False},
        {**LOGISTIC, "k": 6},
        {**LINEAR, "keep": ["region", "f2?"], "offset": np.linspace(-1.0, 1.0, 120), "tau": "auto"},
        {**LOGISTIC, "quality": "verified", "keep": ["f3"], "covariates": np.cos(np.arange(240.0)).reshape(120, 2), "offset": "f7"},
    ],
    ids=[
        *("auto", "full", "chunked", "certificate", "test", "weights", "partition", "estimated rank", "raw", "logistic"),
        *("kept", "covariates"),
    ],
)
def test_requests_of_every_kind_resume(media: dict[str, str], request_: dict[str, Any]) -> None:
    """Variants of FAST_OMP, several asks per query and arrays in the request among them."""
    assert resume_from_every_round(media["mmap"], request_) >= 1


def test_one_persist_per_round(media: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden count: a run persists once per answered query, during a sweep, and a resumed one once more for the recovered state."""
    counts = {"start": 0, "persist": 0, "commit": 0}
    for owner, name in ((FileRegion, "start"), (FileRegion, "persist"), (DecisionJournal, "commit")):
        original = getattr(owner, name)

        def counting(self: Any, *arguments: Any, _original: Any = original, _name: str = name) -> Any:
            counts[_name] += 1
            return _original(self, *arguments)

        monkeypatch.setattr(owner, name, counting)
    fo.select(media["mmap"], run="counted", algorithm="sds_omp", **LINEAR)
    assert counts == {"start": 5, "persist": 5, "commit": 5}
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(PulledPlugError):
            fo.select(media["mmap"], run="stopped", algorithm="sds_omp", **LINEAR)
    counts["persist"] = 0
    fo.resume("stopped")
    assert counts["persist"] == 1 + 2


def test_no_pass_is_repeated(media: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run sweeps only for the rounds that are not in its record."""
    from fastomp_nvm.engine.engine import Engine

    answered: list[int] = []
    original = Engine._answer

    def counting(*arguments: Any) -> None:
        answered.append(1)
        original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(PulledPlugError):
            fo.select(media["mmap"], run="swept", algorithm="sds_omp", **LINEAR)
    monkeypatch.setattr(Engine, "_answer", counting)
    fo.resume("swept")
    assert len(answered) == 1


def test_seconds_add_up(media: dict[str, str]) -> None:
    """The time of a resumed run is the sum over its processes."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(PulledPlugError):
            fo.select(media["mmap"], run="timed", algorithm="sds_omp", **LINEAR)
    before = fo.list_runs()[0].seconds
    assert 0 < before < fo.resume("timed").seconds


def test_a_read_only_store_keeps_its_runs_in_the_home(media: dict[str, str], own_home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the store cannot be written the state is kept in the run's directory, and the answer is the same."""
    from fastomp_nvm.errors import MediumError
    from storage_backends.files.store import FileStore

    def refuse(store: FileStore, name: str, size: int = 0) -> None:
        raise MediumError("cannot open the region: Read-only file system") from OSError(30, "Read-only file system")

    monkeypatch.setattr(FileStore, "region", refuse)
    expected = comparable(fo.select(media["mmap"], algorithm="sds_omp", **LINEAR))
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(PulledPlugError):
            fo.select(media["mmap"], run="elsewhere", algorithm="sds_omp", **LINEAR)
    assert list((own_home / "runs" / "elsewhere").glob("run-*.bin"))
    assert fo.list_runs()[0].rounds == 3
    assert comparable(fo.resume("elsewhere")) == expected
    assert not list((own_home / "runs" / "elsewhere").glob("run-*.bin"))


def test_a_deadline_ends_a_call_after_a_new_round(store_url: str, tmp_path: Path) -> None:
    """Calls whose deadline has passed before they begin answer one round each, and end with the uninterrupted selection."""
    expected = fo.select(store_url, **LINEAR, algorithm="sds_omp")
    request = make_request({**LINEAR, "algorithm": "sds_omp"})
    (tmp_path / "logs").mkdir()
    place = DirectoryRegions(tmp_path / "logs")
    with fo.open_store(store_url) as store:
        for calls in itertools.count(1):
            run = drive.JournaledRun(request, lambda: StateLog(place, "log", bytes(16)), {})
            ended = drive.drive(Dataset.of_store(store), [run], deadline=lambda: True)
            assert ended == (run.selection is not None)
            recorded = recorded_progress(read_state(place, "log", bytes(16)).records)
            if run.selection is not None:
                break
            assert recorded.round == calls
    assert recorded.round == run.rounds == calls
    assert recorded.bytes_read > 0
    assert comparable(run.selection) == comparable(expected)
