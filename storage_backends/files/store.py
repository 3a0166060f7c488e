"""Stores in directories, shared by all file media.

Invariant: an opened store keeps reading the directory it opened, even after another store has replaced it there. Building is in
:mod:`storage_backends.files.draft`, the file format in :mod:`storage_backends.files.format`; each medium chooses by its ``Access``
how files are mapped and flushed.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import stat
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import device_errors, opened_directory, write_atomically
from fastomp_nvm.errors import MediumError, StoreError, StoreURLError
from fastomp_nvm.matrix.checksum import Seal
from fastomp_nvm.matrix.pacing import DeviceProfile
from fastomp_nvm.matrix.reader import MatrixFile
from fastomp_nvm.stores.contract import DurableRegion, FeatureStore, Sidecars, StoreDraft
from fastomp_nvm.stores.url import StoreURL
from storage_backends.files import format as store_format
from storage_backends.files.checked import Identity, identity_of, recall, record
from storage_backends.files.draft import LARGEST_HEADER, FileDraft, check_destination, is_leftover, occupant
from storage_backends.files.durable import copy_file, new_file
from storage_backends.files.mapped import Access, MappedRegion, map_file, matrix_view
from storage_backends.files.regions import FileRegion
from storage_backends.opened import OpenedStore, check_region_name, refuse_extras

__all__ = ["FileMedium", "FileStore", "MappedMatrix"]

_REGIONS = "regions"
_OPEN_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class MappedMatrix:
    """A mapped matrix file of a store.

    Attributes
    ----------
    directory, file : int
        Descriptors of its directory and of the file.
    name : str
    access : Access
    array : (n_columns, n_obs) array
        Read-only.
    """

    directory: int
    name: str
    file: int
    access: Access
    array: AnyArray


class FileMedium:
    """The file media's implementation of ``Medium``.

    Parameters
    ----------
    choose_access : callable
        Maps a file descriptor and its path to the ``Access`` for the files there.
    profiles : mapping of str to DeviceProfile
        Devices whose speed ``?profile=NAME`` can emulate on this medium.
    """

    def __init__(
        self, choose_access: Callable[[int, str], Access], profiles: Mapping[str, DeviceProfile] = MappingProxyType({})
    ) -> None:
        self._choose_access = choose_access
        self._profiles = profiles

    def open(self, url: StoreURL) -> FeatureStore:
        """Open the store in the directory ``url`` names and validate everything except the contents of matrix and tier.

        ``?tier=dram`` copies the tier into memory and validates it; ``?tier=/folder`` reads it from a copy in that folder, which
        is made if missing. ``?profile=NAME`` slows an emulated medium down to the speed of that device.
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

    def draft(
        self, url: StoreURL, n_columns: int, n_obs: int, dtype: str, *, replace: bool, tier: str = "none", folder: str | None = None
    ) -> StoreDraft:
        """Start a store in a hidden directory beside its path, or continue the earlier draft in ``folder`` there."""
        path = _path(url)
        check_destination(path, replace=replace)
        with device_errors(f"build a store at {path}"):
            return FileDraft(path, n_columns, n_obs, dtype, replace=replace, tier=tier, folder=folder)

    def exists(self, url: StoreURL) -> bool:
        """Return whether there is a store at ``url``."""
        path = _path(url)
        return not is_leftover(path) and occupant(path) == "store"

    def _open_path(self, path: str, scheme: str) -> FileStore:
        """Open the store at ``path``; start over when it is replaced meanwhile."""
        if is_leftover(path):
            raise StoreURLError(f"{path} is the remains of an interrupted build, not a store: it can be deleted")
        for _ in range(_OPEN_ATTEMPTS):
            try:
                directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError as error:
                raise StoreURLError(
                    f"there is no store at {path}: check the path, or build a store there with 'fastomp ingest'"
                ) from error
            except NotADirectoryError as error:
                raise StoreURLError(
                    f"{path} is a file, and a store is a directory: build a store from it with 'fastomp ingest'"
                ) from error
            except OSError as error:
                raise MediumError(f"cannot open the store at {path}: {error.strerror}") from error
            with contextlib.ExitStack() as descriptors:
                descriptors.callback(os.close, directory)
                try:
                    return self._open(directory, path, scheme, descriptors)
                except StoreError as error:
                    # A store replaced while it was being opened has lost its files; the new one is at the same path.
                    if _same_directory(directory, path):
                        if not {store_format.HEADER, store_format.MATRIX} & set(os.listdir(directory)):
                            raise StoreURLError(f"{path} is a directory without a store: check the path") from error
                        raise
        raise StoreError(f"the store at {path} was replaced {_OPEN_ATTEMPTS} times while it was being opened: try later")

    def _open(self, directory: int, path: str, scheme: str, descriptors: contextlib.ExitStack) -> FileStore:
        """Open the store in an open directory; ``descriptors`` closes its files unless a store is returned."""
        try:
            header = store_format.decode_header(_read(directory, store_format.HEADER))
            sidecars = store_format.decode_sidecars(header, functools.partial(_read, directory))
            owner = header.fingerprint, header.older
            matrix = self._map(directory, path, store_format.MATRIX, header.matrix, owner, descriptors)
            tier = header.tier and self._map(directory, path, store_format.TIER, header.tier, owner, descriptors)
        except StoreError as error:
            raise StoreError(f"the store at {path} cannot be used: {error}") from error
        except OSError as error:
            raise MediumError(f"cannot read the store at {path}: {error.strerror}") from error
        return FileStore(f"{scheme}://{urllib.parse.quote(path)}", descriptors, sidecars, matrix, tier)

    def _map(
        self,
        directory: int,
        path: str,
        name: str,
        shape: store_format.Shape,
        owner: tuple[str, bool],
        descriptors: contextlib.ExitStack,
    ) -> MappedMatrix:
        """Map a matrix file in an open directory; ``descriptors`` closes the file.

        ``owner`` is the fingerprint of the store, and whether its files may lack it.
        """
        length = store_format.matrix_length(*shape)
        fingerprint, older = owner
        with _opened(directory, name, length) as descriptor:
            found = os.pread(descriptor, store_format.DATA_OFFSET, 0)
            if found != store_format.matrix_header(*shape, fingerprint):
                whose = store_format.owner_of(found)
                if whose not in ("", fingerprint):
                    raise StoreError(
                        f"{name} belongs to another store, {whose}, and this is {fingerprint}: put the right file back"
                    )
                if not (older and found == store_format.matrix_header(*shape)):
                    raise StoreError(f"{name} is not the matrix that {store_format.HEADER} describes")
            access = self._choose_access(descriptor, path)
            mapping = map_file(descriptor, length, access.flags, writable=False, path=path)
            descriptors.callback(os.close, file := os.dup(descriptor))
        array = matrix_view(mapping, *shape)
        assert array.ctypes.data % 64 == 0, "a mapping begins at a page and the data a page later"
        return MappedMatrix(directory, name, file, access, array)

    def _move_tier(self, store: FileStore, folder: str) -> None:
        """Make a store read its tier from a copy in ``folder``."""
        with contextlib.ExitStack() as descriptors:
            descriptors.callback(os.close, directory := _open_folder(folder))
            name = store.provide_tier_copy(directory, folder)
            owner = store.layout.fingerprint, store.sidecars.column_checksums is None
            copy = self._map(directory, folder, name, (*store.matrix.shape, "int8"), owner, descriptors)
            store.read_tier_from(copy, descriptors)


class FileStore(OpenedStore):
    """A store in a directory, its matrix a read-only shared mapping.

    Parameters
    ----------
    url : str
    descriptors : ExitStack
        Closes the store's directory and its matrix files. The store takes them over, and so stays readable after it is replaced.
    sidecars : Sidecars
    matrix : MappedMatrix
    tier : MappedMatrix, optional
    """

    def __init__(
        self, url: str, descriptors: contextlib.ExitStack, sidecars: Sidecars, matrix: MappedMatrix, tier: MappedMatrix | None
    ) -> None:
        self._descriptors = contextlib.ExitStack()  # the caller closes its descriptors if this constructor fails
        self._mapped = [matrix] if tier is None else [matrix, tier]
        super().__init__(url, matrix.access.traits, matrix.array, sidecars, None if tier is None else tier.array)
        self._descriptors = descriptors.pop_all()
        self._profile: DeviceProfile | None = None
        self._path = StoreURL.parse(url).path
        self._identities: list[Identity] = [identity_of(each.file) for each in self._mapped]
        self._recorded = [0, 0]  # columns of matrix and tier that an earlier process compared
        for place in range(len(self._mapped)):
            self._recall(place)

    def imitate(self, name: str, profile: DeviceProfile) -> None:
        """Slow reads of an emulated medium down to the speed of a device, and add that to ``url``."""
        if not self.traits.emulated:
            raise StoreURLError(f"{self.url} is on a real device, which emulates no other: leave out profile={name}")
        self._profile = profile
        self.traits = self.traits._replace(detail=f"{self.traits.detail}; at the pace of {profile.description}")
        self._add_to_url(f"profile={name}")

    def provide_tier_copy(self, directory: int, path: str) -> str:
        """Make a copy of the tier in the open directory at ``path``, atomically, unless an earlier run made it; return its name.

        The name holds the fingerprint of the store. As with the tier's own file, the first sweep compares the copy with the store's
        checksums.
        """
        if self.tier is None:
            super().load_tier()  # raises the error for a store without a tier
        name, source = f"{self.layout.fingerprint}.tier.npy", self._mapped[1].file
        length = os.fstat(source).st_size
        with device_errors(f"copy the tier to {path}"):
            try:
                found = os.stat(name, dir_fd=directory, follow_symlinks=False).st_size
            except FileNotFoundError:
                found = copy_file(source, directory, name, f"the tier in {path}")
        if found != length:
            raise StoreError(f"{path}/{name} has {found} bytes and a copy of the tier {length}: remove it")
        self._add_to_url(f"tier={urllib.parse.quote(path)}")
        return name

    def read_tier_from(self, copy: MappedMatrix, descriptors: contextlib.ExitStack) -> None:
        """Read the tier from a mapped copy of it; the store takes over its descriptors."""
        assert self.tier is not None, "only a store with a tier has a copy of it"
        self.tier = replace(self.tier, codes=copy.array)
        self._mapped[1], self._identities[1] = copy, identity_of(copy.file)
        if (seal := self._seals[1]) is not None:
            advice = f"the copy of the tier of {self.url} does not match its checksums: remove {copy.name} there"
            self._seals[1] = Seal(seal.checksums, lambda column: StoreError(f"{advice} (column {column})"))
            self._recall(1)
        self._descriptors.callback(descriptors.pop_all().close)

    @property
    def seals(self) -> tuple[Seal | None, Seal | None]:
        """Checksums of the columns; those of a file that was changed since it was opened are to be compared again."""
        for place, mapped in enumerate(self._mapped):
            seal, found = self._seals[place], identity_of(mapped.file)
            if seal is not None and found != self._identities[place]:
                self._seals[place], self._identities[place] = seal.renewed(), found
        return super().seals

    def _recall(self, place: int) -> None:
        """Take over which columns of a file an earlier process compared."""
        seal, name = self._seals[place], self._mapped[place].name
        if seal is not None:
            known = recall(self._descriptor(), self._path, name, self._identities[place], len(seal.checksums))
            if known is not None:
                seal.accept(known)
                self._recorded[place] = int(known.sum())

    def _record(self) -> None:
        """Record which columns were compared, where these are more than before; not in a store that is being removed."""
        files = zip(self._mapped, self._identities, self._seals, self._recorded, strict=False)
        found = [(each.name, identity, seal.compared, before) for each, identity, seal, before in files if seal is not None]
        more = any(int(compared.sum()) > before for _, _, compared, before in found)
        if more and _same_directory(self._descriptor(), self._path):
            record(self._descriptor(), self._path, {name: (identity, compared) for name, identity, compared, _ in found})

    def _add_to_url(self, parameter: str) -> None:
        """Add a query parameter to ``url``."""
        self.url = f"{self.url}{'&' if '?' in self.url else '?'}{parameter}"

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open the durable region ``name``; create it with ``size`` bytes when it is absent.

        A region without write permission is opened for reading. Raises ``StoreURLError`` when it is absent and ``size`` is 0,
        ``StoreError`` when its size is not ``size``.
        """
        check_region_name(name)
        file = f"{_REGIONS}/{name}.bin"
        with device_errors(f"open region {name!r} of {self.url}"):
            found = self._length(file)
            self._check_region(name, size, found)
            if found is None:
                self._create_region(name, size)
            writable = os.access(file, os.W_OK, dir_fd=self._descriptor(), effective_ids=True)
            with _opened(self._descriptor(), file, size or None, os.O_RDWR if writable else os.O_RDONLY) as descriptor:
                length = os.fstat(descriptor).st_size
                if not length:
                    raise StoreError(f"region {name!r} of {self.url} is empty: drop it and create it again")
                access = self._mapped[0].access
                if access.persist is None:
                    return FileRegion(name, os.dup(descriptor), writable=writable)
                mapping = map_file(descriptor, length, access.flags, writable=writable, path=file)
                return MappedRegion(name, mapping, access.persist, writable=writable)

    def regions(self) -> Sequence[str]:
        """Names of the durable regions that exist, in order."""
        with device_errors(f"list the regions of {self.url}"):
            if self._length(_REGIONS) is None:
                return ()
            with opened_directory(_REGIONS, self._descriptor()) as descriptor:
                entries = os.listdir(descriptor)
        return tuple(sorted(entry[:-4] for entry in entries if entry.endswith(".bin") and not entry.startswith(".")))

    def drop_region(self, name: str) -> None:
        """Remove a durable region."""
        check_region_name(name)
        with device_errors(f"drop region {name!r} of {self.url}"):
            self._check_region(name, 0, self._length(f"{_REGIONS}/{name}.bin"))
            with opened_directory(_REGIONS, self._descriptor()) as regions:
                os.unlink(f"{name}.bin", dir_fd=regions)
                os.fsync(regions)

    def close(self) -> None:
        """Release matrix and directory; existing views keep the mapping alive."""
        if self._mapped and hasattr(self, "_recorded"):
            self._record()
        super().close()
        self._mapped.clear()
        self._descriptors.close()

    __del__ = close

    def files(self) -> Sequence[MatrixFile]:
        """Return the files of the matrix and, unless it was loaded into memory, of the tier."""
        self._descriptor()
        found = []
        with device_errors(f"open {self.url}"):
            for mapped in self._mapped[:1] if self._tier_loaded else self._mapped:
                if mapped.access.flags == mmap.MAP_SHARED:  # persistent memory is read through its mapping
                    open_file = functools.partial(os.open, mapped.name, dir_fd=mapped.directory)
                    found.append(MatrixFile(mapped.array, store_format.DATA_OFFSET, open_file, self._profile))
        return found

    def load_tier(self) -> None:
        """Copy the tier into memory, and add that to ``url``."""
        loaded = self._tier_loaded
        super().load_tier()
        if not loaded:
            self._add_to_url("tier=dram")

    def _columns(self, first: int, last: int, *, tier: bool) -> AnyArray:
        """Return the bytes of columns ``first:last``, read with pread(2), which reports a bad sector as an error, not a signal."""
        self._descriptor()
        mapped = self._mapped[tier]
        width = mapped.array.shape[1] * mapped.array.itemsize
        out = np.empty((last - first, width), dtype=np.uint8)
        left, position = out.reshape(-1).data, store_format.DATA_OFFSET + first * width
        with device_errors(f"read {self.url}"):
            while left:
                count = os.preadv(mapped.file, [left], position)
                if not count:
                    raise StoreError(f"the store {self.url} is damaged: {mapped.name} ends before column {last}")
                left, position = left[count:], position + count
        return out

    def add_checksums(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Verify the store, then add a checksum per column and the fingerprint in its files; open it again afterwards."""
        if self.sidecars.column_checksums is not None:
            raise StoreError(f"the store {self.url} has a checksum for each column already")
        checksums = store_format.encode_checksums(*self._verified(progress))
        directory = self._descriptor()
        folder, header = Path(f"/proc/self/fd/{directory}"), _read(directory, store_format.HEADER)
        # A crash in between leaves a store of the older version, whose files may name it or not.
        with device_errors(f"add checksums to {self.url}"):
            write_atomically(folder / store_format.CHECKSUMS, checksums, mode=0o666)
            for mapped in self._mapped:
                with _opened(directory, mapped.name, mode=os.O_WRONLY) as file:
                    n_columns, n_obs = mapped.array.shape
                    named = store_format.matrix_header(n_columns, n_obs, mapped.array.dtype.name, self.layout.fingerprint)
                    os.pwrite(file, named, 0)
                    os.fsync(file)
            write_atomically(folder / store_format.HEADER, store_format.with_checksums(header, checksums), mode=0o666)

    def _create_region(self, name: str, size: int) -> None:
        """Create a zero-filled region atomically; if another process is faster, keep its region."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(_REGIONS, dir_fd=self._descriptor())
        os.fsync(self._descriptor())  # also if the directory exists: its creator may have died before syncing
        with (
            opened_directory(_REGIONS, self._descriptor()) as regions,
            new_file(regions, f"{name}.bin", size, f"region {name!r} of {self.url}"),
        ):
            pass

    def _descriptor(self) -> int:
        """Return the descriptor of the store's directory; raise when the store is closed."""
        if not self._mapped:
            raise StoreError(f"the store {self.url} is closed: open it again")
        return self._mapped[0].directory

    def _length(self, name: str) -> int | None:
        """Return the length of a file of the store, or None if it does not exist."""
        try:
            return os.stat(name, dir_fd=self._descriptor()).st_size
        except FileNotFoundError:
            return None


def _open_folder(path: str) -> int:
    """Return a descriptor of the directory that holds copies of tiers."""
    with device_errors(f"open {path}"):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            raise StoreURLError(
                f"there is no directory {path} for the tier: create it, or keep the tier in memory (dram)"
            ) from None


def _path(url: StoreURL) -> str:
    """Return the absolute path of a URL. Links are resolved: a replacement must be built on the same file system."""
    refuse_extras(url)
    if "\0" in url.path:
        raise StoreURLError(f"{url.text!r} contains a null character, which a path cannot")
    path = os.path.realpath(url.path)
    if path == os.path.dirname(path):
        raise StoreURLError(f"{url.text!r} names the root directory, which cannot be a store")
    return path


def _same_directory(directory: int, path: str) -> bool:
    """Return whether ``path`` still is the open ``directory``."""
    try:
        return os.path.samestat(os.fstat(directory), os.stat(path))
    except OSError:
        return False


@contextlib.contextmanager
def _opened(directory: int, name: str, length: int | None = None, mode: int = os.O_RDONLY) -> Iterator[int]:
    """Open a regular file of a store and check its ``length``, for the duration of a ``with``."""
    try:
        # O_NONBLOCK: opening a named pipe must not block.
        descriptor = os.open(name, mode | os.O_NONBLOCK, dir_fd=directory)
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
            raise StoreError(f"{name} has more than {LARGEST_HEADER} bytes")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
