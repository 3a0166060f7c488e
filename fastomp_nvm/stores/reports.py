"""Reports of builds and ingests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["BuildReport", "ColumnReport", "IngestReport", "first_names"]

# Columns that a summary names one by one.
_NAMED = 5


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
class ColumnReport:
    """What was understood of a column.

    Attributes
    ----------
    name : str
    type : {"number", "category", "date", "identifier", "target", "dropped", "constant"}
    missing : int
        Missing cells; -1 where they were not counted.
    categories : int, optional
        Number of labels of a category, or of classes of a target.
    examples : tuple of str
        A few values.
    assumed : str
        How the column becomes columns of the store.
    advice : str
        What the column looks like, and the option that reads it in that way.
    problem : str
        Why the column is refused; empty if it is not.
    """

    name: str
    type: str
    missing: int = 0
    categories: int | None = None
    examples: tuple[str, ...] = ()
    assumed: str = ""
    advice: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class IngestReport:
    """Report of an ingest from a file, or of a dry run.

    Attributes
    ----------
    n_obs, n_features, n_columns : int
        Shape of the store; 0 columns after a dry run.
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
    types : mapping of str to int
        Number of columns of the source, by type.
    classes : tuple of int
        Number of classes of each target; 0 for numbers.
    columns : tuple of ColumnReport
        Every column of the source, in its order; of a table with more than 5000 columns a dry run lists all, an ingest those that
        are not plain numbers and the first others of note.
    problems : tuple of str
        Why an ingest would be refused; only after a dry run.
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
    types: Mapping[str, int]
    classes: tuple[int, ...] = ()
    columns: tuple[ColumnReport, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def summary(self) -> tuple[str, ...]:
        """Lines to print: the shape, the types, the targets, changes to the data, and columns that look like something else."""
        spread = f" in {_several(self.n_columns, 'column')}" if self.n_columns != self.n_features else ""
        shape = f"{_several(self.n_obs, 'observation')} of {_several(self.n_features, 'feature')}{spread}"
        lines = [f"{shape}, {self.bytes / 1e6:.1f} MB"]
        if self.types:
            lines.append(f"columns: {', '.join(_counted(count, kind) for kind, count in self.types.items())}")
        lines.append(f"targets: {', '.join(self.targets)}" if self.targets else "no target: name one in the selection (--target)")
        if self.imputed:
            lines.append(f"{_several(self.imputed, 'missing cell')} imputed")
        if self.dropped:
            lines.append(f"{_several(len(self.dropped), 'feature')} with missing cells dropped: {first_names(self.dropped)}")
        if self.constant:
            lines.append(f"{_several(len(self.constant), 'constant column')}, never selected: {first_names(self.constant)}")
        return (*lines, *self.notes, *self.warnings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Columns that look like something else, with the option that reads them in that way: a few of each kind."""
        named: Counter[str] = Counter()
        lines = []
        for column in self.columns:
            if column.advice:
                kind = column.advice.partition(":")[0]
                named[kind] += 1
                if named[kind] <= _NAMED:
                    lines.append(f"column {column.name!r} {column.advice}")
        more = sum(count - _NAMED for count in named.values() if count > _NAMED)
        return (*lines, *((f"and {more:,} more column{'s' * (more > 1)} like these",) if more else ()))


def _several(count: int, noun: str) -> str:
    """Return a number of things, in words."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _counted(count: int, kind: str) -> str:
    """Return a number of columns of a type, in words."""
    plural = {"category": "categories"}.get(kind, kind if kind in ("dropped", "constant") else f"{kind}s")
    return f"{count:,} {kind if count == 1 else plural}"


def first_names(names: Sequence[str]) -> str:
    """Return the first five names, for messages."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
