"""At most ``k`` features: the uniform matroid, the paper's r-sparsity constraint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastomp_nvm.arrays import BoolArray, IndexArray
from fastomp_nvm.constraints.base import Matroid
from fastomp_nvm.constraints.checks import whole_number

__all__ = ["Cardinality"]


class Cardinality(Matroid):
    """Sets of at most ``k`` features. A matroid; the rank is exact.

    Written ``cardinality: 20``.

    Parameters
    ----------
    n_features : int
    k : int
    """

    def __init__(self, n_features: int, k: int) -> None:
        self.n_features = whole_number(n_features, "the number of features")
        self.k = whole_number(k, "the cardinality")
        self.rank = min(self.k, self.n_features)

    def independent(self, features: IndexArray) -> bool:
        """Return whether there are at most ``k`` features."""
        return len(features) <= self.k

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Name the number of selected features when it exceeds ``k``."""
        return () if len(features) <= self.k else (f"{len(features)} features are selected, at most {self.k} are allowed",)

    def free(self, selected: IndexArray) -> int:
        """Return the number of features that may still be added, whichever they are."""
        return max(self.k - len(selected), 0)

    def extensions(self, selected: IndexArray, candidates: IndexArray) -> BoolArray:
        """Return True for every other feature while the set has fewer than ``k``; never copies the candidates."""
        outside = np.full(self.n_features, len(selected) < self.k)
        outside[selected] = False
        return outside[candidates]

    def blocking(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return that nothing is blocked, without looking at the candidates, when the sequence and one more feature fit."""
        if len(selected) + len(sequence) < self.k:
            return np.full(len(candidates), len(sequence) + 1, dtype=np.int64)
        return super().blocking(selected, sequence, candidates)

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return, for every candidate, the position at which the set is full."""
        full = min(max(self.k - len(selected), 0), len(sequence) + 1)
        return np.full(len(candidates), full, dtype=np.int64)
