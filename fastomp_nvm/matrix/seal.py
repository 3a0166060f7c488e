"""Checksums that the first sweep over a matrix looks at, block by block, as it reads: opening a store need not read it for that.

A sweep hands over the columns of a block in order and on one thread, in as many pieces as it likes; CRC-32 goes on from piece to
piece, while the bytes are in the cache for the kernel anyway. Knows neither stores nor kernels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.errors import StoreError
from fastomp_nvm.matrix.checksum import crc32

__all__ = ["Seal", "SealCheck"]


class Seal:
    """The checksums of a matrix that nobody has compared yet.

    Parameters
    ----------
    edges : (n_blocks + 1,) int64
        First column of every block, and the number of columns.
    checksums : (n_blocks,) int64
        CRC-32 of the bytes of each.
    damaged : callable
        Returns the error for a block that does not match.
    """

    def __init__(self, edges: IndexArray, checksums: IndexArray, damaged: Callable[[int], StoreError]) -> None:
        self.edges: list[int] = edges.tolist()
        self.checksums: list[int] = checksums.tolist()
        self.damaged = damaged
        self.intact = False  # set by whoever has compared all of them

    def check(self, first: int, last: int) -> SealCheck:
        """Return what compares one reading of columns ``first:last``, which are whole blocks."""
        return SealCheck(self, bisect_right(self.edges, first) - 1, bisect_right(self.edges, last) - 1)


class SealCheck:
    """One reading of some blocks of a sealed matrix; columns are counted from the first of them.

    Attributes
    ----------
    edges : list of int
        Where pieces handled by different threads may part.
    """

    def __init__(self, seal: Seal, first: int, last: int) -> None:
        self._seal = seal
        self._first = first
        self.edges = [edge - seal.edges[first] for edge in seal.edges[first : last + 1]]
        self._begun: dict[int, int] = {}  # block -> checksum of the columns it has shown

    def look(self, rows: AnyArray, first: int) -> None:
        """Take the next columns (m, n_obs) of blocks, from column ``first`` on; raise where a block is not what it was."""
        position = first
        block = bisect_right(self.edges, first) - 1
        while position < first + len(rows):
            end = min(self.edges[block + 1], first + len(rows))
            data = rows[position - first : end - first].reshape(-1).view(np.uint8).data
            checksum = crc32(data, self._begun.pop(block, 0))
            if end < self.edges[block + 1]:
                self._begun[block] = checksum
            elif checksum != self._seal.checksums[self._first + block]:
                raise self._seal.damaged(self._first + block)
            position, block = end, block + 1
