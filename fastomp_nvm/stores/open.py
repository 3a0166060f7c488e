"""``open_store`` and ``create_store``; the scheme of the URL names the medium."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from fastomp_nvm.errors import RequestError
from fastomp_nvm.matrix.checksum import CHECKS, Check
from fastomp_nvm.stores.builders import BUILD_FROM_ARRAYS
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.media import medium_of
from fastomp_nvm.stores.url import StoreURL

__all__ = ["create_store", "open_store"]


def open_store(url: str, *, check: Check = "first") -> FeatureStore:
    """Open the store at ``url``.

    Parameters
    ----------
    url : str
        ``mmap:///path``, ``pmem:///path``, ``dram:name``, or a plain path (``mmap``). For stores in files, ``?tier=dram`` copies
        the int8 tier, not the exact matrix, into memory; ``?tier=/folder`` copies it to a file in that folder (for example on
        persistent memory), which is reused next time. ``?profile=optane`` slows emulated persistent memory down to the speed of a
        published device (see :mod:`fastomp_nvm.matrix.pacing`). ``plink:///path/chr.bed`` are genotypes of PLINK where they lie,
        ``chr@.bed`` those of all chromosomes; ``?target=FILE:COLUMN`` joins a phenotype by FID and IID in place of the .fam's
        (``none``: all people), ``maf=X`` and ``missing-rate=X`` leave out variants, ``dtype=float64`` decodes to that type.
    check : {"first", "always", "never"}
        When columns are compared with their checksums: when they are first read since a file was changed, whenever they are first
        read by a selection, or never. A column that does not match raises ``StoreError``.

    Returns
    -------
    FeatureStore
    """
    if check not in CHECKS:
        raise RequestError(f"check is {check!r}: expected one of {', '.join(CHECKS)}")
    parsed = StoreURL.parse(url)
    store = medium_of(parsed).open(parsed)
    store.check = check
    return store


def create_store(
    url: str,
    X: Any,
    y: Any = None,
    *,
    names: Iterable[str] | None = None,
    dtype: str = "float32",
    rows: Literal["observations", "features"] = "observations",
    missing: str = "error",
    groups: Mapping[str, Sequence[str | int]] | None = None,
    tier: str = "int8",
    replace: bool = False,
) -> FeatureStore:
    """Build a store at ``url`` from an array or a table and open it.

    Parameters
    ----------
    url : str
        Address of the new store.
    X : (n_obs, n_columns) array, pandas or polars DataFrame, or pyarrow Table
        With ``rows="features"`` an array is (n_columns, n_obs). A text column of a table becomes one feature with a column per
        category, a date its days since 1970-01-01. The store keeps this encoding, so that models predict from such tables.
    y : (n_obs,) array, or mapping of name to array, optional
        Target or targets; text becomes classes.
    names : iterable of str, optional
        Column names; ``f0, f1, ...`` otherwise.
    dtype : {"float32", "float64", "float16"}
        Element type of the exact matrix.
    missing : {"error", "mean", "median", "drop-feature"}
        Treatment of NaN. With ``mean`` and ``median`` a missing text becomes the category ``(missing)``.
    groups : mapping, optional
        Features of several columns: feature name -> its columns, by name or position.
    tier : {"int8", "none"}
        Whether to keep an int8 copy next to the exact matrix: a quarter more space for float32, several times fewer bytes read
        per pass.
    replace : bool
        Replace an existing store.

    Returns
    -------
    FeatureStore
    """
    build = BUILD_FROM_ARRAYS.load()
    build(url, X, y, names=names, dtype=dtype, rows=rows, missing=missing, groups=groups, tier=tier, replace=replace)
    return open_store(url)
