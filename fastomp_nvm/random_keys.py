"""Stateless random numbers: a 64-bit key for any tuple of integers.

Draws must not depend on the version of NumPy, on shards, on the order of work or on draws before a crash, so there is no generator
state. The mixing function must never change, because stored runs are resumed with it (all arithmetic modulo 2^64)::

    finalise(z):        z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9
                        z ^= z >> 27;  z *= 0x94D049BB133111EB
                        z ^= z >> 31
    absorb(state, w) =  finalise((state ^ w) + 0x9E3779B97F4A7C15)
    mix(w1, ..., wn) =  absorb(... absorb(absorb(0, w1), w2) ..., wn)

``finalise`` is the output function of SplitMix64 (Steele, Lea and Flood 2014). Each step is a bijection of its word, so tuples that
differ only in the last word never collide: a permutation drawn by sorting these keys has no ties.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import IndexArray

__all__ = ["first_of", "mix"]

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_INCREMENT = 0x9E37_79B9_7F4A_7C15
_FIRST = 0xBF58_476D_1CE4_E5B9
_SECOND = 0x94D0_49BB_1331_11EB
_INCREMENT_64, _FIRST_64, _SECOND_64 = np.uint64(_INCREMENT), np.uint64(_FIRST), np.uint64(_SECOND)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def mix(words: tuple[int, ...], last: IndexArray) -> npt.NDArray[np.uint64]:
    """Return the keys of ``(*words, each)`` for each element of ``last``.

    Parameters
    ----------
    words : tuple of int
        Taken modulo 2^64.
    last : (c,) int64

    Returns
    -------
    (c,) uint64
    """
    state = 0
    for word in words:
        state = _absorb(state, word)
    mixed = last.astype(np.uint64)
    mixed ^= np.uint64(state)
    mixed += _INCREMENT_64
    mixed ^= mixed >> _SHIFTS[0]
    mixed *= _FIRST_64
    mixed ^= mixed >> _SHIFTS[1]
    mixed *= _SECOND_64
    mixed ^= mixed >> _SHIFTS[2]
    return mixed


def first_of(words: tuple[int, ...], last: IndexArray, count: int) -> IndexArray:
    """Return the positions in ``last`` (c,), whose entries differ, of the ``count`` smallest keys, in ascending order of key."""
    keys = mix(words, last)
    if count >= len(last):
        return np.asarray(keys.argsort())
    least = np.argpartition(keys, count)[:count]
    return np.asarray(least[keys[least].argsort()])


def _absorb(state: int, word: int) -> int:
    """Absorb one word into the state, in Python integers, because NumPy warns when a scalar overflows."""
    state = ((state ^ (word & _MASK)) + _INCREMENT) & _MASK
    state = ((state ^ (state >> 30)) * _FIRST) & _MASK
    state = ((state ^ (state >> 27)) * _SECOND) & _MASK
    return state ^ (state >> 31)
