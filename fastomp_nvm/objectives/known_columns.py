"""A cache of dense float64 columns and their Gram matrix, for the first few hundred columns of a run.

Multiplying a few hundred columns with each other once costs less than multiplying them again in every round. Which columns are
added, and in which order, depends on the algorithm alone, not on medium, threads, budget or other runs. So BLAS may compute the
products, whose bits depend on shapes, and the answer is the same everywhere.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat

import numpy as np

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns

__all__ = ["MOST_ENTRIES", "KnownColumns"]

#: Columns in the cache at most.
MOST_COLUMNS = 320

#: New columns that one thread multiplies at a time. The bits depend on this, not on the number of threads.
AT_ONCE = 64

#: Entries of dense columns in memory at once: 64 MB.
MOST_ENTRIES = 1 << 23


class KnownColumns:
    """Columns of the features asked for, each computed once.

    Parameters
    ----------
    factors : (n_obs,) float64, optional
        Square root of each observation's weight.
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
        self._first: dict[int, int] = {}  # feature -> row of its first column
        self._used, self._capacity = 0, min(MOST_COLUMNS, MOST_ENTRIES // len(response))

    def places(self, columns: Columns) -> IndexArray | None:
        """Return the rows of ``columns``, computing new ones; None when there would be too many."""
        offsets, features = columns.standardisation.offsets, columns.features.tolist()
        first = np.fromiter(map(self._first.get, features, repeat(-1)), dtype=np.int64, count=len(features))
        new = np.flatnonzero(first < 0)
        if new.size:
            widths, n_obs = offsets[new + 1] - offsets[new], self.rows.shape[1]
            start, end, capacity = self._used, self._used + int(widths.sum()), self._capacity
            if end > capacity:
                return None
            if not len(self.rows):
                self.rows, self.moves = np.empty((capacity, n_obs)), np.empty(capacity)
                self._gram = np.empty((capacity, capacity))
            columns.fill(self.rows[start:end], self._factors, new)
            self.moves[start:end] = self.rows[start:end] @ self._response
            starts = range(start, end, AT_ONCE)
            tasks = list(map(partial, repeat(self._multiply), starts, [*starts[1:], end]))
            # The last block meets the most columns: the longest task begins first.
            columns.share_out(tasks[::-1], (end * end - start * start) // 2 * n_obs)
            first[new] = start + np.cumsum(widths) - widths
            self._first.update(zip(columns.features[new].tolist(), first[new].tolist(), strict=True))
            self._used = end
        if len(features) == offsets[-1]:  # one column each
            return first
        return np.asarray(np.repeat(first - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1]), dtype=np.int64)

    def make_room(self, columns: Columns) -> None:
        """Empty the cache where ``columns`` fit in it, but not beside the others; rows returned before are invalid then."""
        features, widths = columns.features.tolist(), np.diff(columns.standardisation.offsets)
        new = np.fromiter((feature not in self._first for feature in features), dtype=np.bool_, count=len(features))
        if self._used + int(widths[new].sum()) > self._capacity >= int(widths.sum()):
            self._first, self._used = {}, 0

    def gram(self, rows: IndexArray, columns: IndexArray) -> Float64Array:
        """Return a copy of the Gram matrix of the columns in ``rows`` with the columns in ``columns``."""
        return self._gram.take(rows, axis=0).take(columns, axis=1)

    def blocks(self, places: IndexArray, ridge: float) -> Float64Array:
        """Return (f, d, d): the Gram matrix of the columns in each of ``places`` (f, d), the ridge on their diagonals."""
        return np.asarray(self._gram[places[:, :, None], places[:, None, :]] + ridge * np.eye(places.shape[1]))

    def combination(self, places: IndexArray, coef: Float64Array) -> Float64Array:
        """Return (n_obs,): the linear combination of the columns in rows ``places`` with coefficients ``coef``."""
        scattered = np.zeros(self._used)
        scattered[places] = coef
        return np.asarray(scattered @ self.rows[: self._used])

    def _multiply(self, first: int, last: int) -> None:
        """Compute the products of rows ``first`` to ``last`` with all rows up to ``last``."""
        products = np.matmul(self.rows[first:last], self.rows[:last].T, out=self._gram[first:last, :last])
        self._gram[:first, first:last] = products[:, :first].T
