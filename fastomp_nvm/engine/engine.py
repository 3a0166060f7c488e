"""Drives algorithms: merges the queries of all runs in flight into one sweep, answers them, reports and cancels.

The engine is the only consumer of the algorithms' generators. A run's counters are those of the run by itself; the engine's own
traffic counts the merged sweeps. Because the kernel is row-invariant, merging changes no bit of a run's answer; because the tier
is certified, the tier changes none either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.algorithms.protocol import Algorithm, Ask, Gradients, Journal, Members, Outcome, Problem, Query
from fastomp_nvm.errors import CancelledError
from fastomp_nvm.matrix.rows import Rows
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.matrix.traffic import Traffic

if TYPE_CHECKING:
    from fastomp_nvm.matrix.tier import Tier, TierAccount

__all__ = ["MOST_FEATURES", "Engine", "Observer", "Progress", "Run"]

#: Bytes of products that one merged sweep may hold; further runs are answered in another sweep.
PRODUCT_BYTES = 1 << 30
#: Features that a report of progress names.
MOST_FEATURES = 200


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run, reported at every round, at its end, and about every 100 ms during a pass.

    Attributes
    ----------
    run : int
        Position of the run among the runs driven together.
    round : int
        Rounds so far.
    selected, target : int
        Features selected so far, and the largest possible number.
    value : float
        f of the features so far.
    bytes_read : int
        Bytes read from the medium so far, by all runs together, those of the pass in flight included.
    seconds : float
        Since the runs started.
    shards : tuple of float
        Share of the current sweep that each shard of a cluster has done; reported during a sweep, empty at a round.
    runs : int
        Runs driven together.
    ended : bool
        Whether this run has its outcome.
    sweep : int
        Passes begun, by all runs together.
    share : float
        Share of the pass in flight that is done; 0 between passes.
    members : sequence of int, or (s,) int64
        The first ``selected`` are the features so far; empty where they are not known. Read through ``features``.
    """

    run: int
    round: int
    selected: int
    target: int
    value: float
    bytes_read: int
    seconds: float
    shards: tuple[float, ...] = ()
    runs: int = 1
    ended: bool = False
    sweep: int = 0
    share: float = 0.0
    members: Members = field(default=(), repr=False, compare=False)

    @property
    def features(self) -> tuple[int, ...]:
        """Indices of the features selected so far, at most the first ``MOST_FEATURES``; computed when asked for."""
        return tuple(int(feature) for feature in self.members[: min(self.selected, MOST_FEATURES)])

    def to_json(self, *, features: bool = True) -> dict[str, object]:
        """Return this progress as JSON values, with its ``features`` in place of all members, or without any."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "members"}
        return {**values, "features": list(self.features)} if features else values

    @classmethod
    def of_json(cls, values: Mapping[str, object]) -> Progress:
        """Return the progress of JSON values; those that this release does not know are left out."""
        known = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        return cls(**{**known, "shards": tuple(known.get("shards", ())), "members": values.get("features", ())})  # type: ignore[arg-type]


Observer = Callable[[Progress], None]


@dataclass(slots=True, eq=False)
class Run:
    """One algorithm in flight.

    Attributes
    ----------
    problem : Problem
    algorithm : generator
        ``fast_omp(problem)`` or its like.
    journal : Journal, optional
        Makes the run durable; rounds it holds already are replayed instead of swept.
    tier : Tier, optional
        Sweep this instead of the matrix; the answer is the same.
    account : TierAccount, optional
        Sweep the tier only while it pays.
    outcome : Outcome, optional
        Set when the algorithm has ended.
    query : Query, optional
        The question that waits for an answer.
    rounds : int
        Rounds so far.
    place : int
        Position among the runs driven together.
    quiet : bool
        Not reported, dropped or handed over: a question beside the runs of requests.
    """

    problem: Problem
    algorithm: Algorithm
    journal: Journal | None = None
    tier: Tier | None = None
    account: TierAccount | None = None
    outcome: Outcome | None = None
    query: Query | None = None
    rounds: int = 0
    place: int = 0
    quiet: bool = False


@dataclass(slots=True, eq=False)
class Engine:
    """Runs algorithms over one matrix.

    Attributes
    ----------
    matrix : Rows
    sweeper : Sweeper
    observer : callable, optional
        Called with a ``Progress`` at every round and during passes, then on any thread but never on two at once.
    cancelled : callable, optional
        Called at every round and during passes; True ends all runs with ``CancelledError``.
    dropped : callable, optional
        Called at every round of a run with its position; True ends this run alone, without an outcome.
    ended : callable, optional
        Called with the position of a run that was dropped or has its outcome, while the others go on.
    traffic : Traffic
        Sweeps of this engine.
    saved : Traffic
        Sweeps that runs shared instead of repeating: the sum of the runs' own counters exceeds the real traffic by this.
    """

    matrix: Rows
    sweeper: Sweeper
    observer: Observer | None = None
    cancelled: Callable[[], bool] | None = None
    dropped: Callable[[int], bool] | None = None
    ended: Callable[[int], None] | None = None
    traffic: Traffic = field(default_factory=Traffic, init=False)
    saved: Traffic = field(default_factory=Traffic, init=False)
    _started: float = field(default_factory=time.perf_counter, init=False)
    _runs: Sequence[Run] = field(default=(), init=False)
    _latest: Progress | None = field(default=None, init=False)
    _values: dict[int, float] = field(default_factory=dict, init=False)  # f of each run, as last reported
    _swept: int = field(default=0, init=False)  # bytes of the sweep in flight

    def drive(self, runs: Sequence[Run], deadline: Callable[[], bool] | None = None) -> bool:
        """Drive every run to its outcome, except runs that are dropped.

        Parameters
        ----------
        runs : sequence of Run
        deadline : callable, optional
            Called after every sweep, once all runs it answered have recorded and committed their round. True: stop here. Never
            called before the first sweep, so that a call always makes progress.

        Returns
        -------
        bool
            True when every run has ended; False when the deadline came first, in which case runs still waiting have no outcome.
        """
        self._runs = runs
        self.matrix.watch(self._report_shards)
        try:
            for place, run in enumerate(runs):
                run.place = place
                self._advance(run, None)
                if run.journal is not None:
                    self._replay(run, run.journal)
                if run.query is None and self.ended is not None and not run.quiet:
                    self.ended(place)
            while self._answer(runs):
                if deadline is not None and deadline() and any(run.query is not None for run in runs):
                    return False
            return True
        finally:
            self.matrix.watch(None)
            for run in runs:
                run.algorithm.close()

    def _advance(self, run: Run, answers: Sequence[Gradients] | None) -> None:
        """Bring a run to its next query or its end, through rounds that ask nothing."""
        run.query = None
        try:
            while True:
                step = run.algorithm.send(answers)
                run.rounds += 1
                if self.cancelled is not None and self.cancelled():
                    raise CancelledError("the selection was cancelled")
                if self.dropped is not None and not run.quiet and self.dropped(run.place):
                    run.algorithm.close()
                    return
                if self.observer is not None and not run.quiet:
                    self._report(self.observer, run, step.selected, step.value, step.members)
                if isinstance(step, Query):
                    run.query = step
                    return
                answers = None
        except StopIteration as stop:
            run.outcome = stop.value
            if self.observer is not None and not run.quiet:
                chosen = stop.value.selected
                self._report(self.observer, run, len(chosen), self._values.get(run.place, 0.0), chosen)

    def _report(self, observer: Observer, run: Run, selected: int, value: float, members: Members) -> None:
        """Report a round of a run, or its end."""
        # Counters are those of separate runs; only the bytes that merged sweeps really took are reported.
        taken = sum(other.problem.counters.traffic.bytes_read for other in self._runs) - self.saved.bytes_read
        seconds, rank = time.perf_counter() - self._started, run.problem.constraint.rank
        self._latest = Progress(
            run.place,
            run.rounds,
            selected,
            rank,
            value,
            taken,
            seconds,
            runs=sum(not other.quiet for other in self._runs),
            ended=run.outcome is not None,
            sweep=self.traffic.sweeps,
            members=members,
        )
        self._values[run.place] = value
        observer(self._latest)

    def _report_shards(self, shares: Sequence[float]) -> None:
        """Report the share of a sweep that each shard has done."""
        self._report_share(sum(shares) / max(len(shares), 1), tuple(shares))

    def _report_share(self, share: float, shards: tuple[float, ...] = ()) -> None:
        """Report the share of a sweep that is done."""
        if self.cancelled is not None and self.cancelled():
            raise CancelledError("the selection was cancelled")
        if self.observer is not None and (now := self._latest) is not None:
            taken, seconds = now.bytes_read + int(share * self._swept), time.perf_counter() - self._started
            self.observer(replace(now, shards=shards, share=share, sweep=self.traffic.sweeps, bytes_read=taken, seconds=seconds))

    def _replay(self, run: Run, journal: Journal) -> None:
        """Bring a run back to the end of its journal."""
        while run.query is not None:
            cost = Traffic()
            answers = journal.replay(run.query, cost)
            if answers is None:
                return
            run.problem.counters.traffic.include(cost)
            run.problem.counters.vectors += len(run.query.asks)
            if run.account is not None:
                run.account.settle(cost)
            self._advance(run, answers)

    def _answer(self, runs: Sequence[Run]) -> bool:
        """Answer the first waiting run, and as many others as can share its sweep: same array, same columns in float64.

        Returns False when no run waits.
        """
        batch: list[tuple[Run, Query]] = []
        asks: list[Ask] = []
        for run in runs:
            query, theirs = run.query, run.problem.design
            if query is None:
                continue
            source = None if query.exact or (run.account is not None and not run.account.pays) else run.tier
            if not batch:
                design, rows, wide, tier = theirs, theirs.matrix, theirs.standardisation.wide, source
                width = max(PRODUCT_BYTES // (8 * rows.shape[0]), len(query.asks))
            alike = theirs.matrix.array is rows.array and source is tier
            alike = alike and (theirs.standardisation.wide is wide or np.array_equal(theirs.standardisation.wide, wide))
            if alike and len(asks) + len(query.asks) <= width:
                batch.append((run, query))
                asks += query.asks
        if not batch:
            return False
        vectors = Vectors(np.stack(list(map(attrgetter("vector"), asks)), axis=1), rows.dtype)
        swept = Traffic(1, len(design.standardisation.offsets) - 1, rows.nbytes) if rows.counted else Traffic()
        if tier is not None:
            swept.bytes_read = swept.bytes_read_tier = tier.codes.nbytes
        self.traffic.include(swept)
        self._swept = swept.bytes_read
        self.sweeper.report = self._report_share if self.observer is not None or self.cancelled is not None else None
        try:
            sweep = rows.sweep(self.sweeper, vectors, wide, tier)
        finally:
            self.sweeper.report = None
        first = 0
        for run, query in batch:
            cost, pool = replace(swept), run.problem.pool
            run.problem.counters.traffic.include(cost)
            run.problem.counters.vectors += len(query.asks)
            if first:
                self.saved.include(cost)
            answers = sweep.answer(query.asks, first, pool, run.account)
            first += len(query.asks)
            if run.journal is not None:
                answers = run.journal.record(query, answers, cost)
            self._advance(run, answers)
            # Decisions may read columns, but not after the next query: only now is the cost of this one known.
            read = pool.settle()
            run.problem.counters.traffic.include(read)
            cost.include(read)
            if run.account is not None:
                run.account.settle(cost)
            if run.journal is not None:
                run.journal.commit()
            if run.query is None and self.ended is not None and not run.quiet:
                self.ended(run.place)
        return True
