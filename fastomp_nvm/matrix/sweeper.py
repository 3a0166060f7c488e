"""Products of the rows of a matrix with vectors: a kernel, and the threads that run it over ranges of rows.

The kernel is row-invariant: the product of a row with a vector has the same bits whether the row is swept, gathered or read again,
with one vector or several, on one thread or several.
"""

from __future__ import annotations

import copy
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, DType, Float64Array, IndexArray
from fastomp_nvm.matrix.kernels import Kernel, kernel
from fastomp_nvm.matrix.memory import aligned_empty
from fastomp_nvm.matrix.rows import ArrayRows, LocalRows, Rows, Use, local_rows
from fastomp_nvm.matrix.threads import ranges, together, unless_others_fail

__all__ = ["Sweeper", "Vectors"]

#: Bytes of matrix one thread takes at a time: large against the cost of a Python call, small against a sweep.
TASK_BYTES = 4 << 20

#: Below this many multiply-adds a sweep, or products by BLAS, are done by the calling thread: waking another costs more.
INLINE_PRODUCTS, INLINE_BLAS_PRODUCTS = 1 << 23, 1 << 24

#: Seconds between two reports of the share of a sweep.
REPORT_SECONDS = 0.1

_NONE = np.empty(0, dtype=np.int64)


class Vectors:
    """Vectors in the layout of the kernel: one row each, in the precision that the matrix needs.

    Parameters
    ----------
    vectors : (n_obs, m) float64
    dtype : dtype
        Element type of the matrix; float16 and float32 matrices are swept with float32 vectors.
    """

    __slots__ = ("fast", "sums", "wide", "wide_sums")

    def __init__(self, vectors: Float64Array, dtype: DType) -> None:
        self.wide = np.ascontiguousarray(vectors.T)
        # Rows are contiguous, so each is summed in the same order whatever the number of vectors.
        self.wide_sums = np.add.reduce(self.wide, axis=1)
        if dtype == np.float64:
            self.fast, self.sums = self.wide, self.wide_sums
        else:
            self.fast = self.wide.astype(np.float32)
            self.sums = np.add.reduce(self.fast, axis=1, dtype=np.float64)

    def part(self, first: int, count: int) -> Vectors:
        """Return ``count`` of these vectors."""
        some, here = copy.copy(self), slice(first, first + count)
        some.wide, some.wide_sums, some.fast, some.sums = (each[here] for each in (self.wide, self.wide_sums, self.fast, self.sums))
        return some


class Sweeper:
    """A kernel and the threads that run it over matrices.

    Parameters
    ----------
    threads : int, optional
        Worker threads; the cores this process may use when left out. The answer does not depend on it.
    implementation : Kernel, optional
        The best one available when left out.

    Attributes
    ----------
    report : callable, optional
        Called about every 100 ms of a sweep with the share of it that is done, on any of the threads but never on two at once. The
        sweep pauses until it returns.
    """

    report: Callable[[float], None] | None = None

    def __init__(self, threads: int | None = None, implementation: Kernel | None = None) -> None:
        self.threads = threads if threads is not None else len(os.sched_getaffinity(0))
        self.kernel = implementation if implementation is not None else kernel()

    def dots(self, rows: LocalRows, vectors: Vectors, wide: BoolArray) -> Float64Array:
        """Return (n_columns, m) float64: raw dot products.

        Parameters
        ----------
        rows : LocalRows
            (n_columns, n_obs).
        vectors : Vectors
        wide : (n_columns,) bool
            Columns to accumulate in float64.
        """
        out = np.empty((rows.shape[0], len(vectors.fast)))
        visit, multiply = rows.blocks(self.kernel)
        fill = _filling(multiply, out, vectors, wide, rows.dtype)
        visit(self, self._reported(fill, len(rows)), out.shape[1])
        return out

    def dots_at(self, rows: AnyArray, index: IndexArray, vectors: Vectors, wide: BoolArray) -> Float64Array:
        """Return (len(index), m) float64: raw dot products of ``rows[index]``, which are in memory and are not copied.

        Parameters
        ----------
        rows : (r, n_obs)
        index : (c,) int64
        vectors : Vectors
        wide : (c,) bool
            Which of the rows picked to accumulate in float64.
        """
        out = np.empty((len(index), len(vectors.fast)))
        fill = _filling(partial(self.kernel.dots_at, rows), out, vectors, wide, rows.dtype)
        self.share(index, rows.shape[1] * rows.itemsize, rows.shape[1] * out.shape[1], fill)
        return out

    def dots_int8(self, rows: AnyArray | Rows, vectors: AnyArray) -> IndexArray:
        """Return (n_columns, m) int64: exact products of int8 ``rows`` (n_columns, n_obs) and int16 ``vectors`` (m, n_obs)."""
        out = np.empty((len(rows), len(vectors)), dtype=np.int64)

        def fill(block: AnyArray, first: int, last: int) -> None:
            self.kernel.dots_int8(block, vectors, out[first:last])

        local_rows(rows).visit(self, self._reported(fill, len(rows)), out.shape[1])
        return out

    def gather(self, rows: AnyArray | Rows, columns: IndexArray, out: AnyArray | None = None) -> AnyArray:
        """Copy ``columns`` of a matrix into memory: (n, n_obs), contiguous and 64-byte aligned."""
        if out is None:
            out = aligned_empty((len(columns), rows.shape[1]), rows.dtype)
        if not isinstance(rows, Rows):
            rows = ArrayRows(rows)
        rows.gather(columns, out, self)
        return out

    def _reported(self, use: Use, count: int) -> Use:
        """Return ``use`` such that the share of ``count`` rows that is done is reported."""
        report = self.report
        if report is None:
            return use
        done, due, lock = 0, time.monotonic() + REPORT_SECONDS, threading.Lock()

        def counted(block: AnyArray, first: int, last: int) -> None:
            nonlocal done, due
            use(block, first, last)
            done += last - first  # approximate where threads collide
            if done < count and time.monotonic() >= due:
                with lock:  # while one thread reports the others wait: a report that takes its time pauses the sweep
                    if time.monotonic() >= due:
                        report(done / count)
                        due = time.monotonic() + REPORT_SECONDS

        return counted

    def share(
        self,
        items: AnyArray,
        item_bytes: int,
        item_products: int,
        use: Use,
        sizes: tuple[int, int] | None = None,
    ) -> None:
        """Call ``use(items[first:last], first, last)`` for ranges that make up ``items``, on the calling thread and the workers.

        Ranges have at most ``TASK_BYTES``; with ``sizes``, a multiple of the first and at most the second of these many items.
        """
        count = len(items)
        if count * item_products < INLINE_PRODUCTS or count <= 8:
            use(items, 0, count)
            return
        fewest, most = sizes or (1, TASK_BYTES // max(item_bytes, 1))
        step = max(min(most, -(-count // (2 * self.threads))), 8)
        step = -(-step // fewest) * fewest
        waiting = ranges(count, step)

        def work() -> None:
            for begin, end in waiting:
                for first in range(begin, end, step):
                    last = min(first + step, end)
                    use(items[first:last], first, last)

        # A single thread proceeds in ranges as well, so that progress can be observed.
        together(unless_others_fail(work, waiting), self.threads - 1)

    def share_out(self, tasks: Sequence[Callable[[], None]], products: float = math.inf) -> None:
        """Call each of ``tasks`` once, on the calling thread and the workers.

        ``products`` are the multiply-adds that BLAS does in all of them: few are left to the calling thread.
        """
        waiting = iter(tasks)

        def work() -> None:
            for task in waiting:
                task()

        together(work, 0 if products < INLINE_BLAS_PRODUCTS else min(self.threads, len(tasks)) - 1)


def _filling(
    multiply: Callable[[AnyArray, AnyArray, Float64Array], None], out: Float64Array, vectors: Vectors, wide: BoolArray, dtype: DType
) -> Use:
    """Return a function that fills ranges of ``out`` with the products of a block of rows, in float64 for the rows in ``wide``."""
    exact = np.flatnonzero(wide) if dtype != np.float64 else _NONE

    def fill(block: AnyArray, first: int, last: int) -> None:
        low, high = np.searchsorted(exact, (first, last)) if exact.size else (0, 0)
        if high - low < last - first:
            multiply(block, vectors.fast, out[first:last])
        if high > low:
            columns = exact[low:high]
            precise = np.empty((len(columns), out.shape[1]))
            multiply(block if high - low == last - first else block[columns - first], vectors.wide, precise)
            out[columns] = precise

    return fill
