"""Figures and one HTML page of the paper's experiments, for a reader who has the paper beside it."""

from __future__ import annotations

import html
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from fastomp_nvm.errors import UnavailableError

__all__ = ["write_report"]

COLOURS = {
    "FAST_OMP": "#d62728",
    "FAST_OMP + polish": "#ff9896",
    "SDS_OMP": "#1f77b4",
    "SDS_MA": "#2ca02c",
    "DASH": "#9467bd",
    "Lasso": "#8c564b",
    "Random": "#7f7f7f",
    "ISK": "#1f77b4",
    "optimum": "#2ca02c",
    "most accurate": "#bcbd22",
}

SCORES = {"linear": "R²", "logistic": "mean log-likelihood"}

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
img { max-width: 100%; } table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: .2rem .8rem; text-align: right; }
th:first-child, td:first-child { text-align: left; } tr { border-bottom: 1px solid #ddd; } .note { color: #666; }
"""


def write_report(
    folder: Path,
    rows: list[dict[str, Any]],
    fairness: list[dict[str, Any]],
    plans: dict[str, Any],
    labels: dict[str, str],
    machine: dict[str, Any],
) -> Path:
    """Write the figures and the page; return the page.

    Parameters
    ----------
    rows : list of dict
        One per run, as in ``paper.jsonl``.
    fairness : list of dict
        Points of the COMPAS curves; empty when the data were not there.
    plans, labels : dict
        Of each experiment: its plan, and what its data are.
    machine : dict
        What it ran on.
    """
    try:
        import matplotlib as mpl

        mpl.use("Agg")
    except ImportError as error:
        raise UnavailableError("the figures need matplotlib: pip install 'fastomp-nvm[report]'") from error
    parts = []
    for name, label in labels.items():
        mine = [row for row in rows if row["experiment"] == name]
        _figure(folder / f"{name}.png", mine, plans[name])
        parts.append(_section(name, label, mine, plans[name]))
    if fairness:
        _compas_figure(folder / "compas.png", fairness)
        parts.append(_compas_section(fairness))
    else:
        parts.append("<h2>COMPAS</h2><p class=note>Skipped: FASTOMP_TEST_DATA names no folder with compas_design.npz.</p>")
    title = "Fast Feature Selection with Fairness Constraints, re-made"
    facts = ", ".join(f"{html.escape(str(key))} {html.escape(str(value))}" for key, value in machine.items())
    page = folder / "paper.html"
    page.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f"<p>Each figure shows the mean over seeds; bands run from the least to the largest. Times were measured side by side in "
        f"one run, contestants taking turns. FAST_OMP is the paper's algorithm, run on until its set is maximal; the polish is "
        f"ours. On COMPAS both stop as in the paper.</p>"
        f"<p class=note>{facts}</p>{''.join(parts)}</html>\n",
        encoding="utf-8",
    )
    return page


def _by(rows: list[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Group rows."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return groups


def _figure(path: Path, rows: list[dict[str, Any]], plan: dict[str, Any]) -> None:
    """Draw run time over k, score over time and score over k, as a row of the paper's figure."""
    from matplotlib import pyplot

    figure, (time_axis, budget_axis, score_axis) = pyplot.subplots(1, 3, figsize=(15, 4.2))
    groups = _by(rows, "contestant", "k")
    for label in plan["contestants"]:
        colour = COLOURS[label]
        sizes = [k for k in plan["k"] if groups[(label, k)]]
        for axis, field in ((time_axis, "seconds"), (score_axis, "score")):
            values = [[row[field] for row in groups[(label, k)]] for k in sizes]
            axis.plot(sizes, [np.mean(points) for points in values], "o-", label=label, color=colour, markersize=4)
            axis.fill_between(sizes, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.15)
        times, mean, low, high = _over_time(groups[(label, max(plan["k"]))], plan["objective"])
        if len(times) == 1:
            budget_axis.plot(times, mean, "s", color=colour, label=label)
        else:
            budget_axis.plot(times, mean, color=colour, label=label)
            budget_axis.fill_between(times, low, high, color=colour, alpha=0.15)
    score = SCORES[plan["objective"]]
    time_axis.set(xlabel="features selected, k", ylabel="run time (s)", title="run time over k", yscale="log")
    budget_axis.set(xlabel="time budget (s)", ylabel=score, title=f"score over time, k = {max(plan['k'])}", xscale="log")
    score_axis.set(xlabel="features selected, k", ylabel=score, title="score over k")
    for axis in (time_axis, budget_axis, score_axis):
        axis.grid(alpha=0.3)
    handles, names = time_axis.get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=len(names), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _over_time(rows: list[dict[str, Any]], objective: str) -> tuple[np.ndarray, ...]:
    """Return times and the mean, least and largest score reached by then over the runs; one point where a run has no rounds."""
    ends = np.array([row["seconds"] for row in rows])
    final = np.array([row["score"] for row in rows])
    if not any(value for row in rows for _, value in row["trace"][:-1]):
        return tuple(np.array([value]) for value in (ends.mean(), final.mean(), final.min(), final.max()))
    times = np.geomspace(max(min(row["trace"][0][0] for row in rows), 1e-4), ends.max(), 60)
    curves = []
    for row in rows:
        moments = np.array([moment for moment, _ in row["trace"]])
        # f of the linear model is R^2; of a GLM it is the total log-likelihood above the null model's
        grown = [
            value if objective == "linear" else row["score"] - row["final_value"] + value / row["n_obs"]
            for _, value in row["trace"][:-1]
        ]
        reached = np.array([*grown, row["score"]])
        places = np.searchsorted(moments, times, side="right") - 1
        curves.append(np.where(places >= 0, np.maximum.accumulate(reached)[np.maximum(places, 0)], np.nan))
    stacked = np.ma.masked_invalid(np.array(curves))
    return times, *(
        np.asarray(figure.filled(np.nan)) for figure in (stacked.mean(axis=0), stacked.min(axis=0), stacked.max(axis=0))
    )


def _section(name: str, label: str, rows: list[dict[str, Any]], plan: dict[str, Any]) -> str:
    """Return the HTML of one experiment: figure, and a table at the largest k."""
    largest = max(plan["k"])
    groups = _by([row for row in rows if row["k"] == largest], "contestant")
    fastest = np.mean([row["seconds"] for row in groups[("FAST_OMP",)]])
    lines = []
    for contestant in plan["contestants"]:
        mine = groups[(contestant,)]
        seconds, scores = np.array([row["seconds"] for row in mine]), np.array([row["score"] for row in mine])
        cells = (
            html.escape(contestant),
            f"{seconds.mean():.3f} ± {seconds.std():.3f}",
            f"{seconds.mean() / fastest:.1f}",
            f"{scores.mean():.4f} ± {scores.std():.4f}",
            f"{np.mean([row['selected'] for row in mine]):.0f}",
            f"{np.mean([row['passes'] for row in mine]):.1f}",
            f"{np.mean([row['gradient_rounds'] for row in mine]):.0f}",
        )
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = ("contestant", "seconds", "times FAST_OMP's", SCORES[plan["objective"]], "selected", "passes", "gradient rounds")
    head = "".join(f"<th>{title}</th>" for title in heads)
    return (
        f"<h2>{html.escape(plan['title'])}</h2><p>{html.escape(label)}; {plan['seeds']} seeds; the paper's figure, "
        f"{html.escape(plan['figure'])}.</p><img src={name}.png alt='{html.escape(plan['title'])}'>"
        f"<p>At k = {largest}:</p><table><tr>{head}</tr>{''.join(lines)}</table>"
    )


def _compas_figure(path: Path, points: list[dict[str, Any]]) -> None:
    """Draw accuracy and outcome fairness over lambda, one row per judgement."""
    from matplotlib import pyplot

    judgements = list(dict.fromkeys(point["judgement"] for point in points))
    figure, axes = pyplot.subplots(len(judgements), 2, figsize=(12, 3.4 * len(judgements)), squeeze=False)
    for row, judgement in enumerate(judgements):
        for (algorithm,), mine in _by([point for point in points if point["judgement"] == judgement], "algorithm").items():
            runs = _by(mine, "limit")
            limits = [limit for (limit,) in runs]
            for axis, field in zip(axes[row], ("accuracy", "outcome_fairness"), strict=True):
                values = [[point[field] for point in points] for points in runs.values()]
                colour = COLOURS[algorithm]
                axis.plot(limits, [np.mean(each) for each in values], "o-", markersize=3, label=algorithm, color=colour)
                axis.fill_between(limits, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.15)
                axis.set(xlabel="process unfairness allowed, λ", ylabel=field.replace("_", " "), title=f"{judgement} judgements")
                axis.grid(alpha=0.3)
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _compas_section(points: list[dict[str, Any]]) -> str:
    """Return the HTML of the COMPAS experiment."""
    worst = _worst_gap(points)
    return (
        "<h2>COMPAS: accuracy and outcome fairness over λ</h2><p>Logistic regression on nine features; a set is allowed when at "
        "most a share λ of 215 people finds it unfair. The optimum is over all 512 feature sets. Outcome fairness is "
        "-|FPR difference| - |FNR difference| between white and other people; 0 is fair. Lines are means over seeds, bands run "
        "from the least to the largest.</p>"
        f"<img src=compas.png alt='COMPAS'><p>{worst}</p><p class=note>A study of the optimisation on a criticised data set, "
        "not a recommendation to predict recidivism.</p>"
    )


def _worst_gap(points: list[dict[str, Any]]) -> str:
    """Return sentences on the largest distance of FAST_OMP's log-likelihood from the optimum's, mean and best of the seeds."""
    reached = _by(points, "judgement", "limit", "algorithm")
    sentences = []
    for algorithm in ("FAST_OMP", "FAST_OMP + polish"):
        gaps = []
        for (judgement, limit, _), runs in ((key, runs) for key, runs in reached.items() if key[2] == algorithm):
            (best,) = (point["log_likelihood"] for point in reached[(judgement, limit, "optimum")])
            found = [point["log_likelihood"] for point in runs]
            gaps.append([100 * (best - value) / abs(best) for value in (np.mean(found), max(found))])
        mean, least = np.max(gaps, axis=0)
        sentences.append(
            f"{algorithm}: the training log-likelihood is at most {mean:.2f} % from the optimum in the mean over seeds and "
            f"{least:.2f} % with the best seed, over every λ and judgement."
        )
    return " ".join(sentences)
