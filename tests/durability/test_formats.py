"""Format 1: files written by the first release of the formats are read, or refused in one sentence, by every later one.

The files were made by ``tests/fixtures/make_format_1.py``. They are copied before they are opened, because opening a run may write.
"""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

import fastomp_nvm as fo
from ado_plugin.service.execution import Execution
from ado_plugin.service.jobs import Jobs
from ado_plugin.service.limits import JobLimits
from ado_plugin.service.pools import Pools
from ado_plugin.service.records import JobRecords
from fastomp_nvm.cli.main import main
from fastomp_nvm.engine.identity import numeric_build
from fastomp_nvm.matrix.kernels import kernel
from fastomp_nvm.runs import drive as durable_runs
from fastomp_nvm.selection.codec import decode_selection

FIXTURES = Path(__file__).parents[1] / "fixtures" / "format_1"
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Put a copy of the store where a server would have it."""
    folder = tmp_path / "pools" / "lab" / "data"
    shutil.copytree(FIXTURES / "store", folder, copy_function=shutil.copyfile)
    return folder


@pytest.fixture
def home_with_runs(store: Path, own_home: Path) -> Path:
    """Put copies of the runs into the home.

    A registration names its store by absolute URL, in the fixtures one that does not exist. The copy's is put in its place, and the
    checksum over the text made anew; nothing else of the format is touched, nor any code of ours used for it.
    """
    shutil.copytree(FIXTURES / "runs", own_home / "runs", copy_function=shutil.copyfile)
    for path in own_home.glob("runs/*/run.json"):
        body = json.loads(path.read_text(encoding="ascii"))["body"]
        body = json.dumps({**json.loads(body), "store": f"mmap://{store}"})
        path.write_text(json.dumps({"crc32": zlib.crc32(body.encode("ascii")), "body": body}), encoding="ascii")
    return own_home


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the error of a command that must be refused: one line on standard error, and nothing else."""
    assert main(list(words)) != 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("fastomp: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("tier", ["exact", "int8"])
def test_a_store_is_read(store: Path, tier: str) -> None:
    """The store verifies, and the request selects the recorded features over the matrix and over the tier."""
    with fo.open_store(str(store)) as opened:
        opened.verify()
        found = fo.select(opened, **EXPECTED["request"], tier=tier)
        assert tuple(opened.targets) == ("amount", "class")
    assert (found.indices.tolist(), list(found.features)) == (EXPECTED["indices"], EXPECTED["features"])


def test_a_store_of_a_later_format_is_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A header with a later version is refused in one sentence that names both versions, whatever else it may hold."""
    header = {**json.loads((store / "header.json").read_text(encoding="utf-8")), "version": 3, "new": {}}
    (store / "header.json").write_text(json.dumps(header), encoding="utf-8")
    assert "version is 3 and this release reads 1 and 2" in refusal(capsys, "info", str(store))


def test_runs_are_listed(home_with_runs: Path) -> None:
    """Both runs are listed with their standing, by any numeric build."""
    rounds = EXPECTED["rounds"]
    found = {info.name: info for info in durable_runs.list_runs()}
    assert {name: info.status for name, info in found.items()} == {"finished": "finished", "unfinished": "stopped"}, found
    assert found["unfinished"].rounds == rounds < found["finished"].rounds
    assert found["finished"].selected == len(EXPECTED["indices"])


def test_a_finished_run_is_printed(home_with_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resuming a finished run prints its result, by any numeric build."""
    assert main(["resume", "finished", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["indices"] == EXPECTED["indices"]


@pytest.mark.parametrize("other_build", [False, True])
def test_an_unfinished_run_is_resumed_or_refused(
    home_with_runs: Path, capsys: pytest.CaptureFixture[str], other_build: bool
) -> None:
    """An unfinished run ends with the recorded features, or is refused in one sentence, always so by an unconfirmed other build.

    A build that was allowed to go on may still not take the recorded path, and says so.
    """
    same_build = durable_runs.registration("unfinished").build == numeric_build(kernel().id)
    words = ["resume", "unfinished", "--json", *(["--other-build"] if other_build else [])]
    if not same_build and not other_build:
        assert "was started with another numeric build" in refusal(capsys, *words)
        return
    try:
        found = durable_runs.resume("unfinished", other_build=other_build)
    except fo.StoreError:
        assert "does not belong to this code" in refusal(capsys, *words)
    else:
        assert found.indices.tolist() == EXPECTED["indices"]
        assert durable_runs.list_runs()[1].status == "finished"


def test_another_build_is_refused_and_named(home_with_runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Whatever machine made the run, one of another build is refused in one sentence that names the difference."""
    build = {**durable_runs.registration("unfinished").build, "numpy": "0.1"}
    monkeypatch.setattr(durable_runs, "numeric_build", lambda _: build)
    assert "now), under which bits may differ" in refusal(capsys, "resume", "unfinished")


def test_job_records_are_read(store: Path, tmp_path: Path) -> None:
    """A server finds the job that is done with its answer, and carries out the one that waits."""
    pools = Pools(f"mmap://{tmp_path / 'pools'}")
    shutil.copytree(FIXTURES / "jobs", pools.own_folder / "jobs", copy_function=shutil.copyfile)
    jobs = Jobs(JobRecords(pools.own_folder / "jobs"), Execution(pools, pools.own_folder / "journals"), JobLimits())
    try:
        assert [(job["job"], job["state"]) for job in jobs.standings("owner")] == [("done", "done"), ("waiting", "queued")]
        jobs.start()
        *_, last = jobs.follow(jobs.find("waiting", "owner"), -1, 60.0)
        assert last["state"] == "done", last
        for name in ("done", "waiting"):
            (answer,) = jobs.answer(jobs.find(name, "owner"))
            assert decode_selection(answer).indices.tolist() == EXPECTED["indices"]
    finally:
        jobs.drain(1.0)
        pools.close()
