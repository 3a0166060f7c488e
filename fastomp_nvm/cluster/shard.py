"""One shard of a selection: it maps its store and answers questions as a pure function of their arguments.

A question carries everything its answer depends on, so that a restarted shard, or another one over the same store, gives the same
answer. The state of a shard (its last sweep, standardisations under weights, candidate sets) is a cache. No network code is here.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fastomp_nvm.arrays import AnyArray, Float64Array, IndexArray
from fastomp_nvm.cluster.candidate_sets import NOTHING, USABLE, Bits, CandidateSet, digest, features_of, unpacked
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.identity import sweep_build
from fastomp_nvm.errors import FastompError, RequestError, StoreError
from fastomp_nvm.matrix.gradients import Ask, CertifiedSweep, ExactSweep, LocalGradients
from fastomp_nvm.matrix.kernels import Kernel, kernel
from fastomp_nvm.matrix.pool import PROBE_BYTES, ColumnPool
from fastomp_nvm.matrix.rows import Design, local_rows
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.matrix.threads import one_blas_thread
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.stores.contract import FeatureStore, Sidecars
from fastomp_nvm.version import __version__

__all__ = ["Answer", "ForgottenError", "Shard", "ShardAddress", "SweepRequest", "View"]

#: Standardisations that a shard caches, unless more were requested at once.
_VIEWS = 256

#: Bytes of features and gradients that a shard adds to the largest scores; Ray sends answers below 100 kB inline.
_OFFER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ShardAddress:
    """The location of a shard and the range that it must hold.

    Attributes
    ----------
    name : str
        Its name in errors.
    url : str
        URL of its store on the machine that holds it.
    fingerprint : str
    features, columns : (int, int)
        Range of features, and of columns, of the whole store that it holds.
    resource : str
        Ray resource of the machines that have the store; empty when all have it.
    labels : str
        Digest of its names and targets; empty when unknown.
    """

    name: str
    url: str
    fingerprint: str
    features: tuple[int, int]
    columns: tuple[int, int]
    resource: str = ""
    labels: str = ""


class ForgottenError(FastompError):
    """A shard was sent only the key of a value that it no longer holds: send the whole value."""


@dataclass(frozen=True, slots=True)
class View:
    """A standardisation, identified by its origin.

    Attributes
    ----------
    key : str
        ``plain`` (as stored), ``raw`` (none), or a digest of the weights.
    weights : (n_obs,) float64, optional
        None where there are none, and where the shard is expected to hold them.
    """

    key: str
    weights: Float64Array | None = None

    @property
    def standardize(self) -> bool:
        """False for columns as they are."""
        return self.key != "raw"


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """One sweep.

    Attributes
    ----------
    key : str
        Identifies the sweep.
    vectors : (m, n_obs) float64, optional
        All vectors of a round; None where the shard is expected to hold the sweep.
    tiered : bool
        Whether the tier may decide.
    standardize : bool
        Whether columns with large means are accumulated in float64, as standardised ones are.
    """

    key: str
    vectors: Float64Array | None
    tiered: bool
    standardize: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a shard.

    Attributes
    ----------
    features : (f,) int64
        Features, numbered within the shard, ascending; leaders best first.
    numbers : float64
        Scores, or gradients of the columns of ``features``: see ``Shard.decide``.
    traffic : Traffic
        Columns read beyond the sweep itself.
    largest : (r,) float64
        The largest scores, where requested.
    bar : float
        ``features`` are all features whose score reaches it.
    """

    features: IndexArray
    numbers: Float64Array
    traffic: Traffic
    largest: Float64Array
    bar: float = math.inf


class Shard:
    """Answers questions about one store.

    Parameters
    ----------
    address : ShardAddress
    store : FeatureStore
        The opened store at that address.
    threads : int, optional
        Of a sweep.
    """

    def __init__(self, address: ShardAddress, store: FeatureStore, threads: int | None = None) -> None:
        self._address = address
        self._store = store
        self._dataset = Dataset.of_store(self._store)
        tier = self._dataset.tier
        # Decides within a question only; whether the next one sweeps the tier is the driver's decision.
        self._account = None if tier is None else self._dataset.account(tier)
        self._swept_columns = 0  # columns of the current sweep done so far
        self._sweeper = Sweeper(threads, _counting(kernel(), self._count))
        self._views: OrderedDict[str, Design] = OrderedDict()
        self._most_views = _VIEWS
        self._sweep: tuple[str, Vectors, ExactSweep | CertifiedSweep] | None = None  # the last one, by its key
        self._sets: dict[int, tuple[bytes, Bits]] = {}  # slot -> key and set of candidates
        self._gradients: dict[tuple[str, int, bytes], tuple[LocalGradients, ColumnPool]] = {}
        self._lock = threading.Lock()

    def hello(self) -> dict[str, str]:
        """Return the software that must be the same on all machines for the bits to be the same."""
        return {"release": __version__, **sweep_build(self._sweeper.kernel.id)}

    def progress(self) -> float:
        """Return the share of the latest sweep that is done; may be called while it runs."""
        return min(self._swept_columns / len(self._dataset.matrix), 1.0)

    def decide(
        self,
        request: SweepRequest,
        view: View,
        place: int,
        candidates: CandidateSet,
        decision: Literal["largest", "at_least", "leaders", "of", "approximately"],
        argument: Any,
    ) -> Answer:
        """Return one decision about the vector at ``place``; the first decision of a request sweeps.

        Parameters
        ----------
        request : SweepRequest
        view : View
        place : int
        candidates : CandidateSet
            Among the features usable under ``view``.
        decision : str
            ``largest``: the ``r`` largest scores, where ``argument`` is ``(r, share)``, and the answer of ``at_least`` for
            ``share`` times their mean, if it is short and needs no reading. ``at_least``: features whose score reaches
            ``argument``, and their gradients. ``leaders``: the ``argument`` best features and their scores. ``of``: gradients of
            the features in ``argument``, see ``candidate_sets.packed``. ``approximately``: the same from the codes of the tier,
            where ``request`` sweeps it.
        """
        with self._lock, one_blas_thread():
            gradients, pool = self._answers(request, view, place, candidates)
            features, numbers, largest, bar = _NO_FEATURES, _NO_NUMBERS, _NO_NUMBERS, math.inf
            if decision == "largest":
                count, share = argument
                largest = gradients.largest(count)
                if not request.tiered and share < math.inf:
                    bar = share * math.fsum(largest.tolist()) / count
                    features = gradients.at_least(bar)
                    numbers = gradients.of(features)
                    if features.nbytes + numbers.nbytes > _OFFER_BYTES:
                        features, numbers, bar = _NO_FEATURES, _NO_NUMBERS, math.inf
            elif decision == "at_least":
                features, bar = gradients.at_least(argument), argument
                numbers = gradients.of(features)
            elif decision == "leaders":
                features, numbers = gradients.leaders(argument)
            else:
                count = self._dataset.n_features
                wanted = features_of(unpacked(argument, count), count)
                numbers = gradients.of(wanted) if decision == "of" else gradients.approximately(wanted)[0]
            return Answer(features, numbers, pool.settle(), largest, bar)

    def rows(self, columns: IndexArray) -> AnyArray:
        """Return the rows ``columns``, numbered within the shard, as (n, n_obs)."""
        with self._lock:
            return self._sweeper.gather(self._dataset.matrix, columns)

    def standardisations(self, views: Sequence[View]) -> list[tuple[Float64Array, Float64Array, list[Float64Array]]]:
        """Return mean, scale and, per width of features of several columns, whitening matrices under each view, in one pass."""
        with self._lock, one_blas_thread():
            self._most_views = max(_VIEWS, len(views) + 2)  # and the two unweighted ones: later questions use all of them
            weights = [view.weights for view in views if view.weights is not None]
            known = self._dataset.knowing(weights)
            found = []
            for view in views:
                design = known.design(view.standardize, view.weights)
                self._remember(view.key, design)
                part = design.standardisation
                found.append((part.mean, part.scale, [group.matrices for group in part.whiteners]))
            return found

    def sidecars(self) -> Sidecars:
        """Return everything of the store except the matrix."""
        store: Any = self._store
        found: Sidecars = store.sidecars
        return found

    def verify(self) -> None:
        """Check every block."""
        try:
            self._store.verify()
        except StoreError as error:
            raise StoreError(f"{self._address.name}: {error}") from error

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _answers(
        self, request: SweepRequest, view: View, place: int, candidates: CandidateSet
    ) -> tuple[LocalGradients, ColumnPool]:
        """Return the answer to one ask, from memory where it was asked about before, and the pool that it reads through."""
        design = self._design(view)  # before the sweep, which must not be repeated because a view was forgotten
        members = self._members(candidates, design)
        vectors, sweep = self._swept(request)
        key = (view.key, place, candidates.key)
        if key not in self._gradients:
            ask = Ask(vectors.wide[place], features_of(members, self._dataset.n_features))
            pool = ColumnPool(design, self._sweeper, Traffic(), PROBE_BYTES)
            self._gradients[key] = sweep.answer([ask], place, pool, self._account)[0], pool
        return self._gradients[key]

    def _swept(self, request: SweepRequest) -> tuple[Vectors, ExactSweep | CertifiedSweep]:
        """Return the vectors and products of a sweep, which is run unless it was the last one."""
        if self._sweep is None or self._sweep[0] != request.key:
            if request.vectors is None:
                raise ForgottenError(f"{self._address.name} does not hold the sweep {request.key}")
            self._gradients.clear()
            self._sweep = None
            self._swept_columns = 0
            tier = self._dataset.tier if request.tiered else None
            if request.tiered and tier is None:
                raise RequestError(f"{self._address.name} has no int8 tier: select with tier exact")
            vectors = Vectors(request.vectors.T, self._dataset.matrix.dtype)
            wide = self._dataset.design(request.standardize).standardisation.wide
            sweep = local_rows(self._dataset.matrix).sweep(self._sweeper, vectors, wide, tier)
            self._sweep = request.key, vectors, sweep
        return self._sweep[1:]

    def _members(self, candidates: CandidateSet, design: Design) -> Bits:
        """Return a set of candidates: from its slot, or by applying the change to its base."""
        count = self._dataset.n_features
        nothing = np.zeros(-(-count // 8), dtype=np.uint8)
        held, members = self._sets.get(candidates.slot, (NOTHING, nothing))
        if held != candidates.key:
            bases = {NOTHING: nothing, USABLE: np.packbits(design.standardisation.usable()), held: members}
            if candidates.change is None or candidates.base not in bases:
                raise ForgottenError(f"{self._address.name} does not hold the candidates {candidates.key.hex()}")
            members = bases[candidates.base] ^ unpacked(candidates.change, count)
            if digest(members) != candidates.key:
                raise StoreError(f"{self._address.name} and its driver disagree about usable features: install the same release")
            self._sets[candidates.slot] = candidates.key, members
        return members

    def _design(self, view: View) -> Design:
        """Return the design under a view, from the cache or computed."""
        if view.key not in self._views:
            if view.weights is None and view.key not in ("plain", "raw"):
                raise ForgottenError(f"{self._address.name} does not hold the weights {view.key}")
            self._remember(view.key, self._dataset.design(view.standardize, view.weights))
        self._views.move_to_end(view.key)
        return self._views[view.key]

    def _remember(self, key: str, design: Design) -> None:
        """Cache the design of a view."""
        self._views[key] = design
        while len(self._views) > self._most_views:
            self._views.popitem(last=False)

    def _count(self, columns: int) -> None:
        """Count columns that a sweep has done; approximate where threads collide."""
        self._swept_columns += columns


_NO_FEATURES = np.empty(0, dtype=np.int64)
_NO_NUMBERS = np.empty(0)


def _counting(implementation: Kernel, count: Callable[[int], None]) -> Kernel:
    """Return a kernel that counts the rows it has multiplied."""

    def dots(rows: AnyArray, residuals: AnyArray, out: Float64Array) -> None:
        implementation.dots(rows, residuals, out)
        count(len(rows))

    def dots_int8(rows: AnyArray, residuals: AnyArray, out: IndexArray) -> None:
        implementation.dots_int8(rows, residuals, out)
        count(len(rows))

    return implementation._replace(dots=dots, dots_int8=dots_int8)
