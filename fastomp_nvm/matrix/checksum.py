"""CRC-32 of buffers and columns, and the comparison of columns with their checksums when they are first read.

A sealed matrix is not read when it is opened. Code that reads columns passes them to the ``Seal`` first, while they are in the
cache for the kernel anyway; a column that was compared once is not compared again.

The checksum is zlib's, so that any tool can check it. The extension computes it at the speed of memory; without the extension zlib
takes several times as long as a sweep of the same bytes (``bench checks`` prints both).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, BoolArray, IndexArray, UInt32Array
from fastomp_nvm.errors import StoreError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["CHECKS", "Check", "Seal", "crc32", "crc32_joined", "row_checksums"]

#: When columns are compared: where no earlier run has compared them since the file was changed, in every run, or in none.
Check = Literal["first", "always", "never"]
CHECKS: tuple[Check, ...] = ("first", "always", "never")

#: The polynomial of CRC-32; bit 31 stands for 1 and bit 0 for x^31.
_POLYNOMIAL = 0xEDB88320


def crc32(buffer: Buffer, start: int = 0) -> int:
    """Return the CRC-32 of a buffer's bytes, continuing from ``start``; releases the interpreter lock."""
    return native.extension.crc32(buffer, start, 0) if native.extension else zlib.crc32(buffer, start)


def row_checksums(rows: AnyArray, places: IndexArray | None = None) -> UInt32Array:
    """Return the CRC-32 of each row, or of the rows at ``places``; rows are contiguous."""
    places = np.arange(len(rows)) if places is None else places
    out = np.empty(len(places), dtype=np.uint32)
    if native.extension:
        native.extension.row_checksums(rows, places, out)
    else:
        out[:] = [zlib.crc32(rows[place].view(np.uint8).data) for place in places.tolist()]
    return out


def crc32_joined(checksums: UInt32Array, edges: IndexArray, length: int) -> IndexArray:
    """Return the CRC-32 of each run of adjacent pieces from the CRC-32 of every piece.

    Parameters
    ----------
    checksums : (n,) uint32
    edges : (m + 1,) int64
        From 0 to n: run ``i`` has the pieces ``edges[i]`` to ``edges[i + 1]``.
    length : int
        Bytes of a piece.
    """
    widths = np.diff(edges)
    size = 1 << int(widths.max() - 1).bit_length()
    joined = np.zeros((len(widths), size), dtype=np.uint32)
    joined[np.arange(size) >= (size - widths)[:, None]] = checksums  # zeros in front of a run change nothing
    while size > 1:  # join pairs of neighbours
        first, tables = joined[:, ::2], _appending(length)
        moved = tables[0, first & 255] ^ tables[1, first >> 8 & 255] ^ tables[2, first >> 16 & 255] ^ tables[3, first >> 24]
        joined = moved ^ joined[:, 1::2]
        size, length = size // 2, 2 * length
    return joined[:, 0].astype(np.int64)


@lru_cache(maxsize=64)
def _appending(length: int) -> UInt32Array:
    """Return (4, 256): what each byte of a checksum becomes when ``length`` bytes of zeros are appended."""
    power, square, left = 1 << 31, 1 << 23, length  # 1 and x^8; then x^(8 * length)
    while left:
        if left & 1:
            power = _multiplied(power, square)
        square, left = _multiplied(square, square), left >> 1
    tables = np.zeros((4, 256), dtype=np.uint32)
    for bit in range(32):
        tables[bit // 8, np.arange(256) >> bit % 8 & 1 == 1] ^= np.uint32(_multiplied(power, 1 << bit))
    return tables


def _multiplied(a: int, b: int) -> int:
    """Return the product of two polynomials modulo that of CRC-32."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


class Seal:
    """The checksums of a matrix, and which of its columns were compared with them.

    Threads may compare at once: at worst a column is compared twice.

    Parameters
    ----------
    checksums : (n_columns,) uint32
        CRC-32 of each column's bytes.
    damaged : callable
        Returns the error for a column that does not match.

    Attributes
    ----------
    compared : (n_columns,) bool
    intact : bool
        True once ``settle`` found that all columns were compared.
    """

    def __init__(self, checksums: UInt32Array, damaged: Callable[[int], StoreError]) -> None:
        self.checksums = checksums
        self.damaged = damaged
        self.compared: BoolArray = np.zeros(len(checksums), dtype=np.bool_)
        self.intact = False

    def renewed(self) -> Seal:
        """Return the same checksums, with no column compared yet."""
        return Seal(self.checksums, self.damaged)

    def accept(self, compared: BoolArray) -> None:
        """Take over which columns were compared."""
        self.compared, self.intact = compared, False

    def look(self, rows: AnyArray, columns: IndexArray, places: IndexArray | None = None) -> None:
        """Compare columns that were not compared yet; raise where one does not match.

        Parameters
        ----------
        rows : (r, n_obs) array
        columns : (c,) int64
        places : (c,) int64, optional
            The rows that hold the columns; all, in their order, when left out.
        """
        if self.intact:
            return
        new = np.flatnonzero(~self.compared[columns])
        if not new.size:
            return
        found = row_checksums(rows, new if places is None else places[new])
        wrong = np.flatnonzero(found != self.checksums[columns[new]])
        if wrong.size:
            raise self.damaged(int(columns[new[wrong[0]]]))
        self.compared[columns[new]] = True

    def settle(self) -> bool:
        """Tell whether all columns were compared; if so, ``look`` takes no time from now on."""
        self.intact = self.intact or bool(self.compared.all())
        return self.intact
