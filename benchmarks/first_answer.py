"""The time a person waits for ``fo.select(X, y, k=k)`` on data in memory, against scikit-learn's OMP and a prepared store.

All defaults, library threads untouched. Contestants are ``OrthogonalMatchingPursuit(n_nonzero_coefs=k).fit(X, y)`` on the same
data, of which the best run counts, and a selection from a store in memory that holds the same numbers; all are timed in turn.
*Memory* is what a selection takes beyond the data: the most resident bytes while it runs, less those before.

The *floor* is the time of the passes over the data that our selection makes, by themselves: the same vectors, kernel and threads,
and nothing selected. No change outside the kernel makes the selection faster than that. Beside it stands the selection of one
feature: a small problem is bound by what every selection costs.

*Start-up* is timed in processes of its own, whose bytecode is cached as that of installed packages is: the imports of NumPy and
``scipy.linalg``, the first answer with every import of fastomp's, and later answers.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

import fastomp_nvm as fo
from benchmarks.harness.data import refit_score
from benchmarks.harness.memory import PeakMemory, resident_bytes
from benchmarks.harness.processes import run_alone
from benchmarks.harness.report import Report, argument_parser
from benchmarks.harness.timing import in_turn, paired
from fastomp_nvm.analysis.synthetic import sparse_design
from fastomp_nvm.matrix.rows import LocalRows
from fastomp_nvm.matrix.sweeper import Sweeper, Vectors

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class Size:
    """A problem, how many times faster than scikit-learn it must be, and the most times a prepared store's time.

    Where the latter is given, R^2 may not be below scikit-learn's either.
    """

    n_obs: int
    n_features: int
    k: int
    faster: float
    over_store: float | None = None


SIZES = (
    Size(2000, 20_000, 100, 25.0, 1.6),
    Size(300, 50_000, 30, 10.0),
    Size(500, 5000, 50, 10.0),
    Size(1000, 500, 150, 3.0),
)
QUICK_SIZES = (Size(120, 900, 6, 25.0, 1.6), Size(100, 60, 10, 3.0))

#: Forms whose times are judged; the others are shown.
JUDGED = ("C float32", "Fortran float32")

#: Memory beyond the data: a share of them, and bytes.
SHARE, BYTES = 0.1, 32 << 20

#: Most times the time of a later answer that the first one may take with fastomp's imports.
START_UP = 1.5

#: One process that waits for its first answer. Given names of modules, it imports them before the clock of the answer starts.
PROCESS = """
import sys, time
clock = [time.perf_counter()]
import numpy as np, scipy.linalg
clock.append(time.perf_counter())
n_obs, n_features, k, *modules = sys.argv[1:]
numbers = np.random.default_rng(0)
X = numbers.standard_normal((int(n_obs), int(n_features)), dtype=np.float32)
y = X @ numbers.standard_normal(int(n_features)) + numbers.standard_normal(int(n_obs))
before = set(sys.modules)
started = time.perf_counter()
for name in modules:
    __import__(name)
loaded = time.perf_counter()
import fastomp_nvm as fo
fo.select(X, y, k=int(k))
answered = time.perf_counter()
new = [name for name in sys.modules if name not in before]
import json, os, statistics
later = []
for _ in range(11):
    clock.append(time.perf_counter())
    fo.select(X, y, k=int(k))
    later.append(time.perf_counter() - clock[-1])
cached = [getattr(sys.modules[name], "__cached__", None) for name in new]
print(json.dumps({
    "NumPy and SciPy": clock[1] - clock[0],
    "modules": loaded - started,
    "first": answered - loaded,
    "later": statistics.median(later),
    "names": new,
    "code": sum(os.path.getsize(path) for path in cached if path and os.path.exists(path)),
}))
"""


def forms(X: np.ndarray, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return what makes each form of the same numbers; a memory map is warm."""
    import pandas as pd

    def mapped() -> Any:
        np.ascontiguousarray(X).tofile(folder / "rows")
        return np.memmap(folder / "rows", X.dtype, "r", shape=X.shape)

    return {
        "C float32": lambda: np.ascontiguousarray(X),
        "Fortran float32": lambda: np.asfortranarray(X),
        "C float64": lambda: np.ascontiguousarray(X, dtype=np.float64),
        "DataFrame": lambda: pd.DataFrame(X, columns=[f"f{column}" for column in range(X.shape[1])]),
        "memory map, C float32": mapped,
    }


def _sklearn(X: Any, y: np.ndarray, k: int) -> np.ndarray:
    """Return the features that scikit-learn selects."""
    from sklearn.linear_model import OrthogonalMatchingPursuit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in float32 it warns that it stopped early; R^2 shows it
        return np.flatnonzero(OrthogonalMatchingPursuit(n_nonzero_coefs=k).fit(X, y).coef_)


def beyond(call: Callable[[], Any]) -> int:
    """Return the bytes of memory that ``call`` takes at its peak."""
    before = resident_bytes()
    with PeakMemory(every=0.001) as memory:
        call()
    return max(memory.peak - before, 0)


def passes(select: Callable[[], Any]) -> tuple[list[Callable[[], Any]], str]:
    """Return the passes over the data that ``select`` makes, each to be repeated by itself, and the vectors of each as text."""
    calls: list[Callable[[], Any]] = []
    vectors: list[str] = []
    measure, dots = LocalRows.measure, Sweeper.dots

    def measured(rows: LocalRows, sweeper: Sweeper, given: Vectors) -> Any:
        calls.append(partial(measure, rows, sweeper, given))
        vectors.append(f"{len(given.wide)} and moments")
        return measure(rows, sweeper, given)

    def swept(sweeper: Sweeper, rows: LocalRows, given: Vectors, wide: Any) -> Any:
        calls.append(partial(dots, sweeper, rows, given, wide))
        vectors.append(str(len(given.wide)))
        return dots(sweeper, rows, given, wide)

    with mock.patch.object(LocalRows, "measure", measured), mock.patch.object(Sweeper, "dots", swept):
        select()
    return calls, ", ".join(vectors)


def wait(report: Report, size: Size, repeats: int, folder: Path) -> None:
    """Time every form of one problem."""
    X, y = sparse_design(size.n_obs, size.n_features, 2 * size.k, 0.1)
    name, rows = f"{size.n_obs} x {size.n_features}, k = {size.k}", []
    with fo.create_store("dram:benchmark-first-answer", X, y, replace=True) as store:
        for form, make in forms(X, folder).items():
            data = make()
            contestants: dict[str, Callable[[], Any]] = {
                "ours": lambda data=data: fo.select(data, y, k=size.k).indices,  # type: ignore[misc]
                "store": lambda: fo.select(store, k=size.k).indices,
                "scikit-learn": lambda data=data: _sklearn(data, y, size.k),  # type: ignore[misc]
            }
            calls, vectors = passes(contestants["ours"])
            contestants["floor"] = lambda calls=calls: [call() for call in calls] and None  # type: ignore[misc]
            contestants["k = 1"] = lambda data=data: fo.select(data, y, k=1).indices  # type: ignore[misc]
            extra = beyond(contestants["ours"])
            seconds, chosen = in_turn(contestants, repeats, warm=1)
            best = min(seconds["scikit-learn"])
            faster, over = paired([best] * repeats, seconds["ours"]), paired(seconds["ours"], seconds["store"])
            better = refit_score(X, y, chosen["ours"]) - refit_score(X, y, chosen["scikit-learn"])
            rows.append(
                {
                    "form": form,
                    "ours, ms": 1e3 * median(seconds["ours"]),
                    "store, ms": 1e3 * median(seconds["store"]),
                    "scikit-learn's best, ms": 1e3 * best,
                    "times faster": str(faster),
                    "times the store's": str(over),
                    "R^2 above": better,
                    "MB beyond": extra / 1e6,
                    "floor, ms": 1e3 * median(seconds["floor"]),
                    "k = 1, ms": 1e3 * median(seconds["k = 1"]),
                }
            )
            least, one = median(seconds["floor"]), median(seconds["k = 1"])
            report.say(
                f"{name}, {form}: floor: passes with {vectors} vectors take {1e3 * least:.1f} ms by themselves, so that "
                f"{best / least:.1f} times faster is the most; with k = 1 a selection takes {1e3 * one:.1f} ms"
            )
            if form in JUDGED:
                report.bar(f"{name}, {form}: times faster than scikit-learn", faster, size.faster)
                if size.over_store is not None:
                    report.bar(f"{name}, {form}: R^2 above scikit-learn's", better, 0.0)
                    report.bar(f"{name}, {form}: times a prepared store's", over, size.over_store, at_most=True)
            allowed = SHARE * data.nbytes if isinstance(data, np.ndarray) else SHARE * X.nbytes
            report.bar(f"{name}, {form}: memory beyond the data over 10 % and 32 MB", extra / (allowed + BYTES), 1.0, at_most=True)
            del data, contestants, calls
    report.records(name, rows)
    report.figures(**{name: rows})


def start_up(report: Report, size: Size, repeats: int, folder: Path) -> None:
    """Time processes up to their first answer, with and without the imports of fastomp's modules."""
    problem = [str(size.n_obs), str(size.n_features), str(size.k)]

    def process(*modules: str) -> dict[str, Any]:
        # An empty variable counts as one that is not set.
        variables = {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
        done = run_alone([sys.executable, "-P", "-c", PROCESS, *problem, *modules], 600, **variables)
        done.check_returncode()
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    names = process()["names"]  # writes the bytecode
    found: dict[str, list[dict[str, Any]]] = {"a process": [], "modules first": []}
    for _ in range(repeats):
        found["a process"].append(process())
        found["modules first"].append(process(*names))

    def taken(contestant: str, figure: str) -> list[float]:
        return [each[figure] for each in found[contestant]]

    ratios = {
        "a process": paired(taken("a process", "first"), taken("a process", "later")),
        "its modules": paired(taken("modules first", "modules"), taken("modules first", "later")),
        "its first selection": paired(taken("modules first", "first"), taken("modules first", "later")),
    }
    ours = [name for name in names if name.startswith("fastomp_nvm")]
    name = f"{size.n_obs} x {size.n_features}, k = {size.k}"
    report.bar(
        f"{name}: first answer of a process, without imports of NumPy and SciPy, over later ones",
        ratios["a process"],
        START_UP,
        at_most=True,
    )
    report.table(
        f"start-up, {name}",
        ("figure", "ms", "over a later answer"),
        [
            ("import numpy, scipy.linalg", 1e3 * median(taken("a process", "NumPy and SciPy")), None),
            ("first answer", 1e3 * median(taken("a process", "first")), ratios["a process"]),
            ("later answers", 1e3 * median(taken("a process", "later")), None),
            ("of the first: modules", 1e3 * median(taken("modules first", "modules")), ratios["its modules"]),
            ("of the first: selection", 1e3 * median(taken("modules first", "first")), ratios["its first selection"]),
        ],
    )
    code = found["a process"][-1]["code"] / 1e3
    report.say(
        f"the first answer loads {len(ours)} modules of fastomp and {len(names) - len(ours)} others: {code:.0f} kB of bytecode"
    )
    report.figures(start_up=found)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argument_parser("first-answer", __doc__)
    parser.add_argument("--part", choices=("arrays", "start-up"), action="append", help="only this part; may be repeated")
    options = parser.parse_args(argv)
    parts, report, repeats = options.part or ("arrays", "start-up"), Report(options, argv), 1 if options.quick else 11
    sizes = QUICK_SIZES if options.quick else SIZES
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes if "arrays" in parts else ():
            wait(report, size, repeats, Path(folder))
        if "start-up" in parts:
            report.part("start-up")
            start_up(report, sizes[-1], repeats, Path(folder))
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
