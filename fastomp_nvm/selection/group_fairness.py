"""Fairness of a selection towards the groups of a protected attribute: error rates per group, outcome and process fairness.

For a classifier (logistic objective, class 1 predicted from probability 1/2) each group gets its accuracy, false positive rate and
false negative rate, and the whole the paper's *outcome fairness*, ``-|FPR_a - FPR_b| - |FNR_a - FNR_b|``: zero is perfectly even.
With more than two groups the gap of a rate is that between its largest and its smallest value. Models of numbers and counts have no
such rates: their groups get R^2 and the mean residual (observed minus predicted; positive means underestimated).

*Process unfairness* is ``h`` of the selected features under a fairness constraint: the share of people who object to one of them.
All observations have the same weight here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray, first_missing
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.fairness import Fairness
from fastomp_nvm.constraints.intersection import parts_of
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.selection.fairness import FairnessReport
from fastomp_nvm.selection.held_out import held_out_rows
from fastomp_nvm.selection.request import SelectionRequest, named_file
from fastomp_nvm.selection.response import encode_response, labelled, observation_values, resolve_response
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import bind_constraint
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import open_store

__all__ = ["check_protected", "classification_figures", "fairness_report", "outcome_fairness"]

#: An attribute with more distinct values is a measurement, not groups.
MOST_GROUPS = 50


def fairness_report(
    selection: Selection,
    data: object,
    y: object,
    protected: object,
    rows: object = None,
    *,
    constraint: Constraint | Mapping[str, object] | str | os.PathLike[str] | None = None,
    covariates: object = None,
    offset: object = None,
) -> FairnessReport:
    """Report how the refit model of a selection treats the groups of a protected attribute.

    Parameters
    ----------
    selection : Selection
    data : FeatureStore, store URL, Dataset, or (n_obs, n_columns) array or DataFrame
        The data of the selection, or other observations with the same columns; of a store only selected columns are read.
    y : (n_obs,) array or None
        The response; None takes the store's target that the selection was made for.
    protected : (n_obs,) array, or str
        The group of each observation, or the name of a store's target or feature that holds it.
    rows : (m,) int or (n_obs,) bool, optional
        Observations to evaluate on. By default those the selection held out, if it did, otherwise all.
    constraint : Constraint, mapping, YAML text or path of a YAML file, optional
        As given to ``select``: gives the process unfairness if it contains a ``Fairness``. An array needs a ``Constraint``.
    covariates, offset : optional
        As given to ``select``, where the model has them.

    Returns
    -------
    FairnessReport

    Examples
    --------
    >>> import numpy as np, fastomp_nvm as fo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 5))
    >>> y = (X[:, 0] + rng.normal(size=400) > 0).astype(int)
    >>> group = np.where(rng.random(400) < 0.5, "a", "b")
    >>> report = fo.fairness_report(fo.select(X, y, k=1, objective="logistic"), X, y, group)
    >>> sorted(report.groups), report.outcome_fairness <= 0
    (['a', 'b'], True)
    """
    if isinstance(data, str):
        with open_store(data) as store:
            return fairness_report(
                selection, store, y, protected, rows, constraint=constraint, covariates=covariates, offset=offset
            )
    dataset = Dataset.of_store(data) if isinstance(data, FeatureStore) else data if isinstance(data, Dataset) else None
    predicted = _predictions(selection, data, dataset, covariates, offset)
    actual = _actual(selection, dataset, y, len(predicted))
    labels, codes = _groups(protected, dataset, len(predicted))
    chosen, evaluated_on = _rows(selection, rows, len(predicted))
    predicted, actual, codes = predicted[chosen], actual[chosen], codes[chosen]
    classifies = selection.objective == "logistic"
    figures = classification_figures if classifies else _regression_figures
    groups = {label: figures(predicted[codes == code], actual[codes == code]) for code, label in enumerate(labels)}
    unfairness = None
    if constraint is not None:
        if not isinstance(constraint, Constraint):
            if dataset is None:
                raise RequestError("a fairness report on an array needs a constraint object: its description names features")
            constraint = bind_constraint(named_file(constraint), dataset, dataset.design().standardisation.usable())
        fair = [part for part in parts_of(constraint) if isinstance(part, Fairness)]
        unfairness = max((part.unfairness(selection.indices) for part in fair), default=None)
    return FairnessReport(groups, outcome_fairness(groups) if classifies else None, unfairness, evaluated_on)


def check_protected(protected: object, dataset: Dataset) -> bool:
    """Return whether a protected attribute names a feature; ``InputError`` unless it makes groups of the observations."""
    _groups(protected, dataset, dataset.n_obs)
    return isinstance(protected, str) and protected not in dataset.targets


def classification_figures(probability: Float64Array, actual: Float64Array) -> dict[str, float | None]:
    """Return accuracy and error rates.

    Parameters
    ----------
    probability : (m,) float64
        Of class 1.
    actual : (m,) float64
        0 or 1.
    """
    wrong = (probability >= 0.5) != (actual == 1.0)
    return {
        "rows": len(actual),
        "accuracy": _share(~wrong),
        "false_positive_rate": _share(wrong[actual == 0.0]),
        "false_negative_rate": _share(wrong[actual == 1.0]),
    }


def outcome_fairness(groups: Mapping[str, Mapping[str, float | None]]) -> float | None:
    """Return minus the gaps of both error rates between groups, given ``classification_figures`` of each; None if undefined."""
    gaps = 0.0
    for rate in ("false_positive_rate", "false_negative_rate"):
        values = [figures[rate] for figures in groups.values()]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        gaps += max(known) - min(known)
    return 0.0 - gaps  # not -gaps, which would print an even outcome as -0.0


def _share(events: BoolArray) -> float | None:
    """Return the share of true entries, None of nothing."""
    return float(events.mean()) if events.size else None


def _regression_figures(predicted: Float64Array, actual: Float64Array) -> dict[str, float | None]:
    """Return R^2 about the group's own mean, and the mean residual."""
    residual = actual - predicted
    spread = float(((actual - actual.mean()) ** 2).sum()) if actual.size else 0.0
    return {
        "rows": len(actual),
        "r2": 1.0 - float(residual @ residual) / spread if spread > 0.0 else None,
        "mean_residual": float(residual.mean()) if actual.size else None,
    }


def _predictions(selection: Selection, data: object, dataset: Dataset | None, covariates: object, offset: object) -> Float64Array:
    """Return the model's mean response (n_obs,), reading selected columns only."""
    if dataset is None:
        return selection.predict(data, covariates=covariates, offset=offset)
    if len(dataset.matrix) != selection.store.n_columns:
        raise DataError(f"the data has {len(dataset.matrix)} columns, the selection was made from {selection.store.n_columns}")
    if isinstance(offset, str):
        offset = observation_values(dataset, offset, "offsets")
    eta = selection.linear_predictor(dataset.matrix[selection.model_columns[1]].T)
    return selection.mean_response(eta + selection.given_beside(len(eta), dataset.ids, covariates, offset))


def _actual(selection: Selection, dataset: Dataset | None, y: object, n_obs: int) -> Float64Array:
    """Return the response (n_obs,), classes as the selection coded them."""
    if y is not None:
        values, classes = encode_response(y, selection.objective)
    elif dataset is not None:
        request = SelectionRequest(objective=selection.objective, target=selection.target)
        response = resolve_response(dataset, request, None)
        values, classes = response.values, response.classes
    else:
        raise RequestError("a fairness report on an array needs y, the response")
    if len(values) != n_obs:
        raise DataError(f"the response has {len(values)} values for {n_obs} observations")
    if selection.objective != "logistic":
        return values
    known = list(selection.classes or ())
    for label in classes:
        if label not in known:
            raise DataError(f"the response holds the class {label!r}, the model was fitted on {' and '.join(known)}")
    return np.array([known.index(label) for label in classes], dtype=np.float64)[values.astype(np.int64)]


def _groups(protected: object, dataset: Dataset | None, n_obs: int) -> tuple[tuple[str, ...], IndexArray]:
    """Return the labels of the groups and the code of each observation's group (n_obs,)."""
    if isinstance(protected, str):
        if dataset is None:
            raise RequestError(f"the protected attribute {protected!r} is a name, which needs a store: give its values")
        values, name = _named_groups(dataset, protected), repr(protected)
    else:
        values, name = np.asarray(protected), "given"
    if values.shape != (n_obs,):
        raise DataError(f"the protected attribute ({name}) has shape {values.shape}: expected one value for {n_obs} observations")
    missing = first_missing(values)
    if missing is not None:
        raise DataError(f"the protected attribute ({name}) is missing at row {missing + 1}")
    labels, codes = labelled(values)
    if not 2 <= len(labels) <= MOST_GROUPS:
        raise DataError(f"the protected attribute ({name}) has {len(labels)} distinct values: expected 2 to {MOST_GROUPS} groups")
    return labels, codes


def _named_groups(dataset: Dataset, name: str) -> AnyArray:
    """Return the values (n_obs,) of a target or a feature; of a one-hot feature, the category of each observation."""
    if name in dataset.targets:
        target = dataset.targets[name]
        return np.asarray(np.array(target.classes)[target.values.astype(np.int64)] if target.classes else target.values)
    try:
        feature = list(dataset.names).index(name)
    except ValueError:
        raise RequestError(f"no target or feature is called {name!r}: name one, or a file, as the protected attribute") from None
    columns = slice(int(dataset.offsets[feature]), int(dataset.offsets[feature + 1]))
    block = np.asarray(dataset.matrix[columns])
    if len(block) == 1:
        return np.asarray(block[0], dtype=np.float64)
    if not (np.isin(block, (0, 1)).all() and (block.sum(axis=0, dtype=np.int64) == 1).all()):
        raise DataError(f"the feature {name!r} spans {len(block)} columns that are not categories: it defines no groups")
    labels = [dataset.column_names[column].removeprefix(f"{name}=") for column in range(columns.start, columns.stop)]
    return np.asarray(np.array(labels)[block.argmax(axis=0)])


def _rows(selection: Selection, rows: object, n_obs: int) -> tuple[AnyArray, str]:
    """Return an index of the observations to evaluate on, and the value of ``evaluated_on``."""
    if rows is not None:
        given = np.asarray(rows)
        if given.ndim != 1 or given.dtype.kind not in "biu" or (given.dtype.kind == "b" and len(given) != n_obs):
            raise RequestError(f"rows has shape {given.shape} and type {given.dtype}: expected row numbers or {n_obs} booleans")
        return given, "given"
    if selection.test_fraction is None or n_obs != selection.store.n_obs:
        return np.ones(n_obs, dtype=np.bool_), "all"
    return held_out_rows(n_obs, selection.test_fraction, selection.seed), "test"
