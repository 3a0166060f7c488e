"""Constraint families by their names in written descriptions."""

from __future__ import annotations

from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.registry import Table

__all__ = ["CONSTRAINTS"]

CONSTRAINTS: Table[type[Constraint]] = Table(
    "constraint",
    {
        "bounds": "fastomp_nvm.constraints.bounds:Bounds",
        "cardinality": "fastomp_nvm.constraints.cardinality:Cardinality",
        "fairness": "fastomp_nvm.constraints.fairness:Fairness",
        "graphic": "fastomp_nvm.constraints.graphic:Graphic",
        "knapsack": "fastomp_nvm.constraints.knapsack:Knapsack",
        "laminar": "fastomp_nvm.constraints.laminar:Laminar",
        "monotone": "fastomp_nvm.constraints.monotone:Monotone",
        "oracle": "fastomp_nvm.constraints.oracle:Oracle",
        "partition": "fastomp_nvm.constraints.partition:Partition",
        "random": "fastomp_nvm.constraints.random_system:RandomSystem",
    },
)
