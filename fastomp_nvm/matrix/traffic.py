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

    def add(self, features: int, size: int, *, tier: bool = False) -> None:
        """Count one read of ``features`` features and ``size`` bytes."""
        self.sweeps += 1
        self.features_visited += features
        self.bytes_read += size
        self.bytes_read_tier += size if tier else 0

    def include(self, other: Traffic) -> None:
        """Add the counts of ``other``."""
        self.sweeps += other.sweeps
        self.features_visited += other.features_visited
        self.bytes_read += other.bytes_read
        self.bytes_read_tier += other.bytes_read_tier

    def without(self, other: Traffic) -> Traffic:
        """Return the counts minus those of ``other``."""
        return Traffic(
            self.sweeps - other.sweeps,
            self.features_visited - other.features_visited,
            self.bytes_read - other.bytes_read,
            self.bytes_read_tier - other.bytes_read_tier,
        )
