"""A matrix that the medium holds as several arrays of rows: what a pool with values of limited size can offer.

``parts`` is how the sweep walks any matrix: one part where it is an array, one per piece here. Everything else that is done with a
matrix (shape, a few rows, a column by number) works as on an array; rows that lie in one piece are a view, others a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray

__all__ = ["PiecedRows", "parts"]


class PiecedRows:
    """Rows in several arrays, one below the other.

    Parameters
    ----------
    pieces : sequence of (rows, n_obs) arrays
        At least one; of one type and width. They are made read-only views.
    """

    ndim = 2

    def __init__(self, pieces: Sequence[AnyArray]) -> None:
        self.pieces = tuple(_read_only(piece) for piece in pieces)
        self.starts: IndexArray = np.concatenate(([0], np.cumsum([len(piece) for piece in self.pieces]))).astype(np.int64)
        self.dtype = self.pieces[0].dtype
        self.itemsize = self.dtype.itemsize
        self.shape = (int(self.starts[-1]), self.pieces[0].shape[1])
        self.size = self.shape[0] * self.shape[1]
        self.nbytes = self.size * self.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> AnyArray:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            place = int(np.searchsorted(self.starts, first, side="right")) - 1
            if step == 1 and place < len(self.pieces) and last <= self.starts[place + 1]:
                start = int(self.starts[place])
                return self.pieces[place][first - start : last - start]
            return self[np.arange(first, last, step)]
        if isinstance(index, (int, np.integer)):
            row: AnyArray = self[int(index) % len(self) : int(index) % len(self) + 1][0]
            return row
        wanted = np.asarray(index)
        if wanted.dtype == np.bool_:
            wanted = np.flatnonzero(wanted)
        out = np.empty((len(wanted), self.shape[1]), dtype=self.dtype)
        for here, piece, local in self.located(wanted):
            out[here] = piece[local]
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        whole: AnyArray = np.concatenate(self.pieces)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def located(self, rows: IndexArray) -> Iterator[tuple[IndexArray, AnyArray, IndexArray]]:
        """Yield per piece the positions in ``rows`` that it holds, the piece, and the rows by its own count."""
        owners = np.searchsorted(self.starts, rows, side="right") - 1
        for place in np.unique(owners):
            here = np.flatnonzero(owners == place)
            yield here, self.pieces[place], np.asarray(rows)[here] - self.starts[place]


def parts(rows: AnyArray | PiecedRows) -> Iterator[tuple[int, AnyArray]]:
    """Yield the arrays a matrix is made of, each with the number of its first row."""
    if isinstance(rows, PiecedRows):
        yield from zip(rows.starts[:-1].tolist(), rows.pieces, strict=True)
    else:
        yield 0, rows


def _read_only(array: AnyArray) -> AnyArray:
    """Return a view that cannot be written."""
    view = array[:]
    view.flags.writeable = False
    return view
