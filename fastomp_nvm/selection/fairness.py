"""The report on how a model treats the groups of a protected attribute: its figures, text, page, table and picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fastomp_nvm.arrays import JSONObject
from fastomp_nvm.selection import plots
from fastomp_nvm.selection.display import frame, html_table, listed
from fastomp_nvm.selection.text import clean

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FairnessReport"]


@dataclass(frozen=True, slots=True)
class FairnessReport:
    """Figures per group, and fairness of outcome and process.

    Attributes
    ----------
    groups : mapping
        Label -> figures: ``rows`` with ``accuracy``, ``false_positive_rate``, ``false_negative_rate`` (classifiers) or ``r2``,
        ``mean_residual`` (others). None where a group has no observation to take the figure from.
    outcome_fairness : float, optional
        At most 0; None where a rate is undefined, and for models that do not classify.
    process_unfairness : float, optional
        From 0 to 1; None without a fairness constraint.
    evaluated_on : {"test", "all", "given"}
        The observations held out by the selection, all of them, or those the caller named.
    """

    groups: Mapping[str, Mapping[str, float | None]]
    outcome_fairness: float | None
    process_unfairness: float | None
    evaluated_on: str

    def __repr__(self) -> str:
        return f"<FairnessReport: groups {listed(list(self.groups))} on {self.evaluated_on} observations, {_fairness(self)}>"

    def _repr_html_(self) -> str:
        figures = list(next(iter(self.groups.values())))
        rows = [(clean(label, 100), *map(_figure, each.values())) for label, each in self.groups.items()]
        title = f"groups of the protected attribute, {self.evaluated_on} observations"
        return html_table(title, ("group", *(figure.replace("_", " ") for figure in figures)), rows, [_fairness(self)])

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per group."""
        figures = list(next(iter(self.groups.values())))
        columns = {figure: [values[figure] for values in self.groups.values()] for figure in figures}
        return frame({"group": list(self.groups), **columns})

    def plot_fairness(self, ax: Axes | None = None) -> Axes:
        """Draw the figures of the groups side by side and return the axes; needs matplotlib."""
        figures = [figure for figure in next(iter(self.groups.values())) if figure != "rows"]
        return plots.plot_groups(self.groups, figures, f"groups on {self.evaluated_on} observations", ax)

    def to_json(self) -> JSONObject:
        """Return the object under ``fairness`` in ``select --json``."""
        return asdict(self)


def _figure(value: float | None) -> str:
    """Return a figure of a group as text."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _fairness(report: FairnessReport) -> str:
    """Return outcome and process fairness in words."""
    outcome = "undefined" if report.outcome_fairness is None else f"{report.outcome_fairness:.4g} (0 is even)"
    process = "" if report.process_unfairness is None else f", process unfairness {report.process_unfairness:.4g}"
    return f"outcome fairness {outcome}{process}"
