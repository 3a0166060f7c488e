"""Any monotone set function below a threshold: a cost, a risk or an unfairness that never falls when features are added."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.constraints.checks import finite_number
from fastomp_nvm.constraints.oracle import Oracle
from fastomp_nvm.errors import ConstraintError

if TYPE_CHECKING:
    from fastomp_nvm.constraints.written.document import Item
    from fastomp_nvm.constraints.written.setting import Setting

__all__ = ["Monotone"]


class Monotone(Oracle):
    """Sets with ``h(features) <= threshold``, asked in batches as an :class:`Oracle` is.

    Written ``monotone: {function: module:function, threshold: 0.3, takes: indices|names, rank: 20, workers: 4}``; for local use
    only, because it runs code.

    Parameters
    ----------
    n_features : int
    h : callable
        Takes a sorted int64 array of features, returns a number that does not fall when features are added.
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

    @classmethod
    def from_description(cls, item: Item, setting: Setting) -> Monotone:
        """Read ``monotone: {function, threshold, takes, rank, workers}``."""
        fields = item.fields("function", "threshold", optional=("takes", "rank", "workers"))
        by_name = "takes" in fields and fields["takes"].choice("indices", "names") == "names"
        return cls(
            len(setting.names),
            setting.function(fields["function"], by_name=by_name),
            fields["threshold"].number(),
            rank=fields["rank"].integer() if "rank" in fields else None,
            workers=fields["workers"].integer() if "workers" in fields else 0,
        )

    def _refusal(self, features: IndexArray) -> str:
        """Say by how much the threshold is exceeded."""
        value, threshold = self._at_most.value(np.sort(features)), self._at_most.threshold
        return f"the set function is {value:g} on the selection, above {threshold:g}"


@dataclass(frozen=True, slots=True)
class _AtMost:
    """The question ``h(features) <= threshold``; a class, so that it can be sent to a worker."""

    h: Callable[[IndexArray], float]
    threshold: float

    def value(self, features: IndexArray) -> float:
        """Return ``h`` as a number."""
        number = float(self.h(features))
        if math.isnan(number):
            raise ConstraintError(f"the set function is not a number on a set of {len(features)} features")
        return number

    def __call__(self, features: IndexArray) -> bool:
        """Answer the question."""
        return self.value(features) <= self.threshold
