"""Reading past the page cache: the same bytes and bits as through the mapping, without evicting other pages."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm import native
from fastomp_nvm.cli import main
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import MediumError, RequestError
from fastomp_nvm.matrix import memory as filling
from fastomp_nvm.matrix import pool as columns
from fastomp_nvm.matrix import reader as reading
from fastomp_nvm.matrix.memory import fillable_memory
from fastomp_nvm.matrix.pool import automatic_budget
from fastomp_nvm.matrix.reader import FileRows, MatrixFile, way_to_read
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors


def build(url: str, n_obs: int, n_columns: int, dtype: str = "float32", tier: str = "int8") -> fo.FeatureStore:
    """Build a store of random numbers, one column far from zero (accumulated in float64), with a response."""
    rng = np.random.default_rng(n_obs * 1000 + n_columns)
    X = rng.normal(size=(n_obs, n_columns))
    X[:, 0] += 1e4
    return fo.create_store(url, X, X[:, -1] + rng.normal(size=n_obs), dtype=dtype, tier=tier)


@pytest.fixture(params=["compiled", "interpreted"])
def picking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Gather with and without the compiled extension."""
    if request.param == "interpreted":
        monkeypatch.setattr(native, "extension", None)
    elif not native.extension:
        pytest.skip("the extension was not built here")
    return request.param


@pytest.mark.usefixtures("picking")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("n_obs", "n_columns"), [(1, 1), (3, 7), (1023, 37), (1024, 8), (4099, 11), (517, 300)])
def test_direct_reads_give_the_same_bits(tmp_path: Path, monkeypatch, dtype: str, n_obs: int, n_columns: int) -> None:
    """Sweeps of matrix and tier and gathers in any order agree bit for bit for every shape and end of file."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", 10_000)
    monkeypatch.setattr(reading, "PICKED_BYTES", 10_000)
    monkeypatch.setattr(reading, "NEAR_BYTES", 5_000)
    with build(str(tmp_path / "store"), n_obs, n_columns, dtype) as store:
        ways = [Dataset.of_store(store, io) for io in ("mmap", "direct")]
        dataset = ways[0]
        vectors = Vectors(np.random.default_rng(1).normal(size=(n_obs, 3)), dataset.matrix.dtype)
        wide = dataset.design().standardisation.wide
        columns = np.random.default_rng(2).integers(0, n_columns, size=40)
        codes = np.arange(2 * n_obs, dtype=np.int16).reshape(2, n_obs) % 100
        answers = []
        sweeper = Sweeper(2)
        for dataset in ways:
            dots = sweeper.dots(dataset.matrix, vectors, wide)
            assert dataset.tier is not None
            answers.append((dots, sweeper.dots_int8(dataset.tier.codes, codes), sweeper.gather(dataset.matrix, columns)))
        for mapped, direct in zip(*answers, strict=True):
            assert mapped.tobytes() == direct.tobytes()


@pytest.mark.parametrize("tier", ["exact", "int8"])
def test_a_selection_is_the_same_read_directly(tmp_path: Path, tier: str) -> None:
    """Indices, coefficients and counted bytes do not depend on how the file is read."""
    with build(str(tmp_path / "store"), 333, 2000) as store:
        found = [fo.select(Dataset.of_store(store, io), k=15, tier=tier) for io in ("mmap", "direct", "auto")]
    for other in found[1:]:
        assert other.indices.tolist() == found[0].indices.tolist()
        assert other.column_coef.tobytes() == found[0].column_coef.tobytes()
        assert (other.bytes_read, other.full_passes) == (found[0].bytes_read, found[0].full_passes)


def test_direct_reads_ask_the_device_for_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A direct sweep reads all of the matrix in whole pages, through the descriptor past the page cache; a mapping none."""
    reads: list[tuple[int, int, int]] = []
    preadv = os.preadv

    def noted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        reads.append((descriptor, sum(len(buffer) for buffer in buffers), offset))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", noted)
    opened: dict[bool, int] = {}

    def open_file(flags: int) -> int:
        """Open as any file system lets us, and note which descriptor was to be past the page cache."""
        opened[bool(flags & os.O_DIRECT)] = os.open(tmp_path / "store" / "matrix.npy", flags & ~os.O_DIRECT)
        return opened[bool(flags & os.O_DIRECT)]

    with build(str(tmp_path / "store"), 2000, 1500, tier="none") as store:
        file = MatrixFile(store.matrix, 4096, open_file)
        vectors = Vectors(np.ones((2000, 1)), store.matrix.dtype)
        answers = []
        for io in ("mmap", "direct"):
            assert not reads
            answers.append(Sweeper(2).dots(FileRows(file, io), vectors, np.zeros(1500, bool)).tobytes())
        assert answers[0] == answers[1]
        page = mmap.PAGESIZE
        assert all(descriptor == opened[True] and size % page == offset % page == 0 for descriptor, size, offset in reads)
        covered = np.zeros(-(-(4096 + store.matrix.nbytes) // page), dtype=bool)
        for _, size, offset in reads:
            covered[offset // page : (offset + size) // page] = True
        assert covered[4096 // page :].all()


@pytest.mark.parametrize("refusal", ["open", "read"])
def test_refused_direct_reads_fall_back(tmp_path: Path, monkeypatch, refusal: str) -> None:
    """Where the file system refuses direct reads, at open or at the first read, the page cache is used."""
    with build(str(tmp_path / "store"), 1001, 97) as store:

        def open_file(flags: int) -> int:
            if flags & os.O_DIRECT and refusal == "open":
                raise OSError(22, "Invalid argument")
            return os.open(tmp_path / "store" / "matrix.npy", flags)

        file = MatrixFile(store.matrix, 4096, open_file)
        preadv = os.preadv

        def refuse(descriptor: int, buffers: list, offset: int) -> int:
            if descriptor == file._direct:
                raise OSError(22, "Invalid argument")
            return preadv(descriptor, buffers, offset)

        def refuse_columns(*arguments: object) -> None:
            raise OSError(22, "Invalid argument")

        monkeypatch.setattr(os, "preadv", refuse)
        if native.extension:
            monkeypatch.setattr(native.extension, "read_columns", refuse_columns)
        out, columns = np.empty((60, 1001), np.float32), np.arange(90, 30, -1)
        FileRows(file, "direct").gather(columns, out, Sweeper(2))
        assert np.array_equal(out, store.matrix[columns])
        assert file.direct == (refusal == "read")


def test_a_store_in_memory_answers_the_same(tmp_path: Path) -> None:
    """On tmpfs, which has no device, ``direct`` gives the same answer."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        pytest.skip("/dev/shm cannot be written")
    path = shared / f"fastomp-test-{os.getpid()}"
    try:
        with build(str(path), 200, 150) as store:
            direct, mapped = (fo.select(Dataset.of_store(store, io), k=5) for io in ("direct", "mmap"))
            assert direct.indices.tolist() == mapped.indices.tolist()
    finally:
        for file in sorted(path.glob("**/*"), reverse=True):
            file.unlink()
        path.rmdir()


def test_copies_into_memory_are_read_directly(tmp_path: Path, monkeypatch) -> None:
    """Copying a cold matrix or tier bypasses the page cache, regardless of free memory."""
    monkeypatch.setattr(reading, "SMALL_BYTES", 0)
    monkeypatch.setattr(MatrixFile, "resident_share", lambda *_: 0.0)
    reads: list[int] = []
    read = MatrixFile.read
    monkeypatch.setattr(MatrixFile, "read", lambda self, first, *rest: (reads.append(first), read(self, first, *rest))[1])
    with build(str(tmp_path / "store"), 500, 80) as store:
        assert store.tier is not None
        codes = store.tier.codes
        loaded = Dataset.of_store(store).loaded(store.url)
        assert np.array_equal(loaded.matrix, store.matrix)
        assert reads
        reads.clear()
        store.load_tier()
        assert np.array_equal(store.tier.codes, codes)
        assert reads


@pytest.mark.usefixtures("picking")
def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    """A direct read past the new end of a file raises instead of computing with stale content of the buffer."""
    with build(str(tmp_path / "store"), 1000, 50) as store:
        rows = FileRows(store.files()[0], "direct")
        os.truncate(tmp_path / "store" / "matrix.npy", 4096 + 60_123)
        with pytest.raises(MediumError, match="cut off"):
            rows.visit(Sweeper(1), lambda block, first, last: None)
        with pytest.raises(MediumError, match="cut off"):
            rows.gather(np.arange(5, 45, 3), np.empty((14, 1000), np.float32), Sweeper(1))


def test_a_device_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device error while gathering columns reaches the user as one sentence."""

    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    with build(str(tmp_path / "store"), 1000, 50) as store:
        file = store.files()[0]
        if not (file.direct and native.extension):
            pytest.skip("no direct reads on this file system, or the extension was not built")
        monkeypatch.setattr(native.extension, "read_columns", fail)
        with pytest.raises(MediumError, match="cannot be read: Input/output error; check its device"):
            FileRows(file, "direct").gather(np.arange(9), np.empty((9, 1000), np.float32), Sweeper(1))


def test_columns_take_three_fifths_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is shared among the pools and bounded; for small data free memory is not looked up."""
    monkeypatch.setattr(columns, "fillable_memory", lambda: 900e6)
    assert automatic_budget(1 << 40) == 540_000_000
    assert automatic_budget(1 << 40, 3) == 180_000_000
    assert automatic_budget(1 << 40, 1000) == columns.SMALLEST_BUDGET
    monkeypatch.setattr(columns, "fillable_memory", lambda: float("inf"))
    assert automatic_budget(1 << 40) == columns.LARGEST_BUDGET
    monkeypatch.setattr(columns, "fillable_memory", lambda: pytest.fail("asked"))
    assert automatic_budget(1) == columns.SMALLEST_BUDGET
    assert automatic_budget(columns.FEW_BYTES) == columns.FEW_BYTES
    assert automatic_budget(columns.FEW_BYTES // 3, 3) == columns.FEW_BYTES // 3
    with pytest.raises(pytest.fail.Exception, match="asked"):
        automatic_budget(columns.FEW_BYTES, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"columns": np.array([3, 2])},
        {"columns": np.array([-1, 2])},
        {"columns": np.array([1, 2, 3])},
        {"places": np.array([0, 2])},
        {"places": np.array([-1, 0])},
        {"column_bytes": 0},
        {"offset": -8},
        {"buffer": memoryview(mmap.mmap(-1, 4 * 4096))[8 : 8 + 3 * 4096]},  # not at the beginning of a page
        {"buffer": mmap.mmap(-1, 4096)},
    ],
)
def test_the_compiled_reader_stays_within_its_memory(tmp_path: Path, wrong: dict[str, object]) -> None:
    """Columns, places and buffers that would have it read or write elsewhere are refused before anything is read."""
    if not native.extension:
        pytest.skip("the extension was not built here")
    (tmp_path / "file").write_bytes(bytes(1000))
    out = np.ones((2, 100), np.uint8)
    given: dict[str, object] = {"descriptor": os.open(tmp_path / "file", os.O_RDONLY), "offset": 0, "column_bytes": 100, "near": 50}
    given |= {"columns": np.array([2, 5]), "places": np.array([1, 0]), "out": out, "buffer": mmap.mmap(-1, 3 * 4096)}
    with pytest.raises(ValueError, match=r"columns|place|buffer"):
        native.extension.read_columns(*{**given, **wrong}.values())
    assert out.all()
    native.extension.read_columns(*given.values())
    assert not out.any()
    os.close(given["descriptor"])


@pytest.mark.parametrize(
    ("size", "resident", "room", "sweep", "copy"),
    [
        (reading.SMALL_BYTES - 1, 0.0, 0.0, "mapping", "mapping"),  # small
        (2 << 30, 0.96, 0.0, "mapping", "mapping"),  # in memory
        (2 << 30, 0.0, 20 << 30, "page cache", "direct"),  # cold, and fits
        (2 << 30, 0.0, 4 << 30, "page cache", "direct"),
        (2 << 30, 0.0, 3 << 30, "direct", "direct"),  # cold, and would push out other pages
        (2 << 30, 0.5, 3 << 30, "page cache", "direct"),  # half of it is there
        (2 << 30, 0.0, 500 << 20, "direct", "direct"),  # the room of a control group
    ],
)
def test_the_rule_of_auto(size: int, resident: float, room: float, sweep: str, copy: str) -> None:
    """In memory: mapped. Cold and read again: through the page cache if that has room. Otherwise, and to be copied: directly."""
    assert way_to_read(size, resident, room) == sweep
    assert way_to_read(size, resident, room, again=False) == copy


def test_auto_looks_at_the_file_and_at_free_memory(tmp_path: Path, monkeypatch) -> None:
    """Rows of a file apply the rule to their share in memory and to free memory; ``mmap`` and ``direct`` override it."""
    monkeypatch.setattr(reading, "SMALL_BYTES", 0)
    share, memory = [1.0], [float("inf")]
    monkeypatch.setattr(MatrixFile, "resident_share", lambda *_: share[0])
    monkeypatch.setattr(reading, "fillable_memory", lambda: memory[0])
    with build(str(tmp_path / "store"), 100, 50) as store:
        rows = {io: FileRows(store.files()[0], io) for io in ("auto", "mmap", "direct")}
        assert (rows["auto"].way(), rows["auto"].way(again=False)) == ("mapping", "mapping")
        share[0] = 0.2
        assert (rows["auto"].way(), rows["auto"].way(again=False)) == ("page cache", "direct")
        memory[0] = store.matrix.nbytes
        rows["auto"].visit(Sweeper(1), lambda block, first, last: None)  # a sweep looks at free memory again
        assert [each.way() for each in rows.values()] == ["direct", "mapping", "direct"]


@pytest.mark.usefixtures("picking")
@pytest.mark.parametrize(("room", "kept"), [(math.inf, True), (0.0, False)])
def test_gathered_columns_of_a_cold_file_stay_in_memory_if_there_is_room(
    tmp_path: Path, monkeypatch, room: float, kept: bool
) -> None:
    """A gather of a cold file reads through the page cache where the file fits, otherwise past it, with the same bits."""
    monkeypatch.setattr(reading, "SMALL_BYTES", 0)
    monkeypatch.setattr(MatrixFile, "resident_share", lambda *_: 0.0)
    monkeypatch.setattr(reading, "fillable_memory", lambda: room)
    with build(str(tmp_path / "store"), 1001, 97) as store:
        file = store.files()[0]
        if not file.direct:
            pytest.skip("no direct reads on this file system")
        used: set[int] = set()
        preadv = os.preadv
        monkeypatch.setattr(os, "preadv", lambda descriptor, *rest: (used.add(descriptor), preadv(descriptor, *rest))[1])
        if native.extension:
            picked = native.extension.read_columns
            monkeypatch.setattr(native.extension, "read_columns", lambda *given: (used.add(given[0]), picked(*given))[1])
        out, columns = np.empty((60, 1001), np.float32), np.arange(90, 30, -1)
        FileRows(file).gather(columns, out, Sweeper(2))
        assert np.array_equal(out, store.matrix[columns])
        assert used == {file._cached if kept else file._direct}


@pytest.mark.parametrize(("io", "share", "copied"), [("auto", 1.0, False), ("auto", 0.9, True), ("direct", 1.0, True)])
def test_columns_of_a_file_in_memory_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, io: str, share: float, copied: bool
) -> None:
    """They are multiplied where they lie, with the bits and the counted bytes of a run that gathers them."""
    monkeypatch.setattr(reading, "SMALL_BYTES", 0)
    monkeypatch.setattr(MatrixFile, "resident_share", lambda *_: share)
    gathered: list[int] = []
    gather = Sweeper.gather
    monkeypatch.setattr(Sweeper, "gather", lambda *given: (gathered.append(1), gather(*given))[1])
    with build(str(tmp_path / "store"), 300, 400) as store:
        dataset, response = Dataset.of_store(store, io), next(iter(store.targets.values())).values
        found = fo.select(dataset, response, k=9, tier="int8")
        assert (dataset.resident, bool(gathered)) == (not copied, copied)
        expected = fo.select(Dataset.of_store(store, "direct"), response, k=9, tier="int8")
    assert (found.indices.tolist(), found.column_coef.tobytes()) == (expected.indices.tolist(), expected.column_coef.tobytes())
    assert (found.bytes_read, found.full_passes) == (expected.bytes_read, expected.full_passes)


@pytest.mark.parametrize("io", ["direct", "mmap"])
def test_a_pass_that_fails_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, io: str) -> None:
    """After an unusable block the threads finish their current blocks and do not read the rest."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", 4096)
    monkeypatch.setattr("fastomp_nvm.matrix.sweeper.TASK_BYTES", 4096)
    monkeypatch.setattr("fastomp_nvm.matrix.sweeper.INLINE_PRODUCTS", 0)
    with build(str(tmp_path / "store"), 500, 4000, tier="none") as store:
        dataset = Dataset.of_store(store, io)
        sweeper = Sweeper(2)
        used: list[int] = []

        def failing(block: np.ndarray, vectors: np.ndarray, out: np.ndarray) -> None:
            used.append(1)
            if len(used) == 5:
                raise KeyboardInterrupt
            time.sleep(0.02)  # the others have something in hand meanwhile

        sweeper.kernel = sweeper.kernel._replace(dots=failing)
        with pytest.raises(KeyboardInterrupt):
            sweeper.dots(dataset.matrix, Vectors(np.ones((500, 1)), np.dtype(np.float32)), np.zeros(4000, bool))
        assert len(used) < 250  # of 500 or more


def test_a_copy_that_memory_cannot_hold_is_refused(tmp_path: Path, monkeypatch) -> None:
    """Refused before anything is read, with both sizes in the message."""
    with build(str(tmp_path / "store"), 500, 80) as store:
        monkeypatch.setattr(filling, "fillable_memory", lambda: 1000.0)
        with pytest.raises(fo.MediumError, match=r"a copy of the matrix needs .* GB of memory, and 0\.00 GB may be filled"):
            Dataset.of_store(store).loaded(store.url)
        with pytest.raises(fo.MediumError, match="a copy of the tier needs"):
            store.load_tier()


def test_files_of_others_count_as_cold(tmp_path: Path, monkeypatch) -> None:
    """For a file without write permission the kernel reports all pages as resident, which is not relied on."""

    def all_in_memory(name: str, address: int, length: int, state: ctypes.c_void_p) -> int:
        ctypes.memset(state, 1, length // mmap.PAGESIZE)
        return 0

    with build(str(tmp_path / "store"), 500, 80) as store:
        monkeypatch.setattr(reading, "_system_call", all_in_memory)
        assert store.files()[0].resident_share() == 1.0
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setattr(os, "access", lambda *_, **__: False)
        assert store.files()[0].resident_share() == 0.0


def test_memory_to_fill_is_bounded_by_the_machine() -> None:
    """The memory this process may fill is positive and at most that of the machine."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < fillable_memory() <= total


@pytest.mark.parametrize(
    ("lines", "files", "room"),
    [
        ("4:memory:/a\n", {"memory/a/memory.stat": "hierarchical_memory_limit 1000\ntotal_rss 200\ntotal_shmem 50\n"}, 750),
        ("0::/a/b\n", {"a/memory.max": "500\n", "a/memory.stat": "anon 100\nshmem 0\n", "a/b/memory.max": "max\n"}, 400),
        ("0::/elsewhere\n", {"memory.max": "300\n", "memory.stat": "anon 400\nshmem 0\n"}, 0),
    ],
)
def test_limits_of_control_groups_count(tmp_path: Path, monkeypatch, lines: str, files: dict[str, str], room: int) -> None:
    """Both versions of control groups bound fillable memory, parents included."""
    for name, text in {**files, "cgroup": lines}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(filling, "_GROUPS", tmp_path)
    monkeypatch.setattr(filling, "_MY_GROUPS", tmp_path / "cgroup")
    assert fillable_memory() == room


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60), st.integers(1, 40), st.integers(1, 20))
def test_pieces_cover_every_column_once(columns: list[int], most: int, near: int) -> None:
    """Batches of a gather cover every column once, in order, and span at most a buffer."""
    wanted = np.array(sorted(columns))
    pieces = reading._pieces(wanted, most, near)
    assert [place for begin, end in pieces for place in range(begin, end)] == list(range(len(wanted)))
    assert all(wanted[end - 1] - wanted[begin] < most for begin, end in pieces)
    assert all(np.diff(wanted[begin:end]).max(initial=0) <= near for begin, end in pieces)


def test_descriptors_are_returned(tmp_path: Path) -> None:
    """A closed store without a data set holds no open file."""
    build(str(tmp_path / "store"), 50, 40).close()

    def once() -> int:
        with fo.open_store(str(tmp_path / "store")) as store:
            fo.select(Dataset.of_store(store, "direct"), k=3)
        return len(os.listdir("/proc/self/fd"))

    gc.collect()  # descriptors of earlier tests
    once()
    assert once() == once()


def test_the_command_line_chooses_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--io`` changes no answer, and a durable run refuses it with a reason."""
    build(str(tmp_path / "store"), 60, 80).close()
    printed = []
    for io in ("mmap", "direct"):
        assert main.main(["select", str(tmp_path / "store"), "--k", "4", "--io", io, "--json"]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0]["indices"] == printed[1]["indices"]
    assert main.main(["select", str(tmp_path / "store"), "--k", "4", "--io", "direct", "--run", "nightly"]) == 2
    assert "--io" in capsys.readouterr().err
    with fo.open_store(str(tmp_path / "store")) as store, pytest.raises(RequestError, match="sideways"):
        Dataset.of_store(store, "sideways")
