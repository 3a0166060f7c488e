"""Readers made of readers: several files one below the other, and columns of numbers read as categories."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.encoding import Kind
from storage_backends.readers.base import MAX_CATEGORIES, Categories, Chunk, Reader, Scan, as_text
from storage_backends.readers.cells import ColumnRule
from storage_backends.readers.problems import Problems

__all__ = ["CategoryReader", "StackedReader"]


class StackedReader(Reader):
    """Files with the same columns, one below the other.

    Parameters
    ----------
    parts : sequence of Reader
        Two or more.
    """

    def __init__(self, parts: Sequence[Reader]) -> None:
        first = parts[0]
        super().__init__(first.path, first.options)
        if first.options.rows == "features":
            raise InputError("several files are joined row by row: leave out --rows features or name one file")
        for part in parts[1:]:
            _check_header(first, part)
        self._parts = parts
        self.names, self.vectors, self.default_target = first.names, first.vectors, first.default_target
        self.typed, self.passes = all(part.typed for part in parts), max(part.passes for part in parts)
        self.notes = list(dict.fromkeys(note for part in parts for note in part.notes))
        self.notes.append(f"{len(parts)} files were joined row by row, {first.label} first")
        self._offsets: list[int] = []

    def assign(self, rules: Mapping[int, ColumnRule]) -> None:
        """Assign the rules in every file; a column that is text in one file is text in all."""
        for part in self._parts:
            part.assign(rules)
        for column in range(len(self.names)) if not self.typed else ():
            kinds = {part.kind_of(column) for part in self._parts}
            if "category" in kinds and len(kinds) > 1:
                for part in self._parts:
                    part.assign({column: ColumnRule("category")})

    def kind_of(self, column: int) -> Kind:
        """Return the kind, which is the same in every file."""
        kinds = [part.kind_of(column) for part in self._parts]
        for part, kind in zip(self._parts, kinds, strict=True):
            if kind != kinds[0] and self.typed:
                raise DataError(
                    f"column {self.names[column]!r} is a {kinds[0]} in {self.label} and a {kind} in {part.label}: "
                    "convert one of them"
                )
        return "category" if "category" in kinds else kinds[0]

    def scan(self, columns: IndexArray) -> Scan:
        """Add up the observations and join the labels of all files."""
        for column in columns.tolist():
            self.kind_of(column)
        scans = [part.scan(columns) for part in self._parts]
        self._offsets = np.concatenate(([0], np.cumsum([scan.n_obs for scan in scans]))).tolist()
        positions = {position for scan in scans for position in scan.categories}
        joined = {
            position: _joined([scan.categories[position] for scan in scans if position in scan.categories])
            for position in sorted(positions)
        }
        return Scan(self._offsets[-1], joined)

    def chunks(self, columns: IndexArray, scan: Scan) -> Generator[Chunk, None, None]:
        """Yield the chunks of one file after the other."""
        for part, first, last in zip(self._parts, self._offsets, self._offsets[1:], strict=False):
            for chunk in part.chunks(columns, Scan(last - first, scan.categories)):
                yield replace(chunk, first_obs=first + chunk.first_obs)

    def vector(self, name: str) -> AnyArray:
        """Return the arrays of all files, joined."""
        return np.concatenate([part.vector(name) for part in self._parts])

    def identifiers(self, column: int) -> list[str]:
        """Return the cells of a column as text."""
        return [cell for part in self._parts for cell in part.identifiers(column)]

    def collect(self, problems: Problems) -> None:
        """Collect the problems of all files."""
        for part in self._parts:
            part.collect(problems)

    def explain(self, error: DataError, columns: IndexArray, complete: Collection[int]) -> DataError:
        """Return the error of the first file with problems."""
        for part in self._parts:
            found = part.explain(error, columns, complete)
            if found is not error:
                return found
        return error

    def close(self) -> None:
        """Close all files."""
        for part in self._parts:
            part.close()


class CategoryReader(Reader):
    """A reader some of whose columns of numbers are read as categories.

    Parameters
    ----------
    inner : Reader
    rules : mapping of int to ColumnRule
        Categories among the columns of numbers.
    """

    def __init__(self, inner: Reader, rules: Mapping[int, ColumnRule]) -> None:
        super().__init__(inner.path, inner.options)
        self._inner, self.rules = inner, dict(rules)
        self.label, self.names, self.vectors, self.default_target = inner.label, inner.names, inner.vectors, inner.default_target
        self.names_from_id, self.passes, self.typed, self.notes = inner.names_from_id, inner.passes, inner.typed, inner.notes

    def kind_of(self, column: int) -> Kind:
        """Return the kind of a column."""
        return "category" if column in self.rules else self._inner.kind_of(column)

    def scan(self, columns: IndexArray) -> Scan:
        """Count the values of the columns that are categories."""
        inner = self._inner.scan(columns)
        positions = [position for position, column in enumerate(columns.tolist()) if column in self.rules]
        counts: dict[int, dict[float, int]] = {position: {} for position in positions}
        chosen = columns[positions]
        for chunk in self._inner.chunks(chosen, Scan(inner.n_obs)) if positions else ():
            for offset, column in enumerate(chunk.values.T):
                known = counts[positions[chunk.first_column + offset]]
                if len(known) <= MAX_CATEGORIES + 1:
                    for value, count in zip(*np.unique(column, return_counts=True), strict=True):
                        key = float(value) if value == value else None
                        known[key] = known.get(key, 0) + int(count)  # type: ignore[index,arg-type]
        found = dict(inner.categories)
        for position, known in counts.items():
            missing = known.pop(None, 0)  # type: ignore[call-overload]
            rule = self.rules[int(columns[position])]
            by_label = {as_text(value): known[value] for value in sorted(known)}
            labels = tuple(by_label) if rule.labels is None else rule.labels
            overflow = len(labels) > MAX_CATEGORIES
            found[position] = Categories(labels, missing > 0, tuple(by_label.get(label, 0) for label in labels), missing, overflow)
        return Scan(inner.n_obs, found)

    def chunks(self, columns: IndexArray, scan: Scan) -> Generator[Chunk, None, None]:
        """Yield the chunks of the inner reader, with codes in place of the values of the categories."""
        coded = {position: scan.categories[position] for position, column in enumerate(columns.tolist()) if column in self.rules}
        plain = {position: categories for position, categories in scan.categories.items() if position not in coded}
        for chunk in self._inner.chunks(columns, Scan(scan.n_obs, plain)):
            values = np.array(chunk.values, dtype=np.float64)
            for offset in range(values.shape[1]):
                position = chunk.first_column + offset
                if position in coded:
                    values[:, offset] = self._codes(values[:, offset], coded[position], int(columns[position]))
            yield replace(chunk, values=values)

    def _codes(self, values: Float64Array, categories: Categories, column: int) -> Float64Array:
        """Return the codes of values, NaN where they are missing."""
        codes = categories.codes()
        distinct, inverse = np.unique(values, return_inverse=True)
        found = [np.nan if value != value else codes.get(as_text(value)) for value in distinct.tolist()]
        if None in found:
            value = as_text(float(distinct[found.index(None)]))
            raise DataError(
                f"{self.label}: column {self.names[column]!r} holds {value}, expected a label of the schema: correct it"
            )
        return np.array(found, dtype=np.float64)[inverse.reshape(-1)]

    def vector(self, name: str) -> AnyArray:
        """Return an array of the inner reader."""
        return self._inner.vector(name)

    def identifiers(self, column: int) -> list[str]:
        """Return the cells of a column as text."""
        return self._inner.identifiers(column)

    def collect(self, problems: Problems) -> None:
        """Collect the problems of the inner reader."""
        self._inner.collect(problems)

    def explain(self, error: DataError, columns: IndexArray, complete: Collection[int]) -> DataError:
        """Return the explanation of the inner reader."""
        return self._inner.explain(error, columns, complete)

    def close(self) -> None:
        """Close the inner reader."""
        self._inner.close()


def _check_header(first: Reader, other: Reader) -> None:
    """Raise ``DataError`` that names the first difference between the columns of two files."""
    if first.names == other.names:
        return
    for position, (wanted, found) in enumerate(zip_longest(first.names, other.names), start=1):
        if wanted != found:
            had = "no such column" if found is None else repr(found)
            expected = "has no such column" if wanted is None else f"has {wanted!r}"
            raise DataError(
                f"{other.label} has {had} as column {position} where {first.label} {expected}: "
                "files that are joined need the same columns in the same order"
            )


def _joined(parts: Sequence[Categories]) -> Categories:
    """Return the categories of all files together."""
    counts: dict[str, int] = {}
    for part in parts:
        for label, count in zip(part.labels, part.counts, strict=True):
            counts[label] = counts.get(label, 0) + count
    explicit = all(part.labels == parts[0].labels for part in parts)
    labels = parts[0].labels if explicit else tuple(sorted(counts))
    missing = sum(part.missing for part in parts)
    overflow = any(part.overflow for part in parts) or len(labels) > MAX_CATEGORIES
    return Categories(labels, missing > 0, tuple(counts[label] for label in labels), missing, overflow)
