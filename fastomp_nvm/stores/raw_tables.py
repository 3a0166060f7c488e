"""Columns of a table as they were found, before the encoding of a store is applied to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastomp_nvm.arrays import Float64Array

__all__ = ["RawColumn", "RawTable"]


@dataclass(frozen=True, slots=True, eq=False)
class RawColumn:
    """A column of a table as it was found, before its encoding.

    Attributes
    ----------
    values : (n_obs,) float64
        Numbers, dates as days since 1970-01-01, or positions in ``labels``; NaN where missing.
    labels : tuple of str, optional
        Distinct texts of a category; None for numbers and dates.
    """

    values: Float64Array
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RawTable:
    """Columns of a table or file.

    Attributes
    ----------
    label : str
        Name of the table in messages.
    n_obs : int
    columns : mapping of str to RawColumn
        The requested columns that the table has.
    ids : sequence of str, optional
        Identifiers of the rows, if their column was requested.
    """

    label: str
    n_obs: int
    columns: Mapping[str, RawColumn]
    ids: Sequence[str] | None = None
