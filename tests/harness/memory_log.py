"""A log of records in memory, for tests."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MemoryLog"]


class MemoryLog:
    """What a journal needs of :class:`fastomp_nvm.runs.log.StateLog`, in memory.

    Parameters
    ----------
    records : sequence of bytes
        Copied.
    """

    def __init__(self, records: Sequence[bytes] = ()) -> None:
        self.records = list(records)

    def write(self, *records: bytes) -> None:
        """Add records."""
        self.records += records

    def start(self) -> None:
        """Do nothing: there is no device."""

    def persist(self) -> None:
        """Do nothing: there is no device."""
