"""Counts of bytes and features read from the medium."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Traffic"]


@dataclass(slots=True)
class Traffic:
    """Reads from the medium.

    Attributes
    ----------
    sweeps : int
        Number of reads: full sweeps and gathers.
    features_visited : int
        Features read, repetitions included; divided by the number of features this is the count of full passes.
    bytes_read : int
        Bytes read, of the matrix and of its tier, repetitions included.
    bytes_read_tier : int
        Bytes read of the tier.
    """

    sweeps: int = 0
    features_visited: int = 0
    bytes_read: int = 0
    bytes_read_tier: int = 0

    def include(self, other: Traffic, times: int = 1) -> None:
        """Add the counts of ``other``, ``times`` as often; a negative number subtracts them."""
        self.sweeps += times * other.sweeps
        self.features_visited += times * other.features_visited
        self.bytes_read += times * other.bytes_read
        self.bytes_read_tier += times * other.bytes_read_tier
