"""The part of an opened store, and of its durable regions, that does not depend on the medium.

A medium passes in the matrix, the sidecars and its traits, and adds regions and ``close``. Its arrays are read-only.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray, UInt32Array
from fastomp_nvm.durable_files import is_name
from fastomp_nvm.errors import InputError, StoreError, StoreURLError
from fastomp_nvm.matrix.checksum import Seal, crc32_joined, row_checksums
from fastomp_nvm.matrix.memory import refuse_beyond_memory
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.reader import rows_of
from fastomp_nvm.matrix.rows import Rows
from fastomp_nvm.matrix.tier import Tier
from fastomp_nvm.stores.contract import DurableRegion, FeatureStore, MediumTraits, Sidecars, StoreLayout, Target
from fastomp_nvm.stores.encoding import TableEncoding
from fastomp_nvm.stores.url import StoreURL

__all__ = ["ArrayRegion", "OpenedStore", "already_exists", "check_commit", "check_range", "check_region_name", "refuse_extras"]


#: Bytes of columns that ``verify`` reads at a time, at least one column.
_VERIFIED_BYTES = 8 << 20


class OpenedStore(FeatureStore):
    """A store whose sidecars are in memory and whose matrix is a view of the medium.

    Parameters
    ----------
    url : str
        Address that opens the store again, from any working directory.
    traits : MediumTraits
    matrix : (n_columns, n_obs) array or Rows
        Read-only, not owning its data.
    sidecars : Sidecars
        Their arrays are made read-only here.
    codes : (n_columns, n_obs) int8 array or Rows, optional
        Of the tier, read-only.

    Attributes
    ----------
    sidecars : Sidecars
    provenance : mapping
        Where the data came from, as given to the builder.
    """

    # Slots are names of the class, so they override the abstract properties of the contract; plain instance attributes would not.
    __slots__ = (
        *("column_names", "encoding", "ids", "layout", "names", "provenance", "sidecars"),
        *("statistics", "targets", "tier", "traits", "url"),
    )
    url: str
    traits: MediumTraits
    sidecars: Sidecars
    layout: StoreLayout
    statistics: ColumnStatistics
    tier: Tier | None
    names: Sequence[str]
    column_names: Sequence[str]
    targets: Mapping[str, Target]
    encoding: TableEncoding | None
    ids: Sequence[str] | None
    provenance: Mapping[str, Any]

    #: Why columns of this medium are not compared with checksums; empty where they are, when they are first read.
    _unchecked = ""

    def __init__(
        self, url: str, traits: MediumTraits, matrix: AnyArray | Rows, sidecars: Sidecars, codes: AnyArray | Rows | None = None
    ) -> None:
        self.url, self.traits, self.sidecars = url, traits, sidecars
        self._matrix: AnyArray | Rows | None = matrix
        self.layout, self.statistics, self.provenance = sidecars.layout, sidecars.statistics, sidecars.provenance
        self.names, self.column_names = sidecars.names, sidecars.column_names
        self.targets = MappingProxyType(dict(sidecars.targets))
        self.encoding, self.ids = sidecars.encoding, sidecars.ids
        self.tier = None
        self._tier_loaded = False
        layout, statistics, kept = sidecars.layout, sidecars.statistics, sidecars.tier
        arrays = [layout.offsets, layout.blocks, sidecars.checksums, *statistics.grams]
        arrays += [statistics.mean, statistics.norm, statistics.minimum, statistics.maximum]
        for target in sidecars.targets.values():
            arrays.append(target.values)
        if kept is not None and codes is not None:
            arrays += [kept.scale, kept.error, kept.norm, kept.checksums]
            self.tier = Tier(codes, statistics.mean, kept.scale, kept.error, kept.norm)
        self._seals: list[Seal | None] = [None, None]
        if not self.unchecked:
            sums = sidecars.column_checksums, None if kept is None else kept.column_checksums
            self._seals = [
                None if each is None else Seal(each, functools.partial(_damaged, url, self.column_names, tier=bool(tier)))
                for tier, each in enumerate(sums)
            ]
        for array in arrays:
            array.flags.writeable = False

    @property
    def matrix(self) -> AnyArray:
        """(n_columns, n_obs) read-only view of the medium; ``Rows``, indexed alike, where the medium has no single array."""
        if self._matrix is None:
            raise StoreError(f"the store {self.url} is closed: open it again")
        return self._matrix  # type: ignore[return-value]

    @property
    def seals(self) -> tuple[Seal | None, Seal | None]:
        """Checksums of the columns of ``matrix`` and of ``tier``."""
        matrix, tier = self._seals
        return matrix, None if self._tier_loaded else tier

    @property
    def unchecked(self) -> str:
        """Why columns are not compared with checksums when they are read; empty where they are."""
        if self._unchecked or self.sidecars.column_checksums is not None:
            return self._unchecked
        return "an older release wrote it, without a checksum per column: 'fastomp verify STORE --add-checksums' adds them"

    def load_tier(self) -> None:
        """Copy the tier into memory, compare it with its checksums, and use the copy from then on."""
        tier, kept = self.tier, self.sidecars.tier
        if tier is None or kept is None:
            super().load_tier()
            return
        refuse_beyond_memory(tier.codes.nbytes, "a copy of the tier", "leave --tier-load out")
        codes = rows_of(tier.codes, self.files(), seal=self.seals[1]).in_memory()[:]
        if self._seals[1] is None:
            self._compare_blocks(row_checksums(codes), kept.checksums, tier=True)
        self.tier, self._tier_loaded = dataclasses.replace(tier, codes=codes), True

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Recompute all checksums, the tier's too; raise ``StoreError`` naming the first column, or block, that differs."""
        self._verified(progress)

    def _verified(self, progress: Callable[[int, int], None] | None) -> list[UInt32Array]:
        """Verify; return the checksum of each column of the matrix and, where there is one, of the tier."""
        layout, kept = self.layout, self.sidecars.tier
        sums = [(self.sidecars.checksums, self.sidecars.column_checksums, layout.n_obs * np.dtype(layout.dtype).itemsize)]
        if kept is not None:
            sums.append((kept.checksums, kept.column_checksums, layout.n_obs))
        done, total = 0, layout.n_columns * sum(width for *_, width in sums)
        verified = []
        for tier, (blocks, columns, width) in zip((False, True), sums, strict=False):
            found = np.empty(layout.n_columns, dtype=np.uint32)
            step = max(_VERIFIED_BYTES // width, 1)
            for first in range(0, layout.n_columns, step):
                here = slice(first, min(first + step, layout.n_columns))
                found[here] = row_checksums(self._columns(here.start, here.stop, tier=tier))
                if columns is not None and (found[here] != columns[here]).any():
                    raise _damaged(self.url, self.column_names, first + int(np.argmax(found[here] != columns[here])), tier=tier)
                done += (here.stop - first) * width
                if progress is not None:
                    progress(done, total)
            self._compare_blocks(found, blocks, tier=tier)
            seal = self._seals[tier]
            if seal is not None:
                seal.accept(np.ones(layout.n_columns, dtype=np.bool_))
            verified.append(found)
        return verified

    def close(self) -> None:
        """Release matrix and tier; existing views keep their memory alive."""
        self._matrix = self.tier = None

    def _columns(self, first: int, last: int, *, tier: bool) -> AnyArray:
        """Return columns ``first:last`` of the matrix or of the tier's codes, as the medium holds them now."""
        return self.tier.codes[first:last] if tier and self.tier is not None else self.matrix[first:last]

    def _compare_blocks(self, columns: UInt32Array, expected: IndexArray, *, tier: bool) -> None:
        """Compare the checksums that those of the columns make up with those of the blocks; raise where one differs."""
        width = self.layout.n_obs * (1 if tier else np.dtype(self.layout.dtype).itemsize)
        wrong = np.flatnonzero(crc32_joined(columns, self.layout.blocks, width) != expected)
        if wrong.size:
            block, what = int(wrong[0]), " of the int8 tier" if tier else ""
            first, last = self.layout.blocks[block : block + 2].tolist()
            raise StoreError(
                f"the store {self.url} is damaged: block {block}{what} (columns {first} to {last - 1}) does not match its "
                "checksum; build the store again"
            )

    def _check_region(self, name: str, size: int, found: int | None) -> None:
        """Check a request for ``size`` bytes (0: an existing region of any size) against the region's size (None: absent)."""
        check_region_name(name)
        _ = self.matrix  # raises when the store is closed
        if size < 0:
            raise InputError(f"a region of {size} bytes was requested: its size must be positive")
        if found is None and not size:
            raise StoreURLError(f"the store {self.url} has no region {name!r}: give a size to create it")
        if found is not None and size not in (0, found):
            raise StoreError(f"region {name!r} of {self.url} has {found} bytes and should have {size}")

    def __reduce__(self) -> NoReturn:
        # The matrix must never be copied by accident, for example to a worker process.
        raise StoreError(f"the store {self.url} cannot be pickled: send its url and open it there")


class ArrayRegion(DurableRegion):
    """A durable region whose bytes need no flush to survive what its medium declares.

    Parameters
    ----------
    name : str
    array : (size,) uint8
        Writable; shared by all regions opened under this name.
    """

    def __init__(self, name: str, array: AnyArray) -> None:
        self._name = name
        self._array: AnyArray | None = array
        self._size = len(array)

    @property
    def size(self) -> int:
        """Bytes in the region."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``."""
        return self._bytes(offset, length).tobytes()

    def write(self, offset: int, data: bytes) -> None:
        """Store ``data`` at ``offset``."""
        self._bytes(offset, len(data))[:] = np.frombuffer(data, dtype=np.uint8)

    def persist(self, offset: int, length: int) -> None:
        """Check the range; there is nothing to flush."""
        self._bytes(offset, length)

    def close(self) -> None:
        """Release the array."""
        self._array = None

    def _bytes(self, offset: int, length: int) -> AnyArray:
        """Return ``length`` bytes from ``offset``, unless the region is closed or has no such range."""
        if self._array is None:
            raise StoreError(f"region {self._name!r} is closed: open it again")
        check_range(self._name, self._size, offset, length)
        return self._array[offset : offset + length]


def _damaged(url: str, names: Sequence[str], column: int, *, tier: bool) -> StoreError:
    """Return the error that names a column which does not match its checksum."""
    what = " of the int8 tier" if tier else ""
    return StoreError(
        f"the store {url} is damaged: column {column}{what} ({names[column]!r}) does not match its checksum; build the store again"
    )


def check_region_name(name: str) -> None:
    """Raise ``StoreURLError`` unless ``name`` is safe as a file name."""
    if not is_name(name):
        raise StoreURLError(
            f"{name!r} is not a region name: expected up to 100 letters, digits, '_', '-' and '.', not starting with '.'"
        )


def check_range(name: str, size: int, offset: int, length: int) -> None:
    """Raise ``InputError`` unless the bytes lie inside the region."""
    if offset < 0 or length < 0 or offset + length > size:
        raise InputError(f"bytes {offset} to {offset + length} lie outside region {name!r} of {size} bytes")


def already_exists(place: str) -> StoreURLError:
    """Return the error for a place or name that has a store."""
    return StoreURLError(f"there is a store at {place} already: choose another place or ask to replace it (--replace)")


def check_commit(place: str, allocated: tuple[int, int, str], sidecars: Sidecars) -> None:
    """Refuse sidecars that do not fit a draft of ``allocated`` columns, observations and element type; columns may be fewer."""
    layout = sidecars.layout
    shape = (layout.n_columns, layout.n_obs, layout.dtype)
    if shape[0] > allocated[0] or shape[1:] != allocated[1:]:
        raise StoreError(f"the draft of {place} has shape {allocated} and cannot be committed as {shape}")


def refuse_extras(url: StoreURL) -> None:
    """Raise ``StoreURLError`` when a URL has a query parameter or a fragment."""
    for parameter in url.query:
        raise StoreURLError(f"unknown parameter {parameter!r} in {url.text!r}: {url.scheme} takes none")
    if url.fragment:
        raise StoreURLError(f"{url.text!r} ends in a fragment and {url.scheme} takes none: write '#' in a path as %23")
