"""Rows of genotypes in the codes of PLINK's ``.bed`` format, two bits each, read where they lie.

The codes of a variant are those of four people per byte, the first person in the lowest bits: 0 two copies of the counted allele, 2
one, 3 none, 1 missing. Products have the bits of the same numbers in an array: the sweep kernel unpacks codes chunk by chunk and
goes on as usual. Where some people are left out, the codes of the others are brought together first. A missing genotype counts as
the mean of its variant over the people used, rounded to the type of the rows.

Files are read with ``pread``, never through their mapping: that serves to see what is in the page cache, and a file that is cut off
meanwhile is an error and not a signal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, BoolArray, DType, Float64Array, IndexArray, RowIndex, UInt32Array
from fastomp_nvm.matrix.checksum import row_checksums
from fastomp_nvm.matrix.kernels import Kernel
from fastomp_nvm.matrix.kernels.numpy_kernel import unpacked
from fastomp_nvm.matrix.memory import aligned_empty
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.reader import BLOCK_BYTES, FileRows, MatrixFile
from fastomp_nvm.matrix.rows import LocalRows, Multiply, Use, Visit
from fastomp_nvm.matrix.sweeper import Sweeper

__all__ = ["CodeRows", "Counts", "Genotypes", "People", "count_codes", "decode"]

#: Bytes of decoded rows at a time, at least one row: they stay in the cache until they are multiplied.
DECODED_BYTES = 1 << 18

#: Multiply-adds that take as long as decoding one entry.
_DECODING = 1


#: Called with a ``Use``, the number of the first row of a file, a block of its codes, and where that begins and ends in the file.
_Give: TypeAlias = Callable[[Use, int, AnyArray, int, int], None]


@dataclass(frozen=True, eq=False)
class People:
    """The people whose genotypes a file holds.

    Attributes
    ----------
    total : int
        All of them.
    used : (n_used,) int64, optional
        Those that are observations, ascending; None: all.
    """

    total: int
    used: IndexArray | None = None

    @property
    def n_used(self) -> int:
        """Number of people used."""
        return self.total if self.used is None else len(self.used)

    @cached_property
    def mask(self) -> AnyArray:
        """The bytes of a row in which the low bit of the code of each person used is set, and no other."""
        bits = np.zeros((-(-self.total // 4) * 4, 2), dtype=np.uint8)
        bits[slice(self.total) if self.used is None else self.used, 0] = 1
        return np.packbits(bits, bitorder="little")


class Counts(NamedTuple):
    """How many of the people used have a genotype that is missing, one copy of the counted allele, and none: each (n,) int64."""

    people: int
    missing: IndexArray
    one: IndexArray
    none: IndexArray

    def statistics(self) -> ColumnStatistics:
        """Return mean, centred norm and range of every variant, missing genotypes at the mean; from whole numbers."""
        called = np.maximum(self.people - self.missing, 1)
        two = self.people - self.missing - self.one - self.none
        total, squares = self.one + 2 * two, self.one + 4 * two
        minimum = np.where(self.none > 0, 0.0, np.where(self.one > 0, 1.0, np.where(two > 0, 2.0, 0.0)))
        maximum = np.where(two > 0, 2.0, np.where(self.one > 0, 1.0, 0.0))
        return ColumnStatistics(total / called, np.sqrt((called * squares - total**2) / called), minimum, maximum)

    def minor_frequency(self) -> Float64Array:
        """Return the frequency of the rarer allele of every variant; 0 where every genotype is missing."""
        half = self.statistics().mean / 2.0
        return np.minimum(half, 1.0 - half)

    def missing_rate(self) -> Float64Array:
        """Return the share of the people used whose genotype is missing, for every variant."""
        return self.missing / self.people


def decode(codes: AnyArray, values: Float64Array, out: AnyArray) -> None:
    """Write genotypes to ``out``.

    Parameters
    ----------
    codes : (c, bytes) uint8
    values : (c, 4) float64
        What each code stands for.
    out : (c, n) float32 or float64, C-contiguous
    """
    if native.extension:
        native.extension.decode(codes, out.shape[1], values, out)
    else:
        out[...] = np.take_along_axis(values, unpacked(codes)[:, : out.shape[1]], axis=1)


def compact(codes: AnyArray, people: People) -> AnyArray:
    """Return the codes of the people used alone, side by side: (c, bytes) uint8."""
    if people.used is None:
        return codes
    out = np.zeros((len(codes), -(-people.n_used // 4)), dtype=np.uint8)
    if native.extension:
        native.extension.compact(codes, people.mask * np.uint8(3), out)
    else:
        kept = unpacked(codes)[:, people.used].astype(np.uint8)
        for place in range(4):
            part = kept[:, place::4] << 2 * place
            out[:, : part.shape[1]] |= part
    return out


def count_codes(codes: AnyArray, people: People) -> IndexArray:
    """Return how many of the people used have the codes 1, 2 and 3: (c, 3)."""
    out = np.empty((len(codes), 3), dtype=np.int64)
    if native.extension:
        native.extension.count_codes(codes, people.mask, out)
    else:
        apart = unpacked(compact(codes, people))[:, : people.n_used]
        for code in (1, 2, 3):
            out[:, code - 1] = np.count_nonzero(apart == code, axis=1)
    return out


class CodeRows(FileRows):
    """Rows of codes in a file, (n, bytes) uint8."""

    def _visit_memory(self, sweeper: Sweeper, use: Use, products: int) -> None:
        """Call ``use`` for blocks read through the page cache."""
        file = self.file
        step = max(BLOCK_BYTES // file.column_bytes, 1)

        def read(_: AnyArray, first: int, last: int) -> None:
            with self._buffer(file.room(step)) as buffer:
                for start in range(first, last, step):
                    end = min(start + step, last)
                    use(file.read(start, end, buffer, keep=True), start, end)

        sweeper.share(np.arange(len(self)), file.column_bytes, self.shape[1] * products, read)

    def gather(self, columns: IndexArray, out: AnyArray, sweeper: Sweeper) -> None:
        """Read the rows ``columns`` into ``out``."""
        if len(columns):
            self._read(columns, out, sweeper, keep=self.way() != "direct")


class _Packed(NamedTuple):
    """A block of codes and what they stand for; indexed by row."""

    codes: AnyArray
    values: Float64Array

    def __getitem__(self, rows: IndexArray) -> _Packed:  # type: ignore[override]
        return _Packed(self.codes[rows], self.values[rows])


class Genotypes(LocalRows):
    """Genotypes in one file or several, one below the other.

    Parameters
    ----------
    files : sequence of MatrixFile
        Of codes, all of the same people.
    people : People
    dtype : dtype
        float32 or float64.
    counts : callable
        Returns the ``Counts`` of all variants; called when rows are first decoded.
    unchanged : callable
        Raises where a file is not the one that was opened; called whenever rows were read.
    io : {"auto", "mmap", "direct"}
        ``mmap`` reads through the page cache.
    """

    on_device = True

    def __init__(
        self,
        files: Sequence[MatrixFile],
        people: People,
        dtype: DType,
        counts: Callable[[], Counts],
        unchanged: Callable[[], None],
        io: str = "auto",
    ) -> None:
        super().__init__((sum(len(file.array) for file in files), people.n_used), dtype)
        self._files, self._people, self._counts, self._unchanged, self._io = files, people, counts, unchanged, io
        self._pieces = [CodeRows(file, io) for file in files]
        self._starts: IndexArray = np.cumsum([0, *map(len, self._pieces)])
        self.nbytes = sum(piece.nbytes for piece in self._pieces)

    def reading(self, io: str) -> Genotypes:
        """Return the rows, read in the way ``io``."""
        return self if io == self._io else Genotypes(self._files, self._people, self.dtype, self._counts, self._unchanged, io)

    @cached_property
    def _values(self) -> Float64Array:
        """What each code stands for, (n, 4)."""
        values = np.tile([2.0, 0.0, 1.0, 0.0], (len(self), 1))
        values[:, 1] = self._counts().statistics().mean.astype(self.dtype)
        return values

    def visit(self, sweeper: Sweeper, use: Use, products: int = 1, *, again: bool = True) -> None:
        """Call ``use`` for blocks of decoded rows; they are overwritten afterwards."""
        self._visit(self._decoded, sweeper, use, products, again=again)

    def _visit(self, give: _Give, sweeper: Sweeper, use: Use, products: int = 1, *, again: bool = True) -> None:
        """Have ``give(use, start, codes, first, last)`` called for blocks of the files whose rows begin at ``start``."""
        _ = self._values  # not first on several threads at once
        for piece, start in zip(self._pieces, self._starts.tolist(), strict=False):
            piece.visit(sweeper, partial(give, use, start), 4 * (products + _DECODING), again=again)
        self.choice = self._pieces[0].choice
        if self.choice is not None and self.choice.value == "mapping":
            self.choice = self.choice._replace(value="page cache")
        self._unchanged()

    def blocks(self, kernel: Kernel) -> tuple[Visit, Multiply]:
        """Return the visit and the function for products: codes are unpacked inside the kernel."""

        def multiply(block: object, residuals: AnyArray, out: Float64Array) -> None:
            assert isinstance(block, _Packed)
            kernel.dots_codes(block.codes, block.values, residuals, out)

        return partial(self._visit, self._packed), multiply

    def _packed(self, use: Use, start: int, codes: AnyArray, first: int, last: int) -> None:
        """Call ``use`` for the rows of ``codes``, not decoded."""
        here = slice(start + first, start + last)
        use(cast("AnyArray", _Packed(compact(codes, self._people), self._values[here])), here.start, here.stop)

    def _decoded(self, use: Use, start: int, codes: AnyArray, first: int, last: int) -> None:
        """Call ``use`` for the rows of ``codes``, which are ``first`` to ``last`` of the file whose rows begin at ``start``."""
        step = max(DECODED_BYTES // max(self.shape[1] * self.itemsize, 1), 1)
        buffer = aligned_empty((min(step, last - first), self.shape[1]), self.dtype)
        for begin in range(first, last, step):
            end = min(begin + step, last)
            self._decode_to(buffer, self._values[start + begin : start + end], codes[begin - first : end - first], 0, end - begin)
            use(buffer[: end - begin], start + begin, start + end)

    def gather(self, columns: IndexArray, out: AnyArray, sweeper: Sweeper) -> None:
        """Decode the rows ``columns`` into ``out``."""
        self._fill(columns, out, sweeper, self._values[columns])

    def _fill(self, columns: IndexArray, out: AnyArray, sweeper: Sweeper, values: Float64Array) -> None:
        """Decode the rows ``columns`` into ``out``; ``values`` (c, 4) is what the codes of each stand for."""
        owners = np.searchsorted(self._starts, columns, side="right") - 1
        for place in np.unique(owners).tolist():
            here = np.flatnonzero(owners == place)
            piece, whole = self._pieces[place], len(here) == len(columns)
            codes = np.empty((len(here), piece.shape[1]), dtype=np.uint8)
            piece.gather(columns[here] - self._starts[place], codes, sweeper)
            target = out if whole and out.flags.c_contiguous else np.empty((len(here), out.shape[1]), dtype=out.dtype)
            sweeper.share(codes, piece.shape[1], self.shape[1], partial(self._decode_to, target, values[here]))
            if target is not out:
                out[here] = target
        self._unchanged()

    def _decode_to(self, out: AnyArray, values: Float64Array, codes: AnyArray, first: int, last: int) -> None:
        """Decode ``codes`` to the rows ``first`` to ``last`` of ``out``."""
        decode(compact(codes, self._people), values[first:last], out[first:last])

    def missing(self, columns: IndexArray) -> BoolArray:
        """Return which genotypes of the rows ``columns`` are missing, (c, n_used)."""
        out = np.empty((len(columns), self.shape[1]), dtype=np.float32)
        self._fill(columns, out, Sweeper(1), np.tile([0.0, 1.0, 0.0, 0.0], (len(columns), 1)))
        return np.equal(out, 1.0)

    def survey(self, sweeper: Sweeper, progress: Callable[[int, int], None] | None = None) -> Iterator[tuple[Counts, UInt32Array]]:
        """Yield the counts of each file and the CRC-32 of each row; ``progress`` is called with (bytes done, bytes to do)."""
        done = 0
        for piece in self._pieces:
            found = np.empty((len(piece), 3), dtype=np.int64)
            sums = np.empty(len(piece), dtype=np.uint32)
            piece.visit(sweeper, partial(_survey, self._people, found, sums), 8)
            done += piece.nbytes
            if progress is not None:
                progress(done, self.nbytes)
            yield Counts(self._people.n_used, *np.ascontiguousarray(found.T)), sums
        self._unchanged()

    def __getitem__(self, index: RowIndex) -> AnyArray:
        numbers = self._numbers(index)
        found = np.empty((len(numbers), self.shape[1]), dtype=self.dtype)
        self.gather(numbers, found, Sweeper(1))
        return found[0] if np.ndim(np.empty(len(self), dtype=np.bool_)[index]) == 0 else found

    def __array__(self, dtype: DType | None = None, copy: bool | None = None) -> AnyArray:
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype, copy=False)


def _survey(people: People, found: IndexArray, sums: UInt32Array, codes: AnyArray, first: int, last: int) -> None:
    """Write the counts and the checksums of the rows ``first`` to ``last``."""
    found[first:last] = count_codes(codes, people)
    sums[first:last] = row_checksums(codes)
