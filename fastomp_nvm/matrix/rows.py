"""The contract of the big matrix, ``Rows``, and its implementations for rows that lie in arrays of this process.

A matrix has one row per column of the design and one entry per observation. Whether it is one array, in either order of its
entries, several arrays, a file colder than memory (:mod:`fastomp_nvm.matrix.reader`) or spread over shards
(:mod:`fastomp_nvm.cluster.driver`), it answers the same questions: a sweep over all rows, a gather of some, and standardisations
under observation weights. No other code asks which kind of matrix it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, DType, Float64Array, IndexArray, RowIndex
from fastomp_nvm.matrix import lost_pages
from fastomp_nvm.matrix.checksum import Seal
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.matrix.gradients import CertifiedSweep, ExactSweep, Sweep
from fastomp_nvm.matrix.memory import aligned_empty
from fastomp_nvm.matrix.moments import ColumnStatistics, gram, moments
from fastomp_nvm.matrix.standardisation import Standardisation

if TYPE_CHECKING:
    from fastomp_nvm.matrix.kernels import Kernel
    from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
    from fastomp_nvm.matrix.tier import Tier

__all__ = [
    "ArrayRows",
    "Design",
    "LocalRows",
    "Multiply",
    "Network",
    "PiecedRows",
    "Rows",
    "Use",
    "Visit",
    "local_rows",
    "rows_of_array",
]

#: Bytes of rows that are compared with their checksums and then used, while they are in the cache.
COMPARED_BYTES = 1 << 20

#: Interleaved rows are visited this many at a time, or a multiple of the second value where there are fewer for a thread: long runs
#: of adjacent entries are prefetched best.
_BESIDE, _FEWEST_BESIDE = 1024, 128

#: Multiply-adds that take as long as gathering one entry of interleaved rows, a cache miss.
_MISS = 256

#: Pieces of fewer rows are copied into blocks of this many bytes, which stay in the cache: a call of the kernel takes microseconds.
_FEW_ROWS, _JOINED_BYTES = 8, 1 << 18

#: Share of columns that are multiplied in float64 apart from the others, at most: they are copied.
_FEW_EXACT = 1 / 16

#: Called with a block of rows, the number of its first row and that of the row after its last; several threads call at once.
Use: TypeAlias = Callable[[AnyArray, int, int], None]

#: Calls a ``Use`` for blocks that make up all rows: ``LocalRows.visit``, or one with other blocks.
Visit: TypeAlias = Callable[["Sweeper", Use, int], None]

#: Fills ``out`` with the products of a block and residuals, as the ``dots`` of a kernel does.
Multiply: TypeAlias = Callable[[AnyArray, AnyArray, Float64Array], None]


@dataclass(slots=True)
class Network:
    """Payload bytes that crossed the network, by the names that results use.

    Attributes
    ----------
    bytes_sent : int
        Bytes to the shards; a value given to all shards counts once per shard.
    bytes_received : int
        Bytes from the shards, gathered columns included.
    bytes_received_columns : int
        Bytes of gathered columns.
    shard_calls : int
        Rounds of calls to the shards.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_received_columns: int = 0
    shard_calls: int = 0

    def restart(self) -> None:
        """Set all counts to zero."""
        self.bytes_sent = self.bytes_received = self.bytes_received_columns = self.shard_calls = 0


class Rows(ABC):
    """A read-only matrix (n_columns, n_obs).

    Attributes
    ----------
    shape : (int, int)
    itemsize, nbytes : int
    dtype : dtype
        Element type of gathered rows, and of the products: rows of other types are converted as they are read, and counted as if
        they had this type.
    array : (n_columns, n_obs) array, optional
        The rows, where they are one array of this process.
    in_place : bool
        True where rows of ``array`` can be multiplied one by one where they lie: contiguous, and of type ``dtype``.
    on_device : bool
        True where a sweep may have to wait for a device or a network.
    network : Network, optional
        Traffic with other machines, where the rows lie there.
    arrays : sequence of (rows, n_obs) arrays
        The arrays of this process that hold the rows, in order; empty where they lie elsewhere.
    counted : bool
        Whether reading the rows counts as traffic with the medium.
    choice : Choice, optional
        How the first sweep or gather read the rows, where there is a choice.
    seal : Seal, optional
        Checksums that rows are compared with when they are first read.
    """

    array: AnyArray | None = None
    in_place = False
    arrays: Sequence[AnyArray] = ()
    on_device = False
    counted = True
    network: Network | None = None
    choice: Choice | None = None
    seal: Seal | None = None

    def __init__(self, shape: tuple[int, int], dtype: DType) -> None:
        self.shape = shape
        self.dtype = dtype
        self.itemsize = dtype.itemsize
        self.nbytes = shape[0] * shape[1] * dtype.itemsize

    @abstractmethod
    def sweep(self, sweeper: Sweeper, vectors: Vectors, wide: BoolArray, tier: Tier | None = None) -> Sweep:
        """Multiply all rows with ``vectors`` in one pass.

        Parameters
        ----------
        sweeper : Sweeper
        vectors : Vectors
        wide : (n_columns,) bool
            Columns to accumulate in float64.
        tier : Tier, optional
            Sweep this instead, and read only columns that it leaves undecided; the answers are the same.
        """

    @abstractmethod
    def gather(self, columns: IndexArray, out: AnyArray, sweeper: Sweeper) -> None:
        """Copy the rows ``columns``, in their order, into ``out`` (n, n_obs)."""

    @abstractmethod
    def standardisations(self, weights: Sequence[Float64Array], plain: Standardisation) -> list[Standardisation]:
        """Return the standardisation under each of ``weights``, in one pass; ``plain`` is the unweighted one."""

    @abstractmethod
    def in_memory(self) -> ArrayRows:
        """Return a copy in memory."""

    @abstractmethod
    def __getitem__(self, index: RowIndex) -> AnyArray:
        """Return rows by number, slice, list or mask, as NumPy does."""

    def __len__(self) -> int:
        return self.shape[0]

    def under(self, standardize: bool, weights: Float64Array | None) -> Rows:
        """Return these rows for questions under another standardisation."""
        return self

    def reading(self, io: str) -> Rows:
        """Return these rows, read from their files in the way ``io``, where they have files of their own."""
        return self

    def in_page_cache(self) -> bool:
        """Tell whether the rows are a mapped file that is in memory, so that copies of rows only cost time."""
        return False

    def check(self, index: RowIndex) -> None:  # noqa: B027
        """Compare rows with their checksums where they lie, unless they were compared before."""

    def pace(self, nbytes: int) -> None:  # noqa: B027
        """Wait as long as an emulated device takes for ``nbytes``, where there is one."""

    def watch(self, report: Callable[[Sequence[float]], None] | None) -> None:  # noqa: B027
        """Have ``report`` called during a sweep with the share that each shard has done; rows of this machine do not report."""


class LocalRows(Rows):
    """Rows that this process can address."""

    _ahead: ExactSweep  # products with one vector for the next sweep, while there are some

    @abstractmethod
    def visit(self, sweeper: Sweeper, use: Use, products: int = 1, *, again: bool = True) -> None:
        """Call ``use(block, first, last)`` for blocks that make up all rows, on the calling thread and the workers.

        Parameters
        ----------
        sweeper : Sweeper
        use : callable
        products : int
            Multiply-adds per entry: decides whether other threads are worth waking.
        again : bool
            Whether there will be more visits, for which pages of a file are worth keeping in memory.
        """

    def blocks(self, kernel: Kernel) -> tuple[Visit, Multiply]:
        """Return how products visit the rows, and the function of ``kernel`` for such blocks."""
        return self.visit, kernel.dots

    def _numbers(self, index: RowIndex) -> IndexArray:
        """Return the numbers of rows given as NumPy takes them."""
        if isinstance(index, np.ndarray) and index.dtype.kind == "i":
            return np.asarray(index % len(self), dtype=np.int64)
        return np.atleast_1d(np.arange(len(self))[index])

    def _compared(self, use: Use) -> Use:
        """Return ``use`` such that rows are compared with their checksums first, unless all of them were before."""
        seal = self.seal
        if seal is None or seal.settle():
            return use
        step = max(COMPARED_BYTES // max(self.shape[1] * self.itemsize, 1), 1)

        def compared(block: AnyArray, first: int, last: int) -> None:
            for start in range(first, last, step):
                end = min(start + step, last)
                part = block[start - first : end - first]
                seal.look(part, np.arange(start, end))
                use(part, start, end)

        return compared

    def __array__(self, dtype: DType | None = None, copy: bool | None = None) -> AnyArray:
        self.check(slice(None))
        whole: AnyArray = self.arrays[0] if len(self.arrays) == 1 else np.concatenate(self.arrays)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def sweep(self, sweeper: Sweeper, vectors: Vectors, wide: BoolArray, tier: Tier | None = None) -> ExactSweep | CertifiedSweep:
        """Multiply all rows, or those of the tier, with ``vectors``."""
        ahead: ExactSweep | None = vars(self).pop("_ahead", None)  # at once: another thread may sweep too
        if tier is not None:
            from fastomp_nvm.matrix.tier import TierSweep  # not needed by data without a tier

            return CertifiedSweep(TierSweep(sweeper, tier, vectors), self, sweeper, vectors)
        if ahead is not None and (vectors.wide == ahead.vectors.wide).all():
            exact = np.flatnonzero(wide if self.dtype != np.float64 else wide[:0])
            if len(exact) <= len(self) * _FEW_EXACT:
                raw = ahead.raw if len(vectors.wide) == 1 else ahead.raw.repeat(len(vectors.wide), axis=1)
                if exact.size:
                    raw[exact] = sweeper.dots(ArrayRows(sweeper.gather(self, exact)), vectors, wide[exact])
                return ExactSweep(raw, vectors)
        return ExactSweep(sweeper.dots(self, vectors, wide), vectors)

    def measure(self, sweeper: Sweeper, vectors: Vectors) -> ColumnStatistics:
        """Return the moments of every column, from a pass that also multiplies all rows with the only one of ``vectors``.

        The next sweep is answered from these products where it asks for that vector.
        """
        found, products = np.empty((4, len(self))), np.empty((len(self), 1))

        def fill(block: AnyArray, first: int, last: int) -> None:
            part = np.empty((4, last - first))
            sweeper.kernel.measure(block, vectors.fast, part, products[first:last])
            found[:, first:last] = part

        self.visit(sweeper, fill, 5)
        self._ahead = ExactSweep(products, vectors)
        return ColumnStatistics(*found)

    def moments(self, weights: Sequence[Float64Array | None]) -> list[ColumnStatistics]:
        """Return the moments of every column under each of ``weights``; a block is read once for all of them."""
        from fastomp_nvm.matrix.sweeper import Sweeper

        found = np.empty((len(weights), 4, self.shape[0]))

        def fill(block: AnyArray, first: int, last: int) -> None:
            for place, each in enumerate(weights):
                part = moments(block, each)
                found[place, :, first:last] = part.mean, part.norm, part.minimum, part.maximum

        self.visit(Sweeper(), fill, 4 * len(weights))
        return list(starmap(ColumnStatistics, found))

    def standardisations(self, weights: Sequence[Float64Array], plain: Standardisation) -> list[Standardisation]:
        """Return the standardisation under each of ``weights``, in one pass."""
        offsets = plain.offsets
        several = [slice(int(offsets[feature]), int(offsets[feature + 1])) for feature in np.flatnonzero(np.diff(offsets) > 1)]
        found = []
        for each, stats in zip(weights, self.moments(weights), strict=True):
            grams = tuple(gram(self[span], stats.mean[span], each) for span in several)
            weighted = Standardisation.from_moments(offsets, replace(stats, grams=grams), float(each.sum()))
            # Which columns are accumulated in float64 is a property of the matrix, not of the weights: merged sweeps share it.
            found.append(Standardisation(offsets, stats.mean, weighted.scale, plain.wide, weighted.whiteners))
        for array in self.arrays:
            lost_pages.check(array)
        return found

    def in_memory(self) -> ArrayRows:
        """Return a copy in memory."""
        from fastomp_nvm.matrix.sweeper import Sweeper

        copy = aligned_empty(self.shape, self.dtype)

        def fill(block: AnyArray, first: int, last: int) -> None:
            copy[first:last] = block

        self.visit(Sweeper(), fill, again=False)
        copy.setflags(write=False)
        return ArrayRows(copy)


class ArrayRows(LocalRows):
    """Rows in one array.

    Parameters
    ----------
    array : (n_columns, n_obs) array
        Of a type and a layout that kernels take; see :class:`~fastomp_nvm.matrix.kernels.Kernel`.
    dtype : dtype, optional
        Its own type when left out; float64 otherwise.
    """

    array: AnyArray

    def __init__(self, array: AnyArray, dtype: DType | None = None) -> None:
        super().__init__((array.shape[0], array.shape[1]), array.dtype if dtype is None else dtype)
        self.array = array
        self.arrays = (array,)
        self._contiguous = array.shape[1] < 2 or array.strides[1] == array.itemsize
        self.in_place = self._contiguous and self.dtype == array.dtype

    def visit(self, sweeper: Sweeper, use: Use, products: int = 1, *, again: bool = True) -> None:
        """Call ``use`` for blocks of the array."""
        width, use = self.shape[1], self._compared(use)
        try:
            if self._contiguous:
                sweeper.share(self.array, width * self.itemsize, width * products, use)
            else:
                sweeper.share(self.array, 0, width * products, use, (_FEWEST_BESIDE, _BESIDE))
        finally:
            lost_pages.check(self.array)  # before anyone reports that the rows do not match their checksums

    def gather(self, columns: IndexArray, out: AnyArray, sweeper: Sweeper) -> None:
        """Copy the rows ``columns`` into ``out``."""
        products = self.shape[1] * (1 if self._contiguous else _MISS)

        def copy(some: AnyArray, first: int, last: int) -> None:
            sweeper.kernel.gather(self.array, some, out[first:last])
            if self.seal is not None:
                self.seal.look(out[first:last], some)

        try:
            sweeper.share(columns, self.shape[1] * self.itemsize, products, copy)
        finally:
            lost_pages.check(self.array)

    def check(self, index: RowIndex) -> None:
        """Compare rows with their checksums where they lie, unless they were compared before."""
        if self.seal is not None and not self.seal.intact:
            columns = self._numbers(index)
            try:
                self.seal.look(self.array, columns, columns)
            finally:
                lost_pages.check(self.array)

    def __getitem__(self, index: RowIndex) -> AnyArray:
        self.check(index)
        found: AnyArray = self.array[index]
        return found.astype(self.dtype, copy=False)


def rows_of_array(X: AnyArray) -> ArrayRows:
    """Return the columns of an array of real numbers (n_obs, n_columns) as rows, where they lie.

    The array may be in C or in Fortran order, or a part of one (``X[::2]``, ``X[:, 3:9]``), read-only, unaligned, a memory map.
    float32 and float64 keep their type; other numbers of up to 8 bytes become float64 as they are read. The rest is copied: arrays
    whose entries are contiguous in neither direction (``X[:, ::2]`` in C order), extended precision, foreign byte order.
    """
    rows, dtype = X.T, np.dtype(X.dtype if X.dtype in (np.float32, np.float64) else np.float64)
    ends = ((rows.shape[1], rows.strides[1]), (rows.shape[0], rows.strides[0]))
    adjacent = any(length < 2 or stride == rows.itemsize for length, stride in ends)
    if not (adjacent and rows.itemsize <= dtype.itemsize and rows.dtype.isnative):
        rows = np.ascontiguousarray(rows, dtype=dtype)
    rows.flags.writeable = False  # of this view
    return ArrayRows(rows, dtype)


class PiecedRows(LocalRows):
    """Rows in several arrays, one below the other: for media whose values are limited in size, and for the columns of tables.

    Parameters
    ----------
    pieces : sequence of (rows, n_obs) arrays
        At least one; of one width. They are made read-only views.
    dtype : dtype, optional
        The type of all pieces when left out; float64 otherwise.
    """

    def __init__(self, pieces: Sequence[AnyArray], dtype: DType | None = None) -> None:
        self.arrays = tuple(piece[:] for piece in pieces)
        for piece in self.arrays:
            piece.flags.writeable = False
        self._starts: IndexArray = np.cumsum([0, *map(len, self.arrays)])
        shape = (int(self._starts[-1]), self.arrays[0].shape[1])
        super().__init__(shape, self.arrays[0].dtype if dtype is None else dtype)

    def visit(self, sweeper: Sweeper, use: Use, products: int = 1, *, again: bool = True) -> None:
        """Call ``use`` for blocks of the pieces; those of a few rows are copied into common blocks."""
        width, use = self.shape[1], self._compared(use)

        def each(_: AnyArray, first: int, last: int) -> None:
            for block, begin in self._blocks(first, last):
                use(block, begin, begin + len(block))

        try:
            sweeper.share(np.arange(len(self)), width * self.itemsize, width * products, each)
        finally:
            for array in self.arrays:
                lost_pages.check(array)

    def _blocks(self, first: int, last: int) -> Iterator[tuple[AnyArray, int]]:
        """Yield blocks that make up the rows ``first`` to ``last``, each with the number of its first row."""
        place = int(np.searchsorted(self._starts, first, side="right")) - 1
        joined: list[AnyArray] = []  # pieces of a few rows that make up the next block
        count, most = 0, max(_JOINED_BYTES // max(self.shape[1] * self.itemsize, 1), 1)
        while first < last:
            start = int(self._starts[place])
            piece = self.arrays[place][first - start : last - start]
            if joined and (len(piece) >= _FEW_ROWS or count >= most):
                yield np.concatenate(joined, dtype=self.dtype), first - count
                joined, count = [], 0
            if len(piece) >= _FEW_ROWS:
                yield piece, first
            else:
                joined.append(piece)
                count += len(piece)
            place, first = place + 1, first + len(piece)
        if joined:
            yield np.concatenate(joined, dtype=self.dtype), last - count

    def gather(self, columns: IndexArray, out: AnyArray, sweeper: Sweeper) -> None:
        """Copy the rows ``columns`` into ``out``, piece by piece."""
        self.check(columns)
        for here, piece, local in self._located(columns):
            out[here] = piece[local]
            lost_pages.check(piece)

    def check(self, index: RowIndex) -> None:
        """Compare rows with their checksums where they lie, unless they were compared before."""
        if self.seal is not None and not self.seal.intact:
            columns = self._numbers(index)
            for here, piece, local in self._located(columns):
                self.seal.look(piece, columns[here], local)

    def __getitem__(self, index: RowIndex) -> AnyArray:
        self.check(index)
        columns = np.arange(len(self))[index]
        if columns.ndim == 0:
            row: AnyArray = self[int(columns) : int(columns) + 1][0]
            return row
        if isinstance(index, slice) and index.step in (None, 1) and len(columns):
            place = int(np.searchsorted(self._starts, columns[0], side="right")) - 1
            if columns[-1] < self._starts[place + 1]:  # all in one piece: a view
                return self.arrays[place][columns[0] - self._starts[place] :][: len(columns)]
        out = np.empty((len(columns), self.shape[1]), dtype=self.dtype)
        for here, piece, local in self._located(columns):
            out[here] = piece[local]
        return out

    def _located(self, columns: IndexArray) -> Iterator[tuple[IndexArray, AnyArray, IndexArray]]:
        """Yield, for each piece with some of ``columns``, their positions, the piece, and their rows in it."""
        owners = np.searchsorted(self._starts, columns, side="right") - 1
        for place in np.unique(owners):
            here = np.flatnonzero(owners == place)
            yield here, self.arrays[place], columns[here] - self._starts[place]


def local_rows(rows: AnyArray | Rows) -> LocalRows:
    """Return rows of this process as ``LocalRows``; an array becomes ``ArrayRows``."""
    if isinstance(rows, LocalRows):
        return rows
    return ArrayRows(np.asarray(rows))


class Design(NamedTuple):
    """A raw matrix and its standardisation.

    Attributes
    ----------
    matrix : Rows
    standardisation : Standardisation
    """

    matrix: Rows
    standardisation: Standardisation
