"""What a selection found and what it cost: the fields of a result, and their JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastomp_nvm.arrays import Float64Array, IndexArray, JSONObject

if TYPE_CHECKING:
    from fastomp_nvm.algorithms.certificate import Certificate
    from fastomp_nvm.matrix.choice import Choice
    from fastomp_nvm.selection.criteria import PathPoint
    from fastomp_nvm.selection.fairness import FairnessReport
    from fastomp_nvm.selection.proof import Proof
    from fastomp_nvm.stores.encoding import TableEncoding

__all__ = ["Answer", "DataSize", "KeptColumn"]


class KeptColumn(NamedTuple):
    """A column that the model has beside the selected ones.

    Attributes
    ----------
    feature, column : str
        Of the data, or twice the name of a covariate.
    position : int, optional
        Of the column in the matrix; None for a covariate that was given beside the data.
    coef : float
        In original units.
    """

    feature: str
    column: str
    position: int | None
    coef: float


class DataSize(NamedTuple):
    """Size and element type of the matrix that a selection was made from."""

    n_features: int
    n_columns: int
    n_obs: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, init=False, repr=False)  # made by ``Selection``
class Answer:
    """The answer to a request. Fields that do not apply are None and are left out of the JSON object.

    Attributes
    ----------
    features : sequence of str
        Names, in order of selection.
    indices : (s,) int64
        Feature indices, in order of selection.
    coef : (s,) float64, or list of (d,) float64
        Coefficients in original units: one per feature, or one array per feature if a feature has several columns.
    intercept : float
    score : float
        R^2 (linear) or mean log-likelihood (GLM) of the refit on the selection.
    path : sequence of PathPoint
        Score, AIC, BIC and EBIC of the model on the first feature, the first two, and so on, in order of selection; the criteria
        are computed after selection and are optimistic. For GLMs of all selected features only, unless the set is ``nested``.
    nested : bool
        Whether the first j features are the selection with k = j, so that ``path`` answers every smaller k. In the JSON object
        only when True.
    fairness : FairnessReport, optional
        How the model treats the groups of the attribute that the selection was given as ``protected``.
    columns : sequence of sequence of str
        Column names of each selected feature; in the JSON object only when a feature has several.
    column_positions : (c,) int64
        Positions in the matrix of the columns behind ``coef``, concatenated. Not part of the JSON object.
    kept : sequence of KeptColumn
        Columns that every model has, with their coefficients. Scores are then those beyond them: R^2 is the share that features
        explain of what kept columns leave, and the null model of a GLM contains them. In the JSON object only when there are any.
    offset : str, optional
        Where the part of the linear predictor that was given came from: a column of the data, or ``given``.
    encoding : TableEncoding, optional
        How columns of a table become the selected columns, so that ``predict`` takes such tables. Not part of the JSON object.
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
    quality : str
        As requested.
    guarantee : {"paper", "greedy", "swap-optimal", "swap-optimal (quadratic model)", "optimal"}, optional
        What is known of the selection: Theorem 1 of the paper; at least f of full greedy (of matching pursuit, for GLMs); no
        addition and no exchange of one feature for one, among all features, improves f (for GLMs: of those that promise to, by the
        quadratic model at the fit of the selection); an unconditional certificate bounds every feasible set by f of this one.
    features_covered : int, optional
        Features over which greedy or exchanges were verified.
    proof : Proof, optional
        The verified greedy runs step by step; ``fastomp_nvm.verify`` checks them again.
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
    vectors : int, optional
        Vectors of all full sweeps together.
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
    choices : mapping of str to Choice
        Settings that the request left open (``algorithm``, ``tier``, ``io``, ``threads``, ``gather_bytes``): the value chosen for
        this run, and why; ``run`` and ``greedy``: that a run with a larger k answered this one, or ran greedy for it. In the JSON
        object only when there are any.
    """

    features: Sequence[str]
    indices: IndexArray
    coef: Float64Array | Sequence[Float64Array]
    intercept: float
    score: float
    columns: Sequence[Sequence[str]]
    column_positions: IndexArray
    kept: Sequence[KeptColumn] = ()
    offset: str | None = None
    encoding: TableEncoding | None = None
    pseudo_r2: float | None = None
    null_score: float | None = None
    test_score: float | None = None
    test_fraction: float | None = None
    test_rows: int | None = None
    objective: str
    objective_reason: str | None = None
    algorithm: str
    quality: str = "fast"
    guarantee: str | None = None
    features_covered: int | None = None
    proof: Proof | None = None
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
    vectors: int | None = None
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
    path: Sequence[PathPoint] = ()
    nested: bool = False
    fairness: FairnessReport | None = None
    notes: Sequence[str] = ()
    choices: Mapping[str, Choice] = field(default_factory=dict)

    def to_json(self) -> JSONObject:
        """Return the object that ``select --json`` prints."""
        out: JSONObject = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is not None or (name == "test_score" and self.test_fraction is not None):
                out[name] = asdict(value) if name in ("certificate", "fairness", "proof") else value
        out["store"] = self.store._asdict()
        out["features"] = list(self.features)
        out["indices"] = self.indices.tolist()
        parts = [np.atleast_1d(part) for part in self.coef]
        out["coef"] = [part.tolist() if len(part) > 1 else float(part[0]) for part in parts]
        del out["column_positions"]
        out.pop("encoding", None)
        if len(self.column_positions) == len(self.indices):  # one column per feature, which has its name
            del out["columns"]
        out["choices"] = {name: choice._asdict() for name, choice in self.choices.items()}
        out["path"] = [point._asdict() for point in self.path]
        out["kept"] = [column._asdict() for column in self.kept]
        for name in ("skip_weak", "path", "nested", "notes", "choices", "kept"):
            if not out[name]:
                del out[name]
        return out

    @property
    def column_coef(self) -> Float64Array:
        """Coefficients of the selected columns (c,), in the order of ``column_positions``."""
        return np.concatenate([np.empty(0), *(np.atleast_1d(part) for part in self.coef)])

    @property
    def beside(self) -> Sequence[KeptColumn]:
        """Covariates that the data has no columns for: predictions need their values too."""
        return [column for column in self.kept if column.position is None]

    @property
    def offset_beside(self) -> bool:
        """Whether the model has an offset that is no column of the data: predictions need that of the new rows."""
        return self.offset is not None and not any(column.feature == self.offset for column in self.kept)

    @property
    def model_columns(self) -> tuple[list[str], IndexArray, Float64Array]:
        """Names, positions and coefficients of the columns of the data in the model: the selected ones, then kept ones."""
        kept = [column for column in self.kept if column.position is not None]
        names = [name for part in self.columns for name in part] + [column.column for column in kept]
        positions = np.array([*self.column_positions.tolist(), *(column.position for column in kept)], dtype=np.int64)
        return names, positions, np.append(self.column_coef, [column.coef for column in kept])
