"""Joint intervals: bounds of the exact gain of every feature along a sequence of directions, from products with a tier's codes.

The gain of a column over a set is ``g^2 / d`` with ``g = h_0 - sum c_i h_i`` and ``d = d_0 - sum h_i^2``, where ``h_0`` is its
product with the response, ``h_i`` that with the i-th direction of the set, and ``c_i`` the response's coordinate along it. Errors
of the ``h_i`` do not add up, because what the codes leave of a column is one vector ``e``: with the residual ``r`` and the matrix
``Q`` of directions

    ``g`` is off by at most ``|e| |r|``,    ``d`` by at most ``2 |h| w + w^2``,  ``w = |e| |Q|``

where ``|Q|``, the spectral norm, is 1 for orthonormal directions. The int16 codes of vectors leave one vector as well. Only what
the kernel rounds adds up. So an interval after a hundred directions is hardly wider than that of a sweep with the residual itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from fastomp_nvm.arrays import DType, Float64Array, IndexArray, RowIndex
from fastomp_nvm.matrix.sweeper import Vectors
from fastomp_nvm.matrix.tier import ROUNDING, RoundedVector, TierErrors, norm_bound, quantise_vectors

__all__ = ["JointGains", "JointPath", "Move"]

#: Columns whose bounds are formed at a time: a dozen arrays of them fit the second-level cache.
_BLOCK = 1 << 13

#: Smallest length of a vector whose products below the normal range are covered.
_SHORTEST = 2.0**-40


class Move(NamedTuple):
    """A vector that was swept.

    Attributes
    ----------
    vector : (n_obs,) float64
    coefficient : float
        The gradient moves by this many times its products, downwards.
    direction : bool
        True for a direction of the set, False for the residual that a path begins with.
    """

    vector: Float64Array
    coefficient: float
    direction: bool = True


class _Errors:
    """Errors of the vectors of a path so far, before they are multiplied with those of the columns."""

    def __init__(self) -> None:
        self.residual, self.rest = np.zeros(1), np.zeros(1)  # combinations of the vectors, and of what their codes leave
        self.drift = self.kernel = self.reach = self.squared_drift = self.squared_lost = self.squared_kernel = 0.0
        self.moves = 0

    def add(self, move: Move, dtype: DType, exact: bool) -> Float64Array | None:
        """Add a vector; return it as the sweep sees it, unless its products are ``exact``."""
        vectors = Vectors(move.vector[:, None], dtype)
        codes, scale = quantise_vectors(vectors.fast)
        vector, size = RoundedVector.of(vectors.fast[0], vectors.wide[0], codes[0], float(scale[0])), abs(move.coefficient)
        self.moves += 1
        self.reach += size * vector.length
        if exact:
            return None
        self.residual = self.residual - move.coefficient * vector.swept
        self.rest = self.rest - move.coefficient * vector.rest
        self.drift += size * vector.drift
        self.kernel += size * vector.length if vector.length >= _SHORTEST else math.inf
        if move.direction:
            self.squared_drift += vector.drift**2
            self.squared_lost += vector.lost**2
            self.squared_kernel += vector.length**2
        return vector.swept

    def factors(self) -> Float64Array:
        """Return (2, 3) factors of the errors of a column: of its codes, its norm and the kernel.

        They bound the error of its gradient and, times the spectral norm, that of all its products with directions together.
        """
        rounding = self.drift + 8.0 * ROUNDING * (1 + self.moves) * self.reach
        gradient = norm_bound(self.residual) + rounding, norm_bound(self.rest) + rounding, self.kernel
        products = math.sqrt(self.squared_drift), math.sqrt(self.squared_lost), math.sqrt(self.squared_kernel)
        return np.array((gradient, products)) * (1.0 + ROUNDING)


class JointGains:
    """Bounds of the gain of every feature, of one column each, over a set.

    Parameters
    ----------
    errors : TierErrors
        Of the columns.
    dtype : dtype
        Element type of the matrix.
    remainder, smallest : float
        ``d`` before any selection, and the largest that counts as nothing.
    share_out : callable
        Calls each of a sequence of tasks once; see ``Sweeper.share_out``.
    """

    def __init__(
        self,
        errors: TierErrors,
        dtype: DType,
        remainder: float,
        smallest: float,
        share_out: Callable[[Sequence[Callable[[], None]]], None],
    ) -> None:
        self.columns = np.stack((errors.codes, errors.norm, errors.kernel + errors.smallest / _SHORTEST))
        self.remainder, self.smallest, self.share_out = remainder, smallest, share_out
        self.gradient, self.squares = np.zeros(len(errors.codes)), np.zeros(len(errors.codes))
        self.moves: list[tuple[Move, bool]] = []  # to this set, and whether their products were exact
        self._dtype = dtype

    def along(self, moves: Sequence[Move], products: Sequence[tuple[Float64Array, bool]]) -> JointPath:
        """Return the path that begins here; ``products`` (n_columns,) of each vector, and whether they are exact."""
        following = [(move, exact) for move, (_, exact) in zip(moves, products, strict=True)]
        errors, factors = _Errors(), list[Float64Array]()
        directions = list[Float64Array]()
        for place, (move, exact) in enumerate((*self.moves, *following)):
            if place >= len(self.moves):
                factors.append(errors.factors())
            swept = errors.add(move, self._dtype, exact)
            if move.direction and swept is not None:
                directions.append(swept)
        factors.append(errors.factors())
        if directions:
            stacked = np.stack(directions)
            spectral = math.sqrt(max(float(np.linalg.eigvalsh(stacked @ stacked.T)[-1]), 0.0)) * (1.0 + 1e-9)
            for each in factors:
                each[1, 0] += spectral  # that of fewer directions is smaller
        return JointPath(self, following, [found for found, _ in products], factors)


class JointPath:
    """Bounds of gains along a path.

    Parameters
    ----------
    start : JointGains
    moves : sequence of (Move, bool)
        Vectors, and whether their products are exact.
    products : sequence of (n_columns,) float64
    factors : sequence of (2, 3) float64
        Those of the errors of columns, before each move and after the last.
    """

    def __init__(
        self,
        start: JointGains,
        moves: Sequence[tuple[Move, bool]],
        products: Sequence[Float64Array],
        factors: Sequence[Float64Array],
    ) -> None:
        self._start, self._moves, self._products, self._factors = start, moves, products, factors

    def radii(self, end: int) -> Float64Array:
        """Return (2, n_columns) after ``end`` moves: errors of the gradient, and of all products with directions together."""
        return np.asarray(self._factors[end] @ self._start.columns)

    def above(self, part: RowIndex, ends: Sequence[int]) -> Iterator[Float64Array]:
        """Yield upper bounds of the gains of the features in ``part`` after each of ``ends`` moves, ascending."""
        start, first = self._start, 0
        columns, gradient, squares = start.columns[:, part], start.gradient[part].copy(), start.squares[part].copy()
        for end in ends:
            self._move(gradient, squares, part, first, end)
            first = end
            with np.errstate(invalid="ignore", over="ignore"):
                reach, spread = self._factors[end] @ columns
                rounding = ROUNDING * (1 + len(start.moves) + end)
                around = (2.0 * np.sqrt(squares) + spread) * spread + rounding * (start.remainder + squares)
                remainder = start.remainder - squares
                reach += np.abs(gradient)
                reach *= reach
                reach /= np.maximum(remainder - around, start.smallest)
                reach *= 1.0 + ROUNDING
                reach[remainder + around <= start.smallest] = 0.0
            yield reach

    def reaching(self, ends: Sequence[int], thresholds: Sequence[float]) -> list[tuple[IndexArray, Float64Array]]:
        """Return, after each of ``ends`` moves, the features whose gain may reach a threshold, and upper bounds of their gains."""
        blocks = [slice(first, first + _BLOCK) for first in range(0, len(self._start.gradient), _BLOCK)]
        found: list[list[tuple[IndexArray, Float64Array]]] = [[] for _ in blocks]

        def search(place: int) -> None:
            for above, threshold in zip(self.above(blocks[place], ends), thresholds, strict=True):
                some = np.flatnonzero(~(above < threshold))
                found[place].append((some + blocks[place].start, above[some]))

        self._start.share_out([partial(search, place) for place in range(len(blocks))])
        parts = [list(zip(*step, strict=True)) for step in zip(*found, strict=True)]
        return [(np.concatenate(features), np.concatenate(above)) for features, above in parts]

    def advance(self, end: int) -> None:
        """Move the start to the set after ``end`` moves."""
        start = self._start

        def move(part: RowIndex) -> None:
            self._move(start.gradient[part], start.squares[part], part, 0, end)

        start.share_out([partial(move, slice(first, first + _BLOCK)) for first in range(0, len(start.gradient), _BLOCK)])
        start.moves += self._moves[:end]

    def _move(self, gradient: Float64Array, squares: Float64Array, part: RowIndex, first: int, end: int) -> None:
        """Apply some moves to the features in ``part``, in place."""
        for (move, _), products in zip(self._moves[first:end], self._products[first:end], strict=True):
            coordinates = products[part]
            gradient -= coordinates * move.coefficient
            if move.direction:
                squares += coordinates * coordinates
