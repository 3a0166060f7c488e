"""Pools: directories of stores that a server owns.

``<root>/<pool>/<key>`` is a store of one file medium; hidden names belong to the server (builds in progress, its own records). Keys
are immutable: a store appears, is replaced and disappears in one step. A name is checked before it becomes part of a path, and
nothing in a pool may be a symbolic link. Everything in a pool counts against its quota, builds in progress included. Knows neither
clients nor jobs.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import threading
import urllib.parse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ado_plugin.service.machine import free_bytes, total_bytes
from fastomp_nvm.durable_files import check_name, device_errors, is_unlocked, lock_path
from fastomp_nvm.errors import ServerError, StoreError, StoreURLError, near
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import open_store
from fastomp_nvm.stores.url import StoreURL
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.schema import TableSchema

__all__ = ["OWN", "Pools", "bytes_below", "directories", "located", "reserve_of"]

_FILE_MEDIA = ("mmap", "pmem")
_LARGEST_RESERVE = 1 << 30
#: Folder of the server's own records, below the pools.
OWN = ".fastomp"
_LEFT_BEHIND = re.compile(r"\..+\.(partial|deleted)-[0-9]+-[0-9a-f]+")


class Pools:
    """All pools under one directory, owned by one server at a time.

    Parameters
    ----------
    location : str
        Directory, or its URL on a file medium; a plain path means ``pmem``, emulated where there is no such device.
    quota : int, optional
        Largest number of bytes in a pool; by default what the disk has room for.

    Attributes
    ----------
    reserve : int
        Bytes of the file system that uploads leave free, because jobs cannot run where their records cannot be written.
    """

    def __init__(self, location: str, quota: int | None = None) -> None:
        self.scheme, self.root = located(location)
        self.quota = quota
        self._lock = threading.Lock()
        with device_errors(f"keep pools in {self.root}"):
            self.root.mkdir(parents=True, exist_ok=True)
            self.own_folder.mkdir(mode=0o700, exist_ok=True)
        owner = lock_path(self.own_folder / "lock", os.O_RDWR | os.O_CREAT)
        if owner is None:
            raise ServerError(f"the pools in {self.root} are those of another server: stop it, or choose another place")
        self._owner = owner
        self.reserve = reserve_of(self.root)

    @property
    def own_folder(self) -> Path:
        """The folder of the server's own records."""
        return self.root / OWN

    def close(self) -> None:
        """Release the lock of the pools."""
        os.close(self._owner)

    def room(self) -> int:
        """Return the bytes that uploads may still take."""
        return max(free_bytes(self.root) - self.reserve, 0)

    @staticmethod
    def size_of(schema: TableSchema, dtype: str, tier: str) -> int:
        """Return the bytes of the matrix of a store, its tier included."""
        return schema.n_columns * schema.n_obs * ({"float16": 2, "float32": 4}.get(dtype, 8) + (tier == "int8"))

    def names(self) -> list[str]:
        """Return the names of all pools, in order."""
        return directories(self.root)

    def keys(self, pool: str) -> list[str]:
        """Return the names of the stores in a pool, in order."""
        return directories(self._pool(pool))

    def has(self, pool: str, key: str) -> bool:
        """Return whether a pool holds a key."""
        with contextlib.suppress(StoreURLError):
            self._store(pool, key)
            return True
        return False

    def open(self, pool: str, key: str) -> FeatureStore:
        """Open a store.

        Raises
        ------
        StoreURLError
            There is no such pool or key.
        """
        return open_store(self.url(pool, key))

    def url(self, pool: str, key: str) -> str:
        """Return the URL of a store that exists."""
        return self._url(self._store(pool, key))

    def usage(self, pool: str) -> int:
        """Return the bytes of all files in a pool."""
        return bytes_below(self._pool(pool))

    def build(self, pool: str, key: str, schema: TableSchema, folder: str | None = None, **settings: Any) -> StoreBuilder:
        """Begin or continue a store; return its builder.

        Parameters
        ----------
        pool, key : str
            The pool is created when absent.
        schema : TableSchema
        folder : str, optional
            Directory that an earlier builder of the same store left, which counts against the quota already.
        **settings
            ``dtype``, ``missing``, ``tier`` and ``replace`` of ``StoreBuilder``.

        Raises
        ------
        ServerError
            The pool has no room for it.
        StoreURLError
            The key exists and ``replace`` is false.
        """
        path = self.root / check_name(pool, "pool")
        check_name(key, "key")
        with self._lock:  # two builds must not count on the same free bytes
            _refuse_link(path)
            if not settings["replace"] and self.has(pool, key):
                raise StoreURLError(
                    f"the key {key!r} exists already in the pool {pool!r}: choose another, or ask to replace it (--replace)"
                )
            _refuse_link(path / key)
            needed = self.size_of(schema, settings["dtype"], settings["tier"])
            fresh = not path.exists()
            used = 0 if fresh else self.usage(pool)
            if self.quota is not None and folder is None and used + needed > self.quota:
                raise ServerError(
                    f"the pool {pool!r} holds {used} bytes of at most {self.quota} "
                    f"and {needed} more do not fit: delete a key first",
                    reason="space",
                )
            if folder is None and needed > (room := self.room()):
                raise ServerError(
                    f"{needed} bytes do not fit: {room} are left, beside {self.reserve} kept for records; delete a key",
                    reason="space",
                )
            with device_errors(f"make the pool {pool!r}"):
                path.mkdir(exist_ok=True)
            try:
                return StoreBuilder(self._url(path / key), schema, folder=folder, **settings)
            except BaseException:
                if fresh:  # a refused build leaves no pool behind
                    with contextlib.suppress(OSError):
                        path.rmdir()
                raise

    def delete(self, pool: str, key: str) -> None:
        """Remove a store in one step."""
        path = self._store(pool, key)
        gone = path.with_name(f".{key}.deleted-{os.getpid()}-{secrets.token_hex(4)}")
        with device_errors(f"delete the key {key!r}"):
            os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _url(self, path: Path) -> str:
        """Return the URL of the store at a path."""
        return f"{self.scheme}://{urllib.parse.quote(str(path))}"

    def _pool(self, pool: str) -> Path:
        """Return the directory of a pool that exists."""
        path = self.root / check_name(pool, "pool")
        _refuse_link(path)
        if not path.is_dir():
            raise StoreURLError(f"there is no pool {pool!r}: 'fastomp list URL' shows the pools of the server")
        return path

    def _store(self, pool: str, key: str) -> Path:
        """Return the directory of a store that exists; refuse symbolic links in it."""
        path = self._pool(pool) / check_name(key, "key")
        _refuse_link(path)
        if not path.is_dir():
            hint = near(key, self.keys(pool))
            raise StoreURLError(f"there is no key {key!r} in the pool {pool!r}{hint}: 'fastomp list URL' shows its keys")
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                _refuse_link(Path(folder) / name)
        return path

    def left_build(self, pool: str, folder: str) -> Path | None:
        """Return the directory that an earlier builder left in a pool, if it exists and no process holds it."""
        path = self.root / check_name(pool, "pool") / folder
        is_ours = _LEFT_BEHIND.fullmatch(folder) and path.is_dir() and not path.is_symlink() and not path.parent.is_symlink()
        return path if is_ours and is_unlocked(path) else None

    def sweep(self, kept: Collection[Path]) -> None:
        """Remove the builds and half-deleted keys that an earlier server left, except those in ``kept``."""
        for pool in self.names():
            for entry in os.scandir(self.root / pool):
                if _LEFT_BEHIND.fullmatch(entry.name) and self.root / pool / entry.name not in kept:
                    self.discard(pool, entry.name)

    def discard(self, pool: str, folder: str) -> None:
        """Remove the directory that an earlier builder left, unless a process holds it."""
        if (path := self.left_build(pool, folder)) is not None:
            shutil.rmtree(path, ignore_errors=True)


def located(location: str) -> tuple[str, Path]:
    """Return the medium and the directory of a place of pools; a plain path means ``pmem``."""
    url = StoreURL.parse(location)
    scheme = url.scheme if location.startswith(f"{url.scheme}:") else "pmem"
    if scheme not in _FILE_MEDIA:
        raise StoreURLError(f"pools cannot be kept on {scheme!r}: expected a directory, or a URL of {' or '.join(_FILE_MEDIA)}")
    return scheme, Path(os.path.abspath(url.path))


def reserve_of(root: Path) -> int:
    """Return the bytes of the file system that uploads leave free."""
    return min(_LARGEST_RESERVE, total_bytes(root) // 20)


def bytes_below(path: Path) -> int:
    """Return the bytes of all files in a directory."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(FileNotFoundError):  # a build may end meanwhile
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def directories(path: Path) -> list[str]:
    """Return the names of the subdirectories that are neither hidden nor links, in order."""
    entries = (entry for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
    return sorted(entry.name for entry in entries if not entry.name.startswith("."))


def _refuse_link(path: Path) -> None:
    """Raise ``StoreError`` for a symbolic link."""
    if path.is_symlink():
        raise StoreError(f"{path.name!r} is a symbolic link, which a pool may not hold: put the store itself there")
