"""The capacity planner against real runs: passes, bytes and time at three sizes, from one store and from 2 and 4 shards.

``fastomp bench plan`` measures this machine as ``fastomp plan --measure`` does, predicts every cell, then runs it in a process of
its own over stores that are in memory. N shards are N processes on this one machine, so they share its cores and its memory: the
plan is asked with ``nodes_per_machine = N``.

Others who compute on this machine spoil it: the time of a run is its best, less what its main thread and the shards waited for a
processor, and the load is printed. Exit code 1 when a prediction is off by more than a factor of 1.5.

``--rehearsal`` does something else: it sets the counts of the rehearsal behind the plan (full passes, gathered columns, inner
rounds) beside those of 65 selections per kind of data, which are like the runs that ``fastomp_nvm.planning.rehearsal`` quotes and
not the very same ones. It times nothing, uses no store and no shards, and judges nothing: its exit code is 0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import fastomp_nvm as fo
from benchmarks.machine import fingerprint
from fastomp_nvm.analysis.synthetic import PaperDesign, sparse_design
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.constraints import Partition
from fastomp_nvm.planning.machine_profiles import MEDIA, Network, Profile, read_profile
from fastomp_nvm.planning.measuring import measure
from fastomp_nvm.planning.measuring_shards import best_selection
from fastomp_nvm.planning.plan import Plan, PlanRequest, Resources, plan
from fastomp_nvm.planning.rehearsal import KINDS, rehearse
from fastomp_nvm.stores.contract import Target
from fastomp_nvm.stores.names import NumberedNames
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.schema import TableSchema
from storage_backends.build.sharding import cut

__all__ = ["main"]

BAR = 1.5

#: Features, observations, k, tier.
SIZES = ((40_000, 2000, 100, "none"), (100_000, 1000, 50, "int8"), (200_000, 2000, 100, "int8"))
QUICK = ((20_000, 500, 50, "none"),)

SHARDS = (1, 2, 4)

#: Features and observations at which rehearsals are compared with runs.
REHEARSED = ((20_000, 500), (20_000, 2000), (100_000, 1000), (200_000, 2000), (500_000, 500))


@terminating_cleanly()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, predict, run, compare."""
    parser = argparse.ArgumentParser(prog="fastomp bench plan", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small size")
    parser.add_argument("--shards", default=",".join(map(str, SHARDS)), help="how many, comma-separated (default 1,2,4)")
    parser.add_argument("--repeats", type=int, default=5, help="runs per cell; the best counts (default 5)")
    parser.add_argument("--profile", type=Path, help="use the constants of this file instead of measuring")
    parser.add_argument("--folder", type=Path, help="folder for the stores (default the folder of the results)")
    parser.add_argument("--out", type=Path, default=Path("bench-out/plan"), help="folder of the results (default bench-out/plan)")
    parser.add_argument("--rehearsal", action="store_true", help="only print predicted over real counts of runs in memory")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.cell:
        print(json.dumps(run_cell(**json.loads(arguments.cell))))
        return 0
    if arguments.rehearsal:
        return compare_rehearsals(arguments.quick)
    arguments.out.mkdir(parents=True, exist_ok=True)
    shards = [int(word) for word in arguments.shards.split(",")]
    place = Path(tempfile.mkdtemp(dir=arguments.folder or arguments.out, prefix="plan-")).resolve()
    console = Console(width=150, highlight=False, markup=False)
    try:
        profile = measure(place) if arguments.profile is None else read_profile(arguments.profile)
        if max(shards) > 1 and profile.network is None:
            raise SystemExit(
                "what shards cost was not measured: install Ray (pip install 'fastomp-nvm[ray]'), or ask for --shards 1"
            )
        rows: list[dict[str, Any]] = []
        for size in QUICK if arguments.quick else SIZES:
            if rows and arguments.profile is None:  # a shared machine changes from minute to minute
                profile = measure(place)
            for row in compare(profile, place, *size, shards, arguments.repeats):
                rows.append(row)
                show(console, row)
    finally:
        shutil.rmtree(place)
    lines = [json.dumps({"machine": fingerprint(), **row}) for row in rows]
    (arguments.out / "plan.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    worst = max(max(ratio, 1 / ratio) for row in rows for ratio in row["ratios"].values())
    console.print(f"{'met   ' if worst <= BAR else 'MISSED'} every prediction within a factor of {BAR}: the worst is {worst:.2f}")
    print(f"wrote {arguments.out / 'plan.jsonl'}")
    return 0 if worst <= BAR else 1


def compare_rehearsals(quick: bool) -> int:
    """Run selections in memory at many settings and print how the rehearsal's counts relate to theirs; always return 0."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for kind, (n_features, n_obs) in itertools.product(KINDS, REHEARSED[:1] if quick else REHEARSED):
        if kind == "paper":
            design = PaperDesign(n_obs, n_features)
            X, y = design.matrix().T, design.response()
        else:
            X, y = sparse_design(n_obs, n_features, true=100, noise=0.3)
        settings = [(k, tau, 0.1) for k in (50, 100, 300) for tau in ((0.25, 0.5, 0.9) if n_features <= 100_000 else (0.5,))]
        for (k, tau, epsilon), groups in itertools.product([*settings, (100, 0.5, 0.2)], (1, 100)):
            if groups > k:
                continue
            limits = [math.ceil(k / groups)] * groups
            constraint = Partition(n_features, np.arange(n_features) % groups, limits)
            real = fo.select(X, y, k=k, tau=tau, epsilon=epsilon, constraint=constraint, polish="none").to_json()
            played = rehearse(n_features, n_obs, k, kind=KINDS[kind], epsilon=epsilon, tau=tau)
            passes = math.floor(real["full_passes"])
            gathered = (real["full_passes"] - passes) * n_features
            found = {
                "full passes": len(played.outers) / passes,
                "gathered columns": played.gathered / gathered,
                "inner rounds": played.rounds / (real["gradient_rounds"] - passes),
            }
            for name, ratio in found.items():
                ratios.setdefault((kind, name), []).append(ratio)
            print(f"{kind} {n_features} x {n_obs}, k {k}, tau {tau}, epsilon {epsilon}, {groups} groups: ", end="")
            print(", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items()), flush=True)
    for (kind, name), values in ratios.items():
        near = np.mean(np.abs(np.log(values)) <= math.log(BAR))
        print(f"{kind}, {name}, predicted / real: {min(values):.2f} to {max(values):.2f}, median {np.median(values):.2f}, ", end="")
        print(f"{100 * near:.0f} % of {len(values)} within a factor of {BAR}")
    return 0


def build(url: str, n_features: int, n_obs: int, tier: str) -> None:
    """Build a store of the paper's design."""
    design = PaperDesign(n_obs, n_features)
    signal, rho = design.signal(), design.correlations()
    with StoreBuilder(url, TableSchema.plain(n_obs, NumberedNames(n_features)), tier=tier) as builder:
        for number in range(-(-n_features // design.block)):
            builder.write_columns(number * design.block, design.columns(number, signal, rho))
        builder.finish({"y": Target(design.response())})


def compare(
    profile: Profile, place: Path, n_features: int, n_obs: int, k: int, tier: str, shards: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    """Predict and run one size from every number of shards; return the figures."""
    store = place / "store"
    build(f"mmap://{store}", n_features, n_obs, tier)
    found = []
    network = profile.network or Network("not used", math.inf)
    for count in shards:
        url = f"mmap://{store}"
        if count > 1:
            cut(str(store), str(place / "shards"), count)
            url = f"cluster://{place / 'shards' / 'manifest.yaml'}"
        request = PlanRequest(n_features, n_obs, k, nodes=count, nodes_per_machine=count, tier=tier)
        predicted = plan(request, Resources(profile.machine, MEDIA["dram"], network))
        real = child(store=url, k=k, tier=tier, repeats=repeats)
        found.append(row_of(request, predicted, real))
        shutil.rmtree(place / "shards", ignore_errors=True)
    shutil.rmtree(store)
    return found


def row_of(request: PlanRequest, predicted: Plan, real: dict[str, Any]) -> dict[str, Any]:
    """Put prediction and run side by side; shards were connected already, so that is not part of the time."""
    expected = {
        "passes": predicted.passes,
        "bytes read": predicted.bytes_read_per_node * request.nodes,
        "seconds": predicted.seconds - sum(phase.seconds for phase in predicted.phases if phase.name == "connecting"),
        **({"network bytes": predicted.network_bytes} if request.nodes > 1 else {}),
    }
    seen = {
        "passes": real["full_passes"],
        "bytes read": real["bytes_read"],
        "seconds": real["seconds"],
        "network bytes": real.get("network_bytes", 0),
    }
    return {
        "n_features": request.n_features,
        "n_obs": request.n_obs,
        "k": request.k,
        "tier": request.tier,
        "shards": request.nodes,
        "predicted": expected,
        "real": seen,
        "ratios": {name: value / seen[name] for name, value in expected.items()},
        "clock_seconds": real["clock_seconds"],
        "load": os.getloadavg()[0],
        "binds": predicted.binds,
        "phases": {phase.name: phase.seconds for phase in predicted.phases},
    }


def child(**cell: Any) -> dict[str, Any]:
    """Run a cell in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.plan", "--cell", json.dumps(cell)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"the cell {cell} failed")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_cell(store: str, k: int, tier: str, repeats: int) -> dict[str, Any]:
    """Select from a store that was read before, and from shards that are connected already; return the figures of the best run."""
    with fo.open_store(store) as opened:
        return best_selection(opened, repeats, k=k, tier="int8" if tier == "int8" else "exact")


def show(console: Console, row: dict[str, Any]) -> None:
    """Print for a person."""
    figures = ", ".join(
        f"{name} {row['predicted'][name]:.4g} / {row['real'][name]:.4g} = {ratio:.2f}" for name, ratio in row["ratios"].items()
    )
    console.print(
        f"{row['n_features']:,} x {row['n_obs']:,}, k = {row['k']}, tier {row['tier']}, {row['shards']} shards, "
        f"predicted / real: {figures}; clock {row['clock_seconds']:.3g} s, load {row['load']:.1f}, binds: {row['binds']}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
