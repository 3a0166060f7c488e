"""The columns a run has gathered: read from the medium once, kept where they arrived, multiplied there again and again.

A pool has a byte budget. Within it a column is read once; what exceeds it is read again whenever it is needed. The budget changes
how many bytes move and nothing else: neither a product nor the set of features that were asked for depends on it. A matrix that is
in memory as a whole is multiplied where it lies, and only counted as if it were gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.matrix.reader import fillable_memory
from fastomp_nvm.matrix.standardisation import Design, Standardisation, column_index
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors, aligned_empty
from fastomp_nvm.matrix.traffic import Traffic

__all__ = ["LARGEST_BUDGET", "ColumnPool", "Columns", "automatic_budget"]

#: Bytes of columns read at a time where they are not to stay.
READ_BYTES = 16 << 20

#: Bounds of the budget where nobody gave one: enough to go on with, and never more than a good neighbour takes.
SMALLEST_BUDGET, LARGEST_BUDGET = 16 << 20, 11 << 28

#: What a pool does with a feature: nothing, hold it until a question is settled, hold it.
_ABSENT: Final = 0
_GLANCED: Final = 1
_KEPT: Final = 2

#: Brings columns of features in: an array, and the rows of it that they are.
_Read: TypeAlias = Callable[[IndexArray], tuple[AnyArray, IndexArray]]


def automatic_budget(needed: int, pools: int = 1) -> int:
    """Return bytes for each of several pools: together two thirds of the memory this process may still fill, within bounds.

    The rest is for what is read or made dense at a time, and for what the algorithms compute from it. Where the most that can be
    ``needed`` is next to nothing, the kernel is not asked: its answer would take longer than the data.
    """
    if needed <= SMALLEST_BUDGET:
        return SMALLEST_BUDGET
    room = fillable_memory() / pools
    return int(min(max(room * 2 / 3, SMALLEST_BUDGET), LARGEST_BUDGET))


class Columns:
    """The columns of some features, at hand for repeated products.

    Attributes
    ----------
    features : (f,) int64
        Which features, in the order of the rows.
    standardisation : Standardisation
        Of these features, by position.
    """

    def __init__(self, pool: ColumnPool, features: IndexArray, standardisation: Standardisation | None = None) -> None:
        self.features = features
        self.standardisation = pool.design.standardisation.subset(features) if standardisation is None else standardisation
        self._pool = pool

    @property
    def exact(self) -> bool:
        """True when products are accumulated in float64 throughout."""
        return bool(self.dtype == np.float64)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the raw columns."""
        return self._pool.design.matrix.dtype

    @property
    def budget(self) -> int:
        """Bytes of memory that columns may take."""
        return self._pool.budget

    @property
    def held(self) -> bool:
        """True when all of them are in memory; otherwise every product reads some again."""
        return self._pool.holds(self.features)

    @property
    def drops(self) -> int:
        """How often columns were let go of: what was ``located`` is where it was as long as this does not change."""
        return self._pool.drops

    def products(self, vectors: Float64Array) -> Float64Array:
        """Return (n_columns, m): these standardised columns times ``vectors`` (n_obs, m)."""
        return self._pool.multiply(self.features, self.standardisation, vectors)

    def share_out(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Have every one of ``tasks`` called once, by the threads that sweep."""
        self._pool.sweeper.share_out(tasks)

    def pieces(self) -> Iterator[tuple[IndexArray, AnyArray, IndexArray]]:
        """Yield which columns come next, an array, and the rows of it that these are until the following piece, raw."""
        return self._pool.pieces(self.features, self.standardisation)

    def dense(self, positions: IndexArray) -> Float64Array:
        """Return the standardised columns of the features at ``positions``: (n_obs, n_columns) float64, Fortran order."""
        some = self.only(positions)
        rows = np.empty((int(some.standardisation.offsets[-1]), self._pool.design.n_obs))
        some.fill(rows)
        return rows.T

    def fill(self, out: AnyArray, factors: Float64Array | None = None) -> None:
        """Fill ``out`` (n_columns, n_obs), float64 or float32, with these as rows, each observation times ``factors`` (n_obs,)."""
        self._pool.fill(self.features, self.standardisation, out, factors)

    def located(self) -> tuple[AnyArray, IndexArray] | None:
        """Return an array and the rows of it that are these columns, raw; None unless all are in memory."""
        return self._pool.located(self.features)

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
    gathered before. It never joins ``features``: those are what the algorithm asked for, whichever way it was answered.

    Parameters
    ----------
    design : Design
    sweeper : Sweeper
    traffic : Traffic
        Counts what is taken from the medium.
    budget : int
        Bytes of columns to keep in memory; what does not fit is re-read when needed, with the same answer.
    resident : bool
        True where the matrix is in memory as a whole: its columns are multiplied there.
    """

    def __init__(self, design: Design, sweeper: Sweeper, traffic: Traffic, budget: int, *, resident: bool = False) -> None:
        self.design = design
        self.sweeper = sweeper
        self.traffic = traffic
        self.budget = budget
        self._row_bytes = max(design.n_obs * design.matrix.itemsize, 1)
        self._capacity = budget // self._row_bytes
        self._offsets = design.standardisation.offsets
        self._widths = np.diff(self._offsets)
        self._asked = np.zeros(design.n_features, dtype=np.bool_)
        self._state = np.zeros(design.n_features, dtype=np.uint8)
        self._kept = self._glanced = 0  # columns in either state
        self._passing = _PassingRows(design.n_obs, design.matrix.dtype)
        self._held = (
            None if resident else _HeldRows(len(design.matrix), design.n_obs, design.matrix.dtype, self._capacity, self._passing)
        )
        self._glances = Traffic()  # what questions took, less what was gathered afterwards
        self.drops = 0  # how often columns were let go of

    @property
    def features(self) -> IndexArray:
        """Features asked for so far, ascending, held or not."""
        return np.flatnonzero(self._asked)

    def columns(self, features: IndexArray) -> Columns:
        """Gather ``features``, as far as the budget goes; columns already held are not read again."""
        self._asked[features] = True
        missing = features[self._state[features] != _KEPT]
        if missing.size:
            self._gather(missing, features)
        return Columns(self, features)

    def holds(self, features: IndexArray) -> bool:
        """Tell whether all of ``features`` are in memory."""
        return bool((self._state[features] != _ABSENT).all())

    def multiply(self, features: IndexArray, standardisation: Standardisation, vectors: Float64Array) -> Float64Array:
        """Return (n_columns, m): ``features``, whose ``standardisation`` this is, times ``vectors`` (n_obs, m)."""
        return self._products(features, standardisation, vectors, self._streamed)

    def products(self, features: IndexArray, vectors: Float64Array) -> Float64Array:
        """Return (n_columns, m): the standardised columns of ``features`` times ``vectors`` (n_obs, m), to answer a question."""
        return self._products(features, self.design.standardisation.subset(features), vectors, self._glance)

    def sweep(self, vectors: Float64Array) -> Float64Array:
        """Return (n_columns, m): all standardised columns times ``vectors`` (n_obs, m), in one sweep, to answer a question."""
        self._glances.add(self.design.n_features, self.design.matrix.nbytes)
        return self.sweeper.products(self.design.matrix, self.design.standardisation, vectors)

    def settle(self) -> Traffic:
        """Let go of what only a question read; return what questions took since the last time and nobody gathered."""
        glances, self._glances = self._glances, Traffic()
        self._drop_glances()
        return glances

    def glanced(self, traffic: Traffic) -> None:
        """Count what a question took elsewhere."""
        self._glances.include(traffic)

    def fill(
        self, features: IndexArray, standardisation: Standardisation, out: AnyArray, factors: Float64Array | None = None
    ) -> None:
        """Fill ``out`` (n_columns, n_obs) with ``features``, standardised; those that are not held are read, and counted."""
        held = self._state[features] != _ABSENT
        if held.all():
            rows, places = self._located(features)
        else:
            rows = aligned_empty((int(standardisation.offsets[-1]), self.design.n_obs), self.design.matrix.dtype)
            columns, places = np.repeat(held, self._widths[features]), np.arange(len(rows))
            if held.any():
                array, here = self._located(features[held])
                rows[columns] = array[here]
            rows[~columns] = self.read(features[~held])
        standardisation.fill(rows, places, out, factors)

    def read(self, features: IndexArray) -> AnyArray:
        """Return the raw rows of ``features`` straight from the medium, counted, not kept."""
        columns = column_index(self._offsets, features)
        self.traffic.add(len(features), len(columns) * self._row_bytes)
        return self.sweeper.gather(self.design.matrix, columns)

    def _read_in_passing(self, features: IndexArray) -> tuple[AnyArray, IndexArray]:
        """Return rows that are ``features`` until the next ones pass, and their places."""
        columns = column_index(self._offsets, features)
        rows = self.sweeper.gather(self.design.matrix, columns, self._passing.room(len(columns)))
        return rows, np.arange(len(rows))

    def pieces(
        self, features: IndexArray, standardisation: Standardisation, read: _Read | None = None
    ) -> Iterator[tuple[IndexArray, AnyArray, IndexArray]]:
        """Yield the columns of ``features``: what is held where it lies, and the rest as ``read`` brings it in.

        Yields
        ------
        (c,) int64, array, (c,) int64
            Which columns of ``standardisation``; an array, and which of its rows they are until the next piece.
        """
        held = self._state[features] != _ABSENT
        here = np.flatnonzero(held)
        if here.size:
            yield column_index(standardisation.offsets, here), *self._located(features[here])
        if len(here) < len(features):
            for chunk in self._chunks(features, np.flatnonzero(~held)):
                yield column_index(standardisation.offsets, chunk), *(read or self._streamed)(features[chunk])

    def _products(self, features: IndexArray, standardisation: Standardisation, vectors: Float64Array, read: _Read) -> Float64Array:
        """Multiply the pieces of ``features``."""
        prepared = Vectors(vectors, self.design.matrix.dtype)
        raw = np.empty((int(standardisation.offsets[-1]), vectors.shape[1]))
        for local, array, places in self.pieces(features, standardisation, read):
            found = self.sweeper.dots_at(array, places, prepared, standardisation.wide[local])
            if len(found) == len(raw):
                raw = found
            else:
                raw[local] = found
        return standardisation.apply(raw, prepared.sums, prepared.wide_sums)

    def located(self, features: IndexArray) -> tuple[AnyArray, IndexArray] | None:
        """Return an array and the rows of it that are the columns of ``features``; None unless all are held."""
        return self._located(features) if self.holds(features) else None

    def _located(self, features: IndexArray) -> tuple[AnyArray, IndexArray]:
        """Return an array and the rows of it that are the columns of ``features``, which are held."""
        columns = column_index(self._offsets, features)
        return (self.design.matrix, columns) if self._held is None else (self._held.array, self._held.places(columns))

    def _chunks(self, features: IndexArray, positions: IndexArray) -> list[IndexArray]:
        """Split ``positions`` in ``features`` into runs whose columns fit ``READ_BYTES`` and half the budget."""
        limit = max(min(READ_BYTES, self.budget // 2), self._row_bytes)
        bins = np.cumsum(self._widths[features[positions]] * self._row_bytes) // limit
        return np.split(positions, np.flatnonzero(np.diff(bins)) + 1)

    def _streamed(self, features: IndexArray) -> tuple[AnyArray, IndexArray]:
        """Read ``features`` for one product, counted."""
        self.traffic.add(len(features), int(self._widths[features].sum()) * self._row_bytes)
        return self._read_in_passing(features)

    def _glance(self, features: IndexArray) -> tuple[AnyArray, IndexArray]:
        """Read ``features`` for a question, counted, and hold them while there is room."""
        columns = int(self._widths[features].sum())
        self._glances.add(len(features), columns * self._row_bytes)
        if self._kept + self._glanced + columns > self._capacity:
            return self._read_in_passing(features)
        self._glanced += columns
        self._state[features] = _GLANCED
        self._load(features)
        return self._located(features)

    def _gather(self, missing: IndexArray, wanted: IndexArray) -> None:
        """Hold the features ``missing`` of ``wanted`` as far as the budget goes, whatever questions have read of them."""
        widths = self._widths[missing]
        needed, room = int(widths.sum()), self._capacity - self._kept
        if needed > room:
            room += self._forget(wanted, needed - room)
            fitting = np.cumsum(widths) <= room
            missing, needed = missing[fitting], int(widths[fitting].sum())
            if not missing.size:
                return
        self.traffic.add(len(missing), needed * self._row_bytes)
        known = missing[self._state[missing] == _GLANCED]
        columns = int(self._widths[known].sum())
        # Counted as a glance, and as gathered from now on: one of the two must go.
        self._glances.features_visited -= len(known)
        self._glances.bytes_read -= columns * self._row_bytes
        unread = missing[self._state[missing] == _ABSENT]
        self._state[missing] = _KEPT
        self._kept, self._glanced = self._kept + needed, self._glanced - columns
        if self._kept + self._glanced > self._capacity:
            self._drop_glances()
        self._load(unread)

    def _load(self, features: IndexArray) -> None:
        """Bring the columns of ``features`` into memory."""
        if self._held is not None and features.size:
            matrix, gather = self.design.matrix, self.sweeper.gather
            self._held.load(column_index(self._offsets, features), lambda columns, out: gather(matrix, columns, out))

    def _forget(self, wanted: IndexArray, columns: int) -> int:
        """Let go of kept features that are not ``wanted``, until ``columns`` of them are free; return how many were."""
        unwanted = np.setdiff1d(np.flatnonzero(self._state == _KEPT), wanted, assume_unique=True)
        freed = np.cumsum(self._widths[unwanted])
        gone = unwanted[: int(np.searchsorted(freed, columns)) + 1]
        if not gone.size:
            return 0
        self._drop(gone)
        self._kept -= int(freed[len(gone) - 1])
        return int(freed[len(gone) - 1])

    def _drop_glances(self) -> None:
        """Let go of what only questions read."""
        if self._glanced:
            self._drop(np.flatnonzero(self._state == _GLANCED))
            self._glanced = 0

    def _drop(self, features: IndexArray) -> None:
        """Give the memory of ``features`` back."""
        self.drops += 1
        self._state[features] = _ABSENT
        if self._held is not None:
            self._held.drop(column_index(self._offsets, features))


class _PassingRows:
    """Memory for rows that are used once: the same every time, because fresh pages cost more than what is read into them.

    Parameters
    ----------
    n_obs : int
    dtype : dtype
    """

    def __init__(self, n_obs: int, dtype: np.dtype[Any]) -> None:
        self._rows = aligned_empty((0, n_obs), dtype)

    def room(self, count: int) -> AnyArray:
        """Return ``count`` rows; what they held is gone."""
        if len(self._rows) < count:
            self._rows = aligned_empty((count, self._rows.shape[1]), self._rows.dtype)
        return self._rows[:count]


class _HeldRows:
    """Rows of columns in memory; a row given back is used again.

    Parameters
    ----------
    n_columns, n_obs : int
    dtype : dtype
    capacity : int
        Most rows there can be. Their addresses are taken at once, and only pages that are written take memory: nothing is copied to
        grow.
    passing : _PassingRows
        Where rows are read that take places here and there.
    """

    def __init__(self, n_columns: int, n_obs: int, dtype: np.dtype[Any], capacity: int, passing: _PassingRows) -> None:
        self.array = aligned_empty((min(capacity, n_columns), n_obs), dtype)
        self._passing = passing
        self._place = np.zeros(n_columns, dtype=np.int32)  # 1 + the row of a column; zeros that nobody touches take no memory
        self._free = np.empty(0, dtype=np.int64)
        self._used = 0

    def places(self, columns: IndexArray) -> IndexArray:
        """Return the rows of ``columns``, which are all here."""
        return self._place[columns].astype(np.int64) - 1

    def load(self, columns: IndexArray, gather: Callable[[IndexArray, AnyArray], AnyArray]) -> None:
        """Have ``gather(columns, out)`` bring in ``columns``, which are not here."""
        again, self._free = self._free[: len(columns)], self._free[len(columns) :]
        step = max(min(READ_BYTES // max(self.array.shape[1] * self.array.itemsize, 1), len(self.array) // 2), 1)
        for first in range(0, len(again), step):
            rows = again[first : first + step]
            self.array[rows] = gather(columns[first : first + len(rows)], self._passing.room(len(rows)))
        self._place[columns[: len(again)]] = again + 1
        fresh = columns[len(again) :]
        if fresh.size:
            first, self._used = self._used, self._used + len(fresh)
            gather(fresh, self.array[first : self._used])
            self._place[fresh] = np.arange(first + 1, self._used + 1)

    def drop(self, columns: IndexArray) -> None:
        """Free the rows of ``columns``."""
        self._free = np.concatenate((self._free, self.places(columns)))
        self._place[columns] = 0
