"""Run times of this checkout over another one's, through the public API: paired ratios of runs in turn, each in its own process.

A cell is judged slower when the whole 95 % interval of its ratio lies above 1.05. Cells whose features differ are listed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import public_cells
from benchmarks.harness.processes import private_home
from benchmarks.harness.report import Report, argument_parser, at_least
from benchmarks.harness.timing import PAUSE, paired
from fastomp_nvm.errors import RequestError

__all__ = ["main"]

#: Largest acceptable lower end of the interval of new over old.
BAR = 1.05

ROOT = Path(__file__).parents[1]


class Checkout:
    """A process that runs cells on one checkout."""

    def __init__(self, process: subprocess.Popen[str], tree: Path) -> None:
        self._process, self._tree = process, tree

    def run(self, cell: str) -> dict[str, Any]:
        """Run a cell once; return seconds and indices."""
        assert self._process.stdout is not None
        time.sleep(PAUSE)
        self.send(cell)
        line = self._process.stdout.readline()
        if not line:
            raise RequestError(f"the process on {self._tree} ended in the cell {cell!r}")
        found: dict[str, Any] = json.loads(line)
        return found

    def send(self, words: str) -> None:
        """Write one request."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()


@contextmanager
def checkout(tree: Path, home: Path, scale: int) -> Iterator[Checkout]:
    """Start a process on a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "FASTOMP_HOME": str(home)}
    words = [sys.executable, "-P", public_cells.__file__, str(scale)]  # -P: the folder of the script is not searched
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Checkout(process, tree)
        assert process.stdin is not None
        process.stdin.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("side-by-side", __doc__)
    parser.add_argument("--against", type=Path, required=True, metavar="DIR", help="the checkout to compare with")
    parser.add_argument("--repeats", type=int, help="pairs per cell (default 31; 5 with --quick)")
    parser.add_argument("--cells", nargs="+", choices=tuple(public_cells.CELLS), metavar="CELL", help="only these cells")
    parser.add_argument("--scale", type=int, default=1, help="divide the number of features by this")
    options = parser.parse_args(argv)
    repeats = options.repeats or (5 if options.quick else 31)
    at_least("--repeats", repeats, 1)
    at_least("--scale", options.scale, 1)
    if not (options.against / "fastomp_nvm" / "__init__.py").is_file():
        raise RequestError(f"{options.against} is not a checkout: it has no package fastomp_nvm")
    report = Report(options, argv)
    rows, differing = [], []
    with private_home() as home, ExitStack() as stack:
        trees = {"new": ROOT, "old": options.against.resolve()}
        running = {name: stack.enter_context(checkout(tree, home / name, options.scale)) for name, tree in trees.items()}
        for cell in options.cells or public_cells.CELLS:
            seconds: dict[str, list[float]] = {name: [] for name in running}
            for turn in range(repeats):
                # Either goes first in turn, so that a drift favours neither.
                found = {name: running[name].run(cell) for name in (list(running) if turn % 2 else list(running)[::-1])}
                for name, result in found.items():
                    seconds[name].append(result["seconds"])
            if found["new"]["indices"] != found["old"]["indices"]:
                differing.append(cell)
            for process in running.values():
                process.send(f"drop {cell}")
            ratio = paired(seconds["new"], seconds["old"])
            rows.append((cell, median(seconds["old"]), median(seconds["new"]), ratio))
            report.measured({"cell": cell, "seconds": seconds})
            report.bar(f"{cell}: lower end of new over old, median {ratio.median:.3f}", ratio.low, BAR, at_most=True)
    report.table(f"{repeats} pairs", ("cell", "old, median s", "new, median s", "new over old"), rows)
    report.figures(cells={row[0]: row[3] for row in rows}, differing=differing)
    report.say(f"cells whose features differ: {', '.join(differing) or 'none'}")
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
