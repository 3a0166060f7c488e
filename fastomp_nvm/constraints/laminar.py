"""Caps on nested groups, such as organs and organ systems: the laminar matroid.

Any two groups are disjoint or nested, so they form a forest, and a feature belongs to its innermost group and that group's
ancestors. Queries work on the forest, whose size does not depend on the number of features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.constraints.checks import whole_number, whole_numbers
from fastomp_nvm.constraints.groups import CappedGroups, first_full, group_names
from fastomp_nvm.errors import ConstraintError

__all__ = ["Laminar"]


class Laminar(CappedGroups):
    """Sets with at most ``caps[g]`` features of each group ``g`` of a laminar family. A matroid; the rank is exact.

    Written ``laminar: {groups: {body: ["b_*"], heart: ["b_heart_*"]}, caps: {body: 5, heart: 2}}``; ``groups`` may be a CSV file
    with columns ``feature,group`` and one row per feature and group.

    Parameters
    ----------
    n_features : int
    groups : sequence of (g,) int
        The features of each group, in any order; two groups are disjoint or nested.
    caps : (n_groups,) int
    names : sequence of str, optional
        Names of the groups, for messages.
    """

    def __init__(
        self, n_features: int, groups: Sequence[npt.ArrayLike], caps: npt.ArrayLike, *, names: Sequence[str] | None = None
    ) -> None:
        self.n_features = whole_number(n_features, "the number of features")
        if not isinstance(groups, Sequence):
            raise ConstraintError(f"the groups are a {type(groups).__name__}: expected a list of lists of features")
        self.caps = whole_numbers(caps, "the caps", length=len(groups))
        self.names = group_names(names, len(groups))
        members = [self._checked_group(group, name) for group, name in zip(groups, self.names, strict=True)]
        # Larger groups first: the features of a group must then all have the same innermost group so far, its parent.
        order = sorted(range(len(members)), key=lambda group: -len(members[group]))
        self._innermost = np.full(self.n_features, -1, dtype=np.int64)
        parent = np.full(len(members) + 1, -1, dtype=np.int64)  # the last entry is "no group", its own parent
        for group in order:
            parent[group] = self._enclosing(group, members[group])
            self._innermost[members[group]] = group
        self._chains, self._parent = _chains(parent), parent[:-1]
        self.rank = self._find_rank(order, parent)

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return the first position at which one of the candidate's groups is full."""
        never = len(sequence) + 1
        chains = self._chains[self._innermost[sequence]]
        positions = np.repeat(np.arange(len(sequence)), chains.shape[1])
        full = first_full(chains.ravel(), self.caps - self.counts(selected), never, positions)
        earliest: IndexArray = np.append(full, never)[self._chains].min(axis=1)
        return earliest[self._innermost[candidates]]

    def forest(self) -> tuple[IndexArray, IndexArray]:
        """Return the innermost group of each feature, and the group around each group."""
        none = len(self.caps)
        return np.where(self._innermost < 0, none, self._innermost), np.where(self._parent < 0, none, self._parent)

    def counts(self, features: IndexArray) -> IndexArray:
        """Count the features of each group, those of nested groups included."""
        return np.bincount(self._chains[self._innermost[features]].ravel() + 1, minlength=len(self.caps) + 1)[1:]

    def _checked_group(self, group: npt.ArrayLike, name: str) -> IndexArray:
        """Return the distinct features of a group, sorted."""
        features = np.unique(whole_numbers(group, f"the features of group {name!r}"))
        if features.size and features[-1] >= self.n_features:
            raise ConstraintError(f"group {name!r} holds feature {features[-1]}: expected features below {self.n_features}")
        return features

    def _enclosing(self, group: int, features: IndexArray) -> int:
        """Return the innermost group so far that holds all ``features``, or -1 when none holds any."""
        found = np.unique(self._innermost[features])
        if len(found) > 1:
            other = int(found[-1])
            raise ConstraintError(
                f"groups {self.names[group]!r} and {self.names[other]!r} overlap and neither holds the other: "
                "nest them, or write them as two constraints under all"
            )
        return int(found[0]) if len(found) else -1

    def _find_rank(self, order: Sequence[int], parent: IndexArray) -> int:
        """Return the rank, leaves first: a group holds its own features and its children's maxima, up to its cap."""
        most = np.bincount(self._innermost + 1, minlength=len(self.caps) + 1)  # entry 0: features in no group
        for group in reversed(order):
            most[parent[group] + 1] += min(int(most[group + 1]), int(self.caps[group]))
        return int(most[0])


def _chains(parent: IndexArray) -> IndexArray:
    """Return the group and its ancestors, padded with -1 to the depth of the forest; one row per group, the last for "no group"."""
    levels = [np.append(np.arange(len(parent) - 1), -1)]
    while (above := parent[levels[-1]]).max() >= 0:
        levels.append(above)
    return np.stack(levels, axis=1)
