"""A pymm shelf in a directory, shared by all stores of this process that use it. The only module that imports ``pymm``.

Invariants: a directory belongs to one process from the first opening until that process ends, because pymm keeps it mapped and
locked even when it is closed; our own lock is taken first and kept as long. Shelves of one process never overlap in memory.
Allocations are refused when they may not fit, and checked to be on the shelf. A forked child changes nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import mmap
import os
import secrets
import shutil
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.durable_files import device_errors, lock
from fastomp_nvm.errors import MediumError, StoreError, UnavailableError
from fastomp_nvm.matrix.threads import hold_at_fork
from storage_backends.files.durable import describe_bytes

__all__ = ["ShelfDirectory", "free_address", "room_for"]

_ORIGIN = "the real one is built from https://github.com/IBM/pymm; what PyPI has under that name is another program"
#: Size of a shelf per byte of its arrays: arrays of a megabyte fill about half of it (measured: 31 of 64 MiB).
_OVERHEAD = 2.1
_MEGABYTE = 1 << 20
#: Addresses of shelves: far from those the system chooses, in steps of a gibibyte.
_LOWEST_ADDRESS, _ADDRESS_STEP, _ADDRESSES = 0x1000_0000_0000, 1 << 30, 1 << 15

_open: dict[Path, ShelfDirectory] = {}
#: Removed shelves that still have views.
_viewed: list[ShelfDirectory] = []
_guard = threading.RLock()
hold_at_fork(_guard)


class ShelfDirectory:
    """An open shelf, obtained by ``acquire`` and returned by ``release``.

    Parameters
    ----------
    path : Path
        Its directory.
    size_mb : int
        The size it was created with.
    address : int
        Of its mapping.
    """

    def __init__(self, path: Path, size_mb: int, address: int) -> None:
        self.path = path
        # Unique: opening two shelves of the same name, even in two directories, ends the process.
        self._name = f"store_{path.name.rpartition('.')[2]}"
        self._users = 0
        self._discarded = False
        self._process = os.getpid()
        self._range = (address, address + size_mb * _MEGABYTE)
        self._capacity = int(size_mb * _MEGABYTE / _OVERHEAD)
        pymm = _import_pymm()
        other = _overlapping(self._range)
        if other is not None:
            raise StoreError(f"the shelves {path} and {other.path} need the same addresses: open them in two processes")
        if _mapped(self._range):  # pymm would map over it silently
            raise StoreError(f"the addresses of the shelf {path} are in use in this process: open it in another one")
        self._lock = _lock(path)
        try:
            with _quiet(), device_errors(f"open the shelf in {path}"):
                # The backend is pymm's default; an unknown one would end the process.
                self._shelf = pymm.shelf(self._name, pmem_path=str(path), size_mb=size_mb, load_addr=hex(address))
        except BaseException as error:
            os.close(self._lock)
            if not isinstance(error, RuntimeError):
                raise
            raise MediumError(f"pymm cannot open the shelf in {path} ({error}): is there room for {size_mb} MiB?") from error
        self._pymm = pymm
        self._alive: list[weakref.ref[Any]] = [weakref.ref(self._shelf)]
        with _quiet():
            names = [str(name) for name in self._shelf.items]
        self._arrays = {name: self._checked(name) for name in names}

    @classmethod
    def acquire(cls, path: Path, size_mb: int, address: int) -> ShelfDirectory:
        """Return the shelf in a directory, opening it if needed; every call needs a ``release``."""
        with _guard:
            found = _open.get(path)
            if found is None or found._process != os.getpid():
                found = _open[path] = cls(path, size_mb, address)
            found._users += 1
            return found

    @classmethod
    def discard(cls, path: Path) -> None:
        """Remove a directory with its shelf once this process has released it; do nothing while another process uses it."""
        with _guard:
            found = _open.get(path)
            if found is not None and found._process == os.getpid():
                found._discarded = True
                if not found._users:
                    found._remove()
                return
            with contextlib.suppress(StoreError, FileNotFoundError):
                lock = _lock(path)
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)

    def release(self) -> None:
        """End one use. The shelf stays open in this process, because pymm cannot close it before the process ends."""
        with _guard:
            self._users -= 1
            if self._discarded and not self._users:
                self._remove()

    def drop(self) -> None:
        """Drop all references to the shelf, which closes it once it has no views."""
        with _guard, _quiet():
            self._arrays, self._shelf = {}, None
            gc.collect()

    def _remove(self) -> None:
        """Remove the directory, and free its memory unless there are views of it; the mapping stays until the process ends."""
        del _open[self.path]
        self.drop()
        if any(reference() is not None for reference in self._alive):
            _viewed.append(self)
        else:
            data = self.path / f"{self._name}.data"
            with contextlib.suppress(OSError), open(data, "r+b") as file, mmap.mmap(file.fileno(), 0) as whole:
                whole.madvise(mmap.MADV_REMOVE)
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def check_process(self) -> None:
        """Raise ``StoreError`` in a forked child, where reading the shelf would be a segmentation fault."""
        if os.getpid() != self._process:
            raise StoreError(f"the shelf {self.path} was opened before this process was forked: use spawn, and open it here")

    def names(self) -> list[str]:
        """Return the names of the arrays."""
        return list(self._arrays)

    def array(self, name: str) -> AnyArray:
        """Return the float64 array ``name``."""
        self.check_process()
        if name not in self._arrays:
            raise StoreError(f"the shelf in {self.path} lacks the array {name!r}: build the store again")
        return self._arrays[name]

    def create(self, name: str, length: int, *, zero: bool = False) -> str:
        """Allocate ``length`` bytes, rounded up to float64, under a new name, and return the name.

        Raises
        ------
        MediumError
            They may not fit: pymm would silently allocate them in ordinary memory.
        """
        self.check_process()
        count = max(-(-length // 8), 1)
        with _guard:
            used = sum(array.nbytes for array in self._arrays.values())
            if used + 8 * count > self._capacity:
                raise MediumError(
                    f"the shelf in {self.path} has room for {describe_bytes(self._capacity)} and holds {describe_bytes(used)}: "
                    f"{describe_bytes(length)} more do not fit; drop what is not needed, or build the store again"
                )
            with _quiet(), device_errors(f"allocate {name} on {self.path}"):
                # Created in place under a new name: assigning an array copies it, and replacing one may do nothing.
                setattr(self._shelf, name, self._pymm.ndarray((count,), np.dtype(np.float64), zero=zero))
            self._arrays[name] = self._checked(name)
        if zero:
            self.persist(name, 0, 8 * count)
        return name

    def erase(self, name: str) -> None:
        """Free an array; one that has views stays allocated."""
        self.check_process()
        with _guard, _quiet():
            self._arrays.pop(name, None)
            gc.collect()
            try:
                self._shelf.erase(name)
            except RuntimeError:
                self._arrays[name] = self._checked(name)

    def persist(self, name: str, offset: int, length: int) -> None:
        """Flush bytes of an array from CPU caches."""
        first, last = offset // 8, -(-(offset + length) // 8)
        with _quiet():
            self._arrays[name].persist_offset(first, last - first)  # type: ignore[attr-defined]

    def _checked(self, name: str) -> AnyArray:
        """Return an array of the shelf after checking that it exists and is on the shelf."""
        with _quiet():
            array = getattr(self._shelf, name)
        if array is None:  # pymm returns None for a missing name
            raise StoreError(f"the shelf in {self.path} lists {name!r} and does not have it: build the store again")
        if array.addr[0] == "0x0":
            raise MediumError(
                f"the shelf in {self.path} is full: pymm put {name!r} into ordinary memory; restart and build the store again"
            )
        self._alive.append(weakref.ref(array))
        checked: AnyArray = array
        return checked


def _lock(path: Path) -> int:
    """Lock the directory of a shelf; return a descriptor whose closing releases the lock."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not lock(descriptor):
            raise BlockingIOError
        # A conflict over pymm's own lock ends the process, so it is tested first: another program may hold it. Only before pymm
        # has opened the file in this process, because closing any descriptor of it releases that lock.
        for data in path.glob("*.data"):
            with open(data, "r+b") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StoreError(
            f"the shelf {path} is used by another process, which must end first: pymm never releases a shelf"
        ) from error
    return descriptor


def _at_exit() -> None:
    """Close all shelves while output is suppressed: pymm prints to standard output when it closes them."""
    for directory in list(_open.values()):
        if directory._process == os.getpid():
            directory.drop()


def _in_child() -> None:
    """Keep shelf objects alive in a forked child: their destructors would flush memory the child does not have, and crash."""
    for directory in (*_open.values(), *_viewed):
        for reference in directory._alive:
            thing = reference()
            if thing is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)


def room_for(length: int) -> int:
    """Return the size in MiB of a shelf that certainly holds ``length`` bytes of arrays."""
    return int(length * _OVERHEAD) // _MEGABYTE + 16


def free_address(size_mb: int) -> int:
    """Return a random address at which this process has neither a mapping nor a shelf."""
    for _ in range(100):
        address = _LOWEST_ADDRESS + secrets.randbelow(_ADDRESSES) * _ADDRESS_STEP
        wanted = (address, address + size_mb * _MEGABYTE)
        if _overlapping(wanted) is None and not _mapped(wanted):
            return address
    raise MediumError(f"no free range of {size_mb} MiB was found in this process's memory: build the store in a fresh process")


def _overlapping(wanted: tuple[int, int]) -> ShelfDirectory | None:
    """Return a shelf of this process, open or with views, that overlaps a range of addresses; None without one."""
    for other in (*_open.values(), *_viewed):
        if other._range[0] < wanted[1] and wanted[0] < other._range[1]:
            return other
    return None


def _mapped(wanted: tuple[int, int]) -> bool:
    """Return whether this process has a mapping in a range of addresses."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as lines:
        for line in lines:
            first, _, last = line.split(" ", 1)[0].partition("-")
            if int(first, 16) < wanted[1] and wanted[0] < int(last, 16):
                return True
    return False


def _import_pymm() -> Any:
    """Return the module pymm after checking that it is IBM's."""
    try:
        with _quiet(), warnings.catch_warnings(action="ignore"):  # it uses deprecated names of NumPy
            module = importlib.import_module("pymm")
    except ImportError as error:
        raise UnavailableError(f"pymm cannot be imported here ({error}): {_ORIGIN}") from error
    if not hasattr(module, "shelf"):
        raise UnavailableError(
            f"the module 'pymm' at {getattr(module, '__file__', None)} is another package of that name: {_ORIGIN}"
        )
    return module


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what pymm prints, from Python and from C."""
    with _guard:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        kept = [os.dup(descriptor) for descriptor in (1, 2)]
        silent = os.open(os.devnull, os.O_WRONLY)
        try:
            for descriptor in (1, 2):
                os.dup2(silent, descriptor)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                yield
        finally:
            for descriptor, original in zip((1, 2), kept, strict=True):
                os.dup2(original, descriptor)
                os.close(original)
            os.close(silent)
