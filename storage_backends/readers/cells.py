"""What a cell of text means: a missing value, a number, a date or a label; and cells that are almost numbers."""

from __future__ import annotations

import datetime
import functools
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fastomp_nvm.errors import InputError
from fastomp_nvm.stores.encoding import Kind
from storage_backends.readers.text import MISSING_TOKENS, parse_number, shorten

__all__ = [
    "CellRules",
    "ColumnRule",
    "Convert",
    "Shape",
    "advice",
    "as_days",
    "date_option",
    "looks_like_dates",
    "missing_option",
    "shape_of",
    "some_cells",
]

#: Returns the number that stands for a stripped cell, NaN if it is missing, None if it has no meaning.
Convert = Callable[[str], float | None]

#: How a cell that is no plain number resembles one.
Shape = Literal["number", "misfit", "grouped", "comma", "negative", "percent", "bound", "unit", "text"]

_CURRENCY = "[$\u20ac\u00a3\u00a5]"
_SPACE = "[ \u00a0\u202f]"
_EPOCH = datetime.datetime(1970, 1, 1)
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_GROUPED = (
    rf"[0-9]{{1,3}}(?:(?:,[0-9]{{3}})+|(?:'[0-9]{{3}})+|(?:{_SPACE}[0-9]{{3}})+)(?:[.,][0-9]+)?"
    r"|[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+"
)
_MONEY = re.compile(
    rf"[+-]?{_CURRENCY}\s?[+-]?(?:{_GROUPED}|[0-9]+(?:[.,][0-9]+)?)|[+-]?(?:{_GROUPED}|[0-9]+(?:[.,][0-9]+)?)\s?{_CURRENCY}"
)
_THOUSANDS = re.compile(rf"[+-]?(?:{_GROUPED})")
_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_PERCENT = re.compile(rf"(?:{_NUMBER}|[+-]?[0-9]+,[0-9]+)\s?%")
_BOUND = re.compile(rf"(?:[<>]=?|[\u2264\u2265~])\s?{_NUMBER}(?:\s?%)?")
# A negative number as accountants write it.
_NEGATIVE = re.compile(rf"\(\s?(?:{_CURRENCY}\s?)?(?:{_GROUPED}|[0-9]+(?:[.,][0-9]+)?)\s?(?:{_CURRENCY}|%)?\s?\)")
# A unit, but not the k, M or B of thousands, millions and billions, which change the number.
_UNIT = re.compile(rf"({_NUMBER})\s?(?![kKmMbB]$)([A-Za-z\u00b5\u00b0][A-Za-z\u00b5\u00b0/\u00b2\u00b30-9]*)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ].*)?|[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{2,4}|[0-9]{4}/[0-9]{1,2}/[0-9]{1,2}")
# How dates are written; a point separates the day from the month, never the month from the day.
_DATE_FORMATS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y"),
)
# Separators of thousands and of decimals that messages propose, the likelier ones first.
_SEPARATORS = ((",", "."), ("", ","), (".", ","), (" ", "."), (" ", ","), ("'", "."), ("'", ","))
# Texts that a message proposes as tokens for missing cells.
_MOST_TOKENS = 3


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """How to read a column.

    Attributes
    ----------
    kind : {"number", "category", "date"}
    lenient : bool
        For numbers: drop signs and units around a number (12% is 12, <5 is 5, 3.5 kg is 3.5, (7) is -7).
    format : str
        For dates, as of ``strptime``; empty for ISO 8601.
    labels : tuple of str, optional
        For categories: all labels; a cell with another one is refused.
    """

    kind: Kind
    lenient: bool = False
    format: str = ""
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CellRules:
    """Missing tokens and separators of a text file.

    Attributes
    ----------
    missing : frozenset of str
        Cells that mean "missing".
    thousands, decimal : str
        Separators in numbers, one character each; ``thousands`` may be empty. With it a currency sign is dropped, too.
    """

    missing: frozenset[str] = MISSING_TOKENS
    thousands: str = ""
    decimal: str = "."

    def __post_init__(self) -> None:
        for option, text, lengths in (("--thousands", self.thousands, (0, 1)), ("--decimal", self.decimal, (1,))):
            if len(text) not in lengths or text.isalnum():
                raise InputError(f"{option} is {text!r}: expected one character such as a comma, a point or a space")
        if self.thousands == self.decimal:
            raise InputError(f"--thousands and --decimal are both {self.decimal!r}: expected two different characters")

    @classmethod
    def of(cls, na_values: Iterable[str], thousands: str, decimal: str) -> CellRules:
        """Return the rules with more tokens for missing cells."""
        return cls(MISSING_TOKENS | {text.strip() for text in na_values}, thousands, decimal)

    @property
    def plain(self) -> bool:
        """Whether numbers are written as in program text."""
        return not self.thousands and self.decimal == "."

    @property
    def missing_numbers(self) -> tuple[float, ...]:
        """The tokens for missing cells that are numbers, such as -999, however a cell writes them."""
        found = (self.number(token) for token in self.missing - MISSING_TOKENS)
        return tuple(number for number in found if number is not None)

    def number(self, cell: str) -> float | None:
        """Return the number in a stripped cell, or None."""
        if self.plain:
            return parse_number(cell)
        if self.decimal == "." and (number := parse_number(cell)) is not None:
            return number
        if not self.thousands:
            return None if "." in cell else parse_number(cell.replace(self.decimal, "."))
        match = _grouped(self.thousands, self.decimal).fullmatch(cell)
        if match is None:
            return None
        sign, inner, whole, rest, exponent = match.group("sign", "inner", "whole", "rest", "exponent")
        digits = "".join(character for character in whole if character.isdigit())
        return float(f"{'-' if '-' in sign + inner else ''}{digits}{'.' + rest if rest else ''}{exponent or ''}")

    def lenient_number(self, cell: str) -> float | None:
        """Return the number in a cell without the signs and the unit around it, or None."""
        number = self.number(cell)
        if number is not None:
            return number
        if _NEGATIVE.fullmatch(cell):
            number = self.lenient_number(cell[1:-1].strip())
            return None if number is None else -number
        core = re.sub(rf"^(?:[<>]=?|[\u2264\u2265~])\s?|\s?%$|{_CURRENCY}", "", cell).strip()
        unit = _UNIT.fullmatch(core)
        core = unit.group(1) if unit else core
        number = self.number(core)
        if number is None and self.plain and re.fullmatch(r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]*)?", core):
            number = parse_number(core.replace(",", ""))
        return number

    def convert(self, rule: ColumnRule, codes: dict[str, float] | None = None) -> Convert:
        """Return the function that turns stripped cells of a column into numbers."""
        missing = self.missing
        if rule.kind == "category":
            known = codes
            if known is None:  # any label will do
                return lambda cell: np.nan if cell in missing else 0.0
            return lambda cell: known.get(cell, np.nan if cell in missing else None)
        read: Convert
        if rule.kind == "date":
            read = functools.lru_cache(1 << 16)(functools.partial(as_days, format=rule.format))
        else:
            read = self.lenient_number if rule.lenient else self.number
        return lambda cell: np.nan if cell in missing else read(cell)


@functools.cache
def _grouped(thousands: str, decimal: str) -> re.Pattern[str]:
    """Return the pattern of numbers with a separator of thousands and perhaps a currency sign."""
    group = _SPACE if thousands in (" ", "\u00a0", "\u202f") else re.escape(thousands)
    return re.compile(
        rf"(?P<sign>[+-]?)\s?(?:{_CURRENCY}\s?)?(?P<inner>[+-]?)(?P<whole>[1-9][0-9]{{0,2}}(?:{group}[0-9]{{3}})+|[0-9]+)"
        rf"(?:{re.escape(decimal)}(?P<rest>[0-9]*))?(?P<exponent>[eE][+-]?[0-9]+)?(?:\s?{_CURRENCY})?"
    )


def as_days(cell: str, format: str = "") -> float | None:
    """Return the days from 1970-01-01 to a date or a moment (UTC if it has no time zone), or None if the cell is neither."""
    try:
        moment = datetime.datetime.strptime(cell, format) if format else datetime.datetime.fromisoformat(cell)
        if moment.tzinfo is not None:
            moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):  # an overflow is a moment before the year 1 or after the year 9999 in UTC
        return None
    except re.error as error:
        raise InputError(f"the date format {format!r} names a part of the date twice: name each part once") from error
    return (moment - _EPOCH) / datetime.timedelta(days=1)


def shape_of(cell: str, rules: CellRules) -> Shape:
    """Return how a stripped cell resembles a number."""
    if rules.number(cell) is not None:
        return "number"
    if not rules.plain and parse_number(cell) is not None:
        return "misfit"
    if _THOUSANDS.fullmatch(cell) or _MONEY.fullmatch(cell):
        return "grouped"
    if _COMMA.fullmatch(cell):
        return "comma"
    if _NEGATIVE.fullmatch(cell):
        return "negative"
    if _PERCENT.fullmatch(cell):
        return "percent"
    if _BOUND.fullmatch(cell):
        return "bound"
    return "unit" if _UNIT.fullmatch(cell) else "text"


def looks_like_dates(cells: Iterable[str]) -> bool:
    """Return whether all cells look like dates."""
    return all(_DATE.fullmatch(cell) for cell in cells)


def date_option(cells: Iterable[str], column: str) -> str:
    """Return the option that reads cells that look like dates, with their format if they are written in one that is certain."""
    cells = list(cells)
    if all(as_days(cell) is not None for cell in cells):
        return f"--date {shlex.quote(column)}"
    fitting = [format for format in _DATE_FORMATS if all(as_days(cell, format) is not None for cell in cells)]
    if len(fitting) == 1:
        return f"--date {shlex.quote(f'{column}:{fitting[0]}')}"
    return f"--date {shlex.quote(f'{column}:FORMAT')} (such as {' or '.join(fitting or _DATE_FORMATS[:1])})"


def missing_option(cells: Iterable[str]) -> str:
    """Return the option that takes a few cells as missing; nothing if they are too many or cannot be listed."""
    tokens = list(dict.fromkeys(cells))
    if not 0 < len(tokens) <= _MOST_TOKENS or any("," in token for token in tokens):
        return ""
    joint = "=" if tokens[0].startswith("-") else " "
    return f"--na-values{joint}{shlex.quote(','.join(tokens))} --missing mean"


def advice(cells: Iterable[str], column: str, rules: CellRules) -> str:
    """Return the options that help with cells that are not numbers, for the end of a message."""
    shapes = {cell: shape_of(cell, rules) for cell in cells}
    texts = [cell for cell, shape in shapes.items() if shape == "text"]
    name, remark = shlex.quote(column), ""
    options: list[str] = []
    if len(texts) < len(shapes):
        options, remark = _reading([cell for cell, shape in shapes.items() if shape != "text"], name, rules)
    missing = missing_option(texts)
    if missing and (options or len(texts) == len(shapes) or "number" in shapes.values()):
        options.append(missing)
    elif texts and options:
        remark += " with --na-values for the texts"
    read = [" ".join(options) + remark] if options else []
    return " or ".join([*read, f"--categorical {name}", f"--drop {name}"])


def _reading(cells: Sequence[str], name: str, rules: CellRules) -> tuple[list[str], str]:
    """Return the options that read the most of some cells that resemble numbers, and a remark about them."""
    others = [CellRules(rules.missing, *pair) for pair in _SEPARATORS if pair[0] or not rules.thousands]
    best, most = (rules, False), sum(rules.number(cell) is not None for cell in cells)
    for lenient in (False, True):
        for each in (rules, *others):
            read = each.lenient_number if lenient else each.number
            count = sum(read(cell) is not None for cell in cells)
            if count > most:
                best, most = (each, lenient), count
    chosen, lenient = best
    options = []
    if chosen.thousands != rules.thousands:
        quoted = {"'": '"\'"', " ": "' '"}
        options.append(f"--thousands {quoted.get(chosen.thousands, chosen.thousands)}")
    if chosen.decimal != rules.decimal:
        options.append(f"--decimal {chosen.decimal}")
    if lenient:
        return [*options, f"--numeric {name}"], " (drops signs and units: 12% is 12, <5 is 5)"
    return options, " (drops currency signs, too)" if chosen.thousands != rules.thousands else ""


def some_cells(cells: Iterable[str], most: int = 3) -> str:
    """Return a few cells for a message."""
    return ", ".join(shorten(cell, 24) for cell, _ in zip(cells, range(most), strict=False))
