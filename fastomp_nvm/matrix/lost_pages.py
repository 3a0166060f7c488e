"""Files that are cut off or fail while they are mapped: an error of the job that reads them, not the end of the process.

A file medium watches its mappings (``watch``, ``unwatch``). Whoever computed something from an array calls ``check`` before the
result is used: it raises when the array lies in a mapping that is longer than its file by now, or of which a page could not be
read, in which case zeros were read in its place. Without the compiled extension the length alone is checked, and an unreadable
page ends the process as it does everywhere else.
"""

from __future__ import annotations

import importlib
import mmap
import weakref
from types import ModuleType

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import MediumError

try:
    native: ModuleType | None = importlib.import_module("fastomp_nvm._lost_pages")
except ImportError:  # installed on a machine without a compiler
    native = None

__all__ = ["check", "check_range", "unwatch", "watch"]

#: Address -> length and mapping. Mappings come and go on all threads, and a collection can end one at any allocation: it is read
#: through ``copy`` alone, which is one step, and an entry says where it lies without its mapping.
_watched: dict[int, tuple[int, weakref.ref[mmap.mmap]]] = {}


def watch(mapping: mmap.mmap, address: int) -> None:
    """Watch a mapping of a whole file, which begins at ``address``."""
    _watched[address] = len(mapping), weakref.ref(mapping)
    if native is not None:
        native.watch(address, len(mapping))


def unwatch(address: int) -> None:
    """Forget the mapping at ``address``; to be called once, before it is unmapped: afterwards the address may be another's."""
    _watched.pop(address, None)
    if native is not None:
        native.unwatch(address)


def check_range(address: int, length: int, what: str) -> None:
    """Raise ``MediumError`` when the mapping around these addresses lost a page; ``what`` begins the sentence."""
    for start, (mapped, reference) in _watched.copy().items():
        if start < address + length and address < start + mapped:
            # The last page of a shortened file reads as zeros without any signal: only its length tells.
            found = _file_length(reference())
            if found is not None and found < mapped:
                raise MediumError(f"{what} lost its end: its file was cut off from {mapped} to {found} bytes while in use")
    if native is not None and native.lost(address, length):
        raise MediumError(f"{what} could not be read any more: its device failed; check it and open the store again")


def check(array: AnyArray) -> None:
    """Raise ``MediumError`` when ``array`` lies in a mapping that lost a page."""
    if _watched:
        check_range(int(array.__array_interface__["data"][0]), array.nbytes, "the matrix of the store")


def _file_length(mapping: mmap.mmap | None) -> int | None:
    """Return how long the file behind a mapping is now; None when another thread has closed the mapping meanwhile."""
    try:
        return None if mapping is None else mapping.size()
    except ValueError:
        return None
