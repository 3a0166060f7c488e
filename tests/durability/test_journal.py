"""The journal replays exactly the recorded answers, and raises an error for any other question."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from fastomp_nvm.algorithms.protocol import Ask, Gradients, Query
from fastomp_nvm.errors import MediumError, StoreError
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.runs.journal import DecisionJournal, recorded_progress
from tests.harness.memory_log import MemoryLog

pytestmark = pytest.mark.numerics

IDENTITY = {"request": {"k": 3}, "build": {"kernel": "a"}}


class Known(Gradients):
    """Gradients with known answers."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = np.array(values)

    def top_mean(self, count: int) -> float:
        return float(np.sort(self._values**2)[-count:].mean())

    def at_least(self, threshold: float) -> np.ndarray:
        return np.flatnonzero(self._values**2 >= threshold)

    def leaders(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        first = np.argsort(-(self._values**2), kind="stable")[:count]
        return first, self._values[first] ** 2

    def of(self, features: np.ndarray) -> np.ndarray:
        return self._values[features]

    def approximately(self, features: np.ndarray) -> tuple[np.ndarray, bool]:
        return self._values[features], True


def query(selected: int = 0, asks: int = 1, shift: float = 0.0, candidates: int = 4) -> Query:
    """Return a query about the first ``candidates`` features."""
    return Query(selected, 0.5, tuple(Ask(np.linspace(0, 1, 7) + place + shift, np.arange(candidates)) for place in range(asks)))


@contextlib.contextmanager
def opened(log: MemoryLog, identity: dict = IDENTITY, *, other_build: bool = False) -> Iterator[DecisionJournal]:
    """Open a journal for the time of a ``with``."""
    with contextlib.closing(DecisionJournal(log, identity, other_build=other_build)) as journal:
        yield journal


@pytest.fixture
def log() -> MemoryLog:
    """Return the records of two rounds, the second with three asks, answered out of order."""
    log = MemoryLog()
    with opened(log) as journal:
        (one,) = journal.record(query(), [Known([1, -3, 2, 0.5])], Traffic(1, 4, 100, 7))
        one.top_mean(2), one.at_least(1.0), one.of(np.array([3, 1]))
        journal.commit()
        several = journal.record(query(2, 3), [Known([place, 1, 1, 1]) for place in range(3)], Traffic(1, 4, 100))
        several[2].argmax(), several[0].argmax(), several[0].of(np.arange(4)), several[0].of(np.empty(0, dtype=np.int64))
        several[1].leaders(3)
        journal.commit()
    return log


def test_answers_and_costs_come_back(log: MemoryLog) -> None:
    """Every kind of decision is replayed bit for bit, in the order it was taken, and the cost with it."""
    traffic = Traffic()
    with opened(MemoryLog(log.records)) as journal:
        (one,) = journal.replay(query(), traffic)
        assert one.top_mean(2) == 6.5
        assert one.at_least(1.0).tolist() == [0, 1, 2]
        np.testing.assert_array_equal(one.of(np.array([3, 1])), [0.5, -3.0])
        assert traffic == Traffic(1, 4, 100, 7)
        several = journal.replay(query(2, 3), traffic)
        assert (several[2].argmax(), several[0].argmax()) == (0, 1)
        np.testing.assert_array_equal(several[0].of(np.arange(4)), [0, 1, 1, 1])
        assert several[0].of(np.empty(0, dtype=np.int64)).shape == (0,)
        assert [each.tolist() for each in several[1].leaders(3)] == [[0, 1, 2], [1.0, 1.0, 1.0]]
        assert journal.replay(query(4), traffic) is None
        assert traffic == Traffic(2, 8, 200, 7)


def test_where_a_run_stands(log: MemoryLog) -> None:
    """Rounds, features and value are read from the records alone."""
    assert recorded_progress([]).round == 0
    now = recorded_progress(log.records)
    assert (now.round, now.selected, now.value) == (2, 2, 0.5)
    assert now.seconds > 0


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (query(1), "0 features were asked about, now 1 of 1"),
        (query(0, 2), "now 2 of 0"),
        (query(candidates=3), "the candidates are others"),
        (query(shift=1e-12), "other bits"),
    ],
    ids=["selected", "asks", "candidates", "vector"],
)
def test_another_query_is_refused(log: MemoryLog, asked: Query, text: str) -> None:
    """A query that is not the recorded one gets an error, not its answer."""
    with opened(MemoryLog(log.records)) as journal, pytest.raises(StoreError, match=text):
        journal.replay(asked, Traffic())


@pytest.mark.parametrize("count", [1, 5, 512, 513, 5000])
def test_a_single_other_candidate_is_noticed(count: int) -> None:
    """Wherever one gives way to a neighbour or two trade places: in the first round at once, later as the rounds come by it."""
    rounds = 2 + count // 512
    candidates = np.arange(0, 3 * count, 3)
    log = MemoryLog()
    with opened(log) as journal:
        for _ in range(rounds):
            (one,) = journal.record(Query(0, 0.5, (Ask(np.ones(3), candidates),)), [Known([1.0])], Traffic())
            one.argmax()
            journal.commit()

    def replay(*given: np.ndarray) -> None:
        with opened(MemoryLog(log.records)) as journal:
            for each in given:
                answers = journal.replay(Query(0, 0.5, (Ask(np.ones(3), each),)), Traffic())
                assert answers is not None
                answers[0].argmax()

    rng = np.random.default_rng(count)
    for place in (0, count - 1, *rng.integers(0, count, 8)):
        other, traded = candidates.copy(), candidates.copy()
        other[place] += 1
        traded[[place, place - 1]] = candidates[[place - 1, place]]
        for changed in (other, traded) if count > 1 else (other,):
            with pytest.raises(StoreError, match="the candidates are others"):
                replay(changed)
            with pytest.raises(StoreError, match="the candidates are others"):
                replay(candidates, *(changed for _ in range(rounds - 1)))
    replay(*(candidates for _ in range(rounds)))


def test_another_decision_is_refused(log: MemoryLog) -> None:
    """Another call, another argument, one call too many and one too few are each an error that names the difference."""
    for call, text in (
        (lambda answer: answer.argmax(), "argmax of ask 0 is asked for in place of top_mean"),
        (lambda answer: answer.top_mean(3), "top_mean is asked for with another argument"),
    ):
        with opened(MemoryLog(log.records)) as journal:
            (one,) = journal.replay(query(), Traffic())
            with pytest.raises(StoreError, match=text):
                call(one)
    with opened(MemoryLog(log.records)) as journal:
        (one,) = journal.replay(query(), Traffic())
        one.top_mean(2)
        with pytest.raises(StoreError, match="at_least was asked for and is not any more"):
            journal.replay(query(2, 3), Traffic())
    with opened(MemoryLog(log.records)) as journal:
        (one,) = journal.replay(query(), Traffic())
        one.top_mean(2), one.at_least(1.0), one.of(np.array([3, 1]))
        with pytest.raises(StoreError, match="argmax is asked for and was not"):
            one.argmax()


def test_an_answer_is_over_with_its_round() -> None:
    """A decision asked of an earlier round's answer is an error at once, not on the day of a crash."""
    with opened(MemoryLog()) as journal:
        (one,) = journal.record(query(), [Known([1, 2, 3, 4])], Traffic())
        journal.commit()
        with pytest.raises(StoreError, match="after its round"):
            one.argmax()
        journal.record(query(1), [Known([1, 2, 3, 4])], Traffic())
        with pytest.raises(StoreError, match="after its round"):
            one.argmax()


def test_another_identity_is_refused(log: MemoryLog) -> None:
    """A record made for another request or build is refused by name; another build may be allowed."""
    with pytest.raises(StoreError, match=r'request \{"k": 3\} and now has request \{"k": 4\}'):
        DecisionJournal(MemoryLog(log.records), {**IDENTITY, "request": {"k": 4}})
    other = {**IDENTITY, "build": {"kernel": "b"}}
    with pytest.raises(StoreError, match="build"):
        DecisionJournal(MemoryLog(log.records), other)
    with opened(MemoryLog(log.records), other, other_build=True) as journal:
        (one,) = journal.replay(query(shift=1e-12), Traffic())
        one.top_mean(2)
        assert one.at_least(1.0 + 1e-12).tolist() == [0, 1, 2]
    with opened(MemoryLog(log.records), other, other_build=True) as journal, pytest.raises(StoreError, match="candidates"):
        journal.replay(query(candidates=3), Traffic())


def test_a_record_that_cannot_be_written_is_told_at_once() -> None:
    """A log that refuses a record ends the run with its reason."""

    class Full(MemoryLog):
        def write(self, *records: bytes) -> None:
            raise MediumError("cannot write: no space left on device")

    with opened(Full()) as journal:
        journal.record(query(), [Known([1, 2, 3, 4])], Traffic())
        with pytest.raises(MediumError, match="no space"):
            journal.commit()


def test_a_failed_persist_is_told() -> None:
    """An error that kept a record from being durable is raised at the next round, or at the end."""

    class Full(MemoryLog):
        def persist(self) -> None:
            raise MediumError("cannot write: no space left on device")

    journal = DecisionJournal(Full(), IDENTITY)
    journal.record(query(), [Known([1, 2, 3, 4])], Traffic())
    journal.commit()
    journal.record(query(1), [Known([1, 2, 3, 4])], Traffic())
    with pytest.raises(MediumError, match="no space"):
        journal.commit()
    journal.close()
    journal = DecisionJournal(Full(), IDENTITY)
    journal.record(query(), [Known([1, 2, 3, 4])], Traffic())
    journal.commit()
    with pytest.raises(MediumError, match="no space"):
        journal.close()
