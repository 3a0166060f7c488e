"""Several constraints at once.

A set is independent when it is independent in every part; a blocking index is the smallest over the parts. Parts that run a
function of the user's are queried last, and only about candidates that all other parts allow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.errors import ConstraintError

__all__ = ["Intersection", "parts_of"]


class Intersection(Constraint):
    """Sets that are independent in every part.

    The rank is the smallest rank of the parts: exact for one part with an exact rank beside cardinalities, else an upper bound.

    Parameters
    ----------
    parts : sequence of Constraint
        At least one, all over the same number of features. Nested intersections are flattened.
    """

    def __init__(self, parts: Sequence[Constraint]) -> None:
        self.parts = tuple(inner for part in parts for inner in parts_of(part))
        if not self.parts:
            raise ConstraintError("an intersection needs at least one constraint, none was given")
        if len(sizes := sorted({part.n_features for part in self.parts})) > 1:
            raise ConstraintError(f"the constraints are over {' and '.join(map(str, sizes))} features: expected the same number")
        self.n_features = sizes[0]
        self.calls_user_code = any(part.calls_user_code for part in self.parts)
        several = sum(not isinstance(part, Cardinality) for part in self.parts) > 1
        self.rank_is_bound = several or any(part.rank_is_bound for part in self.parts)
        self.needs_base = any(part.needs_base for part in self.parts)
        self.rank = min(part.rank for part in self.parts)
        # Let S and U be bases. Each element of S outside U is refused by some part, for which U is then a base of U and the
        # elements it refuses; summed over the parts, |S| <= (p_1 + ... + p_m) |U|. Truncating a p-system to a cardinality leaves it
        # a p-system, so cardinalities add nothing.
        known = [part.p for part in self.parts if not isinstance(part, Cardinality)]
        if None not in known:
            self.p = float(max(1.0, min(sum(p for p in known if p is not None), self.rank)))
        self._cheapest_first = sorted(self.parts, key=lambda part: part.calls_user_code)

    @property
    def budget_shares(self) -> Float64Array | None:
        """The sum of the shares of all parts."""
        shares = [share for part in self.parts if (share := part.budget_shares) is not None]
        return np.sum(shares, axis=0) if shares else None

    def burden(self, selected: IndexArray, candidates: IndexArray) -> Float64Array:
        """Return the sum of the burdens in all parts."""
        return np.asarray(np.sum([part.burden(selected, candidates) for part in self.parts], axis=0))

    def independent(self, features: IndexArray) -> bool:
        """Return whether the set is independent in every part."""
        return all(part.independent(features) for part in self._cheapest_first)

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Return the violations of all parts, in the order of the parts."""
        return tuple(sentence for part in self.parts for sentence in part.violations(features))

    def independent_many(self, sets: Sequence[IndexArray]) -> BoolArray:
        """Query each part about the sets that the parts before it allow."""
        allowed = np.ones(len(sets), dtype=np.bool_)
        for part in self._cheapest_first:
            left = np.flatnonzero(allowed)
            allowed[left] = part.independent_many([sets[position] for position in left.tolist()])
        return allowed

    def longest_prefix(self, selected: IndexArray, sequence: IndexArray) -> int:
        """Return the shortest prefix over the parts."""
        prefix = len(sequence)
        for part in self._cheapest_first:
            prefix = part.longest_prefix(selected, sequence[:prefix])
        return prefix

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Return the smallest position over the parts."""
        blocked = np.full(len(candidates), len(sequence) + 1, dtype=np.int64)
        for part in self._cheapest_first:
            if part.calls_user_code:  # query it only about candidates that are not blocked from the start
                left = np.flatnonzero(blocked)
                blocked[left] = np.minimum(blocked[left], part._first_blocked(selected, sequence, candidates[left]))
            else:
                np.minimum(blocked, part._first_blocked(selected, sequence, candidates), out=blocked)
        return blocked


def parts_of(constraint: Constraint) -> tuple[Constraint, ...]:
    """Return the parts of an intersection, or the constraint itself as the only part."""
    return constraint.parts if isinstance(constraint, Intersection) else (constraint,)
