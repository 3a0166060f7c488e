"""Shared parts of the families that count selected features by group.

A group is full from the moment its last free place is taken, so the blocking index of a candidate is a lookup in a table with one
entry per group, computed by ``first_full``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.constraints.base import Matroid
from fastomp_nvm.constraints.checks import whole_numbers
from fastomp_nvm.errors import ConstraintError

__all__ = ["CappedGroups", "first_full", "group_labels", "group_names", "occurrences", "over_cap"]


class CappedGroups(Matroid):
    """At most ``caps[g]`` features of each group ``g``: partition and laminar matroids.

    Attributes
    ----------
    caps : (n_groups,) int64
    names : sequence of str
        Names of the groups, for messages.
    """

    caps: IndexArray
    names: Sequence[str]

    def independent(self, features: IndexArray) -> bool:
        """Return whether no group exceeds its cap."""
        return bool((self.counts(features) <= self.caps).all())

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Name each group over its cap."""
        return tuple(over_cap(self.counts(features), self.caps, self.names))

    @abstractmethod
    def counts(self, features: IndexArray) -> IndexArray:
        """Return (n_groups,): the number of ``features`` in each group, those of nested groups included."""

    @abstractmethod
    def forest(self) -> tuple[IndexArray, IndexArray]:
        """Return the innermost group of each feature, and the group that encloses each group; ``n_groups`` where there is none."""


def over_cap(counts: IndexArray, caps: IndexArray, names: Sequence[str]) -> list[str]:
    """Return one sentence per group with more selected features than its cap."""
    return [
        f"group {names[group]!r} has {counts[group]} selected features, at most {caps[group]} are allowed"
        for group in np.flatnonzero(counts > caps).tolist()
    ]


def group_labels(values: npt.ArrayLike, n_features: int, n_groups: int, limit: str) -> IndexArray:
    """Return the checked group of each feature, -1 for none.

    Parameters
    ----------
    values : (n_features,) int
    n_features, n_groups : int
    limit : str
        What each group needs, for the message: ``"cap"``.

    Returns
    -------
    (n_features,) int64
    """
    labels = whole_numbers(values, "the groups", length=n_features, minimum=-1)
    if (largest := int(labels.max(initial=-1))) >= n_groups:
        raise ConstraintError(f"group {largest} has no {limit}: expected groups from -1 to {n_groups - 1}")
    return labels


def group_names(names: Sequence[str] | None, n_groups: int) -> tuple[str, ...]:
    """Return one name per group, for messages; the group's number by default."""
    if names is None:
        return tuple(str(group) for group in range(n_groups))
    if len(names) != n_groups:
        raise ConstraintError(f"there are {len(names)} group names for {n_groups} groups: expected one each")
    return tuple(names)


def occurrences(labels: IndexArray) -> IndexArray:
    """Return, per entry, the number of equal entries before it.

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
    """Return, per group, the number of additions after which it is full.

    Parameters
    ----------
    labels : (j,) int64
        The group of each addition, in order; -1 for none.
    room : (n_groups,) int64
        Free places of each group at the start.
    never : int
        Returned for a group that is not full after all additions.
    positions : (j,) int64, optional
        Index of the addition behind each label, non-decreasing, where one addition has several labels.

    Returns
    -------
    (n_groups,) int64
    """
    full = np.where(room <= 0, 0, never)
    if not len(labels) or not len(room):
        return full
    if positions is None:
        positions = np.arange(len(labels))
    last = np.flatnonzero((labels >= 0) & (occurrences(labels) + 1 == room[labels]))
    full[labels[last]] = positions[last] + 1
    return full
