"""The data set behind whatever the caller names: a store, its URL, or an array or table in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Literal

import numpy as np

from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import open_store

__all__ = ["Load", "Way", "open_dataset"]

#: What to copy into memory before a selection: matrix and tier, or the tier alone.
Load = Literal["dram", "tier"]
#: How to read files that are not in the page cache.
Way = Literal["auto", "mmap", "direct"]


@contextmanager
def open_dataset(
    data: object,
    names: Sequence[str] | None = None,
    *,
    verify: bool = False,
    load: Load | None = None,
    io: Way | None = None,
) -> Iterator[Dataset]:
    """Yield the data set of a store, a URL, an array or a table; a store opened here is closed afterwards.

    Parameters
    ----------
    data : FeatureStore, store URL, (n_obs, n_features) array or table, or Dataset
    names : sequence of str, optional
        Feature names of an array.
    verify, load, io
        As for ``fastomp_nvm.select``; for stores only.
    """
    if load not in (None, "dram", "tier"):
        raise RequestError(f"load is {load!r}: expected dram or tier")
    with ExitStack() as stack:
        if isinstance(data, str):
            data = stack.enter_context(open_store(data))
        if not isinstance(data, FeatureStore):
            if verify or load is not None or io is not None:
                raise RequestError("verify, load and io are for stores, and the data is in memory: leave them out")
            yield data if isinstance(data, Dataset) else _of_array(data, names)
            return
        if verify:
            data.verify()
        if load == "tier" or (load == "dram" and data.tier is not None):
            data.load_tier()
        dataset = replace(Dataset.of_store(data, io or "auto"), verified=verify)
        yield dataset.loaded(data.url) if load == "dram" else dataset


def _of_array(data: object, names: Sequence[str] | None) -> Dataset:
    """Return the data set of an array or a table of numbers; a table of mixed columns needs ``create_store``."""
    # The attribute ``columns`` of a pyarrow table holds values.
    columns = getattr(data, "column_names" if type(data).__module__.startswith("pyarrow") else "columns", None)
    if columns is not None and names is None:
        names = [str(name) for name in columns]
    if np.ma.is_masked(data):
        raise DataError(
            "X has masked entries: fill them in, or build a store of it with missing values replaced (create_store, missing='mean')"
        )
    try:
        array = np.asarray(data)
        if array.dtype.kind not in "fiubcmM":  # NumPy would drop imaginary parts, and count the nanoseconds of a date
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"the data is not a table of numbers ({error}): build a store with create_store first") from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"X holds elements of type {array.dtype}, expected real numbers: convert it first")
    return Dataset.of_array(array, names)
