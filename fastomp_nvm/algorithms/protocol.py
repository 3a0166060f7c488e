"""The protocol between algorithms and the engine.

An algorithm is a generator. It yields a :class:`Round`, a point at which it may be cancelled, reported and made durable. A round
that needs gradients is a :class:`Query`; the engine sends back one :class:`Gradients` per ask, which returns *decisions* rather
than arrays. The number of queries is the adaptivity of the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.matrix.gradients import Ask, Gradients
from fastomp_nvm.matrix.pool import ColumnPool
from fastomp_nvm.matrix.rows import Design
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.objectives.base import Objective

if TYPE_CHECKING:
    from fastomp_nvm.algorithms.certificate import Certificate
    from fastomp_nvm.algorithms.trace import Trace
    from fastomp_nvm.matrix.tier import Tier

__all__ = [
    "Algorithm",
    "Ask",
    "Counters",
    "Gradients",
    "Journal",
    "Members",
    "Outcome",
    "Parameters",
    "Problem",
    "Query",
    "Result",
    "Round",
    "Steps",
]


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """Parameters of the algorithms, as in ``SelectionRequest``.

    ``again`` allows FAST_OMP further passes after its polish (see :mod:`fastomp_nvm.algorithms.again`).
    """

    epsilon: float = 0.1
    tau: float | Literal["auto"] = 0.5
    seed: int = 0
    until: Literal["paper", "full"] = "paper"
    polish: Literal["pool", "none"] = "pool"
    skip_weak: bool = False
    plain: bool = False
    again: bool = False


#: Features of a set in order of selection; those behind the set's size are not in it.
Members: TypeAlias = Sequence[int] | IndexArray


@dataclass(slots=True)
class Counters:
    """Costs of one run: as the paper's theorems count them, and in bytes read from the medium.

    Attributes
    ----------
    gradient_rounds : int
        One per outer iteration and one per inner iteration that evaluates prefixes.
    gradient_calls : int
        Models whose gradient was used: of a sequence, the prefixes up to j*, however many were computed.
    independence_rounds, independence_calls : int
        Rounds of independence queries, and single queries, as Theorem 2 counts them.
    vectors : int
        Vectors of all full sweeps: what they cost where computing, not reading, takes the time.
    traffic : Traffic
        Reads from the medium, counted as if this run were the only one.
    """

    gradient_rounds: int = 0
    gradient_calls: int = 0
    independence_rounds: int = 0
    independence_calls: int = 0
    vectors: int = 0
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """The inputs of an algorithm.

    Attributes
    ----------
    design : Design
        For shapes and standardisation; algorithms read columns only through ``pool`` and queries.
    usable : (u,) int64
        Features that may be selected, ascending.
    pool : ColumnPool
        Columns gathered so far.
    tier : Tier, optional
        The tier that queries may be answered from: the errors of approximate gradients.
    """

    design: Design
    objective: Objective
    constraint: Constraint
    parameters: Parameters
    usable: IndexArray
    pool: ColumnPool
    counters: Counters
    tier: Tier | None = None

    def ask(
        self,
        selected: int,
        f: float | Callable[[], float],
        vectors: Sequence[Float64Array],
        candidates: IndexArray,
        *,
        exact: bool = False,
        members: Members = (),
    ) -> Steps[Sequence[Gradients]]:
        """Query the gradients of ``candidates`` at all ``vectors`` (n_obs,) in one round, and count it; see ``Query``."""
        answers = yield Query(selected, f, tuple(Ask(vector, candidates) for vector in vectors), exact, members=members)
        assert answers is not None
        self.counters.gradient_rounds += 1
        self.counters.gradient_calls += len(vectors)
        return answers

    def extensions(self, selected: IndexArray, candidates: IndexArray) -> BoolArray:
        """Return (c,): the candidates that extend ``selected``, as one round of independence queries, and count it."""
        self.counters.independence_rounds += 1
        self.counters.independence_calls += len(candidates)
        return self.constraint.extensions(selected, candidates)


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """A boundary between rounds.

    Attributes
    ----------
    selected : int
        Features selected so far.
    f : float or callable
        f of the selected features, or a callable that computes it lazily for observers.
    members : sequence of int, or (s,) int64
        The first ``selected`` are the features themselves; empty where they are not known. A reference, which only observers read.
    """

    selected: int
    f: float | Callable[[], float]
    members: Members = field(default=(), kw_only=True)

    @property
    def value(self) -> float:
        """F of the features selected so far."""
        return self.f if isinstance(self.f, float) else self.f()


@dataclass(frozen=True, slots=True, eq=False)
class Query(Round):
    """A round that needs a sweep; the answer is one ``Gradients`` per ask.

    ``exact`` says that the gradient of every candidate is wanted, so that intervals would decide nothing.
    """

    asks: Sequence[Ask]
    exact: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The result of an algorithm.

    Attributes
    ----------
    selected : (s,) int64
        Features in order of selection.
    unpolished : (s',) int64, optional
        The set before the polish, if any.
    tau : float, optional
        The threshold parameter that was chosen, when there were several.
    certificate : Certificate, optional
        A bound on the distance from the optimum, when requested.
    rank : int, optional
        The paper's ``r`` as the algorithm used it, when it needs one.
    rank_estimated : bool
        True when ``rank`` is the size of the largest set drawn at random, because the constraint knows only a bound.
    guarantee : {"paper", "greedy", "swap-optimal", "swap-optimal (quadratic model)"}, optional
        What is known of the selection: Theorem 1 of the paper; at least f of full greedy; no addition and no exchange of one
        feature for one improves f, or none of those that the quadratic model at its fit expects to.
    traces : tuple of Trace
        The greedy runs, verified over all features, that a guarantee rests on.
    repaired : bool
        True when the algorithm's own selection missed a lower bound, and features were exchanged to meet it.
    greedy : sequence of (g,) int64
        Sets of full greedy that the run made, in order. Without lower bounds the first k features are the set for a smaller k.
    spanned : sequence of int
        Features left out because the columns that every model has explain them.
    """

    selected: IndexArray
    unpolished: IndexArray | None = None
    tau: float | None = None
    certificate: Certificate | None = None
    rank: int | None = None
    rank_estimated: bool = False
    guarantee: str | None = None
    traces: tuple[Trace, ...] = ()
    repaired: bool = False
    greedy: Sequence[IndexArray] = ()
    spanned: Sequence[int] = ()


Result = TypeVar("Result")

#: Part of an algorithm: yields rounds as the algorithm does and returns a result to it.
Steps: TypeAlias = Generator[Round, "Sequence[Gradients] | None", Result]

#: A running algorithm.
Algorithm: TypeAlias = Steps[Outcome]


class Journal(Protocol):
    """The durable record of a run: the decisions returned to it, which are replayed into a new generator after a crash.

    Algorithms are deterministic given the answers to their queries, so only answers are stored.
    """

    def replay(self, query: Query, traffic: Traffic) -> Sequence[Gradients] | None:
        """Return the recorded answers to ``query`` and add their cost to ``traffic``; None after the end of the record."""
        ...

    def record(self, query: Query, answers: Sequence[Gradients], traffic: Traffic) -> Sequence[Gradients]:
        """Return ``answers`` wrapped such that every decision is recorded; ``traffic`` is their cost."""
        ...

    def commit(self) -> None:
        """Make the recorded decisions durable."""
        ...
