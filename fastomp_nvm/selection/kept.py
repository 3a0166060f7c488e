"""Columns that every model has: features that the request keeps, and covariates beside the data.

They are fitted first, are never penalised, and count neither for k nor for the constraint. Objectives see an orthonormal basis of
them; here it is made, and the coefficients of the columns themselves follow from those of the basis.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.constraints.around import Around
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import ConstraintError, DataError, RequestError, near
from fastomp_nvm.matrix.fixed import Fixed
from fastomp_nvm.matrix.pool import ColumnPool
from fastomp_nvm.matrix.standardisation import Standardisation, column_index
from fastomp_nvm.objectives.base import Fit, Objective
from fastomp_nvm.objectives.independent import DEPENDENT, cholesky_of_independent
from fastomp_nvm.selection.answer import KeptColumn
from fastomp_nvm.selection.covariates import Covariates
from fastomp_nvm.selection.request import SelectionRequest

__all__ = ["Kept", "around", "keep", "kept_features"]

#: Names in a sentence, at most.
MOST_NAMED = 10

#: Kept columns at most: a basis of them is in memory, and every dense column is projected.
MOST_COLUMNS = 1000


class Kept(NamedTuple):
    """Columns that every model has.

    Attributes
    ----------
    fixed : Fixed
        A basis of those that are independent.
    names, columns, positions : lists
        Of each column: its feature or covariate, its own name, and its place in the matrix (None for a covariate).
    standardisation : Standardisation
        Of the features, whose columns come first.
    mean, scale : float64
        Of the covariates.
    matched_by : {"identifier", "position"}, optional
        How rows of covariates were found.
    independent : (q,) int64
        Columns of the basis.
    factor : (q, q) float64
        Upper triangular: these columns, standardised, are the basis times this.
    """

    fixed: Fixed
    names: list[str]
    columns: list[str]
    positions: list[int | None]
    standardisation: Standardisation
    mean: Float64Array
    scale: Float64Array
    matched_by: str | None
    independent: IndexArray
    factor: Float64Array

    def coefficients(self, objective: Objective, fit: Fit, selected: Float64Array) -> tuple[list[KeptColumn], float]:
        """Return the columns with their coefficients beside ``selected`` (n_obs, d), whole, and what they add to the intercept."""
        directions = fit.fixed - self.fixed.overlaps(selected) @ fit.coef if objective.projects else fit.fixed
        standardised = np.zeros(len(self.names))
        standardised[self.independent] = solve_triangular(self.factor, directions)
        of_features, shift = self.standardisation.coefficients(standardised[: len(self.names) - len(self.mean)])
        beside = standardised[len(of_features) :] * self.scale
        parts = zip(self.names, self.columns, self.positions, [*of_features.tolist(), *beside.tolist()], strict=True)
        return [KeptColumn(*part) for part in parts], shift - float(beside @ self.mean)

    def notes(self, spanned: Sequence[str]) -> list[str]:
        """Return what is to be known of a selection beside these columns; ``spanned`` are features that they explain."""
        independent, every = {self.names[place] for place in self.independent.tolist()}, list(dict.fromkeys(self.names))
        dependent = [name for name in every if name not in independent]
        found = [f"scores and gains are beyond the intercept and {_listed(every)}, which every model contains"]
        if self.matched_by == "position":
            found.append("covariates were matched with the observations by position: neither has identifiers")
        if spanned:
            found.append(f"{_listed(spanned)} cannot be selected: the kept columns explain every value")
        if dependent:
            found.append(f"{_listed(dependent)} among the kept columns: the coefficient is 0 (constant, or explained by others)")
        return found


def _listed(names: Sequence[str]) -> str:
    """Return names as part of a sentence, the first of many."""
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(repr, names[:MOST_NAMED])) + more


def kept_features(dataset: Dataset, request: SelectionRequest, response: int | None) -> IndexArray:
    """Return the features that a request keeps, ascending; ``response`` is the feature that is the target, if one is."""
    patterns = request.keep
    names, found = {name: index for index, name in enumerate(dataset.names)} if patterns else {}, set[int]()
    for pattern in patterns:
        if pattern in names:
            found.add(names[pattern])
            continue
        matching = [index for name, index in names.items() if fnmatchcase(name, pattern)] if set("*?[") & set(pattern) else []
        if not matching:
            raise RequestError(f"the feature {pattern!r} is to be kept, but the data has none of that name{near(pattern, names)}")
        found.update(matching)
    others = dict.fromkeys(request.exclude, "to be excluded")
    others |= {given: "to be the " + what for what in ("weights", "offset") if isinstance(given := getattr(request, what), str)}
    both = next((name for name in others if names.get(name) in found), None)
    if both is not None:
        raise RequestError(f"the feature {both!r} is to be kept and {others[both]}: leave it out of one of them")
    if response in found:
        raise RequestError(f"the feature {dataset.names[int(response or 0)]!r} is the target, which cannot be kept")
    return np.array(sorted(found), dtype=np.int64)


def around(constraint: Constraint, features: IndexArray) -> Constraint:
    """Return the constraint on what may be selected beside kept ``features`` that count for it."""
    if constraint.needs_base:
        raise RequestError("kept features cannot count for lower bounds: leave keep_inside out, or the lower bounds")
    if broken := constraint.violations(features):
        raise ConstraintError(f"the {len(features):,} kept features alone break the constraint: {'; '.join(broken)}")
    if isinstance(constraint, Cardinality):
        if constraint.k == len(features):
            raise RequestError(f"k is {constraint.k:,}, and as many features are kept inside it: raise k to select any")
        return Cardinality(constraint.n_features, constraint.k - len(features))
    return Around(constraint, features)


def keep(
    dataset: Dataset, pool: ColumnPool, features: IndexArray, covariates: Covariates | None, weights: Float64Array | None
) -> Kept:
    """Return the ``features`` and ``covariates`` as directions under the observation weights (n_obs,)."""
    standardisation = pool.design.standardisation.subset(features)
    within = column_index(dataset.offsets, features)
    owners = np.repeat(features, np.diff(standardisation.offsets))
    names = [dataset.names[feature] for feature in owners.tolist()]
    columns = [dataset.column_names[column] for column in within.tolist()]
    beside = None if covariates is None else covariates.matched(dataset.ids, dataset.n_obs)
    width = len(names) + (0 if beside is None else beside.shape[1])
    if width > MOST_COLUMNS:
        raise RequestError(f"{width:,} columns are to be kept, at most {MOST_COLUMNS:,} are possible")
    w = np.ones(dataset.n_obs) if weights is None else weights
    dense, means, inverse = pool.read_dense(features), np.empty(0), np.empty(0)
    if covariates is not None and beside is not None:
        again = next((name for name in covariates.names if name in names), None)
        if again is not None:
            raise RequestError(f"{again!r} is both a feature to keep and a covariate: leave it out of one of them")
        means = (w @ beside) / w.sum()
        centred = beside - means
        norms = np.sqrt(w @ centred**2)
        largest = np.abs(beside).max(axis=0, initial=0.0) * np.sqrt(w.sum())
        inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 1e-13 * largest)  # 0 for a constant one
        dense = np.hstack((dense, centred * inverse))
        names, columns = names + list(covariates.names), columns + list(covariates.names)
    root = np.sqrt(w)[:, None]
    weighted = root * dense
    _, independent = cholesky_of_independent(weighted.T @ weighted, DEPENDENT)
    if len(independent) + 1 >= np.count_nonzero(w):
        raise DataError(
            f"{len(independent):,} independent columns are to be kept for {np.count_nonzero(w):,} observations, which they fit "
            "without error: keep fewer"
        )
    factor = np.linalg.qr(weighted[:, independent])[1]
    basis = np.ascontiguousarray(solve_triangular(factor, dense[:, independent].T, trans=1))
    positions = [*within.tolist(), *[None] * (width - len(within))]
    fixed = Fixed(basis, basis * w)
    matched_by = None if covariates is None else "position" if covariates.ids is None else "identifier"
    return Kept(fixed, names, columns, positions, standardisation, means, inverse, matched_by, independent, factor)
