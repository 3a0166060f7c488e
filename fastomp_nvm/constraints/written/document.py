"""A description as a tree of YAML nodes with their places.

The tree is that of YAML before it guesses types: a feature called ``on`` or ``1e5`` stays text, the reader of a field decides
whether it is a number, and every error names the file and the line. Python mappings become the same tree, without lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fastomp_nvm.bounded_yaml import compose_yaml
from fastomp_nvm.errors import ConstraintError, near
from fastomp_nvm.limits import checkpoint

__all__ = ["Item", "read_document", "read_text"]

_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,18}")


class Item:
    """A node of a description.

    Parameters
    ----------
    node : yaml.Node
    source : str
        Name of the file, for errors.
    """

    __slots__ = ("_source", "node")

    def __init__(self, node: yaml.Node, source: str) -> None:
        self.node = node
        self._source = source

    @property
    def place(self) -> str:
        """The file and the line."""
        return _place(self._source, self.node.start_mark)

    def error(self, message: str) -> ConstraintError:
        """Return an error that starts with the place of this node."""
        return ConstraintError(f"{self.place}: {message}")

    @property
    def is_text(self) -> bool:
        """Whether this is a single value."""
        return isinstance(self.node, yaml.ScalarNode)

    def mapping(self) -> dict[str, Item]:
        """Return the entries of a mapping; a repeated key is an error."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error(f"found {self._kind()}, expected a mapping")
        checkpoint()
        entries: dict[str, Item] = {}
        for key, value in self.node.value:
            name = Item(key, self._source).text()
            if name in entries:
                raise Item(key, self._source).error(f"the key {name!r} is repeated: remove one")
            entries[name] = Item(value, self._source)
        return entries

    def fields(self, *required: str, optional: tuple[str, ...] = ()) -> dict[str, Item]:
        """Return the entries of a mapping; unknown and missing keys are errors."""
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
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(f"found {self._kind()}, expected a list")
        checkpoint()
        return [Item(node, self._source) for node in self.node.value]

    def text(self) -> str:
        """Return a single value as it was written."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(f"found {self._kind()}, expected a single value")
        return str(self.node.value)

    def integer(self) -> int:
        """Return a whole number."""
        text = self.text()
        if self._quoted() or not _WHOLE_NUMBER.fullmatch(text):
            raise self.error(f"found {text!r}, expected a whole number")
        return int(text)

    def number(self) -> float:
        """Return a number, possibly negative, infinite or NaN."""
        text = self.text()
        try:
            if not self._quoted():
                return float(text)
        except ValueError:
            pass
        raise self.error(f"found {text!r}, expected a number")

    def choice(self, *options: str) -> str:
        """Return a single value that must be one of ``options``."""
        text = self.text()
        if text not in options:
            raise self.error(f"found {text!r}{near(text, options)}, expected one of {', '.join(options)}")
        return text

    def _quoted(self) -> bool:
        """Return whether the value is text on purpose: quoted in YAML, or a ``str`` in a Python mapping (which has no place)."""
        style = self.node.style if isinstance(self.node, yaml.ScalarNode) else None
        return bool(style) or (self.node.start_mark is None and self.node.tag.endswith(":str"))

    def _kind(self) -> str:
        """Return the kind of this node, for errors."""
        if isinstance(self.node, yaml.ScalarNode):
            return repr(self.node.value) if self.node.value else "nothing"
        return "a mapping" if isinstance(self.node, yaml.MappingNode) else "a list"


def read_document(document: str | Mapping[str, Any], source: str, *, aliases: bool = True) -> Item:
    """Return the root of a description.

    Parameters
    ----------
    document : str or mapping
        YAML text, or the equivalent mapping.
    source : str
        Name of the description in errors.
    aliases : bool
        Whether YAML text may have aliases.

    Returns
    -------
    Item
    """
    try:
        if isinstance(document, str):
            node = compose_yaml(document, aliases=aliases)
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


def read_text(path: Path) -> str:
    """Return the text of a description file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConstraintError(
            f"the constraint file {path} cannot be read ({reason}): check its path and that it is UTF-8"
        ) from error


def _place(source: str, mark: yaml.Mark | None) -> str:
    """Return the file and the line, counted from 1."""
    return source if mark is None else f"{source}:{mark.line + 1}"


def _listed(required: tuple[str, ...], optional: tuple[str, ...]) -> str:
    """Return the keys of a mapping, for errors."""
    return " and optionally ".join(", ".join(names) for names in (required, optional) if names)
