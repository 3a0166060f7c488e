"""Schema files: YAML that says what every column of a source is, so that an ingest can be repeated."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.contract import MISSING_POLICIES
from fastomp_nvm.stores.ingest_options import IngestOptions
from storage_backends.build.plan import Plan
from storage_backends.readers.base import Reader, Scan
from storage_backends.readers.cells import ColumnRule

__all__ = ["ColumnSchema", "read_schema", "write_schema"]

_FORMAT = 1
_TYPES = ("number", "category", "date", "identifier", "drop")
_HEAD = (
    "# Columns of {}; edit it, then: fastomp ingest SRC STORE --schema FILE\n# Types: number, category, date, identifier, drop.\n"
)
_SETTINGS = ("na_values", "thousands", "decimal", "encoding", "missing", "drop_missing_target", "targets", "groups")


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """The content of a schema file.

    Attributes
    ----------
    path : str
    settings : mapping
        Options of an ingest that the file gives.
    types : mapping of str to str
        Type of every column.
    rules : mapping of str to ColumnRule
        How to read the columns that are not left out.
    """

    path: str
    settings: Mapping[str, Any]
    types: Mapping[str, str]
    rules: Mapping[str, ColumnRule]

    def merged(self, options: IngestOptions) -> IngestOptions:
        """Return the options with the settings of the file where the options leave them open."""
        unset = IngestOptions()
        given = {name for name in self.settings if getattr(options, name) and getattr(options, name) != getattr(unset, name)}
        changes = {name: value for name, value in self.settings.items() if name not in given}
        return dataclasses.replace(options, **changes)

    def check(self, reader: Reader) -> None:
        """Raise ``DataError`` if the columns of a source are not those of the file."""
        there = set(reader.names)
        unknown = next((name for name in self.types if name not in there), None)
        if unknown is not None:
            raise DataError(
                f"{self.path} describes the column {unknown!r}, which {reader.label} does not have: correct one of them"
            )
        extra = next((name for name in reader.names if name not in self.types), None)
        if extra is not None:
            raise DataError(
                f"{reader.label} has the column {extra!r}, which {self.path} does not describe: add it, perhaps as drop"
            )


def read_schema(path: str) -> ColumnSchema:
    """Read a schema file.

    Parameters
    ----------
    path : str

    Raises
    ------
    InputError
        There is no such file, or it is not a schema.
    """
    import yaml

    from fastomp_nvm.bounded_yaml import load_yaml

    label = os.path.basename(path)
    try:
        with open(path, encoding="utf-8") as file:
            found = load_yaml(file.read())
    except OSError as error:
        raise InputError(f"the schema {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{label} is not readable YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT or not isinstance(found.get("columns"), dict):
        raise InputError(
            f"{label} is no schema of columns: expected 'format: {_FORMAT}' and 'columns', as --schema-out writes them"
        )
    for name in found:
        if name not in ("format", "columns", *_SETTINGS):
            raise InputError(f"{label} has the unknown entry {name!r}: expected one of columns, {', '.join(_SETTINGS)}")
    types, rules = {}, {}
    for name, entry in found["columns"].items():
        content = {"type": entry} if isinstance(entry, str) else entry
        kind = content.get("type") if isinstance(content, dict) else content
        if kind not in _TYPES:
            raise InputError(f"{label}: column {name!r} has the type {kind!r}, expected one of {', '.join(_TYPES)}")
        types[str(name)] = kind
        if kind in ("category", "date", "number"):
            rules[str(name)] = _rule(label, str(name), content)
    return ColumnSchema(label, _settings(label, found, types), types, rules)


def _rule(label: str, name: str, content: Mapping[str, Any]) -> ColumnRule:
    """Return the rule of a column."""
    known = {"number": {"type", "lenient"}, "category": {"type", "labels"}, "date": {"type", "format"}}[content["type"]]
    unknown = next((key for key in content if key not in known), None)
    if unknown is not None:
        raise InputError(f"{label}: column {name!r} has the unknown entry {unknown!r}, expected {', '.join(sorted(known))}")
    labels = content.get("labels")
    if labels is not None and not (isinstance(labels, list) and labels):
        raise InputError(f"{label}: the labels of column {name!r} are {labels!r}, expected a list of text")
    return ColumnRule(
        content["type"],
        bool(content.get("lenient", False)),
        str(content.get("format", "")),
        None if labels is None else tuple(map(str, labels)),
    )


def _settings(label: str, found: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of an ingest that a schema file gives."""
    settings: dict[str, Any] = {}
    for name in ("thousands", "decimal", "encoding"):
        if name in found:
            if not isinstance(found[name], str):
                raise InputError(f"{label}: {name} is {found[name]!r}, expected text in quotes")
            settings[name] = found[name]
    if "missing" in found:
        if found["missing"] not in MISSING_POLICIES:
            expected = ", ".join(MISSING_POLICIES)
            raise InputError(f"{label}: missing is {found['missing']!r}, expected one of {expected}")
        settings["missing"] = found["missing"]
    if "drop_missing_target" in found:
        if not isinstance(found["drop_missing_target"], bool):
            raise InputError(f"{label}: drop_missing_target is {found['drop_missing_target']!r}, expected true or false")
        settings["drop_missing_target"] = found["drop_missing_target"]
    for name in ("na_values", "targets"):
        if name in found:
            if not isinstance(found[name], list):
                raise InputError(f"{label}: {name} is {found[name]!r}, expected a list")
            settings[name] = tuple(map(str, found[name]))
    if "groups" in found:
        groups = found["groups"]
        if not isinstance(groups, dict) or not all(isinstance(members, list) for members in groups.values()):
            raise InputError(f"{label}: groups is {groups!r}, expected lists of columns by name of the group")
        settings["group"] = {str(name): tuple(map(str, members)) for name, members in groups.items()}
    identifiers = [name for name, kind in types.items() if kind == "identifier"]
    if len(identifiers) > 1:
        raise InputError(f"{label}: the columns {identifiers[0]!r} and {identifiers[1]!r} are both identifiers, expected one")
    if identifiers:
        settings["id_column"] = identifiers[0]
    dropped = tuple(_escaped(name) for name, kind in types.items() if kind == "drop")
    if dropped:
        settings["drop"] = dropped
    return settings


def _escaped(name: str) -> str:
    """Return a pattern that only this name matches."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def write_schema(path: str, reader: Reader, plan: Plan, scan: Scan, options: IngestOptions) -> None:
    """Write what was understood of a source to a schema file.

    Parameters
    ----------
    path : str
    reader : Reader
    plan : Plan
    scan : Scan
    options : IngestOptions
    """
    import yaml

    position_of = {column: position for position, column in enumerate(plan.columns.tolist())}
    columns: dict[str, Any] = {}
    for column, name in enumerate(reader.names):
        position = position_of.get(column)
        if position is None:
            columns[name] = "identifier" if column == plan.id_column else "drop"
            continue
        rule = plan.rules.get(column)
        kind = reader.kind_of(column)
        if position in scan.categories and not scan.categories[position].overflow:
            columns[name] = {"type": "category", "labels": list(scan.categories[position].labels)}
        elif kind == "date" and rule is not None and rule.format:
            columns[name] = {"type": "date", "format": rule.format}
        elif kind == "number" and rule is not None and rule.lenient:
            columns[name] = {"type": "number", "lenient": True}
        else:
            columns[name] = kind
    content: dict[str, Any] = {"format": _FORMAT}
    for option in ("na_values", "targets"):
        values: Sequence[str] = getattr(options, option)
        if values:
            content[option] = list(values)
    for option in ("thousands", "decimal", "encoding"):
        if getattr(options, option) is not None:
            content[option] = getattr(options, option)
    content["missing"] = options.missing or "error"
    if options.drop_missing_target:
        content["drop_missing_target"] = True
    if plan.groups:
        content["groups"] = {name: [reader.names[column] for column in members] for name, members in plan.groups.items()}
    text = yaml.safe_dump({**content, "columns": columns}, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(_HEAD.format(reader.label) + text)
    except OSError as error:
        raise InputError(f"the schema cannot be written to {path}: {error.strerror}") from error
