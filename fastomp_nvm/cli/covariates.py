"""``--covariates FILE[:COL,...]``: columns of a table that every model has, beside those of the data."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from fastomp_nvm.errors import InputError, RequestError, near
from fastomp_nvm.selection.covariates import Covariates, as_covariates
from fastomp_nvm.stores.builders import READ_TABLE
from fastomp_nvm.stores.encoding import TableEncoding

__all__ = ["add_covariates_arguments", "covariates_of"]


def add_covariates_arguments(parser: argparse._ActionsContainer) -> None:
    """Declare covariates beside the data."""
    add = parser.add_argument
    add(
        "--covariates",
        metavar="FILE[:COL,...]",
        help="further columns of numbers that every model has, from a table; all columns unless some are named (default: none)",
    )
    add("--covariates-id", metavar="COL", help="column of that table with the identifiers of the store (default: same order)")


def covariates_of(arguments: argparse.Namespace, needed: Sequence[str] = ()) -> Covariates | None:
    """Return the covariates that ``--covariates`` names; of a file without names those that are ``needed``, otherwise all."""
    given, id_column = arguments.covariates, arguments.covariates_id
    if given is None:
        if id_column is not None:
            raise RequestError("--covariates-id names a column of --covariates, which is missing: give both or neither")
        return None
    file, _, listed = (given, "", "") if os.path.isfile(given) else given.rpartition(":")
    if not os.path.isfile(file):
        raise InputError(f"there is no file {file or given} to take covariates from (--covariates)")
    wanted = listed.split(",") if listed else list(needed)
    table = READ_TABLE.load()(file, {*wanted} if wanted else _Other(id_column), TableEncoding(), id_column=id_column)
    assert table is not None, "a path is a table"
    columns = table.columns
    missing = next((name for name in wanted if name not in columns), None)
    if missing is not None:
        raise InputError(f"{table.label} has no column {missing!r} to take a covariate from{near(missing, columns)}")
    found = as_covariates({name: columns[name].values for name in wanted or columns})
    assert found is not None
    return found._replace(ids=None if table.ids is None else tuple(table.ids))


class _Other:
    """A container of all names but one."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    def __contains__(self, name: object) -> bool:
        return name != self._name
