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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fastomp_nvm.constraints.written.document import read_document, read_text
from fastomp_nvm.errors import ConstraintError, near

__all__ = ["Lines", "SideFile", "csv_number", "inline_side_files", "read_inlined"]

#: The place (``fair.yaml:2: costs.csv:3``) and the fields of each line of a file.
Lines = Iterator[tuple[str, list[str]]]


@dataclass(frozen=True, slots=True)
class SideFile:
    """A CSV file that a description names.

    Attributes
    ----------
    folder : Path
    name : str
    place : str
        File and line of the description, for errors.
    """

    folder: Path
    name: str
    place: str

    def columns(self, *wanted: str) -> Lines:
        """Yield the place and the wanted columns of each row below the header."""
        rows = self._lines()
        place, header = next(rows, (f"{self.place}: {self.name}", []))
        if missing := [column for column in wanted if column not in header]:
            hint = near(missing[0], header)
            raise ConstraintError(f"{place}: the column {missing[0]!r} is missing{hint}: expected {','.join(wanted)}")
        positions = [header.index(column) for column in wanted]
        for place, row in rows:
            if len(row) != len(header):
                raise ConstraintError(f"{place}: found {len(row)} fields, expected {len(header)} as in the header")
            yield place, [row[position] for position in positions]

    def survey(self) -> tuple[str, list[str], Lines]:
        """Return the place of the header, the features in it, and an iterator over the people: place and judgements."""
        rows = self._lines()
        header_place, header = next(rows, (f"{self.place}: {self.name}", []))

        def people() -> Lines:
            for place, row in rows:
                if len(row) != len(header):
                    raise ConstraintError(f"{place}: found {len(row)} judgements, expected {len(header)}, one per feature")
                yield place, row

        return header_place, header, people()

    def _lines(self) -> Lines:
        """Yield the place and the stripped fields of each non-empty line."""
        try:
            with (self.folder / self.name).open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                for row in reader:
                    if row:
                        yield f"{self.place}: {self.name}:{reader.line_num}", [field.strip() for field in row]
        except (OSError, ValueError, csv.Error) as error:  # ValueError: not UTF-8, or a name with a null byte
            raise ConstraintError(
                f"{self.place}: the file {self.name!r} cannot be read ({error}): expected a CSV file in UTF-8"
            ) from error


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
                    file = SideFile(folder, value.value, f"{source}:{value.start_mark.line + 1}")
                    table = tables[key.value](file)
                    body.value[position] = (key, yaml.representer.SafeRepresenter().represent_data(table))
                    found = True
    return found


def _groups(file: SideFile) -> dict[str, Any]:
    """Return the features of each group."""
    groups: dict[str, list[str]] = {}
    for _, (feature, group) in file.columns("feature", "group"):
        groups.setdefault(group, []).append(_exact(feature))
    return groups


def _costs(file: SideFile) -> dict[str, Any]:
    """Return the cost of each feature."""
    rows = file.columns("feature", "cost")
    return _unique((place, _exact(feature), csv_number(text, place)) for place, (feature, text) in rows)


def _edges(file: SideFile) -> dict[str, Any]:
    """Return the two vertices of each feature."""
    return _unique((place, _exact(feature), ends) for place, (feature, *ends) in file.columns("feature", "u", "v"))


def _judgements(file: SideFile) -> dict[str, Any]:
    """Return the judgements of each feature, one per person."""
    place, header, people = file.survey()
    rows = [row for _, row in people]
    return _unique((place, feature, [row[column] for row in rows]) for column, feature in enumerate(header))


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


#: Family -> key that may name a file -> function that returns the file as a table.
_TABLES: dict[str, dict[str, Callable[[SideFile], dict[str, Any]]]] = {
    "bounds": {"groups": _groups},
    "laminar": {"groups": _groups},
    "partition": {"groups": _groups},
    "knapsack": {"costs": _costs},
    "graphic": {"edges": _edges},
    "fairness": {"judgements": _judgements, "accuracy": _judgements, "disparity": _judgements},
}
