"""The columns of a table of numbers, where they lie: pandas, polars and pyarrow keep the entries of a column together."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.matrix.rows import LocalRows, PiecedRows, rows_of_array

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

__all__ = ["rows_of_table"]


def rows_of_table(table: object) -> LocalRows | None:
    """Return the columns of a pandas, polars or pyarrow table as rows, without copying them.

    A pandas table of one block is that array. Otherwise every block, or column, is a piece. Columns that are all float32 are swept
    as float32; others as float64, to which narrower numbers are converted as they are read.

    Returns
    -------
    LocalRows, optional
        None for objects that are no such table, and where a column cannot be used as it is: missing entries, several chunks,
        booleans kept as bits, no numbers.
    """
    library = type(table).__module__.partition(".")[0]
    try:
        if library == "pandas":
            frame = cast("pd.DataFrame", table)
            pieces = _blocks(frame, 0, frame.shape[1])
        elif library == "polars":
            pieces = [series.to_numpy(allow_copy=False)[np.newaxis] for series in cast("pl.DataFrame", table).get_columns()]
        elif library == "pyarrow":
            columns = cast("pa.Table", table).itercolumns()
            pieces = [_only_chunk(column).to_numpy(zero_copy_only=True)[np.newaxis] for column in columns]
        else:
            return None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
    if not pieces or not all(piece.size and piece.dtype.kind in "fiub" for piece in pieces):
        return None
    if len(pieces) == 1:
        return rows_of_array(pieces[0].T)
    single = all(piece.dtype == np.float32 for piece in pieces)
    return PiecedRows([rows_of_array(piece.T).array for piece in pieces], np.dtype(np.float32 if single else np.float64))


def _blocks(frame: pd.DataFrame, first: int, last: int) -> list[AnyArray]:
    """Return the columns ``first`` to ``last``, (columns, n_obs), in as many arrays as hold them; none is copied."""
    if _adjacent(frame, first, last):
        block = frame.iloc[:, first:last].to_numpy()
        if last - first == 1 or _address(block) == _address(frame.iloc[:, first].to_numpy()):  # no copy
            return [block.T]
    middle = (first + last) // 2
    return [*_blocks(frame, first, middle), *_blocks(frame, middle, last)]


def _adjacent(frame: pd.DataFrame, first: int, last: int) -> bool:
    """Tell whether these columns are of one type and seem to lie at equal distances, hence in one array."""
    if len(set(frame.dtypes.iloc[first:last])) > 1:
        return False
    start, second, end = (_address(frame.iloc[:, min(column, last - 1)].to_numpy()) for column in (first, first + 1, last - 1))
    return end - start == (last - first - 1) * (second - start)


def _address(array: AnyArray) -> int:
    """Return where the entries of an array begin."""
    return int(array.__array_interface__["data"][0])


def _only_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return the values of a column of pyarrow, which must be in one chunk."""
    chunks = getattr(column, "chunks", None)
    if chunks is None:  # of a record batch
        return cast("pa.Array", column)
    (only,) = chunks
    return only
