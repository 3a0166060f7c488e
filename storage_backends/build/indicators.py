"""Text features as indicator columns: one column per category, 1 where the observation has it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.stores.encoding import MISSING_LABEL, ColumnEncoding
from storage_backends.readers.base import CHUNK_BYTES, Categories, spans

__all__ = ["Indicators"]


class Indicators:
    """Encodes one text feature.

    Parameters
    ----------
    name : str
        Of the feature.
    categories : Categories
    missing : {"error", "mean", "median", "drop-feature"}
        What to do about missing cells: refuse them, make them the category ``(missing)`` (``mean``, ``median``), or keep NaN.

    Attributes
    ----------
    columns : list of str
        Names of the indicator columns.
    encoding : ColumnEncoding
    filled : int
        Missing cells encoded as the category ``(missing)`` so far.
    """

    def __init__(self, name: str, categories: Categories, missing: str) -> None:
        labels = categories.labels
        if not labels:
            raise DataError(f"column {name!r} has no value at all: leave it out (--drop)")
        self._filling = None
        if categories.has_missing and missing in ("mean", "median"):
            labels = labels if MISSING_LABEL in labels else (*labels, MISSING_LABEL)
            self._filling = labels.index(MISSING_LABEL)
        self._name, self._missing = name, missing
        self.columns = [f"{name}={label}" for label in labels]
        self.encoding = ColumnEncoding("category", tuple(labels), self._filling)
        self.filled = 0

    def tiles(self, first_obs: int, codes: AnyArray, budget: int = CHUNK_BYTES) -> Iterator[tuple[int, AnyArray]]:
        """Yield (first observation, (rows, columns) indicators) for ``codes``, NaN where missing, which begin at ``first_obs``."""
        for first, last in spans(len(codes), 4 * len(self.columns), budget):
            piece = codes[first:last]
            absent = np.isnan(piece)
            if self._missing == "error" and absent.any():
                row = first_obs + first + int(absent.argmax()) + 1
                raise DataError(
                    f"row {row} of column {self._name!r} is missing: fill it in or use --missing mean|median|drop-feature"
                )
            if self._filling is not None:
                piece = np.where(absent, self._filling, piece)
                self.filled += int(absent.sum())
            indicators = (piece[:, np.newaxis] == np.arange(len(self.columns))).astype(np.float32)
            indicators[np.isnan(piece)] = np.nan
            yield first_obs + first, indicators
