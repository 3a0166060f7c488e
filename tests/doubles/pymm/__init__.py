"""A double of upstream's ``pymm``: shelves as mapped files, with the real one's habits.

It prints, also when a shelf is dropped, and warns when it is imported; a full shelf puts arrays into ordinary memory (address 0x0),
and the process then dies at its end and the shelf does not open again; a directory stays mapped and locked until the process ends,
whatever is dropped; one that another process has is SIGABRT; two shelves of one name are SIGSEGV, and at one address overwrite each
other; assigning a shelved array does nothing; a missing name is None; an empty array or a name ending in -tx keeps the shelf from
opening again; a wrong backend is SIGSEGV; a fork does not inherit the mapping, and an array destroyed there is SIGSEGV.
"""

# ruff: noqa: N801
from __future__ import annotations

import atexit
import fcntl
import json
import mmap
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["ndarray", "shelf", "shelved_ndarray"]

warnings.warn("`np.float` is a deprecated alias", DeprecationWarning, stacklevel=2)

_opened: dict[Path, _Memory] = {}  # never given back
_OVERHEAD = 2.05  # of a shelf's size, per byte of array: 31 arrays of a megabyte fit 64


class _Memory:
    """The mapping of one shelf; lives as long as the process."""

    def __init__(self, path: Path, name: str, size_mb: int, load_addr: str) -> None:
        if not path.is_dir():
            raise RuntimeError("shelf initialization failed: no such directory")
        if any(name == other.map.stem for other in _opened.values()):
            os.kill(os.getpid(), signal.SIGSEGV)
        self.map = path / f"{name}.map"
        fresh = not self.map.exists()
        file = os.open(path / f"{name}.data", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.abort()
        size_mb = -(-size_mb // 32) * 32
        if fresh:
            os.ftruncate(file, size_mb << 20)
            self.map.write_text(json.dumps({"address": load_addr, "size": size_mb << 20, "next": 8, "items": {}}))
        self.known = json.loads(self.map.read_text())
        if self.known.get("broken"):
            raise RuntimeError("shelf initialization failed: recovery")
        self.bytes = mmap.mmap(file, self.known["size"])
        self.bytes.madvise(mmap.MADV_DONTFORK)
        for other in _opened.values():
            if other.known["address"] == self.known["address"]:
                other.bytes[: len(self.bytes)] = self.bytes[: len(other.bytes)]  # MAP_FIXED: what was there is gone
        _opened[path] = self

    def save(self) -> None:
        partial = self.map.with_suffix(".partial")
        partial.write_text(json.dumps(self.known))
        os.replace(partial, self.map)


class ndarray:
    """What to allocate."""

    def __init__(self, shape: Any, dtype: Any = float, order: str = "C", zero: bool = False) -> None:
        self.shape = shape if isinstance(shape, tuple) else (shape,)
        self.dtype, self.order, self.zero = np.dtype(dtype), order, zero


class shelved_ndarray(np.ndarray):
    """An array on a shelf."""

    _memory: Any = None
    _address = "0x0"
    _process = 0

    def __del__(self) -> None:
        if self._process and self._process != os.getpid():
            os.kill(os.getpid(), signal.SIGSEGV)  # the cache flush of memory that is not there

    @property
    def addr(self) -> tuple[str, int]:
        return self._address, self.nbytes

    def asndarray(self) -> np.ndarray:
        return np.asarray(self)

    def persist(self) -> None:
        print("persist")

    def persist_offset(self, offset: int, length: int) -> None:
        if offset < 0 or offset + length > self.size:
            os.kill(os.getpid(), signal.SIGSEGV)


class shelf:
    """A shelf."""

    def __init__(
        self,
        name: str,
        pmem_path: str = "/mnt/pmem0",
        size_mb: int = 32,
        load_addr: str = "0x900000000",
        backend: str | None = None,
        mm_plugin: str | None = None,
        force_new: bool = False,
    ) -> None:
        if backend not in (None, "hstore", "hstore-cc"):
            os.kill(os.getpid(), signal.SIGSEGV)
        print(f"[pymm double] opening {name}", flush=True)
        os.write(2, b"[pymm double] noise from below\n")
        if not isinstance(load_addr, str):
            raise RuntimeError("load_addr is a str")
        self.__dict__["_memory"] = _opened.get(Path(pmem_path)) or _Memory(Path(pmem_path), name, size_mb, load_addr)
        for item, (offset, shape, dtype) in self._memory.known["items"].items():
            self.__dict__[item] = self._make(tuple(shape), np.dtype(dtype), offset)
            print(f"Value '{item}' has been made available on shelf '{name}'!")

    def __del__(self) -> None:
        print("WARNING: deleting shelf with outstanding reference", flush=True)

    @property
    def items(self) -> list[str]:
        return [name for name in self.__dict__ if name != "_memory"]

    get_item_names = items

    def __getattr__(self, name: str) -> Any:
        return None

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, shelved_ndarray):
            return  # silently ignored
        if not isinstance(value, ndarray):
            if not value.flags.c_contiguous:
                raise RuntimeError("only single-segment ndarray supported")
            wanted = ndarray(value.shape, value.dtype)
        else:
            wanted = value
            if name in self.__dict__:
                raise RuntimeError("cannot implicitly replace shelved variable; use shelf.erase")
        known = self._memory.known
        length = int(np.prod(wanted.shape)) * wanted.dtype.itemsize
        if length == 0 or name.endswith(("-tx", "-value")):
            known["broken"] = True
        offset = known["next"]
        used = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for _, shape, dtype in known["items"].values())
        if (used + length) * _OVERHEAD > known["size"] or offset + length > known["size"]:
            array = np.zeros(wanted.shape, wanted.dtype).view(shelved_ndarray)  # in ordinary memory, without a word
            known["broken"] = True
            self._memory.save()
            atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
        else:
            known["next"] = offset + -(-length // 8) * 8 + 8  # 8-byte alignment is all there is
            known["items"][name] = [offset, list(wanted.shape), wanted.dtype.str]
            self._memory.save()
            array = self._make(wanted.shape, wanted.dtype, offset)
            array[...] = 0 if not isinstance(value, np.ndarray) and wanted.zero else 7
        if isinstance(value, np.ndarray):
            array[...] = value
        self.__dict__[name] = array
        print(f"made instance '{name}' on shelf")

    def erase(self, name: str) -> None:
        if sys.getrefcount(self.__dict__[name]) != 2:
            raise RuntimeError("erase failed due to outstanding references")
        del self.__dict__[name]
        del self._memory.known["items"][name]
        self._memory.save()

    def _make(self, shape: tuple[int, ...], dtype: np.dtype, offset: int) -> shelved_ndarray:
        array = np.ndarray.__new__(shelved_ndarray, shape, dtype, buffer=self._memory.bytes, offset=offset)
        array._memory = self._memory
        array._process = os.getpid()
        array._address = hex(int(self._memory.known["address"], 16) + offset)
        return array
