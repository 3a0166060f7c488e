"""Exchanges for GLMs: a set is improved until every move that promises something at its fit was tried, and no fit improved.

To second order at its fit, the penalised likelihood of a set is the objective of least squares with an intercept and a ridge: on
columns weighted by the root of ``W = w v(eta)``, for the working response ``eta + residual / W``. So the formulas of
:mod:`fastomp_nvm.algorithms.exchange` give the gain that this quadratic model expects of every addition and every exchange of one
for one. Moves that it expects to improve f are confirmed by fits, the best first; a better fit has another quadratic model.

A survey computes the expected gains of all features in one sweep, after one pass for the squared lengths of their columns under
``W``. The set is returned when all moves that it finds have been refuted by fits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastomp_nvm.algorithms.exchange import MOST_SURVEYS, TOLERANCE, Move, Neighbourhood, Point, affordable, near, survey
from fastomp_nvm.algorithms.protocol import Problem, Round, Steps
from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.matrix.standardisation import Standardisation
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.objectives.glm import GLM

__all__ = ["QuadraticModel", "exchanged_by_fits"]

#: Features in memory beside the set, at most: every better fit has a Gram matrix of its own.
MOST_NEAR = 256

#: Fits at a set, at most; beyond it nothing is claimed.
MOST_FITS = 512

#: Features of several columns read at once.
READ_AT_ONCE = 64


class QuadraticModel:
    """The likelihood to second order at the fit of a set, in the terms in which exchanges see the linear model.

    Parameters
    ----------
    problem : Problem
    objective : GLM
    selected : (s,) int64

    Attributes
    ----------
    response : (n_obs,) float64
        The working response, weighted, without what intercept and fixed directions explain, and of unit length.
    ridge : float
    """

    def __init__(self, problem: Problem, objective: GLM, selected: IndexArray) -> None:
        self._problem, self.ridge = problem, objective.ridge
        at = objective.newton(problem.pool.columns(selected).dense(np.arange(len(selected))), objective.null_coefficients)
        self._weights = objective.weights * objective.moments(at.eta)[1]
        self._root = np.sqrt(self._weights)
        rows = objective.design(np.empty((len(self._root), 0)))
        self._free = np.linalg.qr((self._root * rows).T)[0]  # directions that every fit contains
        working = self._root * (at.eta if objective.offset is None else at.eta - objective.offset)
        working += np.divide(at.residual, self._root, out=np.zeros_like(working), where=self._root > 0.0)
        working -= self._free @ (self._free.T @ working)
        self.response = working / np.linalg.norm(working)

    def weighted(self, columns: Float64Array) -> Float64Array:
        """Return columns (n_obs, d) weighted, less what intercept and fixed directions explain: these are never penalised."""
        return self._beside(columns, self._free)

    def _beside(self, columns: Float64Array, free: Float64Array) -> Float64Array:
        """Return columns (n_obs, d) weighted, less their parts along the orthonormal ``free`` (n_obs, f)."""
        weighted = self._root[:, None] * columns
        return np.asarray(weighted - free @ (free.T @ weighted))

    def along_fixed(self) -> list[Float64Array]:
        """Return the sweep vectors of the fixed directions under ``W``, without the intercept, which lengths are free of."""
        return [self._root * row for row in self._free.T[1:]]

    def swept(self, vector: Float64Array) -> Float64Array:
        """Return the sweep vector of ``vector`` (n_obs,), which is a combination of weighted columns."""
        return np.asarray(self._root * vector)

    def remainders(self, standardisation: Standardisation, columns: Columns | None) -> tuple[Float64Array, list[Float64Array]]:
        """Return squared lengths and Gram matrices as ``Linear.remainders`` does; of all usable features by default: one pass."""
        problem, groups = self._problem, list[Float64Array]()
        if columns is not None:
            dense = self._beside(columns.dense(np.arange(len(columns.features))), self._free[:, :1])
            pivot = (dense * dense).sum(axis=0) + self.ridge
            for group in standardisation.whiteners:
                blocks = dense.T[group.columns]
                groups.append(blocks @ blocks.transpose(0, 2, 1) + self.ridge * np.eye(blocks.shape[1]))
            return pivot, groups
        problem.counters.traffic.include(Traffic(1, problem.design.standardisation.n_features, problem.design.matrix.nbytes))
        (under,) = problem.design.matrix.standardisations([self._weights], problem.design.standardisation)
        scale = under.subset(problem.usable).scale
        pivot = np.divide(standardisation.scale, scale, out=np.zeros_like(scale), where=scale > 0.0) ** 2 + self.ridge
        for group in standardisation.whiteners:
            found = np.empty((len(group.features), group.columns.shape[1], group.columns.shape[1]))
            for first in range(0, len(found), READ_AT_ONCE):
                part = problem.usable[group.features[first : first + READ_AT_ONCE]]
                blocks = self._beside(problem.pool.read_dense(part), self._free[:, :1])
                blocks = blocks.T.reshape(len(part), group.columns.shape[1], -1)
                found[first : first + len(part)] = blocks @ blocks.transpose(0, 2, 1) + self.ridge * np.eye(blocks.shape[1])
            groups.append(found)
            pivot[group.columns] = found.diagonal(axis1=1, axis2=2)
        return pivot, groups


def exchanged_by_fits(problem: Problem, objective: GLM, starts: Sequence[IndexArray]) -> Steps[tuple[IndexArray, bool]]:
    """Return the set that moves lead to from the best of ``starts``, and whether fits refuted every move to any feature."""
    fits = _Fits(problem, objective)
    selected = max((np.sort(start) for start in starts), key=fits.value)
    most = affordable(problem, MOST_NEAR)
    joining, judged, proven = near(problem, selected, most), selected[:0], True
    for _ in range(MOST_SURVEYS):
        while True:
            yield Round(len(selected), fits.value(selected), members=selected)
            model = QuadraticModel(problem, objective, selected)
            hood = Neighbourhood(problem, model, np.union1d(selected, joining))
            point = Point(hood, np.searchsorted(hood.features, selected).tolist())
            better, complete = _confirmed(point, fits)
            judged, proven = np.union1d(judged, hood.features), proven and complete
            if better is None:
                break
            selected, judged, proven = better, selected[:0], True
        improving, close = yield from survey(point)
        unjudged = improving[~np.isin(improving, judged)]
        if not unjudged.size:
            return selected, proven
        joining = np.concatenate((unjudged[:most], close[: max(most - len(unjudged), 0)]))
    return selected, False


class _Fits:
    """f of sets, by fits; each set is fitted once."""

    def __init__(self, problem: Problem, objective: GLM) -> None:
        self._problem, self._objective = problem, objective
        self._values: dict[bytes, float] = {}

    def value(self, features: IndexArray) -> float:
        """Return f of ``features``, ascending."""
        key = features.tobytes()
        if key not in self._values:
            self._values[key] = self._objective.refit(self._problem.pool.columns(features)).value
        return self._values[key]


def _confirmed(point: Point, fits: _Fits) -> tuple[IndexArray | None, bool]:
    """Return the set after the first move, by expected gain, whose fit improves f, if any; and whether no other was left out."""
    features, value = point.hood.features, fits.value(point.hood.features[np.sort(point.members)])
    moves = _expected(point)
    for _, removed, added in moves[:MOST_FITS]:
        members = np.sort(features[[*(member for member in point.members if member not in removed), *added]])
        if fits.value(members) > (1.0 + TOLERANCE) * value:
            return members, True
    return None, len(moves) <= MOST_FITS


def _expected(point: Point) -> list[Move]:
    """Return the feasible additions and exchanges of one for one that the quadratic model expects to improve f, best first."""
    outside = np.ones(len(point.hood.features), dtype=np.bool_)
    outside[point.members] = False
    moves: list[Move] = []
    for places, gains in (((), point.remainders.gains()), *point.single_exchanges()):
        left = [member for place, member in enumerate(point.members) if place not in places]
        better = np.flatnonzero(outside & (gains > TOLERANCE * point.value))
        removed = [point.members[place] for place in places]
        moves += [(float(gains[one]), removed, [one]) for one in point.hood.extends(left, better).tolist()]
    return sorted(moves, key=lambda move: -move[0])
