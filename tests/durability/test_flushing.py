"""Flushes on a thread of their own are done when awaited, report their failures, and leave no thread behind."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from storage_backends.files import regions
from storage_backends.files.flushing import Flusher


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    """Open a file for the time of a test."""
    found = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield found
    os.close(found)


def flushing_threads() -> int:
    """Return how many threads of this process flush."""
    return sum(thread.name == "fastomp-flush" for thread in threading.enumerate())


def wait_for_no_thread() -> None:
    """Wait until none flushes: one that was joined may still be on its way out."""
    while flushing_threads():
        time.sleep(0.01)


def test_flushes_follow_each_other(descriptor: int) -> None:
    """Each is begun, waited for, and done; the time of the thread adds up; its end leaves nothing behind."""
    wait_for_no_thread()
    flusher = Flusher(partial(os.fdatasync, descriptor))
    flusher.begin()
    flusher.wait()  # a thread takes its name when it runs
    assert flushing_threads() == 1
    for number in range(20):
        os.pwrite(descriptor, bytes([number]) * 4096, 4096 * number)
        flusher.begin()
        flusher.wait()
    assert flusher.seconds > 0
    flusher.begin()
    flusher.close()
    wait_for_no_thread()


def test_the_failure_of_a_flush_is_told() -> None:
    """A file that cannot be flushed is an error of the flush that met it, with its number, each time."""
    reading, writing = os.pipe()
    flusher = Flusher(partial(os.fdatasync, writing))
    for _ in range(2):
        flusher.begin()
        with pytest.raises(OSError, match="Invalid argument") as caught:
            flusher.wait()
        assert caught.value.errno == errno.EINVAL
    flusher.close()
    os.close(reading)
    os.close(writing)


def test_a_failed_flush_fails_persist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that failed is reported, even if a second flush would succeed."""

    def broken() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(regions, "Flusher", lambda flush: Flusher(broken))
    with fo.create_store(f"mmap://{tmp_path}/s", np.eye(3)) as store:
        region = store.region("log", 4096)
        region.write(0, b"x")
        region.start(0, 1)
        with pytest.raises(fo.MediumError, match="make region 'log' durable: Input/output error"):
            region.persist(0, 1)
        region.close()


def test_the_run_goes_on_while_a_flush_takes_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``start`` returns at once and ``persist`` only after the flush; closing waits for a flush that was not awaited."""
    may_end, ended = threading.Event(), threading.Event()

    def slow() -> None:
        may_end.wait()
        ended.set()

    monkeypatch.setattr(regions, "Flusher", lambda flush: Flusher(slow))
    with fo.create_store(f"mmap://{tmp_path}/s", np.eye(3)) as store:
        region = store.region("log", 4096)
        region.write(0, b"x")
        region.start(0, 1)
        assert not ended.is_set()
        threading.Timer(0.05, may_end.set).start()
        region.persist(0, 1)
        assert ended.is_set()
        may_end.clear(), ended.clear()
        region.start(0, 1)
        threading.Timer(0.05, may_end.set).start()
        region.close()
        assert ended.is_set()


def test_a_run_leaves_no_thread_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flushing thread of a durable run ends with the run."""
    values = np.random.default_rng(0).normal(size=(50, 40))
    url = f"mmap://{tmp_path}/s"
    fo.create_store(url, values, values[:, 3] + values[:, 7]).close()
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    fo.select(url, k=4, algorithm="sds_omp", run="once")
    wait_for_no_thread()
