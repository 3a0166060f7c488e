"""Between ``lower`` and ``upper`` features from each of several disjoint groups, ``total`` in all (El Halabi et al. 2020).

Sets that meet lower bounds are not downward closed, their subsets are: a set can still be completed iff ``c_j <= u_j`` for all
groups and ``sum_j max(c_j, l_j) <= total``. That relaxation is a matroid, and its *maximal* sets meet every lower bound, because a
group below its lower bound can always take one more feature without using up anything. Hence ``needs_base``; ``violations`` judges
the bounds as written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import BoolArray, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.checks import group_names, whole_number, whole_numbers
from fastomp_nvm.constraints.partition import first_full, occurrences
from fastomp_nvm.errors import ConstraintError

if TYPE_CHECKING:
    from fastomp_nvm.constraints.written.document import Item
    from fastomp_nvm.constraints.written.setting import Setting

__all__ = ["Bounds"]


class Bounds(Constraint):
    """Subsets of the sets with ``lower[g]`` to ``upper[g]`` features of group ``g`` and at most ``total`` features.

    A matroid; the rank is exact. Features in no group are allowed and count towards the total: they behave as one more group,
    with lower bound 0 and no upper bound.

    Written ``bounds: {groups: {female: ["f_*"], male: ["m_*"]}, lower: {female: 2}, upper: {female: 8, male: 8}, total: 12}``;
    a bound left out is 0 below and none above.

    Parameters
    ----------
    n_features : int
    groups : (n_features,) int
        The group of each feature, -1 for none.
    lower, upper : (n_groups,) int
    total : int
        Largest size of a selection.
    usable : (n_features,) bool, optional
        Features that can be selected at all (constant columns cannot); lower bounds are checked against these.
    names : sequence of str, optional
        Of the groups, for messages.
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
        self.groups = whole_numbers(groups, "the groups", length=self.n_features, minimum=-1)
        self.names = group_names(names, len(self.lower))
        if self.n_features and (largest := int(self.groups.max())) >= len(self.lower):
            raise ConstraintError(f"group {largest} has no bounds: expected groups from -1 to {len(self.lower) - 1}")
        self._usable = np.ones(self.n_features, dtype=np.bool_) if usable is None else np.asarray(usable, dtype=np.bool_)
        if self._usable.shape != (self.n_features,):
            raise ConstraintError(f"the mask of usable features has shape {self._usable.shape}: expected ({self.n_features},)")
        self._check_lower(self._usable)
        # The features of no group become the last group.
        self._group = np.where(self.groups < 0, len(self.lower), self.groups)
        self._lower = np.append(self.lower, 0)
        self._upper = np.append(self.upper, self.n_features)
        self._rank = min(self.total, int(np.minimum(self._counts(np.arange(self.n_features)), self._upper).sum()))

    @classmethod
    def from_description(cls, item: Item, setting: Setting) -> Bounds:
        """Read ``bounds: {groups, lower, upper, total}``."""
        fields = item.fields("groups", "total", optional=("lower", "upper"))
        names, groups = setting.disjoint_groups(fields["groups"])
        n_features = len(setting.names)
        lower = setting.per_group(fields["lower"], names, default=0) if "lower" in fields else [0] * len(names)
        upper = setting.per_group(fields["upper"], names, default=n_features) if "upper" in fields else [n_features] * len(names)
        return cls(n_features, groups, lower, upper, fields["total"].integer(), usable=setting.usable, names=names)

    @property
    def rank(self) -> int:
        """The total, or what the upper bounds and the sizes of the groups allow if that is less."""
        return self._rank

    @property
    def p(self) -> float:
        """1, a matroid."""
        return 1.0

    @property
    def needs_base(self) -> bool:
        """True when there is a lower bound to meet."""
        return bool((self.lower > 0).any())

    def with_total(self, total: int) -> Bounds:
        """Return the same bounds with another total.

        To cut a selection off at ``total`` instead would let a group fill up before the others have met their lower bounds.
        """
        return Bounds(self.n_features, self.groups, self.lower, self.upper, total, usable=self._usable, names=self.names)

    def independent(self, features: IndexArray) -> bool:
        """Tell whether ``features`` can be completed to a set that meets all bounds."""
        counts = self._counts(features)
        return bool((counts <= self._upper).all()) and self._committed(counts) <= self.total

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Name each group outside its bounds as written, lower bounds included, and a total that is exceeded."""
        counts = self._counts(features)[:-1]
        found = [
            f"group {self.names[group]!r} has {counts[group]} selected features, at least {self.lower[group]} are required"
            for group in np.flatnonzero(counts < self.lower)
        ]
        found += [
            f"group {self.names[group]!r} has {counts[group]} selected features, at most {self.upper[group]} are allowed"
            for group in np.flatnonzero(counts > self.upper)
        ]
        if len(features) > self.total:
            found.append(f"{len(features)} features are selected, at most {self.total} are allowed")
        return tuple(found)

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return the position from which the group is full, or is past its lower bound while every place is committed."""
        never = len(sequence) + 1
        counts, labels = self._counts(selected), self._group[sequence]
        at_upper = first_full(labels, self._upper - counts, never)
        at_lower = first_full(labels, self._lower - counts, never)
        # An addition commits a new place only when its group has met its lower bound already.
        commits = counts[labels] + occurrences(labels) >= self._lower[labels]
        committed = self._committed(counts) + np.concatenate(([0], np.cumsum(commits)))
        all_committed = int(np.searchsorted(committed, self.total))  # len(committed) = never when places are left
        return np.minimum(at_upper, np.maximum(at_lower, all_committed))[self._group[candidates]]

    def _counts(self, features: IndexArray) -> IndexArray:
        """Count the features of each group, those of none last."""
        return np.bincount(self._group[features], minlength=len(self._lower))

    def _committed(self, counts: IndexArray) -> int:
        """Return how many places are taken or must be kept for lower bounds."""
        return int(np.maximum(counts, self._lower).sum())

    def _check_lower(self, usable: BoolArray) -> None:
        """Refuse lower bounds that no selection can meet."""
        sizes = np.bincount(self.groups[usable] + 1, minlength=len(self.lower) + 1)[1:]
        for group in np.flatnonzero(self.lower > np.minimum(self.upper, sizes)):
            name, lower, upper = self.names[group], self.lower[group], self.upper[group]
            if lower > upper:
                raise ConstraintError(f"group {name!r} has lower bound {lower} above its upper bound {upper}: lower the first")
            raise ConstraintError(f"group {name!r} has lower bound {lower} but only {sizes[group]} usable features")
        if (needed := int(self.lower.sum())) > self.total:
            raise ConstraintError(f"the lower bounds add up to {needed}, more than the total of {self.total}: raise the total")
