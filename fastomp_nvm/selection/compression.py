"""Requests answered from Gram matrices: one pass over tall data in place of the sweeps of every run.

Taken for the linear objective where columns are few against observations and several selections share the pass: all k of a grid,
folds of a cross-validation, subsamples. Whether it is taken depends on sizes and requests, never on the clock. The data is then
compressed (:mod:`fastomp_nvm.matrix.gram`), once for each vector of observation weights, and the algorithms run on the compressed
data as they run on any other: same selection, same coefficients up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastomp_nvm.arrays import Float64Array, IndexArray
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import CancelledError
from fastomp_nvm.matrix.choice import Choice
from fastomp_nvm.matrix.memory import fillable_memory
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.random_keys import mix
from fastomp_nvm.selection.request import SelectionRequest
from fastomp_nvm.selection.response import resolve_response

if TYPE_CHECKING:
    from fastomp_nvm.matrix.gram import Compressed, Moments

__all__ = ["Compression", "Split", "compress", "passes_of"]

#: Observations per column, and entries of the matrix, below which data is not compressed: sweeps cost little there.
FEWEST_PER_COLUMN, FEWEST_ENTRIES = 8, 1 << 22

#: Columns of a Gram matrix per pass that it replaces. A pass multiplies an entry of the matrix with a vector at the speed of
#: memory, a Gram matrix with half of all columns at the speed of BLAS: at 3 columns per pass they take about the same time.
COLUMNS_PER_PASS = 2

#: Passes whose time moments under observation weights take (measured).
WEIGHTED_PASSES = 6

#: Most blocks of observations, and most memory of their Gram matrices and the compressed data.
MOST_BLOCKS, MOST_BYTES = 128, 1 << 30


class Split(NamedTuple):
    """A request and the observation weights (n_obs,) of its training and test observations; None: all alike, or no test."""

    request: SelectionRequest
    weights: Float64Array | None
    test: Float64Array | None


class Compression:
    """The data compressed under the weights of several requests.

    Attributes
    ----------
    choice : Choice
        That Gram matrices are used, and for what.
    """

    def __init__(self, choice: Choice, distinct: _Distinct, compressed: dict[int, Compressed], moments: dict[int, Moments]) -> None:
        self.choice = choice
        self._distinct = distinct
        self._compressed = compressed
        self._moments = moments

    def of(self, split: Split) -> Compressed:
        """Return the compressed training data of a request."""
        return self._compressed[self._distinct.number(split.weights)]

    def score(self, split: Split, columns: IndexArray, coef: Float64Array, intercept: float) -> float:
        """Return the score of a model in original units on the test observations of a request."""
        return self._moments[self._distinct.number(split.test)].score(columns, coef, intercept)


class _Distinct:
    """Observation weights numbered by their values; None is among them.

    Attributes
    ----------
    values : list of (n_obs,) float64 or None
        By number.
    """

    def __init__(self) -> None:
        self.values: list[Float64Array | None] = []
        self._numbers: dict[bytes, int] = {}
        self._known: dict[int, tuple[Float64Array | None, int]] = {}  # by identity: to look at the values once is enough

    def number(self, weights: Float64Array | None) -> int:
        """Return the number of ``weights``, a new one for new values."""
        if id(weights) not in self._known:
            number = self._numbers.setdefault(b"" if weights is None else weights.tobytes(), len(self.values))
            if number == len(self.values):
                self.values.append(weights)
            self._known[id(weights)] = weights, number
        return self._known[id(weights)][1]


def compress(
    dataset: Dataset,
    splits: Sequence[Split],
    y: object,
    sweeper: Sweeper,
    cancelled: Callable[[], bool] | None,
) -> Compression | Choice | None:
    """Return the compressed data of ``splits``; a choice against it where it is too ill conditioned; None: not worthwhile."""
    requests = [split.request for split in splits]
    n_columns, n_obs = dataset.matrix.shape
    if not (
        dataset.matrix.arrays
        and n_obs * n_columns >= FEWEST_ENTRIES
        and n_obs >= FEWEST_PER_COLUMN * n_columns
        and n_columns
        <= COLUMNS_PER_PASS
        * (passes := sum(passes_of(split.request, n_columns, weighted=split.weights is not None) for split in splits))
        and all(each.gram == "auto" and each.standardize and each.tier != "int8" for each in requests)
        and not any(each.beside or each.offset is not None for each in requests)
        and len({(each.objective, each.target) for each in requests}) == 1
    ):
        return None
    response = resolve_response(dataset, requests[0], y)
    if response.objective != "linear":
        return None
    distinct = _Distinct()
    trained = {distinct.number(split.weights) for split in splits}
    tested = {distinct.number(split.test) for split in splits if split.test is not None}
    if n_columns * (1.0 + len(trained) * n_columns / n_obs) > COLUMNS_PER_PASS * passes:  # factors cost as much as observations
        return None
    blocks = _blocks(n_obs, distinct.values)
    if blocks is None:
        return None
    from fastomp_nvm.matrix.gram import BlockGrams, IllConditionedError, gram_bytes  # needed for tall data alone

    needed = gram_bytes(n_columns, blocks.factors.shape[1], len(distinct.values))
    if needed > min(MOST_BYTES, fillable_memory() / 2):
        return None

    def look() -> None:
        if cancelled is not None and cancelled():
            raise CancelledError("the selection was cancelled")

    compressed: dict[int, Compressed] = {}
    moments: dict[int, Moments] = {}

    def derive(number: int, under: Callable[[], Moments]) -> None:
        look()
        known = under()
        if number in tested:
            moments[number] = known
        if number in trained:
            compressed[number] = grams.compress(known, dataset.offsets, distinct.values[number])

    try:
        grams = BlockGrams(dataset.matrix, dataset.statistics, response.values, blocks.weights, blocks.block_of, sweeper, look)
        sweeper.share_out(list(map(partial, repeat(derive), count(), grams.under(blocks.factors))))
    except IllConditionedError as error:
        return Choice("not used", f"{error}, so that products in float64 do not suffice")
    answers = f"{len(splits)} selection{'s' * (len(splits) > 1)}"
    reason = f"one pass over {n_obs:,} observations of {n_columns:,} columns for {answers}"
    return Compression(Choice("used", reason), distinct, compressed, moments)


class _Blocks(NamedTuple):
    """Observations in blocks on which several weights differ by a factor alone.

    Attributes
    ----------
    weights : (n_obs,) float64
    block_of : (n_obs,) int64
    factors : (m, blocks) float64
        Weights m over ``weights``, in each block.
    """

    weights: Float64Array
    block_of: IndexArray
    factors: Float64Array


def _blocks(n_obs: int, given: Sequence[Float64Array | None]) -> _Blocks | None:
    """Return the blocks for several observation weights; None where there are too many."""
    ones = np.ones(n_obs)
    all_weights = [ones if each is None else each for each in given]
    largest = np.maximum.reduce(all_weights)
    keys = mix((0x626C_6F63,), np.arange(len(all_weights)))
    patterns = np.zeros(n_obs, dtype=np.uint64)
    for key, each in zip(keys, all_weights, strict=True):
        patterns ^= np.where(each > 0.0, key, np.uint64(0))
    _, first, block_of = np.unique(patterns, return_index=True, return_inverse=True)
    if len(first) > MOST_BLOCKS:
        return None
    factors = np.stack([each[first] for each in all_weights]) / np.where(largest[first] > 0.0, largest[first], 1.0)
    block_of = block_of.reshape(-1).astype(np.int64)
    if not all(np.array_equal(each, largest * row[block_of]) for each, row in zip(all_weights, factors, strict=True)):
        return None
    return _Blocks(largest, block_of, factors)


def passes_of(request: SelectionRequest, n_columns: int, *, weighted: bool) -> int:
    """Return the number of passes whose time a request takes by sweeps, gathers and products of gathered columns included.

    SDS_OMP takes one for each feature that it selects, FAST_OMP and the others about half as many (measured).
    """
    k, algorithm = min(request.k or n_columns, n_columns), request.algorithm
    passes = {"sds_omp": k, "random": 0, "top_k": 2}.get(algorithm, 2 + k // 2)
    return passes + (WEIGHTED_PASSES if weighted else 0)
