"""Figures per group, their differences and proxies equal those of fairlearn and scikit-learn on real tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastomp_nvm as fo
from fastomp_nvm.selection.fairness import SMALL_GROUP, GroupReport
from fastomp_nvm.selection.held_out import held_out_rows
from tests.sessions import real_tables

#: Table, its target, and the protected attributes: two or more groups, and a number.
TABLES: dict[str, tuple[Callable[[], Any], str, list[str]]] = {
    "adult": (real_tables.adult, "salary", ["sex", "race", "age"]),
    "german": (real_tables.german, "credit-label", ["sex", "employment"]),
    "credit": (real_tables.credit, "default-payment-next-month", ["SEX", "EDUCATION"]),
    "compas": (lambda: real_tables.compas().drop(columns=["c-charge-desc"]), "two-year-recid", ["sex", "race", "age-num"]),
}
#: Names of figures here and functions of fairlearn or scikit-learn.
EXACT = 1e-12


@pytest.mark.parametrize("name", TABLES)
def test_groups_of_real_tables_are_fairlearn_s(name: str) -> None:
    """Every shared figure and difference to 1e-12, on the rows held out, of each attribute and of their intersection."""
    from fairlearn import metrics as fair
    from sklearn import metrics

    read, target, protected = TABLES[name]
    table = read()
    y = table.pop(target).to_numpy()
    found = fo.select(table, y, k=6, objective="logistic", protected=protected, test_fraction=0.3, bootstrap=0)
    held_out = held_out_rows(len(y), 0.3, 0)
    probability = found.predict(table)[held_out]
    truth = (y == np.unique(y)[1]).astype(int)[held_out]
    assert len(found.fairness.attributes) == len(protected) + 1
    for report, groups in zip(found.fairness.attributes, _groups(table, protected, found.fairness.attributes), strict=True):
        here = groups[held_out]
        predicted = (probability >= 0.5).astype(int)
        figures = {
            "rows": fair.count,
            "selection_rate": fair.selection_rate,
            "accuracy": metrics.accuracy_score,
            "false_positive_rate": fair.false_positive_rate,
            "false_negative_rate": fair.false_negative_rate,
        }
        theirs = fair.MetricFrame(metrics=figures, y_true=truth, y_pred=predicted, sensitive_features=here).by_group
        for label, ours in report.groups.items():
            inside = here == label
            assert ours["rows"] == inside.sum()
            if not inside.any():
                continue
            undefined = {"false_positive_rate": not (truth[inside] == 0).any(), "false_negative_rate": not truth[inside].any()}
            for figure in figures:
                if undefined.get(figure):  # fairlearn says 0
                    assert ours[figure] is None
                else:
                    assert ours[figure] == pytest.approx(theirs.loc[label, figure], abs=EXACT), (label, figure)
            if not any(undefined.values()):
                assert ours["auc"] == pytest.approx(metrics.roc_auc_score(truth[inside], probability[inside]), abs=EXACT)
        _compare_differences(report, truth, predicted, here)


def _compare_differences(report: GroupReport, truth: np.ndarray, predicted: np.ndarray, groups: np.ndarray) -> None:
    """Compare differences between the groups that are not small and have both outcomes."""
    from fairlearn import metrics as fair

    large = [label for label, figures in report.groups.items() if (figures["rows"] or 0) >= SMALL_GROUP]
    assert set(report.groups) - set(large) == set(report.small)
    some = np.isin(groups, large)
    arguments = {"y_true": truth[some], "y_pred": predicted[some], "sensitive_features": groups[some]}
    defined = all(report.groups[label]["auc"] is not None for label in large)
    for difference in (
        "demographic_parity_difference",
        "demographic_parity_ratio",
        "equalized_odds_difference",
        "equal_opportunity_difference",
    ):
        ours = report.differences[difference]
        if "parity" in difference or defined:
            assert ours == pytest.approx(getattr(fair, difference)(**arguments), abs=EXACT), difference


def _groups(table: Any, protected: list[str], reports: Any) -> list[np.ndarray]:
    """Return the label of each row for each attribute and the intersection, by pandas alone."""
    found = []
    for name, report in zip(protected, reports, strict=False):
        values = table[name]
        if report.binned:
            edges = np.unique(np.quantile(values, [0.25, 0.5, 0.75], method="inverted_cdf"))
            found.append(np.array(list(report.groups))[np.searchsorted(edges, values)])
        else:
            found.append(values.astype(str).to_numpy().astype(object))
    return [*found, np.array([", ".join(row) for row in zip(*found, strict=True)], dtype=object)]


def test_errors_of_numbers_are_scikit_learn_s() -> None:
    """R^2 and mean absolute error of each group, and fairlearn's difference of the latter."""
    from fairlearn.metrics import MetricFrame
    from sklearn import metrics

    table = real_tables.diabetes()
    y = table.pop("target").to_numpy()
    sex = np.where(table["sex"] > 0, "one", "other")
    found = fo.select(table, y, k=4, exclude=["sex"], protected={"sex": sex}, bootstrap=0)
    figures = {"r2": metrics.r2_score, "mean_absolute_error": metrics.mean_absolute_error}
    theirs = MetricFrame(metrics=figures, y_true=y, y_pred=found.predict(table), sensitive_features=sex)
    for label, ours in found.fairness.groups.items():
        for figure in figures:
            assert ours[figure] == pytest.approx(theirs.by_group.loc[label, figure], rel=EXACT)
    gap = found.fairness.attributes[0].differences["mean_absolute_error_difference"]
    assert gap == pytest.approx(theirs.difference()["mean_absolute_error"], rel=1e-10)


def test_proxies_of_adult_are_those_of_a_linear_regression() -> None:
    """``relationship`` predicts sex best of all, and AUC and R^2 are those of scikit-learn's least squares on the rows held out."""
    import pandas
    from sklearn.linear_model import LinearRegression
    from sklearn.metrics import r2_score, roc_auc_score

    table = real_tables.adult()
    y = table.pop("salary").to_numpy()
    found = fo.select(table, y, k=5, objective="logistic", protected=["sex", "age"], test_fraction=0.2, bootstrap=0)
    by_sex, by_age = found.fairness.proxies
    out = held_out_rows(len(y), 0.2, 0)
    male = (table["sex"] == "Male").to_numpy().astype(int)

    def predicted(columns: list[str], values: np.ndarray) -> np.ndarray:
        X = pandas.get_dummies(table[columns], dtype=float).to_numpy()
        X = X[:, X[~out].std(axis=0) > 0]
        X = (X - X[~out].mean(axis=0)) / X[~out].std(axis=0)
        return LinearRegression().fit(X[~out], values[~out]).predict(X[out]).round(9)

    age = table["age"].to_numpy(dtype=float)
    others = [name for name in table.columns if name not in ("sex", "age")]
    for columns, of_sex, of_age in (
        *(([name], by_sex.selected[name], by_age.selected[name]) for name in found.features),
        (list(found.features), by_sex.together, by_age.together),
        (others, by_sex.everything, by_age.everything),
    ):
        assert of_sex == pytest.approx(roc_auc_score(male[out], predicted(columns, male)), abs=1e-5)
        assert of_age == pytest.approx(r2_score(age[out], predicted(columns, age)), abs=1e-6)
    alone = {name: roc_auc_score(male[out], predicted([name], male)) for name in others}
    assert by_sex.best_feature == max(alone, key=alone.__getitem__) == "relationship"
    assert by_sex.sentence().startswith("relationship predicts sex with AUC 0.8")
