"""A limit on a monotone set function of the user's, such as a cost, a risk or an unfairness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.constraints.checks import finite_number
from fastomp_nvm.constraints.oracle import Oracle
from fastomp_nvm.errors import ConstraintError

__all__ = ["Monotone"]


class Monotone(Oracle):
    """Sets with ``h(features) <= threshold``, queried in batches like any :class:`Oracle`.

    Written ``monotone: {function: module:function, threshold: 0.3, takes: indices|names, rank: 20, workers: 4}``; for local use
    only, because it runs code.

    Parameters
    ----------
    n_features : int
    h : callable
        Takes a sorted int64 array of features and returns a number; adding features must not lower it.
    threshold : float
    rank, p, workers
        As for :class:`Oracle`.
    """

    def __init__(
        self,
        n_features: int,
        h: Callable[[IndexArray], float],
        threshold: float,
        *,
        rank: int | None = None,
        p: float | None = None,
        workers: int = 0,
    ) -> None:
        if not callable(h):
            raise ConstraintError(f"the set function is a {type(h).__name__}: expected a function of a set of features")
        self._at_most = _AtMost(h, finite_number(threshold, "the threshold"))
        super().__init__(n_features, self._at_most, rank=rank, p=p, workers=workers)

    def _refusal(self, features: IndexArray) -> str:
        """Return the sentence with the value and the threshold."""
        value, threshold = self._at_most.value(np.sort(features)), self._at_most.threshold
        return f"the set function is {value:g} on the selection, above {threshold:g}"


@dataclass(frozen=True, slots=True)
class _AtMost:
    """The predicate ``h(features) <= threshold``, as a class that can be pickled for workers."""

    h: Callable[[IndexArray], float]
    threshold: float

    def value(self, features: IndexArray) -> float:
        """Return ``h(features)``; NaN is an error."""
        number = float(self.h(features))
        if math.isnan(number):
            raise ConstraintError(f"the set function is not a number on a set of {len(features)} features")
        return number

    def __call__(self, features: IndexArray) -> bool:
        """Return whether ``h(features)`` is at most the threshold."""
        return self.value(features) <= self.threshold
