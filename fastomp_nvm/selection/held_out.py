"""Which observations are held out: a function of the seed and of how many there are, so that it can be drawn again anywhere."""

from __future__ import annotations

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array
from fastomp_nvm.errors import RequestError
from fastomp_nvm.random_keys import mix

__all__ = ["held_out_rows", "split_weights"]

#: First word of the draw: the same seed also draws permutations of features, which must have nothing to do with it.
_PURPOSE = 0x6865_6C64


def held_out_rows(n_obs: int, fraction: float, seed: int) -> BoolArray:
    """Draw the observations to hold out, at random and not stratified.

    Parameters
    ----------
    n_obs : int
    fraction : float in (0, 1)
        Their share; rounded to whole observations, at least one on either side.
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
    """Split observation weights, ones when left out, into those of training and those of the test, both (n_obs,)."""
    held_out = held_out_rows(n_obs, fraction, seed)
    every = np.ones(len(held_out)) if weights is None else weights
    training, test = np.where(held_out, 0.0, every), np.where(held_out, every, 0.0)
    if not (training.any() and test.any()):
        raise RequestError("every observation with weight fell on one side of the split: choose another seed or fraction")
    return training, test
