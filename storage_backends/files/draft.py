"""Drafts of file stores: built in a hidden directory beside the final path, renamed once everything is on the device.

Invariants: a directory under its final name is a complete store. A directory left by a dead builder is hidden, does not open as a
store, and is removed by the next builder of the same store.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import shutil
from typing import Literal

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import device_errors, lock, new_locked_directory, remove_abandoned, sync_directory
from fastomp_nvm.errors import StoreError, StoreURLError
from fastomp_nvm.stores.contract import Sidecars, StoreDraft
from storage_backends.files import format as store_format
from storage_backends.files.durable import EXCHANGE, allocate, rename_with_flag, write_file
from storage_backends.files.mapped import map_file, matrix_view
from storage_backends.files.staging import Staging, direct_descriptor, write_pages
from storage_backends.opened import already_exists, check_commit

__all__ = ["LARGEST_HEADER", "FileDraft", "check_destination", "hidden_directory", "is_leftover", "occupant", "publish"]

#: Upper bound on the length of a header file.
LARGEST_HEADER = 1 << 26

#: Matrices below this size are written through the page cache, where the first selections find them: measured, 160 MB take as long
#: to build either way and a first selection a quarter of the time; 800 MB take 1.5 to 3 times as long to build.
DIRECT_BYTES = 256 << 20

_PARTIAL = re.compile(r"\..+\.partial-\d+-[0-9a-f]+")


class DraftMatrix:
    """A matrix file of a draft, mapped for writing.

    Parameters
    ----------
    directory : int
        Descriptor of the directory that contains it.
    name : str
    shape : (int, int, str)
        Columns, observations and element type.
    path : str
        Named in errors.
    create : bool
        Create the file; otherwise it must exist with this shape.
    """

    def __init__(self, directory: int, name: str, shape: tuple[int, int, str], path: str, *, create: bool = True) -> None:
        self._shape = shape
        how = os.O_CREAT | os.O_EXCL if create else os.O_NOFOLLOW
        self._file = os.open(name, os.O_RDWR | os.O_CLOEXEC | how, 0o666, dir_fd=directory)
        try:
            length = store_format.matrix_length(*shape)
            if create:
                allocate(self._file, length, path)
            elif os.fstat(self._file).st_size != length:
                raise StoreError(f"the earlier draft of {path} has another shape: build the store again")
            os.pwrite(self._file, store_format.matrix_header(*shape), 0)
            self._mapping: mmap.mmap | None = map_file(self._file, length, mmap.MAP_SHARED, writable=True, path=path)
        except BaseException:
            os.close(self._file)
            raise
        self._direct = direct_descriptor(name, directory) if length >= DIRECT_BYTES else None

    @property
    def matrix(self) -> AnyArray:
        """The matrix, writable."""
        assert self._mapping is not None, "a draft returns no sealed file"
        return matrix_view(self._mapping, *self._shape)

    def write_columns(self, first: int, columns: AnyArray) -> None:
        """Write whole columns with pwrite(2), past the page cache where they come from ``stage`` and the file system allows it."""
        self._direct = write_pages(self._file, self._direct, columns.reshape(-1).view(np.uint8), self.position(first))

    def position(self, column: int) -> int:
        """Return where a column begins in the file."""
        _, n_obs, dtype = self._shape
        return store_format.DATA_OFFSET + column * n_obs * store_format.element_type(dtype).itemsize

    def forget(self, first: int, last: int) -> None:
        """Drop the pages that lie entirely in columns ``first:last`` from this mapping."""
        start = -(-self.position(first) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = self.position(last)
        if last < self._shape[0]:
            end -= end % mmap.PAGESIZE
        if self._mapping is not None and end > start:
            self._mapping.madvise(mmap.MADV_DONTNEED, start, end - start)

    def seal(self, n_columns: int, fingerprint: str) -> None:
        """Truncate the file to ``n_columns``, name the store it belongs to, and write it to the device."""
        assert self._mapping is not None, "a file is sealed once"
        self._mapping.flush()
        self._mapping = None  # before the file shrinks: reading a lost page would raise a signal
        shape = (n_columns, *self._shape[1:])
        os.pwrite(self._file, store_format.matrix_header(*shape, fingerprint), 0)
        os.ftruncate(self._file, store_format.matrix_length(*shape))
        os.fsync(self._file)

    def close(self) -> None:
        """Close mapping and file."""
        self._mapping = None
        os.close(self._file)
        if self._direct is not None:
            os.close(self._direct)


class FileDraft(StoreDraft):
    """A store being built in a hidden directory beside its final place.

    Parameters
    ----------
    path : str
        Final path.
    n_columns, n_obs : int
    dtype : str
    replace : bool
        Replace an existing store.
    tier : {"int8", "none"}
    folder : str, optional
        ``folder`` of an earlier draft of the same shape, which is continued.

    Raises
    ------
    StoreError
        The earlier draft has another shape; it is removed.
    """

    def __init__(
        self, path: str, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none", folder: str | None = None
    ) -> None:
        self._path = path
        self._shape = (n_columns, n_obs, dtype)
        self._replace = replace
        self._files: dict[str, DraftMatrix] = {}
        self._staging = Staging(f"write the store at {path}")
        if folder is None:
            self._partial, self._directory = hidden_directory(path)
        else:
            self._partial = os.path.join(os.path.dirname(path), folder)
            self._directory = os.open(self._partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # on a file system without locks
                lock(self._directory)
        shapes = {store_format.MATRIX: self._shape}
        if tier != "none":
            shapes[store_format.TIER] = (n_columns, n_obs, tier)
        try:
            for leftover in set(os.listdir(self._directory)) - set(shapes):
                os.unlink(leftover, dir_fd=self._directory)  # sidecars of a draft that died while it was being committed
            for file, shape in shapes.items():
                label = path if file == store_format.MATRIX else f"the tier of {path}"
                self._files[file] = DraftMatrix(self._directory, file, shape, label, create=folder is None)
        except BaseException:
            self.abort()
            raise

    @property
    def folder(self) -> str:
        """Name of the hidden directory."""
        return os.path.basename(self._partial)

    @property
    def matrix(self) -> AnyArray:
        """Writable (n_columns, n_obs) array on the medium."""
        if not self._files:
            raise StoreError(f"the draft of {self._path} was committed or aborted")
        self._staging.wait()
        return self._files[store_format.MATRIX].matrix

    @property
    def tier(self) -> AnyArray | None:
        """Writable (n_columns, n_obs) int8 array on the medium, if there is a tier."""
        self._staging.wait()
        return self._files[store_format.TIER].matrix if store_format.TIER in self._files else None

    def write_columns(self, first: int, columns: AnyArray) -> None:
        """Write whole columns with pwrite(2), several times faster than page faults in the mapping, which sees the same bytes."""
        assert columns.flags.c_contiguous
        assert columns.dtype == self.matrix.dtype
        with device_errors(f"write the store at {self._path}"):
            self._files[store_format.MATRIX].write_columns(first, columns)

    def stage(self, first: int, count: int) -> tuple[AnyArray, AnyArray | None]:
        """Return memory for whole columns and their codes, placed in pages as they will be in the files."""
        n_obs, dtype = self._shape[1:]
        wanted = [(self._files[store_format.MATRIX].position(first), (count, n_obs), store_format.element_type(dtype))]
        if store_format.TIER in self._files:
            wanted.append((self._files[store_format.TIER].position(first), (count, n_obs), np.dtype(np.int8)))
        columns, *codes = self._staging.take(wanted)
        return columns, codes[0] if codes else None

    def store(self, first: int, columns: AnyArray, codes: AnyArray | None) -> None:
        """Write staged columns on a thread of its own; ``matrix``, ``tier`` and ``commit`` wait for it."""
        files = dict(self._files)

        def write() -> None:
            files[store_format.MATRIX].write_columns(first, columns)
            if codes is not None:
                files[store_format.TIER].write_columns(first, codes)

        self._staging.give(write)

    def forget(self, first: int, last: int) -> None:
        """Drop the pages that lie entirely in columns ``first:last`` from the mapping; the page cache keeps their content."""
        for file in self._files.values():
            file.forget(first, last)

    def commit(self, sidecars: Sidecars) -> None:
        """Make the store visible, atomically and durably."""
        _ = self.matrix  # raises when the draft was committed or aborted
        check_commit(self._path, self._shape, sidecars)
        if (sidecars.tier is None) != (store_format.TIER not in self._files):
            raise StoreError(f"the draft of {self._path} and its sidecars disagree on whether there is a tier")
        files = store_format.encode_sidecars(sidecars)
        header = store_format.encode_header(sidecars, files)
        with device_errors(f"write the store at {self._path}"):
            for file in self._files.values():
                file.seal(sidecars.layout.n_columns, sidecars.layout.fingerprint)
            for name, data in files.items():
                write_file(self._directory, name, data)
            write_file(self._directory, store_format.HEADER, header)
            os.fsync(self._directory)
            self._publish()
        self._release()

    def leave(self) -> None:
        """Close the draft and keep its directory for a later draft to continue."""
        self._release()
        self._partial = ""

    def abort(self) -> None:
        """Remove everything written so far. Harmless after ``commit`` and ``leave``."""
        self._release()
        if self._partial:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial = ""

    def _publish(self) -> None:
        """Move the finished directory to its final path."""
        check_destination(self._path, replace=self._replace)
        replaces = occupant(self._path) == "store"
        try:
            publish(self._partial, self._path, replaces=replaces)
        except OSError:
            # Renaming onto an empty directory succeeds; it fails when another builder was faster.
            if not replaces:
                check_destination(self._path, replace=False)
            raise
        self._partial = ""

    def _release(self) -> None:
        """Close the files, and the directory with its lock."""
        self._staging.close()
        for file in self._files.values():
            file.close()
        self._files = {}
        if self._directory >= 0:
            os.close(self._directory)
        self._directory = -1


def is_leftover(path: str) -> bool:
    """Return whether a path has the name of a hidden directory of a builder."""
    return _PARTIAL.fullmatch(os.path.basename(path)) is not None


def occupant(path: str) -> Literal["nothing", "store", "other"]:
    """Return what is at ``path``. An empty directory is ``nothing``, a damaged store is still a ``store``."""
    try:
        with open(os.path.join(path, store_format.HEADER), "rb") as file:
            return "store" if store_format.FORMAT.encode("ascii") in file.read(LARGEST_HEADER) else "other"
    except OSError:
        pass
    try:
        return "other" if os.listdir(path) else "nothing"
    except FileNotFoundError:
        return "nothing"
    except OSError:
        return "other"


def check_destination(path: str, *, replace: bool) -> None:
    """Raise ``StoreURLError`` when a store may not be put at ``path``."""
    found = occupant(path)
    if found == "other":
        raise StoreURLError(f"{path} exists and is not a store, so it is not replaced: choose another path or remove it yourself")
    if found == "store" and not replace:
        raise already_exists(path)
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        raise StoreURLError(f"the directory {parent} does not exist: create it before building a store in it")


def hidden_directory(path: str) -> tuple[str, int]:
    """Make a directory beside ``path`` to build it in; return its path, and its descriptor, which holds its lock.

    Directories of dead builders of the same path, recognised by the missing lock, are removed first.
    """
    parent, name = os.path.split(path)
    ours = re.compile(rf"\.{re.escape(name)}\.partial-\d+-[0-9a-f]+(\.retired)?")
    for entry in os.listdir(parent):
        match = ours.fullmatch(entry)
        if match is not None and not (match[1] and not os.path.exists(path)):  # a retired directory may be the only copy
            remove_abandoned(os.path.join(parent, entry))

    def make() -> str:
        partial = os.path.join(parent, f".{name}.partial-{os.getpid()}-{secrets.token_hex(4)}")
        os.mkdir(partial)
        return partial

    return new_locked_directory(make)


def publish(partial: str, path: str, *, replaces: bool) -> None:
    """Rename a finished directory to ``path``, in place of the directory there if it ``replaces`` one, which is removed."""
    retired = ""
    if not replaces:
        os.rename(partial, path)
    elif rename_with_flag(partial, path, EXCHANGE):
        retired = partial
    else:  # without exchange there is a moment in which nothing is at ``path``
        retired = f"{partial}.retired"
        os.rename(path, retired)
        os.rename(partial, path)
    sync_directory(os.path.dirname(path))
    if retired:
        shutil.rmtree(retired, ignore_errors=True)
