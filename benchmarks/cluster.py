"""The overhead of shards: the same selections from one store and from two shards of it through Ray, in turn.

The overhead of a round is the difference of the two wall times divided by the rounds that ask a question; the bar is 25 ms at two
shards, for the median over pairs. Best against best shows an idle machine. ``put`` is the time to pass one round's vectors to the
object store; small ones travel with the question instead. ``columns`` is the time to move the gathered columns of a round: a gather
of as many columns less a gather of one.

Bytes are those of the payloads, counted where they are sent and received, beside the formula:

    sent      shards x (8 n_obs x vectors + a few bytes per decision)        per round
    received  8 r x shards + 16 per survivor, or 16 per shard for an argmax  per round, and the gathered columns once

Shards offer candidates with the r scores, before the threshold is known; ``near`` counts those that turn out below it, 16 bytes
each. Both shards are on this machine: the figure contains processes, object store and merging, not a network. Exit code 1 when the
bar is missed or an answer differs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any
from unittest import mock

import numpy as np

import fastomp_nvm as fo
from benchmarks.harness.processes import private_home
from benchmarks.harness.report import Report, argument_parser
from benchmarks.harness.timing import paired
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.cluster import driver
from fastomp_nvm.cluster.driver import ShardedRows
from fastomp_nvm.stores.contract import FeatureStore
from storage_backends.build.sharding import cut

__all__ = ["main", "measure"]

#: Milliseconds per round that two shards may add, by the median of the pairs.
BAR = 25.0

REQUESTS: dict[str, dict[str, Any]] = {"fast_omp": {"k": 60}, "sds_omp": {"k": 30, "algorithm": "sds_omp", "plain": True}}


@contextmanager
def noted() -> Iterator[dict[str, int]]:
    """Count the terms of the formula from the questions, not from payloads: rounds, vectors, bytes of decisions."""
    seen = {"rounds": 0, "vectors": 0, "decided": 0, "near": 0}
    gradients = driver._ShardedGradients
    sweep, at_least, top_mean, argmax = ShardedRows.sweep, gradients.at_least, gradients.top_mean, gradients.argmax

    def swept(self: ShardedRows, sweeper: Any, vectors: Any, *rest: Any) -> Any:
        seen["rounds"] += 1
        seen["vectors"] += len(vectors.wide)
        return sweep(self, sweeper, vectors, *rest)

    def survived(self: Any, threshold: float) -> Any:
        found = at_least(self, threshold)
        seen["decided"] += 16 * len(found)
        seen["near"] += sum(len(answer.features) for answer in self._reaching.values()) - len(found)
        return found

    def meant(self: Any, count: int) -> float:
        seen["decided"] += 8 * sum(min(count, self._rows.addresses[shard].features[1]) for shard in self._asked)
        return top_mean(self, count)

    def best(self: Any) -> int:
        seen["decided"] += 16 * len(self._asked)
        return argmax(self)

    patches = {"at_least": survived, "top_mean": meant, "argmax": best}
    with mock.patch.object(ShardedRows, "sweep", swept), mock.patch.multiple(gradients, **patches):
        yield seen


def measure(store: FeatureStore, sharded: FeatureStore, request: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Time pairs in turn and count bytes."""
    fo.select(store, **request)
    with noted() as seen:
        found = fo.select(sharded, **request)
    expected = fo.select(store, **request)
    same = expected.indices.tolist() == found.indices.tolist() and all(
        np.array_equal(one, other) for one, other in zip(expected.coef, found.coef, strict=True)
    )
    wall: dict[str, list[float]] = {"one": [], "shards": []}
    for repeat in range(repeats):
        for kind, data in (("one", store), ("shards", sharded)) if repeat % 2 else (("shards", sharded), ("one", store)):
            started = time.perf_counter()
            fo.select(data, **request)
            wall[kind].append(time.perf_counter() - started)
    rows: Any = sharded.matrix
    vectors = np.zeros((1, store.layout.n_obs))
    puts = []
    for _ in range(20):
        started = time.perf_counter()
        rows.connection.transport._ray.put(vectors)
        puts.append(time.perf_counter() - started)
    each = max(int(found.bytes_received_columns) // seen["rounds"] // int(store.matrix[0].nbytes), 1)
    moving = [_gather_seconds(rows, each) - _gather_seconds(rows, 1) for _ in range(9)]
    extra = [1e3 * (shards - one) / seen["rounds"] for one, shards in zip(wall["one"], wall["shards"], strict=True)]
    details, shards = found.to_json(), len(rows.addresses)
    return {
        "same": same,
        "rounds": seen["rounds"],
        "calls": details["shard_calls"],
        "one": median(wall["one"]),
        "shards": median(wall["shards"]),
        "ratio": paired(wall["shards"], wall["one"]),
        "overhead_ms": median(extra),
        "overhead_quartiles_ms": quantiles(extra, n=4)[::2],
        "overhead_best_ms": 1e3 * (min(wall["shards"]) - min(wall["one"])) / seen["rounds"],
        "put_ms": 1e3 * median(puts),
        "columns_ms": 1e3 * median(moving),
        "sent": details["bytes_sent"],
        "sent_formula": shards * 8 * store.layout.n_obs * seen["vectors"],
        "received": details["bytes_received"] - details["bytes_received_columns"],
        "received_formula": seen["decided"],
        "near": seen["near"],
        "columns": details["bytes_received_columns"],
        "matrix": int(store.matrix.nbytes),
    }


def _gather_seconds(rows: Any, count: int) -> float:
    """Return the seconds of gathering ``count`` columns, spread over the shards, into memory that was used before."""
    columns = np.linspace(0, len(rows) - 1, count).astype(np.int64)
    out = np.zeros((count, rows.shape[1]), dtype=rows.dtype)
    started = time.perf_counter()
    rows.gather(columns, out)
    return time.perf_counter() - started


@terminating_cleanly()
def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argument_parser("cluster", __doc__)
    parser.add_argument("--features", type=int, default=50_000)
    parser.add_argument("--observations", type=int, default=2_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(words)
    features, observations, repeats = options.features, options.observations, options.repeats
    if options.quick:
        features, observations, repeats = 5_000, 500, 3
    report = Report(options, words)
    with private_home(), tempfile.TemporaryDirectory() as folder:
        design = PaperDesign(observations, features, seed=0)
        with fo.create_store(f"mmap://{folder}/one", design.matrix(), design.response(), rows="features") as store:
            manifest = cut(store, f"{folder}/cut", options.shards)
            with fo.open_store(f"cluster://{manifest}") as sharded:
                found = {name: measure(store, sharded, {**request, "tier": "exact"}, repeats) for name, request in REQUESTS.items()}
    report.figures(features=features, observations=observations, **found)
    title = f"{features:,} features x {observations:,} observations, {options.shards} shards on this machine, {repeats} pairs"
    report.columns(title, found)
    if options.shards == 2:
        for name, each in found.items():
            report.bar(f"milliseconds per round that shards add to {name}", each["overhead_ms"], BAR, at_most=True)
    report.bar("answers that shards change", sum(not each["same"] for each in found.values()), 0, at_most=True)
    return report.finish(judged=True)


if __name__ == "__main__":
    raise SystemExit(main())
