"""Reports of builds and ingests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["BuildReport", "IngestReport", "first_names"]


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Report of a build.

    Attributes
    ----------
    url : str
        Address of the store.
    n_obs, n_features, n_columns : int
        Shape of the store, without dropped features.
    dtype : str
    fingerprint : str
    imputed : mapping of str to int
        Number of imputed cells, per feature with missing cells.
    dropped : tuple of str
        Features dropped for missing values.
    constant : tuple of str
        Columns with a single value, which are never selected.
    """

    url: str
    n_obs: int
    n_features: int
    n_columns: int
    dtype: str
    fingerprint: str
    imputed: Mapping[str, int]
    dropped: tuple[str, ...]
    constant: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IngestReport:
    """Report of an ingest from a file.

    Attributes
    ----------
    n_obs, n_features, n_columns : int
        Shape of the store.
    bytes : int
        Size of the matrix.
    imputed : int
        Number of imputed cells.
    dropped : tuple of str
        Features dropped for missing values.
    constant : tuple of str
        Columns with a single value.
    targets : tuple of str
        Targets of the store, the default one first.
    notes : tuple of str
        Assumptions made about the source.
    fingerprint : str
        Fingerprint of the matrix.
    """

    n_obs: int
    n_features: int
    n_columns: int
    bytes: int
    imputed: int
    dropped: tuple[str, ...]
    constant: tuple[str, ...]
    targets: tuple[str, ...]
    notes: tuple[str, ...]
    fingerprint: str

    @property
    def summary(self) -> tuple[str, ...]:
        """Lines to print: the shape, the targets, and notable changes to the data."""
        spread = f" in {self.n_columns} columns" if self.n_columns != self.n_features else ""
        lines = [f"{self.n_obs} observations of {self.n_features} features{spread}, {self.bytes / 1e6:.1f} MB"]
        lines.append(f"targets: {', '.join(self.targets)}" if self.targets else "no target: name one in the selection")
        if self.imputed:
            lines.append(f"{self.imputed} missing cells imputed")
        if self.dropped:
            lines.append(f"{len(self.dropped)} features with missing cells dropped: {first_names(self.dropped)}")
        if self.constant:
            lines.append(f"{len(self.constant)} constant columns, never selected: {first_names(self.constant)}")
        return (*lines, *self.notes)


def first_names(names: Sequence[str]) -> str:
    """Return the first five names, for messages."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
