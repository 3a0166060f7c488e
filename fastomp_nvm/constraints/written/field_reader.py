"""The fields of a description as arrays over the features: groups, numbers, edges, judgements, masks and functions.

Every error names the file and the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints.written.document import Item
from fastomp_nvm.constraints.written.feature_names import FeatureNames
from fastomp_nvm.constraints.written.function import NamedFunction
from fastomp_nvm.constraints.written.side_files import SideFile, csv_number
from fastomp_nvm.errors import ConstraintError, near

__all__ = ["FieldReader"]


@dataclass(frozen=True, slots=True)
class FieldReader:
    """Reads fields of a description for given features.

    Attributes
    ----------
    names : FeatureNames
    folder : Path or None
        Folder of side files and modules; None when no file may be opened.
    allow_code : bool
        Whether the description may name Python functions.
    usable : (n_features,) bool or None
        Features that can be selected; None for all.
    """

    names: FeatureNames
    folder: Path | None
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
            for place, (feature, group) in self._side_file(item).columns("feature", "group"):
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

    def per_group(self, item: Item | None, groups: Sequence[str], *, default: int | None = None) -> list[int]:
        """Read a whole number per group: one for all groups, or a mapping; ``default`` applies to groups it leaves out."""
        if item is None:
            return [int(default or 0)] * len(groups)
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
            for place, (name, text) in self._side_file(item).columns("feature", column):
                feature = self._feature(name, place)
                if not np.isnan(values[feature]):
                    raise ConstraintError(f"{place}: feature {name!r} is listed twice: remove one")
                values[feature] = csv_number(text, place)
        else:
            entries = item.mapping()
            for features, (text, value) in zip(self._resolve(list(entries.items())), entries.items(), strict=True):
                if not np.isnan(values[features]).all():
                    raise value.error(f"{text!r} names a feature that has a number already: expected one number per feature")
                number = value.number()
                if np.isnan(number):
                    raise value.error(f"found {value.text()!r}, expected a number")
                values[features] = number
        missing = np.isnan(values)
        if default is None and missing.any():
            first = self.names.names[int(missing.argmax())]
            raise item.error(f"{int(missing.sum())} features have no number here, such as {first!r}: list them or give a default")
        return np.where(missing, default or 0.0, values)

    def edges(self, item: Item) -> IndexArray:
        """Read an edge per feature: a mapping to pairs of vertices, or a file with columns ``feature,u,v``.

        Returns
        -------
        (n_features, 2) int64
            The vertices of each feature, (-1, -1) for none.
        """
        vertices: dict[str, int] = {}
        edges = np.full((len(self.names), 2), -1, dtype=np.int64)
        for place, feature, ends in self._edge_rows(item):
            if edges[feature, 0] >= 0:
                raise ConstraintError(f"{place}: feature {self.names.names[feature]!r} has two edges: remove one")
            edges[feature] = [vertices.setdefault(end, len(vertices)) for end in ends]
        return edges

    def judgements(self, item: Item, *, unlisted: str) -> BoolArray:
        """Read judgements: a file with a row per person and a column per feature, or a mapping of features to lists.

        Parameters
        ----------
        item : Item
        unlisted : {"error", "fair", "unfair"}
            Judgement of features that are not listed.

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
                f"{int(missing.sum())} features are not judged, such as {first!r}: add unlisted: fair or unlisted: unfair"
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
        """Read ``module:function`` and import it."""
        if not self.allow_code:
            raise item.error("a Python function can only run locally: use a local store or another constraint")
        folder = None if self.folder is None else str(self.folder.resolve())
        function = NamedFunction(item.text(), folder, tuple(self.names.names) if by_name else None)
        function.load()
        return function

    def _resolve(self, texts: Sequence[Item | tuple[str, Item]]) -> list[IndexArray]:
        """Return the features that each text names, given as an item or as a key with its value; a text without any is an error."""
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

    def _edge_rows(self, item: Item) -> Iterator[tuple[str, int, list[str]]]:
        """Yield a place, a feature and its two vertices."""
        if item.is_text:
            for place, (name, *ends) in self._side_file(item).columns("feature", "u", "v"):
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
        """Return the judged features and the (n_people, n_judged) judgements."""
        if item.is_text:
            place, header, rows = self._side_file(item).survey()
            listed = [self._feature(name, place) for name in header]
            judgements = [_judgements(row, place) for place, row in rows]
        else:
            entries = item.mapping()
            listed = [int(features[0]) for features in self._resolve(list(entries.items()))]
            by_feature = {name: [judgement.text() for judgement in value.elements()] for name, value in entries.items()}
            people = len(next(iter(by_feature.values()), []))
            for name, column in by_feature.items():
                if name not in self.names.indices:
                    raise entries[name].error(f"{name!r} is a pattern, expected the name of one feature")
                if len(column) != people:
                    raise entries[name].error(f"{name!r} has {len(column)} judgements, expected {people} as for the first feature")
            judgements = [_judgements(row, item.place) for row in zip(*by_feature.values(), strict=True)]
        if len(set(listed)) < len(listed):
            raise item.error("a feature is judged in two columns: remove one")
        return np.array(listed, dtype=np.int64), np.array(judgements, dtype=np.bool_).reshape(len(judgements), len(listed))

    def _side_file(self, item: Item) -> SideFile:
        """Return the side file that ``item`` names."""
        if self.folder is None:
            raise item.error(f"found {item.text()!r}, but files cannot be opened here: write the table into the description")
        return SideFile(self.folder, item.text(), item.place)


def _not_negative(item: Item) -> int:
    """Read a whole number that is not negative."""
    number = item.integer()
    if number < 0:
        raise item.error(f"found {number}, expected at least 0")
    return number


def _judgements(row: Sequence[str], place: str) -> BoolArray:
    """Read the judgements of one person."""
    texts = np.array(row, dtype=np.str_)
    fair = texts == "1"
    if (wrong := ~(fair | (texts == "0"))).any():
        raise ConstraintError(f"{place}: found the judgement {row[int(wrong.argmax())]!r}, expected 1 (fair) or 0")
    return np.asarray(fair)
