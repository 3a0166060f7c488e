"""Stores in files: nothing unsound opens, no crash leaves a false store, and no space is used that is not there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import io
import itertools
import json
import mmap
import os
import pickle
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastomp_nvm.errors import InputError, MediumError, StoreError, StoreURLError
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.stores.contract import Sidecars, StoreLayout
from fastomp_nvm.stores.names import NumberedNames
from fastomp_nvm.stores.open import create_store, open_store
from storage_backends.build.statistics import column_grid
from storage_backends.files import draft, durable
from storage_backends.files import format as store_format
from storage_backends.files import store as store_files

SMALL_FILES = (store_format.HEADER, *store_format.SIDECARS)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Path of a sound store of 30 observations, 300 columns, 290 features and a target."""
    values = np.random.default_rng(3).normal(size=(30, 300))
    create_store(str(tmp_path / "store"), values, values[:, 0], groups={"g": list(range(5, 16))}).close()
    return tmp_path / "store"


def rewrite_header(store: Path, **changes: object) -> None:
    """Change fields of a header and give it the checksum that goes with them."""
    header = json.loads((store / "header.json").read_bytes())
    del header["crc32"]
    header.update(changes)
    (store / "header.json").write_bytes(store_format._canonical(header))


def plant(store: Path, name: str, data: bytes) -> None:
    """Put ``data`` in the place of a sidecar and make the header vouch for it."""
    (store / name).write_bytes(data)
    header = json.loads((store / "header.json").read_bytes())
    header["files"][name] = {"bytes": len(data), "crc32": zlib.crc32(data)}
    rewrite_header(store, files=header["files"])


# --- what does not open --------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(SMALL_FILES), where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(store: Path, name: str, where: float, flip: int) -> None:
    """Any byte of the header or a sidecar that changes makes the store refuse to open, with our error."""
    sound = (store / name).read_bytes()
    broken = bytearray(sound)
    broken[int(where * len(sound))] ^= flip
    (store / name).write_bytes(broken)
    try:
        with pytest.raises(StoreError, match="cannot be used"):
            open_store(str(store))
    finally:
        (store / name).write_bytes(sound)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from((*SMALL_FILES, "matrix.npy")), where=st.floats(0, 1, exclude_max=True), grow=st.booleans())
def test_no_changed_length_goes_unnoticed(store: Path, name: str, where: float, grow: bool) -> None:
    """A file that is cut off anywhere, or longer than it was, makes the store refuse to open."""
    sound = (store / name).read_bytes()
    (store / name).write_bytes(sound + b"\0" if grow else sound[: int(where * len(sound))])
    try:
        with pytest.raises(StoreError):
            open_store(str(store))
    finally:
        (store / name).write_bytes(sound)


@pytest.mark.parametrize("name", [*SMALL_FILES, "matrix.npy"])
def test_a_missing_file_is_named(store: Path, name: str) -> None:
    """A store without one of its files does not open, and the error names the file."""
    (store / name).unlink()
    with pytest.raises(StoreError, match=name):
        open_store(str(store))


@pytest.mark.parametrize("name", [*SMALL_FILES, "matrix.npy"])
def test_a_pipe_in_the_place_of_a_file_does_not_hang(store: Path, name: str) -> None:
    """Something that is not a regular file is refused."""
    (store / name).unlink()
    os.mkfifo(store / name)
    with pytest.raises(StoreError, match="not a file"):
        open_store(str(store))


def test_a_byte_of_the_matrix_header_counts(store: Path) -> None:
    """The NPY header must be the one the layout implies."""
    with open(store / "matrix.npy", "r+b") as file:
        file.seek(200)
        file.write(b"x")
    with pytest.raises(StoreError, match=r"matrix\.npy"):
        open_store(str(store))


def test_verify_names_the_column(store: Path) -> None:
    """A byte changed in the matrix opens (reading all of it would take too long), and verify names its column."""
    with open(store / "matrix.npy", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with open_store(str(store)) as opened, pytest.raises(StoreError, match=r"column 299 \('f299'\) does not match"):
        opened.verify()


def test_checksums_are_those_of_the_blocks_bytes(store: Path) -> None:
    """The checksum of a block is the CRC-32 of its rows in matrix.npy, so that any tool can check it."""
    matrix = np.load(store / "matrix.npy")
    with np.load(store / "statistics.npz") as archive:
        blocks, checksums = archive["blocks"], archive["checksums"]
    assert checksums.tolist() == [zlib.crc32(matrix[first:last].tobytes()) for first, last in itertools.pairwise(blocks)]


def test_verify_of_a_file_cut_off_while_open_is_an_error(store: Path) -> None:
    """A matrix that lost its end after the store was opened makes verify raise, not crash."""
    with open_store(str(store)) as opened:
        os.truncate(store / "matrix.npy", 8192)
        with pytest.raises(StoreError, match="ends before"):
            opened.verify()


def test_another_version_is_refused(store: Path) -> None:
    """A store of a later format is refused by its version."""
    rewrite_header(store, version=3)
    with pytest.raises(StoreError, match="version is 3 and this release reads 1 and 2"):
        open_store(str(store))


@pytest.mark.parametrize(
    "changes",
    [
        {"n_obs": 29},
        {"n_obs": True},
        {"n_columns": 10**30},
        {"n_features": -1},
        {"n_features": 3},
        {"dtype": "float64"},
        {"dtype": ["float32"]},
        {"fingerprint": 7},
        {"files": []},
        {"files": {}},
        {"provenance": None},
    ],
    ids=str,
)
def test_a_header_that_lies_is_refused(store: Path, changes: dict) -> None:
    """A header with a valid checksum and impossible content still raises our error."""
    rewrite_header(store, **changes)
    with pytest.raises(StoreError):
        open_store(str(store))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": "zarr"}',
        b'{"format": "fastomp-store", "version": 1}',
        b"1" * 5000,
    ],
)
def test_a_foreign_header_is_refused(store: Path, raw: bytes) -> None:
    """Any other content of header.json raises our error."""
    (store / "header.json").write_bytes(raw)
    with pytest.raises(StoreError):
        open_store(str(store))


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"features": 3, "columns": None, "targets": []},
        {"features": {"prefix": "f", "length": 10**30}, "columns": None, "targets": []},
        {"features": {"prefix": "f", "length": -1}, "columns": None, "targets": []},
        {"features": [1] * 290, "columns": None, "targets": []},
        {"features": ["a"], "columns": None, "targets": []},
        {"features": {"prefix": "f", "length": 290}, "columns": None, "targets": [{"name": 3}] * 9},
    ],
    ids=range(7),
)
def test_names_that_do_not_fit_are_refused(store: Path, names: dict) -> None:
    """Names the header vouches for and that do not fit the layout raise our error."""
    plant(store, "names.json", json.dumps(names).encode())
    with pytest.raises(StoreError):
        open_store(str(store))


class Detonator:
    """An object whose unpickling would be seen."""

    detonated = False

    def __reduce__(self):
        return setattr, (Detonator, "detonated", True)


def test_nothing_is_ever_unpickled(store: Path) -> None:
    """A pickled object in a sidecar is refused, not executed."""
    buffer = io.BytesIO()
    np.savez(buffer, values=np.array([Detonator()], dtype=object))
    plant(store, "targets.npz", buffer.getvalue())
    with pytest.raises(StoreError, match=r"targets\.npz"):
        open_store(str(store))
    plant(store, "targets.npz", pickle.dumps(Detonator()))
    with pytest.raises(StoreError, match=r"targets\.npz"):
        open_store(str(store))
    assert not Detonator.detonated


@pytest.mark.parametrize("field", ["offsets", "blocks", "mean", "checksums", "grams"])
@pytest.mark.parametrize(
    "spoil", [lambda a: a[:-1], lambda a: a[::-1] * 7, lambda a: a.astype(np.float32), lambda a: a.reshape(1, -1)]
)
def test_statistics_that_do_not_fit_are_refused(store: Path, field: str, spoil) -> None:
    """Arrays of another shape or type than the layout implies raise our error; other numbers of the right shape are no concern."""
    with np.load(store / "statistics.npz") as archive:
        arrays = dict(archive)
    arrays[field] = spoil(arrays[field])
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    plant(store, "statistics.npz", buffer.getvalue())
    try:
        open_store(str(store)).close()
    except StoreError:
        return
    assert field in ("mean", "checksums", "grams")


def test_what_is_no_store_is_told_apart(tmp_path: Path) -> None:
    """Nothing there, a file, a foreign directory, a build's leftovers and impossible paths each get their own sentence."""
    (tmp_path / "file.csv").write_text("a,b\n1,2\n")
    (tmp_path / "foreign").mkdir()
    (tmp_path / ".s.partial-1-ab").mkdir()
    for path, kind, text in (
        ("absent", StoreURLError, "no store"),
        ("file.csv", StoreURLError, "is a file"),
        ("foreign", StoreURLError, "without a store"),
        (".s.partial-1-ab", StoreURLError, "interrupted build"),
        ("file.csv/below", StoreURLError, "directory"),
        ("x" * 300, MediumError, "too long"),
        ("nul\0l", StoreURLError, "null"),
    ):
        with pytest.raises(kind, match=text):
            open_store(f"{tmp_path}/{path}")
    with pytest.raises(StoreURLError, match="root"):
        open_store("mmap:///")


# --- where a store may be put --------------------------------------------------------------------------------------------------


def test_only_a_store_is_replaced(tmp_path: Path) -> None:
    """A file or a directory with other content is never overwritten, an empty directory is used, a damaged store is replaced."""
    (tmp_path / "file").write_text("precious")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "thesis.tex").write_text("precious")
    for name in ("file", "directory"):
        with pytest.raises(StoreURLError, match="not a store"):
            create_store(str(tmp_path / name), np.eye(3), replace=True)
    assert (tmp_path / "file").read_text() == (tmp_path / "directory" / "thesis.tex").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    create_store(str(tmp_path / "empty"), np.eye(3)).close()
    (tmp_path / "empty" / "matrix.npy").unlink()
    create_store(str(tmp_path / "empty"), np.eye(3), replace=True).close()
    with pytest.raises(StoreURLError, match="does not exist"):
        create_store(str(tmp_path / "no" / "such" / "place"), np.eye(3))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["directory", "empty", "file"]


def test_a_link_to_a_store_is_followed(tmp_path: Path) -> None:
    """Replacing through a symbolic link replaces the store it leads to and keeps the link."""
    (tmp_path / "disk").mkdir()
    create_store(str(tmp_path / "disk" / "store"), np.eye(3)).close()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "store")
    create_store(str(tmp_path / "link"), 2 * np.eye(3), replace=True).close()
    assert (tmp_path / "link").is_symlink()
    with open_store(str(tmp_path / "disk" / "store")) as store:
        assert store.matrix[0, 0] == 2


def test_replacing_works_without_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without an atomic exchange the store is still replaced and nothing is left over."""
    monkeypatch.setattr(draft, "rename_with_flag", lambda *_, **__: False)
    with create_store(str(tmp_path / "s"), np.eye(3)) as store:
        store.region("log", 8).close()
    create_store(str(tmp_path / "s"), 2 * np.eye(3), replace=True).close()
    with open_store(str(tmp_path / "s")) as store:
        assert store.matrix[0, 0] == 2
        assert list(store.regions()) == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_store_replaced_while_it_is_opened_opens_as_its_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening never sees half of one store and half of another."""
    path = str(tmp_path / "s")
    create_store(path, np.eye(3)).close()
    read, calls = store_files._read, []

    def replace_midway(directory: int, name: str, length: int | None = None) -> bytes:
        data = read(directory, name, length)
        if not calls:
            calls.append(name)
            create_store(path, 2 * np.eye(4), replace=True).close()
        return data

    monkeypatch.setattr(store_files, "_read", replace_midway)
    with open_store(path) as store:
        assert store.matrix.shape == (4, 4)
        assert store.matrix[0, 0] == 2


def test_provenance_is_kept_or_refused(tmp_path: Path) -> None:
    """Provenance in JSON terms comes back; anything else is refused before the store appears."""
    from storage_backends.build.builder import StoreBuilder
    from storage_backends.build.schema import TableSchema

    schema = TableSchema.plain(1, ["a"])
    with StoreBuilder(str(tmp_path / "s"), schema) as builder:
        builder.write_rows(0, np.ones((1, 1)))
        builder.finish({}, {"source": "data.csv", "bytes": 12, "ratio": 0.1})
    with open_store(str(tmp_path / "s")) as store:
        assert store.provenance == {"source": "data.csv", "bytes": 12, "ratio": 0.1}
    for wrong in ({"x": np.nan}, {"x": object()}):
        with StoreBuilder(str(tmp_path / "t"), schema) as builder:
            builder.write_rows(0, np.ones((1, 1)))
            with pytest.raises(InputError, match="JSON"):
                builder.finish({}, wrong)
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


# --- size ----------------------------------------------------------------------------------------------------------------------


def test_forty_gigabytes_open_at_once(tmp_path: Path) -> None:
    """A store of a million features and 40 GB (a sparse file here) opens, and its ends can be read."""
    n_columns, n_obs = 1_000_000, 10_000
    offsets = np.arange(n_columns + 1)
    blocks = column_grid(offsets)
    zeros, names = np.zeros(n_columns), NumberedNames(n_columns)
    sidecars = Sidecars(
        StoreLayout(n_obs, "float32", offsets, blocks, "0" * 32),
        ColumnStatistics(zeros, zeros, zeros, zeros),
        np.zeros(len(blocks) - 1, dtype=np.int64),
        names,
        names,
        {},
    )
    for name, data in (files := store_format.encode_sidecars(sidecars)).items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "header.json").write_bytes(store_format.encode_header(sidecars, files))
    with open(tmp_path / "matrix.npy", "wb") as file:
        file.write(store_format.matrix_header(n_columns, n_obs, "float32"))
        try:
            file.truncate(store_format.matrix_length(n_columns, n_obs, "float32"))
        except OSError:
            pytest.skip("no sparse files of 40 GB here")
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(7).tobytes())
    with open_store(str(tmp_path)) as store:
        assert (store.matrix[0, 0], store.matrix[-1, -1]) == (0, 7)
        assert store.names[-1] == "f999999"
        assert store.names.index("f777777") == 777777


def test_no_room_is_said_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not fit is refused at the start, with the needed and the free space."""
    values = np.broadcast_to(np.float32(1), (10**15, 10**3))
    with pytest.raises(MediumError, match=r"needs 4000000\.0 TB, has .* free"):
        create_store(str(tmp_path / "s"), values)

    def no_space(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(MediumError, match=r"needs .* free"):
        create_store(str(tmp_path / "s"), np.eye(3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("code", "limit"), [(errno.EDQUOT, "quota"), (errno.EFBIG, "ulimit -f")])
def test_a_limit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, limit: str) -> None:
    """Where there is room but no leave to use it, the limit is named instead of asking for room."""

    def limited(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", limited)
    with pytest.raises(MediumError, match=f"needs .* more than .*{limit}.* allows"):
        create_store(str(tmp_path / "s"), np.eye(3))


def test_a_file_system_without_allocation_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where posix_fallocate is not supported the file is extended instead; other failures are the medium's."""

    def fail(code: int):
        def failing(*_: int) -> None:
            raise OSError(code, os.strerror(code))

        return failing

    monkeypatch.setattr(os, "posix_fallocate", fail(errno.EOPNOTSUPP))
    with create_store(str(tmp_path / "s"), np.eye(3)) as store:
        store.verify()
    monkeypatch.setattr(os, "posix_fallocate", fail(errno.EIO))
    with pytest.raises(MediumError, match="Input/output error"):
        create_store(str(tmp_path / "t"), np.eye(3))


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """On a real file system of one megabyte a store of two is refused, one that fits is built, and its region may not overflow."""
    small = tmp_path / "small"
    small.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], capture_output=True).returncode
    ):
        pytest.skip("mounting a small tmpfs needs root")
    try:
        with pytest.raises(MediumError, match=r"needs 2\.0 MB, has 1\.0 MB free"):
            create_store(str(small / "s"), np.ones((500, 1000)))
        assert list(small.iterdir()) == []
        with create_store(str(small / "s"), np.ones((100, 1000))) as store:
            store.verify()
            with pytest.raises(MediumError, match=r"needs 2\.0 MB"):
                store.region("log", 2_000_000)
            assert list(store.regions()) == []
    finally:
        subprocess.run(["umount", "-l", small], check=True)


@pytest.mark.parametrize("call", ["fsync", "ftruncate", "pwrite"])
def test_a_failing_device_leaves_the_old_store(store: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """An input/output error at any step of a replacement is a MediumError and changes nothing."""
    with open_store(str(store)) as opened:
        before = opened.layout.fingerprint
    real = getattr(os, call)
    for survived in range(100):
        countdown = iter(range(survived, -1, -1))

        def fail_once(*arguments: object, countdown: Iterator[int] = countdown) -> object:
            if next(countdown, None) == 0:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail_once)
            with contextlib.suppress(MediumError):
                create_store(str(store), np.eye(3), replace=True).close()
        with open_store(str(store)) as opened:
            opened.verify()
            if opened.layout.n_features == 3:  # nothing failed any more, or only the last fsync, after the new store took its place
                break
            assert opened.layout.fingerprint == before
        assert [entry.name for entry in store.parent.iterdir()] == ["store"]
    assert 1 <= survived < 99


# --- regions, file systems -----------------------------------------------------------------------------------------------------


def test_a_region_is_made_durable_page_by_page(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Persist flushes the pages of the range and no others."""
    from storage_backends.files import mapped

    flushed = []

    class Recorder:
        def flush(self, offset: int, length: int) -> None:
            flushed.append((offset, length))

    mapped.flush_pages(Recorder(), 3 * mmap.PAGESIZE + 5, 10)  # type: ignore[arg-type]
    mapped.flush_pages(Recorder(), 7, 2)  # type: ignore[arg-type]
    assert flushed == [(3 * mmap.PAGESIZE, 15), (0, 9)]


def test_a_damaged_region_is_refused(store: Path) -> None:
    """An empty region file is our error, and half-made ones are not listed."""
    with open_store(str(store)) as opened:
        opened.region("log", 64).close()
        (store / "regions" / ".x.partial-1-ab").write_bytes(b"")
        (store / "regions" / "log.bin").write_bytes(b"")
        assert list(opened.regions()) == ["log"]
        with pytest.raises(StoreError, match="empty"):
            opened.region("log")
        with pytest.raises(StoreError, match="0 bytes and should have 64"):
            opened.region("log", 64)


def test_the_file_system_is_told(tmp_path: Path) -> None:
    """The type of the file system is that of the deepest mount above the path."""
    assert durable.file_system_type("/proc/self") == "proc"
    assert durable.file_system_type(str(tmp_path / "not" / "there")) == durable.file_system_type(str(tmp_path))


def test_no_descriptor_leaks(store: Path) -> None:
    """Opening, failing to open and closing leave as many descriptors as before."""
    gc.collect()  # what earlier tests left in cycles would go in between
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with open_store(str(store)) as opened:
            opened.region("log", 64).close()
            opened.verify()
        create_store(str(store.parent / "other"), np.eye(2), replace=True)
    shutil.copy(store / "header.json", store / "names.json")
    for _ in range(3):
        with pytest.raises(StoreError):
            open_store(str(store))
    assert len(os.listdir("/proc/self/fd")) == before


def test_regions_that_dead_processes_were_making_are_swept(store: Path) -> None:
    """Creating a region removes partial files without a lock and keeps those of concurrent creators."""
    with open_store(str(store)) as opened:
        opened.region("first", 64).close()
        dead, alive = (store / "regions" / f".run.bin.partial-{digits}" for digits in ("1234-ab", "cd"))
        dead.touch()
        with alive.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            opened.region("second", 64).close()
            assert sorted(entry.name for entry in (store / "regions").iterdir()) == [alive.name, "first.bin", "second.bin"]
        with ThreadPoolExecutor(4) as threads:
            regions = list(threads.map(lambda number: opened.region(f"r{number}", 64), range(60)))
        for region in regions:
            region.close()
        assert len(opened.regions()) == 62
        assert len(os.listdir(store / "regions")) == 62
