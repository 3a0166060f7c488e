"""One-sentence notes on a selection that deserves a second look: a leaking column, copies, too large a k, constant features.

Everything is computed from the selected columns, which are in memory already: nothing is read, and no counter changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fastomp_nvm.algorithms.protocol import Problem
from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.matrix.pool import Columns
from fastomp_nvm.objectives.base import Fit
from fastomp_nvm.selection.response import Response

__all__ = ["notes_on"]

#: An R^2 this close to 1 is exact.
_EXACT = 1e-10
#: Two classes with a pseudo R^2 below this are not separated.
_NEARLY_SEPARATED = 0.7
#: Observations on which values that do not separate two classes nearly always show it.
_FEW = 64
#: Columns whose correlation is this close to 1 or -1 are copies of each other.
_COPIES = 1e-9
#: Most elements of the selected columns that are looked at.
_MOST_ELEMENTS = 1 << 25
#: Most pairs of columns with like projections that are compared in full.
_MOST_PAIRS = 1000


def notes_on(
    names: Sequence[str],
    columns: Columns,
    fit: Fit,
    problem: Problem,
    response: Response,
    weights: Float64Array | None,
    standardised: bool,
    limit: int,
    constant: int,
    repaired: bool = False,
) -> list[str]:
    """Return the notes on a selection, most important first.

    Parameters
    ----------
    names : sequence of str
        The selected features.
    columns : Columns
        Their columns.
    fit : Fit
        The model on them.
    problem : Problem
    response : Response
    weights : (n_obs,) float64, optional
        Zero for observations that are left out or held out.
    standardised : bool
        Whether columns are standardised.
    limit : int
        Most features that could be selected.
    constant : int
        Features that are constant.
    repaired : bool
        Whether features were exchanged at the end to meet lower bounds.
    """
    used = None if weights is None else weights > 0
    n_obs = len(response.values) if used is None else int(np.count_nonzero(used))
    found: list[str] = []
    n_columns = len(fit.coef)
    if n_columns and columns.held and n_columns * len(response.values) <= _MOST_ELEMENTS:
        if n_columns + 1 < n_obs:
            found += _perfect(names, columns, fit, problem, response, used)
        # Earlier columns leave nothing of a copy.
        if weights is not None or not standardised or fit.remainder < 4.0 * _COPIES:
            found += _copies(names, columns, response.values, weights, used, standardised)
    if limit >= n_obs:
        found.append(
            f"up to {limit:,} features may be selected from {n_obs:,} observations: that many fit any target exactly, so choose a "
            "smaller k, or judge by the score on observations held out (--test-fraction, test_fraction=)"
        )
    if problem.constraint.open_questions:
        exchanged = "; features were exchanged at the end to meet them" if repaired else ""
        found.append(
            f"whether the lower bounds could still be met was left open {problem.constraint.open_questions:,} times, to save time"
            f"{exchanged}"
        )
    if constant:
        have = "feature is" if constant == 1 else "features are"
        found.append(f"{constant:,} {have} constant on the observations used and cannot be selected")
    return found


def _perfect(
    names: Sequence[str],
    columns: Columns,
    fit: Fit,
    problem: Problem,
    response: Response,
    used: BoolArray | None,
) -> Iterator[str]:
    """Yield a note on a fit without error, with the feature that alone reaches it where there is one."""
    linear = response.objective == "linear"
    if not linear and response.objective != "logistic":
        return
    if fit.score < 1.0 - _EXACT if linear else fit.summary["pseudo_r2"] < _NEARLY_SEPARATED:
        return
    ones = response.values == 1.0
    dense = columns.dense(np.arange(len(columns.features)))

    def exact(part: Float64Array, fitted: Fit | None = None) -> bool:
        if not linear and fitted is None and part.shape[1] == 1:
            return _separates(part[:, 0], ones, used)
        fitted = fitted or problem.objective.fit(part)
        return fitted.score >= 1.0 - _EXACT if linear else _separates(part @ fitted.coef, ones, used)

    # Features alone come first: others beside a leaking one, and the ridge, may spoil the exact order of two classes.
    few = slice(_FEW) if used is None else np.flatnonzero(used)[:_FEW]
    offsets, open_ = columns.standardisation.offsets, None if linear else _may_separate(dense[few], ones[few])
    for name, first, last in zip(names, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if (open_ is None or last - first > 1 or open_[first]) and exact(dense[:, first:last]):
            from shlex import quote

            does = "explains" if linear else "separates the classes of"
            yield (
                f"the feature {name!r} alone {does} the target {response.name!r} without error, as a copy of the target would: if "
                f"it is not known beforehand, leave it out (--exclude {quote(name)}, exclude=[{name!r}])"
            )
            return
    if exact(dense, fit):
        does = "explain" if linear else "separate the classes of"
        yield (
            f"the selected features {does} the target {response.name!r} without error: check that none of them is derived from the "
            "target"
        )


def _separates(values: Float64Array, ones: BoolArray, used: BoolArray | None) -> bool:
    """Return whether all ``values`` (n_obs,) of one class are above those of the other, on the observations used."""
    if used is not None:
        values, ones = values[used], ones[used]
    return bool(_may_separate(values[:, None], ones)[0] and ones.any() and not ones.all())


def _may_separate(values: Float64Array, ones: BoolArray) -> BoolArray:
    """Return (c,) bool: the columns of ``values`` (n, c) in which no value of one class is among those of the other."""
    above, below = values[ones], values[~ones]
    if not (len(above) and len(below)):
        return np.ones(values.shape[1], dtype=np.bool_)
    return np.asarray((above.min(axis=0) > below.max(axis=0)) | (below.min(axis=0) > above.max(axis=0)))


def _copies(
    names: Sequence[str],
    columns: Columns,
    values: Float64Array,
    weights: Float64Array | None,
    used: BoolArray | None,
    standardised: bool,
) -> Iterator[str]:
    """Yield a note on selected features whose columns are copies of each other on the observations used.

    Copies of unit length have like products with any vector, such as the response ``values`` (n_obs,): only columns with like
    products are compared.
    """
    if standardised:  # of unit length under the weights
        direction = values if weights is None else weights * values
        products = columns.products(direction[:, None])[:, 0] / (np.sqrt(values @ direction) or 1.0)
    else:
        direction = values if used is None else values[used]
        products = _unit_rows(columns, np.arange(len(names)), used) @ direction / (np.linalg.norm(direction) or 1.0)
    order = np.argsort(np.abs(products))
    ascending = np.abs(products)[order]
    near: list[tuple[int, int]] = []
    for step in (1, 2, 3):  # others may come between two copies by chance
        places = np.flatnonzero(ascending[step:] - ascending[:-step] < np.sqrt(2.0 * _COPIES))
        near += zip(order[places].tolist(), order[places + step].tolist(), strict=True)
    if not near:
        return
    feature_of = np.repeat(np.arange(len(names)), np.diff(columns.standardisation.offsets))
    involved = np.unique(feature_of[np.array(near[:_MOST_PAIRS])])
    rows = _unit_rows(columns, involved, used)
    among = np.zeros(len(names), dtype=np.bool_)
    among[involved] = True
    row_of = np.cumsum(among[feature_of]) - 1
    pairs: set[tuple[int, int]] = set()
    for one, other in near[:_MOST_PAIRS]:
        first, second = sorted((int(feature_of[one]), int(feature_of[other])))
        if first < second and abs(float(rows[row_of[one]] @ rows[row_of[other]])) > 1.0 - _COPIES:
            pairs.add((first, second))
    if pairs:
        one, other = min(pairs)
        more = f", and {len(pairs) - 1} further pairs," if len(pairs) > 1 else ""
        yield (
            f"the selected features {names[one]!r} and {names[other]!r}{more} are copies of each other (correlation 1 or -1): "
            "one of them says all that both do"
        )


def _unit_rows(columns: Columns, features: IndexArray, used: BoolArray | None) -> Float64Array:
    """Return (n_columns, n): the columns of some selected features as rows of unit length, on the observations used."""
    rows = columns.whole(features).T
    rows = rows if used is None else rows[:, used]
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return np.asarray(rows / np.where(norms > 0, norms, 1.0)[:, None])
