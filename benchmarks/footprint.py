"""Size and start-up of a source tree: lines, functions entered by a selection, cost of imports; beside another tree if given.

Lines exclude blanks, comments and docstrings; statements are nodes of Python's syntax tree. Functions are counted in the second of
two identical selections in one process, so that imports and caches are not part of it. Imports are timed in turn, as ratios to
importing NumPy alone, and NumPy with ``scipy.linalg``. The first selection of a process includes ``import fastomp_nvm``, with NumPy
and ``scipy.linalg`` imported before, and is given in units of the same selection repeated. Each tree runs in processes of its own,
found by ``PYTHONPATH``.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Report, argument_parser, at_least
from benchmarks.harness.timing import in_turn, paired
from fastomp_nvm.errors import RequestError

__all__ = ["main"]

PACKAGES = ("fastomp_nvm", "storage_backends", "ado_plugin")

ROOT = Path(__file__).parents[1]

#: Counts the functions of our packages that the second of two equal calls enters. Arguments: tree, "array" or a store.
ENTERED = """
import contextlib, io, json, os, sys, threading
import numpy as np

root, store = sys.argv[1:]
prefixes = tuple(os.path.join(root, package) + os.sep for package in ("fastomp_nvm", "storage_backends", "ado_plugin"))
seen = set()

def note(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(prefixes) and frame.f_code.co_name != "<module>":
        seen.add(frame.f_code)

if store == "array":
    import fastomp_nvm as fo
    rng = np.random.RandomState(0)
    X = rng.normal(size=(300, 500))
    y = X[:, :5].sum(1) + rng.normal(size=300)
    def call():
        fo.select(X, y, k=10)
else:
    try:
        from fastomp_nvm.cli.main import main
    except ImportError:  # a tree in which the command line is one module
        from fastomp_nvm.cli import main
    def call():
        with contextlib.redirect_stdout(io.StringIO()):
            main(["select", store, "--k", "10", "--json"])
call()
threading.setprofile(note)
sys.setprofile(note)
call()
sys.setprofile(None)
print(json.dumps([len(seen), sum(not code.co_name.startswith("<") for code in seen)]))
"""

#: Prints the time of the first selection of a process over the median of the same one repeated. Arguments: tree, sizes, k.
FIRST = """
import sys, time
import numpy as np, scipy.linalg

n_obs, n_features, k = map(int, sys.argv[2:])
rng = np.random.default_rng(0)
X = rng.standard_normal((n_obs, n_features), dtype=np.float32)
y = X[:, :k:2].sum(1) + rng.standard_normal(n_obs)
seconds = []
for _ in range(12):
    began = time.perf_counter()
    import fastomp_nvm as fo
    fo.select(X, y, k=k)
    seconds.append(time.perf_counter() - began)
print(seconds[0] / float(np.median(seconds[1:])))
"""

#: Observations, features and k of these selections; the goal is 1.5 for the larger one.
FIRST_SIZES = ((1000, 500, 150), (2000, 20000, 100))

#: Makes the store that the command line selects from. Arguments: tree, URL.
STORE = """
import sys
import numpy as np
import fastomp_nvm as fo

rng = np.random.RandomState(0)
X = rng.normal(size=(300, 500))
fo.create_store(sys.argv[2], X, X[:, :5].sum(1) + rng.normal(size=300)).close()
"""


def run_in(tree: Path, code: str, *words: str) -> str:
    """Run Python code on a tree, in a process of its own, with the tree as its first argument; return its output."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tree), *words], env=_environment(tree), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RequestError(f"{tree} cannot be measured: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout


def _environment(tree: Path) -> dict[str, str]:
    """Return an environment in which packages are found in a tree; ``python -P`` keeps the working directory out of it."""
    return {**os.environ, "PYTHONPATH": str(tree)}


def python_lines(source: str) -> tuple[int, int]:
    """Return the lines of code, without blanks, comments and docstrings, and the statements without docstrings."""
    tree = ast.parse(source)
    docstrings: set[int] = set()
    statements = 0
    for node in ast.walk(tree):
        statements += isinstance(node, ast.stmt)
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and ast.get_docstring(node) is not None
        ):
            text = node.body[0]
            docstrings.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
            statements -= 1
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings), statements


def c_lines(source: str) -> int:
    """Return the lines of C code, without blanks and comments."""
    parts = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
    bare = parts.sub(lambda found: found[0] if found[0][0] in "\"'" else "\n" * found[0].count("\n"), source)
    return sum(bool(line.strip()) for line in bare.splitlines())


def sizes(tree: Path) -> dict[str, int]:
    """Return lines of Python and statements per package, and lines of C in all of them."""
    found: dict[str, int] = {}
    for package in PACKAGES:
        counts = [python_lines(path.read_text(encoding="utf-8")) for path in sorted((tree / package).rglob("*.py"))]
        found[f"{package}: lines of Python"] = sum(lines for lines, _ in counts)
        found[f"{package}: statements"] = sum(statements for _, statements in counts)
    sources = [path for package in PACKAGES for path in (tree / package).rglob("*.[ch]")]
    found["lines of C"] = sum(c_lines(path.read_text(encoding="utf-8")) for path in sources)
    return found


def entered(tree: Path) -> dict[str, int]:
    """Return the functions that selections from an array and by the command line enter."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        url = f"mmap://{folder}/store"
        run_in(tree, STORE, url)
        for name, data in (("select from an array", "array"), ("fastomp select from a store", url)):
            every, named = json.loads(run_in(tree, ENTERED, data).splitlines()[-1])
            found[f"{name}: functions"] = named
            found[f"{name}: functions, comprehensions included"] = every
    return found


def start_up(trees: dict[str, Path], repeats: int) -> dict[str, dict[str, Any]]:
    """Return, per tree, the time of an import and of ``--help`` over importing NumPy, and NumPy with scipy.linalg."""

    def process(tree: Path, *words: str) -> Callable[[], object]:
        command, environment = [sys.executable, "-P", *words], _environment(tree)
        return lambda: subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)

    contestants = {"numpy": process(ROOT, "-c", "import numpy"), "scipy": process(ROOT, "-c", "import numpy, scipy.linalg")}
    measured = {"import fastomp_nvm": ("-c", "import fastomp_nvm"), "fastomp --help": ("-m", "fastomp_nvm", "--help")}
    for label, tree in trees.items():
        contestants |= {f"{label} {name}": process(tree, *words) for name, words in measured.items()}
    seconds, _ = in_turn(contestants, repeats, warm=1)
    return {
        label: {
            f"{name} over {reference}": paired(seconds[f"{label} {name}"], seconds[key])
            for name in measured
            for key, reference in (("numpy", "import numpy"), ("scipy", "import numpy, scipy.linalg"))
        }
        for label in trees
    }


def first_answers(trees: dict[str, Path], repeats: int) -> dict[str, dict[str, Any]]:
    """Return, per tree, the time of the first selection of a process in units of the same selection repeated."""
    found: dict[str, dict[str, list[float]]] = {label: {} for label in trees}
    for _ in range(repeats):
        for size in FIRST_SIZES:
            name = "first selection of a process, {} x {}, k = {}, over later ones".format(*size)
            for label, tree in trees.items():
                found[label].setdefault(name, []).append(float(run_in(tree, FIRST, *map(str, size))))
    return {label: {name: paired(ratios, [1.0] * repeats) for name, ratios in each.items()} for label, each in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Count, time, print."""
    parser = argument_parser("footprint", __doc__)
    parser.add_argument("--tree", type=Path, default=ROOT, metavar="DIR", help="the checkout to measure (default this one)")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout, measured beside it")
    parser.add_argument("--repeats", type=int, default=15, help="processes of each kind (default 15; 2 with --quick)")
    options = parser.parse_args(argv)
    at_least("--repeats", options.repeats, 1)
    trees = {"this tree": options.tree.resolve()}
    if options.against is not None:
        trees["other tree"] = options.against.resolve()
    for tree in trees.values():
        if not (tree / "fastomp_nvm" / "__init__.py").is_file():
            raise RequestError(f"{tree} is not a checkout: it has no package fastomp_nvm")
    report = Report(options, argv)
    repeats = 2 if options.quick else options.repeats
    starts, firsts = start_up(trees, repeats), first_answers(trees, repeats)
    found: dict[str, dict[str, Any]] = {
        label: {**sizes(tree), **entered(tree), **starts[label], **firsts[label]} for label, tree in trees.items()
    }
    report.figures(trees={label: str(tree) for label, tree in trees.items()}, found=found)
    report.columns("", found)
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
