"""Between ``lower`` and ``upper`` features from each of several disjoint groups, ``total`` in all (El Halabi et al. 2020).

The sets that meet lower bounds are not downward closed, but their subsets are: a set with ``c_g`` features of group ``g`` can be
completed iff ``c_g <= upper_g`` for all groups and ``sum_g max(c_g, lower_g) <= total``. That relaxation is a matroid. Its
*maximal* sets meet every lower bound, because a group below its lower bound can always take one more feature: a place is reserved
for it. Hence ``needs_base``; ``violations`` checks the bounds as written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import BoolArray, IndexArray
from fastomp_nvm.constraints.base import Matroid
from fastomp_nvm.constraints.checks import mask_of, whole_number, whole_numbers
from fastomp_nvm.constraints.groups import first_full, group_labels, group_names, occurrences, over_cap
from fastomp_nvm.errors import ConstraintError

__all__ = ["Bounds"]


class Bounds(Matroid):
    """Subsets of the sets with ``lower[g]`` to ``upper[g]`` features of group ``g`` and at most ``total`` features.

    A matroid; the rank is exact. Features in no group count towards the total and are otherwise unrestricted.

    Written ``bounds: {groups: {female: ["f_*"], male: ["m_*"]}, lower: {female: 2}, upper: {female: 8, male: 8}, total: 12}``;
    a lower bound left out is 0, an upper bound left out is none.

    Parameters
    ----------
    n_features : int
    groups : (n_features,) int
        The group of each feature, -1 for none.
    lower, upper : (n_groups,) int
    total : int
        Largest size of a selection.
    usable : (n_features,) bool, optional
        Features that can be selected (constant columns cannot); a lower bound above their number in a group is an error.
    names : sequence of str, optional
        Names of the groups, for messages.
    """

    def __init__(
        self,
        n_features: int,
        groups: npt.ArrayLike,
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
        total: int,
        *,
        usable: npt.ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.n_features = whole_number(n_features, "the number of features")
        self.total = whole_number(total, "the total")
        self.lower = whole_numbers(lower, "the lower bounds")
        self.upper = whole_numbers(upper, "the upper bounds", length=len(self.lower))
        self.groups = group_labels(groups, self.n_features, len(self.lower), "bounds")
        self.names = group_names(names, len(self.lower))
        given = np.ones(self.n_features) if usable is None else usable
        self.usable = mask_of(np.asarray(given, dtype=np.bool_), "the mask of usable features", self.n_features)
        self._check_lower(self.usable)
        # Features in no group form one more group, the last, with bounds 0 and n_features.
        self._group = np.where(self.groups < 0, len(self.lower), self.groups)
        self._lower = np.append(self.lower, 0)
        self._upper = np.append(self.upper, self.n_features)
        self.rank = min(self.total, int(np.minimum(self._counts(np.arange(self.n_features)), self._upper).sum()))
        self.needs_base = bool((self.lower > 0).any())

    def with_total(self, total: int) -> Bounds:
        """Return the same bounds with another total.

        Stopping a selection at ``total`` instead could fill it before every group has met its lower bound.
        """
        return Bounds(self.n_features, self.groups, self.lower, self.upper, total, usable=self.usable, names=self.names)

    def independent(self, features: IndexArray) -> bool:
        """Return whether ``features`` can be completed to a set that meets all bounds."""
        counts = self._counts(features)
        return bool((counts <= self._upper).all()) and self._committed(counts) <= self.total

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Name each group outside its bounds, lower bounds included, and an exceeded total."""
        counts = self._counts(features)[:-1]
        found = [
            f"group {self.names[group]!r} has {counts[group]} selected features, at least {self.lower[group]} are required"
            for group in np.flatnonzero(counts < self.lower)
        ]
        found += over_cap(counts, self.upper, self.names)
        if len(features) > self.total:
            found.append(f"{len(features)} features are selected, at most {self.total} are allowed")
        return tuple(found)

    def lacking(self, features: IndexArray) -> list[tuple[int, int]]:
        """Return the groups with fewer ``features`` than their lower bound, and how many they lack."""
        lack = (self._lower - self._counts(features))[:-1]
        groups = np.flatnonzero(lack > 0)
        return list(zip(groups.tolist(), lack[groups].tolist(), strict=True))

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return the position from which the candidate's group is full, or meets its lower bound with all places committed."""
        never = len(sequence) + 1
        counts, labels = self._counts(selected), self._group[sequence]
        at_upper = first_full(labels, self._upper - counts, never)
        at_lower = first_full(labels, self._lower - counts, never)
        # A place is committed when it is taken or reserved for a lower bound, so an addition commits a new place only when its
        # group has met its lower bound already.
        commits = counts[labels] + occurrences(labels) >= self._lower[labels]
        committed = self._committed(counts) + np.concatenate(([0], np.cumsum(commits)))
        all_committed = int(np.searchsorted(committed, self.total))  # len(committed) = never when places are left
        return np.minimum(at_upper, np.maximum(at_lower, all_committed))[self._group[candidates]]

    def _counts(self, features: IndexArray) -> IndexArray:
        """Count the features of each group; the features in no group come last."""
        return np.bincount(self._group[features], minlength=len(self._lower))

    def _committed(self, counts: IndexArray) -> int:
        """Return the number of places that are taken or reserved for lower bounds."""
        return int(np.maximum(counts, self._lower).sum())

    def _check_lower(self, usable: BoolArray) -> None:
        """Raise ``ConstraintError`` when no selection can meet the lower bounds."""
        sizes = np.bincount(self.groups[usable] + 1, minlength=len(self.lower) + 1)[1:]
        for group in np.flatnonzero(self.lower > np.minimum(self.upper, sizes)):
            name, lower, upper = self.names[group], self.lower[group], self.upper[group]
            if lower > upper:
                raise ConstraintError(f"group {name!r} has lower bound {lower} above its upper bound {upper}: lower the first")
            raise ConstraintError(f"group {name!r} has lower bound {lower} but only {sizes[group]} usable features")
        if (needed := int(self.lower.sum())) > self.total:
            raise ConstraintError(f"the lower bounds add up to {needed}, more than the total of {self.total}: raise the total")
