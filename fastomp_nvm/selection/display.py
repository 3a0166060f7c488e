"""Results in interactive use: a short ``repr``, HTML for notebooks, and tables for pandas."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.errors import UnavailableError
from fastomp_nvm.selection.text import clean, human_bytes, human_seconds

if TYPE_CHECKING:
    import pandas as pd

    from fastomp_nvm.selection.answer import Answer

__all__ = [
    "GUARANTEES",
    "SCALES",
    "frame",
    "html_table",
    "listed",
    "score_in_words",
    "selected_columns",
    "selection_frame",
    "selection_html",
    "short_selection",
]

#: Objective -> what its score is.
SCALES = {"linear": "R^2"}

#: Guarantees beyond the paper's, in words.
GUARANTEES = {
    "greedy": "verified over all features: no worse than matching pursuit or, for a linear model, greedy with a pass per feature",
    "optimal": "no feasible set fits better: the certificate's bound is reached",
    "swap-optimal": "verified over all features: no addition and no exchange of one feature for another improves the fit",
}

#: Characters of names in a ``repr``, and rows of a table in HTML.
_NAMES_WIDTH, _ROWS = 64, 50

#: A cell of a table that is a number, or has none.
_NUMBER = re.compile(r"-?[\d,.]+(e[-+]?\d+)?|-|nan|-?inf")


def short_selection(selection: Answer) -> str:
    """Return the ``repr`` of a selection: at most three lines."""
    size, total = len(selection.features), selection.store.n_features
    lines = [f"<Selection: {size:,} of {total:,} features, {score_in_words(selection)}"]
    if size:
        lines.append(f"  {listed(selection.features)}")
    broken = "" if selection.feasible else ", breaks the constraint"
    return "\n".join([*lines, f"  {_costs(selection)}{broken}>"])


def score_in_words(selection: Answer) -> str:
    """Return objective and score of a selection, and the score on held-out observations where there are some."""
    scale = SCALES.get(selection.objective, "mean log-likelihood")
    held_out = "" if selection.test_score is None else f" ({selection.test_score:.4g} on {selection.test_rows:,} held out)"
    return f"{selection.objective}, {scale} {selection.score:.4g}{held_out}"


def listed(names: Sequence[str]) -> str:
    """Return the first names of several, as many as fit on a line, and how many more there are."""
    shown: list[str] = []
    for name in names:
        short = clean(str(name), 40)
        if shown and sum(len(each) + 2 for each in shown) + len(short) > _NAMES_WIDTH:
            break
        shown.append(short)
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def selection_html(selection: Answer) -> str:
    """Return a selection as HTML: score, features with their coefficients, costs."""
    title = f"{len(selection.features):,} of {selection.store.n_features:,} features, {score_in_words(selection)}"
    rows = []
    for order, feature, column, value in selected_columns(selection):
        name = column if column == feature or column.startswith(f"{feature}=") else f"{feature}: {column}"
        rows.append((str(order), clean(name, 100), f"{value:.6g}"))
    rows += [("kept", clean(column.column, 100), f"{column.coef:.6g}") for column in selection.kept]
    rows.append(("", "intercept", f"{selection.intercept:.6g}"))
    chosen = [f"{name.replace('_', ' ')} {choice.value}: {choice.reason}" for name, choice in selection.choices.items()]
    notes = [_costs(selection), *chosen, *(f"breaks the constraint: {violation}" for violation in selection.violations)]
    groups = "" if selection.fairness is None else selection.fairness._repr_html_()
    return html_table(title, ("order", "feature", "coefficient"), rows, notes) + groups


def selection_frame(selection: Answer) -> pd.DataFrame:
    """Return a selection as a table: one row per selected column."""
    order, features, columns, values = zip(*selected_columns(selection), strict=True) if len(selection.features) else ((),) * 4
    return frame({"feature": features, "column": columns, "coefficient": values, "order": order})


def frame(columns: Mapping[str, object]) -> pd.DataFrame:
    """Return named columns as a table of pandas."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise UnavailableError("a table needs pandas, which is not installed: pip install pandas") from error
    table: pd.DataFrame = pandas.DataFrame(dict(columns))
    return table


def html_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Return an HTML table with a caption and notes below it; every text is escaped, and rows beyond 50 are counted only."""
    from html import escape

    if len(rows) > _ROWS + 1:
        notes = [f"and {len(rows) - _ROWS:,} more rows; to_frame() has all of them", *notes]
        rows = rows[:_ROWS]
    # Notebooks centre tables and align every cell to the right.
    texts = [any(cell and not _NUMBER.fullmatch(cell) for cell in cells) for cells in zip(*rows, strict=True)] or [True] * len(head)
    styles = [f"style='text-align:{'left' if text else 'right'};padding:0.1em 0.7em'" for text in texts]
    top = "".join(f"<th {style}>{escape(name)}</th>" for name, style in zip(head, styles, strict=True))
    lines = ("".join(f"<td {style}>{escape(cell)}</td>" for cell, style in zip(row, styles, strict=True)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    below = "".join(f"<div>{escape(note)}</div>" for note in notes)
    table = f"<table style='margin:0.3em 0'><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div style='margin-bottom:0.8em'><div><b>{escape(title)}</b></div>{table}{below}</div>"


def selected_columns(selection: Answer) -> list[tuple[int, str, str, float]]:
    """Return order, feature, column and coefficient of every selected column."""
    return [
        (order, str(feature), str(column), float(value))
        for order, (feature, columns, coef) in enumerate(
            zip(selection.features, selection.columns, selection.coef, strict=True), start=1
        )
        for column, value in zip(columns, np.atleast_1d(coef), strict=True)
    ]


def _costs(selection: Answer) -> str:
    """Return algorithm, passes, bytes and time of a selection."""
    passes = f"{selection.full_passes:.2f} passes"
    return f"{selection.algorithm}, {passes}, {human_bytes(selection.bytes_read)} read, {human_seconds(selection.seconds)}"
