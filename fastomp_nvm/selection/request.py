"""The request of a selection: one typed object, the same for local and remote use, Python and shell."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.arrays import Float64Array
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.errors import RequestError, near
from fastomp_nvm.objectives.table import OBJECTIVES
from fastomp_nvm.selection.covariates import Covariates, as_covariates

__all__ = ["RequestFields", "SelectionRequest", "make_request", "named_file"]

#: More than a million passes are never useful, and much smaller numbers have no inverse.
_SMALLEST_EPSILON = 1e-6
T = TypeVar("T")

#: Fields of a request -> their allowed values.
_CHOICES = {
    "quality": ("fast", "verified", "best"),
    "until": ("paper", "full"),
    "polish": ("pool", "none"),
    "tier": ("auto", "exact", "int8"),
    "gram": ("auto", "never"),
}
_WHOLE = (int, np.integer)
_REAL = (int, float, np.integer, np.floating)


class RequestFields(TypedDict, total=False):
    """The fields of a ``SelectionRequest`` as keyword arguments."""

    k: int | None
    algorithm: str
    quality: Literal["fast", "verified", "best"]
    objective: str
    constraint: Constraint | Mapping[str, object] | str | os.PathLike[str] | None
    epsilon: float
    tau: float | Literal["auto"]
    seed: int
    until: Literal["paper", "full"]
    polish: Literal["pool", "none"]
    skip_weak: bool
    plain: bool
    ridge: float | None
    standardize: bool
    target: str | None
    weights: ArrayLike | str | None
    offset: ArrayLike | str | None
    test_fraction: float | None
    exclude: Sequence[str]
    keep: Sequence[str]
    keep_inside: bool
    covariates: Covariates | Mapping[str, ArrayLike] | ArrayLike | None
    certificate: bool
    lambda_min: float | None
    gather_bytes: int | None
    tier: Literal["auto", "exact", "int8"]
    gram: Literal["auto", "never"]


@dataclass(frozen=True, slots=True)
class SelectionRequest:
    """Parameters of a selection.

    Attributes
    ----------
    k : int, optional
        Most features to select; optional if the constraint bounds their number.
    algorithm : str
        A name in ``ALGORITHMS``, or ``auto``: by the shape of the data, the constraint and the cost (see ``choose_algorithm`` in
        ``fastomp_nvm.selection.automatic``); the result says which and why.
    quality : {"fast", "verified", "best"}
        Of FAST_OMP's answer. ``fast`` makes up to two passes more on wide data (linear model, with the polish; see
        ``fastomp_nvm.algorithms.again``). ``verified`` is never worse than full matching pursuit nor, for the linear
        model, than full greedy; ``best`` also starts from further seeds and exchanges features until no exchange improves the set
        (standardised columns; for GLMs as far as the quadratic model at the final fit can tell). Both take more passes.
    objective : {"auto", "linear", "logistic", "poisson"}
        ``auto`` chooses by the target: logistic for two classes or values, otherwise linear; the result says which and why. Refused
        where the target may be either (see ``fastomp_nvm.selection.automatic``).
    constraint : Constraint, mapping, YAML text or path of a YAML file, optional
        Further limits on the selection. Files that a YAML file names stand beside it.
    epsilon : float in [1e-6, 1)
        Accuracy: about ``1 / epsilon`` passes.
    tau : float in (0, 1] or "auto"
        The ``m / M`` of the threshold: higher is choosier. ``"auto"`` tries several in the same sweeps and keeps the best set
        (FAST_OMP; other algorithms have no threshold of this kind).
    seed : int
        Seed of the random sequences.
    until : {"paper", "full"}
        ``paper`` stops after ``ceil(1 / epsilon)`` outer iterations, ``full`` when nothing extends the selection.
    polish : {"pool", "none"}
        Whether to run the exact greedy over the gathered columns afterwards and keep the better set.
    skip_weak : bool
        Skip an element of FAST_OMP's sequence if its own score is below the threshold at its turn. Theorem 1 does not cover this.
    plain : bool
        SDS_OMP and SDS_MA: one pass per feature, as published. By default the same answer is found in fewer passes where that is
        expected to be faster.
    ridge : float, optional
        Penalty on squared coefficients of standardised columns; by default 0 (linear) or 1e-4 (GLMs).
    standardize : bool
        False takes the columns as they are, without intercept.
    target : str, optional
        Target or feature of the store that is the response; by default its first target.
    weights : (n_obs,) float64 or str, optional
        Observation weights, or the target or feature of the data that holds them; zero leaves an observation out.
    offset : (n_obs,) float64 or str, optional
        A part of the linear predictor that is given, such as the log of an exposure; for the linear model it is subtracted from the
        response. Or the target or feature of the data that holds it.
    test_fraction : float in (0, 1), optional
        Share of the observations held out of standardisation and fit; ``test_score`` is computed on them. The draw depends on
        ``seed`` and the number of observations only.
    exclude : sequence of str
        Names of features never to select.
    keep : sequence of str
        Features that every model has, by name or pattern (``pc_*``): fitted first, never penalised, and counting neither for k nor
        for the constraint. Scores are those beyond them.
    keep_inside : bool
        Count kept features for k and for the constraint; covariates never are.
    covariates : table, mapping of names to vectors, (n_obs, p) array, or Covariates, optional
        Further columns that every model has, for data without them: one row per observation, in order; ``Covariates`` with
        identifiers are matched with those of the store.
    certificate : bool
        Bound the optimum by one more full pass at the selection; see ``fastomp_nvm.algorithms.certificate``.
    lambda_min : float, optional
        Assumption of the certificate: a lower bound on the smallest eigenvalue of the negative Hessian without penalty, on any
        ``len(selection) + rank`` features; for the linear model, of the Gram matrix of their standardised columns.
    gather_bytes : int, optional
        Memory for gathered columns; columns beyond it are read again when needed, with the same answer. By default half the free
        memory, at most 2.75 GiB.
    tier : {"auto", "exact", "int8"}
        Whether full passes go over the store's int8 tier or over the exact matrix, with the same answer; ``auto`` takes the tier
        where that is faster (see ``worthwhile`` and ``TierAccount`` in ``fastomp_nvm.matrix.tier``).
    gram : {"auto", "never"}
        Whether several linear selections over tall data may be made from Gram matrices of all columns, which take one pass; the
        answer is the same up to rounding. ``auto`` does so where it is less work (see ``fastomp_nvm.selection.compression``).
    """

    k: int | None = None
    algorithm: str = "fast_omp"
    quality: Literal["fast", "verified", "best"] = "fast"
    objective: str = "auto"
    constraint: Constraint | Mapping[str, object] | str | os.PathLike[str] | None = None
    epsilon: float = 0.1
    tau: float | Literal["auto"] = 0.5
    seed: int = 0
    until: Literal["paper", "full"] = "paper"
    polish: Literal["pool", "none"] = "pool"
    skip_weak: bool = False
    plain: bool = False
    ridge: float | None = None
    standardize: bool = True
    target: str | None = None
    weights: Float64Array | str | None = None
    offset: Float64Array | str | None = None
    test_fraction: float | None = None
    exclude: Sequence[str] = ()
    keep: Sequence[str] = ()
    keep_inside: bool = False
    covariates: Covariates | None = None
    certificate: bool = False
    lambda_min: float | None = None
    gather_bytes: int | None = None
    tier: Literal["auto", "exact", "int8"] = "auto"
    gram: Literal["auto", "never"] = "auto"

    def __post_init__(self) -> None:
        """Refuse values outside their domain, one sentence each."""
        if self.algorithm != "auto":
            ALGORITHMS.check(self.algorithm)
        if self.objective != "auto" and self.objective not in OBJECTIVES:
            hint = near(str(self.objective), OBJECTIVES)
            raise RequestError(f"unknown objective {self.objective!r}{hint}: expected one of auto, {', '.join(OBJECTIVES)}")
        for field, allowed in _CHOICES.items():
            if getattr(self, field) not in allowed:
                raise RequestError(f"{field} is {getattr(self, field)!r}: expected {' or '.join(allowed)}")
        if self.quality != "fast" and self.algorithm != "fast_omp":
            raise RequestError(f"quality {self.quality!r} improves on fast_omp, not on {self.algorithm}: leave one of them out")
        if self.k is not None and not (_is(self.k, _WHOLE) and self.k >= 1):
            raise RequestError(f"k is {self.k!r}: expected a whole number of at least 1")
        if not (_is(self.epsilon, _REAL) and _SMALLEST_EPSILON <= self.epsilon < 1):
            raise RequestError(f"epsilon is {self.epsilon!r}: expected a number of at least {_SMALLEST_EPSILON:g} and below 1")
        if self.tau != "auto" and not (_is(self.tau, _REAL) and 0 < self.tau <= 1):
            raise RequestError(f"tau is {self.tau!r}: expected a number above 0 and at most 1, or auto")
        for field in ("skip_weak", "plain", "certificate", "keep_inside"):
            if not isinstance(getattr(self, field), (bool, np.bool_)):
                raise RequestError(f"{field} is {getattr(self, field)!r}: expected True or False")
        if self.lambda_min is not None and not (_is(self.lambda_min, _REAL) and 0 < self.lambda_min < math.inf):
            raise RequestError(f"lambda_min is {self.lambda_min!r}: expected a number above 0")
        if not (_is(self.seed, _WHOLE) and 0 <= self.seed < 2**64):
            raise RequestError(f"seed is {self.seed!r}: expected a whole number from 0 to 2^64 - 1")
        if self.ridge is not None and not (_is(self.ridge, _REAL) and 0 <= self.ridge < math.inf):
            raise RequestError(f"ridge is {self.ridge!r}: expected a number of at least 0")
        if self.test_fraction is not None and not (_is(self.test_fraction, _REAL) and 0 < self.test_fraction < 1):
            raise RequestError(f"test_fraction is {self.test_fraction!r}: expected a number between 0 and 1, both excluded")
        for field in ("exclude", "keep"):
            if isinstance(getattr(self, field), str):
                raise RequestError(f"{field} is {getattr(self, field)!r}: expected a list of feature names")
        object.__setattr__(self, "covariates", as_covariates(self.covariates))
        if self.gather_bytes is not None and not (_is(self.gather_bytes, _WHOLE) and self.gather_bytes >= 1):
            raise RequestError(f"gather_bytes is {self.gather_bytes!r}: expected a whole number of at least 1")
        if self.offset is not None and not isinstance(self.offset, str):
            offset = np.asarray(self.offset, dtype=np.float64)
            if offset.ndim != 1 or not np.isfinite(offset).all():
                raise RequestError("the offset must be a vector of finite numbers, one per observation")
            object.__setattr__(self, "offset", offset)
        if self.weights is not None and not isinstance(self.weights, str):
            weights = np.asarray(self.weights, dtype=np.float64)
            if weights.ndim != 1 or not np.isfinite(weights).all() or weights.min(initial=0.0) < 0 or not weights.any():
                raise RequestError("weights must be a vector of finite numbers, none negative, not all zero")
            object.__setattr__(self, "weights", weights)

    @property
    def beside(self) -> bool:
        """Whether every model has columns beside the intercept."""
        return bool(len(self.keep)) or self.covariates is not None


def make_request(fields: Mapping[str, object], *, files: bool = True) -> SelectionRequest:
    """Return the request with these fields; a field that does not exist is named in the error.

    ``files`` allows a text to name a constraint file (:func:`named_file`); a server does not allow it.
    """
    known = SelectionRequest.__dataclass_fields__
    for field in fields:
        if field not in known:
            raise RequestError(f"a selection has no parameter {field!r}{near(field, known)}: expected one of {', '.join(known)}")
    if files and isinstance(fields.get("constraint"), str):
        fields = {**fields, "constraint": named_file(fields["constraint"])}
    return SelectionRequest(**fields)  # type: ignore[arg-type]  # checked by SelectionRequest


def named_file(constraint: T) -> T | Path:
    """Return the path of a constraint file given as text (one line that ends in .yaml or .yml), and anything else as it is."""
    if not isinstance(constraint, str) or not constraint.endswith((".yaml", ".yml")) or "\n" in constraint or ": " in constraint:
        return constraint
    if not os.path.isfile(constraint):
        raise RequestError(f"there is no constraint file {constraint}: expected the path of a YAML file, or YAML text")
    return Path(constraint)


def _is(value: object, kinds: tuple[type, ...]) -> bool:
    """Return whether ``value`` is a number of one of these kinds and not a truth value."""
    return isinstance(value, kinds) and not isinstance(value, bool)
