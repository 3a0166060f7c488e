"""The only code that reads the big matrix: sweeps over all columns, gathers of some, and the count of both.

A sweep answers ``A_std @ V`` for a block of vectors in one pass, threaded over ranges of columns. Its kernel is row-invariant:
the product of a column with a vector has the same bits whether the column is swept, gathered, or re-read, alone or in company,
on one thread or several. The matrix is never copied as a whole and never written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastomp_nvm import lost_pages
from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray
from fastomp_nvm.design import Design, Standardisation, column_index
from fastomp_nvm.kernels import Kernel, kernel
from fastomp_nvm.pieces import PiecedRows, parts
from fastomp_nvm.reading import MatrixFile, Reader

__all__ = ["ColumnPool", "Columns", "Sweeper", "Traffic", "Vectors", "aligned_empty"]

#: Bytes of matrix one thread takes at a time: large against the cost of a Python call, small against a sweep.
TASK_BYTES = 4 << 20

#: Bytes of columns read at a time to answer a question about them.
READ_BYTES = 64 << 20

#: Below this many multiply-adds a sweep is done by the calling thread: waking another costs more.
INLINE_PRODUCTS = 1 << 23


@dataclass(slots=True)
class Traffic:
    """What was taken from the medium.

    Attributes
    ----------
    sweeps : int
        Times the medium was read: full sweeps and gathers alike.
    features_visited : int
        Features read, repetitions included; divided by the number of features this is the count of full passes.
    bytes_read : int
        Bytes read, of the matrix and of its tier, repetitions included.
    bytes_read_tier : int
        Those of the tier.
    """

    sweeps: int = 0
    features_visited: int = 0
    bytes_read: int = 0
    bytes_read_tier: int = 0

    def add(self, features: int, size: int, *, tier: bool = False) -> None:
        """Count one read of ``features`` features and ``size`` bytes."""
        self.sweeps += 1
        self.features_visited += features
        self.bytes_read += size
        self.bytes_read_tier += size if tier else 0

    def include(self, other: Traffic) -> None:
        """Add the counts of ``other``."""
        self.sweeps += other.sweeps
        self.features_visited += other.features_visited
        self.bytes_read += other.bytes_read
        self.bytes_read_tier += other.bytes_read_tier

    def without(self, other: Traffic) -> Traffic:
        """Return the counts less those of ``other``."""
        return Traffic(
            self.sweeps - other.sweeps,
            self.features_visited - other.features_visited,
            self.bytes_read - other.bytes_read,
            self.bytes_read_tier - other.bytes_read_tier,
        )


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[np.generic] | type, alignment: int = 64) -> AnyArray:
    """Return an uninitialised array whose data begins at a multiple of ``alignment`` bytes."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    buffer = np.empty(size + alignment, dtype=np.uint8)
    shift = -int(buffer.__array_interface__["data"][0]) % alignment
    view: AnyArray = buffer[shift : shift + size].view(kind).reshape(shape)
    return view


_NONE = np.empty(0, dtype=np.int64)


class Vectors:
    """Vectors as the kernel wants them: one row each, in the precision the matrix asks for.

    Parameters
    ----------
    vectors : (n_obs, m) float64
    dtype : dtype
        Element type of the matrix; float16 and float32 matrices are swept with float32 vectors.
    """

    __slots__ = ("fast", "sums", "wide", "wide_sums")

    def __init__(self, vectors: Float64Array, dtype: np.dtype[np.generic]) -> None:
        self.wide = np.ascontiguousarray(vectors.T)
        # Rows are contiguous, so each is added up in the same order whatever the number of vectors.
        self.wide_sums = np.add.reduce(self.wide, axis=1)
        if dtype == np.float64:
            self.fast, self.sums = self.wide, self.wide_sums
        else:
            self.fast = self.wide.astype(np.float32)
            self.sums = np.add.reduce(self.fast, axis=1, dtype=np.float64)


class Sweeper:
    """Runs the kernel over matrices with a few threads.

    Parameters
    ----------
    threads : int, optional
        Worker threads; the cores this process may use when left out. The answer does not depend on it.
    implementation : Kernel, optional
        The best one available when left out.
    files : sequence of MatrixFile
        Files behind the matrices, where they have any: what is not in memory is then read from there.
    io : {"auto", "mmap", "direct"}
        How; see :mod:`fastomp_nvm.reading`. The answer does not depend on it.
    """

    def __init__(
        self,
        threads: int | None = None,
        implementation: Kernel | None = None,
        files: Sequence[MatrixFile] = (),
        io: str = "auto",
    ) -> None:
        self.threads = threads if threads is not None else len(os.sched_getaffinity(0))
        self.kernel = implementation if implementation is not None else kernel()
        self._executor = ThreadPoolExecutor(self.threads - 1, "fastomp-sweep") if self.threads > 1 else None
        self._reader = Reader(files, io, self.threads)

    def close(self) -> None:
        """End the worker threads."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._reader.close()

    def products(self, rows: AnyArray, standardisation: Standardisation, vectors: Float64Array) -> Float64Array:
        """Return (n_columns, m) float64: standardised, whitened ``rows`` times ``vectors``.

        Parameters
        ----------
        rows : (n_columns, n_obs)
            Raw rows, of the features of ``standardisation`` exactly.
        vectors : (n_obs, m) float64
        """
        prepared = Vectors(vectors, rows.dtype)
        raw = self.dots(rows, prepared, standardisation.wide)
        return standardisation.apply(raw, prepared.sums, prepared.wide_sums)

    def dots(self, rows: AnyArray, vectors: Vectors, wide: BoolArray) -> Float64Array:
        """Return (n_columns, m) float64: raw dot products, range by range on the calling thread and the workers.

        Parameters
        ----------
        rows : (n_columns, n_obs)
        vectors : Vectors
        wide : (n_columns,) bool
            Columns to accumulate in float64.
        """
        out = np.empty((len(rows), len(vectors.fast)))
        for start, part in parts(rows):
            self._dots_part(part, vectors, wide[start : start + len(part)], out[start : start + len(part)])
        return out

    def _dots_part(self, rows: AnyArray, vectors: Vectors, wide: BoolArray, out: Float64Array) -> None:
        """Fill ``out`` for rows that are one array."""
        exact = np.flatnonzero(wide) if rows.dtype != np.float64 else _NONE
        self._fill(rows, out, lambda block, first, last: self._range(block, vectors, exact, out, first, last))
        lost_pages.check(rows)

    def dots_int8(self, rows: AnyArray, vectors: AnyArray) -> IndexArray:
        """Return (n_columns, m) int64: exact products of int8 ``rows`` (n_columns, n_obs) and int16 ``vectors`` (m, n_obs)."""
        out = np.empty((len(rows), len(vectors)), dtype=np.int64)
        for start, part in parts(rows):
            self._dots_int8_part(part, vectors, out[start : start + len(part)])
        return out

    def _dots_int8_part(self, rows: AnyArray, vectors: AnyArray, out: IndexArray) -> None:
        """Fill ``out`` for rows that are one array."""
        self._fill(rows, out, lambda block, first, last: self.kernel.dots_int8(block, vectors, out[first:last]))
        lost_pages.check(rows)

    def _fill(self, rows: AnyArray, out: AnyArray, fill: Callable[[AnyArray, int, int], None]) -> None:
        """Have ``fill(rows[first:last], first, last)`` fill those rows of ``out``, on the calling thread and the workers."""
        if self._reader.sweep(rows, fill):
            return
        step = max(TASK_BYTES // max(rows.shape[1] * rows.itemsize, 1), 8)
        if self._executor is None or rows.size * out.shape[1] < INLINE_PRODUCTS or len(rows) <= 8:
            fill(rows, 0, len(rows))
            return
        step = max(min(step, -(-len(rows) // (2 * self.threads))), 8)
        starts = iter(range(0, len(rows), step))  # next() on it is atomic under the interpreter lock

        def work() -> None:
            for first in starts:
                last = min(first + step, len(rows))
                fill(rows[first:last], first, last)

        helpers = [self._executor.submit(work) for _ in range(self.threads - 1)]
        try:
            work()
        finally:
            for helper in helpers:
                helper.result()

    def _range(self, block: AnyArray, vectors: Vectors, wide: IndexArray, out: Float64Array, first: int, last: int) -> None:
        """Fill ``out[first:last]`` with the products of ``block``, these rows of the matrix."""
        low, high = np.searchsorted(wide, (first, last)) if wide.size else (0, 0)
        if high - low < last - first:
            self.kernel.dots(block, vectors.fast, out[first:last])
        if high > low:
            columns = wide[low:high]
            exact = np.empty((len(columns), out.shape[1]))
            picked = block if high - low == last - first else block[columns - first]
            self.kernel.dots(picked, vectors.wide, exact)
            out[columns] = exact

    def gather(self, matrix: AnyArray | PiecedRows, columns: IndexArray, out: AnyArray | None = None) -> AnyArray:
        """Copy ``columns`` of ``matrix`` into memory: (n, n_obs), contiguous and 64-byte aligned."""
        if out is None:
            out = aligned_empty((len(columns), matrix.shape[1]), matrix.dtype)
        if isinstance(matrix, PiecedRows):
            for here, piece, local in matrix.located(columns):
                out[here] = self.gather(piece, local)
            return out
        if not self._reader.gather(matrix, columns, out):
            self.kernel.gather(matrix, columns, out)
        lost_pages.check(matrix)
        return out


class Columns:
    """The columns of some features, at hand for repeated products: in memory, or re-read in chunks above the byte budget.

    Attributes
    ----------
    features : (f,) int64
        Which features, in the order of the rows.
    standardisation : Standardisation
        Of these features, by position.
    """

    def __init__(self, pool: ColumnPool, features: IndexArray) -> None:
        self.features = features
        self.standardisation = pool.design.standardisation.subset(features)
        self._pool = pool
        self._rows = pool.rows(features)

    @property
    def exact(self) -> bool:
        """True when products are accumulated in float64 throughout."""
        return bool(self._pool.design.matrix.dtype == np.float64)

    def products(self, vectors: Float64Array) -> Float64Array:
        """Return (n_columns, m): these standardised columns times ``vectors`` (n_obs, m)."""
        sweeper = self._pool.sweeper
        if self._rows is not None:
            return sweeper.products(self._rows, self.standardisation, vectors)
        out = np.empty((int(self.standardisation.offsets[-1]), vectors.shape[1]))
        for chunk in self._pool.chunks(self.features):
            part = self.standardisation.subset(chunk)
            rows = self._pool.read(self.features[chunk])
            out[column_index(self.standardisation.offsets, chunk)] = sweeper.products(rows, part, vectors)
        return out

    def dense(self, positions: IndexArray) -> Float64Array:
        """Return the standardised columns of the features at ``positions``: (n_obs, n_columns) float64."""
        part = self.standardisation.subset(positions)
        if self._rows is not None:
            rows = self._rows[column_index(self.standardisation.offsets, positions)]
        else:
            rows = self._pool.read(self.features[positions])
        return part.materialise(rows)

    def squared_norms(self) -> Float64Array:
        """Return (n_columns,): squared length of each column as standardised."""
        norms = [(self.dense(np.array([position])) ** 2).sum(axis=0) for position in range(len(self.features))]
        return np.concatenate(norms) if norms else np.empty(0)

    def keep(self, positions: IndexArray) -> Columns:
        """Return the features at ``positions`` alone."""
        kept = object.__new__(Columns)
        kept.features = self.features[positions]
        kept.standardisation = self.standardisation.subset(positions)
        kept._pool = self._pool
        kept._rows = None
        if self._rows is not None:
            kept._rows = self._pool.sweeper.gather(self._rows, column_index(self.standardisation.offsets, positions))
        return kept


class ColumnPool:
    """Columns a run has gathered so far, each read from the medium once, within a byte budget.

    A column read only to answer a question (``products``) is set aside until the question is ``settle``d, and not read again if it
    is gathered before. It never joins ``features``: those are what the algorithm asked for, whichever way it was answered.

    Parameters
    ----------
    design : Design
    sweeper : Sweeper
    traffic : Traffic
        Counts what is taken from the medium.
    budget : int
        Bytes of columns to keep in memory; what does not fit is re-read when needed, with the same answer.
    """

    def __init__(self, design: Design, sweeper: Sweeper, traffic: Traffic, budget: int) -> None:
        self.design = design
        self.sweeper = sweeper
        self.traffic = traffic
        self.budget = budget
        self._row_bytes = max(design.n_obs * design.matrix.itemsize, 1)
        self._widths = np.diff(design.standardisation.offsets)
        self._kept = _HeldRows(design.n_obs, design.matrix.dtype)
        self._aside = _HeldRows(design.n_obs, design.matrix.dtype)
        self._glances = Traffic()  # what questions took, less what was gathered afterwards

    @property
    def features(self) -> IndexArray:
        """Features held in memory, ascending."""
        return np.array(sorted(self._kept.slots), dtype=np.int64)

    def columns(self, features: IndexArray) -> Columns:
        """Gather ``features``; columns already held are not read again."""
        return Columns(self, features)

    def rows(self, features: IndexArray) -> AnyArray | None:
        """Return the raw rows of ``features`` as one array, or None when they exceed the budget."""
        widths = self._widths[features]
        if int(widths.sum()) * self._row_bytes > self.budget:
            return None
        missing = features[~self._kept.holds(features)]
        if (self._kept.used + int(self._widths[missing].sum())) * self._row_bytes > self.budget:
            # The pool is full: hold what is wanted now, forget the rest.
            self._kept.clear()
            missing = features
        if len(missing):
            self.traffic.add(len(missing), int(self._widths[missing].sum()) * self._row_bytes)
            aside = self._aside.holds(missing)
            self._gather(missing[~aside], self._kept)
            self._move(missing[aside])
        return self.sweeper.gather(self._kept.array, self._kept.places(features, widths))

    def products(self, features: IndexArray, vectors: Float64Array) -> Float64Array:
        """Return (n_columns, m): the standardised columns of ``features`` times ``vectors`` (n_obs, m), gathered or not."""
        offsets = np.concatenate(([0], np.cumsum(self._widths[features])))
        out = np.empty((int(offsets[-1]), vectors.shape[1]))
        for chunk in self.chunks(features, READ_BYTES):
            kept = self._kept.holds(features[chunk])
            aside = self._aside.holds(features[chunk]) & ~kept
            for source, positions in ((self._kept, chunk[kept]), (self._aside, chunk[aside]), (None, chunk[~kept & ~aside])):
                if len(positions):
                    mine = features[positions]
                    if source is None:
                        rows = self._glance(mine)
                    else:
                        rows = self.sweeper.gather(source.array, source.places(mine, self._widths[mine]))
                    values = self.sweeper.products(rows, self.design.standardisation.subset(mine), vectors)
                    out[column_index(offsets, positions)] = values
        return out

    def settle(self) -> Traffic:
        """Let go of what was set aside; return what questions took from the medium since the last time and nobody gathered."""
        glances, self._glances = self._glances, Traffic()
        self._aside.clear()
        return glances

    def read(self, features: IndexArray) -> AnyArray:
        """Return the raw rows of ``features`` straight from the medium, counted, not kept."""
        columns = column_index(self.design.standardisation.offsets, features)
        self.traffic.add(len(features), len(columns) * self._row_bytes)
        return self.sweeper.gather(self.design.matrix, columns)

    def chunks(self, features: IndexArray, size: int | None = None) -> list[IndexArray]:
        """Split positions of ``features`` into runs whose columns fit half the budget, and ``size`` bytes where given."""
        limit = self.budget // 2 if size is None else min(size, self.budget // 2)
        bins = np.cumsum(self._widths[features] * self._row_bytes) // max(limit, self._row_bytes)
        return np.split(np.arange(len(features)), np.flatnonzero(np.diff(bins)) + 1) if len(features) else []

    def _gather(self, features: IndexArray, into: _HeldRows) -> AnyArray:
        """Read the columns of ``features`` into rows that are held, and return these."""
        columns = column_index(self.design.standardisation.offsets, features)
        rows = self.sweeper.gather(self.design.matrix, columns, into.space(len(columns)))
        into.take(features, self._widths[features])
        return rows

    def _move(self, features: IndexArray) -> None:
        """Move ``features`` from what was set aside to what is kept."""
        widths = self._widths[features]
        places = self._aside.places(features, widths)
        self.sweeper.gather(self._aside.array, places, self._kept.space(len(places)))
        self._kept.take(features, widths)
        self._aside.drop(features)
        # Counted as a glance, and as gathered from now on: one of the two must go.
        self._glances.features_visited -= len(features)
        self._glances.bytes_read -= len(places) * self._row_bytes

    def _glance(self, features: IndexArray) -> AnyArray:
        """Read the columns of ``features`` for a question, counted, and set aside while there is room."""
        rows = int(self._widths[features].sum())
        self._glances.add(len(features), rows * self._row_bytes)
        if (self._kept.used + self._aside.used + rows) * self._row_bytes <= self.budget:
            return self._gather(features, self._aside)
        return self.sweeper.gather(self.design.matrix, column_index(self.design.standardisation.offsets, features))


class _HeldRows:
    """Rows of features in one array that grows by doubling."""

    def __init__(self, n_obs: int, dtype: np.dtype[Any]) -> None:
        self.array = aligned_empty((0, n_obs), dtype)
        self.slots: dict[int, int] = {}  # feature -> its first row
        self.used = 0

    def holds(self, features: IndexArray) -> BoolArray:
        """Tell which of ``features`` are held."""
        slots = self.slots
        return np.array([feature in slots for feature in features.tolist()], dtype=np.bool_)

    def places(self, features: IndexArray, widths: IndexArray) -> IndexArray:
        """Return the rows of ``features``, which have ``widths`` columns, in their order."""
        slots = np.array([self.slots[feature] for feature in features.tolist()], dtype=np.int64)
        if widths.size and int(widths.max()) > 1:
            slots = np.concatenate([np.arange(slot, slot + width) for slot, width in zip(slots, widths, strict=True)])
        return slots

    def space(self, count: int) -> AnyArray:
        """Return room for ``count`` rows behind those in use."""
        if self.used + count > len(self.array):
            grown = aligned_empty((max(self.used + count, 2 * len(self.array)), self.array.shape[1]), self.array.dtype)
            grown[: self.used] = self.array[: self.used]
            self.array = grown
        return self.array[self.used : self.used + count]

    def take(self, features: IndexArray, widths: IndexArray) -> None:
        """Hold the next rows as those of ``features``, which have ``widths`` columns."""
        ends = self.used + np.cumsum(widths)
        self.slots.update(zip(features.tolist(), (ends - widths).tolist(), strict=True))
        self.used += int(widths.sum())

    def drop(self, features: IndexArray) -> None:
        """Forget ``features``; their rows stay in use until ``clear``."""
        for feature in features.tolist():
            del self.slots[feature]

    def clear(self) -> None:
        """Forget everything; a large array is given back."""
        self.slots.clear()
        self.used = 0
        if self.array.nbytes > READ_BYTES:
            self.array = self.array[:0].copy()
