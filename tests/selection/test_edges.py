"""Awkward data gives a correct answer or one clear sentence, never a NaN."""

from __future__ import annotations

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.constraints import Cardinality, Partition

pytestmark = pytest.mark.numerics

ALGORITHMS = ("fast_omp", "sds_omp")


def finite(selection: fo.Selection) -> bool:
    """Tell whether every number of the answer is finite."""
    numbers = [selection.score, selection.intercept, selection.score_unpolished, *np.concatenate([[0.0], selection.column_coef])]
    return bool(np.isfinite(numbers).all())


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 30))
    return X, X[:, 4] - 2 * X[:, 9] + 0.1 * rng.normal(size=60)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("objective", ["linear", "logistic"])
def test_duplicated_and_collinear_columns(data, algorithm, objective) -> None:
    """Copies and sums of columns neither blow up nor change the fit."""
    X, y = data
    target = (y > 0).astype(float) if objective == "logistic" else y
    crowded = np.hstack((X, X[:, :10], X[:, 4:5] + X[:, 9:10], 1e6 * X[:, 9:10]))
    found = fo.select(crowded, target, k=20, algorithm=algorithm, objective=objective, until="full")
    assert finite(found)
    assert len(set(found.indices.tolist())) == 20
    assert np.abs(found.column_coef).max() < 1e6


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_constant_columns_are_never_selected(data, algorithm) -> None:
    """A column without variation has no gradient, whatever its value."""
    X, y = data
    X = X.copy()
    X[:, ::3] = [0.1, 0.0, 1e8, -3.7, 1 / 3, 1e-30, 5.0, 2.0, 7.0, 9.0]
    found = fo.select(X, y, k=30, algorithm=algorithm, until="full")
    assert finite(found)
    assert not set(found.indices.tolist()) & set(range(0, 30, 3))
    assert len(found.indices) == 20


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_more_features_than_observations(algorithm) -> None:
    """With n_obs < k the fit is perfect and the answer still finite and full."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 40)), rng.normal(size=12)
    found = fo.select(X, y, k=20, algorithm=algorithm, until="full")
    assert finite(found)
    assert len(found.indices) == 20
    assert found.score == pytest.approx(1.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_separable_logistic_data_converges(algorithm) -> None:
    """The default ridge keeps the coefficients finite when a hyperplane separates the classes."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 20))
    found = fo.select(X, X[:, 3] > 0, k=5, algorithm=algorithm, objective="logistic")
    assert finite(found)
    assert 3 in found.indices
    assert -0.1 < found.score <= 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_single_feature(algorithm) -> None:
    """One feature is selected when asked for one."""
    x = np.arange(10.0)[:, None]
    found = fo.select(x, 3 * x[:, 0] + 1, k=1, objective="linear", algorithm=algorithm)
    assert found.indices.tolist() == [0]
    assert found.column_coef[0] == pytest.approx(3.0)
    assert found.intercept == pytest.approx(1.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_k_beyond_what_is_feasible_returns_a_maximal_set(data, algorithm) -> None:
    """A k larger than the rank gives the rank's worth, feasible."""
    X, y = data
    limit = Partition(30, np.arange(30) % 3, [2, 1, 3])
    found = fo.select(X, y, k=1000, constraint=limit, algorithm=algorithm, until="full")
    assert len(found.indices) == 6
    assert found.feasible
    assert limit.independent(found.indices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k is 0"),
        ({"k": 2.5}, "k is 2.5"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 1.0}, "epsilon"),
        ({"tau": 1.5}, "tau"),
        ({"tau": float("nan")}, "tau"),
        ({"seed": -1}, "seed"),
        ({"until": "forever"}, "until"),
        ({"polish": "yes"}, "polish"),
        ({"ridge": -1.0}, "ridge"),
        ({"objective": "hinge"}, "unknown objective"),
        ({"algorithm": "magic"}, "unknown algorithm"),
        ({"weights": np.ones(3)}, "3 weights"),
        ({"weights": -np.ones(60)}, "negative"),
        ({"threads": 0}, "threads"),
        ({"lambda_": 1}, "no parameter 'lambda_'"),
        ({"constraint": Cardinality(7, 2)}, "7 features"),
        ({"target": "nobody"}, "give|nobody|target"),
    ],
)
def test_bad_requests_are_refused_by_name(data, change, message) -> None:
    """Each parameter outside its domain is named in the error."""
    X, y = data
    with pytest.raises(fo.InputError, match=message):
        fo.select(X, None if "target" in change else y, **{"k": 3, **change})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_data_is_refused_with_its_place(data, bad) -> None:
    """A NaN or infinity in X or y is named by row and column."""
    X, y = data
    X = X.copy()
    X[16, 11] = bad
    with pytest.raises(fo.DataError, match=r"row 17, column 11"):
        fo.select(X, y, k=2)
    y = y.copy()
    y[4] = bad
    with pytest.raises(fo.DataError, match="row 5"):
        fo.select(data[0], y, k=2)


def test_unusable_targets_are_refused(data) -> None:
    """Constant, one-class, many-class and short targets each get a sentence."""
    X, y = data
    for target, options, message in [
        (np.ones(60), {}, "constant"),
        (np.ones(60), {"objective": "logistic"}, "1 distinct|exactly two"),
        (np.arange(60) % 3, {"objective": "logistic"}, "3 distinct|exactly two"),
        (y[:50], {}, "50 values for 60"),
        (-np.ones(60), {"objective": "poisson"}, "counts"),
        (np.array(["a"] * 60), {}, "1 distinct|exactly two"),
        (np.array(["a"] * 60), {"objective": "linear"}, "not numeric"),
    ]:
        with pytest.raises(fo.DataError, match=message):
            fo.select(X, target, k=2, **options)


@pytest.mark.parametrize("size", [1e-200, 1e160, 1e300])
def test_targets_that_cannot_be_squared_are_refused(data, size) -> None:
    """A target beyond the squares of float64 gets a sentence, not coefficients that are no numbers, nor is it called constant."""
    X, y = data
    with pytest.raises(fo.DataError, match=r"the target varies by .* scale the target"):
        fo.select(X, y * size, k=2)


def test_columns_of_any_size_have_finite_answers(data) -> None:
    """Standardised columns may have any size that float64 can invert; smaller ones count as constant."""
    X, y = data
    plain = fo.select(X, y, k=3)
    for size in (2.0**-600, 2.0**600):
        assert fo.select(X * size, y, k=3).indices.tolist() == plain.indices.tolist()
    mixed = X.copy()
    mixed[:, plain.indices[0]] *= 1e-310
    found = fo.select(mixed, y, k=3)
    assert plain.indices[0] not in found.indices
    assert np.isfinite(found.column_coef).all()


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_extreme_columns_as_they_are_are_refused_by_name(data, size) -> None:
    """Without standardisation a column that cannot be squared is named, not passed over as constant."""
    X, y = data
    X = X.copy()
    X[:, 3] *= size
    with pytest.raises(fo.DataError, match=r"column 'f3' has the norm"):
        fo.select(X, y, k=2, standardize=False)


def test_an_answer_that_is_no_number_is_an_error(data) -> None:
    """Coefficients beyond float64 end a selection with a sentence instead of a result."""
    X, y = data
    with pytest.raises(fo.DataError, match="left the range of float64"):
        fo.select(X * 1e-300, y * 1e100, k=2)


def test_values_that_are_no_real_numbers_are_refused(data) -> None:
    """Imaginary parts, dates, masked entries and repeated names are refused, not dropped or passed over."""
    X, y = data
    masked = np.ma.masked_array(X, mask=X > 2)
    for given, response, options, message in [
        (X + 1j, y, {}, "complex128"),
        (X.astype("M8[s]"), y, {}, "datetime64"),
        (masked, y, {}, "masked entries"),
        (X[:, :2], y, {"names": ["a", "a"]}, "two features are named 'a'"),
        (X, y + 1j, {}, "complex128"),
        (X, np.ma.masked_array(y, mask=y > 1), {}, "masked entries"),
    ]:
        with pytest.raises(fo.DataError, match=message):
            fo.select(given, response, k=2, **options)
    assert fo.select(np.ma.masked_array(X), y, k=2).features == fo.select(X, y, k=2).features


@pytest.mark.parametrize("missing", [None, np.nan])
def test_a_missing_label_is_no_class(data, missing) -> None:
    """A missing entry among labels is named by its row instead of becoming a class."""
    X, y = data
    labels = np.where(y > 0, "a", "b").astype(object)
    labels[7] = missing
    with pytest.raises(fo.DataError, match="missing at row 8"):
        fo.select(X, labels, k=2, objective="logistic")


def test_names_of_an_arrow_table(data) -> None:
    """A pyarrow table of numbers gives the features its column names."""
    pyarrow = pytest.importorskip("pyarrow")
    X, y = data
    table = pyarrow.table({f"column {place}": X[:, place] for place in range(5)})
    assert set(fo.select(table, y, k=2).features) <= set(table.column_names)


def test_a_huge_mean_does_not_drown_the_signal() -> None:
    """Columns with mean 10^6 and deviation 1 are accumulated in float64: the right ones are found in a float32 matrix."""
    rng = np.random.default_rng(5)
    X = np.round(rng.normal(size=(400, 200)) * 16) / 16  # exact in float32 even after the shift
    y = X[:, 17] - X[:, 101] + 0.05 * rng.normal(size=400)
    plain = fo.select(X.astype(np.float32), y, k=2)
    shifted = fo.select((X + 1e6).astype(np.float32), y, k=2)
    assert sorted(plain.indices.tolist()) == [17, 101]
    assert sorted(shifted.indices.tolist()) == [17, 101]
    assert shifted.score == pytest.approx(plain.score, abs=1e-6)


def test_without_standardisation_columns_are_taken_as_they_are() -> None:
    """standardize=False reproduces least squares through the origin."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(50, 6)) + 3
    y = X[:, 1] * 2 + X[:, 4]
    found = fo.select(X, y, k=6, standardize=False, until="full")
    assert found.intercept == 0
    assert found.score == pytest.approx(1.0)
    assert found.column_coef[found.indices.tolist().index(1)] == pytest.approx(2.0, abs=1e-6)


def test_predictions_follow_from_coefficients(data) -> None:
    """Predictions use original units: it reproduces y, and probabilities for classes."""
    X, y = data
    found = fo.select(X, y, k=2)
    assert np.corrcoef(found.predict(X), y)[0, 1] ** 2 == pytest.approx(found.score, abs=1e-9)
    classes = fo.select(X, np.where(y > 0, "yes", "no"), k=6, objective="logistic", until="full")
    assert classes.classes == ["no", "yes"]
    assert ((classes.predict(X) > 0.5) == (y > 0)).mean() > 0.95
    with pytest.raises(fo.DataError, match="expected"):
        found.predict(X[:, :5])
