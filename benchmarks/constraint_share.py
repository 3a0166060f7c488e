"""How much of a run the constraint costs: 10^5 features, k = 300, a partition into 1000 groups.

The methods of the constraint that the algorithm calls and the drawing of sequences are timed from outside; time inside both counts
once. The bar is a tenth of a run as it is by default; the run without polish, which is shorter, is shown beside it.
``python -m benchmarks.constraint_share`` prints the shares and where they went, and ends with 1 above the bar.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import fastomp_nvm as fo
from fastomp_nvm.algorithms.draws import RandomSequence
from fastomp_nvm.constraints import Cardinality, Constraint, Intersection, Partition
from fastomp_nvm.engine.dataset import Dataset

__all__ = ["main", "measure"]

#: Largest share of a run that handling the constraint may take.
BAR = 0.10

#: What FAST_OMP asks of a constraint.
METHODS = ("extensions", "blocking", "longest_prefix", "independent", "independent_many")


class Stopwatch:
    """Adds up the time spent inside wrapped functions; of nested ones the outermost counts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = False

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with its time added under ``name``."""

        def timed(*arguments: Any, **options: Any) -> Any:
            if self._inside:
                return function(*arguments, **options)
            self._inside, started = True, time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self._inside = False
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

        return timed


@contextmanager
def watched(constraint: Constraint) -> Iterator[Stopwatch]:
    """Time the constraint's methods and the drawing of sequences."""
    watch = Stopwatch()
    drawing = RandomSequence.reach
    for method in METHODS:
        setattr(constraint, method, watch.wrap(method, getattr(constraint, method)))
    RandomSequence.reach = watch.wrap("random sequences", drawing)  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        RandomSequence.reach = drawing  # type: ignore[method-assign]
        for method in METHODS:
            delattr(constraint, method)


def measure(
    n_features: int, n_obs: int, k: int, groups: int, polish: str, repetitions: int
) -> tuple[float, float, dict[str, float]]:
    """Return the share, the seconds of the run and the seconds of each part, of the run with the median share."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_features, n_obs), dtype=np.float32).T
    y = X[:, :: n_features // 400] @ rng.normal(size=len(range(0, n_features, n_features // 400))) + rng.normal(size=n_obs)
    dataset = Dataset.of_array(X)
    partition = Partition(n_features, rng.integers(0, groups, n_features), np.ones(groups, dtype=np.int64))
    limit = Intersection([Cardinality(n_features, k), partition])  # k as part of it, so that it is this very object that is asked
    fo.select(dataset, y, constraint=limit, polish="none")  # first use: the kernel is compiled or loaded
    found = []
    for seed in range(repetitions):
        with watched(limit) as watch:
            started = time.perf_counter()
            fo.select(dataset, y, constraint=limit, seed=seed, polish=polish)
            seconds = time.perf_counter() - started
        found.append((sum(watch.seconds.values()) / seconds, seconds, watch.seconds))
    return sorted(found, key=lambda run: run[0])[len(found) // 2]


def main() -> int:
    """Run the measurement from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=100_000)
    parser.add_argument("--observations", type=int, default=500)
    parser.add_argument("--k", type=int, default=300)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    shares = {}
    for polish in ("pool", "none"):
        share, seconds, parts = measure(
            options.features, options.observations, options.k, options.groups, polish, options.repetitions
        )
        shares[polish] = share
        details = ", ".join(f"{name} {part / seconds:.1%}" for name, part in sorted(parts.items(), key=lambda item: -item[1]))
        print(f"polish {polish}: constraint handling {share:.1%} of {seconds:.2f} s ({details}); the bar is {BAR:.0%}")
    return 0 if shares["pool"] < BAR else 1


if __name__ == "__main__":
    sys.exit(main())
