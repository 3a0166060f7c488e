"""Line charts as SVG, for reports and pages: no library, no script, colours from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fastomp_nvm.selection.markup import Markup, element

__all__ = ["Line", "line_chart"]

_WIDTH, _HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 96, 30, 44


class Line(NamedTuple):
    """A line of a chart: its name, written at its end, and its points."""

    name: str
    points: Sequence[tuple[float, float]]


def line_chart(title: str, lines: Sequence[Line], x_label: str, y_label: str, *, from_zero: bool = False) -> Markup:
    """Return a chart of lines over a common pair of axes; ``title`` is its text for screen readers.

    ``from_zero`` lets the y axis begin at 0 where no value is below.
    """
    points = [point for line in lines for point in line.points]
    xs, ys = [x for x, _ in points] or [0.0], [y for _, y in points] or [0.0]
    x_ticks, y_ticks = _ticks(min(xs), max(xs), 6), _ticks(min([*ys, 0.0]) if from_zero else min(ys), max(ys), 4)
    x_low, x_high = min(x_ticks[0], *xs), max(x_ticks[-1], *xs)
    y_low, y_high = min(y_ticks[0], *ys), max(y_ticks[-1], *ys)

    def across(x: float) -> float:
        return round(_LEFT + (x - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT), 1)

    def up(y: float) -> float:
        return round(_HEIGHT - _BOTTOM - (y - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM), 1)

    parts = [element("title", title)]
    for tick in y_ticks:
        parts.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=up(tick), y2=up(tick), class_="grid"))
        parts.append(element("text", f"{tick:g}", x=_LEFT - 8, y=up(tick) + 4, text_anchor="end"))
    parts += [element("text", f"{x:g}", x=across(x), y=_HEIGHT - _BOTTOM + 18, text_anchor="middle") for x in x_ticks]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(element("text", x_label, x=middle, y=_HEIGHT - 5, text_anchor="middle", class_="label"))
    parts.append(element("text", y_label, x=_LEFT, y=14, class_="label"))
    free = list(range(_TOP + 6, _HEIGHT - _BOTTOM + 12, 14))  # heights of names, so that no two share one
    for place, line in enumerate(lines):
        if not line.points:
            continue
        corners = " ".join(f"{across(x):g},{up(y):g}" for x, y in line.points)
        parts.append(element("polyline", points=corners, class_=f"line line{place}"))
        last_x, last_y = line.points[-1]
        parts.append(element("circle", cx=across(last_x), cy=up(last_y), r=3, class_=f"dot line{place}"))
        height = min(free or [_TOP], key=lambda y: abs(y - up(last_y)))
        if height in free:
            free.remove(height)
        parts.append(element("text", line.name, x=across(last_x) + 8, y=height + 4, class_=f"name line{place}"))
    return element("svg", *parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=title, class_="chart")


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers that span from ``low`` to ``high``, about ``most`` of them."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        centre = low if math.isfinite(low) else 0.0
        half = abs(centre) / 2 or 0.5
        low, high = centre - half, centre + half
    rough = (high - low) / most
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(step * place, 12) for place in range(first, last + 1)]
