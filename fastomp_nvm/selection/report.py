"""A selection as a page to read and pass on: one HTML file that needs nothing else, or its body for a page of a server.

Coefficients, the score after each feature, groups and proxies of protected attributes, the certificate, and what the run cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from fastomp_nvm.algorithms.certificate import certificate_in_words
from fastomp_nvm.selection.charts import Line, line_chart
from fastomp_nvm.selection.criteria import CRITERIA, OPTIMISTIC
from fastomp_nvm.selection.display import GUARANTEES, SCALES, score_in_words, selected_columns
from fastomp_nvm.selection.markup import Markup, element, joined, table
from fastomp_nvm.selection.report_fairness import fairness_section, honesty
from fastomp_nvm.selection.result import Selection
from fastomp_nvm.selection.text import clean, human_bytes, human_seconds
from fastomp_nvm.version import __version__

__all__ = ["report_body", "report_page", "style_sheet"]

#: Half the width of a bar beside a coefficient, in units of its drawing.
_HALF = 50


@lru_cache(maxsize=1)
def style_sheet() -> str:
    """Return the style sheet of reports."""
    return Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def report_page(title: str, selections: Sequence[Selection]) -> str:
    """Return one or more selections as an HTML file that loads nothing from elsewhere."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", clean(title, 100)),
        element("style", Markup(style_sheet())),
    )
    bodies = (element("section", report_body(selection)) for selection in selections)
    meaning = honesty() if any(selection.fairness is not None for selection in selections) else None
    written = f"Written by fastomp {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    body = element(
        "body", element("main", element("h1", clean(title, 200)), *bodies, meaning, element("p", written, class_="soft"))
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def report_body(selection: Selection) -> Markup:
    """Return a selection as HTML, to be put into a page."""
    size, total = len(selection.features), selection.store.n_features
    return joined(
        element("h2", f"{size:,} of {total:,} features: {score_in_words(selection)}"),
        *(element("p", f"Breaks the constraint: {clean(violation, None)}", class_="bad") for violation in selection.violations),
        *_guarantees(selection),
        _coefficients(selection),
        _path(selection),
        None if selection.fairness is None else fairness_section(selection.fairness),
        _costs(selection),
        *(element("p", f"Note: {clean(note, None)}") for note in selection.notes),
    )


def _guarantees(selection: Selection) -> Iterator[Markup]:
    """Yield the sentences on how good the set is."""
    if selection.guarantee in GUARANTEES:
        yield element("p", f"Guarantee: {GUARANTEES[selection.guarantee]}.")
    if selection.certificate is not None:
        words = certificate_in_words(selection.certificate, selection.rank if selection.rank_estimated else None)
        yield element("p", words[0].upper() + words[1:])


def _coefficients(selection: Selection) -> Markup:
    """Return the coefficients as a table with bars."""
    largest = max(map(abs, selection.column_coef.tolist()), default=0.0)
    rows: list[tuple[str | float | None, ...]] = []
    for order, feature, column, value in selected_columns(selection):
        name = column if column == feature or column.startswith(f"{feature}=") else f"{feature}: {column}"
        rows.append((order, name, value, _bar(value / largest if largest else 0.0)))
    rows += [("kept", column.column, column.coef, "") for column in selection.kept]
    rows.append((None, "intercept", float(selection.intercept), ""))
    unit = "in units of the target per unit of the column" if selection.objective == "linear" else "on the scale of the link"
    return joined(element("h3", f"Coefficients, {unit}"), table(("order", "feature", "coefficient", ""), rows, "coefficients"))


def _bar(share: float) -> Markup:
    """Return a bar from the middle to the right (blue) or left (orange)."""
    bar = element(
        "rect", x=_HALF + min(share, 0.0) * _HALF, width=abs(share) * _HALF, y=2, height=12, class_="up" if share >= 0 else "down"
    )
    zero = element("line", x1=_HALF, x2=_HALF, y1=0, y2=16, class_="zero")
    return element("svg", bar, zero, viewBox=f"0 0 {2 * _HALF} 16", class_="bar", aria_hidden="true")


def _path(selection: Selection) -> Markup | None:
    """Return the score after each feature as a chart and a folded table; None where it is not known."""
    points = selection.path
    if len(points) < 2 or len(points) < len(selection.features):
        return None
    scale = SCALES.get(selection.objective, "mean log-likelihood")
    lines = [Line("fit", [(point.k, point.score) for point in points])]
    if selection.test_score is not None:
        lines.append(Line("held out", [(points[-1].k, selection.test_score)]))
    chart = line_chart(f"{scale} after each selected feature", lines, "features, in order of selection", scale)
    head = ("k", "feature", scale, *(name.upper() for name in CRITERIA))
    rows = [
        (point.k, str(feature), float(point.score), *(getattr(point, name) for name in CRITERIA))
        for point, feature in zip(points, selection.features, strict=True)
    ]
    folded = element("details", element("summary", f"As a table ({OPTIMISTIC})"), table(head, rows, "score after each feature"))
    return joined(element("h3", "Score after each feature"), chart, folded)


def _costs(selection: Selection) -> Markup:
    """Return how the answer was found, and what that took."""
    facts = {
        "target": clean(selection.target, 200),
        "objective": selection.objective + (f": {selection.objective_reason}" if selection.objective_reason else ""),
        "algorithm": f"{selection.algorithm}, quality {selection.quality}, k = {selection.k:,}, seed {selection.seed}",
        "data": f"{selection.store.n_obs:,} observations x {selection.store.n_columns:,} columns, {selection.store.dtype}, "
        f"on {selection.medium}{' (emulated)' if selection.emulated else ''}",
        "passes": f"{selection.full_passes:.2f}, {human_bytes(selection.bytes_read)} read",
        "time": human_seconds(selection.seconds),
        "numerics": selection.kernel,
        **{name.replace("_", " "): f"{choice.value}: {choice.reason}" for name, choice in selection.choices.items()},
    }
    pairs = (joined(element("dt", name), element("dd", clean(value, None))) for name, value in facts.items())
    return joined(element("h3", "How it was found"), element("dl", *pairs))
