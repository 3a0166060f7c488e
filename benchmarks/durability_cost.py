"""What durability costs: the same selections with and without ``--run``, interleaved in one process, on an mmap store.

The bar is a ratio of at most 1.02 on an SSD store. Registration, one ``persist`` per round, the result and the removal of the
state are all in the durable time. On a busy machine the ratio of two runs is mostly noise, so the time that the run itself waits
for durability is measured too, by a clock around each of those steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import fastomp_nvm as fo
from benchmarks.crash import private_folder
from benchmarks.machine import fingerprint
from fastomp_nvm import durable_runs, run_directory
from fastomp_nvm.checkpoint import StateLog
from fastomp_nvm.journal import DecisionJournal
from fastomp_nvm.synthetic import PaperDesign

__all__ = ["main", "measure"]

REQUESTS: dict[str, dict[str, Any]] = {"fast_omp": {"k": 50}, "sds_omp": {"k": 20, "algorithm": "sds_omp"}}


@contextmanager
def clocked() -> Iterator[Callable[[], float]]:
    """Time the steps that only a durable run takes; yields what tells the seconds so far."""
    steps: tuple[tuple[Any, str], ...] = (
        (run_directory, "write_durably"),
        (durable_runs, "_open_log"),
        (durable_runs, "target_digest"),
        (durable_runs, "numeric_build"),
        (DecisionJournal, "commit"),
        (DecisionJournal, "close"),
        (StateLog, "drop"),
    )
    spent = 0.0

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal spent
            started = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                spent += time.perf_counter() - started

        return call

    with ExitStack() as stack:
        for owner, name in steps:
            stack.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name))))
        yield lambda: spent


def measure(url: str, request: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Return medians and their ratio; pairs are timed in turn, the order changing, so that a noisy minute hits both."""
    seconds: dict[str, list[float]] = {"plain": [], "durable": []}
    shares: list[float] = []
    fo.select(url, **request)
    for repeat in range(repeats):
        for kind in ("plain", "durable") if repeat % 2 else ("durable", "plain"):
            name = f"cost-{repeat}"
            with clocked() as spent:
                started = time.perf_counter()
                fo.select(url, **request, **({"run": name} if kind == "durable" else {}))
                seconds[kind].append(time.perf_counter() - started)
            if kind == "durable":
                shares.append(spent() / seconds[kind][-1])
                rounds = fo.runs()[0].rounds
                durable_runs.forget(name)
    ratios = [durable / plain for durable, plain in zip(seconds["durable"], seconds["plain"], strict=True)]
    plain, durable = median(seconds["plain"]), median(seconds["durable"])
    best = min(seconds["durable"]) / min(seconds["plain"])
    return {
        "plain": plain,
        "durable": durable,
        "ratio": median(ratios),
        "ratio_best": best,
        "share": median(shares),
        "rounds": rounds,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="durability_cost", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to build the store (default: the temporary directory)")
    parser.add_argument("--features", type=int, default=50_000)
    parser.add_argument("--observations", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a small store, three repeats")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(words)
    features, observations, repeats = arguments.features, arguments.observations, arguments.repeats
    if arguments.quick:
        features, observations, repeats = 10_000, 500, 3
    with private_folder(), tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        url = f"mmap://{folder}/store"
        design = PaperDesign(observations, features, seed=0)
        fo.create_store(url, design.matrix(), design.response(), rows="features").close()
        with fo.open_store(url) as store:
            medium = store.traits.detail
        found = {name: measure(url, request, repeats) for name, request in REQUESTS.items()}
    if arguments.json:
        print(json.dumps({"machine": fingerprint(), "medium": medium, "features": features, "observations": observations, **found}))
        return 0
    print(f"{features:,} features x {observations:,} observations, {medium}, {datetime.now(UTC):%Y-%m-%d}")
    for name, figures in found.items():
        print(
            f"{name:9} {figures['rounds']:3} rounds  plain {figures['plain']:.3f} s  durable {figures['durable']:.3f} s  "
            f"ratio {figures['ratio']:.3f} (median of pairs), {figures['ratio_best']:.3f} (best), "
            f"waited for durability {100 * figures['share']:.2f} % of the time"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
