"""Candidate sets on the wire: which features of a shard a question is about, in as few bytes as the set allows.

From round to round a set loses what was selected and what that blocks, and little else. So a shard keeps the set of each ask that
is in flight, in a slot, and is told what changes in it. The first time, or after it has forgotten, the change is one of all usable
features or of none, which it knows in any case. Features that change are listed, or one bit each, deflated, whichever is shorter:
never more than a bit per feature. A set is named by a digest, so that driver and shard cannot mean different ones.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.errors import StoreError

__all__ = [
    "NOTHING",
    "USABLE",
    "Bits",
    "CandidateSet",
    "ShardedCandidates",
    "Slot",
    "described",
    "digest",
    "features_of",
    "packed",
    "unpacked",
]

#: A bit per feature of a shard.
Bits = npt.NDArray[np.uint8]

#: Sets that every shard knows: no feature, and those usable under the view of the question.
NOTHING, USABLE = b"nothing", b"usable"

_LIST, _DEFLATED = b"l", b"b"


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """A set of a shard's features, by its name and, unless the shard is taken to have it, by how to make it.

    Attributes
    ----------
    slot : int
        Where the shard keeps it; what was there before goes.
    key : bytes
        Its digest.
    base : bytes
        ``NOTHING``, ``USABLE``, or the key of the set that is in the slot.
    change : bytes, optional
        Features that are in one of this set and ``base`` (see ``packed``).
    """

    slot: int
    key: bytes
    base: bytes = b""
    change: bytes | None = None


@dataclass(slots=True)
class Slot:
    """Where shards keep the candidates of an ask, and what each was given there last: its key and itself."""

    number: int
    held: dict[int, tuple[bytes, Bits]]


class ShardedCandidates:
    """The driver's view of the candidates of one ask.

    Parameters
    ----------
    slot : Slot
    sets, usable : sequence of Bits
        The candidates, and the usable features, of each shard.
    """

    def __init__(self, slot: Slot, sets: Sequence[Bits], usable: Sequence[Bits]) -> None:
        self._slot = slot
        self._sets = sets
        self._usable = usable
        self._keys = [digest(each) for each in sets]

    def told(self, shard: int, again: bool) -> CandidateSet:
        """Return what a shard is told: the name of what it has, or what changes; all of it ``again`` when it has forgotten."""
        number, members = self._slot.number, self._sets[shard]
        bases = {USABLE: self._usable[shard], NOTHING: np.zeros_like(members)}
        if not again and shard in self._slot.held:
            held, before = self._slot.held[shard]
            if held == self._keys[shard]:
                return CandidateSet(number, held)
            bases[held] = before
        return described(number, members, bases)

    def given(self, shard: int) -> None:
        """Take note that a shard has them now."""
        self._slot.held[shard] = self._keys[shard], self._sets[shard]


def features_of(bits: Bits, count: int) -> IndexArray:
    """Return the features in a set of ``count`` bits, ascending."""
    return np.flatnonzero(np.unpackbits(bits, count=count))


def digest(bits: Bits) -> bytes:
    """Return what names a set."""
    return hashlib.blake2b(bits.tobytes(), digest_size=16).digest()


def described(slot: int, bits: Bits, bases: Mapping[bytes, Bits]) -> CandidateSet:
    """Return ``bits`` as a change of the one of ``bases`` that is nearest."""
    changes = {name: bits ^ base for name, base in bases.items()}
    nearest = min(changes, key=lambda name: np.count_nonzero(np.unpackbits(changes[name])))
    return CandidateSet(slot, digest(bits), nearest, packed(changes[nearest]))


def packed(bits: Bits) -> bytes:
    """Return a set as bytes."""
    listed = _LIST + np.flatnonzero(np.unpackbits(bits)).astype(_kind(len(bits))).tobytes()
    if len(listed) <= 64:  # not worth looking for anything shorter
        return listed
    deflated = _DEFLATED + zlib.compress(bits.tobytes(), 1)
    return min(listed, deflated, key=len)


def unpacked(data: bytes, count: int) -> Bits:
    """Return the set of ``count`` features that ``packed`` was given."""
    form, rest = data[:1], data[1:]
    if form == _LIST:
        mask = np.zeros(count, dtype=np.bool_)
        mask[np.frombuffer(rest, _kind(-(-count // 8)))] = True
        return np.packbits(mask)
    if form == _DEFLATED:
        return np.frombuffer(zlib.decompress(rest), np.uint8)
    raise StoreError(f"a set of candidates begins with {form!r}: driver and shards run different releases; install the same one")


def _kind(size: int) -> str:
    """Return the type that numbers the features of a set of ``size`` bytes."""
    return "<u4" if size <= 1 << 29 else "<u8"
