"""The input of a selection: one matrix with its moments, from a store or from an array in memory.

The moments of a store were computed when it was built. Those of an array, and moments under observation weights (folds,
subsamples), are computed in one pass over the columns when they are needed; that of an array can also compute the products that the
first sweep will ask for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.errors import DataError, RequestError
from fastomp_nvm.matrix.checksum import CHECKS, Check
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.matrix.memory import refuse_beyond_memory
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.rows import Design, LocalRows, Rows, rows_of_array
from fastomp_nvm.matrix.standardisation import Standardisation
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.stores.contract import FeatureStore, MediumTraits, Target
from fastomp_nvm.stores.names import NumberedNames

if TYPE_CHECKING:
    from fastomp_nvm.matrix.tier import Tier, TierAccount
    from fastomp_nvm.stores.encoding import TableEncoding

__all__ = ["Dataset"]

# Unweighted standardisations by the moments behind them: a store that stays open serves many selections.
_unweighted: WeakKeyDictionary[ColumnStatistics, Standardisation] = WeakKeyDictionary()

# Largest norm of a column that is not standardised (the smallest is its inverse): squares beyond leave the range of float64.
_LARGEST_NORM = 1e150


@dataclass(frozen=True, eq=False)
class Dataset:
    """A matrix, its moments and its names.

    Attributes
    ----------
    matrix : Rows
    offsets : (n_features + 1,) int64
    moments : ColumnStatistics or LocalRows
        Of the columns; for an array the rows that they are computed from when they are first needed.
    names, column_names : sequence of str
    targets : mapping of str to Target
    traits : MediumTraits
    fingerprint : str
        Of the store; empty for an array.
    tier : Tier, optional
        The int8 tier of the store.
    encoding : TableEncoding, optional
        How the columns of a table became the columns of the store.
    ids : sequence of str, optional
        Identifiers of the observations of a store.
    known : mapping of bytes to Standardisation
        Standardisations under observation weights, by the bytes of the weights; see ``knowing``.
    verified : bool
        Whether the checksums of the store were checked after it was opened.
    excluded : (e,) int64, optional
        Features that the store leaves out, never to select.
    choices : mapping of str to Choice
        What the store leaves out of its source.
    statistics : ColumnStatistics
        The moments, computed when they are first needed.
    n_obs, n_features : int
    resident : bool
        True when the matrix is one array of contiguous columns in memory, or in a file whose pages are: columns are multiplied
        where they lie, and gathering them takes no memory.
    """

    matrix: Rows
    offsets: IndexArray
    moments: ColumnStatistics | LocalRows
    names: Sequence[str]
    column_names: Sequence[str]
    targets: Mapping[str, Target]
    traits: MediumTraits
    fingerprint: str = ""
    tier: Tier | None = None
    encoding: TableEncoding | None = None
    ids: Sequence[str] | None = None
    known: Mapping[bytes, Standardisation] = field(default_factory=dict)
    verified: bool = False
    excluded: IndexArray | None = None
    choices: Mapping[str, Choice] = field(default_factory=dict)
    n_obs: int = field(init=False)
    n_features: int = field(init=False)
    resident: bool = field(init=False)

    def __post_init__(self) -> None:
        """Derive the sizes."""
        object.__setattr__(self, "n_obs", self.matrix.shape[1])
        object.__setattr__(self, "n_features", len(self.offsets) - 1)
        resident = self.matrix.in_place and (self.traits.medium == "dram" or self.matrix.in_page_cache())
        object.__setattr__(self, "resident", resident)

    @classmethod
    def of_store(cls, store: FeatureStore, io: str = "auto", check: Check | None = None) -> Dataset:
        """Return the data set of an opened store; nothing is read.

        Parameters
        ----------
        store : FeatureStore
        io : {"auto", "mmap", "direct"}
            How sweeps and gathers read its files; see :mod:`fastomp_nvm.matrix.reader`. The answer does not depend on it.
        check : {"first", "always", "never"}, optional
            When columns are compared with their checksums; by default as the store was opened.
        """
        from fastomp_nvm.matrix.reader import rows_of  # not needed by arrays

        check = store.check if check is None else check
        if check not in CHECKS:
            raise RequestError(f"check is {check!r}: expected one of {', '.join(CHECKS)}")
        if check != "first" and store.shards:
            raise RequestError(f"the shards of {store.url} compare columns when they first read them: leave check {check} out")
        files, tier = store.files(), store.tier
        seals = [
            None if seal is None or check == "never" else seal.renewed() if check == "always" else seal for seal in store.seals
        ]
        return cls(
            rows_of(store.matrix, files, io, seals[0]),
            store.layout.offsets,
            store.statistics,
            store.names,
            store.column_names,
            store.targets,
            store.traits,
            store.layout.fingerprint,
            None if tier is None else replace(tier, codes=rows_of(tier.codes, files, io, seals[1])),
            store.encoding,
            store.ids,
            excluded=store.excluded,
            choices=store.choices,
        )

    @classmethod
    def of_array(cls, X: AnyArray, names: Sequence[str] | None = None) -> Dataset:
        """Return the data set of an array of real numbers (n_obs, n_features), which stays where it lies; see ``rows_of_array``."""
        if X.ndim != 2 or 0 in X.shape:
            raise DataError(f"X has shape {X.shape}: expected observations x features, at least one of each")
        return cls.of_rows(rows_of_array(X), names)

    @classmethod
    def of_rows(cls, rows: LocalRows, names: Sequence[str] | None = None) -> Dataset:
        """Return the data set of columns in memory, one feature each."""
        labels: Sequence[str] = NumberedNames(len(rows)) if names is None else list(names)
        if names is not None:
            if len(labels) != len(rows):
                raise DataError(f"{len(labels)} names were given for {len(rows)} features")
            if len(set(labels)) < len(labels):
                twice = next(name for name, count in Counter(labels).items() if count > 1)
                raise DataError(f"two features are named {twice!r}: rename one of them")
        traits = MediumTraits("dram", "none", False, "an array of this process")
        offsets = np.arange(len(rows) + 1, dtype=np.int64)
        return cls(rows, offsets, rows, labels, labels, {}, traits)

    @cached_property
    def statistics(self) -> ColumnStatistics:
        """Moments of the columns."""
        if isinstance(self.moments, ColumnStatistics):
            return self.moments
        return _finite(self.moments.moments([None])[0], self.moments)

    def measure(self, sweeper: Sweeper, vector: Callable[[], Float64Array]) -> None:
        """Compute the moments of an array, unless they are known, in one pass with its products with ``vector`` (n_obs,).

        The next sweep is answered from these products where it asks for that vector.
        """
        rows = self.moments
        if not isinstance(rows, ColumnStatistics) and "statistics" not in vars(self):
            found = rows.measure(sweeper, Vectors(vector()[:, np.newaxis], rows.dtype))
            object.__setattr__(self, "statistics", _finite(found, rows))

    def loaded(self, source: str) -> Dataset:
        """Return this data set with its matrix copied into memory; ``source`` names the original."""
        nbytes = math.prod(self.matrix.shape) * self.matrix.itemsize
        refuse_beyond_memory(nbytes, "a copy of the matrix", "leave --load out, or load the tier alone (--tier-load dram)")
        traits = MediumTraits("dram", "none", False, f"copied from {source}")
        return replace(self, matrix=self.matrix.in_memory(), traits=traits)

    def design(self, standardize: bool = True, weights: Float64Array | None = None, traffic: Traffic | None = None) -> Design:
        """Return the design under a standardisation.

        Parameters
        ----------
        standardize : bool
            False: columns as they are.
        weights : (n_obs,) float64, optional
            Observation weights; means, norms and group Grams are then recomputed in one full pass.
        traffic : Traffic, optional
            Counts that pass, even where the moments are known already.
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
            return Design(self.matrix.under(standardize, weights), Standardisation.identity(self.offsets, norm, grams))
        plain = _unweighted.get(stats)
        if plain is None:
            plain = _unweighted[stats] = Standardisation.from_moments(self.offsets, stats, n_obs)
        if weights is None:
            return Design(self.matrix, plain)
        if traffic is not None:
            traffic.include(Traffic(1, self.n_features, self.matrix.nbytes))
        known = self.known.get(weights.tobytes())
        if known is None:
            (known,) = self.matrix.standardisations([weights], plain)
        return Design(self.matrix.under(standardize, weights), known)

    def account(self, tier: Tier) -> TierAccount:
        """Return the account that decides, from the bytes of queries so far, whether the next one sweeps ``tier``."""
        from fastomp_nvm.matrix.reader import rows_of
        from fastomp_nvm.matrix.tier import TierAccount

        apart = self.matrix.on_device and not rows_of(tier.codes).on_device
        return TierAccount(self.matrix.nbytes, tier.codes.nbytes, apart=apart, coarse=not apart and tier.coarse)

    def knowing(self, weights: Sequence[Float64Array]) -> Dataset:
        """Return this data set with the standardisation under each of ``weights``, computed in one pass for all."""
        distinct = {each.tobytes(): each for each in weights}
        found = self.matrix.standardisations(list(distinct.values()), self.design().standardisation)
        return replace(self, moments=self.statistics, known=dict(zip(distinct, found, strict=True)))


def _finite(statistics: ColumnStatistics, rows: LocalRows) -> ColumnStatistics:
    """Return the moments of ``rows`` if all their values are finite; otherwise raise ``DataError``."""
    if not np.isfinite(statistics.norm).all():
        column = int(np.flatnonzero(~np.isfinite(statistics.norm))[0])
        bad = np.flatnonzero(~np.isfinite(rows[column]))
        where = f"row {int(bad[0]) + 1}, " if bad.size else ""
        raise DataError(f"X holds a NaN or infinity at {where}column {column}: remove or impute it first")
    return statistics
