"""Options of an ingest: how to read a source, what its columns are, and how to build the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

__all__ = ["IngestFields", "IngestOptions"]


class IngestFields(TypedDict, total=False):
    """Keyword arguments of ``ingest``; see :class:`IngestOptions`."""

    targets: Sequence[str]
    rows: str
    dtype: str
    missing: str
    id_column: str | None
    drop: Sequence[str]
    tier: str
    replace: bool
    dataset: str | None
    categorical: Sequence[str]
    numeric: Sequence[str]
    date: Sequence[str] | Mapping[str, str]
    na_values: Sequence[str]
    thousands: str | None
    decimal: str | None
    encoding: str | None
    format: str | None
    group: Sequence[str] | Mapping[str, Sequence[str]]
    drop_missing_target: bool
    schema: str | None
    schema_out: str | None
    dry_run: bool


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """Options of an ingest.

    Attributes
    ----------
    targets : sequence of str
        Each a column name, a column position (when no column has that name; negative counts from the end), or a file with one
        value per observation. A column takes precedence over a file of that name; ``./file`` is the file. Default: the target of
        the format, if any (``y`` of a container, the labels of SVMlight).
    rows : {"observations", "features"}
        What one line of the file, or one row of its matrix, is.
    dtype : {"float32", "float64", "float16"}
        Element type of the store.
    missing : {"error", "mean", "median", "drop-feature"}
        How to treat missing cells. With ``mean`` and ``median`` a missing text becomes the category ``(missing)``.
    id_column : str, optional
        Column that identifies the observations; it is kept with the store and is not a feature. With ``rows="features"`` the
        column of feature names.
    drop : sequence of str
        Names or patterns (``*``, ``?``, ``[...]``) of columns to leave out.
    tier : {"int8", "none"}
        What to keep next to the exact matrix.
    replace : bool
        Replace a store that exists.
    dataset : str, optional
        Which array of a container holds the table.
    categorical, numeric : sequence of str
        Names or patterns of columns to read as categories (also whole numbers that are codes) or as numbers (signs and units
        around a number are dropped: 12% is 12, <5 is 5, 3.5 kg is 3.5, (7) is -7).
    date : sequence of str, or mapping of str to str
        Columns to read as days since 1970-01-01: ``name`` for ISO 8601, ``name:format`` for a format of ``strptime``; or a mapping
        of names to formats, empty for ISO 8601.
    na_values : sequence of str
        Cells that mean "missing" besides the usual ones.
    thousands, decimal : str, optional
        Separators in numbers written as text. With ``thousands`` a currency sign is dropped, too. Default: none and a point.
    encoding : str, optional
        Of text files; UTF-8 by default.
    format : str, optional
        ``csv``, ``tsv``, ``parquet``, ...: in place of the file's extension; of standard input ``csv`` by default.
    group : sequence of str, or mapping of str to sequence of str
        Two or more columns that are one feature, like indicators that the source has: ``name=column,column`` (or a pattern).
    drop_missing_target : bool
        Leave out observations with a missing target.
    schema : str, optional
        File written by ``schema_out``, which says what every column is and how missing cells are treated; other options come
        before it.
    schema_out : str, optional
        File to write with the type of every column.
    dry_run : bool
        Read the source and report what was understood; build nothing.
    """

    targets: Sequence[str] = ()
    rows: str = "observations"
    dtype: str = "float32"
    missing: str | None = None
    id_column: str | None = None
    drop: Sequence[str] = ()
    tier: str = "int8"
    replace: bool = False
    dataset: str | None = None
    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    date: Sequence[str] | Mapping[str, str] = ()
    na_values: Sequence[str] = ()
    thousands: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    format: str | None = None
    group: Sequence[str] | Mapping[str, Sequence[str]] = ()
    drop_missing_target: bool = False
    schema: str | None = None
    schema_out: str | None = None
    dry_run: bool = False
