"""NPY by memory mapping and NPZ by streaming its members out of the zip: neither is ever loaded whole, nothing is unpickled.

The order of the file decides the direction of the chunks: a C-ordered matrix comes in runs of rows, a Fortran-ordered one in runs
of columns. A mapped C-ordered matrix that is too wide for that is cut into column slabs instead.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.readers.base import (
    Chunk,
    Reader,
    ReaderOptions,
    Scan,
    as_float,
    float_type,
    library_errors,
    pick_columns,
    rows_are_efficient,
    spans,
)

__all__ = ["NAME_ARRAYS", "NpyReader", "NpzReader", "choose_matrix", "name_list"]

#: Arrays of a container that hold the column names.
NAME_ARRAYS = ("names", "feature_names")


class NpyReader(Reader):
    """A two-dimensional array in a .npy file."""

    def __init__(self, path: str, options: ReaderOptions) -> None:
        super().__init__(path, options)
        with library_errors(f"{self.label} is not a readable NPY file of numbers"):
            array: AnyArray = np.lib.format.open_memmap(path, mode="r")
        if array.ndim != 2:
            raise DataError(f"{self.label} holds an array of shape {array.shape}, expected two dimensions")
        float_type(array.dtype, self.label)
        self._matrix: AnyArray = array.T if options.rows == "features" else array

    @property
    def names(self) -> Sequence[str]:
        """Numbered names."""
        return NumberedNames(self._matrix.shape[1])

    def scan(self, columns: IndexArray) -> Scan:
        """Return the number of rows."""
        return Scan(self._matrix.shape[0])

    def chunks(self, columns: IndexArray, scan: Scan) -> Iterator[Chunk]:
        """Yield runs of rows, or slabs of columns where those are the better direction."""
        budget = self.options.chunk_bytes
        n_obs, width = self._matrix.shape
        if self._matrix.flags.c_contiguous and rows_are_efficient(n_obs, width, budget):
            for first, last in spans(n_obs, width * 8, budget):
                rows = self._matrix[first:last]
                yield Chunk(first, 0, as_float(rows if len(columns) == width else rows[:, columns], self.label))
            return
        for first, last in spans(width, n_obs * 8, budget):
            chunk = pick_columns(columns, first, as_float(self._matrix[:, first:last], self.label))
            if chunk is not None:
                yield chunk


@dataclass(frozen=True, slots=True)
class _Member:
    """The header of one array in a zip."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[np.generic]


class NpzReader(Reader):
    """A .npz archive: the matrix ``X`` or the only one, names in ``names``, targets in ``y`` and other vectors."""

    def __init__(self, path: str, options: ReaderOptions) -> None:
        super().__init__(path, options)
        with library_errors(f"{self.label} is not a readable NPZ archive"):
            self._archive = zipfile.ZipFile(path)
            self._members = {
                name.removesuffix(".npy"): self._header(name) for name in self._archive.namelist() if name.endswith(".npy")
            }
        shapes = {name: member.shape for name, member in self._members.items()}
        self._table = choose_matrix(self.label, shapes, options.dataset)
        member = self._members[self._table]
        float_type(member.dtype, f"{self.label}: array {self._table!r}")
        n_obs, width = member.shape[:: -1 if options.rows == "features" else 1]
        self._n_obs = n_obs
        self._names: Sequence[str] = NumberedNames(width)
        for name in NAME_ARRAYS:
            if name in shapes:
                self._names = name_list(self.label, name, self._load(name), width)
                break
        beside = [name for name, shape in shapes.items() if shape in ((n_obs,), (n_obs, 1))]
        beside = [name for name in beside if name not in (self._table, *NAME_ARRAYS)]
        self.vectors = tuple(name for name in beside if not self._members[name].dtype.hasobject)
        self.notes.extend(
            f"the array {name!r} holds Python objects and was left out: save it as numbers or text"
            for name in beside
            if name not in self.vectors
        )
        self.default_target = "y" if "y" in self.vectors else None

    @property
    def names(self) -> Sequence[str]:
        """Names from the archive, or numbered ones."""
        return self._names

    def scan(self, columns: IndexArray) -> Scan:
        """Return the number of rows."""
        return Scan(self._n_obs)

    def chunks(self, columns: IndexArray, scan: Scan) -> Iterator[Chunk]:
        """Yield runs of rows or of columns, whichever the member stores one after the other."""
        member = self._members[self._table]
        by_rows = member.fortran == (self.options.rows == "features")
        slow, fast = (self._n_obs, len(self._names)) if by_rows else (len(self._names), self._n_obs)
        where = f"{self.label}: array {self._table!r}"
        damaged = f"{self.label}: array {self._table!r} is damaged"
        with library_errors(damaged), self._archive.open(self._table + ".npy") as stream:
            _read_header(stream)
            for first, last in spans(slow, fast * max(8, member.dtype.itemsize), self.options.chunk_bytes):
                data = self._exactly(stream, (last - first) * fast * member.dtype.itemsize)
                slab = as_float(np.frombuffer(data, dtype=member.dtype).reshape(last - first, fast), where)
                if by_rows:
                    yield Chunk(first, 0, slab if len(columns) == fast else slab[:, columns])
                elif (chunk := pick_columns(columns, first, slab.T)) is not None:
                    yield chunk

    def vector(self, name: str) -> AnyArray:
        """Return one of the vectors."""
        return self._load(name).reshape(-1)

    def close(self) -> None:
        """Close the archive."""
        self._archive.close()

    def _header(self, name: str) -> _Member:
        """Read the header of a member."""
        with self._archive.open(name) as stream:
            member = _read_header(stream)
        if math.prod(member.shape) * member.dtype.itemsize > self._archive.getinfo(name).file_size:
            raise ValueError(f"its array {name!r} of shape {member.shape} is cut short")
        return member

    def _load(self, name: str) -> AnyArray:
        """Load a small member whole."""
        with library_errors(f"{self.label}: array {name!r} cannot be read"), self._archive.open(name + ".npy") as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))

    def _exactly(self, stream: IO[bytes], size: int) -> bytearray:
        """Read ``size`` bytes of a member."""
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size and (count := stream.readinto(view[filled:])):  # type: ignore[attr-defined]
            filled += count
        if filled < size:
            raise DataError(f"{self.label}: array {self._table!r} ends early: write the file again")
        return data


def choose_matrix(label: str, shapes: dict[str, tuple[int, ...]], wanted: str | None) -> str:
    """Return the name of the array that is the table: the one asked for, ``X``, or the only one of two dimensions.

    Parameters
    ----------
    label : str
        The file, for the error.
    shapes : dict
        Of every array in the container.
    wanted : str, optional
    """
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    if wanted is not None:
        if wanted not in matrices:
            raise DataError(f"{label} has no two-dimensional array {wanted!r}: it has {', '.join(matrices) or 'none'}")
        return wanted
    if "X" in matrices:
        return "X"
    if len(matrices) != 1:
        found = f"{len(matrices)} two-dimensional arrays ({', '.join(matrices)})" if matrices else "no two-dimensional array"
        raise DataError(f"{label} has {found} and none called X: name the table with --dataset")
    return matrices[0]


def name_list(label: str, array: str, values: AnyArray, width: int) -> list[str]:
    """Return the names held by an array of a container, checked against the number of columns."""
    if values.shape != (width,):
        raise DataError(f"{label}: {array!r} has shape {values.shape}, expected one name for each of {width} columns")
    if values.dtype.kind not in "US":
        raise DataError(f"{label}: {array!r} holds elements of type {values.dtype}, expected text")
    return [str(name) for name in (np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values)]


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
