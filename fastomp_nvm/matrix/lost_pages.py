"""Mapped files that are truncated or fail while in use: an error of the job that reads them, not the end of the process.

A file medium registers its mappings (``watch``, ``unwatch``). Code that computed something from an array calls ``check`` before the
result is used: it raises when the array lies in a mapping that is now longer than its file, or one with a page that could not be
read (zeros were read instead). Without the compiled extension only the length is checked, and an unreadable page ends the process
with SIGBUS.
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

#: Address -> length and mapping. Mappings change on all threads, and garbage collection can end one at any allocation: the
#: dictionary is only iterated as a ``copy``, which is atomic, and an entry gives the range without its mapping.
_watched: dict[int, tuple[int, weakref.ref[mmap.mmap]]] = {}


def watch(mapping: mmap.mmap, address: int) -> None:
    """Register a mapping of a whole file, which begins at ``address``."""
    _watched[address] = len(mapping), weakref.ref(mapping)
    if native is not None:
        native.watch(address, len(mapping))


def unwatch(address: int) -> None:
    """Remove the mapping at ``address``; called once, before it is unmapped and its addresses are used again."""
    _watched.pop(address, None)
    if native is not None:
        native.unwatch(address)


def check_range(address: int, length: int, what: str) -> None:
    """Raise ``MediumError`` when the mapping around these addresses lost a page; ``what`` begins the sentence."""
    for start, (mapped, reference) in _watched.copy().items():
        if start < address + length and address < start + mapped:
            # The last page of a truncated file reads as zeros without a signal: only its length shows it.
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
    """Return the current length of the file behind a mapping; None when another thread has closed the mapping."""
    try:
        return None if mapping is None else mapping.size()
    except ValueError:
        return None
