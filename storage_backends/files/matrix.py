"""A matrix in a file of a store: its view, and the file while it is being built. Knows neither directories nor sidecars."""

from __future__ import annotations

import mmap
import os

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import StoreError
from storage_backends.files import format as store_format
from storage_backends.files.durable import allocate
from storage_backends.files.mapped import map_file

__all__ = ["DraftMatrix", "matrix_view"]


def matrix_view(mapping: mmap.mmap, n_columns: int, n_obs: int, dtype: str) -> AnyArray:
    """Return the matrix in a mapping of matrix.npy: a view that keeps the mapping alive."""
    element = store_format.element_type(dtype)
    return np.frombuffer(mapping, element, n_columns * n_obs, store_format.DATA_OFFSET).reshape(n_columns, n_obs)


class DraftMatrix:
    """A matrix file of a draft, mapped for writing.

    Parameters
    ----------
    directory : int
        Descriptor of the directory it is created in.
    name : str
    shape : (int, int, str)
        Columns, observations and element type.
    path : str
        What to call it in an error.
    create : bool
        Make the file; otherwise it must be there and of this shape.
    """

    def __init__(self, directory: int, name: str, shape: tuple[int, int, str], path: str, *, create: bool = True) -> None:
        self._shape = shape
        how = os.O_CREAT | os.O_EXCL if create else os.O_NOFOLLOW
        self._file = os.open(name, os.O_RDWR | os.O_CLOEXEC | how, 0o666, dir_fd=directory)
        try:
            length = store_format.matrix_length(*shape)
            if create:
                allocate(self._file, length, path)
            elif os.fstat(self._file).st_size != length:
                raise StoreError(f"what an earlier build of {path} left has another shape: build it again")
            os.pwrite(self._file, store_format.matrix_header(*shape), 0)
            self._mapping: mmap.mmap | None = map_file(self._file, length, mmap.MAP_SHARED, writable=True, path=path)
        except BaseException:
            os.close(self._file)
            raise

    @property
    def matrix(self) -> AnyArray:
        """The matrix, writable."""
        assert self._mapping is not None, "a sealed file is handed out by no draft"
        return matrix_view(self._mapping, *self._shape)

    def write_columns(self, first: int, columns: AnyArray) -> None:
        """Write whole columns with pwrite(2)."""
        data = columns.reshape(-1).view(np.uint8).data
        position = store_format.DATA_OFFSET + first * columns.shape[1] * columns.itemsize
        while data:
            written = os.pwrite(self._file, data, position)
            data, position = data[written:], position + written

    def forget(self, first: int, last: int) -> None:
        """Unmap the pages that lie wholly in columns ``first:last``."""
        n_columns, n_obs, dtype = self._shape
        row = n_obs * store_format.element_type(dtype).itemsize
        start = -(-(store_format.DATA_OFFSET + first * row) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = store_format.DATA_OFFSET + last * row
        if last < n_columns:
            end -= end % mmap.PAGESIZE
        if self._mapping is not None and end > start:
            self._mapping.madvise(mmap.MADV_DONTNEED, start, end - start)

    def seal(self, n_columns: int) -> None:
        """Cut the file down to ``n_columns`` and bring it to the device."""
        assert self._mapping is not None, "a file is sealed once"
        self._mapping.flush()
        self._mapping = None  # before the file shrinks: touching a lost page would be a signal
        shape = (n_columns, *self._shape[1:])
        os.pwrite(self._file, store_format.matrix_header(*shape), 0)
        os.ftruncate(self._file, store_format.matrix_length(*shape))
        os.fsync(self._file)

    def close(self) -> None:
        """Let go of mapping and file."""
        self._mapping = None
        os.close(self._file)
