"""The result of a selection: one typed object, the same for local and remote use, Python and shell."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from fastomp_nvm.algorithms.certificate import Certificate
from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray, JSONObject
from fastomp_nvm.errors import DataError
from fastomp_nvm.selection import display, plots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["DataSize", "Selection", "Table"]


@runtime_checkable
class Table(Protocol):
    """A table with named columns: the part of a pandas DataFrame that ``predict`` uses."""

    @property
    def columns(self) -> Container[object]:
        """Names of the columns."""
        ...

    def __getitem__(self, names: list[str]) -> Table: ...

    def to_numpy(self, *, dtype: type[np.float64]) -> Float64Array:
        """Return the values (n, n_columns)."""
        ...


@dataclass(frozen=True, slots=True)
class DataSize:
    """Size and element type of the matrix that a selection was made from."""

    n_features: int
    n_columns: int
    n_obs: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The answer to a request. Fields that do not apply are None and are left out of the JSON object.

    Attributes
    ----------
    features : sequence of str
        Names, in order of selection.
    indices : (s,) int64
        Feature indices, in order of selection.
    coef : sequence of (d,) float64
        Coefficients in original units, one array per feature.
    intercept : float
    score : float
        R^2 (linear) or mean log-likelihood (GLM) of the refit on the selection.
    path : sequence of float, optional
        Score of the refit on the first feature, the first two, and so on, in order of selection (linear objective only).
    columns : sequence of sequence of str
        Column names of each selected feature; in the JSON object only when a feature has several.
    column_positions : (c,) int64
        Positions in the matrix of the columns behind ``coef``, concatenated. Not part of the JSON object.
    pseudo_r2, null_score : float, optional
        GLMs: McFadden's pseudo R^2, and the mean log-likelihood of the model without features.
    test_score, test_fraction : float, optional
        Score on the observations held out (None if undefined, as R^2 of a constant target), and their share.
    test_rows : int, optional
        Observations held out whose weight is not zero.
    objective, algorithm : str
        The objective is the one used, also where the request said ``auto``.
    objective_reason : str, optional
        Why it was chosen, where the request said ``auto``.
    k, seed : int
    epsilon : float
    tau : float or "auto"
    tau_chosen : float, optional
        The best threshold ratio of those that ``tau="auto"`` tried.
    rank : int, optional
        The paper's r, for algorithms that need it: the rank of the constraint, or an estimate of it.
    rank_estimated : bool, optional
        Whether ``rank`` is the size of the largest of a few feasible sets drawn at random.
    until, polish : str
    score_unpolished : float
    skip_weak : bool
    certificate : Certificate, optional
        An upper bound on the objective of every feasible set.
    feasible : bool
    violations : sequence of str
        Parts of the constraint, as written, that the selection breaks.
    gradient_rounds, gradient_calls, independence_rounds, independence_calls : int
        Adaptivity and number of queries, as the paper counts them.
    sweeps : int
    full_passes : float
        Features visited on any tier, divided by the number of features.
    bytes_read, bytes_read_tier, bytes_read_exact : int
        Bytes read from the medium: in all, from the int8 tier, and from the exact matrix.
    bytes_sent, bytes_received, bytes_received_columns, shard_calls : int, optional
        Traffic with the shards of a ``cluster://`` store.
    seconds : float
        Wall time from request to answer, refit included.
    medium, durability : str
    emulated : bool
    tier, kernel : str
    verified : bool
        Whether the checksums of the store were checked first.
    target : str
    classes : sequence of str, optional
        Labels of the classes 0 and 1 (logistic).
    store : DataSize
    other_build : sequence of str, optional
        Differences between the numeric builds that had a part in a durable run.
    notes : sequence of str
        One sentence each on what deserves a second look, such as a feature that alone explains the target; see
        ``fastomp_nvm.selection.notes``. In the JSON object only when there are any.
    """

    features: Sequence[str]
    indices: IndexArray
    coef: Sequence[Float64Array]
    intercept: float
    score: float
    columns: Sequence[Sequence[str]]
    column_positions: IndexArray
    pseudo_r2: float | None = None
    null_score: float | None = None
    test_score: float | None = None
    test_fraction: float | None = None
    test_rows: int | None = None
    objective: str
    objective_reason: str | None = None
    algorithm: str
    k: int
    seed: int
    epsilon: float
    tau: float | str
    tau_chosen: float | None = None
    rank: int | None = None
    rank_estimated: bool | None = None
    until: str
    polish: str
    score_unpolished: float
    skip_weak: bool = False
    certificate: Certificate | None = None
    feasible: bool
    violations: Sequence[str]
    gradient_rounds: int
    gradient_calls: int
    independence_rounds: int
    independence_calls: int
    sweeps: int
    full_passes: float
    bytes_read: int
    bytes_read_tier: int
    bytes_read_exact: int
    bytes_sent: int | None = None
    bytes_received: int | None = None
    bytes_received_columns: int | None = None
    shard_calls: int | None = None
    seconds: float
    medium: str
    durability: str
    emulated: bool
    tier: str
    kernel: str
    verified: bool = False
    target: str
    classes: Sequence[str] | None = None
    store: DataSize
    other_build: Sequence[str] | None = None
    notes: Sequence[str] = ()
    path: Sequence[float] | None = None

    def __repr__(self) -> str:
        return display.short_selection(self)

    def _repr_html_(self) -> str:
        return display.selection_html(self)

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per selected column: ``feature``, ``column``, ``coefficient``, ``order`` (from 1)."""
        return display.selection_frame(self)

    def plot_coefficients(self, ax: Axes | None = None, *, most: int = 30) -> Axes:
        """Draw the coefficients of the first ``most`` columns as bars and return the axes; needs matplotlib."""
        return plots.plot_coefficients(self, ax, most)

    def plot_path(self, ax: Axes | None = None) -> Axes:
        """Draw the score after each feature, in order of selection, and return the axes; needs matplotlib."""
        return plots.plot_path(self, ax)

    def to_json(self) -> JSONObject:
        """Return the object that ``select --json`` prints."""
        out: JSONObject = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is not None or (name == "test_score" and self.test_fraction is not None):
                out[name] = asdict(value) if name in ("certificate", "store") else value
        out["features"] = list(self.features)
        out["indices"] = self.indices.tolist()
        out["coef"] = [part.tolist() if len(part) > 1 else float(part[0]) for part in self.coef]
        del out["column_positions"]
        if len(self.column_positions) == len(self.indices):  # one column per feature, which has its name
            del out["columns"]
        for name in ("skip_weak", "notes"):
            if not out[name]:
                del out[name]
        return out

    def predict(self, X: ArrayLike | Table) -> Float64Array:
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
        if isinstance(X, Table):
            missing = [name for name in names if name not in X.columns]
            if missing:
                raise DataError(f"X lacks the column {missing[0]!r}, which the model uses")
            chosen: AnyArray = X[names].to_numpy(dtype=np.float64)
        else:
            array = np.asarray(X)
            if array.ndim != 2 or array.shape[1] != self.store.n_columns:
                raise DataError(f"X has shape {array.shape}: expected (n, {self.store.n_columns}), the columns of the store")
            chosen = array[:, self.column_positions]
        return self.mean_response(self.linear_predictor(chosen))

    def linear_predictor(self, chosen: AnyArray) -> Float64Array:
        """Return the linear predictor (n,) of ``chosen`` (n, c), the selected columns alone, as ``column_positions`` has them."""
        coef = np.concatenate([np.empty(0), *self.coef])
        # One layout, whatever the caller's: the last bits of BLAS depend on it.
        return np.asarray(np.ascontiguousarray(chosen, dtype=np.float64) @ coef + self.intercept)

    def mean_response(self, eta: Float64Array) -> Float64Array:
        """Return the mean response (n,) for linear predictors ``eta`` (n,), on the scale of ``predict``."""
        if self.objective == "logistic":
            return np.asarray(1.0 / (1.0 + np.exp(-np.clip(eta, -700, 700))))
        return np.exp(np.minimum(eta, 600.0)) if self.objective == "poisson" else np.asarray(eta)
