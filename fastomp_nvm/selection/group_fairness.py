"""Fairness of a selection towards the groups of protected attributes: figures per group, process fairness, and proxies.

For a classifier (logistic objective, class 1 predicted from probability 1/2) each group gets the figures that fairlearn and
scikit-learn name, and the groups together fairlearn's differences and the paper's *outcome fairness*,
``-|FPR_a - FPR_b| - |FNR_a - FNR_b|``: zero is perfectly even. With more than two groups the gap of a rate is that between its
largest and its smallest value. Models of numbers and counts have no such rates: their groups get errors. See
:class:`~fastomp_nvm.selection.fairness.GroupReport` for all of them.

*Process unfairness* is ``h`` of the selected features under a fairness constraint: the share of people who object to one of them.
All observations have the same weight here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.fairness import Fairness
from fastomp_nvm.constraints.intersection import parts_of
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Run
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.selection.fairness import FairnessReport
from fastomp_nvm.selection.group_figures import automatic_replicates, group_report
from fastomp_nvm.selection.held_out import held_out_rows
from fastomp_nvm.selection.protected import Attribute, intersection, resolve_protected
from fastomp_nvm.selection.proxies import Known, Part, ProxySweeps, proxy_reports, proxy_targets
from fastomp_nvm.selection.request import RequestFields, SelectionRequest, named_file
from fastomp_nvm.selection.response import encode_response, observation_values, resolve_response
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.select import Prepared, bind_constraint
from fastomp_nvm.selection.source import has_text, open_dataset
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import open_store

__all__ = ["GroupFairness", "fairness_report"]

#: Most replicates.
MOST = 100_000

_NOT_CANDIDATES = (
    "the protected {} {} {} (unless --keep-protected, keep_protected=True), but other features may stand for {}: compare the "
    "proxies and the groups of the fairness report"
)


def fairness_report(
    selection: Selection,
    data: object,
    y: object,
    protected: object,
    rows: object = None,
    *,
    constraint: Constraint | Mapping[str, object] | str | os.PathLike[str] | None = None,
    bootstrap: int | None = None,
    covariates: object = None,
    offset: object = None,
) -> FairnessReport:
    """Report how the refit model of a selection treats the groups of protected attributes, and what stands for them.

    Parameters
    ----------
    selection : Selection
    data : FeatureStore, store URL, Dataset, or (n_obs, n_columns) array or DataFrame
        The data of the selection, or other observations with the same columns. The best proxy of all features is looked for in one
        pass over a store or a table of numbers; in a table with text only the selected features are.
    y : (n_obs,) array or None
        The response; None takes the store's target that the selection was made for.
    protected : (n_obs,) array, str, sequence of str, or mapping of str to either
        The group of each observation, or the name of a store's target or feature that holds it; several names; or several of
        either under names of their own, which are also crossed with each other. Numbers with more than 20 distinct values are
        cut into quartiles.
    rows : (m,) int or (n_obs,) bool, optional
        Observations to evaluate on. By default those the selection held out, if it did, otherwise all.
    constraint : Constraint, mapping, YAML text or path of a YAML file, optional
        As given to ``select``: gives the process unfairness if it contains a ``Fairness``. An array needs a ``Constraint``.
    bootstrap : int, optional
        Replicates behind the intervals; 0 for none. By default 1000, fewer (at least 100) for many observations.
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
                selection,
                store,
                y,
                protected,
                rows,
                constraint=constraint,
                bootstrap=bootstrap,
                covariates=covariates,
                offset=offset,
            )
    dataset = Dataset.of_store(data) if isinstance(data, FeatureStore) else data if isinstance(data, Dataset) else None
    if dataset is None:
        columns = selection.encode(data).values.T
        predicted = selection.predict(data, covariates=covariates, offset=offset)
        found = resolve_protected(protected, None, columns.shape[1])
        if not has_text(data):
            with open_dataset(data) as like:
                dataset = like if _is_like(like, selection) else None
    else:
        if len(dataset.matrix) != selection.store.n_columns:
            raise DataError(f"the data has {len(dataset.matrix)} columns, the selection was made from {selection.store.n_columns}")
        columns = dataset.matrix[selection.model_columns[1]]
        predicted = _predicted(selection, columns, dataset, covariates, offset)
        found = resolve_protected(protected, dataset, dataset.n_obs)
    columns, n_obs = columns[: len(selection.column_positions)], columns.shape[1]  # kept ones follow the selected
    actual = _actual(selection, dataset if y is None else None, y, n_obs)
    part, evaluated_on = _rows(selection, rows, n_obs)
    own = GroupFairness(dataset, found, bootstrap=bootstrap, target=selection.target if y is None else None)
    unfairness = None
    if constraint is not None:
        if not isinstance(constraint, Constraint) and not isinstance(data, (FeatureStore, Dataset)):
            raise RequestError("a fairness report on an array needs a constraint object: its description names features")
        unfairness = _process_unfairness(selection, dataset, constraint)
    return own.report(selection, columns, predicted, actual, [part], evaluated_on, unfairness)


class GroupFairness:
    """Makes the fairness reports of selections from one data set, whose proxies are found in the selections' own sweeps.

    Parameters
    ----------
    dataset : Dataset, optional
        None where features beyond the selected ones cannot be read.
    attributes : sequence of Attribute
        The protected attributes.
    keep : bool
        Whether protected features may be selected.
    bootstrap : int, optional
        Replicates; by default as ``automatic_replicates`` says.
    reports : int
        Reports that will be made, which share the work of the default.
    target : str, optional
        The response, where it is a feature.
    """

    def __init__(
        self,
        dataset: Dataset | None,
        attributes: Sequence[Attribute],
        *,
        keep: bool = False,
        bootstrap: int | None = None,
        reports: int = 1,
        target: str | None = None,
    ) -> None:
        if bootstrap is not None and (not isinstance(bootstrap, int) or isinstance(bootstrap, bool) or not 0 <= bootstrap <= MOST):
            raise RequestError(f"bootstrap is {bootstrap!r}: expected a whole number of replicates from 0 to {MOST:,}")
        self.protected = [attribute.feature for attribute in attributes if attribute.feature is not None]
        self._dataset, self._bootstrap, self._reports, self._keep = dataset, bootstrap, reports, keep
        self._attributes = [*attributes, intersection(attributes)] if len(attributes) > 1 else list(attributes)
        self._targets = proxy_targets(attributes)
        excluded = self.protected if target is None else [*self.protected, target]
        self._sweeps = None if dataset is None else ProxySweeps(dataset, self._targets, excluded)

    @classmethod
    def of_request(
        cls,
        dataset: Dataset,
        y: object,
        request: RequestFields,
        protected: object,
        keep: bool = False,
        bootstrap: int | None = None,
        reports: int = 1,
    ) -> GroupFairness | None:
        """Return what makes the reports of a request, or of several with these fields in common; None without ``protected``."""
        if protected is None:
            if bootstrap is not None:
                raise RequestError("bootstrap is about the fairness report: name a protected attribute, or leave bootstrap out")
            return None
        attributes = resolve_protected(protected, dataset, dataset.n_obs)
        target = request.get("target") if y is None else None
        return cls(dataset, attributes, keep=keep, bootstrap=bootstrap, reports=reports, target=target)

    def without_protected(self, request: RequestFields) -> RequestFields:
        """Return a request in which protected features are no candidates, unless they may be selected."""
        return request if self._keep else {**request, "exclude": [*request.get("exclude", ()), *self.protected]}

    def beside(self, dataset: Dataset, sweeper: Sweeper, prepared: Iterable[Prepared]) -> list[Run]:
        """Return the runs that look for proxies, for the engine to drive with those of selections; see ``select_shared``."""
        assert self._sweeps is not None
        found = []
        for each in sorted(prepared, key=_is_alike, reverse=True):
            request, problem, account = each.split.request, each.run.problem, each.run.account
            training = training_rows(dataset.n_obs, request.test_fraction, request.seed)
            alike, pays = _is_alike(each), account is None or account.pays
            found.append(
                self._sweeps.run(training, sweeper, problem.design if alike else None, each.run.tier if alike and pays else None)
            )
        return [run for run in found if run is not None]

    def on(self, selection: Selection, y: object, request: RequestFields) -> Selection:
        """Return a selection from the data set with its report; ``request`` is what it answers."""
        assert self._dataset is not None
        columns = self._dataset.matrix[selection.model_columns[1]]
        part, evaluated_on = _rows(selection, None, self._dataset.n_obs)
        predicted = _predicted(selection, columns, self._dataset, request.get("covariates"), request.get("offset"))
        columns = columns[: len(selection.column_positions)]  # kept ones follow the selected
        return self._on(selection, columns, predicted, y, request, [part], evaluated_on)

    def over_folds(
        self, selection: Selection, folds: Sequence[Selection], fold_of: IndexArray, y: object, request: RequestFields
    ) -> Selection:
        """Return a selection with the report of the same request on folds, each observation predicted by the model of its fold.

        Parameters
        ----------
        selection : Selection
            On all observations.
        folds : sequence of Selection
            On the observations outside each fold.
        fold_of : (n_obs,) int64
        y : object
        request : RequestFields
        """
        assert self._dataset is not None
        matrix, predicted, parts = self._dataset.matrix, np.empty(self._dataset.n_obs), []
        for fold, each in enumerate(folds):
            rows = np.flatnonzero(fold_of == fold)
            columns, beside = matrix[each.model_columns[1]], (request.get("covariates"), request.get("offset"))
            predicted[rows] = _predicted(each, columns, self._dataset, *beside)[rows]
            parts.append(Part(np.flatnonzero(fold_of != fold), rows))
        return self._on(selection, matrix[selection.column_positions], predicted, y, request, parts, "folds")

    def _on(
        self,
        selection: Selection,
        columns: AnyArray,
        predicted: Float64Array,
        y: object,
        request: RequestFields,
        parts: Sequence[Part],
        evaluated_on: str,
    ) -> Selection:
        """Return a selection with its report, and a note on protected features that were no candidates."""
        given = request.get("constraint")
        unfairness = None if given is None else _process_unfairness(selection, self._dataset, given)
        actual = _actual(selection, self._dataset, y, len(predicted))
        report = self.report(selection, columns, predicted, actual, parts, evaluated_on, unfairness)
        notes = list(selection.notes)
        if self.protected and not self._keep:
            one = len(self.protected) == 1
            words = ("feature", "was not a candidate", "it") if one else ("features", "were not candidates", "them")
            notes.append(_NOT_CANDIDATES.format(words[0], ", ".join(map(repr, self.protected)), *words[1:]))
        return replace(selection, fairness=report, notes=notes)

    def report(
        self,
        selection: Selection,
        columns: AnyArray,
        predicted: Float64Array,
        actual: Float64Array,
        parts: Sequence[Part],
        evaluated_on: str,
        unfairness: float | None,
    ) -> FairnessReport:
        """Return the report of a selection.

        Parameters
        ----------
        selection : Selection
        columns : (c, n_obs) array
            The selected columns.
        predicted, actual : (n_obs,) float64
            The mean response and the response.
        parts : sequence of Part
            The observations that the model was fitted on, and those to evaluate on; several for several models.
        evaluated_on : str
        unfairness : float, optional
            Process unfairness.
        """
        rows = np.concatenate([part.predicted for part in parts])
        if not rows.size:
            raise RequestError("there is no observation to evaluate on: a fairness report needs at least one")
        classifies, seed = selection.objective == "logistic", selection.seed
        count = (
            automatic_replicates(len(rows), self._reports * len(self._attributes)) if self._bootstrap is None else self._bootstrap
        )
        groups = [
            group_report(attribute, predicted[rows], actual[rows], attribute.codes[rows], classifies, count, seed)
            for attribute in self._attributes
        ]
        best: Mapping[int, Sequence[int]] = {}
        if self._sweeps is not None:
            fitted, n_obs = parts[0].fitted, columns.shape[1]
            training = np.zeros(n_obs, dtype=np.bool_)
            training[fitted] = True
            best = self._sweeps.best(None if len(parts) > 1 or training.all() else training)
        sizes = np.array([len(part) for part in selection.columns], dtype=np.int64)
        spans = np.split(np.arange(len(columns)), np.cumsum(sizes)[:-1]) if len(sizes) else []
        proxies = proxy_reports(self._sweeps, self._targets, selection.features, Known(columns, spans), parts, best)
        return FairnessReport(groups, proxies, unfairness, evaluated_on, count)


def _is_alike(prepared: Prepared) -> bool:
    """Return whether proxies can share the standardisation of a request, and so its sweeps."""
    request = prepared.split.request
    return request.weights is None and request.standardize and prepared.compression is None


def training_rows(n_obs: int, fraction: float | None, seed: int) -> BoolArray | None:
    """Return the observations (n_obs,) that a request does not hold out, None where these are all."""
    return None if fraction is None else ~held_out_rows(n_obs, fraction, int(seed))


def _process_unfairness(
    selection: Selection, dataset: Dataset | None, given: Constraint | Mapping[str, object] | str | os.PathLike[str]
) -> float | None:
    """Return the largest share of people who object to a selected feature under the fairness parts of a constraint."""
    if not isinstance(given, Constraint):
        assert dataset is not None
        given = bind_constraint(named_file(given), dataset, dataset.design().standardisation.usable())
    fair = [part for part in parts_of(given) if isinstance(part, Fairness)]
    return max((part.unfairness(selection.indices) for part in fair), default=None)


def _is_like(dataset: Dataset, selection: Selection) -> bool:
    """Return whether a data set has the columns of the selection, where it has them."""
    if len(dataset.matrix) != selection.store.n_columns:
        return False
    names = [name for part in selection.columns for name in part]
    return [str(dataset.column_names[place]) for place in selection.column_positions.tolist()] == names


def _predicted(selection: Selection, columns: AnyArray, dataset: Dataset, covariates: object, offset: object) -> Float64Array:
    """Return the mean response (n_obs,) from the model's ``columns`` (c, n_obs) and what was given beside the data."""
    if isinstance(offset, str):
        offset = observation_values(dataset, offset, "offsets")
    eta = selection.linear_predictor(columns.T)
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


def _rows(selection: Selection, rows: object, n_obs: int) -> tuple[Part, str]:
    """Return the observations of the fit and those to evaluate on, and the value of ``evaluated_on``."""
    everywhere = np.arange(n_obs)
    if rows is not None:
        given = np.asarray(rows)
        if given.ndim != 1 or given.dtype.kind not in "biu" or (given.dtype.kind == "b" and len(given) != n_obs):
            raise RequestError(f"rows has shape {given.shape} and type {given.dtype}: expected row numbers or {n_obs} booleans")
        if given.dtype.kind != "b" and given.size and not -n_obs <= given.min() <= given.max() < n_obs:
            raise RequestError(f"rows holds {given.min()} to {given.max()}: expected numbers of {n_obs} observations, from 0")
        chosen = everywhere[given]
        return Part(chosen, chosen), "given"
    fraction = selection.test_fraction
    if fraction is None or n_obs != selection.store.n_obs:
        return Part(everywhere, everywhere), "all"
    held_out = held_out_rows(n_obs, fraction, selection.seed)
    return Part(np.flatnonzero(~held_out), np.flatnonzero(held_out)), "test"
