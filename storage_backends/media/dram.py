"""The ``dram`` medium: stores in this process's memory, found by name, gone with the process.

It keeps the same promises as the file media (private until committed, replaced at once, read-only afterwards), so that the medium
never changes an answer.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import MediumError, StoreError, StoreURLError
from fastomp_nvm.stores.contract import DurableRegion, FeatureStore, MediumTraits, Sidecars, StoreDraft
from fastomp_nvm.stores.url import StoreURL
from storage_backends.files.durable import describe_bytes
from storage_backends.opened import ArrayRegion, OpenedStore, refuse_extras

__all__ = ["MEDIUM", "DramDraft", "DramMedium", "DramStore"]

_TRAITS = MediumTraits("dram", "none", False, "anonymous memory of this process")


@dataclass(frozen=True, slots=True)
class _Content:
    """What the registry keeps of one store."""

    matrix: AnyArray
    sidecars: Sidecars
    codes: AnyArray | None
    regions: dict[str, AnyArray] = field(default_factory=dict)


class DramMedium:
    """Stores of this process by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[str, _Content] = {}

    def open(self, url: StoreURL) -> FeatureStore:
        """Open the store of this name."""
        refuse_extras(url)
        with self._lock:
            content = self._stores.get(url.path)
        if content is None:
            raise StoreURLError(f"there is no store {url.text!r} in this process: create it first, or load one from a file")
        return DramStore(f"dram:{urllib.parse.quote(url.path)}", content)

    def draft(self, url: StoreURL, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none") -> StoreDraft:
        """Start a store in memory."""
        self._check_free(url, replace=replace)
        return DramDraft(self, url, n_columns, n_obs, dtype, replace=replace, tier=tier)

    def exists(self, url: StoreURL) -> bool:
        """Tell whether a store of this name exists."""
        refuse_extras(url)
        return url.path in self._stores

    def discard(self, url: StoreURL) -> None:
        """Forget the store of this name; its memory is free once no view of it is left."""
        with self._lock:
            if self._stores.pop(url.path, None) is None:
                raise StoreURLError(f"there is no store {url.text!r} in this process to discard")

    def publish(self, url: StoreURL, content: _Content, *, replace: bool) -> None:
        """Make a committed draft visible."""
        with self._lock:
            self._check_free(url, replace=replace)
            self._stores[url.path] = content

    def _check_free(self, url: StoreURL, *, replace: bool) -> None:
        """Refuse a name that is taken."""
        if self.exists(url) and not replace:
            raise StoreURLError(f"a store stands at {url.text!r}: choose another name or ask to replace it (--replace)")


class DramStore(OpenedStore):
    """A store in memory.

    Parameters
    ----------
    url : str
    content : _Content
        Shared by all who opened the store, and alive as long as one of them.
    """

    _seals_tier = False  # nothing happens to it between being built and being swept

    def __init__(self, url: str, content: _Content) -> None:
        super().__init__(url, _TRAITS, content.matrix, content.sidecars, content.codes)
        self._regions = content.regions

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open the region ``name``; create it with ``size`` bytes when it is absent.

        Raises ``StoreURLError`` when it is absent and ``size`` is 0, ``StoreError`` when it has another size than asked for.
        """
        found = self._regions.get(name)
        self._check_region(name, size, None if found is None else len(found))
        return ArrayRegion(name, self._regions.setdefault(name, np.zeros(size, np.uint8)))

    def regions(self) -> Sequence[str]:
        """Names of the regions that exist, in order."""
        _ = self.matrix  # raises when the store is closed
        return tuple(sorted(self._regions))

    def drop_region(self, name: str) -> None:
        """Remove a region."""
        found = self._regions.get(name)
        self._check_region(name, 0, None if found is None else len(found))
        self._regions.pop(name, None)


class DramDraft(StoreDraft):
    """A store being built in anonymous memory, which is page-aligned and takes huge pages where the kernel has them.

    Parameters
    ----------
    medium : DramMedium
    url : StoreURL
    n_columns, n_obs : int
    dtype : str
    replace : bool
        Take the place of a store of this name.
    tier : {"int8", "none"}
    """

    def __init__(
        self, medium: DramMedium, url: StoreURL, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none"
    ) -> None:
        self._medium = medium
        self._url = url
        self._shape = (n_columns, n_obs)
        self._dtype = np.dtype(dtype)
        self._replace = replace
        cells = n_columns * n_obs
        length = cells * (self._dtype.itemsize + (tier != "none"))
        available = _available_memory()
        if available is not None and length > available:
            raise MediumError(f"{url.text} needs {describe_bytes(length)}, has {describe_bytes(available)} free: use mmap:///path")
        try:
            self._memory: mmap.mmap | None = _anonymous(cells * self._dtype.itemsize)
            self._codes = _anonymous(cells) if tier != "none" else None
        except (OSError, OverflowError) as error:
            raise MediumError(f"{url.text} needs {describe_bytes(length)}, which the system refuses: use mmap:///path") from error

    @property
    def matrix(self) -> AnyArray:
        """Writable (n_columns, n_obs) array in memory."""
        return np.frombuffer(self._alive(), self._dtype).reshape(self._shape)

    @property
    def tier(self) -> AnyArray | None:
        """Writable (n_columns, n_obs) int8 array in memory, where a tier was asked for."""
        return None if self._codes is None else np.frombuffer(self._codes, np.int8).reshape(self._shape)

    def forget(self, first: int, last: int) -> None:
        """Keep everything: memory is where this store lives."""

    def commit(self, sidecars: Sidecars) -> None:
        """Make the store visible at once."""
        layout, memory = sidecars.layout, self._alive()
        if layout.n_columns > self._shape[0] or layout.n_obs != self._shape[1] or layout.dtype != self._dtype.name:
            raise StoreError(f"the draft of {self._url.text} has shape {self._shape} and cannot be committed as {layout}")
        shape = (layout.n_columns, layout.n_obs)
        matrix = _sealed(memory, self._dtype, shape)
        codes = None if self._codes is None else _sealed(self._codes, np.dtype(np.int8), shape)
        self._medium.publish(self._url, _Content(matrix, sidecars, codes), replace=self._replace)
        self._memory = self._codes = None

    def abort(self) -> None:
        """Give the memory back. Harmless after ``commit``."""
        self._memory = self._codes = None

    def _alive(self) -> mmap.mmap:
        """Return the memory, unless the draft is over."""
        if self._memory is None:
            raise StoreError(f"the draft of {self._url.text} was committed or aborted")
        return self._memory


def _anonymous(length: int) -> mmap.mmap:
    """Return memory of this process, in huge pages where that is possible."""
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and length >= 1 << 21:
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _sealed(memory: mmap.mmap, dtype: np.dtype[Any], shape: tuple[int, int]) -> AnyArray:
    """Return the first rows of ``memory`` as a read-only matrix; what lies behind them is given back."""
    count = shape[0] * shape[1]
    end = -(-count * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    if end < len(memory):  # dropped columns give their memory back
        memory.madvise(mmap.MADV_DONTNEED, end)
    # Through a read-only buffer: of a plain view anyone could set flags.writeable again.
    return np.frombuffer(memoryview(memory).toreadonly(), dtype, count).reshape(shape)


def _available_memory() -> int | None:
    """Return the bytes the kernel could hand out without swapping, or None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


MEDIUM = DramMedium()
