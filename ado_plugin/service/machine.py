"""What a server has left of its machine: descriptors and room on disk, and errors that come from a lack of them."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

__all__ = ["connection_room", "free_bytes", "free_descriptors", "is_shortage", "raise_descriptor_limit", "total_bytes"]

#: Descriptors that connections leave to jobs, uploads and records.
RESERVED_DESCRIPTORS = 128
#: Connections that there may be all the same.
_FEWEST_CONNECTIONS = 16

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)

#: Descriptors asked for; more would only make the memory of connections the next thing to run out.
_DESCRIPTORS = 65536


def is_shortage(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, is a lack of descriptors or of room on disk, which may pass."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            return True
        error = error.__cause__ or error.__context__
    return False


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as the system lets it, within reason: 1024 is the usual default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def free_descriptors() -> int:
    """Return how many more descriptors this process may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        return limit - len(os.listdir("/proc/self/fd"))
    except OSError:  # none to read the list with
        return 0


def connection_room(wanted: int) -> int:
    """Return how many connections a server can take of those wanted."""
    return max(min(wanted, free_descriptors() - RESERVED_DESCRIPTORS), _FEWEST_CONNECTIONS)


def free_bytes(path: Path) -> int:
    """Return the bytes that may still be written on the file system of a path."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def total_bytes(path: Path) -> int:
    """Return the size of the file system of a path."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize
