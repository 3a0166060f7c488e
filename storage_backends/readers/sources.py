"""What a user names as a source: files, patterns of file names, archives with one table, and standard input."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence

from fastomp_nvm.errors import DataError, InputError
from storage_backends.readers import open_reader
from storage_backends.readers.base import Reader, ReaderOptions, library_errors
from storage_backends.readers.combined import StackedReader

__all__ = ["STDIN", "local_files", "open_sources"]

#: Names standard input.
STDIN = "-"


@contextlib.contextmanager
def local_files(sources: Sequence[str], format: str | None = None) -> Iterator[list[str]]:
    """Yield the paths of the files that are named; those of standard input and of archives exist until the end of the ``with``.

    Parameters
    ----------
    sources : sequence of str
        Paths, patterns with ``*``, ``?`` or ``[...]``, ``.zip`` archives with one file, or ``-`` for standard input.
    format : str, optional
        Format of standard input, ``csv`` by default.
    """
    paths: list[str] = []
    with contextlib.ExitStack() as stack:
        folder: str | None = None
        for source in sources:
            if os.path.exists(source) or not (source == STDIN or glob.has_magic(source)):
                found = [source]
            elif source != STDIN:
                found = sorted(glob.glob(source))
                if not found:
                    raise InputError(f"no file matches {source!r}: check the pattern, or quote it if it is a name")
            else:
                found = [STDIN]
            for path in found:
                if path != STDIN and not path.lower().endswith(".zip"):
                    paths.append(path)
                    continue
                if folder is None:
                    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fastomp-"))
                place = os.path.join(folder, str(len(paths)))
                os.mkdir(place)
                paths.append(_spooled(place, format or "csv") if path == STDIN else _unpacked(path, place))
        yield paths


def open_sources(paths: Sequence[str], options: ReaderOptions) -> Reader:
    """Open files as one table.

    Parameters
    ----------
    paths : sequence of str
        One or more files.
    options : ReaderOptions

    Returns
    -------
    Reader
    """
    if len(paths) == 1:
        return open_reader(paths[0], options)
    with contextlib.ExitStack() as stack:
        parts = []
        for path in paths:
            parts.append(open_reader(path, options))
            stack.callback(parts[-1].close)
        stacked = StackedReader(parts)
        stack.pop_all()
    return stacked


def _spooled(folder: str, format: str) -> str:
    """Copy standard input to a file, because it is read more than once."""
    path = os.path.join(folder, f"stdin.{format}")
    with open(path, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    if not os.path.getsize(path):
        raise DataError("standard input is empty: a table was expected")
    return path


def _unpacked(path: str, folder: str) -> str:
    """Unpack the only file of an archive."""
    label = os.path.basename(path)
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path}")
    with library_errors(f"{label} is not a readable zip archive"), zipfile.ZipFile(path) as archive:
        members = [
            member
            for member in archive.infolist()
            if not member.is_dir() and not member.filename.startswith("__MACOSX/") and os.path.basename(member.filename)[:1] != "."
        ]
        if len(members) != 1:
            names = ", ".join(member.filename for member in members[:5])
            held = f"{len(members)} files ({names}{', ...' if len(members) > 5 else ''})" if members else "no file"
            raise DataError(f"{label} holds {held}, expected one table: unpack it and name the files")
        target = os.path.join(folder, os.path.basename(members[0].filename))
        with archive.open(members[0]) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    return target
