"""The check of baselines that support a cardinality constraint only."""

from __future__ import annotations

from fastomp_nvm.algorithms.protocol import Problem
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.constraints.intersection import parts_of
from fastomp_nvm.errors import RequestError

__all__ = ["only_cardinality"]


def only_cardinality(problem: Problem, algorithm: str) -> int:
    """Return the number of features to select; raise ``RequestError`` for any other constraint."""
    for part in parts_of(problem.constraint):
        if not isinstance(part, Cardinality):
            raise RequestError(
                f"{algorithm} does not support a constraint of type {type(part).__name__}: give k alone, "
                "or choose fast_omp or sds_omp"
            )
    return min(problem.constraint.rank, len(problem.usable))
