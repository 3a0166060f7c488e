"""Contracts of the functions that build stores and read files. ``storage_backends`` implements them."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from fastomp_nvm.registry import Lazy

if TYPE_CHECKING:
    from fastomp_nvm.arrays import AnyArray, Float64Array
    from fastomp_nvm.stores.encoding import TableEncoding
    from fastomp_nvm.stores.ingest_options import IngestFields
    from fastomp_nvm.stores.raw_tables import RawTable
    from fastomp_nvm.stores.reports import BuildReport, IngestReport

__all__ = [
    "BUILD_FROM_ARRAYS",
    "INGEST",
    "PREDICT_REMOTELY",
    "READ_TABLE",
    "READ_TARGET",
    "ArrayBuilder",
    "Ingest",
    "RemotePredictor",
    "Sources",
    "TableReader",
    "TargetReader",
    "ingest",
]


#: One or more files.
Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class ArrayBuilder(Protocol):
    """Builds a store from data in memory; see ``create_store`` for the parameters."""

    def __call__(
        self,
        url: str,
        X: Any,
        y: Any = None,
        *,
        names: Iterable[str] | None = None,
        dtype: str = "float32",
        rows: str = "observations",
        missing: str = "error",
        groups: Mapping[str, Sequence[str | int]] | None = None,
        tier: str = "int8",
        replace: bool = False,
        open_builder: Callable[..., Any] = ...,
    ) -> BuildReport:
        """Build the store; ``open_builder`` starts the build, for example one that sends the data to a server."""
        ...


class Ingest(Protocol):
    """Builds a store from files; see ``ingest``."""

    def __call__(
        self,
        source: Sources,
        url: str | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
        open_builder: Callable[..., Any] | None = None,
        **options: Unpack[IngestFields],
    ) -> IngestReport:
        """Build the store; ``open_builder`` starts the build, for example one that sends the data to a server."""
        ...


class TargetReader(Protocol):
    """Reads one value per observation from a file."""

    def __call__(self, path: str, n_obs: int) -> tuple[str, AnyArray]:
        """Return the name of the target and its values (n_obs,)."""
        ...


class TableReader(Protocol):
    """Reads columns of a table in memory or of a file."""

    def __call__(
        self,
        data: object,
        wanted: Container[str],
        encoding: TableEncoding,
        *,
        id_column: str | None = None,
        text_encoding: str = "utf-8",
        progress: Callable[[int, int], None] | None = None,
    ) -> RawTable | None:
        """Return the columns named in ``wanted``; None if ``data`` is neither a table nor the path of a file.

        A column that ``encoding`` does not list as a category has no labels: its texts are read as numbers or dates, and a text
        that is neither is a ``DataError``.
        """
        ...


class RemotePredictor(Protocol):
    """Evaluates a model on a store of a server."""

    def __call__(self, url: str, model: Mapping[str, object]) -> tuple[Float64Array, Sequence[str] | None]:
        """Return the linear predictor (n_obs,) of ``model``, an object of ``Selection.linear_model``, and the identifiers."""
        ...


BUILD_FROM_ARRAYS: Lazy[ArrayBuilder] = Lazy("storage_backends.build.builder:build_from_arrays")
INGEST: Lazy[Ingest] = Lazy("storage_backends.build.ingest:ingest")
PREDICT_REMOTELY: Lazy[RemotePredictor] = Lazy("ado_plugin.prediction:predict_remotely")
READ_TABLE: Lazy[TableReader] = Lazy("storage_backends.build.new_rows:read_new_rows")
READ_TARGET: Lazy[TargetReader] = Lazy("storage_backends.readers.target_files:read_target_file")


def ingest(
    source: Sources,
    url: str | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[IngestFields],
) -> IngestReport:
    """Build a store from one or more files; with ``dry_run=True`` only report what was understood of them.

    Parameters
    ----------
    source : str, path, or sequence of them
        Files, joined row by row; their extensions determine the format. A pattern with ``*``, ``?`` or ``[...]`` stands for all
        files that match, a ``.zip`` archive for the one file in it, ``-`` for standard input.
    url : str, optional
        Where to build the store; not needed with ``dry_run``.
    progress : callable, optional
        Called with (bytes done, bytes to do).
    **options
        ``targets``, ``missing``, ``categorical``, ``date``, ...: see :class:`fastomp_nvm.stores.ingest_options.IngestOptions`.

    Returns
    -------
    IngestReport
        ``report.summary`` holds lines to print, ``report.columns`` what was understood of every column.

    Raises
    ------
    InputError
        The source, a name or a cell is not as expected; the message names it.
    """
    return INGEST.load()(source, url, progress=progress, **options)
