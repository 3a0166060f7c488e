"""The data set behind whatever the caller names: a store, its URL, or an array or table in memory."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol, cast

import numpy as np

from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.stores.contract import FeatureStore

if TYPE_CHECKING:
    from fastomp_nvm.matrix.checksum import Check
    from fastomp_nvm.stores.url import StoreURL

__all__ = ["Load", "Way", "has_text", "open_dataset"]

#: What to copy into memory before a selection: matrix and tier, or the tier alone.
Load = Literal["dram", "tier"]
#: Beginnings of the names of types of numbers in pandas, polars and pyarrow.
_NUMBERS = ("int", "uint", "float", "double", "halffloat", "bool", "decimal")
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
    check: Check | None = None,
) -> Iterator[Dataset]:
    """Yield the data set of a store, a URL, an array or a table; a store opened here is closed afterwards.

    Parameters
    ----------
    data : FeatureStore, store URL, (n_obs, n_features) array or table, or Dataset
        Arrays and tables of numbers are used where they lie (``rows_of_array``, ``rows_of_table``). A text column of a table
        becomes a feature with a column per category, as in ``create_store``.
    names : sequence of str, optional
        Feature names of an array.
    verify, load, io, check
        As for ``fastomp_nvm.select``; for stores only.
    """
    if load not in (None, "dram", "tier"):
        raise RequestError(f"load is {load!r}: expected dram or tier")
    with ExitStack() as stack:
        if isinstance(data, str):
            from fastomp_nvm.stores.open import open_store  # not needed by arrays

            data = stack.enter_context(open_store(data))
        if not isinstance(data, FeatureStore):
            if verify or load is not None or io is not None or check is not None:
                raise RequestError("verify, load, io and check are for stores, and the data is in memory: leave them out")
            if isinstance(data, Dataset):
                yield data
            elif names is None and has_text(data):
                with _encoded(data) as store:
                    yield Dataset.of_store(store)
            else:
                yield _of_array(data, names)
            return
        if verify:
            data.verify()
        if load == "tier" or (load == "dram" and data.tier is not None):
            data.load_tier()
        dataset = replace(Dataset.of_store(data, io or "auto", check), verified=verify)
        yield dataset.loaded(data.url) if load == "dram" else dataset


def has_text(data: object) -> bool:
    """Tell whether ``data`` is a pandas, polars or pyarrow table with a column of other values than numbers."""
    library = type(data).__module__.partition(".")[0]
    if library not in ("pandas", "polars", "pyarrow") or hasattr(data, "collect") or not hasattr(data, "columns"):
        return False
    types = getattr(data, "schema" if library == "pyarrow" else "dtypes", ())
    distinct = {each.type if library == "pyarrow" else each for each in types}
    return not all(str(kind).lower().startswith(_NUMBERS) for kind in distinct)


class _Memory(Protocol):
    """The medium of stores in memory."""

    def open(self, url: StoreURL) -> FeatureStore:
        """Open a store."""
        ...

    def discard(self, url: StoreURL) -> None:
        """Remove a store."""
        ...


@contextmanager
def _encoded(data: object) -> Iterator[FeatureStore]:
    """Yield a store in memory of a table with text columns; it is discarded afterwards."""
    from fastomp_nvm.stores.media import medium_of
    from fastomp_nvm.stores.open import create_store
    from fastomp_nvm.stores.url import StoreURL

    url = StoreURL.parse(f"dram:table-{secrets.token_hex(8)}")
    create_store(url.text, data, dtype="float64", tier="none")
    medium = cast("_Memory", medium_of(url))
    try:
        yield medium.open(url)
    finally:
        medium.discard(url)


def _of_array(data: object, names: Sequence[str] | None) -> Dataset:
    """Return the data set of an array or a table of numbers."""
    # The attribute ``columns`` of a pyarrow table holds values.
    columns = getattr(data, "column_names" if type(data).__module__.startswith("pyarrow") else "columns", None)
    if columns is not None and names is None:
        names = list(map(str, getattr(columns, "tolist", lambda: columns)()))  # an index of pandas is slow to iterate over
    if columns is not None:
        from fastomp_nvm.selection.table_columns import rows_of_table

        rows = rows_of_table(data)
        if rows is not None:
            return Dataset.of_rows(rows, names)
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
