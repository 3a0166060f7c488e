"""Algorithms by name."""

from __future__ import annotations

from collections.abc import Callable

from fastomp_nvm.algorithms.protocol import Algorithm, Problem
from fastomp_nvm.registry import Table

__all__ = ["ALGORITHMS", "DRAWING", "GREEDY"]

ALGORITHMS: Table[Callable[[Problem], Algorithm]] = Table(
    "algorithm",
    {
        "dash": "fastomp_nvm.algorithms.dash:dash",
        "fast": "fastomp_nvm.algorithms.fast:fast",
        "fast_omp": "fastomp_nvm.algorithms.fast_omp:fast_omp",
        "isk": "fastomp_nvm.algorithms.isk:isk",
        "lasso": "fastomp_nvm.algorithms.lasso:lasso",
        "random": "fastomp_nvm.algorithms.random:random_base",
        "sds_ma": "fastomp_nvm.algorithms.sds_ma:sds_ma",
        "sds_omp": "fastomp_nvm.algorithms.sds_omp:sds_omp",
        "top_k": "fastomp_nvm.algorithms.top_k:top_k",
    },
)

#: Those whose selection is a set of full greedy.
GREEDY = ("sds_ma", "sds_omp")

#: Those that draw features whatever their scores are.
DRAWING = ("dash", "fast", "random")
