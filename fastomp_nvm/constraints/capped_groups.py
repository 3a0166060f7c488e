"""What partition and laminar matroids share: groups of features with a cap on each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.constraints.base import Constraint

__all__ = ["CappedGroups"]


class CappedGroups(Constraint):
    """At most ``caps[g]`` features of each group.

    Attributes
    ----------
    caps : (n_groups,) int64
    names : sequence of str
        Of the groups, for messages.
    """

    caps: IndexArray
    names: Sequence[str]
    _rank: int

    @property
    def rank(self) -> int:
        """The size of every maximal set."""
        return self._rank

    @property
    def p(self) -> float:
        """1, a matroid."""
        return 1.0

    def independent(self, features: IndexArray) -> bool:
        """Tell whether no group exceeds its cap."""
        return bool((self._counts(features) <= self.caps).all())

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Name each group over its cap."""
        counts = self._counts(features)
        return tuple(
            f"group {self.names[group]!r} has {counts[group]} selected features, at most {self.caps[group]} are allowed"
            for group in np.flatnonzero(counts > self.caps).tolist()
        )

    @abstractmethod
    def _counts(self, features: IndexArray) -> IndexArray:
        """Return (n_groups,): how many of ``features`` each group holds."""
