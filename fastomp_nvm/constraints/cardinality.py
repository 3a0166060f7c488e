"""At most ``k`` features: the uniform matroid, the paper's r-sparsity constraint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.arrays import BoolArray, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.checks import whole_number

if TYPE_CHECKING:
    from fastomp_nvm.constraints.written.document import Item
    from fastomp_nvm.constraints.written.setting import Setting

__all__ = ["Cardinality"]


class Cardinality(Constraint):
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

    @classmethod
    def from_description(cls, item: Item, setting: Setting) -> Cardinality:
        """Read ``cardinality: k``."""
        return cls(len(setting.names), item.integer())

    @property
    def rank(self) -> int:
        """``k``, or all features where there are fewer."""
        return min(self.k, self.n_features)

    @property
    def p(self) -> float:
        """1, a matroid."""
        return 1.0

    def independent(self, features: IndexArray) -> bool:
        """Tell whether there are at most ``k``."""
        return len(features) <= self.k

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Say by how many features the selection is too large."""
        return () if self.independent(features) else (f"{len(features)} features are selected, at most {self.k} are allowed",)

    def longest_prefix(self, selected: IndexArray, sequence: IndexArray) -> int:
        """Return what room is left."""
        return min(len(sequence), max(self.k - len(selected), 0))

    def free(self, selected: IndexArray) -> int:
        """Return what room is left: whatever is added fits."""
        return max(self.k - len(selected), 0)

    def extensions(self, selected: IndexArray, candidates: IndexArray) -> BoolArray:
        """Return that all others extend the set while there is room, and none when there is not."""
        if len(selected) >= self.k:
            return np.zeros(len(candidates), dtype=np.bool_)
        return ~self._members(selected)[candidates] if len(selected) else np.ones(len(candidates), dtype=np.bool_)

    def blocking(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return at once that nothing is blocked while there is room for the sequence and one more."""
        if len(selected) + len(sequence) < self.k:
            return np.full(len(candidates), len(sequence) + 1, dtype=np.int64)
        return super().blocking(selected, sequence, candidates)

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return the same for all: the position at which the set is full."""
        full = min(max(self.k - len(selected), 0), len(sequence) + 1)
        return np.full(len(candidates), full, dtype=np.int64)
