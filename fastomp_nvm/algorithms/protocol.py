"""What algorithms and the engine say to each other.

An algorithm is a generator. It yields a :class:`Round`: a point at which it may be cancelled, reported and (later) made durable.
A round that asks something is a :class:`Query`; the algorithm is sent back one :class:`Gradients` per ask, which answers
*decisions* rather than arrays. The number of yields that ask is the adaptivity of the paper. This module does no work itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.matrix.gradients import Ask, Gradients
from fastomp_nvm.matrix.pool import ColumnPool
from fastomp_nvm.matrix.standardisation import Design
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.objectives.base import Objective

if TYPE_CHECKING:
    from fastomp_nvm.algorithms.certificate import Certificate

__all__ = ["Algorithm", "Ask", "Counters", "Gradients", "Journal", "Outcome", "Parameters", "Problem", "Query", "Round"]


@dataclass(frozen=True, slots=True)
class Parameters:
    """Knobs of the algorithms, as in ``SelectionRequest``."""

    epsilon: float = 0.1
    tau: float | Literal["auto"] = 0.5
    seed: int = 0
    until: Literal["paper", "full"] = "paper"
    polish: Literal["pool", "none"] = "pool"
    skip_weak: bool = False


@dataclass(slots=True)
class Counters:
    """Costs of one run: as the paper's theorems count them, and as the medium feels them.

    Attributes
    ----------
    gradient_rounds : int
        One per outer iteration and one per inner iteration that evaluates prefixes.
    gradient_calls : int
        Models whose gradient was looked at: of a sequence, those up to j*, however many were computed with them.
    independence_rounds, independence_calls : int
        Rounds of, and single, questions to the constraint, as Theorem 2 counts them.
    traffic : Traffic
        What this run took from the medium, as if it ran alone.
    """

    gradient_rounds: int = 0
    gradient_calls: int = 0
    independence_rounds: int = 0
    independence_calls: int = 0
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything an algorithm may use.

    Attributes
    ----------
    design : Design
        For shapes and standardisation; algorithms read columns through ``pool`` and by asking only.
    usable : (u,) int64
        Features that may be selected, ascending.
    pool : ColumnPool
        Columns gathered so far.
    """

    design: Design
    objective: Objective
    constraint: Constraint
    parameters: Parameters
    usable: IndexArray
    pool: ColumnPool
    counters: Counters


@dataclass(frozen=True, slots=True)
class Round:
    """A boundary between rounds.

    Attributes
    ----------
    selected : int
        Features selected so far.
    worth : float or callable
        f of them, or what returns it: only who watches wants to know, and while the algorithm waits.
    """

    selected: int
    worth: float | Callable[[], float]

    @property
    def value(self) -> float:
        """F of the features selected so far."""
        return self.worth if isinstance(self.worth, float) else self.worth()


@dataclass(frozen=True, slots=True)
class Query(Round):
    """A round that needs a sweep; answered by one ``Gradients`` per ask."""

    asks: Sequence[Ask]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an algorithm returns.

    Attributes
    ----------
    selected : (s,) int64
        Features in order of selection.
    unpolished : (s',) int64, optional
        The set before the polish, when there was one.
    tau : float, optional
        The threshold parameter behind the set before the polish, when the algorithm chose among several.
    certificate : Certificate, optional
        How far from the optimum the selection can be, when asked for.
    rank : int, optional
        The paper's ``r`` as the algorithm took it, when it needs one.
    rank_estimated : bool
        True when ``rank`` is the size of the largest set drawn at random, because the constraint knows only a bound.
    """

    selected: IndexArray
    unpolished: IndexArray | None = None
    tau: float | None = None
    certificate: Certificate | None = None
    rank: int | None = None
    rank_estimated: bool = False


#: An algorithm in flight.
Algorithm: TypeAlias = Generator[Round, "Sequence[Gradients] | None", Outcome]


class Journal(Protocol):
    """What makes a run durable: a record of the decisions it was given, from which a fresh generator is brought back.

    Algorithms are deterministic in the answers to their queries, so answers are all that must survive.
    """

    def replay(self, query: Query, traffic: Traffic) -> Sequence[Gradients] | None:
        """Return the recorded answers to ``query``, adding what they cost to ``traffic``, or None beyond the record."""
        ...

    def record(self, query: Query, answers: Sequence[Gradients], traffic: Traffic) -> Sequence[Gradients]:
        """Return ``answers`` such that every decision taken from them is noted; ``traffic`` is what they cost."""
        ...

    def commit(self) -> None:
        """Make what was noted durable."""
        ...
