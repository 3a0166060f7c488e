"""Passes and bytes that ``fastomp plan`` predicts against real runs, from one store and from shards.

The data have the shape of ``rehearsal.KINDS``. Counts of FAST_OMP are also compared over many settings in memory (``--rehearsal``).
The times of the roofline are printed beside the real ones but not judged: they are lower bounds, from the three constants that this
benchmark measures here (``--machine FILE`` writes them for ``fastomp plan --machine FILE``).
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fastomp_nvm as fo
from benchmarks.harness.data import build_paper_design
from benchmarks.harness.device import direct_bandwidth
from benchmarks.harness.processes import private_home, run_cell
from benchmarks.harness.report import Report, argument_parser
from fastomp_nvm.analysis.synthetic import PaperDesign, sparse_design
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.matrix.rows import local_rows
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors
from fastomp_nvm.planning.plan import Machine, PlanRequest, plan
from fastomp_nvm.planning.rehearsal import KINDS, rehearse
from storage_backends.build.sharding import cut

__all__ = ["main"]

BAR = 1.5

#: Features, observations, k, tier.
SIZES = ((40_000, 2000, 100, "none"), (100_000, 1000, 50, "int8"), (200_000, 2000, 100, "int8"))
QUICK = ((20_000, 500, 50, "none"),)

#: Features and observations at which rehearsals are compared with runs.
REHEARSED = ((20_000, 500), (20_000, 2000), (100_000, 1000), (200_000, 2000), (500_000, 500))


@terminating_cleanly()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, predict, run, compare."""
    parser = argument_parser("plan", __doc__)
    parser.add_argument("--shards", default="1", help="numbers of shards, comma-separated; more than 1 needs Ray (default 1)")
    parser.add_argument("--folder", type=Path, help="folder for the stores (default the temporary directory)")
    parser.add_argument("--machine", type=Path, metavar="FILE", help="write the constants of this machine as JSON")
    parser.add_argument("--rehearsal", action="store_true", help="compare predicted counts with runs in memory at many settings")
    options = parser.parse_args(argv)
    if options.cell:
        print(json.dumps(select_cell(**options.cell)))
        return 0
    report = Report(options, argv)
    if options.rehearsal:
        compare_rehearsals(report, REHEARSED[:1] if options.quick else REHEARSED)
        return report.finish()
    with private_home(), tempfile.TemporaryDirectory(dir=options.folder) as name:
        place = Path(name).resolve()
        machine = measure_machine(place, 8 << 20 if options.quick else 512 << 20)
        report.say(f"constants of this machine: {json.dumps(asdict(machine))}")
        if options.machine is not None:
            options.machine.write_text(json.dumps(asdict(machine)) + "\n", encoding="utf-8")
        rows = []
        for size in QUICK if options.quick else SIZES:
            rows += compare(place, machine, *size, [int(word) for word in options.shards.split(",")])
    for row in rows:
        report.measured(row)
    report.figures(machine_constants=machine, rows=rows)
    report.records("predicted over real, and predicted at least", rows)
    ratios = [row[name] for row in rows for name in ("passes", "bytes read", "network bytes") if row[name] is not None]
    worst = max(max(ratio, 1 / ratio) for ratio in ratios)
    report.bar("largest factor between predicted and real passes or bytes", worst, BAR, at_most=True)
    return report.finish()


def measure_machine(folder: Path, size: int) -> Machine:
    """Measure the constants of a plan here, on ``size`` bytes: a sweep, direct reads, and a product of two matrices."""

    def best(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(5):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    rows = np.ones((size // 8192, 2048), dtype=np.float32)
    vectors, narrow, sweeper = Vectors(np.ones((2048, 1)), rows.dtype), np.zeros(len(rows), dtype=np.bool_), Sweeper()
    swept = rows.nbytes / best(lambda: sweeper.dots(local_rows(rows), vectors, narrow))
    square = np.ones((1024, 1024), dtype=np.float32)
    operations = 2 * 1024**3 / best(lambda: square @ square)
    file = folder / "bytes"
    np.zeros(size, dtype=np.uint8).tofile(file)
    device = direct_bandwidth(file)
    file.unlink()
    memory = psutil.virtual_memory().total
    # Shards of one machine exchange bytes through its memory.
    return Machine(memory / 1e9, swept / 1e9, device / 1e9, operations / 1e9, swept / 1e9)


def compare(
    place: Path, machine: Machine, n_features: int, n_obs: int, k: int, tier: str, shards: Sequence[int]
) -> list[dict[str, Any]]:
    """Predict and run one size from every number of shards; return predicted over real."""
    store = place / "store"
    build_paper_design(f"mmap://{store}", n_obs, n_features, tier=tier)
    found = []
    for count in shards:
        url = f"mmap://{store}"
        if count > 1:
            cut(str(store), str(place / "shards"), count)
            url = f"cluster://{place / 'shards' / 'manifest.yaml'}"
        request = PlanRequest(n_features, n_obs, k, nodes=count, nodes_per_machine=count, tier=tier)
        predicted = plan(request, replace(machine, device_gbps=None))  # its pages are in memory
        real = run_cell("benchmarks.plan", {"store": url, "k": k, "tier": tier})
        found.append(
            {
                "features": n_features,
                "observations": n_obs,
                "k": k,
                "tier": tier,
                "shards": count,
                "passes": predicted.passes / real["passes"],
                "bytes read": predicted.bytes_read_per_node * count / real["bytes_read"],
                "network bytes": predicted.network_bytes / real["network_bytes"] if count > 1 else None,
                "seconds": real["seconds"],
                "seconds, at least": predicted.seconds,
                "binds": predicted.binds,
            }
        )
        shutil.rmtree(place / "shards", ignore_errors=True)
    shutil.rmtree(store)
    return found


def select_cell(store: str, k: int, tier: str) -> dict[str, Any]:
    """Select twice from a store; return the counts and seconds of the second run, whose pages are in memory."""
    with fo.open_store(store) as opened:
        for _ in range(2):
            started = time.perf_counter()
            found = fo.select(opened, k=k, tier="int8" if tier == "int8" else "exact")
            seconds = time.perf_counter() - started
    network = (found.bytes_sent or 0) + (found.bytes_received or 0)
    return {"passes": found.full_passes, "bytes_read": found.bytes_read, "network_bytes": network, "seconds": seconds}


def compare_rehearsals(report: Report, sizes: Sequence[tuple[int, int]]) -> None:
    """Run selections in memory at many settings; report the rehearsal's counts over theirs."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for kind, (n_features, n_obs) in itertools.product(KINDS, sizes):
        if kind == "paper":
            design = PaperDesign(n_obs, n_features)
            X, y = design.matrix().T, design.response()
        else:
            X, y = sparse_design(n_obs, n_features, true=100, noise=0.3)
        settings = [(k, tau, 0.1) for k in (50, 100, 300) for tau in ((0.25, 0.5, 0.9) if n_features <= 100_000 else (0.5,))]
        for k, tau, epsilon in [*settings, (100, 0.5, 0.2)]:
            real = fo.select(X, y, k=k, tau=tau, epsilon=epsilon, polish="none")
            predicted = rehearse(n_features, n_obs, k, kind=KINDS[kind], epsilon=epsilon, tau=tau)
            passes = math.floor(real.full_passes)
            counts = {
                "full passes": len(predicted.passes) / passes,
                "gathered columns": predicted.gathered / ((real.full_passes - passes) * n_features),
                "inner iterations": predicted.inner_iterations / (real.gradient_rounds - passes),
            }
            report.measured({"data": kind, "shape": [n_obs, n_features], "k": k, "tau": tau, "epsilon": epsilon, **counts})
            for name, ratio in counts.items():
                ratios.setdefault((kind, name), []).append(ratio)
    rows = []
    for (kind, name), values in ratios.items():
        near = float(np.mean(np.abs(np.log(values)) <= math.log(BAR)))
        rows.append((kind, name, len(values), min(values), float(np.median(values)), max(values), near))
    heads = ("data", "count", "runs", "least", "median", "largest", f"share within {BAR}")
    report.table("predicted over real", heads, rows)


if __name__ == "__main__":
    raise SystemExit(main())
