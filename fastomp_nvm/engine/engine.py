"""Drives algorithms: merges the questions of all runs in flight into one sweep, answers them, reports and cancels.

The engine is the only consumer of the algorithms' generators. A run's counters are what it would have cost alone; the engine's
own traffic is what the merged sweeps really took from the medium. Because the kernel is row-invariant, a run's answer has the
same bits in company as alone; because the tier is certified, it has them with and without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fastomp_nvm.algorithms.protocol import Algorithm, Gradients, Journal, Outcome, Problem, Query, Round
from fastomp_nvm.arrays import AnyArray, BoolArray
from fastomp_nvm.engine.gradients import ExactGradients, ExactSweep, TierGradients
from fastomp_nvm.errors import CancelledError
from fastomp_nvm.matrix.remote_rows import RemoteRows
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.matrix.tier import Tier, TierAccount, TierSweep
from fastomp_nvm.matrix.traffic import Traffic

__all__ = ["Engine", "Observer", "Progress", "Run"]

#: Bytes of products one merged sweep may hold; runs beyond that are answered in a further sweep.
PRODUCT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, told at every round.

    Attributes
    ----------
    run : int
        Position of the run among those driven together.
    round : int
        Rounds so far.
    selected, target : int
        Features selected, and the most there can be.
    value : float
        f of the features so far.
    bytes_read : int
        Taken from the medium so far, by all runs together.
    seconds : float
        Since the runs started.
    shards : tuple of float
        Share of the sweep going on that each shard of a cluster has done; told while it runs, empty at a round.
    """

    run: int
    round: int
    selected: int
    target: int
    value: float
    bytes_read: int
    seconds: float
    shards: tuple[float, ...] = ()

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the share of features selected, or None before the first one."""
        if not self.selected or not self.target:
            return None
        return self.seconds * (self.target - self.selected) / self.selected


Observer = Callable[[Progress], None]


class Run:
    """One algorithm in flight.

    Parameters
    ----------
    problem : Problem
    algorithm : generator
        ``fast_omp(problem)`` or its like.
    journal : Journal, optional
        Makes the run durable; what it holds already is replayed instead of swept.
    tier : Tier, optional
        Sweep this instead of the matrix; the answer is the same.
    account : TierAccount, optional
        Sweep the tier only while it pays.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        journal: Journal | None = None,
        tier: Tier | None = None,
        account: TierAccount | None = None,
    ) -> None:
        self.problem = problem
        self.journal = journal
        self.tier = tier
        self.account = account
        self.outcome: Outcome | None = None
        self.query: Query | None = None
        self.rounds = 0
        self._algorithm = algorithm

    @property
    def swept(self) -> Tier | None:
        """What the next query goes over: the tier, or None for the matrix."""
        return self.tier if self.account is None or self.account.pays else None

    def settle(self, cost: Traffic) -> None:
        """Take note of what a query took."""
        if self.account is not None:
            self.account.settle(cost)

    def advance(self, answers: Sequence[Gradients] | None, told: Callable[[Run, Round], bool]) -> None:
        """Go on to the next question (or the end), passing the rounds that ask nothing; stop where ``told`` says so."""
        self.query = None
        try:
            while True:
                step = self._algorithm.send(answers)
                self.rounds += 1
                if not told(self, step):
                    self.close()
                    return
                if isinstance(step, Query):
                    self.query = step
                    return
                answers = None
        except StopIteration as stop:
            self.outcome = stop.value

    def close(self) -> None:
        """Drop the algorithm where it stands."""
        self._algorithm.close()


class Engine:
    """Runs algorithms over one matrix.

    Parameters
    ----------
    matrix : (n_columns, n_obs)
    sweeper : Sweeper
    observer : callable, optional
        Told a ``Progress`` at every round.
    cancelled : callable, optional
        Asked at every round; a true answer ends all runs with ``CancelledError``.
    dropped : callable, optional
        Asked at every round of a run with its position; a true answer ends this run alone, without an outcome.
    deadline : callable, optional
        Asked between two rounds; a true answer ends ``drive``, which then returns False.
    ended : callable, optional
        Told the position of a run that was dropped or has its outcome, while the others go on.
    """

    def __init__(
        self,
        matrix: AnyArray,
        sweeper: Sweeper,
        observer: Observer | None = None,
        cancelled: Callable[[], bool] | None = None,
        dropped: Callable[[int], bool] | None = None,
        ended: Callable[[int], None] | None = None,
        deadline: Callable[[], bool] | None = None,
    ) -> None:
        self.traffic = Traffic()
        self.alone = Traffic()  # what the same questions would have cost the runs one by one
        self._matrix = matrix
        self._sweeper = sweeper
        self._observer = observer
        self._cancelled = cancelled
        self._dropped = dropped
        self._ended = ended
        self._deadline = deadline
        self._started = time.perf_counter()

    def drive(self, runs: Sequence[Run]) -> bool:
        """Bring every run to its outcome, except those that are dropped; return False where the deadline came first."""
        places = {id(run): place for place, run in enumerate(runs)}
        latest: list[Progress] = []

        def told(run: Run, step: Round) -> bool:
            if self._cancelled is not None and self._cancelled():
                raise CancelledError("the selection was cancelled")
            if self._dropped is not None and self._dropped(places[id(run)]):
                return False
            if self._observer is not None:
                # Counters are those of runs alone: of a merged sweep only what it really took is told.
                taken = sum(other.problem.pool.traffic.bytes_read for other in runs)
                taken += self.traffic.bytes_read - self.alone.bytes_read
                rank = run.problem.constraint.rank
                seconds = time.perf_counter() - self._started
                latest[:] = [Progress(places[id(run)], run.rounds, step.selected, rank, step.value, taken, seconds)]
                self._observer(latest[0])
            return True

        def advanced(run: Run) -> None:
            if run.query is None and self._ended is not None:
                self._ended(places[id(run)])

        def swept(shares: Sequence[float]) -> None:
            if self._cancelled is not None and self._cancelled():
                raise CancelledError("the selection was cancelled")
            if self._observer is not None and latest:
                self._observer(replace(latest[0], shards=tuple(shares), seconds=time.perf_counter() - self._started))

        if isinstance(self._matrix, RemoteRows):
            self._matrix.watch(swept)
        try:
            for run in runs:
                run.advance(None, told)
                self._replay(run, told)
                advanced(run)
            while waiting := [run for run in runs if run.query is not None]:
                if self._deadline is not None and self._deadline():
                    return False
                self._answer(waiting, told, advanced)
            return True
        finally:
            if isinstance(self._matrix, RemoteRows):
                self._matrix.watch(None)
            for run in runs:
                run.close()

    def _replay(self, run: Run, told: Callable[[Run, Round], bool]) -> None:
        """Bring a run back to where its journal ends."""
        while run.journal is not None and run.query is not None:
            cost = Traffic()
            answers = run.journal.replay(run.query, cost)
            if answers is None:
                return
            run.problem.counters.traffic.include(cost)
            run.settle(cost)
            run.advance(answers, told)

    def _answer(self, waiting: Sequence[Run], told: Callable[[Run, Round], bool], advanced: Callable[[Run], None]) -> None:
        """Answer as many waiting runs as one sweep may hold."""
        batch = self._batch(waiting)
        tier, standardisation = batch[0].swept, batch[0].problem.design.standardisation
        queries = [run.query for run in batch if run.query is not None]
        vectors = Vectors(np.stack([ask.vector for query in queries for ask in query.asks], axis=1), self._matrix.dtype)
        swept = Traffic()
        swept.add(standardisation.n_features, self._matrix.nbytes if tier is None else tier.codes.nbytes, tier=tier is not None)
        self.traffic.include(swept)
        if isinstance(self._matrix, RemoteRows):
            answer = self._remote(batch[0], vectors, tier is not None)
        else:
            answer = self._exact(vectors, standardisation.wide) if tier is None else self._tiered(vectors, tier)
        first = 0
        for run, query in zip(batch, queries, strict=True):
            cost = Traffic()
            cost.include(swept)
            run.problem.counters.traffic.include(cost)
            self.alone.include(cost)
            answers = answer(run, query, first)
            first += len(query.asks)
            if run.journal is not None:
                answers = run.journal.record(query, answers, cost)
            run.advance(answers, told)
            # Decisions may read columns, but not after the next question: only now is it known what this one cost.
            glances = run.problem.pool.settle()
            run.problem.counters.traffic.include(glances)
            cost.include(glances)
            run.settle(cost)
            if run.journal is not None:
                run.journal.commit()
            advanced(run)

    def _batch(self, waiting: Sequence[Run]) -> list[Run]:
        """Return the runs to answer next: the first, and those that want the same of a sweep, as many as it may hold."""
        width = max(PRODUCT_BYTES // (8 * len(self._matrix)), 1)
        batch: list[Run] = []
        asked = 0
        for run in waiting:
            assert run.query is not None
            if batch and (asked + len(run.query.asks) > width or not _alike(run, batch[0])):
                continue
            batch.append(run)
            asked += len(run.query.asks)
        return batch

    def _exact(self, vectors: Vectors, wide: BoolArray) -> Callable[[Run, Query, int], Sequence[Gradients]]:
        """Sweep the matrix; return what answers the query of a run whose vectors begin at a place."""
        raw = self._sweeper.dots(self._matrix, vectors, wide)

        def answer(run: Run, query: Query, first: int) -> Sequence[Gradients]:
            standardisation = run.problem.design.standardisation
            here = slice(first, first + len(query.asks))
            products = standardisation.apply(np.ascontiguousarray(raw[:, here]), vectors.sums[here], vectors.wide_sums[here])
            return [
                ExactGradients(np.ascontiguousarray(products[:, place]), standardisation, ask.candidates)
                for place, ask in enumerate(query.asks)
            ]

        return answer

    def _tiered(self, vectors: Vectors, tier: Tier) -> Callable[[Run, Query, int], Sequence[Gradients]]:
        """Sweep the tier; return what answers the query of a run whose vectors begin at a place."""
        swept = TierSweep(self._sweeper, tier, vectors)

        def answer(run: Run, query: Query, first: int) -> Sequence[Gradients]:
            pool, standardisation = run.problem.pool, run.problem.design.standardisation
            whole = None if run.account is None else ExactSweep(query, pool, run.account)
            return [
                TierGradients(
                    ask,
                    *swept.scores(first + place, standardisation),
                    pool,
                    None if whole is None else partial(whole.gradient, place),
                )
                for place, ask in enumerate(query.asks)
            ]

        return answer

    def _remote(self, some: Run, vectors: Vectors, tiered: bool) -> Callable[[Run, Query, int], Sequence[Gradients]]:
        """Have the sweep run where the rows are; return what answers the query of a run whose vectors begin at a place."""
        rows: Any = some.problem.design.matrix
        answers = rows.sweep(vectors.wide, tiered)

        def answer(run: Run, query: Query, first: int) -> Sequence[Gradients]:
            found: Sequence[Gradients] = answers(query, first, run.problem.pool)
            return found

        return answer


def _alike(run: Run, other: Run) -> bool:
    """Tell whether one sweep can answer both: over the same array, with the same columns accumulated in float64."""
    mine, theirs = run.problem.design.standardisation.wide, other.problem.design.standardisation.wide
    return run.swept is other.swept and (mine is theirs or np.array_equal(mine, theirs))
