"""Cutting a store, or a file, into shards: complete or not at all, and killed processes leave nothing behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.errors import RequestError, StoreURLError
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build import sharding
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.manifest import read_manifest
from storage_backends.build.schema import TableSchema
from storage_backends.build.sharding import block_ranges, cut, ingest_shards
from storage_backends.files.durable import give_back
from tests.cluster.in_process import in_process_medium, open_in_process
from tests.cluster.one_store import make_store, same


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return make_store(f"mmap://{tmp_path_factory.mktemp('cutting')}/whole")


@given(st.integers(1, 60), st.one_of(st.integers(1, 60), st.lists(st.floats(0.1, 9.0), min_size=1, max_size=20)))
def test_shards_are_a_partition_of_the_blocks(n_blocks: int, into: Any) -> None:
    """Every block is in one shard, every shard has a block, in order; more shards than blocks are refused."""
    wanted = into if isinstance(into, int) else len(into)
    if wanted > n_blocks:
        with pytest.raises(RequestError, match="cannot be made"):
            block_ranges(n_blocks, into)
        return
    ranges = block_ranges(n_blocks, into)
    assert len(ranges) == wanted
    assert [block for first, last in ranges for block in range(first, last)] == list(range(n_blocks))
    assert all(first < last for first, last in ranges)


def test_a_cut_that_is_killed_leaves_nothing_that_opens(store: FeatureStore, tmp_path: Path) -> None:
    """After SIGKILL at any moment the directory is complete or absent, and a second attempt succeeds."""
    code = "import sys; from storage_backends.build.sharding import cut; print('go', flush=True); cut(sys.argv[1], sys.argv[2], 4)"
    out = tmp_path / "cut"
    for delay in (0.003, 0.02):
        process = subprocess.Popen([sys.executable, "-c", code, store.url, str(out)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout:
            process.stdout.readline()
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            process.wait()
        if out.exists():
            with open_in_process(out) as sharded:
                sharded.verify()
            shutil.rmtree(out)
    with open_in_process(cut(store, str(out), 4)) as sharded:
        sharded.verify()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut"]


def test_places_that_are_taken_are_refused(store: FeatureStore, tmp_path: Path) -> None:
    """Other directories are never replaced, sharded stores only on request; too many shards are refused."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep")
    with pytest.raises(StoreURLError, match="not a sharded store"):
        cut(store, str(tmp_path / "mine"), 2, replace_existing=True)
    cut(store, str(tmp_path / "cut"), 2)
    with pytest.raises(StoreURLError, match="--replace"):
        cut(store, str(tmp_path / "cut"), 3)
    assert len(read_manifest(cut(store, str(tmp_path / "cut"), 3, replace_existing=True)).shards) == 3
    with pytest.raises(RequestError, match="ask for at most"):
        cut(store, str(tmp_path / "more"), 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "mine"]


@pytest.mark.parametrize(
    ("out", "shards", "words"),
    [
        ("grpc://127.0.0.1:1/pool/key", "2", "expected a path"),
        ("cluster:///x", "2", "expected a path"),
        ("mmap:///x?tier=dram", "2", "expected a path"),
        ("x", "0", "at least 1"),
        ("x", "1,-1", "at least 1"),
        ("x", "nan,1", "at least 1"),
    ],
)
def test_shards_that_cannot_be_made_are_refused_before_anything_is_read(
    out: str, shards: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``ingest --shards`` checks destination and count before it opens the source, which does not exist here."""
    monkeypatch.chdir(tmp_path)
    assert main(["ingest", "nowhere.npy", out, "--shards", shards]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_shards_are_not_cut_again(store: FeatureStore, tmp_path: Path) -> None:
    """Shards are not cut again; the message names the store to cut instead."""
    with (
        open_in_process(cut(store, str(tmp_path / "once"), 2)) as sharded,
        pytest.raises(RequestError, match="cut the original store"),
    ):
        cut(sharded, str(tmp_path / "again"), 2)


def test_ingest_builds_shards_and_leaves_no_second_copy(tmp_path: Path) -> None:
    """The shards of ``ingest --shards`` make the store of a plain ``ingest``, and nothing else is left."""
    X = np.random.default_rng(2).standard_normal((30, 800))
    np.save(tmp_path / "x.npy", X)
    assert main(["ingest", str(tmp_path / "x.npy"), str(tmp_path / "one"), "--target", "0"]) == 0
    assert main(["ingest", str(tmp_path / "x.npy"), str(tmp_path / "many"), "--target", "0", "--shards", "3"]) == 0
    with fo.open_store(str(tmp_path / "one")) as one, open_in_process(tmp_path / "many") as many:
        assert one.layout.fingerprint == many.layout.fingerprint
        same(fo.select(one, k=4), fo.select(many, k=4))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "one", "x.npy"]


@pytest.mark.parametrize("name", ["50%41", "what?", "a#b", "a b"])
@pytest.mark.parametrize("scheme", ["", "pmem"])
def test_shards_lie_where_they_were_asked_to_whatever_it_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, scheme: str
) -> None:
    """Special characters of URLs may occur in a path; the final hint names the manifest that was written."""
    place = tmp_path / name
    place.mkdir()
    out = f"{scheme}://{urllib.parse.quote(str(place))}" if scheme else str(place)
    np.save(tmp_path / "x.npy", np.random.default_rng(2).standard_normal((20, 600)))
    for words in (
        ["ingest", str(tmp_path / "x.npy"), f"{out}/cut", "--target", "0"],
        ["shard", str(place / "one"), f"{out}/again"],
    ):
        if words[0] == "shard":
            fo.create_store(urllib.parse.quote(f"mmap:{place}/one", safe=":/"), np.eye(20, 600)).close()
        capsys.readouterr()
        assert main([*words, "--shards" if words[0] == "ingest" else "--into", "2"]) == 0
        url = capsys.readouterr().out.splitlines()[-1].split()[3]
        with in_process_medium().open(StoreURL.parse(url)) as sharded:
            sharded.verify()
            sharded.load_tier()
            assert len(fo.select(sharded, np.arange(20.0), k=3, objective="linear", tier="int8").indices)
    assert sorted(path.name for path in place.iterdir()) == ["again", "cut", "one"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "x.npy"])


def test_what_a_killed_ingest_left_goes_with_the_next_one(store: FeatureStore, tmp_path: Path) -> None:
    """Directories that no process has locked, of this destination and no other; a retired one only where it has a successor."""
    names = {
        ".cut[1].partial-7-0a1b": False,
        ".cut[1].partial-7-0a1b.retired": True,
        ".cut[1].partial-8-0a1b": True,
        ".cut1.partial-7-0a1b": True,
        ".cut[1].partial-mine": True,
    }
    for name in names:
        (tmp_path / name).mkdir()
    lock = os.open(tmp_path / ".cut[1].partial-8-0a1b", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    cut(store, str(tmp_path / "cut[1]"), 2)
    assert {name for name in names if (tmp_path / name).exists()} == {name for name, stays in names.items() if stays}
    os.close(lock)
    cut(store, str(tmp_path / "cut[1]"), 2, replace_existing=True)
    names |= {".cut[1].partial-7-0a1b.retired": False, ".cut[1].partial-8-0a1b": False}
    assert {name for name in names if (tmp_path / name).exists()} == {name for name, stays in names.items() if stays}


def test_ingest_into_shards_killed_in_the_middle_leaves_nothing_for_ever(tmp_path: Path) -> None:
    """Data staged by a process that was killed are removed by the next one, finished or not."""
    np.save(tmp_path / "x.npy", np.random.default_rng(2).standard_normal((200, 2560)))
    code = """if True:
        import os, signal, sys
        from storage_backends.build import ingest, sharding
        def die(*arguments, **options): os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[3] == "ingest": ingest.StoreBuilder.finish = die
        else: sharding.cut = die
        sharding.ingest_shards(sys.argv[1], sys.argv[2], 2, targets=["0"])"""
    for moment in ("ingest", "cut"):
        words = [sys.executable, "-c", code, str(tmp_path / "x.npy"), str(tmp_path / "many"), moment]
        assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
        assert [path for path in tmp_path.iterdir() if ".partial-" in path.name]
    ingest_shards(str(tmp_path / "x.npy"), str(tmp_path / "many"), 2, targets=["0"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "x.npy"]


def punches_holes(folder: Path) -> bool:
    """Tell whether the file system can punch holes into a file."""
    path = folder / "holes.bin"
    path.write_bytes(os.urandom(1 << 20))
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        before = os.fstat(file.fileno()).st_blocks
        give_back(file.fileno(), 0, 1 << 19)
        after = os.fstat(file.fileno()).st_blocks
    path.unlink()
    return after < before


def test_ingest_into_shards_never_takes_the_room_of_the_data_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is released while shards are written: the disk holds at most the data and one shard more."""
    if not punches_holes(tmp_path):
        pytest.skip("the file system of temporary files gives back no part of a file")
    taken: list[int] = []
    copy = sharding._copy

    def copy_and_look(*arguments: Any) -> None:
        copy(*arguments)
        taken.append(sum(512 * path.stat().st_blocks for path in tmp_path.rglob("*.npy")))

    monkeypatch.setattr(sharding, "_copy", copy_and_look)
    np.save(tmp_path / "x.npy", np.random.default_rng(2).standard_normal((600, 2048)))
    source = (tmp_path / "x.npy").stat().st_size
    sharding.ingest_shards(str(tmp_path / "x.npy"), str(tmp_path / "many"), 4, targets=["0"])
    data = sum(path.stat().st_size for path in (tmp_path / "many").rglob("*.npy"))
    assert len(taken) == 4
    assert max(taken) - source <= 1.02 * (data + data / 4)


def test_shards_keep_the_encoding_and_the_identifiers(tmp_path: Path) -> None:
    """Shards together hold the encoding of the whole table and its identifiers, and a changed label makes a shard stale."""
    rng = np.random.default_rng(0)
    n_obs, names = 40, [f"x{column}" for column in range(600)]
    special = {"x3": ColumnEncoding("date", fill=7.0), "town": ColumnEncoding("category", ("Bern", "Oslo"))}
    schema = TableSchema.grouped(
        n_obs, [*((name, [name]) for name in names), ("town", ["town=Bern", "town=Oslo"])], TableEncoding(special, "mean", ("?!",))
    )
    with StoreBuilder(f"mmap://{tmp_path}/whole", schema) as builder:
        builder.write_rows(0, rng.normal(size=(n_obs, 602)))
        builder.finish(ids=[f"row {row}" for row in range(n_obs)])
    manifest = cut(f"mmap://{tmp_path}/whole", str(tmp_path / "cut"), 2)
    with fo.open_store(f"mmap://{tmp_path}/whole") as whole, open_in_process(manifest) as together:
        assert together.encoding == whole.encoding
        assert list(together.ids or ()) == list(whole.ids or ()) == [f"row {row}" for row in range(n_obs)]
        model = fo.select(whole, rng.normal(size=n_obs), k=3)
        np.testing.assert_array_equal(model.predict(together), model.predict(whole))
    with fo.open_store(f"mmap://{tmp_path}/cut/shard-1") as last:
        assert last.encoding == TableEncoding({"town": special["town"]}, "mean", ("?!",))
