"""CRC-32 of large buffers, and checksums that the first sweep over a matrix compares, block by block, as it reads.

A sealed matrix need not be read when it is opened. A sweep hands over the rows of a block in order and on one thread, in as many
pieces as it likes; CRC-32 continues from piece to piece, while the bytes are in the cache for the kernel anyway.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.errors import StoreError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["QUICK", "Seal", "SealCheck", "crc32"]

#: Whether a checksum takes next to no time beside a sweep of the same bytes (isal: 50 GB/s and core measured; zlib: 4).
QUICK = find_spec("isal") is not None


def crc32(buffer: Buffer, start: int = 0) -> int:
    """Return the CRC-32 of a buffer's bytes, continuing from ``start``; releases the interpreter lock."""
    return int(_fastest()(buffer, start))


@cache
def _fastest() -> Callable[[Buffer, int], int]:
    """Return the fastest CRC-32 there is, imported here because selections from arrays do not need it."""
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32
    return crc32


class Seal:
    """The checksums of a matrix that have not been compared yet.

    Parameters
    ----------
    edges : (n_blocks + 1,) int64
        First row of every block, and the number of rows.
    checksums : (n_blocks,) int64
        CRC-32 of the bytes of each block.
    damaged : callable
        Returns the error for a block that does not match.
    """

    def __init__(self, edges: IndexArray, checksums: IndexArray, damaged: Callable[[int], StoreError]) -> None:
        self.edges: list[int] = edges.tolist()
        self.checksums: list[int] = checksums.tolist()
        self.damaged = damaged
        self.intact = False  # set once all of them were compared


class SealCheck:
    """One reading of a sealed matrix.

    Attributes
    ----------
    edges : list of int
        Rows between two edges must be handled in order and on one thread.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self.edges = seal.edges
        self._begun: dict[int, int] = {}  # block -> checksum of its rows so far

    def look(self, rows: AnyArray, first: int) -> None:
        """Take the next rows (m, n_obs) of blocks, from row ``first`` on; raise where a block does not match its checksum."""
        position = first
        block = bisect_right(self.edges, first) - 1
        while position < first + len(rows):
            end = min(self.edges[block + 1], first + len(rows))
            data = rows[position - first : end - first].reshape(-1).view(np.uint8).data
            checksum = crc32(data, self._begun.pop(block, 0))
            if end < self.edges[block + 1]:
                self._begun[block] = checksum
            elif checksum != self._seal.checksums[block]:
                raise self._seal.damaged(block)
            position, block = end, block + 1
