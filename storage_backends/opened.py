"""An opened store minus its medium: the part of ``FeatureStore`` that every medium implements alike.

A medium hands over the matrix, the sidecars and its traits, and adds regions and ``close``. Everything handed out is read-only.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import is_name
from fastomp_nvm.errors import InputError, StoreError, StoreURLError
from fastomp_nvm.matrix.checksum import QUICK, Seal, crc32
from fastomp_nvm.matrix.memory import refuse_beyond_memory
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.reader import rows_of
from fastomp_nvm.matrix.rows import Rows
from fastomp_nvm.matrix.tier import Tier, TierSidecar
from fastomp_nvm.stores.contract import FeatureStore, MediumTraits, Sidecars, StoreLayout, Target
from fastomp_nvm.stores.url import StoreURL

__all__ = ["OpenedStore", "check_range", "check_region_name", "refuse_extras"]

_OF_TIER = " of the int8 tier"


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
    """

    #: Whether the first sweep of the tier compares it with its checksums, which opening it does not: where that costs nothing.
    _seals_tier = QUICK

    def __init__(
        self, url: str, traits: MediumTraits, matrix: AnyArray | Rows, sidecars: Sidecars, codes: AnyArray | Rows | None = None
    ) -> None:
        self._url = url
        self._traits = traits
        self._matrix: AnyArray | Rows | None = matrix
        self._sidecars = sidecars
        layout, statistics = sidecars.layout, sidecars.statistics
        for array in (layout.offsets, layout.blocks, sidecars.checksums, *(target.values for target in sidecars.targets.values())):
            array.flags.writeable = False
        for array in (statistics.mean, statistics.norm, statistics.minimum, statistics.maximum, *statistics.grams):
            array.flags.writeable = False
        self._targets = MappingProxyType(dict(sidecars.targets))
        self._tier: Tier | None = None
        if sidecars.tier is not None and codes is not None:
            kept = sidecars.tier
            for array in (kept.scale, kept.error, kept.norm, kept.checksums):
                array.flags.writeable = False
            seal = self._seal(kept) if self._seals_tier else None
            self._tier = Tier(codes, statistics.mean, kept.scale, kept.error, kept.norm, seal)

    @property
    def url(self) -> str:
        """Address that opens this store again."""
        return self._url

    @property
    def traits(self) -> MediumTraits:
        """What the medium can do."""
        return self._traits

    @property
    def layout(self) -> StoreLayout:
        """Shape and grouping."""
        return self._sidecars.layout

    @property
    def matrix(self) -> AnyArray:
        """(n_columns, n_obs) read-only view of the medium; ``Rows``, indexed alike, where the medium has no single array."""
        if self._matrix is None:
            raise StoreError(f"the store {self._url} is closed: open it again")
        return self._matrix  # type: ignore[return-value]

    @property
    def statistics(self) -> ColumnStatistics:
        """Moments of each column."""
        return self._sidecars.statistics

    @property
    def tier(self) -> Tier | None:
        """The int8 tier, where the store has one."""
        return self._tier

    def load_tier(self) -> None:
        """Copy the tier into memory, checked against its checksums, and hand it out from there."""
        if self._tier is None or self._sidecars.tier is None:
            super().load_tier()
            return
        refuse_beyond_memory(self._tier.codes.nbytes, "a copy of the tier", "leave --tier-load out")
        seal = self._seal(self._sidecars.tier)
        codes = rows_of(self._tier.codes, self.files()).in_memory(seal)
        self._tier = dataclasses.replace(self._tier, codes=codes[:], seal=None)

    @property
    def names(self) -> Sequence[str]:
        """Feature names."""
        return self._sidecars.names

    @property
    def column_names(self) -> Sequence[str]:
        """Column names."""
        return self._sidecars.column_names

    @property
    def targets(self) -> Mapping[str, Target]:
        """Responses kept with the store, by name."""
        return self._targets

    @property
    def sidecars(self) -> Sidecars:
        """Everything but the matrix; arrays are read-only."""
        return self._sidecars

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Where the data came from, as the builder was told."""
        return self._sidecars.provenance

    def verify(self) -> None:
        """Recompute every block's checksum, the tier's too; raise ``StoreError`` naming the first block that differs."""
        blocks, tier = self.layout.blocks, self._sidecars.tier
        for block, expected in enumerate(self._sidecars.checksums):
            if self._checksum(int(blocks[block]), int(blocks[block + 1])) != expected:
                raise _damaged(self._url, self.layout, block)
        for block, expected in enumerate(tier.checksums if tier is not None else ()):
            if self._tier_checksum(int(blocks[block]), int(blocks[block + 1])) != expected:
                raise _damaged(self._url, self.layout, block, _OF_TIER)
        if self._tier is not None and self._tier.seal is not None:
            self._tier.seal.intact = True

    def close(self) -> None:
        """Let go of matrix and tier; views handed out before keep their memory alive."""
        self._matrix = self._tier = None

    def _seal(self, tier: TierSidecar) -> Seal:
        """Return the checksums of the tier, to be compared when its codes are next read."""
        return Seal(self.layout.blocks, tier.checksums, functools.partial(_damaged, self._url, self.layout, of=_OF_TIER))

    def _checksum(self, first: int, last: int) -> int:
        """Return the CRC-32 of columns ``first:last`` as the medium holds them now."""
        return crc32(self.matrix[first:last].reshape(-1).view(np.uint8).data)

    def _tier_checksum(self, first: int, last: int) -> int:
        """Return the CRC-32 of the codes of columns ``first:last`` as the medium holds them now."""
        assert self._tier is not None, "only a store with a tier has checksums of one"
        return crc32(self._tier.codes[first:last].reshape(-1).view(np.uint8).data)

    def __reduce__(self) -> NoReturn:
        # A copy of the matrix must never travel by accident, to a worker process for one.
        raise StoreError(f"the store {self._url} cannot be pickled: send its url and open it there")


def _damaged(url: str, layout: StoreLayout, block: int, of: str = "") -> StoreError:
    """Return the error that names a block which does not match its checksum."""
    first, last = int(layout.blocks[block]), int(layout.blocks[block + 1])
    return StoreError(
        f"the store {url} is damaged: block {block}{of} (columns {first} to {last - 1}) does not match its checksum; "
        "build the store again"
    )


def check_region_name(name: str) -> None:
    """Refuse a region name that would not be safe as a file name."""
    if not is_name(name):
        raise StoreURLError(
            f"{name!r} is no region name: expected up to 100 letters, digits, '_', '-' and '.', not starting with '.'"
        )


def check_range(name: str, size: int, offset: int, length: int) -> None:
    """Refuse bytes outside a region."""
    if offset < 0 or length < 0 or offset + length > size:
        raise InputError(f"bytes {offset} to {offset + length} lie outside region {name!r} of {size} bytes")


def refuse_extras(url: StoreURL) -> None:
    """Refuse query parameters and fragments, which no medium here takes."""
    for parameter in url.query:
        raise StoreURLError(f"unknown parameter {parameter!r} in {url.text!r}: {url.scheme} takes none")
    if url.fragment:
        raise StoreURLError(f"{url.text!r} ends in a fragment and {url.scheme} takes none: write '#' in a path as %23")
