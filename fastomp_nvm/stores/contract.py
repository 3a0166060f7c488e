"""What a store of features is: the contracts every medium implements, and how to reach one by URL.

A store holds the *exact matrix*, feature-major: one row per column of the design, one entry per observation. It is handed out as
one read-only NumPy view of the medium, never copied. A *feature* is what is selected; it spans one column, or several adjacent
ones (a one-hot categorical). Everything else a selection needs (means, norms, names, targets) is small and comes along as
sidecars that were computed when the store was built.

This module knows no medium: ``open_store`` and ``create_store`` find it by the URL's scheme in :mod:`fastomp_nvm.registry`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.errors import StoreError
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.reader import MatrixFile
from fastomp_nvm.matrix.tier import Tier, TierSidecar

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

#: Columns per block of the global grid: the unit of checksums, of threads, of read-ahead and of shards.
#: A feature is never split across blocks, so a block holds *at most* this many columns.
BLOCK_COLUMNS = 256

#: Element types of the exact matrix.
STORE_DTYPES = ("float16", "float32", "float64")

#: What a store may keep next to the exact matrix: an int8 copy with certain bounds (``fastomp_nvm/tiers.py``), or nothing.
TIERS = ("int8", "none")

#: What to do about missing values at ingest.
MISSING_POLICIES = ("error", "mean", "median", "drop-feature")

Durability = Literal["none", "process", "power"]


@dataclass(frozen=True, slots=True)
class MediumTraits:
    """What a medium can do, declared as data (and tested as declared).

    Attributes
    ----------
    medium : str
        Name shown in results: ``dram``, ``mmap``, ``pmem``, ...
    durability : {"none", "process", "power"}
        What survives after ``persist`` returned: nothing, the death of the process, the loss of power.
    emulated : bool
        True when the medium stands in for a device this machine does not have.
    detail : str
        One phrase for ``info``: which mapping, which flush.
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
        Hex digest over shape, dtype, grouping and every block's checksum: equal fingerprints mean equal matrices.
    """

    n_obs: int
    dtype: str
    offsets: IndexArray
    blocks: IndexArray
    fingerprint: str

    @property
    def n_features(self) -> int:
        """Number of features: what indices, k and constraints count."""
        return len(self.offsets) - 1

    @property
    def n_columns(self) -> int:
        """Number of columns: rows of the stored matrix."""
        return int(self.offsets[-1])


@dataclass(frozen=True, slots=True)
class Target:
    """A response kept with the store.

    Attributes
    ----------
    values : (n_obs,) float64
        Numbers, or class codes 0, 1, ... when ``classes`` is given.
    classes : tuple of str
        Class labels in code order; empty for a numeric target.
    """

    values: Float64Array
    classes: tuple[str, ...] = ()


class DurableRegion(ABC):
    """A small fixed-size range of bytes next to the matrix, for state that must survive.

    Two calls suffice for crash safety (see ``fastomp_nvm/checkpoint.py``): ``write`` stores bytes, ``persist`` returns once they
    are safe to the degree ``MediumTraits.durability`` declares. Between the two, any subset of the written 8-byte words may have
    reached the medium. ``start`` only says that ``persist`` of the same bytes will follow.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes in the region."""

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``."""

    @abstractmethod
    def write(self, offset: int, data: bytes) -> None:
        """Store ``data`` at ``offset``; not durable until ``persist``."""

    def start(self, offset: int, length: int) -> None:  # noqa: B027
        """Begin to make the bytes of this range durable beside other work; ``persist`` then waits for that, and tells its failure.

        Here nothing happens: where flushing takes microseconds, ``persist`` takes less time than waking a thread.
        """

    @abstractmethod
    def persist(self, offset: int, length: int) -> None:
        """Return once the bytes of this range are durable."""

    @abstractmethod
    def close(self) -> None:
        """Release the mapping; does not imply ``persist``."""


class FeatureStore(ABC):
    """An opened store: one zero-copy matrix and its sidecars. Read-only apart from its durable regions."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Address that opens this store again."""

    @property
    @abstractmethod
    def traits(self) -> MediumTraits:
        """What the medium can do."""

    @property
    @abstractmethod
    def layout(self) -> StoreLayout:
        """Shape and grouping."""

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
        """The int8 tier, where the store has one."""
        return None

    def files(self) -> Sequence[MatrixFile]:
        """Open the files behind ``matrix`` and the codes of ``tier``, where these may be colder than memory."""
        return ()

    def load_tier(self) -> None:
        """Copy the tier into memory, checked against its checksums, and hand it out from there."""
        raise StoreError(f"the store {self.url} has no int8 tier to load: build it again with --tier int8")

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Feature names, one per feature."""

    @property
    @abstractmethod
    def column_names(self) -> Sequence[str]:
        """Column names, one per column; equal to ``names`` where a feature has one column, else ``feature=category``."""

    @property
    @abstractmethod
    def targets(self) -> Mapping[str, Target]:
        """Responses kept with the store, by name; the first is the default."""

    @abstractmethod
    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open the durable region ``name``; create it zero-filled with ``size`` bytes when ``size`` is given and it is absent."""

    @abstractmethod
    def regions(self) -> Sequence[str]:
        """Names of the durable regions that exist."""

    @abstractmethod
    def drop_region(self, name: str) -> None:
        """Remove a durable region."""

    @abstractmethod
    def verify(self) -> None:
        """Recompute every block's checksum, the tier's too; raise ``StoreError`` naming the first block that differs."""

    @abstractmethod
    def close(self) -> None:
        """Release the mapping. Views handed out before keep their memory alive."""

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class StoreDraft(ABC):
    """A store being built: private until ``commit``, gone without a trace after ``abort``.

    The builder fills ``matrix`` (a writable (n_columns, n_obs) array on the medium), then commits the sidecars.
    """

    @property
    @abstractmethod
    def matrix(self) -> AnyArray:
        """Writable (n_columns, n_obs) array on the medium."""

    @property
    def tier(self) -> AnyArray | None:
        """Writable (n_columns, n_obs) int8 array on the medium for the codes of the tier, where one was asked for."""
        return None

    def write_columns(self, first: int, columns: AnyArray) -> None:
        """Assign whole ``columns`` (count, n_obs), C order, to ``matrix`` from column ``first`` on, the quickest way there is."""
        self.matrix[first : first + len(columns)] = columns

    @abstractmethod
    def forget(self, first: int, last: int) -> None:
        """Let go of the memory behind columns ``first:last`` (already written), tier included; file media use it to stay small."""

    @abstractmethod
    def commit(self, sidecars: Sidecars) -> None:
        """Make the store visible, atomically and durably. ``sidecars.layout`` may have fewer columns than the draft."""

    @abstractmethod
    def abort(self) -> None:
        """Remove everything written so far. Harmless after ``commit``."""


@dataclass(frozen=True, slots=True)
class Sidecars:
    """Everything of a store but the matrix."""

    layout: StoreLayout
    statistics: ColumnStatistics
    checksums: IndexArray  # CRC-32 per block, (n_blocks,)
    names: Sequence[str]
    column_names: Sequence[str]
    targets: Mapping[str, Target]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    tier: TierSidecar | None = None
