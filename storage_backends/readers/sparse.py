"""Converting sparse entries in any order to dense columns, with one temporary file and bounded memory.

Each run of entries is sorted by slabs of columns and appended to the file; a slab is then assembled from its part of every run. The
file is unnamed, so nothing is left behind however the process ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.errors import DataError, MediumError
from fastomp_nvm.limits import SPARSE_CELLS_PER_BYTE

__all__ = ["ColumnSlabs", "check_cells"]

_ENTRY = np.dtype([("cell", np.int64), ("value", np.float64)])


def check_cells(path: str, n_obs: int, n_columns: int) -> None:
    """Raise ``DataError`` where a small file announces so large a table that it is damaged or an attack."""
    size = os.path.getsize(path)
    if n_obs * n_columns > size * SPARSE_CELLS_PER_BYTE:
        raise DataError(
            f"{os.path.basename(path)} has {size} bytes and announces {n_obs} x {n_columns} cells, at most {SPARSE_CELLS_PER_BYTE} "
            "per byte are possible: it is damaged, or its indices are no positions"
        )


class ColumnSlabs:
    """Collects (observation, column, value) entries and yields dense slabs of columns. Use as a context manager.

    Parameters
    ----------
    n_obs, n_columns : int
    budget : int
        Bytes of one dense slab, and of entries kept in memory before the file is used.
    """

    def __init__(self, n_obs: int, n_columns: int, budget: int) -> None:
        self._n_obs = n_obs
        self._n_columns = n_columns
        self._width = max(1, budget // (8 * max(1, n_obs)))
        self._file = tempfile.SpooledTemporaryFile(max_size=budget)  # noqa: SIM115 - closed by __exit__
        self._runs: list[IndexArray] = []  # per run, the position in the file (in entries) at which each slab starts
        self._written = 0

    def __enter__(self) -> ColumnSlabs:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, observations: IndexArray, columns: IndexArray, values: Float64Array) -> None:
        """Add a run of entries; entries of the same cell are summed.

        Parameters
        ----------
        observations, columns : (e,) int64
        values : (e,) float64
        """
        slabs = columns // self._width
        order = np.argsort(slabs, kind="stable")
        entries = np.empty(len(order), dtype=_ENTRY)
        entries["cell"] = ((columns - slabs * self._width) * self._n_obs + observations)[order]
        entries["value"] = values[order]
        count = -(-self._n_columns // self._width)
        self._runs.append(self._written + np.searchsorted(slabs[order], np.arange(count + 1)))
        self._written += len(order)
        try:
            self._file.write(entries.tobytes())
        except OSError as error:
            raise MediumError(
                f"the temporary directory {tempfile.gettempdir()} has no room for the sparse entries "
                f"({error.strerror}): set TMPDIR to another directory"
            ) from error

    def slabs(self) -> Iterator[tuple[int, AnyArray]]:
        """Yield (first column, (n_obs, w) float64 values) of each slab in order."""
        for slab, first in enumerate(range(0, self._n_columns, self._width)):
            width = min(self._width, self._n_columns - first)
            dense = np.zeros(width * self._n_obs)
            for run in self._runs:
                start, stop = int(run[slab]), int(run[slab + 1])
                if start == stop:
                    continue
                self._file.seek(start * _ENTRY.itemsize)
                entries = np.frombuffer(self._file.read((stop - start) * _ENTRY.itemsize), dtype=_ENTRY)
                np.add.at(dense, entries["cell"], entries["value"])
            yield first, dense.reshape(width, self._n_obs).T
