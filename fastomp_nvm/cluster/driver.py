"""The driver of a selection over shards: questions go to all shards at once, and their decisions are merged.

Merging is exact: the mean of the largest scores is a correctly rounded sum over the union of the shards' largest scores, survivors
are concatenated, and the best feature is the one with the highest score and then the lowest index. With the row-invariant kernel on
every shard the answer has the bits of one store that holds all features.

For a decision a shard receives the change of its candidates (``candidate_sets``) and returns r scores, or its survivors, or one
feature. A call takes milliseconds, so a shard adds to its r scores the likely next answer: algorithms keep the features that reach
some share of the mean of the r largest scores, mostly the same share in every sweep. The mean of one shard is at most that of all,
so the features that reach this share of the shard's own mean contain its survivors.

Vectors, weights and candidates are sent once and referred to by key afterwards; a restarted shard raises ``ForgottenError`` and is
sent them again. A ``Transport`` carries the calls.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NoReturn, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from fastomp_nvm.arrays import AnyArray, BoolArray, DType, Float64Array, IndexArray, RowIndex
from fastomp_nvm.cluster.candidate_sets import Bits, ShardedCandidates, Slot, packed
from fastomp_nvm.cluster.shard import Answer, ForgottenError, ShardAddress, SweepRequest, View
from fastomp_nvm.errors import RequestError
from fastomp_nvm.matrix.gradients import Ask, ExactColumns, Gradients, Sweep, first_places, largest
from fastomp_nvm.matrix.rows import Network, Rows
from fastomp_nvm.matrix.standardisation import Standardisation, Whitener, column_index
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.matrix.tier import Tier, TierAccount
from fastomp_nvm.stores.contract import Sidecars

__all__ = ["ShardedRows", "Transport", "payload_bytes"]

#: Bytes of columns requested from one shard at a time: bounds the use of the object store.
GATHER_BYTES = 32 << 20


class Transport(Protocol):
    """Carries calls to shards."""

    def share(self, value: Any) -> Any:
        """Store a value for all shards; return a handle to pass to ``call``. Small values are returned unchanged."""
        ...

    def call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method of :class:`~fastomp_nvm.cluster.shard.Shard` on several shards at once; return the result of each.

        Raises a ``FastompError`` that names the shard when one cannot answer, in bounded time.
        """
        ...

    def watch(self, report: Callable[[Sequence[float]], None] | None) -> None:
        """Call ``report`` while waiting, with the share of its sweep that each shard has done."""
        ...

    def close(self) -> None:
        """Release the shards."""
        ...


class ShardedRows(Rows):
    """The matrix of a sharded store.

    Parameters
    ----------
    addresses : sequence of ShardAddress
        In the order of their columns.
    shape : (int, int)
    dtype : dtype
    connect : callable
        Returns the transport; called at the first question.
    """

    on_device = True
    network: Network

    def __init__(
        self,
        addresses: Sequence[ShardAddress],
        shape: tuple[int, int],
        dtype: DType,
        connect: Callable[[], Transport],
    ) -> None:
        super().__init__(shape, dtype)
        self.network = Network()  # shared by all views of the same rows
        self.addresses = tuple(addresses)
        self.first_features = np.array([0, *(address.features[1] for address in addresses)], dtype=np.int64)
        self._columns = np.array([0, *(address.columns[1] for address in addresses)], dtype=np.int64)
        self.connection = _Connection(connect)
        self.connection.views[self] = View("plain")

    def under(self, standardize: bool, weights: Float64Array | None) -> ShardedRows:
        """Return these rows under another standardisation."""
        if standardize and weights is None:
            return self
        other = copy.copy(self)
        self.connection.views[other] = View("raw") if not standardize else _weighted_view(weights)
        return other

    def gather(self, columns: IndexArray, out: AnyArray, sweeper: Sweeper | None = None) -> None:
        """Copy the rows ``columns``, in their order, into ``out``."""
        step = max(GATHER_BYTES // max(self.shape[1] * self.itemsize, 1), 1)
        owners = np.searchsorted(self._columns, columns, side="right") - 1
        owned = {int(shard): np.flatnonzero(owners == shard) for shard in np.unique(owners)}
        for first in range(0, max(map(len, owned.values()), default=0), step):
            now = {shard: here[first : first + step] for shard, here in owned.items() if first < len(here)}
            wanted = {shard: (columns[here] - self._columns[shard],) for shard, here in now.items()}
            for shard, rows in self._call("rows", wanted).items():
                out[now[shard]] = rows
                self.network.bytes_received_columns += rows.nbytes

    def standardisations(self, weights: Sequence[Float64Array], plain: Standardisation) -> list[Standardisation]:
        """Compute the standardisation under each of ``weights`` in one pass over all shards."""
        views = [_weighted_view(each) for each in weights]
        shared = self._share(views)
        parts = self._call("standardisations", dict.fromkeys(range(len(self.addresses)), (shared,)))
        for shard in parts:
            self.connection.sent[shard] |= {view.key for view in views}
        found = []
        for place in range(len(views)):
            mean, scale = (np.concatenate([parts[shard][place][kind] for shard in sorted(parts)]) for kind in (0, 1))
            found.append(Standardisation(plain.offsets, mean, scale, plain.wide, self._whiteners(plain, parts, place)))
        return found

    def in_memory(self) -> NoReturn:
        """Refuse: the matrix may be larger than one machine."""
        raise RequestError("the matrix of a cluster stays with its shards and is not copied to one machine: leave --load out")

    def __getitem__(self, index: RowIndex) -> AnyArray:
        columns = np.arange(len(self))[index]
        out = np.empty((columns.size, self.shape[1]), dtype=self.dtype)
        self.gather(np.atleast_1d(columns), out)
        return out[0] if columns.ndim == 0 else out

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        self.in_memory()

    def sweep(self, sweeper: Sweeper, vectors: Vectors, wide: BoolArray, tier: Tier | None = None) -> Sweep:
        """Send the vectors; the shards sweep with them at the first decision."""
        request = SweepRequest(secrets.token_hex(8), vectors.wide, tier is not None, self.connection.views[self].standardize)
        return _ShardedSweep(self, _Named(request.key, self._share(request), replace(request, vectors=None)))

    def decide(
        self,
        request: _Named,
        place: int,
        candidates: ShardedCandidates,
        decision: str,
        arguments: Mapping[int, Any],
        pool: ExactColumns,
    ) -> dict[int, Answer]:
        """Return a decision of each shard, given its argument; count the columns they read for the run."""
        asked_under, sent = self.connection.views[pool.design.matrix], self.connection.sent
        view = self.connection.shared_views.get(pool.design.matrix)
        if view is None:
            view = _Named(asked_under.key, self._share(asked_under), View(asked_under.key))
            self.connection.shared_views[pool.design.matrix] = view

        def messages(again: bool) -> dict[int, tuple[Any, ...]]:
            """Return the arguments of each shard: keys of values sent before, whole values otherwise."""
            return {
                shard: (
                    *(each.whole if again or each.key not in sent[shard] else each.stub for each in (request, view)),
                    place,
                    candidates.message(shard, again),
                    decision,
                    argument,
                )
                for shard, argument in arguments.items()
            }

        try:
            answers: dict[int, Answer] = self._call("decide", messages(again=False))
        except ForgottenError:  # a shard was restarted
            answers = self._call("decide", messages(again=True))
        for shard, found in answers.items():
            sent[shard] |= {request.key, view.key}
            candidates.sent(shard)
            pool.count_probe(found.traffic)
        return dict(sorted(answers.items()))

    def masks(self, features: BoolArray) -> list[Bits]:
        """Split a mask of all features by shard."""
        return [np.packbits(part) for part in np.split(features, self.first_features[1:-1])]

    def sidecars(self, shards: Sequence[int]) -> dict[int, Sidecars]:
        """Return everything except the matrix of some shards."""
        return self._call("sidecars", dict.fromkeys(shards, ()))

    def verify(self) -> None:
        """Verify the blocks of every shard."""
        self._call("verify", dict.fromkeys(range(len(self.addresses)), ()))

    def watch(self, report: Callable[[Sequence[float]], None] | None) -> None:
        """Call ``report`` during a sweep with the share that each shard has done."""
        self.connection.watch(report)

    def close(self) -> None:
        """Release the shards."""
        self.connection.close()

    def _whiteners(self, plain: Standardisation, parts: Mapping[int, Any], place: int) -> tuple[Whitener, ...]:
        """Return the whitening matrices of all shards, grouped as in the whole store."""
        widths = np.diff(plain.offsets)
        whole = []
        for group in plain.whiteners:
            width = group.columns.shape[1]
            matrices = []
            for shard in sorted(parts):
                mine = widths[self.first_features[shard] : self.first_features[shard + 1]]
                kinds = np.unique(mine[mine > 1]).tolist()
                if width in kinds:
                    matrices.append(parts[shard][place][2][kinds.index(width)])
            whole.append(Whitener(group.features, group.columns, np.concatenate(matrices)))
        return tuple(whole)

    def _share(self, value: Any) -> Any:
        """Share a value, counted once per shard; a value sent with the calls instead is counted there."""
        shared = self.connection.transport.share(value)
        self.network.bytes_sent += payload_bytes(value) * len(self.addresses) if shared is not value else 0
        return shared

    def _call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call shards, counted."""
        results = self.connection.transport.call(method, arguments)
        self.network.shard_calls += 1
        self.network.bytes_sent += sum(map(payload_bytes, arguments.values()))
        self.network.bytes_received += sum(map(payload_bytes, results.values()))
        return results


@dataclass(frozen=True, slots=True)
class _Named:
    """A value that shards are sent once: its key, the value (or a handle), and the short form sent afterwards."""

    key: str
    whole: Any
    stub: Any


@dataclass(slots=True)
class _Shares:
    """Lowest threshold, as a share of the mean of the largest scores: of the previous sweep, and of this one."""

    likely: float = math.inf
    lowest: float = math.inf


class _Connection:
    """A transport that is created on first use, shared by all views of the same rows."""

    def __init__(self, connect: Callable[[], Transport]) -> None:
        self._connect = connect
        self._transport: Transport | None = None
        self._report: Callable[[Sequence[float]], None] | None = None
        self.sent: defaultdict[int, set[str]] = defaultdict(set)  # keys of the values each shard was sent
        self.shares = _Shares()
        self.views: WeakKeyDictionary[Rows, View] = WeakKeyDictionary()  # the standardisation behind each view of the rows
        self.shared_views: WeakKeyDictionary[Rows, _Named] = WeakKeyDictionary()  # views that were sent to the shards
        self._slots: WeakKeyDictionary[ExactColumns, list[Slot]] = WeakKeyDictionary()  # of runs in flight, by their pools

    @property
    def transport(self) -> Transport:
        """The transport."""
        if self._transport is None:
            self._transport = self._connect()
            self._transport.watch(self._report)
        return self._transport

    def slots(self, pool: ExactColumns, count: int) -> list[Slot]:
        """Return slots for the asks of a run: its own, then unused ones with low numbers, so that shards keep few sets."""
        mine = self._slots.setdefault(pool, [])
        if len(mine) < count:
            taken = {slot.number for slots in self._slots.values() for slot in slots}
            unused = (number for number in itertools.count() if number not in taken)
            mine += [Slot(next(unused), {}) for _ in range(count - len(mine))]
        return mine

    def watch(self, report: Callable[[Sequence[float]], None] | None) -> None:
        """Call ``report`` while waiting."""
        self._report = report
        if self._transport is not None:
            self._transport.watch(report)

    def close(self) -> None:
        """Release the transport."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            self.sent.clear()
            self.shared_views.clear()
            self._slots.clear()


class _ShardedSweep(Sweep):
    """One sweep on all shards."""

    def __init__(self, rows: ShardedRows, request: _Named) -> None:
        self._rows = rows
        self._request = request
        self._shares = rows.connection.shares = _Shares(rows.connection.shares.lowest)

    def answer(
        self, asks: Sequence[Ask], first: int, pool: ExactColumns, account: TierAccount | None = None
    ) -> Sequence[Gradients]:
        """Return the answers, decided by the shards under the standardisation of the run."""
        rows = self._rows
        slots = rows.connection.slots(pool, len(asks))
        return [
            _ShardedGradients(rows, self._request, first + place, ask, pool, self._shares, slots[place])
            for place, ask in enumerate(asks)
        ]


class _ShardedGradients(Gradients):
    """The answer to one ask, from all shards."""

    def __init__(
        self, rows: ShardedRows, request: _Named, place: int, ask: Ask, pool: ExactColumns, shares: _Shares, slot: Slot
    ) -> None:
        self._rows = rows
        self._request = request
        self._place = place
        self._pool = pool
        usable = pool.design.standardisation.usable()
        members = np.zeros_like(usable)
        members[ask.candidates] = True
        mine = rows.masks(members)
        self._candidates = ShardedCandidates(slot, mine, rows.masks(usable))
        self._asked = [shard for shard, few in enumerate(mine) if few.any()]
        self._count = len(ask.candidates)
        self._shares = shares
        self._mean = 0.0  # of the largest scores, once requested
        self._reaching: dict[int, Answer] = {}  # features that reach a bar, by shard
        self._known: tuple[IndexArray, Float64Array] | None = None  # survivors and their gradient

    def top_mean(self, count: int) -> float:
        """Return the mean of the ``count`` largest scores (of all, when there are fewer)."""
        count = min(count, self._count)
        if count == 0:
            return 0.0
        self._reaching = self._decide("largest", (count, self._shares.likely))
        scores = np.concatenate([found.largest for found in self._reaching.values()])
        self._mean = math.fsum(largest(scores, count).tolist()) / count
        return self._mean

    def at_least(self, threshold: float) -> IndexArray:
        """Return the candidates whose score reaches ``threshold``, ascending."""
        if self._mean > 0.0:  # slightly less, so that rounding does not raise a bar above the threshold
            self._shares.lowest = min(self._shares.lowest, threshold / self._mean * (1.0 - 1e-12))
        if not self._reaching or not all(found.bar <= threshold for found in self._reaching.values()):
            self._reaching = self._decide("at_least", threshold)
        answers = self._reaching
        features = np.concatenate(
            [_NOTHING, *(found.features + self._rows.first_features[shard] for shard, found in answers.items())]
        )
        gradient = np.concatenate([np.empty(0), *(found.numbers for found in answers.values())])
        standardisation = self._pool.design.standardisation.subset(features)
        kept = standardisation.scores(gradient[:, None])[:, 0] >= threshold
        features, gradient = features[kept], gradient[np.repeat(kept, np.diff(standardisation.offsets))]
        self._known = features, gradient
        return features

    def leaders(self, count: int) -> tuple[IndexArray, Float64Array]:
        """Return the candidates with the ``count`` largest scores, best first, and their scores."""
        answers = self._decide("leaders", count)
        features = np.concatenate([found.features + self._rows.first_features[shard] for shard, found in answers.items()])
        scores = np.concatenate([found.numbers for found in answers.values()])
        # Shards come in the order of their features, so the first of equals is the one with the lowest index.
        first = first_places(scores, count)
        return features[first], scores[first]

    def of(self, features: IndexArray) -> Float64Array:
        """Return the gradient of the columns of ``features``, in their order."""
        if self._known is not None and np.array_equal(self._known[0], features):
            return self._known[1]
        return self._gradient(features, "of")

    def approximately(self, features: IndexArray) -> tuple[Float64Array, bool]:
        """Return the gradient of ``features``, from the tiers where the shards swept these."""
        return self._gradient(features, "approximately"), not self._request.stub.tiered

    def _gradient(self, features: IndexArray, decision: str) -> Float64Array:
        """Return the gradient of the columns of ``features``, in their order, as the shards decide ``of`` or ``approximately``."""
        ascending = np.unique(features)
        members = np.zeros(self._pool.design.standardisation.n_features, dtype=np.bool_)
        members[ascending] = True
        wanted = {shard: packed(part) for shard, part in enumerate(self._rows.masks(members)) if part.any()}
        answers = self._rows.decide(self._request, self._place, self._candidates, decision, wanted, self._pool)
        gradient = np.concatenate([np.empty(0), *(found.numbers for found in answers.values())])
        if np.array_equal(ascending, features):
            return gradient
        widths = np.diff(self._pool.design.standardisation.offsets)[ascending]
        offsets = np.concatenate(([0], np.cumsum(widths)))
        return gradient[column_index(offsets, np.searchsorted(ascending, features))]

    def _decide(self, decision: str, argument: Any) -> dict[int, Answer]:
        """Ask every shard that has candidates."""
        arguments = dict.fromkeys(self._asked, argument)
        return self._rows.decide(self._request, self._place, self._candidates, decision, arguments, self._pool)


_NOTHING = np.empty(0, dtype=np.int64)


def _weighted_view(weights: Float64Array | None) -> View:
    """Return the view under ``weights``, with a digest of them as key."""
    assert weights is not None
    return View(hashlib.blake2b(weights.tobytes(), digest_size=16).hexdigest(), weights)


def payload_bytes(value: Any) -> int:
    """Return the payload size of a value: arrays, bytes and text by length, numbers as 8 bytes, handles as 0."""
    if isinstance(value, (np.ndarray, np.generic)):
        return int(value.nbytes)
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, (bool, int, float)):
        return 8
    if isinstance(value, (tuple, list)):
        return sum(map(payload_bytes, value))
    if isinstance(value, dict):
        return sum(map(payload_bytes, value.values()))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(payload_bytes(getattr(value, field.name)) for field in fields(value))
    return 0
