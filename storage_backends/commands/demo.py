"""``fastomp demo``: a synthetic credit data set in an emulated-pmem store, selected under a fairness constraint.

Shows the selected features, passes and bytes read compared with matching pursuit, and the next commands to try.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from fastomp_nvm.analysis.synthetic import PaperDesign
from fastomp_nvm.cli.output import byte_progress, clean, human_bytes, human_seconds
from fastomp_nvm.cli.screen import Screen
from fastomp_nvm.home import home
from fastomp_nvm.runs.select import select
from fastomp_nvm.stores.contract import Target
from fastomp_nvm.stores.open import open_store
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.schema import TableSchema

__all__ = ["CONSTRAINT", "add_arguments", "run"]

#: Kinds of features of the synthetic credit data, with the share of each.
KINDS = {"payments": 0.5, "income": 0.2, "purchases": 0.2, "neighbourhood": 0.1}

#: Limits per kind. The neighbourhood is a proxy for ethnicity, so at most one of its features is allowed.
CONSTRAINT = """\
all:
  - cardinality: 40
  - partition:
      groups:
        payments: ["payments_*"]
        income: ["income_*"]
        purchases: ["purchases_*"]
        neighbourhood: ["neighbourhood_*"]
      caps: {payments: 20, income: 10, purchases: 15, neighbourhood: 1}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--features", type=int, default=20_000, metavar="N", help="number of features")
    parser.add_argument("--observations", type=int, default=2_000, metavar="N", help="number of observations")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all random choices (default 0)")
    parser.add_argument("--dir", metavar="DIR", help="folder for the store (default: demo in FASTOMP_HOME)")


def run(arguments: argparse.Namespace) -> int:
    """Build the data set, select with both algorithms, print a comparison."""
    console = Screen()
    folder = Path(arguments.dir) if arguments.dir else home() / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    url = f"pmem://{folder.resolve() / 'credit'}"
    console.print(f"1. Making {arguments.observations:,} customers with {arguments.features:,} features ...")
    _make(url, arguments.observations, arguments.features, arguments.seed)
    constraint = folder / "fair.yaml"
    constraint.write_text(CONSTRAINT, encoding="utf-8")
    with open_store(url) as store:
        traits = store.traits
        console.print(f"   {human_bytes(store.matrix.nbytes)} in {url}")
        console.print(f"   medium: {traits.medium}{' (emulated)' if traits.emulated else ''}, {traits.detail}")
        console.print(f"2. Selecting at most 40 of them, at most one about the neighbourhood ({constraint.name}) ...")
        from fastomp_nvm.constraints.written.description import parse_constraint as parse

        request: dict[str, Any] = {"constraint": parse(CONSTRAINT, store.names), "seed": arguments.seed}
        store.verify()  # also maps every page, so that neither algorithm pays for that
        fast = select(store, **request)
        slow = select(store, algorithm="sds_omp", plain=True, **request)
    chosen = Table(title=f"{len(fast.features)} features chosen")
    for title in ("kind", "allowed", "chosen", "examples"):
        chosen.add_column(title, justify="right" if title in ("allowed", "chosen") else "left")
    caps = {"payments": 20, "income": 10, "purchases": 15, "neighbourhood": 1}
    for kind in KINDS:
        names = [name for name in fast.features if name.startswith(kind)]
        chosen.add_row(kind, str(caps[kind]), str(len(names)), clean(", ".join(names[:3])))
    console.print(chosen)
    cost = Table(title="cost of this run")
    for title in ("algorithm", "R^2", "passes", "bytes read", "time"):
        cost.add_column(title, justify="left" if title == "algorithm" else "right")
    for label, found in (("FAST_OMP", fast), ("matching pursuit (SDS_OMP)", slow)):
        row = (f"{found.score:.4f}", f"{found.full_passes:.1f}", human_bytes(found.bytes_read), human_seconds(found.seconds))
        cost.add_row(label, *row)
    console.print(cost)
    console.print(
        f"FAST_OMP read {slow.bytes_read / fast.bytes_read:.1f} times fewer bytes at {fast.score / slow.score:.4f} of the R^2; "
        f"feasible: {fast.feasible}"
    )
    console.print("\nNext steps:")
    for command in (
        f"fastomp info {url}",
        f"fastomp select {url} --constraint {constraint} --json",
        "fastomp ingest YOUR.csv my-store --target COLUMN   then   fastomp select my-store --k 20",
        "fastomp doctor",
    ):
        console.print(f"   {command}", soft_wrap=True)
    return 0


def _make(url: str, n_obs: int, n_features: int, seed: int) -> None:
    """Generate the store block by block, replacing the store of an earlier demo."""
    design = PaperDesign(n_obs, n_features, seed, strong=(0.1, 0.3))
    counts = [max(int(share * n_features), 1) for share in KINDS.values()]
    counts[0] += n_features - sum(counts)
    names = [f"{kind}_{number}" for kind, count in zip(KINDS, counts, strict=True) for number in range(count)]
    schema = TableSchema.plain(n_obs, names)
    signal, rho = design.signal(), np.random.default_rng(seed).permutation(design.correlations())
    with byte_progress("making") as progress, StoreBuilder(url, schema, replace=True, progress=progress) as build:
        for number in range(-(-n_features // design.block)):
            build.write_columns(number * design.block, design.columns(number, signal, rho))
        build.finish({"repaid": Target(design.response())}, {"source": "fastomp demo"})
