"""Lower bounds together with other constraints: the sets that can still be completed to one that satisfies all of them.

The sets that meet lower bounds are not downward closed; their subsets are. So a set is independent when it is *extendable*:
features can be added such that every lower bound is met and no other constraint is broken. The relaxation of :class:`Bounds` alone
reserves places and knows nothing of a budget or of caps on other groups. The look-ahead is

* exact beside a knapsack: the cheapest features that fill up every group;
* exact beside caps on other groups: a flow from the groups that lack features, through the features, to the groups with room. All
  features with the same two groups share one answer, and one flow answers for all of them;
* otherwise a search of bounded effort. A question that it leaves open counts as feasible and is counted in ``open_questions``. The
  selection may then end in a set without completion; ``repaired`` returns one that has been completed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import numpy as np

from fastomp_nvm.arrays import BoolArray, Float64Array, IndexArray
from fastomp_nvm.constraints.base import Constraint, first_infeasible
from fastomp_nvm.constraints.bounds import Bounds
from fastomp_nvm.constraints.cardinality import Cardinality
from fastomp_nvm.constraints.groups import CappedGroups
from fastomp_nvm.constraints.intersection import Intersection, parts_of
from fastomp_nvm.constraints.knapsack import BUDGET_TICKS, Knapsack

__all__ = ["Extendable", "intersect"]

#: Partial completions looked at by a search: about a set whose answer serves many candidates, about a single set, in a repair.
#: Whether a set is independent depends on the set alone, never on the query it is part of.
SHARED, SINGLE, REPAIR = 300, 50, 3000

_NOTHING = np.empty(0, dtype=np.int64)


def intersect(parts: Iterable[Constraint], usable: BoolArray | None = None) -> Constraint:
    """Return the intersection of ``parts`` such that its maximal sets meet lower bounds; a single part is returned unchanged.

    A cardinality below the total of :class:`Bounds` becomes that total, so that places are reserved for the lower bounds; beside
    other parts the intersection is :class:`Extendable`. The sets that satisfy all parts as written stay the same. Where there are
    none, the result is a plain :class:`Intersection`, whose maximal sets break the bounds.

    Parameters
    ----------
    parts : iterable of Constraint
    usable : (n_features,) bool, optional
        Features that can be selected.

    Returns
    -------
    Constraint
    """
    given = [inner for part in parts for inner in parts_of(part)]
    k = min((part.k for part in given if isinstance(part, Cardinality)), default=None)
    if k is not None:
        given = [part.with_total(k) if isinstance(part, Bounds) and k < part.total else part for part in given]
    if len(given) == 1:
        return given[0]
    plain = Intersection(given)
    if not plain.needs_base or sum(not isinstance(part, Cardinality) for part in given) == 1:
        return plain
    extendable = Extendable(given, usable)
    return extendable if extendable.independent(_NOTHING) else plain


class LookAhead(Protocol):
    """Whether sets can be completed, given lower bounds and one other constraint."""

    def extendable(self, selected: IndexArray) -> bool:
        """Return whether ``selected`` has a completion; it is independent in both constraints."""
        ...

    def allowed(self, selected: IndexArray, candidates: IndexArray) -> BoolArray:
        """Return, per candidate, whether ``selected`` with it has a completion; both constraints allow it."""
        ...


class Extendable(Intersection):
    """Subsets of the sets that satisfy all parts as written. The rank is an upper bound.

    Parameters
    ----------
    parts : sequence of Constraint
        At least one :class:`Bounds` with lower bounds; a cardinality is at least its total.
    usable : (n_features,) bool, optional
        Features that can be selected.
    """

    def __init__(self, parts: Sequence[Constraint], usable: BoolArray | None = None) -> None:
        super().__init__(parts)
        self.p = float(max(self.rank, 1))  # the rank is a p for every independence system
        self.open_questions = 0
        self._bounds = [part for part in self.parts if isinstance(part, Bounds) and part.needs_base]
        self._usable = np.logical_and.reduce([part.usable for part in self._bounds])
        if usable is not None:
            self._usable = self._usable & usable
        others = [part for part in self.parts if part not in self._bounds and not isinstance(part, Cardinality)]
        self._ahead: list[LookAhead] = []
        for bounds in self._bounds:
            for part in others:
                if isinstance(part, Knapsack):
                    self._ahead.append(_CheapestCompletion(bounds, part, self._usable))
                elif isinstance(part, CappedGroups):
                    self._ahead.append(_Flow(bounds, part, self._usable))
        self._exact = len(self._bounds) == len(others) == len(self._ahead) == 1

    def independent(self, features: IndexArray) -> bool:
        """Return whether ``features`` can be completed; True where the search leaves it open."""
        if not (super().independent(features) and all(ahead.extendable(features) for ahead in self._ahead)):
            return False
        return self._exact or self._search(features, SINGLE) is not False

    def independent_many(self, sets: Sequence[IndexArray]) -> BoolArray:
        """Return ``independent`` of each set."""
        return Constraint.independent_many(self, sets)

    def longest_prefix(self, selected: IndexArray, sequence: IndexArray) -> int:
        """Return the longest prefix that can be completed, of those that all parts allow."""
        prefix = super().longest_prefix(selected, sequence)
        return Constraint.longest_prefix(self, selected, sequence[:prefix])

    def repaired(self, selected: IndexArray) -> IndexArray | None:
        """Return a set that meets all parts as written, keeping the beginning of ``selected`` where possible; None without."""
        for kept in range(len(selected), -1, -1):
            found = self._search(selected[:kept], REPAIR)
            if isinstance(found, np.ndarray):
                repaired = np.concatenate((selected[:kept], found))
                for feature in np.setdiff1d(selected[kept:], repaired):
                    if self._fit(repaired, np.array([feature]))[0]:
                        repaired = np.append(repaired, feature)
                return repaired
        return None

    def _first_blocked(self, selected: IndexArray, sequence: IndexArray, candidates: IndexArray) -> IndexArray:
        """Ask about all candidates at the end of the sequence, then bisect those that are blocked there, many in each query."""
        union = np.concatenate((selected, sequence))
        blocked = np.full(len(candidates), len(sequence) + 1, dtype=np.int64)
        left = np.flatnonzero(~self._allowed(union, candidates))

        def feasible(where: IndexArray, j: IndexArray) -> BoolArray:
            allowed = np.empty(len(where), dtype=np.bool_)
            for size in np.unique(j).tolist():
                here = j == size
                allowed[here] = self._allowed(union[: len(selected) + size], candidates[left[where[here]]])
            return allowed

        blocked[left] = first_infeasible(feasible, np.full(len(left), len(sequence), dtype=np.int64))
        return blocked

    def _fit(self, selected: IndexArray, candidates: IndexArray) -> BoolArray:
        """Return, per candidate outside ``selected``, whether no part and no exact look-ahead refuses it."""
        fit = super()._first_blocked(selected, _NOTHING, candidates) > 0
        for ahead in self._ahead if self._lacks(selected) else ():
            left = np.flatnonzero(fit)
            fit[left] = ahead.allowed(selected, candidates[left])
        return fit

    def _allowed(self, selected: IndexArray, candidates: IndexArray) -> BoolArray:
        """Return, per candidate outside ``selected``, whether the two together can be completed; True where it is left open."""
        allowed = self._fit(selected, candidates)
        if self._exact or not allowed.any() or not self._lacks(selected):
            return allowed
        found = self._search(selected, SHARED)
        if found is False:
            return np.zeros(len(candidates), dtype=np.bool_)
        open_ = np.flatnonzero(allowed)
        if found is not None:
            open_ = open_[~self._completed_by(found, selected, candidates[open_])]
        for place in open_.tolist():
            allowed[place] = self._search(np.append(selected, candidates[place]), SINGLE) is not False
        return allowed

    def _lacks(self, selected: IndexArray) -> bool:
        """Return whether ``selected`` misses a lower bound; otherwise there is nothing to look ahead for."""
        return any(part.lacking(selected) for part in self._bounds)

    def _completed_by(self, completion: IndexArray, selected: IndexArray, candidates: IndexArray) -> BoolArray:
        """Return, per candidate, whether it fits beside a completion of ``selected``, or in place of one of its features."""
        whole, fits = np.concatenate((selected, completion)), np.isin(candidates, completion)
        left = np.flatnonzero(~fits)
        fits[left] = super()._first_blocked(whole, _NOTHING, candidates[left]) > 0
        for feature in completion.tolist():
            same = [part.groups[candidates] == part.groups[feature] for part in self._bounds]
            left = np.flatnonzero(~fits & np.logical_and.reduce(same))
            fits[left] = super()._first_blocked(whole[whole != feature], _NOTHING, candidates[left]) > 0
        return fits

    def _search(self, selected: IndexArray, most: int) -> IndexArray | Literal[False] | None:
        """Return features that complete ``selected``; False where there are none, None after ``most`` partial completions."""
        effort = [most]
        found = self._completion(selected, effort, self._usable.copy())
        if found is not None:
            return found
        if effort[0] > 0:
            return False
        self.open_questions += 1
        return None

    def _completion(self, selected: IndexArray, effort: list[int], untried: BoolArray) -> IndexArray | None:
        """Return ``untried`` features that complete ``selected``; None without, which is a proof while effort is left."""
        lacking = [(part, group, lack) for part in self._bounds for group, lack in part.lacking(selected)]
        if not lacking:
            return _NOTHING
        effort[0] -= 1
        if effort[0] <= 0:
            return None
        wanted = np.logical_or.reduce([part.groups == group for part, group, _ in lacking]) & untried
        wanted[selected] = False
        members = np.flatnonzero(wanted)
        members = members[self._fit(selected, members)]
        choices = [members[part.groups[members] == group] for part, group, _ in lacking]
        spare = [len(options) - lack for options, (_, _, lack) in zip(choices, lacking, strict=True)]
        if min(spare) < 0:
            return None
        options = choices[spare.index(min(spare))]  # the group with the least choice comes first
        untried = untried.copy()
        for feature in options[np.argsort(self.burden(selected, options), kind="stable")][: min(spare) + 1].tolist():
            found = self._completion(np.append(selected, feature), effort, untried)
            if found is not None:
                return np.append(feature, found)
            if effort[0] <= 0:
                return None
            untried[feature] = False
        return None


class _CheapestCompletion:
    """Lower bounds beside a knapsack: what the cheapest features cost that fill up every group.

    A candidate of a group that lacks features takes the place of the dearest of these, if it is not among them already.
    """

    def __init__(self, bounds: Bounds, knapsack: Knapsack, usable: BoolArray) -> None:
        self._bounds, self._ticks = bounds, knapsack.ticks
        self._cheapest = []  # usable features of each group, ascending by cost
        for group in range(len(bounds.lower)):
            members = np.flatnonzero(usable & (bounds.groups == group)) if bounds.lower[group] else _NOTHING
            self._cheapest.append(members[np.argsort(self._ticks[members], kind="stable")])

    def extendable(self, selected: IndexArray) -> bool:
        return self._needed(selected)[0] <= BUDGET_TICKS

    def allowed(self, selected: IndexArray, candidates: IndexArray) -> BoolArray:
        needed, replaced = self._needed(selected)
        more = np.maximum(self._ticks[candidates] - replaced[self._bounds.groups[candidates]], 0.0)
        return np.asarray(needed + more <= BUDGET_TICKS)

    def _needed(self, selected: IndexArray) -> tuple[float, Float64Array]:
        """Return the cost of ``selected`` and its completion, and that of the dearest feature of the latter in each group, or 0.

        The last entry, which label -1 indexes, is for features in no group.
        """
        needed, replaced = float(self._ticks[selected].sum()), np.zeros(len(self._cheapest) + 1)
        for group, lack in self._bounds.lacking(selected):
            members = self._cheapest[group]
            costs = self._ticks[members[~np.isin(members, selected)][:lack]]
            if len(costs) < lack:
                return np.inf, replaced
            needed, replaced[group] = needed + float(costs.sum()), costs[-1]
        return needed, replaced


class _Flow:
    """Lower bounds beside caps on the groups of a forest: a flow from groups that lack features to the root of the forest.

    Nodes are those of the forest, its root, and the groups of the bounds. With a maximal flow, a candidate of a group that lacks
    features can be in a completion when a cycle of the residual graph leads through it; any other candidate when a further unit
    can flow from its node of the forest to the root.
    """

    def __init__(self, bounds: Bounds, capped: CappedGroups, usable: BoolArray) -> None:
        self._bounds, self._capped = bounds, capped
        self._node, self._parent = capped.forest()
        self._root = len(self._parent)
        self._group = np.where(bounds.groups < 0, -1, self._root + 1 + bounds.groups)
        size = self._root + 1 + len(bounds.lower)
        self._capacity = np.zeros((size, size), dtype=np.int64)
        members = np.flatnonzero(usable & (bounds.groups >= 0))
        np.add.at(self._capacity, (self._group[members], self._node[members]), 1)
        self._usable = usable

    def extendable(self, selected: IndexArray) -> bool:
        return self._residual(selected) is not None

    def allowed(self, selected: IndexArray, candidates: IndexArray) -> BoolArray:
        residual = self._residual(selected)
        if residual is None:
            return np.zeros(len(candidates), dtype=np.bool_)
        reach = (residual > 0) | np.eye(len(residual), dtype=np.bool_)
        while True:  # transitive closure, by squaring
            further = reach.astype(np.float32) @ reach.astype(np.float32) > 0
            if np.array_equal(further, reach):
                break
            reach = further
        goal = np.full(len(residual), self._root)
        lacking = [self._root + 1 + group for group, _ in self._bounds.lacking(selected)]
        goal[lacking] = lacking
        groups = self._group[candidates]
        return reach[self._node[candidates], np.where(groups < 0, self._root, goal[groups])]

    def _residual(self, selected: IndexArray) -> IndexArray | None:
        """Return the residual capacities of a flow that fills up every group; None without."""
        capacity, root = self._capacity.copy(), self._root
        inside = selected[(self._group[selected] >= 0) & self._usable[selected]]
        np.subtract.at(capacity, (self._group[inside], self._node[inside]), 1)
        nodes = np.arange(root)
        capacity[nodes, self._parent] = self._capped.caps - self._capped.counts(selected)
        for group, lack in self._bounds.lacking(selected):
            source = root + 1 + group
            while lack:
                path = _path(capacity, source, root)
                if path is None:
                    return None
                ends = path[:-1], path[1:]
                amount = min(lack, int(capacity[ends].min()))
                capacity[ends] -= amount
                capacity[ends[::-1]] += amount
                lack -= amount
        return capacity


def _path(capacity: IndexArray, source: int, goal: int) -> IndexArray | None:
    """Return the nodes of a shortest path along edges with capacity, or None."""
    before = np.full(len(capacity), -1, dtype=np.int64)
    before[source], level = source, np.array([source])
    while before[goal] < 0:
        edges = (capacity[level] > 0) & (before < 0)
        reached = np.flatnonzero(edges.any(axis=0))
        if not reached.size:
            return None
        before[reached], level = level[edges[:, reached].argmax(axis=0)], reached
    path = [goal]
    while path[-1] != source:
        path.append(int(before[path[-1]]))
    return np.array(path[::-1])
