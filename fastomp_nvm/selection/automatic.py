"""What a request leaves open: the objective for a target (``objective="auto"``) and the algorithm (``algorithm="auto"``)."""

from __future__ import annotations

import math

import numpy as np

from fastomp_nvm.arrays import Float64Array
from fastomp_nvm.errors import DataError
from fastomp_nvm.matrix.choice import Choice

__all__ = ["choose_algorithm", "choose_objective"]

#: Most distinct whole numbers that may be classes as well as quantities.
_MOST_CLASSES = 20
#: Class labels and values that a message lists.
_LISTED = 5

#: Observations per ``k log(n_features)`` below which FAST_OMP explains less than a greedy algorithm, on data with more features
#: than observations (measured: R^2 lower by .002 to .03, pseudo R^2 by .03 to .19; with twice as many observations by little).
_FEW_OBSERVATIONS = 1.6

#: Most multiply-adds of a greedy algorithm, which makes k passes where FAST_OMP makes about two: 1 to 3 s on two cores.
_GREEDY_PRODUCTS = 1 << 32


def choose_algorithm(n_obs: int, n_features: int, k: int | None, *, constrained: bool) -> Choice:
    """Return the algorithm for data of this shape, from counts of passes and multiply-adds alone.

    FAST_OMP, except where SDS_OMP, the greedy one, costs no more (k = 1) or is better and still cheap. The choice depends on all
    observations, as that of the objective does.

    Parameters
    ----------
    n_obs, n_features : int
    k : int, optional
    constrained : bool
        Whether more than ``k`` limits the selection. FAST_OMP's polish weighs costs and completes lower bounds; SDS_OMP does not.
    """
    if constrained or k is None:
        return Choice("fast_omp", "there is a constraint other than k")
    if k == 1:
        return Choice("sds_omp", "one pass finds the best single feature")
    if n_features <= n_obs or n_obs > _FEW_OBSERVATIONS * k * math.log(n_features):
        return Choice("fast_omp", f"about two passes, where a greedy algorithm makes {k}")
    if (products := k * n_obs * n_features) > _GREEDY_PRODUCTS:
        return Choice("fast_omp", f"a greedy algorithm would take {products:.1e} multiply-adds, more than {_GREEDY_PRODUCTS:.1e}")
    return Choice("sds_omp", f"for {k} of {n_features} features {n_obs} observations are few, and {k} passes are cheap")


def choose_objective(name: str, values: Float64Array, classes: tuple[str, ...] = ()) -> tuple[str, str]:
    """Return the objective for a target, and the reason in words.

    Two classes or two distinct values are logistic, other numbers linear. Poisson is suggested for counts, never chosen. The choice
    depends on all observations, so that folds, subsamples and held-out rows do not change it.

    Parameters
    ----------
    name : str
        Of the target, for messages.
    values : (n_obs,) float64
        Finite numbers, or class codes.
    classes : tuple of str
        Labels of the codes; empty for numbers.

    Raises
    ------
    DataError
        There are more than two classes, or 3 to 20 distinct whole numbers, which may be either.
    """
    if len(classes) > 2:
        raise DataError(
            f"the target {name!r} has {len(classes)} classes ({_listed(classes)}), and a selection needs a number or two classes: "
            "merge them to two, or choose another column as the target (--target NAME, target='NAME')"
        )
    if classes:
        return "logistic", f"the target {name!r} has two classes, {' and '.join(classes)}"
    if (pair := _two_values(values)) is not None:
        return "logistic", f"the target {name!r} has two distinct values, {pair[0]:.12g} and {pair[1]:.12g}"
    numeric = f"the target {name!r} is numeric"
    distinct = _whole_numbers(values)
    if distinct is None or len(distinct) < 2:
        return "linear", numeric
    counts = bool(values.min() >= 0)
    if len(distinct) > _MOST_CLASSES:
        hint = "; its values are whole and not negative: if they are counts, --objective poisson (objective='poisson') models them"
        return "linear", numeric + (hint if counts else "")
    ways = "--objective linear (objective='linear') if they are quantities, " + (
        "--objective poisson if they are counts, " if counts else ""
    )
    raise DataError(
        f"the target {name!r} has {len(distinct)} distinct values, all whole ({_listed([f'{value:.12g}' for value in distinct])}), "
        f"which may be quantities or classes: choose {ways}or merge them to two classes for --objective logistic"
    )


def _two_values(values: Float64Array) -> tuple[float, float] | None:
    """Return the two distinct values in ascending order; None where there are fewer or more."""
    others = values[values != values[0]] if len(values) else values
    if not len(others) or (others != others[0]).any():
        return None
    low, high = sorted((float(values[0]), float(others[0])))
    return low, high


def _whole_numbers(values: Float64Array) -> Float64Array | None:
    """Return the distinct values, or more than ``_MOST_CLASSES`` of them; None unless all values are whole numbers."""
    if (values != np.floor(values)).any():
        return None
    length = 1000
    while len(distinct := np.unique(values[:length])) <= _MOST_CLASSES and length < len(values):
        length *= 16
    return distinct


def _listed(labels: tuple[str, ...] | list[str]) -> str:
    """Return the first labels, separated by commas."""
    return ", ".join([*labels[:_LISTED], *(["..."] if len(labels) > _LISTED else [])])
