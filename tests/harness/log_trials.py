"""Trials of the two-slot log under the power-cut simulator, and broken logs that the trials must detect.

The invariant: a log opened after a crash holds exactly the records of some state from the last acknowledged to the last attempted
one, and can be appended to. It is checked on every image of a life of several processes: some end by themselves, some are killed
between two steps with the power on, and the power may fail at any step, also while a successor recovers.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any
from unittest import mock

from fastomp_nvm.errors import FastompError
from fastomp_nvm.runs import log as checkpoint
from fastomp_nvm.runs.log import PAGE, StateLog
from storage_backends.testing.power_cut import Image, SimulatedPlace, SimulatedRegion, explore

__all__ = ["BROKEN_LOGS", "BrokenPromiseError", "cut_power"]

_NAME = "log"
_OURS, _THEIRS = b"o" * 16, b"t" * 16
_CAPACITY = 5 * PAGE  # three records, then the log must move
_MOST_KILLS = 3


class BrokenPromiseError(Exception):
    """A log lost an acknowledged state, invented one, or could not be opened."""


class _Killed(BaseException):
    """The process ended between two steps."""


def cut_power(seed: int, *, granule: int = 8, limit: int = 64, states: int = 6, depth: int = 1) -> int:
    """Run one random life of a log and check every image; return how many.

    Parameters
    ----------
    seed : int
        Determines records, kills, and whether the region belonged to another run before.
    granule : int
        Bytes that reach the medium together.
    limit : int
        Most images per step.
    states : int
        States appended.
    depth : int
        How often the power may fail again while a successor recovers.

    Returns
    -------
    int

    Raises
    ------
    BrokenPromiseError
        With the seed and the violation.
    """
    chance = random.Random(seed)
    records = [_record(chance) for _ in range(states + depth + 1)]
    image = _used_by_another(chance) if chance.random() < 0.5 else {}
    life = _Life(f"seed {seed}, granule {granule}", records)
    return life.run(SimulatedPlace(granule, image), states, chance, granule, limit, depth)


class _Life:
    """A log from its first state on, with its acknowledged and attempted states."""

    def __init__(self, label: str, records: list[bytes], acknowledged: int = 0) -> None:
        self._label, self._records = label, records
        self._acknowledged = self._attempted = acknowledged

    def run(self, place: SimulatedPlace, states: int, chance: random.Random, granule: int, limit: int, depth: int) -> int:
        """Append up to ``states`` states in several processes; check every image on the way."""
        deeper = 0

        def check(image: Image) -> None:
            nonlocal deeper
            after = SimulatedPlace(granule, image)
            log = self._open(after)
            if not self._acknowledged <= log.sequence <= self._attempted:
                raise self._broken(f"state {log.sequence} was found")
            if depth and chance.random() < 0.05:
                again = _Life(self._label, self._records, self._acknowledged)
                again._attempted = self._attempted
                deeper += again.run(
                    SimulatedPlace(granule, image), log.sequence + 1, chance, granule, max(limit // 8, 4), depth - 1
                )
            self._check_records(log)
            log.append(self._records[log.sequence])
            self._check_records(self._open(after))

        def work(place: SimulatedPlace) -> None:
            for _ in range(_MOST_KILLS):
                with contextlib.suppress(_Killed):
                    self._process(place, states, kill_after=chance.randrange(12))
            self._process(place, states, kill_after=None)

        return explore(place, work, check, limit, chance.randrange(2**32)) + deeper

    def _process(self, place: SimulatedPlace, states: int, kill_after: int | None) -> None:
        """Open the log and append; end without warning before step ``kill_after``, or at the end of the work."""
        cut, steps = place.before, 0

        def before(step: str) -> None:
            nonlocal steps
            cut(step)
            steps += 1
            if steps - 1 == kill_after:
                raise _Killed

        place.before = before
        try:
            log = self._open(place)
            self._check_records(log)
            self._acknowledged = max(self._acknowledged, log.sequence)  # from here on this process builds on it
            for state in range(log.sequence, states):
                self._attempted = state + 1
                log.append(self._records[state])
                self._acknowledged = state + 1
        finally:
            place.before = cut

    def _open(self, place: SimulatedPlace) -> StateLog:
        """Open the log."""
        try:
            return StateLog(place, _NAME, _OURS, _CAPACITY)
        except FastompError as error:
            raise self._broken(f"the log does not open ({error})") from error

    def _check_records(self, log: StateLog) -> None:
        """Compare the recovered records with the written ones."""
        if log.records != self._records[: log.sequence]:
            raise self._broken(f"state {log.sequence} has other records than were written")

    def _broken(self, found: str) -> BrokenPromiseError:
        """Return the error for an image that is not acceptable."""
        return BrokenPromiseError(f"{self._label}: {found}; acknowledged {self._acknowledged}, attempted {self._attempted}")


def _record(chance: random.Random) -> bytes:
    """Return a record: empty, short, or of several pages of which most is zeros, because every word that changes costs time."""
    middle = chance.choice((0, 0, 0, PAGE, 2 * PAGE))
    return chance.randbytes(chance.choice((0, 3, 40))) + bytes(middle) + chance.randbytes(chance.choice((0, 8, 24)))


def _used_by_another(chance: random.Random) -> dict[str, bytes]:
    """Return the regions that another run left under the same name."""
    place = SimulatedPlace()
    log = StateLog(place, _NAME, _THEIRS, _CAPACITY)
    for _ in range(chance.randrange(1, 9)):
        log.append(chance.randbytes(30))
    return next(place.images(1, chance))


def _patched(target: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Return a context that replaces an attribute."""
    return lambda: mock.patch.object(target, name, value)


@contextlib.contextmanager
def _late_persist() -> Iterator[None]:
    """Let ``persist`` return at once and do its work before the next write."""
    persist, write, owed = SimulatedRegion.persist, SimulatedRegion.write, []

    def late_persist(region: SimulatedRegion, offset: int, length: int) -> None:
        owed.append((region, offset, length))

    def paying_write(region: SimulatedRegion, offset: int, data: bytes) -> None:
        while owed:
            persist(*owed.pop())
        write(region, offset, data)

    with mock.patch.object(SimulatedRegion, "persist", late_persist), mock.patch.object(SimulatedRegion, "write", paying_write):
        yield


#: Defect -> a context in which logs have it.
BROKEN_LOGS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = MappingProxyType(
    {
        "CRC not checked": _patched(checkpoint, "_seal", lambda slot, checksum: 0),
        "body outside the CRC": _patched(checkpoint, "_seal", lambda slot, checksum: zlib.crc32(slot)),
        "length outside the CRC": _patched(checkpoint, "_seal", lambda slot, checksum: zlib.crc32(slot[:32] + slot[40:])),
        "slots not alternating": _patched(checkpoint, "_slot_of", lambda sequence: 0),
        "persist omitted": _patched(SimulatedRegion, "persist", lambda region, offset, length: None),
        "acknowledged before persist": _late_persist,
        "run id not checked": _patched(checkpoint, "_belongs", lambda owner, run_id: True),
        "recovered state not confirmed": _patched(StateLog, "_confirm", lambda log, last: None),
    }
)
