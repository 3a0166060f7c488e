"""The ``shelf`` medium: a store as arrays on a pymm shelf, ``shelf:///dir#name``; pymm itself is behind ``pymm_directory``.

::

    DIR/NAME.json               which version is the store: token, size, address, where the matrix begins; put in place at once
    DIR/NAME.TOKEN/             a shelf of its own, in a directory of its own, because the directory is what pymm locks
    DIR/NAME.TOKEN/lock         our lock, taken before pymm's, whose conflict is the end of the process
    DIR/NAME.TOKEN/regions.json names of the durable regions

Every array is allocated once, under a name that is never used again, as plain float64 whose bytes are what we say they are. What
pymm does silently is refused beforehand or checked afterwards: a shelf is made with room and never filled beyond it, its address
range is its own and free, arrays are created in place and never assigned. pymm's output goes nowhere.
"""

from __future__ import annotations

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
from fastomp_nvm.errors import MediumError, StoreError, StoreURLError
from fastomp_nvm.stores.contract import DurableRegion, FeatureStore, MediumTraits, Sidecars, StoreDraft
from fastomp_nvm.stores.url import StoreURL
from storage_backends.files import format as store_format
from storage_backends.files.durable import device_errors, sync_directory
from storage_backends.opened import ArrayRegion, OpenedStore
from storage_backends.pymm.directory import ShelfDirectory, free_address, room_for

__all__ = ["MEDIUM", "ShelfDraft", "ShelfMedium", "ShelfRegion", "ShelfStore"]

_TRAITS = MediumTraits("shelf", "process", False, "pymm shelf: persist flushes processor caches and nothing to a device")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
_REGIONS = "regions.json"
_ALIGNMENT = 64
#: Bytes kept free on every shelf for durable regions.
_REGION_ROOM = 32 << 20


class ShelfMedium:
    """Stores on pymm shelves."""

    def open(self, url: StoreURL) -> FeatureStore:
        """Open the store ``name`` of a directory, after checking everything but the content of matrix and tier."""
        folder, name = _place(url)
        pointer = _read_pointer(folder, name)
        if pointer is None:
            raise StoreURLError(f"there is no store at {url.text!r}: build it first")
        try:
            version = folder / f"{name}.{pointer['token']}"
            directory = ShelfDirectory.acquire(version, pointer["size_mb"], pointer["address"])
            try:
                return ShelfStore(_url(folder, name), directory, pointer)
            except BaseException:
                directory.release()
                raise
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{folder / name}.json is not that of a store: remove it and build the store again") from error

    def draft(self, url: StoreURL, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none") -> StoreDraft:
        """Start a store on a shelf of its own."""
        if not replace and self.exists(url):
            raise _taken(url)
        return ShelfDraft(url, (n_columns, n_obs, dtype), replace=replace, tier=tier)

    def exists(self, url: StoreURL) -> bool:
        """Tell whether a store stands at ``url``."""
        folder, name = _place(url)
        return (folder / f"{name}.json").exists()


class ShelfStore(OpenedStore):
    """A store on a shelf.

    Parameters
    ----------
    url : str
    directory : ShelfDirectory
        Held for this store, which releases it when it is closed.
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
            raise StoreError(f"the store {url} is not sound: {error}") from error
        matrix = _sealed(directory.array("matrix"), pointer["matrix"], header.matrix)
        codes = None
        if header.tier is not None:
            codes = _sealed(directory.array("tier"), pointer["tier"], header.tier)
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
            array = self._directory.create(self._directory.unused("region"), size, zero=True)
            known[name] = {"array": array, "size": size}
            self._write_regions(known)
        return ShelfRegion(name, self._directory, known[name]["array"], known[name]["size"])

    def regions(self) -> Sequence[str]:
        """Names of the regions that exist, in order."""
        _ = self.matrix  # raises in a closed store and in a forked process
        return tuple(sorted(self._read_regions()))

    def drop_region(self, name: str) -> None:
        """Remove a region; its room is free again once nobody has it open."""
        known = self._read_regions()
        self._check_region(name, 0, known[name]["size"] if name in known else None)
        array = known.pop(name)["array"]
        self._write_regions(known)  # first: a name on the shelf that nothing knows is only room taken
        self._directory.erase(array)

    def close(self) -> None:
        """Let go of matrix and shelf; views handed out before keep the shelf alive, and locked."""
        super().close()
        if self._held:
            self._held = False
            self._directory.release()

    def _read_regions(self) -> dict[str, dict[str, Any]]:
        """Return what regions.json says."""
        path = self._directory.path / _REGIONS
        try:
            found: dict[str, dict[str, Any]] = json.loads(path.read_bytes())
            return found
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"{path} cannot be read ({error}): the regions of this store are lost, build it again") from error

    def _write_regions(self, known: dict[str, dict[str, Any]]) -> None:
        """Replace regions.json at once."""
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
        Bytes of it that count.
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
        """Return ``length`` bytes from ``offset``, unless the process is a fork."""
        self._directory.check_process()
        return super()._bytes(offset, length)


class ShelfDraft(StoreDraft):
    """A store being built on a shelf that nothing points to yet.

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
        # Sidecars: eight numbers a column, and names of a length nobody knows yet.
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
        return _shaped(_as_bytes(self._alive().array("matrix")), self._pointer["matrix"], self._shape)

    @property
    def tier(self) -> AnyArray | None:
        """Writable (n_columns, n_obs) int8 array on the shelf, where a tier was asked for."""
        if self._tier == "none":
            return None
        return _shaped(_as_bytes(self._alive().array("tier")), self._pointer["tier"], (*self._shape[:2], "int8"))

    def forget(self, first: int, last: int) -> None:
        """Keep everything: a shelf is memory."""

    def commit(self, sidecars: Sidecars) -> None:
        """Put the sidecars on the shelf, then point to it."""
        directory, layout = self._alive(), sidecars.layout
        if layout.n_columns > self._shape[0] or (layout.n_obs, layout.dtype) != self._shape[1:]:
            raise StoreError(f"the draft of {self._url.text} has shape {self._shape} and cannot be committed as {layout}")
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
            raise _taken(self._url) from error
        self._directory = None
        directory.release()
        if before is not None:
            ShelfDirectory.discard(self._folder / f"{self._name}.{before['token']}")

    def abort(self) -> None:
        """Remove the shelf. Harmless after ``commit``."""
        directory, self._directory = self._directory, None
        version = self._folder / f"{self._name}.{self._pointer['token']}"
        if directory is not None:
            directory.release()
        elif _points_to(self._folder, self._name, self._pointer["token"]):
            return
        ShelfDirectory.discard(version)
        if self._made_folder:
            try:
                self._folder.rmdir()
            except OSError:
                return  # something else lives there by now

    def _alive(self) -> ShelfDirectory:
        """Return the shelf, unless the draft is over."""
        if self._directory is None:
            raise StoreError(f"the draft of {self._url.text} was committed or aborted")
        return self._directory


def _place(url: StoreURL) -> tuple[Path, str]:
    """Return the directory and the name in a URL."""
    for parameter in url.query:
        raise StoreURLError(f"unknown parameter {parameter!r} in {url.text!r}: shelf takes none")
    if not _NAME.fullmatch(url.fragment) or url.fragment.endswith(("-tx", "-value")):
        raise StoreURLError(
            f"{url.text!r} does not end in the name of a store: expected shelf:///dir#name, a name of letters, digits, '_', '-', "
            "'.', without parameters behind it, of which shelf takes none"
        )
    return Path(os.path.abspath(url.path)), url.fragment


def _url(folder: Path, name: str) -> str:
    """Return the address that opens a store from anywhere."""
    return f"shelf://{urllib.parse.quote(str(folder))}#{name}"


def _taken(url: StoreURL) -> StoreURLError:
    """Return the error for a name in use."""
    return StoreURLError(f"a store stands at {url.text!r}: choose another name or ask to replace it (--replace)")


def _read_pointer(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the content of NAME.json, or None where there is no store."""
    try:
        found = json.loads((folder / f"{name}.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{folder / name}.json cannot be read ({error}): remove it and build the store again") from error
    if not isinstance(found, dict) or not re.fullmatch(r"[0-9a-f]{12}", str(found.get("token"))):
        raise StoreError(f"{folder / name}.json is not that of a store: remove it and build the store again")
    return found


def _points_to(folder: Path, name: str, token: str) -> bool:
    """Tell whether a version is the store."""
    pointer = _read_pointer(folder, name)
    return pointer is not None and pointer["token"] == token


def _write_json(path: Path, content: dict[str, Any], *, replace: bool) -> None:
    """Write a small file at once and durably; ``FileExistsError`` when it exists and ``replace`` is false."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(partial, "xb") as file:
            file.write(json.dumps(content).encode())
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(partial, path)
        else:
            os.link(partial, path)
    except FileExistsError:
        raise
    except OSError as error:
        raise MediumError(f"cannot write {path}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(str(path.parent))


def _sweep(folder: Path, name: str) -> None:
    """Remove versions of a store that nothing points to and nobody has open: builds that were killed."""
    pointer = _read_pointer(folder, name)
    for version in folder.glob(f"{name}.*/"):
        token = version.name[len(name) + 1 :]
        if re.fullmatch(r"[0-9a-f]{12}", token) and (pointer is None or pointer["token"] != token):
            ShelfDirectory.discard(version)
    for partial in folder.glob(f".{name}.json.*"):
        partial.unlink(missing_ok=True)


def _array_name(file: str) -> str:
    """Return the name on the shelf of a sidecar."""
    return file.replace(".", "_")


def _as_bytes(array: AnyArray) -> AnyArray:
    """Return a plain view of the bytes of a shelved array."""
    return np.asarray(array).view(np.uint8)


def _shaped(data: AnyArray, offset: int, shape: tuple[int, int, str]) -> AnyArray:
    """Return the matrix that begins at ``offset`` of some bytes."""
    n_columns, n_obs, dtype = shape
    length = n_columns * n_obs * np.dtype(dtype).itemsize
    return data[offset : offset + length].view(dtype).reshape(n_columns, n_obs)


def _sealed(array: AnyArray, offset: int, shape: tuple[int, int, str]) -> AnyArray:
    """Return the matrix in a shelved array, through a read-only buffer: of a plain view anyone could set flags.writeable."""
    n_columns, n_obs, dtype = shape
    count = n_columns * n_obs
    if offset + count * np.dtype(dtype).itemsize > array.nbytes:
        raise StoreError("an array on the shelf is shorter than the store says: build the store again")
    buffer = _as_bytes(array).data.toreadonly()
    return np.frombuffer(buffer, store_format.element_type(dtype), count, offset).reshape(n_columns, n_obs)


MEDIUM = ShelfMedium()
