"""Pictures of results, drawn by matplotlib where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.errors import DataError, UnavailableError
from fastomp_nvm.selection.criteria import CRITERIA, OPTIMISTIC
from fastomp_nvm.selection.display import SCALES
from fastomp_nvm.selection.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fastomp_nvm.selection.answer import Answer

__all__ = ["plot_coefficients", "plot_every_k", "plot_groups", "plot_path", "pyplot"]

#: Names that fit beside an axis, their characters, and inches per bar.
_MOST_NAMES, _CHARACTERS, _BAR_INCHES = 40, 32, 0.24


def plot_coefficients(selection: Answer, ax: Axes | None = None, most: int = 30) -> Axes:
    """Draw the coefficients of the first ``most`` columns as bars, the first feature at the top."""
    bars = [
        (column, float(value))
        for columns, coef in zip(selection.columns, selection.coef, strict=True)
        for column, value in zip(columns, np.atleast_1d(coef), strict=True)
    ]
    shown = bars[:most]
    if not shown:
        raise DataError("the selection is empty: there is no coefficient to draw")
    ax = _axes(ax, len(shown))
    colours = ["tab:blue" if value >= 0 else "tab:orange" for _, value in shown]
    places = range(len(shown))
    ax.barh(places, [value for _, value in shown], color=colours)
    ax.set_yticks(places, _named([name for name, _ in shown]))
    ax.margins(y=0.02)
    ax.invert_yaxis()
    ax.axvline(0.0, color="black", linewidth=0.8)
    ax.set_xlabel(
        "coefficient, in units of the target per unit of the column" if selection.objective == "linear" else "coefficient"
    )
    ax.set_title("coefficients" if len(shown) == len(bars) else f"coefficients of the first {len(shown)} of {len(bars)} columns")
    return ax


def plot_path(selection: Answer, ax: Axes | None = None) -> Axes:
    """Draw the score after each feature, in the order of selection."""
    path = [point.score for point in selection.path]
    if len(path) < len(selection.features):
        raise DataError(
            f"the score after each feature of a {selection.objective} selection is recorded for sds_omp and sds_ma only: fo.path "
            "(fastomp path) selects for every k"
        )
    ax = _axes(ax, 16)
    ax.plot(range(1, len(path) + 1), path, marker="o" if len(path) <= 100 else None, label="observations of the fit")
    if selection.test_score is not None:
        ax.plot([len(path)], [selection.test_score], "s", color="tab:orange", label="observations held out")
        ax.legend(loc="lower right")
    if len(path) <= 20:
        ax.set_xticks(range(1, len(path) + 1), _named(selection.features, 24), rotation=60, ha="right")
    else:
        ax.set_xlabel("features, in order of selection")
    ax.set_ylabel(SCALES.get(selection.objective, "score"))
    ax.set_title("score after each selected feature")
    ax.grid(alpha=0.3)
    return ax


def plot_every_k(ks: Sequence[int], selections: Sequence[Answer], axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Draw scores and criteria of selections with ``ks`` features, on two axes."""
    score_axis, axis = axes if axes is not None else pyplot().subplots(1, 2, figsize=(11.0, 4.2), layout="constrained")[1]
    marker = "o" if len(ks) <= 30 else None
    score_axis.plot(ks, [each.score for each in selections], marker=marker, label="observations of the fit")
    if selections[-1].test_score is not None:
        held_out = [np.nan if each.test_score is None else each.test_score for each in selections]
        score_axis.plot(ks, held_out, marker=marker, color="tab:orange", label="observations held out")
        score_axis.legend(loc="lower right")
    score_axis.set(xlabel="k", ylabel=SCALES.get(selections[-1].objective, "mean log-likelihood"), title="score")
    for name in CRITERIA:
        found = [(k, getattr(each.path[-1], name)) for k, each in zip(ks, selections, strict=True)]
        known = [(k, value) for k, value in found if value is not None]
        if known:
            k, least = min(known, key=lambda point: point[1])
            above = [value - least for _, value in known]
            (line,) = axis.plot([at for at, _ in known], above, marker=marker, label=f"{name.upper()}, least at k = {k}")
            axis.plot([k], [0.0], "o", color=line.get_color())
    axis.set(xlabel="k", ylabel="above its least value", title=f"criteria, {OPTIMISTIC}")
    if axis.lines:
        axis.legend()
    for each in (score_axis, axis):
        each.grid(alpha=0.3)
    return score_axis, axis


def plot_groups(
    groups: Mapping[str, Mapping[str, float | None]], figures: Sequence[str], title: str, ax: Axes | None = None
) -> Axes:
    """Draw figures per group as bars side by side; a figure that a group lacks is left out."""
    ax = _axes(ax, 16)
    width = 0.8 / max(len(groups), 1)
    for place, (label, values) in enumerate(groups.items()):
        known = [(at, value) for at, figure in enumerate(figures) if (value := values.get(figure)) is not None]
        offset = (place - (len(groups) - 1) / 2) * width
        rows = values.get("rows")
        name = clean(label, _CHARACTERS) + (f" ({rows:,.0f} rows)" if rows is not None else "")
        bars = ax.bar([at + offset for at, _ in known], [value for _, value in known], width, label=name)
        if len(groups) * len(figures) <= 12:
            ax.bar_label(bars, fmt="%.2f", fontsize="small")
    ax.set_xticks(range(len(figures)), [figure.replace("_", " ") for figure in figures])
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.margins(y=0.12)
    ax.set_title(title)
    ax.legend(title="group", loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")
    return ax


def _named(names: Sequence[str], longest: int = _CHARACTERS) -> list[str]:
    """Return names for an axis, none of them read as a formula."""
    return [clean(str(name), longest).replace("$", r"\$") for name in names]


def _axes(ax: Axes | None, bars: int) -> Axes:
    """Return the axes given, or those of a new figure with room for ``bars`` bars."""
    if ax is not None:
        return ax
    made: Axes = pyplot().subplots(figsize=(7.0, min(max(1.2 + _BAR_INCHES * bars, 2.4), 12.0)), layout="constrained")[1]
    return made


def pyplot() -> ModuleType:
    """Return ``matplotlib.pyplot``."""
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise UnavailableError("a picture needs matplotlib, which is not installed: pip install matplotlib") from error
