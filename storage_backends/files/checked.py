"""Which columns of a store's files were compared with their checksums, kept from one process to the next.

The record is ``checked.json`` in the directory of the store or, where that may not be written, a file in ``FASTOMP_HOME``. It holds
for a file as long as device, inode, size and both times of change are the same; without a record that holds, columns are compared
again. A record is an economy: where it cannot be written or read, nothing else happens.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastomp_nvm.arrays import BoolArray
from fastomp_nvm.durable_files import write_atomically
from fastomp_nvm.errors import StoreError
from fastomp_nvm.home import home
from fastomp_nvm.runs.sealed import Json, seal, unseal

__all__ = ["Identity", "identity_of", "recall", "record"]

#: Name of the record in the directory of a store.
RECORD = "checked.json"

_KIND = "fastomp-checked"

#: Most bytes of a record that are read.
_LARGEST = 1 << 26

#: A file changed less than this long ago may change again at the same time, as far as its file system can tell.
_COARSEST_SECONDS = 2

#: Device, inode, size, and the times at which content and attributes were changed, in nanoseconds.
Identity = tuple[int, ...]


def identity_of(file: int) -> Identity:
    """Return the identity of an open file: that of no other call where the file was changed just now."""
    found, now = os.fstat(file), time.time_ns()
    new = now - max(found.st_mtime_ns, found.st_ctime_ns) < _COARSEST_SECONDS * 10**9
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, *((now,) if new else ())


def recall(directory: int, path: str, name: str, identity: Identity, count: int) -> BoolArray | None:
    """Return which of ``count`` columns of a file were compared; None without a record.

    Parameters
    ----------
    directory, path
        Open directory of the store, and its path.
    name : str
        Of the file.
    identity : Identity
    count : int
    """
    for place in _places(directory, path):
        with contextlib.suppress(OSError, StoreError, KeyError, TypeError, ValueError, zlib.error):
            with open(place, "rb") as file:
                content: Any = unseal(_KIND, file.read(_LARGEST))
            entry = content["files"][name]
            if tuple(entry["identity"]) == identity:
                packed = zlib.decompressobj().decompress(base64.b64decode(entry["columns"]), -(-count // 8))
                found = np.unpackbits(np.frombuffer(packed, np.uint8))[:count].astype(np.bool_)
                return found if len(found) == count else None
    return None


def record(directory: int, path: str, compared: Mapping[str, tuple[Identity, BoolArray]]) -> None:
    """Record which columns of files were compared, by name of the file; ``directory`` and ``path`` as for ``recall``."""
    files: dict[str, Json] = {}
    for name, (identity, columns) in compared.items():
        packed = zlib.compress(np.packbits(columns).tobytes())
        files[name] = {"identity": [*identity], "columns": base64.b64encode(packed).decode("ascii")}
    with contextlib.suppress(OSError, RuntimeError):  # no space, or no home
        *_, place = _places(directory, path)
        write_atomically(place, seal(_KIND, {"files": files}), durable=False, mode=0o644)


def _places(directory: int, path: str) -> Iterator[Path]:
    """Yield the places of records: with the store, and with the user where the user may not write to the store."""
    opened = f"/proc/self/fd/{directory}"  # the path may belong to another store by now
    yield Path(opened, RECORD)
    if not os.access(opened, os.W_OK, effective_ids=True):
        folder = home() / "checked"
        folder.mkdir(mode=0o700, exist_ok=True)
        yield folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"
