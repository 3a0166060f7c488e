"""At most ``caps[g]`` features from each of several disjoint groups: the partition matroid (Celis et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.constraints.checks import whole_number, whole_numbers
from fastomp_nvm.constraints.groups import CappedGroups, first_full, group_labels, group_names

__all__ = ["Partition"]


class Partition(CappedGroups):
    """Sets with at most ``caps[g]`` features of group ``g``. A matroid; the rank is exact.

    Written ``partition: {groups: {clinical: [age, "bp_*"], genes: ["g_*"]}, caps: {clinical: 3, genes: 10}}``; ``groups`` may be a
    CSV file with columns ``feature,group``, and ``caps`` one number for all groups.

    Parameters
    ----------
    n_features : int
    groups : (n_features,) int
        The group of each feature, -1 for a feature without a cap.
    caps : (n_groups,) int
    names : sequence of str, optional
        Names of the groups, for messages.
    """

    def __init__(self, n_features: int, groups: npt.ArrayLike, caps: npt.ArrayLike, *, names: Sequence[str] | None = None) -> None:
        self.n_features = whole_number(n_features, "the number of features")
        self.caps = whole_numbers(caps, "the caps")
        self.groups = group_labels(groups, self.n_features, len(self.caps), "cap")
        self.names = group_names(names, len(self.caps))
        sizes = np.bincount(self.groups + 1, minlength=len(self.caps) + 1)
        self.rank = int(sizes[0] + np.minimum(sizes[1:], self.caps).sum())

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return the position at which the candidate's group is full."""
        never = len(sequence) + 1
        full = first_full(self.groups[sequence], self.caps - self.counts(selected), never)
        return np.append(full, never)[self.groups[candidates]]  # label -1 indexes the appended entry

    def forest(self) -> tuple[IndexArray, IndexArray]:
        """Return the group of each feature; no group encloses another."""
        none = len(self.caps)
        return np.where(self.groups < 0, none, self.groups), np.full(none, none)

    def counts(self, features: IndexArray) -> IndexArray:
        """Count the features of each group."""
        return np.bincount(self.groups[features] + 1, minlength=len(self.caps) + 1)[1:]
