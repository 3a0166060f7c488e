"""What a server reads from a store at once, outside of jobs: facts of a constraint, and columns for export in pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from ado_plugin.service.uploads import field_of
from fastomp_nvm.analysis.constraint_check import check_constraint
from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.constraints.written.description import parse_constraint
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import RequestError
from fastomp_nvm.selection.codec import encode_vector
from fastomp_nvm.selection.export import Extraction
from fastomp_nvm.stores.contract import FeatureStore

__all__ = ["Page", "constraint_facts", "extract_pages", "slices"]

#: Returns one reply; the work is done when it is called.
Page = Callable[[], dict[str, Any]]


def constraint_facts(body: Mapping[str, Any], store: FeatureStore) -> dict[str, Any]:
    """Return what ``check_constraint`` finds, of the constraint, samples and seed of a call."""
    samples = field_of(body, "samples", int, "a whole number of at least 0", 100)
    seed = field_of(body, "seed", int, "a whole number of at least 0", 0)
    if not (0 <= samples < 2**31 and 0 <= seed < 2**63):
        raise RequestError("samples or seed is out of range: expected whole numbers of at least 0")
    given = body.get("constraint")
    if not isinstance(given, (str, dict)):
        raise RequestError(f"the constraint is a {type(given).__name__}: expected a mapping or YAML text")
    dataset = Dataset.of_store(store)
    usable = dataset.design().standardisation.usable()
    constraint = parse_constraint(given, store.names, base_path=None, allow_oracle=False, usable=usable)
    return asdict(check_constraint(constraint, dataset, samples, seed))


def extract_pages(body: Mapping[str, Any], store: FeatureStore, most: int) -> Iterator[Page]:
    """Yield names of columns, target and identifiers, or with ``first`` some columns from that on; about ``most`` bytes each."""
    indices = field_of(body, "indices", list, "a list of features")
    if not all(type(index) is int and 0 <= index < 2**31 for index in indices):
        raise RequestError("indices are not a list of features: expected whole numbers of at least 0")
    objective = field_of(body, "objective", str, "a text")
    target = None if body.get("target") is None else field_of(body, "target", str, "a name")
    first = None if body.get("first") is None else max(field_of(body, "first", int, "the number of a column"), 0)
    found = Extraction(store, np.array(indices, dtype=np.int64), objective, target)
    if first is not None:
        for block in itertools.islice(found.blocks(first, most), 1):
            flat = block.reshape(-1)
            for part in slices(len(flat), flat.itemsize, most):
                yield partial(_vector, "values", flat[part], next=first + len(block))
        return
    facts = {"n_obs": found.n_obs, "dtype": found.dtype.str, "label": found.label, "classes": found.classes}
    head = {"names": found.names, **facts, "ids": found.ids is not None}
    yield lambda: head
    for part in slices(found.n_obs, 8, most):
        yield partial(_vector, "target", found.codes[part])
    if found.ids is not None:
        for part in slices(found.n_obs, 4 + 12 * max(map(len, found.ids)), most):
            yield partial(dict, ids=list(found.ids[part]))


def slices(count: int, width: int, most: int) -> Iterator[slice]:
    """Yield the parts of ``count`` values of ``width`` bytes that fit into ``most`` bytes each."""
    step = max(most // width, 1)
    return (slice(first, first + step) for first in range(0, count, step))


def _vector(name: str, values: AnyArray, **more: Any) -> dict[str, Any]:
    """Return a reply with a vector."""
    return {name: encode_vector(values), **more}
