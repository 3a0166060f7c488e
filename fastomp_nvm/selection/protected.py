"""Protected attributes as groups of the observations: given as values, or named as targets or features; numbers in quartiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray, first_missing
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.selection.response import labelled

__all__ = ["MOST_GROUPS", "Attribute", "intersection", "resolve_protected"]

#: Most groups of an attribute, and of the intersection of several.
MOST_GROUPS = 50
#: A number with more distinct values is a measurement, whose groups are quartiles.
_MOST_NUMBERS = 20
#: Most attributes in one report.
_MOST_ATTRIBUTES = 8

Named: TypeAlias = "tuple[str, object]"


class Attribute(NamedTuple):
    """A protected attribute.

    Attributes
    ----------
    name : str
    labels : tuple of str
        Of its groups.
    codes : (n_obs,) int64
        The group of each observation.
    numbers : (n_obs,) float64, optional
        The values of a measurement, whose groups are quartiles.
    feature : str, optional
        The feature of the data that holds it.
    """

    name: str
    labels: tuple[str, ...]
    codes: IndexArray
    numbers: Float64Array | None = None
    feature: str | None = None


def resolve_protected(protected: object, dataset: Dataset | None, n_obs: int) -> list[Attribute]:
    """Return the attributes that a caller names or gives.

    Parameters
    ----------
    protected : str, (n_obs,) array, sequence of str, or mapping of str to str or (n_obs,) array
        A target or feature; values; several names; several of either, by the names to report them under.
    dataset : Dataset, optional
        In which names are found.
    n_obs : int
    """
    given: list[Named]
    if isinstance(protected, Mapping):
        given = [(str(name), value) for name, value in protected.items()]
    elif isinstance(protected, str):
        given = [(protected, protected)]
    elif _names(protected, n_obs):
        given = [(str(name), name) for name in protected]  # type: ignore[attr-defined]  # a list or a tuple
    else:
        given = [("protected attribute", protected)]
    if not 1 <= len(given) <= _MOST_ATTRIBUTES:
        raise RequestError(f"{len(given)} protected attributes were given: expected 1 to {_MOST_ATTRIBUTES}")
    if len({name for name, _ in given}) < len(given):
        raise RequestError("a protected attribute was given twice: name each once")
    return [_attribute(name, value, dataset, n_obs) for name, value in given]


def intersection(attributes: Sequence[Attribute]) -> Attribute:
    """Return the groups that several attributes make together, as far as they have an observation."""
    name = " x ".join(attribute.name for attribute in attributes)
    combined = np.zeros(len(attributes[0].codes), dtype=np.int64)
    for attribute in attributes:
        combined = combined * len(attribute.labels) + attribute.codes
    present, codes = np.unique(combined, return_inverse=True)
    if len(present) > MOST_GROUPS:
        raise DataError(f"the protected attributes {name} make {len(present)} groups: expected at most {MOST_GROUPS}, name fewer")
    shape = tuple(len(attribute.labels) for attribute in attributes)
    members = zip(*(places.tolist() for places in np.unravel_index(present, shape)), strict=True)
    labels = [", ".join(each.labels[place] for each, place in zip(attributes, row, strict=True)) for row in members]
    return Attribute(name, tuple(labels), codes.ravel())


def _names(protected: object, n_obs: int) -> bool:
    """Return whether this is a list of names rather than of values."""
    return isinstance(protected, (list, tuple)) and len(protected) != n_obs and all(isinstance(each, str) for each in protected)


def _attribute(name: str, given: object, dataset: Dataset | None, n_obs: int) -> Attribute:
    """Return one attribute."""
    feature = None
    if isinstance(given, str):
        if dataset is None:
            raise RequestError(f"the protected attribute {given!r} is a name, which needs a store: give its values")
        values = _named_values(dataset, given)
        feature = None if given in dataset.targets else given
    else:
        values = np.asarray(given)
    if values.shape != (n_obs,):
        raise DataError(f"the {_called(name)} has shape {values.shape}: expected one value for {n_obs} observations")
    missing = first_missing(values)
    if missing is not None:
        raise DataError(f"the {_called(name)} is missing at row {missing + 1}")
    if values.dtype.kind in "iuf":
        numbers = values.astype(np.float64)
        if not np.isfinite(numbers).all():
            raise DataError(f"the {_called(name)} is infinite at row {int(np.isinf(numbers).argmax()) + 1}")
        if len(np.unique(numbers)) > _MOST_NUMBERS:
            return Attribute(name, *_quartiles(numbers), numbers, feature)
    labels, codes = labelled(values)
    if not 2 <= len(labels) <= MOST_GROUPS:
        raise DataError(f"the {_called(name)} has {len(labels)} distinct values: expected 2 to {MOST_GROUPS} groups")
    return Attribute(name, labels, codes, None, feature)


def _called(name: str) -> str:
    """Return how messages call an attribute."""
    return name if name == "protected attribute" else f"protected attribute {name!r}"


def _quartiles(numbers: Float64Array) -> tuple[tuple[str, ...], IndexArray]:
    """Return the labels of quartiles of more than two distinct numbers, fewer where many are equal, and the quartile of each."""
    ascending = np.sort(numbers)
    edges = np.unique(ascending[[-(-len(numbers) * part // 4) - 1 for part in (1, 2, 3)]])
    edges = edges[edges < ascending[-1]]
    if not edges.size:  # three quarters and more are the largest value
        edges = ascending[ascending < ascending[-1]][-1:]
    written, _ = labelled(edges)
    between = [f"above {low}, at most {high}" for low, high in pairwise(written)]
    return (f"at most {written[0]}", *between, f"above {written[-1]}"), np.searchsorted(edges, numbers)


def _named_values(dataset: Dataset, name: str) -> AnyArray:
    """Return the values (n_obs,) of a target or a feature; of a one-hot feature, the category of each observation."""
    if name in dataset.targets:
        target = dataset.targets[name]
        return np.asarray(np.array(target.classes)[target.values.astype(np.int64)] if target.classes else target.values)
    try:
        feature = list(dataset.names).index(name)
    except ValueError:
        raise RequestError(f"no target or feature is called {name!r}: name one, or a file, as the protected attribute") from None
    columns = slice(int(dataset.offsets[feature]), int(dataset.offsets[feature + 1]))
    block = np.asarray(dataset.matrix[columns])
    if len(block) == 1:
        return np.asarray(block[0], dtype=np.float64)
    if not (np.isin(block, (0, 1)).all() and (block.sum(axis=0, dtype=np.int64) == 1).all()):
        raise DataError(f"the feature {name!r} spans {len(block)} columns that are not categories: it defines no groups")
    labels = [dataset.column_names[column].removeprefix(f"{name}=") for column in range(columns.start, columns.stop)]
    return np.asarray(np.array(labels)[block.argmax(axis=0)])
