"""The trace of a greedy run: which feature won each step, which came second, and by how much.

A trace is small, and anyone with the data can retrace it in one pass (:func:`fastomp_nvm.algorithms.verified.retraced`): the sets
before its steps follow from its winners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CLOSE", "Trace"]

#: Relative margin below which the winner and the runner-up of a step are interchangeable.
CLOSE = 1e-6


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of a greedy run, one entry each.

    Attributes
    ----------
    kind : {"omp", "exact gains"}
        What greedy maximises: the score at the current model (SDS_OMP), or the gain of f (SDS_MA, linear model).
    winners : sequence of int
        The features, in order of selection.
    runners_up : sequence of int
        The second best feature that could have been added instead; -1 where there was no other.
    margins : sequence of float
        By how much the winner's score exceeds that of the runner-up, relative to its own; 1 where there was no other.
    """

    kind: str
    winners: Sequence[int]
    runners_up: Sequence[int]
    margins: Sequence[float]
