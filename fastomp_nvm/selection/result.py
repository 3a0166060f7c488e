"""The result of a selection: one typed object, the same for local and remote use, Python and shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, JSONObject
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.selection.answer import Answer

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from sklearn.pipeline import Pipeline

    from fastomp_nvm.selection.model import EncodedRows

__all__ = ["Selection"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Selection(Answer):
    """The answer to a request, which predicts new rows, shows itself and is saved; its fields are those of ``Answer``.

    Methods import what they need: most selections are read, not shown.
    """

    def __repr__(self) -> str:
        from fastomp_nvm.selection import display

        return display.short_selection(self)

    def _repr_html_(self) -> str:
        from fastomp_nvm.selection import display

        return display.selection_html(self)

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per selected column: ``feature``, ``column``, ``coefficient``, ``order`` (from 1)."""
        from fastomp_nvm.selection import display

        return display.selection_frame(self)

    def plot_coefficients(self, ax: Axes | None = None, *, most: int = 30) -> Axes:
        """Draw the coefficients of the first ``most`` columns as bars and return the axes; needs matplotlib."""
        from fastomp_nvm.selection import plots

        return plots.plot_coefficients(self, ax, most)

    def plot_path(self, ax: Axes | None = None) -> Axes:
        """Draw the score after each feature, in order of selection, and return the axes; needs matplotlib."""
        from fastomp_nvm.selection import plots

        return plots.plot_path(self, ax)

    def plot_fairness(self, ax: Axes | None = None) -> Axes:
        """Draw the figures of the groups of the protected attribute and return the axes; needs matplotlib."""
        if self.fairness is None:
            raise DataError("this selection has no fairness report: select with protected=, the groups or the column of them")
        return self.fairness.plot_fairness(ax)

    def predict(self, X: object, *, covariates: object = None, offset: object = None) -> Float64Array:
        """Return the mean response for new observations.

        Parameters
        ----------
        X : table, array, FeatureStore, store URL or path of a file
            A pandas or polars DataFrame or a pyarrow Table with the columns of the table that the store was built from, or with
            the columns of the store: by name, in any order, others are ignored. An array (n, n_columns) has the columns of the
            store in its order. Of a store only the selected columns are read. Files are of the formats that ``ingest`` reads.
            A label that the store does not know is 0 in all indicator columns; a missing cell is treated as the store treated
            its own, and refused if it was built with ``missing="error"``. For a store on a server (``grpc://...``) the server
            computes.
        covariates : optional
            Where the model has covariates that were given beside the data: their values, as for ``select``, matched by name, and
            rows by identifier where both sides have them, otherwise by position. A table ``X`` may have them as columns.
        offset : (n,) float64, optional
            Where the model was fitted with an offset that is no feature of the data.

        Returns
        -------
        (n,) float64
            The response (linear), the probability of ``classes[1]`` (logistic) or the expected count (poisson).
        """
        return self.mean_response(self.decision_function(X, covariates=covariates, offset=offset))

    def predict_proba(self, X: object, *, covariates: object = None, offset: object = None) -> Float64Array:
        """Return the probability (n, 2) of each of ``classes``, for the logistic objective alone; parameters of ``predict``."""
        if self.objective != "logistic":
            raise RequestError(f"a {self.objective} model has no classes: use predict, or select with the logistic objective")
        positive = self.predict(X, covariates=covariates, offset=offset)
        return np.column_stack((1.0 - positive, positive))

    def decision_function(self, X: object, *, covariates: object = None, offset: object = None) -> Float64Array:
        """Return the linear predictor (n,), for the logistic objective log odds of ``classes[1]``; parameters of ``predict``."""
        from fastomp_nvm.selection.model import is_remote
        from fastomp_nvm.stores.builders import PREDICT_REMOTELY

        if isinstance(X, str) and is_remote(X):
            eta, ids = PREDICT_REMOTELY.load()(X, self.linear_model())
        else:
            rows = self.encode(X)
            eta, ids = self.linear_predictor(rows.values), rows.ids
            if covariates is None and self.beside and all(hasattr(X, name) for name in ("columns", "__getitem__")):
                covariates = X
        return eta + self.given_beside(len(eta), ids, covariates, offset)

    def given_beside(self, n_obs: int, ids: Sequence[str] | None, covariates: object = None, offset: object = None) -> Float64Array:
        """Return the part (n_obs,) of the linear predictor that covariates and the offset make, which no column of the data holds.

        Parameters
        ----------
        n_obs : int
        ids : sequence of str, optional
            Identifiers of the observations.
        covariates, offset
            As for ``predict``.
        """
        from fastomp_nvm.selection.covariates import contribution

        return contribution(self, n_obs, ids, covariates, offset)

    def linear_model(self) -> JSONObject:
        """Return the linear predictor of the data's columns in JSON terms, for a server: coefficients, intercept, encoding."""
        names, positions, coef = self.model_columns
        return {
            "columns": names,
            "column_positions": positions.tolist(),
            "n_columns": self.store.n_columns,
            "coef": coef.tolist(),
            "intercept": self.intercept,
            "encoding": None if self.encoding is None else self.encoding.to_json(),
        }

    def encode(
        self,
        X: object,
        *,
        id_column: str | None = None,
        text_encoding: str = "utf-8",
        progress: Callable[[int, int], None] | None = None,
    ) -> EncodedRows:
        """Return new observations in the model's columns (``model_columns``), with counts of unseen labels and filled cells.

        Parameters
        ----------
        X
            As for ``predict``.
        id_column : str, optional
            Column of ``X`` with identifiers, which are returned beside the values; a store has its own.
        text_encoding : str
            Of a text file.
        progress : callable, optional
            Called with (bytes done, bytes to do) while a file is read.

        Returns
        -------
        EncodedRows
        """
        from fastomp_nvm.selection.model import ModelColumns

        names, positions, _ = self.model_columns
        columns = ModelColumns(names, positions, self.store.n_columns, self.encoding)
        return columns.of(X, id_column, text_encoding, progress)

    def save(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Write the model to a JSON file, which ``fastomp_nvm.load`` and ``fastomp predict`` read.

        Parameters
        ----------
        path : str or path
        replace : bool
            Replace a file that exists.
        """
        from fastomp_nvm.selection.model_file import save

        save(self, path, replace=replace)

    def to_sklearn(self) -> Pipeline:
        """Return the model as a fitted scikit-learn ``Pipeline`` over tables; see :mod:`fastomp_nvm.selection.pipeline`."""
        from fastomp_nvm.selection.pipeline import make_pipeline

        return make_pipeline(self)

    def linear_predictor(self, chosen: AnyArray) -> Float64Array:
        """Return the linear predictor (n,) of ``chosen`` (n, c), the model's columns alone, as ``model_columns`` has them."""
        # One layout, whatever the caller's: the last bits of BLAS depend on it.
        return np.asarray(np.ascontiguousarray(chosen, dtype=np.float64) @ self.model_columns[2] + self.intercept)

    def mean_response(self, eta: Float64Array) -> Float64Array:
        """Return the mean response (n,) for linear predictors ``eta`` (n,), on the scale of ``predict``."""
        if self.objective == "logistic":
            return np.asarray(1.0 / (1.0 + np.exp(-np.clip(eta, -700, 700))))
        return np.exp(np.minimum(eta, 600.0)) if self.objective == "poisson" else np.asarray(eta)
