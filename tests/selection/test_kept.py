"""Columns that every model has: features that a request keeps, and covariates beside the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fastomp_nvm as fo
from tests import oracles

Array = npt.NDArray[np.float64]

N, P = 240, 60


def confounded(seed: int = 0, n: int = N) -> tuple[Array, Array, Array]:
    """Return X, the response's signal and covariates: many columns follow the covariates, column 5 is a combination of them."""
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, P)), rng.normal(size=(n, 2)) * [1.0, 4.0] + [3.0, -1.0]
    X[:, :20] += Z[:, [0]] * 1.5
    X[:, 5] = Z @ [1.0, 2.0] + 3.0
    signal = Z @ [1.5, -0.3] + X[:, 1] - 0.8 * X[:, 30] + 0.5 * X[:, 31]
    return X, signal, Z


def response(objective: str, signal: Array, seed: int = 1) -> Array:
    rng = np.random.default_rng(seed)
    if objective == "linear":
        return signal + rng.normal(size=len(signal)) + 4.0
    centred = (signal - signal.mean()) / signal.std()
    if objective == "logistic":
        return (rng.random(len(signal)) < 1.0 / (1.0 + np.exp(-1.5 * centred))).astype(float)
    return rng.poisson(np.exp(0.5 + 0.6 * centred)).astype(float)


def beyond(M: Array, Z: Array, weights: Array | None = None) -> Array:
    """Return what intercept and covariates leave of columns, by least squares."""
    w = np.ones(len(M)) if weights is None else weights
    K = np.column_stack((np.ones(len(M)), Z))
    return np.asarray(M - K @ np.linalg.lstsq(K * np.sqrt(w)[:, None], (M.T * np.sqrt(w)).T, rcond=None)[0])


def by_hand(X: Array, Z: Array, weights: Array | None = None) -> Array:
    """Return the columns projected by hand, in units of their lengths before; what is left of column 5 is rounding."""
    left = beyond(X, Z, weights) / np.linalg.norm(oracles.standardise(X, weights), axis=0) ** 0
    w = np.ones(len(X)) if weights is None else weights
    centred = X - (w @ X) / w.sum()
    left /= np.sqrt(w @ centred**2)
    left[:, 5] = 0.0
    return np.asarray(left)


@pytest.mark.parametrize(
    ("algorithm", "quality"),
    [("fast_omp", "fast"), ("fast_omp", "verified"), ("sds_omp", "fast"), ("sds_ma", "fast"), ("top_k", "fast"), ("dash", "fast")],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_linear_is_the_projected_problem(algorithm: str, quality: Any, weighted: bool) -> None:
    """Covariates give what selecting among projected columns for the projected response gives, and least squares beside them."""
    X, signal, Z = confounded()
    y, w = response("linear", signal), None
    if weighted:
        w = np.random.default_rng(2).integers(0, 3, N).astype(float)
    root = np.ones(N) if w is None else np.sqrt(w)
    found = fo.select(X, y, k=6, algorithm=algorithm, quality=quality, covariates=Z, weights=w)
    projected = (by_hand(X, Z, w).T * root).T, root * beyond(y, Z, w)
    expected = fo.select(*projected, k=6, algorithm=algorithm, quality=quality, standardize=False)
    assert found.indices.tolist() == expected.indices.tolist()
    assert found.score == pytest.approx(expected.score, rel=1e-9)
    full = np.column_stack((np.ones(N), X[:, found.indices], Z))
    coef = np.linalg.lstsq(full * root[:, None], y * root, rcond=None)[0]
    assert [found.intercept, *found.coef, *(column.coef for column in found.kept)] == pytest.approx(coef.tolist(), rel=1e-7)
    assert found.predict(X, covariates=Z) == pytest.approx(full @ coef, rel=1e-9)
    assert any("'f5' cannot be selected" in note for note in found.notes)


@pytest.mark.parametrize("objective", ["linear", "logistic", "poisson"])
@pytest.mark.parametrize("algorithm", ["sds_omp", "sds_ma"])
@pytest.mark.parametrize("ridge", [0.05, 1.0])
def test_greedy_is_the_oracles(objective: str, algorithm: str, ridge: float) -> None:
    """Plain greedy of an oracle whose every fit contains the covariates, unpenalised: the same features, coefficients and gains."""
    X, signal, Z = confounded(3, 90)
    X, y = X[:, :24], response(objective, signal)
    model = oracles.Model(X, y, objective=objective, ridge=ridge, always=Z)
    model.usable.remove(5)
    sds = {"sds_omp": lambda S, candidates: dict(enumerate(model.scores(S)))}
    sds["sds_ma"] = lambda S, candidates: {s: model.value([*S, s]) for s in candidates}
    expected = oracles._greedy(model, lambda _: True, 4, sds[algorithm])
    for plain in (False, True):
        found = fo.select(X, y, k=4, algorithm=algorithm, objective=objective, ridge=ridge, covariates=Z, plain=plain)
        assert found.indices.tolist() == expected
        fit = model.fit(expected)
        scale = oracles.standardise(X)[:, expected]
        eta = scale @ fit.coefficients[2:] + model.always @ fit.coefficients[:2] + fit.intercept
        if objective != "linear":
            assert found.decision_function(X, covariates=Z) == pytest.approx(eta, abs=1e-5)


def named(P: int = P) -> list[str]:
    return [f"f{column}" for column in range(P)]


def same(found: fo.Selection, other: fo.Selection) -> None:
    """Expect the same set and model to rounding."""
    coefs = [dict(zip(each.features, each.column_coef.tolist(), strict=True)) for each in (found, other)]
    assert coefs[0] == pytest.approx(coefs[1], rel=1e-5)  # in any order: equal sets found in two ways are chosen by rounding
    assert found.score == pytest.approx(other.score, rel=1e-9)
    assert found.intercept == pytest.approx(other.intercept, rel=1e-6)
    assert {column.column: column.coef for column in found.kept} == pytest.approx(
        {column.column: column.coef for column in other.kept}, rel=1e-6
    )


@pytest.mark.parametrize("objective", ["linear", "logistic", "poisson"])
@pytest.mark.parametrize("quality", ["fast", "verified", "best"])
def test_kept_features_are_covariates(objective: str, quality: Any, tmp_path: Path) -> None:
    """Features that are kept give the answer that the same columns give beside the data, in arrays of both orders and in stores."""
    X, signal, Z = confounded(4)
    y, everything = response(objective, signal), np.column_stack((X, Z))
    names = [*named(), "pc_1", "pc_2"]
    request: dict[str, Any] = {"k": 5, "objective": objective, "quality": quality, "constraint": {"cardinality": 5}}
    beside = fo.select(X, y, names=named(), covariates={"pc_1": Z[:, 0], "pc_2": Z[:, 1]}, **request)
    for order in ("C", "F"):
        found = fo.select(np.array(everything, order=order), y, names=names, keep=["pc_*"], **request)
        same(found, beside)
        assert [column.position for column in found.kept] == [P, P + 1]
        assert found.predict(everything) == pytest.approx(beside.predict(X, covariates=Z_named(Z)), rel=1e-7)
    for url in (f"dram:kept-{objective}-{quality}", str(tmp_path / "store")):
        fo.create_store(url, everything, y, names=names, dtype="float64", replace=True)
        with fo.open_store(url) as store:
            same(fo.select(store, keep=["pc_1", "pc_2"], **request), beside)
            same(fo.select(store, keep=["pc_*"], tier="int8", **request), beside)
            assert fo.select(store, keep=["pc_*"], **request).predict(store) == pytest.approx(found.predict(everything), rel=1e-9)
    if quality != "fast":
        assert beside.guarantee in ("greedy", "swap-optimal", "swap-optimal (quadratic model)")


def Z_named(Z: Array) -> dict[str, Array]:
    return {"pc_1": Z[:, 0], "pc_2": Z[:, 1]}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exchanges_beside_covariates_are_optimal(dtype: str) -> None:
    """No exchange of one feature improves what ``best`` returns, by refits that contain the covariates."""
    X, signal, Z = confounded(7, 120)
    X = X[:, :20].astype(dtype).astype(np.float64)
    for objective in ("linear", "logistic"):
        y = response(objective, signal)
        ridge = 0.0 if objective == "linear" else 0.5
        found = fo.select(X.astype(dtype), y, k=3, quality="best", objective=objective, ridge=ridge, covariates=Z)
        assert str(found.guarantee).startswith("swap-optimal")
        model = oracles.Model(X, y, objective=objective, ridge=ridge, always=Z)
        model.usable.remove(5)
        gain = oracles.best_exchange(model, lambda chosen: len(chosen) <= 3, found.indices.tolist())
        assert gain <= 1e-6 * model.value(found.indices.tolist())


@pytest.mark.parametrize("objective", ["linear", "logistic", "poisson"])
def test_one_hot_features_are_kept(objective: str) -> None:
    """A categorical feature is kept with all its columns; predictions of a table use them; a copy of it cannot be selected."""
    pandas = pytest.importorskip("pandas")
    X, signal, _ = confounded(5)
    rng = np.random.default_rng(9)
    town = rng.choice(["Bern", "Oslo", "Rome"], N)
    y = response(objective, signal + 2.0 * (town == "Oslo"))
    table = pandas.DataFrame(X[:, :12], columns=named(12)).assign(town=town, again=town)
    found = fo.select(table, y, k=3, objective=objective, keep=["town"], ridge=0.3)
    assert [column.column for column in found.kept] == ["town=Bern", "town=Oslo", "town=Rome"]
    assert any("'again' cannot be selected" in note for note in found.notes)
    indicators = np.column_stack([town == label for label in ("Bern", "Oslo")]).astype(float)
    model = oracles.Model(X[:, :12], y, objective=objective, ridge=0.3, always=indicators)
    chosen = [int(name.removeprefix("f")) for name in found.features]
    fit = model.fit(chosen)
    eta = model.always @ fit.coefficients[:2] + model.X[:, chosen] @ fit.coefficients[2:] + fit.intercept
    if objective == "linear":
        eta = eta * np.linalg.norm(y - y.mean()) + y.mean()
    decision = found.decision_function(table)
    assert decision == pytest.approx(eta, abs=1e-5 * np.abs(eta).max())


@pytest.mark.parametrize("objective", ["linear", "logistic", "poisson"])
@pytest.mark.parametrize("quality", ["fast", "best"])
def test_offsets_are_in_every_fit(objective: str, quality: Any) -> None:
    """An offset moves the linear predictor of every fit: with the oracle's coefficients, alone and beside covariates."""
    X, signal, Z = confounded(8, 100)
    X, y, offset = X[:, 6:24], response(objective, signal), 0.3 * np.cos(np.arange(100.0))
    for covariates in (None, Z):
        always = np.empty((100, 0)) if covariates is None else Z
        found = fo.select(X, y, k=3, quality=quality, objective=objective, ridge=0.4, offset=offset, covariates=covariates)
        model = oracles.Model(X, y, objective=objective, ridge=0.4, always=always, offset=offset)
        fit = model.fit(found.indices.tolist())
        size = always.shape[1]
        eta = model.always @ fit.coefficients[:size] + model.X[:, found.indices] @ fit.coefficients[size:] + fit.intercept
        if objective == "linear":
            rest = y - offset
            eta = eta * np.linalg.norm(rest - rest.mean()) + rest.mean()
        predicted = found.decision_function(X, covariates=covariates, offset=offset)
        assert predicted == pytest.approx(eta + offset, abs=1e-5)
        with pytest.raises(fo.RequestError, match="offset"):
            found.predict(X, covariates=covariates)
