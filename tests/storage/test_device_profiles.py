"""Emulated persistent memory at the pace of a published device: same answer, the device's time, labelled as emulation."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.matrix.pacing import PROFILES, DeviceProfile, Pace
from storage_backends.media.pmem import MEDIUM


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a store with a tier."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 700)).astype(np.float32)
    folder = tmp_path_factory.mktemp("paced") / "store"
    fo.create_store(f"pmem://{folder}", X, X[:, 3] - X[:, 50] + rng.normal(size=300), tier="int8").close()
    return folder


def test_a_device_takes_at_least_its_own_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is at least the bytes read divided by the device's bandwidth; the answer does not change."""
    slow = DeviceProfile("a slow device", 4e6, 0.0)
    monkeypatch.setattr(MEDIUM, "_profiles", {"slow": slow})
    for tier in ("exact", "int8"):
        plain = fo.select(f"pmem://{place}", k=5, tier=tier)
        started = time.perf_counter()
        paced = fo.select(f"pmem://{place}?profile=slow", k=5, tier=tier)
        assert time.perf_counter() - started >= paced.bytes_read / slow.bytes_per_second
        assert paced.indices.tolist() == plain.indices.tolist()
        assert paced.column_coef.tolist() == plain.column_coef.tolist()
        assert paced.bytes_read == plain.bytes_read


def test_what_was_copied_into_memory_is_not_paced(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier in DRAM is swept at the speed of DRAM: only exact reads wait for the device."""
    monkeypatch.setattr(MEDIUM, "_profiles", {"slow": DeviceProfile("a slow device", 4e6, 0.0)})
    waited: list[int] = []
    monkeypatch.setattr(Pace, "wait", lambda self, size, places=1: waited.append(size))
    found = fo.select(f"pmem://{place}?profile=slow&tier=dram", k=5, tier="int8")
    assert sum(waited) == found.bytes_read_exact > 0


def test_the_emulation_is_named_and_kept_in_the_address(place: Path) -> None:
    """``info`` shows medium, profile and source; the address opens the store the same way again."""
    with fo.open_store(f"pmem://{place}?profile=optane") as store:
        assert store.traits.emulated
        assert PROFILES["optane"].description in store.traits.detail
        with fo.open_store(store.url) as again:
            assert again.traits == store.traits


def test_unknown_profiles_and_media_without_any_are_refused(place: Path) -> None:
    """An unknown profile is refused in one sentence that lists the known ones."""
    with pytest.raises(fo.StoreURLError, match=r"'floppy'.*optane"):
        fo.open_store(f"pmem://{place}?profile=floppy")
    with pytest.raises(fo.StoreURLError, match="mmap takes none"):
        fo.open_store(f"mmap://{place}?profile=optane")


def test_threads_share_one_device() -> None:
    """Two reads asked for at once take as long as both one after the other."""
    pace = Pace(DeviceProfile("", 1e6, 0.001))
    started = time.perf_counter()
    pace.wait(10_000, 3)
    pace.wait(10_000, 3)
    assert time.perf_counter() - started >= 2 * (0.01 + 0.003)
