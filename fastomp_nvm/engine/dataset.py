"""What a selection reads: one matrix with its moments, whether it comes from a store or from an array in memory.

The moments of a store were computed when it was built. An array's are computed here, and so are those under observation weights
(folds, subsamples), in one pass over the columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.errors import DataError
from fastomp_nvm.matrix import lost_pages
from fastomp_nvm.matrix.moments import ColumnStatistics, gram, moments
from fastomp_nvm.matrix.reader import MatrixFile, Reader, refuse_beyond_memory
from fastomp_nvm.matrix.remote_rows import RemoteRows
from fastomp_nvm.matrix.standardisation import Design, Standardisation
from fastomp_nvm.matrix.sweeper import aligned_empty
from fastomp_nvm.matrix.tier import Tier
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.stores.contract import BLOCK_COLUMNS, FeatureStore, MediumTraits, Target
from fastomp_nvm.stores.names import NumberedNames

__all__ = ["Dataset"]

# What moments make without weights, as long as these are there: a store that stays open serves many selections.
_unweighted: WeakKeyDictionary[ColumnStatistics, Standardisation] = WeakKeyDictionary()

# Of columns taken as they are: squares of longer ones, or of shorter ones than its inverse, leave the range of float64.
_LARGEST_NORM = 1e150


@dataclass(frozen=True)
class Dataset:
    """A matrix, its moments and its names.

    Attributes
    ----------
    matrix : (n_columns, n_obs)
        Read-only.
    offsets : (n_features + 1,) int64
    statistics : ColumnStatistics
    names, column_names : sequence of str
    targets : mapping of str to Target
    traits : MediumTraits
    fingerprint : str
        Of the store; empty for an array.
    tier : Tier, optional
        The int8 tier of the store.
    files : sequence of MatrixFile
        Files behind the matrix and the tier, where they are read through a mapping.
    io : {"auto", "mmap", "direct"}
        How sweeps and gathers read them; see :mod:`fastomp_nvm.matrix.reader`. The answer does not depend on it.
    known : mapping of bytes to Standardisation
        Standardisations under observation weights computed before, by the bytes of the weights; see ``knowing``.
    verified : bool
        Whether the checksums of the store were checked after it was opened.
    """

    matrix: AnyArray
    offsets: IndexArray
    statistics: ColumnStatistics
    names: Sequence[str]
    column_names: Sequence[str]
    targets: Mapping[str, Target]
    traits: MediumTraits
    fingerprint: str = ""
    tier: Tier | None = None
    files: Sequence[MatrixFile] = ()
    io: str = "auto"
    known: Mapping[bytes, Standardisation] = field(default_factory=dict)
    verified: bool = False

    @classmethod
    def of_store(cls, store: FeatureStore) -> Dataset:
        """Return the data set of an opened store; nothing is read."""
        return cls(
            store.matrix,
            store.layout.offsets,
            store.statistics,
            store.names,
            store.column_names,
            store.targets,
            store.traits,
            store.layout.fingerprint,
            store.tier,
            store.files(),
        )

    @classmethod
    def of_array(cls, X: AnyArray, names: Sequence[str] | None = None) -> Dataset:
        """Return the data set of an array (n_obs, n_features); float32 and float64 keep their type, others become float64."""
        if X.ndim != 2 or 0 in X.shape:
            raise DataError(f"X has shape {X.shape}: expected observations x features, at least one of each")
        matrix = np.ascontiguousarray(X.T, dtype=X.dtype if X.dtype in (np.float32, np.float64) else np.float64)
        (statistics,) = _block_moments(matrix, [None])
        if not np.isfinite(statistics.norm).all():
            column = int(np.flatnonzero(~np.isfinite(statistics.norm))[0])
            bad = np.flatnonzero(~np.isfinite(matrix[column]))
            where = f"row {int(bad[0]) + 1}, " if bad.size else ""
            raise DataError(f"X holds a NaN or infinity at {where}column {column}: remove or impute it first")
        matrix.setflags(write=False)
        labels = NumberedNames(len(matrix)) if names is None else list(names)
        if len(labels) != len(matrix):
            raise DataError(f"{len(labels)} names were given for {len(matrix)} features")
        if names is not None and len(set(labels)) < len(labels):
            twice = next(name for name, count in Counter(labels).items() if count > 1)
            raise DataError(f"two features are named {twice!r}: rename one of them")
        traits = MediumTraits("dram", "none", False, "an array of this process")
        offsets = np.arange(len(matrix) + 1, dtype=np.int64)
        return cls(matrix, offsets, statistics, labels, labels, {}, traits)

    def loaded(self, source: str) -> Dataset:
        """Return this data set with its matrix copied into memory; ``source`` names where from."""
        refuse_beyond_memory(
            self.matrix.nbytes, "a copy of the matrix", "leave --load out, or load the tier alone (--tier-load dram)"
        )
        matrix = aligned_empty(self.matrix.shape, self.matrix.dtype)

        def fill(block: AnyArray, first: int, last: int) -> None:
            matrix[first:last] = block

        reader = Reader(self.files, self.io, 1)
        if not reader.sweep(self.matrix, fill, again=False):
            np.copyto(matrix, self.matrix)
        reader.close()
        lost_pages.check(self.matrix)
        matrix.setflags(write=False)
        return replace(self, matrix=matrix, traits=MediumTraits("dram", "none", False, f"copied from {source}"))

    @property
    def n_obs(self) -> int:
        """Observations."""
        return int(self.matrix.shape[1])

    @property
    def n_features(self) -> int:
        """Features."""
        return len(self.offsets) - 1

    @property
    def _standardisation(self) -> Standardisation:
        """The unweighted standardisation."""
        known = _unweighted.get(self.statistics)
        if known is None:
            known = _standardisation_of(self.offsets, self.statistics, float(self.n_obs), self.statistics.grams)
            _unweighted[self.statistics] = known
        return known

    def design(self, standardize: bool = True, weights: Float64Array | None = None, traffic: Traffic | None = None) -> Design:
        """Return the design under a standardisation.

        Parameters
        ----------
        standardize : bool
            False: columns as they are.
        weights : (n_obs,) float64, optional
            Observation weights; means, norms and group Grams are then recomputed in one full pass.
        traffic : Traffic, optional
            Counts that pass, as if none were known before.
        """
        stats, n_obs = self.statistics, float(self.n_obs)
        if not standardize:
            several = np.flatnonzero(np.diff(self.offsets) > 1)
            spans = [slice(int(self.offsets[feature]), int(self.offsets[feature + 1])) for feature in several]
            grams = [
                gram + n_obs * np.outer(stats.mean[span], stats.mean[span]) for gram, span in zip(stats.grams, spans, strict=True)
            ]
            norm = np.hypot(stats.norm, np.sqrt(n_obs) * stats.mean)
            extreme = np.flatnonzero((norm > 0.0) & ~((norm > 1.0 / _LARGEST_NORM) & (norm < _LARGEST_NORM)))
            if extreme.size:
                name, size = self.column_names[int(extreme[0])], norm[extreme[0]]
                raise DataError(
                    f"column {name!r} has the norm {size:.0e}, whose square float64 cannot hold: scale or standardise it"
                )
            return Design(self._rows(standardize, weights), Standardisation.identity(self.offsets, norm, grams))
        if weights is None:
            return Design(self.matrix, self._standardisation)
        if traffic is not None:
            traffic.add(self.n_features, self.matrix.nbytes)
        known = self.known.get(weights.tobytes())
        return Design(self._rows(standardize, weights), known if known is not None else self._weighted([weights])[0])

    def _rows(self, standardize: bool, weights: Float64Array | None) -> Any:
        """Return the matrix, which when it lies elsewhere must know the standardisation it is asked about under."""
        return self.matrix.under(standardize, weights) if isinstance(self.matrix, RemoteRows) else self.matrix

    def knowing(self, weights: Sequence[Float64Array]) -> Dataset:
        """Return this data set with the standardisations under each of ``weights`` at hand, computed in one pass for all."""
        distinct = {each.tobytes(): each for each in weights}
        return replace(self, known=dict(zip(distinct, self._weighted(list(distinct.values())), strict=True)))

    def _weighted(self, weights: Sequence[Float64Array]) -> list[Standardisation]:
        """Compute the standardisation under each of ``weights``, block by block, in one pass over the matrix."""
        if isinstance(self.matrix, RemoteRows):
            return self.matrix.standardisations(weights, self._standardisation)
        found = _block_moments(self.matrix, weights)
        lost_pages.check(self.matrix)
        return [self._standardised(each, stats) for each, stats in zip(weights, found, strict=True)]

    def _standardised(self, weights: Float64Array, stats: ColumnStatistics) -> Standardisation:
        """Return the standardisation that the moments under ``weights`` make."""
        grams = []
        for feature in np.flatnonzero(np.diff(self.offsets) > 1):
            span = slice(int(self.offsets[feature]), int(self.offsets[feature + 1]))
            grams.append(gram(self.matrix[span], stats.mean[span], weights))
        weighted = _standardisation_of(self.offsets, stats, float(weights.sum()), grams)
        # Which columns are accumulated in float64 is a property of the store, not of the weights: merged sweeps share it.
        return Standardisation(self.offsets, stats.mean, weighted.scale, self._standardisation.wide, weighted.whiteners)


def _standardisation_of(
    offsets: IndexArray, stats: ColumnStatistics, weight: float, grams: Sequence[Float64Array]
) -> Standardisation:
    """Return the standardisation that moments under observation weights of sum ``weight`` make."""
    largest = np.maximum(np.abs(stats.minimum), np.abs(stats.maximum))
    return Standardisation.from_moments(offsets, stats.mean, stats.norm, largest, weight, grams)


def _block_moments(matrix: AnyArray, weights: Sequence[Float64Array | None]) -> list[ColumnStatistics]:
    """Return the moments of every column of ``matrix`` under each of ``weights``; a block is done with before the next is read."""
    blocks = [matrix[first : first + BLOCK_COLUMNS] for first in range(0, len(matrix), BLOCK_COLUMNS)]
    parts = [[moments(block, each) for each in weights] for block in blocks]
    return [
        ColumnStatistics(
            mean=np.concatenate([part[place].mean for part in parts]),
            norm=np.concatenate([part[place].norm for part in parts]),
            minimum=np.concatenate([part[place].minimum for part in parts]),
            maximum=np.concatenate([part[place].maximum for part in parts]),
        )
        for place in range(len(weights))
    ]
