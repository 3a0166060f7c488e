"""Gram matrices of all columns and a response over blocks of observations, from one pass, and data compressed with them.

Least squares depends on the data through the products of columns alone. So where columns are few against observations, the rows of
a Cholesky factor of the centred Gram matrix stand in for the columns: they have the same products, and as many entries as there are
columns. Observation weights that are constant on blocks of observations (folds, subsamples) need sums of the blocks' Gram matrices,
and the data is not read again.

Products are summed in float64 around the means of all observations, tile by tile; the tiles depend on the shape alone, so the sums
do not depend on threads or medium.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray
from fastomp_nvm.matrix import lost_pages
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.rows import ArrayRows, Design, Rows
from fastomp_nvm.matrix.standardisation import Standardisation
from fastomp_nvm.matrix.sweeper import Sweeper

__all__ = ["BlockGrams", "Compressed", "IllConditionedError", "Moments", "gram_bytes"]

#: Bytes of a tile: all columns of some observations, in float64.
TILE_BYTES = 1 << 26

#: Columns of a Gram matrix computed in one product. Only blocks on and above the diagonal are computed.
PANEL = 128

#: Columns that one thread converts at a time.
STRIP = 32

#: Smallest share of a sum of squares that may be left after centring: below it too many digits cancel.
CENTRED_SHARE = 1e-3

#: Squared remainder of a unit column below which it lies in the span of others to rounding. Remainders up to ``NEARLY_DEPENDENT``
#: carry too few digits for a fit.
DEPENDENT, NEARLY_DEPENDENT = 1e-12, 1e-8

#: Columns with a correlation this close to 1 or -1 are compared entry by entry.
_LIKE_COPIES = 1e-12

#: Products that leave the range of float64 are found by looking at the sums.
_SILENTLY = np.errstate(over="ignore", invalid="ignore")


class IllConditionedError(Exception):
    """Gram matrices in float64 do not tell what the columns themselves would; the text says why."""


def gram_bytes(n_columns: int, blocks: int, distinct: int) -> int:
    """Return about the memory of ``blocks`` Gram matrices and of the data compressed under ``distinct`` weights."""
    size = n_columns + 2
    return 8 * size * (int(0.5 * (size + PANEL)) * (blocks + distinct) + size * distinct) + 2 * TILE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Moments of all columns, then the response, under observation weights.

    Attributes
    ----------
    weight : float
        Sum of the weights.
    mean, norm, minimum, maximum : (n_columns + 1,) float64
        ``norm`` is that of the centred column.
    correlation : (n_columns + 1, n_columns + 1) float64
        Gram matrix of the centred columns in units of ``norm``, on and below the diagonal; constant columns correlate with none.
    """

    weight: float
    mean: Float64Array
    norm: Float64Array
    minimum: Float64Array
    maximum: Float64Array
    correlation: Float64Array

    def score(self, columns: IndexArray, coef: Float64Array, intercept: float) -> float:
        """Return R^2, about the mean of these observations, of a linear predictor; NaN where the response is constant."""
        if not self.norm[-1] > 0.0:
            return float("nan")
        coef_of_unit, pairs = coef * self.norm[columns] / self.norm[-1], np.meshgrid(columns, columns)
        explained = 2.0 * float(coef_of_unit @ self.correlation[-1, columns])
        explained -= float(coef_of_unit @ self.correlation[np.maximum(*pairs), np.minimum(*pairs)] @ coef_of_unit)
        shift = float(self.mean[-1] - intercept - coef @ self.mean[columns]) / float(self.norm[-1])
        return explained - self.weight * shift * shift


@dataclass(frozen=True, slots=True, eq=False)
class Compressed:
    """A design of a few pseudo-observations with the products of the data under some observation weights.

    Attributes
    ----------
    design : Design
        Rows that are centred and of unit length already; features of several columns are whitened.
    response : (n_pseudo,) float64
        Centred.
    original : Standardisation
        Of the data, for coefficients in original units.
    intercept : float
        Mean of the response.
    """

    design: Design
    response: Float64Array
    original: Standardisation
    intercept: float


@dataclass(slots=True, eq=False)
class BlockGrams:
    """Gram matrices of [columns, response, 1] by block of observations.

    Parameters
    ----------
    rows : Rows
        In arrays of this process.
    statistics : ColumnStatistics
        Of all observations.
    response : (n_obs,) float64
    weights : (n_obs,) float64
        Observation weights; observations of weight 0 belong to no block.
    block_of : (n_obs,) int64
        Block of each observation, from 0.
    sweeper : Sweeper
    look : callable
        Called after each tile.
    """

    rows: Rows
    statistics: ColumnStatistics
    response: Float64Array
    weights: Float64Array
    block_of: IndexArray
    sweeper: Sweeper
    look: Callable[[], None]
    _centre: Float64Array = field(init=False)
    _grams: Float64Array = field(init=False)  # (blocks, ...): panels of rows up to the diagonal, one after the other
    _ranges: Float64Array = field(init=False)  # (2, blocks, n_columns + 1): minimum and maximum
    _known_copies: dict[tuple[int, int], float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Read the data once."""
        n_columns, n_obs = self.rows.shape
        self._centre = np.append(self.statistics.mean, self.response.mean())
        blocks, size = int(self.block_of.max()) + 1, n_columns + 2
        self._grams = np.zeros((blocks, self._panels()[-1][2]))
        self._ranges = np.empty((2, blocks, n_columns + 1))
        self._ranges[0], self._ranges[1] = np.inf, -np.inf
        step = max(TILE_BYTES // (8 * size), 1)
        buffer = np.empty((size, min(step, n_obs)))
        self.rows.check(slice(None))
        for first in range(0, n_obs, step):
            last = min(first + step, n_obs)
            here = first + np.argsort(self.block_of[first:last], kind="stable")
            self._add(here[self.weights[here] > 0.0], first, buffer)
            self.look()
        for array in self.rows.arrays:
            lost_pages.check(array)

    def _panels(self) -> list[tuple[int, int, int]]:
        """Return first and last row of each panel, as long as its last row, and where the panel ends in ``_grams``."""
        found, end, size = [], 0, self.rows.shape[0] + 2
        for first in range(0, size, PANEL):
            last = min(first + PANEL, size)
            end += last * (last - first)
            found.append((first, last, end))
        return found

    def _add(self, here: IndexArray, first: int, buffer: Float64Array) -> None:
        """Add the observations ``here``, sorted by block, which lie in one tile from ``first`` on."""
        if not here.size:
            return
        last, n_columns = first + buffer.shape[1], self.rows.shape[0]
        starts = np.flatnonzero(np.diff(self.block_of[here], prepend=-1))
        ends, blocks = np.append(starts[1:], len(here)), self.block_of[here[starts]]
        tile, local, roots = buffer[:, : len(here)], here - first, np.sqrt(self.weights[here])
        tile[-1], weighted = roots, bool((roots != 1.0).any())

        def convert(source: AnyArray, begin: int) -> None:
            picked = source.take(local, axis=1)
            end = begin + len(picked)
            low, high = self._ranges[:, blocks, begin:end]
            self._ranges[0, blocks, begin:end] = np.minimum(low, np.minimum.reduceat(picked, starts, axis=1).T)
            self._ranges[1, blocks, begin:end] = np.maximum(high, np.maximum.reduceat(picked, starts, axis=1).T)
            out = tile[begin:end]
            np.subtract(picked, self._centre[begin:end, None], out=out)
            if weighted:
                out *= roots

        tasks, begin = [partial(convert, self.response[None, first:last], n_columns)], 0
        for array in self.rows.arrays:
            strips = range(0, len(array), STRIP)
            tasks += [partial(convert, array[start : start + STRIP, first:last], begin + start) for start in strips]
            begin += len(array)
        self.sweeper.share_out(tasks)
        self.rows.pace(len(here) * n_columns * self.rows.itemsize)

        @_SILENTLY
        def multiply(block: int, begin: int, end: int, low: int, high: int, place: int) -> None:
            product = tile[low:high, begin:end] @ tile[:high, begin:end].T
            self._grams[block, place - product.size : place] += product.reshape(-1)

        panels = self._panels()[::-1]  # the last ones take longest
        self.sweeper.share_out(
            [
                partial(multiply, block, begin, end, *panel)
                for panel in panels
                for block, begin, end in zip(blocks.tolist(), starts.tolist(), ends.tolist(), strict=True)
            ]
        )

    def under(self, factors: Float64Array) -> list[Callable[[], Moments]]:
        """Return functions that compute the moments under each of several observation weights.

        Parameters
        ----------
        factors : (m, blocks) float64
            By what the weights of the pass are multiplied in each block.
        """
        sums = np.empty((len(factors), self._grams.shape[1]))

        @_SILENTLY
        def add(first: int, last: int) -> None:
            np.matmul(factors, self._grams[:, first:last], out=sums[:, first:last])

        ends = [end for _, _, end in self._panels()]
        self.sweeper.share_out([partial(add, first, last) for first, last in zip([0, *ends], ends, strict=False)])
        return [partial(self._moments, flat, each > 0.0) for flat, each in zip(sums, factors, strict=True)]

    @_SILENTLY
    def _moments(self, flat: Float64Array, inside: BoolArray) -> Moments:
        """Return the moments of a sum of Gram matrices of the blocks ``inside``."""
        size = self.rows.shape[0] + 1
        panels, begin = [], 0
        for first, last, end in self._panels():
            panels.append((first, flat[begin:end].reshape(last - first, last)))
            begin = end
        squares = np.concatenate([panel.diagonal(first) for first, panel in panels])[:size]
        sums, weight = flat[-size - 1 : -1], float(flat[-1])  # the last row
        shares = sums / weight
        minimum, maximum = self._ranges[0, inside].min(axis=0), self._ranges[1, inside].max(axis=0)
        left, varies = squares - sums * shares, minimum < maximum
        if not (np.isfinite(left) & (~varies | (left > CENTRED_SHARE * squares))).all():
            raise IllConditionedError("a column has extreme values, or means far apart in parts of the observations")
        norm = np.sqrt(np.where(varies, left, 0.0))
        inverse = np.divide(1.0, norm, out=np.zeros(size), where=varies)
        correlation = np.zeros((size, size))
        for first, panel in panels:
            part = correlation[first : first + len(panel), : panel.shape[1]]  # without the last row and column
            here, before = slice(first, first + len(part)), slice(part.shape[1])
            np.multiply.outer(sums[here], shares[before], out=part)
            np.subtract(panel[: len(part), before], part, out=part)
            part *= inverse[here, None]
            part *= inverse[before]
        correlation.flat[:: size + 1] = 1.0
        return Moments(weight, np.where(varies, self._centre + shares, minimum), norm, minimum, maximum, correlation)

    def compress(self, moments: Moments, offsets: IndexArray, weights: Float64Array | None) -> Compressed:
        """Return pseudo-observations with the products that ``moments`` hold.

        Parameters
        ----------
        moments : Moments
        offsets : (n_features + 1,) int64
        weights : (n_obs,) float64, optional
            Observation weights.

        Raises
        ------
        IllConditionedError
            Columns are nearly dependent, or the response is constant.
        """
        if not moments.norm[-1] > 0.0:
            raise IllConditionedError("the response is constant")
        factor, independent = _factor(moments.correlation)
        size, rank = factor.shape
        # A reflection that takes the last coordinate, zero in all rows, to the constant direction: entries of each row sum to zero.
        rows, even = np.empty((size, size + 1)), 1.0 / np.sqrt(size + 1)
        shifts = factor.sum(axis=1) * (even / (1.0 - even))
        np.subtract(factor, (even * shifts)[:, None], out=rows[:, :rank])
        rows[:, rank:] = (-even * shifts)[:, None]
        rows[:, -1] += shifts
        rows[~(moments.norm > 0.0)] = 0.0
        if not independent:
            moments = self._tie(moments, rows, weights)
        columns = rows[:-1]
        columns.setflags(write=False)
        norm, grams = moments.norm[:-1], []
        for feature in np.flatnonzero(np.diff(offsets) > 1):
            part = slice(int(offsets[feature]), int(offsets[feature + 1]))
            with np.errstate(over="ignore"):
                grams.append(columns[part] @ columns[part].T * np.outer(norm[part], norm[part]))
        if not all(np.isfinite(gram).all() for gram in grams):
            raise IllConditionedError("the squares of a column leave the range of float64")
        statistics = ColumnStatistics(moments.mean[:-1], norm, moments.minimum[:-1], moments.maximum[:-1], grams)
        original = Standardisation.from_moments(offsets, statistics, moments.weight)
        unit = Standardisation(
            offsets,
            np.zeros(len(norm)),
            np.where(original.scale > 0.0, 1.0, 0.0),
            np.zeros(len(norm), dtype=np.bool_),
            [group._replace(matrices=group.matrices * norm[group.columns][:, None, :]) for group in original.whiteners],
        )
        response = rows[-1] * moments.norm[-1]
        return Compressed(Design(DerivedRows(columns), unit), response, original, float(moments.mean[-1]))

    def _tie(self, moments: Moments, rows: Float64Array, weights: Float64Array | None) -> Moments:
        """Give columns that are copies of an earlier one, up to sign and a power of two, its row: ties go to the lowest index."""
        like = np.tril(np.abs(moments.correlation[:-1, :-1]) > 1.0 - _LIKE_COPIES, -1)
        norm, mean = moments.norm.copy(), moments.mean.copy()
        for column in np.flatnonzero(like.any(axis=1)).tolist():
            for earlier in np.flatnonzero(like[column]).tolist():
                factor = self._ratio(earlier, column, moments, weights)
                if factor:
                    rows[column] = np.sign(factor) * rows[earlier]
                    norm[column], mean[column] = abs(factor) * norm[earlier], factor * mean[earlier]
                    break
        return replace(moments, norm=norm, mean=mean)

    def _ratio(self, one: int, other: int, moments: Moments, weights: Float64Array | None) -> float:
        """Return the power of two, with sign, that column ``other`` is of column ``one``; 0.0 where there is none."""
        factor = self._known_copies.get((one, other))
        if factor is None:
            factor = 2.0 ** round(float(np.log2(moments.norm[other] / moments.norm[one])))
            factor = float(np.copysign(factor, moments.correlation[other, one]))
            first, second = self.rows[one], self.rows[other]
            if np.array_equal(second, first * second.dtype.type(factor)):
                self._known_copies[one, other] = factor
            elif weights is None or (second != first * second.dtype.type(factor))[weights > 0.0].any():
                factor = 0.0
        return factor


class DerivedRows(ArrayRows):
    """Rows computed from others and held in memory: reading them is no traffic with the medium."""

    counted = False


def _factor(gram: Float64Array) -> tuple[Float64Array, bool]:
    """Return L (n, r) with ``L L' = gram`` for a Gram matrix of unit columns, of which the part on and below the diagonal is read.

    The second result says whether the columns are far from dependent, so that r is n and none is a copy of another.
    """
    try:
        factor = np.asarray(np.linalg.cholesky(gram), dtype=np.float64)
        if factor.diagonal().min() ** 2 > NEARLY_DEPENDENT:
            return factor, True
    except np.linalg.LinAlgError:
        pass
    factor, pivots, rank, _ = lapack.dpstrf(gram, lower=1, tol=DEPENDENT)
    if float(factor[rank - 1, rank - 1]) ** 2 < NEARLY_DEPENDENT:
        raise IllConditionedError("columns are nearly dependent")
    out = np.empty((len(gram), rank))
    out[pivots - 1] = np.tril(factor)[:, :rank]
    return out, False
