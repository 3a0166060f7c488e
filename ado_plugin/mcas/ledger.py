"""The ledger of a pool: its stores, runs and slots, one JSON object in a value of fixed size that is replaced as a whole.

The value has two halves, and the half with the higher sequence whose CRC matches holds the content; the other one is written next.
A process that is killed in the middle of a write leaves the content before it. Only the server's helper process writes, one call
at a time, so a change is atomic for all clients.

A *slot* is an int8 value that a client has created once. A run takes slots for its record, its journals and its answer, and gives
them back when it is forgotten, or recycled: a run without a name of the user's choice, ended, whose followers all have their
answer, or have not called for a long time.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import ServerError, StoreError
from fastomp_nvm.matrix.checksum import crc32
from fastomp_nvm.stores.contract import DurableRegion
from storage_backends.media.mcas import writable_bytes
from storage_backends.opened import ArrayRegion

__all__ = ["LEASE_SECONDS", "LEDGER", "LEDGER_BYTES", "Ledger", "RoomNeededError", "RunSlots"]

#: Key of the ledger, and the bytes of its value.
LEDGER = "fastomp/ledger"
LEDGER_BYTES = 1 << 20

#: Seconds after which a follower that does not call again counts as dead.
LEASE_SECONDS = 900.0

#: The same for a run that has not ended and has no name of the user's choice.
_ABANDONED_SECONDS = 86400.0

#: Ended runs that are kept although their slots could be recycled: they are listed, and answers can be asked for again.
_RETAINED = 4

_SMALLEST_SLOT = 16 << 10
_MOST_WASTED = 4  # a slot may be so many times as large as what is wanted, unless the pool is full
_MAGIC = b"FOLEDGER"
_HEAD = struct.Struct("<8sQQI")  # magic, sequence, bytes of the content, CRC-32 of both and of the content


class RoomNeededError(Exception):
    """Values are absent; the client has to create them, zero-filled: names and bytes in ``slots``."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        super().__init__(f"{len(slots)} values are needed")
        self.slots = dict(slots)


class Ledger:
    """The ledger, as one call sees and changes it.

    Parameters
    ----------
    load : callable
        Returns the value of a key, or raises ``BusyValueError``.
    pool : str
        Name of the pool, for errors.
    end_run : callable
        Called with name and entry of a run before its slots are given back: nothing may write into them any more.
    full : bool
        The pool has no room for further slots: recycle what can be recycled.

    Attributes
    ----------
    stores : dict
        Manifests of published stores, by key.
    unfinished : list of dict
        Manifests of stores whose values are being put, or are to be erased (``gone``), with key, host and folder.
    runs : dict
        Runs by name.
    slots : dict
        ``{size, run, region}`` by key; ``run`` is None for a free slot.
    """

    def __init__(
        self, load: Callable[[str], AnyArray], pool: str, end_run: Callable[[str, dict[str, Any]], None], *, full: bool = False
    ) -> None:
        self._load, self._end_run, self._full = load, end_run, full
        self.pool = pool
        self._bytes = writable_bytes(load(LEDGER))
        self._half = len(self._bytes) // 2
        self._sequence, content = 0, b"{}"
        damaged = 0
        for half in (0, 1):
            head, start = self._bytes[half * self._half :][: _HEAD.size].tobytes(), half * self._half + _HEAD.size
            magic, sequence, length, checksum = _HEAD.unpack(head)
            found = self._bytes[start : start + min(length, self._half - _HEAD.size)].tobytes()
            if magic != _MAGIC or _checksum(sequence, found) != checksum:
                damaged += any(head)
            elif sequence > self._sequence:
                self._sequence, content = sequence, found
        if damaged == 2:
            raise StoreError("the ledger of this pool is damaged: neither of its two states matches its checksum; use another pool")
        self._saved = content
        self._content: dict[str, Any] = {"stores": {}, "unfinished": [], "runs": {}, "slots": {}, "next": 0, **json.loads(content)}
        self.stores: dict[str, dict[str, Any]] = self._content["stores"]
        self.unfinished: list[dict[str, Any]] = self._content["unfinished"]
        self.runs: dict[str, dict[str, Any]] = self._content["runs"]
        self.slots: dict[str, dict[str, Any]] = self._content["slots"]

    def save(self) -> None:
        """Write the content if it has changed; it is complete or not there."""
        encoded = json.dumps(self._content, separators=(",", ":")).encode()
        if encoded == self._saved:
            return
        while len(encoded) > self._half - _HEAD.size:
            if not self._recycle(0):
                raise ServerError("the ledger of this pool is full: forget runs (fastomp forget NAME URL) or delete stores")
            encoded = json.dumps(self._content, separators=(",", ":")).encode()
        self._sequence, self._saved = self._sequence + 1, encoded
        start = (self._sequence & 1) * self._half
        region = ArrayRegion(LEDGER, self._bytes)
        region.write(start + _HEAD.size, encoded)
        region.write(start, _HEAD.pack(_MAGIC, self._sequence, len(encoded), _checksum(self._sequence, encoded)))

    def add(self, made: Mapping[str, int]) -> None:
        """Add slots that the client has created."""
        for name, size in made.items():
            if name != LEDGER and name not in self.slots:
                self._load(name)  # raises while it cannot be seen
                self.slots[name] = {"size": int(size), "run": None, "region": ""}

    def stock(self, sizes: Sequence[int]) -> None:
        """Ask for slots of these sizes unless there are some, or no room for them."""
        if not self.slots and not self._full:
            raise RoomNeededError({self._new_name(): size for size in sizes})

    def take(self, run: str, regions: Mapping[str, int]) -> None:
        """Give a run slots of at least the given sizes, by region; ``RoomNeededError`` for all that are missing, and takes none."""
        taken: dict[str, str] = {}
        missing: dict[str, int] = {}
        for region, size in regions.items():
            name = self._free(size, taken)
            if name is None:
                missing[self._new_name()] = max(_SMALLEST_SLOT, 1 << (size - 1).bit_length())
            else:
                taken[name] = region
        if missing:
            if self._full:
                raise self.full_error()
            raise RoomNeededError(missing)
        for name, region in taken.items():
            self.slots[name].update(run=run, region=region)

    def release(self, run: str, region: str | None = None) -> None:
        """Give the slots of a run back, or the one of a region."""
        for slot in self.slots.values():
            if slot["run"] == run and region in (None, slot["region"]):
                slot.update(run=None, region="")

    def forget(self, run: str) -> None:
        """Remove a run; the value of a long record is left to the next client."""
        self._end_run(run, self.runs[run])
        entry = self.runs.pop(run)
        self.release(run)
        if entry.get("input"):
            self.discard(entry["input"])

    def discard(self, key: str) -> None:
        """Note a value that some client has to erase."""
        self._content["garbage"] = [*self.garbage, *([] if key in self.garbage else [key])]

    def erased(self, keys: Sequence[str]) -> None:
        """Remove erased values from the list of those to erase."""
        self._content["garbage"] = [key for key in self.garbage if key not in keys]

    @property
    def garbage(self) -> list[str]:
        """Keys of values that some client has to erase."""
        found: list[str] = self._content.get("garbage", [])
        return found

    def trim(self) -> None:
        """Leave free slots, and those of runs that can be recycled, to be erased by a client."""
        while self._recycle(0):
            pass
        free = [name for name, slot in self.slots.items() if slot["run"] is None]
        for name in free:
            del self.slots[name]
            self.discard(name)

    def region(self, run: str, region: str) -> AnyArray | None:
        """Return the array of a region of a run, or None if it has none."""
        for name, slot in self.slots.items():
            if (slot["run"], slot["region"]) == (run, region):
                return self._load(name)
        return None

    def regions(self, run: str) -> Iterator[str]:
        """Yield the regions of a run."""
        yield from (slot["region"] for slot in self.slots.values() if slot["run"] == run)

    def full_error(self) -> ServerError:
        """Return the error for a pool without room."""
        of_runs = len(self._bytes) + sum(slot["size"] for slot in self.slots.values())
        of_stores = sum(each["stored"] for each in self.stores.values())
        return ServerError(
            f"the pool is full: {of_runs} bytes of runs, {of_stores} of stores; forget runs (fastomp forget NAME URL) or delete "
            "stores (fastomp delete URL)"
        )

    def _new_name(self) -> str:
        """Return the key of a slot that was never given to any client."""
        self._content["next"] += 1
        return f"fastomp/slot/{self._content['next']}"

    def _free(self, size: int, taken: Mapping[str, str]) -> str | None:
        """Return the smallest free slot of ``size`` bytes or more, after recycling a run where there are enough."""
        largest = 1 << 62 if self._full else _MOST_WASTED * max(size, _SMALLEST_SLOT)
        while True:
            fitting = [(slot["size"], name) for name, slot in self.slots.items() if slot["run"] is None and name not in taken]
            fitting = [each for each in fitting if size <= each[0] <= largest]
            if fitting:
                return min(fitting)[1]
            if not self._recycle(0 if self._full else _RETAINED):
                return None

    def _recycle(self, retained: int) -> bool:
        """Forget the oldest run that can be recycled, if there are more than ``retained``; return whether there was one."""
        now = time.time()
        idle = [name for name, entry in self.runs.items() if _is_recyclable(entry, now)]
        if len(idle) <= retained:
            return False
        self.forget(min(idle, key=lambda name: self.runs[name]["changed"]))
        return True


class RunSlots:
    """The regions of one run: slots, written in place.

    Parameters
    ----------
    ledger : Ledger
    run : str
    """

    def __init__(self, ledger: Ledger, run: str) -> None:
        self._ledger = ledger
        self._run = run

    def region(self, name: str, size: int = 0) -> DurableRegion:
        """Open a region; take a slot for it if it is absent and ``size`` is given."""
        array = self._ledger.region(self._run, name)
        if array is None:
            self._ledger.take(self._run, {name: size})
            self._ledger.save()  # before anything is written into it
            array = self._ledger.region(self._run, name)
            assert array is not None, "it was just taken"
            self._clear(name, array)
        elif array.nbytes < size:
            raise StoreError(f"region {name!r} has {array.nbytes} bytes and should have {size}: begin the run again")
        return ArrayRegion(name, writable_bytes(array))

    def regions(self) -> Sequence[str]:
        """Return the names of the regions."""
        return list(self._ledger.regions(self._run))

    def drop_region(self, name: str) -> None:
        """Give the slot of a region back."""
        self._ledger.release(self._run, name)
        self._ledger.save()

    def clear(self) -> None:
        """Clear all regions, which other runs may have written."""
        for name in self.regions():
            array = self._ledger.region(self._run, name)
            if array is not None:
                self._clear(name, array)

    @staticmethod
    def _clear(name: str, array: AnyArray) -> None:
        """Clear the pages that a log looks at."""
        ArrayRegion(name, writable_bytes(array)).write(0, bytes(min(array.nbytes, 2 * 4096)))


def _is_recyclable(entry: Mapping[str, Any], now: float) -> bool:
    """Return whether nobody needs a run any more."""
    if entry["named"]:
        return False
    if entry["state"] == "running":
        return bool(now - entry["changed"] > _ABANDONED_SECONDS)
    return all(now - since > LEASE_SECONDS for since in entry["waiting"].values())


def _checksum(sequence: int, content: bytes) -> int:
    """Return the CRC-32 of a state."""
    return crc32(content, crc32(_HEAD.pack(_MAGIC, sequence, len(content), 0)))
