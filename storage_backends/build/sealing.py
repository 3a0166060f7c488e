"""Moments, checksums and codes of whole columns, a few columns at a time while they are in the cache, on all processors.

Invariant: the results depend on the columns only, not on which columns are sealed together or in which order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.matrix.checksum import row_checksums
from fastomp_nvm.matrix.moments import moments
from fastomp_nvm.matrix.threads import ranges, together, unless_others_fail
from fastomp_nvm.matrix.tier import quantise

__all__ = ["Sealer"]

#: Cells sealed at a time: with their codes they fit the second-level cache.
_UNIT_CELLS = 1 << 17
#: Fewest columns of a unit that has to be transposed: a cache line of float32.
_UNIT_COLUMNS = 16


class Sealer:
    """Collects what the sidecars of a store say about its columns.

    Parameters
    ----------
    n_columns, n_obs : int

    Attributes
    ----------
    mean, norm, minimum, maximum : (n_columns,) float64
        As in ``ColumnStatistics``.
    scale, error, size : (n_columns,) float64
        Scale, error and norm as in ``TierSidecar``.
    values, codes : (n_columns,) uint32
        CRC-32 of each column, and of its codes.
    """

    def __init__(self, n_columns: int, n_obs: int) -> None:
        self._n_columns = n_columns
        self._unit = max(_UNIT_COLUMNS, _UNIT_CELLS // n_obs)
        self.mean, self.norm, self.minimum, self.maximum, self.scale, self.error, self.size = np.empty((7, n_columns))
        self.values, self.codes = np.empty((2, n_columns), dtype=np.uint32)
        self._runs: dict[int, int] = {}  # first column of a run of sealed columns -> end of the run

    def seal(
        self,
        first: int,
        columns: AnyArray,
        codes: AnyArray | None,
        *,
        load: Callable[[slice], None] | None = None,
        only_finite: bool = False,
    ) -> list[tuple[int, int]]:
        """Seal whole columns.

        Parameters
        ----------
        first : int
            Column of the store that is the first of ``columns``.
        columns : (m, n_obs) array
        codes : (m, n_obs) int8, optional
            Filled with the codes of the tier.
        load : callable, optional
            Fills a slice of ``columns`` before it is used.
        only_finite : bool
            Leave runs out in which a column has a sum that is not finite, so that it may hold such a value.

        Returns
        -------
        list of (int, int)
            Runs of columns that were left out, ascending, as columns of the store.
        """
        waiting, left = ranges(len(columns), self._unit), []

        def work() -> None:
            for start, end in waiting:
                part = slice(start, end)
                if load is not None:
                    load(part)
                if not self._seal_unit(first + start, columns[part], None if codes is None else codes[part], only_finite):
                    left.append((first + start, first + end))

        processors = len(os.sched_getaffinity(0))
        together(unless_others_fail(work, waiting), min(processors, -(-len(columns) // self._unit)) - 1)
        return sorted(left)

    def open_runs(self, limit: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of columns that are not sealed, of at most ``limit`` columns each."""
        position = 0
        for start, end in (*sorted(self._runs.items()), (self._n_columns,) * 2):
            for first in range(position, start, limit):
                yield first, min(first + limit, start)
            position = end

    def _seal_unit(self, first: int, columns: AnyArray, codes: AnyArray | None, only_finite: bool) -> bool:
        """Seal a run; return whether it was not left out."""
        found, last = moments(columns), first + len(columns)
        if only_finite and not np.isfinite(found.mean).all():
            return False
        self.mean[first:last], self.norm[first:last] = found.mean, found.norm
        self.minimum[first:last], self.maximum[first:last] = found.minimum, found.maximum
        if codes is not None:
            tier = quantise(columns, found, codes)
            self.scale[first:last], self.error[first:last], self.size[first:last] = tier.scale, tier.error, tier.norm
            self.codes[first:last] = row_checksums(codes)
        self.values[first:last] = row_checksums(columns)
        self._runs[first] = last
        return True
