"""Random folds and subsamples of the observations: functions of the seed, classes spread evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fastomp_nvm.arrays import BoolArray, IndexArray
from fastomp_nvm.errors import RequestError
from fastomp_nvm.random_keys import mix
from fastomp_nvm.selection.request import SelectionRequest, make_request
from fastomp_nvm.selection.response import Response

__all__ = ["checked_request", "draw_folds", "draw_subsample"]

#: First words of the random keys, which keep the draws independent of those of features under the same seed.
_FOLDS, _SUBSAMPLE = 0x666F_6C64, 0x7375_6273


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


def draw_subsample(fraction: float, request: SelectionRequest, response: Response, draw: int) -> BoolArray:
    """Return (n_obs,) bool, true for a random share ``fraction`` of the observations; ``draw`` numbers the subsamples."""
    n_obs = len(response.values)
    order = _shuffled((_SUBSAMPLE, int(request.seed), draw), response)
    inside = np.zeros(n_obs, dtype=np.bool_)
    inside[order] = np.diff(np.floor(np.arange(n_obs + 1) * fraction)) > 0  # evenly along the order, so from every class
    return inside


def _shuffled(words: tuple[int, ...], response: Response) -> IndexArray:
    """Return the observations in random order, class after class where there are classes."""
    keys = mix(words, np.arange(len(response.values)))
    return np.lexsort((keys, response.values)) if response.objective == "logistic" else np.argsort(keys)
