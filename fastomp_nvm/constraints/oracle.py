"""A constraint programmed by the user: a function that takes a set of features and returns whether it is allowed.

The function must be downward closed: every subset of an allowed set is allowed. That cannot be proven, so
``check_downward_closed`` searches for a counterexample. Queries come in batches that worker processes can share. The workers are
spawned, not forked, because the caller has threads and mapped stores; the function must therefore be importable by name.
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from fastomp_nvm.arrays import BoolArray, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.checks import finite_number, whole_number
from fastomp_nvm.errors import ConstraintError, UnavailableError
from fastomp_nvm.limits import checkpoint

__all__ = ["Counterexample", "Oracle", "check_downward_closed"]

# Length of the chains of sets that the closure test samples.
_CHAIN = 64


@dataclass(frozen=True, slots=True)
class Counterexample:
    """An allowed set with a refused subset: the family is not downward closed."""

    allowed: tuple[int, ...]
    refused_subset: tuple[int, ...]


class Oracle(Constraint):
    """Sets that a function of the user's allows. Blocking indices are found by bisection, one batch of queries per step.

    Written ``oracle: module:function`` or ``oracle: {function: module:function, takes: indices|names, rank: 20, workers: 4}``; for
    local use only, because it runs code.

    Parameters
    ----------
    n_features : int
    function : callable
        Takes a sorted int64 array of features, returns True or False. Not called with the empty set, which is always allowed.
    rank : int, optional
        Largest size of an allowed set; the function is not called with larger ones. By default the number of features.
    p : float, optional
        A ``p`` for which the family is a p-system.
    workers : int
        Processes that share a batch; 0 runs the function in this process. With workers, ``function`` must be importable by name.
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
        self.rank = self.n_features if rank is None else min(whole_number(rank, "the rank"), self.n_features)
        self.p = None if p is None else finite_number(p, "p", minimum=1)
        self._pool: ProcessPoolExecutor | None = None

    def independent(self, features: IndexArray) -> bool:
        """Return the answer of the function about one set."""
        return len(features) <= self.rank and _call(self.function, np.sort(features))

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Name the rank when it is exceeded, else the refusal by the function."""
        if len(features) > self.rank:
            return (f"{len(features)} features are selected, and the constraint's rank is {self.rank}",)
        return () if self.independent(features) else (self._refusal(features),)

    def _refusal(self, features: IndexArray) -> str:
        """Return the sentence for a set that the function refuses."""
        return "the oracle does not allow the selected features"

    def independent_many(self, sets: Sequence[IndexArray]) -> BoolArray:
        """Call the function with all sets within the rank, in the workers if there are any."""
        allowed = np.array([len(features) <= self.rank for features in sets], dtype=np.bool_)
        allowed[allowed] = self._call_many([np.sort(features) for features in sets if len(features) <= self.rank])
        return allowed

    def _call_many(self, ordered: Sequence[IndexArray]) -> BoolArray:
        """Return the answer of the function about each sorted set."""
        if not self.workers or len(ordered) < 2:
            return np.array([_call(self.function, features) for features in ordered], dtype=np.bool_)
        try:
            # Four chunks per worker: few enough to be cheap to send, enough to balance slow calls.
            size = -(-len(ordered) // (4 * self.workers))
            return np.array(list(self._started_pool().map(_call_installed, ordered, chunksize=size)), dtype=np.bool_)
        except BrokenProcessPool as error:
            self.close()
            raise UnavailableError("a worker process of the oracle ended early: set workers to 0 to see why") from error

    def check_downward_closed(self, samples: int = 100, seed: int = 0) -> Counterexample | None:
        """Search for an allowed set with a refused subset; see :func:`check_downward_closed`."""
        return check_downward_closed(self, samples=samples, seed=seed)

    def close(self) -> None:
        """End the worker processes; the next batch starts them again."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _started_pool(self) -> ProcessPoolExecutor:
        """Return the pool of workers, started on first use and ended with this object."""
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
    """Search at random for an allowed set with a refused subset.

    Each sample checks two growing chains of sets, one of random features and one of random features that are allowed together. Once
    a set of a chain is refused, all larger ones must be refused.

    Parameters
    ----------
    constraint : Constraint
    samples : int
    seed : int

    Returns
    -------
    Counterexample or None
        None does not prove closure; more samples make it more likely.
    """
    generator = np.random.default_rng(seed)
    for _ in range(samples):
        checkpoint()
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
    """Return a refused prefix of ``features`` and a longer allowed one, or None."""
    allowed = constraint.independent_many([features[: size + 1] for size in range(len(features))])
    if allowed.all() or not allowed[(first := int(allowed.argmin())) :].any():
        return None
    last = int(np.flatnonzero(allowed)[-1])
    return Counterexample(tuple(sorted(features[: last + 1].tolist())), tuple(sorted(features[: first + 1].tolist())))


def _call(function: Callable[[IndexArray], bool], features: IndexArray) -> bool:
    """Return the answer about one set; an error of the user's function becomes a ``ConstraintError``."""
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


# In a worker: the function, sent once when the worker starts and not with each call.
_installed: list[Callable[[IndexArray], bool]] = []


def _install(function: Callable[[IndexArray], bool]) -> None:
    """Store the function in this worker."""
    _installed[:] = [function]


def _call_installed(features: IndexArray) -> bool:
    """Return the answer of this worker's function."""
    return _call(_installed[0], features)
