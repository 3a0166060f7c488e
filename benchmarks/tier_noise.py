"""The cost of ``--tier auto`` where the tier decides nothing: independent columns of which ten matter and k are selected.

Selections over the exact matrix and with ``auto`` are timed in turn, from a file in the page cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import fastomp_nvm as fo
from benchmarks.harness.report import Report, argument_parser
from benchmarks.harness.timing import in_turn, paired
from fastomp_nvm.analysis.synthetic import sparse_design

__all__ = ["main"]

#: Features behind the response; the others are noise.
TRUE = 10

#: Largest run time of ``auto`` over that of the exact matrix.
BAR = 1.25


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    options = argument_parser("tier-noise", __doc__).parse_args(argv)
    report = Report(options, argv)
    n_obs, n_features, k, repeats = (10_000, 900, 12, 1) if options.quick else (60_000, 1000, 40, 7)
    X, y = sparse_design(n_obs, n_features, TRUE, 1.0)
    rows, same = [], True
    with tempfile.TemporaryDirectory() as folder, fo.create_store(f"mmap://{folder}/s", X, y, tier="int8") as store:
        del X
        for algorithm in ("sds_omp", "fast_omp"):
            runs: dict[str, Callable[[], Any]] = {
                tier: lambda tier=tier, name=algorithm: fo.select(store, k=k, algorithm=name, plain=True, tier=tier)  # type: ignore[misc]
                for tier in ("exact", "auto")
            }
            seconds, found = in_turn(runs, repeats, warm=1)
            ratio = paired(seconds["auto"], seconds["exact"])
            passes = [found[tier].full_passes for tier in ("exact", "auto")]
            rows.append((algorithm, median(seconds["exact"]), median(seconds["auto"]), ratio, *passes))
            same &= found["exact"].indices.tolist() == found["auto"].indices.tolist()
            report.bar(f"{algorithm}: time with auto over exact", ratio, BAR, at_most=True)
    report.table(f"{n_obs} x {n_features}, k = {k}", ("algorithm", "exact s", "auto s", "ratio", "passes", "passes, auto"), rows)
    report.bar("answers that the tier changes", int(not same), 0, at_most=True)
    return report.finish() if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
