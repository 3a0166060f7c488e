"""What it costs to compare columns with their checksums: a first selection of a store, and every later one, against no comparison.

A first selection compares every column that it reads (``check="always"``), a later one finds that all were compared. The store is
in the page cache, where a comparison weighs most. Runs take turns and ratios are taken within a turn. Exit code 1 when a first
selection takes more than 1.10 times as long as one without comparison, or a later one more than 1.05 times.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import fastomp_nvm as fo
from benchmarks.harness.report import Report, argument_parser, at_least
from benchmarks.harness.timing import in_turn, paired
from fastomp_nvm import native
from fastomp_nvm.cli.termination import terminating_cleanly
from fastomp_nvm.matrix.checksum import crc32
from fastomp_nvm.matrix.rows import local_rows
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors

__all__ = ["main"]

FIRST_BAR, LATER_BAR = 1.10, 1.05


def rates(seconds: float) -> dict[str, float]:
    """Return bytes per second of one thread for a sweep with one vector and for each CRC-32, over 256 MiB."""
    values = np.random.default_rng(0).standard_normal((1 << 14, 1 << 12), dtype=np.float32)
    vectors, sweeper = Vectors(np.ones((values.shape[1], 1)), values.dtype), Sweeper(1)
    data = values.reshape(-1).view(np.uint8).data
    ways: dict[str, Callable[[], object]] = {
        "sweep": lambda: sweeper.dots(local_rows(values), vectors, np.zeros(len(values), np.bool_)),
        "crc32": lambda: crc32(data),
        "zlib": lambda: zlib.crc32(data),
    }
    if native.extension:
        extension = native.extension
        ways["tables"] = lambda: extension.crc32(data, 0, 2)
    found = {}
    for name, run in ways.items():
        times: list[float] = []
        while sum(times) < seconds:
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        found[name] = values.nbytes / min(times)
    return found


@terminating_cleanly()
def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("checks", __doc__)
    parser.add_argument("--observations", type=int, default=2000)
    parser.add_argument("--features", type=int, default=40_000, help="320 MB by default")
    parser.add_argument("--k", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="folder for the store (default a temporary folder)")
    options = parser.parse_args(argv)
    for option in ("observations", "features", "k", "repeats"):
        at_least(f"--{option}", getattr(options, option), 1)
    report = Report(options, argv)
    n_obs, n_features, repeats = (200, 600, 2) if options.quick else (options.observations, options.features, options.repeats)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_features, n_obs), dtype=np.float32).T
    y = X[:, : options.k] @ rng.standard_normal(options.k) + rng.standard_normal(n_obs)
    place = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        url = str(place / "store")
        fo.create_store(url, X, y).close()
        del X
        time.sleep(2.5)  # until the time of the files tells them from later versions
        for tier in ("exact", "int8"):
            runs = {check: partial(fo.select, url, k=options.k, tier=tier, check=check) for check in ("never", "always", "first")}
            seconds, found = in_turn(runs, repeats, warm=1)
            assert len({tuple(each.indices.tolist()) for each in found.values()}) == 1, "answers differ"
            first, later = (paired(seconds[check], seconds["never"]) for check in ("always", "first"))
            report.table(
                f"selections, tier {tier}",
                ("columns compared", "seconds"),
                [(check, f"{np.median(each):.3f}") for check, each in seconds.items()],
            )
            report.bar(f"first selection over none compared, tier {tier}", first, FIRST_BAR, at_most=True)
            report.bar(f"later selection over none compared, tier {tier}", later, LATER_BAR, at_most=True)
    finally:
        shutil.rmtree(place)
    speeds = rates(0.05 if options.quick else 1.0)
    report.figures(bytes_per_second=speeds)
    report.table("one thread", ("way", "GB/s"), [(name, f"{rate / 1e9:.1f}") for name, rate in speeds.items()])
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
