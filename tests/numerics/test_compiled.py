"""What C computes for the objectives and the standardisation: as NumPy does, and nothing for arrays that do not fit each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastomp_nvm.matrix import standardisation
from fastomp_nvm.matrix.moments import ColumnStatistics
from fastomp_nvm.matrix.standardisation import Standardisation
from fastomp_nvm.objectives import linear_candidates, newton
from fastomp_nvm.objectives.glm import GLM
from fastomp_nvm.objectives.table import OBJECTIVES

needs_fits = pytest.mark.skipif(newton.native is None, reason="the compiled fits are not built")


def family(name: str, n: int, ridge: float, *, centred: bool) -> GLM:
    """Return a family with a random response and weights, one of them zero."""
    rng = np.random.default_rng(n)
    y = rng.integers(2, size=n) if name == "logistic" else rng.poisson(2.0, size=n)
    weights = rng.uniform(0.2, 2.0, size=n) * (np.arange(n) != 3)
    found = OBJECTIVES.load(name)(y.astype(float), weights, ridge=ridge, centred=centred)
    assert isinstance(found, GLM)
    return found


@needs_fits
@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_likelihoods_and_variances_are_those_of_numpy(monkeypatch, name) -> None:
    """To the last digits but two, wherever the predictor is."""
    objective = family(name, 40, 0.1, centred=True)
    for size in (0.1, 3.0, 40.0, 800.0):
        eta = np.random.default_rng(1).normal(size=40) * size
        ours, roots = objective.log_likelihood(eta), newton.roots(objective, eta)
        monkeypatch.setattr(newton, "native", None)
        assert ours == pytest.approx(objective.log_likelihood(eta), rel=1e-14, abs=1e-14)
        plain = newton.roots(objective, eta)
        monkeypatch.undo()
        # In the upper tail of the logistic 1 - mean cancels, where the variance is too small to matter.
        assert roots[0] == pytest.approx(plain[0], rel=1e-12, abs=1e-8)
        assert roots[1] == pytest.approx(plain[1], rel=1e-12)


@needs_fits
@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_the_curvature_left_is_that_of_numpy(monkeypatch, name, centred, size) -> None:
    """Compiled, in NumPy, and by a projection in float64; the factor of the fit becomes that of the fit with columns added."""
    n, near, unit = 60, 7, 0.3
    objective = family(name, n, 0.2, centred=centred)
    rng = np.random.default_rng(size)
    rows, columns = rng.normal(size=(size, n)), rng.normal(size=(near, n))
    if size and centred:
        rows[0] = 1.0
    roots = rng.uniform(0.1, 0.7, size=n)
    scaled = np.zeros((size + near, n), dtype=np.float32)
    found = []
    for compiled in (True, False):
        scaled[size:] = columns * roots
        if not compiled:
            monkeypatch.setattr(newton, "native", None)
        found.append(newton.curvature_left(objective, rows, roots, scaled, unit))
    monkeypatch.undo()
    A, B = rows * roots, columns * roots
    inner = np.linalg.solve(A @ A.T + np.diag(objective.penalty(size)), A @ B.T) if size else np.zeros((0, near))
    expected = (B @ B.T - B @ A.T @ inner + 0.2 * np.eye(near)) / unit
    for curvature in found:
        assert curvature.left == pytest.approx(expected, abs=2e-5 * np.abs(expected).max())
        assert np.array_equal(curvature.left, curvature.left.T)
    assert found[0].left == pytest.approx(found[1].left, abs=1e-5 * np.abs(expected).max())
    added = np.array([4, 0, 5])
    directions = np.linalg.cholesky(expected[np.ix_(added, added)]).T  # of the columns added; the others need none here
    coordinates = np.zeros((3, near))
    coordinates[:, added] = directions
    whole = np.vstack((A, B[added]))
    penalised = whole @ whole.T + np.diag(np.append(objective.penalty(size), np.full(3, 0.2)))
    for curvature in found:
        factor = np.triu(curvature.extended(added, coordinates))
        assert factor.T @ factor == pytest.approx(penalised, abs=2e-5 * np.abs(penalised).max())


@needs_fits
def test_a_fit_of_dependent_columns_leaves_a_curvature_all_the_same() -> None:
    """Where float32 cannot factor what the fit has, float64 does."""
    objective = family("logistic", 60, 1e-9, centred=False)
    rng = np.random.default_rng(2)
    one, columns, roots = rng.normal(size=60), rng.normal(size=(4, 60)), np.full(60, 0.5)
    rows = np.array([one, one + 1e-6 * rng.normal(size=60)])
    scaled = np.zeros((6, 60), dtype=np.float32)
    scaled[2:] = columns * roots
    assert not newton.native.curvature(
        rows, roots, scaled, (1e-9, 1.0, False), np.empty((4, 4)), np.empty((2, 2)), np.empty((4, 2))
    )
    left = newton.curvature_left(objective, rows, roots, scaled, 1.0).left
    assert np.isfinite(left).all()
    assert np.linalg.eigvalsh(left).min() > 0.0


@pytest.mark.skipif(standardisation.native is None, reason="compiled standardisation is not built")
@pytest.mark.parametrize("vectors", [1, 3])
def test_products_are_standardised_with_the_bits_of_numpy(monkeypatch, vectors) -> None:
    """Compiled or not, the same bits; columns that are wide see the other sums. What is not contiguous is NumPy's."""
    rng = np.random.default_rng(vectors)
    raw, mean, norm = rng.normal(size=(9, vectors)), rng.normal(size=9), rng.uniform(0.5, 2.0, size=9)
    mean[4] = 1e6
    one = Standardisation.from_moments(np.arange(10), ColumnStatistics(mean, norm, -np.abs(mean) - 9.0, np.abs(mean) + 9.0), 50.0)
    assert one.wide.tolist() == [column == 4 for column in range(9)]
    sums, wide_sums = rng.normal(size=vectors), rng.normal(size=vectors)
    ours, strided = one.apply(raw.copy(), sums, wide_sums), one.apply(np.array(raw, order="F"), sums, wide_sums)
    monkeypatch.setattr(standardisation, "native", None)
    plain = one.apply(raw.copy(), sums, wide_sums)
    assert ours.tobytes() == plain.tobytes()
    assert np.ascontiguousarray(strided).tobytes() == plain.tobytes()
    monkeypatch.undo()
    good: dict[str, Any] = {"products": raw, "mean": mean, "scale": norm, "wide": one.wide, "sums": sums, "wide_sums": wide_sums}
    for name, wrong in {
        "products": raw[:-1].copy(),
        "mean": mean[:-1],
        "scale": norm[:-1],
        "wide": one.wide[:-1],
        "wide_sums": np.zeros(vectors + 1),
    }.items():
        with pytest.raises(ValueError, match="do not fit"):
            standardisation.native.apply(*{**good, name: wrong}.values())


@needs_fits
def test_models_of_a_likelihood_refuse_arrays_that_do_not_fit() -> None:
    """Lengths that contradict each other and unknown families are a ValueError."""
    three = {"family": "logistic", "eta": np.zeros(6), "response": np.zeros(6), "out": np.zeros(6)}
    for function in (newton.native.log_likelihood, newton.native.roots):
        for name, wrong in {"family": "gamma", "eta": np.zeros(5), "response": np.zeros(7), "out": np.zeros(5)}.items():
            with pytest.raises(ValueError, match=r"no family|do not fit"):
                function(*{**three, name: wrong}.values())
    good: dict[str, Any] = {
        "design": np.ones((2, 6)),
        "roots": np.ones(6),
        "scaled": np.ones((5, 6), dtype=np.float32),
        "units": (0.1, 1.0, True),
        "out": np.zeros((3, 3)),
        "factor": np.zeros((2, 2)),
        "above": np.zeros((3, 2)),
    }
    for name, wrong in {
        "factor": np.zeros((2, 1)),
        "above": np.zeros((2, 2)),
        "design": np.ones((6, 6)),
        "roots": np.ones(0),
        "scaled": np.ones((5, 5), dtype=np.float32),
        "out": np.zeros((3, 2)),
    }.items():
        with pytest.raises(ValueError, match="do not fit"):
            newton.native.curvature(*{**good, name: wrong}.values())
    assert newton.native.curvature(*good.values())


@pytest.mark.skipif(newton.native is None, reason="the compiled fits are not built")
def test_compiled_fits_refuse_arrays_that_do_not_fit() -> None:
    """Lengths that contradict each other and unknown families are a ValueError; nothing is read or written."""
    n, d, c = 6, 2, 3
    good: dict[str, Any] = {
        "family": "logistic",
        "design": np.ones((d, n)),
        "response": np.zeros(n),
        "weights": np.ones(n),
        "settings": (0.1, 1e-12, 0.05, 1.0, 0.5, 200, True),
        "known": None,
        "beta": np.zeros(d),
        "eta": np.zeros(n),
        "residual": np.zeros(n),
        "factor": np.zeros((d, d)),
        "settled": 0,
    }
    wrong_fits: list[tuple[str, Any]] = [
        ("family", "gamma"),
        ("design", np.ones((d, n - 1))),
        ("weights", np.ones(n + 1)),
        ("known", np.ones((d + 1, d + 1))),
        ("known", np.ones(3)),
        ("beta", np.zeros(0)),
        ("eta", np.zeros(n - 1)),
        ("residual", np.zeros(n + 1)),
        ("factor", np.zeros(d)),
        ("settled", d + 1),
    ]
    for name, wrong in wrong_fits:
        with pytest.raises(ValueError, match=r"no family|do not fit"):
            newton.native.maximise(*{**good, name: wrong}.values())
    columns: dict[str, Any] = {"rows": np.ones((c, n)), "places": np.arange(c), "mean": np.ones(c), "scale": np.ones(c)}
    columns["wide"] = np.zeros(c, dtype=np.bool_)
    rest: dict[str, Any] = {
        "gradient": np.ones(c),
        "added": np.zeros(c, dtype=np.bool_),
        "positions": np.array([1]),
        "blocked": np.full(c, 9),
        "kept": np.zeros(c, dtype=np.int64),
        "rule": (0.5, 1.0, False),
    }
    order = ("family", "design", "response", "weights", "beta", "eta", "residual", "factor", "has_factor", "settings")
    good = {name: good.get(name, False) for name in order} | columns | rest
    wrong_columns: list[tuple[str, Any]] = [
        ("rows", np.ones((c - 1, n))),
        ("rows", np.ones((c, n), dtype=np.float16)),
        ("rows", np.ones((n, c)).T),
        ("places", np.array([0, 1, -1])),
        ("mean", np.ones(c + 1)),
        ("scale", np.ones(c - 1)),
        ("wide", np.zeros(c + 1, dtype=np.bool_)),
    ]
    wrong_rest: list[tuple[str, Any]] = [
        ("rows", np.ones((c, n - 1))),
        ("gradient", np.ones(c + 1)),
        ("added", np.zeros(c - 1, dtype=np.bool_)),
        ("positions", np.array([c])),
        ("positions", np.array([-1])),
        ("positions", np.zeros(d + 1, dtype=np.int64)),
        ("blocked", np.full(c + 1, 9)),
        ("kept", np.zeros(c - 1, dtype=np.int64)),
    ]
    for name, wrong in [pair for pair in wrong_fits if pair[0] in good] + wrong_columns + wrong_rest:
        with pytest.raises(ValueError, match=r"no family|do not fit"):
            newton.native.advance(*{**good, name: wrong}.values())
    walk = {name: value for name, value in good.items() if name not in ("positions", "blocked", "kept", "rule")} | {
        "features": np.array([4, 7, 9]),
        "origin": np.arange(c),
        "drawn": np.zeros(1, dtype=np.int64),
        "sizes": np.zeros(1, dtype=np.int64),
        "lengths": np.zeros(1, dtype=np.int64),
        "name": (1, 2, 3),
        "rule": (0.5, 0.9, 1e9),
    }
    wrong_walks: list[tuple[str, Any]] = [
        ("added", np.ones(c, dtype=np.bool_)),
        ("features", np.arange(c + 1)),
        ("origin", np.arange(c)[::-1].copy()),
        ("origin", np.arange(c - 1)),
        ("drawn", np.zeros(d + 1, dtype=np.int64)),
        ("sizes", np.zeros(2, dtype=np.int64)),
        ("lengths", np.zeros(0, dtype=np.int64)),
        ("rule", (0.5, 0.0, 1e9)),
    ]
    heads = [pair for pair in [*wrong_fits, *wrong_columns] if pair[0] in walk]
    for name, wrong in [*heads, *wrong_walks]:
        with pytest.raises(ValueError, match=r"no family|do not fit"):
            newton.native.walk(*{**walk, name: wrong}.values())
    with pytest.raises(TypeError):
        newton.native.walk(*[value for name, value in walk.items() if name != "rule"])
    greedy = {name: value for name, value in good.items() if name not in rest} | {
        "open": np.ones(c, dtype=np.bool_),
        "taken": np.zeros(1, dtype=np.int64),
        "gains": np.zeros(1),
        "tolerances": (-1.0, 1e-16, 1e-12, 1e-16),
        "schedule": (0.05, 3, 2, 4, 32, 3, 320, 1e-6, 1e-6),
    }
    wrong_greedy: list[tuple[str, Any]] = [
        ("open", np.ones(c - 1, dtype=np.bool_)),
        ("taken", np.zeros(d, dtype=np.int64)),
        ("gains", np.zeros(2)),
        ("schedule", (0.05, 0, 2, 4, 32, 3, 320, 1e-6, 1e-6)),
        ("schedule", (0.05, 3, 2, 4, -1, 3, 320, 1e-6, 1e-6)),
    ]
    for name, wrong in [*heads, *wrong_greedy]:
        with pytest.raises(ValueError, match=r"no family|do not fit"):
            newton.native.greedy(*{**greedy, name: wrong}.values())
    with pytest.raises(TypeError):
        newton.native.greedy(*[value for name, value in greedy.items() if name != "schedule"])
    six: dict[str, Any] = {
        "family": "logistic",
        "eta": np.zeros(n),
        "response": np.zeros(n),
        "weights": np.ones(n),
        "coef": np.ones(2),
    }
    for name, wrong in {"family": "gamma", "eta": np.zeros(n + 1), "response": np.zeros(n - 1), "weights": np.zeros(1)}.items():
        with pytest.raises(ValueError, match=r"no family|do not fit"):
            newton.native.likelihood(*{**six, name: wrong}.values(), 0.5)
    assert newton.native.likelihood(*six.values(), 0.5) == pytest.approx(-n * np.log(2.0) - 0.5)
    product: dict[str, Any] = {**columns, "vectors": np.ones((2, n)), "out": np.zeros((c, 2))}
    for name, wrong in [*wrong_columns, ("vectors", np.ones(n + 1)), ("out", np.zeros((c, 3)))]:
        with pytest.raises(ValueError, match="do not fit"):
            newton.native.gradients(*{**product, name: wrong}.values())
    newton.native.gradients(*product.values())
    assert not product["out"].any()  # constant columns
    assert newton.native.advance(*good.values())[0] == 1
    walk["added"], walk["gradient"] = np.zeros(c, dtype=np.bool_), np.ones(c)
    assert newton.native.walk(*walk.values()) == (1, 0, 1, 1)  # one candidate, after which nothing fits
    assert (walk["sizes"].tolist(), walk["lengths"].tolist()) == ([c], [1])


@pytest.mark.skipif(linear_candidates.native is None, reason="the compiled rounds are not built")
def test_compiled_rounds_refuse_arrays_that_do_not_fit() -> None:
    """Lengths and positions that contradict each other are a ValueError; nothing is read or written."""
    c = 3
    prefixes: dict[str, Any] = {
        "gram": np.eye(c),
        "gradient": np.ones(c),
        "lengths": None,
        "offsets": np.arange(c + 1),
        "added": np.zeros(c, dtype=np.bool_),
        "positions": np.array([1]),
        "blocked": np.full(c, 9),
        "kept": np.zeros(c, dtype=np.int64),
        "rule": (0.5, 1.0, 0.0, 1e-10),
        "skip_weak": False,
    }
    walk: dict[str, Any] = {name: prefixes[name] for name in ("gram", "gradient", "lengths", "offsets")} | {
        "added": np.zeros(c, dtype=np.bool_),
        "features": np.array([4, 7, 9]),
        "origin": np.arange(c),
        "drawn": np.zeros(2, dtype=np.int64),
        "sizes": np.zeros(2, dtype=np.int64),
        "additions": np.zeros(2, dtype=np.int64),
        "name": (1, 2, 3),
        "rule": (0.5, 0.9, 0.0, 1e-10),
    }
    best: dict[str, Any] = {
        "gradient": np.ones(c),
        "pivot": np.ones(c),
        "smallest": np.zeros(c),
        "open": np.ones(c, dtype=np.bool_),
        "gains": np.zeros(c),
    }
    grow: dict[str, Any] = {
        "gram": np.eye(c),
        "directions": np.zeros((2, c)),
        "size": 0,
        "gradient": np.ones(c),
        "pivot": np.ones(c),
        "smallest": np.zeros(c),
        "open": np.ones(c, dtype=np.bool_),
        "gains": np.zeros(c),
        "places": np.zeros(2, dtype=np.int64),
        "found": np.zeros(2),
        "least": 0.0,
    }
    follow: dict[str, Any] = {
        "gram": np.ones(c),
        "directions": np.zeros((2, c)),
        "size": 1,
        "column": 0,
        "gradient": np.ones(c),
        "pivot": np.ones(c),
    }
    for function, good, wrongs in (
        (
            linear_candidates.native.advance,
            prefixes,
            {
                "gram": np.eye(c + 1),
                "lengths": np.ones(c + 1),
                "offsets": np.array([0, 2, 1, c]),
                "positions": np.array([c]),
                "added": np.zeros(c + 1, dtype=np.bool_),
                "blocked": np.full(c + 1, 9),
                "kept": np.zeros(c - 1, dtype=np.int64),
            },
        ),
        (
            linear_candidates.native.walk,
            walk,
            {
                "gram": np.eye(c + 1),
                "lengths": np.ones(c + 1),
                "offsets": np.array([0, 2, 1, c]),
                "added": np.ones(c, dtype=np.bool_),
                "features": np.arange(c + 1),
                "origin": np.array([0, 2, 1]),
                "sizes": np.zeros(1, dtype=np.int64),
                "additions": np.zeros(3, dtype=np.int64),
                "rule": (0.5, 0.0, 0.0, 1e-10),
            },
        ),
        (
            linear_candidates.native.best,
            best,
            {"pivot": np.ones(c + 1), "smallest": np.ones(c - 1), "open": np.ones(c + 1, dtype=np.bool_), "gains": np.ones(c + 1)},
        ),
        (
            linear_candidates.native.grow,
            grow,
            {
                "gram": np.eye(c + 1),
                "directions": np.zeros((1, c)),
                "pivot": np.ones(c + 1),
                "smallest": np.ones(c - 1),
                "open": np.ones(c + 1, dtype=np.bool_),
                "gains": np.ones(c + 1),
                "found": np.ones(3),
            },
        ),
        (
            linear_candidates.native.follow,
            follow,
            {"gram": np.ones(c + 1), "size": 2, "column": c, "pivot": np.ones(c + 1), "directions": np.zeros((1, c))},
        ),
    ):
        for name, wrong in wrongs.items():
            with pytest.raises(ValueError, match="do not fit"):
                function(*{**good, name: wrong}.values())
        function(*good.values())


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("apart", [1e-1, 1e-3, 1e-5, 1e-7])
def test_fits_of_all_but_dependent_columns_reach_the_maximum(monkeypatch, name, compiled, apart) -> None:
    """Curvatures in single precision serve as long as they are of use; where columns are nearly the same, float64 takes over."""
    if not compiled:
        monkeypatch.setattr(newton, "native", None)
    n = 300
    rng = np.random.default_rng(11)
    objective = family(name, n, 1e-8, centred=True)
    columns = rng.normal(size=(n, 4))
    columns[:, 3] = columns[:, 0] + apart * rng.normal(size=n)
    columns -= np.average(columns, axis=0, weights=objective.weights)
    columns /= np.sqrt((objective.weights[:, None] * columns**2).sum(axis=0))
    # The same model in an orthonormal basis, where nothing is nearly dependent: Newton with halved steps, to the end.
    basis, change = np.linalg.qr(np.column_stack((np.ones(n), columns)))
    back = np.linalg.inv(change)
    penalty = objective.ridge * back[1:].T @ back[1:]

    def value(theta: np.ndarray) -> float:
        return objective.likelihood(basis @ theta, back[1:] @ theta) - objective.null_likelihood

    theta = change[:, 0] * objective.null_coefficients.intercept
    for _ in range(60):
        mean, variance = objective.moments(basis @ theta)
        slope = basis.T @ (objective.weights * (objective.response - mean)) - penalty @ theta
        step = np.linalg.solve(basis.T @ (basis * (objective.weights * variance)[:, None]) + penalty, slope)
        while value(theta + step) < value(theta) and np.abs(step).max() > 1e-14:
            step = step / 2.0
        theta = theta + step
    assert objective.fit(columns).value == pytest.approx(value(theta), rel=1e-9)
