"""The contract of a constraint: a downward-closed family of feature sets (an independence system), queried in bulk.

FAST_OMP asks two questions about many candidates at once: which features still extend a set, and, along a sequence of additions,
the first position at which each candidate stops extending it (its *blocking index*). Downward closure makes the second answer a
single number per candidate. The built-in families compute both in closed form with NumPy. Any other family inherits the bisection
below, which advances all candidates together: each step is one call of ``independent_many``.

A constraint is bound to a number of features when it is built. It never sees data, stores or feature names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray

__all__ = ["Constraint", "Matroid", "first_infeasible"]

# Candidates per bisection, which bounds memory: 8192 sets of 300 features are 20 MB.
_BATCH = 8192


class Constraint(ABC):
    """A downward-closed family of subsets of ``range(n_features)``, its *independent* sets.

    Subclasses set ``n_features`` and ``rank`` and implement ``independent``. Where a closed form exists they also override
    ``_first_blocked``, on which ``blocking`` and ``extensions`` are built. All index arrays are int64 without repetition; a
    ``selected`` set passed in is independent and disjoint from ``sequence``.
    """

    n_features: int

    #: Size of the largest independent set, or the best known upper bound; at most ``n_features``.
    rank: int

    #: A ``p`` for which this is a p-system (1 for a matroid), or None when unknown.
    p: float | None = None

    #: Whether queries run a function of the user's. An intersection queries such parts last, about the remaining candidates only.
    calls_user_code: bool = False

    #: Whether ``rank`` may be far above the size of the largest independent set; algorithms then estimate that size by sampling.
    rank_is_bound: bool = False

    #: Queries so far that were left open and answered with yes: a look-ahead of bounded effort, see ``Extendable``.
    open_questions: int = 0

    #: Whether only maximal sets satisfy the constraint as written (lower bounds); implies ``until="full"``.
    needs_base: bool = False

    @property
    def budget_shares(self) -> Float64Array | None:
        """(n_features,) float64, all above 0: the share of a budget that each feature takes; None where all take the same."""
        return None

    def burden(self, selected: IndexArray, candidates: IndexArray) -> Float64Array:
        """Return, per candidate, the room it would take from further additions to ``selected``; zeros where nothing is known."""
        return np.zeros(len(candidates))

    @abstractmethod
    def independent(self, features: IndexArray) -> bool:
        """Return whether the set ``features`` is in the family."""

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Return one sentence per violation of the constraint *as the user wrote it*; empty when ``features`` satisfies it."""
        return () if self.independent(features) else ("the selection is not independent",)

    def independent_many(self, sets: Sequence[IndexArray]) -> BoolArray:
        """Return ``independent`` of each set. The queries do not depend on each other."""
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
        """Return a number of features, any features, that fit together with ``selected``; 0 when unknown."""
        return 0

    def longest_prefix(self, selected: IndexArray, sequence: IndexArray) -> int:
        """Return the largest ``j`` such that ``selected + sequence[:j]`` is independent."""
        high = min(len(sequence), max(self.rank - len(selected), 0))
        low = min(self.free(selected), high)
        while low < high:  # downward closure: feasibility is monotone in j
            middle = (low + high + 1) // 2
            if self.independent(np.concatenate((selected, sequence[:middle]))):
                low = middle
            else:
                high = middle - 1
        return low

    def blocking(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return, per candidate ``s``, the first ``j`` with ``selected + sequence[:j] + s`` not independent.

        ``j`` runs over ``0..len(sequence)``; ``len(sequence) + 1`` means never. A candidate that is a member of the union already
        is never blocked.

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
        union = np.concatenate((selected, sequence))
        blocked = np.empty(len(candidates), dtype=np.int64)
        for start in range(0, len(candidates), _BATCH):
            batch = candidates[start : start + _BATCH]

            def feasible(where: IndexArray, j: IndexArray, batch: IndexArray = batch) -> BoolArray:
                ends = (len(selected) + j).tolist()
                return self.independent_many([np.append(union[:end], s) for end, s in zip(ends, batch[where], strict=True)])

            high = np.full(len(batch), len(sequence) + 1, dtype=np.int64)
            blocked[start : start + _BATCH] = first_infeasible(feasible, high)
        return blocked

    def _members(self, *sets: IndexArray) -> BoolArray:
        """Return a mask over all features of the members of ``sets``; ``np.isin`` would sort a million candidates instead."""
        mask = np.zeros(self.n_features, dtype=np.bool_)
        for features in sets:
            mask[features] = True
        return mask


class Matroid(Constraint):
    """A constraint whose maximal sets all have the same size, the rank, which subclasses set."""

    p = 1.0


def first_infeasible(feasible: Callable[[IndexArray, IndexArray], BoolArray], high: IndexArray) -> IndexArray:
    """Return, per entry, the first ``j`` from 0 that is not feasible, or ``high`` if none below it is; bisects all entries at once.

    Parameters
    ----------
    feasible : callable
        Takes (m,) positions of entries and (m,) values of ``j``, returns (m,) bool. Once False it stays False for larger ``j``.
    high : (c,) int64
        Overwritten.

    Returns
    -------
    (c,) int64
    """
    low = np.zeros_like(high)
    while (where := np.flatnonzero(low < high)).size:
        middle = (low[where] + high[where]) // 2
        fits = feasible(where, middle)
        low[where] = np.where(fits, middle + 1, low[where])
        high[where] = np.where(fits, high[where], middle)
    return low
