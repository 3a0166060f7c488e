"""Readers of source files, one format family per module, found by the file's extension and imported on first use."""

from __future__ import annotations

import os

from fastomp_nvm.errors import DataError, InputError, UnavailableError
from fastomp_nvm.limits import check_regular
from fastomp_nvm.registry import Table
from storage_backends.readers.base import Reader, ReaderOptions

__all__ = ["READERS", "open_reader"]

#: File extension -> reader class. Text formats may also end in ``.gz``.
READERS: Table[type[Reader]] = Table(
    "format",
    {
        ".arrow": "storage_backends.readers.columnar:FeatherReader",
        ".csv": "storage_backends.readers.delimited:DelimitedReader",
        ".feather": "storage_backends.readers.columnar:FeatherReader",
        ".h5": "storage_backends.readers.hdf5:Hdf5Reader",
        ".hdf5": "storage_backends.readers.hdf5:Hdf5Reader",
        ".libsvm": "storage_backends.readers.svmlight:SvmlightReader",
        ".mtx": "storage_backends.readers.matrix_market:MatrixMarketReader",
        ".npy": "storage_backends.readers.numpy_files:NpyReader",
        ".npz": "storage_backends.readers.numpy_files:NpzReader",
        ".parquet": "storage_backends.readers.columnar:ParquetReader",
        ".pq": "storage_backends.readers.columnar:ParquetReader",
        ".svm": "storage_backends.readers.svmlight:SvmlightReader",
        ".svmlight": "storage_backends.readers.svmlight:SvmlightReader",
        ".tsv": "storage_backends.readers.delimited:DelimitedReader",
        ".txt": "storage_backends.readers.delimited:DelimitedReader",
    },
)

_TEXT = frozenset({".csv", ".tsv", ".txt", ".svm", ".svmlight", ".libsvm", ".mtx"})


def open_reader(path: str, options: ReaderOptions) -> Reader:
    """Open a source file with the reader of its extension.

    Parameters
    ----------
    path : str
    options : ReaderOptions

    Returns
    -------
    Reader

    Raises
    ------
    InputError
        No such file, a directory, or an extension without a reader.
    UnavailableError
        The format needs a library that is not installed.
    """
    if os.path.isdir(path):
        raise InputError(f"{path} is a directory: name a file")
    extension = _extension(path) if options.format is None else f".{options.format}"
    READERS.check(extension)
    _check_file(path)
    try:
        reader = READERS.load(extension)
    except UnavailableError as error:
        raise UnavailableError(f"{os.path.basename(path)} cannot be read: {error}") from error
    return reader(path, options)


def _extension(path: str) -> str:
    """Return the extension that decides the format, without .gz."""
    stem, extension = os.path.splitext(path.lower())
    if extension == ".gz":
        inner = os.path.splitext(stem)[1]
        extension = inner if inner in _TEXT else extension
    if extension in (".xlsx", ".xls", ".ods"):
        raise InputError(f"{os.path.basename(path)} is a spreadsheet: save its sheet as a .csv file, and name that")
    if extension not in READERS:
        raise InputError(
            f"{os.path.basename(path)!r} has no extension of a known format: expected one of {', '.join(READERS)}; "
            "text formats also with .gz"
        )
    return extension


def _check_file(path: str) -> None:
    """Refuse a path that is not a readable, non-empty, regular file."""
    check_regular(path)
    try:
        with open(path, "rb") as stream:
            empty = not stream.read(1)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if empty:
        raise DataError(f"{os.path.basename(path)} is empty: a table was expected")
