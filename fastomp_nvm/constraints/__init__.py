"""Constraints on the selected features: one family per file, all with the interface :class:`Constraint`.

Each name is imported from its module on first use: a graph needs ``scipy.sparse`` and a Python function a pool of processes, which
a selection without them does not wait for. Constraints written as YAML are read by
:mod:`fastomp_nvm.constraints.written.description`, which needs a YAML parser; this package runs with numpy and scipy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastomp_nvm.registry import lazily

if TYPE_CHECKING:
    from fastomp_nvm.constraints.base import Constraint
    from fastomp_nvm.constraints.bounds import Bounds
    from fastomp_nvm.constraints.cardinality import Cardinality
    from fastomp_nvm.constraints.fairness import Fairness, effective_judgements
    from fastomp_nvm.constraints.graphic import Graphic
    from fastomp_nvm.constraints.intersection import Intersection, intersect
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

__getattr__ = lazily(
    __name__,
    {
        "base": ("Constraint",),
        "bounds": ("Bounds",),
        "cardinality": ("Cardinality",),
        "fairness": ("Fairness", "effective_judgements"),
        "graphic": ("Graphic",),
        "intersection": ("Intersection", "intersect"),
        "knapsack": ("Knapsack",),
        "laminar": ("Laminar",),
        "monotone": ("Monotone",),
        "oracle": ("Counterexample", "Oracle", "check_downward_closed"),
        "partition": ("Partition",),
        "random_system": ("RandomSystem",),
    },
)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
