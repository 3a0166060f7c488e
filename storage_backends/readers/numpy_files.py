"""NPY files, read piece by piece, and NPZ files, streamed from the zip archive. Nothing is loaded whole or unpickled.

Runs of columns are best, because a store holds columns. In an NPY file whose rows are observations, a run of columns is a piece of
each row: read so unless the pieces are too short, which they are in a very tall matrix. The next run is read while one is in use.
"""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Generator
from dataclasses import dataclass
from typing import IO

import numpy as np

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.matrix.memory import fillable_memory
from fastomp_nvm.matrix.threads import ranges, together, unless_others_fail
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.readers.base import (
    Chunk,
    Reader,
    ReaderOptions,
    Scan,
    ahead,
    as_float,
    float_type,
    library_errors,
    rows_are_efficient,
    slab_chunks,
    spans,
)

__all__ = ["ContainerReader", "NpyReader", "NpzReader"]


#: Bytes of a row in a run of columns that are read as fast as many; the budgets that a run may take to have them; and the bytes
#: below which runs of rows are read instead.
_PIECE_BYTES, _STRIPS, _SHORT_BYTES = 32 << 10, 4, 4 << 10
#: Rows that one of two threads reads at a time.
_READ_ROWS = 4096


class NpyReader(Reader):
    """A two-dimensional array in a .npy file."""

    def __init__(self, path: str, options: ReaderOptions) -> None:
        super().__init__(path, options)
        with library_errors(f"{self.label} is not a readable NPY file of numbers"):
            array: AnyArray = np.lib.format.open_memmap(path, mode="r")
        if array.ndim != 2:
            raise DataError(f"{self.label} holds an array of shape {array.shape}, expected two dimensions")
        float_type(array.dtype, self.label)
        self._offset: int = array.offset  # type: ignore[attr-defined]  # of a memmap
        self._matrix: AnyArray = (array.T if options.rows == "features" else array).view(np.ndarray)
        self.n_obs, self.names = self._matrix.shape[0], NumberedNames(self._matrix.shape[1])

    def chunks(self, columns: IndexArray, scan: Scan) -> Generator[Chunk, None, None]:
        """Yield runs of columns, or of rows where columns would be read in too short pieces."""
        n_obs, width = self._matrix.shape
        item = self._matrix.itemsize
        unit = item if self._matrix.dtype.kind == "f" else 8  # bytes of a value in a chunk
        budget, by_rows = self.options.chunk_bytes, False
        if self._matrix.flags.c_contiguous:
            budget = max(budget, min(_STRIPS * budget, n_obs * _PIECE_BYTES * unit // item))
        budget = int(min(budget, fillable_memory() / 16))
        if self._matrix.flags.c_contiguous:
            piece = min(budget // (n_obs * unit), width) * item
            by_rows = piece < min(_SHORT_BYTES, width * item) and rows_are_efficient(n_obs, width, budget)
        runs = list(spans(*((n_obs, width * unit) if by_rows else (width, n_obs * unit)), budget))
        if not by_rows:  # from the first to the last column of each run that was chosen
            chosen = [columns[slice(*np.searchsorted(columns, run))] for run in runs]
            runs = [(int(some[0]), int(some[-1]) + 1) for some in chosen if some.size]

        def read(run: tuple[int, int]) -> AnyArray:
            part = slice(*run)
            slab = self._matrix[part] if by_rows else self._matrix[:, part]
            try:
                return as_float(self._loaded(slab), self.label)
            except (EOFError, ValueError) as error:
                raise DataError(f"{self.label} was cut short while it was read: write the file again") from error

        with contextlib.closing(ahead(iter(runs), read)) as slabs:
            for (first, _), slab in zip(runs, slabs, strict=True):
                yield from slab_chunks(columns, first, slab, by_rows=by_rows)

    def _loaded(self, slab: AnyArray) -> AnyArray:
        """Read a run of rows or columns of the mapped matrix with pread(2), several times faster than through page faults."""
        whole = self._matrix if self._matrix.flags.c_contiguous else self._matrix.T
        part = slab if whole is self._matrix else slab.T
        offset = self._offset + part.ctypes.data - whole.ctypes.data
        if part.flags.c_contiguous:
            found = np.fromfile(self.path, part.dtype, part.size, offset=offset).reshape(part.shape)
            return found if part is slab else found.T
        if native.extension is None or part.dtype not in (np.float32, np.float64) or not part.dtype.isnative:
            return slab
        strip: AnyArray = np.empty(part.shape[::-1], part.dtype)
        stride, extension = whole.strides[0], native.extension
        with open(self.path, "rb", buffering=0) as file:
            waiting = ranges(len(part), _READ_ROWS)

            def work() -> None:
                for first, last in waiting:
                    extension.read_strip(file.fileno(), offset + first * stride, stride, strip[:, first:last])

            together(unless_others_fail(work, waiting), 1)
        return strip.T


@dataclass(frozen=True, slots=True)
class _Member:
    """The NPY header of one array of an archive."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[np.generic]


class ContainerReader(Reader):
    """A file of named arrays.

    The table is the requested matrix, ``X``, or the only matrix. Beside it, an array ``names`` or ``feature_names`` holds column
    names and ``y`` the default target; other arrays with one value per observation are vectors.
    """

    def _choose_table(self, shapes: dict[str, tuple[int, ...]], wanted: str | None) -> str:
        """Return the name of the table and set ``n_obs``, ``names``, ``vectors`` and ``default_target``.

        Parameters
        ----------
        shapes : dict
            Of every array in the container; names may contain folders.
        wanted : str, optional
            The requested table.
        """
        matrices = [name for name, shape in shapes.items() if len(shape) == 2]
        if wanted is not None and wanted not in matrices:
            raise DataError(f"{self.label} has no two-dimensional array {wanted!r}: it has {', '.join(matrices) or 'none'}")
        if wanted is None and "X" not in matrices and len(matrices) != 1:
            found = f"{len(matrices)} two-dimensional arrays ({', '.join(matrices)})" if matrices else "no two-dimensional array"
            raise DataError(f"{self.label} has {found} and none called X: name the table with --dataset")
        table = wanted or ("X" if "X" in matrices else matrices[0])
        folder = table[: table.rfind("/") + 1]
        names = [f"{folder}names", f"{folder}feature_names"]
        self.n_obs, width = shapes[table][:: -1 if self.options.rows == "features" else 1]
        self.names = NumberedNames(width)
        for name in names:
            if name in shapes:
                self.names = self._column_names(name, width)
                break
        columns = ((self.n_obs,), (self.n_obs, 1))
        self.vectors = tuple(name for name, shape in shapes.items() if shape in columns and name not in (table, *names))
        self.default_target = f"{folder}y" if f"{folder}y" in self.vectors else None
        return table

    def _column_names(self, array: str, width: int) -> list[str]:
        """Return the column names in an array of the container."""
        values = self.vector(array)
        if values.shape != (width,):
            raise DataError(f"{self.label}: {array!r} has shape {values.shape}, expected one name for each of {width} columns")
        if values.dtype.kind not in "US":
            raise DataError(f"{self.label}: {array!r} holds elements of type {values.dtype}, expected text")
        return [str(name) for name in (np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values)]


class NpzReader(ContainerReader):
    """A .npz archive."""

    def __init__(self, path: str, options: ReaderOptions) -> None:
        super().__init__(path, options)
        with library_errors(f"{self.label} is not a readable NPZ archive"):
            self._archive = zipfile.ZipFile(path)
            self._members = {
                name.removesuffix(".npy"): self._header(name) for name in self._archive.namelist() if name.endswith(".npy")
            }
        shapes = {name: member.shape for name, member in self._members.items()}
        objects = [name for name, member in self._members.items() if member.dtype.hasobject]
        self._table = self._choose_table(shapes, options.dataset)
        float_type(self._members[self._table].dtype, f"{self.label}: array {self._table!r}")
        for name in objects:
            if name in self.vectors:
                self.notes.append(f"the array {name!r} holds Python objects and was left out: save it as numbers or text")
        self.vectors = tuple(name for name in self.vectors if name not in objects)
        self.default_target = None if self.default_target in objects else self.default_target

    def chunks(self, columns: IndexArray, scan: Scan) -> Generator[Chunk, None, None]:
        """Yield runs of rows or of columns, in the order of the file."""
        member = self._members[self._table]
        by_rows = member.fortran == (self.options.rows == "features")
        slow, fast = (self.n_obs, len(self.names)) if by_rows else (len(self.names), self.n_obs)
        where = f"{self.label}: array {self._table!r}"
        with library_errors(f"{where} is damaged"), self._archive.open(self._table + ".npy") as stream:
            _read_header(stream)
            for first, last in spans(slow, fast * max(8, member.dtype.itemsize), self.options.chunk_bytes):
                data = self._exactly(stream, (last - first) * fast * member.dtype.itemsize)
                slab = as_float(np.frombuffer(data, dtype=member.dtype).reshape(last - first, fast), where)
                yield from slab_chunks(columns, first, slab if by_rows else slab.T, by_rows=by_rows)

    def vector(self, name: str) -> AnyArray:
        """Return one of the vectors."""
        with library_errors(f"{self.label}: array {name!r} cannot be read"), self._archive.open(name + ".npy") as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False)).reshape(-1)

    def close(self) -> None:
        """Close the archive."""
        self._archive.close()

    def _header(self, name: str) -> _Member:
        """Read the header of a member."""
        with self._archive.open(name) as stream:
            member = _read_header(stream)
        if math.prod(member.shape) * member.dtype.itemsize > self._archive.getinfo(name).file_size:
            raise ValueError(f"its array {name!r} of shape {member.shape} is truncated")
        return member

    def _exactly(self, stream: IO[bytes], size: int) -> bytearray:
        """Read ``size`` bytes of a member."""
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size and (count := stream.readinto(view[filled:])):  # type: ignore[attr-defined]
            filled += count
        if filled < size:
            raise DataError(f"{self.label}: array {self._table!r} is truncated: write the file again")
        return data


def _read_header(stream: IO[bytes]) -> _Member:
    """Read the header at the start of a .npy stream, leaving the stream at the first element."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"NPY format {version} is not supported")
    return _Member(shape, fortran, dtype)
