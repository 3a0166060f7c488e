"""A file truncated under a server ends the job that reads it with one sentence, not the process with a signal."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm import native
from fastomp_nvm.matrix import lost_pages
from tests.service.running import RunningServer

ROOT = Path(__file__).parents[2]
needs_native = pytest.mark.skipif(not native.extension, reason="the compiled extension is not built")


@pytest.fixture
def guard() -> None:
    """Install the guard as a server does; it stays for the rest of the process."""
    lost_pages.install_guard()


#: The command ``fastomp``, which truncates a file as soon as the engine has answered its first question.
TRUNCATING = """
import os, sys
from fastomp_nvm.cli.main import main
from fastomp_nvm.engine.engine import Engine
from fastomp_nvm.matrix import lost_pages
answer, path, length = Engine._answer, os.environ["TRUNCATED"], int(os.environ["TRUNCATED_TO"])
def truncating(*arguments):
    found = answer(*arguments)
    if os.path.getsize(path) > length:
        os.truncate(path, length)
    return found
Engine._answer = truncating
if sys.argv[1] == "serve":
    from ado_plugin.service import server
    server.import_selectors = lambda: None  # its selections would end before the job
else:
    lost_pages.install_guard()
sys.exit(main(sys.argv[1:]))
"""


@needs_native
@pytest.mark.crash
@pytest.mark.parametrize("kernel", ["c", "numpy"])
@pytest.mark.parametrize("length", [8192, 700_000, -100])
@pytest.mark.parametrize("extra", [[], ["--run", "cut"], ["--threads", "4"]], ids=["plain", "run", "threads"])
def test_a_file_cut_off_under_a_selection(tmp_path: Path, kernel: str, length: int, extra: list[str]) -> None:
    """With the guard, in any kernel and thread: exit code 1, one line, no signal; a durable run does not record the result."""
    values = np.random.default_rng(0).normal(size=(300, 3000))
    fo.create_store(str(tmp_path / "s"), values, values[:, 0] + values[:, 1]).close()
    matrix = tmp_path / "s" / "matrix.npy"
    child = subprocess.run(
        [sys.executable, "-c", TRUNCATING, "select", str(tmp_path / "s"), "--k", "9", "--algorithm", "sds_omp", *extra],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "FASTOMP_KERNEL": kernel,
            "TRUNCATED": str(matrix),
            "TRUNCATED_TO": str(length % matrix.stat().st_size),
        },
        check=False,
    )
    assert child.returncode == 1, child.stderr
    assert len(child.stderr.splitlines()) == 1
    assert "the matrix of the store lost its end" in child.stderr
    if "--run" in extra:
        assert [(info.status) for info in fo.list_runs()] == ["damaged"]
        assert "matrix.npy has" in fo.list_runs()[0].detail


@needs_native
@pytest.mark.usefixtures("guard")
def test_other_stores_of_the_process_are_not_concerned(tmp_path: Path) -> None:
    """The mark is that of one mapping: a store beside it, and memory, stay readable."""
    values = np.random.default_rng(0).normal(size=(50, 2000))
    with fo.create_store(str(tmp_path / "a"), values, values[:, 0]) as cut, fo.create_store(str(tmp_path / "b"), values) as whole:
        os.truncate(tmp_path / "a" / "matrix.npy", 4096)
        assert cut.matrix[1999].sum() == 0
        with pytest.raises(fo.MediumError, match="lost its end"):
            lost_pages.check(cut.matrix)
        with pytest.raises(fo.MediumError):
            fo.select(cut, k=3)
        lost_pages.check(whole.matrix)
        lost_pages.check(values)


@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize("medium", ["mmap", pytest.param("pmem", marks=needs_native)])
def test_a_region_cut_off_is_an_error(medium: str, tmp_path: Path) -> None:
    """Reading or writing a region whose file lost its end raises MediumError, whether it is mapped or not."""
    with fo.create_store(f"{medium}://{tmp_path}/s", np.eye(3)) as store:
        region = store.region("log", 64 * 4096)
        os.truncate(tmp_path / "s" / "regions" / "log.bin", 4096)
        with pytest.raises(fo.MediumError, match="region 'log' lost its end"):
            region.read(8192, 10)
        with pytest.raises(fo.MediumError, match="region 'log' lost its end"):
            region.write(8192, b"gone")
        region.close()


@needs_native
@pytest.mark.crash
@pytest.mark.parametrize(("guarded", "file"), [(True, "other"), (False, "s/matrix.npy")])
def test_sigbus_without_the_guard_ends_the_process(tmp_path: Path, guarded: bool, file: str) -> None:
    """The guard leaves files that are not stores alone, and only its installation changes what happens to stores."""
    script = (
        "import mmap, os, sys, numpy as np, fastomp_nvm as fo\n"
        "from fastomp_nvm.matrix import lost_pages\n"
        "store = fo.create_store(sys.argv[1] + '/s', np.zeros((4096, 9)))\n"
        "other = open(sys.argv[1] + '/other', 'w+b'); other.truncate(8192)\n"
        "mapping = mmap.mmap(other.fileno(), 8192)\n"
        "if sys.argv[2] == 'True': lost_pages.install_guard()\n"
        "os.truncate(sys.argv[1] + '/' + sys.argv[3], 0)\n"
        "store.matrix[8].sum()\n"
        "mapping[5000]\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path), str(guarded), file]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, check=False).returncode == -signal.SIGBUS


@needs_native
@pytest.mark.crash
def test_a_server_survives_a_truncated_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose store is truncated while it runs fails with one sentence; the server then runs other jobs."""
    values = np.random.default_rng(0).normal(size=(300, 3000))
    pool = tmp_path / "server" / "pools" / "lab"
    pool.mkdir(parents=True)
    for name in ("cut", "whole"):
        fo.create_store(str(pool / name), values, values[:, 0] + values[:, 1]).close()
    monkeypatch.setenv("TRUNCATED", str(pool / "cut" / "matrix.npy"))
    monkeypatch.setenv("TRUNCATED_TO", "8192")
    with RunningServer(tmp_path / "server", program=("-c", TRUNCATING)) as server:
        with server.connect("/lab/cut") as client, pytest.raises(fo.FastompError, match="lost its end"):
            client.select(k=9, algorithm="sds_omp")
        with server.connect("/lab/whole") as client:
            assert client.select(k=2).indices.tolist() == [0, 1]


def test_a_mapping_that_went_is_forgotten(tmp_path: Path) -> None:
    """Closing stores leaves nothing watched, so that addresses can be used again."""
    gc.collect()  # what earlier tests left in cycles would go in between
    before = len(lost_pages._watched)
    for number in range(5):
        store = fo.create_store(str(tmp_path / str(number)), np.eye(3))
        assert len(lost_pages._watched) > before
        store.close()
        del store
    assert len(lost_pages._watched) == before


def test_mappings_come_and_go_while_others_are_checked(tmp_path: Path) -> None:
    """Stores and regions opened and closed on some threads disturb no check on others."""
    with fo.create_store(f"pmem://{tmp_path}/s", np.eye(20)) as store:
        ended = threading.Event()

        def churn(number: int) -> None:
            for _ in range(150):
                fo.open_store(f"pmem://{tmp_path}/s").close()
                region = store.region(f"r{number}", 4096)
                region.write(0, b"x")
                region.close()
                store.drop_region(f"r{number}")

        def check() -> None:
            while not ended.is_set():
                lost_pages.check(store.matrix)

        with ThreadPoolExecutor(4) as threads:
            checks = [threads.submit(check) for _ in range(2)]
            churned = [threads.submit(churn, number) for number in range(2)]
            for each in churned:
                each.exception()
            ended.set()
        for each in (*churned, *checks):
            each.result()


def test_a_closed_mapping_does_not_unwatch_its_successor(tmp_path: Path) -> None:
    """Only the current mapping at an address can end the watch over it, whenever its predecessor is collected."""
    with fo.create_store(f"pmem://{tmp_path}/s", np.eye(3)) as store:
        first = store.region("log", 4096)
        address = first._mapping.address
        first.close()
        second = store.region("log")
        lost_pages.watch(second._mapping, address)  # as if the kernel had chosen the same place again
        del first
        gc.collect()
        assert address in lost_pages._watched
        lost_pages.unwatch(address)
        second.close()
