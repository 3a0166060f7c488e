"""The references against each other, against other people's libraries and against cases worked by hand.

A reference that is wrong hides the same mistake in the package, so each is checked by something that shares no code with it.
"""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from tests import oracles

pytestmark = pytest.mark.numerics


def at_most(k):
    return lambda features: len(features) <= k


def partition(labels, caps):
    return lambda features: all(sum(labels[s] == group for s in features) <= cap for group, cap in caps.items())


def matching(edges):
    """Edges without a common endpoint: the intersection of two partition matroids on a bipartite graph."""
    return lambda features: len({v for s in features for v in edges[s]}) == 2 * len(features)


def forest(edges):
    def independent(features):
        component = {v: {v} for edge in edges for v in edge}
        for s in features:
            a, b = edges[s]
            if component[a] is component[b]:
                return False
            merged = component[a] | component[b]
            component |= dict.fromkeys(merged, merged)
        return True

    return independent


def knapsack(costs, budget):
    return lambda features: sum(costs[s] for s in features) <= budget


def seeded(seed):
    """Return a stateless random order per (outer, inner, round)."""
    return lambda *at: random.Random(repr((seed, at[:-1]))).sample(at[-1], len(at[-1]))


def fixed(order):
    """Return the candidates in the given order, whatever the round."""
    return lambda *at: [s for s in order if s in at[-1]]


def data(seed, n_obs=40, n_columns=8, objective="linear"):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_obs, n_columns)) * rng.uniform(0.5, 3, n_columns) + rng.normal(size=n_columns) * 5
    X[:, 1] += 0.7 * X[:, 0]
    eta = oracles.standardise(X)[:, :3] @ np.array([4.0, -3.0, 2.0])
    if objective == "linear":
        return X, eta + 0.5 * rng.normal(size=n_obs)
    if objective == "logistic":
        return X, (rng.random(n_obs) < 1 / (1 + np.exp(-eta))).astype(float)
    return X, rng.poisson(np.exp(0.5 + 0.5 * eta)).astype(float)


OBJECTIVES = [("linear", 0.0), ("linear", 0.3), ("logistic", 0.2), ("poisson", 0.2)]


def test_standardised_columns_are_centred_and_of_unit_norm():
    """Means vanish and norms are one even at mean 10^6 and deviation 1; a constant column becomes zero."""
    rng = np.random.default_rng(0)
    X = np.column_stack((rng.normal(size=50), 1e6 + rng.normal(size=50), np.full(50, 0.1)))
    Z = oracles.standardise(X)
    assert np.abs(Z.sum(axis=0)).max() < 1e-14
    np.testing.assert_allclose((Z**2).sum(axis=0), [1, 1, 0], atol=1e-14)
    assert not Z[:, 2].any()
    assert oracles.Model(X, rng.normal(size=50)).usable == [0, 1]


@pytest.mark.parametrize(("objective", "ridge"), OBJECTIVES)
def test_integer_weights_repeat_rows_and_zero_removes_them(objective, ridge):
    """A weighted model is the model on repeated rows, in value and in scores."""
    X, y = data(1, objective=objective)
    weights = np.random.default_rng(1).integers(0, 4, len(y))
    groups = [[0], [1, 2], [3], [4, 5]]
    weighted = oracles.Model(X, y, groups, objective=objective, ridge=ridge, weights=weights)
    repeated = oracles.Model(np.repeat(X, weights, axis=0), np.repeat(y, weights), groups, objective=objective, ridge=ridge)
    for features in ([], [1], [0, 3]):
        assert weighted.value(features) == pytest.approx(repeated.value(features), rel=1e-9, abs=1e-12)
        np.testing.assert_allclose(weighted.scores(features), repeated.scores(features), rtol=1e-7, atol=1e-12)


def test_linear_value_is_the_r_squared_of_a_regression_with_intercept():
    """Without a ridge the value is R^2 of ordinary least squares on the raw columns, and of the normal equations in closed form."""
    X, y = data(2)
    columns = [0, 1, 5]
    Z = np.column_stack((np.ones(len(y)), X[:, columns]))
    residual = y - Z @ np.linalg.solve(Z.T @ Z, Z.T @ y)
    expected = 1 - (residual @ residual) / ((y - y.mean()) @ (y - y.mean()))
    assert oracles.linear_value(X, y, columns) == pytest.approx(expected, rel=1e-12)
    assert oracles.linear_value(X, y, []) == 0
    sklearn = pytest.importorskip("sklearn.linear_model")
    assert oracles.linear_value(X, y, columns) == pytest.approx(
        sklearn.LinearRegression().fit(X[:, columns], y).score(X[:, columns], y)
    )


def test_linear_ridge_value_has_its_closed_form():
    """The penalised value is g' (X'X + ridge I)^-1 g with g = X'y."""
    X, y = data(3)
    columns, Z = [0, 1, 2, 4], oracles.standardise(X)
    target = oracles.standardise(y[:, None])[:, 0]
    g = Z[:, columns].T @ target
    expected = g @ np.linalg.solve(Z[:, columns].T @ Z[:, columns] + 0.7 * np.eye(4), g)
    assert oracles.linear_value(X, y, columns, ridge=0.7) == pytest.approx(expected, rel=1e-12)


def penalised_likelihood(objective, Z, y, ridge, theta):
    eta = theta[0] + Z @ theta[1:]
    partition_function = np.logaddexp(0, eta) if objective == "logistic" else np.exp(eta)
    return np.sum(y * eta - partition_function) - ridge / 2 * theta[1:] @ theta[1:]


@pytest.mark.parametrize("objective", ["logistic", "poisson"])
def test_newton_finds_what_a_general_optimiser_finds(objective):
    """The fit has the likelihood that BFGS reaches, a vanishing gradient, and the value is its gain over the constant model."""
    X, y = data(4, objective=objective)
    columns, ridge = [0, 2, 3], 0.5
    fit = getattr(oracles, f"{objective}_fit")(X, y, columns, ridge)
    Z = oracles.standardise(X)[:, columns]
    found = optimize.minimize(
        lambda theta: -penalised_likelihood(objective, Z, y, ridge, theta), np.zeros(4), method="BFGS", tol=1e-9
    )
    assert fit.objective == pytest.approx(-found.fun, rel=1e-9)
    np.testing.assert_allclose([fit.intercept, *fit.coefficients], found.x, atol=1e-4)
    np.testing.assert_allclose(Z.T @ fit.residual - ridge * fit.coefficients, 0, atol=1e-10)
    assert abs(fit.residual.sum()) < 1e-10
    mean = y.mean()
    null = len(y) * (
        mean * math.log(mean) + (1 - mean) * math.log(1 - mean) if objective == "logistic" else mean * math.log(mean) - mean
    )
    assert getattr(oracles, f"{objective}_value")(X, y, columns, ridge) == pytest.approx(fit.objective - null, rel=1e-10)


def test_logistic_and_poisson_agree_with_scikit_learn():
    """C = 1/ridge and alpha = ridge/n_obs are the same penalties in scikit-learn's units."""
    sklearn = pytest.importorskip("sklearn.linear_model")
    ridge, columns = 0.4, [0, 1, 2, 6]
    X, y = data(5, objective="logistic")
    Z = oracles.standardise(X)[:, columns]
    peer = sklearn.LogisticRegression(C=1 / ridge, solver="newton-cholesky", tol=1e-10, max_iter=1000).fit(Z, y)
    fit = oracles.logistic_fit(X, y, columns, ridge)
    np.testing.assert_allclose([fit.intercept, *fit.coefficients], [*peer.intercept_, *peer.coef_[0]], rtol=1e-5)
    X, y = data(5, objective="poisson")
    Z = oracles.standardise(X)[:, columns]
    peer = sklearn.PoissonRegressor(alpha=ridge / len(y), solver="newton-cholesky", tol=1e-10, max_iter=1000).fit(Z, y)
    fit = oracles.poisson_fit(X, y, columns, ridge)
    np.testing.assert_allclose([fit.intercept, *fit.coefficients], [peer.intercept_, *peer.coef_], rtol=1e-5)


def test_separable_data_converges_with_a_ridge():
    """The penalised value of a separable problem stays below n log 2 and approaches it as the ridge vanishes."""
    X = np.arange(10.0)[:, None]
    y = (X[:, 0] > 4.5).astype(float)
    values = [oracles.logistic_value(X, y, [0], ridge) for ridge in (1.0, 1e-2, 1e-4, 1e-6)]
    assert values == sorted(values)
    assert 0 < 10 * math.log(2) - values[-1] < 0.01


@pytest.mark.parametrize(("objective", "ridge"), OBJECTIVES)
def test_gradient_is_the_derivative_of_the_likelihood(objective, ridge):
    """Moving one unselected coefficient from the refit changes the likelihood at the rate the gradient says (twice it for R^2)."""
    X, y = data(6, objective=objective)
    model = oracles.Model(X, y, objective=objective, ridge=ridge)
    columns, step = [0, 4], 1e-5
    fit, gradient = model.fit(columns), model.gradient(columns)
    theta = np.zeros(1 + X.shape[1])
    theta[0], theta[[1 + c for c in columns]] = fit.intercept, fit.coefficients

    def likelihood(t):
        if objective == "linear":
            return -np.sum((model.y - model.X @ t[1:]) ** 2) - ridge * t[1:] @ t[1:]
        return penalised_likelihood(objective, model.X, y, ridge, t)

    for s in set(range(X.shape[1])) - set(columns):
        unit = np.eye(len(theta))[1 + s] * step
        slope = (likelihood(theta + unit) - likelihood(theta - unit)) / (2 * step)
        assert slope == pytest.approx((2 if objective == "linear" else 1) * gradient[s], rel=1e-5, abs=1e-7)
    named = getattr(oracles, f"{objective}_gradient")(X, y, columns, ridge)
    np.testing.assert_array_equal(named, gradient)


def test_score_of_a_group_is_its_gain_in_r_squared():
    """At the empty set a linear group's score is exactly f of it, and a redundant one-hot column changes nothing."""
    rng = np.random.default_rng(7)
    codes = rng.integers(0, 3, 60)
    X = np.column_stack((rng.normal(size=60), *(codes == level for level in range(3))))
    y = X[:, 0] + 0.5 * (codes == 1) + rng.normal(size=60)
    whole, reduced = oracles.Model(X, y, [[0], [1, 2, 3]]), oracles.Model(X[:, :3], y, [[0], [1, 2]])
    np.testing.assert_allclose(whole.scores([]), reduced.scores([]), rtol=1e-10)
    np.testing.assert_allclose(whole.scores([]), [whole.value([0]), whole.value([1])], rtol=1e-10)
    np.testing.assert_allclose(whole.scores([0]), reduced.scores([0]), rtol=1e-8, atol=1e-15)


def test_rnd_seq_by_hand():
    """It takes the longest feasible prefix of each round's order and drops what no longer fits before the next."""
    independent = partition("aabb", {"a": 1, "b": 1})
    asked = []

    def permutation(round_, items):
        asked.append((round_, items))
        return [s for s in (0, 1, 2, 3) if s in items] if round_ == 0 else items[::-1]

    assert oracles.rnd_seq(independent, [3, 1, 0, 2], [], permutation) == [0, 3]
    assert asked == [(0, [0, 1, 2, 3]), (1, [2, 3])]
    assert oracles.rnd_seq(independent, [1, 2, 3], [0], lambda _, items: items) == [2]
    assert oracles.random_base(knapsack([9, 1, 1], 2), range(3), lambda _, items: items) == [1, 2]


def run_orthonormal(y, order, rank, **options):
    y = np.array(y, dtype=float)
    n = len(y)
    arguments = {"epsilon": 0.5, "tau": 1.0, "permutation": fixed(order), "standardise": False} | options
    return oracles.fast_omp(np.eye(n), y / np.linalg.norm(y), None, at_most(rank), rank, **arguments)


def test_fast_omp_by_hand_on_three_orthonormal_features():
    """Scores 9, 4, 1 (/14), r = 2, eps = 1/2, tau = 1: t = 3.25/14, X_0 = {0, 1} is no less than half of X: a sequence is drawn."""
    late = run_orthonormal([3, 2, 1], (2, 0, 1), 2)
    assert late.trace[0].threshold == pytest.approx(3.25 / 14)
    assert late.selected == [2, 0]
    assert late.trace[0].inner == [oracles.InnerStep(0, [2, 0], {0: 2, 1: 2, 2: 0}, 2, [])]
    assert (late.outer_iterations, late.gradient_rounds) == (1, 2)
    assert late.value == pytest.approx(10 / 14)
    assert late.margin == pytest.approx((2 - math.sqrt(3.25)) / 3)

    early = run_orthonormal([3, 2, 1], (0, 1, 2), 2)
    assert early.selected == [0, 1]
    assert early.trace[0].inner == [
        oracles.InnerStep(0, [0, 1], {0: 2, 1: 1, 2: 0}, 1, [1]),
        oracles.InnerStep(1, [1], {1: 0}, 1, []),
    ]
    assert (early.outer_iterations, early.gradient_rounds) == (1, 3)


def test_fast_omp_filter_draws_nothing_and_counts_as_an_inner_iteration():
    """At eps = 0.1 the first test j = 0 qualifies: X shrinks to {0, 1}, and the first sequence belongs to inner iteration 1."""
    seen = []

    def permutation(outer, inner, round_, items):
        seen.append((outer, inner, round_, items))
        return items

    run = run_orthonormal([3, 2, 1], (), 2, epsilon=0.1, tau=0.5, permutation=permutation)
    assert run.trace[0].inner[0] == oracles.InnerStep(0, [], {0: 2}, 0, [0, 1])
    assert seen == [(0, 1, 0, [0, 1]), (0, 2, 0, [1])]
    assert run.selected == [0, 1]
    assert run.gradient_rounds == 3


def test_fast_omp_until_paper_may_stop_short_of_the_rank():
    """Scores 64, 16, 4, 1 and eps = 1/2: two outer iterations take three features, until="full" takes the fourth."""
    assert run_orthonormal([8, 4, 2, 1], range(4), 4).selected == [0, 1, 2]
    full = run_orthonormal([8, 4, 2, 1], range(4), 4, until="full")
    assert full.selected == [0, 1, 2, 3]
    assert full.outer_iterations == 3


def test_fast_omp_rounds_the_number_of_outer_iterations_up():
    """Scores a hundredfold apart are taken one per outer iteration, and eps = 0.4 allows ceil(2.5) = 3 of them."""
    run = run_orthonormal([1000, 100, 10, 1], range(4), 4, epsilon=0.4)
    assert (run.selected, run.outer_iterations) == ([0, 1, 2], 3)


def test_fast_omp_threshold_uses_the_rank_of_the_whole_constraint():
    """With r = 3 and two features taken the second threshold averages both scores left, 4 and 1, not r - |S| = 1 of them."""
    run = run_orthonormal([8, 4, 2, 1], range(4), 3)
    assert [step.selected for step in run.trace] == [[], [0, 1]]
    assert [step.threshold * 85 for step in run.trace] == pytest.approx([14, 1.25])


def test_fast_omp_keeps_a_score_equal_to_the_threshold():
    """Scores 256, 144, 100, r = 2 and eps = 1/2 give t = 100 exactly, which the third feature meets."""
    y = np.array([16.0, 12.0, 10.0])
    run = oracles.fast_omp(np.eye(3), y, None, at_most(2), 2, epsilon=0.5, tau=1.0, permutation=fixed(range(3)), standardise=False)
    assert run.trace[0].threshold == 100
    assert run.trace[0].inner[0].sizes[0] == 3
    assert run.margin == 0


def test_fast_filters_at_equality():
    """FAST asks for at most (1 - eps) of X: one of two at eps = 1/2 qualifies at i = 0 and the other feature is never drawn."""
    y = np.array([2.0, 1.0])
    options = {"epsilon": 0.5, "iterations": 1, "permutation": fixed((1, 0)), "standardise": False}
    assert oracles.fast_prototype(np.eye(2), y, None, at_most(2), **options) == [0]


def test_motivating_example_has_the_corrected_values():
    """Refits confirm every f, including f({2, 3}); {1, 2} is the optimum under k = 2."""
    for z, delta in ((0.1, 2.0), (0.05, 3.0), (0.3, 1.5)):
        X, y, expected = oracles.motivating_example(z, delta)
        np.testing.assert_allclose(np.linalg.norm(X, axis=0), 1)
        for features, value in expected.items():
            assert oracles.linear_value(X, y, sorted(features), standardise=False) == pytest.approx(value, abs=1e-13)
        best, chosen = oracles.brute_force_optimum(X, y, None, at_most(2), standardise=False)
        assert (best, chosen) == (pytest.approx(1), {0, 1})


def test_motivating_example_separates_fast_from_fast_omp():
    """At eps = 0.4, tau = 0.3 FAST never finds {1, 2} and FAST_OMP does in exactly two of six orders; at eps = 0.1 neither does."""
    X, y, _ = oracles.motivating_example(0.1, 2.0)
    orders = list(itertools.permutations(range(3)))

    def found(epsilon):
        arguments = {"epsilon": epsilon, "standardise": False}
        ours = [oracles.fast_omp(X, y, None, at_most(2), 2, tau=0.3, permutation=fixed(o), **arguments).selected for o in orders]
        fast = [oracles.fast_prototype(X, y, None, at_most(2), iterations=8, permutation=fixed(o), **arguments) for o in orders]
        return [o for o, s in zip(orders, ours, strict=True) if set(s) == {0, 1}], sum(set(s) == {0, 1} for s in fast)

    assert found(0.4) == ([(0, 1, 2), (1, 0, 2)], 0)
    assert found(0.1) == ([], 0)


SYSTEMS = {
    "cardinality": (at_most(3), 3),
    "partition": (partition("aaabbbcc", {"a": 1, "b": 2, "c": 1}), 4),
    "matching": (matching([(0, 10), (0, 11), (1, 11), (1, 12), (2, 12), (2, 10), (0, 12), (3, 13)]), 4),
    "knapsack": (knapsack([3, 1, 1, 2, 2, 1, 4, 1], 5), 4),
}


@pytest.mark.parametrize("name", SYSTEMS)
@given(seed=st.integers(0, 10_000), epsilon=st.sampled_from([0.1, 0.25, 0.5]), tau=st.sampled_from([0.1, 0.5, 1.0]))
@settings(max_examples=15, deadline=None)
def test_fast_omp_keeps_its_invariants(name, seed, epsilon, tau):
    """Every set on the way is independent, X shrinks below (1 - eps) of itself, counters match the trace, "full" is maximal."""
    independent, rank = SYSTEMS[name]
    X, y = data(seed)
    for until in ("paper", "full"):
        run = oracles.fast_omp(X, y, None, independent, rank, epsilon=epsilon, tau=tau, permutation=seeded(seed), until=until)
        assert independent(frozenset(run.selected))
        assert len(set(run.selected)) == len(run.selected)
        sizes = [(len(step.candidates), [len(i.remaining) for i in step.inner]) for step in run.trace]
        assert all(after < (1 - epsilon) * before for first, rest in sizes for before, after in itertools.pairwise([first, *rest]))
        drawn = [i for step in run.trace for i in step.inner if i.sequence]
        assert run.gradient_rounds == len(run.trace) + len(drawn)
        assert run.selected == [s for i in drawn for s in i.sequence[: i.prefix]]
        assert all(i.inner == 0 for step in run.trace for i in step.inner if not i.sequence)
        if until == "paper":
            assert run.outer_iterations <= math.ceil(1 / epsilon)
        else:
            assert oracles.Model(X, y).extensions(independent, run.selected) == []


def test_sds_omp_is_orthogonal_matching_pursuit():
    """On random designs the selection is scikit-learn's, feature by feature."""
    sklearn = pytest.importorskip("sklearn.linear_model")
    for seed in range(10):
        X, y = data(seed, n_obs=60, n_columns=25)
        order = oracles.sds_omp(X, y, None, at_most(6))
        Z, target = oracles.standardise(X), oracles.standardise(y[:, None])[:, 0]
        for k in range(1, 7):
            peer = sklearn.OrthogonalMatchingPursuit(n_nonzero_coefs=k, fit_intercept=False).fit(Z, target)
            assert set(np.flatnonzero(peer.coef_)) == set(order[:k])


@pytest.mark.parametrize(("objective", "ridge"), OBJECTIVES)
def test_baselines_respect_the_constraint_and_never_beat_the_optimum(objective, ridge):
    """All selections are independent and at most OPT; the first greedy pick is the best single feature."""
    X, y = data(8, objective=objective, n_columns=6)
    independent = partition("aabbcc", {"a": 1, "b": 1, "c": 2})
    options = {"objective": objective, "ridge": ridge}
    model = oracles.Model(X, y, **options)
    best, chosen = oracles.brute_force_optimum(X, y, None, independent, **options)
    assert independent(chosen)
    greedy = oracles.sds_ma(X, y, None, independent, **options)
    assert greedy[0] == max(range(6), key=lambda s: model.value([s]))
    for selection in (
        greedy,
        oracles.sds_omp(X, y, None, independent, **options),
        oracles.top_k(X, y, None, independent, **options),
    ):
        assert independent(frozenset(selection))
        assert model.extensions(independent, selection) == []
        assert model.value(selection) <= best + 1e-12
    assert oracles.top_k(X, y, None, at_most(6), 3, **options) == list(np.argsort(-model.scores([]), kind="stable")[:3])


def test_equal_features_are_taken_lowest_index_first():
    """An exact copy never goes before its original."""
    X, y = data(9)
    X = np.column_stack((X[:, 3], X, X[:, 0]))
    for select in (oracles.sds_omp, oracles.sds_ma, oracles.top_k):
        chosen = select(X, y, None, at_most(4))
        for original, copy in ((0, 4), (1, 9)):
            assert copy not in chosen or original in chosen[: chosen.index(copy)]


def test_p_of_known_systems():
    """Matroids have p = 1; the matchings of a path of three edges 2; a knapsack of one heavy and three light items 3."""
    triangle_and_tail = [(0, 1), (1, 2), (0, 2), (2, 3)]
    assert oracles.p_of_system(at_most(2), 5) == 1
    assert oracles.p_of_system(partition("aabbb", {"a": 1, "b": 2}), 5) == 1
    assert oracles.p_of_system(forest(triangle_and_tail), 4) == 1
    assert oracles.p_of_system(matching([(0, 10), (1, 10), (1, 11)]), 3) == 2
    assert oracles.p_of_system(knapsack([3, 1, 1, 1], 3), 4) == 3
    assert oracles.p_of_system(lambda features: not features, 3) == 1


def test_downward_closure_is_told():
    """Built-in families are closed; even-sized sets and families without the empty set are not."""
    assert all(oracles.is_downward_closed(independent, 8) for independent, _ in SYSTEMS.values())
    assert not oracles.is_downward_closed(lambda features: len(features) % 2 == 0, 4)
    assert not oracles.is_downward_closed(lambda features: len(features) == 1, 3)


def test_blocking_index_by_hand():
    """A cap of one blocks at the first member of the group, a free candidate never is, an infeasible one at once."""
    independent = partition("aabbc", {"a": 1, "b": 1, "c": 0})
    assert oracles.blocking_index(independent, [], [2, 0], 3) == 1
    assert oracles.blocking_index(independent, [], [2, 0], 1) == 2
    assert oracles.blocking_index(independent, [0], [2], 1) == 0
    assert oracles.blocking_index(independent, [], [2], 1) == 2
    assert oracles.blocking_index(independent, [], [2], 4) == 0
    assert oracles.blocking_index(independent, [], [2, 0], 2) == 3


def test_curvature_constants_by_hand():
    """Two unit columns with correlation c have eigenvalues 1 - |c| and 1 + |c|; groups are whitened; logistic takes a quarter."""
    X, _ = data(10)
    correlation = abs(np.corrcoef(X[:, 0], X[:, 1])[0, 1])
    assert oracles.rsc_rsm(X[:, :2], 2) == pytest.approx((1 - correlation, 1 + correlation))
    assert oracles.rsc_rsm(X, 1) == pytest.approx((1, 1))
    assert oracles.rsc_rsm(X[:, :2], 1, [[0, 1]]) == pytest.approx((1, 1))
    assert oracles.logistic_rsc_rsm(X[:, :2], 2, 0.1) == pytest.approx((0.1, (1 + correlation) / 4 + 0.1))
    narrow, wide = oracles.rsc_rsm(X, 2), oracles.rsc_rsm(X, 4)
    assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]


def test_theorem_bound_by_hand():
    """With m = M and eps to 0 the bound is 1 - 1/e for cardinality and half of it for a matroid."""
    assert oracles.theorem1_bound(1, 1, 0, 1, True) == pytest.approx(1 - 1 / math.e)
    assert oracles.theorem1_bound(1, 1, 0, 1, False) == pytest.approx((1 - 1 / math.e) / 2)
    assert oracles.theorem1_bound(1, 2, 0.5, 3, False) == pytest.approx((1 - math.exp(-1 / 32)) / 4)


@pytest.mark.parametrize(("objective", "ridge"), OBJECTIVES)
@pytest.mark.parametrize("groups", [None, [[0], [1, 2], [3], [4, 5]]])
def test_certificate_bounds_the_optimum(objective, ridge, groups):
    """From any independent set, maximal or not, the bound is at least OPT; at a set with no score outside it is f itself."""
    for seed in range(3):
        X, y = data(20 + seed, objective=objective, n_columns=6)
        n = 6 if groups is None else len(groups)
        independent = partition("aabbcc"[:n], {"a": 1, "b": 1, "c": 1})
        options = {"objective": objective, "ridge": ridge}
        best, _ = oracles.brute_force_optimum(X, y, groups, independent, **options)
        for selected in ([], [1], [0, 2], [1, 3]):
            assert independent(frozenset(selected))
            certificate = oracles.certificate_bound(X, y, groups, independent, selected, **options)
            assert certificate.bound >= best - 1e-10
            if ridge and groups is None:
                assert certificate.curvature >= ridge * (1 - 1e-12)


def test_the_ridge_alone_does_not_certify_a_feature_of_several_columns():
    """For a two-level one-hot m is ridge/2, its score being whitened and its penalty not: G / (2 ridge) falls below OPT."""
    rng = np.random.default_rng(11)
    level = rng.integers(0, 2, 80)
    X, y = np.column_stack((level == 0, level == 1)).astype(float), (rng.random(80) < 0.3 + 0.4 * level).astype(float)
    options = {"objective": "logistic", "ridge": 10.0}
    best, _ = oracles.brute_force_optimum(X, y, [[0, 1]], at_most(1), **options)
    certificate = oracles.certificate_bound(X, y, [[0, 1]], at_most(1), [], **options)
    assert certificate.curvature == pytest.approx(5.0)
    assert certificate.bound == pytest.approx(certificate.score_sum / (2 * 5.0))
    assert certificate.score_sum / (2 * 10.0) < best <= certificate.bound


def test_certificate_ignores_what_the_constraint_still_allows():
    """A maximal set does not certify itself: with k = 1 and the worse feature chosen, the bound still covers the better one."""
    y = np.array([3.0, 1.0]) / math.sqrt(10)
    certificate = oracles.certificate_bound(np.eye(2), y, None, at_most(1), [1], standardise=False)
    assert (certificate.score_sum, certificate.curvature) == (pytest.approx(0.9), pytest.approx(1.0))
    assert certificate.bound == pytest.approx(1.0)
