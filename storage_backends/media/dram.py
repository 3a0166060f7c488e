"""The ``dram`` medium: named stores in the memory of this process.

As on file media, a store is private until committed, replaced atomically and read-only afterwards.
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
from fastomp_nvm.matrix.memory import fillable_memory
from fastomp_nvm.matrix.threads import hold_at_fork
from fastomp_nvm.stores.contract import DurableRegion, FeatureStore, MediumTraits, Sidecars, StoreDraft
from fastomp_nvm.stores.url import StoreURL
from storage_backends.files.durable import describe_bytes
from storage_backends.opened import ArrayRegion, OpenedStore, already_exists, check_commit, refuse_extras

__all__ = ["MEDIUM", "DramDraft", "DramMedium", "DramStore"]

_TRAITS = MediumTraits("dram", "none", False, "anonymous memory of this process")


@dataclass(frozen=True, slots=True)
class _Content:
    """Content of one store."""

    matrix: AnyArray
    sidecars: Sidecars
    codes: AnyArray | None
    regions: dict[str, AnyArray] = field(default_factory=dict)


class DramMedium:
    """The stores of this process, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        hold_at_fork(self._lock)
        self._stores: dict[str, _Content] = {}

    def open(self, url: StoreURL) -> FeatureStore:
        """Open the store of this name."""
        refuse_extras(url)
        with self._lock:
            content = self._stores.get(url.path)
        if content is None:
            raise StoreURLError(
                f"there is no store {url.text!r} in this process: one in memory ends with its process; use one in a file"
            )
        return DramStore(f"dram:{urllib.parse.quote(url.path)}", content)

    def draft(self, url: StoreURL, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none") -> StoreDraft:
        """Start a store in memory."""
        self._check_free(url, replace=replace)
        return DramDraft(self, url, (n_columns, n_obs, dtype), replace=replace, tier=tier)

    def exists(self, url: StoreURL) -> bool:
        """Return whether a store of this name exists."""
        refuse_extras(url)
        return url.path in self._stores

    def discard(self, url: StoreURL) -> None:
        """Remove the store of this name; its memory is freed with its last view."""
        with self._lock:
            if self._stores.pop(url.path, None) is None:
                raise StoreURLError(f"there is no store {url.text!r} in this process to discard")

    def publish(self, url: StoreURL, content: _Content, *, replace: bool) -> None:
        """Make a committed draft visible."""
        with self._lock:
            self._check_free(url, replace=replace)
            self._stores[url.path] = content

    def _check_free(self, url: StoreURL, *, replace: bool) -> None:
        """Raise ``StoreURLError`` when the name is in use and not to be replaced."""
        if self.exists(url) and not replace:
            raise already_exists(url.text)


class DramStore(OpenedStore):
    """A store in memory.

    Parameters
    ----------
    url : str
    content : _Content
        Shared by all stores opened under this name.
    """

    _unchecked = "it is in the memory of this process"

    def __init__(self, url: str, content: _Content) -> None:
        super().__init__(url, _TRAITS, content.matrix, content.sidecars, content.codes)
        self._regions = content.regions

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open the region ``name``; create it with ``size`` bytes when it is absent.

        Raises ``StoreURLError`` when it is absent and ``size`` is 0, ``StoreError`` when its size is not ``size``.
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
    """A store being built in anonymous memory, page-aligned and in huge pages where the kernel has them.

    Parameters
    ----------
    medium : DramMedium
    url : StoreURL
    shape : (n_columns, n_obs, dtype)
    replace : bool
        Replace an existing store.
    tier : {"int8", "none"}
    """

    def __init__(self, medium: DramMedium, url: StoreURL, shape: tuple[int, int, str], *, replace: bool, tier: str) -> None:
        self._medium, self._url, self._shape, self._replace = medium, url, shape, replace
        self._dtype = np.dtype(shape[2])
        cells = shape[0] * shape[1]
        length = cells * (self._dtype.itemsize + (tier != "none"))
        available = fillable_memory()
        if length > available:
            free = describe_bytes(int(available))
            raise MediumError(f"{url.text} needs {describe_bytes(length)}, has {free} free: use mmap:///path")
        try:
            self._memory: mmap.mmap | None = _anonymous(cells * self._dtype.itemsize)
            self._codes = _anonymous(cells) if tier != "none" else None
        except (OSError, OverflowError) as error:
            raise MediumError(f"{url.text} needs {describe_bytes(length)}, which the system refuses: use mmap:///path") from error

    @property
    def matrix(self) -> AnyArray:
        """Writable (n_columns, n_obs) array in memory."""
        return np.frombuffer(self._open_memory(), self._dtype).reshape(self._shape[:2])

    @property
    def tier(self) -> AnyArray | None:
        """Writable (n_columns, n_obs) int8 array in memory, if there is a tier."""
        return None if self._codes is None else np.frombuffer(self._codes, np.int8).reshape(self._shape[:2])

    def forget(self, first: int, last: int) -> None:
        """Do nothing: the store is in memory."""

    def commit(self, sidecars: Sidecars) -> None:
        """Make the store visible, atomically."""
        matrix_memory = self._open_memory()
        check_commit(self._url.text, self._shape, sidecars)
        shape = (sidecars.layout.n_columns, sidecars.layout.n_obs)
        matrix = _sealed(matrix_memory, self._dtype, shape)
        codes = None if self._codes is None else _sealed(self._codes, np.dtype(np.int8), shape)
        self._medium.publish(self._url, _Content(matrix, sidecars, codes), replace=self._replace)
        self._memory = self._codes = None

    def abort(self) -> None:
        """Release the memory. Harmless after ``commit``."""
        self._memory = self._codes = None

    def _open_memory(self) -> mmap.mmap:
        """Return the memory of the matrix; raise when the draft was committed or aborted."""
        if self._memory is None:
            raise StoreError(f"the draft of {self._url.text} was committed or aborted")
        return self._memory


def _anonymous(length: int) -> mmap.mmap:
    """Return anonymous memory, in huge pages where possible."""
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and length >= 1 << 21:
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _sealed(memory: mmap.mmap, dtype: np.dtype[Any], shape: tuple[int, int]) -> AnyArray:
    """Return the first rows of ``memory`` as a read-only matrix; release the memory behind them."""
    count = shape[0] * shape[1]
    end = -(-count * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    if end < len(memory):  # features were dropped
        memory.madvise(mmap.MADV_DONTNEED, end)
    # Over a read-only buffer: flags.writeable of a plain view could be set again.
    return np.frombuffer(memoryview(memory).toreadonly(), dtype, count).reshape(shape)


MEDIUM = DramMedium()
