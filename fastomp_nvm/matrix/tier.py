"""The certified int8 tier: a sweep over a quarter of the bytes that decides as the exact sweep would, bit for bit.

A tier keeps every *centred* column as int8 codes with a scale, ``a - mu = sigma c + error``. A sweep rounds each vector to int16,
``v = q d + rest``, and takes the integer products ``c . d`` exactly. Whatever the exact kernel *returns* for a column then lies in

    ``sigma q (c . d) + (mu - m) sum(v)   +-   e |v| + |sigma c| |rest| + gamma |a| |v| + roundings``

before it is multiplied by the column's scale, where ``e >= |error|``, ``m`` is the mean of the standardisation asked about (another
one under weights, 0 without standardisation) and ``gamma`` bounds the rounding of the kernel (``kernel_error``). A decision is
taken from these intervals where they do not contain the threshold; the other columns are read exactly. So the tier changes which
bytes are read and nothing else.

Every bound is rounded upwards: ``ROUNDING`` is far more than float64 loses in the few operations it covers. Where an argument below
does not hold (values near the ends of the floating-point range) the interval is unbounded and the column is read exactly.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastomp_nvm import native
from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray, UInt32Array
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.matrix.kernels import INT8_RESIDUAL_LIMIT
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.standardisation import Standardisation
from fastomp_nvm.matrix.traffic import Traffic

if TYPE_CHECKING:
    from fastomp_nvm.matrix.rows import Rows
    from fastomp_nvm.matrix.sweeper import Sweeper, Vectors

__all__ = [
    "Quantised",
    "RoundedVector",
    "Tier",
    "TierAccount",
    "TierErrors",
    "TierSidecar",
    "TierSweep",
    "kernel_error",
    "norm_bound",
    "quantise",
    "quantise_vectors",
    "worthwhile",
]

#: Largest code of a column: symmetric, so that -128 never occurs.
LARGEST_CODE = 127

#: Bound on the relative error of up to a hundred float64 additions and multiplications of numbers of one sign.
ROUNDING = 2.0**-45

#: Ranges of data and vectors in which products and norms of any length neither overflow nor underflow.
COLUMN_RANGE = (2.0**-400, 2.0**400)
VECTOR_RANGE = (2.0**-100, 2.0**100)

#: Norms of columns and of vectors up to which no product overflows, in float32 and in float64.
LARGEST_SIZE, LARGEST_LENGTH = 2.0**86, 2.0**40
LARGEST_SIZE_IN_FLOAT64, LARGEST_LENGTH_IN_FLOAT64 = 2.0**500, 2.0**500

#: Bytes of matrix from which sweeping the tier pays, for the algorithms that ask for decisions instead of every gradient: on a
#: device, and in memory. Below, forming intervals costs more than a sweep. In memory the columns that intervals leave open weigh
#: more, and SDS_OMP reads some in every pass: 1.0 to 1.4 times the exact matrix's time (measured from 100 to 800 MB), FAST_OMP 0.9
#: to 1.1 times at 200 MB and 0.7 to 1.0 from 400 MB on.
WORTHWHILE_BYTES = {"fast_omp": (32 << 20, 256 << 20), "sds_omp": (32 << 20, math.inf)}

#: Cost of a byte of gathered columns, in bytes of a sweep. In memory they are copied first (measured: 3 to 6), on a device little
#: but their bytes counts: 3 is between the two. The second value holds where the tier is in memory and the matrix is on a device.
PICKED_COST, PICKED_COST_APART = 3.0, 1.25

#: Queries that sweep the exact matrix after the tier did not pay; doubled each time it does not pay again.
FIRST_PAUSE = 4

#: Errors of codes, in standard deviations of products with noise, from which a run begins with the exact matrix, and columns
#: sampled for it. Gaussian columns have 2.5 with 60,000 observations, where the tier leaves nearly everything open (measured), and
#: 1.35 with 20,000, where a run larger than memory takes half of the time with it.
COARSE, _SAMPLED = 1.75, 1024

#: Entries quantised at a time: two float64 copies of them fit the second-level cache.
_BLOCK = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class TierSidecar:
    """The stored statistics of an int8 tier.

    Attributes
    ----------
    scale : (n_columns,) float64
        Column ``s`` of the matrix is about ``mean[s] + scale[s] * codes[s]``.
    error : (n_columns,) float64
        Upper bound of the norm of the remainder; infinite where the codes carry no information.
    norm : (n_columns,) float64
        Upper bound of the norm of ``scale[s] * codes[s]``.
    checksums : (n_blocks,) int64
        CRC-32 of the codes, per block of the matrix's grid.
    fingerprint : str
        Fingerprint of the exact matrix that was quantised.
    column_checksums : (n_columns,) uint32, optional
        CRC-32 of the codes, per column; stores of older releases have none.
    """

    scale: Float64Array
    error: Float64Array
    norm: Float64Array
    checksums: IndexArray
    fingerprint: str
    column_checksums: UInt32Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """The int8 tier of an opened store: read-only codes (n_columns, n_obs) and the bounds of each column.

    ``mean`` (n_columns,) is the mean that was subtracted from each column; the others are those of ``TierSidecar``.
    """

    codes: AnyArray | Rows
    mean: Float64Array
    scale: Float64Array
    error: Float64Array
    norm: Float64Array

    def errors(self, standardisation: Standardisation, *, single: bool, in_lanes: bool = False) -> TierErrors:
        """Return the bounds of products under ``standardisation``; ``single`` and ``in_lanes`` as in ``kernel_error``."""
        n_obs = self.codes.shape[1]
        scale, root = standardisation.scale, math.sqrt(n_obs)
        centre = root * np.abs(self.mean) * (1.0 + ROUNDING)
        size = self.norm + self.error + centre  # at least |a|
        gamma = kernel_error(n_obs, False, in_lanes=in_lanes)
        coarser = kernel_error(n_obs, True, in_lanes=in_lanes)
        kernel = size * (np.where(standardisation.wide, gamma, coarser) if single else gamma)
        # The sum of the vector, rounded in any order, times either mean; and the few operations that follow.
        kernel += centre * ((n_obs + 1) * 2.0**-53) + 4.0 * ROUNDING * (size + root * np.abs(standardisation.mean))
        largest = LARGEST_SIZE if single else LARGEST_SIZE_IN_FLOAT64
        known = (size < largest) & (np.abs(standardisation.mean) < COLUMN_RANGE[1]) & (np.abs(self.mean) < COLUMN_RANGE[1])
        with np.errstate(invalid="ignore"):
            codes = np.where(known, scale * self.error, np.inf) * (1.0 + ROUNDING)
        smallest = scale * (n_obs * (2.0**-126 if single else 2.0**-1022))
        return TierErrors(codes, scale * self.norm * (1.0 + ROUNDING), scale * kernel * (1.0 + ROUNDING), smallest)

    @property
    def coarse(self) -> bool:
        """True where most errors exceed ``COARSE`` times the spread of products with noise, ``|a| |v| / sqrt(n_obs)``.

        Scores of noise are then undecided, and most requests ask for more features than have a signal.
        """
        some = slice(None, None, max(len(self.error) // _SAMPLED, 1))
        return float(np.mean(self.error[some] * math.sqrt(self.codes.shape[1]) > COARSE * self.norm[some])) > 0.5


class TierErrors(NamedTuple):
    """Bounds (n_columns,) of the distance between the standardised product that the exact kernel returns and that of the tier.

    With a vector of which the int16 codes leave ``rest``, it is at most ``(codes + kernel) |vector| + norm |rest| + smallest``.

    Attributes
    ----------
    codes : (n_columns,) float64
        At least the norm of what the int8 codes leave of each standardised column; infinite where nothing is known.
    norm : (n_columns,) float64
        At least the norm of each column of codes.
    kernel : (n_columns,) float64
        Rounding of the kernel and of the operations on its products.
    smallest : (n_columns,) float64
        Products below the normal range are off by an absolute amount.
    """

    codes: Float64Array
    norm: Float64Array
    kernel: Float64Array
    smallest: Float64Array


class RoundedVector(NamedTuple):
    """A vector as the int8 sweep sees it.

    Attributes
    ----------
    swept, rest : (n_obs,) float64
        The vector as the exact sweep sees it, and what the int16 codes leave of it.
    drift : float
        Bound of the distance of ``swept`` from the vector in float64, with which some columns are swept.
    length, lost : float
        Bounds of the norms of the vector and of ``rest``, in either precision; infinite where the vector is out of range.
    """

    swept: Float64Array
    rest: Float64Array
    drift: float
    length: float
    lost: float

    @classmethod
    def of(cls, fast: AnyArray, wide: Float64Array, codes: AnyArray, scale: float) -> RoundedVector:
        """Return the vector whose values are ``wide``, ``fast`` in the precision of the sweep, ``codes`` as int16."""
        swept, kept = fast.astype(np.float64), codes * scale
        rest, drift = swept - kept, 0.0 if fast.dtype == np.float64 else norm_bound(wide - swept)
        length = norm_bound(swept) + drift
        lost = norm_bound(rest) + drift + ROUNDING * (length + norm_bound(kept))
        limit = LARGEST_LENGTH if fast.dtype == np.float32 else LARGEST_LENGTH_IN_FLOAT64
        if not ((scale > 0.0 or length == 0.0) and length < limit):
            length = lost = math.inf
        return cls(swept, rest, drift, length, lost)


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """Some columns as int8: ``codes`` (m, n_obs), and (m,) float64 ``scale``, ``error`` and ``norm`` as in ``TierSidecar``."""

    codes: AnyArray
    scale: Float64Array
    error: Float64Array
    norm: Float64Array


def worthwhile(matrix: Rows, algorithm: str, *, resident: bool) -> bool:
    """Tell whether an algorithm is expected to be faster with the tier of ``matrix``, which is ``resident`` in memory or not."""
    on_device, in_memory = WORTHWHILE_BYTES.get(algorithm, (math.inf, math.inf))
    return matrix.nbytes >= (in_memory if resident else on_device)


def quantise(columns: AnyArray, statistics: ColumnStatistics, codes: AnyArray | None = None) -> Quantised:
    """Quantise centred columns.

    Parameters
    ----------
    columns : (m, n_obs) array
        Finite values.
    statistics : ColumnStatistics
        Their moments.
    codes : (m, n_obs) int8, optional
        Where to put the codes.

    Returns
    -------
    Quantised
        The error includes the rounding of this computation.
    """
    n_columns, n_obs = columns.shape
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.maximum(statistics.maximum - statistics.mean, statistics.mean - statistics.minimum)
    usable = (largest >= COLUMN_RANGE[0]) & (largest <= COLUMN_RANGE[1])
    scale = np.where(usable, largest / LARGEST_CODE, 0.0)
    inverse = np.where(usable, 1.0 / np.where(usable, scale, 1.0), 0.0)
    mean = np.where(usable, statistics.mean, 0.0)
    codes = np.empty((n_columns, n_obs), dtype=np.int8) if codes is None else codes
    size, rest = np.zeros(n_columns), np.zeros(n_columns)
    if native.extension and columns.dtype in (np.float32, np.float64) and columns.strides[1] == columns.itemsize:
        native.extension.quantise(columns, mean, inverse, codes, size, rest)
    else:
        _encode(columns, mean, inverse, codes, size, rest)
    # In units of the scale. An entry is off by 3 roundings of the centred value, hence all of them by 3 of the column's norm.
    norm, error = np.sqrt(size), np.sqrt(rest)
    error = scale * (error + ROUNDING * (norm + error)) * _summed(n_obs)
    error = np.where(usable | (largest == 0.0), error, np.inf)
    return Quantised(codes, scale, error, scale * norm * _summed(n_obs))


def _encode(
    columns: AnyArray, mean: Float64Array, inverse: Float64Array, codes: AnyArray, size: Float64Array, rest: Float64Array
) -> None:
    """Fill ``codes``, and add the squared norms of the codes and of what they leave to ``size`` and ``rest``."""
    n_columns, n_obs = columns.shape
    width = min(n_obs, _BLOCK)
    height = _BLOCK // width
    work = np.empty((2, _BLOCK))
    for top, first in itertools.product(range(0, n_columns, height), range(0, n_obs, width)):
        here = (slice(top, top + height), slice(first, first + width))
        values = columns[here]
        piece, rounded = (buffer[: values.size].reshape(values.shape) for buffer in work)
        piece[...] = values
        piece -= mean[here[0], None]
        piece *= inverse[here[0], None]
        np.rint(piece, out=rounded)  # at most the largest code: the quotient exceeds it by a few roundings, if at all
        codes[here] = rounded
        piece -= rounded
        size[here[0]] += np.einsum("ij,ij->i", rounded, rounded)
        rest[here[0]] += np.einsum("ij,ij->i", piece, piece)


def quantise_vectors(vectors: AnyArray) -> tuple[AnyArray, Float64Array]:
    """Return vectors (m, n_obs) as int16 codes for ``dots_int8`` and the scale (m,) of each; zero where they are out of range."""
    largest = np.abs(vectors).max(axis=1, initial=0.0).astype(np.float64)
    usable = (largest >= VECTOR_RANGE[0]) & (largest <= VECTOR_RANGE[1])
    scale = np.where(usable, largest / INT8_RESIDUAL_LIMIT, 0.0)
    inverse = np.where(usable, 1.0 / np.where(usable, scale, 1.0), 0.0)
    with np.errstate(invalid="ignore"):
        return np.rint(np.where(usable[:, None], vectors, 0.0) * inverse[:, None]).astype(np.int16), scale


def kernel_error(n_obs: int, single: bool, *, in_lanes: bool = False) -> float:
    """Return a bound of the rounding error of a kernel in ``a . v``, as a fraction of ``|a| |v|``.

    Every kernel forms products and adds them up in the precision of the vector within chunks of at most 1024 observations, in some
    order, and the chunks in float64. A term thus meets at most 1 + 1024 roundings of unit ``u`` and then, with the lanes of a
    chunk, at most 3 + ceil(n_obs / 512) of float64, so that the sum is off by at most
    ``((1 + u)^1025 (1 + u64)^(n_obs / 512 + 4) - 1) sum |a_i v_i|``, whatever the order (fused multiply-adds and lanes make it
    less), and ``sum |a_i v_i| <= |a| |v|``. The order of our kernels allows 132 in place of 1025: compiled ones add at most 128
    products to each lane and fold the lanes in float64, NumPy sums pairwise.

    Parameters
    ----------
    n_obs : int
    single : bool
        True where the vector is float32.
    in_lanes : bool
        Use the order of the kernels: where the errors of many products add up.
    """
    unit = 2.0**-24 if single else 2.0**-53
    exponent = (132 if in_lanes else 1025) * unit + (n_obs / 512 + 5) * 2.0**-53
    return math.expm1(exponent) * (1.0 + ROUNDING)


class TierSweep:
    """One sweep over a tier for several vectors, and the intervals it leaves.

    Parameters
    ----------
    sweeper : Sweeper
    tier : Tier
    vectors : Vectors
        Those of the exact sweep.
    """

    def __init__(self, sweeper: Sweeper, tier: Tier, vectors: Vectors) -> None:
        self._tier = tier
        self._vectors = vectors
        self._codes, self._scale = quantise_vectors(vectors.fast)
        self._dots = sweeper.dots_int8(tier.codes, self._codes)
        self._errors: tuple[Standardisation, TierErrors] | None = None  # of the standardisation last asked about

    def scores(self, place: int, standardisation: Standardisation) -> tuple[Float64Array, Float64Array]:
        """Return bounds (n_features,), below and above, of the scores that the exact sweep would find with the vector at ``place``.

        Parameters
        ----------
        place : int
        standardisation : Standardisation
            Of the whole matrix.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            centre, radius = self.products(place, standardisation)
            size = np.abs(centre)
            # Squares and sums round monotonically, so the ends of an interval are computed by the operations of a score.
            below = standardisation.scores(np.maximum(size - radius, 0.0)[:, None])[:, 0]
            above = standardisation.scores((size + radius)[:, None])[:, 0]
        open_ = ~(above < np.inf)
        below[open_], above[open_] = 0.0, np.inf
        return below, above

    def products(self, place: int, standardisation: Standardisation) -> tuple[Float64Array, Float64Array]:
        """Return centre and radius (n_columns,) of the interval that holds each standardised, whitened product.

        Where the radius is not finite, the product is unknown.
        """
        centre, radius = self.centres(place, standardisation), self._radius(place, standardisation)
        for group in standardisation.whiteners:
            white, around = np.zeros(group.columns.shape), np.zeros(group.columns.shape)
            inner, outer = centre[group.columns], radius[group.columns]
            reach = np.abs(inner) + outer
            for column in range(group.columns.shape[1]):
                weight = group.matrices[:, :, column]
                white += weight * inner[:, column : column + 1]
                # Each of d terms meets d + 1 roundings there and as many here.
                lost = (group.columns.shape[1] + 1) * ROUNDING * reach[:, column : column + 1]
                around += np.abs(weight) * (outer[:, column : column + 1] + lost)
            centre[group.columns], radius[group.columns] = white, around * (1.0 + ROUNDING)
        return centre, radius

    def centres(self, place: int, standardisation: Standardisation) -> Float64Array:
        """Return the centre (n_columns,) of each standardised product, not whitened."""
        tier, vectors = self._tier, self._vectors
        centre: Float64Array = self._dots[:, place] * (tier.scale * self._scale[place])
        shift = tier.mean - standardisation.mean
        if vectors.fast is vectors.wide or not standardisation.wide.any():
            centre += shift * vectors.sums[place]
        else:
            centre += shift * np.where(standardisation.wide, vectors.wide_sums[place], vectors.sums[place])
        centre *= standardisation.scale
        return centre

    def _radius(self, place: int, standardisation: Standardisation) -> Float64Array:
        """Return the largest distance of the standardised product of the kernel from the centre, not whitened."""
        vectors = self._vectors
        if self._errors is None or self._errors[0] is not standardisation:
            self._errors = standardisation, self._tier.errors(standardisation, single=vectors.fast.dtype == np.float32)
        errors = self._errors[1]
        vector = RoundedVector.of(vectors.fast[place], vectors.wide[place], self._codes[place], float(self._scale[place]))
        if vector.length == np.inf:
            return np.full(len(errors.codes), np.inf)
        radius = (errors.codes + errors.kernel) * vector.length
        radius += errors.norm * vector.lost
        radius += errors.smallest
        radius *= 1.0 + ROUNDING
        return radius


class TierAccount:
    """Decides whether the next query of a run sweeps the tier, from the bytes that earlier queries read, never from the clock.

    Where the remaining scores are similar, as those of noise, intervals decide almost nothing and most columns are read as well. A
    query over the tier that cost more than a sweep of the matrix is followed by some queries that sweep the matrix, then by another
    attempt.

    Parameters
    ----------
    matrix_bytes, tier_bytes : int
        Bytes of a full sweep of each.
    apart : bool
        True where the tier is in memory and the matrix is not: only bytes of the matrix count then.
    coarse : bool
        True where noise alone is below the errors of the codes (``Tier.coarse``): a run begins as if an attempt had failed.
    """

    def __init__(self, matrix_bytes: int, tier_bytes: int, *, apart: bool, coarse: bool = False) -> None:
        self._matrix_bytes = matrix_bytes
        self._tier_bytes = 0 if apart else tier_bytes
        self._picked_cost = PICKED_COST_APART if apart else PICKED_COST
        self._left, self._pause = (FIRST_PAUSE, 2 * FIRST_PAUSE) if coarse else (0, FIRST_PAUSE)
        self._tried = False
        self._failed = self._exact = 0  # queries that the tier did not pay for, and queries over the matrix

    @property
    def choice(self) -> Choice:
        """The tier, and how far it served so far."""
        if not self._tried:
            return Choice("exact", "the errors of the int8 codes exceed the scores of noise, and there were few passes")
        if not self._failed:
            return Choice("int8", "its intervals left little to read from the exact matrix")
        times = "once" if self._failed == 1 else f"{self._failed} times"
        return Choice("int8", f"its intervals decided too little {times}; {self._exact} passes went over the exact matrix instead")

    @property
    def pays(self) -> bool:
        """True when the next query sweeps the tier."""
        return self._left == 0

    def too_much(self, size: int) -> bool:
        """Tell whether gathering ``size`` bytes of columns costs more than a sweep of the matrix."""
        return self._picked_cost * size > self._matrix_bytes

    def settle(self, cost: Traffic) -> None:
        """Count the cost of a query, answered now or replayed."""
        if not cost.bytes_read_tier:
            self._left = max(self._left - 1, 0)
            self._exact += 1
            return
        self._tried = True
        if self._tier_bytes + self._picked_cost * (cost.bytes_read - cost.bytes_read_tier) > self._matrix_bytes:
            self._left, self._pause = self._pause, 2 * self._pause
            self._failed += 1
        else:
            self._pause = FIRST_PAUSE


def norm_bound(vector: Float64Array) -> float:
    """Return an upper bound of the Euclidean norm of ``vector``; infinity where an entry is not finite."""
    largest = float(np.abs(vector).max(initial=0.0))
    if largest == 0.0 or not largest < np.inf:
        return 0.0 if largest == 0.0 else math.inf
    scaled = vector / largest
    return largest * math.sqrt(float(scaled @ scaled)) * _summed(len(vector))


def _summed(count: int) -> float:
    """Return the factor that covers the rounding of a float64 sum of ``count`` squares and its root."""
    return 1.0 + ROUNDING + (count + 1) * 2.0**-52
