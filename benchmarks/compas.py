"""The paper's experiment on COMPAS: accuracy and outcome fairness of feature sets that at most a share lambda finds unfair.

Nine features (18 columns, the charge description being one feature of ten), 7214 people, two-year recidivism; 215 people judged
which features are fair to use: a priori, if they raise accuracy, even if they raise disparity. With nine features all 512 sets can
be fitted, so every answer is compared with the true optimum. In-sample, everything is fitted and evaluated on all rows, as a study
of the optimisation; held out, on two parts of them. Neither is a statement on how well recidivism can be predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fastomp_nvm as fo
from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints import Fairness
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.matrix.threads import one_blas_thread
from fastomp_nvm.objectives.logistic import Logistic
from fastomp_nvm.selection.group_figures import group_report
from fastomp_nvm.selection.held_out import held_out_rows
from fastomp_nvm.selection.protected import Attribute

__all__ = ["IN_SAMPLE", "JUDGEMENTS", "Compas", "CurvePoint", "FittedSet", "curve", "every_set", "load"]

JUDGEMENTS = ("apriori", "accuracy", "disparity")

#: Rows on which sets are evaluated: those of the fit, or others.
IN_SAMPLE, HELD_OUT = "in-sample", "held out"

#: Lambdas of the curve: 0, 0.05, ..., 1.
LIMITS = tuple(step / 20 for step in range(21))

SEEDS = 20


@dataclass(frozen=True, slots=True)
class Compas:
    """The data.

    Attributes
    ----------
    store : FeatureStore
        Nine features, with the response as target.
    y : (n_obs,) float64
        Recidivism within two years, 0 or 1.
    white : (n_obs,) bool
        The protected attribute.
    judgements : dict
        Kind -> (n_people, n_features) bool: person finds feature fair.
    """

    store: fo.FeatureStore
    y: Float64Array
    white: BoolArray
    judgements: dict[str, BoolArray]


@dataclass(frozen=True, slots=True)
class FittedSet:
    """A set of features and the figures of its model.

    Attributes
    ----------
    features : (s,) int64
        Ascending.
    log_likelihood : float
        Mean over the rows of the fit.
    accuracy, outcome_fairness : float
        On the rows evaluated.
    """

    features: IndexArray
    log_likelihood: float
    accuracy: float
    outcome_fairness: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One run of an algorithm at one lambda.

    Attributes
    ----------
    judgement : {"apriori", "accuracy", "disparity"}
    limit : float
        Lambda.
    algorithm : str
        ``FAST_OMP`` (as in the paper), ``FAST_OMP + polish``, ``ISK``; and of all allowed sets the ``optimum`` (largest
        log-likelihood) and the ``most accurate``.
    seed : int, optional
        None where nothing is random.
    features : tuple of str
    process_unfairness, log_likelihood, accuracy, outcome_fairness : float
    evaluated_on : {"in-sample", "held out"}
        Rows of accuracy and outcome fairness; the log-likelihood is that of the rows of the fit.
    """

    judgement: str
    limit: float
    algorithm: str
    seed: int | None
    features: tuple[str, ...]
    process_unfairness: float
    log_likelihood: float
    accuracy: float
    outcome_fairness: float
    evaluated_on: str


def load(folder: Path) -> Compas:
    """Read ``compas_design.npz`` in ``folder`` into a store in memory."""
    with np.load(folder / "compas_design.npz", allow_pickle=False) as data:
        group, group_names = data["groups"], [str(name) for name in data["group_names"]]
        alone = np.bincount(group)[group] == 1
        names = [group_names[group[column]] if alone[column] else str(data["names"][column]) for column in range(len(group))]
        several = {group_names[g]: np.flatnonzero(group == g).tolist() for g in np.unique(group[~alone])}
        y = data["y"].astype(np.float64)
        store = fo.create_store("dram:compas", data["X"], y, names=names, groups=several, dtype="float64", replace=True)
        return Compas(store, y, data["white"].astype(np.bool_), {kind: data[f"U_{kind}"] for kind in JUDGEMENTS})


def every_set(compas: Compas, held_out: BoolArray | None = None) -> list[FittedSet]:
    """Fit all sets of features; entry ``m`` is the set whose members are the bits of ``m``.

    ``held_out`` (n_obs,) are rows to evaluate on and leave out of the fit; by default all rows serve both.
    """
    dataset = Dataset.of_store(compas.store)
    weights = None if held_out is None else (~held_out).astype(np.float64)
    standardisation = dataset.design(weights=weights).standardisation
    evaluated = np.ones(len(compas.y), dtype=np.bool_) if held_out is None else held_out
    white = Attribute("white", ("no", "yes"), compas.white.astype(np.int64))
    dense = standardisation.materialise(np.asarray(dataset.matrix))
    objective = Logistic(compas.y, weights)
    spans = [np.arange(dataset.offsets[f], dataset.offsets[f + 1]) for f in range(dataset.n_features)]
    fitted = []
    for members in range(1 << dataset.n_features):
        features = np.array([f for f in range(dataset.n_features) if members >> f & 1], dtype=np.int64)
        columns = dense[:, np.concatenate([np.empty(0, dtype=np.int64), *(spans[f] for f in features)])]
        fit = objective.fit(columns)
        probability = objective.mean(columns @ fit.coef + fit.intercept)
        groups = group_report(white, probability[evaluated], compas.y[evaluated], white.codes[evaluated], classifies=True)
        fairness = groups.differences["outcome_fairness"]
        assert fairness is not None  # both groups have both outcomes
        accuracy = float(((probability >= 0.5) == (compas.y == 1.0))[evaluated].mean())
        fitted.append(FittedSet(features, fit.score, accuracy, fairness))
    return fitted


def curve(
    data_folder: Path, limits: Sequence[float] = LIMITS, seeds: int = SEEDS, held_out: float | None = None
) -> list[CurvePoint]:
    """Return the curves of the three judgements.

    Parameters
    ----------
    data_folder : Path
        Holds ``compas_design.npz``.
    limits : sequence of float
        Lambdas.
    seeds : int
        Runs of FAST_OMP per lambda, with and without the polish, in shared scans.
    held_out : float, optional
        Share of the rows, drawn once, that is left out of selections and fits and evaluated; by default all rows serve both.

    Returns
    -------
    list of CurvePoint
        By judgement, then lambda: FAST_OMP's runs, ISK, the optimum, the most accurate set.
    """
    compas = load(data_folder)
    rows = None if held_out is None else held_out_rows(len(compas.y), held_out, 0)
    with one_blas_thread():  # models of 18 columns are too small for threads
        fitted = every_set(compas, rows)
    return [
        point
        for judgement in JUDGEMENTS
        for limit in limits
        for point in _points(compas, fitted, judgement, float(limit), seeds, rows)
    ]


def _points(
    compas: Compas, fitted: Sequence[FittedSet], judgement: str, limit: float, seeds: int, held_out: BoolArray | None
) -> list[CurvePoint]:
    """Return the points of one judgement and lambda."""
    constraint = Fairness(compas.store.layout.n_features, compas.judgements[judgement], limit)
    common: dict[str, Any] = {"objective": "logistic", "constraint": constraint}
    if held_out is not None:
        common["weights"] = (~held_out).astype(np.float64)
    runs: list[tuple[str, int | None, dict[str, Any]]] = [
        (name, seed, {**common, "polish": polish, "seed": seed})
        for name, polish in (("FAST_OMP", "none"), ("FAST_OMP + polish", "pool"))
        for seed in range(seeds)
    ]
    runs.append(("ISK", None, {**common, "algorithm": "isk"}))
    answers = fo.select_many(compas.store, [request for _, _, request in runs])
    chosen = [(name, seed, fitted[int((1 << found.indices).sum())]) for (name, seed, _), found in zip(runs, answers, strict=True)]
    allowed = [one for one in fitted if constraint.independent(one.features)]
    chosen.append(("optimum", None, max(allowed, key=lambda one: one.log_likelihood)))
    chosen.append(("most accurate", None, max(allowed, key=lambda one: one.accuracy)))
    names = compas.store.names
    return [
        CurvePoint(
            judgement,
            limit,
            algorithm,
            seed,
            tuple(names[feature] for feature in one.features.tolist()),
            constraint.unfairness(one.features),
            one.log_likelihood,
            one.accuracy,
            one.outcome_fairness,
            IN_SAMPLE if held_out is None else HELD_OUT,
        )
        for algorithm, seed, one in chosen
    ]
