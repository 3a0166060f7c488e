"""What shards cost: the same selections from one store and from two shards of it through Ray, interleaved in one run.

The overhead of a round is the difference of the two wall times divided by the rounds that ask something; the bar is 25 ms at two
shards. It is given as the median over pairs, which is judged, with the quartiles, because a busy machine makes single pairs
worthless, and as the best of the one against the best of the other, which is what an idle machine would show.
``put`` is the time to hand one round's vectors to the object store; small ones travel with the question instead. ``columns`` is the
time that the bytes of a round's gathered columns take on their way: a gather of as many columns less a gather of one.

Bytes are those of the payloads, counted where they are sent and received, next to what the formula says:

    sent      shards x (8 n_obs x vectors + a few bytes per decision)        per round
    received  8 r x shards + 16 per survivor, or 16 per shard for an argmax  per round, and the gathered columns once

Shards offer their survivors with the r scores, before the threshold is known; ``near`` are those among them that turn out not to
be survivors, 16 bytes each.

Both shards are on this machine: the figure holds the processes, the object store and the merging, not a network. Exit code 1 when
the bar is missed or an answer differs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console

import fastomp_nvm as fo
from benchmarks.crash import private_folder
from benchmarks.machine import Bar, fingerprint, show_bars
from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.cluster import driver
from fastomp_nvm.cluster.driver import ShardedRows
from fastomp_nvm.stores.contract import FeatureStore
from storage_backends.build.sharding import cut

__all__ = ["main", "measure"]

#: Milliseconds per round that two shards may add, by the median of the pairs.
BAR = 25.0

REQUESTS: dict[str, dict[str, Any]] = {"fast_omp": {"k": 60}, "sds_omp": {"k": 30, "algorithm": "sds_omp"}}


@contextmanager
def noted() -> Iterator[dict[str, int]]:
    """Count what the formula needs: rounds, vectors, and what decisions must carry, from the questions and not from payloads."""
    seen = {"rounds": 0, "vectors": 0, "decided": 0, "near": 0}
    gradients = driver._ShardedGradients
    sweep, at_least, top_mean, argmax = ShardedRows.sweep, gradients.at_least, gradients.top_mean, gradients.argmax

    def swept(self: ShardedRows, vectors: Any, tiered: bool) -> Any:
        seen["rounds"] += 1
        seen["vectors"] += len(vectors)
        return sweep(self, vectors, tiered)

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
        rows._connection.transport._ray.put(vectors)
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
        "ratio": median(shards / one for one, shards in zip(wall["one"], wall["shards"], strict=True)),
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
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=50_000)
    parser.add_argument("--observations", type=int, default=2_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="a small store, three pairs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(words)
    features, observations, repeats = arguments.features, arguments.observations, arguments.repeats
    if arguments.quick:
        features, observations, repeats = 5_000, 500, 3
    with private_folder(), tempfile.TemporaryDirectory() as folder:
        design = PaperDesign(observations, features, seed=0)
        with fo.create_store(f"mmap://{folder}/one", design.matrix(), design.response(), rows="features") as store:
            manifest = cut(store, f"{folder}/cut", arguments.shards)
            with fo.open_store(f"cluster://{manifest}") as sharded:
                found = {name: measure(store, sharded, {**request, "tier": "exact"}, repeats) for name, request in REQUESTS.items()}
    bars = [
        Bar(f"milliseconds per round that shards add to {name}", figures["overhead_ms"], BAR, at_most=True)
        for name, figures in found.items()
        if arguments.shards == 2
    ]
    code = 0 if all(figures["same"] for figures in found.values()) and all(bar.met for bar in bars) else 1
    if arguments.json:
        print(json.dumps({"machine": fingerprint(), "features": features, "observations": observations, **found}))
        return code
    print(f"{features:,} features x {observations:,} observations, {arguments.shards} shards on this machine")
    for name, figures in found.items():
        low, high = figures["overhead_quartiles_ms"]
        print(
            f"{name:8} {figures['rounds']:3} rounds, {figures['calls']} calls  one store {figures['one']:.3f} s, shards "
            f"{figures['shards']:.3f} s, ratio {figures['ratio']:.2f}  overhead per round {figures['overhead_ms']:.1f} ms "
            f"(median of {repeats} pairs, quartiles {low:.1f} to {high:.1f}; best against best "
            f"{figures['overhead_best_ms']:.1f} ms; put {figures['put_ms']:.1f} ms, columns {figures['columns_ms']:.1f} ms)  "
            f"{'same bits' if figures['same'] else 'ANOTHER ANSWER'}\n"
            f"{'':8} sent {figures['sent']:,} bytes, formula {figures['sent_formula']:,}; received {figures['received']:,}, "
            f"formula {figures['received_formula']:,} and {figures['near']:,} near, and columns {figures['columns']:,} of a matrix "
            f"of {figures['matrix']:,}"
        )
    show_bars(Console(highlight=False, markup=False, soft_wrap=True), bars)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
