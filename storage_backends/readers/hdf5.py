"""HDF5: a two-dimensional dataset, read in slabs of whole chunks, or a group of one-dimensional columns.

The matrix is chosen as in every container (see ``ContainerReader``); without any, the root group is a table of columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any

import h5py
import numpy as np

from fastomp_nvm.arrays import AnyArray, IndexArray
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.encoding import Kind
from storage_backends.readers.base import (
    Categories,
    Chunk,
    LabelCollector,
    ReaderOptions,
    Scan,
    as_float,
    float_type,
    library_errors,
    rows_are_efficient,
    slab_chunks,
    spans,
)
from storage_backends.readers.numpy_files import ContainerReader

__all__ = ["Hdf5Reader"]

# Cells of a text column read at once.
_TEXT_ROWS = 1 << 18


class Hdf5Reader(ContainerReader):
    """An HDF5 file."""

    _matrix: Any  # a two-dimensional dataset, or None when the table is a group of columns
    _columns: tuple[Any, ...] = ()

    def __init__(self, path: str, options: ReaderOptions) -> None:
        super().__init__(path, options)
        with library_errors(f"{self.label} is not a readable HDF5 file"):
            self._file = h5py.File(path, "r")
        try:
            with self._damage():
                self._choose()
        except BaseException:
            self._file.close()
            raise

    def scan(self, columns: IndexArray) -> Scan:
        """Check the types and collect the labels of the text columns."""
        if self._matrix is not None:
            return Scan(self.n_obs)
        with self._damage():
            return Scan(self.n_obs, self._categories(columns))

    def kind_of(self, column: int) -> Kind:
        """Return the kind by the explicit rule, or else by the type."""
        if column in self.rules or self._matrix is not None or not _is_text(self._columns[column]):
            return super().kind_of(column)
        return "category"

    def _categories(self, columns: IndexArray) -> dict[int, Categories]:
        """Return the labels of the text columns, by position."""
        categories = {}
        for position, column in enumerate(columns.tolist()):
            dataset = self._columns[column]
            if self.kind_of(column) != "category":
                if not _is_text(dataset):
                    float_type(dataset.dtype, f"{self.label}: column {self.names[column]!r}")
                continue
            collector = LabelCollector(self.options.rules.missing)
            for cells in self._text_slabs(dataset):
                collector.add(Counter(cells))
            categories[position] = collector.result(self.rules.get(column))
        return categories

    def chunks(self, columns: IndexArray, scan: Scan) -> Generator[Chunk, None, None]:
        """Yield slabs of the matrix, or single columns."""
        with self._damage():
            if self._matrix is not None:
                yield from self._slabs(columns)
                return
            for position, column in enumerate(columns.tolist()):
                yield Chunk(0, position, self._column(column, scan, position)[:, np.newaxis])

    def vector(self, name: str) -> AnyArray:
        """Return one of the vectors."""
        with self._damage():
            dataset = self._own(self._file[name])
            values = dataset.asstr()[...] if _is_text(dataset) else dataset[...]
        return np.asarray(values.astype(str) if values.dtype == object else values).reshape(-1)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _damage(self) -> AbstractContextManager[None]:
        """Return a context manager that turns errors of the library into ``DataError``."""
        return library_errors(f"{self.label} is damaged")

    def _own(self, dataset: Any) -> Any:
        """Return a dataset; refuse one whose values are in other files, which would be copied without their owner's knowledge."""
        virtual = dataset.is_virtual and any(source.file_name != "." for source in dataset.virtual_sources())
        if dataset.external or virtual or dataset.file.filename != self._file.filename:
            raise DataError(f"{self.label}: the values of {dataset.name} are in another file: copy them into this one")
        return dataset

    def _choose(self) -> None:
        """Choose the table, its names and the vectors beside it."""
        wanted = None if self.options.dataset is None else self.options.dataset.strip("/")
        datasets: dict[str, Any] = {}
        self._file.visititems(lambda name, item: datasets.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        shapes = {name: dataset.shape or () for name, dataset in datasets.items()}
        group = self._file if wanted is None else self._file.get(wanted)
        has_matrix = any(len(shape) == 2 for shape in shapes.values())
        if isinstance(group, h5py.Group) and not (wanted is None and has_matrix):
            self._choose_columns(group)
            return
        table = self._choose_table(shapes, wanted)
        self._matrix = self._own(datasets[table])
        float_type(self._matrix.dtype, f"{self.label}: dataset {table!r}")

    def _choose_columns(self, group: Any) -> None:
        """Take the one-dimensional datasets of a group as columns."""
        if self.options.rows == "features":
            raise InputError(f"{self.label}: one-dimensional datasets are always features: leave out --rows features")
        self._matrix = None
        members = {name: item for name, item in group.items() if isinstance(item, h5py.Dataset) and item.ndim == 1}
        lengths = {len(item) for item in members.values()}
        if len(lengths) != 1:
            found = "one-dimensional datasets of different lengths" if lengths else "no dataset of one or two dimensions"
            raise DataError(f"{self.label}: {group.name} has {found}: name the table with --dataset")
        self.names = tuple(members)
        self._columns = tuple(map(self._own, members.values()))
        self.n_obs = lengths.pop()

    def _slabs(self, columns: IndexArray) -> Iterator[Chunk]:
        """Yield the matrix in slabs of whole chunks, along the axis that suits its layout."""
        transposed = self.options.rows == "features"
        width, budget = len(self.names), self.options.chunk_bytes
        stored = self._matrix.chunks or (1, self._matrix.shape[1])
        chunk_obs, chunk_columns = stored[::-1] if transposed else stored
        # Whole chunks: one that spans two slabs would be unpacked twice.
        by_rows = rows_are_efficient(self.n_obs, width, budget) and chunk_obs * width * 8 <= 4 * budget
        if not by_rows and chunk_columns * self.n_obs * 8 > 4 * budget:
            by_rows = chunk_obs * width < chunk_columns * self.n_obs
        where = f"{self.label}: dataset {self._matrix.name}"
        runs = spans(self.n_obs, width * 8, budget, chunk_obs) if by_rows else spans(width, self.n_obs * 8, budget, chunk_columns)
        for first, last in runs:
            slab = self._matrix[first:last] if by_rows != transposed else self._matrix[:, first:last]
            yield from slab_chunks(columns, first, as_float(slab.T if transposed else slab, where), by_rows=by_rows)

    def _column(self, column: int, scan: Scan, position: int) -> AnyArray:
        """Return the (n_obs,) numbers or codes of one column."""
        dataset = self._columns[column]
        if not _is_text(dataset):
            return as_float(dataset[...], f"{self.label}: column {self.names[column]!r}")
        convert = self.convert(column, scan.categories[position].codes() if position in scan.categories else None)
        return np.array([convert(cell) for cells in self._text_slabs(dataset) for cell in cells])

    def identifiers(self, column: int) -> list[str]:
        """Return the cells of a column as text."""
        if self._matrix is not None or not _is_text(self._columns[column]):
            return super().identifiers(column)
        with self._damage():
            return [cell for cells in self._text_slabs(self._columns[column]) for cell in cells]

    def _text_slabs(self, dataset: Any) -> Iterator[list[str]]:
        """Yield the cells of a text column, stripped."""
        for first in range(0, self.n_obs, _TEXT_ROWS):
            try:
                yield [cell.strip() for cell in dataset.asstr()[first : first + _TEXT_ROWS]]
            except UnicodeDecodeError as error:
                raise DataError(f"{self.label}: dataset {dataset.name} holds text that is not UTF-8") from error


def _is_text(dataset: Any) -> bool:
    """Return whether a dataset holds text."""
    return h5py.check_string_dtype(dataset.dtype) is not None
