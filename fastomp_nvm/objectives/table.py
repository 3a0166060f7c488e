"""Objectives by name."""

from __future__ import annotations

from typing import Protocol

from fastomp_nvm.arrays import Float64Array
from fastomp_nvm.matrix.fixed import Fixed
from fastomp_nvm.objectives.base import Objective
from fastomp_nvm.registry import Table

__all__ = ["OBJECTIVES", "ObjectiveClass"]


class ObjectiveClass(Protocol):
    """How an objective is constructed."""

    def __call__(
        self,
        response: Float64Array,
        weights: Float64Array | None = None,
        ridge: float = ...,
        centred: bool = True,
        fixed: Fixed | None = None,
        offset: Float64Array | None = None,
    ) -> Objective:
        """Return the objective for a response (n_obs,) under observation weights (n_obs,)."""
        ...


OBJECTIVES: Table[ObjectiveClass] = Table(
    "objective",
    {
        "linear": "fastomp_nvm.objectives.linear:Linear",
        "logistic": "fastomp_nvm.objectives.logistic:Logistic",
        "poisson": "fastomp_nvm.objectives.poisson:Poisson",
    },
)
