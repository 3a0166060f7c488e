"""The two-slot log: records that survive a crash at any instant, over nothing but ``write`` and ``persist``.

A *state* is a sequence of records, and states only grow. In a region

::

    page 0   slot 0      {magic, run id, sequence, length, format, CRC-32 over all of it and over the body}
    page 1   slot 1      the same
    page 2   body        the records, each {length, bytes, zeros up to the end of the page}

state ``n`` is the first ``length`` bytes of the body, checked by slot ``n & 1``. Appending writes the new records behind the old
ones, writes slot ``n & 1``, calls ``persist`` once and only then returns. Recovery takes the highest sequence whose CRC matches.

Why it is safe: the new state touches neither the pages of the state before it nor its slot. Whatever subset of the new words
reached the medium, in whatever order, either the new slot and body are complete, or the CRC fails and the previous state is still
there. A state that was acknowledged has been persisted, so it is complete.

Three traps: a recovered state may come from a cache that no ``persist`` ever confirmed, so recovery writes its last step again and
persists it before building on it or dropping an older region; after a failed ``persist`` the content of the medium is unknown, so
the log refuses further records and must be opened again; a region may have belonged to another run, so the run id must match too.

When the body outgrows the region, the state moves to a region of twice the size in the same single ``persist``; until that is
confirmed the old region holds the previous state. The bytes written per round are thus proportional to the new records. Knows
neither the content of the records nor the medium.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fastomp_nvm.errors import StoreError
from fastomp_nvm.matrix.checksum import crc32
from fastomp_nvm.stores.contract import DurableRegion

__all__ = ["FORMAT", "PAGE", "RegionPlace", "State", "StateLog", "drop_log", "read_state"]

#: Version of the bytes described above.
FORMAT = 1

#: Slots and records begin at multiples of this, so that no page of a confirmed state is ever written again.
PAGE = 4096

_MAGIC = b"FASTOMP\x01"
_SLOT = struct.Struct("<8s16sQQI")  # magic, run id, sequence, length of the body, format; the CRC-32 follows
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_BODY = 2 * PAGE
_MOST_STATES = 2**63  # a larger number was not written by this program

logger = logging.getLogger(__name__)


class RegionPlace(Protocol):
    """A place of named durable regions: a store, or a directory."""

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open the region ``name``; create it zero-filled with ``size`` bytes when it is absent."""
        ...

    def regions(self) -> Sequence[str]:
        """Names of the regions that exist."""
        ...

    def drop_region(self, name: str) -> None:
        """Remove a region."""
        ...


@dataclass(frozen=True, slots=True)
class State:
    """The state of one run in a region.

    Attributes
    ----------
    sequence : int
        Number of the state; 0 for none.
    length : int
        Bytes of its body.
    checksum : int
        CRC-32 of the body.
    records : list of bytes
    """

    sequence: int
    length: int
    checksum: int
    records: Sequence[bytes]


_NOTHING = State(0, 0, 0, ())


class StateLog:
    """The log of one run, open for appending.

    Parameters
    ----------
    place : RegionPlace
    name : str
        Regions are called ``name.0``, ``name.1``, ...: one per generation.
    run_id : (16,) bytes
    capacity : int
        Bytes of the first region.

    Attributes
    ----------
    sequence : int
        Number of the last state.
    """

    def __init__(self, place: RegionPlace, name: str, run_id: bytes, capacity: int = 64 * PAGE) -> None:
        self._place = place
        self._name = name
        self._run_id = run_id
        self._failed = False
        self._outgrown: DurableRegion | None = None  # holds the previous state until the new one is persisted
        self._generation, state = _latest(place, name, run_id)
        self.sequence, self._length, self._checksum = state.sequence, state.length, state.checksum
        self.records = list(state.records)
        if state.sequence:
            self._region = place.region(f"{name}.{self._generation}")
            self._confirm(len(_framed(self.records[-1])))
        # Only now may other generations be dropped: outgrown ones and unconfirmed moves. Without a state all are dropped: they may
        # have had another owner, and a fresh region has no history.
        for generation in _generations(place, name):
            if generation != self._generation or not state.sequence:
                place.drop_region(f"{name}.{generation}")
        if not state.sequence:
            self._region = place.region(f"{name}.{self._generation}", capacity)

    def append(self, *records: bytes) -> None:
        """Return once the state with ``records`` at its end is durable."""
        self.write(*records)
        self.persist()

    def write(self, *records: bytes) -> None:
        """Write the state with ``records`` at its end; it is durable once ``persist`` has returned, which any thread may call."""
        if self._failed:
            raise StoreError(f"the log {self._name!r} failed before, so its content is unknown: open it again")
        self._failed = True  # until the state is persisted
        new = b"".join(_framed(record) for record in records)
        self._outgrown = self._make_room(self._length + len(new))
        self._region.write(_BODY + self._length, new)
        self.sequence += 1
        self._length += len(new)
        self._checksum = crc32(new, self._checksum)
        self._write_slot()

    def start(self) -> None:
        """Begin to persist the written records in the background; ``persist`` must still be called."""
        self._region.start(*self._unconfirmed())

    def persist(self) -> None:
        """Return once the written records are durable."""
        self._region.persist(*self._unconfirmed())
        if self._outgrown is not None:
            self._outgrown.close()
            self._place.drop_region(f"{self._name}.{self._generation - 1}")
            self._outgrown = None
        self._failed = False

    def close(self) -> None:
        """Close the region."""
        self._region.close()

    def _confirm(self, last: int) -> None:
        """Write the last ``last`` bytes of the body and the slot again, as they are, and persist them."""
        start = _BODY + self._length - last
        self._region.write(start, self._region.read(start, last))
        self._write_slot()
        self.persist()

    def _unconfirmed(self) -> tuple[int, int]:
        """Return offset and length of the bytes from the slot of the current state to the end of its body."""
        first = PAGE * _slot_of(self.sequence)
        return first, _BODY + self._length - first

    def _write_slot(self) -> None:
        """Write the slot of the current state."""
        slot = _SLOT.pack(_MAGIC, self._run_id, self.sequence, self._length, FORMAT)
        self._region.write(PAGE * _slot_of(self.sequence), slot + _CRC.pack(_seal(slot, self._checksum)))

    def _make_room(self, length: int) -> DurableRegion | None:
        """Move to a larger region when a body of ``length`` bytes does not fit; return the old one, which stays valid."""
        if _BODY + length <= self._region.size:
            return None
        old = self._region
        self._generation += 1
        self._region = self._place.region(f"{self._name}.{self._generation}", max(2 * old.size, _BODY + length))
        self._region.write(_BODY, old.read(_BODY, self._length))
        return old


def read_state(place: RegionPlace, name: str, run_id: bytes) -> State:
    """Return the last state of a run without changing anything; safe while another process appends."""
    return _latest(place, name, run_id)[1]


def _latest(place: RegionPlace, name: str, run_id: bytes) -> tuple[int, State]:
    """Return the highest sound state of a run and the generation that holds it."""
    best, found = 0, _NOTHING
    for generation in _generations(place, name):
        region = place.region(f"{name}.{generation}")
        try:
            state = _recover(region, run_id, f"{name}.{generation}")
        finally:
            region.close()
        if state.sequence > found.sequence:
            best, found = generation, state
    return best, found


def _recover(region: DurableRegion, run_id: bytes, name: str) -> State:
    """Return the highest sound state of a run in one region."""
    if region.size < _BODY:
        raise StoreError(f"region {name!r} has {region.size} bytes, too few for a log: it was not written by this program")
    found, broken = _NOTHING, 0
    for slot in (0, 1):
        raw = region.read(PAGE * slot, _SLOT.size + _CRC.size)
        magic, owner, sequence, length, version = _SLOT.unpack_from(raw)
        if magic != _MAGIC or not _belongs(owner, run_id):
            broken += any(raw) and magic != _MAGIC
            continue
        if length > region.size - _BODY or _slot_of(sequence) != slot:
            broken += 1
            continue
        body = region.read(_BODY, length)
        checksum = crc32(body)
        if _seal(raw[: _SLOT.size], checksum) != _CRC.unpack_from(raw, _SLOT.size)[0]:
            broken += 1
            continue
        if version != FORMAT:
            raise StoreError(f"region {name!r} has format {version} and this release reads {FORMAT}: use the release that wrote it")
        if sequence > _MOST_STATES:
            raise StoreError(f"region {name!r} holds state {sequence}, more than any run has: it was not written by this program")
        if sequence > found.sequence:
            found = State(sequence, length, checksum, _records(body, name))
    if broken:
        logger.info("%s: %d of 2 slots do not match their checksum; continuing from state %d", name, broken, found.sequence)
    if broken == 2:
        # No crash does this: the second slot is written only after the first was confirmed.
        raise StoreError(f"region {name!r} is damaged: neither of its two states matches its checksum; start the run again")
    return found


def _belongs(owner: bytes, run_id: bytes) -> bool:
    """Return whether a slot was written by this run: a region may have had another owner."""
    return owner == run_id


def _slot_of(sequence: int) -> int:
    """Return the slot that describes a state: never the slot of the previous state."""
    return sequence & 1


def _seal(slot: bytes, checksum: int) -> int:
    """Return the CRC-32 over the fields of a slot and, through its ``checksum``, over the body."""
    return crc32(slot, checksum)


def _records(body: bytes, name: str) -> list[bytes]:
    """Split a body into its records."""
    if not body:
        raise StoreError(f"region {name!r} holds a state without records: it was not written by this program")
    records, position = [], 0
    while position < len(body):
        length = _LENGTH.unpack_from(body, position)[0] if position + _LENGTH.size <= len(body) else len(body)
        start = position + _LENGTH.size
        if start + length > len(body):
            raise StoreError(f"region {name!r} holds a record that ends outside it: it was not written by this program")
        records.append(body[start : start + length])
        position += -(-(_LENGTH.size + length) // PAGE) * PAGE
    return records


def _framed(record: bytes) -> bytes:
    """Return a record with its length before it and zeros up to the end of a page behind it."""
    framed = _LENGTH.pack(len(record)) + record
    return framed + bytes(-len(framed) % PAGE)


def drop_log(place: RegionPlace, name: str) -> None:
    """Remove every region of a log, which is closed."""
    for generation in _generations(place, name):
        place.drop_region(f"{name}.{generation}")


def _generations(place: RegionPlace, name: str) -> list[int]:
    """Return the generations of a log that exist, ascending."""
    numbers = (region[len(name) + 1 :] for region in place.regions() if region.startswith(f"{name}."))
    return sorted(int(number) for number in numbers if number.isdecimal())
