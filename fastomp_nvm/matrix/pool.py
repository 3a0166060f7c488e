"""The columns a run has gathered: read from the medium once, kept in memory, multiplied many times.

A pool has a byte budget. Within it a column is read once; columns beyond it are read again whenever they are needed. The budget
changes how many bytes are read and nothing else: neither a product nor the set of gathered features depends on it. A matrix that
is one array in memory, or a mapped file in the page cache, is multiplied in place and only counted as if columns were gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.matrix import lost_pages
from fastomp_nvm.matrix.fixed import Fixed
from fastomp_nvm.matrix.memory import aligned_empty, fillable_memory
from fastomp_nvm.matrix.rows import Design, Rows
from fastomp_nvm.matrix.standardisation import Standardisation, column_index
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.matrix.traffic import Traffic

__all__ = ["BUDGET_REASON", "LARGEST_BUDGET", "PROBE_BYTES", "ColumnPool", "Columns", "automatic_budget"]

#: Bytes of columns read at a time where they are not kept.
READ_BYTES = 16 << 20

#: Most bytes of columns that are held for one question: fresh memory for more of them costs more than to read the few again that
#: are gathered afterwards.
PROBE_BYTES = 64 << 20

#: Bounds of the automatic budget: enough to work with, and little enough to leave memory to other processes.
SMALLEST_BUDGET, LARGEST_BUDGET = 16 << 20, 11 << 28
BUDGET_REASON = "a share of three fifths of free memory, from 16 MiB to 2.75 GiB; less where all columns take less"

#: Bytes for which free memory is not looked up: that takes longer than many a selection.
FEW_BYTES = 64 << 20

#: State of a feature: not held, held until a question is settled, held.
_ABSENT: Final = 0
_PROBED: Final = 1
_KEPT: Final = 2

#: Reads the columns of features; returns an array and the rows of it that hold them.
_Read: TypeAlias = Callable[[IndexArray], tuple[AnyArray, IndexArray]]


def automatic_budget(needed: int, pools: int = 1) -> int:
    """Return the budget of each of several pools: together three fifths of the memory this process may still fill, within bounds.

    The rest is for buffers, dense columns and the algorithms' own arrays. Pools that need few bytes get them.
    """
    if needed * pools <= FEW_BYTES:
        return max(needed, SMALLEST_BUDGET)
    room = fillable_memory() / pools
    return int(min(max(room * 3 / 5, SMALLEST_BUDGET), LARGEST_BUDGET))


class Columns:
    """The columns of some features, ready for repeated products.

    Attributes
    ----------
    features : (f,) int64
        Which features, in the order of the rows.
    standardisation : Standardisation
        Of these features, by position.
    dtype : dtype
        Element type of the raw columns.
    exact : bool
        True when products are accumulated in float64 throughout.
    budget : int
        Bytes of memory that columns may take.
    share_out : callable
        Calls each of a sequence of tasks once, on the threads that sweep; see ``Sweeper.share_out``.
    """

    def __init__(self, pool: ColumnPool, features: IndexArray, standardisation: Standardisation | None = None) -> None:
        self.features = features
        self.standardisation = pool.design.standardisation.subset(features) if standardisation is None else standardisation
        self.dtype = pool.design.matrix.dtype
        self.exact = bool(self.dtype == np.float64)
        self.budget = pool.budget
        self.share_out = pool.sweeper.share_out
        self._pool = pool

    @property
    def held(self) -> bool:
        """True when all of them are in memory; otherwise every product reads some again."""
        return self._pool.holds(self.features)

    @property
    def drops(self) -> int:
        """How often the pool released columns: rows returned by ``located`` stay where they are while this does not change."""
        return self._pool.drops

    def products(self, vectors: Float64Array) -> Float64Array:
        """Return (n_columns, m): these standardised columns times ``vectors`` (n_obs, m)."""
        return self._pool.multiply(self.features, self.standardisation, vectors)

    def pieces(self) -> Iterator[tuple[IndexArray, AnyArray, IndexArray]]:
        """Yield which columns come next, an array, and the rows of it that hold them, raw, until the following piece."""
        return self._pool.pieces(self.features, self.standardisation)

    def dense(self, positions: IndexArray) -> Float64Array:
        """Return the standardised columns of the features at ``positions``: (n_obs, n_columns) float64, Fortran order."""
        offsets = self.standardisation.offsets
        rows = np.empty((int((offsets[positions + 1] - offsets[positions]).sum()), self._pool.design.matrix.shape[1]))
        self.fill(rows, positions=positions)
        return rows.T

    def whole(self, positions: IndexArray) -> Float64Array:
        """Return the columns of the features at ``positions`` as ``dense`` does, with their parts along fixed directions."""
        return self._pool.whole(self.features[positions])

    def fill(self, out: AnyArray, factors: Float64Array | None = None, positions: IndexArray | None = None) -> None:
        """Fill ``out`` (n_columns, n_obs), float64 or float32, with these as rows, each observation times ``factors`` (n_obs,).

        With ``positions`` only the features there.
        """
        features, standardisation = self.features, self.standardisation
        if positions is not None:
            features, standardisation = features[positions], standardisation.subset(positions)
        self._pool.fill(features, standardisation, out, factors)

    def located(self) -> tuple[AnyArray, IndexArray] | None:
        """Return an array and the rows of it that hold these columns, raw; None unless all are in memory."""
        return self._pool.located(self.features) if self.held else None

    def keep(self, positions: IndexArray) -> Columns:
        """Return the features at ``positions`` alone; those that had no room may have it now."""
        features = self.features[positions]
        return self.only(positions) if self._pool.holds(features) else self._pool.columns(features)

    def only(self, positions: IndexArray) -> Columns:
        """Return the features at ``positions`` alone, held or not as they are."""
        return Columns(self._pool, self.features[positions], self.standardisation.subset(positions))


class ColumnPool:
    """Columns a run has gathered so far, each read from the medium once, within a byte budget.

    A column read only to answer a question (``products``) is held until the question is ``settle``d, and not read again if it is
    gathered before. It never joins ``features``, the features that the algorithm itself gathered.

    Parameters
    ----------
    design : Design
    sweeper : Sweeper
    traffic : Traffic
        Counts bytes read from the medium.
    budget : int
        Bytes of columns to keep in memory; columns beyond it are read again when needed, with the same answer.
    resident : bool
        True where the matrix is one array in memory or in the page cache: its columns are multiplied there.
    fixed : Fixed, optional
        Directions that are projected out of dense columns; products are those of whole columns.
    """

    def __init__(
        self,
        design: Design,
        sweeper: Sweeper,
        traffic: Traffic,
        budget: int,
        *,
        resident: bool = False,
        fixed: Fixed | None = None,
    ) -> None:
        matrix = design.matrix
        self.fixed = fixed
        self.design = design
        self.sweeper = sweeper
        self.traffic = traffic if matrix.counted else Traffic()
        self.budget = budget
        self._row_bytes = max(matrix.shape[1] * matrix.itemsize, 1)
        self._read_bytes = max(matrix.nbytes // max(matrix.shape[0], 1), 1)  # of a column on the medium
        self._capacity = budget // self._row_bytes
        self._most_probed = PROBE_BYTES // self._row_bytes
        self._offsets = design.standardisation.offsets
        self._widths = np.diff(self._offsets)
        self._asked = np.zeros(len(self._widths), dtype=np.bool_)
        self._state = np.zeros(len(self._widths), dtype=np.uint8)
        self._kept = self._probed = 0  # columns in either state
        self._held = None if resident else _HeldRows(matrix, sweeper, self._capacity)
        self._probes = Traffic()  # bytes read for questions, less columns gathered afterwards
        self.drops = 0  # how often columns were released

    @property
    def features(self) -> IndexArray:
        """Features gathered so far, ascending, held or not."""
        return np.flatnonzero(self._asked)

    def columns(self, features: IndexArray) -> Columns:
        """Gather ``features``, as far as the budget goes; columns already held are not read again."""
        self._asked[features] = True
        missing = features[self._state[features] != _KEPT]
        widths = self._widths[missing]
        needed, room = int(widths.sum()), self._capacity - self._kept
        if needed > room:
            room += self._forget(features, needed - room)
            fitting = np.cumsum(widths) <= room
            missing, needed = missing[fitting], int(widths[fitting].sum())
        if missing.size:
            self.traffic.include(Traffic(1, len(missing), needed * self._read_bytes))
            known = missing[self._state[missing] == _PROBED]
            columns = int(self._widths[known].sum())
            # Counted as read for a question before, and as gathered from now on: counted once.
            self._probes.include(Traffic(0, len(known), columns * self._read_bytes), -1)
            unread = missing[self._state[missing] == _ABSENT]
            self._state[missing] = _KEPT
            self._kept, self._probed = self._kept + needed, self._probed - columns
            if self._probed and self._kept + self._probed > self._capacity:
                self._drop_probes()
            if self._held is not None and unread.size:
                self._held.load(column_index(self._offsets, unread))
        return Columns(self, features)

    def holds(self, features: IndexArray) -> bool:
        """Tell whether all of ``features`` are in memory."""
        return bool((self._state[features] != _ABSENT).all())

    def products(self, features: IndexArray, vectors: Float64Array) -> Float64Array:
        """Return (n_columns, m): the standardised columns of ``features`` times ``vectors`` (n_obs, m), to answer a question."""
        return self.multiply(features, self.design.standardisation.subset(features), vectors, self._probe)

    def multiply(
        self, features: IndexArray, standardisation: Standardisation, vectors: Float64Array, read: _Read | None = None
    ) -> Float64Array:
        """Return (n_columns, m): ``features``, whose ``standardisation`` this is, times ``vectors`` (n_obs, m)."""
        prepared = Vectors(vectors, self.design.matrix.dtype)
        raw = np.empty((int(standardisation.offsets[-1]), vectors.shape[1]))
        for local, array, places in self.pieces(features, standardisation, read):
            found = self.sweeper.dots_at(array, places, prepared, standardisation.wide[local])
            if len(found) == len(raw):
                raw = found
            else:
                raw[local] = found
        self.check()
        return standardisation.apply(raw, prepared.sums, prepared.wide_sums)

    def pieces(
        self, features: IndexArray, standardisation: Standardisation, read: _Read | None = None
    ) -> Iterator[tuple[IndexArray, AnyArray, IndexArray]]:
        """Yield the columns of ``features``: held ones where they lie, the others as ``read`` brings them in.

        Yields
        ------
        (c,) int64, array, (c,) int64
            Which columns of ``standardisation``; an array, and the rows of it that hold them until the next piece.
        """
        held = self._state[features] != _ABSENT
        here = np.flatnonzero(held)
        if here.size:
            yield column_index(standardisation.offsets, here), *self.located(features[here])
        if len(here) < len(features):
            for chunk in self._chunks(features, np.flatnonzero(~held)):
                yield column_index(standardisation.offsets, chunk), *(read or self._stream)(features[chunk])

    def settle(self) -> Traffic:
        """Release columns that only a question read; return the bytes that questions took since the last call."""
        self.check()
        probes, self._probes = self._probes, Traffic()
        if self._probed:
            self._drop_probes()
        return probes

    def check(self) -> None:
        """Raise ``MediumError`` where columns are multiplied in a mapped file that lost pages."""
        if self._held is None and self.design.matrix.array is not None:
            lost_pages.check(self.design.matrix.array)

    def count_probe(self, traffic: Traffic) -> None:
        """Count bytes that a question took elsewhere."""
        self._probes.include(traffic)

    def fill(
        self, features: IndexArray, standardisation: Standardisation, out: AnyArray, factors: Float64Array | None = None
    ) -> None:
        """Fill ``out`` (n_columns, n_obs) with ``features``, whose ``standardisation`` this is, as ``Columns.fill`` does."""
        if self.fixed is None:
            standardisation.fill(*self.raw(features), out, factors)
        else:
            standardisation.fill(*self.raw(features), out)
            self.fixed.project(out)
            if factors is not None:
                out *= factors
        self.check()

    def whole(self, features: IndexArray) -> Float64Array:
        """Return the dense columns of ``features``, (n_obs, n_columns), with their parts along the fixed directions."""
        standardisation = self.design.standardisation.subset(features)
        rows = np.empty((int(standardisation.offsets[-1]), self.design.matrix.shape[1]))
        standardisation.fill(*self.raw(features), rows)
        return rows.T

    def read_dense(self, features: IndexArray) -> Float64Array:
        """Return the dense columns of ``features``, (n_obs, n_columns), straight from the medium, counted, not kept."""
        dense = self.design.standardisation.subset(features).materialise(self.read(features))
        if self.fixed is not None:
            self.fixed.project(dense.T)
        return dense

    def raw(self, features: IndexArray) -> tuple[AnyArray, IndexArray]:
        """Return an array and the rows of it that hold ``features``; columns that are not held are read, and counted."""
        held = self._state[features] != _ABSENT
        if held.all():
            return self.located(features)
        inside = np.repeat(held, self._widths[features])
        rows = aligned_empty((len(inside), self.design.matrix.shape[1]), self.design.matrix.dtype)
        if held.any():
            array, here = self.located(features[held])
            rows[inside] = array[here]
        rows[~inside] = self.read(features[~held])
        return rows, np.arange(len(rows))

    def read(self, features: IndexArray) -> AnyArray:
        """Return the raw rows of ``features`` straight from the medium, counted, not kept."""
        columns = column_index(self._offsets, features)
        self.traffic.include(Traffic(1, len(features), len(columns) * self._read_bytes))
        return self.sweeper.gather(self.design.matrix, columns)

    def located(self, features: IndexArray) -> tuple[AnyArray, IndexArray]:
        """Return an array and the rows of it that hold the columns of ``features``, which must be held."""
        columns = column_index(self._offsets, features)
        if self._held is None:
            assert self.design.matrix.array is not None, "a resident matrix is one array"
            self.design.matrix.check(columns)
            return self.design.matrix.array, columns
        return self._held.array, self._held.places(columns)

    def _chunks(self, features: IndexArray, positions: IndexArray) -> list[IndexArray]:
        """Split ``positions`` in ``features`` into runs whose columns fit ``READ_BYTES`` and half the budget."""
        limit = max(min(READ_BYTES, self.budget // 2), self._row_bytes)
        bins = np.cumsum(self._widths[features[positions]] * self._row_bytes) // limit
        return np.split(positions, np.flatnonzero(np.diff(bins)) + 1)

    def _stream(self, features: IndexArray) -> tuple[AnyArray, IndexArray]:
        """Read ``features`` for one product, counted."""
        columns = column_index(self._offsets, features)
        self.traffic.include(Traffic(1, len(features), len(columns) * self._read_bytes))
        return self.located(features) if self._held is None else self._held.passing(columns)

    def _probe(self, features: IndexArray) -> tuple[AnyArray, IndexArray]:
        """Read ``features`` for a question, counted, and hold them while there is room."""
        columns = column_index(self._offsets, features)
        self._probes.include(Traffic(1, len(features), len(columns) * self._read_bytes))
        probed = self._probed + len(columns)
        if probed > self._most_probed or self._kept + probed > self._capacity:
            return self.located(features) if self._held is None else self._held.passing(columns)
        self._probed = probed
        self._state[features] = _PROBED
        if self._held is not None:
            self._held.load(columns)
        return self.located(features)

    def _forget(self, wanted: IndexArray, columns: int) -> int:
        """Release kept features that are not ``wanted``, until ``columns`` columns are free; return how many were freed."""
        unwanted = np.setdiff1d(np.flatnonzero(self._state == _KEPT), wanted, assume_unique=True)
        freed = np.cumsum(self._widths[unwanted])
        gone = unwanted[: int(np.searchsorted(freed, columns)) + 1]
        if not gone.size:
            return 0
        self._drop(gone)
        self._kept -= int(freed[len(gone) - 1])
        return int(freed[len(gone) - 1])

    def _drop_probes(self) -> None:
        """Release columns that only questions read."""
        self._drop(np.flatnonzero(self._state == _PROBED))
        self._probed = 0

    def _drop(self, features: IndexArray) -> None:
        """Release the memory of ``features``."""
        self.drops += 1
        self._state[features] = _ABSENT
        if self._held is not None:
            self._held.drop(column_index(self._offsets, features))


class _HeldRows:
    """Columns of a matrix in memory; a row that is released is used again.

    Parameters
    ----------
    rows : Rows
    sweeper : Sweeper
    capacity : int
        Most rows there can be. Their addresses are reserved at once and only written pages take memory: nothing is copied to grow.
    """

    def __init__(self, rows: Rows, sweeper: Sweeper, capacity: int) -> None:
        self.array = aligned_empty((min(capacity, rows.shape[0]), rows.shape[1]), rows.dtype)
        self._rows = rows
        self._sweeper = sweeper
        self._scratch = self.array[:0]
        self._place = np.zeros(rows.shape[0], dtype=np.int32)  # 1 + the row of a column; untouched zeros take no memory
        self._free = np.empty(0, dtype=np.int64)
        self._used = 0

    def passing(self, columns: IndexArray) -> tuple[AnyArray, IndexArray]:
        """Return an array that holds ``columns`` until the next call, and their rows: fresh pages would cost more than reading."""
        if len(self._scratch) < len(columns):
            self._scratch = aligned_empty((len(columns), self._rows.shape[1]), self._rows.dtype)
        return self._sweeper.gather(self._rows, columns, self._scratch[: len(columns)]), np.arange(len(columns))

    def places(self, columns: IndexArray) -> IndexArray:
        """Return the rows of ``columns``, which must all be here."""
        return self._place[columns].astype(np.int64) - 1

    def load(self, columns: IndexArray) -> None:
        """Read ``columns``, none of which is here."""
        again, self._free = self._free[: len(columns)], self._free[len(columns) :]
        step = max(min(READ_BYTES // max(self.array.shape[1] * self.array.itemsize, 1), len(self.array) // 2), 1)
        for first in range(0, len(again), step):
            rows = again[first : first + step]
            self.array[rows], _ = self.passing(columns[first : first + len(rows)])
        self._place[columns[: len(again)]] = again + 1
        fresh = columns[len(again) :]
        if fresh.size:
            first, self._used = self._used, self._used + len(fresh)
            self._sweeper.gather(self._rows, fresh, self.array[first : self._used])
            self._place[fresh] = np.arange(first + 1, self._used + 1)

    def drop(self, columns: IndexArray) -> None:
        """Free the rows of ``columns``."""
        self._free = np.concatenate((self._free, self.places(columns)))
        self._place[columns] = 0
