"""The settings of ``fastomp serve`` in a file: read with the table of its options, which the published schema states.

A key is an option without its dashes, and values are those of the command line, which wins over the file. ``server.schema.json`` in
this folder is the JSON Schema; ``python -m tests.service.test_configuration`` writes it anew after a change of the options.
"""

from __future__ import annotations

import argparse
import math
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastomp_nvm.constraints.written.document import Item, read_document
from fastomp_nvm.errors import ConstraintError, InputError
from fastomp_nvm.limits import check_regular
from fastomp_nvm.stores.url import StoreURL

__all__ = ["check_numbers", "place", "read_configuration", "schema", "seconds", "settings_of", "size"]

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?)\s*([kMGT]?)B?", re.IGNORECASE)
#: Options that are not settings of a server.
_NOT_SETTINGS = ("help", "config", "check", "debug")


def size(text: str) -> int:
    """Read a number of bytes with an optional decimal unit."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: expected a number with kB, MB, GB or TB")
    return int(float(match[1]) * 1000 ** "kmgt".find(match[2].lower()) * 1000) if match[2] else int(float(match[1]))


def seconds(text: str) -> float:
    """Read a duration that may be 0."""
    return float(text)


def place(text: str) -> str:
    """Read a directory or its URL."""
    return text


@dataclass(frozen=True, slots=True)
class _Kind:
    """Values of one type of option: how YAML has them, and their JSON Schema."""

    read: Callable[[Item], object]
    schema: Mapping[str, object]
    expected: str = ""
    fits: Callable[[float], bool] = lambda value: True


_KINDS: Mapping[object, _Kind] = {
    None: _Kind(Item.text, {"type": "string"}),
    bool: _Kind(lambda item: item.choice("true", "false") == "true", {"type": "boolean"}),
    int: _Kind(
        Item.integer, {"type": "integer", "minimum": 1}, "a positive number, whole and at least 1", lambda value: value >= 1
    ),
    float: _Kind(Item.number, {"type": "number", "exclusiveMinimum": 0}, "a positive number", lambda value: value > 0),
    seconds: _Kind(Item.number, {"type": "number", "minimum": 0}, "a positive number or 0", lambda value: value >= 0),
    size: _Kind(
        Item.text,
        {
            "type": ["string", "integer"],
            "pattern": "^[0-9]{1,18}(\\.[0-9]+)? *[kKmMgGtT]?[bB]?$",
            "minimum": 0,
            "maximum": 10**18 - 1,
        },
    ),
    place: _Kind(Item.text, {"type": "string"}),
    Path: _Kind(Item.text, {"type": "string"}),
}


def settings_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options of a parser that are settings, by their key in a file."""
    actions = (action for action in parser._actions if action.dest not in _NOT_SETTINGS)
    return {action.option_strings[-1].removeprefix("--"): action for action in actions}


def _kind(action: argparse.Action) -> _Kind:
    """Return the kind of an option's values."""
    return _KINDS[bool if action.nargs == 0 else action.type]


def schema(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the JSON Schema of files with the settings of a parser."""
    properties: dict[str, Any] = {}
    for key, action in settings_of(parser).items():
        properties[key] = {**_kind(action).schema, "description": action.help}
        if action.default is not None:
            properties[key]["default"] = action.default
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fastomp server",
        "description": "Settings of fastomp serve --config: its options without dashes, which the command line overrides. "
        "Paths are relative to the file.",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def check_numbers(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Raise ``InputError`` for a number of the command line that is out of its range."""
    for key, action in settings_of(parser).items():
        value = getattr(given, action.dest, None)
        if isinstance(value, (int, float)) and (reason := _fault(action, value)):
            raise InputError(f"--{key} is {value}: {reason}")


def read_configuration(path: Path, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the settings in a file, by their names in the namespace of a parser.

    Raises
    ------
    InputError
        The file cannot be read, names an unknown setting, or has a value of the wrong type or out of its range.
    """
    check_regular(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"the configuration {path} cannot be read ({reason}): check its path and that it is UTF-8") from error
    table = settings_of(parser)
    try:
        items = read_document(text, path.name).fields(optional=tuple(table))
        return {table[key].dest: _value(table[key], item, path.parent) for key, item in items.items()}
    except ConstraintError as error:  # of the reader of YAML
        raise InputError(str(error)) from error


def _value(action: argparse.Action, item: Item, folder: Path) -> object:
    """Return a setting as the command line would give it; paths are relative to the folder."""
    kind = _kind(action)
    value = kind.read(item)
    if isinstance(value, (int, float)):
        if reason := _fault(action, value):
            raise item.error(f"{item.text()} is out of range: {reason}")
        return value
    text = item.text()
    if not text:
        raise item.error("found nothing, expected a value: write one or remove the key")
    if action.type is Path:
        return folder / text
    if action.type is place:
        url = StoreURL.parse(text)
        located = str(folder / url.path)
        return f"{url.scheme}://{urllib.parse.quote(located)}" if text.startswith(f"{url.scheme}:") else located
    try:
        return size(text) if action.type is size else text
    except argparse.ArgumentTypeError as error:
        raise item.error(str(error)) from error


def _fault(action: argparse.Action, value: float) -> str | None:
    """Return what was expected of a number that is out of its range."""
    kind = _kind(action)
    return None if math.isfinite(value) and kind.fits(value) else f"expected {kind.expected}"
