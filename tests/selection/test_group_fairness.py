"""What is reported about groups and held-out observations is what an independent count gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.constraints import Cardinality, Fairness
from fastomp_nvm.constraints.extendable import intersect
from fastomp_nvm.selection.group_figures import group_report
from fastomp_nvm.selection.held_out import held_out_rows, split_weights
from fastomp_nvm.selection.protected import Attribute

N_OBS = 400


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, a 0/1 response and two groups, one of which is harder to predict."""
    rng = np.random.default_rng(5)
    group = np.where(rng.random(N_OBS) < 0.4, "minority", "majority")
    X = rng.normal(size=(N_OBS, 6))
    noise = np.where(group == "minority", 3.0, 0.5) * rng.normal(size=N_OBS)
    return X, (2 * X[:, 0] - X[:, 1] + noise > 0.3).astype(int), group


@pytest.mark.numerics
def test_rates_are_those_of_a_plain_count(data) -> None:
    """Accuracy, error rates and outcome fairness agree with counting one observation at a time."""
    X, y, group = data
    found = fo.select(X, y, k=2, objective="logistic")
    report = fo.fairness_report(found, X, y, group)
    rates = {}
    for name in ("majority", "minority"):
        count = {"right": 0, "fp": 0, "fn": 0, "negative": 0, "positive": 0}
        for probability, truth, label in zip(found.predict(X), y, group, strict=True):
            if label == name:
                count["right"] += int((probability >= 0.5) == truth)
                count["positive" if truth else "negative"] += 1
                count["fp"] += int(probability >= 0.5 and not truth)
                count["fn"] += int(probability < 0.5 and truth)
        figures = report.groups[name]
        rates[name] = count["fp"] / count["negative"], count["fn"] / count["positive"]
        assert figures["rows"] == count["negative"] + count["positive"]
        assert figures["accuracy"] == pytest.approx(count["right"] / figures["rows"])
        assert (figures["false_positive_rate"], figures["false_negative_rate"]) == pytest.approx(rates[name])
    gaps = [abs(a - b) for a, b in zip(rates["majority"], rates["minority"], strict=True)]
    assert report.outcome_fairness == pytest.approx(-sum(gaps))
    assert report.outcome_fairness < -0.05
    assert report.evaluated_on == "all"


@pytest.mark.numerics
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 2)), min_size=1, max_size=40))
def test_outcome_fairness_is_never_positive_and_zero_when_groups_agree(observations) -> None:
    """Whatever the groups, gaps count against; the same observations in every group are perfectly fair."""
    often = np.repeat(np.array(observations, dtype=np.float64), 30, axis=0)  # no group is small
    predicted, actual, group = often.T
    groups = Attribute("group", ("0", "1", "2"), group.astype(np.int64))
    found = group_report(groups, predicted, actual, groups.codes, True).differences["outcome_fairness"]
    present = [g for g in range(3) if np.any(group == g)]
    missing = len(present) < 2 or any(not np.any((group == g) & (actual == truth)) for g in present for truth in (0, 1))
    assert (found is None) == missing
    assert found is None or -2 <= found <= 0
    if {0.0, 1.0} <= set(actual):
        twice = np.repeat([0, 1], len(often))
        same = group_report(groups, np.tile(predicted, 2), np.tile(actual, 2), twice, True)
        assert same.differences["outcome_fairness"] == 0


@pytest.mark.numerics
def test_a_linear_model_reports_fit_and_bias_by_group(data) -> None:
    """Models of numbers have no error rates: each group gets its R^2 and its mean residual."""
    X, _, group = data
    y = X[:, 0] + 2.0 * (group == "minority") + 0.1 * np.random.default_rng(0).normal(size=N_OBS)
    found = fo.select(X, y, k=1)
    report = fo.fairness_report(found, X, y, group)
    here = group == "minority"
    residual = (y - found.predict(X))[here]
    assert report.outcome_fairness is None
    assert report.groups["minority"]["mean_residual"] == pytest.approx(residual.mean())
    assert report.groups["minority"]["mean_residual"] > 0.5 > 0 > report.groups["majority"]["mean_residual"]
    assert report.groups["minority"]["r2"] == pytest.approx(1 - (residual**2).sum() / ((y[here] - y[here].mean()) ** 2).sum())


@pytest.mark.numerics
def test_process_unfairness_is_h_of_the_selection(data) -> None:
    """The share of people who object to a selected feature, also inside an intersection; nothing without such a constraint."""
    X, y, group = data
    judgements = np.random.default_rng(1).random((50, 6)) < 0.9
    fairness = Fairness(6, judgements, 0.5)
    both = intersect([Cardinality(6, 3), fairness])
    found = fo.select(X, y, objective="logistic", constraint=both)
    expected = 1 - judgements[:, found.indices].all(axis=1).mean()
    assert 0 < expected <= 0.5
    assert fo.fairness_report(found, X, y, group, constraint=both).process_unfairness == pytest.approx(expected)
    assert fo.fairness_report(found, X, y, group, constraint=fairness).process_unfairness == pytest.approx(expected)
    assert fo.fairness_report(found, X, y, group).process_unfairness is None


@pytest.mark.numerics
def test_groups_and_classes_that_look_alike_stay_apart(data) -> None:
    """Numbers that agree in six digits are different groups and different classes."""
    X, y, group = data
    first = group == np.unique(group)[0]
    coded = fo.select(X, np.where(y == 1, 10000002.0, 10000001.0), k=2, objective="logistic")
    plain = fo.select(X, y, k=2, objective="logistic")
    assert coded.classes == ["10000001", "10000002"]
    named = fo.fairness_report(plain, X, y, np.where(first, "a", "b"))
    numbered = fo.fairness_report(plain, X, y, np.where(first, 1234567, 1234568))
    assert list(numbered.groups) == ["1234567", "1234568"]
    assert list(numbered.groups.values()) == list(named.groups.values())
    assert fo.fairness_report(coded, X, np.where(y == 1, 10000002.0, 10000001.0), first).groups["True"] == named.groups["a"]


@pytest.mark.numerics
@pytest.mark.parametrize("objective", ["linear", "logistic", "poisson"])
def test_held_out_observations_do_not_leak(data, objective) -> None:
    """Nonsense in the rows held out changes no feature and no coefficient, only the score on them."""
    X, y, _ = data
    response = y if objective == "logistic" else np.abs(np.round(3 * X[:, 0] + X[:, 1]))
    clean = fo.select(X, response, k=3, objective=objective, test_fraction=0.25, seed=4)
    rows = held_out_rows(N_OBS, 0.25, 4)
    spoiled, spoiled_response = X.copy(), response.copy()
    spoiled[rows] = 50 * spoiled[rows] + 7
    spoiled[np.flatnonzero(rows)[:3]] = [[1e30], [-3.4e38], [1e200]]  # what files are filled with where nothing was measured
    spoiled_response[rows] = spoiled_response[rows][::-1]
    other = fo.select(spoiled, spoiled_response, k=3, objective=objective, test_fraction=0.25, seed=4)
    alone = fo.select(X[~rows], response[~rows], k=3, objective=objective, seed=4)
    assert clean.indices.tolist() == other.indices.tolist()
    assert clean.column_coef == pytest.approx(other.column_coef, rel=1e-9)
    assert clean.score == pytest.approx(other.score, rel=1e-9)
    assert set(alone.features) == set(clean.features)
    assert np.allclose(alone.predict(X), clean.predict(X), rtol=1e-6)
    assert clean.test_score != pytest.approx(other.test_score)


@pytest.mark.numerics
def test_the_score_on_held_out_rows_is_theirs(data) -> None:
    """R^2 and mean log-likelihood on exactly the rows held out, with the model of the others."""
    X, y, _ = data
    rows = held_out_rows(N_OBS, 0.3, 0)
    assert rows.sum() == 120
    classifier = fo.select(X, y, k=2, objective="logistic", test_fraction=0.3)
    probability, truth = classifier.predict(X)[rows], y[rows]
    assert classifier.test_score == pytest.approx(np.log(np.where(truth == 1, probability, 1 - probability)).mean())
    assert (classifier.test_rows, classifier.test_fraction) == (120, 0.3)
    response = X[:, 0] + 0.5 * X[:, 1]
    line = fo.select(X, response, k=1, test_fraction=0.3)
    error = (response - line.predict(X))[rows]
    assert line.test_score == pytest.approx(1 - (error @ error) / (120 * response[rows].var()))


@pytest.mark.numerics
@given(n_obs=st.integers(2, 200), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 2**64 - 1))
def test_a_split_is_a_split(n_obs, fraction, seed) -> None:
    """Both sides have members, every weight goes to one of them, and the draw repeats."""
    training, test = split_weights(n_obs, fraction, seed)
    assert training.any()
    assert test.any()
    assert np.array_equal(training + test, np.ones(n_obs))
    assert np.array_equal(test > 0, held_out_rows(n_obs, fraction, seed))
    assert abs(test.sum() - fraction * n_obs) <= 1


@pytest.mark.numerics
def test_different_seeds_hold_out_different_rows() -> None:
    """The rows are drawn, not taken from one end, and each is held out about equally often."""
    often = np.mean([held_out_rows(100, 0.3, seed) for seed in range(400)], axis=0)
    assert 0.18 < often.min() < often.max() < 0.42


@pytest.mark.numerics
def test_a_report_looks_at_the_rows_held_out(data) -> None:
    """By default a report is about what the model has not seen; other rows can be asked for."""
    X, y, group = data
    found = fo.select(X, y, k=2, objective="logistic", test_fraction=0.3, seed=9)
    rows = held_out_rows(N_OBS, 0.3, 9)
    report = fo.fairness_report(found, X, y, group)
    assert report.evaluated_on == "test"
    asked = fo.fairness_report(found, X, y, group, rows=rows)
    assert (asked.groups, asked.evaluated_on) == (report.groups, "given")
    assert fo.fairness_report(found, X[rows], y[rows], group[rows]).groups == report.groups


def test_a_table_of_numbers_is_looked_through_where_its_columns_are_those_of_the_selection(data) -> None:
    """In another order the selected columns are found by name, and the best of all features is not known."""
    pandas = pytest.importorskip("pandas")
    X, y, group = data
    table = pandas.DataFrame(X, columns=[f"c{place}" for place in range(6)])
    found = fo.select(table, y, k=2, objective="logistic")
    same, other = (fo.fairness_report(found, each, y, group) for each in (table, table[table.columns[::-1]]))
    assert same.groups == other.groups
    (known,), (unknown,) = same.proxies, other.proxies
    assert known.together == pytest.approx(unknown.together)
    assert known.best_feature in table.columns
    assert (unknown.best_feature, unknown.everything) == (None, None)


@pytest.mark.numerics
def test_unusable_groups_are_refused(data) -> None:
    """A measurement, a single group, a wrong length and a gap each get one sentence."""
    X, y, group = data
    found = fo.select(X, y, k=2, objective="logistic")
    for protected, complaint in (
        (np.arange(N_OBS).astype(str), "400 distinct values"),
        (np.zeros(N_OBS), "1 distinct values"),
        (group[:-1], "expected one value for 400"),
        (np.where(np.arange(N_OBS) == 3, np.nan, 1.0), "missing at row 4"),
    ):
        with pytest.raises(fo.DataError, match=complaint):
            fo.fairness_report(found, X, y, protected)
    for rows, complaint in (([400], "rows holds 400 to 400"), (np.ones(3, bool), "expected row numbers"), ([], "no observation")):
        with pytest.raises(fo.RequestError, match=complaint):
            fo.fairness_report(found, X, y, group, np.array(rows, dtype=np.int64 if isinstance(rows, list) else None))
    with pytest.raises(fo.RequestError, match="9 protected attributes"):
        fo.fairness_report(found, X, y, dict.fromkeys("abcdefghi", group))
    with pytest.raises(fo.RequestError, match="needs a store"):
        fo.fairness_report(found, X, y, "group")
    with pytest.raises(fo.DataError, match="fitted on 0 and 1"):
        fo.fairness_report(found, X, y + 1, group)


@pytest.fixture
def folder(data, tmp_path, monkeypatch):
    """Return a folder with a table, a survey, a constraint and the groups, and make it the working directory."""
    X, y, group = data
    names = [f"x{place}" for place in range(6)]
    rows = [
        ",".join([*(f"{value:.17g}" for value in row), f"{int(g == 'minority')}", g, str(t)])
        for row, g, t in zip(X, group, y, strict=True)
    ]
    (tmp_path / "table.csv").write_text("\n".join([",".join([*names, "minority", "kind", "y"]), *rows]) + "\n")
    (tmp_path / "groups.csv").write_text("\n".join(group) + "\n")
    judgements = np.random.default_rng(1).random((50, 6)) < 0.9
    survey = [",".join(names), *(",".join(str(int(cell)) for cell in row) for row in judgements)]
    (tmp_path / "survey.csv").write_text("\n".join(survey) + "\n")
    (tmp_path / "fair.yaml").write_text("fairness: {judgements: survey.csv, lambda: 0.5, unlisted: fair}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["ingest", "table.csv", "store", "--target", "y"]) == 0
    return tmp_path


def answer(capsys, *words: str) -> dict:
    """Run ``select --json`` and return the object."""
    capsys.readouterr()
    assert main(["select", "store", "--k", "3", "--objective", "logistic", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("protected", ["minority", "kind", "./groups.csv"])
def test_the_command_reports_groups_of_a_feature_a_category_or_a_file(folder, capsys, protected) -> None:
    """The three ways to name the same groups give the same figures, and a protected feature is not selected."""
    found = answer(capsys, "--protected", protected, "--test-fraction", "0.3", "--constraint", "fair.yaml")
    fairness = found["fairness"]
    assert found["test_rows"] == 120
    assert fairness["evaluated_on"] == "test"
    assert 0 < fairness["process_unfairness"] <= 0.5
    assert protected not in found["features"]
    (groups,) = fairness["attributes"]
    assert sum(figures["rows"] for figures in groups["groups"].values()) == 120
    gaps = [
        abs(np.subtract(*(figures[rate] for figures in groups["groups"].values())))
        for rate in ("false_positive_rate", "false_negative_rate")
    ]
    assert groups["differences"]["outcome_fairness"] == pytest.approx(-sum(gaps))


def test_a_protected_feature_may_be_kept(folder, capsys) -> None:
    """It is a candidate again when asked for."""
    words = ("--protected", "minority", "--k", "8", "--until", "full")
    assert "minority" not in answer(capsys, *words)["features"]
    assert "minority" in answer(capsys, *words, "--keep-protected")["features"]


def test_the_command_shows_groups_to_a_person(folder, capsys) -> None:
    """The readable output has the groups, both kinds of fairness and the score on held-out rows."""
    words = ["--protected", "kind", "--test-fraction", "0.3", "--constraint", "fair.yaml"]
    assert main(["select", "store", "--k", "3", "--objective", "logistic", *words]) == 0
    shown = capsys.readouterr().out
    for phrase in ("minority", "majority", "outcome fairness", "process unfairness", "120 observations held out"):
        assert phrase in shown


def test_the_command_refuses_what_names_no_groups(folder, capsys) -> None:
    """An unknown name, one given twice and a constant end with exit code 2 and one line."""
    (folder / "constant.csv").write_text("a\n" * N_OBS)
    for name, complaint in (
        ("nothing", "neither a target, nor a feature, nor a file"),
        ("kind,nothing", "neither a target, nor a feature, nor a file"),
        ("kind,kind", "twice"),
        ("constant.csv", "1 distinct values"),
    ):
        capsys.readouterr()
        assert main(["select", "store", "--k", "2", "--protected", name]) == 2
        said = capsys.readouterr()
        assert complaint in said.err
        assert said.err.count("\n") == 1
        assert not said.out


def test_a_selection_carries_its_report(data, tmp_path) -> None:
    """``protected=`` reports on the groups as ``fairness_report`` does, leaves a feature of that name out, and is saved."""
    pandas = pytest.importorskip("pandas")
    X, y, group = data
    table = pandas.DataFrame(X, columns=[f"c{place}" for place in range(X.shape[1])]).assign(sex=group)
    found = fo.select(table, y, k=3, objective="logistic", protected="sex", test_fraction=0.3)
    again = fo.fairness_report(found, table, y, {"sex": group})  # selected columns alone are found in a table with text
    assert found.fairness.attributes == again.attributes
    assert [each.together for each in found.fairness.proxies] == [each.together for each in again.proxies]
    assert (found.fairness.proxies[0].best_feature is None, again.proxies[0].best_feature) == (False, None)
    assert "sex" not in found.features
    assert "'sex' was not a candidate" in found.notes[-1]
    assert found.to_json()["fairness"] == found.fairness.to_json()
    found.save(tmp_path / "m.json")
    assert fo.load(tmp_path / "m.json").fairness == found.fairness
    kept = fo.select(table, y, k=3, objective="logistic", protected="sex", keep_protected=True)
    assert not any("candidate" in note for note in kept.notes)
    assert fo.select(X, y, k=3, objective="logistic", protected=group).fairness.evaluated_on == "all"
    with pytest.raises(fo.RequestError, match="call fairness_report on its result"):
        fo.select("mmap:///absent", k=1, protected=group, run="r")
    with pytest.raises(fo.RequestError, match="no target or feature is called 'age'"):
        fo.select(table, y, k=3, protected="age")
