"""Random folds and subsamples of the observations: functions of the seed, classes spread evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fastomp_nvm.arrays import BoolArray, IndexArray
from fastomp_nvm.errors import RequestError
from fastomp_nvm.random_keys import mix
from fastomp_nvm.selection.request import SelectionRequest, make_request
from fastomp_nvm.selection.response import Response

__all__ = ["checked_request", "draw_blocks", "draw_folds", "draw_subsample"]

#: First words of the random keys, which keep the draws independent of those of features under the same seed.
_FOLDS, _SUBSAMPLE, _BLOCKS = 0x666F_6C64, 0x7375_6273, 0x626C_6F63

#: Blocks of observations that subsamples of many observations are made of: 60 has a half, thirds, quarters, fifths and tenths.
BLOCKS = 60

#: Observations per block from which on there are blocks: sizes of subsamples are then within a hundredth of their share.
BLOCK_SIZE = 100


def checked_request(request: Mapping[str, object]) -> SelectionRequest:
    """Return the request common to all folds or subsamples; its k has no meaning."""
    if request.get("test_fraction") is not None:
        raise RequestError("folds and subsamples hold observations out themselves: leave test_fraction out")
    return make_request({**request, "k": 1})


def draw_folds(folds: int | Sequence[int] | IndexArray, request: SelectionRequest, response: Response) -> IndexArray:
    """Return the fold of each observation, drawn if ``folds`` is a number, otherwise as given."""
    n_obs = len(response.values)
    if not isinstance(folds, (int, np.integer)):
        given = np.asarray(folds)
        if given.shape != (n_obs,) or given.dtype.kind not in "iu" or given.min() < 0 or given.max() < 1:
            raise RequestError(f"folds must be a whole number, or {n_obs} of them from 0, at least two different ones")
        return given.astype(np.int64)
    if isinstance(folds, bool) or not 2 <= folds <= n_obs:
        raise RequestError(f"folds is {folds!r}: expected a whole number from 2 to the {n_obs} observations")
    fold_of = np.empty(n_obs, dtype=np.int64)
    fold_of[_shuffled((_FOLDS, int(request.seed)), response)] = np.arange(n_obs) % folds
    return fold_of


def draw_blocks(fraction: float, request: SelectionRequest, response: Response) -> IndexArray:
    """Return the block of each observation, of which subsamples take all or none.

    From ``BLOCKS * BLOCK_SIZE`` observations on they are dealt into ``BLOCKS`` blocks at random, unless ``fraction`` is no share of
    so many blocks; otherwise each observation is its own block. A subsample of random blocks is a uniformly random one, as the
    bound of stability selection needs; that subsamples are unions of the same blocks lets them share sums over blocks.
    """
    n_obs, share = len(response.values), fraction * BLOCKS
    if n_obs < BLOCKS * BLOCK_SIZE or abs(share - round(share)) > 1e-9:
        return np.arange(n_obs)
    block_of = np.empty(n_obs, dtype=np.int64)
    block_of[_shuffled((_BLOCKS, int(request.seed)), response)] = np.arange(n_obs) % BLOCKS
    return block_of


def draw_subsample(fraction: float, request: SelectionRequest, response: Response, block_of: IndexArray, draw: int) -> BoolArray:
    """Return (n_obs,) bool, true for a random share ``fraction`` of the blocks; ``draw`` numbers the subsamples."""
    words, n_obs, blocks = (_SUBSAMPLE, int(request.seed), draw), len(block_of), int(block_of.max()) + 1
    inside = np.zeros(blocks, dtype=np.bool_)
    if blocks < n_obs:  # each holds every class in proportion
        inside[np.argsort(mix(words, np.arange(blocks)))[: round(fraction * blocks)]] = True
        return np.asarray(inside[block_of])
    inside[_shuffled(words, response)] = np.diff(np.floor(np.arange(n_obs + 1) * fraction)) > 0  # evenly, so from every class
    return inside


def _shuffled(words: tuple[int, ...], response: Response) -> IndexArray:
    """Return the observations in random order, class after class where there are classes."""
    keys = mix(words, np.arange(len(response.values)))
    return np.lexsort((keys, response.values)) if response.objective == "logistic" else np.argsort(keys)
