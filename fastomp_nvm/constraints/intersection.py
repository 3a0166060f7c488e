"""Several constraints at once.

A set is allowed when every part allows it; its blocking index is the earliest of the parts'. Parts that run code of the user's are
asked last, and only about candidates that the others let through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fastomp_nvm.arrays import BoolArray, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.bounds import Bounds
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.errors import ConstraintError

__all__ = ["Intersection", "intersect", "parts_of"]


class Intersection(Constraint):
    """Sets that every part allows. The rank is an upper bound, the smallest of the parts'.

    Parameters
    ----------
    parts : sequence of Constraint
        At least one, all over the same number of features. The parts of an intersection among them become parts of this one.
    """

    def __init__(self, parts: Sequence[Constraint]) -> None:
        self.parts = tuple(inner for part in parts for inner in parts_of(part))
        if not self.parts:
            raise ConstraintError("an intersection of no constraints was asked for: give at least one")
        if len(sizes := sorted({part.n_features for part in self.parts})) > 1:
            raise ConstraintError(f"the constraints are over {' and '.join(map(str, sizes))} features: expected the same number")
        self.n_features = sizes[0]
        self.calls_user_code = any(part.calls_user_code for part in self.parts)
        self.rank_is_bound = any(part.rank_is_bound for part in self.parts)
        self._cheapest_first = sorted(self.parts, key=lambda part: part.calls_user_code)

    @property
    def rank(self) -> int:
        """The smallest rank of the parts."""
        return min(part.rank for part in self.parts)

    @property
    def p(self) -> float | None:
        """The sum of the parts' ``p``, if all are known, and never more than the rank.

        Each element of a base ``S`` outside a base ``U`` is refused by some part, for which ``U`` is then a base among ``U`` and
        the elements it refuses; adding up over the parts, ``|S| <= (p_1 + ... + p_m) |U|``. Cutting a p-system off at a size
        leaves it a p-system, so cardinalities add nothing.
        """
        known = [part.p for part in self.parts if not isinstance(part, Cardinality)]
        if any(p is None for p in known):
            return None
        return float(max(1.0, min(sum(p for p in known if p is not None), self.rank)))

    @property
    def needs_base(self) -> bool:
        """True when a part's lower bounds must be met."""
        return any(part.needs_base for part in self.parts)

    def independent(self, features: IndexArray) -> bool:
        """Tell whether every part allows the set."""
        return all(part.independent(features) for part in self._cheapest_first)

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Return the parts' violations, in the order in which they were written."""
        return tuple(sentence for part in self.parts for sentence in part.violations(features))

    def independent_many(self, sets: Sequence[IndexArray]) -> BoolArray:
        """Ask each part about the sets that are left."""
        allowed = np.ones(len(sets), dtype=np.bool_)
        for part in self._cheapest_first:
            left = np.flatnonzero(allowed)
            allowed[left] = part.independent_many([sets[position] for position in left.tolist()])
        return allowed

    def longest_prefix(self, selected: IndexArray, sequence: IndexArray) -> int:
        """Return the shortest of the parts' prefixes."""
        prefix = len(sequence)
        for part in self._cheapest_first:
            prefix = part.longest_prefix(selected, sequence[:prefix])
        return prefix

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return the earliest of the parts' positions."""
        blocked = np.full(len(candidates), len(sequence) + 1, dtype=np.int64)
        for part in self._cheapest_first:
            if part.calls_user_code:
                left = np.flatnonzero(blocked)
                blocked[left] = np.minimum(blocked[left], part._first_blocked(selected, sequence, candidates[left]))
            else:
                np.minimum(blocked, part._first_blocked(selected, sequence, candidates), out=blocked)
        return blocked


def parts_of(constraint: Constraint) -> tuple[Constraint, ...]:
    """Return the constraints, none of them an intersection, of which ``constraint`` is the intersection."""
    return constraint.parts if isinstance(constraint, Intersection) else (constraint,)


def intersect(parts: Iterable[Constraint]) -> Constraint:
    """Return the intersection of ``parts`` with lower bounds that can be kept.

    Differs from :class:`Intersection` where a cardinality below the total of :class:`Bounds` is among the parts: the bounds get it
    as their total, so that places are kept for their lower bounds. The sets allowed as written stay the same. A single part is
    returned as it is.

    Parameters
    ----------
    parts : iterable of Constraint

    Returns
    -------
    Constraint
    """
    given = [inner for part in parts for inner in parts_of(part)]
    k = min((part.k for part in given if isinstance(part, Cardinality)), default=None)
    if k is not None:
        given = [part.with_total(k) if isinstance(part, Bounds) and k < part.total else part for part in given]
    return given[0] if len(given) == 1 else Intersection(given)
