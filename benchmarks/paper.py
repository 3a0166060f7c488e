"""The paper's experiments: run time over k, score over a time budget and score over k, and COMPAS over lambda.

``fastomp bench paper`` measures every contestant of ``paper.toml`` over several seeds and writes ``paper.jsonl`` (a line per run),
the figures as PNG and one HTML page beside them. The data are the paper's where they can be had. Its synthetic designs are
generated. For gene expression give the Pan-Cancer CSV with ``--genes``; otherwise a public leukaemia set is used when
``FASTOMP_TEST_DATA`` names its folder, and a synthetic matrix of the same shape, labelled so, when not. COMPAS needs that folder
too and is skipped without it.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fastomp_nvm as fo
from benchmarks import compas
from benchmarks.harness.machine import fingerprint
from benchmarks.paper_report import write_report
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.constraints import RandomSystem
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.engine.engine import Progress
from fastomp_nvm.errors import RequestError

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One row of figures: data, response, and how it is asked about."""

    name: str
    plan: dict[str, Any]
    label: str
    data: Dataset
    response: np.ndarray


def main(argv: list[str] | None = None) -> int:
    """Measure, write, say where."""
    parser = argparse.ArgumentParser(prog="fastomp bench paper", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and seeds: about three minutes")
    parser.add_argument("--out", type=Path, default=Path("bench-out/paper"), help="folder of the results (default bench-out/paper)")
    parser.add_argument(
        "--scale", type=float, help="divide the large set's 1000000 features by this, its 10000 observations by the root"
    )
    parser.add_argument("--seeds", type=int, help="runs per point (default 10, COMPAS 20; 3 with --quick)")
    parser.add_argument("--genes", type=Path, help="the Pan-Cancer data.csv; its labels.csv stands beside it")
    parser.add_argument("--only", choices=("small", "large", "genes", "compas"), help="one experiment alone")
    arguments = parser.parse_args(argv)
    if arguments.seeds is not None and arguments.seeds < 1:
        raise RequestError(f"--seeds is {arguments.seeds}: expected at least 1")
    if arguments.scale is not None and not arguments.scale >= 1:
        raise RequestError(f"--scale is {arguments.scale:g}: expected 1 (the paper's size) or more")
    if arguments.genes is not None and not arguments.genes.is_file():
        raise RequestError(f"there is no file {arguments.genes}: --genes takes the Pan-Cancer data.csv")
    if arguments.only == "compas" and _compas_folder() is None:
        raise RequestError("FASTOMP_TEST_DATA names no folder with compas_design.npz: set it, or leave --only compas out")
    arguments.out.mkdir(parents=True, exist_ok=True)
    plans = read_plans(arguments.quick, arguments.seeds, arguments.scale)
    rows: list[dict[str, Any]] = []
    labels: dict[str, str] = {}
    with (arguments.out / "paper.jsonl").open("w", encoding="utf-8") as lines:
        for experiment in _experiments(plans, arguments):
            labels[experiment.name] = experiment.label
            for row in measure(experiment, plans["contestants"]):
                rows.append(row)
                lines.write(json.dumps({"machine": fingerprint(), **row}) + "\n")
                lines.flush()
            print(f"{experiment.name}: {experiment.label}: done", flush=True)
        fairness = _compas(arguments)
        for row in fairness:
            lines.write(json.dumps({"machine": fingerprint(), "experiment": "compas", **row}) + "\n")
    page = write_report(arguments.out, rows, fairness, plans, labels, fingerprint())
    print(f"wrote {page}")
    return 0


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


def _experiments(plans: dict[str, Any], arguments: argparse.Namespace) -> Iterator[Experiment]:
    """Make the data of each experiment when its turn comes, so that only one is in memory."""
    if arguments.only in (None, "small"):
        n_obs, n_features = plans["small"]["shape"]
        yield _synthetic("small", plans["small"], n_obs, n_features, "the paper's size")
    if arguments.only in (None, "large"):
        plan = plans["large"]
        n_obs, n_features = int(plan["shape"][0] / math.sqrt(plan["scale"])), int(plan["shape"][1] / plan["scale"])
        if min(n_obs, n_features) <= max(plan["k"]):
            raise RequestError(f"--scale {plan['scale']:g} leaves {n_obs} x {n_features}, too small for k = {max(plan['k'])}")
        share = "the paper's size" if plan["scale"] == 1 else f"the paper's large set scaled down by {plan['scale']:g}"
        yield _synthetic("large", plan, n_obs, n_features, share)
    if arguments.only in (None, "genes"):
        X, y, label = _genes(arguments.genes)
        yield Experiment("genes", plans["genes"], f"{label}, {X.shape[0]} x {X.shape[1]}", Dataset.of_array(X), y)


def _synthetic(name: str, plan: dict[str, Any], n_obs: int, n_features: int, label: str) -> Experiment:
    """Return a synthetic experiment."""
    design = PaperDesign(n_obs, n_features)
    return Experiment(name, plan, f"{label}, {n_obs} x {n_features}", Dataset.of_array(design.matrix().T), design.response())


def _genes(path: Path | None) -> tuple[np.ndarray, np.ndarray, str]:
    """Return gene expression (n_obs, n_genes), a 0/1 response, and what the data are."""
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


def _compas(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the curve of accuracy and outcome fairness over lambda, or nothing without the data."""
    folder = _compas_folder()
    if arguments.only not in (None, "compas") or folder is None:
        return []
    points = compas.curve(folder, seeds=arguments.seeds or (3 if arguments.quick else compas.SEEDS))
    print("compas: done", flush=True)
    return [asdict(point) for point in points]


def _compas_folder() -> Path | None:
    """Return the folder of the COMPAS data, if there is one."""
    folder = os.environ.get("FASTOMP_TEST_DATA")
    return Path(folder) if folder and (Path(folder) / "compas_design.npz").exists() else None


if __name__ == "__main__":
    raise SystemExit(main())
