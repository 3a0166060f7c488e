"""Copies of int8 tiers on a medium of their own: persistent memory, a RAM disk, another device than that of the exact matrix.

A copy is one file, named after the data it was made from. It is made once, whole or not at all, and used by whoever asks for it
again; what a dead process left of one is swept away. What it holds is compared with the store's checksums as the tier's own file
is: when a sweep first reads it.
"""

from __future__ import annotations

import os

from fastomp_nvm.durable_files import device_errors
from fastomp_nvm.errors import StoreError, StoreURLError
from storage_backends.files.durable import allocate, partial_file, publish_file

__all__ = ["open_folder", "provide_copy"]

_COPY_BYTES = 8 << 20


def open_folder(path: str) -> int:
    """Open the directory that copies are kept in."""
    with device_errors(f"open {path}"):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise StoreURLError(f"there is no directory {path} for the tier: make it first, or use tier=dram") from None


def provide_copy(directory: int, name: str, source: int, path: str) -> None:
    """Make the file ``name`` in an open directory, at ``path``, a copy of the open file ``source``, unless it is there already."""
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
        with partial_file(directory, name, 0o666) as (partial, descriptor):
            allocate(descriptor, length, f"the tier in {path}")
            position = 0
            while position < length:
                data = os.pread(source, min(_COPY_BYTES, length - position), position)
                if not data:
                    raise StoreError("the tier of the store was cut off while it was copied: build the store again")
                position += os.pwrite(descriptor, data, position)
            os.fsync(descriptor)
            publish_file(partial, name, directory)  # another process may have been quicker, with the same bytes
