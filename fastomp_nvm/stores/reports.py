"""What a build reports about the data it stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["BuildReport", "IngestReport", "first_names"]


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What became of the data.

    Attributes
    ----------
    url : str
        Where the store was built.
    n_obs, n_features, n_columns : int
        Its shape, after dropping.
    dtype : str
    fingerprint : str
    imputed : mapping of str to int
        Cells filled in, per feature that had any missing.
    dropped : tuple of str
        Features dropped for missing values.
    constant : tuple of str
        Columns with one value only; they can never be selected.
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
    """What became of a source.

    Attributes
    ----------
    n_obs, n_features, n_columns : int
        Shape of the store.
    bytes : int
        Size of its matrix.
    imputed : int
        Missing cells that were filled in.
    dropped : tuple of str
        Features dropped for missing values.
    constant : tuple of str
        Columns with one value only.
    targets : tuple of str
        Targets kept with the store, the default one first.
    notes : tuple of str
        What was assumed about the source.
    fingerprint : str
        Of the matrix.
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
        """Lines for people: the shape, then whatever is worth knowing."""
        spread = f" in {self.n_columns} columns" if self.n_columns != self.n_features else ""
        lines = [f"{self.n_obs} observations of {self.n_features} features{spread}, {self.bytes / 1e6:.1f} MB"]
        lines.append(f"targets: {', '.join(self.targets)}" if self.targets else "no target: name one when selecting")
        if self.imputed:
            lines.append(f"{self.imputed} missing cells filled in")
        if self.dropped:
            lines.append(f"{len(self.dropped)} features with missing cells dropped: {first_names(self.dropped)}")
        if self.constant:
            lines.append(f"{len(self.constant)} constant columns, never selected: {first_names(self.constant)}")
        return (*lines, *self.notes)


def first_names(names: Sequence[str]) -> str:
    """Return the first few names, for a message."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
