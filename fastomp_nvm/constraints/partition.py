"""At most so many features from each of several disjoint groups: the partition matroid (Celis et al. 2018).

``first_full`` is the closed form behind every family that counts by group: a group is full from the moment its last free place is
taken, so a candidate's blocking index is a look-up in a table with one entry per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.constraints.capped_groups import CappedGroups
from fastomp_nvm.constraints.checks import group_names, whole_number, whole_numbers
from fastomp_nvm.errors import ConstraintError

if TYPE_CHECKING:
    from fastomp_nvm.constraints.written.document import Item
    from fastomp_nvm.constraints.written.setting import Setting

__all__ = ["Partition", "first_full", "occurrences"]


class Partition(CappedGroups):
    """Sets with at most ``caps[g]`` features of group ``g``. A matroid; the rank is exact.

    Written ``partition: {groups: {clinical: [age, "bp_*"], genes: genes.csv}, caps: {clinical: 3, genes: 10}}``; ``caps`` may be
    one number for all groups.

    Parameters
    ----------
    n_features : int
    groups : (n_features,) int
        The group of each feature, -1 for a feature under no cap.
    caps : (n_groups,) int
    names : sequence of str, optional
        Of the groups, for messages.
    """

    def __init__(self, n_features: int, groups: npt.ArrayLike, caps: npt.ArrayLike, *, names: Sequence[str] | None = None) -> None:
        self.n_features = whole_number(n_features, "the number of features")
        self.caps = whole_numbers(caps, "the caps")
        self.groups = whole_numbers(groups, "the groups", length=self.n_features, minimum=-1)
        self.names = group_names(names, len(self.caps))
        if self.n_features and (largest := int(self.groups.max())) >= len(self.caps):
            raise ConstraintError(f"group {largest} has no cap: expected groups from -1 to {len(self.caps) - 1}")
        sizes = np.bincount(self.groups + 1, minlength=len(self.caps) + 1)
        self._rank = int(sizes[0] + np.minimum(sizes[1:], self.caps).sum())

    @classmethod
    def from_description(cls, item: Item, setting: Setting) -> Partition:
        """Read ``partition: {groups, caps}``."""
        fields = item.fields("groups", "caps")
        names, groups = setting.disjoint_groups(fields["groups"])
        return cls(len(setting.names), groups, setting.per_group(fields["caps"], names), names=names)

    def longest_prefix(self, selected: IndexArray, sequence: IndexArray) -> int:
        """Return where the first feature stands that finds its group full."""
        labels = self.groups[sequence]
        room = np.append(self.caps - self._counts(selected), len(sequence))  # -1 finds the appended entry: room for all
        over = np.flatnonzero(occurrences(labels) >= room[labels])
        return int(over[0]) if over.size else len(sequence)

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return the position at which the candidate's group is full."""
        never = len(sequence) + 1
        full = first_full(self.groups[sequence], self.caps - self._counts(selected), never)
        return np.append(full, never)[self.groups[candidates]]  # -1 finds the appended entry

    def _counts(self, features: IndexArray) -> IndexArray:
        """Count the features of each group."""
        return np.bincount(self.groups[features] + 1, minlength=len(self.caps) + 1)[1:]


def occurrences(labels: IndexArray) -> IndexArray:
    """Return, per entry, how many equal entries stand before it.

    Parameters
    ----------
    labels : (j,) int64

    Returns
    -------
    (j,) int64
    """
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    counted = np.empty(len(labels), dtype=np.int64)
    counted[order] = np.arange(len(labels)) - starts
    return counted


def first_full(labels: IndexArray, room: IndexArray, never: int, positions: IndexArray | None = None) -> IndexArray:
    """Return, per group, the number of additions after which its room is used up.

    Parameters
    ----------
    labels : (j,) int64
        The group each addition goes to, in order; -1 for none.
    room : (n_groups,) int64
        Free places of each group at the start.
    never : int
        What to return for a group that keeps room.
    positions : (j,) int64, optional
        Index of the addition behind each label, non-decreasing, where one addition has several labels.

    Returns
    -------
    (n_groups,) int64
    """
    full = np.where(room <= 0, 0, never)
    if not len(labels):
        return full
    if positions is None:
        positions = np.arange(len(labels))
    last = np.flatnonzero((labels >= 0) & (occurrences(labels) + 1 == room[labels])) if len(room) else np.empty(0, np.int64)
    full[labels[last]] = positions[last] + 1
    return full
