"""Procedural fairness: enough people find every selected feature fair to use (Grgic-Hlaca et al. 2016, 2018).

People judge features one by one. ``U_s`` are those who accept feature ``s``; the unfairness of a set is the share of people who
object to one of its features, ``h(T) = 1 - |intersection of U_s| / |U|``, and a set is allowed when ``h(T) <= lambda``. Only who
accepts what matters here; where the judgements come from (a priori, or knowing what a feature does to accuracy or disparity) is
settled before, by ``effective_judgements``.

People are bits of 64-bit words, features stand side by side in each word's row, so a question about a million candidates is a few
passes of AND and population count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from fastomp_nvm.arrays import BoolArray, IndexArray
from fastomp_nvm.constraints.base import Constraint
from fastomp_nvm.constraints.checks import array_of, finite_number, whole_number
from fastomp_nvm.errors import ConstraintError

if TYPE_CHECKING:
    from fastomp_nvm.constraints.written.document import Item
    from fastomp_nvm.constraints.written.setting import Setting

__all__ = ["Fairness", "effective_judgements"]

Words = npt.NDArray[np.uint64]

# Candidates answered at a time: their words, levels and counts stay in the cache of a core.
_BLOCK = 16384


class Fairness(Constraint):
    """Sets of features to which at most the share ``limit`` of the people objects.

    Downward closed, because more features can only find more objections; in general no matroid. ``p`` and ``rank`` are upper
    bounds: every system is a p-system with ``p`` its rank.

    Written ``fairness: {judgements: survey.csv, lambda: 0.4}``, one row per person, one column per feature, 1 = finds it fair;
    see :func:`effective_judgements` for ``kind``, ``accuracy``, ``disparity``, ``raises_accuracy`` and ``raises_disparity``.
    ``unlisted: fair`` or ``unfair`` decides about features that the survey does not ask about.

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
        # In whole people: 1 - 7/10 <= 0.3 is false in floating point.
        self._needed = self.n_people - math.floor(self.limit * self.n_people + 1e-9)
        self._words = _pack(table)
        self._everyone = _pack(np.ones((self.n_people, 1), dtype=np.bool_))[:, 0]
        self._rank = self._find_rank(table)

    @classmethod
    def from_description(cls, item: Item, setting: Setting) -> Fairness:
        """Read ``fairness: {judgements, lambda, kind, accuracy, disparity, raises_accuracy, raises_disparity, unlisted}``."""
        tables, masks = ("accuracy", "disparity"), ("raises_accuracy", "raises_disparity")
        fields = item.fields("judgements", "lambda", optional=("kind", "unlisted", *tables, *masks))
        unlisted = fields["unlisted"].choice("error", "fair", "unfair") if "unlisted" in fields else "error"
        kind = fields["kind"].choice("apriori", "accuracy", "disparity") if "kind" in fields else "apriori"
        judgements = effective_judgements(
            setting.judgements(fields["judgements"], unlisted=unlisted),
            kind=kind,  # type: ignore[arg-type]  # choice returned one of the three
            **{name: setting.judgements(fields[name], unlisted=unlisted) for name in tables if name in fields},
            **{name: setting.mask(fields[name]) for name in masks if name in fields},
        )
        return cls(len(setting.names), judgements, fields["lambda"].number())

    @property
    def rank(self) -> int:
        """An upper bound: the people who agree on a set accept each of its features, and so many of them are needed."""
        return self._rank

    @property
    def p(self) -> float:
        """The bound on the rank, which is a ``p`` for every system."""
        return float(max(self._rank, 1))

    def with_limit(self, limit: float) -> Fairness:
        """Return the same judgements with another limit."""
        return Fairness(self.n_features, _unpack(self._words, self.n_people), limit)

    def unfairness(self, features: IndexArray) -> float:
        """Return ``h(features)``, the share of people who object to one of them."""
        return 1 - int(_people(self._accepting(features)[:, np.newaxis])[0]) / self.n_people

    def independent(self, features: IndexArray) -> bool:
        """Tell whether enough people accept all of them."""
        return bool(_people(self._accepting(features)[:, np.newaxis])[0] >= self._needed)

    def violations(self, features: IndexArray) -> Sequence[str]:
        """Say what share of the people objects."""
        if self.independent(features):
            return ()
        objecting = self.unfairness(features)
        return (f"{objecting:.1%} of the {self.n_people} people object to a selected feature, at most {self.limit:.1%} may",)

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Bisect in lockstep over who still accepts ``selected + sequence[:j]``, a shrinking set of people per ``j``."""
        columns = np.column_stack((self._accepting(selected), self._words[:, sequence]))
        levels = np.bitwise_and.accumulate(columns, axis=1)  # (words, len(sequence) + 1)
        blocked = np.empty(len(candidates), dtype=np.int64)
        for start in range(0, len(candidates), _BLOCK):
            block = candidates[start : start + _BLOCK]
            words = np.stack([row[block] for row in self._words])
            agreed = _people(np.bitwise_and(words, levels[:, -1:])) >= self._needed
            low = np.where(agreed, len(sequence) + 1, 0)
            high = np.where(agreed, len(sequence) + 1, len(sequence))
            while (open_ := np.flatnonzero(low < high)).size:
                middle = (low[open_] + high[open_]) // 2
                feasible = _people(np.bitwise_and(words[:, open_], levels[:, middle])) >= self._needed
                low[open_] = np.where(feasible, middle + 1, low[open_])
                high[open_] = np.where(feasible, high[open_], middle)
            blocked[start : start + _BLOCK] = low
        return blocked

    def _accepting(self, features: IndexArray) -> Words:
        """Return the people who accept all ``features``, as words."""
        accepting: Words = self._everyone & np.bitwise_and.reduce(self._words[:, features], axis=1)
        return accepting

    def _find_rank(self, table: BoolArray) -> int:
        """Bound the rank by what the needed people accept, over features that enough people accept."""
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
    """Return who accepts which feature, given what the feature does.

    - ``apriori``: the judgement without further knowledge.
    - ``accuracy``: a person also accepts a feature that raises accuracy, if they find it fair given that it does.
    - ``disparity``: a feature that raises disparity needs the judgement given that it does; for any other, either will do.

    Parameters
    ----------
    apriori, accuracy, disparity : (n_people, n_features) bool
        Who finds the feature fair: knowing nothing, if it raises accuracy, even if it raises disparity.
    kind : {"apriori", "accuracy", "disparity"}
    raises_accuracy, raises_disparity : (n_features,) bool
        Whether the feature alone does so.

    Returns
    -------
    (n_people, n_features) bool
    """
    base = _checked_table(apriori, "the a-priori judgements")
    if kind == "apriori":
        return base
    if kind == "accuracy":
        told, raises = _told(kind, accuracy, raises_accuracy, base)
        return base | (told & raises)
    if kind == "disparity":
        told, raises = _told(kind, disparity, raises_disparity, base)
        return np.asarray(np.where(raises, told, base | told))
    raise ConstraintError(f"the kind of fairness is {kind!r}: expected 'apriori', 'accuracy' or 'disparity'")


def _told(kind: str, table: npt.ArrayLike | None, raises: npt.ArrayLike | None, base: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Return the second table of judgements and the features it is about, checked against the first."""
    if table is None or raises is None:
        raise ConstraintError(f"fairness of kind {kind!r} needs both {kind!r} judgements and 'raises_{kind}'")
    told = _checked_table(table, f"the {kind} judgements", base.shape[1])
    if len(told) != len(base):
        raise ConstraintError(
            f"the {kind} judgements are of {len(told)} people: expected the {len(base)} of the a-priori judgements"
        )
    mask = array_of(raises, f"'raises_{kind}'")
    if mask.shape != (base.shape[1],) or mask.dtype != np.bool_:
        raise ConstraintError(f"'raises_{kind}' has shape {mask.shape} and type {mask.dtype}: expected {base.shape[1]} booleans")
    return told, mask


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
    """Return a (people, features) table as (words, features), 64 people a word; the order of bits does not matter."""
    octets = np.packbits(table, axis=0)
    octets = np.pad(octets, ((0, -len(octets) % 8), (0, 0)))
    return np.ascontiguousarray(octets.reshape(len(octets) // 8, 8, table.shape[1]).swapaxes(1, 2)).view(np.uint64)[:, :, 0]


def _unpack(words: Words, n_people: int) -> BoolArray:
    """Return the table that ``_pack`` was given."""
    octets = np.ascontiguousarray(words[:, :, np.newaxis]).view(np.uint8).swapaxes(1, 2)
    return np.unpackbits(octets.reshape(8 * len(words), words.shape[1]), axis=0, count=n_people).astype(np.bool_)


def _people(words: Words) -> IndexArray:
    """Count the bits of each column of (words, c)."""
    return np.asarray(_bit_counts(words).sum(axis=0, dtype=np.int64))


def _swar_bit_counts(words: Words) -> Words:
    """Count the bits of each word by adding neighbours, for NumPy before 2.0."""
    counts = words - ((words >> np.uint64(1)) & np.uint64(0x5555_5555_5555_5555))
    counts = (counts & np.uint64(0x3333_3333_3333_3333)) + ((counts >> np.uint64(2)) & np.uint64(0x3333_3333_3333_3333))
    counts = (counts + (counts >> np.uint64(4))) & np.uint64(0x0F0F_0F0F_0F0F_0F0F)
    return np.asarray((counts * np.uint64(0x0101_0101_0101_0101)) >> np.uint64(56))


_bit_counts = getattr(np, "bitwise_count", _swar_bit_counts)
