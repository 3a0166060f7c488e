"""The role of every column of a source: feature, target, identifier or dropped; explicit types and groups."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, IndexArray
from fastomp_nvm.errors import DataError, InputError
from fastomp_nvm.stores.ingest_options import IngestOptions
from fastomp_nvm.stores.names import NumberedNames
from fastomp_nvm.stores.reports import first_names
from storage_backends.readers.base import Reader
from storage_backends.readers.cells import ColumnRule
from storage_backends.readers.combined import CategoryReader
from storage_backends.readers.target_files import is_target_file, read_target_file

__all__ = ["Plan", "TargetSource", "assigned", "make_plan"]

_INTEGER = re.compile(r"-?\d{1,9}")


@dataclass(frozen=True, slots=True)
class TargetSource:
    """A target: a column of the table, or ``load``, which returns its name and values given the number of observations."""

    name: str
    column: int = -1
    load: Callable[[int], tuple[str, AnyArray]] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The roles of the columns of a source.

    Attributes
    ----------
    columns : (c,) int64
        Columns of features and targets, in file order.
    targets : list of TargetSource
        In the requested order.
    id_column : int, optional
    rules : mapping of int to ColumnRule
        Explicit types, by column.
    groups : mapping of str to list of int
        Columns of each feature that is a group.
    """

    columns: IndexArray
    targets: list[TargetSource]
    id_column: int | None = None
    rules: Mapping[int, ColumnRule] = field(default_factory=dict)
    groups: Mapping[str, list[int]] = field(default_factory=dict)

    @property
    def target_columns(self) -> list[int]:
        """Columns that are targets, in file order."""
        return sorted(source.column for source in self.targets if source.load is None)


def make_plan(reader: Reader, options: IngestOptions, rules: Mapping[str, ColumnRule] | None = None) -> Plan:
    """Return the roles of the columns.

    Parameters
    ----------
    reader : Reader
    options : IngestOptions
    rules : mapping of str to ColumnRule, optional
        Types from a schema file, by name; options come before them.
    """
    names = reader.names
    _check_names(reader)
    asked = list(options.targets) or ([reader.default_target] if reader.default_target else [])
    sources = [_target_source(reader, text) for text in asked]
    keep = np.ones(len(names), dtype=bool)
    identifier = None
    if options.id_column is not None and not reader.names_from_id:
        identifier = _column(names, options.id_column)
        if identifier is None:
            hint = _hint(names, options.id_column)
            raise InputError(f"{reader.label} has no column {options.id_column!r} to take identifiers from{hint}")
        keep[identifier] = False
    for pattern in options.drop:
        matched = _matching(names, pattern)
        if not matched.any():
            raise InputError(f"no column of {reader.label} matches {pattern!r}, so nothing is dropped{_hint(names, pattern)}")
        keep &= ~matched
    chosen = [source.column for source in sources if source.load is None]
    if len(set(chosen)) < len(chosen):
        raise InputError(f"two targets are the same column of {reader.label}: name each once")
    keep[chosen] = True
    if int(keep.sum()) == len(chosen):
        raise DataError(f"{reader.label} has no features: at least one column besides targets and dropped ones is needed")
    explicit = {names.index(name): rule for name, rule in (rules or {}).items()} | _explicit_rules(reader, options)
    groups = _groups(reader, options.group, keep, chosen)
    return Plan(np.flatnonzero(keep), sources, identifier, {c: r for c, r in explicit.items() if keep[c]}, groups)


def assigned(reader: Reader, plan: Plan) -> Reader:
    """Return a reader that reads the columns by the explicit rules of the plan."""
    codes = {
        column: rule
        for column, rule in plan.rules.items()
        if rule.kind == "category" and reader.typed and reader.kind_of(column) == "number"
    }
    reader.assign({column: rule for column, rule in plan.rules.items() if column not in codes})
    return CategoryReader(reader, codes) if codes else reader


def _explicit_rules(reader: Reader, options: IngestOptions) -> dict[int, ColumnRule]:
    """Return the types that options give to columns."""
    found: dict[int, ColumnRule] = {}
    option_of: dict[int, str] = {}
    asked = [(text, "--categorical", ColumnRule("category")) for text in options.categorical]
    asked += [(text, "--numeric", ColumnRule("number", lenient=True)) for text in options.numeric]
    for text, option, rule in asked:
        for column in _columns(reader, text, option):
            if option_of.setdefault(column, option) != option:
                raise InputError(f"column {reader.names[column]!r} is named by {option_of[column]} and by {option}: choose one")
            found[column] = rule
    dates = (
        options.date.items() if isinstance(options.date, Mapping) else [_date_format(reader.names, text) for text in options.date]
    )
    for text, layout in dates:
        for column in _columns(reader, text, "--date"):
            if column in found:
                raise InputError(f"column {reader.names[column]!r} is named by {option_of[column]} and by --date: choose one")
            found[column] = ColumnRule("date", format=layout)
    return found


def _date_format(names: Sequence[str], text: str) -> tuple[str, str]:
    """Return the column and the format of ``name:format``; the name may hold colons."""
    if text in names or ":" not in text:
        return text, ""
    cuts = [place for place, character in enumerate(text) if character == ":"]
    cut = next((place for place in reversed(cuts) if text[:place] in names), cuts[0])
    return text[:cut], text[cut + 1 :]


def _groups(
    reader: Reader, asked: Sequence[str] | Mapping[str, Sequence[str]], keep: BoolArray, targets: Sequence[int]
) -> dict[str, list[int]]:
    """Return the columns of each group."""
    if not isinstance(asked, Mapping):
        for text in asked:
            if "=" not in text:
                raise InputError(f"the group {text!r} names no columns: expected NAME=COL,COL or NAME=PATTERN")
        asked = {name: [members] for name, _, members in (text.partition("=") for text in asked)}
    found: dict[str, list[int]] = {}
    group_of: dict[int, str] = {}
    for name, texts in asked.items():
        members = sorted({column for text in texts for column in _columns(reader, text, f"--group {name}")})
        for column in members:
            if not keep[column] or column in targets:
                raise InputError(f"group {name!r} names {reader.names[column]!r}, which is a target, an identifier or dropped")
            if group_of.setdefault(column, name) != name:
                raise InputError(f"column {reader.names[column]!r} is in the groups {group_of[column]!r} and {name!r}: keep one")
        found[name] = members
    for name, members in found.items():
        if len(members) == 1:
            raise InputError(f"group {name!r} has the one column {reader.names[members[0]]!r}: name two or more, or leave it out")
    return found


def _columns(reader: Reader, text: str, option: str) -> list[int]:
    """Return the columns that a name, a pattern, or a list of them separated by commas stands for."""
    names = reader.names
    if text in names:
        return [names.index(text)]
    found: list[int] = []
    for part in [text] if _matching(names, text).any() else text.split(","):
        matched = np.flatnonzero(_matching(names, part.strip())).tolist()
        if not matched:
            raise InputError(f"{option}: no column of {reader.label} matches {part.strip()!r}{_hint(names, part.strip())}")
        found.extend(matched)
    return found


def _target_source(reader: Reader, text: str) -> TargetSource:
    """Return the source that a target argument names."""
    names = reader.names
    if not text.startswith(("./", "../", "/")):
        if text in reader.vectors and text not in names:
            return TargetSource(text, load=lambda _: (text, reader.vector(text)))
        column = _column(names, text)
        if column is not None:
            return TargetSource(names[column], column=column)
        if not is_target_file(text):
            raise InputError(
                f"the target {text!r} is neither a column of {reader.label} nor a file with one value per observation"
                f"{_hint(names, text)}"
            )
    if not os.path.isfile(text):
        raise InputError(f"there is no file {text} to take a target from")
    return TargetSource(os.path.basename(text), load=functools.partial(read_target_file, text))


def _column(names: Sequence[str], text: str) -> int | None:
    """Return the position of a column given by name, or else by number."""
    if text in names:
        return names.index(text)
    if _INTEGER.fullmatch(text) and -len(names) <= int(text) < len(names):
        return int(text) % len(names)
    return None


def _matching(names: Sequence[str], pattern: str) -> BoolArray:
    """Return a mask of the names that equal or match a pattern."""
    match = re.compile(fnmatch.translate(pattern)).match
    return np.fromiter((name == pattern or match(name) is not None for name in names), dtype=bool, count=len(names))


def _check_names(reader: Reader) -> None:
    """Raise ``DataError`` for an empty or repeated name."""
    if isinstance(reader.names, NumberedNames):
        return
    first: dict[str, int] = {}
    for position, name in enumerate(reader.names, start=1):
        if not name:
            raise DataError(f"{reader.label}: column {position} has no name: give it one")
        if name in first:
            raise DataError(f"{reader.label}: columns {first[name]} and {position} are both named {name!r}: rename one of them")
        first[name] = position


def _hint(names: Sequence[str], text: str) -> str:
    """Return the end of a message: similar names, or the first names."""
    close = difflib.get_close_matches(text, names[:10_000], n=3)
    return f": did you mean {' or '.join(map(repr, close))}?" if close else f": its columns are {first_names(names)}"
