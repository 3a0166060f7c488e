"""The check that baselines without general constraints begin with."""

from __future__ import annotations

from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.constraints.intersection import Intersection
from fastomp_nvm.errors import RequestError
from fastomp_nvm.rounds import Problem

__all__ = ["constraint_parts", "only_cardinality"]


def constraint_parts(constraint: Constraint) -> list[Constraint]:
    """Return the constraints of which ``constraint`` is the intersection."""
    if not isinstance(constraint, Intersection):
        return [constraint]
    return [inner for part in constraint.parts for inner in constraint_parts(part)]


def only_cardinality(problem: Problem, algorithm: str) -> int:
    """Return the number of features to select, or refuse a constraint that says more than that."""
    for part in constraint_parts(problem.constraint):
        if not isinstance(part, Cardinality):
            raise RequestError(
                f"{algorithm} cannot keep a constraint of type {type(part).__name__}: give k alone, or choose fast_omp or sds_omp"
            )
    return min(problem.constraint.rank, len(problem.usable))
