"""Compact encoding of candidate sets, the features of a shard that a question is about.

From round to round a set loses the selected features and those that they block, and little else. So a shard keeps the set of each
ask in flight, in a slot, and is sent only the change. The first time, and after a restart, the change is relative to all usable
features or to none, which every shard knows. Changed features are sent as a list or as a deflated bit mask, whichever is shorter:
never more than a bit per feature. A set is identified by a digest, so that driver and shard cannot disagree about it.
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

#: One bit per feature of a shard.
Bits = npt.NDArray[np.uint8]

#: Sets that every shard knows: no feature, and the features usable under the view of the question.
NOTHING, USABLE = b"nothing", b"usable"

_LIST, _DEFLATED = b"l", b"b"


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """A set of a shard's features: its key and, unless the shard is expected to hold it, the change that makes it.

    Attributes
    ----------
    slot : int
        Where the shard keeps it, in place of the set there before.
    key : bytes
        Its digest.
    base : bytes
        ``NOTHING``, ``USABLE``, or the key of the set in the slot.
    change : bytes, optional
        Features in exactly one of this set and ``base`` (see ``packed``).
    """

    slot: int
    key: bytes
    base: bytes = b""
    change: bytes | None = None


@dataclass(slots=True)
class Slot:
    """The slot in which shards keep the candidates of an ask, and the key and set that each shard was sent last."""

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

    def message(self, shard: int, again: bool) -> CandidateSet:
        """Return the message for a shard: the key of the set it holds, or a change; ``again``: it may have lost its sets."""
        number, members = self._slot.number, self._sets[shard]
        bases = {USABLE: self._usable[shard], NOTHING: np.zeros_like(members)}
        if not again and shard in self._slot.held:
            held, before = self._slot.held[shard]
            if held == self._keys[shard]:
                return CandidateSet(number, held)
            bases[held] = before
        return described(number, members, bases)

    def sent(self, shard: int) -> None:
        """Record that a shard holds the candidates now."""
        self._slot.held[shard] = self._keys[shard], self._sets[shard]


def features_of(bits: Bits, count: int) -> IndexArray:
    """Return the features in a set of ``count`` bits, ascending."""
    return np.flatnonzero(np.unpackbits(bits, count=count))


def digest(bits: Bits) -> bytes:
    """Return the key of a set."""
    return hashlib.blake2b(bits.tobytes(), digest_size=16).digest()


def described(slot: int, bits: Bits, bases: Mapping[bytes, Bits]) -> CandidateSet:
    """Return ``bits`` as a change of the nearest of ``bases``."""
    changes = {name: bits ^ base for name, base in bases.items()}
    nearest = min(changes, key=lambda name: np.count_nonzero(np.unpackbits(changes[name])))
    return CandidateSet(slot, digest(bits), nearest, packed(changes[nearest]))


def packed(bits: Bits) -> bytes:
    """Return a set as bytes."""
    listed = _LIST + np.flatnonzero(np.unpackbits(bits)).astype(_kind(len(bits))).tobytes()
    if len(listed) <= 64:  # short enough
        return listed
    deflated = _DEFLATED + zlib.compress(bits.tobytes(), 1)
    return min(listed, deflated, key=len)


def unpacked(data: bytes, count: int) -> Bits:
    """Return the set of ``count`` features encoded by ``packed``."""
    form, rest = data[:1], data[1:]
    if form == _LIST:
        mask = np.zeros(count, dtype=np.bool_)
        mask[np.frombuffer(rest, _kind(-(-count // 8)))] = True
        return np.packbits(mask)
    if form == _DEFLATED:
        return np.frombuffer(zlib.decompress(rest), np.uint8)
    raise StoreError(f"a set of candidates begins with {form!r}: driver and shards run different releases; install the same one")


def _kind(size: int) -> str:
    """Return the integer type for feature numbers in a set of ``size`` bytes."""
    return "<u4" if size <= 1 << 29 else "<u8"
