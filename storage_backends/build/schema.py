"""The schema of a table: observations, columns, and the grouping of columns into features.

A schema is complete and validated before the first value is written, because the medium allocates the matrix from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.stores.contract import BLOCK_COLUMNS
from fastomp_nvm.stores.encoding import TableEncoding
from fastomp_nvm.stores.names import NumberedNames

__all__ = ["TableSchema"]


@dataclass(frozen=True, slots=True, eq=False)
class TableSchema:
    """Names and grouping of a table's columns.

    Attributes
    ----------
    n_obs : int
        Observations.
    columns : sequence of str
        One name per column.
    features : sequence of str
        One name per feature.
    offsets : (n_features + 1,) int64
        Feature ``f`` spans columns ``offsets[f]:offsets[f + 1]``.
    encoding : TableEncoding, optional
        How the columns of the source become these columns; the builder completes it.
    ids : sequence of str, optional
        Identifiers of the observations (n_obs,).

    Raises
    ------
    DataError
        No observations or no features, a name that is empty or used twice, or a feature of more than ``BLOCK_COLUMNS`` columns.
    """

    n_obs: int
    columns: Sequence[str]
    features: Sequence[str]
    offsets: IndexArray
    encoding: TableEncoding | None = None
    ids: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.n_obs < 1:
            raise DataError("the table has no observations: at least one is needed")
        if len(self.features) < 1:
            raise DataError("the table has no features: at least one column besides the target is needed")
        offsets = np.asarray(self.offsets, dtype=np.int64)
        widths = np.diff(offsets)
        if len(offsets) != len(self.features) + 1 or offsets[0] != 0 or offsets[-1] != len(self.columns) or int(widths.min()) < 1:
            raise DataError(
                f"the offsets do not split {len(self.columns)} columns into {len(self.features)} features of one column or more"
            )
        widest = int(widths.argmax())
        if widths[widest] > BLOCK_COLUMNS:
            raise DataError(
                f"feature {self.features[widest]!r} spans {widths[widest]} columns and at most {BLOCK_COLUMNS} are possible: "
                "merge rare categories or drop it"
            )
        if self.ids is not None and len(self.ids) != self.n_obs:
            raise DataError(f"there are {len(self.ids)} identifiers for {self.n_obs} observations")
        _check_names(self.features, "feature")
        if self.columns is not self.features:
            _check_names(self.columns, "column")
        object.__setattr__(self, "offsets", offsets)

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.columns)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.features)

    @classmethod
    def plain(cls, n_obs: int, names: Iterable[str], encoding: TableEncoding | None = None) -> TableSchema:
        """Return the schema of a table in which each column is one feature.

        Parameters
        ----------
        n_obs : int
        names : iterable of str
            Column names; ``NumberedNames(n)`` if there are none.
        encoding : TableEncoding, optional
        """
        kept = names if isinstance(names, NumberedNames) else tuple(names)
        return cls(n_obs, kept, kept, np.arange(len(kept) + 1, dtype=np.int64), encoding)

    @classmethod
    def grouped(cls, n_obs: int, groups: Iterable[tuple[str, Sequence[str]]], encoding: TableEncoding | None = None) -> TableSchema:
        """Return the schema of features that span adjacent columns.

        Parameters
        ----------
        n_obs : int
        groups : iterable of (feature name, its column names)
            In column order. A feature of one column gives that column its name.
        encoding : TableEncoding, optional
        """
        features: list[str] = []
        columns: list[str] = []
        offsets = [0]
        for feature, members in groups:
            features.append(feature)
            columns.extend(members if len(members) > 1 else [feature] * len(members))
            offsets.append(len(columns))
        return cls(n_obs, tuple(columns), tuple(features), np.array(offsets, dtype=np.int64), encoding)


def _check_names(names: Sequence[str], kind: str) -> None:
    """Raise ``DataError`` for a name that is empty, not text, or used twice."""
    if isinstance(names, NumberedNames):
        return
    seen: set[str] = set()
    for position, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise DataError(f"the {kind} at position {position} is named {name!r}: a name must be non-empty text")
        if name in seen:
            raise DataError(f"two {kind}s are named {name!r}: rename one of them")
        seen.add(name)
