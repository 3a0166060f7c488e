"""The standardised design matrix, never materialised: how raw dot products become gradients and scores.

With mean ``mu`` and centred norm ``nu`` of a column, the standardised column is ``(a - mu) / nu`` and its product with a vector
``v`` is ``(a . v - mu * sum(v)) / nu``. A feature of several columns is *whitened*: with ``W`` from a pivoted Cholesky
factorisation of the group's centred Gram matrix, ``W (A_B - mu_B)`` has orthonormal rows (dependent ones are zero), so that the
feature's score ``g_B' (X_B' X_B)^+ g_B`` is a plain sum of squares, as it is for one column.

Everything here works per column and per vector with elementwise operations in a fixed order, so that the bits of a score do not
depend on the other columns and vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, BoolArray, Float64Array, IndexArray
from fastomp_nvm.matrix.moments import ColumnStatistics

__all__ = ["Standardisation", "Whitener", "column_index", "whitener_of_gram"]

#: A column counts as constant when its centred norm is below this fraction of the norm of its largest entry repeated: rounding.
CONSTANT_RELATIVE_NORM = 1e-13

#: Columns with |mean| / std above this are accumulated in float64: their products cancel too many digits for float32.
WIDE_MEAN_RATIO = 100.0

#: Directions of a group whose pivot falls below this fraction of the largest one are dependent and dropped.
DEPENDENT_PIVOT = 1e-10


def column_index(offsets: IndexArray, features: IndexArray) -> IndexArray:
    """Return the columns of ``features``, in their order: the concatenation of the features' column ranges."""
    if offsets[-1] == len(offsets) - 1:  # one column each
        return features
    starts = offsets[features]
    counts = offsets[features + 1] - starts
    shift = np.repeat(starts - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return np.asarray(shift + np.arange(int(counts.sum())), dtype=np.int64)


def whitener_of_gram(gram: Float64Array) -> Float64Array:
    """Return W (d, d) with ``W gram W' = diag(1, ..., 1, 0, ...)``; rows of dependent directions are zero.

    Parameters
    ----------
    gram : (d, d) float64
        Centred Gram matrix of a feature's columns.
    """
    size = len(gram)
    out = np.zeros((size, size))
    if not gram.any():
        return out
    diagonal = np.sqrt(np.maximum(np.diag(gram), 0.0))
    unit = np.where(diagonal > 0, diagonal, 1.0)
    factor, pivots, rank, _ = lapack.dpstrf(gram / np.outer(unit, unit), lower=1, tol=DEPENDENT_PIVOT)
    kept = pivots[:rank] - 1
    inverse = np.linalg.inv(np.tril(factor[:rank, :rank]))
    out[np.ix_(np.arange(rank), kept)] = inverse / unit[kept]
    return out


class Whitener(NamedTuple):
    """Whitening matrices of the features that span the same number of columns.

    Attributes
    ----------
    features : (f,) int64
        Which features.
    columns : (f, d) int64
        Their columns.
    matrices : (f, d, d) float64
    """

    features: IndexArray
    columns: IndexArray
    matrices: Float64Array


class Standardisation(NamedTuple):
    """Means, scales and whiteners of a set of features, by position.

    Attributes
    ----------
    offsets : (n_features + 1,) int64
        Feature ``f`` spans columns ``offsets[f]:offsets[f + 1]``.
    mean : (n_columns,) float64
    scale : (n_columns,) float64
        ``1 / norm`` of the centred column; 0 for a constant column; 1 for columns of a whitened feature.
    wide : (n_columns,) bool
        Accumulate this column in float64.
    whiteners : sequence of Whitener
        Empty when every feature has one column.
    """

    offsets: IndexArray
    mean: Float64Array
    scale: Float64Array
    wide: BoolArray
    whiteners: Sequence[Whitener] = ()

    @classmethod
    def from_moments(cls, offsets: IndexArray, statistics: ColumnStatistics, weight: float) -> Standardisation:
        """Return the standardisation that moments make.

        Parameters
        ----------
        offsets : (n_features + 1,) int64
        statistics : ColumnStatistics
            With the Gram matrix of each feature of several columns.
        weight : float
            Sum of the observation weights (the number of observations when unweighted).
        """
        mean, norm = statistics.mean, statistics.norm
        largest = np.maximum(np.abs(statistics.minimum), np.abs(statistics.maximum))
        root = np.sqrt(weight)
        # The inverse of a subnormal norm is infinite.
        constant = ~((norm > CONSTANT_RELATIVE_NORM * root * largest) & (norm >= np.finfo(np.float64).tiny))
        with np.errstate(divide="ignore"):
            scale = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, norm))
        wide = np.abs(mean) * root > WIDE_MEAN_RATIO * norm
        whiteners = []
        counts = np.diff(offsets)
        several = np.flatnonzero(counts > 1)
        for width in np.unique(counts[several]):
            members = np.flatnonzero(counts[several] == width)
            features = several[members]
            columns = offsets[features][:, None] + np.arange(width)
            matrices = np.stack([whitener_of_gram(statistics.grams[member]) for member in members.tolist()])
            scale[columns] = 1.0
            whiteners.append(Whitener(features, columns, matrices))
        return cls(offsets, mean, scale, wide & (scale > 0), tuple(whiteners))

    @classmethod
    def identity(cls, offsets: IndexArray, norm: Float64Array, grams: Sequence[Float64Array] = ()) -> Standardisation:
        """Return the standardisation that neither centres, scales nor whitens; ``norm`` (n_columns,) shows which columns are zero.

        The score of a feature of several columns is then the sum of their squared gradients, as it is for one column.
        """
        plain = cls.from_moments(offsets, ColumnStatistics(np.zeros(len(norm)), norm, -norm, norm, grams), 1.0)
        whiteners = [
            Whitener(group.features, group.columns, np.eye(group.columns.shape[1]) * (norm[group.columns] > 0)[:, :, None])
            for group in plain.whiteners
        ]
        return cls(offsets, plain.mean, np.where(plain.scale > 0, 1.0, 0.0), plain.wide, tuple(whiteners))

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.offsets) - 1

    def usable(self) -> BoolArray:
        """Return (n_features,) bool: features that are not constant, hence can be candidates."""
        if not self.whiteners:
            return np.asarray(self.scale > 0)
        usable = np.asarray(self.scale[self.offsets[:-1]] > 0)
        for group in self.whiteners:
            usable[group.features] = group.matrices.any(axis=(1, 2))
        return usable

    def subset(self, features: IndexArray) -> Standardisation:
        """Return the standardisation of ``features`` alone, renumbered by position (columns likewise)."""
        if not self.whiteners:
            offsets = np.arange(len(features) + 1)
            return Standardisation(offsets, self.mean[features], self.scale[features], self.wide[features])
        columns = column_index(self.offsets, features)
        counts = self.offsets[features + 1] - self.offsets[features]
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        whiteners = []
        for group in self.whiteners:
            slot = np.full(self.n_features, -1, dtype=np.int64)
            slot[group.features] = np.arange(len(group.features))
            here = np.flatnonzero(slot[features] >= 0)
            if here.size:
                width = group.columns.shape[1]
                whiteners.append(Whitener(here, offsets[here][:, None] + np.arange(width), group.matrices[slot[features[here]]]))
        return Standardisation(offsets, self.mean[columns], self.scale[columns], self.wide[columns], tuple(whiteners))

    def apply(self, products: Float64Array, sums: Float64Array, wide_sums: Float64Array) -> Float64Array:
        """Turn raw dot products into products with the standardised, whitened columns, in place.

        Parameters
        ----------
        products : (n_columns, m) float64
            ``A @ V``; overwritten.
        sums, wide_sums : (m,) float64
            Sum of each vector as the kernel saw it: rounded for the fast columns, in float64 for the wide ones.
        """
        self._standardise(products, sums, wide_sums)
        for group in self.whiteners:
            for vector in range(len(sums)):
                raw = products[group.columns, vector]
                white = np.zeros_like(raw)
                for inner in range(raw.shape[1]):
                    white += group.matrices[:, :, inner] * raw[:, inner : inner + 1]
                products[group.columns, vector] = white
        return products

    def _standardise(self, products: Float64Array, sums: Float64Array, wide_sums: Float64Array) -> None:
        """Subtract the share of the mean and scale, in place; elementwise, so that no bit depends on other products."""
        if native.extension and products.flags.c_contiguous:
            native.extension.standardise(products, self.mean, self.scale, self.wide, sums, wide_sums)
            return
        shift = np.multiply.outer(self.mean, sums)
        if self.wide.any():
            shift[self.wide] = np.multiply.outer(self.mean[self.wide], wide_sums)
        products -= shift
        products *= self.scale[:, None]

    def scores(self, gradients: Float64Array) -> Float64Array:
        """Return (n_features, m): the sum of squares over each feature's columns of ``gradients`` (n_columns, m)."""
        squares = gradients * gradients
        if not self.whiteners:
            return squares
        scores = squares[self.offsets[:-1]]
        for group in self.whiteners:
            total = squares[group.columns[:, 0]]
            for inner in range(1, group.columns.shape[1]):
                total = total + squares[group.columns[:, inner]]
            scores[group.features] = total
        return scores

    def fill(self, rows: AnyArray, index: IndexArray, out: AnyArray, factors: Float64Array | None = None) -> None:
        """Fill ``out`` with the standardised, whitened columns.

        Parameters
        ----------
        rows : (r, n_obs)
            Raw rows.
        index : (n_columns,) int64
            Which rows hold the columns of these features.
        out : (n_columns, n_obs) float64 or float32
        factors : (n_obs,) float64, optional
            Factor of each observation.
        """
        wide = out if out.dtype == np.float64 else np.empty(out.shape)
        if native.extension:
            native.extension.gather(rows, index, wide)
        else:
            wide[...] = rows[index]
        ones = np.ones(rows.shape[1])  # entries are products with unit vectors
        self._standardise(wide, ones, ones)
        if factors is not None:
            wide *= factors
        if wide is not out:
            out[...] = wide
        for group in self.whiteners:
            for columns, matrix in zip(group.columns, group.matrices, strict=True):
                out[columns] = matrix @ out[columns]

    def materialise(self, rows: AnyArray) -> Float64Array:
        """Return the standardised, whitened columns of ``rows`` (n_columns, n_obs): (n_obs, n_columns) float64, Fortran order."""
        dense = np.empty(rows.shape)
        self.fill(rows, np.arange(len(rows)), dense)
        return dense.T

    def coefficients(self, coef: Float64Array) -> tuple[Float64Array, float]:
        """Turn coefficients of standardised columns into original units.

        Returns
        -------
        (n_columns,) float64, float
            Coefficients, and their contribution to the intercept.
        """
        original = coef * self.scale
        for group in self.whiteners:
            for columns, matrix in zip(group.columns, group.matrices, strict=True):
                original[columns] = matrix.T @ coef[columns]
        return original, -float(original @ self.mean)
