"""Copies of int8 tiers on another medium than the exact matrix: persistent memory, a RAM disk, a faster device.

A copy is one file, named after the fingerprint of its store. It is created atomically and reused by later runs; partial copies of
dead processes are removed. As with the tier's own file, the first sweep compares it with the store's checksums.
"""

from __future__ import annotations

import os

from fastomp_nvm.durable_files import device_errors
from fastomp_nvm.errors import StoreError, StoreURLError
from storage_backends.files.draft import new_file

__all__ = ["open_folder", "provide_copy"]

_COPY_BYTES = 8 << 20


def open_folder(path: str) -> int:
    """Return a descriptor of the directory that holds the copies."""
    with device_errors(f"open {path}"):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            raise StoreURLError(
                f"there is no directory {path} for the tier: create it, or keep the tier in memory (dram)"
            ) from None


def provide_copy(directory: int, name: str, source: int, path: str) -> None:
    """Copy the open file ``source`` to ``name`` in the open directory at ``path``, unless that file exists."""
    length = os.fstat(source).st_size
    with device_errors(f"copy the tier to {path}"):
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False).st_size
        except FileNotFoundError:
            found = None
        if found == length:
            return
        if found is not None:
            raise StoreError(f"{path}/{name} has {found} bytes and a copy of the tier {length}: remove it")
        with new_file(directory, name, length, f"the tier in {path}") as descriptor:
            position = 0
            while position < length:
                data = os.pread(source, min(_COPY_BYTES, length - position), position)
                if not data:
                    raise StoreError("the tier of the store was truncated while it was copied: build the store again")
                position += os.pwrite(descriptor, data, position)
