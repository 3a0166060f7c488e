"""The response of a selection as numbers: given by the caller, or a target or a feature of the store."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray, first_missing
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import DataError, RequestError, near
from fastomp_nvm.selection.answer import KeptColumn
from fastomp_nvm.selection.automatic import choose_objective
from fastomp_nvm.selection.request import RequestFields, SelectionRequest

__all__ = [
    "Response",
    "encode_response",
    "every_weight",
    "labelled",
    "observation_values",
    "offset_column",
    "resolve_response",
    "weights_of",
]


class Response(NamedTuple):
    """A response with its origin.

    Attributes
    ----------
    values : (n_obs,) float64
    name : str
        Of the target; ``y`` for values that the caller gave.
    classes : tuple of str
        Labels of the codes 0 and 1 for the logistic objective, otherwise empty.
    feature : int, optional
        Index of the feature that is the response, which must not be selected.
    objective : str
        That of the request, or the one chosen for the target where the request says ``auto``.
    reason : str, optional
        Why it was chosen; None where the request names it.
    given : bool
        Whether the caller gave the values.
    """

    values: Float64Array
    name: str
    classes: tuple[str, ...] = ()
    feature: int | None = None
    objective: str = "linear"
    reason: str | None = None
    given: bool = False


def resolve_response(dataset: Dataset, request: SelectionRequest, y: object) -> Response:
    """Return the response ``y`` or, where that is None, the target that the request names; the store's first by default."""
    name, feature = "y", None
    classes: tuple[str, ...] = ()
    if y is not None:
        values, classes = encode_response(y, request.objective)
    else:
        if request.target is None and not dataset.targets:
            raise RequestError("the data holds no target: name a feature or a file as the target (--target), or give the response")
        name = next(iter(dataset.targets)) if request.target is None else request.target
        if name in dataset.targets:
            values, classes = dataset.targets[name].values, tuple(dataset.targets[name].classes)
        else:
            try:
                feature = list(dataset.names).index(name)
            except ValueError:
                known = ", ".join(dataset.targets) or "none"
                hint = near(name, [*dataset.targets, *dataset.names])
                raise RequestError(f"no target or feature is called {name!r}{hint}; the store's targets: {known}") from None
            first, last = int(dataset.offsets[feature]), int(dataset.offsets[feature + 1])
            if last - first > 1:
                raise RequestError(
                    f"the feature {name!r} spans {last - first} columns and cannot be a target: make it one when the store is built"
                )
            values = dataset.matrix[first].astype(np.float64)
    if len(values) != dataset.n_obs:
        raise DataError(f"the target has {len(values)} values for {dataset.n_obs} observations")
    if not np.isfinite(values).all():
        raise DataError(f"the target holds a NaN or infinity at row {int(np.flatnonzero(~np.isfinite(values))[0]) + 1}")
    objective, reason = (request.objective, None) if request.objective != "auto" else choose_objective(name, values, classes)
    if objective == "logistic":
        if not classes:
            values, classes = encode_response(values, "logistic")
        if len(classes) != 2:
            raise DataError(f"the target {name!r} has {len(classes)} distinct values: the logistic objective needs exactly two")
    elif classes:
        raise RequestError(f"the target {name!r} holds classes ({', '.join(classes[:3])}): use the logistic objective")
    return Response(values, name, classes, feature, objective, reason, given=y is not None)


def observation_values(dataset: Dataset, given: Float64Array | str | None, what: str) -> Float64Array | None:
    """Return one number per observation, given or in the target or feature of that name; None for None."""
    values = given
    if isinstance(given, str):
        if given in dataset.targets and not dataset.targets[given].classes:
            values = dataset.targets[given].values
        else:
            try:
                feature = list(dataset.names).index(given)
            except ValueError:
                hint = near(given, [*dataset.targets, *dataset.names])
                raise RequestError(f"no target of numbers and no feature is called {given!r}{hint}, to take {what} from") from None
            first, last = int(dataset.offsets[feature]), int(dataset.offsets[feature + 1])
            if last - first > 1:
                raise RequestError(f"the feature {given!r} spans {last - first} columns: {what} need one number per observation")
            values = dataset.matrix[first].astype(np.float64)
    if values is None or isinstance(values, str):
        return None
    if len(values) != dataset.n_obs:
        raise RequestError(f"{len(values)} {what} were given for {dataset.n_obs} observations")
    return values


def offset_column(dataset: Dataset, offset: str) -> list[KeptColumn]:
    """Return the feature that an offset is in, a column like any other for predictions; nothing where it is no feature."""
    if offset in dataset.targets or offset not in dataset.names:
        return []
    position = int(dataset.offsets[list(dataset.names).index(offset)])
    return [KeptColumn(offset, dataset.column_names[position], position, 1.0)]


def weights_of(dataset: Dataset, request: SelectionRequest) -> Float64Array | None:
    """Return the observation weights (n_obs,) of a request."""
    weights = observation_values(dataset, request.weights, "weights")
    if isinstance(request.weights, str) and weights is not None and (weights.min() < 0 or not weights.any()):
        raise RequestError(f"the weights in {request.weights!r} must not be negative, nor all zero")
    return weights


def every_weight(dataset: Dataset, common: SelectionRequest, fields: RequestFields) -> tuple[Float64Array, RequestFields]:
    """Return the weights (n_obs,) of a request, 1 by default, and its fields, where a column that holds them is no candidate."""
    weights = weights_of(dataset, common)
    if isinstance(common.weights, str) and common.weights in dataset.names:
        fields = {**fields, "exclude": [*common.exclude, common.weights]}
    return np.ones(dataset.n_obs) if weights is None else weights, fields


def encode_response(y: object, objective: str) -> tuple[Float64Array, tuple[str, ...]]:
    """Return a response as float64 and, for the logistic objective or, with ``auto``, for text and truth values, its labels."""
    if np.ma.is_masked(y):
        raise DataError("the target has masked entries: remove these observations or fill the values in")
    values = np.asarray(y)
    if values.ndim == 2 and 1 in values.shape:
        values = values.ravel()
    if values.ndim != 1:
        raise DataError(f"the target has shape {values.shape}: expected one value per observation")
    if values.dtype.kind in "cmM":
        raise DataError(f"the target holds elements of type {values.dtype}, expected real numbers or labels: convert it first")
    missing = first_missing(values)
    if missing is not None:
        raise DataError(f"the target is missing at row {missing + 1}: remove the observation or fill the value in")
    if objective == "auto" and (values.dtype.kind in "bUS" or (values.dtype.kind == "O" and _holds_labels(values))):
        labels, codes = labelled(values)
        return codes.astype(np.float64), labels
    if objective == "logistic":
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(f"the target holds a NaN or infinity at row {int(np.flatnonzero(~np.isfinite(values))[0]) + 1}")
        if values.dtype.kind in "fiu":
            ones = values == 1
            if (ones | (values == 0)).all() and ones.any() and not ones.all():  # the usual case, without sorting
                return ones.astype(np.float64), ("0", "1")
        labels, codes = labelled(values)
        return codes.astype(np.float64), labels
    try:
        return values.astype(np.float64), ()
    except (TypeError, ValueError) as error:
        raise DataError(f"the target is not numeric ({error}): use the logistic objective for two classes") from error


def labelled(values: AnyArray) -> tuple[tuple[str, ...], IndexArray]:
    """Return a label for each distinct value of ``values`` (n,), no two alike, and the position of each value's label (n,)."""
    distinct, codes = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)
    return tuple(_label(value) for value in distinct.tolist()), codes.ravel()


def _holds_labels(values: AnyArray) -> bool:
    """Return whether an array of objects holds text, or nothing but truth values."""
    each = values.tolist()
    return any(isinstance(value, (str, bytes)) for value in each) or all(isinstance(value, bool) for value in each)


def _label(value: object) -> str:
    """Return ``value`` as text; a number in six digits if that is exact."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else str(value).removesuffix(".0")
