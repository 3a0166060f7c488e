"""HTML and SVG built from elements: every text and attribute is escaped where it is put in."""

from __future__ import annotations

from html import escape

__all__ = ["Markup", "element", "joined"]

#: Elements without content or end tag.
_VOID = frozenset({"meta", "link", "br", "input", "line", "rect", "circle", "path", "polyline"})


class Markup(str):
    """Text that is HTML already."""

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
