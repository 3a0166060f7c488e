"""The ``mmap`` medium: a store on an ordinary file system, read through a shared mapping, made durable with msync."""

from __future__ import annotations

import mmap

from fastomp_nvm.stores import Durability, MediumTraits
from storage_backends.file_system import VOLATILE_FILE_SYSTEMS, file_system_type
from storage_backends.mapped_files import Access, flush_pages
from storage_backends.store_files import FileMedium

__all__ = ["MEDIUM", "msync_durability"]


def msync_durability(kind: str) -> Durability:
    """Return what msync protects against on a file system of this type; one we cannot tell is trusted with the process only."""
    return "process" if kind in VOLATILE_FILE_SYSTEMS or kind == "unknown" else "power"


def _choose_access(descriptor: int, path: str) -> Access:
    """Return the access for files at ``path``."""
    kind = file_system_type(path)
    durability = msync_durability(kind)
    detail = f"shared mapping on {kind}, " + ("msync + fdatasync" if durability == "power" else "nothing survives a loss of power")
    return Access(MediumTraits("mmap", durability, False, detail), mmap.MAP_SHARED, flush_pages)


MEDIUM = FileMedium(_choose_access)
