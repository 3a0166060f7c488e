"""The paper's experiments: run time over k, score over a time budget and score over k, and COMPAS over lambda.

Every contestant of ``paper.toml`` runs over several seeds, in turn. FAST_OMP is the paper's algorithm, run until its set is
maximal; the polish is ours. On COMPAS both stop as in the paper. Synthetic designs are generated. Gene expression is the Pan-Cancer
CSV given with ``--genes``; otherwise a public leukaemia set if ``FASTOMP_TEST_DATA`` names its folder, else a synthetic matrix of
the same shape, labelled as such. COMPAS needs that folder too and is skipped without it. ``--quick`` takes small real data that
scikit-learn ships for the first and third row. Figures show means over seeds, with bands from the least to the largest.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import math
import os
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fastomp_nvm as fo
from benchmarks import compas
from benchmarks.harness.report import Report, argument_parser
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.constraints import RandomSystem
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import RequestError, UnavailableError, how_to_install
from fastomp_nvm.selection.request import SelectionRequest

__all__ = ["main"]

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

#: Times at which the score over time is drawn.
TIMES = 60

#: Share of the people of COMPAS that are held out.
HELD_OUT = 0.3


@dataclass(frozen=True, slots=True)
class Experiment:
    """One row of figures: its plan in ``paper.toml``, a label, data and response."""

    name: str
    plan: dict[str, Any]
    label: str
    data: Dataset
    response: np.ndarray


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argument_parser("paper", __doc__, out=True)
    parser.add_argument(
        "--scale", type=float, help="divide the large set's 1000000 features by this, its 10000 observations by the root"
    )
    parser.add_argument("--seeds", type=int, help="runs per point (default 10, COMPAS 20; 3 with --quick)")
    parser.add_argument("--genes", type=Path, help="the Pan-Cancer data.csv, with its labels.csv beside it")
    parser.add_argument("--only", choices=("small", "large", "genes", "compas"), help="one experiment alone")
    options = parser.parse_args(argv)
    if options.seeds is not None and options.seeds < 1:
        raise RequestError(f"--seeds is {options.seeds}: expected at least 1")
    if options.scale is not None and not options.scale >= 1:
        raise RequestError(f"--scale is {options.scale:g}: expected 1 (the paper's size) or more")
    if options.genes is not None and not options.genes.is_file():
        raise RequestError(f"there is no file {options.genes}: --genes takes the Pan-Cancer data.csv")
    if options.only == "compas" and _compas_folder() is None:
        raise RequestError("FASTOMP_TEST_DATA names no folder with compas_design.npz: set it, or leave --only compas out")
    report = Report(options, argv)
    plans = read_plans(options.quick, options.seeds, options.scale)
    for experiment in _experiments(plans, options):
        rows = []
        for row in measure(experiment, plans["contestants"]):
            rows.append(row)
            report.measured(row)
        show(report, experiment, rows, plans["contestants"])
    points = _compas(options)
    for point in points:
        report.measured({"experiment": "compas", **point})
    show_compas(report, points)
    return report.finish()


def read_plans(quick: bool, seeds: int | None, scale: float | None) -> dict[str, Any]:
    """Return ``paper.toml`` with the quick sizes, the seeds and the scale put in."""
    plans: dict[str, Any] = tomllib.loads((Path(__file__).parent / "paper.toml").read_text(encoding="utf-8"))
    for name, plan in plans.items():
        if name == "contestants":
            continue
        smaller = plan.pop("quick")
        plan.update(smaller if quick else {})
        if seeds is not None:
            plan["seeds"] = seeds
    if scale is not None:
        plans["large"]["scale"] = scale
    return plans


def _experiments(plans: dict[str, Any], options: argparse.Namespace) -> Iterator[Experiment]:
    """Make the data of each experiment when its turn comes, so that only one is in memory."""
    if options.only in (None, "small"):
        n_obs, n_features = plans["small"]["shape"]
        packaged = "data" in plans["small"]
        yield (
            _packaged("small", plans["small"])
            if packaged
            else _synthetic("small", plans["small"], n_obs, n_features, "the paper's size")
        )
    if options.only in (None, "large"):
        plan = plans["large"]
        n_obs, n_features = int(plan["shape"][0] / math.sqrt(plan["scale"])), int(plan["shape"][1] / plan["scale"])
        if min(n_obs, n_features) <= max(plan["k"]):
            raise RequestError(f"--scale {plan['scale']:g} leaves {n_obs} x {n_features}, too small for k = {max(plan['k'])}")
        share = "the paper's size" if plan["scale"] == 1 else f"the paper's large set scaled down by {plan['scale']:g}"
        yield _synthetic("large", plan, n_obs, n_features, share)
    if options.only in (None, "genes"):
        if "data" in plans["genes"] and options.genes is None:
            yield _packaged("genes", plans["genes"])
        else:
            X, y, label = _genes(options.genes)
            yield Experiment("genes", plans["genes"], f"{label}, {X.shape[0]} x {X.shape[1]}", Dataset.of_array(X), y)


def _synthetic(name: str, plan: dict[str, Any], n_obs: int, n_features: int, label: str) -> Experiment:
    """Return a synthetic experiment."""
    design = PaperDesign(n_obs, n_features)
    return Experiment(name, plan, f"{label}, {n_obs} x {n_features}", Dataset.of_array(design.matrix().T), design.response())


def _packaged(name: str, plan: dict[str, Any]) -> Experiment:
    """Return an experiment on a table that scikit-learn ships: its standardised columns and their products."""
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise UnavailableError(f"--quick takes data that scikit-learn ships: {how_to_install('sklearn')}") from error
    values, response = getattr(datasets, f"load_{plan['data']}")(return_X_y=True)
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    first, second = np.triu_indices(values.shape[1])
    X = np.column_stack((values, values[:, first] * values[:, second]))
    label = f"{plan['data'].replace('_', ' ')} (shipped with scikit-learn), {values.shape[1]} columns and their products"
    return Experiment(name, plan, f"{label}, {X.shape[0]} x {X.shape[1]}", Dataset.of_array(X), response.astype(np.float64))


def _genes(path: Path | None) -> tuple[np.ndarray, np.ndarray, str]:
    """Return gene expression (n_obs, n_genes), a 0/1 response and a label."""
    if path is not None:
        with path.with_name("labels.csv").open(newline="", encoding="utf-8") as file:
            classes = [line[1] for line in list(csv.reader(file))[1:]]
        values = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(1, 20532), dtype=np.float32)
        return values, np.array([label == "PRAD" for label in classes], dtype=np.float64), "Pan-Cancer, PRAD against the rest"
    folder = os.environ.get("FASTOMP_TEST_DATA")
    if folder and (Path(folder) / "all_leukemia.npz").exists():
        with np.load(Path(folder) / "all_leukemia.npz", allow_pickle=False) as data:
            return data["X"], data["y_is_tcell"].astype(np.float64), "leukaemia (ALL), T-cell or not, instead of Pan-Cancer"
    design = PaperDesign(801, 20531, strong=(0.2, 0.5))
    response = (design.response() > 1.0).astype(np.float64)
    return design.matrix().T, response, "synthetic, of the shape of Pan-Cancer"


def measure(experiment: Experiment, contestants: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Run every contestant for every k and seed; yield one row per run.

    Contestants take turns within a seed, so that a noisy minute hits all of them. The largest k also records how the score grew.
    """
    plan = experiment.plan
    for seed in range(plan["seeds"]):
        for k in plan["k"]:
            for label in plan["contestants"]:
                trace: list[tuple[float, float]] = []
                started = time.perf_counter()

                def observe(step: Progress, trace: list[tuple[float, float]] = trace, started: float = started) -> None:
                    trace.append((time.perf_counter() - started, step.value))

                found = fo.select(
                    experiment.data,
                    experiment.response,
                    k=k,
                    objective=plan["objective"],
                    constraint=_constraint(plan, experiment.data.n_features, k, seed),
                    seed=seed,
                    observer=observe if k == max(plan["k"]) else None,
                    **contestants[label],
                )
                seconds = time.perf_counter() - started
                yield {
                    "experiment": experiment.name,
                    "contestant": label,
                    "k": k,
                    "seed": seed,
                    "seconds": seconds,
                    "score": found.score,
                    "selected": len(found.indices),
                    "passes": found.full_passes,
                    "gradient_rounds": found.gradient_rounds,
                    "trace": [*trace, (seconds, None)],
                    "final_value": found.score if plan["objective"] == "linear" else found.score - found.null_score,
                    "n_obs": experiment.data.n_obs,
                }


def _constraint(plan: dict[str, Any], n_features: int, k: int, seed: int) -> RandomSystem | None:
    """Return the random p-system of an experiment: two random partitions, tight enough to bind."""
    if plan["constraint"] == "none":
        return None
    return RandomSystem(n_features, p=2, n_groups=max(k // 2, 1), cap=3, seed=seed)


def _compas(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the curves of accuracy and outcome fairness over lambda, in-sample and held out, or nothing without the data."""
    folder = _compas_folder()
    if options.only not in (None, "compas") or folder is None:
        return []
    seeds = options.seeds or (3 if options.quick else compas.SEEDS)
    return [asdict(point) for share in (None, HELD_OUT) for point in compas.curve(folder, seeds=seeds, held_out=share)]


def _compas_folder() -> Path | None:
    """Return the folder of the COMPAS data, if there is one."""
    folder = os.environ.get("FASTOMP_TEST_DATA")
    return Path(folder) if folder and (Path(folder) / "compas_design.npz").exists() else None


def show(report: Report, experiment: Experiment, rows: list[dict[str, Any]], contestants: dict[str, dict[str, Any]]) -> None:
    """Report one experiment: settings, figure, and a table at the largest k."""
    plan, largest = experiment.plan, max(experiment.plan["k"])
    report.heading(plan["title"])
    report.say(f"{experiment.label}; {plan['seeds']} seeds; the paper's figure, {plan['figure']}.")
    report.say(settings(plan, contestants))
    report.figure(experiment.name, lambda path: _draw(path, rows, plan))
    groups = _by([row for row in rows if row["k"] == largest], "contestant")
    fastest = np.mean([row["seconds"] for row in groups[("FAST_OMP",)]])
    table = []
    for contestant in plan["contestants"]:
        mine = groups[(contestant,)]
        seconds, scores, *counts = (
            np.array([row[name] for row in mine]) for name in ("seconds", "score", "selected", "passes", "gradient_rounds")
        )
        spread = f"{seconds.mean():.3f} ± {seconds.std():.3f}", f"{scores.mean():.4f} ± {scores.std():.4f}"
        table.append((contestant, spread[0], float(seconds.mean() / fastest), spread[1], *(float(each.mean()) for each in counts)))
    heads = ("contestant", "seconds", "times FAST_OMP's", SCORES[plan["objective"]], "selected", "passes", "gradient rounds")
    report.table(f"k = {largest}", heads, table)


def settings(plan: dict[str, Any], contestants: dict[str, dict[str, Any]]) -> str:
    """Return what the contestants were given, what a seed draws, and how the curve over time is sampled."""
    default = SelectionRequest()
    given = []
    for label in plan["contestants"]:
        request = {"epsilon": default.epsilon, "tau": default.tau, **contestants[label]}
        fields = ("tau", "epsilon", "until", "polish") if request.pop("algorithm") == "fast_omp" else ("plain",)
        shown = [f"{field} {str(request[field]).lower()}" for field in fields if field in request]
        given.append(f"{label} ({', '.join(shown)})" if shown else label)
    drawn = "the random sequences and samples of the algorithms" + ("" if plan["constraint"] == "none" else " and the p-system")
    return (
        f"Settings: {', '.join(given)}; the rest as by default. A seed draws {drawn}; the data is the same for all seeds. "
        f"Score over time: the best score of a run's rounds up to each of {TIMES} times, evenly spaced on the log axis, the "
        "null model's before its first round; lines are means over seeds, bands run from the least to the largest."
    )


def show_compas(report: Report, points: list[dict[str, Any]]) -> None:
    """Report the COMPAS curves."""
    report.heading("COMPAS: accuracy and outcome fairness over λ")
    if not points:
        report.say("Skipped: FASTOMP_TEST_DATA names no folder with compas_design.npz, or --only leaves it out.")
        return
    report.say(
        "Logistic regression on nine features; a set is allowed when at most a share λ of 215 people finds it unfair. The "
        "optimum is over all 512 feature sets. Outcome fairness is -|FPR difference| - |FNR difference| between white and other "
        "people; 0 is fair. In-sample: everything is fitted and evaluated on all people, as in the paper. Held out: sets are "
        f"selected and fitted on {1 - HELD_OUT:.0%} of them, drawn once, and accuracy and fairness are those of the others; the "
        "judgements are the same. FAST_OMP has tau 0.5 and epsilon 0.1; a seed draws its random sequences. The most accurate set "
        "is that of the people evaluated, which nobody can know beforehand. A study of the optimisation on a criticised data set, "
        "not a recommendation to predict recidivism."
    )
    report.figure("compas", lambda path: _draw_compas(path, points))
    report.say(_worst_gap(points))


def _by(rows: list[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Group rows."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return groups


def _draw(path: Path, rows: list[dict[str, Any]], plan: dict[str, Any]) -> None:
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
    """Return times and the mean, least and largest score reached by then; a single point for runs without rounds."""
    ends = np.array([row["seconds"] for row in rows])
    final = np.array([row["score"] for row in rows])
    if not any(value for row in rows for _, value in row["trace"][:-1]):
        return tuple(np.array([value]) for value in (ends.mean(), final.mean(), final.min(), final.max()))
    times = np.geomspace(max(min(row["trace"][0][0] for row in rows), 1e-4), ends.max(), TIMES)
    curves = []
    for row in rows:
        moments = np.array([moment for moment, _ in row["trace"]])
        # f of the linear model is R^2; of a GLM it is the total log-likelihood above the null model's
        null = row["score"] - row["final_value"]
        grown = [value if objective == "linear" else null + value / row["n_obs"] for _, value in row["trace"][:-1]]
        reached = np.maximum.accumulate([null, *grown, row["score"]])
        curves.append(reached[np.searchsorted(moments, times, side="right")])
    stacked = np.array(curves)
    return times, stacked.mean(axis=0), stacked.min(axis=0), stacked.max(axis=0)


def _draw_compas(path: Path, points: list[dict[str, Any]]) -> None:
    """Draw accuracy and outcome fairness over lambda, in-sample and held out: one row per judgement."""
    from matplotlib import pyplot

    judgements, people = (list(dict.fromkeys(point[field] for point in points)) for field in ("judgement", "evaluated_on"))
    shape = len(judgements), 2 * len(people)
    figure, axes = pyplot.subplots(*shape, figsize=(5.2 * shape[1], 3.4 * shape[0]), squeeze=False, sharey="col")
    for (judgement, evaluated_on, algorithm), mine in _by(points, "judgement", "evaluated_on", "algorithm").items():
        row, first = axes[judgements.index(judgement)], people.index(evaluated_on)
        runs = _by(mine, "limit")
        limits = [limit for (limit,) in runs]
        for axis, field in zip(row[first :: len(people)], ("accuracy", "outcome_fairness"), strict=True):
            values = [[point[field] for point in points] for points in runs.values()]
            colour = COLOURS[algorithm]
            axis.plot(limits, [np.mean(each) for each in values], "o-", markersize=3, label=algorithm, color=colour)
            axis.fill_between(limits, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.15)
            axis.set(xlabel="process unfairness allowed, λ", ylabel=field.replace("_", " "), title=f"{judgement}, {evaluated_on}")
            axis.grid(alpha=0.3)
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _worst_gap(points: list[dict[str, Any]]) -> str:
    """Return sentences on the largest gap between FAST_OMP's log-likelihood and the optimum, mean and best over seeds."""
    reached = _by([point for point in points if point["evaluated_on"] == compas.IN_SAMPLE], "judgement", "limit", "algorithm")
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


if __name__ == "__main__":
    raise SystemExit(main())
