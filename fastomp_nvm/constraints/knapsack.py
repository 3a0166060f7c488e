"""A cost per feature and a budget for the selection.

Sums of floating-point costs depend on their order, and ten times 0.1 is not 1: a family defined by them is neither downward closed
nor what the user meant. So costs are counted in whole *ticks*, 2^-40 of the budget, rounded down. Sums of ticks are exact in any
order, no set within the budget is refused, and an accepted set exceeds it by less than a trillionth of it per feature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.checks import array_of, finite_number, whole_number
from fastomp_nvm.errors import ConstraintError

__all__ = ["BUDGET_TICKS", "Knapsack"]

#: Ticks in a budget.
BUDGET_TICKS = 2.0**40


class Knapsack(Constraint):
    """Sets whose costs add up to at most ``budget``. The rank is exact; ``p`` is the ratio of the extreme costs, rounded up.

    Written ``knapsack: {costs: costs.csv, budget: 100}`` (columns ``feature,cost``) or with a mapping of features to costs;
    ``default`` is the cost of a feature that is not listed.

    Parameters
    ----------
    n_features : int
    costs : (n_features,) float
        Not negative.
    budget : float
    """

    def __init__(self, n_features: int, costs: npt.ArrayLike, budget: float) -> None:
        self.n_features = whole_number(n_features, "the number of features")
        self.budget = finite_number(budget, "the budget", minimum=0)
        self.costs = array_of(costs, "the costs").astype(np.float64)
        self.costs.flags.writeable = False
        if self.costs.shape != (self.n_features,):
            raise ConstraintError(f"the costs have shape {self.costs.shape}: expected ({self.n_features},)")
        wrong = ~(np.isfinite(self.costs) & (self.costs >= 0))
        if wrong.any():
            feature = int(wrong.argmax())
            raise ConstraintError(f"feature {feature} costs {self.costs[feature]:g}: expected a finite number of at least 0")
        with np.errstate(over="ignore"):  # an infinite number of ticks is over any budget
            scale = self.costs / self.budget if self.budget > 0 else np.where(self.costs > 0, 2.0, 0.0)
        # Whole numbers in float64, exact to 2^53: a sum large enough to be rounded is far over the budget already.
        self.ticks = np.floor(scale * BUDGET_TICKS)
        cheapest_first = np.cumsum(np.sort(self.ticks))
        self.rank = int(np.searchsorted(cheapest_first, BUDGET_TICKS, side="right"))
        # Over the costs above 0 and within the budget. For bases S and U take the cheapest e in S - U: as U + e is over the budget
        # that S keeps, cost(U - S) > cost(S - U) - cost(e), hence |S - U| < most / least * |U - S| + 1.
        paid = self.ticks[(self.ticks > 0) & (self.ticks <= BUDGET_TICKS)]
        self.p = 1.0 if not paid.size else float(min(math.ceil(paid.max() / paid.min()), max(self.rank, 1)))

    @property
    def budget_shares(self) -> Float64Array | None:
        """The cost of each feature as a share of the budget; a tick for a feature without cost."""
        shares = np.maximum(self.ticks, 1.0) / BUDGET_TICKS
        return shares if (shares != shares[:1]).any() else None

    def burden(self, selected: IndexArray, candidates: IndexArray) -> Float64Array:
        """Return the cost of each candidate as a share of the budget."""
        return self.ticks[candidates] / BUDGET_TICKS

    def independent(self, features: IndexArray) -> bool:
        """Return whether the budget pays for all ``features``."""
        return bool(self.ticks[features].sum() <= BUDGET_TICKS)

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Name the cost of the selection when it exceeds the budget."""
        if self.independent(features):
            return ()
        return (f"the selected features cost {math.fsum(self.costs[features]):g}, more than the budget of {self.budget:g}",)

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return the position from which the remaining budget does not pay for the candidate."""
        spent = np.cumsum(np.append(self.ticks[selected].sum(), self.ticks[sequence]))
        return np.searchsorted(spent, BUDGET_TICKS - self.ticks[candidates], side="right").astype(np.int64)
