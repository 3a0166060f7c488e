"""How well features predict a protected attribute: each selected one, all selected ones, the best single one and all of the data.

A feature predicts an attribute by least squares on its columns. The features with the largest in-sample R^2 are found in one sweep
with the attribute's indicators as further vectors, which the engine merges with the first sweep of the selection; all else is
computed from the columns it concerns. Every observation counts the same here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fastomp_nvm.algorithms.protocol import Algorithm, Counters, Outcome, Parameters, Problem
from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Engine, Run
from fastomp_nvm.matrix.pool import ColumnPool, automatic_budget
from fastomp_nvm.matrix.rows import Design
from fastomp_nvm.matrix.standardisation import column_index
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.matrix.tier import Tier
from fastomp_nvm.objectives.linear import Linear
from fastomp_nvm.selection.fairness import SMALL_GROUP, ProxyReport
from fastomp_nvm.selection.group_figures import auc, defined
from fastomp_nvm.selection.protected import Attribute

__all__ = ["Known", "Part", "ProxySweeps", "Target", "proxy_reports", "proxy_targets"]

#: The best single feature is the best of so many with the largest in-sample R^2, and of the selected ones.
_LEADERS = 5
#: All features are fitted together up to this many columns, and elements of them.
_MOST_COLUMNS, _MOST_ELEMENTS = 256, 1 << 23
#: Directions of the selected columns of less than this share of the largest are dependent.
_DEPENDENT = 1e-10
#: Observations multiplied at a time.
_PIECE = 1 << 16
#: Columns that deviate from their mean by less than this share of it are constant: rounding.
_CONSTANT = 1e-13
#: Predictions that agree to this share of their spread are equal: rounding must not order observations.
_TIES = 1e-9


class Target(NamedTuple):
    """What is predicted.

    Attributes
    ----------
    attribute : Attribute
    level : int, optional
        The group, against all others, of more than two.
    values : (n_obs,) float64
        0 and 1, or numbers.
    """

    attribute: Attribute
    level: int | None
    values: Float64Array


class Part(NamedTuple):
    """Observations to fit on, and those to predict then: row numbers, ascending."""

    fitted: IndexArray
    predicted: IndexArray


class Known(NamedTuple):
    """Columns as rows.

    Attributes
    ----------
    rows : (c, n_obs) array
    spans : sequence of (m,) int64
        The rows of each feature.
    """

    rows: AnyArray
    spans: Sequence[IndexArray]


def proxy_targets(attributes: Sequence[Attribute]) -> list[Target]:
    """Return the number of a measurement, the indicator of the second of two groups, or those of each of more."""
    found = []
    for attribute in attributes:
        if attribute.numbers is not None:
            found.append(Target(attribute, None, attribute.numbers))
        elif len(attribute.labels) == 2:
            found.append(Target(attribute, None, (attribute.codes == 1).astype(np.float64)))
        else:
            levels = range(len(attribute.labels))
            found += [Target(attribute, level, (attribute.codes == level).astype(np.float64)) for level in levels]
    return found


class ProxySweeps:
    """The best single feature for each target, on all observations or on those that a selection did not hold out.

    Parameters
    ----------
    dataset : Dataset
    targets : sequence of Target
    excluded : sequence of str
        Features that stand for no other: the protected ones, and the target.
    """

    def __init__(self, dataset: Dataset, targets: Sequence[Target], excluded: Sequence[str]) -> None:
        self.targets = targets
        self.excluded = frozenset(excluded)
        self.candidates = np.array([place for place, name in enumerate(dataset.names) if name not in self.excluded], dtype=np.int64)
        self.dataset = dataset
        self._runs: dict[bytes, tuple[Run, list[int]]] = {}

    def run(
        self, training: BoolArray | None, sweeper: Sweeper, design: Design | None = None, tier: Tier | None = None
    ) -> Run | None:
        """Return the run that finds them on the observations in ``training`` (n_obs,), unless it was returned before.

        ``design`` is one of the data set, standardised on these observations; the run may sweep its ``tier``.
        """
        key = b"" if training is None else training.tobytes()
        if key in self._runs:
            return None
        counters, weights = Counters(), None if training is None else training.astype(np.float64)
        if design is None:
            design = self.dataset.design(True, weights, counters.traffic)
        rows = slice(None) if training is None else training
        varied = [place for place, target in enumerate(self.targets) if np.ptp(target.values[rows]) > 0.0]
        usable = np.intersect1d(self.candidates, np.flatnonzero(design.standardisation.usable()))
        if not (varied and usable.size):
            return None
        objectives = [Linear(self.targets[place].values, weights) for place in varied]
        budget = automatic_budget(8 * len(self.dataset.matrix) * self.dataset.n_obs)
        pool = ColumnPool(design, sweeper, counters.traffic, budget, resident=self.dataset.resident)
        limit = Cardinality(self.dataset.n_features, 1)
        problem = Problem(design, objectives[0], limit, Parameters(), usable, pool, counters, tier)
        made = Run(problem, _leaders(problem, [objective.null().residual for objective in objectives]), tier=tier, quiet=True)
        self._runs[key] = made, varied
        return made

    def best(self, training: BoolArray | None) -> dict[int, list[int]]:
        """Return the features with the largest R^2 by target, best first, sweeping for them unless that was done."""
        key = b"" if training is None else training.tobytes()
        if key not in self._runs or self._runs[key][0].outcome is None:
            self._runs.pop(key, None)
            sweeper = Sweeper()
            made = self.run(training, sweeper)
            if made is None:
                return {}
            Engine(self.dataset.matrix, sweeper).drive([made])
        made, varied = self._runs[key]
        assert made.outcome is not None
        return dict(zip(varied, made.outcome.selected.reshape(len(varied), -1).tolist(), strict=True))


def _leaders(problem: Problem, vectors: Sequence[Float64Array]) -> Algorithm:
    """Find the features with the largest scores for each of ``vectors``, one vector after the other, in one sweep."""
    answers = yield from problem.ask(0, 0.0, vectors, problem.usable)
    return Outcome(np.concatenate([answer.leaders(_LEADERS)[0] for answer in answers]))


def proxy_reports(
    sweeps: ProxySweeps | None,
    targets: Sequence[Target],
    features: Sequence[str],
    selected: Known,
    parts: Sequence[Part],
    best: Mapping[int, Sequence[int]],
) -> list[ProxyReport]:
    """Return how well features predict each of ``targets``.

    Parameters
    ----------
    sweeps : ProxySweeps, optional
        Of the data whose further features are looked at.
    targets : sequence of Target
    features : sequence of str
        Names of the selected features.
    selected : Known
        Their columns.
    parts : sequence of Part
        Cross-fitting: each observation is predicted at most once.
    best : mapping of int to sequence of int
        Features of the data that may be the best single one, by target.
    """
    evaluated = np.concatenate([part.predicted for part in parts])
    shown = [place for place, target in enumerate(targets) if not _few(target, evaluated)]
    values = np.stack([targets[place].values for place in shown], axis=1) if shown else np.empty((0, 0))
    numeric = [targets[place].attribute.numbers is not None for place in shown]
    held_out = all(not np.intersect1d(part.fitted, part.predicted).size for part in parts)
    every = Known(selected.rows, [*selected.spans, np.arange(len(selected.rows))])
    of_selected = _measured(every, values, numeric, parts)
    leaders = sorted({leader for place in shown for leader in best.get(place, ())})
    of_leaders, of_all = np.empty((0, 0)), np.empty(0)
    if sweeps is not None and shown:
        dataset = sweeps.dataset
        of_leaders = _measured(_read(dataset, np.array(leaders, dtype=np.int64)), values, numeric, parts)
        fewest = min(len(part.fitted) for part in parts)
        if (columns := _few_columns(dataset, sweeps.candidates, fewest)) is not None:
            together = Known(dataset.matrix[columns], [np.arange(len(columns))])
            of_all = _measured(together, values, numeric, parts)[0]
    found = []
    for column, place in enumerate(shown):
        target, attribute = targets[place], targets[place].attribute
        alone = dict(zip(features, of_selected[:-1, column].tolist(), strict=True))
        alone.pop(attribute.feature or "", None)
        single: dict[str, float] = {}
        if sweeps is not None and best.get(place):
            single = {str(sweeps.dataset.names[each]): float(of_leaders[leaders.index(each), column]) for each in best[place]}
            single |= {name: value for name, value in alone.items() if name not in sweeps.excluded}
        known = {name: value for name, value in single.items() if np.isfinite(value)}
        leader = max(known, key=known.__getitem__, default=None)
        found.append(
            ProxyReport(
                attribute=attribute.name,
                level=None if target.level is None else attribute.labels[target.level],
                measure="r2" if numeric[column] else "auc",
                selected={feature: defined(each) for feature, each in alone.items()},
                together=defined(of_selected[-1, column]) if features else None,
                itself=attribute.feature in features,
                best_feature=leader,
                best=None if leader is None else known[leader],
                everything=defined(of_all[column]) if of_all.size else None,
                held_out=held_out,
            )
        )
    return found


def _few(target: Target, evaluated: IndexArray) -> bool:
    """Return whether a group of more than two has too few observations to be predicted."""
    return target.level is not None and not SMALL_GROUP <= int(target.values[evaluated].sum()) <= len(evaluated) - SMALL_GROUP


def _few_columns(dataset: Dataset, features: IndexArray, fitted: int) -> IndexArray | None:
    """Return the columns of ``features`` if they are few enough to be fitted together on ``fitted`` observations."""
    columns = column_index(dataset.offsets, features)
    few = len(columns) <= min(_MOST_COLUMNS, fitted // 2) and len(columns) * dataset.n_obs <= _MOST_ELEMENTS
    return columns if few and columns.size else None


def _read(dataset: Dataset, features: IndexArray) -> Known:
    """Return the columns of some features."""
    columns = column_index(dataset.offsets, features)
    sizes = np.diff(dataset.offsets)[features]
    spans = np.split(np.arange(len(columns)), np.cumsum(sizes)[:-1]) if len(features) else []
    return Known(dataset.matrix[columns] if columns.size else np.empty((0, dataset.n_obs)), spans)


def _measured(known: Known, values: Float64Array, numeric: Sequence[bool], parts: Sequence[Part]) -> Float64Array:
    """Return (len(known.spans), t): how well the columns of each span predict ``values`` (n_obs, t); NaN where undefined."""
    found = np.full((len(known.spans), values.shape[1]), np.nan)
    if not values.size:
        return found
    fits = [_Fit(known.rows, values, part.fitted) for part in parts]
    actual = np.concatenate([values[part.predicted] for part in parts])
    spread = ((actual - actual.mean(axis=0)) ** 2).sum(axis=0)
    for place, span in enumerate(known.spans):
        if not len(span):
            continue
        predicted = np.concatenate(
            [fit.predict(span, known.rows[np.ix_(span, part.predicted)]) for fit, part in zip(fits, parts, strict=True)]
        )
        for column, number in enumerate(numeric):
            if not np.isfinite(predicted[:, column]).all():
                continue
            if number and spread[column] > 0.0:
                residual = actual[:, column] - predicted[:, column]
                with np.errstate(over="ignore"):  # observations held out may hold anything
                    found[place, column] = 1.0 - (residual**2).sum() / spread[column]
            elif not number:
                size = float(np.abs(predicted[:, column]).max(initial=0.0)) or 1.0
                found[place, column] = auc(np.round(predicted[:, column] / (size * _TIES)), actual[:, column] == 1.0)
    return found


class _Fit:
    """Least squares of several responses on any of some columns, from the products of all of them.

    Parameters
    ----------
    rows : (c, n_obs) array
        The columns.
    values : (n_obs, t) float64
    fitted : (n,) int64
        The observations to fit on.
    """

    def __init__(self, rows: AnyArray, values: Float64Array, fitted: IndexArray) -> None:
        pieces = [fitted[first : first + _PIECE] for first in range(0, len(fitted), _PIECE)]
        self.intercept = values[fitted].mean(axis=0)
        self.mean = sum((rows[:, piece].sum(axis=1, dtype=np.float64) for piece in pieces), np.zeros(len(rows))) / len(fitted)
        largest = np.zeros(len(rows))
        for piece in pieces:
            np.maximum(largest, np.abs(rows[:, piece] - self.mean[:, None]).max(axis=1), out=largest)
        varies = largest > _CONSTANT * np.abs(self.mean)
        self.scale = np.where(varies, 1.0 / np.where(varies, largest, 1.0), 0.0)  # no square overflows
        self.gram, self.moves = np.zeros((len(rows), len(rows))), np.zeros((len(rows), values.shape[1]))
        for piece in pieces:
            centred = (rows[:, piece] - self.mean[:, None]) * self.scale[:, None]
            self.gram += centred @ centred.T
            self.moves += centred @ (values[piece] - self.intercept)
        lengths = np.sqrt(self.gram.diagonal())
        unit = np.where(lengths > 0.0, 1.0 / np.where(lengths > 0.0, lengths, 1.0), 0.0)
        self.scale, self.gram, self.moves = self.scale * unit, self.gram * np.multiply.outer(unit, unit), self.moves * unit[:, None]

    def predict(self, span: IndexArray, rows: AnyArray) -> Float64Array:
        """Return (n, t) predictions from the columns ``span``, whose values are ``rows`` (m, n)."""
        lengths, directions = np.linalg.eigh(self.gram[np.ix_(span, span)])
        kept = lengths > _DEPENDENT * max(float(lengths[-1]), 1e-300)
        coef = directions[:, kept] @ ((directions[:, kept].T @ self.moves[span]) / lengths[kept, None])
        with np.errstate(over="ignore", invalid="ignore"):
            standardised = (rows - self.mean[span, None]) * self.scale[span, None]
            return np.asarray(standardised.T @ coef + self.intercept)
