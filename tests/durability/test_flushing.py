"""A flush in the background reaches the device, reports its failure, and leaves neither threads nor forks hanging."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from storage_backends.files import flushing, regions
from storage_backends.files.flushing import Flusher, ThreadFlusher

needs_native = pytest.mark.skipif(flushing.native is None, reason="the compiled flusher was not built")

Maker = Callable[[int], Flusher]


@pytest.fixture(params=[pytest.param("native", marks=needs_native), "python"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """Return the constructor of a flusher, for each kind."""
    if request.param == "python":
        monkeypatch.setattr(flushing, "native", None)
    return flushing.file_flusher


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    """Open a file for the time of a test."""
    found = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield found
    os.close(found)


def tasks() -> int:
    """Return the threads of this process, those included that Python does not know."""
    return len(os.listdir("/proc/self/task"))


def ends_with(count: int) -> bool:
    """Wait until there are ``count`` threads: one that was joined may still be on its way out."""
    end = time.monotonic() + 10.0
    while tasks() != count and time.monotonic() < end:
        time.sleep(0.01)
    return tasks() == count


def test_flushes_follow_each_other(make: Maker, descriptor: int) -> None:
    """Each is begun, waited for, and done; the time of the thread adds up; its end leaves nothing behind."""
    before = tasks()
    flusher = make(descriptor)
    assert tasks() == before + 1
    for number in range(20):
        os.pwrite(descriptor, bytes([number]) * 4096, 4096 * number)
        flusher.begin()
        flusher.wait()
    assert 0 < flusher.seconds < 10
    flusher.begin()
    flusher.close()
    assert ends_with(before)


def test_the_failure_of_a_flush_is_told(make: Maker) -> None:
    """A file that cannot be flushed is an error of the flush that met it, with its number, each time."""
    reading, writing = os.pipe()
    flusher = make(writing)
    for _ in range(2):
        flusher.begin()
        with pytest.raises(OSError, match="Invalid argument") as caught:
            flusher.wait()
        assert caught.value.errno == errno.EINVAL
    flusher.close()
    os.close(reading)
    os.close(writing)


@needs_native
def test_a_fork_does_not_wait_for_the_thread(descriptor: int) -> None:
    """A thread does not survive a fork: the child is refused instead of hanging, and may end the flusher."""
    flusher = flushing.native.Flusher(descriptor)
    child = os.fork()
    if not child:
        code = 1
        try:
            for call in (flusher.begin, flusher.wait):
                with pytest.raises(ValueError, match="not in this process"):
                    call()
            flusher.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    flusher.begin()
    flusher.wait()
    flusher.close()
    flusher.close()
    with pytest.raises(ValueError, match="has ended"):
        flusher.begin()


@needs_native
def test_signals_are_not_the_threads(descriptor: int) -> None:
    """A signal to the process goes to the main thread, whose calls it interrupts."""
    flusher = flushing.native.Flusher(descriptor)
    taken: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: taken.append(number))
    try:
        for _ in range(20):
            flusher.begin()
            os.kill(os.getpid(), signal.SIGUSR1)
            flusher.wait()
        assert taken
        blocked = [
            int(line.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1
            for task in Path("/proc/self/task").iterdir()
            for line in (task / "status").read_text().splitlines()
            if line.startswith("SigBlk") and (task / "comm").read_text() == "fastomp-flush\n"
        ]
        assert blocked == [1]
    finally:
        signal.signal(signal.SIGUSR1, before)
        flusher.close()


def test_a_failed_flush_fails_persist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that failed is reported, even if a second flush would succeed."""

    def broken() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(regions, "file_flusher", lambda descriptor: ThreadFlusher(broken))
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
        may_end.wait(10)
        ended.set()

    monkeypatch.setattr(regions, "file_flusher", lambda descriptor: ThreadFlusher(slow))
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


@needs_native
def test_runs_agree_without_the_compiled_flusher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there was no compiler, a run is durable all the same."""
    values = np.random.default_rng(0).normal(size=(50, 40))
    url = f"mmap://{tmp_path}/s"
    fo.create_store(url, values, values[:, 3] + values[:, 7]).close()
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    expected = fo.select(url, k=4, algorithm="sds_omp", run="native").indices.tolist()
    before = tasks()
    monkeypatch.setattr(flushing, "native", None)
    assert fo.select(url, k=4, algorithm="sds_omp", run="python").indices.tolist() == expected
    assert ends_with(before)
