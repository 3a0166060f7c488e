"""Random mutations of every file format: opening a mutated file raises one of our errors or gives a sound object.

A mutation flips bits, overwrites, cuts, grows or repeats parts, or replaces values in JSON. Half of the time checksums are made to
fit again, because a checksum detects accidental damage only and the code behind it must cope with any content.
"""

from __future__ import annotations

import contextlib
import json
import random
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastomp_nvm.algorithms.protocol import Ask, Query
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import FastompError
from fastomp_nvm.matrix.checksum import crc32
from fastomp_nvm.matrix.gradients import ExactGradients
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.runs import directory, drive
from fastomp_nvm.runs import log as checkpoint
from fastomp_nvm.runs.journal import DecisionJournal
from fastomp_nvm.runs.log import FORMAT, PAGE, StateLog
from fastomp_nvm.runs.registration import Registration
from fastomp_nvm.runs.sealed import seal
from fastomp_nvm.stores.open import create_store, open_store
from storage_backends.files import format as store_format
from storage_backends.testing.power_cut import SimulatedPlace
from tests.harness.memory_log import MemoryLog

__all__ = ["MutationTrials", "mutate", "mutate_json"]

_RUN = b"m" * 16

_VALUES: tuple[Any, ...] = (
    -1,
    0,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63),
    1e308,
    0.5,
    10**30,
    None,
    True,
    "",
    "x",
    [],
    {},
    [[]],
    "\0",
    "1" * 50,
)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return ``data`` with one to four random changes."""
    out = bytearray(data)
    for _ in range(chance.randrange(1, 5)):
        place, other = chance.randrange(len(out) + 1), chance.randrange(len(out) + 1)
        length = chance.choice((1, 1, 4, 8, 64, 4096))
        span = slice(place, place + length)
        change = chance.randrange(6)
        if change == 0 and place < len(out):
            out[place] ^= 1 << chance.randrange(8)
        elif change == 1:
            out[span] = chance.randbytes(len(out[span]))
        elif change == 2:
            del out[span]
        elif change == 3:
            out[place:place] = chance.randbytes(length)
        elif change == 4:
            out[span] = bytes(len(out[span]))
        else:
            out[span] = out[other : other + length]
    return bytes(out)


def mutate_json(content: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return a JSON object with one value, at any depth, replaced or removed."""
    changed: dict[str, Any] = json.loads(json.dumps(content))
    target = changed
    while True:
        key = chance.choice(sorted(target))
        inner = target[key]
        if isinstance(inner, dict) and inner and chance.random() < 0.7:
            target = inner
        elif chance.random() < 0.2:
            del target[key]
            return changed
        else:
            target[key] = chance.choice(_VALUES)
            return changed


class MutationTrials:
    """Mutates each kind of file in turn and opens it.

    Parameters
    ----------
    folder : Path
        For a store of its own; ``FASTOMP_HOME`` should be private too.
    seed : int
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self._store = folder / "mutated"
        values = np.random.default_rng(seed).normal(size=(12, 20))
        request: dict[str, Any] = {"weights": np.arange(1.0, 13.0), "constraint_file": folder / "constraint.yaml"}
        (folder / "constraint.yaml").write_text("knapsack: {costs: costs.csv, budget: 2}\n", encoding="ascii")
        with create_store(str(self._store), values, values[:, 0], groups={"g": [3, 4]}, replace=True) as store:
            self._dataset = Dataset.of_store(store)
            self._offsets = store.layout.offsets
            costs = "".join(f"{name},1\n" for name in store.names)
            (folder / "costs.csv").write_text(f"feature,cost\n{costs}", encoding="ascii")
            drive.start("mutated", store, **request)
        self._run = directory.existing("mutated")
        self._sound = {path: path.read_bytes() for path in (*self._store.iterdir(), *self._run.iterdir()) if path.is_file()}
        self._records = self._journalled()
        self.trials: Mapping[str, Callable[[], object]] = {
            "store header": self._header,
            "store sidecars": self._sidecar,
            "state slots": self._slots,
            "records": self._record,
            "registration": self._registration,
            "result": self._result,
        }

    def run(self, count: int) -> dict[str, tuple[int, int]]:
        """Open ``count`` mutated files; return, per kind, how many were tried and how many refused.

        Any exception that is not ours comes out.
        """
        tally = {kind: [0, 0] for kind in self.trials}
        for number in range(count):
            kind = list(self.trials)[number % len(self.trials)]
            tally[kind][0] += 1
            try:
                self.trials[kind]()
            except FastompError:
                tally[kind][1] += 1
        return {kind: (tried, refused) for kind, (tried, refused) in tally.items()}

    def close(self) -> None:
        """Remove the run."""
        drive.forget("mutated")

    def _header(self) -> None:
        """Open a store with a mutated header."""
        path = self._store / store_format.HEADER
        if self._chance.random() < 0.5:
            content = json.loads(self._sound[path])
            del content["crc32"]
            data = store_format._canonical(mutate_json(content, self._chance))
        else:
            data = mutate(self._sound[path], self._chance)
        self._open_with({path: data})

    def _sidecar(self) -> None:
        """Open a store with a mutated sidecar, whose checksum fits half of the time."""
        header = self._store / store_format.HEADER
        path = self._store / self._chance.choice((*store_format.SIDECARS, store_format.TIER_STATISTICS))
        changed = {path: mutate(self._sound[path], self._chance)}
        if self._chance.random() < 0.5:
            content = json.loads(self._sound[header])
            del content["crc32"]
            content["files"][path.name] = {"bytes": len(changed[path]), "crc32": zlib.crc32(changed[path])}
            changed[header] = store_format._canonical(content)
        self._open_with(changed)

    def _open_with(self, changed: Mapping[Path, bytes]) -> None:
        """Open the store with some of its files changed, then put them back."""
        try:
            for path, data in changed.items():
                path.write_bytes(data)
            open_store(str(self._store)).close()
        finally:
            for path in changed:
                path.write_bytes(self._sound[path])

    def _slots(self) -> None:
        """Open a log whose region was mutated and append to it; unless the checksum was made to fit, its records were written."""
        place = SimulatedPlace()
        log = StateLog(place, "log", _RUN, 5 * PAGE)
        written = [b"first", b"second" * 100]
        for record in written:
            log.append(record)
        data = bytearray(next(place.images(1, self._chance))["log.0"])
        if resealed := self._chance.random() < 0.5:
            self._reseal(data)
        else:
            data[:] = mutate(bytes(data), self._chance).ljust(len(data), b"\0")[: len(data)]
        opened = StateLog(SimulatedPlace(8, {"log.0": bytes(data)}), "log", _RUN, 5 * PAGE)
        if not resealed and opened.records not in ([], written[:1], written):
            raise AssertionError(f"a mutated region was taken for {opened.records!r}")
        opened.append(b"third")
        opened.append(b"fourth")

    def _reseal(self, data: bytearray) -> None:
        """Write any sequence, length and body into a region, with a checksum that fits."""
        sequence = self._chance.choice((0, 1, 2, 3, 2**63, 2**64 - 2, 2**64 - 1, self._chance.getrandbits(64)))
        length = self._chance.choice((0, 1, 8, 9, PAGE, 2 * PAGE, 3 * PAGE, self._chance.randrange(3 * PAGE + 1)))
        data[2 * PAGE :] = mutate(bytes(data[2 * PAGE :]), self._chance).ljust(3 * PAGE, b"\0")[: 3 * PAGE]
        slot = checkpoint._SLOT.pack(checkpoint._MAGIC, _RUN, sequence, length, self._chance.choice((FORMAT, FORMAT, FORMAT, 9)))
        fitting = checkpoint._seal(slot, crc32(bytes(data[2 * PAGE : 2 * PAGE + length])))
        place = PAGE * checkpoint._slot_of(sequence)
        data[place : place + len(slot) + 4] = slot + checkpoint._CRC.pack(fitting)

    def _query(self) -> Query:
        """Return a query about all features."""
        candidates = np.arange(len(self._offsets) - 1)
        return Query(0, 0.0, (Ask(np.linspace(-1, 1, self._dataset.n_obs), candidates),))

    def _journalled(self) -> list[bytes]:
        """Return the records of a round in which every kind of decision was taken."""
        log = MemoryLog()
        journal = DecisionJournal(log, {"kind": "mutated"})
        standardisation = self._dataset.design().standardisation
        query, products = self._query(), np.linspace(0, 1, int(self._offsets[-1]))
        exact = [ExactGradients(ask, products, standardisation) for ask in query.asks]
        _decide(journal.record(query, exact, Traffic(1, 2, 3)))
        journal.commit()
        journal.close()
        return log.records

    def _record(self) -> None:
        """Replay a journal with a mutated record."""
        records = list(self._records)
        place = self._chance.randrange(len(records))
        records[place] = mutate(records[place], self._chance)
        with contextlib.closing(DecisionJournal(MemoryLog(records), {"kind": "mutated"})) as journal:
            answers = journal.replay(self._query(), Traffic())
            if answers is not None:
                _decide(answers)

    def _registration(self) -> None:
        """Read a mutated registration and build its request."""
        data = self._sealed_or_raw(self._run / "run.json", "fastomp-run")
        Registration.from_bytes(data).selection_request(self._dataset)

    def _result(self) -> None:
        """Read a mutated result."""
        path = self._run / "result.json"
        try:
            path.write_bytes(self._sealed_or_raw(path, "fastomp-result"))
            drive.resume("mutated")
        finally:
            path.write_bytes(self._sound[path])

    def _sealed_or_raw(self, path: Path, kind: str) -> bytes:
        """Return a sealed file with raw changes, or with changed content sealed again."""
        if self._chance.random() < 0.5:
            return mutate(self._sound[path], self._chance)
        content = json.loads(json.loads(self._sound[path])["body"])
        changed = mutate_json(content, self._chance)
        return seal(kind, {key: value for key, value in changed.items() if key not in ("kind", "format")})


def _decide(answers: Any) -> None:
    """Take every kind of decision from each answer."""
    for answer in answers:
        answer.top_mean(3)
        answer.at_least(0.25)
        answer.argmax()
        answer.leaders(2)
        answer.of(np.array([2, 5]))
