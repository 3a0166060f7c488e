"""Figures per group, their differences and intervals: what scikit-learn and a resampling of rows say, in select, grid and cv."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.cli.main import main
from fastomp_nvm.selection.group_figures import Classified, Regressed, automatic_replicates, group_report, replicates
from fastomp_nvm.selection.model_file import SCHEMA
from fastomp_nvm.selection.protected import Attribute, intersection, resolve_protected

N_OBS = 500


def attribute(codes: np.ndarray, labels: tuple[str, ...] = ("a", "b", "c")) -> Attribute:
    """Return groups by code."""
    return Attribute("group", labels, codes)


@pytest.fixture
def predictions() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return probabilities with many ties, outcomes and three groups."""
    rng = np.random.default_rng(1)
    probability = rng.random(N_OBS)
    probability = np.where(np.arange(N_OBS) % 2, probability.round(1), probability.round(2))
    return probability, (rng.random(N_OBS) < probability).astype(float), rng.integers(0, 3, N_OBS)


def test_figures_are_those_of_scikit_learn(predictions) -> None:
    """Accuracy, AUC with ties, and both error rates of each group, and R^2 and mean absolute error of numbers."""
    metrics = pytest.importorskip("sklearn.metrics")
    probability, actual, codes = predictions
    report = group_report(attribute(codes), probability, actual, codes, True)
    for place, figures in enumerate(report.groups.values()):
        p, y = probability[codes == place], actual[codes == place]
        hit = metrics.confusion_matrix(y, p >= 0.5, normalize="true")
        assert figures["auc"] == pytest.approx(metrics.roc_auc_score(y, p), abs=1e-12)
        assert figures["accuracy"] == pytest.approx(metrics.accuracy_score(y, p >= 0.5), abs=1e-12)
        assert (figures["false_positive_rate"], figures["false_negative_rate"]) == pytest.approx((hit[0, 1], hit[1, 0]), abs=1e-12)
        assert (figures["mean_predicted"], figures["mean_observed"]) == pytest.approx((p.mean(), y.mean()), abs=1e-12)
        bins = np.minimum((p * 10).astype(int), 9)
        gaps = [abs((y[bins == b] - p[bins == b]).sum()) for b in range(10)]
        assert figures["calibration_error"] == pytest.approx(sum(gaps) / len(p), abs=1e-12)
    number, guess = 1e6 + 3 * probability, 1e6 + 3 * actual
    report = group_report(attribute(codes), guess, number, codes, False)
    for place, figures in enumerate(report.groups.values()):
        p, y = guess[codes == place], number[codes == place]
        assert figures["r2"] == pytest.approx(metrics.r2_score(y, p), abs=1e-9)
        assert figures["mean_absolute_error"] == pytest.approx(metrics.mean_absolute_error(y, p), abs=1e-9)
        assert figures["mean_residual"] == pytest.approx((y - p).mean(), abs=1e-9)


@pytest.mark.numerics
def test_differences_are_between_groups_that_are_large_enough(predictions) -> None:
    """The largest less the smallest of the groups with 30 observations and more; others are named and left out."""
    probability, actual, codes = predictions
    few = np.flatnonzero(codes == 2)
    kept = np.setdiff1d(np.arange(N_OBS), few[29:])
    probability, actual, codes = probability[kept], actual[kept], codes[kept]
    probability[codes == 2] = 1.0
    report = group_report(attribute(codes), probability, actual, codes, True)
    a, b, c = report.groups.values()
    assert (report.small, c["rows"], c["selection_rate"]) == (["c"], 29, 1.0)
    rates = [a["selection_rate"], b["selection_rate"]]
    fpr, fnr = (abs(a[name] - b[name]) for name in ("false_positive_rate", "false_negative_rate"))
    assert report.differences == pytest.approx(
        {
            "demographic_parity_difference": max(rates) - min(rates),
            "demographic_parity_ratio": min(rates) / max(rates),
            "equalized_odds_difference": max(fpr, fnr),
            "equal_opportunity_difference": fnr,
            "accuracy_difference": abs(a["accuracy"] - b["accuracy"]),
            "outcome_fairness": -fpr - fnr,
        }
    )
    assert any("'c'" in sentence and "30" in sentence for sentence in report.sentences())
    alone = group_report(attribute(codes), probability[codes > 0], actual[codes > 0], codes[codes > 0], True)
    assert (alone.groups["a"]["rows"], alone.groups["a"]["accuracy"]) == (0, None)
    assert set(alone.differences.values()) == {None}


@pytest.mark.numerics
@pytest.mark.parametrize("kind", [Classified, Regressed])
def test_replicates_are_figures_of_rows_drawn(predictions, kind) -> None:
    """Figures from the counts of a replicate equal figures of the rows it drew, as many as there are; a seed repeats them."""
    probability, actual, codes = predictions
    groups = kind(probability, actual, codes)
    (drawn,) = replicates(groups, 20, 5)
    assert (drawn.sum(axis=1) == N_OBS).all()
    assert np.array_equal(drawn, next(replicates(groups, 20, 5)))
    assert not np.array_equal(drawn, next(replicates(groups, 20, 6)))
    figures = groups.figures(drawn)
    example = {cell: row for row, cell in enumerate(groups.cell_of.tolist())}  # rows of a cell are the same
    for replicate, counts in enumerate(drawn[:5].astype(int)):
        rows = np.repeat([example.get(cell, 0) for cell in range(groups.n_cells)], counts)
        again = kind(probability[rows], actual[rows], codes[rows])
        once = again.figures(np.bincount(again.cell_of, minlength=again.n_cells)[None].astype(float))
        for name, values in once.items():
            assert figures[name][replicate] == pytest.approx(values[0], abs=1e-12), name


@pytest.mark.numerics
def test_draws_are_uniform_and_independent(predictions) -> None:
    """Every row is drawn once per replicate on average, with the variance of plain drawing."""
    probability, actual, codes = predictions
    groups = Regressed(probability, actual, codes)
    counts = np.concatenate(list(replicates(groups, 4000, 0)))
    assert np.abs(counts.mean(axis=0) - 1.0).max() < 5 / np.sqrt(4000)
    assert counts.var() == pytest.approx(1.0, abs=0.02)


@pytest.mark.numerics
def test_an_interval_covers_a_rate_as_often_as_it_says() -> None:
    """Of 200 samples, the interval of a group's selection rate holds the true rate in about 95 %."""
    rng, inside = np.random.default_rng(3), 0
    for trial in range(200):
        probability, codes = (rng.random(300) < 0.3).astype(float), rng.integers(0, 2, 300)
        report = group_report(attribute(codes, ("a", "b")), probability, probability, codes, True, 300, trial)
        low, high = report.group_intervals["a"]["selection_rate"]
        inside += low <= 0.3 <= high
    assert 176 <= inside <= 199  # beyond by chance less than once in a thousand


@pytest.mark.numerics
def test_the_bootstrap_can_be_set_and_turned_off(predictions) -> None:
    """None where it is off; by default fewer replicates for more observations, and nothing changes the figures."""
    X = np.random.default_rng(0).normal(size=(N_OBS, 4))
    found = fo.select(X, predictions[1], k=2, objective="logistic")
    off, some, plain = (fo.fairness_report(found, X, predictions[1], predictions[2], bootstrap=count) for count in (0, 50, None))
    assert (off.replicates, some.replicates, plain.replicates) == (0, 50, 1000)
    assert (off.attributes[0].group_intervals, off.attributes[0].difference_intervals) == ({}, {})
    assert off.groups == some.groups == plain.groups
    assert some == fo.fairness_report(found, X, predictions[1], predictions[2], bootstrap=50)
    assert (automatic_replicates(1000), automatic_replicates(10**6), automatic_replicates(100_000, 2)) == (1000, 100, 200)
    for count in (-1, 1.5, True, 10**9):
        with pytest.raises(fo.RequestError, match="whole number of replicates"):
            fo.fairness_report(found, X, predictions[1], predictions[2], bootstrap=count)
    with pytest.raises(fo.RequestError, match="name a protected attribute"):
        fo.select(X, predictions[1], k=2, bootstrap=10)


@pytest.mark.numerics
def test_numbers_are_cut_into_quartiles_and_attributes_crossed() -> None:
    """A measurement has four groups of about a quarter, fewer where many values are equal; crossings hold what occurs."""
    rng = np.random.default_rng(2)
    age, sex = rng.integers(18, 90, 400), rng.choice(["m", "f"], 400)
    by_age, by_sex = resolve_protected({"age": age, "sex": sex}, None, 400)
    assert np.bincount(by_age.codes).tolist() == pytest.approx([100] * 4, abs=12)
    assert np.array_equal(by_age.numbers, age)
    for code, label in enumerate(by_age.labels):
        inside = age[by_age.codes == code]
        edges = [float(word.strip(",")) for word in label.split() if word.strip(",").isdigit()]
        assert inside.max() <= edges[-1] if "at most" in label else inside.min() > edges[0]
    crossed = intersection([by_age, by_sex])
    assert crossed.name == "age x sex"
    assert len(crossed.labels) == 8
    for code, label in enumerate(crossed.labels):
        of_age, of_sex = label.rsplit(", ", 1)
        same = (by_age.codes == by_age.labels.index(of_age)) & (by_sex.codes == by_sex.labels.index(of_sex))
        assert np.array_equal(crossed.codes == code, same)
    gains = np.where(np.arange(400) < 350, 0.0, np.arange(400))
    assert resolve_protected({"gains": gains}, None, 400)[0].labels == ("at most 0", "above 0")
    top = np.where(np.arange(400) < 350, 999.0, np.arange(400))
    assert resolve_protected({"top": top}, None, 400)[0].labels == ("at most 399", "above 399")
    assert len(resolve_protected({"codes": np.arange(400) % 20}, None, 400)[0].labels) == 20  # codes of categories
    both = {"a": np.arange(400) % 20, "b": np.arange(400) // 20 % 13}
    with pytest.raises(fo.DataError, match="a x b make 260 groups: expected at most 50"):
        intersection(resolve_protected(both, None, 400))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a store of three protected features, and make it the working directory."""
    rng = np.random.default_rng(7)
    sex, race = rng.choice(["f", "m"], N_OBS), rng.choice(["x", "y", "z"], N_OBS, p=[0.5, 0.45, 0.05])
    age = rng.integers(18, 80, N_OBS)
    columns = {f"x{place}": rng.normal(size=N_OBS) for place in range(6)}
    columns["x0"] += 2.0 * (sex == "m")
    y = columns["x0"] + columns["x1"] + rng.normal(size=N_OBS) > 1
    columns |= {"sex": sex, "race": race, "age": age, "y": y.astype(int)}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    assert main(["ingest", "table.csv", "store", "--target", "y"]) == 0
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    """Run a command with ``--json`` and return the object."""
    capsys.readouterr()
    assert main([*words, "--objective", "logistic", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_several_attributes_and_their_intersection(folder, capsys) -> None:
    """Named with commas: a report each and one of the intersection, none of them a candidate; the same in Python."""
    words = ("select", "store", "--k", "4", "--protected", "sex,race,age", "--test-fraction", "0.4", "--until", "full")
    found = printed(capsys, *words)
    groups = found["fairness"]["attributes"]
    assert [each["attribute"] for each in groups] == ["sex", "race", "age", "sex x race x age"]
    assert [each["binned"] for each in groups] == [False, False, True, False]
    assert groups[1]["small"] == ["z"]
    assert sum(each["rows"] for each in groups[3]["groups"].values()) == 200
    assert not {"sex", "race", "age"} & set(found["features"])
    assert "'sex', 'race', 'age' were not candidates" in found["notes"][-1]
    names = ["sex", "race", "age"]
    again = fo.select("store", k=4, objective="logistic", protected=names, test_fraction=0.4, until="full")
    assert json.loads(json.dumps(again.to_json()["fairness"])) == found["fairness"]
    again.save("model.json")
    assert fo.load("model.json").fairness == again.fairness
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(Path("model.json").read_text()), json.loads(SCHEMA.read_text()))


def test_people_read_the_report_and_its_definitions(folder, capsys) -> None:
    """Differences with intervals, what they are, what the groups of a number are, and which groups are small."""
    words = ["--k", "3", "--objective", "logistic", "--protected", "race,age", "--test-fraction", "0.4"]
    assert main(["select", "store", *words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for phrase in (
        "groups of race, observations held out",
        "outcome fairness -",
        "(minus the sum of the gaps in false positive and false negative rates; 0 is even)",
        "95% percentile intervals of 1,000 plain bootstrap replicates",
        "age is a number: its groups are quartiles",
        "Fewer than 30 observations, left out of the differences: 'z'",
        "groups of race x age",
    ):
        assert phrase in shown
    assert main(["select", "store", *words, "--bootstrap", "0"]) == 0
    assert "replicates" not in capsys.readouterr().out
    assert main(["select", "store", "--k", "2", "--bootstrap", "10"]) == 2
    assert "name a protected attribute" in capsys.readouterr().err


def test_every_cell_of_a_grid_has_a_report_on_its_held_out_rows(folder, capsys) -> None:
    """That of the request alone, protected features excluded; tables and ``to_frame`` have the differences."""
    words = ("--protected", "sex", "--test-fraction", "0.3", "--bootstrap", "20")
    found = printed(capsys, "grid", "store", "--k", "2,4", "--seeds", "2", *words)
    assert len(found["cells"]) == 4
    for cell in found["cells"]:
        settings = [f"--{name}={value}" for name, value in cell["settings"].items()]
        alone = printed(capsys, "select", "store", *settings, *words)
        assert cell["fairness"] == alone["fairness"]
        assert "sex" not in cell["features"]
    grid = fo.grid("store", over={"k": [2, 4]}, objective="logistic", protected="sex", test_fraction=0.3, bootstrap=0)
    table = grid.to_frame()
    for place, cell in enumerate(grid.cells):
        assert table["outcome_fairness"][place] == cell.selection.fairness.outcome_fairness
    assert "outcome fairness" in grid._repr_html_()
    assert main(["grid", "store", "--k", "2,4", "--objective", "logistic", *words]) == 0
    shown = capsys.readouterr().out
    assert "demographic parity difference" in shown
    assert "groups of sex" in shown


def test_cross_validation_reports_on_observations_that_models_have_not_seen(folder, capsys) -> None:
    """Each observation is predicted by the model of its fold with the k chosen."""
    found = fo.cross_validate("store", ks=[1, 3], folds=4, objective="logistic", protected=["sex", "race"], bootstrap=0)
    report = found.selection.fairness
    assert report.evaluated_on == "folds"
    chosen = found.fold_selections[found.ks.tolist().index(found.k)]
    with fo.open_store("store") as store:
        predicted = np.zeros(N_OBS)
        for fold, model in enumerate(chosen):
            predicted[found.fold_of == fold] = model.predict(store)[found.fold_of == fold]
            assert not {"sex", "race"} & set(model.features)
        truth = np.array(store.targets["y"].values)
    sex = np.array([line.split(",")[6] for line in (folder / "table.csv").read_text().splitlines()[1:]])
    for label, figures in report.groups.items():
        here = sex == label
        assert figures["rows"] == here.sum()
        assert figures["accuracy"] == pytest.approx(((predicted >= 0.5) == truth)[here].mean())
    assert "groups of sex" in found._repr_html_()
    assert main(["cv", "store", "--k", "1,3", "--objective", "logistic", "--protected", "sex", "--bootstrap", "0"]) == 0
    assert "groups of sex, observations held out by the folds" in capsys.readouterr().out


def test_the_html_report_says_what_figures_mean(folder, capsys) -> None:
    """Groups, intervals, differences, proxies, and once the page on what they cannot say; not without protected attributes."""
    for words in (["--protected", "sex,race"], []):
        assert main(["select", "store", "--k", "3", "--objective", "logistic", *words, "--save", "m.json", "--replace"]) == 0
        assert main(["report", "m.json", "out.html", "--replace"]) == 0
        page = (folder / "out.html").read_text()
        expected = (
            "Groups of sex x race",
            "equalized odds difference",
            "Proxies of protected attributes",
            "x0 predicts sex with AUC",
            "What this report cannot see",
            "Procedural fairness",
            "COMPAS",
        )
        assert [phrase in page for phrase in expected] == [bool(words)] * len(expected)
        assert page.count("What this report cannot see") == len(words[:1])
