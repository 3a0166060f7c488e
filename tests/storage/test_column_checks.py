"""A damaged or foreign matrix gives no answer: files name their store, and columns are compared with checksums when first read."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm import native
from fastomp_nvm.cli.main import main
from fastomp_nvm.durable_files import write_atomically
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import MediumError, RequestError, StoreError
from fastomp_nvm.matrix import checksum
from fastomp_nvm.matrix.checksum import Check, Seal
from storage_backends.files import checked
from storage_backends.files import format as store_format
from storage_backends.files import store as store_module
from storage_backends.files.checked import RECORD
from storage_backends.media.mcas import open_pool_store
from tests.harness import flipped_bits

FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "format_1" / "store"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of 40 columns with a tier; the first ones make up the response."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(90, 40))
    fo.create_store(str(tmp_path / "store"), X, X[:, :5] @ np.arange(1.0, 6.0) + rng.normal(size=90)).close()
    return tmp_path / "store"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust the time of a file that was changed just now; tests that change files give them another time."""
    monkeypatch.setattr(checked, "_COARSEST_SECONDS", 0)


def flip(store: Path, column: int, name: str = store_format.MATRIX) -> None:
    """Flip a bit of a column, or flip it back, and give the file another time of change."""
    path = store / name
    width = (path.stat().st_size - store_format.DATA_OFFSET) // 40
    place, before = store_format.DATA_OFFSET + column * width + 7, path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x10]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many columns each look of a seal compared."""
    counts: list[int] = []
    compute = checksum.row_checksums

    def counting(rows: np.ndarray, places: np.ndarray | None = None) -> np.ndarray:
        counts.append(len(rows if places is None else places))
        return compute(rows, places)

    monkeypatch.setattr(checksum, "row_checksums", counting)
    return counts


def test_flipped_bits_give_no_wrong_answer(tmp_path: Path) -> None:
    """Mapped, read directly and over shards, with the tier and without: the answer is right, or the column is named."""
    tally = flipped_bits.FlippedBits(tmp_path, 5).run(6)
    assert not [outcome for outcome in tally if outcome[1] == "wrong"]
    for place, io, tier in flipped_bits.WAYS:
        swept = store_format.MATRIX if tier == "exact" else store_format.TIER
        assert tally[f"{place} {io} {tier}, {swept}", "refused"] == 6


def test_without_the_comparison_answers_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trials above can fail: with columns that are not compared some answers are wrong."""
    trials = flipped_bits.FlippedBits(tmp_path, 5)
    monkeypatch.setattr(Seal, "look", lambda *_: None)
    assert any(outcome == "wrong" for _, outcome in trials.run(25))


@pytest.mark.parametrize("name", [store_format.MATRIX, store_format.TIER])
def test_the_matrix_of_another_store_is_refused(store: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of the same shape from another store, even of an older release, is refused in one sentence at opening."""
    other = store.parent / "other"
    fo.create_store(str(other), np.random.default_rng(4).normal(size=(90, 40)), np.ones(90)).close()
    shutil.copy(other / name, store / name)
    assert main(["select", str(store), "--k", "2"]) != 0
    assert f"{name} belongs to another store" in capsys.readouterr().err
    plain = bytearray((other / name).read_bytes())
    shape = (40, 90, "float32" if name == store_format.MATRIX else "int8")
    plain[: store_format.DATA_OFFSET] = store_format.matrix_header(*shape)
    (store / name).write_bytes(plain)
    with pytest.raises(StoreError, match=f"{name} is not the matrix that header.json describes"):
        fo.open_store(str(store))


def test_the_files_are_ordinary_npy_files(store: Path) -> None:
    """NumPy loads matrix and tier, whose fingerprint can be read with any tool; zlib gives the checksum of each column."""
    fingerprint = json.loads((store / "header.json").read_bytes())["fingerprint"]
    with np.load(store / "checksums.npz") as checksums:
        for name, key in (("matrix.npy", "matrix"), ("tier.npy", "tier")):
            columns = np.load(store / name, mmap_mode="r")
            assert columns.offset == store_format.DATA_OFFSET
            assert f"# fastomp-store {fingerprint}".encode() in (store / name).read_bytes()[: store_format.DATA_OFFSET]
            assert checksums[key].tolist() == [zlib.crc32(column.tobytes()) for column in columns]


@pytest.mark.parametrize("extension", [True, False])
def test_columns_are_compared_once(
    store: Path, at_once: None, compared: list[int], extension: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first selection compares every column once, later ones of this and other processes none, until the file is changed."""
    if not extension:
        monkeypatch.setattr(native, "extension", None)
    expected = fo.select(str(store), k=4, tier="exact").indices.tolist()
    assert sum(compared) == 40
    assert (store / RECORD).exists()
    compared.clear()
    with fo.open_store(str(store)) as opened:
        for _ in range(2):
            assert fo.select(opened, k=4, tier="exact").indices.tolist() == expected
        assert not compared
        flip(store, 11)
        with pytest.raises(StoreError, match=r"column 11 \('f11'\) does not match its checksum"):
            fo.select(opened, k=4, tier="exact")
    with pytest.raises(StoreError, match="column 11 "):
        fo.select(str(store), k=4, tier="exact")
    flip(store, 11)
    compared.clear()
    assert fo.select(str(store), k=4, tier="exact").indices.tolist() == expected
    assert sum(compared) == 40


def test_nothing_is_recorded_in_a_store_that_was_moved_away(store: Path, at_once: None) -> None:
    """A store that is deleted while it is open is not written to: its removal would fail."""
    with fo.open_store(str(store)) as opened:
        fo.select(opened, k=4, tier="exact")
        moved = store.rename(store.parent / "deleted")
    assert not (moved / RECORD).exists()
    assert not store.exists()


def test_a_file_changed_just_now_is_compared_again(store: Path, compared: list[int]) -> None:
    """While its time of change cannot tell a file from a later version of it, no record of it holds."""
    for _ in range(2):
        fo.select(str(store), k=4, tier="exact")
    assert sum(compared) == 80


def test_records_of_stores_that_may_not_be_written_are_with_the_user(
    store: Path, at_once: None, compared: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without permission to write to the store, the record is in FASTOMP_HOME, and damaged records are no records."""
    monkeypatch.setenv("FASTOMP_HOME", str(tmp_path / "home"))
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: not mode & os.W_OK and access(path, mode, **more))
    for sum_of_compared in (40, 0):
        fo.select(str(store), k=4, tier="exact")
        assert sum(compared) == sum_of_compared
        compared.clear()
    assert not (store / RECORD).exists()
    (kept,) = (tmp_path / "home" / "checked").iterdir()
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-9], whole.replace(b"matrix", b"matrlx"), b"[" * 100_000, b'{"crc32": 0, "body": "0"}'):
        kept.write_bytes(damaged)
        fo.select(str(store), k=4, tier="exact")
        assert sum(compared) == 40
        compared.clear()


@pytest.mark.parametrize(("check", "counts"), [("first", [40, 0, 0]), ("always", [40, 40, 40]), ("never", [0, 0, 0])])
def test_when_columns_are_compared_can_be_chosen(
    store: Path, at_once: None, compared: list[int], check: Check, counts: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """``check`` of a selection, of an opened store and of the command line mean the same."""
    fo.select(str(store), k=4, tier="exact", check=check)
    found = [sum(compared)]
    with fo.open_store(str(store), check=check) as opened:
        fo.select(opened, k=4, tier="exact")
    found.append(sum(compared) - sum(found))
    assert main(["select", str(store), "--k", "4", "--tier", "exact", "--check", check, "--json"]) == 0
    found.append(sum(compared) - sum(found))
    assert found == counts


def test_what_cannot_be_chosen_is_refused(store: Path) -> None:
    """An unknown value, a durable run and an array are refused in a sentence."""
    with pytest.raises(RequestError, match="check is 'often': expected one of first, always, never"):
        fo.open_store(str(store), check="often")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="check is 'often'"):
        fo.select(str(store), k=2, check="often")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="leave check never out"):
        fo.select(str(store), k=2, run="unchecked", check="never")
    with pytest.raises(RequestError, match="are for stores"):
        fo.select(np.eye(5), np.ones(5), k=2, check="first")


def test_damage_ends_a_durable_run_which_then_continues(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command names store and column and fails, ``verify`` names the same, and the run ends right once the file is repaired."""
    expected = fo.select(str(store), k=4).indices.tolist()
    flip(store, 17)
    assert main(["select", str(store), "--k", "4", "--run", "damaged-once"]) != 0
    sentence = capsys.readouterr().err
    assert "column 17 ('f17') does not match its checksum" in sentence
    assert str(store) in sentence
    assert main(["verify", str(store)]) != 0
    assert "column 17 ('f17') does not match its checksum" in capsys.readouterr().err
    assert main(["resume", "damaged-once"]) != 0
    flip(store, 17)
    capsys.readouterr()
    assert main(["resume", "damaged-once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["indices"] == expected
    fo.forget("damaged-once")


def make_older(store: Path) -> None:
    """Turn a store into one of the release before checksums of columns."""
    header = json.loads((store / "header.json").read_bytes())
    del header["crc32"], header["files"][store_format.CHECKSUMS]
    (store / "header.json").write_bytes(store_format._canonical({**header, "version": 1}))
    (store / store_format.CHECKSUMS).unlink()
    for name, dtype in ((store_format.MATRIX, "float32"), (store_format.TIER, "int8")):
        with (store / name).open("r+b") as file:
            file.write(store_format.matrix_header(40, 90, dtype))


def test_a_store_of_an_older_release_can_be_checked_from_now_on(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is read and called unchecked; ``verify --add-checksums`` verifies it and adds what is missing, once."""
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    make_older(store)
    expected = fo.select(str(store), k=4).indices.tolist()
    assert main(["info", str(store)]) == 0
    assert "unchecked: an older release wrote it" in " ".join(capsys.readouterr().out.split())
    for name, block in ((store_format.MATRIX, "block 0"), (store_format.TIER, "block 0 of the int8 tier")):
        flip(store, 3, name)
        assert main(["verify", str(store), "--add-checksums"]) != 0
        assert f"{block} (columns 0 to 39) does not match its checksum" in capsys.readouterr().err
        flip(store, 3, name)
    flip(store, 3, store_format.TIER)
    with pytest.raises(StoreError, match="block 0 of the int8 tier"):
        fo.open_store(f"mmap://{store}?tier=dram")
    flip(store, 3, store_format.TIER)
    assert main(["verify", str(store), "--add-checksums"]) == 0
    assert "added one per column" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before
    assert fo.select(str(store), k=4).indices.tolist() == expected
    assert main(["verify", str(store), "--add-checksums"]) != 0
    assert "has a checksum for each column already" in capsys.readouterr().err


def test_adding_checksums_can_be_interrupted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to its last step the store stays one of the older release, which opens and can be completed."""
    make_older(store)
    written: list[Path] = []

    def fail_at_the_header(path: Path, data: bytes, **options: int) -> None:
        if path.name == "header.json":
            raise OSError(28, "No space left on device")
        written.append(path)
        write_atomically(path, data, **options)

    with monkeypatch.context() as patch, fo.open_store(str(store)) as opened:
        patch.setattr(store_module, "write_atomically", fail_at_the_header)
        with pytest.raises(MediumError, match=r"cannot add checksums to .*: No space left on device"):
            opened.add_checksums()
    assert [path.name for path in written] == [store_format.CHECKSUMS]
    for complete in (False, True):
        with fo.open_store(str(store)) as opened:
            assert bool(opened.unchecked) is not complete
            opened.verify()
            if not complete:
                opened.add_checksums()


def test_the_fixture_of_the_first_format_is_read_unchecked(tmp_path: Path) -> None:
    """A store written by the first release opens, is verified and says that it is unchecked."""
    with fo.open_store(str(shutil.copytree(FORMAT_1, tmp_path / "older"))) as store:
        store.verify()
        assert "an older release wrote it" in store.unchecked


def test_a_tall_store_is_compared_before_it_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gram matrices are computed from columns that match."""
    from fastomp_nvm.selection import compression

    monkeypatch.setattr(compression, "FEWEST_ENTRIES", 0)
    X = np.random.default_rng(0).normal(size=(2000, 40))
    store = tmp_path / "tall"
    fo.create_store(str(store), X, X[:, 3], tier="none").close()
    flip(store, 30)
    with pytest.raises(StoreError, match="column 30 "):
        fo.select(str(store), k=3)


def test_values_of_a_pool_are_compared_once_for_all_slices(store: Path, compared: list[int]) -> None:
    """Inside MCAS a damaged value gives no answer; columns compared by one slice of work are not compared by the next."""
    manifest = {"format": 2, "token": store.parent.name, "pieces": [0, 40]}
    values = {f"fo/s/{store.parent.name}/{path.name}": np.frombuffer(path.read_bytes(), np.int8) for path in store.glob("*.*")}
    for name in ("matrix", "tier"):
        values[f"fo/s/{store.parent.name}/{name}/0"] = np.load(store / f"{name}.npy")
    for count in (40, 0):
        with open_pool_store(values.get, "s", manifest) as opened:
            fo.select(opened, k=4, tier="exact")
        assert sum(compared) == count
        compared.clear()
    values[f"fo/s/{store.parent.name}/tier/0"][9, 3] ^= 1
    with open_pool_store(values.get, "s", manifest) as opened, pytest.raises(StoreError, match="column 9 of the int8 tier"):
        fo.select(opened, k=4, tier="int8")


def test_media_without_checksums_say_so() -> None:
    """A store in memory is called unchecked."""
    with fo.create_store("dram:unchecked", np.eye(4), np.ones(4)) as store:
        assert "memory of this process" in store.unchecked
        assert Dataset.of_store(store).matrix.seal is None
