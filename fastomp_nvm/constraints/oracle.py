"""Any constraint a user can program: a function that takes a set of features and says whether it is allowed.

The function must be downward closed (what is allowed stays allowed when a feature is left out); nothing can prove that, so
``check_downward_closed`` looks for a counterexample. It is asked in batches of questions that do not depend on each other, in other
processes if so wished. These are spawned, never forked, because the caller has threads and mapped stores; the function must
therefore be importable by name.
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.arrays import BoolArray, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.checks import finite_number, whole_number
from fastomp_nvm.errors import ConstraintError, UnavailableError

if TYPE_CHECKING:
    from fastomp_nvm.constraints.written.document import Item
    from fastomp_nvm.constraints.written.setting import Setting

__all__ = ["Counterexample", "Oracle", "check_downward_closed"]

# Longest chain of sets a sample of the closure test walks along.
_CHAIN = 64


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Two sets that show that a family is not downward closed."""

    allowed: tuple[int, ...]
    refused_subset: tuple[int, ...]


class Oracle(Constraint):
    """Sets that a function of the user's allows. Blocking indices come by bisection, one batch of questions per step.

    Written ``oracle: module:function`` or ``oracle: {function: module:function, takes: indices|names, rank: 20, workers: 4}``; for
    local use only, because it runs code.

    Parameters
    ----------
    n_features : int
    function : callable
        Takes a sorted int64 array of features, returns True or False. Not asked about the empty set, which is always allowed.
    rank : int, optional
        Larger sets are not allowed, and the function is not asked about them; all features by default.
    p : float, optional
        When known.
    workers : int
        Processes that share a batch; 0 asks in this process. With workers, ``function`` must be importable by name.
    """

    calls_user_code = True
    rank_is_bound = True

    def __init__(
        self,
        n_features: int,
        function: Callable[[IndexArray], bool],
        *,
        rank: int | None = None,
        p: float | None = None,
        workers: int = 0,
    ) -> None:
        if not callable(function):
            raise ConstraintError(f"the oracle is a {type(function).__name__}: expected a function of a set of features")
        self.n_features = whole_number(n_features, "the number of features")
        self.function = function
        self.workers = whole_number(workers, "the number of workers")
        self._rank = self.n_features if rank is None else min(whole_number(rank, "the rank"), self.n_features)
        self._p = None if p is None else finite_number(p, "p", minimum=1)
        self._pool: ProcessPoolExecutor | None = None

    @classmethod
    def from_description(cls, item: Item, setting: Setting) -> Oracle:
        """Read ``oracle: module:function`` or a mapping with ``function``, ``takes``, ``rank`` and ``workers``."""
        if item.is_text:
            return cls(len(setting.names), setting.function(item))
        fields = item.fields("function", optional=("takes", "rank", "workers"))
        by_name = "takes" in fields and fields["takes"].choice("indices", "names") == "names"
        return cls(
            len(setting.names),
            setting.function(fields["function"], by_name=by_name),
            rank=fields["rank"].integer() if "rank" in fields else None,
            workers=fields["workers"].integer() if "workers" in fields else 0,
        )

    @property
    def rank(self) -> int:
        """What the user gave, or the number of features."""
        return self._rank

    @property
    def p(self) -> float | None:
        """What the user gave."""
        return self._p

    def independent(self, features: IndexArray) -> bool:
        """Ask the function about one set."""
        return len(features) <= self._rank and _ask(self.function, np.sort(features))

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Say that the selection is too large, or that the function refuses it."""
        if len(features) > self._rank:
            return (f"{len(features)} features are selected, and the constraint's rank is {self._rank}",)
        return () if self.independent(features) else (self._refusal(features),)

    def _refusal(self, features: IndexArray) -> str:
        """Say that the function refuses ``features``."""
        return "the oracle does not allow the selected features"

    def independent_many(self, sets: Sequence[IndexArray]) -> BoolArray:
        """Ask the function about all sets that are not too large, in the workers if there are any."""
        allowed = np.array([len(features) <= self._rank for features in sets], dtype=np.bool_)
        allowed[allowed] = self._ask_many([np.sort(features) for features in sets if len(features) <= self._rank])
        return allowed

    def _ask_many(self, ordered: Sequence[IndexArray]) -> BoolArray:
        """Ask the function about all sets."""
        if not self.workers or len(ordered) < 2:
            return np.array([_ask(self.function, features) for features in ordered], dtype=np.bool_)
        try:
            # Four parcels a worker: few enough to be cheap to send, enough to even out slow questions.
            parcel = -(-len(ordered) // (4 * self.workers))
            return np.array(list(self._started_pool().map(_ask_installed, ordered, chunksize=parcel)), dtype=np.bool_)
        except BrokenProcessPool as error:
            self.close()
            raise UnavailableError("a worker process of the oracle ended early: set workers to 0 to see why") from error

    def check_downward_closed(self, samples: int = 100, seed: int = 0) -> Counterexample | None:
        """Look for two sets that show that the function is not downward closed; see :func:`check_downward_closed`."""
        return check_downward_closed(self, samples=samples, seed=seed)

    def close(self) -> None:
        """End the worker processes; they start again when needed."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _started_pool(self) -> ProcessPoolExecutor:
        """Return the pool, started on first use and ended with this object."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                min(self.workers, os.cpu_count() or 1),
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_install,
                initargs=(self.function,),
            )
            weakref.finalize(self, self._pool.shutdown, wait=False)
        return self._pool


def check_downward_closed(constraint: Constraint, *, samples: int = 100, seed: int = 0) -> Counterexample | None:
    """Look at random for two sets that show that a constraint is not downward closed.

    A sample walks along two growing chains of sets, one of random features and one of random features that fit together. Once a
    set of a chain is refused, the larger ones must be, too.

    Parameters
    ----------
    constraint : Constraint
    samples : int
    seed : int

    Returns
    -------
    Counterexample or None
        None proves nothing; it only becomes more telling with more samples.
    """
    generator = np.random.default_rng(seed)
    for _ in range(samples):
        features = generator.permutation(constraint.n_features)[:_CHAIN].astype(np.int64)
        found = _broken_chain(constraint, features)
        if found is None:
            fitting = features[:0]
            for feature in features:
                longer = np.append(fitting, feature)
                fitting = longer if constraint.independent(longer) else fitting
            found = _broken_chain(constraint, generator.permutation(fitting))
        if found is not None:
            return found
    return None


def _broken_chain(constraint: Constraint, features: IndexArray) -> Counterexample | None:
    """Return a refused prefix of ``features`` and a longer one that is allowed, if there are such."""
    allowed = constraint.independent_many([features[: size + 1] for size in range(len(features))])
    if allowed.all() or not allowed[(first := int(allowed.argmin())) :].any():
        return None
    last = int(np.flatnonzero(allowed)[-1])
    return Counterexample(tuple(sorted(features[: last + 1].tolist())), tuple(sorted(features[: first + 1].tolist())))


def _ask(function: Callable[[IndexArray], bool], features: IndexArray) -> bool:
    """Ask about one set; whatever goes wrong in the user's function becomes one sentence."""
    if not len(features):
        return True
    try:
        answer = function(features)
    except ConstraintError:
        raise
    except Exception as error:
        raise ConstraintError(
            f"the oracle failed on a set of {len(features)} features with {type(error).__name__}: {error}"
        ) from error
    if not isinstance(answer, (bool, np.bool_)):
        raise ConstraintError(f"the oracle returned {answer!r}: expected True or False")
    return bool(answer)


# In a worker: the function it was started with, so that it is sent once and not with each question.
_installed: list[Callable[[IndexArray], bool]] = []


def _install(function: Callable[[IndexArray], bool]) -> None:
    """Keep the function of this worker."""
    _installed[:] = [function]


def _ask_installed(features: IndexArray) -> bool:
    """Ask this worker's function."""
    return _ask(_installed[0], features)
