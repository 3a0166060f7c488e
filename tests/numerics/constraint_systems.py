"""Small systems of every family, each with an independent predicate written from its definition."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import strategies as st

from fastomp_nvm import constraints as fc
from fastomp_nvm.random_keys import mix

Predicate = Callable[[frozenset[int]], bool]
LARGEST = 6


def array(features):
    return np.array(list(features), dtype=np.int64)


def subsets(n):
    return [frozenset(c) for size in range(n + 1) for c in itertools.combinations(range(n), size)]


@dataclass(frozen=True)
class System:
    """A constraint, its definition as a predicate, and whether its rank is exact."""

    constraint: fc.Constraint
    defined: Predicate
    exact_rank: bool


@st.composite
def cardinality(draw, n):
    k = draw(st.integers(0, n + 1))
    return System(fc.Cardinality(n, k), lambda T: len(T) <= k, True)


@st.composite
def labelled(draw, n):
    n_groups = draw(st.integers(0, 3))
    return n_groups, draw(st.lists(st.integers(-1, n_groups - 1), min_size=n, max_size=n))


@st.composite
def partition(draw, n):
    n_groups, labels = draw(labelled(n))
    caps = draw(st.lists(st.integers(0, 3), min_size=n_groups, max_size=n_groups))
    return System(
        fc.Partition(n, labels, caps), lambda T: all(sum(labels[s] == g for s in T) <= cap for g, cap in enumerate(caps)), True
    )


@st.composite
def bounds(draw, n):
    n_groups, labels = draw(labelled(n))
    upper = [draw(st.integers(0, 4)) for _ in range(n_groups)]
    lower = [draw(st.integers(0, min(upper[g], labels.count(g)))) for g in range(n_groups)]
    total = draw(st.integers(sum(lower), n + 1))
    met = [
        T
        for T in subsets(n)
        if len(T) <= total and all(lower[g] <= sum(labels[s] == g for s in T) <= upper[g] for g in range(n_groups))
    ]
    return System(fc.Bounds(n, labels, lower, upper, total), lambda T: any(T <= S for S in met), True)


@st.composite
def laminar(draw, n):
    order = draw(st.permutations(range(n)))
    groups = []

    def split(start, stop, depth):
        if depth and start < stop:
            groups.append(order[start:stop])
            cut = draw(st.integers(start, stop))
            split(start, cut, depth - 1)
            if draw(st.booleans()):
                split(cut, stop, depth - 1)

    split(0, draw(st.integers(0, n)), 3)
    groups = draw(st.permutations(groups))
    caps = [draw(st.integers(0, 4)) for _ in groups]
    return System(
        fc.Laminar(n, [array(g) for g in groups], caps),
        lambda T: all(len(T & set(g)) <= cap for g, cap in zip(groups, caps, strict=True)),
        True,
    )


def is_forest(edges):
    reach = {}
    for one, other in edges:
        a, b = reach.get(one, frozenset({one})), reach.get(other, frozenset({other}))
        if one == other or other in a:
            return False
        for vertex in a | b:
            reach[vertex] = a | b
    return True


@st.composite
def graphic(draw, n):
    vertex = st.integers(0, 4)
    edges = [draw(st.one_of(st.just((-1, -1)), st.tuples(vertex, vertex))) for _ in range(n)]
    return System(
        fc.Graphic(n, np.array(edges).reshape(n, 2)), lambda T: is_forest([edges[s] for s in T if edges[s][0] >= 0]), True
    )


@st.composite
def knapsack(draw, n):
    costs = [draw(st.integers(0, 12)) for _ in range(n)]
    budget = draw(st.integers(0, 20))
    return System(
        fc.Knapsack(n, [c / 10 for c in costs], budget / 10), lambda T: Fraction(sum(costs[s] for s in T)) <= budget, True
    )


@st.composite
def procedural(draw, n):
    people = draw(st.integers(1, 8))
    table = np.array(draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=people, max_size=people)))
    percent = draw(st.integers(0, 100))
    return System(
        fc.Fairness(n, table.reshape(people, n), percent / 100),
        lambda T: 100 * sum(not all(table[i, s] for s in T) for i in range(people)) <= percent * people,
        False,
    )


@st.composite
def oracle(draw, n):
    maximal = draw(st.lists(st.frozensets(st.integers(0, max(n - 1, 0)), max_size=n), min_size=1, max_size=4))
    allowed = lambda T: any(T <= S for S in maximal)  # noqa: E731
    rank = draw(st.one_of(st.none(), st.integers(0, n)))  # below what the function allows: a limit of its own
    constraint = fc.Oracle(n, lambda features: allowed(frozenset(features.tolist())), rank=rank)
    return System(constraint, lambda T: allowed(T) and (rank is None or len(T) <= rank), False)


@st.composite
def monotone(draw, n):
    weights = [draw(st.integers(0, 5)) for _ in range(n)]
    threshold = draw(st.integers(0, 10))
    h = lambda T: max((weights[s] for s in T), default=0) + len(T)  # noqa: E731
    return System(fc.Monotone(n, lambda features: h(features.tolist()), threshold), lambda T: h(T) <= threshold or not T, False)


@st.composite
def random_system(draw, n):
    p, n_groups, cap, seed = (draw(st.integers(low, high)) for low, high in ((1, 3), (1, max(n, 1)), (0, 3), (0, 99)))
    labels = [(mix((seed, matroid), np.arange(n)) % np.uint64(n_groups)).tolist() for matroid in range(p)]
    return System(
        fc.RandomSystem(n, p=p, n_groups=n_groups, cap=cap, seed=seed),
        lambda T: all(max(Counter(row[s] for s in T).values(), default=0) <= cap for row in labels),
        False,
    )


SIMPLE = {
    "cardinality": cardinality,
    "partition": partition,
    "bounds": bounds,
    "laminar": laminar,
    "graphic": graphic,
    "knapsack": knapsack,
    "fairness": procedural,
    "oracle": oracle,
    "monotone": monotone,
    "random": random_system,
}


@st.composite
def intersection(draw, n):
    parts = [draw(SIMPLE[draw(st.sampled_from(sorted(SIMPLE)))](n)) for _ in range(draw(st.integers(1, 3)))]
    constraint = fc.Intersection([part.constraint for part in parts])
    if draw(st.booleans()):
        constraint = fc.Intersection([fc.Intersection([constraint]), parts[0].constraint])
    return System(constraint, lambda T: all(part.defined(T) for part in parts), False)


@st.composite
def extendable(draw, n):
    bounded, other = draw(bounds(n)), draw(SIMPLE[draw(st.sampled_from(sorted(SIMPLE.keys() - {"bounds", "cardinality"})))](n))
    limits = bounded.constraint
    counts = lambda T: np.bincount(limits.groups[array(T)] + 1, minlength=len(limits.lower) + 1)[1:]  # noqa: E731
    met = [T for T in subsets(n) if bounded.defined(T) and (counts(T) >= limits.lower).all() and other.defined(T)]
    constraint = fc.intersect([limits, other.constraint])
    if not met:  # nothing is valid: the parts alone
        return System(constraint, lambda T: bounded.defined(T) and other.defined(T), False)
    return System(constraint, lambda T: any(T <= S for S in met), False)


SYSTEMS = {**SIMPLE, "intersection": intersection, "extendable": extendable}
every_family = pytest.mark.parametrize("family", sorted(SYSTEMS))


def draw_system(data, family, n_max=LARGEST):
    n = data.draw(st.integers(0, n_max), label="n")
    system = data.draw(SYSTEMS[family](n), label="system")
    return n, System(system.constraint, functools.cache(system.defined), system.exact_rank)


def draw_independent(data, n, defined, label):
    """Draw an independent set in a random order, not always a maximal one."""
    chosen = []
    for feature in data.draw(st.permutations(range(n)), label=label)[: data.draw(st.integers(0, n))]:
        if defined(frozenset([*chosen, feature])):
            chosen.append(feature)
    return chosen
