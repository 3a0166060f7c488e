"""A build that dies leaves the old store or the new one, whole, and nothing that passes for a store."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import storage_backends
from fastomp_nvm.errors import FastompError, StoreURLError
from fastomp_nvm.stores.open import create_store, open_store
from storage_backends.files.draft import FileDraft

ROOT = Path(storage_backends.__file__).parents[1]

CHILD = """
import os, sys, time
import numpy as np
from storage_backends.files import draft as store_draft
from storage_backends.build.builder import StoreBuilder
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.schema import TableSchema

path, stage = sys.argv[1:]

def stop(*_, **__):
    sys.stdout.write("here\\n"); sys.stdout.flush()
    time.sleep(600)

if stage == "sidecars":
    store_draft.write_file = stop
elif stage == "rename":
    store_draft.FileDraft._publish = stop
elif stage == "retired":
    store_draft.shutil.rmtree = stop
with StoreBuilder(path, TableSchema.plain(64, NumberedNames(128)), replace=True) as builder:
    builder.write_rows(0, np.full((32, 128), 2.0))
    if stage == "rows":
        stop()
    builder.write_rows(32, np.full((32, 128), 2.0))
    builder.finish()
stop()
"""


@pytest.mark.crash
@pytest.mark.parametrize("standing", [False, True], ids=["fresh", "replacing"])
@pytest.mark.parametrize("stage", ["rows", "sidecars", "rename", "retired", "done"])
def test_a_killed_build_leaves_the_old_store_or_the_new(tmp_path: Path, stage: str, standing: bool) -> None:
    """After SIGKILL at any stage the place holds the old store or the new one, whole, and the next build cleans up."""
    path = tmp_path / "store"
    if standing:
        create_store(str(path), np.ones((64, 128))).close()
    elif stage == "retired":
        pytest.skip("nothing is retired by a fresh build")
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(path), stage],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    leftovers = [entry for entry in tmp_path.iterdir() if entry != path]
    if stage in ("done", "retired"):
        with open_store(str(path)) as store:
            assert (store.matrix == 2).all()
            store.verify()
    elif standing:
        with open_store(str(path)) as store:
            assert (store.matrix == 1).all()
            store.verify()
    else:
        with pytest.raises(StoreURLError):
            open_store(str(path))
    assert len(leftovers) == (stage != "done")
    for leftover in leftovers:
        with pytest.raises(FastompError):
            open_store(str(leftover))
    create_store(str(path), np.eye(3), replace=True).close()
    assert list(tmp_path.iterdir()) == [path]


TERMINATED = """
import sys, time
from storage_backends.build import builder
from fastomp_nvm.cli.main import main

def stop(*_, **__):
    sys.stdout.write("here\\n"); sys.stdout.flush()
    time.sleep(600)

builder.StoreBuilder.write_tile = stop
sys.exit(main(["ingest", *sys.argv[1:]]))
"""


def test_a_terminated_ingest_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM ends an ingest as Ctrl-C does: no draft stays behind."""
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,5\n")
    child = subprocess.Popen(
        [sys.executable, "-c", TERMINATED, str(tmp_path / "t.csv"), str(tmp_path / "s")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        assert len(list(tmp_path.iterdir())) == 2
        child.terminate()
        assert child.wait() == 128 + signal.SIGTERM
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]


def test_a_living_builder_is_not_swept_away(tmp_path: Path) -> None:
    """Cleaning up keeps locked drafts and drafts of other stores; it does not depend on process numbers."""
    dead = 2**22 + 1  # above the largest process number Linux gives
    swept = [f".s.partial-{dead}-aa", f".s.partial-{os.getpid()}-bb"]
    spared = [f".other.partial-{dead}-cc", f".s.partial-{dead}-dd", ".s.partial-x-ee"]
    for name in (*swept, *spared):
        (tmp_path / name).mkdir()
    lock = os.open(tmp_path / spared[1], os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    create_store(str(tmp_path / "s"), np.eye(2)).close()
    os.close(lock)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([*spared, "s"])


def test_builders_of_one_store_do_not_sweep_each_other(tmp_path: Path) -> None:
    """Drafts begun at the same time do not remove each other while cleaning up."""
    with ThreadPoolExecutor(4) as threads:
        drafts = list(threads.map(lambda _: FileDraft(str(tmp_path / "s"), 2, 2, "float32", replace=False), range(40)))
    assert sorted(draft.folder for draft in drafts) == sorted(entry.name for entry in tmp_path.iterdir())
    for draft in drafts:
        draft.abort()
    assert list(tmp_path.iterdir()) == []
