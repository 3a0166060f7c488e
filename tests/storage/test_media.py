"""Every medium of this package keeps the contract of stores."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from pathlib import Path

import numpy as np
import pytest

from fastomp_nvm.stores.open import create_store, open_store
from fastomp_nvm.stores.url import StoreURL
from storage_backends.files.durable import VOLATILE_FILE_SYSTEMS, file_system_type
from storage_backends.media import dram, libpmem, pmem
from storage_backends.media import mmap as mmap_ssd
from storage_backends.testing.store_contract import StoreContract

SHARED_MEMORY = "/dev/shm"
needs_tmpfs = pytest.mark.skipif(
    file_system_type(SHARED_MEMORY) != "tmpfs" or not os.access(SHARED_MEMORY, os.W_OK), reason="no writable tmpfs at /dev/shm"
)
needs_disk = pytest.mark.skipif(
    file_system_type(tempfile.gettempdir()) in VOLATILE_FILE_SYSTEMS, reason="the temporary directory is not on a disk"
)


class TestDram(StoreContract):
    medium = "dram"
    durability = "none"

    def make_url(self, directory: Path) -> str:
        return f"dram:contract-{uuid.uuid4()}"

    @pytest.fixture
    def url(self, place: Path):
        """Give the memory back after the test."""
        url = self.make_url(place)
        yield url
        if self._exists(url):
            dram.MEDIUM.discard(StoreURL.parse(url))

    def test_a_discarded_store_is_gone(self, url: str) -> None:
        """Discarding frees the name, and open stores live on."""
        with create_store(url, np.eye(3)) as store:
            dram.MEDIUM.discard(StoreURL.parse(url))
            assert not self._exists(url)
            assert store.matrix.sum() == 3
        create_store(url, np.eye(2)).close()


class FileContract(StoreContract):
    """Guarantees of file media beyond the contract."""

    def make_url(self, directory: Path) -> str:
        return f"{self.medium}://{directory}/a store"

    def peek(self, url: str) -> np.ndarray:
        return np.load(Path(StoreURL.parse(url).path) / "matrix.npy", mmap_mode="r", allow_pickle=False)

    def test_the_matrix_is_the_file(self, url: str) -> None:
        """The address of the matrix lies in a mapping of matrix.npy that is shared and read-only."""
        with create_store(url, np.eye(100)) as store:
            address = store.matrix.ctypes.data
            with open("/proc/self/maps") as maps:
                for line in maps:
                    low, high = (int(part, 16) for part in line.split()[0].split("-"))
                    if low <= address < high:
                        assert line.split()[1] == "r--s"
                        assert "a store/matrix.npy" in line
                        return
        pytest.fail("the matrix lies in no mapping of this process")


@needs_disk
class TestMmap(FileContract):
    medium = "mmap"
    durability = "power"


@needs_disk
class TestPmem(FileContract):
    medium = "pmem"
    durability = "power"
    emulated = True


class OnTmpfs:
    """Put the stores on tmpfs, where nothing survives a loss of power."""

    @pytest.fixture
    def place(self):
        """Directory for the stores of one test."""
        directory = Path(tempfile.mkdtemp(prefix="fastomp-", dir=SHARED_MEMORY))
        yield directory
        shutil.rmtree(directory)


@needs_tmpfs
class TestMmapOnTmpfs(OnTmpfs, FileContract):
    medium = "mmap"
    durability = "process"


@needs_tmpfs
class TestPmemOnTmpfs(OnTmpfs, FileContract):
    medium = "pmem"
    durability = "process"
    emulated = True


def test_mmap_and_pmem_open_each_others_stores(tmp_path: Path) -> None:
    """Both file media share one format: each opens stores of the other, regions included."""
    values = np.random.default_rng(0).normal(size=(20, 30))
    for writer, reader in (("mmap", "pmem"), ("pmem", "mmap")):
        with create_store(f"{writer}://{tmp_path}/{writer}", values) as written:
            region = written.region("log", 64)
            region.write(0, b"hello")
            region.persist(0, 5)
            region.close()
            with open_store(f"{reader}://{tmp_path}/{writer}") as read:
                assert read.traits.medium == reader
                assert read.layout.fingerprint == written.layout.fingerprint
                np.testing.assert_array_equal(read.matrix, written.matrix)
                region = read.region("log")
                assert region.read(0, 5) == b"hello"
                region.close()


def test_media_agree_bit_for_bit(tmp_path: Path) -> None:
    """Matrix, statistics and fingerprint do not depend on the medium."""
    values = np.random.default_rng(1).normal(size=(300, 20))
    stores = [create_store(url, values, replace=True) for url in ("dram:agree", f"mmap://{tmp_path}/m", f"pmem://{tmp_path}/p")]
    assert len({store.layout.fingerprint for store in stores}) == 1
    for field in ("mean", "norm", "minimum", "maximum"):
        assert len({getattr(store.statistics, field).tobytes() for store in stores}) == 1
    for store in stores:
        store.close()
    dram.MEDIUM.discard(StoreURL.parse("dram:agree"))


def test_emulation_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libpmem, or with it on a file system without DAX, the traits name the reason."""
    create_store(f"pmem://{tmp_path}/s", np.eye(3)).close()
    monkeypatch.setattr(libpmem, "load", lambda: None)
    with open_store(f"pmem://{tmp_path}/s") as store:
        assert "libpmem not found" in store.traits.detail
    monkeypatch.setattr(libpmem, "load", lambda: object())
    with open_store(f"pmem://{tmp_path}/s") as store:
        assert store.traits.emulated
        assert "has no DAX" in store.traits.detail


def test_real_persistent_memory_persists_through_libpmem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where MAP_SYNC is granted, persist flushes exactly the range asked for through libpmem, and emulation is not declared."""
    flushed = []

    class Recorder:
        def persist(self, mapping, offset, length):
            flushed.append((bytes(mapping[offset : offset + length]), offset))

    monkeypatch.setattr(libpmem, "load", Recorder)
    monkeypatch.setattr(libpmem, "MAP_SYNC_FLAGS", 1)  # MAP_SHARED: no kernel here grants the real flags
    with create_store(f"pmem://{tmp_path}/s", np.eye(3)) as store:
        assert (store.traits.emulated, store.traits.durability) == (False, "power")
        region = store.region("log", 100)
        region.write(10, b"word")
        region.persist(10, 4)
        region.close()
    assert flushed == [(b"word", 10)]


def test_libpmem_is_called_with_the_address_of_the_bytes() -> None:
    """The border hands pmem_persist the address and length of the range."""
    import ctypes
    import mmap

    calls = []

    class Library:
        @staticmethod
        def pmem_persist(address, length):
            calls.append((ctypes.string_at(address, length), length))

    memory = mmap.mmap(-1, 4096)
    memory[100:104] = b"here"
    libpmem.Libpmem(Library).persist(memory, 100, 4)
    assert calls == [(b"here", 4)]
    memory.close()


@pytest.mark.parametrize("module", [mmap_ssd, pmem])
def test_an_unknown_file_system_is_not_trusted_with_power(module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an unknown file system only the end of the process is declared to be survived."""
    monkeypatch.setattr(module, "file_system_type", lambda path: "unknown")
    with open(tmp_path / "file", "wb") as file:
        file.write(bytes(8192))
    with open(tmp_path / "file", "rb") as file:
        assert module._choose_access(file.fileno(), str(tmp_path)).traits.durability == "process"
