"""What families read their descriptions against: feature names, groups, CSV side files, functions.

Every error names the file and the line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints.written.document import Item, near
from fastomp_nvm.constraints.written.function import NamedFunction
from fastomp_nvm.constraints.written.naming import FeatureNames
from fastomp_nvm.errors import ConstraintError

__all__ = ["Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a description is read against.

    Attributes
    ----------
    names : FeatureNames
    base_path : Path or None
        Folder of side files; None when there are none to be opened.
    allow_code : bool
        Whether functions may be named.
    usable : (n_features,) bool or None
        Features that can be selected at all.
    """

    names: FeatureNames
    base_path: Path | None
    allow_code: bool
    usable: BoolArray | None

    def groups(self, item: Item) -> tuple[list[str], list[IndexArray]]:
        """Read groups of features: a mapping of lists of names and patterns, or a file with columns ``feature,group``.

        Returns
        -------
        names : list of str
        groups : list of (m,) int64
            Sorted, without repetition.
        """
        if item.is_text:
            rows: dict[str, list[int]] = {}
            for place, (feature, group) in self._rows(item, ("feature", "group")):
                rows.setdefault(group, []).append(self._feature(feature, place))
            return list(rows), [np.unique(np.array(members, dtype=np.int64)) for members in rows.values()]
        entries = {name: value.elements() for name, value in item.mapping().items()}
        resolved = iter(self._resolve([element for elements in entries.values() for element in elements]))
        nothing = np.empty(0, dtype=np.int64)
        return list(entries), [
            np.unique(np.concatenate([nothing, *(next(resolved) for _ in elements)])) for elements in entries.values()
        ]

    def disjoint_groups(self, item: Item) -> tuple[list[str], IndexArray]:
        """Read groups that do not overlap.

        Returns
        -------
        names : list of str
        labels : (n_features,) int64
            The group of each feature, -1 for none.
        """
        names, groups = self.groups(item)
        labels = np.full(len(self.names), -1, dtype=np.int64)
        for group, features in enumerate(groups):
            if (taken := features[labels[features] >= 0]).size:
                feature, other = self.names.names[taken[0]], names[labels[taken[0]]]
                raise item.error(
                    f"feature {feature!r} is in group {other!r} and in group {names[group]!r}: expected one group each"
                )
            labels[features] = group
        return names, labels

    def per_group(self, item: Item, groups: Sequence[str], *, default: int | None = None) -> list[int]:
        """Read a whole number per group: one for all of them, or a mapping; ``default`` is for groups it leaves out."""
        if item.is_text:
            return [_not_negative(item)] * len(groups)
        entries, known = item.mapping(), set(groups)
        for name, value in entries.items():
            if name not in known:
                raise value.error(f"there is no group {name!r}{near(name, groups)}: expected one of the groups")
        if default is None and (missing := [name for name in groups if name not in entries]):
            raise item.error(f"group {missing[0]!r} has no number here: expected one for every group")
        return [_not_negative(entries[name]) if name in entries else int(default or 0) for name in groups]

    def numbers(self, item: Item, *, column: str, default: float | None) -> Float64Array:
        """Read a number per feature: a mapping of names or patterns, or a file with columns ``feature`` and ``column``."""
        values = np.full(len(self.names), np.nan)
        if item.is_text:
            for place, (name, text) in self._rows(item, ("feature", column)):
                feature = self._feature(name, place)
                if not np.isnan(values[feature]):
                    raise ConstraintError(f"{place}: feature {name!r} stands twice: leave one out")
                values[feature] = _csv_number(text, place)
        else:
            entries = item.mapping()
            for features, (text, value) in zip(self._resolve(list(entries.items())), entries.items(), strict=True):
                if not np.isnan(values[features]).all():
                    raise value.error(f"{text!r} names a feature that has a number already: expected one each, see default")
                number = value.number()
                if np.isnan(number):
                    raise value.error("found a value that is not a number, expected one")
                values[features] = number
        return self._completed(values, item, default)

    def edges(self, item: Item) -> IndexArray:
        """Read an edge per feature: a mapping to pairs of vertices, or a file with columns ``feature,u,v``; (-1, -1) for none.

        Returns
        -------
        (n_features, 2) int64
        """
        vertices: dict[str, int] = {}
        edges = np.full((len(self.names), 2), -1, dtype=np.int64)
        for place, feature, ends in self._edge_rows(item):
            if edges[feature, 0] >= 0:
                raise ConstraintError(f"{place}: feature {self.names.names[feature]!r} has two edges: leave one out")
            edges[feature] = [vertices.setdefault(end, len(vertices)) for end in ends]
        return edges

    def judgements(self, item: Item, *, unlisted: str) -> BoolArray:
        """Read who finds which feature fair: a file with a row per person and a column per feature, or a mapping to lists.

        Parameters
        ----------
        item : Item
        unlisted : {"error", "fair", "unfair"}
            What to make of features that are not asked about.

        Returns
        -------
        (n_people, n_features) bool
        """
        listed, answers = self._survey(item)
        missing = np.ones(len(self.names), dtype=np.bool_)
        missing[listed] = False
        if unlisted == "error" and missing.any():
            first = self.names.names[int(missing.argmax())]
            raise item.error(
                f"{int(missing.sum())} features are not judged, {first!r} for one: say unlisted: fair or unlisted: unfair"
            )
        table = np.full((len(answers), len(self.names)), unlisted == "fair", dtype=np.bool_)
        table[:, listed] = answers
        return table

    def mask(self, item: Item) -> BoolArray:
        """Read a list of names and patterns as a mask over the features."""
        marked = np.zeros(len(self.names), dtype=np.bool_)
        for features in self._resolve(item.elements()):
            marked[features] = True
        return marked

    def function(self, item: Item, *, by_name: bool = False) -> NamedFunction:
        """Read ``module:function`` and make sure that it can be imported."""
        if not self.allow_code:
            raise item.error("a function of yours can only run locally: use it with a local store, or describe the sets otherwise")
        folder = None if self.base_path is None else str(self.base_path.resolve())
        function = NamedFunction(item.text(), folder, tuple(self.names.names) if by_name else None)
        function.load()
        return function

    def _resolve(self, texts: Sequence[Item | tuple[str, Item]]) -> list[IndexArray]:
        """Return the features of each text, given as an item or as a key with its value; an error where one names nothing."""
        pairs = [text if isinstance(text, tuple) else (text.text(), text) for text in texts]
        resolved = self.names.resolve([text for text, _ in pairs])
        for (text, item), features in zip(pairs, resolved, strict=True):
            if not features.size:
                raise item.error(self.names.unknown(text))
        return resolved

    def _feature(self, name: str, place: str) -> int:
        """Return the index of a feature named in a side file."""
        index = self.names.indices.get(name)
        if index is None:
            raise ConstraintError(f"{place}: {self.names.unknown(name)}")
        return index

    def _completed(self, values: Float64Array, item: Item, default: float | None) -> Float64Array:
        """Fill in the default, or name a feature that has no value."""
        missing = np.isnan(values)
        if default is None and missing.any():
            first = self.names.names[int(missing.argmax())]
            raise item.error(f"{int(missing.sum())} features have no number here, {first!r} for one: list them or give a default")
        return np.where(missing, 0.0 if default is None else default, values)

    def _edge_rows(self, item: Item) -> Iterator[tuple[str, int, list[str]]]:
        """Yield a place, a feature and its two vertices."""
        if item.is_text:
            for place, (name, *ends) in self._rows(item, ("feature", "u", "v")):
                yield place, self._feature(name, place), ends
            return
        entries = item.mapping()
        for features, (name, value) in zip(self._resolve(list(entries.items())), entries.items(), strict=True):
            ends = [end.text() for end in value.elements()]
            if len(ends) != 2:
                raise value.error(f"the edge of {name!r} has {len(ends)} ends, expected two vertices")
            for feature in features.tolist():
                yield value.place, feature, ends

    def _survey(self, item: Item) -> tuple[IndexArray, BoolArray]:
        """Return the features asked about and the (people, asked) answers."""
        if item.is_text:
            rows = self._lines(item)
            place, header = next(rows, (item.text(), []))
            listed = [self._feature(name, place) for name in header]
            answers = [_answers(row, len(header), place) for place, row in rows]
        else:
            entries = item.mapping()
            listed = [int(features[0]) for features in self._resolve(list(entries.items()))]
            columns = {name: [answer.text() for answer in value.elements()] for name, value in entries.items()}
            people = len(next(iter(columns.values()), []))
            for name, column in columns.items():
                if name not in self.names.indices:
                    raise entries[name].error(f"{name!r} is a pattern, expected the name of one feature")
                if len(column) != people:
                    raise entries[name].error(f"{name!r} has {len(column)} judgements, expected {people} as for the first feature")
            answers = [_answers(row, len(columns), item.place) for row in zip(*columns.values(), strict=True)]
        if len(set(listed)) < len(listed):
            raise item.error("a feature is judged in two columns: leave one out")
        return np.array(listed, dtype=np.int64), np.array(answers, dtype=np.bool_).reshape(len(answers), len(listed))

    def _rows(self, item: Item, columns: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
        """Yield the place and the wanted columns of each row of a side file with a header."""
        rows = self._lines(item)
        place, header = next(rows, (item.text(), []))
        if missing := [column for column in columns if column not in header]:
            raise ConstraintError(f"{place}: the column {missing[0]!r} is missing: expected {','.join(columns)}")
        wanted = [header.index(column) for column in columns]
        for place, row in rows:
            if len(row) != len(header):
                raise ConstraintError(f"{place}: found {len(row)} fields, expected {len(header)} as in the header")
            yield place, [row[position] for position in wanted]

    def _lines(self, item: Item) -> Iterator[tuple[str, list[str]]]:
        """Yield the place and the stripped fields of each line of a CSV file that is not empty."""
        if self.base_path is None:
            raise item.error(f"found {item.text()!r}, but files cannot be opened here: write the table into the description")
        path = self.base_path / item.text()
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                for row in reader:
                    if row:
                        yield f"{path.name}:{reader.line_num}", [field.strip() for field in row]
        except (OSError, ValueError, csv.Error) as error:  # a ValueError: other bytes than UTF-8, or a name that is no file's
            raise item.error(f"the file {item.text()!r} cannot be read ({error}): expected a CSV file in UTF-8") from error


def _not_negative(item: Item) -> int:
    """Read a whole number that is not negative."""
    number = item.integer()
    if number < 0:
        raise item.error(f"found {number}, expected at least 0")
    return number


def _csv_number(text: str, place: str) -> float:
    """Read a number of a side file."""
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if np.isnan(number):
        raise ConstraintError(f"{place}: found {text!r}, expected a number")
    return number


def _answers(row: Sequence[str], expected: int, place: str) -> BoolArray:
    """Read the judgements of one person."""
    if len(row) != expected:
        raise ConstraintError(f"{place}: found {len(row)} judgements, expected {expected}, one per feature")
    texts = np.array(row, dtype=np.str_)
    fair = texts == "1"
    if (wrong := ~(fair | (texts == "0"))).any():
        raise ConstraintError(f"{place}: found the judgement {row[int(wrong.argmax())]!r}, expected 1 (fair) or 0")
    return np.asarray(fair)
