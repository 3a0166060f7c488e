"""The fairness report as HTML: groups, differences and proxies of protected attributes, and what all of it means."""

from __future__ import annotations

from collections.abc import Sequence

from fastomp_nvm.selection.fairness import EVALUATED_ON, FairnessReport, GroupReport, ProxyReport, figure_in_words, named
from fastomp_nvm.selection.honesty import CANNOT_SEE, KINDS, definition
from fastomp_nvm.selection.markup import Markup, Number, element, joined, table
from fastomp_nvm.selection.text import clean

__all__ = ["fairness_section", "honesty"]


def fairness_section(report: FairnessReport) -> Markup:
    """Return the figures per group, their differences, and the proxies."""
    process = report.process_unfairness
    return joined(
        element("h3", "Fairness"),
        element("p", f"Evaluated on {EVALUATED_ON[report.evaluated_on]}. {report.intervals_in_words()}"),
        *(_groups(each) for each in report.attributes),
        None if process is None else element("p", f"Process unfairness {process:.4g}: {definition('process_unfairness')}."),
        _proxies(report),
    )


def honesty() -> Markup:
    """Return what the kinds of fairness mean here, and what no figure shows."""
    kinds = (element("p", element("b", name), f" {meaning}") for name, meaning in KINDS.items())
    limits = (element("li", sentence) for sentence in CANNOT_SEE)
    return element(
        "section",
        element("h2", "What these figures mean, and what they cannot say"),
        *kinds,
        element("h3", "What this report cannot see"),
        element("ul", *limits),
    )


def _groups(report: GroupReport) -> Markup:
    """Return the figures of the groups of an attribute and their differences."""
    head = ("group", *map(named, report.figures))
    rows = [
        (
            f"{clean(label, 200)}{' (small)' if label in report.small else ''}",
            *(_ranged(report, label, figure) for figure in report.figures),
        )
        for label in report.groups
    ]
    gaps = [
        (named(name), _shown(value), _between(report.difference_intervals.get(name)), definition(name))
        for name, value in report.differences.items()
    ]
    name = clean(report.attribute, 200)
    figures = element(
        "p", "; ".join(f"{named(figure)}: {definition(figure)}" for figure in report.figures if figure != "rows"), class_="soft"
    )
    return joined(
        element("h4", f"Groups of {name}"),
        element("div", table(head, rows, f"figures of the groups of {name}"), class_="wide"),
        *(element("p", sentence) for sentence in report.sentences()),
        table(("difference", "value", "[low, high]", "definition"), gaps, f"differences between the groups of {name}"),
        element("details", element("summary", "What the columns are"), figures),
    )


def _ranged(report: GroupReport, label: str, figure: str) -> str | float | None:
    """Return a figure of a group as a cell, with its interval below it."""
    value = report.groups[label][figure]
    interval = report.group_intervals.get(label, {}).get(figure)
    if value is None or interval is None:
        return value if figure == "rows" else _shown(value)
    return Number(joined(figure_in_words(value), element("br"), element("span", _between(interval), class_="soft")))


def _between(interval: Sequence[float] | None) -> str:
    """Return an interval as text."""
    return "" if interval is None else f"[{interval[0]:.3f}, {interval[1]:.3f}]"


def _proxies(report: FairnessReport) -> Markup | None:
    """Return how well features predict the attributes: the sets, and each selected feature."""
    if not report.proxies:
        return None
    head = ("predicted", "measure", "strongest selected", "", "selected together", "best single of the data", "", "all features")
    sets = [_proxy_row(proxy) for proxy in report.proxies]
    features = list(dict.fromkeys(name for proxy in report.proxies for name in proxy.selected))
    each = [(name, *(_shown(proxy.selected.get(name)) for proxy in report.proxies)) for name in features]
    return joined(
        element("h4", "Proxies of protected attributes"),
        *(element("p", f"{proxy.sentence()}.") for proxy in report.strongest_proxies()),
        element("div", table(head, sets, "how well features predict protected attributes"), class_="wide"),
        element(
            "details",
            element("summary", "Each selected feature by itself"),
            table(("feature", *(proxy.target for proxy in report.proxies)), each, "how well each selected feature predicts them"),
        ),
    )


def _proxy_row(proxy: ProxyReport) -> tuple[str | float | None, ...]:
    """Return the row of what predicts one attribute or group."""
    name, value = proxy.strongest or ("none", None)
    measure = ("AUC" if proxy.measure == "auc" else "R^2") + (", held out" if proxy.held_out else ", in-sample")
    best = proxy.best_feature or "unknown"
    return proxy.target, measure, name, _shown(value), _shown(proxy.together), best, _shown(proxy.best), _shown(proxy.everything)


def _shown(value: float | None) -> Number | None:
    """Return a figure as a cell."""
    return None if value is None else Number(figure_in_words(value))
