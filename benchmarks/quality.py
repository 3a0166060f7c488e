"""How good the sets are: R^2 of fast, verified and best against full greedy, other packages and the optimum.

Hard designs under several constraints, over several seeds. Other packages know no constraint but k: their set of k features, on a
path the k largest coefficients where it first has as many, is refitted by least squares, as all sets are, on the observations that
selected it and on as many held out. None of their sets is a start of ours. Packages and data that are missing are listed as
skipped. Passes and vectors of ``verified`` are counted at k = 100, and small problems are compared with the optimum, found by
enumeration. ``--only``, ``--design`` and ``--constraint`` run a part, which ``--record`` writes into a section of its own.

Seeds begin at 1000: smaller ones served to develop the algorithms.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import fastomp_nvm as fo
from benchmarks.harness.designs import DESIGNS, REAL, drawn
from benchmarks.harness.report import Report, argument_parser, at_least
from benchmarks.peers import CONTESTANTS
from fastomp_nvm.constraints import Bounds, Cardinality, Constraint, Fairness, Intersection, Knapsack, Partition
from fastomp_nvm.engine.dataset import Dataset
from fastomp_nvm.errors import RequestError

__all__ = ["main"]

#: Parts of the benchmark.
PARTS = ("designs", "passes", "optimum")

#: Packages compared with.
PEERS = [
    peer
    for peer in CONTESTANTS
    if peer.name in ("scikit-learn OMP, float64 Fortran", "skglm MCP path", "abess", "adelie lasso path")
]

GREEDY, QUALITIES = ("sds_omp", "sds_ma"), ("fast", "verified", "best")

#: R^2 that a set of ``fast`` may lack of full greedy, and the share of the seeds of every cell in which it lacks at most so much.
LACKING, SEEDS_WITHIN = 0.002, 0.95

#: R^2 by which a peer's set may be better than that of ``best`` in all problems but one of a hundred; ``LACKING`` in all.
BEATEN = 1e-6

#: Observations, features and k of the problems whose passes are counted, their bars, and the designs without a bar.
COUNTED, MOST_PASSES, MOST_VECTORS, MOST_TIME = (1000, 5000, 100), 12.0, 250.0, 1.3
ADVERSARIAL = ("equicorrelated .99", "suppressors", "near-duplicates")

#: R^2 over the optimum's from which a set counts as optimal.
OPTIMAL = 1 - 1e-9

#: Features, features selected, observations and constraints of the problems that are enumerated.
ENUMERATED = (13, 5, 40)
FAMILIES = ("k alone", "partition", "two partitions", "knapsack", "fairness")


def constraints(rng: np.random.Generator, n: int, k: int) -> dict[str, Constraint]:
    """Return a constraint of each family over ``n`` features, all of at most ``k``."""
    size, costs = Cardinality(n, k), rng.uniform(0.2, 2.0, n)
    groups = rng.integers(0, 4, n)
    parts = [Partition(n, rng.integers(0, k, n), [1] * k) for _ in range(2)]
    fair = rng.random((25, n)) < 1 - 0.3 / k
    bounds, knapsack = Bounds(n, groups, [k // 8] * 4, [k // 2] * 4, k), Knapsack(n, costs, 0.6 * k)
    return {
        "k alone": size,
        "partition": Intersection([size, parts[0]]),
        "two partitions": Intersection([size, *parts]),
        "knapsack": Intersection([size, knapsack]),
        "fairness": Intersection([size, Fairness(n, fair, 0.3)]),
        "bounds": bounds,
        "bounds and knapsack": Intersection([bounds, knapsack]),
    }


def refitted(X: np.ndarray, y: np.ndarray, test: tuple[np.ndarray, np.ndarray], features: Sequence[int]) -> tuple[float, float]:
    """Return R^2 of the least-squares fit of ``features``, on the same observations and on others."""
    columns = X[:, features].astype(np.float64)
    mean, shift = columns.mean(axis=0), y.mean()
    coef = np.linalg.lstsq(columns - mean, y - shift, rcond=None)[0]

    def score(others: np.ndarray, response: np.ndarray) -> float:
        rest = response - shift - (others[:, features] - mean) @ coef
        return 1.0 - float(rest @ rest) / float(((response - response.mean()) ** 2).sum())

    return score(X, y), score(*test)


def compared(task: tuple[str, int], sizes: tuple[int, int, int], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return, per constraint, the scores of all contestants on a design drawn with a seed, and the cost of the qualities."""
    found = drawn(*task, *sizes)
    if found is None:
        return []
    (X, y, test, k), rows = found, []
    data, score = Dataset.of_array(X), partial(refitted, X, y, test)
    columns = (X - X.mean(axis=0, dtype=np.float64)) / X.std(axis=0, dtype=np.float64)  # not all packages standardise them
    families = constraints(np.random.default_rng((task[1], k)), X.shape[1], k)
    for name in names:
        request: dict[str, Any] = {"constraint": families[name], "objective": "linear"}
        scores = {
            algorithm: score(fo.select(data, y, algorithm=algorithm, plain=True, **request).indices.tolist())
            for algorithm in GREEDY
        }
        cost = {}
        for quality in QUALITIES:
            selection = fo.select(data, y, quality=quality, **request)  # type: ignore[arg-type]
            scores[quality] = score(selection.indices.tolist())
            cost[quality] = (selection.full_passes, selection.vectors, selection.seconds, selection.guarantee)
        peers = {}
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            logging.getLogger().setLevel(logging.CRITICAL)  # a path that ends at k features is an error to adelie
            for peer in PEERS if name == "k alone" else ():
                if importlib.util.find_spec(peer.module) is not None:
                    peers[peer.name] = score(np.asarray(peer.prepare(columns, y, k)()).tolist())
        rows.append({"design": task[0], "constraint": name, "seed": task[1], "scores": scores, "peers": peers, "cost": cost})
    return rows


def counted(design: str, seed: int) -> dict[str, Any]:
    """Return passes and vectors of ``verified`` at a large k, and its time over that of both plain greedies."""
    found = drawn(design, seed, *COUNTED)
    assert found is not None, "random designs need no data"
    data, request = Dataset.of_array(found.X), {"k": found.k, "objective": "linear"}
    verified = fo.select(data, found.y, quality="verified", **request)  # type: ignore[arg-type]
    plain = [fo.select(data, found.y, algorithm=algorithm, plain=True, **request).seconds for algorithm in GREEDY]  # type: ignore[arg-type]
    fast = fo.select(data, found.y, **request)  # type: ignore[arg-type]
    return {
        "design": design,
        "passes": verified.full_passes,
        "of them fast's": fast.full_passes,
        "vectors": verified.vectors,
        "s": verified.seconds,
        "s of plain SDS_OMP": plain[0],
        "s of plain SDS_MA": plain[1],
    }


def enumerated(task: tuple[str, int]) -> float:
    """Return R^2 of ``best`` over that of the optimum, on a random problem of few features."""
    (family, seed), (n, k, n_obs) = task, ENUMERATED
    rng = np.random.default_rng((seed, 5))
    X = rng.standard_normal((n_obs, n)) + rng.choice([0, 1, 3]) * rng.standard_normal((n_obs, 1))
    y = X @ rng.standard_normal(n) + 2 * rng.standard_normal(n_obs)
    constraint = constraints(rng, n, k)[family]
    columns, response = X - X.mean(axis=0), y - y.mean()
    gram, moves, optimum = columns.T @ columns, columns.T @ response, 0.0
    for size in range(1, k + 1):
        sets = np.array(list(itertools.combinations(range(n), size)))
        coef = np.linalg.solve(gram[sets[:, :, None], sets[:, None, :]], moves[sets][:, :, None])[:, :, 0]
        values = (coef * moves[sets]).sum(axis=1)
        best_first = np.argsort(-values, kind="stable")
        place = next((place for place in best_first.tolist() if constraint.independent(sets[place])), None)
        optimum = optimum if place is None else max(optimum, float(values[place]))
    found = fo.select(X, y, constraint=constraint, quality="best", objective="linear")
    return found.score * float(response @ response) / optimum


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("quality", __doc__)
    parser.add_argument("--only", choices=PARTS, help="one part alone: the designs, passes at k = 100, or the enumerated problems")
    parser.add_argument("--design", action="append", choices=tuple(DESIGNS), help="only this design; may be repeated")
    parser.add_argument("--constraint", action="append", help="only this constraint; may be repeated")
    parser.add_argument("--observations", type=int, help="default 200, with --quick 80")
    parser.add_argument("--features", type=int, help="default 2000, with --quick 300")
    parser.add_argument("--k", type=int, help="default 16, with --quick 8")
    parser.add_argument("--seeds", type=int, help="default 20, with --quick 1")
    parser.add_argument("--first-seed", type=int, default=1000, help="default 1000; smaller ones served to develop the algorithms")
    parser.add_argument("--instances", type=int, help="problems enumerated per family; default 400, with --quick 3")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; default: one per processor")
    options = parser.parse_args(argv)
    defaults = (80, 300, 8, 1, 3) if options.quick else (200, 2000, 16, 20, 400)
    given = (options.observations, options.features, options.k, options.seeds, options.instances)
    n_obs, n, k, seeds, instances = (default if value is None else value for value, default in zip(given, defaults, strict=True))
    for option, value in (("seeds", seeds), ("instances", instances), ("jobs", options.jobs)):
        at_least(f"--{option}", value, 1)
    known = tuple(constraints(np.random.default_rng(0), 100, 8))
    names = options.constraint or (("k alone", "knapsack") if options.quick else known)
    if unknown := set(names) - set(known):
        raise RequestError(f"--constraint is {min(unknown)!r}: expected one of {', '.join(known)}")
    designs = options.design or (["AR .95", "suppressors"] if options.quick else list(DESIGNS))
    report = Report(options, argv)
    if part := ", ".join(filter(None, (options.only, *(options.design or ()), *(options.constraint or ())))):
        report.part(part)
    numbers = range(options.first_seed, options.first_seed + seeds)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        spread = map if options.jobs == 1 else pool.map
        if options.only in (None, "designs"):
            rows = []
            for found in spread(partial(compared, sizes=(n_obs, n, k), names=names), itertools.product(designs, numbers)):
                rows += found
                for row in found:
                    report.measured(row)
            _judge(report, rows, designs, f"{n_obs} x {n}, k = {k}, seeds {numbers[0]} to {numbers[-1]}")
        if options.only in (None, "optimum"):
            families = [name for name in names if name in FAMILIES]
            ratios = np.empty((len(families), instances))
            for place, family in enumerate(families):
                ratios[place] = list(spread(enumerated, [(family, options.first_seed + seed) for seed in range(instances)]))
                report.progress(
                    f"{family}: {np.count_nonzero(ratios[place] > OPTIMAL)} of {instances} optimal, worst {ratios[place].min():.4f}"
                )
            _judge_optima(report, families, ratios)
    if options.only in (None, "passes") and not options.quick:
        _count(report, [design for design in designs if design not in REAL], options.first_seed)
    return report.finish()


def _judge(report: Report, rows: Sequence[dict[str, Any]], designs: Sequence[str], title: str) -> None:
    """Add the tables of cells, the bars that compare R^2, and every exception."""
    shown, held, within = [], [], list[float]()
    greedy = [max(row["scores"][name][0] for name in GREEDY) for row in rows]
    peers = [max((score for score, _ in row["peers"].values()), default=np.nan) for row in rows]
    cells: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows):
        cells.setdefault((row["design"], row["constraint"]), []).append(place)
    for cell, places in cells.items():
        mine = [rows[place] for place in places]
        lack = [greedy[place] - rows[place]["scores"]["fast"][0] for place in places]
        within.append(float(np.mean(np.array(lack) <= LACKING)))
        means = [[float(np.mean([row["scores"][name][side] for row in mine])) for name in (*GREEDY, *QUALITIES)] for side in (0, 1)]
        outside = np.mean([max(row["peers"].values(), default=(np.nan, np.nan)) for row in mine], axis=0).tolist()
        passes = [max(row["cost"][quality][0] for row in mine) for quality in QUALITIES]
        shown.append((*cell, *means[0], outside[0], within[-1], *passes))
        held.append((*cell, *means[1], outside[1]))
    heads = ("design", "constraint", "SDS_OMP", "SDS_MA", *QUALITIES, "best peer")
    costs = [f"{quality} passes" for quality in QUALITIES]
    report.table(f"mean R^2 (passes: largest), {title}", (*heads, "fast within .002", *costs), shown)
    report.table(f"mean R^2 held out, {title}", heads, held)
    missing = [design for design in designs if design not in {row["design"] for row in rows}]
    missing += [peer.name for peer in PEERS if importlib.util.find_spec(peer.module) is None]
    if missing:
        report.say(f"Not to be had here, skipped: {', '.join(missing)}.")
    if not rows:
        return
    report.bar("share of seeds in which fast is within .002 of full greedy, worst cell", min(within), SEEDS_WITHIN)
    report.bar("cells in which fast is not", sum(share < SEEDS_WITHIN for share in within), 0, at_most=True)
    below = [lead - row["scores"]["verified"][0] for lead, row in zip(greedy, rows, strict=True)]
    report.bar("R^2 by which verified is below full greedy, largest", max(below), 1e-9, at_most=True)
    beaten = [(peer - row["scores"]["best"][0], row) for peer, row in zip(peers, rows, strict=True) if row["peers"]]
    if beaten:
        share = float(np.mean([lack > BEATEN for lack, _ in beaten]))
        report.bar("share of problems in which a peer beats best by 1e-6", share, 0.01, at_most=True)
        report.bar("R^2 by which a peer beats best, largest", max(lack for lack, _ in beaten), LACKING, at_most=True)
    for lack, row in beaten:
        if lack > BEATEN:
            name = max(row["peers"], key=lambda name: row["peers"][name][0])
            report.say(f"{name} beats best by {lack:.2g}: {row['design']}, seed {row['seed']}.")
    report.bar("passes of verified, most", max(row["cost"]["verified"][0] for row in rows), MOST_PASSES, at_most=True)
    report.bar("passes of best, most", max(row["cost"]["best"][0] for row in rows), 25.0, at_most=True)
    unproven = [f"{row['design']}, {row['constraint']}, seed {row['seed']}" for row in rows if row["cost"]["best"][3] == "greedy"]
    if unproven:
        report.say(f"Not proven swap-optimal: {'; '.join(unproven)}.")


def _judge_optima(report: Report, families: Sequence[str], ratios: np.ndarray) -> None:
    """Add the comparison with the optima of small problems: ``ratios`` (n_families, n_problems)."""
    if not families:
        return
    optimal = [float(np.mean(each > OPTIMAL)) for each in ratios]
    title = "best against enumeration: {} features, k = {}, {} observations; {} problems".format(*ENUMERATED, ratios.shape[1])
    rows = list(zip(families, optimal, ratios.min(axis=1).tolist(), strict=True))
    report.table(title, ("constraint", "optimal", "worst"), rows)
    report.bar("share of optimal sets, worst family", min(optimal), 0.95)
    report.bar("R^2 of best over the optimum's, worst problem", ratios.min(), 0.95)


def _count(report: Report, designs: Sequence[str], seed: int) -> None:
    """Add passes, vectors and time of ``verified`` at a large k."""
    if not designs:
        return
    rows = [counted(design, seed) for design in designs]
    report.records("verified at {} x {}, k = {}".format(*COUNTED), rows)
    usual = [row for row in rows if row["design"] not in ADVERSARIAL]
    if usual:
        report.bar("k = 100: passes of verified, most", max(row["passes"] for row in usual), MOST_PASSES, at_most=True)
        report.bar("k = 100: vectors of verified, most", max(row["vectors"] for row in usual), MOST_VECTORS, at_most=True)
    slowest = max(row["s"] / (row["s of plain SDS_OMP"] + row["s of plain SDS_MA"]) for row in rows)
    report.bar("k = 100: time of verified over that of both plain greedies, largest", slowest, MOST_TIME, at_most=True)


if __name__ == "__main__":
    raise SystemExit(main())
