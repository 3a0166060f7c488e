"""A store as a plain directory, opened the same way by every file medium.

Invariant: an opened store stays with the directory it opened, even when another one takes its name. How it got there whole is in
:mod:`storage_backends.files.draft`, the content of the files in :mod:`storage_backends.files.format`; how they are mapped is the
medium's ``Access``.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import stat
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import device_errors
from fastomp_nvm.errors import InputError, MediumError, StoreError, StoreURLError
from fastomp_nvm.matrix.checksum import crc32
from fastomp_nvm.matrix.pacing import DeviceProfile
from fastomp_nvm.matrix.reader import MatrixFile
from fastomp_nvm.stores.contract import DurableRegion, FeatureStore, Sidecars, StoreDraft
from fastomp_nvm.stores.url import StoreURL
from storage_backends.files import format as store_format
from storage_backends.files.draft import LARGEST_HEADER, FileDraft, check_destination, is_leftover, occupant
from storage_backends.files.durable import allocate, partial_file, publish_file
from storage_backends.files.mapped import Access, MappedRegion, map_file
from storage_backends.files.matrix import matrix_view
from storage_backends.files.regions import FileRegion
from storage_backends.files.tier_copies import open_folder, provide_copy
from storage_backends.opened import OpenedStore, check_region_name, refuse_extras

__all__ = ["FileMedium", "FileStore"]

_REGIONS = "regions"
_OPEN_ATTEMPTS = 5
_READ_BYTES = 8 << 20


class FileMedium:
    """The file media's implementation of ``Medium``.

    Parameters
    ----------
    choose_access : callable
        Given an open file and its path, says how files at this place are mapped and made durable.
    profiles : mapping of str to DeviceProfile
        Devices that ``?profile=NAME`` can imitate on this medium.
    """

    def __init__(
        self, choose_access: Callable[[int, str], Access], profiles: Mapping[str, DeviceProfile] = MappingProxyType({})
    ) -> None:
        self._choose_access = choose_access
        self._profiles = profiles

    def open(self, url: StoreURL) -> FeatureStore:
        """Open the store in the directory ``url`` names, after checking everything but the content of matrix and tier.

        With ``?tier=dram`` the tier is checked too, and copied into memory; with ``?tier=/folder`` it is read from a copy there,
        which is made where there is none yet. With ``?profile=NAME`` an emulated medium takes the time of that device.
        """
        extras = dict(url.query)
        place, profile = extras.pop("tier", None), extras.pop("profile", None)
        if place not in (None, "dram") and not os.path.isabs(place):
            raise StoreURLError(f"unknown place {place!r} for the tier in {url.text!r}: expected tier=dram or tier=/folder")
        if profile is not None and profile not in self._profiles:
            known = f"expected one of {', '.join(self._profiles)}" if self._profiles else f"{url.scheme} takes none"
            raise StoreURLError(f"unknown device profile {profile!r} in {url.text!r}: {known}")
        store = self._open_path(_path(replace(url, query=extras)), url.scheme)
        try:
            if profile is not None:
                store.imitate(profile, self._profiles[profile])
            if place == "dram":
                store.load_tier()
            elif place is not None:
                self._move_tier(store, place)
        except BaseException:
            store.close()
            raise
        return store

    def _open_path(self, path: str, scheme: str) -> FileStore:
        """Open the store at ``path``, or the one that takes its place meanwhile."""
        if is_leftover(path):
            raise StoreURLError(f"{path} is what an interrupted build left behind, not a store: it can be deleted")
        for _ in range(_OPEN_ATTEMPTS - 1):
            directory = _open_directory(path)
            try:
                return self._open(directory, path, scheme)
            except StoreError:
                # A store replaced while it was being opened has lost its files; its successor stands at the same path.
                unchanged = _same_directory(directory, path)
                os.close(directory)
                if unchanged:
                    raise
            except BaseException:
                os.close(directory)
                raise
        raise StoreError(f"the store at {path} was replaced again and again while it was being opened: try later")

    def draft(
        self, url: StoreURL, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none", folder: str | None = None
    ) -> StoreDraft:
        """Start a store beside its final place, or go on with the one in ``folder`` there, which an earlier draft left."""
        path = _path(url)
        check_destination(path, replace=replace)
        with device_errors(f"build a store at {path}"):
            return FileDraft(path, n_columns, n_obs, dtype, replace=replace, tier=tier, folder=folder)

    def exists(self, url: StoreURL) -> bool:
        """Tell whether a store stands at ``url``."""
        path = _path(url)
        return not is_leftover(path) and occupant(path) == "store"

    def _open(self, directory: int, path: str, scheme: str) -> FileStore:
        """Open the store in an open directory."""
        try:
            header = store_format.decode_header(_read(directory, store_format.HEADER))
            sidecars = store_format.decode_sidecars(header, lambda name, length: _read(directory, name, length))
            access, matrix, file = self._map(directory, path, store_format.MATRIX, header.shape)
            try:
                codes, tier_file = None, -1
                if sidecars.tier is not None:
                    _, codes, tier_file = self._map(directory, path, store_format.TIER, header.tier_shape)
            except BaseException:
                os.close(file)
                raise
        except StoreError as error:
            raise StoreError(f"the store at {path} cannot be used: {error}") from error
        except OSError as error:
            raise MediumError(f"cannot read the store at {path}: {error.strerror}") from error
        url = f"{scheme}://{urllib.parse.quote(path)}"
        return FileStore(url, directory, file, access, matrix, sidecars, codes, tier_file)

    def _move_tier(self, store: FileStore, folder: str) -> None:
        """Have the tier of a store read from a copy in ``folder``."""
        layout, directory = store.layout, open_folder(folder)
        try:
            name = store.provide_tier_copy(directory, folder)
            access, codes, file = self._map(directory, folder, name, (layout.n_columns, layout.n_obs, "int8"))
        except BaseException:
            os.close(directory)
            raise
        store.read_tier_from(directory, name, access, codes, file)

    def _map(self, directory: int, path: str, name: str, shape: tuple[int, int, str]) -> tuple[Access, AnyArray, int]:
        """Map a file that holds a matrix; return how, the matrix, and a descriptor of the file for the caller to close."""
        length = store_format.matrix_length(*shape)
        with _opened(directory, name, length) as descriptor:
            if os.pread(descriptor, store_format.DATA_OFFSET, 0) != store_format.matrix_header(*shape):
                raise StoreError(f"{name} is not the matrix that {store_format.HEADER} describes")
            access = self._choose_access(descriptor, path)
            mapping = map_file(descriptor, length, access.flags, writable=False, path=path)
            file = os.dup(descriptor)
        matrix = matrix_view(mapping, *shape)
        assert matrix.ctypes.data % 64 == 0, "a mapping begins at a page and the data a page later"
        return access, matrix, file


class FileStore(OpenedStore):
    """A store in a directory, its matrix a read-only shared mapping.

    Parameters
    ----------
    url : str
    directory, file : int
        Descriptors of the store's directory and of its matrix; owned by the store from now on, so that it stays whole when another
        store takes its place.
    access : Access
    matrix : (n_columns, n_obs) array
    sidecars : Sidecars
    codes : (n_columns, n_obs) int8 array, optional
    tier_file : int
        Descriptor of the file of the tier, owned likewise; -1 without one.
    """

    def __init__(
        self,
        url: str,
        directory: int,
        file: int,
        access: Access,
        matrix: AnyArray,
        sidecars: Sidecars,
        codes: AnyArray | None = None,
        tier_file: int = -1,
    ) -> None:
        super().__init__(url, access.traits, matrix, sidecars, codes)
        self._directory = directory
        self._file = file
        self._tier_file = tier_file
        self._access = access
        self._profile: DeviceProfile | None = None
        self._tier_loaded = False
        self._tier_copy: tuple[int, str, Access] | None = None  # directory, owned; name; how it is mapped

    def imitate(self, name: str, profile: DeviceProfile) -> None:
        """Take the time of a device from now on, where this medium is an emulation; ``url`` then says so."""
        if not self._traits.emulated:
            raise StoreURLError(f"{self._url} is on a real device, which imitates no other: leave out profile={name}")
        self._profile = profile
        self._traits = replace(self._traits, detail=f"{self._traits.detail}; at the pace of {profile.description}")
        self._add_to_url(f"profile={name}")

    def provide_tier_copy(self, directory: int, path: str) -> str:
        """See to it that the open directory at ``path`` has a copy of the tier; return its name."""
        if self._tier is None:
            super().load_tier()  # says that there is none
        name = f"{self.layout.fingerprint}.tier.npy"
        provide_copy(directory, name, self._tier_file, path)
        self._add_to_url(f"tier={urllib.parse.quote(path)}")
        return name

    def read_tier_from(self, directory: int, name: str, access: Access, codes: AnyArray, file: int) -> None:
        """Take the tier from a mapped copy of it; both descriptors are owned by the store from now on."""
        assert self._tier is not None, "what has a copy has a tier"
        if self._tier.seal is not None:
            advice = f"the copy of the tier of {self._url} does not match its checksums: remove {name} there"
            self._tier.seal.damaged = lambda block: StoreError(f"{advice} (block {block})")
        os.close(self._tier_file)
        self._tier, self._tier_file, self._tier_copy = replace(self._tier, codes=codes), file, (directory, name, access)

    def _add_to_url(self, parameter: str) -> None:
        """Have the address say how the store was opened."""
        self._url = f"{self._url}{'&' if '?' in self._url else '?'}{parameter}"

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open the durable region ``name``; create it with ``size`` bytes when it is absent.

        One that cannot be written is opened for reading. Raises ``StoreURLError`` when it is absent and ``size`` is 0,
        ``StoreError`` when it has another size than asked for.
        """
        check_region_name(name)
        if size < 0:
            raise InputError(f"a region of {size} bytes was asked for: its size is a positive number")
        file = f"{_REGIONS}/{name}.bin"
        with device_errors(f"open region {name!r} of {self._url}"):
            if not self._has(file):
                if not size:
                    raise StoreURLError(f"the store {self._url} has no region {name!r}: give a size to create it")
                self._create_region(name, size)
            writable = os.access(file, os.W_OK, dir_fd=self._alive(), effective_ids=True)
            with _opened(self._alive(), file, size or None, os.O_RDWR if writable else os.O_RDONLY) as descriptor:
                length = os.fstat(descriptor).st_size
                if not length:
                    raise StoreError(f"region {name!r} of {self._url} is empty: drop it and create it again")
                if self._access.persist is None:
                    return FileRegion(name, os.dup(descriptor), writable=writable)
                mapping = map_file(descriptor, length, self._access.flags, writable=writable, path=file)
                return MappedRegion(name, mapping, self._access.persist, writable=writable)

    def regions(self) -> Sequence[str]:
        """Names of the durable regions that exist, in order."""
        with device_errors(f"list the regions of {self._url}"):
            if not self._has(_REGIONS):
                return ()
            with self._opened_regions() as descriptor:
                entries = os.listdir(descriptor)
        return tuple(sorted(entry[:-4] for entry in entries if entry.endswith(".bin") and not entry.startswith(".")))

    def drop_region(self, name: str) -> None:
        """Remove a durable region."""
        check_region_name(name)
        with device_errors(f"drop region {name!r} of {self._url}"):
            if not self._has(f"{_REGIONS}/{name}.bin"):
                raise StoreURLError(f"the store {self._url} has no region {name!r} to drop")
            os.unlink(f"{_REGIONS}/{name}.bin", dir_fd=self._directory)
            self._sync(_REGIONS)

    def close(self) -> None:
        """Let go of matrix and directory; views handed out before keep the mapping alive."""
        super().close()
        if self._directory >= 0:
            os.close(self._directory)
            os.close(self._file)
            if self._tier_file >= 0:
                os.close(self._tier_file)
            if self._tier_copy is not None:
                os.close(self._tier_copy[0])
            self._directory = self._file = self._tier_file = -1

    def __del__(self) -> None:
        if getattr(self, "_directory", -1) >= 0:
            self.close()

    def files(self) -> Sequence[MatrixFile]:
        """Open the files of the matrix and, unless it was loaded, of the tier."""
        mapped = [(self.matrix, (self._alive(), store_format.MATRIX, self._access))]
        if self._tier is not None and not self._tier_loaded:
            mapped.append((self._tier.codes, self._tier_copy or (self._alive(), store_format.TIER, self._access)))
        with device_errors(f"open {self._url}"):
            return tuple(
                MatrixFile(array, store_format.DATA_OFFSET, functools.partial(_open_again, directory, name), self._profile)
                for array, (directory, name, access) in mapped
                if access.flags == mmap.MAP_SHARED  # a mapping of persistent memory is the device itself
            )

    def load_tier(self) -> None:
        """Copy the tier into memory; ``url`` then says so."""
        super().load_tier()
        if not self._tier_loaded:
            self._tier_loaded = True
            self._add_to_url("tier=dram")

    def _checksum(self, first: int, last: int) -> int:
        """Return the CRC-32 of columns ``first:last``, read with pread(2), where a bad sector is an error and not a signal."""
        return self._file_checksum(self._file, store_format.MATRIX, self.matrix.shape[1] * self.matrix.itemsize, first, last)

    def _tier_checksum(self, first: int, last: int) -> int:
        """Return the CRC-32 of the codes of columns ``first:last``, read likewise."""
        return self._file_checksum(self._tier_file, store_format.TIER, self.matrix.shape[1], first, last)

    def _file_checksum(self, file: int, name: str, row: int, first: int, last: int) -> int:
        """Return the CRC-32 of columns ``first:last`` of an open file in which a column takes ``row`` bytes."""
        position, end = (store_format.DATA_OFFSET + column * row for column in (first, last))
        checksum = 0
        with device_errors(f"read {self._url}"):
            while position < end:
                data = os.pread(file, min(_READ_BYTES, end - position), position)
                if not data:
                    raise StoreError(f"the store {self._url} is damaged: {name} ends before column {last}")
                checksum = crc32(data, checksum)
                position += len(data)
        return checksum

    def _create_region(self, name: str, size: int) -> None:
        """Make a zero-filled region appear at once and whole; another process may win the race to create it."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(_REGIONS, dir_fd=self._alive())
        self._sync(".")  # also where it stands: whoever made it may have died before this
        with self._opened_regions() as regions, partial_file(regions, f"{name}.bin", 0o666) as (partial, descriptor):
            allocate(descriptor, size, f"region {name!r} of {self._url}")
            os.fsync(descriptor)
            publish_file(partial, f"{name}.bin", regions)

    @contextlib.contextmanager
    def _opened_regions(self) -> Iterator[int]:
        """Open the directory of the regions for the time of a ``with``."""
        descriptor = os.open(_REGIONS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._alive())
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _alive(self) -> int:
        """Return the directory, unless the store is closed."""
        if self._directory < 0:
            raise StoreError(f"the store {self._url} is closed: open it again")
        return self._directory

    def _has(self, name: str) -> bool:
        """Tell whether the directory has an entry ``name``."""
        try:
            os.stat(name, dir_fd=self._alive())
        except FileNotFoundError:
            return False
        return True

    def _sync(self, name: str) -> None:
        """Bring the entries of a directory inside the store to the device."""
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._alive())
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _path(url: StoreURL) -> str:
    """Return the absolute path a URL names, links resolved so that a replacement is built beside the real directory."""
    refuse_extras(url)
    if "\0" in url.path:
        raise StoreURLError(f"{url.text!r} holds a null character, which no path can")
    path = os.path.realpath(url.path)
    if path == os.path.dirname(path):
        raise StoreURLError(f"{url.text!r} names the root directory, which cannot be a store")
    return path


def _open_directory(path: str) -> int:
    """Open the directory of a store."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise StoreURLError(f"there is no store at {path}: build one with ingest or create_store") from error
    except NotADirectoryError as error:
        raise StoreURLError(f"{path} is a file, and a store is a directory: ingest it to make a store of it") from error
    except OSError as error:
        raise MediumError(f"cannot open the store at {path}: {error.strerror}") from error


def _open_again(directory: int, name: str, flags: int) -> int:
    """Open a file of a store with ``flags``."""
    return os.open(name, flags | os.O_CLOEXEC, dir_fd=directory)


def _same_directory(directory: int, path: str) -> bool:
    """Tell whether ``path`` still leads to the open ``directory``."""
    try:
        return os.path.samestat(os.fstat(directory), os.stat(path))
    except OSError:
        return False


@contextlib.contextmanager
def _opened(directory: int, name: str, length: int | None = None, mode: int = os.O_RDONLY) -> Iterator[int]:
    """Open a regular file of a store that must have ``length`` bytes, for the time of a ``with``."""
    try:
        # O_NONBLOCK: a named pipe in the place of a file must not hang us.
        descriptor = os.open(name, mode | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(f"it has no {name}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise StoreError(f"{name} is not a file")
        if length is not None and found.st_size != length:
            raise StoreError(f"{name} has {found.st_size} bytes and should have {length}")
        yield descriptor
    finally:
        os.close(descriptor)


def _read(directory: int, name: str, length: int | None = None) -> bytes:
    """Return the content of a file of a store."""
    with _opened(directory, name, length) as descriptor:
        if length is None and os.fstat(descriptor).st_size > LARGEST_HEADER:
            raise StoreError(f"{name} is far larger than any of ours")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
