"""SVMlight (libsvm) text: ``label index:value index:value ... # comment``, one observation per line.

The first pass reads labels and the range of indices, the second collects the entries. Indices start at 1 unless a 0 occurs in the
file, as in scikit-learn. The labels are the vector ``target``; ``qid`` entries are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.readers.base import Chunk, Reader, ReaderOptions, Scan, slab_chunks
from storage_backends.readers.sparse import ColumnSlabs, check_cells
from storage_backends.readers.text import LineBlock, line_blocks, parse_numbers, shorten

__all__ = ["SvmlightReader"]

_COMMENT = re.compile(rb"#[^\n]*")
_QUERY = re.compile(rb"(?<=\s)qid:\S*")
_TARGET = "target"

# Every column up to the largest index is stored, with or without entries; a larger index is taken for an error or a hash.
_LARGEST_INDEX = (1 << 26) - 1

# Text parsed at once: an entry of four bytes becomes several arrays of eight bytes per entry.
_BLOCK_BYTES = 4 << 20


#: A run of observations: their labels, and observation, index and value of each entry.
_Entries = tuple[Float64Array, IndexArray, IndexArray, Float64Array]


class SvmlightReader(Reader):
    """A sparse text file with labels."""

    vectors = (_TARGET,)
    default_target = _TARGET
    passes = 2

    def __init__(self, path: str, options: ReaderOptions) -> None:
        super().__init__(path, options)
        if options.rows == "features":
            raise InputError(f"{self.label}: a line of this format is always an observation: leave out --rows features")
        found, lowest, highest = [np.empty(0)], 1, 0
        for labels, _, indices, _ in self._entries():
            found.append(labels)
            if indices.size:
                lowest, highest = min(lowest, int(indices.min())), max(highest, int(indices.max()))
        self._labels = np.concatenate(found)
        self._first_index = lowest  # 0 or 1
        self.n_obs, self.names = len(self._labels), NumberedNames(highest + 1 - lowest)
        check_cells(path, self.n_obs, len(self.names))
        if not len(self.names):
            raise DataError(f"{self.label} has no entries: expected lines such as '1 3:0.5 7:1'")

    def vector(self, name: str) -> AnyArray:
        """Return the labels."""
        return self._labels

    def chunks(self, columns: IndexArray, scan: Scan) -> Generator[Chunk, None, None]:
        """Yield slabs of columns."""
        with ColumnSlabs(self.n_obs, len(self.names), self.options.chunk_bytes) as slabs:
            first_obs = 0
            for labels, observations, indices, values in self._entries():
                slabs.add(first_obs + observations, indices - self._first_index, values)
                first_obs += len(labels)
            for first, slab in slabs.slabs():
                yield from slab_chunks(columns, first, slab)

    def _entries(self) -> Iterator[_Entries]:
        """Parse the file, one run of lines at a time."""
        return map(self._parse, line_blocks(self.path, _BLOCK_BYTES, self.options.consumed))

    def _parse(self, block: LineBlock) -> _Entries:
        """Parse whole lines: a label, then words ``index:value``."""
        data = block.data
        if b"#" in data:
            data = _COMMENT.sub(b"", data)
        if b"qid:" in data:
            data = _QUERY.sub(b"", data)
        view = np.frombuffer(data, dtype=np.uint8)
        inside = view > ord(" ")
        starts = np.flatnonzero(inside & ~np.concatenate(([False], inside[:-1])))
        line = np.searchsorted(np.flatnonzero(view == ord("\n")), starts)
        is_label = np.diff(line, prepend=-1) > 0
        word = np.searchsorted(starts, np.flatnonzero(view == ord(":")), side="right") - 1
        wrong = np.flatnonzero(np.bincount(word, minlength=len(starts)) != ~is_label)
        tokens = None if wrong.size else parse_numbers(data.replace(b":", b" "))
        labels = int(is_label.sum())
        if tokens is None or len(tokens) != 2 * len(starts) - labels:
            raise self._explain(data, starts, line, is_label, block.first_line)
        length = np.where(is_label, 1, 2)
        position = np.cumsum(length) - length
        indices = tokens[position[~is_label]]
        bad = np.flatnonzero(~((indices >= 0) & (indices <= _LARGEST_INDEX) & (indices == np.floor(indices))))
        if bad.size:
            number = block.first_line + int(line[~is_label][bad[0]])
            raise DataError(
                f"{self.label}: line {number} has the index {indices[bad[0]]:.15g}, expected a whole number from 0 to "
                f"{_LARGEST_INDEX}: number the columns consecutively"
            )
        observations = np.asarray(np.cumsum(is_label)[~is_label] - 1, dtype=np.int64)
        repeated = _repeated_entry(observations, indices)
        if repeated is not None:
            number = block.first_line + int(line[~is_label][repeated])
            raise DataError(
                f"{self.label}: line {number} has the index {indices[repeated]:.15g} twice: keep one value of each index"
            )
        return tokens[position[is_label]], observations, indices.astype(np.int64), tokens[position[~is_label] + 1]

    def _explain(self, data: bytes, starts: IndexArray, line: IndexArray, is_label: AnyArray, first_line: int) -> DataError:
        """Return the error for the first malformed word."""
        for start, number, label in zip(starts.tolist(), line.tolist(), is_label.tolist(), strict=True):
            word = data[start : start + 64].split(None, 1)[0]
            parts = word.split(b":")
            numbers = [parse_numbers(part) for part in parts]
            if len(parts) != (1 if label else 2) or any(found is None or len(found) != 1 for found in numbers):
                expected = "a number as label" if label else "index:value"
                shown = shorten(word.decode("utf-8", "replace"))
                return DataError(f"{self.label}: line {first_line + number} holds {shown}, expected {expected}")
        return DataError(f"{self.label}: line {first_line} or after is not in SVMlight format")


def _repeated_entry(observations: IndexArray, indices: Float64Array) -> int | None:
    """Return the position of an entry that repeats an index of its observation, or None; ``observations`` ascend."""
    if (np.diff(indices)[np.diff(observations) == 0] > 0).all():  # indices ascend in nearly every file
        return None
    order = np.lexsort((indices, observations))
    same = (np.diff(observations[order]) == 0) & (np.diff(indices[order]) == 0)
    return int(order[1:][same].min()) if same.any() else None
