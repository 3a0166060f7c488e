"""How the tests of readers look at a source: the whole table, put together from its chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from storage_backends.readers import open_reader
from storage_backends.readers.base import ReaderOptions

SMALL = 4096  # a budget that forces many chunks


def read_all(path: Path, columns: list[int] | None = None, **options: Any) -> np.ndarray:
    """Return the table of a reader, put together from its chunks, each cell checked to come once."""
    with open_reader(str(path), ReaderOptions(**options)) as reader:
        chosen = np.arange(len(reader.names)) if columns is None else np.array(columns)
        scan = reader.scan(chosen)
        table = np.zeros((scan.n_obs, len(chosen)))
        visits = np.zeros(table.shape, dtype=int)
        for chunk in reader.chunks(chosen, scan):
            place = np.s_[
                chunk.first_obs : chunk.first_obs + chunk.values.shape[0],
                chunk.first_column : chunk.first_column + chunk.values.shape[1],
            ]
            table[place] = chunk.values
            visits[place] += 1
        assert (visits == 1).all()
        return table
