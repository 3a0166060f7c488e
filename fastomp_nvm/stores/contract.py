"""The contracts of a store: an opened store, a store being built, and a durable region of bytes.

A store holds the *exact matrix*, feature-major: one row per column of the design, one entry per observation. Callers get a
read-only NumPy view of the medium, never a copy. A *feature* is the unit of selection; it spans one column, or several adjacent
columns (a one-hot categorical). The other inputs of a selection (means, norms, names, targets) are small *sidecars* that are
computed when the store is built.

Media implement these contracts; :mod:`fastomp_nvm.stores.media` finds them by URL scheme.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray, UInt32Array
from fastomp_nvm.errors import StoreError

if TYPE_CHECKING:
    from fastomp_nvm.matrix.checksum import Check, Seal
    from fastomp_nvm.matrix.choice import Choice
    from fastomp_nvm.matrix.moments import ColumnStatistics
    from fastomp_nvm.matrix.reader import MatrixFile
    from fastomp_nvm.matrix.tier import Tier, TierSidecar
    from fastomp_nvm.stores.encoding import TableEncoding

__all__ = [
    "BLOCK_COLUMNS",
    "MISSING_POLICIES",
    "STORE_DTYPES",
    "TIERS",
    "Durability",
    "DurableRegion",
    "FeatureStore",
    "MediumTraits",
    "Sidecars",
    "StoreDraft",
    "StoreLayout",
    "Target",
]

#: Most columns per block. Blocks are the unit of checksums, threads, read-ahead and shards; none splits a feature.
BLOCK_COLUMNS = 256

#: Element types of the exact matrix.
STORE_DTYPES = ("float16", "float32", "float64")

#: Tiers that a store may keep next to the exact matrix: an int8 copy with error bounds (:mod:`fastomp_nvm.matrix.tier`), or none.
TIERS = ("int8", "none")

#: Treatments of missing values when a store is built.
MISSING_POLICIES = ("error", "mean", "median", "drop-feature")

Durability = Literal["none", "process", "power"]


class MediumTraits(NamedTuple):
    """Properties of a medium.

    Attributes
    ----------
    medium : str
        Name shown in results: ``dram``, ``mmap``, ``pmem``, ...
    durability : {"none", "process", "power"}
        What persisted bytes survive: nothing, a crash of the process, a loss of power.
    emulated : bool
        Whether the medium emulates a device that this machine does not have.
    detail : str
        The kind of mapping and flush, for ``info``.
    """

    medium: str
    durability: Durability
    emulated: bool
    detail: str


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Shape and grouping of a store's matrix.

    Attributes
    ----------
    n_obs : int
        Observations (entries per row of the matrix).
    dtype : str
        Element type of the matrix: one of ``STORE_DTYPES``.
    offsets : (n_features + 1,) int64
        Feature ``f`` spans columns ``offsets[f]:offsets[f + 1]``.
    blocks : (n_blocks + 1,) int64
        Block ``b`` of the grid spans columns ``blocks[b]:blocks[b + 1]``: at most ``BLOCK_COLUMNS``, features whole.
    fingerprint : str
        Hex digest of shape, dtype, grouping and all block checksums: equal fingerprints mean equal matrices.
    """

    n_obs: int
    dtype: str
    offsets: IndexArray
    blocks: IndexArray
    fingerprint: str

    @property
    def n_features(self) -> int:
        """Number of features, the unit of indices, k and constraints."""
        return len(self.offsets) - 1

    @property
    def n_columns(self) -> int:
        """Number of columns, which are the rows of the stored matrix."""
        return int(self.offsets[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A response stored with the matrix.

    Attributes
    ----------
    values : (n_obs,) float64
        Numbers, or class codes 0, 1, ... when there are ``classes``.
    classes : tuple of str
        Class labels in the order of their codes; empty for a numeric target.
    """

    values: Float64Array
    classes: tuple[str, ...] = ()


class DurableRegion(ABC):
    """A small fixed-size range of bytes next to the matrix, for state that survives a crash.

    Two calls suffice for crash safety (see :mod:`fastomp_nvm.runs.log`): ``write`` stores bytes, ``persist`` returns once they are
    durable as declared by ``MediumTraits.durability``. Before that, any subset of the written 8-byte words may have reached the
    medium. ``start`` is a hint that ``persist`` of the same bytes will follow.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Size of the region in bytes."""

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``."""

    @abstractmethod
    def write(self, offset: int, data: bytes) -> None:
        """Store ``data`` at ``offset``; not durable until ``persist``."""

    def start(self, offset: int, length: int) -> None:  # noqa: B027
        """Start a flush of this range in the background; ``persist`` waits for it and raises its error.

        By default nothing happens: where a flush takes microseconds, waking a thread would take longer.
        """

    @abstractmethod
    def persist(self, offset: int, length: int) -> None:
        """Return once the bytes of this range are durable."""

    @abstractmethod
    def close(self) -> None:
        """Release the mapping; does not imply ``persist``."""


class FeatureStore(ABC):
    """An opened store: the matrix, not copied, and its sidecars. Read-only except for durable regions."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Address that opens this store again."""

    @property
    @abstractmethod
    def traits(self) -> MediumTraits:
        """Properties of the medium."""

    @property
    @abstractmethod
    def layout(self) -> StoreLayout:
        """Shape and grouping of the matrix."""

    @property
    @abstractmethod
    def matrix(self) -> AnyArray:
        """(n_columns, n_obs) read-only view of the medium, C order, base 64-byte aligned, not owning its data."""

    @property
    @abstractmethod
    def statistics(self) -> ColumnStatistics:
        """Moments of each column."""

    @property
    def tier(self) -> Tier | None:
        """The int8 tier, or None."""
        return None

    #: When columns are compared with their checksums, unless a selection says otherwise.
    check: Check = "first"

    @property
    def seals(self) -> tuple[Seal | None, Seal | None]:
        """Checksums of the columns of ``matrix`` and of ``tier``; None where columns are not compared with any."""
        return None, None

    @property
    def unchecked(self) -> str:
        """Why columns are not compared with checksums when they are read; empty where they are."""
        return "this medium keeps no checksums of columns"

    def add_checksums(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Verify a store of an older release and add the checksum of each column to it; ``progress`` as for ``verify``."""
        raise StoreError(f"checksums are added to stores in files alone, and {self.url} is none: build it again")

    def files(self) -> Sequence[MatrixFile]:
        """Open the files behind ``matrix`` and the codes of ``tier``; empty when both are in memory."""
        return ()

    def load_tier(self) -> None:
        """Copy the tier into memory, verify its checksums, and use the copy from now on."""
        raise StoreError(f"the store {self.url} has no int8 tier to load: build it again with --tier int8")

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Feature names, one per feature."""

    @property
    @abstractmethod
    def column_names(self) -> Sequence[str]:
        """Column names: the feature's name if it has one column, else ``feature=category``."""

    @property
    @abstractmethod
    def targets(self) -> Mapping[str, Target]:
        """Responses by name; the first is the default."""

    @property
    def encoding(self) -> TableEncoding | None:
        """How the columns of a table became the columns of the store; None if it is not known."""
        return None

    @property
    def ids(self) -> Sequence[str] | None:
        """Identifiers of the observations (n_obs,); None if the source has none."""
        return None

    @property
    def choices(self) -> Mapping[str, Choice]:
        """What the store leaves out of its source, for results."""
        return {}

    @property
    def excluded(self) -> IndexArray:
        """Features never to select."""
        return np.empty(0, dtype=np.int64)

    def complete(self) -> FeatureStore:
        """Return a store with all observations of the source, those without a target included."""
        return self

    def missing(self, columns: IndexArray) -> BoolArray | None:
        """Return which entries of ``columns`` are missing in the source, (c, n_obs); None where that is not known."""
        return None

    def alleles(self, column: int) -> tuple[str, str] | None:
        """Return the allele whose copies a column counts and the other one; None for other columns."""
        return None

    @property
    def shards(self) -> Sequence[Mapping[str, Any]]:
        """Shards of a distributed store, as plain data; empty for any other."""
        return ()

    @abstractmethod
    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open the durable region ``name``; if it is absent and ``size`` is given, create it with ``size`` zero bytes."""

    @abstractmethod
    def regions(self) -> Sequence[str]:
        """Names of the existing durable regions."""

    @abstractmethod
    def drop_region(self, name: str) -> None:
        """Remove a durable region."""

    @abstractmethod
    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Compare all blocks of matrix and tier with their checksums; ``StoreError`` names the first that differs.

        ``progress`` is called with (bytes done, bytes to do).
        """

    @abstractmethod
    def close(self) -> None:
        """Release the mapping. Existing views keep their memory alive."""

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class StoreDraft(ABC):
    """A store being built: invisible until ``commit``, removed by ``abort``.

    The builder fills ``matrix`` (a writable (n_columns, n_obs) array on the medium), then commits the sidecars.
    """

    @property
    @abstractmethod
    def matrix(self) -> AnyArray:
        """Writable (n_columns, n_obs) array on the medium."""

    @property
    def tier(self) -> AnyArray | None:
        """Writable (n_columns, n_obs) int8 array on the medium for the codes of the tier; None without a tier."""
        return None

    def write_columns(self, first: int, columns: AnyArray) -> None:
        """Write whole ``columns`` (count, n_obs), C order, to ``matrix`` from column ``first`` on; media may bypass the mapping."""
        self.matrix[first : first + len(columns)] = columns

    def stage(self, first: int, count: int) -> tuple[AnyArray, AnyArray | None]:
        """Return memory to fill with whole columns ``first : first + count`` and with their codes, if there is a tier."""
        tier = self.tier
        return self.matrix[first : first + count], None if tier is None else tier[first : first + count]

    def store(self, first: int, columns: AnyArray, codes: AnyArray | None) -> None:
        """Bring what ``stage`` returned for the same columns to the medium, perhaps after this call has returned."""
        return

    @abstractmethod
    def forget(self, first: int, last: int) -> None:
        """Release the memory of the written columns ``first:last``, tier included, so that builds on files use little memory."""

    @abstractmethod
    def commit(self, sidecars: Sidecars) -> None:
        """Make the store visible, atomically and durably. ``sidecars.layout`` may have fewer columns than the draft."""

    @abstractmethod
    def abort(self) -> None:
        """Remove everything written so far. Does nothing after ``commit``."""


@dataclass(frozen=True, slots=True, eq=False)
class Sidecars:
    """All data of a store except the matrix; ``column_checksums`` are missing in stores of older releases."""

    layout: StoreLayout
    statistics: ColumnStatistics
    checksums: IndexArray  # CRC-32 per block, (n_blocks,)
    names: Sequence[str]
    column_names: Sequence[str]
    targets: Mapping[str, Target]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    tier: TierSidecar | None = None
    encoding: TableEncoding | None = None
    ids: Sequence[str] | None = None  # of the observations, (n_obs,)
    column_checksums: UInt32Array | None = None  # CRC-32 per column, (n_columns,)
