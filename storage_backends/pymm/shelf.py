"""The ``shelf`` medium: stores as arrays on pymm shelves, ``shelf:///dir#name``.

::

    DIR/NAME.json               the current version: token, size, address, offset of the matrix; replaced atomically
    DIR/NAME.TOKEN/             the shelf of one version, in its own directory because pymm locks directories
    DIR/NAME.TOKEN/lock         our lock, taken before pymm's, because a conflict over pymm's ends the process
    DIR/NAME.TOKEN/regions.json names of the durable regions

Every array is float64, holds arbitrary bytes, and is allocated once under a unique name. Failures that pymm would ignore are
prevented or detected: a shelf is created with enough room and never overfilled, its addresses are unused, arrays are created in
place and never assigned. pymm is imported in :mod:`storage_backends.pymm.directory` only, which suppresses its output.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import device_errors, is_name, write_atomically
from fastomp_nvm.errors import MediumError, StoreError, StoreURLError
from fastomp_nvm.stores.contract import DurableRegion, FeatureStore, MediumTraits, Sidecars, StoreDraft
from fastomp_nvm.stores.url import StoreURL
from storage_backends.files import format as store_format
from storage_backends.opened import ArrayRegion, OpenedStore, already_exists, check_commit
from storage_backends.pymm.directory import ShelfDirectory, free_address, room_for

__all__ = ["MEDIUM", "ShelfDraft", "ShelfMedium", "ShelfRegion", "ShelfStore"]

_TRAITS = MediumTraits("shelf", "process", False, "pymm shelf: persist flushes processor caches and nothing to a device")
_REGIONS = "regions.json"
_ALIGNMENT = 64
#: Bytes reserved on every shelf for durable regions.
_REGION_ROOM = 32 << 20


class ShelfMedium:
    """Stores on pymm shelves."""

    def open(self, url: StoreURL) -> FeatureStore:
        """Open the store ``name`` of a directory and validate everything except the contents of matrix and tier."""
        folder, name = _place(url)
        pointer = _read_pointer(folder, name)
        if pointer is None:
            raise StoreURLError(f"there is no store at {url.text!r}: build it first")
        try:
            version = folder / f"{name}.{pointer['token']}"
            directory = ShelfDirectory.acquire(version, pointer["size_mb"], pointer["address"])
            try:
                return ShelfStore(f"shelf://{urllib.parse.quote(str(folder))}#{name}", directory, pointer)
            except BaseException:
                directory.release()
                raise
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{folder / name}.json does not describe a store: remove it and build the store again") from error

    def draft(self, url: StoreURL, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none") -> StoreDraft:
        """Start a store on a new shelf."""
        if not replace and self.exists(url):
            raise already_exists(url.text)
        return ShelfDraft(url, (n_columns, n_obs, dtype), replace=replace, tier=tier)

    def exists(self, url: StoreURL) -> bool:
        """Return whether there is a store at ``url``."""
        folder, name = _place(url)
        return (folder / f"{name}.json").exists()


class ShelfStore(OpenedStore):
    """A store on a shelf.

    Parameters
    ----------
    url : str
    directory : ShelfDirectory
        Released when the store is closed.
    pointer : mapping
        Content of ``NAME.json``.
    """

    def __init__(self, url: str, directory: ShelfDirectory, pointer: dict[str, Any]) -> None:
        self._directory = directory
        self._held = True

        def read(name: str, length: int) -> bytes:
            return _as_bytes(directory.array(_array_name(name)))[: pointer["files"][name]].tobytes()

        try:
            header = store_format.decode_header(read(store_format.HEADER, 0))
            sidecars = store_format.decode_sidecars(header, read)
        except StoreError as error:
            raise StoreError(f"the store {url} cannot be used: {error}") from error
        matrix = _matrix(directory.array("matrix"), pointer["matrix"], header.matrix)
        codes = header.tier and _matrix(directory.array("tier"), pointer["tier"], header.tier)
        super().__init__(url, _TRAITS, matrix, sidecars, codes)

    @property
    def matrix(self) -> AnyArray:
        """(n_columns, n_obs) read-only view of the shelf."""
        self._directory.check_process()
        return super().matrix

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open the region ``name``; create it with ``size`` bytes when it is absent."""
        known = self._read_regions()
        self._check_region(name, size, known[name]["size"] if name in known else None)
        if name not in known:
            # Random, because of arrays left by killed processes.
            array = self._directory.create(f"region_{secrets.token_hex(8)}", size, zero=True)
            known[name] = {"array": array, "size": size}
            self._write_regions(known)
        return ShelfRegion(name, self._directory, known[name]["array"], known[name]["size"])

    def regions(self) -> Sequence[str]:
        """Names of the regions that exist, in order."""
        _ = self.matrix  # raises in a closed store and in a forked process
        return tuple(sorted(self._read_regions()))

    def drop_region(self, name: str) -> None:
        """Remove a region; its memory is freed once it is not open anywhere."""
        known = self._read_regions()
        self._check_region(name, 0, known[name]["size"] if name in known else None)
        array = known.pop(name)["array"]
        self._write_regions(known)  # first: an array that is not listed only takes room
        self._directory.erase(array)

    def close(self) -> None:
        """Release matrix and shelf; existing views keep the shelf alive, and locked."""
        super().close()
        if self._held:
            self._held = False
            self._directory.release()

    def _read_regions(self) -> dict[str, dict[str, Any]]:
        """Return the content of regions.json."""
        found = _read_json(self._directory.path / _REGIONS, "the regions of this store are lost, build it again")
        return {} if found is None else found

    def _write_regions(self, known: dict[str, dict[str, Any]]) -> None:
        """Replace regions.json atomically."""
        _write_json(self._directory.path / _REGIONS, known, replace=True)


class ShelfRegion(ArrayRegion):
    """A region that is an array of a shelf.

    Parameters
    ----------
    name : str
    directory : ShelfDirectory
    array : str
        Its name on the shelf.
    size : int
        Bytes in the region; the array may be longer.
    """

    def __init__(self, name: str, directory: ShelfDirectory, array: str, size: int) -> None:
        super().__init__(name, _as_bytes(directory.array(array))[:size])
        self._directory = directory
        self._shelved = array

    def persist(self, offset: int, length: int) -> None:
        """Return once the bytes of this range survive the process."""
        self._bytes(offset, length)
        if length:
            self._directory.persist(self._shelved, offset, length)

    def _bytes(self, offset: int, length: int) -> AnyArray:
        """Return ``length`` bytes from ``offset``; raise in a forked process."""
        self._directory.check_process()
        return super()._bytes(offset, length)


class ShelfDraft(StoreDraft):
    """A store being built on a shelf that NAME.json does not name yet.

    Parameters
    ----------
    url : StoreURL
    shape : (n_columns, n_obs, dtype)
    replace : bool
    tier : {"int8", "none"}
    """

    def __init__(self, url: StoreURL, shape: tuple[int, int, str], *, replace: bool, tier: str) -> None:
        self._url, self._shape, self._replace, self._tier = url, shape, replace, tier
        self._folder, self._name = _place(url)
        cells = shape[0] * shape[1]
        lengths = [cells * np.dtype(shape[2]).itemsize + _ALIGNMENT, (cells + _ALIGNMENT) * (tier != "none")]
        # Sidecars: eight numbers per column, and names of unknown length.
        wanted = sum(lengths) + shape[0] * 400 + shape[1] * 80 + (4 << 20) + _REGION_ROOM
        self._pointer: dict[str, Any] = {"token": secrets.token_hex(6), "size_mb": room_for(wanted), "files": {}}
        self._made_folder = not self._folder.exists()
        with device_errors(f"create {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            _sweep(self._folder, self._name)
        version = self._folder / f"{self._name}.{self._pointer['token']}"
        self._pointer["address"] = free_address(self._pointer["size_mb"])
        self._directory: ShelfDirectory | None = None
        try:
            with device_errors(f"create {version}"):
                version.mkdir()
            self._directory = ShelfDirectory.acquire(version, self._pointer["size_mb"], self._pointer["address"])
            for name, length in zip(("matrix", "tier"), lengths, strict=True):
                if length:
                    self._directory.create(name, length)
                    address = _as_bytes(self._directory.array(name)).ctypes.data
                    self._pointer[name] = -address % _ALIGNMENT
        except BaseException:
            self.abort()
            raise

    @property
    def matrix(self) -> AnyArray:
        """Writable (n_columns, n_obs) array on the shelf."""
        return _matrix(self._open_shelf().array("matrix"), self._pointer["matrix"], self._shape, writable=True)

    @property
    def tier(self) -> AnyArray | None:
        """Writable (n_columns, n_obs) int8 array on the shelf, if there is a tier."""
        if self._tier == "none":
            return None
        shape = (*self._shape[:2], "int8")
        return _matrix(self._open_shelf().array("tier"), self._pointer["tier"], shape, writable=True)

    def forget(self, first: int, last: int) -> None:
        """Do nothing: a shelf is memory."""

    def commit(self, sidecars: Sidecars) -> None:
        """Write the sidecars to the shelf, then make NAME.json name it."""
        directory = self._open_shelf()
        check_commit(self._url.text, self._shape, sidecars)
        files = store_format.encode_sidecars(sidecars)
        files[store_format.HEADER] = store_format.encode_header(sidecars, files)
        for name, data in files.items():
            array = directory.create(_array_name(name), len(data))
            _as_bytes(directory.array(array))[: len(data)] = np.frombuffer(data, dtype=np.uint8)
            self._pointer["files"][name] = len(data)
        for array in directory.names():
            directory.persist(array, 0, directory.array(array).nbytes)
        before = _read_pointer(self._folder, self._name)
        try:
            _write_json(self._folder / f"{self._name}.json", self._pointer, replace=self._replace)
        except FileExistsError as error:
            raise already_exists(self._url.text) from error
        self._directory = None
        directory.release()
        if before is not None:
            ShelfDirectory.discard(self._folder / f"{self._name}.{before['token']}")

    def abort(self) -> None:
        """Remove the shelf. Harmless after ``commit``."""
        directory, self._directory = self._directory, None
        token = self._pointer["token"]
        if directory is not None:
            directory.release()
        elif (pointer := _read_pointer(self._folder, self._name)) is not None and pointer["token"] == token:
            return
        ShelfDirectory.discard(self._folder / f"{self._name}.{token}")
        if self._made_folder:
            with contextlib.suppress(OSError):  # not empty
                self._folder.rmdir()

    def _open_shelf(self) -> ShelfDirectory:
        """Return the shelf; raise when the draft was committed or aborted."""
        if self._directory is None:
            raise StoreError(f"the draft of {self._url.text} was committed or aborted")
        return self._directory


def _place(url: StoreURL) -> tuple[Path, str]:
    """Return the directory and the name in a URL."""
    for parameter in url.query:
        raise StoreURLError(f"unknown parameter {parameter!r} in {url.text!r}: shelf takes none")
    if not is_name(url.fragment) or url.fragment.endswith(("-tx", "-value")):
        raise StoreURLError(
            f"{url.text!r} does not end in the name of a store: expected shelf:///dir#name, a name of letters, digits, '_', '-', "
            "'.'; shelf takes none of the parameters of other media"
        )
    return Path(os.path.abspath(url.path)), url.fragment


def _read_pointer(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the content of NAME.json, or None if there is no store."""
    found = _read_json(folder / f"{name}.json", "remove it and build the store again")
    if found is not None and not re.fullmatch(r"[0-9a-f]{12}", str(found.get("token"))):
        raise StoreError(f"{folder / name}.json does not describe a store: remove it and build the store again")
    return found


def _read_json(path: Path, remedy: str) -> dict[str, Any] | None:
    """Return the object in a small file, or None if there is no file."""
    try:
        found = json.loads(path.read_bytes())
        if isinstance(found, dict):
            return found
        raise ValueError("it is not an object")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} cannot be read ({error}): {remedy}") from error


def _write_json(path: Path, content: dict[str, Any], *, replace: bool) -> None:
    """Write a small file atomically and durably; ``FileExistsError`` when it exists and ``replace`` is false."""
    try:
        write_atomically(path, json.dumps(content).encode(), replace=replace, mode=0o666)
    except FileExistsError:
        raise
    except OSError as error:
        raise MediumError(f"cannot write {path}: {error.strerror}") from error


def _sweep(folder: Path, name: str) -> None:
    """Remove versions that killed builds left: not named by NAME.json and not open anywhere."""
    pointer = _read_pointer(folder, name)
    for version in folder.glob(f"{name}.*/"):
        token = version.name[len(name) + 1 :]
        if re.fullmatch(r"[0-9a-f]{12}", token) and (pointer is None or pointer["token"] != token):
            ShelfDirectory.discard(version)
    for partial in folder.glob(f".{name}.json.*"):
        partial.unlink(missing_ok=True)


def _array_name(file: str) -> str:
    """Return the name of a sidecar on the shelf."""
    return file.replace(".", "_")


def _as_bytes(array: AnyArray) -> AnyArray:
    """Return a plain uint8 view of an array of the shelf."""
    return np.asarray(array).view(np.uint8)


def _matrix(array: AnyArray, offset: int, shape: store_format.Shape, *, writable: bool = False) -> AnyArray:
    """Return the matrix at ``offset`` of an array of the shelf, over a read-only buffer unless ``writable``.

    Of a read-only view of a writable buffer ``flags.writeable`` could be set again.
    """
    n_columns, n_obs, dtype = shape
    count = n_columns * n_obs
    if offset + count * np.dtype(dtype).itemsize > array.nbytes:
        raise StoreError("an array on the shelf is shorter than its header says: build the store again")
    buffer = _as_bytes(array).data
    element = store_format.element_type(dtype)
    return np.frombuffer(buffer if writable else buffer.toreadonly(), element, count, offset).reshape(n_columns, n_obs)


MEDIUM = ShelfMedium()
