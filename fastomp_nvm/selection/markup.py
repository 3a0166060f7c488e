"""HTML and SVG built from elements, and tables of them: every text and attribute is escaped where it is put in."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fastomp_nvm.selection.text import clean

__all__ = ["Markup", "Number", "element", "joined", "table"]

#: Elements without content or end tag.
_VOID = frozenset({"meta", "link", "br", "input", "line", "rect", "circle", "path", "polyline"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


class Number(Markup):
    """HTML of a number with more below it: a cell of a table aligned as numbers are."""

    __slots__ = ()


def element(tag: str, *content: str | None, **attributes: str | float | bool | None) -> Markup:
    """Return an element; ``content`` is escaped unless it is ``Markup``, None is left out.

    A trailing ``_`` of an attribute's name is dropped, other underscores become hyphens. An attribute that is None or False is left
    out, True stands without a value.
    """
    written = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.removesuffix("_").replace("_", "-")
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        written.append(f" {name}" if value is True else f' {name}="{escape(text)}"')
    start = f"<{tag}{''.join(written)}>"
    if tag in _VOID:
        return Markup(start if tag in ("meta", "link", "br", "input") else f"{start}</{tag}>")
    return Markup(f"{start}{joined(*content)}</{tag}>")


def joined(*content: str | None) -> Markup:
    """Return pieces one after the other, each escaped unless it is ``Markup``."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in content if part is not None))


def table(head: Sequence[str], rows: Sequence[Sequence[str | float | None]], label: str) -> Markup:
    """Return a table that scrolls by itself where it is too wide; numbers and columns of numbers are aligned to the right.

    ``label`` names it for screen readers.
    """
    numeric = [all(isinstance(row[place], Number) or not isinstance(row[place], str) for row in rows) for place in range(len(head))]
    titles = (
        element("th", name, scope="col", class_="number" if right else None) for name, right in zip(head, numeric, strict=True)
    )
    body = (element("tr", *map(_cell, row)) for row in rows)
    made = element("table", element("thead", element("tr", *titles)), element("tbody", *body), aria_label=label)
    return element("div", made, class_="scroll", tabindex="0", role="region", aria_label=label)


def _cell(value: str | float | None) -> Markup:
    """Return a cell of a table."""
    if value is None:
        return element("td", "-", class_="number")
    if isinstance(value, Number):
        return element("td", value, class_="number")
    if isinstance(value, str):
        return element("td", value if isinstance(value, Markup) else clean(value, 200), class_="name")
    return element("td", f"{value:,}" if isinstance(value, int) else f"{value:.6g}", class_="number")
