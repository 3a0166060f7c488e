"""The ``pmem`` medium: a store on persistent memory, or its emulation where there is none.

Real means: libpmem is installed and the kernel grants ``MAP_SYNC``, so that flushing processor caches makes a store durable.
Otherwise the same files are mapped and flushed as the ``mmap`` medium does, and the traits say so and why.
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
    """Return the access for files at ``path``, of which ``descriptor`` is one."""
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
    """Tell whether the kernel maps this file with ``MAP_SYNC``: only on a DAX file system."""
    try:
        mmap.mmap(descriptor, mmap.PAGESIZE, flags=libpmem.MAP_SYNC_FLAGS, prot=mmap.PROT_READ).close()
    except (OSError, ValueError):
        return False
    return True


MEDIUM = FileMedium(_choose_access, PROFILES)
