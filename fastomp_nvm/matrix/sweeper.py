"""The only code that reads the big matrix: sweeps over all columns, gathers of some, and the count of both.

A sweep answers ``A_std @ V`` for a block of vectors in one pass, threaded over ranges of columns. Its kernel is row-invariant:
the product of a column with a vector has the same bits whether the column is swept, gathered, or re-read, alone or in company,
on one thread or several. The matrix is never copied as a whole and never written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray
from fastomp_nvm.matrix import lost_pages
from fastomp_nvm.matrix.kernels import Kernel, kernel
from fastomp_nvm.matrix.pacing import Pace
from fastomp_nvm.matrix.pieces import PiecedRows, parts
from fastomp_nvm.matrix.reader import MatrixFile, Reader, ranges, unless_others_fail
from fastomp_nvm.matrix.remote_rows import RemoteRows
from fastomp_nvm.matrix.seal import Seal, SealCheck
from fastomp_nvm.matrix.standardisation import Standardisation
from fastomp_nvm.matrix.threads import together

__all__ = ["Sweeper", "Vectors", "aligned_empty"]

#: Bytes of matrix one thread takes at a time: large against the cost of a Python call, small against a sweep.
TASK_BYTES = 4 << 20

#: Below this many multiply-adds a sweep is done by the calling thread: waking another costs more.
INLINE_PRODUCTS = 1 << 23


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
        How; see :mod:`fastomp_nvm.matrix.reader`. The answer does not depend on it.
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
        self._reader = Reader(files, io, self.threads)

    def close(self) -> None:
        """End the threads that read; those that multiply are everyone's, and wait for the next sweep."""
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

    def dots_at(self, rows: AnyArray, index: IndexArray, vectors: Vectors, wide: BoolArray) -> Float64Array:
        """Return (len(index), m) float64: raw dot products of ``rows[index]``, which are in memory and stay where they are.

        Parameters
        ----------
        rows : (r, n_obs)
        index : (c,) int64
        vectors : Vectors
        wide : (c,) bool
            Which of the rows picked to accumulate in float64.
        """
        out = np.empty((len(index), len(vectors.fast)))
        exact = np.flatnonzero(wide) if rows.dtype != np.float64 else _NONE

        def fill(first: int, last: int) -> None:
            low, high = np.searchsorted(exact, (first, last)) if exact.size else (0, 0)
            if high - low < last - first:
                self.kernel.dots_at(rows, index[first:last], vectors.fast, out[first:last])
            if high > low:
                columns = exact[low:high]
                precise = np.empty((len(columns), out.shape[1]))
                self.kernel.dots_at(rows, index[columns], vectors.wide, precise)
                out[columns] = precise

        self._share(len(index), rows.shape[1] * rows.itemsize, rows.shape[1] * out.shape[1], fill)
        return out

    def dots_int8(self, rows: AnyArray, vectors: AnyArray, seal: Seal | None = None) -> IndexArray:
        """Return (n_columns, m) int64: exact products of int8 ``rows`` (n_columns, n_obs) and int16 ``vectors`` (m, n_obs).

        Rows under a ``seal`` that nobody looked at yet are compared with their checksums as they are read.
        """
        out = np.empty((len(rows), len(vectors)), dtype=np.int64)
        unseen = seal if seal is not None and not seal.intact else None
        for start, part in parts(rows):
            check = None if unseen is None else unseen.check(start, start + len(part))
            self._dots_int8_part(part, vectors, out[start : start + len(part)], check)
        if unseen is not None:
            unseen.intact = True
        return out

    def _dots_int8_part(self, rows: AnyArray, vectors: AnyArray, out: IndexArray, check: SealCheck | None) -> None:
        """Fill ``out`` for rows that are one array."""
        try:
            self._fill(rows, out, lambda block, first, last: self.kernel.dots_int8(block, vectors, out[first:last]), check)
        finally:
            lost_pages.check(rows)  # before anyone is told that they do not match their checksums

    def _fill(
        self, rows: AnyArray, out: AnyArray, fill: Callable[[AnyArray, int, int], None], check: SealCheck | None = None
    ) -> None:
        """Have ``fill(rows[first:last], first, last)`` fill those rows of ``out``, on the calling thread and the workers."""
        pace = self._reader.pace(rows)
        if pace is not None:
            fill = _paced(fill, pace)
        edges = None
        if check is not None:
            fill, edges = _checked(fill, check), check.edges
        if self._reader.sweep(rows, fill, edges=edges):
            return
        width = rows.shape[1]
        self._share(len(rows), width * rows.itemsize, width * out.shape[1], lambda a, b: fill(rows[a:b], a, b), edges)

    def _share(
        self, count: int, row_bytes: int, row_products: int, fill: Callable[[int, int], None], edges: Sequence[int] | None = None
    ) -> None:
        """Have ``fill(first, last)`` called for ranges that make up ``range(count)``, on the calling thread and the workers."""
        if count * row_products < INLINE_PRODUCTS or count <= 8:
            fill(0, count)
            return
        step = max(min(TASK_BYTES // max(row_bytes, 1), -(-count // (2 * self.threads))), 8)
        waiting = ranges(count, step, edges)

        def work() -> None:
            for first, last in waiting:
                for start in range(first, last, step):
                    fill(start, min(start + step, last))

        # One thread goes piece by piece as well: who watches a sweep sees it move.
        together(unless_others_fail(work, waiting), self.threads - 1)

    def share_out(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Have every one of ``tasks`` called once, on the calling thread and the workers."""
        waiting = iter(tasks)

        def work() -> None:
            for task in waiting:
                task()

        together(work, min(self.threads, len(tasks)) - 1)

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

    def gather(self, matrix: AnyArray | PiecedRows | RemoteRows, columns: IndexArray, out: AnyArray | None = None) -> AnyArray:
        """Copy ``columns`` of ``matrix`` into memory: (n, n_obs), contiguous and 64-byte aligned."""
        if out is None:
            out = aligned_empty((len(columns), matrix.shape[1]), matrix.dtype)
        if isinstance(matrix, RemoteRows):
            matrix.gather(columns, out)
            return out
        if isinstance(matrix, PiecedRows):
            for here, piece, local in matrix.located(columns):
                out[here] = self.gather(piece, local)
            return out
        if not self._reader.gather(matrix, columns, out):
            self.kernel.gather(matrix, columns, out)
        pace = self._reader.pace(matrix)
        if pace is not None:
            pace.wait(out.nbytes, len(columns))
        lost_pages.check(matrix)
        return out


def _checked(fill: Callable[[AnyArray, int, int], None], check: SealCheck) -> Callable[[AnyArray, int, int], None]:
    """Return ``fill``, which then looks at the checksum of what it is given first."""

    def filled(block: AnyArray, first: int, last: int) -> None:
        check.look(block, first)
        fill(block, first, last)

    return filled


def _paced(fill: Callable[[AnyArray, int, int], None], pace: Pace) -> Callable[[AnyArray, int, int], None]:
    """Return ``fill``, which then takes at least as long as the device would need for the block."""

    def filled(block: AnyArray, first: int, last: int) -> None:
        fill(block, first, last)
        pace.wait(block.nbytes)

    return filled
