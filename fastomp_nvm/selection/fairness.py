"""The report on how a model treats the groups of protected attributes: its figures, text, page, table and picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fastomp_nvm.arrays import JSONObject
from fastomp_nvm.selection import plots
from fastomp_nvm.selection.display import frame, html_table, listed
from fastomp_nvm.selection.text import clean

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["EVALUATED_ON", "LEVEL", "SMALL_GROUP", "FairnessReport", "GroupReport", "ProxyReport", "figure_in_words"]

#: Groups of fewer observations are shown and flagged, and take no part in differences.
SMALL_GROUP = 30

#: Share of the replicates inside an interval.
LEVEL = 0.95

#: ``evaluated_on`` in words.
EVALUATED_ON = {
    "test": "observations held out",
    "folds": "observations held out by the folds, each predicted by the model of its fold",
    "all": "all observations, those of the fit",
    "given": "given observations",
}

#: Figures that are not rates: no bars of them beside rates.
_NOT_DRAWN = frozenset({"rows", "mean_predicted", "mean_observed"})


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Figures of the groups of a protected attribute, or of the intersection of several, and their differences.

    Attributes
    ----------
    attribute : str
    binned : bool
        Whether the groups are quartiles of a number.
    groups : mapping
        Label -> figures, None where undefined. Of classifiers: ``rows``, ``selection_rate``, ``accuracy``, ``false_positive_rate``,
        ``false_negative_rate``, ``auc``, ``mean_predicted``, ``mean_observed``, ``calibration_error`` (mean distance of predicted
        and observed share over ten bins of the prediction, weighted by their observations). Of other models: ``rows``,
        ``mean_predicted``, ``mean_observed``, ``mean_residual`` (observed minus predicted: positive means underestimated),
        ``mean_absolute_error``, ``r2`` about the group's own mean.
    differences : mapping
        Between the groups that are not small, None where undefined. Of classifiers: ``demographic_parity_difference``,
        ``demographic_parity_ratio``, ``equalized_odds_difference``, ``equal_opportunity_difference`` (as fairlearn defines them),
        ``accuracy_difference``, and the paper's ``outcome_fairness``: minus the sum of the largest differences in false positive
        and in false negative rates, 0 if even. Of other models: ``mean_residual_difference``, ``mean_absolute_error_difference``.
    small : sequence of str
        Groups of fewer than ``SMALL_GROUP`` observations.
    group_intervals, difference_intervals : mapping
        The bootstrap interval ``[low, high]`` of each figure but ``rows``, and of each difference; empty without bootstrap.
    """

    attribute: str
    binned: bool
    groups: Mapping[str, Mapping[str, float | None]]
    differences: Mapping[str, float | None]
    small: Sequence[str]
    group_intervals: Mapping[str, Mapping[str, Sequence[float] | None]]
    difference_intervals: Mapping[str, Sequence[float] | None]

    @property
    def figures(self) -> list[str]:
        """Names of the figures."""
        return list(next(iter(self.groups.values())))

    def sentences(self) -> Iterator[str]:
        """Yield what must be known to read the figures."""
        if self.binned:
            yield f"{clean(self.attribute)} is a number: its groups are quartiles of all observations."
        if self.small:
            names = listed([repr(each) for each in self.small])
            yield f"Fewer than {SMALL_GROUP} observations, left out of the differences: {names}."


@dataclass(frozen=True, slots=True)
class ProxyReport:
    """How well features predict a protected attribute, by least squares on their columns.

    Attributes
    ----------
    attribute : str
    level : str, optional
        The group predicted, against all others, of an attribute with more than two.
    measure : {"auc", "r2"}
        R^2 of an attribute that is a number, otherwise the area under the ROC curve.
    selected : mapping of str to float or None
        Of each selected feature by itself.
    together : float, optional
        Of the selected features together.
    itself : bool
        Whether the protected feature itself is among the selected; it is then part of ``together`` and not of ``selected``.
    best_feature : str, optional
        The best of the selected features and of the five with the largest in-sample R^2 among all of the data, without protected
        features and the target; None where the data was not swept.
    best : float, optional
        Of this feature.
    everything : float, optional
        Of all features together, where they are few.
    held_out : bool
        Whether the observations evaluated are others than those that the least squares were fitted on.
    """

    attribute: str
    level: str | None
    measure: str
    selected: Mapping[str, float | None]
    together: float | None
    itself: bool
    best_feature: str | None
    best: float | None
    everything: float | None
    held_out: bool

    @property
    def target(self) -> str:
        """What is predicted."""
        return self.attribute if self.level is None else f"{self.attribute} = {self.level}"

    @property
    def strongest(self) -> tuple[str, float] | None:
        """The selected feature that predicts it best, and how well."""
        known = [(value, name) for name, value in self.selected.items() if value is not None]
        value, name = max(known, key=lambda each: each[0], default=(0.0, None))
        return None if name is None else (name, value)

    def sentence(self) -> str:
        """Return in words how well the strongest feature, the selected ones together and others predict it."""
        measure = "AUC" if self.measure == "auc" else "R^2"
        where = "held out" if self.held_out else "in-sample"
        parts = []
        if self.strongest is not None:
            parts.append(
                f"{clean(self.strongest[0])} predicts {clean(self.target)} with {measure} {self.strongest[1]:.3f} ({where})"
            )
        if self.itself:
            parts.append("it is selected itself")
        elif self.together is not None and len(self.selected) > 1:
            parts.append(f"the {len(self.selected):,} selected features together {self.together:.3f}")
        if self.best_feature is not None and self.best is not None:
            parts.append(f"best single feature of the data: {clean(self.best_feature)} {self.best:.3f}")
        if self.everything is not None:
            parts.append(f"all features {self.everything:.3f}")
        return "; ".join(parts) or f"nothing is known of what predicts {clean(self.target)}"


@dataclass(frozen=True, slots=True)
class FairnessReport:
    """Figures per group, fairness of outcome and process, and proxies of the protected attributes.

    Attributes
    ----------
    attributes : sequence of GroupReport
        One per protected attribute and, where there are several, one of their intersection.
    proxies : sequence of ProxyReport
        One per attribute; of an attribute with more than two groups one per group that is not small.
    process_unfairness : float, optional
        From 0 to 1; None without a fairness constraint.
    evaluated_on : {"test", "folds", "all", "given"}
        The observations held out by the selection or by the folds of a cross-validation, all of them, or those the caller named.
    replicates : int
        Of the bootstrap; 0 without.
    groups, outcome_fairness
        Those of the first attribute.
    """

    attributes: Sequence[GroupReport]
    proxies: Sequence[ProxyReport]
    process_unfairness: float | None
    evaluated_on: str
    replicates: int

    @property
    def groups(self) -> Mapping[str, Mapping[str, float | None]]:
        """Figures of the groups of the first attribute."""
        return self.attributes[0].groups

    @property
    def outcome_fairness(self) -> float | None:
        """The paper's outcome fairness between the groups of the first attribute; at most 0, None where it is undefined."""
        return self.attributes[0].differences.get("outcome_fairness")

    def intervals_in_words(self) -> str:
        """Return what the intervals are, empty without."""
        if not self.replicates:
            return ""
        return (
            f"[low, high]: {LEVEL:.0%} percentile intervals of {self.replicates:,} plain bootstrap replicates of the observations. "
            "Differences are largest minus smallest, so chance alone puts them above zero, and their intervals higher still."
        )

    def strongest_proxies(self) -> list[ProxyReport]:
        """Return, for each attribute, the report whose strongest selected feature predicts best."""
        best: dict[str, ProxyReport] = {}
        for proxy in self.proxies:
            known = best.get(proxy.attribute)
            if known is None or (proxy.strongest or ("", -1.0))[1] > (known.strongest or ("", -1.0))[1]:
                best[proxy.attribute] = proxy
        return list(best.values())

    def __repr__(self) -> str:
        names = listed([each.attribute for each in self.attributes])
        return (
            f"<FairnessReport: {names}, groups {listed(list(self.groups))} on {self.evaluated_on} observations, {_fairness(self)}>"
        )

    def _repr_html_(self) -> str:
        tables = []
        for report in self.attributes:
            rows = [(clean(label, 100), *map(figure_in_words, each.values())) for label, each in report.groups.items()]
            title = f"groups of {clean(report.attribute)}, {EVALUATED_ON[self.evaluated_on]}"
            notes = [*(f"{named(name)} {_with_interval(report, name)}" for name in report.differences), *report.sentences()]
            tables.append(html_table(title, ("group", *map(named, report.figures)), rows, notes))
        below = [proxy.sentence() for proxy in self.strongest_proxies()]
        return "".join(
            [*tables, html_table("proxies", ("strongest of each attribute",), [(line,) for line in below]) if below else ""]
        )

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per group of each attribute, and the ends of the intervals as columns beside a figure."""
        columns: dict[str, list[object]] = {"attribute": [], "group": []}
        figures = self.attributes[0].figures
        for report in self.attributes:
            for label, values in report.groups.items():
                row: dict[str, object] = {"attribute": report.attribute, "group": label}
                for figure in figures:
                    row[figure] = values[figure]
                    if self.replicates and figure != "rows":
                        row[f"{figure}_low"], row[f"{figure}_high"] = report.group_intervals[label][figure] or (None, None)
                for name, value in row.items():
                    columns.setdefault(name, []).append(value)
        return frame(columns)

    def plot_fairness(self, ax: Axes | None = None) -> Axes:
        """Draw the rates of the groups of the first attribute side by side and return the axes; needs matplotlib."""
        figures = [figure for figure in self.attributes[0].figures if figure not in _NOT_DRAWN]
        title = f"{clean(self.attributes[0].attribute)}, {self.evaluated_on} observations"
        return plots.plot_groups(self.groups, figures, title, ax)

    def to_json(self) -> JSONObject:
        """Return the object under ``fairness`` in ``select --json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, sent: JSONObject) -> FairnessReport:
        """Return the report that ``to_json`` wrote."""
        attributes = [GroupReport(**each) for each in sent["attributes"]]
        return cls(**{**sent, "attributes": attributes, "proxies": [ProxyReport(**each) for each in sent["proxies"]]})


def figure_in_words(value: float | None) -> str:
    """Return a figure of a group as text."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def named(name: str) -> str:
    """Return the name of a figure as words."""
    return name.replace("_", " ")


def _with_interval(report: GroupReport, name: str) -> str:
    """Return a difference with its interval as text."""
    value, interval = report.differences[name], report.difference_intervals.get(name)
    if value is None:
        return "undefined"
    return f"{value:.4g}" + ("" if interval is None else f" [{interval[0]:.4g}, {interval[1]:.4g}]")


def _fairness(report: FairnessReport) -> str:
    """Return outcome and process fairness in words."""
    outcome = "undefined" if report.outcome_fairness is None else f"{report.outcome_fairness:.4g} (0 is even)"
    process = "" if report.process_unfairness is None else f", process unfairness {report.process_unfairness:.4g}"
    return f"outcome fairness {outcome}{process}"
