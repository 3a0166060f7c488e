"""The journal of decisions that makes a run durable.

Algorithms are generators, deterministic in the answers to their queries. It is therefore enough to keep the answers of the
:class:`~fastomp_nvm.algorithms.protocol.Gradients` and the cost of each: to resume, a fresh generator is run and given the recorded
answers. Columns are gathered again and work in memory is repeated; no full pass is. Every algorithm is durable this way, without a
line of its own.

Invariants: one record, hence one ``persist``, per answered query. A record holds a fingerprint of the query (the number of asks, a
checksum of each vector and of each list of candidates), the decisions in the order they were asked for, with their arguments, and
the cost. On replay all of these are compared; a difference means that the record was made by other code or from other data, and is
an error, never an answer. The first record is the run's identity.

Decisions about a query are taken before the next query is asked: an answer is valid until the end of its round.

A record is encoded and written between two sweeps; flushing begins then and is waited for after the next sweep, before the next
record is written. A crash may therefore lose one more round, which is then swept again, but a slow device costs no time.

Numbers are encoded in little-endian binary; nothing is ever unpickled. Knows neither media nor algorithms.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from fastomp_nvm.algorithms.protocol import Ask, Gradients, Query
from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import StoreError
from fastomp_nvm.matrix.checksum import crc32
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.runs.log import StateLog
from fastomp_nvm.runs.sealed import Json

__all__ = ["DecisionJournal", "recorded_identity", "recorded_progress"]

_ROUND = struct.Struct("<QddII")  # selected, value, seconds, asks, decisions
_COST = struct.Struct(f"<{len(fields(Traffic))}q")  # the counts of a Traffic
_counts = attrgetter(*(field.name for field in fields(Traffic)))
_ASK = struct.Struct("<IQI")  # checksum of the vector; number and checksum of the candidates
_DECISION = struct.Struct("<BQIQ")  # kind, ask, bytes of argument, bytes of answer
_TOP_MEAN, _AT_LEAST, _ARGMAX, _OF, _LEADERS, _APPROXIMATELY = range(1, 7)
_NAMES = {
    _TOP_MEAN: "top_mean",
    _AT_LEAST: "at_least",
    _ARGMAX: "argmax",
    _OF: "of",
    _LEADERS: "leaders",
    _APPROXIMATELY: "approximately",
}

#: Candidates in the fingerprint of a round after the first.
_STRETCH = 512

#: Relative difference of arguments accepted when a run continues with another numeric build.
_OTHER_BUILD_TOLERANCE = 1e-6


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


#: One decision, encoded: its kind, the answer it was asked of, its argument and its result.
_Decision: TypeAlias = tuple[int, int, bytes, bytes]


class DecisionJournal:
    """The :class:`~fastomp_nvm.algorithms.protocol.Journal` over a log of records.

    Parameters
    ----------
    log : StateLog
    identity : mapping
        Request, data and build that the records must have been made from; ``StoreError`` names the entry that differs.
    other_build : bool
        Accept records of another numeric build: bits of vectors may differ, decisions may not.

    Attributes
    ----------
    rounds : int
        Queries answered so far, replayed ones included.
    recorded : int
        Rounds that earlier processes left.
    seconds_before : float
        Time that earlier processes spent on this run.
    """

    def __init__(self, log: StateLog, identity: Mapping[str, Json], *, other_build: bool = False) -> None:
        self._log = log
        self._identity: dict[str, Json] = json.loads(json.dumps(identity))
        self._other_build = other_build
        self.rounds = 0
        self.recorded = max(len(log.records) - 1, 0)
        self._asks = 0  # answers given out so far, over all rounds
        self._expected: list[_Decision] = []  # decisions of the round being replayed, the next one last
        self._query: Query | None = None
        self._traffic = Traffic()
        self._asked: list[bytes] = []  # fingerprints of the asks of the query
        self._noted: list[_Decision] = []
        self.seconds_before = recorded_progress(log.records).seconds
        self._started = time.perf_counter()
        self._unconfirmed = False  # the last record was written, and its ``persist`` not yet awaited
        if log.records:
            self._check_identity(recorded_identity(log.records))

    def replay(self, query: Query, traffic: Traffic) -> Sequence[Gradients] | None:
        """Return the recorded answers to ``query`` and add their cost to ``traffic``; None after the last record."""
        if self._expected:
            raise self._foreign(f"{_NAMES.get(self._expected[-1][0])} was asked for and is not any more")
        if self.rounds + 1 >= len(self._log.records):
            return None
        self.rounds += 1
        record = self._log.records[self.rounds]
        self._log.records[self.rounds] = b""  # may be large, and is not needed again
        first = self._asks
        cost = self._open_round(record, query)
        traffic.include(cost)
        self._asks += len(query.asks)
        return [_Remembered(self, first + place) for place in range(len(query.asks))]

    def record(self, query: Query, answers: Sequence[Gradients], traffic: Traffic) -> Sequence[Gradients]:
        """Return ``answers`` wrapped so that every decision is noted; ``traffic`` is their cost."""
        if self._expected:
            raise self._foreign(f"{_NAMES.get(self._expected[-1][0])} was asked for and is not any more")
        self._query, self._traffic, self._noted = query, traffic, []
        # Now: a model may update its residual in place, and the vectors are still in the processor's cache.
        self._asked = [_ASK.pack(*_fingerprint(ask, self.rounds)) for ask in query.asks]
        noted = [_Noted(self, self._asks + place, answer) for place, answer in enumerate(answers)]
        self._asks += len(answers)
        return noted

    def commit(self) -> None:
        """Begin to persist the noted decisions; return once the previous round is durable."""
        assert self._query is not None, "commit follows record"
        seconds = self.seconds_before + time.perf_counter() - self._started
        identity = [json.dumps(self._identity).encode("ascii")] if self.rounds == 0 else []
        record = _encode_round(self._query, self._asked, _counts(self._traffic), seconds, self._noted)
        self._confirm()
        self._log.write(*identity, record)
        self._unconfirmed = True
        self._log.start()
        self._query = None
        self.rounds += 1

    def close(self) -> None:
        """Return once everything committed is durable, or raise the error that prevented it."""
        self._confirm()

    def note(self, kind: int, ask: int, argument: bytes, answer: bytes) -> None:
        """Add a decision to the record of this round."""
        if self._query is None or ask < self._asks - len(self._query.asks):
            raise StoreError(f"{_NAMES[kind]} was asked of an answer after its round, which a durable run cannot replay")
        self._noted.append((kind, ask, argument, answer))

    def recall(self, kind: int, ask: int, argument: bytes) -> bytes:
        """Return the recorded result of the next decision, which must be this one."""
        if not self._expected:
            raise self._foreign(f"{_NAMES[kind]} is asked for and was not")
        was, asked, recorded, answer = self._expected.pop()
        if (was, asked) != (kind, ask):
            raise self._foreign(f"{_NAMES[kind]} of ask {ask} is asked for in place of {_NAMES.get(was)} of ask {asked}")
        if recorded != argument and not (self._other_build and _close(kind, recorded, argument)):
            raise self._foreign(f"{_NAMES[kind]} is asked for with another argument")
        return answer

    def _confirm(self) -> None:
        """Return once the last record is durable."""
        if self._unconfirmed:
            self._unconfirmed = False  # a failure is raised once
            self._log.persist()

    def _open_round(self, record: bytes, query: Query) -> Traffic:
        """Compare a record with its query, make its decisions available to ``recall``, and return its cost."""
        selected, _, _, asks, decisions = _ROUND.unpack_from(_long_enough(_ROUND, record, 0))
        cost = _cost(record)
        if (selected, asks) != (query.selected, len(query.asks)):
            raise self._foreign(f"{asks} models of {selected} features were asked about, now {len(query.asks)} of {query.selected}")
        position = _ROUND.size + _COST.size
        for ask in query.asks:
            vector, *candidates = _ASK.unpack_from(_long_enough(_ASK, record, position), position)
            position += _ASK.size
            vector_now, *candidates_now = _fingerprint(ask, self.rounds - 1)
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
            self._expected.append((kind, number, record[position:middle], record[middle:end]))
            position = end
        self._expected.reverse()
        return cost

    def _check_identity(self, found: Mapping[str, Json]) -> None:
        """Raise ``StoreError`` for a record of another identity, naming the entry that differs."""
        for name in {**found, **self._identity}:
            if name == "build" and self._other_build:
                continue
            if found.get(name) != self._identity.get(name):
                before, after = found.get(name), self._identity.get(name)
                was, now = _shown(before, after), _shown(after, before)
                raise StoreError(f"the state of this run was made with {name} {was} and now has {name} {now}: start a new run")

    def _foreign(self, difference: str) -> StoreError:
        """Return the error for a record that differs from the replay."""
        advice = "start a new run" if self._other_build else "resume it with the release that made it, or start a new run"
        return StoreError(f"the record of this run does not belong to this code: at round {self.rounds} {difference}; {advice}")


class _Noted(Gradients):
    """Answers computed now; every decision is noted in the journal."""

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

    def leaders(self, count: int) -> tuple[IndexArray, Float64Array]:
        """Return and note the candidates with the largest scores."""
        features, scores = self._answers.leaders(count)
        answer = features.astype("<i8").tobytes() + scores.astype("<f8").tobytes()
        self._journal.note(_LEADERS, self._ask, struct.pack("<q", count), answer)
        return features, scores

    def of(self, features: IndexArray) -> Float64Array:
        """Return and note the gradient of the columns of ``features``."""
        gradient = self._answers.of(features)
        self._journal.note(_OF, self._ask, _named(features), gradient.astype("<f8").tobytes())
        return gradient

    def approximately(self, features: IndexArray) -> tuple[Float64Array, bool]:
        """Return and note the approximate gradient of ``features``."""
        gradient, exact = self._answers.approximately(features)
        self._journal.note(_APPROXIMATELY, self._ask, _named(features), np.append(gradient, exact).astype("<f8").tobytes())
        return gradient, exact


class _Remembered(Gradients):
    """Answers from a record."""

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

    def leaders(self, count: int) -> tuple[IndexArray, Float64Array]:
        """Return the recorded candidates and their scores."""
        answer = self._journal.recall(_LEADERS, self._ask, struct.pack("<q", count))
        middle = len(answer) // 2
        return _array(answer[:middle], "<i8"), _array(answer[middle:], "<f8")

    def of(self, features: IndexArray) -> Float64Array:
        """Return the recorded gradient."""
        return _array(self._journal.recall(_OF, self._ask, _named(features)), "<f8")

    def approximately(self, features: IndexArray) -> tuple[Float64Array, bool]:
        """Return the recorded approximate gradient."""
        answer = _array(self._journal.recall(_APPROXIMATELY, self._ask, _named(features)), "<f8", len(features) + 1)
        return answer[:-1], bool(answer[-1])


def _encode_round(
    query: Query, asked: Sequence[bytes], cost: Sequence[int], seconds: float, decisions: Sequence[_Decision]
) -> bytes:
    """Return the record of an answered query; ``asked`` are its encoded asks."""
    parts = [_ROUND.pack(query.selected, query.value, seconds, len(query.asks), len(decisions)), _COST.pack(*cost), *asked]
    for kind, ask, argument, answer in decisions:
        parts += [_DECISION.pack(kind, ask, len(argument), len(answer)), argument, answer]
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
    """Return a recorded array in native byte order, writable."""
    if len(data) % 8 or (length is not None and len(data) != 8 * length):
        raise StoreError(f"a recorded answer has {len(data)} bytes, which no answer of its kind has: the record is damaged")
    return np.frombuffer(data, dtype).astype(np.dtype(dtype).newbyteorder("="))


def _checksum(array: AnyArray) -> int:
    """Return the CRC-32 of the numbers of an array."""
    return crc32(np.ascontiguousarray(array).view(np.uint8).data)


def _fingerprint(ask: Ask, round_: int) -> tuple[int, int, int]:
    """Return the checksum of the vector, and the number and a checksum of the candidates.

    The first round covers all candidates, each later one a different block of them: all would take half the time of a record, and
    the candidates follow from constraint and decisions, which are compared as well.
    """
    candidates = ask.candidates
    if round_ and len(candidates) > _STRETCH:
        first = _STRETCH * (round_ % -(-len(candidates) // _STRETCH))
        candidates = candidates[first : first + _STRETCH]
    return _checksum(ask.vector), len(ask.candidates), _checksum(candidates)


def _named(features: IndexArray) -> bytes:
    """Encode the features of a question: their number and checksum."""
    return struct.pack("<QI", len(features), _checksum(features))


def _close(kind: int, recorded: bytes, argument: bytes) -> bool:
    """Return whether two arguments may come from the same step on two numeric builds."""
    if kind != _AT_LEAST or len(recorded) != 8:
        return False
    return math.isclose(*struct.unpack("<d", recorded), *struct.unpack("<d", argument), rel_tol=_OTHER_BUILD_TOLERANCE)


def _shown(value: Json, other: Json) -> str:
    """Return the part of ``value`` that differs from ``other``, short enough for a sentence."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {key: part for key, part in value.items() if part != other.get(key, None)}
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
