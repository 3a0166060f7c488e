"""Constraints from written descriptions.

A description is a mapping with one key: the name of a family in ``FAMILIES``, or ``all`` with a list of descriptions. Each
family reads its own part with the help of a :class:`FieldReader`. Descriptions may come from clients of a server: without
``base_path`` no file is opened, without ``allow_oracle`` no code is run and no YAML alias accepted. Every error names the file and
the line. The published JSON Schema is ``schema.json`` in this folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastomp_nvm.arrays import BoolArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.extendable import intersect
from fastomp_nvm.constraints.written.document import Item, read_document, read_text
from fastomp_nvm.constraints.written.families import FAMILIES
from fastomp_nvm.constraints.written.feature_names import FeatureNames
from fastomp_nvm.constraints.written.field_reader import FieldReader
from fastomp_nvm.errors import ConstraintError, near

__all__ = ["parse_constraint", "read_constraint", "schema"]

# Limits on nested ``all`` lists, because YAML aliases can multiply them exponentially.
_DEEPEST = 3
_MOST_PARTS = 1000


def parse_constraint(
    document: str | Mapping[str, Any],
    names: Sequence[str],
    *,
    base_path: Path | None = None,
    allow_oracle: bool = True,
    source: str = "constraint",
    usable: BoolArray | None = None,
) -> Constraint:
    """Return the constraint of a description.

    Parameters
    ----------
    document : str or mapping
        YAML text, or the equivalent mapping.
    names : sequence of str
        Names of the features.
    base_path : Path, optional
        Folder of side files and modules; without it no file is opened.
    allow_oracle : bool
        Whether the description is the user's own: it may name Python functions and have YAML aliases.
    source : str
        Name of the description in errors, usually its file.
    usable : (n_features,) bool, optional
        Features that can be selected; lower bounds are checked against these.

    Returns
    -------
    Constraint
    """
    reader = FieldReader(FeatureNames(names), base_path, allow_oracle, usable)
    return intersect(_parts(read_document(document, source, aliases=allow_oracle), reader, source, depth=0))


def read_constraint(path: Path, names: Sequence[str], *, allow_oracle: bool = True, usable: BoolArray | None = None) -> Constraint:
    """Return the constraint of a description file; its side files are in the same folder.

    Parameters
    ----------
    path : Path
    names, allow_oracle, usable
        As for :func:`parse_constraint`.

    Returns
    -------
    Constraint
    """
    text, folder = read_text(path), path.parent
    return parse_constraint(text, names, base_path=folder, allow_oracle=allow_oracle, source=path.name, usable=usable)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of descriptions."""
    published: dict[str, Any] = json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))
    return published


def _parts(item: Item, reader: FieldReader, source: str, depth: int) -> list[Constraint]:
    """Return the constraints of a description, nested lists flattened."""
    entries = item.mapping()
    if len(entries) != 1:
        raise item.error(f"found {len(entries)} keys, expected one constraint: put several in a list under all")
    (name, value), *_ = entries.items()
    if name == "all":
        if depth == _DEEPEST:
            raise value.error(f"all is nested more than {_DEEPEST} levels deep: write one list")
        parts: list[Constraint] = []
        for element in value.elements():
            parts += _parts(element, reader, source, depth + 1)
            if len(parts) > _MOST_PARTS:
                raise value.error(f"there are more than {_MOST_PARTS} constraints: merge some of them")
        if not parts:
            raise value.error("the list is empty, expected at least one constraint")
        return parts
    if name not in FAMILIES:
        known = ["all", *FAMILIES]
        raise value.error(f"unknown constraint {name!r}{near(name, known)}: expected one of {', '.join(known)}")
    try:
        return [FAMILIES[name](value, reader)]
    except ConstraintError as error:
        if str(error).startswith(f"{source}:"):
            raise
        raise value.error(str(error)) from error
