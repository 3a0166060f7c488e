"""Stores of the paper's design, generated block by block, and one refit score for all contestants."""

from __future__ import annotations

import time

import numpy as np

from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.stores.contract import Target
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.schema import TableSchema

__all__ = ["build_paper_design", "centred_fortran", "refit_score"]


def build_paper_design(url: str, n_obs: int, n_features: int, dtype: str = "float32", tier: str = "int8") -> float:
    """Build a store of the paper's design; return the seconds spent generating its columns."""
    design = PaperDesign(n_obs, n_features)
    signal, rho = design.signal(), design.correlations()
    generation = 0.0
    with StoreBuilder(url, TableSchema.plain(n_obs, NumberedNames(n_features)), dtype=dtype, tier=tier) as builder:
        for number in range(-(-n_features // design.block)):
            started = time.perf_counter()
            columns = design.columns(number, signal, rho)
            generation += time.perf_counter() - started
            builder.write_columns(number * design.block, columns)
        builder.finish({"y": Target(design.response())})
    return generation


def refit_score(X: np.ndarray, y: np.ndarray, chosen: np.ndarray) -> float:
    """Return R^2 of least squares on ``chosen`` in float64; the same bits in whichever order they were chosen."""
    design = np.column_stack((np.ones(len(y)), X[:, np.sort(chosen)].astype(np.float64)))
    rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return 1.0 - float(rest @ rest) / float(((y - y.mean()) ** 2).sum())


def centred_fortran(X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return the columns of ``X`` less their means, float64 in Fortran order: the form scikit-learn's OMP first converts to."""
    data = np.empty(X.shape, order="F") if out is None else out
    data[...] = X
    data -= data.mean(axis=0)
    return data
