"""Procedural fairness: enough people find every selected feature fair to use (Grgic-Hlaca et al. 2016, 2018).

People judge features one by one; ``U_s`` is the set of people who accept feature ``s``. The unfairness of a set of features is the
share of people who object to one of them, ``h(T) = 1 - |intersection of U_s over s in T| / |U|``, and a set is allowed when
``h(T) <= lambda``. ``effective_judgements`` computes ``U_s`` from a-priori judgements and from judgements that take into account
what a feature does to accuracy or disparity.

The judgements are stored as bits: row ``w`` of a (words, features) table holds people ``64 w`` to ``64 w + 63``, so a query about a
million candidates is a few passes of AND and population count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints.base import Constraint, first_infeasible
from fastomp_nvm.constraints.checks import array_of, finite_number, mask_of, whole_number
from fastomp_nvm.errors import ConstraintError

__all__ = ["Fairness", "effective_judgements"]

Words = npt.NDArray[np.uint64]

# Candidates per batch: their words and counts stay in the cache of a core.
_BLOCK = 16384


class Fairness(Constraint):
    """Sets of features to which at most the share ``limit`` of the people objects.

    Downward closed, because adding a feature can only add objections; in general not a matroid. ``p`` and ``rank`` are upper
    bounds: every independence system is a p-system with ``p`` its rank.

    Written ``fairness: {judgements: survey.csv, lambda: 0.4}``, one row per person, one column per feature, 1 = finds it fair;
    see :func:`effective_judgements` for ``kind``, ``accuracy``, ``disparity``, ``raises_accuracy`` and ``raises_disparity``.
    ``unlisted: fair`` or ``unfair`` sets the judgement of features without a column.

    Parameters
    ----------
    n_features : int
    judgements : (n_people, n_features) bool
        True where the person finds the feature fair.
    limit : float
        The paper's lambda, from 0 to 1.
    """

    rank_is_bound = True

    def __init__(self, n_features: int, judgements: npt.ArrayLike, limit: float) -> None:
        self.n_features = whole_number(n_features, "the number of features")
        self.limit = finite_number(limit, "lambda", minimum=0, maximum=1)
        table = _checked_table(judgements, "the judgements", self.n_features)
        self.n_people = len(table)
        if not self.n_people:
            raise ConstraintError("the judgements hold no person: expected at least one row")
        # Counted in people, because 1 - 7/10 <= 0.3 is false in floating point.
        self._needed = self.n_people - math.floor(self.limit * self.n_people + 1e-9)
        self._words = _pack(table)
        self._everyone = _pack(np.ones((self.n_people, 1), dtype=np.bool_))[:, 0]
        self.rank = self._find_rank(table)
        self.p = float(max(self.rank, 1))  # the rank is a p for every independence system

    def with_limit(self, limit: float) -> Fairness:
        """Return the same judgements with another limit."""
        return Fairness(self.n_features, _unpack(self._words, self.n_people), limit)

    def unfairness(self, features: IndexArray) -> float:
        """Return ``h(features)``, the share of people who object to one of the features."""
        return 1 - int(_people(self._accepting(features)[:, np.newaxis])[0]) / self.n_people

    def independent(self, features: IndexArray) -> bool:
        """Return whether enough people accept all ``features``."""
        return bool(_people(self._accepting(features)[:, np.newaxis])[0] >= self._needed)

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Name the share of people who object when it exceeds the limit."""
        if self.independent(features):
            return ()
        objecting = self.unfairness(features)
        return (f"{objecting:.1%} of the {self.n_people} people object to a selected feature, at most {self.limit:.1%} may",)

    def burden(self, selected: IndexArray, candidates: IndexArray) -> Float64Array:
        """Return the share of the people who accept ``selected`` but not the candidate."""
        accepting = self._accepting(selected)[:, np.newaxis]
        return np.asarray((_people(accepting)[0] - _people(self._words[:, candidates] & accepting)) / self.n_people)

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Bisect over ``j`` on the people who accept ``selected + sequence[:j]``, all candidates at once."""
        columns = np.column_stack((self._accepting(selected), self._words[:, sequence]))
        levels = np.bitwise_and.accumulate(columns, axis=1)  # (words, len(sequence) + 1)
        blocked = np.full(len(candidates), len(sequence) + 1, dtype=np.int64)
        for start in range(0, len(candidates), _BLOCK):
            block = candidates[start : start + _BLOCK]
            words = np.stack([row[block] for row in self._words])
            # Most candidates are never blocked: decide these by one comparison without a lookup per candidate.
            left = np.flatnonzero(_people(np.bitwise_and(words, levels[:, -1:])) < self._needed)

            def feasible(where: IndexArray, j: IndexArray, words: Words = words[:, left]) -> BoolArray:
                return np.asarray(_people(np.bitwise_and(words[:, where], levels[:, j])) >= self._needed)

            within = blocked[start : start + _BLOCK]
            within[left] = first_infeasible(feasible, np.full(len(left), len(sequence), dtype=np.int64))
        return blocked

    def _accepting(self, features: IndexArray) -> Words:
        """Return the people who accept all ``features``, as bits of (words,)."""
        accepting: Words = self._everyone & np.bitwise_and.reduce(self._words[:, features], axis=1)
        return accepting

    def _find_rank(self, table: BoolArray) -> int:
        """Return an upper bound on the rank.

        At least ``_needed`` people accept every feature of an allowed set, so it is no larger than the ``_needed``-th largest
        number of features that a person accepts, counted over features that enough people accept.
        """
        if not self._needed:
            return self.n_features
        accepted = table[:, table.sum(axis=0) >= self._needed].sum(axis=1)
        return int(np.sort(accepted)[-self._needed])


def effective_judgements(
    apriori: npt.ArrayLike,
    *,
    kind: Literal["apriori", "accuracy", "disparity"] = "apriori",
    accuracy: npt.ArrayLike | None = None,
    disparity: npt.ArrayLike | None = None,
    raises_accuracy: npt.ArrayLike | None = None,
    raises_disparity: npt.ArrayLike | None = None,
) -> BoolArray:
    """Return which person accepts which feature, given the effect of the feature.

    - ``apriori``: the judgement without knowledge of the effect.
    - ``accuracy``: a feature that raises accuracy is accepted if either judgement is fair; any other by the a-priori judgement.
    - ``disparity``: a feature that raises disparity is accepted by the disparity judgement; any other if either judgement is fair.

    Parameters
    ----------
    apriori, accuracy, disparity : (n_people, n_features) bool
        Whether the person finds the feature fair: without knowledge, if it raises accuracy, even if it raises disparity.
    kind : {"apriori", "accuracy", "disparity"}
    raises_accuracy, raises_disparity : (n_features,) bool
        Whether the feature, used alone, raises accuracy or disparity.

    Returns
    -------
    (n_people, n_features) bool
    """
    base = _checked_table(apriori, "the a-priori judgements")
    if kind == "apriori":
        return base
    if kind == "accuracy":
        informed, raises = _informed(kind, accuracy, raises_accuracy, base)
        return base | (informed & raises)
    if kind == "disparity":
        informed, raises = _informed(kind, disparity, raises_disparity, base)
        return np.asarray(np.where(raises, informed, base | informed))
    raise ConstraintError(f"the kind of fairness is {kind!r}: expected 'apriori', 'accuracy' or 'disparity'")


def _informed(kind: str, table: npt.ArrayLike | None, raises: npt.ArrayLike | None, base: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Return the judgements of this kind and the mask of features with the effect, checked against the a-priori judgements."""
    if table is None or raises is None:
        raise ConstraintError(f"fairness of kind {kind!r} needs both {kind!r} judgements and 'raises_{kind}'")
    informed = _checked_table(table, f"the {kind} judgements", base.shape[1])
    if len(informed) != len(base):
        raise ConstraintError(
            f"the {kind} judgements have {len(informed)} rows: expected {len(base)}, one per person, as the a-priori judgements"
        )
    return informed, mask_of(raises, f"'raises_{kind}'", base.shape[1])


def _checked_table(table: npt.ArrayLike, what: str, n_features: int | None = None) -> BoolArray:
    """Return a table of judgements as booleans."""
    array = array_of(table, what)
    if array.ndim != 2 or (n_features is not None and array.shape[1] != n_features):
        expected = "a column per feature" if n_features is None else f"{n_features} columns, one per feature"
        raise ConstraintError(f"{what} have shape {array.shape}: expected a row per person and {expected}")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise ConstraintError(f"{what} hold other values than 0 and 1: expected 1 where the person finds the feature fair")
    return array.astype(np.bool_)


def _pack(table: BoolArray) -> Words:
    """Return a (people, features) table as (words, features) with 64 people per word, in an order of bits known to ``_unpack``."""
    octets = np.packbits(table, axis=0)
    octets = np.pad(octets, ((0, -len(octets) % 8), (0, 0)))
    return np.ascontiguousarray(octets.reshape(len(octets) // 8, 8, table.shape[1]).swapaxes(1, 2)).view(np.uint64)[:, :, 0]


def _unpack(words: Words, n_people: int) -> BoolArray:
    """Return the (people, features) table that was packed."""
    octets = np.ascontiguousarray(words[:, :, np.newaxis]).view(np.uint8).swapaxes(1, 2)
    return np.unpackbits(octets.reshape(8 * len(words), words.shape[1]), axis=0, count=n_people).astype(np.bool_)


def _people(words: Words) -> IndexArray:
    """Return the number of people in each column of (words, c)."""
    return np.asarray(_bit_counts(words).sum(axis=0, dtype=np.int64))


def _swar_bit_counts(words: Words) -> Words:
    """Count the bits of each word by adding neighbouring bit fields, for NumPy before 2.0."""
    counts = words - ((words >> np.uint64(1)) & np.uint64(0x5555_5555_5555_5555))
    counts = (counts & np.uint64(0x3333_3333_3333_3333)) + ((counts >> np.uint64(2)) & np.uint64(0x3333_3333_3333_3333))
    counts = (counts + (counts >> np.uint64(4))) & np.uint64(0x0F0F_0F0F_0F0F_0F0F)
    return np.asarray((counts * np.uint64(0x0101_0101_0101_0101)) >> np.uint64(56))


_bit_counts = getattr(np, "bitwise_count", _swar_bit_counts)
