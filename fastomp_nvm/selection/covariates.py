"""Covariates that the data has no columns for: named vectors beside it, matched by identifier or by position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array
from fastomp_nvm.errors import DataError, RequestError

if TYPE_CHECKING:
    from fastomp_nvm.selection.answer import Answer

__all__ = ["Covariates", "as_covariates", "contribution"]


class Covariates(NamedTuple):
    """Numbers that every model has as columns.

    Attributes
    ----------
    names : tuple of str
    values : (n, p) float64
    ids : tuple of str, optional
        Identifiers of the rows, for data that has identifiers; for data without, rows are its observations, in order.
    """

    names: tuple[str, ...]
    values: Float64Array
    ids: tuple[str, ...] | None = None

    def matched(self, ids: Sequence[str] | None, n_obs: int, data: str = "the data") -> Float64Array:
        """Return the values (n_obs, p) for the observations of ``data``, whose identifiers are ``ids``, if it has any."""
        if self.ids is None and ids is not None:
            raise DataError(
                f"{data} has identifiers and the covariates have none, so that rows cannot be matched: name the "
                "column of identifiers (--covariates-id, Covariates(names, values, ids))"
            )
        if self.ids is None:
            if len(self.values) != n_obs:
                raise DataError(
                    f"the covariates have {len(self.values):,} rows and {data} {n_obs:,} observations: without identifiers on both "
                    "sides rows are matched by position, which needs as many"
                )
            return self.values
        if ids is None:
            raise DataError(
                f"the covariates have identifiers and {data} has none, so that rows cannot be matched: leave the "
                "identifiers out to match by position, or build the store with an identifier column"
            )
        places = {name: place for place, name in enumerate(self.ids)}
        if len(places) < len(self.ids):
            twice = next(name for place, name in enumerate(self.ids) if places[name] != place)
            raise DataError(f"the covariates have two rows with the identifier {twice!r}: keep one")
        try:
            return self.values[[places[name] for name in ids]]
        except KeyError as error:
            missing = sum(name not in places for name in ids)
            raise DataError(
                f"the covariates have no row for the identifier {error.args[0]!r} ({missing:,} of {n_obs:,} are missing): "
                "add these rows; observations with the weight 0 need them too"
            ) from None


def as_covariates(given: object) -> Covariates | None:
    """Return covariates given as such, as a table, as a mapping of names to vectors, or as an array (n,) or (n, p)."""
    if given is None or isinstance(given, Covariates):
        return given
    columns: Iterable[tuple[str, object]]
    if isinstance(given, Mapping):
        columns = ((str(name), values) for name, values in given.items())
    elif hasattr(given, "column_names"):  # pyarrow
        columns = ((name, given[name].to_numpy()) for name in given.column_names)  # type: ignore[index]
    elif hasattr(given, "columns"):
        columns = ((str(name), given[name]) for name in given.columns)  # type: ignore[index]
    else:
        array: AnyArray = np.asarray(given)
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2:
            raise RequestError(f"covariates have the shape {array.shape}: expected one row per observation, one column each")
        columns = ((f"covariate {place}", array[:, place - 1]) for place in range(1, array.shape[1] + 1))
    named = {name: _numbers(name, values) for name, values in columns}
    if not named:
        raise RequestError("the covariates have no column: leave them out")
    lengths = {len(values) for values in named.values()}
    if len(lengths) > 1:
        raise RequestError(f"the covariates have columns of different lengths ({', '.join(map(str, sorted(lengths)))})")
    return Covariates(tuple(named), np.column_stack(list(named.values())))


def contribution(answer: Answer, n_obs: int, ids: Sequence[str] | None, covariates: object, offset: object) -> Float64Array:
    """Return what covariates and the offset add to the linear predictor (n_obs,) of a model; see ``Selection.given_beside``."""
    eta, names = np.zeros(n_obs), tuple(column.column for column in answer.beside)
    if names:
        found = _columns_of(covariates, names).matched(ids, n_obs)
        eta += found @ np.array([column.coef for column in answer.beside])
    if answer.offset_beside:
        if offset is None:
            raise RequestError("the model has an offset that is no feature of the data: give that of the rows (--offset, offset=)")
        values = _numbers("offset", offset)
        if len(values) != n_obs:
            raise DataError(f"the offset has {len(values)} values for {n_obs} observations")
        eta += values
    return eta


def _columns_of(given: object, names: tuple[str, ...]) -> Covariates:
    """Return the covariates called ``names``, in that order; others in a table or mapping need not be numbers."""
    known = given if isinstance(given, Mapping) else getattr(given, "column_names", getattr(given, "columns", ()))
    if not isinstance(given, Covariates) and all(name in known for name in names):
        given = {name: given[name] for name in names}  # type: ignore[index]
    found = as_covariates(given)
    listed = ", ".join(map(repr, names))
    if found is None:
        raise RequestError(f"the model has covariates that the data has no columns for: give {listed} (--covariates, covariates=)")
    missing = next((name for name in names if name not in found.names), None)
    if missing is not None:
        raise DataError(f"the covariates lack {missing!r}: the model needs {listed}")
    return found._replace(names=names, values=found.values[:, [found.names.index(name) for name in names]])


def _numbers(name: str, given: object) -> Float64Array:
    """Return a covariate as finite numbers (n,)."""
    try:
        values = np.asarray(given).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the covariate {name!r} is no column of numbers ({error}): encode it as numbers, or make it a feature of the store"
        ) from error
    if values.ndim != 1:
        raise DataError(f"the covariate {name!r} has the shape {values.shape}: expected one value per observation")
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0]) + 1
        raise DataError(f"the covariate {name!r} is missing or infinite at row {row}: fill it in")
    return values
