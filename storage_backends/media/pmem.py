"""The ``pmem`` medium: stores on persistent memory, or an emulation of it.

Persistent memory requires libpmem and a kernel that grants ``MAP_SYNC``: flushing CPU caches then makes writes durable. Otherwise
files are mapped and flushed with msync(2), and the traits name the reason.
"""

from __future__ import annotations

import mmap

from fastomp_nvm.matrix.pacing import PROFILES
from fastomp_nvm.stores.contract import MediumTraits
from storage_backends.files.durable import file_system_type
from storage_backends.files.mapped import Access, flush_pages
from storage_backends.files.store import FileMedium
from storage_backends.media import libpmem
from storage_backends.media.mmap import sync_durability

__all__ = ["MEDIUM"]


def _choose_access(descriptor: int, path: str) -> Access:
    """Return the access for files at ``path``; ``descriptor`` is one of them."""
    library = libpmem.load()
    kind = file_system_type(path)
    if library is None:
        reason = "libpmem not found"
    elif not _grants_map_sync(descriptor):
        reason = f"{kind} file system has no DAX"
    else:
        traits = MediumTraits("pmem", "power", False, f"MAP_SYNC mapping on {kind} (DAX), libpmem persist")
        return Access(traits, libpmem.MAP_SYNC_FLAGS, library.persist)
    traits = MediumTraits("pmem", sync_durability(kind), True, f"emulated by a shared mapping and msync: {reason}")
    return Access(traits, mmap.MAP_SHARED, flush_pages)


def _grants_map_sync(descriptor: int) -> bool:
    """Return whether the kernel maps this file with ``MAP_SYNC``, as it does on a DAX file system."""
    try:
        mmap.mmap(descriptor, mmap.PAGESIZE, flags=libpmem.MAP_SYNC_FLAGS, prot=mmap.PROT_READ).close()
    except (OSError, ValueError):
        return False
    return True


MEDIUM = FileMedium(_choose_access, PROFILES)
