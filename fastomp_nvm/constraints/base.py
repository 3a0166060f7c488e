"""What a constraint is: a downward-closed family of feature sets (an independence system), asked in bulk.

FAST_OMP asks two things of it, over and over and about many candidates at once: which features still extend a set, and, along a
sequence of additions, the first position at which each candidate stops extending it (its *blocking index*). Downward closure
makes the second a single number per candidate. Built-in families answer in closed form, vectorised; anything else inherits the
bisection below, which runs in lockstep over the candidates, so that one step is one call of ``independent_many``.

A constraint is bound to a number of features when it is built and never sees data, stores or names; names in a written
description are translated on the way in, by ``from_description``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.arrays import BoolArray, IndexArray
from fastomp_nvm.errors import ConstraintError

if TYPE_CHECKING:
    from fastomp_nvm.constraints.written.document import Item
    from fastomp_nvm.constraints.written.setting import Setting

__all__ = ["Constraint"]

# Sets of a bisection step that exist at the same time: 8192 sets of 300 features are 20 MB.
_BATCH = 8192


class Constraint(ABC):
    """A downward-closed family of subsets of ``range(n_features)``.

    Subclasses set ``n_features`` and implement ``independent`` and ``rank``; where a closed form exists they override
    ``_first_blocked``, which ``blocking`` and ``extensions`` call. All index arrays are int64 without repetition; a ``selected``
    set handed in is independent and disjoint from ``sequence``.
    """

    n_features: int

    #: True when a question runs code of the user's: an intersection asks such a part last and only about what is left.
    calls_user_code: bool = False

    #: True when ``rank`` may be far above the size of the largest independent set: algorithms then estimate that by random draws.
    rank_is_bound: bool = False

    @abstractmethod
    def independent(self, features: IndexArray) -> bool:
        """Tell whether the set ``features`` is in the family."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Size of the largest independent set, or the best upper bound known; at most ``n_features``."""

    @property
    def p(self) -> float | None:
        """A ``p`` for which this is a p-system (1 for a matroid), or None when unknown."""
        return None

    @property
    def needs_base(self) -> bool:
        """True when only maximal sets meet the constraint as written (lower bounds); forces ``until="full"``."""
        return False

    @classmethod
    def from_description(cls, item: Item, setting: Setting) -> Constraint:
        """Build the constraint from its written form; ``setting`` knows the feature names and the folder of side files."""
        raise ConstraintError(f"{cls.__name__} has no written form: build it in Python")

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Return one sentence per way in which ``features`` breaks the constraint *as the user wrote it*; empty when it holds."""
        return () if self.independent(features) else ("the selection is not independent",)

    def independent_many(self, sets: Sequence[IndexArray]) -> BoolArray:
        """Return ``independent`` of each set; one batch of questions that do not depend on each other."""
        return np.fromiter((self.independent(features) for features in sets), dtype=np.bool_, count=len(sets))

    def extensions(self, selected: IndexArray, candidates: IndexArray) -> BoolArray:
        """Return, per candidate, whether ``selected + candidate`` is independent; False for candidates in ``selected``.

        Parameters
        ----------
        selected : (s,) int64
        candidates : (c,) int64

        Returns
        -------
        (c,) bool
        """
        extends = ~self._members(selected)[candidates]
        outside = candidates[extends]
        extends[extends] = self._first_blocked(selected, np.empty(0, dtype=np.int64), outside) > 0
        return extends

    def free(self, selected: IndexArray) -> int:
        """Return a number of features that may be added to ``selected``, whichever they are; 0 where nothing is known."""
        return 0

    def longest_prefix(self, selected: IndexArray, sequence: IndexArray) -> int:
        """Return the largest ``j`` such that ``selected + sequence[:j]`` is independent."""
        low, high = 0, min(len(sequence), max(self.rank - len(selected), 0))
        while low < high:  # downward closure: feasibility is monotone in j
            middle = (low + high + 1) // 2
            if self.independent(np.concatenate((selected, sequence[:middle]))):
                low = middle
            else:
                high = middle - 1
        return low

    def blocking(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return, per candidate ``s``, the first ``j`` with ``selected + sequence[:j] + s`` not independent.

        ``j`` runs over ``0..len(sequence)``; ``len(sequence) + 1`` means never. A candidate that is itself in the union counts
        once (a set), so it is never blocked.

        Parameters
        ----------
        selected : (s,) int64
        sequence : (j,) int64
            ``selected + sequence`` is independent.
        candidates : (c,) int64

        Returns
        -------
        (c,) int64
        """
        blocked = np.full(len(candidates), len(sequence) + 1, dtype=np.int64)
        outside = ~self._members(selected, sequence)[candidates]
        blocked[outside] = self._first_blocked(selected, sequence, candidates[outside])
        return blocked

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return ``blocking`` for candidates outside ``selected + sequence``."""
        low = np.zeros(len(candidates), dtype=np.int64)  # every j below is feasible
        high = np.full(len(candidates), len(sequence) + 1, dtype=np.int64)
        union = np.concatenate((selected, sequence))
        for start in range(0, len(candidates), _BATCH):
            block = np.arange(start, min(start + _BATCH, len(candidates)))
            while (open_ := block[low[block] < high[block]]).size:
                middle = (low[open_] + high[open_]) // 2
                sets = [np.append(union[: len(selected) + j], s) for j, s in zip(middle, candidates[open_], strict=True)]
                feasible = self.independent_many(sets)
                low[open_] = np.where(feasible, middle + 1, low[open_])
                high[open_] = np.where(feasible, high[open_], middle)
        return low

    def _members(self, *sets: IndexArray) -> BoolArray:
        """Return a mask over all features; a table, because sorting a million candidates is what ``np.isin`` would do."""
        mask = np.zeros(self.n_features, dtype=np.bool_)
        for features in sets:
            mask[features] = True
        return mask
