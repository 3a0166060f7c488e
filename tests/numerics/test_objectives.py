"""Objectives against finite differences, general-purpose optimisers and scikit-learn: values, gradients, coefficients, gains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import gammaln

import fastomp_nvm as fo
from fastomp_nvm import native
from fastomp_nvm.algorithms.sequence import advance
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.matrix.pool import ColumnPool, Columns
from fastomp_nvm.matrix.sweeper import Sweeper
from fastomp_nvm.matrix.traffic import Traffic
from fastomp_nvm.objectives import newton
from fastomp_nvm.objectives.base import Objective
from fastomp_nvm.objectives.glm import GLM
from fastomp_nvm.objectives.linear import Linear
from fastomp_nvm.objectives.logistic import Logistic
from fastomp_nvm.objectives.newton import curvature_at
from fastomp_nvm.objectives.table import OBJECTIVES

pytestmark = pytest.mark.numerics


#: ridge, weighted, standardised
SETTINGS = [(0.0, False, True), (0.7, False, True), (0.0, True, True), (0.7, True, True), (0.0, False, False), (0.7, True, False)]


@dataclass(frozen=True)
class Case:
    """A small problem: dense columns as the objective sees them, and the likelihood written down a second time."""

    name: str
    ridge: float
    weights: np.ndarray | None
    centred: bool
    X: np.ndarray
    y: np.ndarray

    @property
    def w(self) -> np.ndarray:
        return np.ones(len(self.y)) if self.weights is None else self.weights

    def objective(self) -> Objective:
        made: Objective = OBJECTIVES.load(self.name)(self.y, self.weights, ridge=self.ridge, centred=self.centred)
        return made

    def columns(self) -> Columns:
        design = Dataset.of_array(self.X).design(self.centred, self.weights)
        return ColumnPool(design, Sweeper(1), Traffic(), 1 << 30).columns(np.arange(self.X.shape[1]))

    def likelihood(self, A: np.ndarray, beta: np.ndarray, intercept: float) -> float:
        """Return the objective over ``A`` (n_obs, d); for the linear model in units of the response's spread."""
        if self.name == "linear":
            y = self.y - (self.w @ self.y / self.w.sum() if self.centred else 0.0)
            y = y / np.sqrt(self.w @ y**2)
            return float(1.0 - self.w @ (y - A @ beta) ** 2 - self.ridge * beta @ beta)
        eta = A @ beta + intercept
        partition = np.logaddexp(0, eta) if self.name == "logistic" else np.exp(eta) + gammaln(self.y + 1)
        return float(self.w @ (self.y * eta - partition) - 0.5 * self.ridge * beta @ beta)

    def optimum(self, A: np.ndarray) -> tuple[np.ndarray, float, float]:
        """Return coefficients, intercept and the maximum, by a general-purpose optimiser."""
        free = int(self.centred and self.name != "linear")
        if not A.shape[1] + free:
            return np.zeros(0), 0.0, self.likelihood(A, np.zeros(0), 0.0)

        def cost(theta: np.ndarray) -> float:
            return -self.likelihood(A, theta[free:], theta[0] if free else 0.0)

        found = minimize(cost, np.zeros(A.shape[1] + free), method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
        return found.x[free:], float(found.x[0]) if free else 0.0, -float(found.fun)


def make(name: str, ridge: float, weighted: bool, centred: bool, seed: int = 0) -> Case:
    """Return a random case of eight columns, two of them correlated."""
    rng = np.random.default_rng((seed, 5))
    X = rng.normal(size=(50, 8)) * rng.uniform(0.5, 2.0, 8) + (rng.normal(size=8) if centred else 0.0)
    X[:, 7] = X[:, 0] + 0.5 * rng.normal(size=50)
    if not centred:
        X /= 4.0
    signal = X[:, :3] @ np.array([0.8, -0.5, 0.4])
    if name == "linear":
        y = signal + 0.7 * rng.normal(size=50) + 2.0
    elif name == "logistic":
        y = (signal + rng.logistic(size=50) > 0).astype(float)
    else:
        y = rng.poisson(np.exp(np.clip(signal, -3, 2))).astype(float)
    return Case(name, ridge, rng.uniform(0.2, 3.0, 50) if weighted else None, centred, X, y)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("ridge", "weighted", "centred"), SETTINGS)
def test_fits_reach_the_maximum(name, ridge, weighted, centred) -> None:
    """Coefficients and value agree with BFGS on the likelihood written down independently; f of nothing is zero."""
    case = make(name, ridge, weighted, centred)
    objective, A = case.objective(), case.columns().dense(np.arange(4))
    beta, intercept, maximum = case.optimum(A)
    fit = objective.fit(A)
    spread = np.sqrt(case.w @ (case.y - (case.w @ case.y / case.w.sum() if centred else 0.0)) ** 2) if name == "linear" else 1.0
    assert fit.coef / spread == pytest.approx(beta, abs=2e-4 * max(np.abs(beta).max(), 1.0))
    if name != "linear":
        assert fit.intercept == pytest.approx(intercept, abs=2e-4)
    nothing = case.likelihood(A[:, :0], np.zeros(0), case.optimum(A[:, :0])[1]) if name != "linear" else 0.0
    assert fit.value == pytest.approx(maximum - nothing, abs=1e-7)
    assert objective.fit(A[:, :0]).value == pytest.approx(0.0, abs=1e-12)
    assert objective.null().value == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("ridge", "weighted", "centred"), SETTINGS)
def test_gradients_are_derivatives(name, ridge, weighted, centred) -> None:
    """Products with the residual are the finite differences of the likelihood in the unselected columns (half of them for R^2)."""
    case = make(name, ridge, weighted, centred)
    objective, columns = case.objective(), case.columns()
    everything = columns.dense(np.arange(8))
    model = objective.null()
    for start in (0, 2):
        if start:
            model.add(everything[:, :start])
        gradient = columns.products(model.residual[:, None])[:, 0]
        fit = objective.fit(everything[:, :start])
        spread = np.sqrt(case.w @ (case.y - (case.w @ case.y / case.w.sum() if centred else 0.0)) ** 2) if name == "linear" else 1.0
        at = np.concatenate((fit.coef / spread, np.zeros(8 - start)))
        for column in range(start, 8):
            step = np.zeros(8)
            step[column] = 1e-5
            up, down = (case.likelihood(everything, at + sign * step, fit.intercept) for sign in (1, -1))
            slope = (up - down) / 2e-5 / (2.0 if name == "linear" else 1.0)
            assert gradient[column] == pytest.approx(slope, abs=1e-5 * max(1.0, abs(slope)))


@pytest.fixture(params=["few columns", "many columns", "not compiled"])
def either_way(request, monkeypatch) -> None:
    """Run a test with the Gram matrix of all columns at hand, with products computed as they are needed, and without C."""
    if request.param == "many columns":
        monkeypatch.setattr("fastomp_nvm.objectives.known_columns.MOST_COLUMNS", 0)
    elif request.param == "not compiled":
        monkeypatch.setattr(native, "extension", None)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("ridge", "weighted", "centred"), SETTINGS)
def test_growing_models_equal_refits(name, ridge, weighted, centred) -> None:
    """Adding columns one by one, or advancing along candidates, gives the value and the gradients of a fit from scratch."""
    case = make(name, ridge, weighted, centred)
    objective, columns = case.objective(), case.columns()
    model, scores = objective.null(), columns.standardisation.scores
    following = model.follow(columns, columns.products(model.residual[:, None])[:, 0])
    order = np.array([2, 7, 0])
    for part in (order[:2], order[2:]):
        assert advance(following, part, None, 0.0, 0.0, False) == (len(part), False)
        fresh = objective.null()
        fresh.add(columns.dense(order[: 2 if part[0] == 2 else 3]))
        assert following.scores() == pytest.approx(scores(columns.products(fresh.residual[:, None]))[:, 0], rel=5e-5, abs=5e-5)
    fresh = objective.null()
    for position in order:
        fresh.add(columns.dense(np.array([position])))
    residual, refit = model.residual, objective.fit(columns.dense(order))
    assert residual == pytest.approx(fresh.residual, abs=1e-5)
    assert model.value == pytest.approx(refit.value, abs=1e-8)
    assert fresh.value == pytest.approx(refit.value, abs=1e-8)
    again = objective.refit(columns.keep(order))
    assert (again.value, again.intercept) == pytest.approx((refit.value, refit.intercept), rel=1e-10)
    assert again.coef == pytest.approx(refit.coef, rel=1e-8)


def advanced_slowly(
    objective: Objective,
    columns: Columns,
    sequence: list[int],
    blocked: np.ndarray | None,
    threshold: float,
    enough: float,
    skip_weak: bool,
) -> tuple[int, list[int] | None]:
    """Return the expected result of ``advance``, from fits from scratch: additions, and the candidates left once too few are."""
    for added in range(len(sequence) + 1):
        model = objective.null()
        if added:
            model.add(columns.dense(np.array(sequence[:added])))
        scores = columns.standardisation.scores(columns.products(model.residual[:, None]))[:, 0]
        outside = ~np.isin(np.arange(len(scores)), sequence[:added])
        left = np.flatnonzero((scores >= threshold) & outside & (True if blocked is None else blocked > added)).tolist()
        if added and len(left) < enough:
            return added, left
        if added == len(sequence) or (skip_weak and added and scores[sequence[added]] < threshold):
            return added, None
    raise AssertionError("not reached")


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("dtype", "budget"), [("float64", 1 << 30), ("float32", 1 << 30), ("float32", 2000), ("float16", 1 << 30)])
def test_candidates_advance_as_fits_from_scratch_decide(name, grouped, dtype, budget) -> None:
    """Additions, candidates left and the value of the model agree with fits of every prefix from scratch; twice in a row."""
    rng, found = np.random.default_rng(11), set()
    for trial in range(12):
        centred = trial % 3 > 0
        case = make(name, float(rng.choice([0.0, 0.3])) if name == "linear" else 0.3, bool(trial % 2), centred, seed=trial)
        # One column is another's sum with a third: dependent where all three are selected, for the type holds all digits of them.
        X = np.round(64.0 * case.X) / 64.0
        X = np.column_stack((X, X[:, 0] + X[:, 1]))
        if centred and dtype == "float32":  # where float32 sums would cancel most digits
            X[:, 3] += 512.0
        store = fo.create_store(
            "dram:advance", X, case.y, dtype=dtype, groups={"two": [4, 5]} if grouped else None, tier="none", replace=True
        )
        design = Dataset.of_store(store).design(centred, case.weights)
        columns = ColumnPool(design, Sweeper(1), Traffic(), budget).columns(np.arange(9 - grouped))
        objective = case.objective()
        model = objective.null()
        gradient = columns.products(model.residual[:, None])[:, 0]
        following = model.follow(columns, gradient)
        sequence = rng.permutation(9 - grouped)[:4]
        blocked = rng.choice([3, 4, 99], size=9 - grouped) if trial % 4 else None
        threshold = float(np.quantile(columns.standardisation.scores(gradient[:, None])[:, 0], rng.uniform(0.02, 0.4)))
        enough, skip_weak = float(rng.choice([0.5, 1.5, 2.5, 4.5])), bool(rng.integers(2))
        with_ties = advanced_slowly(objective, columns, sequence.tolist(), blocked, threshold, enough, skip_weak)
        added, few = advance(following, sequence, blocked, threshold, enough / len(columns.features), skip_weak)
        assert (added, following.features.tolist() if few else None) == with_ties
        found.add((few, added))
        reference = objective.null()
        reference.add(columns.dense(sequence[:added]))
        assert model.value == pytest.approx(reference.value, abs=1e-6)
        kept = columns.keep(following.features)
        scores = kept.standardisation.scores(kept.products(reference.residual[:, None]))[:, 0]
        assert following.scores() == pytest.approx(scores, abs=2e-5 * max(scores.max(initial=0.0), 1.0))
        rest = np.flatnonzero(~np.isin(following.features, sequence[:added]))[:2]
        if rest.size:  # and on from there
            assert advance(following, rest, None, 0.0, 0.0, False) == (len(rest), False)
            more = np.concatenate((sequence[:added], kept.features[rest]))
            reference = objective.null()
            reference.add(columns.dense(more))
            assert model.value == pytest.approx(reference.value, abs=1e-6)
        store.close()
    assert len(found) > 3  # they end in many ways


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(("ridge", "weighted", "centred"), SETTINGS)
def test_linear_gains_are_differences_of_fits(ridge, weighted, centred) -> None:
    """``g^2 / d`` is what a refit with the column adds, after any additions."""
    case = make("linear", ridge, weighted, centred)
    objective, columns = case.objective(), case.columns()
    tracker = objective.gains(columns)
    chosen: list[int] = []
    for position in (3, 1, 6):
        base = objective.fit(columns.dense(np.array(chosen, dtype=np.int64))).value
        assert tracker.value == pytest.approx(base, abs=1e-9)
        wanted = [objective.fit(columns.dense(np.array([*chosen, other]))).value - base for other in range(8)]
        outside = [other for other in range(8) if other not in chosen]
        assert tracker.gains()[outside] == pytest.approx(np.array(wanted)[outside], abs=1e-8)
        tracker.add(position)
        chosen.append(position)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("grouped", [False, True])
def test_growing_is_adding_the_best_again_and_again(name, grouped) -> None:
    """``grow`` adds what ``best`` and ``add`` do one by one, with the same gains and value; it ends with candidates or gains."""
    case = make(name, 0.3, True, True)
    store = fo.create_store("dram:grow", case.X, case.y, groups={"two": [4, 5]} if grouped else None, tier="none", replace=True)
    columns = ColumnPool(Dataset.of_store(store).design(True, case.weights), Sweeper(1), Traffic(), 1 << 30).columns(
        np.arange(8 - grouped)
    )
    for closed, count, least in (([], 3, 0.0), ([1, 6], 8, -1.0), ([], 8, 1e9), (list(range(8 - grouped)), 2, -1.0)):
        open_ = np.ones(8 - grouped, dtype=np.bool_)
        open_[closed] = False
        left, wanted = open_.copy(), []
        slow = case.objective().gains(columns)
        while len(wanted) < count:
            place, gain = slow.best(left)
            if gain < 0.0 or gain <= least:
                break
            slow.add(place)
            left[place] = False
            wanted.append((place, gain))
        quick = case.objective().gains(columns)
        found = quick.grow(open_, count, least)
        assert [place for place, _ in found] == [place for place, _ in wanted]
        assert [gain for _, gain in found] == pytest.approx([gain for _, gain in wanted], rel=1e-9, abs=1e-12)
        assert open_.tolist() == left.tolist()
        assert quick.value == pytest.approx(slow.value, rel=1e-9, abs=1e-12)
    store.close()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("pursuit", [False, True])
def test_growing_computes_the_gram_columns_it_lacks(pursuit) -> None:
    """Beyond the columns whose Gram matrix is kept, ``grow`` adds what ``best`` and ``add`` do, also with an earlier tracker's."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(90, 700)) + rng.normal(size=(90, 1))
    y = X[:, :60] @ rng.normal(size=60) + rng.normal(size=90)
    columns = ColumnPool(Dataset.of_array(X).design(), Sweeper(1), Traffic(), 1 << 30).columns(np.arange(700))
    objective = Linear(y)
    slow, left, wanted = objective.gains(columns, pursuit=pursuit), np.ones(700, dtype=np.bool_), []
    for _ in range(60):
        place, gain = slow.best(left)
        slow.add(place)
        left[place] = False
        wanted.append((place, pytest.approx(gain, rel=1e-6)))
    other = objective.gains(columns, pursuit=not pursuit)
    other.grow(np.ones(700, dtype=np.bool_), 20, -1.0)
    for earlier in (None, other):
        quick, open_ = objective.gains(columns, None, earlier, pursuit=pursuit), np.ones(700, dtype=np.bool_)
        assert quick.grow(open_, 50, -1.0) + quick.grow(open_, 10, -1.0) == wanted
        assert open_.tolist() == left.tolist()
        assert quick.value == pytest.approx(slow.value, rel=1e-9)


@pytest.mark.parametrize("request_", [{}, {"standardize": False, "ridge": 0.1}, {"tau": "auto"}])
def test_few_columns_and_many_select_alike(monkeypatch, request_) -> None:
    """With the Gram matrix of all, of none or of the first columns at hand a run selects the same features, up to rounding."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(120, 300)) + rng.normal(size=(120, 1))
    y = X[:, :40] @ rng.normal(size=40) + rng.normal(size=120)
    found = []
    for most in (320, 30, 0):
        monkeypatch.setattr("fastomp_nvm.objectives.known_columns.MOST_COLUMNS", most)
        found.append(fo.select(X, y, k=25, **request_))
    for other in found[1:]:
        assert other.indices.tolist() == found[0].indices.tolist()
        assert other.score == pytest.approx(found[0].score, abs=1e-10)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize(("ridge", "weighted", "centred"), SETTINGS)
def test_glm_gains_are_right_to_second_order(name, ridge, weighted, centred) -> None:
    """For a column that adds little, the predicted gain is the gain; for any, it is of its size."""
    case = make(name, ridge, weighted, centred)
    objective, columns = case.objective(), case.columns()
    tracker = objective.gains(columns)
    for position in (0, 1, 2):  # then it fits
        tracker.add(position)
    base = objective.fit(columns.dense(np.array([0, 1, 2]))).value
    assert tracker.value == pytest.approx(base, abs=1e-8)
    gains = tracker.gains()
    for other in range(3, 8):
        gain = objective.fit(columns.dense(np.array([0, 1, 2, other]))).value - base
        assert gains[other] == pytest.approx(gain, rel=0.5 * np.sqrt(gain) + 0.02, abs=1e-6)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("centred", [True, False])
def test_glm_gains_follow_the_quadratic_model_between_fits(monkeypatch, name, grouped, centred) -> None:
    """After additions without a fit, gains are those of maximising the likelihood's quadratic model at the last fit."""
    monkeypatch.setattr("fastomp_nvm.objectives.glm_gains.LONGEST", 9)
    monkeypatch.setattr("fastomp_nvm.objectives.glm_gains.TRUST", 9.0)
    case = make(name, 0.3, True, centred)
    dataset = Dataset.of_store(
        fo.create_store("dram:gains", case.X, case.y, groups={"two": [4, 5]} if grouped else None, replace=True)
    )
    columns = ColumnPool(dataset.design(centred, case.weights), Sweeper(1), Traffic(), 1 << 30).columns(np.arange(8 - grouped))
    members = [[0], [1], [2], [3], [4, 5], [6], [7]] if grouped else [[column] for column in range(8)]
    A, objective = columns.dense(np.arange(len(members))), case.objective()
    tracker = objective.gains(columns)
    for position in (0, 4, 2, 5):  # fits after the third
        tracker.gains()
        tracker.add(position)
    fit = objective.fit(A[:, members[0] + members[4] + members[2]])
    eta = A[:, members[0] + members[4] + members[2]] @ fit.coef + fit.intercept
    mean = 1 / (1 + np.exp(-eta)) if name == "logistic" else np.exp(eta)
    v = case.w * (mean * (1 - mean) if name == "logistic" else mean)

    def best(features: list[int]) -> float:
        """Return the maximum of the quadratic model over these features, up to a constant."""
        chosen = A[:, [column for feature in features for column in members[feature]]]
        design = np.column_stack((np.ones(len(A)), chosen)) if centred else chosen
        penalty = np.diag([0.0] * centred + [case.ridge] * chosen.shape[1])
        slope = design.T @ (v * eta + case.w * (case.y - mean))
        return float(0.5 * slope @ np.linalg.solve(design.T @ (design * v[:, None]) + penalty, slope))

    gains = tracker.gains()
    for other in set(range(len(members))) - {0, 4, 2, 5}:
        assert gains[other] == pytest.approx(best([0, 4, 2, 5, other]) - best([0, 4, 2, 5]), rel=3e-4, abs=1e-7)  # float32 products


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_steps_taken_unseen_raise_the_likelihood(name) -> None:
    """A step has gained where the gradient at its end still points along it, or where it is short and went past only a little."""
    rng = np.random.default_rng(3)
    longest, past = 0.0, 0
    for trial in range(2000):
        case = make(name, 0.1, bool(trial % 2), True, seed=trial % 7)
        objective = case.objective()
        assert isinstance(objective, GLM)
        design, penalty = objective.design(case.columns().dense(np.arange(5))), objective.penalty(6)
        beta, step = (rng.normal(size=6) * rng.uniform(0.0, 2.0) for _ in range(2))
        after, length = beta + step, float(np.abs(step @ design).max())
        slopes = [
            float((design @ (objective.weights * (case.y - objective.mean(at @ design))) - penalty * at) @ step)
            for at in (beta, after)
        ]
        slightly = slopes[0] > 0.0 > slopes[1] >= -newton.OVERSHOT * slopes[0] and length <= newton.SMALL
        if slopes[1] >= 0.0 or slightly:
            longest, past = max(longest, length), past + slightly
            assert objective.likelihood(after @ design, after[1:]) > objective.likelihood(beta @ design, beta[1:])
    assert longest > 1.0
    assert past > 10


def test_no_family_gains_less_than_promised_where_a_step_went_past() -> None:
    """The worst there is, a curvature that falls by e along the step, gains as long as the slope at its end is below 0.718."""
    times = np.linspace(0.0, 1.0, 100_001)
    bend = np.exp(-times)
    bend /= np.trapezoid(bend, times) if hasattr(np, "trapezoid") else np.trapz(bend, times)  # NumPy before 2
    for end, gains in ((newton.OVERSHOT, True), (0.717, True), (0.719, False)):
        slope = 1.0 - (1.0 + end) * np.concatenate(([0.0], np.cumsum((bend[1:] + bend[:-1]) / 2.0 * np.diff(times))))
        assert slope[-1] == pytest.approx(-end, abs=1e-9)
        assert bool(((slope[1:] + slope[:-1]) / 2.0 * np.diff(times)).sum() > 0.0) is gains


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("stretch", [1e-3, 0.2, 0.9, 30.0])
def test_a_wrong_factor_costs_steps_and_no_digits(monkeypatch, name, compiled, stretch) -> None:
    """A fit handed a factor that is far off, with which steps are much too long or too short, ends at the same maximum."""
    if not compiled:
        monkeypatch.setattr(native, "extension", None)
    case = make(name, 0.1, True, True)
    objective = case.objective()
    assert isinstance(objective, GLM)
    columns = case.columns().dense(np.arange(6))
    start = objective.newton(columns[:, :5], objective.null_coefficients)
    factor = curvature_at(objective.design(columns[:, :5]), objective.weights, objective.penalty(6))
    found = objective.newton(columns, replace(start, factor=np.asfortranarray(np.triu(factor) * stretch)))
    assert found.coef == pytest.approx(objective.newton(columns, objective.null_coefficients).coef, abs=1e-6)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_a_fit_started_from_its_neighbour_needs_about_one_curvature(monkeypatch, name) -> None:
    """Adding columns one by one factors at most two curvatures each; a fit from scratch of the same columns agrees."""
    factored: list[int] = []
    monkeypatch.setattr(native, "extension", None)
    monkeypatch.setattr(newton, "curvature_at", lambda design, *rest: factored.append(len(design)) or curvature_at(design, *rest))
    case = make(name, 0.1, False, True)
    model, columns = case.objective().null(), case.columns()
    for position in range(6):
        before = len(factored)
        model.add(columns.dense(np.array([position])))
        assert len(factored) - before <= (2 if position > 1 else 6)
    assert model.value == pytest.approx(case.objective().fit(columns.dense(np.arange(6))).value, abs=1e-10)


def fitted(monkeypatch: pytest.MonkeyPatch, case: Case, columns: np.ndarray, *, compiled: bool) -> list[newton.Coefficients]:
    """Return the fits of the first two, three, six and all of ``columns`` (n_obs, d), each started from the one before."""
    if not compiled:
        monkeypatch.setattr(native, "extension", None)
    objective = case.objective()
    assert isinstance(objective, GLM)
    found = [objective.null_coefficients]
    for size in (2, 3, 6, columns.shape[1]):
        found.append(objective.newton(columns[:, :size], found[-1]))
    monkeypatch.undo()
    return found


@pytest.mark.skipif(not native.extension, reason="the compiled fits are not built")
@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("kind", ["plain", "zero weights", "hardly a ridge", "dependent", "far away", "single observation"])
@pytest.mark.parametrize(("ridge", "weighted", "centred"), SETTINGS)
def test_compiled_fits_are_those_of_python(monkeypatch, name, kind, ridge, weighted, centred) -> None:
    """Coefficients, predictor and residual agree to rounding; a factor comes with both or with neither."""
    case = make(name, ridge, weighted, centred)
    columns = case.columns().dense(np.arange(8))
    if kind == "zero weights":  # observations that do not count are far out: no step may be shortened for them
        case = replace(case, weights=case.w * (np.arange(50) % 3 > 0))
        columns[::3] *= 1e3
    elif kind == "hardly a ridge":  # separated labels: dozens of damped steps
        case, columns = replace(case, ridge=1e-6), np.column_stack((case.y - 0.5, columns)) / 7.0
    elif kind == "dependent":
        case, columns = replace(case, ridge=max(ridge, 1e-3)), np.column_stack((columns[:, :4], columns[:, :4]))
    elif kind == "far away":  # exp of some predictors on the way is beyond all bounds
        columns = columns * 40.0
    elif kind == "single observation":
        case = replace(case, ridge=max(ridge, 0.1), X=case.X[:2], y=np.array([0.0, 1.0]), weights=None)
        columns = columns[:2].copy()
    ours, theirs = (fitted(monkeypatch, case, columns, compiled=compiled) for compiled in (True, False))
    for fast, plain in zip(ours, theirs, strict=True):
        size = max(np.abs(plain.coef).max(initial=0.0), np.abs(plain.free).max(initial=0.0), 1.0)
        assert fast.coef == pytest.approx(plain.coef, abs=1e-6 * size)
        assert fast.free == pytest.approx(plain.free, abs=1e-6 * size)
        counted = case.w > 0
        assert fast.eta[counted] == pytest.approx(plain.eta[counted], abs=1e-6 * max(np.abs(plain.eta[counted]).max(), 1.0))
        assert fast.residual == pytest.approx(plain.residual, abs=1e-6 * max(case.y.max(), 1.0))
        assert (fast.factor is None) == (plain.factor is None)
        if fast.factor is not None and plain.factor is not None:
            upper, other = np.triu(fast.factor), np.triu(plain.factor)
            assert upper.T @ upper == pytest.approx(other.T @ other, rel=1e-3, abs=1e-6 * np.abs(other).max() ** 2)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_curvature_that_cannot_be_factored_is_an_error(monkeypatch, compiled) -> None:
    """A penalty below zero, which no request passes on, ends a fit with an error, by C and by Python."""
    if not compiled:
        monkeypatch.setattr(native, "extension", None)
    case = make("logistic", -10.0, False, True)
    columns = case.columns().dense(np.arange(3))
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        case.objective().newton(columns, case.objective().null_coefficients)  # type: ignore[attr-defined]


def test_a_family_without_compiled_fits_is_fitted_in_python() -> None:
    """A family of one's own needs moments and a partition function; a class that changes a built-in one says so by ``native``."""

    class Other(Logistic):
        native = None

        def moments(self, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            asked.append(len(eta))
            return super().moments(eta)

    asked: list[int] = []
    case = make("logistic", 0.3, True, True)
    columns = case.columns().dense(np.arange(5))
    other = Other(case.y, case.weights, ridge=0.3).fit(columns)
    assert len(asked) > 3
    assert other.coef == pytest.approx(case.objective().fit(columns).coef, abs=1e-9)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("least", [32, 0])
def test_the_polish_finds_what_a_constraint_admits_among_many(monkeypatch, name, least) -> None:
    """Where the features with the largest scores are infeasible, feasible ones enter the quadratic model, with the same gains."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(150, 400))
    eta = X[:, :300] @ np.where(np.arange(300) < 40, 0.5, 0.0) + 0.2 * X[:, 300:320].sum(axis=1)
    y = rng.poisson(np.exp(0.3 * eta)) if name == "poisson" else eta + rng.logistic(size=150) > 0
    groups = {"strong": [f"f{feature}" for feature in range(300)], "weak": [f"f{feature}" for feature in range(300, 400)]}
    constraint = {"partition": {"groups": groups, "caps": {"strong": 3, "weak": 9}}}
    request: dict[str, Any] = {"objective": name, "ridge": 0.2, "tau": 0.2, "until": "full", "constraint": constraint}
    found = {}
    for near in (least, 1000):
        monkeypatch.setattr("fastomp_nvm.objectives.glm_gains.LEAST_NEAR", near)
        monkeypatch.setattr("fastomp_nvm.objectives.glm_gains.NEAR_PER_ADDITION", 2)
        found[near] = fo.select(X, y.astype(float), **request)
    few, all_ = found[least], found[1000]
    assert len(few.indices) == len(all_.indices) == 12
    assert few.score >= all_.score - 0.02 * abs(all_.score)
    assert few.score >= few.score_unpolished - 1e-9 * abs(few.score_unpolished)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("ridge", [0.0, 0.4])
def test_coefficients_equal_those_of_scikit_learn(name, ridge) -> None:
    """LinearRegression and Ridge, LogisticRegression with C = 1 / ridge, PoissonRegressor with alpha = ridge / sum of weights."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    for weighted in (False, True):
        case = make(name, ridge, weighted, True)
        A = case.columns().dense(np.arange(5))
        if name == "linear":
            model: Any = linear_model.Ridge(alpha=ridge) if ridge else linear_model.LinearRegression()
        elif name == "logistic":
            model = linear_model.LogisticRegression(C=1 / ridge if ridge else np.inf, tol=1e-12, max_iter=10_000)
        else:
            model = linear_model.PoissonRegressor(alpha=ridge / case.w.sum(), tol=1e-12, max_iter=10_000)
        model.fit(A, case.y, sample_weight=case.weights)
        fit = case.objective().fit(A)
        assert fit.coef == pytest.approx(np.ravel(model.coef_), rel=1e-3, abs=1e-4)
        assert fit.intercept == pytest.approx(float(np.ravel(model.intercept_)[0]), abs=1e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("algorithm", ["fast_omp", "sds_omp", "sds_ma", "top_k"])
@pytest.mark.parametrize("standardize", [True, False])
def test_weights_are_repetitions(name, algorithm, standardize) -> None:
    """An observation of weight three counts like three observations: same features, same coefficients, same score."""
    case = make(name, 0.0, False, standardize, seed=3)
    times = np.random.default_rng(1).integers(0, 4, len(case.y))
    request = {"k": 4, "objective": name, "algorithm": algorithm, "standardize": standardize, "ridge": 0.2, "polish": "none"}
    weighted = fo.select(case.X, case.y, weights=times.astype(float), **request)
    repeated = fo.select(np.repeat(case.X, times, axis=0), np.repeat(case.y, times), **request)
    assert weighted.indices.tolist() == repeated.indices.tolist()
    assert weighted.column_coef == pytest.approx(repeated.column_coef, rel=1e-6, abs=1e-9)
    assert weighted.intercept == pytest.approx(repeated.intercept, abs=1e-7)
    assert weighted.score == pytest.approx(repeated.score, abs=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_feature_of_several_columns_is_fitted_as_its_columns(name, standardize, weighted) -> None:
    """Whitening changes coordinates, not predictions: a one-hot feature predicts what its plain columns predict."""
    rng = np.random.default_rng(9)
    level = rng.integers(0, 3, 90)
    X = np.column_stack((rng.normal(size=(90, 2)), np.eye(3)[level]))
    eta = 0.5 * X[:, 0] + np.array([0.6, -0.8, 0.1])[level]
    noisy = {"linear": eta + 0.2 * rng.normal(size=90), "logistic": eta + rng.logistic(size=90) > 0, "poisson": None}[name]
    y = np.asarray(rng.poisson(np.exp(eta)) if noisy is None else noisy, dtype=float)
    store = fo.create_store("dram:hot", X, y, groups={"level": [2, 3, 4]}, replace=True)
    request: dict[str, Any] = {"k": 3, "objective": name, "ridge": 0.0, "standardize": standardize, "until": "full"}
    if weighted:
        request["weights"] = rng.uniform(0.1, 2.0, 90)
    for algorithm in ("fast_omp", "sds_omp", "sds_ma"):
        grouped = fo.select(store, algorithm=algorithm, **request)
        assert len(grouped.indices) == 3
        plain_columns = X[:, :4] if standardize else X  # with an intercept the last level is determined
        plain = fo.select(plain_columns, y, algorithm="sds_omp", **{**request, "k": plain_columns.shape[1]})
        assert grouped.predict(X) == pytest.approx(plain.predict(plain_columns), abs=1e-5)
        assert grouped.score == pytest.approx(plain.score, abs=1e-8)
