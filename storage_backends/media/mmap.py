"""The ``mmap`` medium: stores on an ordinary file system, read through shared mappings; regions are flushed with fdatasync(2)."""

from __future__ import annotations

import mmap

from fastomp_nvm.stores.contract import Durability, MediumTraits
from storage_backends.files.durable import VOLATILE_FILE_SYSTEMS, file_system_type
from storage_backends.files.mapped import Access
from storage_backends.files.store import FileMedium

__all__ = ["MEDIUM", "sync_durability"]


def sync_durability(kind: str) -> Durability:
    """Return the durability of msync and fdatasync on a file system of type ``kind``."""
    return "process" if kind in VOLATILE_FILE_SYSTEMS or kind == "unknown" else "power"


def _choose_access(descriptor: int, path: str) -> Access:
    """Return the access for files at ``path``."""
    kind = file_system_type(path)
    durability = sync_durability(kind)
    kept = "regions by pwrite + fdatasync" if durability == "power" else "nothing survives a loss of power"
    return Access(MediumTraits("mmap", durability, False, f"shared mapping on {kind}, {kept}"), mmap.MAP_SHARED)


MEDIUM = FileMedium(_choose_access)
