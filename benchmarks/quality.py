"""How good the sets are: R^2 of fast, verified and best against full greedy, other packages and the optimum.

Hard designs under several constraints, over several seeds. Other packages know no constraint but k; their largest set of at most k
features is refitted by least squares, as all sets are, on the observations that selected it and on as many held out. Packages that
are not installed are listed as skipped. Small problems are compared with the optimum, found by enumeration.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import fastomp_nvm as fo
from benchmarks.harness.report import Report, argument_parser
from benchmarks.peers import CONTESTANTS
from fastomp_nvm.constraints import Bounds, Cardinality, Constraint, Fairness, Intersection, Knapsack, Partition
from fastomp_nvm.engine.dataset import Dataset

__all__ = ["main"]

Array = npt.NDArray[Any]

#: Packages compared with.
PEERS = ("scikit-learn OMP, float64 Fortran", "skglm MCP path", "abess", "adelie lasso path")

#: What a set of ``fast`` may lack of full greedy, and in which share of the seeds of every cell at most so much.
LACKING, SEEDS_WITHIN = 0.002, 0.95

#: Features, features selected and observations of the problems that are enumerated.
ENUMERATED = (13, 5, 40)


def _mixed(X: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the columns and a response of a twentieth of them, with noise."""
    true = rng.choice(X.shape[1], max(X.shape[1] // 20, 8), replace=False)
    signal = X[:, true] @ rng.standard_normal(len(true))
    return X, signal + 0.3 * signal.std() * rng.standard_normal(len(X))


def _ar(rng: np.random.Generator, n_obs: int, n: int) -> tuple[Array, Array]:
    X = rng.standard_normal((n_obs, n))
    for column in range(1, n):
        X[:, column] = 0.95 * X[:, column - 1] + np.sqrt(1 - 0.95**2) * X[:, column]
    return _mixed(X, rng)


def _latent(rng: np.random.Generator, n_obs: int, n: int) -> tuple[Array, Array]:
    factors = rng.standard_normal((n_obs, 20))
    X = rng.standard_normal((n_obs, n)) + 0.5 * factors @ (rng.standard_normal((20, n)) * (rng.random(n) < 0.1))
    return X, factors @ rng.standard_normal(20) + 0.4 * rng.standard_normal(n_obs)


def _suppressors(rng: np.random.Generator, n_obs: int, n: int) -> tuple[Array, Array]:
    X = rng.standard_normal((n_obs, n))
    pairs = rng.permutation(n)[:20].reshape(10, 2)
    X[:, pairs[:, 0]] = X[:, pairs[:, 1]] + 0.2 * rng.standard_normal((n_obs, 10))  # only the small difference matters
    return X, (X[:, pairs[:, 0]] - X[:, pairs[:, 1]]).sum(axis=1) / 0.2 + rng.standard_normal(n_obs)


def _near_duplicates(rng: np.random.Generator, n_obs: int, n: int) -> tuple[Array, Array]:
    X, y = _mixed(rng.standard_normal((n_obs, n)), rng)
    X[:, n // 2 :] = X[:, : n - n // 2] + 1e-3 * rng.standard_normal((n_obs, n - n // 2))
    return X, y


#: Designs by name: observations and features, and a response.
DESIGNS: dict[str, Callable[[np.random.Generator, int, int], tuple[Array, Array]]] = {
    "independent": lambda rng, n_obs, n: _mixed(rng.standard_normal((n_obs, n)), rng),
    "AR .95": _ar,
    "blocks .9": lambda rng, n_obs, n: _mixed(
        3 * np.repeat(rng.standard_normal((n_obs, -(-n // 10))), 10, axis=1)[:, :n] + rng.standard_normal((n_obs, n)), rng
    ),
    "equicorrelated .5": lambda rng, n_obs, n: _mixed(rng.standard_normal((n_obs, n)) + rng.standard_normal((n_obs, 1)), rng),
    "equicorrelated .99": lambda rng, n_obs, n: _mixed(rng.standard_normal((n_obs, n)) + 10 * rng.standard_normal((n_obs, 1)), rng),
    "latent factors": _latent,
    "suppressors": _suppressors,
    "near-duplicates": _near_duplicates,
    "heavy tails": lambda rng, n_obs, n: _mixed(rng.standard_t(3, (n_obs, n)), rng),
}


def constraints(rng: np.random.Generator, n: int, k: int) -> dict[str, Constraint]:
    """Return a constraint of each family over ``n`` features, all of at most ``k``."""
    size, costs = Cardinality(n, k), rng.uniform(0.2, 2.0, n)
    groups = rng.integers(0, 4, n)
    parts = [Partition(n, rng.integers(0, k, n), [1] * k) for _ in range(2)]
    fair = rng.random((25, n)) < 1 - 0.3 / k
    return {
        "k alone": size,
        "partition": Intersection([size, parts[0]]),
        "two partitions": Intersection([size, *parts]),
        "knapsack": Intersection([size, Knapsack(n, costs, 0.6 * k)]),
        "fairness": Intersection([size, Fairness(n, fair, 0.3)]),
        "bounds": Bounds(n, groups, [k // 8] * 4, [k // 2] * 4, k),
    }


def refitted(X: Array, y: Array, features: Sequence[int], test: tuple[Array, Array]) -> tuple[float, float]:
    """Return R^2 of the least-squares fit of ``features``, on the same observations and on others."""
    mean, shift = X[:, features].mean(axis=0), y.mean()
    coef = np.linalg.lstsq(X[:, features] - mean, y - shift, rcond=None)[0]

    def score(columns: Array, response: Array) -> float:
        rest = response - shift - (columns[:, features] - mean) @ coef
        return 1.0 - float(rest @ rest) / float(((response - response.mean()) ** 2).sum())

    return score(X, y), score(*test)


def compared(design: str, seed: int, n_obs: int, n: int, k: int, names: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Yield, per constraint, scores, passes and vectors of the qualities, and the scores of greedy and of other packages."""
    rng = np.random.default_rng((seed, len(design)))
    both, response = DESIGNS[design](rng, 2 * n_obs, n)
    X, y, test = both[:n_obs], response[:n_obs], (both[n_obs:], response[n_obs:])
    data = Dataset.of_array(X)
    for name, constraint in constraints(rng, n, k).items():
        if names is not None and name not in names:
            continue
        request: dict[str, Any] = {"constraint": constraint, "objective": "linear"}
        row: dict[str, Any] = {"design": design, "constraint": name, "seed": seed}
        for algorithm in ("sds_omp", "sds_ma"):
            row[algorithm] = refitted(X, y, fo.select(data, y, algorithm=algorithm, **request).indices.tolist(), test)
        for quality in ("fast", "verified", "best"):
            found = fo.select(data, y, quality=quality, **request)  # type: ignore[misc]
            row[quality] = refitted(X, y, found.indices.tolist(), test)
            row[f"{quality} cost"] = (found.full_passes, found.vectors, found.seconds, found.guarantee)
        row["peers"] = {}
        for peer in CONTESTANTS if name == "k alone" else ():
            if peer.name in PEERS and importlib.util.find_spec(peer.module) is not None:
                row["peers"][peer.name] = refitted(X, y, np.asarray(peer.prepare(X, y, k)()).tolist(), test)
        yield row


def enumerated(family: str, instances: int) -> list[float]:
    """Return, per random problem of few features, R^2 of ``best`` over that of the optimum."""
    n, k, n_obs = ENUMERATED
    ratios = []
    for seed in range(instances):
        rng = np.random.default_rng((seed, 5))
        X = rng.standard_normal((n_obs, n)) + rng.choice([0, 1, 3]) * rng.standard_normal((n_obs, 1))
        y = X @ rng.standard_normal(n) + 2 * rng.standard_normal(n_obs)
        constraint = constraints(rng, n, k)[family]
        columns, response = X - X.mean(axis=0), y - y.mean()
        gram, moves, total = columns.T @ columns, columns.T @ response, float(response @ response)
        sets = (np.array(S) for size in range(1, k + 1) for S in itertools.combinations(range(n), size))
        feasible = (S for S in sets if constraint.independent(S))
        optimum = max(float(moves[S] @ np.linalg.solve(gram[np.ix_(S, S)], moves[S])) for S in feasible) / total
        ratios.append(fo.select(X, y, constraint=constraint, quality="best", objective="linear").score / optimum)
    return ratios


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("quality", __doc__)
    parser.add_argument("--observations", type=int, help="default 300, with --quick 80")
    parser.add_argument("--features", type=int, help="default 3000, with --quick 300")
    parser.add_argument("--k", type=int, help="default 24, with --quick 8")
    parser.add_argument("--seeds", type=int, help="default 20, with --quick 1")
    parser.add_argument("--instances", type=int, help="problems enumerated per family; default 400, with --quick 3")
    parser.add_argument("--design", action="append", choices=tuple(DESIGNS), help="only this design; may be repeated")
    parser.add_argument("--constraint", action="append", help="only this constraint; may be repeated")
    options = parser.parse_args(argv)
    report = Report(options, argv)
    defaults = (80, 300, 8, 1, 3) if options.quick else (300, 3000, 24, 20, 400)
    given = (options.observations, options.features, options.k, options.seeds, options.instances)
    n_obs, n, k, seeds, instances = (default if value is None else value for value, default in zip(given, defaults, strict=True))
    names = options.constraint or (["k alone", "knapsack"] if options.quick else None)
    designs = options.design or (["AR .95", "suppressors"] if options.quick else list(DESIGNS))
    rows = []
    for design in designs:
        for seed in range(seeds):
            for row in compared(design, seed, n_obs, n, k, names):
                rows.append(row)
                report.measured(row)
        report.progress(f"{design}: {seeds} seeds")
    _judge(report, rows, f"{n_obs} x {n}, k = {k}, {seeds} seeds")
    missing = [peer.name for peer in CONTESTANTS if peer.name in PEERS and importlib.util.find_spec(peer.module) is None]
    if missing:
        report.say(f"Not installed, skipped: {', '.join(missing)}.")
    families = names or ["k alone", "partition", "two partitions", "knapsack", "fairness"]
    found = {family: np.array(enumerated(family, instances)) for family in families}
    optimal = [(family, np.mean(ratios > 1 - 1e-9), ratios.min()) for family, ratios in found.items()]
    report.table("best against enumeration, {} features, k = {}".format(*ENUMERATED), ("constraint", "optimal", "worst"), optimal)
    report.bar("share of optimal sets, worst family", min(share for _, share, _ in optimal), 0.95)
    report.bar("R^2 of best over the optimum's, worst problem", min(worst for _, _, worst in optimal), 0.95)
    return report.finish()


def _judge(report: Report, rows: Sequence[dict[str, Any]], title: str) -> None:
    """Add the table of cells and the bars that compare R^2."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["design"], row["constraint"]), []).append(row)
    shown, within = [], []
    for (design, constraint), mine in cells.items():
        greedy = np.array([max(row["sds_omp"][0], row["sds_ma"][0]) for row in mine])
        fast, verified, best = (np.array([row[quality][0] for row in mine]) for quality in ("fast", "verified", "best"))
        peers = [max((score for score, _ in row["peers"].values()), default=np.nan) for row in mine]
        within.append(float(np.mean(fast >= greedy - LACKING)))
        passes = [max(row[f"{quality} cost"][0] for row in mine) for quality in ("fast", "verified", "best")]
        held = [float(np.mean([row[quality][1] for row in mine])) for quality in ("fast", "verified", "best")]
        scores = (float(np.mean(each)) for each in (greedy, fast, verified, best, peers))
        shown.append((design, constraint, *scores, within[-1], *held, *passes))
    heads = ("design", "constraint", "greedy", "fast", "verified", "best", "best peer", "fast within .002")
    report.table(
        f"mean R^2, {title}",
        (*heads, *(f"{q} held out" for q in ("fast", "verified", "best")), *(f"{q} passes" for q in ("fast", "verified", "best"))),
        shown,
    )
    report.bar("share of seeds in which fast is within .002 of full greedy, worst cell", min(within), SEEDS_WITHIN)
    below = max(max(row["sds_omp"][0], row["sds_ma"][0]) - row["verified"][0] for row in rows)
    report.bar("R^2 by which verified is below full greedy, largest", below, 1e-9, at_most=True)
    beaten = [max(score for score, _ in row["peers"].values()) - row["best"][0] for row in rows if row["peers"]]
    if beaten:
        report.bar(
            "share of problems in which a peer beats best by 1e-6", float(np.mean(np.array(beaten) > 1e-6)), 0.01, at_most=True
        )
        report.bar("R^2 by which a peer beats best, largest", max(beaten), LACKING, at_most=True)
    report.bar("passes of verified, most", max(row["verified cost"][0] for row in rows), 12.0, at_most=True)
    report.bar("passes of best, most", max(row["best cost"][0] for row in rows), 25.0, at_most=True)
    unproven = [
        f"{row['design']}, {row['constraint']}, seed {row['seed']}" for row in rows if row["best cost"][3] != "swap-optimal"
    ]
    if unproven:
        report.say(f"Not proven swap-optimal: {'; '.join(unproven)}.")


if __name__ == "__main__":
    raise SystemExit(main())
