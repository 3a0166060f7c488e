"""Constraints on the selected features: one family per file, all with the interface :class:`Constraint`.

Constraints written as YAML are read by :mod:`fastomp_nvm.constraints.written.description`, which is not imported here: it needs a
YAML parser, and this package runs with numpy and scipy alone.
"""

from __future__ import annotations

from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.bounds import Bounds
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.constraints.extendable import Extendable, intersect
from fastomp_nvm.constraints.fairness import Fairness, effective_judgements
from fastomp_nvm.constraints.graphic import Graphic
from fastomp_nvm.constraints.intersection import Intersection
from fastomp_nvm.constraints.knapsack import Knapsack
from fastomp_nvm.constraints.laminar import Laminar
from fastomp_nvm.constraints.monotone import Monotone
from fastomp_nvm.constraints.oracle import Counterexample, Oracle, check_downward_closed
from fastomp_nvm.constraints.partition import Partition
from fastomp_nvm.constraints.random_system import RandomSystem

__all__ = [
    "Bounds",
    "Cardinality",
    "Constraint",
    "Counterexample",
    "Extendable",
    "Fairness",
    "Graphic",
    "Intersection",
    "Knapsack",
    "Laminar",
    "Monotone",
    "Oracle",
    "Partition",
    "RandomSystem",
    "check_downward_closed",
    "effective_judgements",
    "intersect",
]
