"""What ``--tier auto`` costs where the tier decides nothing: independent columns of which ten matter and k are selected.

``python -m benchmarks.tier_noise`` selects over the exact matrix and with ``auto`` in turn, from a file in the page cache and
prints the median ratio of their times; it ends with 1 when one is above the bar or an answer differs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from typing import Any

import fastomp_nvm as fo
from fastomp_nvm.analysis.synthetic import sparse_design

__all__ = ["main", "measure"]

#: Features behind the response; the others are noise.
TRUE = 10

#: Most that ``auto`` may take, in times of the exact matrix.
BAR = 1.25


def measure(n_obs: int, n_features: int, k: int, repeats: int) -> list[dict[str, Any]]:
    """Return, per algorithm, the median ratio of ``auto`` over exact, both medians, and what either read in full passes."""
    X, y = sparse_design(n_obs, n_features, TRUE, 1.0)
    rows = []
    with tempfile.TemporaryDirectory() as folder, fo.create_store(f"mmap://{folder}/s", X, y, tier="int8") as store:
        del X
        for algorithm in ("sds_omp", "fast_omp"):
            seconds: dict[str, list[float]] = {"exact": [], "auto": []}
            found: dict[str, fo.Selection] = {}
            for turn in range(repeats + 1):
                for tier, times in seconds.items():
                    started = time.perf_counter()
                    found[tier] = fo.select(store, k=k, algorithm=algorithm, tier=tier)
                    if turn:  # the first one warms up
                        times.append(time.perf_counter() - started)
            rows.append(
                {
                    "algorithm": algorithm,
                    "ratio": statistics.median(a / b for a, b in zip(seconds["auto"], seconds["exact"], strict=True)),
                    "seconds": {tier: statistics.median(times) for tier, times in seconds.items()},
                    "full_passes": {tier: selection.full_passes for tier, selection in found.items()},
                    "same_answer": found["exact"].indices.tolist() == found["auto"].indices.tolist(),
                }
            )
    return rows


def main(argv: list[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tier_noise", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller data: a smoke test, not a measurement")
    arguments = parser.parse_args(argv)
    rows = measure(*((10_000, 900, 12, 1) if arguments.quick else (60_000, 1000, 40, 7)))
    for row in rows:
        exact, auto = row["seconds"].values()
        passes = "{exact:.1f} and {auto:.1f} passes".format(**row["full_passes"])
        print(f"{row['algorithm']}: exact {exact:.3f} s, auto {auto:.3f} s, median ratio {row['ratio']:.2f}; {passes}")
    met = all(row["same_answer"] and (arguments.quick or row["ratio"] <= BAR) for row in rows)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
