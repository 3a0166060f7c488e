"""MatrixMarket (.mtx): coordinate and array, real, integer or pattern; general, symmetric or skew-symmetric.

Entries may be in any order and are collected in :class:`~storage_backends.readers.sparse.ColumnSlabs`; entries of the same cell
are added, as in SciPy. Rows of the matrix are observations unless ``rows="features"``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.readers.base import Chunk, Reader, ReaderOptions, Scan, slab_chunks
from storage_backends.readers.sparse import ColumnSlabs, check_cells
from storage_backends.readers.text import LineBlock, line_blocks, open_bytes, parse_numbers, read_some, shorten

__all__ = ["MatrixMarketReader"]

_BLOCK_BYTES = 4 << 20
_MAX_LINE = 1 << 16


class MatrixMarketReader(Reader):
    """A MatrixMarket file."""

    passes = 1

    def __init__(self, path: str, options: ReaderOptions) -> None:
        super().__init__(path, options)
        self._read_header()
        check_cells(path, *self._shape)
        self.n_obs, width = self._shape[:: -1 if options.rows == "features" else 1]
        self.names = NumberedNames(width)

    def chunks(self, columns: IndexArray, scan: Scan) -> Generator[Chunk, None, None]:
        """Yield slabs of columns."""
        with ColumnSlabs(self.n_obs, len(self.names), self.options.chunk_bytes) as slabs:
            for row, column, value in self._coordinates() if self._sparse else self._array():
                observations, features = (column, row) if self.options.rows == "features" else (row, column)
                slabs.add(observations, features, value)
                if self._symmetry != "general":
                    mirrored = np.flatnonzero(row != column)
                    sign = -1.0 if self._symmetry == "skew-symmetric" else 1.0
                    slabs.add(features[mirrored], observations[mirrored], sign * value[mirrored])
            for first, values in slabs.slabs():
                yield from slab_chunks(columns, first, values)

    def _read_header(self) -> None:
        """Read the banner and the size line."""
        with open_bytes(self.path) as stream:
            text = read_some(stream, _MAX_LINE, self.path)
            while text.startswith(b"%") and not _size_line(text) and (more := read_some(stream, _MAX_LINE, self.path)):
                text += more
        banner = text.split(b"\n", 1)[0].decode("utf-8", "replace").lower().split()
        if len(banner) != 5 or banner[:2] != ["%%matrixmarket", "matrix"]:
            raise DataError(f"{self.label} does not start with '%%MatrixMarket matrix ...': it is not a MatrixMarket file")
        layout, self._field, self._symmetry = banner[2:]
        self._sparse = layout == "coordinate"
        fields = ("real", "double", "integer", "pattern") if self._sparse else ("real", "double", "integer")
        if layout not in ("coordinate", "array") or self._field not in fields:
            raise DataError(
                f"{self.label} holds a matrix of kind {layout} {self._field}, expected coordinate or array of {', '.join(fields)}"
            )
        if self._symmetry not in ("general", "symmetric", "skew-symmetric"):
            raise DataError(f"{self.label} is {self._symmetry}, expected general, symmetric or skew-symmetric")
        size, self._first_line = _size_line(text) or (b"", 0)
        numbers = parse_numbers(size)
        if numbers is None or len(numbers) != (3 if self._sparse else 2) or not _are_sizes(numbers):
            shown = shorten(size.decode("utf-8", "replace"))
            raise DataError(
                f"{self.label}: the size line is {shown}, expected {'rows columns entries' if self._sparse else 'rows columns'}, "
                "whole numbers below 9e15"
            )
        self._shape = (int(numbers[0]), int(numbers[1]))
        if self._symmetry != "general" and self._shape[0] != self._shape[1]:
            raise DataError(f"{self.label} is {self._symmetry} but has shape {self._shape}")
        self._count = int(numbers[2]) if self._sparse else self._array_count()

    def _array_count(self) -> int:
        """Return the number of values of an array of this symmetry."""
        rows, columns = self._shape
        if self._symmetry == "general":
            return rows * columns
        return rows * (rows + 1) // 2 if self._symmetry == "symmetric" else rows * (rows - 1) // 2

    def _numbers(self, per_line: int) -> Iterator[tuple[Float64Array, int]]:
        """Yield the numbers after the size line as (lines, per_line) arrays, each with the number of its first line."""
        seen = 0
        for block in line_blocks(self.path, _BLOCK_BYTES, self.options.consumed):
            data, line = block.data, block.first_line
            if line <= self._first_line:
                skipped = data.split(b"\n", self._first_line + 1 - line)
                data, line = skipped[-1], self._first_line + 1
            numbers = parse_numbers(data)
            if numbers is None or len(numbers) % per_line:
                raise self._explain(LineBlock(data, line), per_line)
            seen += len(numbers) // per_line
            if numbers.size:
                yield numbers.reshape(-1, per_line), line
        if seen != self._count:
            raise DataError(
                f"{self.label} has {seen} entries, but its size line says {self._count}: the file is truncated or damaged"
            )

    def _coordinates(self) -> Iterator[tuple[IndexArray, IndexArray, Float64Array]]:
        """Yield (rows, columns, values) of runs of entries, indices from 0."""
        pattern = self._field == "pattern"
        for numbers, line in self._numbers(2 if pattern else 3):
            place = numbers[:, :2]
            wrong = np.flatnonzero(((place < 1) | (place > self._shape) | (place != np.floor(place))).any(axis=1))
            if wrong.size:
                row, column = place[wrong[0]]
                raise DataError(
                    f"{self.label}: the entry at line {line + int(wrong[0])} or after is at row {row:g}, column {column:g} "
                    f"of a matrix of shape {self._shape}"
                )
            rows, columns = (place.T - 1).astype(np.int64)
            yield rows, columns, np.ones(len(numbers)) if pattern else np.ascontiguousarray(numbers[:, 2])

    def _array(self) -> Iterator[tuple[IndexArray, IndexArray, Float64Array]]:
        """Yield (rows, columns, values) of an array, which is in column order (lower triangle if symmetric)."""
        height = self._shape[0]
        first = np.arange(self._shape[1]) if self._symmetry == "symmetric" else np.arange(1, self._shape[1] + 1)
        if self._symmetry == "general":
            first = np.zeros(self._shape[1], dtype=np.int64)
        starts = np.concatenate(([0], np.cumsum(height - first)))
        seen = 0
        for numbers, _ in self._numbers(1):
            if seen + len(numbers) > self._count:
                raise DataError(f"{self.label} has more than the {self._count} values its size line announces")
            position = np.arange(seen, seen + len(numbers))
            columns = np.searchsorted(starts, position, side="right") - 1
            yield position - starts[columns] + first[columns], columns, numbers[:, 0]
            seen += len(numbers)

    def _explain(self, block: LineBlock, per_line: int) -> DataError:
        """Return the error for the first line that does not hold ``per_line`` numbers."""
        for offset, line in enumerate(block.data.split(b"\n")):
            numbers = parse_numbers(line)
            if numbers is None or len(numbers) not in (0, per_line):
                shown = shorten(line.decode("utf-8", "replace"))
                return DataError(f"{self.label}: line {block.first_line + offset} is {shown}, expected {per_line} numbers")
        return DataError(f"{self.label}: line {block.first_line} or after does not hold {per_line} numbers")


def _are_sizes(numbers: Float64Array) -> bool:
    """Return whether all ``numbers`` are integers from 0 to 2**53, which float64 represents exactly."""
    return bool(((numbers >= 0) & (numbers < 2**53) & (numbers == np.floor(numbers))).all())


def _size_line(text: bytes) -> tuple[bytes, int] | None:
    """Return the first line that is neither a comment nor blank, and its 1-based number; None if it is not complete."""
    lines = text.split(b"\n")
    for number, line in enumerate(lines[:-1] if len(lines) > 1 else lines, start=1):
        if line.strip() and not line.startswith(b"%"):
            return line, number
    return None
