"""The end of a run whose constraint left questions open: a selection that misses a lower bound is replaced by one that does not."""

from __future__ import annotations

from dataclasses import replace

from fastomp_nvm.algorithms.protocol import Algorithm, Problem
from fastomp_nvm.constraints.extendable import Extendable

__all__ = ["repaired"]


def repaired(problem: Problem, algorithm: Algorithm) -> Algorithm:
    """Run ``algorithm``; where its selection breaks the constraint as written, search for one near it that does not."""
    outcome, constraint = (yield from algorithm), problem.constraint
    if not isinstance(constraint, Extendable) or not constraint.violations(outcome.selected):
        return outcome
    found = constraint.repaired(outcome.selected)
    return outcome if found is None else replace(outcome, selected=found, repaired=True, traces=())
