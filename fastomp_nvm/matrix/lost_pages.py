"""Checks that mapped files are still readable: a truncated file or a failed device is an error of the job that reads it.

File media register their mappings (``watch``, ``unwatch``). Code that computed something from an array calls ``check`` before it
uses the result: it raises when the file of the array is shorter than its mapping, or when a page could not be read.

By default an unreadable page raises SIGBUS and ends the process. A server calls ``install_guard`` before it opens stores: such a
page then reads as zeros and is reported by ``check``, so that one bad file does not end the jobs of others.
"""

from __future__ import annotations

import mmap
import weakref

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import MediumError

__all__ = ["check", "check_range", "install_guard", "unwatch", "watch"]

#: Address -> length and mapping. Threads add and remove entries, and garbage collection may remove one at any allocation, so the
#: dictionary is only iterated as a ``copy``, which is atomic.
_watched: dict[int, tuple[int, weakref.ref[mmap.mmap]]] = {}


def install_guard() -> None:
    """Handle SIGBUS in watched mappings for the rest of the process; no effect without the compiled extension."""
    if native.extension:
        native.extension.install_guard()


def watch(mapping: mmap.mmap, address: int) -> None:
    """Register a mapping of a whole file, which starts at ``address``."""
    _watched[address] = len(mapping), weakref.ref(mapping)
    if native.extension:
        native.extension.guard(address, len(mapping))


def unwatch(address: int) -> None:
    """Remove the mapping at ``address``; to be called once, before it is unmapped, because the address may be used again."""
    _watched.pop(address, None)
    if native.extension:
        native.extension.unguard(address)


def check_range(address: int, length: int, what: str) -> None:
    """Raise ``MediumError`` when a mapping that overlaps these addresses lost a page; ``what`` is the subject of the message."""
    for start, (mapped, reference) in _watched.copy().items():
        if start < address + length and address < start + mapped:
            # The rest of the last page of a truncated file reads as zeros without SIGBUS: only the length shows it.
            found = _file_length(reference())
            if found is not None and found < mapped:
                raise MediumError(f"{what} lost its end: its file was truncated from {mapped} to {found} bytes while in use")
    if native.extension and native.extension.lost(address, length):
        raise MediumError(f"{what} could not be read: its device failed; check it and open the store again")


def check(array: AnyArray) -> None:
    """Raise ``MediumError`` when ``array`` lies in a mapping that lost a page."""
    if _watched:
        check_range(int(array.__array_interface__["data"][0]), array.nbytes, "the matrix of the store")


def _file_length(mapping: mmap.mmap | None) -> int | None:
    """Return the current length of the file of a mapping; None when another thread has closed the mapping."""
    try:
        return None if mapping is None else mapping.size()
    except ValueError:
        return None
