"""A description made complete in itself: its CSV side files written into it, so that it can be sent to where no file can be opened.

Only the places where a description may name a file are touched; everything else stays as it was written, to the letter, because
YAML read and written back by value would turn a feature called ``1e5`` into a number. Knows nothing of what a constraint means.
"""

from __future__ import annotations

import csv
import glob
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from fastomp_nvm.bounded_yaml import compose_yaml
from fastomp_nvm.constraints.written.document import near
from fastomp_nvm.errors import ConstraintError

__all__ = ["inline_side_files", "read_inlined"]

_Rows = list[list[str]]


def read_inlined(path: Path) -> str:
    """Return the description in a file with its side files, which stand beside it, written into it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConstraintError(
            f"the constraint file {path} cannot be read ({error}): check its path and that it is UTF-8"
        ) from error
    return inline_side_files(text, path.parent, path.name)


def inline_side_files(text: str, folder: Path, source: str = "constraint") -> str:
    """Return the description ``text`` with the files it names written into it.

    Parameters
    ----------
    text : str
        YAML.
    folder : Path
        Where its side files are.
    source : str
        What to call the description in errors.

    Returns
    -------
    str
        YAML that names no file; ``text`` itself when it named none.
    """
    try:
        root = compose_yaml(text)
    except yaml.YAMLError as error:
        raise ConstraintError(f"{source}: this cannot be read as YAML ({' '.join(str(error).split())}): correct it") from error
    if root is None or not _inline(root, folder, source):
        return text
    return str(yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True))


def _inline(node: yaml.Node, folder: Path, source: str) -> bool:
    """Replace the file names below ``node`` by tables; tell whether there were any."""
    found = False
    if not isinstance(node, yaml.MappingNode):
        return False
    for family, body in node.value:
        if family.value == "all" and isinstance(body, yaml.SequenceNode):
            for part in body.value:
                found |= _inline(part, folder, source)
        elif isinstance(body, yaml.MappingNode) and family.value in _TABLES:
            tables = _TABLES[family.value]
            for position, (key, value) in enumerate(body.value):
                if key.value in tables and isinstance(value, yaml.ScalarNode):
                    place = f"{source}:{value.start_mark.line + 1}"
                    table = tables[key.value](_read(folder, value.value, place), value.value)
                    body.value[position] = (key, yaml.representer.SafeRepresenter().represent_data(table))
                    found = True
    return found


def _read(folder: Path, name: str, place: str) -> _Rows:
    """Return the rows of a CSV file, fields stripped, empty lines left out."""
    try:
        with (folder / name).open(newline="", encoding="utf-8-sig") as file:
            return [[field.strip() for field in row] for row in csv.reader(file) if row]
    except (OSError, ValueError, csv.Error) as error:  # a ValueError: other bytes than UTF-8, or a name that is no file's
        raise ConstraintError(f"{place}: the file {name!r} cannot be read ({error}): expected a CSV file in UTF-8") from error


def _columns(rows: _Rows, name: str, wanted: tuple[str, ...]) -> list[list[str]]:
    """Return the wanted columns of each row below the header."""
    header = rows[0] if rows else []
    if missing := [column for column in wanted if column not in header]:
        raise ConstraintError(
            f"{name}: the column {missing[0]!r} is missing{near(missing[0], header)}: expected {','.join(wanted)}"
        )
    places = [header.index(column) for column in wanted]
    for line, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise ConstraintError(f"{name}: row {line} has {len(row)} fields, expected {len(header)} as in the header")
    return [[row[place] for place in places] for row in rows[1:]]


def _exact(feature: str) -> str:
    """Return what matches this name alone: a file holds names, a table in a description also patterns."""
    return glob.escape(feature)


def _unique(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    """Return a table of features; one that stands twice is an error."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [feature for feature, _ in pairs]
        twice = next(feature for feature in names if names.count(feature) > 1)
        raise ConstraintError(f"{name}: feature {twice!r} stands twice: leave one out")
    return table


def _groups(rows: _Rows, name: str) -> dict[str, Any]:
    """Return the features of each group."""
    groups: dict[str, list[str]] = {}
    for feature, group in _columns(rows, name, ("feature", "group")):
        groups.setdefault(group, []).append(_exact(feature))
    return groups


def _costs(rows: _Rows, name: str) -> dict[str, Any]:
    """Return the cost of each feature."""
    pairs = []
    for feature, text in _columns(rows, name, ("feature", "cost")):
        try:
            cost = float(text)
        except ValueError:
            cost = math.nan
        if not math.isfinite(cost):
            raise ConstraintError(f"{name}: found {text!r} as the cost of {feature!r}, expected a number")
        pairs.append((_exact(feature), cost))
    return _unique(pairs, name)


def _edges(rows: _Rows, name: str) -> dict[str, Any]:
    """Return the two vertices of each feature."""
    return _unique([(_exact(feature), ends) for feature, *ends in _columns(rows, name, ("feature", "u", "v"))], name)


def _judgements(rows: _Rows, name: str) -> dict[str, Any]:
    """Return the answers about each feature, one per person."""
    header = rows[0] if rows else []
    for line, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise ConstraintError(f"{name}: row {line} has {len(row)} judgements, expected {len(header)}, one per feature")
    return _unique([(feature, [row[place] for row in rows[1:]]) for place, feature in enumerate(header)], name)


#: Family -> key that may name a file -> how its rows are written into the description.
_TABLES: dict[str, dict[str, Callable[[_Rows, str], dict[str, Any]]]] = {
    "bounds": {"groups": _groups},
    "laminar": {"groups": _groups},
    "partition": {"groups": _groups},
    "knapsack": {"costs": _costs},
    "graphic": {"edges": _edges},
    "fairness": {"judgements": _judgements, "accuracy": _judgements, "disparity": _judgements},
}
