"""``rndSeq`` of the paper's appendix (Algorithm A of Karp, Upfal and Wigderson 1988): a random sequence to a maximal set.

In each round the feasible candidates are permuted at random, the longest feasible prefix is taken, and candidates that became
infeasible are dropped; the expected number of rounds is O(sqrt(rank)). Randomness is stateless: a permutation is the order of
64-bit keys, so it is the same on any shard, after any crash and with any version of NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.random_keys import first_of, mix

if TYPE_CHECKING:
    from fastomp_nvm.constraints.base import Constraint

__all__ = ["RandomSequence", "keys", "permutation", "random_sequence"]

# Members of a permutation that are tried first: with groups, the first collision comes early.
_FIRST_LOOK = 128

_NOTHING = np.empty(0, dtype=np.int64)


def keys(seed: int, outer: int, inner: int, round_: int, features: IndexArray) -> npt.NDArray[np.uint64]:
    """Return the key of each feature, ``mix(seed, outer, inner, round_, feature)`` of :mod:`fastomp_nvm.random_keys`.

    Different features have different keys.

    Parameters
    ----------
    seed, outer, inner, round_ : int
        The run's seed, the iterations of FAST_OMP's two loops, the round of ``rndSeq``.
    features : (c,) int64

    Returns
    -------
    (c,) uint64
    """
    return mix((seed, outer, inner, round_), features)


def permutation(seed: int, outer: int, inner: int, round_: int, features: IndexArray) -> IndexArray:
    """Return ``features`` in the order of their keys, ties by index.

    Parameters
    ----------
    seed, outer, inner, round_ : int
    features : (c,) int64

    Returns
    -------
    (c,) int64
    """
    return features[np.lexsort((features, keys(seed, outer, inner, round_, features)))]


class RandomSequence:
    """A random sequence of candidates that extends ``selected`` until none is feasible, drawn lazily.

    Parameters
    ----------
    constraint : Constraint
    selected : (s,) int64
        Independent.
    candidates : (c,) int64
        Disjoint from ``selected``; infeasible ones are never drawn.
    seed, outer, inner : int
        Key of the draw.

    Attributes
    ----------
    rounds : int
        Iterations so far, each one round of independence queries.
    calls : int
        Independence queries so far as the paper counts them: per iteration one per prefix of the permutation and one per candidate
        left to filter. Far fewer are computed.
    places : (j,) int64
        Positions in ``candidates`` of the sequence so far.
    """

    def __init__(
        self, constraint: Constraint, selected: IndexArray, candidates: IndexArray, *, seed: int, outer: int, inner: int
    ) -> None:
        self.rounds = self.calls = 0
        self.places = _NOTHING
        self._constraint, self._name = constraint, (seed, outer, inner)
        self._union, self._candidates = selected, candidates
        self._left: IndexArray | None = None  # positions of candidates that may be feasible; None: all
        room = min(max(constraint.rank - len(selected), 0), len(candidates))
        # Length of the whole sequence, where every draw is feasible.
        self._length = room if 0 < room <= constraint.free(selected) else None

    @property
    def drawn(self) -> IndexArray:
        """(j,) int64: the sequence so far."""
        return self._candidates[self.places]

    def reach(self, length: int | None = None) -> bool:
        """Extend the sequence to ``length`` members (None: to the end); return whether any was added."""
        before = len(self.places)
        if self._length is not None:  # one round, drawn as far as needed
            self.rounds, self.calls = 1, 2 * len(self._candidates) - self._length
            wanted = self._length if length is None else min(length, self._length)
            if wanted > before:
                self.places = first_of((*self._name, 0), self._candidates, wanted)
            return wanted > before
        while length is None or len(self.places) < length:
            features = self._candidates if self._left is None else self._candidates[self._left]
            if self.rounds:
                full = len(self._union) >= self._constraint.rank  # no larger set is independent
                fitting = _NOTHING if full else np.flatnonzero(self._constraint.extensions(self._union, features))
                self._left = fitting if self._left is None else self._left[fitting]
                features = features[fitting]
            if not features.size:
                break
            prefix = _longest_prefix(self._constraint, self._union, features, (*self._name, self.rounds))
            self.rounds += 1
            self.calls += 2 * len(features) - len(prefix)
            self._union = np.concatenate((self._union, features[prefix]))
            more = prefix if self._left is None else self._left[prefix]
            self.places = np.concatenate((self.places, more)) if self.places.size else more
        return len(self.places) > before


def random_sequence(
    constraint: Constraint, selected: IndexArray, candidates: IndexArray, *, seed: int, outer: int, inner: int
) -> tuple[IndexArray, int, int]:
    """Draw a whole :class:`RandomSequence`; the parameters are the same.

    Returns
    -------
    sequence : (j,) int64
    rounds, calls : int
    """
    whole = RandomSequence(constraint, selected, candidates, seed=seed, outer=outer, inner=inner)
    whole.reach()
    return whole.drawn, whole.rounds, whole.calls


def _longest_prefix(constraint: Constraint, union: IndexArray, features: IndexArray, name: tuple[int, ...]) -> IndexArray:
    """Return positions in ``features``: the longest feasible prefix of the permutation with key ``name``.

    It is at most as long as the rank allows, and usually much shorter, so only the smallest keys are sorted.
    """
    most = min(max(constraint.rank - len(union), 0), len(features))
    look = min(_FIRST_LOOK, most)
    while True:
        permuted = first_of(name, features, look)
        taken = constraint.longest_prefix(union, features[permuted])
        if taken < look or look == most:
            return permuted[:taken]
        look = min(8 * look, most)
