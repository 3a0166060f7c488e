"""CSV side files of a description: reading them, and writing them into the description.

A description with its side files written into it can be sent to a server, which opens no files. Only the values that name a file
are replaced; everything else stays as written, because YAML read and written back by value would turn a feature called ``1e5``
into a number.
"""

from __future__ import annotations

import csv
import glob
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from fastomp_nvm.constraints.written.document import near, read_document, read_text
from fastomp_nvm.errors import ConstraintError

__all__ = ["columns", "csv_number", "inline_side_files", "lines", "read_inlined", "survey"]

#: The place (``costs.csv:3``) and the fields of each line of a file.
Lines = Iterator[tuple[str, list[str]]]


def lines(folder: Path, name: str, place: str) -> Lines:
    """Yield the place and the stripped fields of each non-empty line of a CSV file; ``place`` is where the file is named."""
    try:
        with (folder / name).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for row in reader:
                if row:
                    yield f"{Path(name).name}:{reader.line_num}", [field.strip() for field in row]
    except (OSError, ValueError, csv.Error) as error:  # ValueError: not UTF-8, or a name with a null byte
        raise ConstraintError(f"{place}: the file {name!r} cannot be read ({error}): expected a CSV file in UTF-8") from error


def columns(rows: Lines, name: str, wanted: tuple[str, ...]) -> Lines:
    """Yield the place and the wanted columns of each row below the header."""
    place, header = next(rows, (name, []))
    if missing := [column for column in wanted if column not in header]:
        hint = near(missing[0], header)
        raise ConstraintError(f"{place}: the column {missing[0]!r} is missing{hint}: expected {','.join(wanted)}")
    positions = [header.index(column) for column in wanted]
    for place, row in rows:
        if len(row) != len(header):
            raise ConstraintError(f"{place}: found {len(row)} fields, expected {len(header)} as in the header")
        yield place, [row[position] for position in positions]


def survey(rows: Lines, name: str) -> tuple[str, list[str], Lines]:
    """Return the place of the header, the features in it, and the judgements of each person."""
    place, header = next(rows, (name, []))
    return place, header, _full_rows(rows, len(header))


def _full_rows(rows: Lines, length: int) -> Lines:
    """Yield rows of the given length; any other length is an error."""
    for place, row in rows:
        if len(row) != length:
            raise ConstraintError(f"{place}: found {len(row)} judgements, expected {length}, one per feature")
        yield place, row


def csv_number(text: str, place: str) -> float:
    """Return a finite number of a side file."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConstraintError(f"{place}: found {text!r}, expected a number")
    return number


def read_inlined(path: Path) -> str:
    """Return the description in a file with its side files, which are in the same folder, written into it."""
    return inline_side_files(read_text(path), path.parent, path.name)


def inline_side_files(text: str, folder: Path, source: str = "constraint") -> str:
    """Return the description ``text`` with the files it names written into it.

    Parameters
    ----------
    text : str
        YAML.
    folder : Path
        Folder of the side files.
    source : str
        Name of the description in errors.

    Returns
    -------
    str
        YAML that names no file; ``text`` itself when it named none.
    """
    root = read_document(text, source).node
    return str(yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True)) if _inline(root, folder, source) else text


def _inline(node: yaml.Node, folder: Path, source: str) -> bool:
    """Replace the file names below ``node`` by tables; return whether there were any."""
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
                    rows = lines(folder, value.value, f"{source}:{value.start_mark.line + 1}")
                    table = tables[key.value](rows, value.value)
                    body.value[position] = (key, yaml.representer.SafeRepresenter().represent_data(table))
                    found = True
    return found


def _groups(rows: Lines, name: str) -> dict[str, Any]:
    """Return the features of each group."""
    groups: dict[str, list[str]] = {}
    for _, (feature, group) in columns(rows, name, ("feature", "group")):
        groups.setdefault(group, []).append(_exact(feature))
    return groups


def _costs(rows: Lines, name: str) -> dict[str, Any]:
    """Return the cost of each feature."""
    wanted = columns(rows, name, ("feature", "cost"))
    return _unique((place, _exact(feature), csv_number(text, place)) for place, (feature, text) in wanted)


def _edges(rows: Lines, name: str) -> dict[str, Any]:
    """Return the two vertices of each feature."""
    return _unique((place, _exact(feature), ends) for place, (feature, *ends) in columns(rows, name, ("feature", "u", "v")))


def _judgements(rows: Lines, name: str) -> dict[str, Any]:
    """Return the judgements of each feature, one per person."""
    place, header, people = survey(rows, name)
    judgements = [row for _, row in people]
    return _unique((place, feature, [row[column] for row in judgements]) for column, feature in enumerate(header))


def _exact(feature: str) -> str:
    """Return a pattern that matches this name only: files hold names, tables in a description also patterns."""
    return glob.escape(feature)


def _unique(entries: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """Return the value of each feature; a feature with two values is an error."""
    table: dict[str, Any] = {}
    for place, feature, value in entries:
        if feature in table:
            raise ConstraintError(f"{place}: feature {feature!r} is listed twice: remove one")
        table[feature] = value
    return table


#: Family -> key that may name a file -> function that turns the rows of the file into a table.
_TABLES: dict[str, dict[str, Callable[[Lines, str], dict[str, Any]]]] = {
    "bounds": {"groups": _groups},
    "laminar": {"groups": _groups},
    "partition": {"groups": _groups},
    "knapsack": {"costs": _costs},
    "graphic": {"edges": _edges},
    "fairness": {"judgements": _judgements, "accuracy": _judgements, "disparity": _judgements},
}
