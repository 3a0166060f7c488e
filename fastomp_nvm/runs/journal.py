"""What makes a run durable: a journal of the decisions it was given.

Algorithms are deterministic generators in the answers to their queries. So nothing of their state need survive but what the
:class:`~fastomp_nvm.algorithms.protocol.Gradients` answered and what each answer cost: to resume, a fresh generator is run again
and given the recorded answers. Columns are gathered again and work in memory is repeated; no full pass is. Every algorithm is
durable this way, without a line of its own.

Invariants: one record, hence one ``persist``, per answered query. A record holds the query as far as it must be the same again (the
number of asks, a checksum of each vector and of each list of candidates), the decisions in the order they were asked for with
their arguments, and the cost. On replay every one of these is compared; a difference means that the record was made by other code
or from other data, and is an error, never an answer. The first record is the run's identity.

Decisions about a query are taken before the next query is asked: an answer is over once its round is.

A record is encoded and written between two sweeps, begins to be persisted then, and is waited for after the next sweep, before the
next record is written: a crash may cost the round before it as well, which is then swept again, and in exchange a slow device costs
no time.

Numbers are encoded in little-endian binary; nothing is ever unpickled. Knows neither media nor algorithms.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Protocol

import numpy as np

from fastomp_nvm.algorithms.protocol import Ask, Gradients, Query
from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import StoreError
from fastomp_nvm.matrix.checksum import crc32
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.runs.sealed import Json

__all__ = ["DecisionJournal", "RecordLog", "recorded_identity", "recorded_progress"]

_ROUND = struct.Struct("<QddII")  # selected, value, seconds, asks, decisions
_COST = struct.Struct(f"<{len(fields(Traffic))}q")  # the counts of a Traffic
_counts = attrgetter(*(field.name for field in fields(Traffic)))
_ASK = struct.Struct("<IQI")  # checksum of the vector; number and checksum of the candidates
_DECISION = struct.Struct("<BQIQ")  # kind, ask, bytes of argument, bytes of answer
_TOP_MEAN, _AT_LEAST, _ARGMAX, _OF = range(1, 5)
_NAMES = {_TOP_MEAN: "top_mean", _AT_LEAST: "at_least", _ARGMAX: "argmax", _OF: "of"}

#: Candidates that a round after the first looks at.
_STRETCH = 512

#: How far arguments may differ when a run goes on with another numeric build.
_OTHER_BUILD_TOLERANCE = 1e-6


class RecordLog(Protocol):
    """Where records are kept: see :class:`fastomp_nvm.runs.log.StateLog`."""

    records: list[bytes]

    def write(self, *records: bytes) -> None:
        """Write ``records`` behind those before."""
        ...

    def start(self) -> None:
        """Begin to make what was written durable, beside other work."""
        ...

    def persist(self) -> None:
        """Return once what was written is durable."""
        ...


def recorded_progress(records: Sequence[bytes], run: int = 0) -> Progress:
    """Return the progress of a run according to its records; ``run`` is its position among runs driven together.

    The records do not say how many features there can be: ``target`` is 0.
    """
    if len(records) < 2:
        return Progress(run, 0, 0, 0, 0.0, 0, 0.0)
    selected, value, seconds, _, _ = _ROUND.unpack_from(_long_enough(_ROUND, records[-1], 0))
    read = sum(_cost(record).bytes_read for record in records[1:])
    return Progress(run, len(records) - 1, selected, 0, value, read, seconds)


def recorded_identity(records: Sequence[bytes]) -> dict[str, Json]:
    """Return the identity of the run that left ``records``; empty when there are none.

    Raises ``StoreError`` when the first record is no identity.
    """
    if not records:
        return {}
    try:
        found = json.loads(records[0])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StoreError("the first record of this run is not its identity: it was not written by this program")
    return found


@dataclass(frozen=True, slots=True)
class _Decision:
    """One decision: what was asked of which answer, and what came back, encoded."""

    kind: int
    ask: int
    argument: bytes
    answer: bytes


class DecisionJournal:
    """The :class:`~fastomp_nvm.algorithms.protocol.Journal` over a log of records.

    Parameters
    ----------
    log : RecordLog
    identity : mapping
        What the record must have been made from (request, data, build), plain JSON; ``StoreError`` names the entry that differs.
    other_build : bool
        Accept a record made by another numeric build: bits of vectors may differ, the path may not.
    """

    def __init__(self, log: RecordLog, identity: Mapping[str, Json], *, other_build: bool = False) -> None:
        self._log = log
        self._identity: dict[str, Json] = json.loads(json.dumps(identity))
        self._other_build = other_build
        self._position = 0  # records replayed
        self.recorded = max(len(log.records) - 1, 0)  # rounds that earlier processes left
        self._asks = 0  # answers given out so far, over all rounds
        self._expected: list[_Decision] = []  # decisions of the round being replayed, the next one last
        self._query: Query | None = None
        self._traffic = Traffic()
        self._asked: list[bytes] = []  # each ask of the query, as far as it must be the same again
        self._noted: list[_Decision] = []
        self._spent = recorded_progress(log.records).seconds
        self._started = time.perf_counter()
        self._unconfirmed = False  # the last record was written and not yet waited for
        if log.records:
            self._check_identity(recorded_identity(log.records))

    @property
    def rounds(self) -> int:
        """Queries answered so far, replayed ones included."""
        return self._position

    @property
    def seconds_before(self) -> float:
        """What earlier processes spent on this run."""
        return self._spent

    def replay(self, query: Query, traffic: Traffic) -> Sequence[Gradients] | None:
        """Return the recorded answers to ``query``, adding what they cost to ``traffic``, or None beyond the record."""
        if self._expected:
            raise self._foreign(f"{_NAMES.get(self._expected[-1].kind)} was asked for and is not any more")
        if self._position + 1 >= len(self._log.records):
            return None
        self._position += 1
        record = self._log.records[self._position]
        self._log.records[self._position] = b""  # may be large, and is needed once
        first = self._asks
        cost = self._open_round(record, query)
        traffic.include(cost)
        self._asks += len(query.asks)
        return [_Remembered(self, first + place) for place in range(len(query.asks))]

    def record(self, query: Query, answers: Sequence[Gradients], traffic: Traffic) -> Sequence[Gradients]:
        """Return ``answers`` such that every decision taken from them is noted; ``traffic`` is what they cost."""
        if self._expected:
            raise self._foreign(f"{_NAMES.get(self._expected[-1].kind)} was asked for and is not any more")
        self._query, self._traffic, self._noted = query, traffic, []
        # Now: a model may update its residual in place, and what the answers were taken from is still in the processor's cache.
        self._asked = [_ASK.pack(*_fingerprint(ask, self._position)) for ask in query.asks]
        noted = [_Noted(self, self._asks + place, answer) for place, answer in enumerate(answers)]
        self._asks += len(answers)
        return noted

    def commit(self) -> None:
        """Begin to make what was noted durable; return once the round before is."""
        assert self._query is not None, "commit follows record"
        seconds = self._spent + time.perf_counter() - self._started
        identity = [json.dumps(self._identity).encode("ascii")] if self._position == 0 else []
        record = _encode_round(self._query, self._asked, _counts(self._traffic), seconds, self._noted)
        self._confirm()
        self._log.write(*identity, record)
        self._unconfirmed = True
        self._log.start()
        self._query = None
        self._position += 1

    def close(self) -> None:
        """Return once everything committed is durable, or raise what prevented it."""
        self._confirm()

    def note(self, kind: int, ask: int, argument: bytes, answer: bytes) -> None:
        """Remember a decision for the record of this round."""
        if self._query is None or ask < self._asks - len(self._query.asks):
            raise StoreError(f"{_NAMES[kind]} was asked of an answer whose round is over: a durable run cannot repeat that")
        self._noted.append(_Decision(kind, ask, argument, answer))

    def recall(self, kind: int, ask: int, argument: bytes) -> bytes:
        """Return the recorded answer to the decision that must come next."""
        if not self._expected:
            raise self._foreign(f"{_NAMES[kind]} is asked for and was not")
        decision = self._expected.pop()
        if (decision.kind, decision.ask) != (kind, ask):
            raise self._foreign(f"{_NAMES[kind]} of ask {ask} stands where {_NAMES.get(decision.kind)} of ask {decision.ask} did")
        if decision.argument != argument and not (self._other_build and _close(kind, decision.argument, argument)):
            raise self._foreign(f"{_NAMES[kind]} is asked for with another argument")
        return decision.answer

    def _confirm(self) -> None:
        """Return once the last record is durable."""
        if self._unconfirmed:
            self._unconfirmed = False  # told once: nobody can do anything about it
            self._log.persist()

    def _open_round(self, record: bytes, query: Query) -> Traffic:
        """Compare a record with the query it must answer, lay its decisions out, and return its cost."""
        selected, _, _, asks, decisions = _ROUND.unpack_from(_long_enough(_ROUND, record, 0))
        cost = _cost(record)
        if (selected, asks) != (query.selected, len(query.asks)):
            raise self._foreign(f"{asks} models of {selected} features were asked about, now {len(query.asks)} of {query.selected}")
        position = _ROUND.size + _COST.size
        for ask in query.asks:
            vector, *candidates = _ASK.unpack_from(_long_enough(_ASK, record, position), position)
            position += _ASK.size
            vector_now, *candidates_now = _fingerprint(ask, self._position - 1)
            if candidates != candidates_now:
                raise self._foreign("the candidates are others")
            if vector != vector_now and not self._other_build:
                raise self._foreign("the residual has other bits")
        for _ in range(decisions):
            kind, number, *lengths = _DECISION.unpack_from(_long_enough(_DECISION, record, position), position)
            position += _DECISION.size
            middle, end = position + lengths[0], position + sum(lengths)
            if end > len(record):
                raise StoreError("a record of this run ends too early: it was not written by this program")
            self._expected.append(_Decision(kind, number, record[position:middle], record[middle:end]))
            position = end
        self._expected.reverse()
        return cost

    def _check_identity(self, found: Mapping[str, Json]) -> None:
        """Refuse a record made for something else, naming what differs."""
        for name in {**found, **self._identity}:
            if name == "build" and self._other_build:
                continue
            if found.get(name) != self._identity.get(name):
                before, after = found.get(name), self._identity.get(name)
                was, now = _shown(before, after), _shown(after, before)
                raise StoreError(f"the state of this run was made with {name} {was} and now meets {name} {now}: start a new run")

    def _foreign(self, difference: str) -> StoreError:
        """Return the error for a record that does not fit."""
        advice = "start a new run" if self._other_build else "resume it with the release that made it, or start a new run"
        return StoreError(f"the record of this run does not belong to this code: at round {self._position} {difference}; {advice}")


class _Noted(Gradients):
    """Answers of the medium, each decision noted."""

    def __init__(self, journal: DecisionJournal, ask: int, answers: Gradients) -> None:
        self._journal, self._ask, self._answers = journal, ask, answers

    def top_mean(self, count: int) -> float:
        """Return and note the mean of the ``count`` largest scores."""
        mean = self._answers.top_mean(count)
        self._journal.note(_TOP_MEAN, self._ask, struct.pack("<q", count), struct.pack("<d", mean))
        return mean

    def at_least(self, threshold: float) -> IndexArray:
        """Return and note the candidates whose score reaches ``threshold``."""
        found = self._answers.at_least(threshold)
        self._journal.note(_AT_LEAST, self._ask, struct.pack("<d", threshold), found.astype("<i8").tobytes())
        return found

    def argmax(self) -> int:
        """Return and note the candidate with the largest score."""
        best = self._answers.argmax()
        self._journal.note(_ARGMAX, self._ask, b"", struct.pack("<q", best))
        return best

    def of(self, features: IndexArray) -> Float64Array:
        """Return and note the gradient of the columns of ``features``."""
        gradient = self._answers.of(features)
        self._journal.note(_OF, self._ask, _named(features), gradient.astype("<f8").tobytes())
        return gradient


class _Remembered(Gradients):
    """Answers from the record."""

    def __init__(self, journal: DecisionJournal, ask: int) -> None:
        self._journal, self._ask = journal, ask

    def top_mean(self, count: int) -> float:
        """Return the recorded mean."""
        return float(_array(self._journal.recall(_TOP_MEAN, self._ask, struct.pack("<q", count)), "<f8", 1)[0])

    def at_least(self, threshold: float) -> IndexArray:
        """Return the recorded candidates."""
        return _array(self._journal.recall(_AT_LEAST, self._ask, struct.pack("<d", threshold)), "<i8")

    def argmax(self) -> int:
        """Return the recorded candidate."""
        return int(_array(self._journal.recall(_ARGMAX, self._ask, b""), "<i8", 1)[0])

    def of(self, features: IndexArray) -> Float64Array:
        """Return the recorded gradient."""
        return _array(self._journal.recall(_OF, self._ask, _named(features)), "<f8")


def _encode_round(
    query: Query, asked: Sequence[bytes], cost: Sequence[int], seconds: float, decisions: Sequence[_Decision]
) -> bytes:
    """Return the record of an answered query, whose asks are encoded already."""
    parts = [_ROUND.pack(query.selected, query.value, seconds, len(query.asks), len(decisions)), _COST.pack(*cost), *asked]
    for decision in decisions:
        parts.append(_DECISION.pack(decision.kind, decision.ask, len(decision.argument), len(decision.answer)))
        parts += [decision.argument, decision.answer]
    return b"".join(parts)


def _cost(record: bytes) -> Traffic:
    """Return the traffic of the round that a record holds."""
    return Traffic(*_COST.unpack_from(_long_enough(_COST, record, _ROUND.size), _ROUND.size))


def _long_enough(layout: struct.Struct, record: bytes, position: int) -> bytes:
    """Return ``record``; raise ``StoreError`` where it ends before ``layout`` at ``position`` does."""
    if position + layout.size > len(record):
        raise StoreError("a record of this run ends too early: it was not written by this program")
    return record


def _array(data: bytes, dtype: str, length: int | None = None) -> AnyArray:
    """Return a recorded array as one of this machine's, writable."""
    if len(data) % 8 or (length is not None and len(data) != 8 * length):
        raise StoreError(f"a recorded answer has {len(data)} bytes, which no answer of its kind has: the record is not ours")
    return np.frombuffer(data, dtype).astype(np.dtype(dtype).newbyteorder("="))


def _checksum(array: AnyArray) -> int:
    """Return the CRC-32 of the numbers of an array."""
    return crc32(np.ascontiguousarray(array).view(np.uint8).data)


def _fingerprint(ask: Ask, round_: int) -> tuple[int, int, int]:
    """Return the checksum of the vector, and the number and a checksum of the candidates.

    The first round looks at all of them, each later one at one stretch, another every time. All of them would be half the work of a
    record, and what becomes of them follows from constraint and decisions, which are compared as well.
    """
    candidates = ask.candidates
    if round_ and len(candidates) > _STRETCH:
        first = _STRETCH * (round_ % -(-len(candidates) // _STRETCH))
        candidates = candidates[first : first + _STRETCH]
    return _checksum(ask.vector), len(ask.candidates), _checksum(candidates)


def _named(features: IndexArray) -> bytes:
    """Encode which features were asked about: their number and checksum."""
    return struct.pack("<QI", len(features), _checksum(features))


def _close(kind: int, recorded: bytes, argument: bytes) -> bool:
    """Tell whether two arguments differ by no more than two numeric builds do."""
    if kind != _AT_LEAST or len(recorded) != 8:
        return False
    return math.isclose(*struct.unpack("<d", recorded), *struct.unpack("<d", argument), rel_tol=_OTHER_BUILD_TOLERANCE)


def _shown(value: Json, other: Json) -> str:
    """Return the part of ``value`` that ``other`` does not have, short enough for a sentence."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {key: part for key, part in value.items() if part != other.get(key, None)}
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
