"""Columns that every model has: features that a request keeps, and covariates beside the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fastomp_nvm as fo
from fastomp_nvm.algorithms.table import ALGORITHMS
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
    [*((algorithm, "fast") for algorithm in sorted(ALGORITHMS)), ("fast_omp", "verified")],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_linear_is_the_projected_problem(algorithm: str, quality: Any, weighted: bool) -> None:
    """Covariates give what selecting among projected columns for the projected response gives, and least squares beside them."""
    if algorithm == "lasso":
        pytest.importorskip("sklearn", reason="lasso needs scikit-learn")
    X, signal, Z = confounded()
    y, w = response("linear", signal), None
    if weighted:
        w = np.random.default_rng(2).integers(0, 3, N).astype(float)
    root = np.ones(N) if w is None else np.sqrt(w)
    found = fo.select(X, y, k=6, algorithm=algorithm, quality=quality, covariates=Z, weights=w)
    projected = (by_hand(X, Z, w).T * root).T, root * beyond(y, Z, w)
    expected = fo.select(*projected, k=6, algorithm=algorithm, quality=quality, standardize=False)
    assert sorted(found.indices) == sorted(expected.indices)  # equal sets found in two ways are chosen by rounding
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
        assert found.predict(everything) == pytest.approx(beside.predict(X, covariates=waves(Z)), rel=1e-7)
    for url in (f"dram:kept-{objective}-{quality}", str(tmp_path / "store")):
        fo.create_store(url, everything, y, names=names, dtype="float64", replace=True)
        with fo.open_store(url) as store:
            same(fo.select(store, keep=["pc_1", "pc_2"], **request), beside)
            same(fo.select(store, keep=["pc_*"], tier="int8", **request), beside)
            assert fo.select(store, keep=["pc_*"], **request).predict(store) == pytest.approx(found.predict(everything), rel=1e-9)
    if quality != "fast":
        assert beside.guarantee in ("greedy", "swap-optimal", "swap-optimal (quadratic model)")


def waves(Z: Array) -> dict[str, Array]:
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


def refuse(message: str, kind: type[Exception] = fo.RequestError, **request: Any) -> None:
    X, signal, _ = confounded()
    with pytest.raises(kind, match=message) as caught:
        fo.select(X, response("linear", signal), names=named(), **{"k": 3, **request})
    assert "\n" not in str(caught.value)


def test_what_cannot_be_kept_is_refused() -> None:
    """Every mistake is one sentence."""
    refuse("'f3' is to be kept and to be excluded", keep=["f?"], exclude=["f3"])
    refuse("'f3' is to be kept and to be the offset", keep=["f?"], offset="f3")
    refuse("'f99' is to be kept, but the data has none", keep=["f99"])
    refuse("'x_.' is to be kept, but the data has none", keep=["x_*"])
    refuse("keep is 'f1': expected a list", keep="f1")
    refuse("stand beside an intercept", keep=["f1"], standardize=False)
    refuse("240 observations", fo.DataError, covariates=np.ones((239, 1)))
    refuse("missing or infinite at row 3", fo.DataError, covariates={"z": [1.0, 2.0, np.nan] * 80})
    refuse("'town' is no column of numbers", fo.DataError, covariates={"town": ["Bern", "Oslo"] * 120})
    refuse("both a feature to keep and a covariate", keep=["f1"], covariates={"f1": np.arange(240.0)})
    refuse("which they fit without error", fo.DataError, covariates=np.random.default_rng(0).normal(size=(240, 239)))
    refuse("nothing to select from", fo.DataError, keep=["*"])
    refuse("offsets were given", offset=np.ones(3))
    refuse("called 'exposure'", offset="exposure")
    refuse("called 'exposure'", weights="exposure")
    refuse("must not be negative", weights="f1")
    X, _, Z = confounded()
    with pytest.raises(fo.DataError, match="explain the target without error"):
        fo.select(X, Z @ [1.0, 2.0] + 1.0, k=3, covariates=Z, objective="linear")
    for target in (Z[:, 0] > 3.0, np.where(Z[:, 0] > 3.0, "yes", "no")):  # separated by a covariate: no fit has a maximum
        with pytest.raises(fo.DataError, match="explain the target without error"):
            fo.select(X, target, k=3, covariates=Z, objective="logistic")
    with pytest.raises(fo.RequestError, match="'f1' is the target"):
        fo.select(X, k=3, names=named(), keep=["f1"], target="f1")


def test_columns_hold_weights_and_offsets(tmp_path: Path) -> None:
    """Targets and features of the data serve as weights and offset, by name; they are no candidates then."""
    X, signal, Z = confounded(6)
    y, w, offset = response("linear", signal), np.abs(Z[:, 0]), 0.2 * Z[:, 1]
    everything, names = np.column_stack((X, w, offset)), [*named(), "w", "o"]
    url = str(tmp_path / "store")
    fo.create_store(url, everything, {"y": y, "w2": w}, names=names, dtype="float64")
    expected = fo.select(everything, y, names=names, k=5, weights=w, offset=offset, exclude=["w", "o"])
    for weights in ("w", "w2"):
        found = fo.select(url, k=5, weights=weights, offset="o", exclude=["w"])
        same(found, fo.select(url, y, k=5, weights=w, offset="o", exclude=["w"]))
        assert found.column_coef == pytest.approx(expected.column_coef, rel=1e-9)
        # An offset that is a column of the data is known for new rows: its coefficient is 1.
        assert found.predict(url) == pytest.approx(expected.predict(everything, offset=offset), rel=1e-9)
    loose = fo.select(url, k=62 - 2, weights="w", offset="o", algorithm="top_k")
    assert not {"w", "o"} & set(loose.features)
    assert fo.cross_validate(url, ks=[1, 3], folds=3, weights="w", keep=["f1*"]).ks.tolist() == [1, 3]


def test_rows_are_matched_by_identifier(tmp_path: Path) -> None:
    """Covariates with identifiers follow those of the store, whatever their order; without, rows are matched by position."""
    X, signal, Z = confounded(6)
    y, order = response("linear", signal), np.random.default_rng(3).permutation(N)
    lines = [",".join(["key", *named(4), "y"])]
    lines += [",".join([f"p{row}", *map(repr, X[row, :4].tolist()), repr(float(y[row]))]) for row in range(N)]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    url = str(tmp_path / "store")
    fo.ingest(tmp_path / "data.csv", url, targets=["y"], id_column="key", dtype="float64")
    keys = tuple(f"p{row}" for row in order)
    expected = fo.select(X[:, :4], y, k=2, covariates=Z)
    shuffled = fo.Covariates(("a", "b"), Z[order], keys)
    found = fo.select(url, k=2, covariates=shuffled)
    assert found.column_coef == pytest.approx(expected.column_coef, rel=1e-9)
    assert found.predict(url, covariates=shuffled) == pytest.approx(expected.predict(X[:, :4], covariates=Z), rel=1e-9)
    assert any("matched with the observations by position" in note for note in expected.notes)
    assert not any("by position" in note for note in found.notes)
    with pytest.raises(fo.DataError, match="identifiers and the covariates have none"):
        fo.select(url, k=2, covariates=Z)
    with pytest.raises(fo.DataError, match="no row for the identifier 'p7'"):
        fo.select(url, k=2, covariates=fo.Covariates(("a",), Z[:7, :1], tuple(f"p{row}" for row in range(7))))
    with pytest.raises(fo.DataError, match="two rows with the identifier"):
        fo.select(url, k=2, covariates=fo.Covariates(("a",), np.zeros((N, 1)), ("p1",) * N))
    with pytest.raises(fo.DataError, match="have identifiers and the data has none"):
        fo.select(X, y, k=2, covariates=shuffled)


def test_models_carry_kept_columns(tmp_path: Path) -> None:
    """A saved model predicts as the selection does; files with kept columns have a version that earlier releases refuse."""
    pandas = pytest.importorskip("pandas")
    X, signal, Z = confounded(6)
    table = pandas.DataFrame(X, columns=named()).assign(a=Z[:, 0], b=Z[:, 1])
    y = response("logistic", signal)
    found = fo.select(X, y, names=named(), k=3, objective="logistic", keep=["f7"], covariates={"a": Z[:, 0], "b": Z[:, 1]})
    found.save(tmp_path / "model.json")
    assert '"version": 2' in (tmp_path / "model.json").read_text()
    loaded = fo.load(tmp_path / "model.json")
    assert list(loaded.kept) == list(found.kept)
    expected = found.predict_proba(X, covariates={"a": Z[:, 0], "b": Z[:, 1]})
    for covariates in (None, table[["b", "a"]]):
        assert loaded.predict_proba(table, covariates=covariates) == pytest.approx(expected)
    with pytest.raises(fo.RequestError, match="give 'a', 'b'"):
        loaded.predict(X)
    with pytest.raises(fo.DataError, match="lack 'b'"):
        loaded.predict(X, covariates={"a": Z[:, 0]})
    with pytest.raises(fo.RequestError, match="pipeline"):
        loaded.to_sklearn()
    fo.select(X, y, k=1).save(tmp_path / "plain.json")
    assert '"version": 1' in (tmp_path / "plain.json").read_text()


def test_reports_and_estimators_know_kept_columns() -> None:
    """A fairness report, held-out scores, criteria and scikit-learn's estimators count kept columns."""
    sklearn = pytest.importorskip("sklearn.linear_model")
    X, signal, Z = confounded(6)
    y, group = response("logistic", signal), (Z[:, 0] > 3).astype(int)
    request: dict[str, Any] = {"k": 3, "objective": "logistic", "covariates": Z, "ridge": 0.2, "test_fraction": 0.3}
    found = fo.select(X, y, protected=group, **request)
    report = fo.fairness_report(found, X, y, group, covariates=Z)
    assert report.groups == found.fairness.groups
    assert found.score > found.null_score > -np.log(2)  # the null model has the covariates
    eta, y1 = found.decision_function(X, covariates=Z), y == 1
    held_out = fo.select(X, y, **request).test_rows
    assert held_out == 72
    assert found.test_score == pytest.approx(float(np.mean((y1 * eta - np.logaddexp(0, eta))[rows_held_out(found)])))
    assert found.path[-1].parameters == 3 + 1 + 2
    estimator = fo.FastOMPRegressor(k=3, keep=["f7", "f9"]).fit(X, signal)
    assert np.flatnonzero(estimator.coef_).tolist() == sorted([*estimator.selection_.indices.tolist(), 7, 9])
    design = X[:, np.flatnonzero(estimator.coef_)]
    assert estimator.predict(X) == pytest.approx(sklearn.LinearRegression().fit(design, signal).predict(design))
    assert estimator.transform(X).shape == (N, 3)
    piped = fo.select(X, signal, k=3, keep=["f7"]).to_sklearn()
    assert piped.predict(X) == pytest.approx(fo.select(X, signal, k=3, keep=["f7"]).predict(X))


def rows_held_out(found: fo.Selection) -> Array:
    from fastomp_nvm.selection.held_out import held_out_rows

    return held_out_rows(N, found.test_fraction, found.seed)


def test_kept_features_count_on_request() -> None:
    """Inside, kept features take places of k and of the constraint: as features of the same groups would."""
    X, signal, _ = confounded(6)
    y, names = response("linear", signal), named()
    caps = {"partition": {"groups": {"low": ["f?"], "high": ["f[1-5]?"]}, "caps": {"low": 3, "high": 4}}}
    outside = fo.select(X, y, names=names, k=5, constraint=caps, keep=["f1", "f3"])
    inside = fo.select(X, y, names=names, k=5, constraint=caps, keep=["f1", "f3"], keep_inside=True)
    assert len(outside.indices) == 5
    assert len(inside.indices) == 3
    assert np.count_nonzero(outside.indices < 10) <= 3
    assert np.count_nonzero(inside.indices < 10) <= 1
    fewer = {"partition": {"groups": {"low": ["f?"], "high": ["f[1-5]?"]}, "caps": {"low": 1, "high": 4}}}
    same(inside, fo.select(X, y, names=names, k=3, constraint=fewer, keep=["f1", "f3"]))
    same(
        fo.select(X, y, names=names, k=5, keep=["f1", "f3"], keep_inside=True), fo.select(X, y, names=names, k=3, keep=["f1", "f3"])
    )
    refuse("as many features are kept inside", k=2, keep=["f1", "f3"], keep_inside=True)
    refuse("kept features alone break", fo.ConstraintError, constraint=caps, keep=["f1", "f2", "f3", "f4"], keep_inside=True)
    lower = {"bounds": {"groups": {"low": ["f?"]}, "lower": {"low": 1}, "total": 4}}
    refuse("lower bounds", constraint=lower, keep=["f1"], keep_inside=True)


@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_certificates_bound_every_set_beside_covariates(objective: str) -> None:
    """No pair of features has more f beside the covariates than the certificate says, by refits that contain them."""
    X, signal, Z = confounded(2, 80)
    X, y = X[:, 10:20], response(objective, signal)
    found = fo.select(X, y, k=2, objective=objective, ridge=0.1, covariates=Z, certificate=True)
    model = oracles.Model(X, y, objective=objective, ridge=0.1, always=Z)
    scale = 1.0 if objective != "linear" else 1.0 - model.fit([]).objective  # what covariates leave of the response
    best = max(model.value([one, two]) for one in range(10) for two in range(one)) / scale
    assert found.certificate is not None
    assert found.certificate.value == pytest.approx(model.value(found.indices.tolist()) / scale, rel=1e-6)
    assert found.certificate.upper_bound >= best * (1 - 1e-9)


def test_copies_are_noted_beside_covariates() -> None:
    """Selected copies of each other are named, though the covariates explain part of them; kept copies have the coefficient 0."""
    X, signal, Z = confounded(6)
    X[:, 2] = X[:, 1]
    found = fo.select(X, response("linear", signal), names=named(), algorithm="top_k", k=2, covariates=Z, exclude=["f30"])
    assert found.features == ["f1", "f2"]
    assert any("'f1'" in note and "'f2'" in note for note in found.notes)
    found = fo.select(X, response("linear", signal), names=named(), k=2, keep=["f1", "f2"])
    assert any("'f2' among the kept columns: the coefficient is 0" in note for note in found.notes)
    assert found.kept[1].coef == 0.0
