"""``fastomp bench NAME``: run a benchmark of the package ``benchmarks``, found by name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from fastomp_nvm.registry import Table

__all__ = ["BENCHMARKS", "add_arguments", "run"]

#: Benchmark -> its main function, which takes the remaining words and returns an exit code.
BENCHMARKS: Table[Callable[[Sequence[str]], int]] = Table(
    "benchmark",
    {
        "auto": "benchmarks.auto:main",
        "checks": "benchmarks.checks:main",
        "cluster": "benchmarks.cluster:main",
        "cold-pass": "benchmarks.cold_pass:main",
        "constraint-share": "benchmarks.constraint_share:main",
        "durability": "benchmarks.durability_cost:main",
        "fast": "benchmarks.fast:main",
        "first-answer": "benchmarks.first_answer:main",
        "footprint": "benchmarks.footprint:main",
        "ingest": "benchmarks.ingest:main",
        "kernels": "benchmarks.kernels:main",
        "media": "benchmarks.media:main",
        "paper": "benchmarks.paper:main",
        "peers": "benchmarks.peers:main",
        "plan": "benchmarks.plan:main",
        "push-down": "benchmarks.push_down:main",
        "quality": "benchmarks.quality:main",
        "scale": "benchmarks.scale:main",
        "side-by-side": "benchmarks.side_by_side:main",
        "tall": "benchmarks.tall:main",
        "tier-noise": "benchmarks.tier_noise:main",
    },
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; what follows the name belongs to the benchmark."""
    parser.add_argument("benchmark", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="its own arguments (--quick, --out DIR, --help)")


def run(arguments: argparse.Namespace) -> int:
    """Run it."""
    return BENCHMARKS.load(arguments.benchmark)(arguments.words)
