"""How good the sets are: R^2 of fast, verified and best against full greedy, other packages and the optimum.

Hard designs under several constraints, over several seeds. Other packages know no constraint but k: the largest set of at most k
features on their path is refitted by least squares, as all sets are, on the observations that selected it and on as many held out.
None of their sets is a start of ours. Packages and data that are missing are listed as skipped. Passes and vectors of ``verified``
are counted at k = 100, its time in memory is compared with plain greedy's, and small problems are compared with the optimum, found
by enumeration. Every constraint of the designs, the passes and the optima are parts, which ``--record`` writes into sections of
their own; ``--only``, ``--design`` and ``--constraint`` run some of them. Only the passes are timed, in one process.

Seeds begin at 1000: those of 0 to 999 and 2000 to 2999 served to develop the algorithms.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import fastomp_nvm as fo
from benchmarks.harness.designs import DESIGNS, REAL, drawn
from benchmarks.harness.report import Report, argument_parser, at_least
from benchmarks.harness.timing import in_turn, paired
from benchmarks.peers import CONTESTANTS, Contestant
from fastomp_nvm.analysis.synthetic import sparse_design
from fastomp_nvm.cli.termination import terminating_cleanly
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

#: R^2 of equal sets may differ by so much.
EQUAL = 1e-9

#: Observations, features and k of the problems whose passes are counted, their bars, and the designs without a bar.
COUNTED, MOST_PASSES, MOST_VECTORS, MOST_TIME = (1000, 5000, 100), 12.0, 250.0, 1.3
ADVERSARIAL = ("equicorrelated .99", "suppressors", "near-duplicates")

#: Observations, features and k of the problem timed in memory, and how often each selection is timed.
IN_MEMORY, REPEATS = (2000, 20_000, 100), 5

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


def compared(task: tuple[str, int], sizes: tuple[int, int, int], constraint: str) -> dict[str, Any] | None:
    """Return the scores of all contestants on a design drawn with a seed, and the cost of the qualities; None without its data."""
    found = drawn(*task, *sizes)
    if found is None:
        return None
    X, y, test, k = found
    data, score = Dataset.of_array(X), partial(refitted, X, y, test)
    family = constraints(np.random.default_rng((task[1], k)), X.shape[1], k)[constraint]
    request: dict[str, Any] = {"constraint": family, "objective": "linear"}
    scores, cost = {}, {}
    for algorithm in GREEDY:
        scores[algorithm] = score(fo.select(data, y, algorithm=algorithm, plain=True, **request).indices.tolist())
    for quality in QUALITIES:
        selection = fo.select(data, y, quality=quality, **request)  # type: ignore[arg-type]
        scores[quality] = score(selection.indices.tolist())
        cost[quality] = (selection.full_passes, selection.vectors, selection.seconds, selection.guarantee)
    row = {"design": task[0], "constraint": constraint, "seed": task[1], "scores": scores, "peers": {}, "cost": cost}
    if constraint != "k alone":
        return row
    columns = (X - X.mean(axis=0, dtype=np.float64)) / X.std(axis=0, dtype=np.float64)  # not all packages standardise them
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        logging.getLogger().setLevel(logging.CRITICAL)  # a path that ends at k features is an error to adelie
        row["peers"] = {peer.name: score(np.asarray(peer.prepare(columns, y, k)()).tolist()) for peer in _installed()}
    return row


def _installed() -> list[Contestant]:
    """Return the packages that can be compared with here."""
    return [peer for peer in PEERS if importlib.util.find_spec(peer.module) is not None]


def counted(design: str, seed: int) -> dict[str, Any]:
    """Return passes and vectors of ``verified`` at a large k, its time, and that of both plain greedies."""
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
        "seconds": verified.seconds,
        "seconds of plain SDS_OMP": plain[0],
        "seconds of plain SDS_MA": plain[1],
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


@terminating_cleanly()
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
    parser.add_argument("--first-seed", type=int, default=1000, help="default 1000; others served for development")
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
    numbers = range(options.first_seed, options.first_seed + seeds)
    report = Report(options, argv)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        spread = map if options.jobs == 1 else pool.map
        for name in names if options.only in (None, "designs") else ():
            with _part(report, ", ".join((name, *(options.design or ())))):
                found = spread(partial(compared, sizes=(n_obs, n, k), constraint=name), itertools.product(designs, numbers))
                _judge(report, found, designs, seeds, f"{name}, {n_obs} x {n}, k = {k}, seeds {numbers[0]} to {numbers[-1]}")
        if options.only in (None, "optimum") and (families := [name for name in names if name in FAMILIES]):
            with _part(report, ", ".join(("optimum", *(options.constraint or ())))):
                ratios = np.empty((len(families), instances))
                for place, family in enumerate(families):
                    ratios[place] = list(spread(enumerated, [(family, options.first_seed + seed) for seed in range(instances)]))
                    optimal = np.count_nonzero(ratios[place] > OPTIMAL)
                    report.progress(f"{family}: {optimal} of {instances} optimal, worst {ratios[place].min():.4f}")
                _judge_optima(report, families, ratios)
    if options.only in (None, "passes") and not options.quick and (random := [each for each in designs if each not in REAL]):
        with _part(report, ", ".join(("passes", *(options.design or ())))):
            _count(report, random, numbers)
            _time_in_memory(report)
    return report.finish()


@contextmanager
def _part(report: Report, name: str) -> Iterator[None]:
    """Record what is reported inside as a part of its own, with the time it took."""
    started = time.monotonic()
    report.part(name)
    yield
    report.say(f"this part took {(time.monotonic() - started) / 60:.1f} minutes")


def _judge(report: Report, found: Iterator[dict[str, Any] | None], designs: Sequence[str], seeds: int, title: str) -> None:
    """Print cells as they come in, ``seeds`` of each design; add their tables, the bars that compare R^2, and every exception."""
    shown, held, rows, missing = [], [], list[dict[str, Any]](), [peer.name for peer in PEERS if peer not in _installed()]
    fit, others = 0, 1
    for design in designs:
        mine = [row for row in itertools.islice(found, seeds) if row is not None]
        if not mine:
            missing.append(design)
            continue
        rows += mine
        for row in mine:
            report.measured(row)
        close = float(np.mean([_greedy(row) - row["scores"]["fast"][fit] <= LACKING for row in mine]))
        passes = [max(row["cost"][quality][0] for row in mine) for quality in QUALITIES]
        every = [{**row["scores"], **row["peers"]} for row in mine]
        means = [[float(np.mean([scores[name][side] for scores in every])) for name in every[0]] for side in (fit, others)]
        shown.append((design, *means[fit], close, *passes))
        held.append((design, *means[others]))
        report.progress(f"{title}: {design}, R^2 of best {np.mean([row['scores']['best'][fit] for row in mine]):.4f}")
    if missing:
        report.say(f"Not to be had here, skipped: {', '.join(missing)}.")
    if not rows:
        return
    heads = ("design", *(name.upper() for name in GREEDY), *QUALITIES, *rows[0]["peers"])
    costs = ("fast within .002", *(f"{quality} passes" for quality in QUALITIES))
    report.table(f"mean R^2 (passes: largest), {title}", (*heads, *costs), shown)
    report.table(f"mean R^2 held out, {title}", heads, held)
    within = [row[-1 - len(QUALITIES)] for row in shown]
    report.bar("share of seeds in which fast is within .002 of full greedy, worst design", min(within), SEEDS_WITHIN)
    report.bar("designs in which fast is not", sum(share < SEEDS_WITHIN for share in within), 0, at_most=True)
    below = [(_greedy(row) - row["scores"]["verified"][fit], "full greedy", "verified", row) for row in rows]
    report.bar("R^2 by which verified is below full greedy, largest", max(lack for lack, *_ in below), EQUAL, at_most=True)
    beaten = [(score[fit] - row["scores"]["best"][fit], peer, "best", row) for row in rows for peer, score in row["peers"].items()]
    if beaten:
        lost = {(row["design"], row["seed"]) for lack, *_, row in beaten if lack > BEATEN}
        report.bar("share of problems in which a peer beats best by 1e-6", len(lost) / len(rows), 0.01, at_most=True)
        report.bar("R^2 by which a peer beats best, largest", max(lack for lack, *_ in beaten), LACKING, at_most=True)
    exceptions = [each for each in below if each[0] > EQUAL] + [each for each in beaten if each[0] > BEATEN]
    for lack, better, quality, row in exceptions:
        report.say(f"{better} beats {quality} by {lack:.2g}: {row['design']}, seed {row['seed']}.")
    usual = [row["cost"]["verified"][0] for row in rows if row["design"] not in ADVERSARIAL]
    if usual:
        report.bar("passes of verified, most outside the adversarial designs", max(usual), MOST_PASSES, at_most=True)
    report.bar("passes of best, most", max(row["cost"]["best"][0] for row in rows), 25.0, at_most=True)
    unproven = [f"{row['design']}, seed {row['seed']}" for row in rows if row["cost"]["best"][3] == "greedy"]
    if unproven:
        report.say(f"Not proven swap-optimal: {'; '.join(unproven)}.")


def _greedy(row: dict[str, Any]) -> float:
    """Return the larger R^2 of the full greedies."""
    return float(max(row["scores"][name][0] for name in GREEDY))


def _judge_optima(report: Report, families: Sequence[str], ratios: np.ndarray) -> None:
    """Add the comparison with the optima of small problems: ``ratios`` (n_families, n_problems)."""
    optimal = [float(np.mean(each > OPTIMAL)) for each in ratios]
    title = "best against enumeration: {} features, k = {}, {} observations; {} problems".format(*ENUMERATED, ratios.shape[1])
    rows = list(zip(families, optimal, ratios.min(axis=1).tolist(), strict=True))
    report.table(title, ("constraint", "optimal", "worst"), rows)
    report.bar("share of optimal sets, worst family", min(optimal), 0.95)
    report.bar("R^2 of best over the optimum's, worst problem", ratios.min(), 0.95)


def _count(report: Report, designs: Sequence[str], numbers: Sequence[int]) -> None:
    """Add passes, vectors and time of ``verified`` at a large k: the most passes and vectors, and medians of seconds."""
    shown, ratios = [], {}
    for design in designs:
        rows = [counted(design, seed) for seed in numbers]
        for row in rows:
            report.measured(row)
        most = {name: max(row[name] for row in rows) for name in ("passes", "of them fast's", "vectors")}
        seconds = {name: [row[name] for row in rows] for name in rows[0] if name.startswith("seconds")}
        ratios[design] = paired(seconds["seconds"], np.sum([*seconds.values()][1:], axis=0).tolist())
        typical = {name: median(taken) for name, taken in seconds.items()}
        shown.append({"design": design, **most, **typical, "over both": ratios[design]})
        report.progress(f"k = {COUNTED[2]}: {design}, {most['passes']:.3g} passes, {most['vectors']} vectors, {ratios[design]}")
    report.records("verified at {} x {}, k = {}; seeds {} to {}".format(*COUNTED, numbers[0], numbers[-1]), shown)
    report.say(
        f"Adversarial, without a bar on passes and vectors, as features nearly coincide or cancel: {', '.join(ADVERSARIAL)}."
    )
    usual = [row for row in shown if row["design"] not in ADVERSARIAL]
    for name, limit in (("passes", MOST_PASSES), ("vectors", MOST_VECTORS)) if usual else ():
        worst = max(usual, key=lambda row: float(row[name]))
        report.bar(f"k = 100: {name} of verified, most ({worst['design']})", worst[name], limit, at_most=True)
    slowest = max(ratios, key=lambda design: ratios[design].median)
    claim = f"k = 100: time of verified over that of both plain greedies, largest ({slowest})"
    report.bar(claim, ratios[slowest], MOST_TIME, at_most=True)


def _time_in_memory(report: Report) -> None:
    """Add the time of plain SDS_MA over that of the same selection in verified drafts, and over that of ``verified``."""
    n_obs, n, k = IN_MEMORY
    X, y = sparse_design(n_obs, n, 2 * k, 0.1)
    select = partial(fo.select, Dataset.of_array(X), y, k=k, objective="linear")
    contestants = {
        "plain SDS_MA": partial(select, algorithm="sds_ma", plain=True),
        "SDS_MA in verified drafts": partial(select, algorithm="sds_ma"),
        "quality verified": partial(select, quality="verified"),
    }
    seconds, found = in_turn(contestants, REPEATS, warm=1)
    times = {name: paired(seconds["plain SDS_MA"], taken) for name, taken in seconds.items()}
    rows = [(name, median(seconds[name]), times[name], each.full_passes, each.score) for name, each in found.items()]
    report.table(f"in memory, {n_obs} x {n}, k = {k}", ("selection", "median s", "times as fast", "passes", "R^2"), rows)
    for name in list(contestants)[1:]:
        report.bar(f"in memory: {name}, times as fast as plain SDS_MA", times[name], 2.0)


if __name__ == "__main__":
    raise SystemExit(main())
