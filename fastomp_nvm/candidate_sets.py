"""Candidate sets on the wire: which features of a shard a question is about, in as few bytes as the set allows.

Mostly the set is every usable feature of the shard but a few, so it is written relative to the usable ones, which the shard knows
too: nothing for all of them, the few left out, the few left in, or one bit each, deflated, whichever is shortest. No form takes
more than a bit per feature.
"""

from __future__ import annotations

import zlib

import numpy as np

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.errors import StoreError

__all__ = ["decode_candidates", "encode_candidates"]

_ALL, _WITHOUT, _ONLY, _BITS = b"a", b"w", b"o", b"b"


def encode_candidates(candidates: IndexArray, usable: IndexArray) -> bytes:
    """Return ``candidates`` as bytes.

    Parameters
    ----------
    candidates : (c,) int64
        Ascending, all of them in ``usable``.
    usable : (u,) int64
        Ascending.
    """
    if len(candidates) == len(usable):
        return _ALL
    places = np.searchsorted(usable, candidates)
    kind = np.dtype("<u4") if len(usable) <= 1 << 32 else np.dtype("<u8")
    lists = {_ONLY: len(candidates), _WITHOUT: len(usable) - len(candidates)}
    shortest = min(lists, key=lambda name: lists[name])
    if lists[shortest] * kind.itemsize <= 64:  # not worth looking for anything shorter
        return shortest + _listed(shortest, places, len(usable)).astype(kind).tobytes()
    mask = np.zeros(len(usable), dtype=np.bool_)
    mask[places] = True
    bits = zlib.compress(np.packbits(mask).tobytes(), 1)
    if len(bits) <= lists[shortest] * kind.itemsize:
        return _BITS + bits
    return shortest + _listed(shortest, places, len(usable)).astype(kind).tobytes()


def decode_candidates(data: bytes, usable: IndexArray) -> IndexArray:
    """Return the candidates that ``encode_candidates`` was given with the same ``usable``."""
    form, rest = data[:1], data[1:]
    if form == _ALL:
        return usable
    kind = np.dtype("<u4") if len(usable) <= 1 << 32 else np.dtype("<u8")
    if form == _ONLY:
        return np.asarray(usable[np.frombuffer(rest, kind).astype(np.int64)])
    if form == _WITHOUT:
        return np.delete(usable, np.frombuffer(rest, kind).astype(np.int64))
    if form == _BITS:
        mask = np.unpackbits(np.frombuffer(zlib.decompress(rest), np.uint8), count=len(usable))
        return np.asarray(usable[mask.astype(np.bool_)])
    raise StoreError(f"a set of candidates begins with {form!r}: driver and shards run different releases; install the same one")


def _listed(form: bytes, places: IndexArray, count: int) -> IndexArray:
    """Return the places to list: those in the set, or those out of it."""
    return places if form == _ONLY else np.delete(np.arange(count), places)
