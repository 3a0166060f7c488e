"""Fault models of the durability tests: regions whose power can be cut, and calls that fail on demand.

The model of a power cut: a region is an array of *granules* (8-byte words, 64-byte cache lines, or any other size), each of which
reaches the medium by itself, whole, at any moment between the write and the end of the next ``persist`` that covers it, in any
order relative to the others. After the cut each granule that was written since its last ``persist`` therefore holds one of
the values it had since then, independently of all others. Stores happen in ascending 8-byte words, so a line may also be caught
between two words. Creating and dropping a region are atomic and durable at once, as ``rename`` and ``unlink`` followed by ``fsync``
of the directory are. A crash that spares the power (SIGKILL) leaves every region as it was last written, unconfirmed.

``SimulatedPlace.images`` enumerates the images that a cut at this moment may leave: every combination while there are few, else the
extremes and a random sample. ``explore`` does so at every step of some work. The checker sees images only.

Modelled on PMDK's pmreorder and the crash layer of SQLite's tests, it wraps the region: the code under test contains nothing of it.
A device that ignores flushes is outside the model.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from fastomp_nvm.errors import StoreError, StoreURLError
from fastomp_nvm.stores.contract import DurableRegion
from storage_backends.opened import check_range

__all__ = ["Fault", "SimulatedPlace", "SimulatedRegion", "explore", "failing_calls"]

_WORD = 8

#: The regions after a crash: name to bytes.
Image = Mapping[str, bytes]


@dataclass(slots=True)
class _Memory:
    """One region: its current bytes, and the values of each unpersisted granule since its last ``persist``, oldest first."""

    current: bytearray
    pending: dict[int, list[bytes]] = field(default_factory=dict)


class SimulatedPlace:
    """Regions in memory whose power can be cut.

    Parameters
    ----------
    granule : int
        Bytes that reach the medium together.
    image : mapping of str to bytes, optional
        Regions after an earlier cut, all of them persisted.

    Attributes
    ----------
    before : callable
        Called with ``"write"``, ``"persist"``, ``"create"`` or ``"drop"`` before each step; may raise to stop the work there.
    """

    def __init__(self, granule: int = _WORD, image: Image | None = None) -> None:
        self._granule = granule
        self._memories = {name: _Memory(bytearray(content)) for name, content in (image or {}).items()}
        self.before: Callable[[str], None] = lambda step: None

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open the region ``name``; create it zero-filled with ``size`` bytes when it is absent."""
        if name not in self._memories:
            if not size:
                raise StoreURLError(f"there is no region {name!r}: give a size to create it")
            self.before("create")
            self._memories[name] = _Memory(bytearray(size + -size % _WORD))
        memory = self._memories[name]
        if size and len(memory.current) != size + -size % _WORD:
            raise StoreError(f"region {name!r} has {len(memory.current)} bytes and should have {size}")
        return SimulatedRegion(self, name, memory, self._granule)

    def regions(self) -> Sequence[str]:
        """Names of the regions that exist."""
        return tuple(sorted(self._memories))

    def drop_region(self, name: str) -> None:
        """Remove a region."""
        self.before("drop")
        del self._memories[name]

    def images(self, limit: int, chance: random.Random) -> Iterator[dict[str, bytes]]:
        """Yield the images that a power cut now may leave: all if they are at most ``limit``, else that many."""
        pending = [(name, place, values) for name, memory in self._memories.items() for place, values in memory.pending.items()]
        sizes = [len(values) for _, _, values in pending]
        for choice in _choices(sizes, limit, chance):
            image = {name: bytearray(memory.current) for name, memory in self._memories.items()}
            for (name, place, values), chosen in zip(pending, choice, strict=True):
                image[name][place : place + self._granule] = values[chosen]
            yield {name: bytes(content) for name, content in image.items()}


class SimulatedRegion(DurableRegion):
    """A region of a ``SimulatedPlace``."""

    def __init__(self, place: SimulatedPlace, name: str, memory: _Memory, granule: int) -> None:
        self._place, self._name, self._memory, self._granule = place, name, memory, granule

    @property
    def size(self) -> int:
        """Bytes in the region."""
        return len(self._memory.current)

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``, as last written."""
        check_range(self._name, self.size, offset, length)
        return bytes(self._memory.current[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        """Store ``data`` at ``offset``, word by word; not durable until ``persist``."""
        check_range(self._name, self.size, offset, len(data))
        self._place.before("write")
        current = self._memory.current
        first = offset - offset % _WORD
        words = bytearray(current[first : offset + len(data) + -(offset + len(data)) % _WORD])
        words[offset - first : offset - first + len(data)] = data
        before = np.frombuffer(current, np.uint64, len(words) // _WORD, first).copy()
        for place in np.flatnonzero(before != np.frombuffer(words, np.uint64)).tolist():  # the same value again makes no new image
            word = first + _WORD * place
            start = word - word % self._granule
            span = slice(start, start + self._granule)
            values = self._memory.pending.setdefault(start, [bytes(current[span])])
            current[word : word + _WORD] = words[_WORD * place : _WORD * (place + 1)]
            values.append(bytes(current[span]))

    def persist(self, offset: int, length: int) -> None:
        """Make every granule that overlaps the range durable."""
        check_range(self._name, self.size, offset, length)
        self._place.before("persist")
        for start in [start for start in self._memory.pending if start < offset + length and offset < start + self._granule]:
            del self._memory.pending[start]

    def close(self) -> None:
        """Close the region."""


def explore(
    place: SimulatedPlace, work: Callable[[SimulatedPlace], None], check: Callable[[Image], None], limit: int, seed: int
) -> int:
    """Run ``work`` on ``place`` and check every image that a power cut at any of its steps may leave.

    Parameters
    ----------
    place : SimulatedPlace
    work : callable
    check : callable
        Raises when an image is not acceptable at that step.
    limit : int
        Largest number of images per step.
    seed : int

    Returns
    -------
    int
        Images checked.
    """
    chance, count = random.Random(seed), 0

    def cut(step: str) -> None:
        nonlocal count
        for image in place.images(limit, chance):
            check(image)
            count += 1

    place.before = cut
    work(place)
    cut("end")
    place.before = lambda step: None
    return count


@dataclass(slots=True)
class Fault:
    """A call that fails.

    Attributes
    ----------
    nth : int
        Its number, counted from 1 over all calls watched.
    code : int
        Its ``errno``.
    fired : bool
        True once it has failed.
    """

    nth: int
    code: int
    fired: bool = False
    _count: int = 0

    def strike(self) -> None:
        """Count a call; raise ``OSError`` at the ``nth``."""
        self._count += 1
        if self._count == self.nth:
            self.fired = True
            raise OSError(self.code, os.strerror(self.code))


@contextlib.contextmanager
def failing_calls(fault: Fault, *calls: tuple[Any, str]) -> Iterator[None]:
    """Make one call of the named functions, such as ``(os, "fsync")``, fail within a ``with``."""

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            fault.strike()
            return original(*arguments, **options)

        return call

    with contextlib.ExitStack() as patches:
        for owner, name in calls:
            patches.enter_context(mock.patch.object(owner, name, failing(getattr(owner, name))))
        yield


def _choices(sizes: Sequence[int], limit: int, chance: random.Random) -> Iterator[tuple[int, ...]]:
    """Yield one index below each size: all combinations when there are at most ``limit``, else the extremes and a sample."""
    if math.prod(sizes) <= limit:
        yield from itertools.product(*(range(size) for size in sizes))
        return
    nothing, everything = tuple(0 for _ in sizes), tuple(size - 1 for size in sizes)
    chosen = {nothing, everything}
    places = chance.sample(range(len(sizes)), min(len(sizes), limit // 4))
    for base, other in ((nothing, everything), (everything, nothing)):
        for place in places:  # one granule ahead of, or behind, all others
            chosen.add((*base[:place], other[place], *base[place + 1 :]))
    while len(chosen) < limit:
        share = chance.random()
        chosen.add(tuple(chance.randrange(size) if chance.random() < share else size - 1 for size in sizes))
    yield from sorted(chosen)[:limit]
