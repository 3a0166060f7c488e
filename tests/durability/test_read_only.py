"""A store that can no longer be written: recorded progress is not lost, and leftovers that cannot be removed do no harm."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fastomp_nvm as fo
from fastomp_nvm.engine.engine import Engine
from fastomp_nvm.runs import drive
from fastomp_nvm.runs.log import StateLog
from tests.durability.conftest import REQUEST, PulledPlugError, stop_after_three_rounds
from tests.harness.kill_trials import comparable

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def write_protected(url: str) -> Iterator[None]:
    """Make a store read-only: whatever it changes, it reaches through a descriptor of its directory or of one in there."""
    path = url.removeprefix("mmap://")

    def inside(dir_fd: int | None) -> bool:
        return dir_fd is not None and os.readlink(f"/proc/self/fd/{dir_fd}").startswith(path)

    def refusing(original: Callable[..., Any], changes: Callable[..., bool]) -> Callable[..., Any]:
        def call(*arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
            if inside(dir_fd) and changes(*arguments):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return original(*arguments, dir_fd=dir_fd, **options)

        return call

    access = os.access
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refusing(os.open, lambda path, flags, *rest: bool(flags & (os.O_RDWR | os.O_CREAT))))
        patch.setattr(os, "mkdir", refusing(os.mkdir, lambda *arguments: True))
        patch.setattr(os, "unlink", refusing(os.unlink, lambda *arguments: True))
        patch.setattr(os, "access", lambda *what, dir_fd=None, **how: not inside(dir_fd) and access(*what, dir_fd=dir_fd, **how))
        yield


def swept_rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by one with every round that is answered by a sweep."""
    rounds: list[int] = []
    original = Engine._answer

    def answer(*arguments: Any) -> bool:
        answered = original(*arguments)
        rounds.extend([1] if answered else [])
        return answered

    monkeypatch.setattr(Engine, "_answer", answer)
    return rounds


def pull_the_plug(*arguments: Any, **options: Any) -> None:
    """End here."""
    raise PulledPlugError


def test_progress_survives_a_store_that_became_read_only(stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier rounds are listed and not swept again, and later ones are recorded in the run's directory."""
    expected = comparable(fo.select(stopped, **REQUEST))
    rounds = swept_rounds(monkeypatch)
    with write_protected(stopped):
        assert [(info.status, info.rounds) for info in fo.list_runs()] == [("stopped", 3)]
        with monkeypatch.context() as patch:
            patch.setattr(drive, "select_shared", pull_the_plug)
            with pytest.raises(PulledPlugError):
                fo.resume("half")
        assert [(info.status, info.rounds) for info in fo.list_runs()] == [("stopped", 3)]
        assert comparable(fo.resume("half")) == expected
        assert len(rounds) == 2
        assert fo.list_runs()[0].status == "finished"


def test_a_copy_that_was_not_finished_is_made_again(stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between making room for the copy and the copy itself loses nothing."""
    rounds = swept_rounds(monkeypatch)
    with write_protected(stopped):
        with monkeypatch.context() as patch:
            patch.setattr(StateLog, "write", pull_the_plug)
            with pytest.raises(PulledPlugError):
                fo.resume("half")
        assert [(info.status, info.rounds) for info in fo.list_runs()] == [("stopped", 3)]
        fo.resume("half")
        assert len(rounds) == 2


def test_a_run_on_a_read_only_store_is_forgotten(stopped: str) -> None:
    """Its name is free again, whatever stays in the store."""
    with write_protected(stopped):
        drive.forget("half")
    assert fo.list_runs() == []


def test_a_store_that_can_be_written_again_is_tidied(stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state that a read-only store had to keep goes with the run that finishes."""
    with write_protected(stopped), monkeypatch.context() as patch:
        patch.setattr(drive, "select_shared", pull_the_plug)
        with pytest.raises(PulledPlugError):
            fo.resume("half")
    rounds = swept_rounds(monkeypatch)
    fo.resume("half")
    assert len(rounds) == 2
    with fo.open_store(stopped) as store:
        assert store.regions() == ()


REALLY = """
import json, sys
import fastomp_nvm as fo
from fastomp_nvm.runs import drive as durable_runs
listed = [(info.status, info.rounds) for info in fo.list_runs()]
answer = fo.resume("half").to_json()
durable_runs.forget("half")
durable_runs.forget("other")
print(json.dumps([listed, answer["indices"], [info.name for info in fo.list_runs()]]))
"""


def test_a_file_system_mounted_read_only(stopped: str) -> None:
    """On a real read-only mount a run that was begun before is listed, resumed from its last round, and removed."""
    expected = fo.select(stopped, **REQUEST).indices.tolist()
    stop_after_three_rounds("other", stopped)
    path = stopped.removeprefix("mmap://")
    mount = f"mount --bind '{path}' '{path}' && mount -o remount,bind,ro '{path}'"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace is not permitted here")
    words = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", REALLY]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[["stopped", 3], ["stopped", 3]], expected, []]
