"""The observations held out for a test: a function of the seed and of their number, hence the same everywhere."""

from __future__ import annotations

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array
from fastomp_nvm.errors import RequestError
from fastomp_nvm.random_keys import mix

__all__ = ["held_out_rows", "split_weights"]

#: First word of the random keys, which keeps the draw independent of those of features under the same seed.
_PURPOSE = 0x6865_6C64


def held_out_rows(n_obs: int, fraction: float, seed: int) -> BoolArray:
    """Return the observations to hold out, drawn at random and not stratified.

    Parameters
    ----------
    n_obs : int
    fraction : float in (0, 1)
        Share to hold out, rounded to whole observations; at least one on either side.
    seed : int

    Returns
    -------
    (n_obs,) bool
        True where held out.
    """
    if n_obs < 2:
        raise RequestError(f"there is {n_obs} observation: holding some out needs at least 2")
    count = min(max(round(fraction * n_obs), 1), n_obs - 1)
    order = np.argsort(mix((_PURPOSE, seed), np.arange(n_obs)))  # keys are distinct: no ties to break
    held_out = np.zeros(n_obs, dtype=np.bool_)
    held_out[order[:count]] = True
    return held_out


def split_weights(n_obs: int, fraction: float, seed: int, weights: Float64Array | None = None) -> tuple[Float64Array, Float64Array]:
    """Return the observation weights (n_obs,) of training and of test, each zero on the other side; weights default to one."""
    held_out = held_out_rows(n_obs, fraction, seed)
    every = np.ones(len(held_out)) if weights is None else weights
    training, test = np.where(held_out, 0.0, every), np.where(held_out, every, 0.0)
    if not (training.any() and test.any()):
        raise RequestError("every observation with weight fell on one side of the split: choose another seed or fraction")
    return training, test
