"""The one output of a selection, the same for local and remote use, Python and shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.errors import DataError

__all__ = ["Selection"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The answer to a request.

    Attributes
    ----------
    features : list of str
        Names, in order of selection.
    indices : (s,) int64
        Feature indices, in order of selection.
    columns : list of list of str
        Column names of each selected feature.
    coef : list of (d,) float64
        Coefficients in original units, one array per feature.
    column_positions : (c,) int64
        Columns of the matrix behind ``coef``, concatenated.
    intercept : float
    score : float
        R^2 (linear) or mean log-likelihood (GLM) of the refit on the selection.
    details : mapping
        Every other field of the JSON object, in its order. ``rank`` is the paper's ``r``, for algorithms that need it: the
        constraint's rank or, where that is but a loose bound and ``rank_estimated`` is true, the size of the largest of a few
        feasible sets drawn at random.
    """

    features: Sequence[str]
    indices: IndexArray
    columns: Sequence[Sequence[str]]
    coef: Sequence[Float64Array]
    column_positions: IndexArray
    intercept: float
    score: float
    details: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name != "details" and name in self.details:  # "details" itself is absent while a copy is being unpickled
            return self.details[name]
        raise AttributeError(f"a selection has no field {name!r}")

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``select --json`` prints."""
        several = any(len(part) > 1 for part in self.coef)
        out: dict[str, Any] = {
            "features": list(self.features),
            "indices": [int(index) for index in self.indices],
            "coef": [float(part[0]) if len(part) == 1 else [float(value) for value in part] for part in self.coef],
            "intercept": float(self.intercept),
            "score": float(self.score),
        }
        if several:
            out["columns"] = [list(part) for part in self.columns]
        out.update(self.details)
        return out

    def predict(self, X: Any) -> Float64Array:
        """Return predictions for new observations.

        Parameters
        ----------
        X : (n, n_columns) array or DataFrame
            Observations with the columns of the store, in its order (a DataFrame may hold the selected columns alone, by name).

        Returns
        -------
        (n,) float64
            The response (linear), the probability of class 1 (logistic) or the expected count (poisson).
        """
        names = [name for part in self.columns for name in part]
        if hasattr(X, "columns"):
            missing = [name for name in names if name not in X.columns]
            if missing:
                raise DataError(f"X lacks the column {missing[0]!r}, which the model uses")
            chosen = X[names].to_numpy(dtype=np.float64) if names else np.empty((len(X), 0))
        else:
            array = np.asarray(X)
            expected = int(self.details["store"]["n_columns"])
            if array.ndim != 2 or array.shape[1] != expected:
                raise DataError(f"X has shape {array.shape}: expected (n, {expected}), the columns of the store")
            chosen = array[:, self.column_positions].astype(np.float64)
        return self.mean_response(self.linear_predictor(chosen))

    def linear_predictor(self, chosen: AnyArray) -> Float64Array:
        """Return the linear predictor (n,) of ``chosen`` (n, c), the selected columns alone, as ``column_positions`` has them."""
        coef = np.concatenate(self.coef) if len(self.coef) else np.empty(0)
        # One layout, whatever the caller's: the last bits of BLAS depend on it.
        return np.asarray(np.ascontiguousarray(chosen, dtype=np.float64) @ coef + self.intercept)

    def mean_response(self, eta: Float64Array) -> Float64Array:
        """Return what the model expects where the linear predictor is ``eta`` (n,), on the scale of ``predict``."""
        if self.details["objective"] == "logistic":
            return np.asarray(1.0 / (1.0 + np.exp(-np.clip(eta, -700, 700))))
        return np.exp(np.minimum(eta, 600.0)) if self.details["objective"] == "poisson" else np.asarray(eta)
