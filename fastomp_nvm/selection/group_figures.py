"""Figures of a model's predictions per group, the differences between groups, and bootstrap intervals of both.

Names and definitions are those of fairlearn and scikit-learn. A classifier's figures depend on the observations only through how
many of each group have a prediction and an outcome, so a bootstrap replicate is a vector of such counts, and the same vectorised
function computes estimate and replicates. Replicates are plain: as many observations as there are, drawn with replacement from all
of them together, so that the sizes of groups vary too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.selection.fairness import LEVEL, SMALL_GROUP, GroupReport
from fastomp_nvm.selection.protected import Attribute

__all__ = [
    "Classified",
    "Figures",
    "GroupFigures",
    "Regressed",
    "auc",
    "automatic_replicates",
    "defined",
    "differences",
    "group_report",
    "intervals",
    "replicates",
]

#: Figures or differences by name: one row per replicate, one column per group.
Figures = dict[str, Float64Array]

#: Bins of equal width of the predicted probability, for the calibration error.
_BINS = 10
#: First word of the bootstrap's seed, which keeps it independent of other draws under the same seed.
_PURPOSE = 0x626F_6F74
#: Most and fewest replicates by default, and the number of observations drawn in all that is aimed at between them.
_MOST, _FEWEST, _DRAWN = 1000, 100, 40_000_000
#: Observations drawn at a time.
_CHUNK = 1 << 19


class GroupFigures(Protocol):
    """Observations sorted into cells, whose counts determine the figures of every group.

    Attributes
    ----------
    cell_of : (n,) int64
        The cell of each observation.
    n_cells : int
    """

    cell_of: IndexArray
    n_cells: int

    def figures(self, counts: Float64Array) -> Figures:
        """Return (b, n_groups) figures for ``counts`` (b, n_cells); NaN where a figure is undefined."""
        ...


class Classified:
    """Predictions of a classifier.

    Parameters
    ----------
    probability : (n,) float64
        Of class 1, which is predicted from 1/2 on.
    actual : (n,) float64
        0 or 1.
    codes : (n,) int64
        The group of each observation; every group from 0 on has one.
    """

    def __init__(self, probability: Float64Array, actual: Float64Array, codes: IndexArray) -> None:
        order = np.lexsort((probability, codes))
        score, group = probability[order], codes[order]
        first = np.ones(len(order), dtype=np.bool_)
        first[1:] = (np.diff(score) != 0) | (np.diff(group) != 0)
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.cumsum(first) - 1
        self.score, group = score[first], group[first]
        self.cell_of = 2 * places + (actual == 1.0)
        self.n_cells = 2 * len(self.score)
        self._starts = np.flatnonzero(np.diff(group, prepend=-1))
        self._sizes = np.diff(np.append(self._starts, len(group)))
        bins = group * _BINS + np.minimum((self.score * _BINS).astype(np.int64), _BINS - 1)
        self._bins = np.flatnonzero(np.diff(bins, prepend=-1))
        self._first_bins = np.searchsorted(self._bins, self._starts)

    def figures(self, counts: Float64Array) -> Figures:
        """Return the figures of each group."""
        negative, positive = counts[:, 0::2], counts[:, 1::2]

        def total(values: Float64Array) -> Float64Array:
            return np.add.reduceat(values, self._starts, axis=1)

        both = negative + positive
        chosen = self.score >= 0.5
        rows, ones = total(both), total(positive)
        zeros = rows - ones
        false_positive, true_positive = total(negative * chosen), total(positive * chosen)
        below = np.cumsum(negative, axis=1) - negative
        below -= np.repeat(below[:, self._starts], self._sizes, axis=1)
        expected = both * self.score
        gaps = np.abs(np.add.reduceat(positive - expected, self._bins, axis=1))
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                "rows": rows,
                "selection_rate": (true_positive + false_positive) / rows,
                "accuracy": (true_positive + zeros - false_positive) / rows,
                "false_positive_rate": false_positive / zeros,
                "false_negative_rate": (ones - true_positive) / ones,
                "auc": total(positive * (below + 0.5 * negative)) / (ones * zeros),
                "mean_predicted": total(expected) / rows,
                "mean_observed": ones / rows,
                "calibration_error": np.add.reduceat(gaps, self._first_bins, axis=1) / rows,
            }


class Regressed:
    """Predictions of a number; parameters as for ``Classified``."""

    def __init__(self, predicted: Float64Array, actual: Float64Array, codes: IndexArray) -> None:
        order = np.argsort(codes, kind="stable")
        self.cell_of = np.empty(len(order), dtype=np.int64)
        self.cell_of[order] = np.arange(len(order))
        self.n_cells = len(order)
        bounds = np.append(np.flatnonzero(np.diff(codes[order], prepend=-1)), len(order))
        self._spans = [slice(first, last) for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
        observed = actual[order]
        self._means = np.array([observed[span].mean() for span in self._spans])
        centred = observed - np.repeat(self._means, np.diff(bounds))  # about the group's mean, so that squares cancel no digits
        residual = (actual - predicted)[order]
        with np.errstate(over="ignore"):  # observations held out may hold anything
            parts = np.ones(len(order)), predicted[order], centred, residual, np.abs(residual), centred**2, residual**2
        self._parts = np.stack(parts, axis=1)

    def figures(self, counts: Float64Array) -> Figures:
        """Return the figures of each group."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.stack([counts[:, span] @ self._parts[span] for span in self._spans], axis=1)
        rows, predicted, centred, residual, absolute, squares, errors = np.moveaxis(sums, 2, 0)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            spread = squares - centred**2 / rows
            return {
                "rows": rows,
                "mean_predicted": predicted / rows,
                "mean_observed": self._means + centred / rows,
                "mean_residual": residual / rows,
                "mean_absolute_error": absolute / rows,
                "r2": np.where(spread > 0.0, 1.0 - errors / np.where(spread > 0.0, spread, 1.0), np.nan),
            }


def differences(figures: Mapping[str, Float64Array], compared: BoolArray) -> Figures:
    """Return (b,) differences between the groups ``compared`` (n_groups,); NaN where one of their figures is undefined."""
    if np.count_nonzero(compared) < 2:
        compared = np.zeros_like(compared)

    def gap(name: str) -> Float64Array:
        values = figures[name][:, compared]
        return np.asarray(values.max(axis=1) - values.min(axis=1) if compared.any() else np.full(len(values), np.nan))

    if "selection_rate" not in figures:
        return {"mean_residual_difference": gap("mean_residual"), "mean_absolute_error_difference": gap("mean_absolute_error")}
    rates = figures["selection_rate"][:, compared]
    parity = gap("selection_rate")
    with np.errstate(invalid="ignore"):
        ratio = rates.min(axis=1) / rates.max(axis=1) if compared.any() else parity
    negatives, positives = gap("false_positive_rate"), gap("false_negative_rate")
    return {
        "demographic_parity_difference": parity,
        "demographic_parity_ratio": ratio,
        "equalized_odds_difference": np.maximum(negatives, positives),
        "equal_opportunity_difference": positives,
        "accuracy_difference": gap("accuracy"),
        "outcome_fairness": 0.0 - (negatives + positives),  # not the negative, which would be -0.0 for an even outcome
    }


def auc(score: Float64Array, positive: BoolArray) -> float:
    """Return the area under the ROC curve of ``score`` (n,): ties count half; NaN unless both classes occur."""
    _, places = np.unique(score, return_inverse=True)
    ones = np.bincount(places.ravel(), positive.astype(np.float64))
    zeros = np.bincount(places.ravel()) - ones
    below = np.cumsum(zeros) - zeros
    pairs = ones.sum() * zeros.sum()
    return float(ones @ (below + 0.5 * zeros) / pairs) if pairs else np.nan


def automatic_replicates(n_obs: int, reports: int = 1) -> int:
    """Return how many replicates to draw for each of several reports on ``n_obs`` observations: from 100 to 1000."""
    return min(max(_DRAWN // max(n_obs * reports, 1), _FEWEST), _MOST)


def replicates(groups: GroupFigures, count: int, seed: int) -> Iterator[Float64Array]:
    """Yield the counts (b, n_cells) of ``count`` replicates, several at a time; always the same for a seed."""
    n_obs, cells = len(groups.cell_of), groups.n_cells
    bits = np.random.PCG64(np.random.SeedSequence((_PURPOSE, seed)))  # its raw words are the same in every release of NumPy
    step = max(_CHUNK // n_obs, 1)
    for first in range(0, count, step):
        some = min(step, count - first)
        words = bits.random_raw(some * n_obs) >> np.uint64(32)
        drawn = ((words * np.uint64(n_obs)) >> np.uint64(32)).astype(np.int64).reshape(some, n_obs)
        places = groups.cell_of[drawn] + cells * np.arange(some)[:, None]
        yield np.bincount(places.ravel(), minlength=some * cells).reshape(some, cells).astype(np.float64)


def intervals(values: Float64Array) -> list[list[float] | None]:
    """Return the percentile interval of each column of ``values`` (b, c), over the replicates in which it is defined."""
    found: list[list[float] | None] = []
    for column in values.T:
        known = column[np.isfinite(column)]
        tail = (1.0 - LEVEL) / 2
        found.append(np.quantile(known, (tail, 1.0 - tail)).tolist() if known.size else None)
    return found


def group_report(
    attribute: Attribute,
    predicted: Float64Array,
    actual: Float64Array,
    codes: IndexArray,
    classifies: bool,
    count: int = 0,
    seed: int = 0,
) -> GroupReport:
    """Return the figures of the groups of an attribute, whose ``codes`` (n,) are those of the observations evaluated.

    ``count`` replicates are drawn under ``seed``; none without.
    """
    present, codes = np.unique(codes, return_inverse=True)
    groups = (Classified if classifies else Regressed)(predicted, actual, codes.ravel())
    once = groups.figures(np.bincount(groups.cell_of, minlength=groups.n_cells)[None].astype(np.float64))
    compared = once["rows"][0] >= SMALL_GROUP
    drawn: dict[str, Float64Array] = {}
    spread: dict[str, list[list[float] | None]] = {}
    gaps: dict[str, list[float] | None] = {}
    if count:
        each = [groups.figures(counts) for counts in replicates(groups, count, seed)]
        drawn = {name: np.concatenate([figures[name] for figures in each]) for name in once}
        spread = {name: intervals(values) for name, values in drawn.items() if name != "rows"}
        gaps = {name: intervals(values[:, None])[0] for name, values in differences(drawn, compared).items()}
    labels = attribute.labels
    place_of = {int(code): place for place, code in enumerate(present)}
    figures: dict[str, dict[str, float | None]] = {}
    ranges: dict[str, dict[str, list[float] | None]] = {}
    for code, label in enumerate(labels):
        place = place_of.get(code)
        figures[label] = {name: None if place is None else defined(values[0, place]) for name, values in once.items()}
        figures[label]["rows"] = 0 if place is None else int(once["rows"][0, place])
        if count:
            ranges[label] = {
                name: None if place is None or figures[label][name] is None else found[place] for name, found in spread.items()
            }
    estimates = {name: defined(values[0]) for name, values in differences(once, compared).items()}
    return GroupReport(
        attribute=attribute.name,
        binned=attribute.numbers is not None,
        groups=figures,
        differences=estimates,
        small=[label for label, values in figures.items() if (values["rows"] or 0) < SMALL_GROUP],
        group_intervals=ranges,
        difference_intervals={name: None if estimates[name] is None else found for name, found in gaps.items()},
    )


def defined(value: float) -> float | None:
    """Return a figure, None where it is not finite."""
    return float(value) if np.isfinite(value) else None
