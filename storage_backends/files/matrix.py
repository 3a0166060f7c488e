"""Matrix files of a store: views of mapped ones, and writing one."""

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
    """Return the matrix in a mapping of a matrix file, as a view that keeps the mapping alive."""
    element = store_format.element_type(dtype)
    return np.frombuffer(mapping, element, n_columns * n_obs, store_format.DATA_OFFSET).reshape(n_columns, n_obs)


class DraftMatrix:
    """A matrix file of a draft, mapped for writing.

    Parameters
    ----------
    directory : int
        Descriptor of the directory that contains it.
    name : str
    shape : (int, int, str)
        Columns, observations and element type.
    path : str
        Named in errors.
    create : bool
        Create the file; otherwise it must exist with this shape.
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
                raise StoreError(f"the earlier draft of {path} has another shape: build the store again")
            os.pwrite(self._file, store_format.matrix_header(*shape), 0)
            self._mapping: mmap.mmap | None = map_file(self._file, length, mmap.MAP_SHARED, writable=True, path=path)
        except BaseException:
            os.close(self._file)
            raise

    @property
    def matrix(self) -> AnyArray:
        """The matrix, writable."""
        assert self._mapping is not None, "a draft returns no sealed file"
        return matrix_view(self._mapping, *self._shape)

    def write_columns(self, first: int, columns: AnyArray) -> None:
        """Write whole columns with pwrite(2)."""
        data = columns.reshape(-1).view(np.uint8).data
        position = store_format.DATA_OFFSET + first * columns.shape[1] * columns.itemsize
        while data:
            written = os.pwrite(self._file, data, position)
            data, position = data[written:], position + written

    def forget(self, first: int, last: int) -> None:
        """Drop the pages that lie entirely in columns ``first:last`` from this mapping."""
        n_columns, n_obs, dtype = self._shape
        row = n_obs * store_format.element_type(dtype).itemsize
        start = -(-(store_format.DATA_OFFSET + first * row) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = store_format.DATA_OFFSET + last * row
        if last < n_columns:
            end -= end % mmap.PAGESIZE
        if self._mapping is not None and end > start:
            self._mapping.madvise(mmap.MADV_DONTNEED, start, end - start)

    def seal(self, n_columns: int) -> None:
        """Truncate the file to ``n_columns`` and write it to the device."""
        assert self._mapping is not None, "a file is sealed once"
        self._mapping.flush()
        self._mapping = None  # before the file shrinks: reading a lost page would raise a signal
        shape = (n_columns, *self._shape[1:])
        os.pwrite(self._file, store_format.matrix_header(*shape), 0)
        os.ftruncate(self._file, store_format.matrix_length(*shape))
        os.fsync(self._file)

    def close(self) -> None:
        """Close mapping and file."""
        self._mapping = None
        os.close(self._file)
