"""The share of a run that the constraint takes: 10^5 features, k = 300, a partition into 1000 groups.

Time inside the methods of the constraint that the algorithm calls, and inside the drawing of sequences. The bar is a tenth of a run
with default settings; the run without polish, which is shorter, is shown beside it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import fastomp_nvm as fo
from benchmarks.harness.report import Report, argument_parser, at_least
from benchmarks.harness.timing import stopwatch
from fastomp_nvm.algorithms.draws import RandomSequence
from fastomp_nvm.constraints import Cardinality, Partition
from fastomp_nvm.constraints.extendable import intersect
from fastomp_nvm.engine.dataset import Dataset

__all__ = ["main"]

#: Largest share of a run that handling the constraint may take.
BAR = 0.10

#: Methods of a constraint that FAST_OMP calls.
METHODS = ("extensions", "blocking", "longest_prefix", "independent", "independent_many")


def measure(n_features: int, n_obs: int, k: int, groups: int, polish: str, repeats: int) -> tuple[float, float, dict[str, float]]:
    """Return the share, the seconds of the run and the seconds of each part, of the run with the median share."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_features, n_obs), dtype=np.float32).T
    y = X[:, :: n_features // 400] @ rng.normal(size=len(range(0, n_features, n_features // 400))) + rng.normal(size=n_obs)
    dataset = Dataset.of_array(X)
    partition = Partition(n_features, rng.integers(0, groups, n_features), np.ones(groups, dtype=np.int64))
    request: dict[str, Any] = {"k": k, "constraint": partition}
    fo.select(dataset, y, **request, polish="none")  # first use: the kernel is loaded
    asked = type(intersect([Cardinality(n_features, k), partition]))  # the family that a run asks
    watched: dict[str, list[tuple[Any, str]]] = {method: [(asked, method)] for method in METHODS}
    watched["random sequences"] = [(RandomSequence, "reach")]
    found = []
    for seed in range(repeats):
        with stopwatch(watched) as spent:
            started = time.perf_counter()
            fo.select(dataset, y, **request, seed=seed, polish=polish)
            seconds = time.perf_counter() - started
        found.append((sum(spent.values()) / seconds, seconds, spent))
    return sorted(found, key=lambda run: run[0])[len(found) // 2]


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("constraint-share", __doc__)
    parser.add_argument("--features", type=int, default=100_000)
    parser.add_argument("--observations", type=int, default=500)
    parser.add_argument("--k", type=int, default=300)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(argv)
    if options.quick:
        options.features, options.observations, options.k, options.groups, options.repeats = 4000, 200, 20, 50, 1
    at_least("--features", options.features, 400)
    report = Report(options, argv)
    rows = []
    for polish in ("pool", "none"):
        share, seconds, parts = measure(options.features, options.observations, options.k, options.groups, polish, options.repeats)
        rows.append((polish, seconds, share, *(part / seconds for part in parts.values())))
        if polish == "pool":
            report.figures(seconds=seconds, parts=parts)
            report.bar("constraint handling as a share of a run", share, BAR, at_most=True)
    title = f"shares of a run, {options.observations} x {options.features}, k = {options.k}, {options.groups} groups"
    report.table(title, ("polish", "seconds", "share", *parts), rows)
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
