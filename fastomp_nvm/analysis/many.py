"""Many selections for the price of one scan: grids of parameters, cross-validated choice of k, stability under subsampling.

All of them are lists of requests answered in shared sweeps; each answer has the bits of the request run alone. Folds and subsamples
are observation weights of 0 and 1 on the one stored matrix: means, norms and fits of a fold see its training observations and
nothing else, and no copy of the data is made. This module knows no media, only requests and what they cost together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.fairness import Fairness
from fastomp_nvm.constraints.intersection import intersect, parts_of
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Observer
from fastomp_nvm.errors import ConstraintError, DataError, RequestError
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.objectives.table import OBJECTIVES
from fastomp_nvm.random_keys import mix
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import as_dataset, make_request, resolve_response, select_shared
from fastomp_nvm.stores.open import open_store

__all__ = ["Cell", "CrossValidation", "Grid", "Sharing", "Stability", "cross_validate", "grid", "stability"]

#: First words of the draws: the same seed also draws permutations of features, which must have nothing to do with them.
_FOLDS, _SUBSAMPLE = 0x666F_6C64, 0x7375_6273


@dataclass(frozen=True, slots=True)
class Sharing:
    """What selections took from the medium together, and what they would have taken one by one.

    Attributes
    ----------
    bytes_read, bytes_read_alone : int
    full_passes, full_passes_alone : float
    """

    bytes_read: int
    bytes_read_alone: int
    full_passes: float
    full_passes_alone: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a grid: what was varied, and the answer there."""

    settings: Mapping[str, Any]
    selection: Selection


@dataclass(frozen=True, slots=True)
class Grid:
    """The answers of a grid.

    Attributes
    ----------
    cells : sequence of Cell
        The last field of the grid varies fastest.
    sharing : Sharing
    """

    cells: Sequence[Cell]
    sharing: Sharing

    @property
    def best(self) -> Cell:
        """The cell with the highest score among those whose answer is feasible (among all, when none is); the first of equals."""
        feasible = [cell for cell in self.cells if cell.selection.feasible] or self.cells
        return max(feasible, key=lambda cell: cell.selection.score)

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``grid --json`` prints."""
        best = next(place for place, cell in enumerate(self.cells) if cell is self.best)
        cells = [{"settings": dict(cell.settings), **cell.selection.to_json()} for cell in self.cells]
        return {"cells": cells, "best": best, **asdict(self.sharing)}


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """The choice of k.

    Attributes
    ----------
    ks : (m,) int64
        Ascending.
    scores : (m, n_folds) float64
        On the held-out observations of each fold: R^2, or mean log-likelihood.
    mean, standard_error : (m,) float64
        Over the folds.
    best_k : int
        The k with the highest mean; the smallest among equals.
    one_standard_error_k : int
        The smallest k whose mean is within one standard error of the best.
    k : int
        The one that the rule chose.
    selection : Selection
        With this k, on all observations.
    fold_of : (n_obs,) int64
        The fold in which each observation is held out.
    fold_selections : sequence of sequence of Selection
        By k and fold.
    sharing : Sharing
    """

    ks: IndexArray
    scores: Float64Array
    mean: Float64Array
    standard_error: Float64Array
    best_k: int
    one_standard_error_k: int
    k: int
    selection: Selection
    fold_of: IndexArray
    fold_selections: Sequence[Sequence[Selection]]
    sharing: Sharing

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``cv --json`` prints."""
        return {
            "ks": self.ks.tolist(),
            "mean": self.mean.tolist(),
            "standard_error": self.standard_error.tolist(),
            "scores": self.scores.tolist(),
            "folds": self.scores.shape[1],
            "best_k": self.best_k,
            "one_standard_error_k": self.one_standard_error_k,
            "k": self.k,
            "selection": self.selection.to_json(),
            **asdict(self.sharing),
        }


@dataclass(frozen=True, slots=True)
class Stability:
    """How often each feature is selected when half of the observations are drawn anew (Meinshausen and Buhlmann 2010).

    Attributes
    ----------
    frequencies : (n_features,) float64
        Share of the subsamples in which the feature was selected.
    indices : (s,) int64
        Features selected at least once, the most frequent first, the lower index first among equals.
    features : list of str
        Their names.
    stable : list of str
        Those selected in at least the share ``threshold`` of the subsamples.
    threshold, fraction : float
    subsamples : int
    average_size : float
        Features selected per subsample, on average.
    expected_false : float or None
        Their bound ``q^2 / ((2 threshold - 1) n_features)`` on the expected number of irrelevant features among the stable ones,
        for exchangeable ones and halves of the data; None for other fractions and thresholds up to one half.
    sharing : Sharing
    """

    frequencies: Float64Array
    indices: IndexArray
    features: Sequence[str]
    stable: Sequence[str]
    threshold: float
    fraction: float
    subsamples: int
    average_size: float
    expected_false: float | None
    sharing: Sharing

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``stability --json`` prints; features that were never selected are left out."""
        return {
            "features": list(self.features),
            "indices": self.indices.tolist(),
            "frequencies": self.frequencies[self.indices].tolist(),
            "stable": list(self.stable),
            "threshold": self.threshold,
            "fraction": self.fraction,
            "subsamples": self.subsamples,
            "average_size": self.average_size,
            "expected_false": self.expected_false,
            **asdict(self.sharing),
        }


def grid(
    data: Any,
    y: Any = None,
    *,
    over: Mapping[str, Sequence[Any]],
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
    **request: Any,
) -> Grid:
    """Answer every combination of parameters in shared sweeps.

    Parameters
    ----------
    data, y, threads, names, observer, cancelled
        As for ``select``.
    over : mapping of str to sequence
        Fields of ``SelectionRequest`` and the values each takes: ``{"tau": [0.3, 0.5], "k": [5, 10]}``. ``lambda`` replaces the
        limit of every fairness constraint.
    **request
        The fields that stay the same.

    Returns
    -------
    Grid
    """
    for field, values in over.items():
        if isinstance(values, str) or not len(values):
            raise RequestError(f"the grid over {field!r} is {values!r}: expected a list of at least one value")
    with _opened(data, names) as dataset:
        limits = {}
        if "lambda" in over:
            written = _parsed(dataset, request)
            limits = {limit: _with_limit(written, limit) for limit in over["lambda"]}
        settings = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
        requests = []
        for each in settings:
            fields = {**request, **{field: value for field, value in each.items() if field != "lambda"}}
            requests.append(make_request({**fields, "constraint": limits[each["lambda"]]} if limits else fields))
        selections, traffic = select_shared(dataset, requests, y, threads=threads, observer=observer, cancelled=cancelled)
        cells = [Cell(each, selection) for each, selection in zip(settings, selections, strict=True)]
        return Grid(cells, _sharing(dataset, traffic, selections))


def cross_validate(
    data: Any,
    y: Any = None,
    *,
    folds: int | Sequence[int] | IndexArray = 5,
    ks: Sequence[int] | None = None,
    k_max: int | None = None,
    rule: Literal["best", "one-standard-error"] = "best",
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
    **request: Any,
) -> CrossValidation:
    """Choose k by cross-validation, all folds and all k in shared sweeps.

    For each k and each fold a selection of at most k features is made, standardised and fitted on the training observations alone,
    and its refit is scored on the held-out ones. The selections of every k on all observations ride along, so that the final one
    costs no further scan.

    Parameters
    ----------
    data, y, threads, names, observer, cancelled
        As for ``select``.
    folds : int or (n_obs,) int64
        How many, drawn by the request's ``seed`` with classes spread evenly; or the fold of each observation, from 0.
    ks : sequence of int, optional
        What k to try; or
    k_max : int, optional
        try 1 to ``k_max``.
    rule : {"best", "one-standard-error"}
        How k is chosen.
    **request
        The other fields of ``SelectionRequest``. Observation weights weigh training and scores alike.

    Returns
    -------
    CrossValidation
    """
    tried = _tried(ks, k_max)
    if rule not in ("best", "one-standard-error"):
        raise RequestError(f"rule is {rule!r}: expected best or one-standard-error")
    if request.get("k") is not None:
        raise RequestError("cross-validation chooses k itself: give ks or k_max instead")
    common = _checked(request)
    with _opened(data, names) as dataset:
        response, _, _ = resolve_response(dataset, common, y)
        fold_of = _folds(dataset.n_obs, folds, common, response)
        every = np.ones(dataset.n_obs) if common.weights is None else common.weights
        n_folds = int(fold_of.max()) + 1
        training = [np.where(fold_of == fold, 0.0, every) for fold in range(n_folds)]
        held_out = [np.where(fold_of == fold, every, 0.0) for fold in range(n_folds)]
        if not all(weights.any() for weights in (*training, *held_out)):
            raise RequestError("a fold holds no observation with weight, or all of them: choose fewer folds")
        requests = [make_request({**request, "k": k, "weights": weights}) for k in tried for weights in training]
        requests += [make_request({**request, "k": k}) for k in tried]
        selections, traffic = select_shared(dataset, requests, y, threads=threads, observer=observer, cancelled=cancelled)
        objective = OBJECTIVES.load(common.objective)(response, common.weights, centred=common.standardize)
        by_k = [selections[place * n_folds : (place + 1) * n_folds] for place in range(len(tried))]
        scoring = Traffic()
        scores = np.array(
            [
                [objective.score(_predictor(dataset, selection, scoring), held_out[fold]) for fold, selection in enumerate(row)]
                for row in by_k
            ]
        )
        if not np.isfinite(scores).all():
            raise DataError("the target is constant on the held-out observations of a fold: choose fewer folds")
        traffic.include(scoring)
        sharing = _sharing(dataset, traffic, selections, scoring)
    mean, error = scores.mean(axis=1), scores.std(axis=1, ddof=1) / math.sqrt(n_folds)
    best = int(np.argmax(mean))
    within = int(np.flatnonzero(mean >= mean[best] - error[best])[0])
    chosen = best if rule == "best" else within
    return CrossValidation(
        ks=np.array(tried, dtype=np.int64),
        scores=scores,
        mean=mean,
        standard_error=error,
        best_k=tried[best],
        one_standard_error_k=tried[within],
        k=tried[chosen],
        selection=selections[len(tried) * n_folds + chosen],
        fold_of=fold_of,
        fold_selections=by_k,
        sharing=sharing,
    )


def stability(
    data: Any,
    y: Any = None,
    *,
    subsamples: int = 50,
    fraction: float = 0.5,
    threshold: float = 0.6,
    threads: int | None = None,
    names: Sequence[str] | None = None,
    observer: Observer | None = None,
    cancelled: Callable[[], bool] | None = None,
    **request: Any,
) -> Stability:
    """Select on random subsamples of the observations, all in shared sweeps, and count how often each feature is selected.

    Parameters
    ----------
    data, y, threads, names, observer, cancelled
        As for ``select``.
    subsamples : int
        How many, drawn by the request's ``seed`` without replacement, classes in proportion.
    fraction : float in (0, 1)
        Share of the observations in each.
    threshold : float in (0, 1]
        Share of the subsamples from which on a feature counts as stable.
    **request
        Fields of ``SelectionRequest``.

    Returns
    -------
    Stability
    """
    if isinstance(subsamples, bool) or not isinstance(subsamples, (int, np.integer)) or subsamples < 1:
        raise RequestError(f"subsamples is {subsamples!r}: expected a whole number of at least 1")
    if not 0 < fraction < 1:
        raise RequestError(f"fraction is {fraction!r}: expected a number between 0 and 1, both excluded")
    if not 0 < threshold <= 1:
        raise RequestError(f"threshold is {threshold!r}: expected a number above 0 and at most 1")
    common = _checked(request)
    with _opened(data, names) as dataset:
        response, _, _ = resolve_response(dataset, common, y)
        every = np.ones(dataset.n_obs) if common.weights is None else common.weights
        drawn = [_subsample(dataset.n_obs, fraction, common, response, draw) for draw in range(subsamples)]
        if not all(every[rows].any() for rows in drawn):
            raise RequestError(f"a subsample of {fraction:g} of the observations holds none with weight: take a larger fraction")
        requests = [make_request({**request, "weights": np.where(rows, every, 0.0)}) for rows in drawn]
        selections, traffic = select_shared(dataset, requests, y, threads=threads, observer=observer, cancelled=cancelled)
        sharing = _sharing(dataset, traffic, selections)
        counts = np.bincount(np.concatenate([found.indices for found in selections]), minlength=dataset.n_features)
        indices = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        features = [dataset.names[index] for index in indices.tolist()]
    frequencies = counts / subsamples
    size = float(counts.sum()) / subsamples
    bounded = threshold > 0.5 and fraction == 0.5
    return Stability(
        frequencies=frequencies,
        indices=indices,
        features=features,
        stable=[name for name, index in zip(features, indices, strict=True) if frequencies[index] >= threshold],
        threshold=threshold,
        fraction=fraction,
        subsamples=subsamples,
        average_size=size,
        expected_false=size**2 / ((2 * threshold - 1) * len(counts)) if bounded else None,
        sharing=sharing,
    )


@contextmanager
def _opened(data: Any, names: Sequence[str] | None) -> Iterator[Dataset]:
    """Give the data set behind what the caller gave; a store opened for it is closed again."""
    if isinstance(data, str):
        with open_store(data) as store:
            yield Dataset.of_store(store)
    else:
        yield as_dataset(data, names)


def _checked(request: Mapping[str, Any]) -> SelectionRequest:
    """Return the request that all have in common; its k does not matter."""
    if request.get("test_fraction") is not None:
        raise RequestError("folds and subsamples hold observations out themselves: leave test_fraction out")
    return make_request({**request, "k": 1})


def _tried(ks: Sequence[int] | None, k_max: int | None) -> list[int]:
    """Return the sizes to try, ascending, each once."""
    if (ks is None) == (k_max is None):
        raise RequestError("give either ks, a list of sizes to try, or k_max")
    given = list(ks) if ks is not None else list(range(1, (k_max or 0) + 1))
    if not given:
        raise RequestError("there is no size to try: expected at least one k")
    for k in given:
        make_request({"k": k})
    return sorted({int(k) for k in given})


def _folds(n_obs: int, folds: int | Sequence[int] | IndexArray, request: SelectionRequest, response: Float64Array) -> IndexArray:
    """Return the fold of each observation."""
    if not isinstance(folds, (int, np.integer)):
        given = np.asarray(folds)
        if given.shape != (n_obs,) or given.dtype.kind not in "iu" or given.min() < 0 or given.max() < 1:
            raise RequestError(f"folds must be a whole number, or {n_obs} of them from 0, at least two different ones")
        return given.astype(np.int64)
    if isinstance(folds, bool) or not 2 <= folds <= n_obs:
        raise RequestError(f"folds is {folds!r}: expected a whole number from 2 to the {n_obs} observations")
    fold_of = np.empty(n_obs, dtype=np.int64)
    fold_of[_shuffled(n_obs, (_FOLDS, int(request.seed)), request, response)] = np.arange(n_obs) % folds
    return fold_of


def _subsample(n_obs: int, fraction: float, request: SelectionRequest, response: Float64Array, draw: int) -> BoolArray:
    """Draw a share of the observations."""
    order = _shuffled(n_obs, (_SUBSAMPLE, int(request.seed), draw), request, response)
    inside = np.zeros(n_obs, dtype=np.bool_)
    inside[order] = np.diff(np.floor(np.arange(n_obs + 1) * fraction)) > 0  # evenly along the order, so from every class
    return inside


def _shuffled(n_obs: int, words: tuple[int, ...], request: SelectionRequest, response: Float64Array) -> IndexArray:
    """Return the observations in random order, class after class where there are classes."""
    keys = mix(words, np.arange(n_obs))
    return np.lexsort((keys, response)) if request.objective == "logistic" else np.argsort(keys)


def _predictor(dataset: Dataset, selection: Selection, traffic: Traffic) -> Float64Array:
    """Return the linear predictor (n_obs,) of a selection, its columns read again and counted."""
    rows = Sweeper(1).gather(dataset.matrix, selection.column_positions)
    traffic.add(len(selection.indices), rows.nbytes)
    return selection.linear_predictor(rows.T)


def _sharing(dataset: Dataset, traffic: Traffic, selections: Sequence[Selection], besides: Traffic | None = None) -> Sharing:
    """Compare the shared traffic with that of the selections one by one, and ``besides``."""
    extra = besides if besides is not None else Traffic()
    return Sharing(
        bytes_read=traffic.bytes_read,
        bytes_read_alone=sum(selection.bytes_read for selection in selections) + extra.bytes_read,
        full_passes=traffic.features_visited / dataset.n_features,
        full_passes_alone=sum(selection.full_passes for selection in selections) + extra.features_visited / dataset.n_features,
    )


def _parsed(dataset: Dataset, request: Mapping[str, Any]) -> Constraint:
    """Return the constraint of a request whose limits are to be varied."""
    given = request.get("constraint")
    if given is None:
        raise ConstraintError("a grid over lambda needs a constraint with a fairness part: give one")
    if isinstance(given, Constraint):
        return given
    usable = dataset.design(request.get("standardize", True)).standardisation.usable()
    from fastomp_nvm.constraints.written.description import parse_constraint  # needs a YAML parser

    return parse_constraint(given, dataset.names, usable=usable)


def _with_limit(constraint: Constraint, limit: float) -> Constraint:
    """Return the constraint with this limit in each of its fairness parts."""
    parts = parts_of(constraint)
    if not any(isinstance(part, Fairness) for part in parts):
        raise ConstraintError("a grid over lambda needs a fairness part, and the constraint has none: add one or leave lambda out")
    return intersect([part.with_limit(limit) if isinstance(part, Fairness) else part for part in parts])
