"""Compiled objectives compute the same as NumPy, and refuse arrays that do not fit each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fastomp_nvm import native
from fastomp_nvm.objectives import newton
from fastomp_nvm.objectives.compiled import ColumnArrays, FitArrays, Rounds
from fastomp_nvm.objectives.glm import GLM
from fastomp_nvm.objectives.table import OBJECTIVES

needs_fits = pytest.mark.skipif(not native.extension, reason="the compiled fits are not built")


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
        at = replace(objective.null_coefficients, eta=eta)
        ours, roots = newton.likelihood(objective, at), newton.roots(objective, eta)
        monkeypatch.setattr(native, "extension", None)
        assert ours == pytest.approx(newton.likelihood(objective, at), rel=1e-13)
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
            monkeypatch.setattr(native, "extension", None)
        found.append(newton.curvature_left(objective, rows, roots, scaled, unit))
    monkeypatch.undo()
    A, B = rows * roots, columns * roots
    inner = np.linalg.solve(A @ A.T + np.diag(objective.penalty(size)), A @ B.T) if size else np.zeros((0, near))
    expected = (B @ B.T - B @ A.T @ inner + 0.2 * np.eye(near)) / unit
    for curvature in found:
        assert curvature.left == pytest.approx(expected, abs=2e-5 * np.abs(expected).max())
        assert curvature.left == pytest.approx(curvature.left.T, abs=1e-6 * np.abs(expected).max())
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
    assert not native.extension.curvature(
        rows, roots, scaled, (1e-9, 1.0, False), np.empty((4, 4)), np.empty((2, 2)), np.empty((4, 2))
    )
    left = newton.curvature_left(objective, rows, roots, scaled, 1.0).left
    assert np.isfinite(left).all()
    assert np.linalg.eigvalsh(left).min() > 0.0


def refused(function: Callable[..., object], good: Sequence[Any], wrong: Sequence[tuple[int, Any]]) -> None:
    """Check that each wrong argument, by place, is a ValueError or TypeError, and that the good ones are none."""
    for place, value in wrong:
        with pytest.raises((ValueError, TypeError)):
            function(*good[:place], value, *good[place + 1 :])
    function(*good)


def spoilt(good: Any, **wrong: Any) -> list[Any]:
    """Return named tuples with one field replaced each; a list holds several replacements."""
    return [good._replace(**{name: value}) for name, values in wrong.items() for value in values]


N, D, C = 6, 2, 3  # observations, coefficients, columns


def a_fit() -> FitArrays:
    """Return the arrays of a logistic fit of D coefficients."""
    with_ = (0.1, 1e-12, 0.05, 1.0, 0.5, 200, True)
    response = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    return FitArrays(
        "logistic", with_, np.ones((D, N)), response, np.ones(N), np.zeros(D), np.zeros(N), np.zeros(N), np.zeros(D * D)
    )


def some_columns() -> ColumnArrays:
    """Return C random columns."""
    rows = np.random.default_rng(0).normal(size=(C, N))
    return ColumnArrays(rows, np.arange(C), np.zeros(C), np.ones(C), np.zeros(C, dtype=np.bool_))


def some_rounds(given: bool) -> Rounds:
    """Return one addition to C candidates."""
    words = np.array([4, 7, 9]), np.arange(C), np.array([1]), np.zeros((1, 2), dtype=np.int64)
    return Rounds(*words, np.full(C, 9) if given else None, (1, 2, 3), 0.5, 0.9, 1e9, given, False)


WRONG_FITS: dict[str, list[Any]] = {
    "family": ["gamma", 3],
    "settings": [(0.1, 1e-12)],
    "design": [np.ones((D, N - 1)), np.ones((N, D)).T, np.ones((D, N), dtype=np.float32)],
    "weights": [np.ones(N + 1)],
    "beta": [np.zeros(0)],
    "eta": [np.zeros(N - 1)],
    "residual": [np.zeros(N + 1)],
    "factor": [np.zeros(D)],
}

WRONG_COLUMNS: dict[str, list[Any]] = {
    "rows": [np.ones((C - 1, N)), np.ones((C, N), dtype=np.float16), np.ones((N, C)).T],
    "places": [np.array([0, 1, -1])],
    "mean": [np.ones(C + 1)],
    "scale": [np.ones(C - 1)],
    "wide": [np.zeros(C + 1, dtype=np.bool_)],
}

WRONG_ROUNDS: dict[str, list[Any]] = {
    "features": [np.arange(C + 1)],
    "origin": [np.arange(C)[::-1].copy(), np.arange(C - 1)],
    "added": [np.zeros(0, dtype=np.int64), np.zeros(C + 1, dtype=np.int64)],
    "sizes": [np.zeros((2, 2), dtype=np.int64)],
    "draw": [(1, 2)],
}


@needs_fits
def test_compiled_fits_refuse_arrays_that_do_not_fit() -> None:
    """Lengths and types that contradict each other and unknown families are errors; nothing is read or written."""
    fit, columns, extension = a_fit(), some_columns(), native.extension
    fits = [(0, value) for value in spoilt(fit, **WRONG_FITS)]
    refused(extension.maximise, (fit, None, 0), [*fits, (1, np.ones((D + 1, D + 1))), (1, np.ones((D, 1))), (2, D + 1)])
    wrong = [(0, value) for value in spoilt(columns, **WRONG_COLUMNS)]
    refused(
        extension.gradients, (columns, np.ones((2, N)), np.zeros((C, 2))), [*wrong, (1, np.ones((1, N + 1))), (2, np.zeros((C, 3)))]
    )
    six = "logistic", np.zeros(N), np.zeros(N), np.ones(N), np.ones(2), 0.5
    refused(extension.likelihood, six, [(0, "gamma"), (1, np.zeros(N + 1)), (2, np.zeros(N - 1)), (3, np.zeros(1))])
    assert extension.likelihood(*six) == pytest.approx(-N * np.log(2.0) - 0.5)
    refused(extension.roots, ("logistic", *np.ones((3, N))), [(0, "gamma"), (1, np.zeros(5)), (2, np.zeros(7)), (3, np.zeros(5))])
    quadratic = (np.ones((2, N)), np.ones(N), np.ones((5, N), dtype=np.float32), (0.1, 1.0, True), np.zeros((3, 3)))
    refused(
        extension.curvature,
        (*quadratic, np.zeros((2, 2)), np.zeros((3, 2))),
        [
            (0, np.ones((N, N))),
            (1, np.ones(0)),
            (2, np.ones((5, 5), dtype=np.float32)),
            (4, np.zeros((3, 2))),
            (5, np.zeros((2, 1))),
            (6, np.zeros((2, 2))),
        ],
    )
    schedule = (0.05, 3, 2, 4, 32, 3, 320, 1e-6, 1e-6)
    mine = np.ones(C, dtype=np.bool_), np.zeros(1, dtype=np.int64), np.zeros(1), (-1.0, 1e-16, 1e-12, 1e-16), schedule
    refused(
        extension.greedy,
        (fit, False, columns, *mine),
        [
            *fits,
            *((2, value) for value in [*spoilt(columns, **WRONG_COLUMNS), columns._replace(rows=np.ones((C, N - 1)))]),
            (3, np.ones(C - 1, dtype=np.bool_)),
            (4, np.zeros(D, dtype=np.int64)),
            (5, np.zeros(2)),
            (7, (0.05, 0, 2, 4, 32, 3, 320, 1e-6, 1e-6)),
            (7, (0.05, 3, 2, 4, -1, 3, 320, 1e-6, 1e-6)),
        ],
    )


@needs_fits
@pytest.mark.parametrize("given", [True, False])
def test_compiled_rounds_refuse_arrays_that_do_not_fit(given) -> None:
    """Lengths, positions and offsets that contradict each other are errors; nothing is read or written."""
    fit, columns, rounds, extension = a_fit(), some_columns(), some_rounds(given), native.extension
    wrong: dict[str, list[Any]] = {**WRONG_ROUNDS, "blocked": [np.full(C + 1, 9)]}
    if given:
        wrong["added"] = [np.array([C]), np.array([-1]), np.zeros(0, dtype=np.int64)]
    else:
        wrong["share"] = [0.0]
    out, added = np.zeros(C - 1, dtype=np.bool_), np.ones(C, dtype=np.bool_)
    refused(
        extension.glm_rounds,
        (fit, False, columns, np.ones(C), np.zeros(C, dtype=np.bool_), rounds),
        [
            *((0, value) for value in spoilt(fit, **WRONG_FITS)),
            *((2, value) for value in [*spoilt(columns, **WRONG_COLUMNS), columns._replace(rows=np.ones((C, N - 1)))]),
            *((5, value) for value in [*spoilt(rounds, **wrong), rounds._replace(added=np.zeros(D, dtype=np.int64))]),
            (3, np.ones(C + 1)),
            (4, out),
            *([] if given else [(4, added)]),
        ],
    )
    assert rounds.sizes.tolist() == [[C, 1]]  # one addition, after which too few candidates are left
    arrays = np.eye(C), np.ones(C), None, np.arange(C + 1), np.zeros(C, dtype=np.bool_), 0.0, 1e-10
    refused(
        extension.gram_rounds,
        (*arrays, some_rounds(given)),
        [
            (0, np.eye(C + 1)),
            (2, np.ones(C + 1)),
            (3, np.array([0, 2, 1, C])),
            (3, np.array([0, 1, 2, C + 1])),
            (4, out),
            *([] if given else [(4, added)]),
            *((7, value) for value in spoilt(some_rounds(given), **wrong)),
        ],
    )


@needs_fits
def test_compiled_gains_refuse_arrays_that_do_not_fit() -> None:
    """Lengths and numbers out of range are errors."""
    three, open_ = (np.ones(C), np.ones(C), np.zeros(C)), np.ones(C, dtype=np.bool_)
    refused(native.extension.best, (*three, open_), [(1, np.ones(C + 1)), (2, np.ones(C - 1)), (3, np.ones(C + 1, dtype=np.bool_))])
    refused(
        native.extension.follow,
        (np.ones(C), np.zeros((2, C)), 1, 0, np.ones(C), np.ones(C)),
        [(0, np.ones(C + 1)), (1, np.zeros((1, C))), (2, 2), (2, -1), (3, C), (5, np.ones(C + 1))],
    )


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("apart", [1e-1, 1e-3, 1e-5, 1e-7])
def test_fits_of_all_but_dependent_columns_reach_the_maximum(monkeypatch, name, compiled, apart) -> None:
    """Fits start with curvatures in float32 and fall back to float64 where columns are nearly equal."""
    if not compiled:
        monkeypatch.setattr(native, "extension", None)
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

    theta = change[:, 0] * float(objective.null_coefficients.free[0])
    for _ in range(60):
        mean, variance = objective.moments(basis @ theta)
        slope = basis.T @ (objective.weights * (objective.response - mean)) - penalty @ theta
        step = np.linalg.solve(basis.T @ (basis * (objective.weights * variance)[:, None]) + penalty, slope)
        while value(theta + step) < value(theta) and np.abs(step).max() > 1e-14:
            step = step / 2.0
        theta = theta + step
    assert objective.fit(columns).value == pytest.approx(value(theta), rel=1e-9)
