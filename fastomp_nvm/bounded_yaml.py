"""YAML from files and requests, with limits on size, nesting and aliases.

The composer of libyaml recurses in C, one call per level, so a deeply nested text overflows the stack and crashes the process. The
parser does not recurse: its events are counted first, and the text is composed only if it is within all limits.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from fastomp_nvm.limits import YAML_CHARACTERS, YAML_DIRECTIVES, YAML_LEVELS, YAML_VALUES, checkpoint

__all__ = ["compose_yaml", "load_yaml"]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a hundred thousand names are slow without libyaml

_DIRECTIVE = re.compile("(?:^|[\r\n\x85\u2028\u2029])%")


def compose_yaml(text: str, *, aliases: bool = True) -> yaml.Node | None:
    """Return the root node of a text, None for an empty one; ``yaml.YAMLError`` if it is not YAML or exceeds a limit.

    Without ``aliases`` a text that has any is refused.
    """
    _check(text, aliases)
    return yaml.compose(text, Loader=_LOADER)


def load_yaml(text: str) -> Any:
    """Return the plain values of a text; ``yaml.YAMLError`` if it is not YAML or exceeds a limit."""
    _check(text, aliases=True)
    try:
        return yaml.load(text, Loader=_LOADER)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The constructors of dates, numbers and tagged values let the errors of Python's own pass.
        raise yaml.YAMLError(f"a value cannot be read ({error})") from error


def _check(text: str, aliases: bool) -> None:
    """Raise ``yaml.YAMLError`` if a text exceeds a limit."""
    if len(text) > YAML_CHARACTERS:
        raise yaml.YAMLError(f"the text has {len(text)} characters, at most {YAML_CHARACTERS} are allowed")
    if len(_DIRECTIVE.findall(text)) > YAML_DIRECTIVES:
        raise yaml.YAMLError(f"more than {YAML_DIRECTIVES} lines are directives (they start with %)")
    anchored: dict[str | None, tuple[int, int]] = {}  # anchor -> values in the node, levels of lists and mappings
    unclosed: list[tuple[str | None, int, int]] = []  # anchor, values and levels of each unclosed list or mapping
    for number, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if number % 4096 == 0:
            checkpoint()
        if isinstance(event, yaml.CollectionStartEvent):
            unclosed.append((event.anchor, 1, 1))
            anchored[event.anchor] = 1, YAML_LEVELS  # an alias inside its own node nests infinitely
            size, levels = 0, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size, levels = unclosed.pop()
            anchored[anchor] = size, levels
        elif isinstance(event, yaml.AliasEvent):
            if not aliases:
                raise yaml.YAMLError(f"{_line(event)}: aliases (*name) are not possible in a request: write them out")
            size, levels = anchored.get(event.anchor, (1, 0))
        elif isinstance(event, yaml.ScalarEvent):
            size, levels = 1, 0
            anchored[event.anchor] = size, levels
        else:
            continue
        if len(unclosed) + levels > YAML_LEVELS:
            raise yaml.YAMLError(f"{_line(event)}: lists and mappings are nested more than {YAML_LEVELS} levels deep")
        if unclosed:
            anchor, values, deepest = unclosed[-1]
            unclosed[-1] = anchor, values + size, max(deepest, 1 + levels)
            if values + size > YAML_VALUES:
                raise yaml.YAMLError(f"{_line(event)}: more than {YAML_VALUES} values, aliases included")


def _line(event: Any) -> str:
    """Return the line of an event; the stubs do not know that parsed events have one."""
    return f"line {event.start_mark.line + 1}"
