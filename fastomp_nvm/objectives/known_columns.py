"""The columns a run has met, as long as they are few: dense in float64, with their Gram matrix.

A few hundred columns cost less to multiply with each other once than to multiply again in every round. Which columns come, and in
which order, is up to the algorithm alone: not to medium, threads, budget or company. So BLAS may compute their products, whose bits
depend on shapes, and the answer is the same everywhere.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat

import numpy as np

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns

__all__ = ["MOST_ENTRIES", "KnownColumns"]

#: Columns that count as few.
MOST_COLUMNS = 320

#: New columns that one thread multiplies at a time. Part of what the bits depend on, as the number of threads is not.
AT_ONCE = 64

#: Entries of dense columns held, or made, at once: 64 MB.
MOST_ENTRIES = 1 << 23


class KnownColumns:
    """Columns of features that were asked for, each computed once.

    Parameters
    ----------
    factors : (n_obs,) float64, optional
        The root of each observation's weight.
    response : (n_obs,) float64
        Weighted.

    Attributes
    ----------
    rows : (capacity, n_obs) float64
        One standardised and weighted column each.
    moves : (capacity,) float64
        Their products with the response.
    """

    def __init__(self, factors: Float64Array | None, response: Float64Array) -> None:
        self.rows, self.moves = np.empty((0, len(response))), np.empty(0)
        self._factors, self._response = factors, response
        self._gram = np.empty((0, 0))
        self._first: dict[int, int] = {}  # feature -> the place of its first column
        self._used = 0

    def places(self, columns: Columns) -> IndexArray | None:
        """Return the rows that are ``columns``, computed where they are new; None when they would be too many."""
        offsets, features = columns.standardisation.offsets, columns.features.tolist()
        first = np.fromiter(map(self._first.get, features, repeat(-1)), dtype=np.int64, count=len(features))
        new = np.flatnonzero(first < 0)
        if new.size:
            count = int((offsets[new + 1] - offsets[new]).sum())
            if self._used + count > min(MOST_COLUMNS, MOST_ENTRIES // self.rows.shape[1]):
                return None
            first[new] = self._add(columns, new, count)
        if len(features) == offsets[-1]:  # one column each
            return first
        return np.asarray(np.repeat(first - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1]), dtype=np.int64)

    def gram(self, rows: IndexArray, columns: IndexArray) -> Float64Array:
        """Return a copy of the products of the columns at places ``rows`` with those at places ``columns``."""
        return self._gram.take(rows, axis=0).take(columns, axis=1)

    def combination(self, places: IndexArray, coef: Float64Array) -> Float64Array:
        """Return (n_obs,): the columns at ``places`` times ``coef``, added up where they lie."""
        scattered = np.zeros(self._used)
        scattered[places] = coef
        return np.asarray(scattered @ self.rows[: self._used])

    def _add(self, columns: Columns, positions: IndexArray, count: int) -> IndexArray:
        """Compute the ``count`` columns of the features at ``positions``, and their products with all known columns.

        Returns the row of the first column of each.
        """
        if not len(self.rows):
            capacity = min(MOST_COLUMNS, MOST_ENTRIES // self.rows.shape[1])
            self.rows, self._gram = np.empty((capacity, self.rows.shape[1])), np.empty((capacity, capacity))
            self.moves = np.empty(capacity)
        new = slice(self._used, self._used + count)
        fresh = self.rows[new]
        columns.only(positions).fill(fresh, self._factors)
        self.moves[new] = fresh @ self._response
        starts = range(self._used, new.stop, AT_ONCE)
        tasks = list(map(partial, repeat(self._multiply), starts, [*starts[1:], new.stop]))
        columns.share_out(tasks[::-1])  # the last block meets the most columns: the longest task begins first
        offsets = columns.standardisation.offsets
        widths = offsets[positions + 1] - offsets[positions]
        first = self._used + np.cumsum(widths) - widths
        self._first.update(zip(columns.features[positions].tolist(), first.tolist(), strict=True))
        self._used += count
        return np.asarray(first)

    def _multiply(self, first: int, last: int) -> None:
        """Compute the products of the columns at places ``first`` to ``last`` with these and all before."""
        products = np.matmul(self.rows[first:last], self.rows[:last].T, out=self._gram[first:last, :last])
        self._gram[:first, first:last] = products[:, :first].T
