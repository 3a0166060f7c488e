"""A written description as a tree that knows where each of its parts stands.

The tree is that of YAML before it guesses types: a feature called ``on`` or ``1e5`` stays text, a number is a number only where one
is asked for, and every error can name the file and the line. Python mappings go through the same tree, without lines. Nothing here
knows what a constraint is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import yaml

from fastomp_nvm.bounded_yaml import compose_yaml
from fastomp_nvm.errors import ConstraintError

__all__ = ["Item", "near", "read_document"]

_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,18}")


class Item:
    """A node of a description.

    Parameters
    ----------
    node : yaml.Node
    source : str
        Name of the file, or of whatever the text came from.
    """

    __slots__ = ("_node", "_source")

    def __init__(self, node: yaml.Node, source: str) -> None:
        self._node = node
        self._source = source

    @property
    def place(self) -> str:
        """The file and the line."""
        return _place(self._source, self._node.start_mark)

    def error(self, message: str) -> ConstraintError:
        """Return an error that starts with the place of this node."""
        return ConstraintError(f"{self.place}: {message}")

    @property
    def is_text(self) -> bool:
        """True for a single value."""
        return isinstance(self._node, yaml.ScalarNode)

    @property
    def is_mapping(self) -> bool:
        """True for a mapping."""
        return isinstance(self._node, yaml.MappingNode)

    def mapping(self) -> dict[str, Item]:
        """Return the entries of a mapping; a key that stands twice is an error."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.error(f"found {self._kind()}, expected a mapping")
        entries: dict[str, Item] = {}
        for key, value in self._node.value:
            name = Item(key, self._source).text()
            if name in entries:
                raise Item(key, self._source).error(f"the key {name!r} stands twice: leave one out")
            entries[name] = Item(value, self._source)
        return entries

    def fields(self, *required: str, optional: tuple[str, ...] = ()) -> dict[str, Item]:
        """Return the entries of a mapping whose keys are known."""
        entries = self.mapping()
        for name, value in entries.items():
            if name not in (*required, *optional):
                raise value.error(
                    f"unknown key {name!r}{near(name, [*required, *optional])}: expected {_listed(required, optional)}"
                )
        for name in required:
            if name not in entries:
                raise self.error(f"the key {name!r} is missing: expected {_listed(required, optional)}")
        return entries

    def elements(self) -> list[Item]:
        """Return the elements of a list."""
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.error(f"found {self._kind()}, expected a list")
        return [Item(node, self._source) for node in self._node.value]

    def text(self) -> str:
        """Return a single value as it was written."""
        if not isinstance(self._node, yaml.ScalarNode):
            raise self.error(f"found {self._kind()}, expected a single value")
        return str(self._node.value)

    def integer(self) -> int:
        """Return a whole number."""
        text = self.text()
        if self._quoted() or not _WHOLE_NUMBER.fullmatch(text):
            raise self.error(f"found {text!r}, expected a whole number")
        return int(text)

    def number(self) -> float:
        """Return a number; whether it may be infinite or negative is for the reader to say."""
        text = self.text()
        try:
            if not self._quoted():
                return float(text)
        except ValueError:
            pass
        raise self.error(f"found {text!r}, expected a number")

    def choice(self, *options: str) -> str:
        """Return one of a few words."""
        text = self.text()
        if text not in options:
            raise self.error(f"found {text!r}{near(text, options)}, expected one of {', '.join(options)}")
        return text

    def _quoted(self) -> bool:
        """Tell whether a value is text on purpose: in quotes, or a str of Python's (which has no place)."""
        style = self._node.style if isinstance(self._node, yaml.ScalarNode) else None
        return bool(style) or (self._node.start_mark is None and self._node.tag.endswith(":str"))

    def _kind(self) -> str:
        """Name what this is in an error."""
        if isinstance(self._node, yaml.ScalarNode):
            return repr(self._node.value) if self._node.value else "nothing"
        return "a mapping" if isinstance(self._node, yaml.MappingNode) else "a list"


def read_document(document: str | Mapping[str, Any], source: str) -> Item:
    """Return the root of a description.

    Parameters
    ----------
    document : str or mapping
        YAML text, or what such a text would say.
    source : str
        Named in errors.

    Returns
    -------
    Item
    """
    try:
        if isinstance(document, str):
            node = compose_yaml(document)
        else:
            node = yaml.representer.SafeRepresenter().represent_data(dict(document))
    except yaml.MarkedYAMLError as error:
        place = _place(source, error.problem_mark or error.context_mark)
        raise ConstraintError(f"{place}: this is not YAML ({error.problem or error.context}): correct it") from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConstraintError(f"{source}: the description cannot be read ({reason}): write it as YAML") from error
    if node is None:
        raise ConstraintError(f"{source}: the description is empty: expected a constraint")
    return Item(node, source)


def near(name: str, options: Any) -> str:
    """Return a hint at the options that look like ``name``, or nothing."""
    found = difflib.get_close_matches(name, options, n=3)
    return f" (did you mean {' or '.join(repr(option) for option in found)}?)" if found else ""


def _place(source: str, mark: yaml.Mark | None) -> str:
    """Name a file and a line, counted from 1."""
    return source if mark is None else f"{source}:{mark.line + 1}"


def _listed(required: tuple[str, ...], optional: tuple[str, ...]) -> str:
    """Name the keys of a mapping."""
    return ", ".join(required) + (f" and optionally {', '.join(optional)}" if optional else "")
