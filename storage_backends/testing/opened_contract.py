"""The part of the contract of media that holds for every opened store, also of media that build none, as a test suite to inherit.

Subclass ``OpenedContract`` in a test module, set its attributes, and implement ``make_url`` and ``create``. Needs pytest.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import InputError, StoreError, StoreURLError
from fastomp_nvm.stores.contract import Durability, FeatureStore
from fastomp_nvm.stores.media import medium_of
from fastomp_nvm.stores.open import open_store
from fastomp_nvm.stores.url import StoreURL

__all__ = ["OpenedContract"]


class OpenedContract:
    """The suite.

    Attributes
    ----------
    medium : str
        Name that the medium declares.
    durability : {"none", "process", "power"}
        Durability that it must declare where it is tested.
    emulated : bool
        Whether it must declare itself emulated on this machine.
    """

    medium: str
    durability: Durability
    emulated: bool = False

    def make_url(self, directory: Path) -> str:
        """Return the address of a store that does not exist yet, below ``directory`` if the medium has files."""
        raise NotImplementedError

    def create(self, url: str, values: AnyArray, y: AnyArray | None = None) -> FeatureStore:
        """Make a store of ``values`` (n_obs, n_columns) with the target ``y`` at ``url`` and open it."""
        raise NotImplementedError

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """Directory for the stores of one test."""
        return tmp_path

    @pytest.fixture
    def url(self, place: Path) -> str:
        """Address of a store that does not exist yet."""
        return self.make_url(place)

    @pytest.fixture
    def values(self) -> AnyArray:
        """(40, 600) observations by columns: three blocks."""
        return np.random.default_rng(7).normal(size=(40, 600))

    def test_sidecars_cannot_be_written(self, url: str, values: AnyArray) -> None:
        """Statistics, grouping and targets are read-only arrays."""
        with self.create(url, values, values[:, 0]) as store:
            arrays = (
                store.layout.offsets,
                store.layout.blocks,
                store.statistics.mean,
                *(target.values for target in store.targets.values()),
            )
            assert not any(array.flags.writeable for array in arrays)

    def test_the_url_of_a_store_opens_it_again(self, url: str, values: AnyArray, monkeypatch: pytest.MonkeyPatch) -> None:
        """``store.url`` leads to the same store from any working directory."""
        with self.create(url, values) as store:
            monkeypatch.chdir("/")
            with open_store(store.url) as again:
                assert again.layout.fingerprint == store.layout.fingerprint
                assert again.url == store.url

    def test_a_missing_store_is_reported(self, url: str) -> None:
        """Opening a store that does not exist is the caller's error."""
        with pytest.raises(StoreURLError, match="no store"):
            open_store(url)

    def test_traits_are_declared_truthfully(self, url: str, values: AnyArray) -> None:
        """The medium declares its name, durability and emulation truthfully."""
        with self.create(url, values) as store:
            traits = store.traits
            assert (traits.medium, traits.durability, traits.emulated) == (self.medium, self.durability, self.emulated)
            assert traits.detail

    def test_a_store_is_not_pickled(self, url: str, values: AnyArray) -> None:
        """The matrix is never copied by pickling."""
        with self.create(url, values) as store, pytest.raises(StoreError, match="url"):
            pickle.dumps(store)

    def test_views_outlive_the_store(self, url: str, values: AnyArray) -> None:
        """Closing while views are alive is harmless; using the closed store is an error; closing twice is harmless."""
        store = self.create(url, values)
        view = store.matrix[5]
        store.close()
        store.close()
        np.testing.assert_array_equal(view, values[:, 5].astype("float32"))
        with pytest.raises(StoreError, match="closed"):
            _ = store.matrix
        with pytest.raises(StoreError, match="closed"):
            store.region("late", 8)

    def test_regions_keep_their_content(self, url: str, values: AnyArray) -> None:
        """A region starts as zeros, keeps written and persisted bytes, and is found again by name."""
        with self.create(url, values) as store:
            assert list(store.regions()) == []
            region = store.region("run-1.log", 10_000)
            assert region.size == 10_000
            assert region.read(0, 10_000) == bytes(10_000)
            region.write(5_000, b"durable")
            region.persist(5_000, 7)
            region.persist(0, 0)
            region.close()
            assert list(store.regions()) == ["run-1.log"]
        with open_store(url) as store:
            region = store.region("run-1.log")
            assert (region.size, region.read(4_999, 9)) == (10_000, b"\0durable\0")
            region.close()
            with pytest.raises(StoreError, match="closed"):
                region.read(0, 1)
            store.drop_region("run-1.log")
            assert list(store.regions()) == []

    def test_started_ranges_are_persisted(self, url: str, values: AnyArray) -> None:
        """``start`` is harmless before, twice, and without ``persist``; later writes are persisted as well."""
        with self.create(url, values) as store:
            region = store.region("log", 3 * 4096)
            for number in range(1, 4):
                region.write(4096, bytes([number]) * 8)
                region.start(4096, 8)
                assert region.read(4096, 8) == bytes([number]) * 8
                if number == 2:
                    region.start(4096, 8)
                region.write(8192, bytes([number]) * 4)
                region.persist(4096, 4100)
            region.persist(0, 0)
            with pytest.raises(InputError, match="outside"):
                region.persist(0, 3 * 4096 + 1)
            region.start(0, 8192)
            region.close()
        with open_store(url) as store:
            region = store.region("log")
            assert (region.read(4096, 8), region.read(8192, 4)) == (bytes([3]) * 8, bytes([3]) * 4)
            region.close()

    def test_two_openings_share_a_region(self, url: str, values: AnyArray) -> None:
        """Bytes written through one handle of a region are read through the other."""
        with self.create(url, values) as store, open_store(url) as other:
            writer, reader = store.region("shared", 64), other.region("shared", 64)
            writer.write(8, b"seen")
            assert reader.read(8, 4) == b"seen"
            writer.close()
            reader.close()

    def test_regions_refuse_ranges_outside(self, url: str, values: AnyArray) -> None:
        """Out of bounds, absent, wrongly sized and wrongly named regions are refused with a sentence."""
        with self.create(url, values) as store:
            region = store.region("small", 16)
            for offset, length in ((0, 17), (16, 1), (-1, 1), (3, -1)):
                with pytest.raises(InputError, match="outside"):
                    region.read(offset, length)
                with pytest.raises(InputError, match="outside"):
                    region.persist(offset, length)
            with pytest.raises(InputError, match="outside"):
                region.write(10, b"too long")
            region.close()
            with pytest.raises(StoreError, match="16 bytes and should have 32"):
                store.region("small", 32)
            with pytest.raises(StoreURLError, match="no region"):
                store.region("absent")
            with pytest.raises(StoreURLError, match="no region"):
                store.drop_region("absent")
            with pytest.raises(InputError):
                store.region("negative", -1)
            for name in ("", ".hidden", "a/b", "..", "-dash", "x" * 101, "line\n", "null\0"):
                with pytest.raises(StoreURLError, match="region name"):
                    store.region(name, 8)

    def test_verify_accepts_a_sound_store(self, url: str, values: AnyArray) -> None:
        """A store just built is sound, also when it is opened again."""
        with self.create(url, values) as store, open_store(url) as again:
            store.verify()
            again.verify()

    @staticmethod
    def _exists(url: str) -> bool:
        """Return whether a store exists at ``url``."""
        parsed = StoreURL.parse(url)
        return medium_of(parsed).exists(parsed)
