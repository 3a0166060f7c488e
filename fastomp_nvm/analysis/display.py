"""Results of grids, cross-validation and stability selection in interactive use: ``repr``, HTML and tables for pandas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.selection.display import frame, html_table, listed, score_in_words
from fastomp_nvm.selection.text import clean, human_bytes

if TYPE_CHECKING:
    import pandas as pd

    from fastomp_nvm.analysis.cross_validation import CrossValidation
    from fastomp_nvm.analysis.grid import Grid
    from fastomp_nvm.analysis.group_fairness import FairnessReport
    from fastomp_nvm.analysis.sharing import Sharing
    from fastomp_nvm.analysis.stability import Stability

__all__ = [
    "cv_frame",
    "cv_html",
    "cv_results",
    "fairness_frame",
    "fairness_html",
    "grid_frame",
    "grid_html",
    "short_cv",
    "short_fairness",
    "short_grid",
    "short_stability",
    "stability_frame",
    "stability_html",
]


def short_cv(found: CrossValidation) -> str:
    """Return the ``repr`` of a cross-validation."""
    place = int(np.flatnonzero(found.ks == found.k)[0])
    score = f"{found.mean[place]:.4g} (standard error {found.standard_error[place]:.2g})"
    return (
        f"<CrossValidation: k = {found.k} of {len(found.ks)} tried, mean score {score} over {found.scores.shape[1]} folds\n"
        f"  {listed(found.selection.features)}\n  {_shared(found.sharing)}>"
    )


def cv_results(found: CrossValidation) -> dict[str, AnyArray]:
    """Return the scores as scikit-learn's searches name them: a dict of arrays, one entry per k."""
    ranks = 1 + (found.mean[:, None] < found.mean).sum(axis=1)
    splits = {f"split{fold}_test_score": found.scores[:, fold] for fold in range(found.scores.shape[1])}
    return {
        "param_k": found.ks,
        "params": np.array([{"k": k} for k in found.ks.tolist()], dtype=object),
        **splits,
        "mean_test_score": found.mean,
        "std_test_score": found.scores.std(axis=1),
        "rank_test_score": ranks.astype(np.int32),
    }


def cv_frame(found: CrossValidation) -> pd.DataFrame:
    """Return a cross-validation as a table: one row per k."""
    splits = {f"fold_{fold}": found.scores[:, fold] for fold in range(found.scores.shape[1])}
    return frame({"k": found.ks, "mean": found.mean, "standard_error": found.standard_error, **splits})


def cv_html(found: CrossValidation) -> str:
    """Return a cross-validation as HTML."""
    marks = {found.one_standard_error_k: "within one standard error", found.best_k: "best"}
    rows = [
        (str(k), f"{mean:.6g}", f"{error:.2g}", marks.get(k, ""))
        for k, mean, error in zip(found.ks.tolist(), found.mean, found.standard_error, strict=True)
    ]
    title = f"k = {found.k} by {found.scores.shape[1]} folds; on all observations: {score_in_words(found.selection)}"
    return html_table(title, ("k", "mean", "standard error", ""), rows, [listed(found.selection.features), _shared(found.sharing)])


def short_grid(found: Grid) -> str:
    """Return the ``repr`` of a grid."""
    best = found.best
    return (
        f"<Grid: {len(found.cells)} selections, best {_settings(best.settings)}: {score_in_words(best.selection)}\n"
        f"  {listed(best.selection.features)}\n  {_shared(found.sharing)}>"
    )


def grid_frame(found: Grid) -> pd.DataFrame:
    """Return a grid as a table: one row per selection."""
    selections = [cell.selection for cell in found.cells]
    columns: dict[str, object] = {name: [cell.settings[name] for cell in found.cells] for name in found.cells[0].settings}
    columns |= {"n_selected": [len(each.features) for each in selections], "score": [each.score for each in selections]}
    if any(each.test_score is not None for each in selections):
        columns["test_score"] = [each.test_score for each in selections]
    columns |= {"feasible": [each.feasible for each in selections], "features": [list(each.features) for each in selections]}
    return frame(columns)


def grid_html(found: Grid) -> str:
    """Return a grid as HTML."""
    rows = [
        (
            *(f"{value:g}" if isinstance(value, float) else str(value) for value in cell.settings.values()),
            str(len(cell.selection.features)),
            f"{cell.selection.score:.6g}",
            "" if cell.selection.test_score is None else f"{cell.selection.test_score:.6g}",
            "yes" if cell.selection.feasible else "no",
        )
        for cell in found.cells
    ]
    head = (*found.cells[0].settings, "features", "score", "score held out", "feasible")
    return html_table(f"{len(rows)} selections, best {_settings(found.best.settings)}", head, rows, [_shared(found.sharing)])


def short_stability(found: Stability) -> str:
    """Return the ``repr`` of a stability selection."""
    stable = f"\n  {listed(found.stable)}" if found.stable else ""
    return (
        f"<Stability: {len(found.stable)} features in at least {found.threshold:.0%} of {found.subsamples} subsamples{stable}\n"
        f"  {_shared(found.sharing)}>"
    )


def stability_frame(found: Stability) -> pd.DataFrame:
    """Return the features selected at least once as a table, the most frequent first."""
    frequencies = found.frequencies[found.indices]
    stable = np.arange(len(found.indices)) < len(found.stable)
    return frame({"feature": list(found.features), "index": found.indices, "frequency": frequencies, "stable": stable})


def stability_html(found: Stability) -> str:
    """Return a stability selection as HTML."""
    rows = [
        (clean(name, 100), f"{found.frequencies[index]:.1%}", "stable" if place < len(found.stable) else "")
        for place, (name, index) in enumerate(zip(found.features, found.indices.tolist(), strict=True))
    ]
    title = f"{len(found.stable)} features in at least {found.threshold:.0%} of {found.subsamples} subsamples"
    return html_table(title, ("feature", "selected in", ""), rows, [_shared(found.sharing)])


def short_fairness(report: FairnessReport) -> str:
    """Return the ``repr`` of a fairness report."""
    return f"<FairnessReport: groups {listed(list(report.groups))} on {report.evaluated_on} observations, {_fairness(report)}>"


def fairness_frame(report: FairnessReport) -> pd.DataFrame:
    """Return the figures of a fairness report as a table: one row per group."""
    figures = list(next(iter(report.groups.values())))
    columns = {figure: [values[figure] for values in report.groups.values()] for figure in figures}
    return frame({"group": list(report.groups), **columns})


def fairness_html(report: FairnessReport) -> str:
    """Return a fairness report as HTML."""
    figures = list(next(iter(report.groups.values())))
    rows = [(clean(label, 100), *map(_figure, each.values())) for label, each in report.groups.items()]
    title = f"groups of the protected attribute, {report.evaluated_on} observations"
    return html_table(title, ("group", *(figure.replace("_", " ") for figure in figures)), rows, [_fairness(report)])


def _figure(value: float | None) -> str:
    """Return a figure of a group as text."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _fairness(report: FairnessReport) -> str:
    """Return outcome and process fairness in words."""
    outcome = "undefined" if report.outcome_fairness is None else f"{report.outcome_fairness:.4g} (0 is even)"
    process = "" if report.process_unfairness is None else f", process unfairness {report.process_unfairness:.4g}"
    return f"outcome fairness {outcome}{process}"


def _settings(settings: Mapping[str, object]) -> str:
    """Return the settings of a cell of a grid in words."""
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "the only one"


def _shared(sharing: Sharing) -> str:
    """Return the traffic of selections in shared passes."""
    return f"{sharing.full_passes:.1f} passes, {human_bytes(sharing.bytes_read)} read"
