"""Moments, checksums and codes of whole columns, a few columns at a time while they are in the cache, on all processors.

Invariant: the results depend on the columns and the block grid only, not on which columns are sealed together or in which order.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.matrix.checksum import crc32, crc32_joined
from fastomp_nvm.matrix.moments import moments
from fastomp_nvm.matrix.threads import together, unless_others_fail
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
    blocks : (n_blocks + 1,) int64
        Edges of the blocks that have checksums.
    n_obs : int

    Attributes
    ----------
    mean, norm, minimum, maximum : (n_columns,) float64
        As in ``ColumnStatistics``.
    scale, error, size : (n_columns,) float64
        Scale, error and norm as in ``TierSidecar``.
    """

    def __init__(self, blocks: IndexArray, n_obs: int) -> None:
        self._edges: list[int] = blocks.tolist()
        self._n_obs = n_obs
        self.mean, self.norm, self.minimum, self.maximum, self.scale, self.error, self.size = np.empty((7, self._edges[-1]))
        #: First column of a run of sealed columns -> end of the run, CRC-32 and length of its values, and of its codes.
        self._runs: dict[int, tuple[int, tuple[int, int], tuple[int, int]]] = {}

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
        units = list(self._units(first, first + len(columns)))
        waiting, left = iter(units), []

        def work() -> None:
            for start, end in waiting:
                part = slice(start - first, end - first)
                if load is not None:
                    load(part)
                if not self._seal_unit(start, columns[part], None if codes is None else codes[part], only_finite):
                    left.append((start, end))

        processors = len(os.sched_getaffinity(0))
        together(unless_others_fail(work, waiting), min(processors, len(units)) - 1)
        return sorted(left)

    def open_runs(self, limit: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of columns that are not sealed, of at most ``limit`` columns each."""
        position = 0
        for start, end in (*sorted((first, run[0]) for first, run in self._runs.items()), (self._edges[-1],) * 2):
            for first in range(position, start, limit):
                yield first, min(first + limit, start)
            position = end

    def checksums(self) -> tuple[IndexArray, IndexArray]:
        """Return the CRC-32 of the values and of the codes of each block (n_blocks,); all columns must be sealed."""
        found = np.zeros((2, len(self._edges) - 1), dtype=np.int64)
        for first in sorted(self._runs):
            block = bisect_right(self._edges, first) - 1
            for kind, (checksum, length) in enumerate(self._runs[first][1:]):
                found[kind, block] = crc32_joined(int(found[kind, block]), checksum, length)
        return found[0], found[1]

    def _units(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield runs of columns that share the cache and do not cross the edge of a block."""
        width = max(_UNIT_COLUMNS, _UNIT_CELLS // self._n_obs)
        while first < last:
            end = min(first + width, last, self._edges[bisect_right(self._edges, first)])
            yield first, end
            first = end

    def _seal_unit(self, first: int, columns: AnyArray, codes: AnyArray | None, only_finite: bool) -> bool:
        """Seal a run inside a block; return whether it was not left out."""
        found, last = moments(columns), first + len(columns)
        if only_finite and not np.isfinite(found.mean).all():
            return False
        self.mean[first:last], self.norm[first:last] = found.mean, found.norm
        self.minimum[first:last], self.maximum[first:last] = found.minimum, found.maximum
        if codes is not None:
            tier = quantise(columns, found, codes)
            self.scale[first:last], self.error[first:last], self.size[first:last] = tier.scale, tier.error, tier.norm
        self._runs[first] = last, _checksum(columns), (0, 0) if codes is None else _checksum(codes)
        return True


def _checksum(array: AnyArray) -> tuple[int, int]:
    """Return the CRC-32 of an array and the number of its bytes."""
    return crc32(array.reshape(-1).view(np.uint8).data), array.nbytes
