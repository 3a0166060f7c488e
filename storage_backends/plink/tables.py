"""The text files of PLINK: variants (``.bim``), people (``.fam``), and phenotypes in files of their own."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array
from fastomp_nvm.errors import DataError, StoreURLError, near
from fastomp_nvm.limits import check_regular
from fastomp_nvm.stores.contract import Target

__all__ = ["Fam", "Phenotype", "Variants", "fam_phenotype", "read_fam", "read_phenotype", "read_variants", "variant_names"]

#: Texts of a missing phenotype.
_MISSING = frozenset({"", ".", "NA", "N/A", "NaN", "nan", "na", "-9"})

#: Case and control are written as these numbers.
_CONTROL, _CASE = 1.0, 2.0


class Variants(NamedTuple):
    """The variants of one ``.bim``.

    Attributes
    ----------
    names : list of str
        As written, ``.`` and repeated ones included.
    places : list of str
        ``chr:pos:a1:a2``.
    digest : bytes
        Of the file.
    """

    names: list[str]
    places: list[str]
    digest: bytes


class Fam(NamedTuple):
    """The people of a ``.fam``: family and own identifier, and the phenotype as written."""

    people: list[tuple[str, str]]
    phenotypes: list[str]


class Phenotype(NamedTuple):
    """A phenotype of all people; ``known`` (n_people,) tells whose it is known for, and ``target`` holds the values of these."""

    target: Target
    known: BoolArray


def read_variants(path: str) -> Variants:
    """Read a ``.bim``."""
    data = _read(path)
    names, places = [], []
    for number, line in enumerate(_lines(data, path), start=1):
        cells = line.split()
        if len(cells) not in (5, 6):
            raise DataError(
                f"line {number} of {path} has {len(cells)} columns, and a .bim has 6: chromosome, name, centimorgans, position, "
                "counted allele, other allele"
            )
        names.append(cells[1])
        places.append(f"{cells[0]}:{cells[-3]}:{cells[-2]}:{cells[-1]}")
    return Variants(names, places, hashlib.blake2b(data, digest_size=16).digest())


def variant_names(names: Sequence[str], places: Sequence[str]) -> list[str]:
    """Return a name for each variant: its own, or its place where that is ``.`` or repeated; repeated places are numbered."""
    counts = Counter(names)
    found = [place if name == "." or counts[name] > 1 else name for name, place in zip(names, places, strict=True)]
    taken = Counter(found)
    seen: Counter[str] = Counter()
    for index, name in enumerate(found if len(taken) < len(found) else ()):
        if taken[name] > 1:
            seen[name] += 1
            while seen[name] > 1 and f"{name}#{seen[name]}" in taken:
                seen[name] += 1
            found[index] = name if seen[name] == 1 else f"{name}#{seen[name]}"
    return found


def read_fam(path: str) -> Fam:
    """Read a ``.fam``."""
    people, phenotypes = [], []
    for number, line in enumerate(_lines(_read(path), path), start=1):
        cells = line.split()
        if len(cells) not in (5, 6):
            raise DataError(
                f"line {number} of {path} has {len(cells)} columns, and a .fam has 6: family, person, father, mother, sex, value"
            )
        people.append((cells[0], cells[1]))
        phenotypes.append(cells[5] if len(cells) == 6 else "-9")
    if len(set(people)) < len(people):
        family, person = next(pair for pair, count in Counter(people).items() if count > 1)
        raise DataError(f"{path} lists the person {family} {person} twice: rename one of them")
    return Fam(people, phenotypes)


def fam_phenotype(fam: Fam, path: str) -> Phenotype | None:
    """Return the phenotype of a ``.fam``: 1 and 2 are control and case beside 0 and -9, missing; other numbers are values.

    None where it is missing for all.
    """
    values = _numbers(fam.phenotypes, path, "phenotype")
    known = ~np.isnan(values)
    if np.isin(values[known], (0.0, _CONTROL, _CASE)).all():
        known &= values != 0.0
    return _phenotype(values, known) if known.any() else None


def read_phenotype(path: str, column: str, people: Sequence[tuple[str, str]]) -> Phenotype:
    """Read a column of a file with a line per person, beginning with ``FID IID`` or ``IID``, joined to ``people`` by these.

    The column is named by the heading or, in a file without one, by its number (1 for the first after the identifiers). ``NA`` and
    ``-9`` are missing, and so are people that the file does not list.
    """
    lines = [line.split() for line in _lines(_read(path), path)]
    heading = [cell.lstrip("#") for cell in lines[0]] if lines else []
    with_family = heading[:1] != ["IID"]
    keys = 1 + with_family
    if heading[:keys] in (["FID", "IID"], ["IID"]):
        del lines[0]
        names = heading[keys:]
        if column not in names:
            raise DataError(f"{path} has no column {column!r}{near(column, names)}: it has {', '.join(names) or 'none'}")
        place = keys + names.index(column)
    else:
        count = len(heading) - keys
        if not (column.isdecimal() and 1 <= int(column) <= count):
            raise DataError(
                f"{path} has no heading (FID IID NAME ...), so its columns have numbers: expected 1 to {count}, not {column!r}"
            )
        place = keys + int(column) - 1
    cells: dict[tuple[str, ...], str] = {}
    for number, line in enumerate(lines, start=1):
        if len(line) <= place:
            raise DataError(f"person {number} of {path} has {len(line)} columns, expected at least {place + 1}")
        key = tuple(line[:keys])
        if key in cells:
            raise DataError(f"{path} lists the person {' '.join(key)} twice: remove one of the lines")
        cells[key] = line[place]
    if not with_family and len({person for _, person in people}) < len(people):
        raise DataError(f"{path} names people by IID alone, which two families share: write FID and IID")
    values = _numbers([cells.get(pair if with_family else pair[1:], "NA") for pair in people], path, column)
    known = ~np.isnan(values)
    if not known.any():
        raise DataError(f"{path} has no value of {column!r} for any of the {len(people)} people: compare FID and IID with the .fam")
    return _phenotype(values, known)


def _phenotype(values: Float64Array, known: BoolArray) -> Phenotype:
    """Return a phenotype; one of 1 and 2 alone has two classes."""
    values = values[known]
    if np.isin(values, (_CONTROL, _CASE)).all():
        return Phenotype(Target(values - _CONTROL, ("control", "case")), known)
    return Phenotype(Target(values), known)


def _numbers(cells: Sequence[str], path: str, what: str) -> Float64Array:
    """Return the numbers of cells, NaN for missing ones."""
    values = np.empty(len(cells))
    for place, cell in enumerate(cells):
        try:
            values[place] = math.nan if cell in _MISSING else float(cell)
        except ValueError:
            values[place] = math.inf
        if math.isinf(values[place]):
            hint = "; ?target=none behind the URL uses all people without it" if path.endswith(".fam") else ""
            raise DataError(f"{path} has the {what} {cell!r}, which is no number: expected numbers, NA or -9{hint}")
    values[values == -9.0] = math.nan  # written -9.0, too
    return values


def _lines(data: bytes, path: str) -> list[str]:
    """Return the lines of a file that are not blank."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8: a .bim, .fam or phenotype file is, not compressed") from None
    return [line for line in text.split("\n") if line and not line.isspace()]


def _read(path: str) -> bytes:
    """Return the content of a file."""
    check_regular(path)
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        what = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        stem = os.path.splitext(path)[0]
        hint = (
            f": a .bed needs {os.path.basename(stem)}.bim and {os.path.basename(stem)}.fam beside it"
            if path.endswith((".bim", ".fam"))
            else ""
        )
        raise StoreURLError(f"{path} {what}{hint}") from error
