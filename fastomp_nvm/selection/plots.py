"""Pictures of results, drawn by matplotlib where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.errors import DataError, UnavailableError
from fastomp_nvm.selection.display import SCALES
from fastomp_nvm.selection.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fastomp_nvm.selection.result import Selection

__all__ = ["plot_coefficients", "plot_groups", "plot_path"]

#: Names that fit beside an axis, their characters, and inches per bar.
_MOST_NAMES, _CHARACTERS, _BAR_INCHES = 40, 32, 0.24


def plot_coefficients(selection: Selection, ax: Axes | None = None, most: int = 30) -> Axes:
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


def plot_path(selection: Selection, ax: Axes | None = None) -> Axes:
    """Draw the score after each feature, in the order of selection."""
    if selection.path is None:
        raise DataError(
            f"the score after each feature is recorded for linear selections only, and this one is {selection.objective}: "
            "select with several k, as grid does, to see how the score grows"
        )
    path = list(selection.path)
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
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise UnavailableError("a picture needs matplotlib, which is not installed: pip install matplotlib") from error
    made: Axes = pyplot.subplots(figsize=(7.0, min(max(1.2 + _BAR_INCHES * bars, 2.4), 12.0)), layout="constrained")[1]
    return made
