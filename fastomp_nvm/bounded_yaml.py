"""YAML from files and requests, with limits on size, nesting and aliases.

The composer of libyaml recurses in C, one call per level, so a deeply nested text overflows the stack and crashes the process. The
parser does not recurse: its events are counted first, and the text is composed only if it is within all limits.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["compose_yaml", "load_yaml"]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a hundred thousand names are slow without libyaml

#: Largest number of characters.
_LARGEST = 64 << 20
#: Most levels of lists and mappings; no format of this project needs more than ten.
_DEEPEST = 32
#: Most values after the expansion of aliases: enough for a cost of each of a million features.
_MOST_VALUES = 2_000_000
#: Most directives (``%TAG``); libyaml compares each with all others.
_MOST_DIRECTIVES = 16

_DIRECTIVE = re.compile("(?:^|[\r\n\x85\u2028\u2029])%")


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the root node of a text, None for an empty one; ``yaml.YAMLError`` if it is not YAML or exceeds a limit."""
    _check(text)
    return yaml.compose(text, Loader=_LOADER)


def load_yaml(text: str) -> Any:
    """Return the plain values of a text; ``yaml.YAMLError`` if it is not YAML or exceeds a limit."""
    _check(text)
    return yaml.load(text, Loader=_LOADER)


def _check(text: str) -> None:
    """Raise ``yaml.YAMLError`` if a text exceeds a limit."""
    if len(text) > _LARGEST:
        raise yaml.YAMLError(f"the text has {len(text)} characters, at most {_LARGEST} are allowed")
    if len(_DIRECTIVE.findall(text)) > _MOST_DIRECTIVES:
        raise yaml.YAMLError(f"more than {_MOST_DIRECTIVES} lines are directives (they start with %)")
    anchored: dict[str | None, tuple[int, int]] = {}  # anchor -> values in the node, levels of lists and mappings
    unclosed: list[tuple[str | None, int, int]] = []  # anchor, values and levels of each unclosed list or mapping
    event: Any  # the stubs do not know that parsed events have a line
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            unclosed.append((event.anchor, 1, 1))
            anchored[event.anchor] = 1, _DEEPEST  # an alias inside its own node nests infinitely
            size, levels = 0, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size, levels = unclosed.pop()
            anchored[anchor] = size, levels
        elif isinstance(event, yaml.AliasEvent):
            size, levels = anchored.get(event.anchor, (1, 0))
        elif isinstance(event, yaml.ScalarEvent):
            size, levels = 1, 0
            anchored[event.anchor] = size, levels
        else:
            continue
        if len(unclosed) + levels > _DEEPEST:
            raise yaml.YAMLError(
                f"line {event.start_mark.line + 1}: lists and mappings are nested more than {_DEEPEST} levels deep"
            )
        if unclosed:
            anchor, values, deepest = unclosed[-1]
            unclosed[-1] = anchor, values + size, max(deepest, 1 + levels)
            if values + size > _MOST_VALUES:
                raise yaml.YAMLError(f"line {event.start_mark.line + 1}: more than {_MOST_VALUES} values, aliases included")
