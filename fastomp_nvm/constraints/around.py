"""The sets that may be added to features that are always kept: the contraction of a family by a set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints.base import Constraint

__all__ = ["Around"]


class Around(Constraint):
    """The sets whose union with ``kept`` is in a family.

    Parameters
    ----------
    family : Constraint
        Without lower bounds.
    kept : (m,) int64
        A set of the family.
    """

    def __init__(self, family: Constraint, kept: IndexArray) -> None:
        self.family, self.kept, self.n_features = family, kept, family.n_features
        self.rank = max(family.rank - len(kept), 0)
        self.p = 1.0 if family.p == 1.0 else None  # the contraction of a matroid is one; of a p-system nothing is known
        self.calls_user_code, self.rank_is_bound = family.calls_user_code, family.rank_is_bound or family.p != 1.0

    @property
    def budget_shares(self) -> Float64Array | None:
        """Shares of the budget of the family."""
        return self.family.budget_shares

    def burden(self, selected: IndexArray, candidates: IndexArray) -> Float64Array:
        """Return the burden beside the kept features."""
        return self.family.burden(self._with(selected), candidates)

    def independent(self, features: IndexArray) -> bool:
        """Return whether the family has the union."""
        return self.family.independent(self._with(features))

    def independent_many(self, sets: Sequence[IndexArray]) -> BoolArray:
        """Return ``independent`` of each set."""
        return self.family.independent_many(list(map(self._with, sets)))

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Return the violations of the union."""
        return self.family.violations(self._with(features))

    def extensions(self, selected: IndexArray, candidates: IndexArray) -> BoolArray:
        """Return the candidates that extend the union."""
        return self.family.extensions(self._with(selected), candidates)

    def free(self, selected: IndexArray) -> int:
        """Return how many features fit together with the union, whichever they are."""
        return self.family.free(self._with(selected))

    def longest_prefix(self, selected: IndexArray, sequence: IndexArray) -> int:
        """Return the additions that fit beside the union."""
        return self.family.longest_prefix(self._with(selected), sequence)

    def blocking(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return the blocking indices beside the union."""
        return self.family.blocking(self._with(selected), sequence, candidates)

    def _with(self, features: IndexArray) -> IndexArray:
        """Return the union with the kept features."""
        return np.concatenate((self.kept, features))
