"""From a written description to a constraint.

A description is a mapping with one key: the name of a family in ``CONSTRAINTS``, or ``all`` with a list of
descriptions. Each family reads its own part; what they share, feature names, groups and CSV side files, is the :class:`Setting`.
Descriptions may come over the wire: without ``base_path`` no file is opened, without ``allow_oracle`` no code is run. Every error
names the file and the line. The published schema is ``schema.json`` beside this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastomp_nvm.arrays import BoolArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.intersection import intersect
from fastomp_nvm.constraints.table import CONSTRAINTS
from fastomp_nvm.constraints.written.document import Item, near, read_document
from fastomp_nvm.constraints.written.naming import FeatureNames
from fastomp_nvm.constraints.written.setting import Setting
from fastomp_nvm.errors import ConstraintError

__all__ = ["parse_constraint", "read_constraint", "schema"]

# Nested lists of constraints say nothing that one list does not; a limit keeps aliases from multiplying without end.
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
    """Return the constraint that a description means.

    Parameters
    ----------
    document : str or mapping
        YAML text, or what such a text would say.
    names : sequence of str
        Of the features.
    base_path : Path, optional
        Folder of side files and of modules; without it a description must be complete in itself.
    allow_oracle : bool
        Whether it may name Python functions to run.
    source : str
        What to call the description in errors, usually its file.
    usable : (n_features,) bool, optional
        Features that can be selected at all; lower bounds are checked against these.

    Returns
    -------
    Constraint
    """
    setting = Setting(FeatureNames(names), base_path, allow_oracle, usable)
    return intersect(_parts(read_document(document, source), setting, source, depth=0))


def read_constraint(path: Path, names: Sequence[str], *, allow_oracle: bool = True, usable: BoolArray | None = None) -> Constraint:
    """Return the constraint that a file describes; side files stand beside it.

    Parameters
    ----------
    path : Path
    names, allow_oracle, usable
        As for :func:`parse_constraint`.

    Returns
    -------
    Constraint
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConstraintError(
            f"the constraint file {path} cannot be read ({error}): check its path and that it is UTF-8"
        ) from error
    return parse_constraint(text, names, base_path=path.parent, allow_oracle=allow_oracle, source=path.name, usable=usable)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of descriptions."""
    published: dict[str, Any] = json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))
    return published


def _parts(item: Item, setting: Setting, source: str, depth: int) -> list[Constraint]:
    """Return the constraints of a description, nested lists laid flat."""
    entries = item.mapping()
    if len(entries) != 1:
        raise item.error(f"found {len(entries)} keys, expected one constraint: put several in a list under all")
    (name, value), *_ = entries.items()
    if name == "all":
        if depth == _DEEPEST:
            raise value.error(f"all is nested more than {_DEEPEST} times: write one list")
        parts: list[Constraint] = []
        for element in value.elements():
            parts += _parts(element, setting, source, depth + 1)
            if len(parts) > _MOST_PARTS:
                raise value.error(f"there are more than {_MOST_PARTS} constraints: join some of them")
        if not parts:
            raise value.error("the list is empty, expected at least one constraint")
        return parts
    if name not in CONSTRAINTS:
        known = ["all", *CONSTRAINTS]
        raise value.error(f"unknown constraint {name!r}{near(name, known)}: expected one of {', '.join(known)}")
    family = CONSTRAINTS.load(name)
    try:
        return [family.from_description(value, setting)]
    except ConstraintError as error:
        if str(error).startswith(f"{source}:"):
            raise
        raise value.error(str(error)) from error
