"""The tier's place in a store: built in the same pass, bound to its matrix, checked, optional."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.errors import MediumError, RequestError, StoreError, StoreURLError
from fastomp_nvm.matrix import checksum, reader
from fastomp_nvm.matrix import sweeper as sweep
from fastomp_nvm.matrix.moments import moments
from fastomp_nvm.matrix.tier import quantise
from fastomp_nvm.stores.open import create_store, open_store
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.schema import TableSchema
from storage_backends.files import draft
from storage_backends.files import format as store_format
from storage_backends.media.dram import MEDIUM as DRAM

pytestmark = pytest.mark.numerics

TIER_FILES = (store_format.TIER, store_format.TIER_STATISTICS)


@pytest.fixture
def values() -> np.ndarray:
    """(60, 700) observations by columns: three blocks, one constant column."""
    values = np.random.default_rng(3).normal(size=(60, 700)) * np.geomspace(1e-3, 1e3, 700)
    values[:, 9] = 4.0
    return values


@pytest.fixture
def store(tmp_path: Path, values: np.ndarray) -> Path:
    """Path of a sound store with a tier, a target and a feature of several columns."""
    create_store(str(tmp_path / "store"), values, values[:, 0] + values[:, 690], groups={"g": list(range(5, 9))}).close()
    return tmp_path / "store"


def rewrite_header(store: Path, files: dict[str, bytes]) -> None:
    """Put files in place and make the header vouch for them."""
    header = json.loads((store / "header.json").read_bytes())
    del header["crc32"]
    for name, data in files.items():
        (store / name).write_bytes(data)
        header["files"][name] = {"bytes": len(data), **({"crc32": zlib.crc32(data)} if name.endswith("npz") else {})}
    (store / "header.json").write_bytes(store_format._canonical(header))


@pytest.mark.parametrize("scheme", ["dram:", "mmap://", "pmem://"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_tier_is_that_of_the_stored_values(tmp_path: Path, values: np.ndarray, scheme: str, dtype: str) -> None:
    """Codes, scales and bounds are those of the matrix as stored, on every medium, and read-only."""
    with create_store(f"{scheme}{tmp_path}/s", values, dtype=dtype, replace=True) as store:
        tier = store.tier
        assert tier is not None
        expected = quantise(store.matrix, moments(store.matrix))
        assert tier.codes.dtype == np.int8
        assert tier.codes.tobytes() == expected.codes.tobytes()
        assert tier.scale.tobytes() == expected.scale.tobytes()
        assert np.allclose(tier.error, expected.error, rtol=1e-12, atol=0)
        assert tier.mean is store.statistics.mean
        for array in (tier.codes, tier.scale, tier.error, tier.norm):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            tier.codes.setflags(write=True)
        assert tier.codes.ctypes.data % 64 == 0
        store.verify()


def test_a_store_may_have_none(tmp_path: Path, values: np.ndarray) -> None:
    """``tier="none"`` writes no file of a tier, opens, verifies, and selects on the exact matrix."""
    with create_store(str(tmp_path / "s"), values, values[:, 0], tier="none") as store:
        assert store.tier is None
        assert not any((tmp_path / "s" / name).exists() for name in TIER_FILES)
        store.verify()
        assert fo.select(store, k=2).tier == "exact"
        with pytest.raises(StoreError, match=r"no int8 tier.*--tier int8"):
            store.load_tier()
    with pytest.raises(StoreError, match="no int8 tier"):
        open_store(f"mmap://{tmp_path}/s?tier=dram")
    with pytest.raises(RequestError, match="unknown tier 'int4'"):
        create_store(str(tmp_path / "t"), values, tier="int4")


def test_the_tier_follows_dropped_features(tmp_path: Path, values: np.ndarray) -> None:
    """With features dropped for missing values the tier has the columns that remain, in file and memory."""
    values[3, 1] = values[8, 650] = np.nan
    for url in (str(tmp_path / "s"), "dram:dropped"):
        with create_store(url, values, missing="drop-feature", replace=True) as store:
            assert store.tier is not None
            assert store.tier.codes.shape == store.matrix.shape == (698, 60)
            assert store.tier.codes.tobytes() == quantise(store.matrix, moments(store.matrix)).codes.tobytes()
            store.verify()
    assert np.load(tmp_path / "s" / "tier.npy").shape == (698, 60)


def test_checksums_are_those_of_the_codes(store: Path) -> None:
    """The checksum of a block is the CRC-32 of its rows in tier.npy, so that any tool can check it."""
    codes = np.load(store / "tier.npy")
    with np.load(store / "tier.npz") as sidecar, np.load(store / "statistics.npz") as statistics:
        blocks = statistics["blocks"]
        for block, checksum in enumerate(sidecar["checksums"]):
            assert zlib.crc32(codes[blocks[block] : blocks[block + 1]].tobytes()) == checksum
        assert str(sidecar["fingerprint"]) == json.loads((store / "header.json").read_bytes())["fingerprint"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_no_changed_byte_of_the_tier_goes_unnoticed(store: Path, where: float, flip: int) -> None:
    """A changed byte of the sidecar refuses to open; one of the codes fails ``verify`` and is never loaded into memory."""
    refusal = r"cannot be used|is damaged: column \d+ of the int8 tier"
    for name in TIER_FILES:
        sound = (store / name).read_bytes()
        broken = bytearray(sound)
        broken[int(where * len(sound))] ^= flip
        (store / name).write_bytes(broken)
        try:
            with pytest.raises(StoreError, match=refusal):
                open_store(f"mmap://{store}?tier=dram")
            with (
                pytest.raises(StoreError, match=r"cannot be used|is damaged: column \d+ of the int8 tier"),
                open_store(str(store)) as opened,
            ):
                opened.verify()
        finally:
            (store / name).write_bytes(sound)


@pytest.mark.parametrize("algorithm", ["fast_omp", "sds_omp"])
def test_a_damaged_tier_gives_no_answer(store: Path, algorithm: str) -> None:
    """A selection over codes that changed on the device is an error that names the column, every time."""
    with (store / "tier.npy").open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(b"\x55")
    with open_store(str(store)) as opened:
        for _ in range(2):
            with pytest.raises(StoreError, match=r"column 6\d\d of the int8 tier .* does not match its checksum"):
                fo.select(opened, k=4, algorithm=algorithm, tier="int8")
        assert fo.select(opened, k=4, algorithm=algorithm, tier="exact").features


@pytest.mark.parametrize("io", ["mmap", "direct"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("piece", [7, 100, 300, 10_000])
def test_the_first_sweep_compares_every_column(
    store: Path, monkeypatch: pytest.MonkeyPatch, io: str, threads: int, piece: int
) -> None:
    """The first sweep compares the codes for every way of reading, number of threads and size of pieces; later sweeps do not."""
    monkeypatch.setattr(sweep, "TASK_BYTES", 60 * piece)
    monkeypatch.setattr(sweep, "INLINE_PRODUCTS", 0)
    monkeypatch.setattr(reader, "BLOCK_BYTES", 60 * piece)
    vectors = np.ones((1, 60), dtype=np.int16)
    for place in (None, 0, 255 * 60, 256 * 60, 511 * 60, 690 * 60):
        with open_store(str(store)) as opened:
            assert opened.tier is not None
            expected = opened.tier.codes.sum(axis=1, dtype=np.int64)[:, None]
            codes = reader.rows_of(opened.tier.codes, opened.files(), io, opened.seals[1])
            sweeper = sweep.Sweeper(threads)
            if place is not None:
                _flip(store / "tier.npy", place)
                with pytest.raises(StoreError, match=f"column {place // 60} "):
                    sweeper.dots_int8(codes, vectors)
                _flip(store / "tier.npy", place)
            assert np.array_equal(sweeper.dots_int8(codes, vectors), expected)
            with monkeypatch.context() as patch:
                patch.setattr(checksum, "row_checksums", None)
                assert np.array_equal(sweeper.dots_int8(codes, vectors), expected)


def _flip(path: Path, place: int) -> None:
    """Change a byte of the codes in a file, or change it back."""
    with path.open("r+b") as file:
        file.seek(store_format.DATA_OFFSET + place)
        byte = file.read(1)[0]
        file.seek(store_format.DATA_OFFSET + place)
        file.write(bytes([byte ^ 0x55]))


@pytest.mark.parametrize("name", TIER_FILES)
def test_a_missing_or_cut_off_tier_is_refused(store: Path, name: str) -> None:
    """A tier the header promises must be there, and whole."""
    os.truncate(store / name, (store / name).stat().st_size - 1)
    with pytest.raises(StoreError, match=f"cannot be used: {name} has"):
        open_store(str(store))
    (store / name).unlink()
    with pytest.raises(StoreError, match=f"cannot be used: it has no {name}"):
        open_store(str(store))


def test_a_stale_tier_is_refused(store: Path, tmp_path: Path, values: np.ndarray) -> None:
    """The tier of another matrix of the same shape is refused, even where the header vouches for its bytes."""
    create_store(str(tmp_path / "other"), values + 1e-3, groups={"g": list(range(5, 9))}).close()
    foreign = {name: (tmp_path / "other" / name).read_bytes() for name in TIER_FILES}
    sound = {name: (store / name).read_bytes() for name in TIER_FILES}
    rewrite_header(store, foreign)
    with pytest.raises(StoreError, match="cannot be used: its int8 tier was made from another matrix"):
        open_store(str(store))
    rewrite_header(store, sound)
    open_store(str(store)).close()


def test_a_tier_of_another_shape_is_refused(store: Path, tmp_path: Path, values: np.ndarray) -> None:
    """Codes or bounds that do not fit the matrix are refused before anything is mapped."""
    create_store(str(tmp_path / "other"), values[:, :600], groups={"g": list(range(5, 9))}).close()
    sound = (store / "tier.npz").read_bytes()
    rewrite_header(store, {"tier.npz": (tmp_path / "other" / "tier.npz").read_bytes()})
    with pytest.raises(StoreError, match=r"disagrees with header\.json about the shape"):
        open_store(str(store))
    rewrite_header(store, {"tier.npz": sound, "tier.npy": (tmp_path / "other" / "tier.npy").read_bytes()})
    with pytest.raises(StoreError, match=r"header\.json lacks a field or holds one that is out of its domain"):
        open_store(str(store))


@pytest.mark.parametrize("name", ["tier.npz", "statistics.npz"])
@pytest.mark.parametrize("member", ["checksums", "norm"])
def test_a_member_that_is_no_array_is_refused(store: Path, name: str, member: str) -> None:
    """Bytes in the place of an array are refused, even where the header vouches for them."""
    changed = io.BytesIO()
    with zipfile.ZipFile(store / name) as sound, zipfile.ZipFile(changed, "w") as archive:
        for entry in sound.namelist():
            archive.writestr(entry, b"no array" if entry == f"{member}.npy" else sound.read(entry))
    rewrite_header(store, {name: changed.getvalue()})
    with pytest.raises(StoreError, match="disagrees with header"):
        open_store(str(store))


def test_a_store_from_before_tiers_opens(store: Path) -> None:
    """A header that names no tier is that of a store without one, even where files of that name lie about."""
    header = json.loads((store / "header.json").read_bytes())
    del header["crc32"]
    for name in TIER_FILES:
        del header["files"][name]
    (store / "header.json").write_bytes(store_format._canonical(header))
    with open_store(str(store)) as opened:
        assert opened.tier is None
        opened.verify()


def test_the_tier_alone_is_copied_into_memory(store: Path) -> None:
    """``?tier=dram`` copies the tier into memory, leaves the matrix in its file, and is part of the store's URL."""
    with open_store(f"mmap://{store}?tier=dram") as opened, open_store(str(store)) as plain:
        assert opened.url == f"mmap://{store}?tier=dram"
        assert opened.tier is not None
        assert plain.tier is not None
        maps = Path("/proc/self/maps").read_text()
        assert opened.tier.codes.tobytes() == plain.tier.codes.tobytes()
        assert not opened.tier.codes.flags.writeable
        assert maps.count("store/matrix.npy") >= 2
        assert _mapped_file(opened.tier.codes) == ""
        assert _mapped_file(plain.tier.codes).endswith("tier.npy")
        assert _mapped_file(opened.matrix).endswith("matrix.npy")
        answers = [fo.select(each, k=4, tier="int8") for each in (opened, plain)]
        assert answers[0].indices.tolist() == answers[1].indices.tolist()
        opened.verify()
    with pytest.raises(StoreURLError, match="expected tier=dram"):
        open_store(f"mmap://{store}?tier=ssd")
    with pytest.raises(StoreURLError, match="unknown parameter 'tear'"):
        open_store(f"mmap://{store}?tear=dram")


def _mapped_file(array: np.ndarray) -> str:
    """Return the file behind the memory of an array, or nothing."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.split(maxsplit=5)[5] if len(line.split(maxsplit=5)) > 5 and "/" in line else ""
    raise AssertionError("the array lies in no mapping")


def test_a_build_that_fails_leaves_no_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the tier the build is refused when it is begun; one given up later leaves nothing either."""
    allocate = draft.allocate

    def no_room_for_tiers(descriptor: int, length: int, path: str) -> None:
        if path.startswith("the tier of"):
            raise MediumError("no room")
        allocate(descriptor, length, path)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(draft, "allocate", no_room_for_tiers)
    with pytest.raises(MediumError, match="no room"):
        create_store(str(tmp_path / "s"), np.eye(4))
    monkeypatch.undo()
    with StoreBuilder(str(tmp_path / "s"), TableSchema.plain(4, ("a", "b"))) as builder:
        builder.write_rows(0, np.eye(4)[:, :2])
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_store_hands_out_no_tier(store: Path) -> None:
    """After ``close`` there is no tier and no open descriptor; an existing view stays valid."""
    before = len(os.listdir("/proc/self/fd"))
    opened = open_store(str(store))
    assert opened.tier is not None
    codes = opened.tier.codes
    total = int(codes.sum())
    opened.close()
    assert opened.tier is None
    assert len(os.listdir("/proc/self/fd")) == before + 1  # that of the mapping behind the view
    assert int(codes.sum()) == total


def test_the_command_line_builds_shows_and_takes_tiers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``ingest --tier``, ``info``, ``select --tier`` and ``--tier-load`` agree on the tier and on the bytes read."""
    rng = np.random.default_rng(1)
    table = rng.normal(size=(80, 30))
    np.save(tmp_path / "X.npy", table)
    np.save(tmp_path / "y.npy", table[:, 3] - table[:, 20])
    source, target = str(tmp_path / "X.npy"), str(tmp_path / "y.npy")
    kept, none = str(tmp_path / "kept"), str(tmp_path / "none")
    assert main(["ingest", source, kept, "--target", target]) == 0
    assert main(["ingest", source, none, "--target", target, "--tier", "none"]) == 0
    capsys.readouterr()
    for url, tier in ((kept, "int8"), (none, "none")):
        assert main(["info", url, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["tier"], facts["tier_bytes"]) == (tier, 2400 if tier == "int8" else 0)
    answers = {}
    for extra in ([], ["--tier", "int8"], ["--tier", "int8", "--tier-load", "dram"], ["--tier", "int8", "--load", "dram"]):
        assert main(["select", kept, "--k", "2", "--json", *extra]) == 0
        answers[tuple(extra)] = json.loads(capsys.readouterr().out)
    assert {json.dumps([found["indices"], found["coef"], found["score"]]) for found in answers.values()} == {
        json.dumps([answers[()]["indices"], answers[()]["coef"], answers[()]["score"]])
    }
    assert answers[()]["tier"] == "exact"  # too small for a tier to pay
    for extra, found in answers.items():
        assert found["bytes_read_tier"] + found["bytes_read_exact"] == found["bytes_read"]
        assert (found["bytes_read_tier"] > 0) == bool(extra)
    assert main(["select", none, "--k", "2", "--tier", "int8"]) == 2
    assert "no int8 tier" in capsys.readouterr().err


def test_dram_counts_the_tier_in_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in memory is refused when matrix and tier together do not fit."""
    monkeypatch.setattr("storage_backends.media.dram.fillable_memory", lambda: 4500)
    url = StoreURL.parse("dram:too-large")
    DRAM.draft(url, 10, 100, "float32", replace=True).abort()
    with pytest.raises(MediumError, match=r"needs 5\.0 kB"):
        DRAM.draft(url, 10, 100, "float32", replace=True, tier="int8")


def test_a_tier_on_a_medium_of_its_own(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Read from a copy in another folder the tier gives the same answer; the copy is made once and opened by its URL again."""
    folder = tmp_path / "of its own"
    folder.mkdir()
    with open_store(str(store)) as beside:
        expected = fo.select(beside, k=5, tier="int8")
        url = f"mmap://{store}?tier={quote(str(folder))}"
    for _ in range(2):
        with open_store(url) as moved:
            assert moved.url == url
            assert moved.tier is not None
            found = fo.select(moved, k=5, tier="int8")
            assert found.indices.tolist() == expected.indices.tolist()
            assert found.column_coef.tobytes() == expected.column_coef.tobytes()
            assert [file.array is moved.tier.codes for file in moved.files()] == [False, True]
            moved.verify()
        (copy,) = folder.iterdir()
        before = copy.stat()
    assert copy.read_bytes() == (store / "tier.npy").read_bytes()
    assert main(["select", str(store), "--k", "5", "--tier", "int8", "--tier-load", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["indices"] == expected.indices.tolist()
    assert (copy.stat().st_ino, copy.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_copies_of_tiers_that_are_not_to_be_had(store: Path, tmp_path: Path, values: np.ndarray) -> None:
    """A folder that is not there, a store without a tier, a copy cut off or changed: one sentence each, and no answer."""
    folder = tmp_path / "folder"
    url = f"mmap://{store}?tier={folder}"
    with pytest.raises(StoreURLError, match="there is no directory"):
        open_store(url)
    with pytest.raises(StoreURLError, match="expected tier=dram or tier=/folder"):
        open_store(f"mmap://{store}?tier=folder")
    folder.mkdir()
    create_store(str(tmp_path / "bare"), values, tier="none").close()
    with pytest.raises(StoreError, match="has no int8 tier"):
        open_store(f"mmap://{tmp_path / 'bare'}?tier={folder}")
    assert not list(folder.iterdir())
    open_store(url).close()
    (copy,) = folder.iterdir()
    whole = bytearray(copy.read_bytes())
    whole[-1000] ^= 0x55
    copy.write_bytes(whole)
    with open_store(url) as opened, pytest.raises(StoreError, match=r"does not match its checksums: remove .*tier\.npy there"):
        fo.select(opened, values[:, 0], k=4, tier="int8")
    copy.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match=r"bytes and a copy of the tier \d+: remove it"):
        open_store(url)
