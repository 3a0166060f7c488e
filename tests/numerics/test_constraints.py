"""Every family against its definition, by enumeration of small ground sets."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastomp_nvm import constraints as fc
from fastomp_nvm.algorithms import draws as sequences
from fastomp_nvm.constraints import fairness
from fastomp_nvm.constraints.written.function import NamedFunction
from fastomp_nvm.errors import ConstraintError
from tests import oracles
from tests.harness.interpreter import steps_of
from tests.numerics.constraint_systems import LARGEST, SYSTEMS, array, bounds, draw_independent, draw_system, every_family, subsets

pytestmark = pytest.mark.numerics


@every_family
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_family_is_its_definition_and_downward_closed(family, data):
    """``independent`` agrees with the definition on every subset, accepts the empty set and is downward closed."""
    n, system = draw_system(data, family)
    ask = lambda T: system.constraint.independent(array(T))  # noqa: E731
    assert [ask(T) for T in subsets(n)] == [system.defined(T) for T in subsets(n)]
    assert system.constraint.independent_many([array(T) for T in subsets(n)]).tolist() == [ask(T) for T in subsets(n)]
    assert oracles.is_downward_closed(ask, n)
    assert fc.check_downward_closed(system.constraint, samples=2) is None


@every_family
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_extensions_blocking_and_prefix_equal_their_definitions(family, data):
    """``extensions``, ``blocking`` and ``longest_prefix`` agree with loops over ``independent``, for members too."""
    n, system = draw_system(data, family)
    constraint, defined = system.constraint, system.defined
    union = draw_independent(data, n, defined, "union")
    cut = data.draw(st.integers(0, len(union)))
    selected, sequence = union[:cut], union[cut:]
    candidates = data.draw(st.permutations(range(n)), label="candidates")
    S, Q, C = array(selected), array(sequence), array(candidates)
    blocked = constraint.blocking(S, Q, C)
    assert blocked.dtype == np.int64
    assert blocked.tolist() == [oracles.blocking_index(defined, selected, sequence, s) for s in candidates]
    extends = constraint.extensions(S, C)
    assert extends.dtype == np.bool_
    assert extends.tolist() == [s not in selected and defined(frozenset([*selected, s])) for s in candidates]
    others = [s for s in candidates if s not in selected]
    free = constraint.free(S)
    assert all(defined(frozenset([*selected, *more])) for more in combinations(others, min(free, len(others))))
    prefixes = [j for j in range(len(others) + 1) if defined(frozenset([*selected, *others[:j]]))]
    assert constraint.longest_prefix(S, array(others)) == max(prefixes)


@every_family
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_rank_and_p_hold(family, data):
    """The rank bounds every independent set, exactly where claimed, and a claimed ``p`` bounds the ratio of any two bases."""
    n, system = draw_system(data, family, n_max=5)
    constraint = system.constraint
    largest = max(len(T) for T in subsets(n) if system.defined(T))
    assert largest <= constraint.rank <= n
    assert not system.exact_rank or constraint.rank == largest
    if constraint.p is not None:
        assert oracles.p_of_system(system.defined, n) <= constraint.p


@every_family
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_closed_forms_agree_with_the_bisection_of_the_base(family, data):
    """The inherited bisection and a family's closed form give the same blocking indices."""
    n, system = draw_system(data, family)
    union = draw_independent(data, n, system.defined, "union")
    arguments = (array(union[:1]), array(union[1:]), array(set(range(n)) - set(union)))
    bisected = fc.Constraint._first_blocked(system.constraint, *arguments)
    assert system.constraint.blocking(*arguments).tolist() == bisected.tolist()


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_bases_of_bounds_meet_the_bounds_as_written(data):
    """Every maximal set of the relaxation meets all bounds, and ``violations`` names each unmet bound of a smaller one."""
    n = data.draw(st.integers(1, LARGEST))
    constraint = data.draw(bounds(n)).constraint
    for T in subsets(n):
        features = array(T)
        counts = [int((constraint.groups[features] == g).sum()) for g in range(len(constraint.lower))]
        wrong = sum(c < low for c, low in zip(counts, constraint.lower, strict=True))
        wrong += sum(c > up for c, up in zip(counts, constraint.upper, strict=True)) + (len(T) > constraint.total)
        assert len(constraint.violations(features)) == wrong
        if constraint.independent(features) and not constraint.extensions(features, np.arange(n)).any():
            assert wrong == 0
    assert constraint.needs_base == bool((constraint.lower > 0).any())


def test_a_cardinality_below_the_total_keeps_places_for_lower_bounds():
    """``intersect`` tightens bounds to the cardinality, so that no group crowds out another's lower bound."""
    parts = [fc.Cardinality(6, 3), fc.Bounds(6, [0, 0, 0, 1, 1, 1], [0, 2], [3, 3], 6, names=["a", "b"])]
    assert fc.Intersection(parts).independent(array([0, 1, 2]))
    tightened = fc.intersect(parts)
    assert not tightened.independent(array([0, 1]))
    assert tightened.needs_base
    assert tightened.independent(array([0, 3, 4]))
    assert tightened.violations(array([0, 1, 2])) == ("group 'b' has 0 selected features, at least 2 are required",)
    assert fc.intersect(parts[:1]) is parts[0]


def test_p_of_intersections_counts_matroids_and_not_cardinalities():
    """Two matroids under a cardinality are a 2-system; an unknown part makes it unknown."""
    two = [fc.Partition(9, [0, 1, 2] * 3, [2, 2, 2]), fc.Partition(9, [0] * 3 + [1] * 3 + [2] * 3, [2, 2, 2])]
    assert fc.Intersection([*two, fc.Cardinality(9, 5)]).p == 2
    assert fc.Intersection([two[0], fc.Cardinality(9, 5)]).p == 1
    assert fc.Intersection([*two, fc.Oracle(9, lambda features: True)]).p is None
    assert fc.RandomSystem(500, p=3, n_groups=20, cap=4).p == 3


def test_an_intersection_asks_user_code_last_and_only_about_what_is_left():
    """An oracle is not queried about candidates that another part refuses."""
    asked = []
    part = fc.Oracle(6, lambda features: asked.append(frozenset(features.tolist())) is None)
    both = fc.Intersection([part, fc.Partition(6, [0, 0, 0, 1, 1, 1], [0, 9])])
    assert both.extensions(array([3]), np.arange(6)).tolist() == [False, False, False, False, True, True]
    assert set(asked) == {frozenset({3, 4}), frozenset({3, 5})}


def test_decimal_costs_that_add_up_to_the_budget_fit():
    """Ten costs of 0.1 fit into a budget of 1, in any order, although their floating-point sum exceeds it."""
    exact = fc.Knapsack(30, [0.1] * 30, 1.0)
    assert exact.independent(np.arange(10))
    assert not exact.independent(np.arange(11))
    assert exact.rank == 10
    assert exact.longest_prefix(array([]), np.arange(30)) == 10
    assert fc.Knapsack(3, [0.1, 0.2, 0.3], 0.3).independent(array([0, 1]))
    assert fc.Knapsack(2, [0.0, 1e-300], 0.0).extensions(array([]), np.arange(2)).tolist() == [True, False]


def test_unfairness_is_compared_in_people():
    """Seven of ten accepting is an unfairness of 0.3, within lambda = 0.3."""
    table = np.ones((10, 2), dtype=bool)
    table[:3, 0] = False
    constraint = fc.Fairness(2, table, 0.3)
    assert constraint.independent(array([0]))
    assert constraint.unfairness(array([0])) == pytest.approx(0.3)
    assert fc.Fairness(2, table, 0.29).violations(array([0, 1])) == (
        "30.0% of the 10 people object to a selected feature, at most 29.0% may",
    )


def test_effective_judgements_follow_the_three_kinds():
    """Accuracy judgements add acceptance where accuracy rises; disparity judgements replace it where disparity rises."""
    apriori = np.array([[1, 1, 0, 0]], dtype=bool)
    told = np.array([[0, 0, 1, 1]], dtype=bool)
    raises = np.array([True, False, True, False])
    judged = fc.effective_judgements
    assert judged(apriori).tolist() == apriori.tolist()
    assert judged(apriori, kind="accuracy", accuracy=told, raises_accuracy=raises).tolist() == [[True, True, True, False]]
    assert judged(apriori, kind="disparity", disparity=told, raises_disparity=raises).tolist() == [[False, True, True, True]]
    with pytest.raises(ConstraintError, match="needs both"):
        judged(apriori, kind="accuracy", accuracy=told)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_both_bit_counts_agree(words):
    """The population count for NumPy before 2.0 is exact."""
    assert fairness._swar_bit_counts(np.array(words, dtype=np.uint64)).tolist() == [word.bit_count() for word in words]


WRONG = {
    "costs that are texts": (lambda: fc.Knapsack(2, ["a", "b"], 1), "the costs are of type"),
    "ragged groups": (lambda: fc.Partition(2, [[0], [0, 1]], [1]), "expected"),
    "ragged judgements": (lambda: fc.Fairness(2, [[1], [1, 0]], 0.5), "judgements are"),
    "groups that are no lists": (lambda: fc.Laminar(3, 5, [1]), "expected a list of lists"),
    "negative cardinality": (lambda: fc.Cardinality(3, -1), "at least 0"),
    "fractional cardinality": (lambda: fc.Cardinality(3, 1.5), "whole number"),
    "boolean cardinality": (lambda: fc.Cardinality(3, True), "whole number"),
    "short groups": (lambda: fc.Partition(3, [0, 0], [1]), "2 entries: expected 3"),
    "negative cap": (lambda: fc.Partition(2, [0, 0], [-1]), "hold -1"),
    "group without cap": (lambda: fc.Partition(2, [0, 1], [1]), "group 1 has no cap"),
    "names of groups": (lambda: fc.Partition(2, [0, 1], [1, 1], names=["a"]), "1 group names for 2"),
    "lower above upper": (lambda: fc.Bounds(2, [0, 0], [2], [1], 2, names=["f"]), "'f' has lower bound 2 above its upper"),
    "lower above size": (lambda: fc.Bounds(2, [0, -1], [2], [2], 2), "only 1 usable"),
    "lower above usable": (lambda: fc.Bounds(2, [0, 0], [2], [2], 2, usable=[True, False]), "only 1 usable"),
    "lower above total": (lambda: fc.Bounds(4, [0, 0, 1, 1], [2, 2], [2, 2], 3), "add up to 4, more than the total of 3"),
    "crossing groups": (lambda: fc.Laminar(3, [[0, 1], [1, 2]], [1, 1], names=["a", "b"]), "overlap and neither"),
    "unknown feature": (lambda: fc.Laminar(3, [[3]], [1]), "holds feature 3"),
    "half an edge": (lambda: fc.Graphic(1, [[0, -1]]), "expected two vertices"),
    "edges of a wrong shape": (lambda: fc.Graphic(2, [[0, 1]]), r"expected \(2, 2\)"),
    "cost that is not a number": (lambda: fc.Knapsack(2, [1, math.nan], 3), "feature 1 costs nan"),
    "negative cost": (lambda: fc.Knapsack(2, [1, -1], 3), "feature 1 costs -1"),
    "negative budget": (lambda: fc.Knapsack(1, [1], -3), "budget is -3"),
    "lambda above 1": (lambda: fc.Fairness(1, [[1]], 1.1), "from 0 to 1"),
    "judgement of 2": (lambda: fc.Fairness(1, [[2]], 0.1), "other values than 0 and 1"),
    "nobody": (lambda: fc.Fairness(1, np.empty((0, 1)), 0.1), "no person"),
    "columns missing": (lambda: fc.Fairness(2, [[1]], 0.1), "2 columns"),
    "no parts": (lambda: fc.Intersection([]), "at least one"),
    "parts of two sizes": (lambda: fc.Intersection([fc.Cardinality(3, 1), fc.Cardinality(4, 1)]), "over 3 and 4 features"),
    "no oracle": (lambda: fc.Oracle(3, "f"), "expected a function"),
    "threshold": (lambda: fc.Monotone(3, len, math.nan), "threshold is nan"),
    "too many matroids": (lambda: fc.RandomSystem(3, p=10**9, n_groups=1, cap=1), "at most 100"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused_with_a_clear_sentence(case):
    """Invalid arguments raise a ``ConstraintError`` that names the value found and the value expected."""
    build, message = WRONG[case]
    with pytest.raises(ConstraintError, match=message):
        build()


def test_violations_name_the_groups():
    """Violations are sentences with the user's names of the groups, one per group."""
    groups = fc.Partition(4, [0, 0, 1, 1], [1, 1], names=["clinical", "genes"])
    assert groups.violations(np.arange(4)) == (
        "group 'clinical' has 2 selected features, at most 1 are allowed",
        "group 'genes' has 2 selected features, at most 1 are allowed",
    )
    triangle = fc.Graphic(3, [[0, 1], [1, 2], [2, 0]])
    assert triangle.violations(np.arange(3)) == ("the selected features close cycles: 1 of them must be left out",)


def test_an_oracle_is_asked_in_one_batch_per_bisection_step():
    """A thousand candidates along a sequence of 30 take at most log2(32) batches."""

    class Counting(fc.Oracle):
        batches = 0

        def independent_many(self, sets):
            self.batches += 1
            return super().independent_many(sets)

    counting = Counting(1000, lambda features: features.sum() <= 2000)
    reference = fc.Knapsack(1000, np.arange(1000), 2000)
    sequence = np.arange(30)
    assert counting.blocking(array([]), sequence, np.arange(1000)).tolist() == (
        reference.blocking(array([]), sequence, np.arange(1000)).tolist()
    )
    assert counting.batches <= 5


def test_workers_answer_as_the_process_itself(tmp_path):
    """A pool of spawned processes gives the same blocking indices, for functions of indices and of names."""
    (tmp_path / "rules_of_a_test.py").write_text(
        "def light(features):\n    return bool(sum(features) <= 40)\n"
        "def named(names):\n    return sum(int(name[1:]) for name in names) <= 40\n"
    )
    names = tuple(f"f{index}" for index in range(30))
    for function in (
        NamedFunction("rules_of_a_test:light", str(tmp_path)),
        NamedFunction("rules_of_a_test:named", str(tmp_path), names),
    ):
        alone, shared = fc.Oracle(30, function), fc.Oracle(30, function, workers=2)
        arguments = (array([1]), array([2, 5, 7]), np.arange(30))
        try:
            assert shared.blocking(*arguments).tolist() == alone.blocking(*arguments).tolist()
            assert shared.extensions(*arguments[::2]).tolist() == alone.extensions(*arguments[::2]).tolist()
        finally:
            shared.close()


def test_failures_of_user_functions_become_one_sentence():
    """An exception, a missing return and a value that is not a number each name the oracle as the cause."""
    with pytest.raises(ConstraintError, match="ZeroDivisionError"):
        fc.Oracle(3, lambda features: 1 / 0 > 0).independent(array([1]))
    with pytest.raises(ConstraintError, match="returned None"):
        fc.Oracle(3, lambda features: None).independent(array([1]))
    with pytest.raises(ConstraintError, match="not a number"):
        fc.Monotone(3, lambda features: math.nan, 1).independent(array([1]))


@pytest.mark.parametrize(
    "planted",
    [
        lambda T: len(T) % 2 == 0,
        lambda T: 7 not in T or len(T) >= 3,
        lambda T: len(T) <= 4 and (3 not in T or 5 in T),
    ],
)
def test_a_planted_violation_of_closure_is_found(planted):
    """The random search returns an allowed set with a refused subset."""
    broken = fc.Oracle(12, lambda features: planted(frozenset(features.tolist())))
    found = broken.check_downward_closed(samples=200, seed=1)
    assert found is not None
    assert set(found.refused_subset) < set(found.allowed)
    assert planted(frozenset(found.allowed))
    assert not planted(frozenset(found.refused_subset))


N_MANY = 200_000


def many(name):
    """Return a constraint over many features with a rank of a few hundred or more."""
    n, indices = N_MANY, np.arange(N_MANY)
    generator = np.random.default_rng(0)
    labels = indices % 1000
    build = {
        "cardinality": lambda: fc.Cardinality(n, 300),
        "partition": lambda: fc.Partition(n, labels, np.ones(1000, dtype=int)),
        "bounds": lambda: fc.Bounds(n, labels, np.zeros(1000, dtype=int), np.ones(1000, dtype=int), 300),
        "laminar": lambda: fc.Laminar(n, [indices, *np.array_split(indices, 300)], [400] + [2] * 300),
        "graphic": lambda: fc.Graphic(n, generator.integers(0, 400, size=(n, 2))),
        "knapsack": lambda: fc.Knapsack(n, generator.random(n) + 0.1, 180.0),
        "fairness": lambda: fc.Fairness(n, generator.random((200, n)) > 0.002, 0.5),
        "random": lambda: fc.RandomSystem(n, p=3, n_groups=300, cap=2),
    }
    if name.startswith("extendable"):  # beside a knapsack, and beside caps on other groups
        bounds = fc.Bounds(n, indices % 10, np.ones(10, dtype=int), np.full(10, 60), 300)
        return fc.intersect([bounds, many("laminar" if name.endswith("flow") else "knapsack")])
    if name == "intersection":
        return fc.Intersection([many(part) for part in ("cardinality", "laminar", "knapsack")])
    return build[name]()


@pytest.mark.parametrize("name", sorted({*SYSTEMS, "extendable by flow"} - {"oracle", "monotone"}))
def test_nothing_loops_over_many_candidates(name):
    """Queries about all candidates take hardly more interpreter steps than about a tenth of them."""
    constraint = many(name)
    everything = np.arange(N_MANY)
    sequence, _, _ = sequences.random_sequence(constraint, array([]), everything, seed=0, outer=0, inner=0)
    sequence = sequence[:300]
    assert len(sequence) >= 100
    for query in (
        lambda candidates: constraint.blocking(array([]), sequence, candidates),
        lambda candidates: constraint.extensions(sequence, candidates),
        lambda candidates: constraint.longest_prefix(array([]), candidates),
    ):
        few, many_ = (steps_of(lambda: query(candidates)) for candidates in (everything[::10], everything))  # noqa: B023
        assert many_ - few < N_MANY
