"""The shape of the import graph: cycles stay inside one folder and are small, and names found at run time stand in few tables.

An edge is any import of one of our modules, also inside a function or under ``TYPE_CHECKING``, and any string constant that names
one: an entry of a :class:`fastomp_nvm.registry.Table`, a command, an argument of ``importlib.import_module`` or of ``python -m``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("fastomp_nvm", "storage_backends", "ado_plugin", "benchmarks")

#: Modules that may hold ``"package.module:attribute"`` strings.
TABLES = {
    "benchmarks.command",
    "fastomp_nvm.algorithms.table",
    "fastomp_nvm.objectives.table",
    "fastomp_nvm.planning.measuring_shards",
    "fastomp_nvm.remote.transport",
    "fastomp_nvm.runs.drive",
    "fastomp_nvm.stores.builders",
    "fastomp_nvm.stores.media",
    "storage_backends.media.cluster",
    "storage_backends.readers",
}

#: Modules that may pass a computed name to ``Lazy``; the graph sees their targets as imports or as the strings of ``COMMANDS``.
COMPUTED_TARGETS = {"fastomp_nvm.cli.main", "fastomp_nvm.registry"}

#: Modules that may pass one of our modules, or a computed name, to ``importlib.import_module``.
IMPORTERS = {
    "fastomp_nvm.constraints.written.function",  # a function of the user's
    "fastomp_nvm.matrix.kernels",
    "fastomp_nvm.registry",
    "storage_backends.readers",
}

Modules = Mapping[str, ast.Module]
Graph = Mapping[str, set[str]]


def parse(root: Path) -> Modules:
    """Return the syntax tree of each module of our packages under ``root``, by dotted name."""
    files = (file for package in PACKAGES for file in (root / package).rglob("*.py"))
    return {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): ast.parse(file.read_text("utf-8"))
        for file in files
    }


def import_graph(modules: Modules) -> Graph:
    """Return the modules that each module imports or names in a string."""
    return {module: {target for target in named(tree, modules) if target in modules} - {module} for module, tree in modules.items()}


def named(tree: ast.Module, modules: Modules) -> Iterator[str]:
    """Yield the dotted names that a module imports or has as a string constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (member if member in modules else node.module for member in members)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            yield node.value.partition(":")[0]


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of two or more modules."""
    reached = {module: reachable(graph, module) for module in graph}
    components = {frozenset({other for other in reached[module] if module in reached[other]}) for module in graph}
    return sorted(sorted(component) for component in components if len(component) > 1)


def reachable(graph: Graph, start: str) -> set[str]:
    """Return the modules on paths of at least one edge from ``start``."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting.extend(new)
    return found


def folder(module: str, modules: Modules) -> str:
    """Return the top-level folder of a module: ``package/folder``, or the package for a module directly in it."""
    package, _, rest = module.partition(".")
    name = f"{package}.{rest.partition('.')[0]}"
    return name if any(other.startswith(f"{name}.") for other in modules) else package


def problems(modules: Modules) -> list[str]:
    """Return a sentence for each cycle that is too large or spans folders."""
    found = []
    for cycle in cycles(import_graph(modules)):
        if len(folders := sorted({folder(module, modules) for module in cycle})) > 1:
            found.append(f"a cycle spans {', '.join(folders)}: {', '.join(cycle)}")
        elif len(cycle) > 4:
            found.append(f"a cycle of {len(cycle)} modules, at most 4 are allowed: {', '.join(cycle)}")
    return found


def calls(tree: ast.Module, *functions: str) -> Iterator[ast.Call]:
    """Yield the calls of functions or classes with these names, subscripted or as attributes, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            if getattr(function, "attr", getattr(function, "id", None)) in functions:
                yield node


def literal(node: ast.AST) -> bool:
    """Return whether an expression consists of constants."""
    try:
        ast.literal_eval(ast.unparse(node))
    except ValueError:
        return False
    return True


@pytest.fixture(scope="module")
def modules() -> Modules:
    return parse(ROOT)


def test_cycles_are_small_and_stay_inside_one_folder(modules: Modules) -> None:
    """Modules that import each other, directly or not, are at most four and in one folder."""
    assert problems(modules) == []


def test_targets_stand_in_the_tables(modules: Modules) -> None:
    """Only the listed modules hold ``"package.module:attribute"`` strings of ours, and each such string names a module."""
    holders = set()
    for module, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                target, colon, attribute = node.value.partition(":")
                if colon and attribute.isidentifier() and target.startswith(tuple(f"{package}." for package in PACKAGES)):
                    assert target in modules, f"{module}: {node.value!r} names no module"
                    holders.add(module)
    assert holders <= TABLES


def test_targets_are_constants(modules: Modules) -> None:
    """Outside the listed modules every ``Lazy`` and ``Table`` is built of constants, so that the graph is complete."""
    computed = {
        module
        for module, tree in modules.items()
        if "fastomp_nvm.registry" in named(tree, modules)  # rich has a Table, too
        for call in calls(tree, "Lazy", "Table")
        if not all(literal(argument) for argument in call.args)
    }
    assert computed <= COMPUTED_TARGETS


def test_imports_at_run_time_are_rare(modules: Modules) -> None:
    """Outside the listed modules ``import_module`` loads compiled extensions and other projects' packages by constant names."""
    importers = {
        module
        for module, tree in modules.items()
        for call in calls(tree, "import_module", "__import__")
        if not (literal(call.args[0]) and ast.literal_eval(ast.unparse(call.args[0])) not in modules)
    }
    assert importers <= IMPORTERS


def test_few_modules_stand_directly_in_the_hub() -> None:
    """At most 14 modules stand directly in ``fastomp_nvm``; the rest is in folders."""
    assert len(list((ROOT / "fastomp_nvm").glob("*.py"))) <= 14


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({"fastomp_nvm.low.a": "", "fastomp_nvm.high.b": "from fastomp_nvm.low import a"}, []),
        (
            {
                "fastomp_nvm.low.a": "def late():\n    from fastomp_nvm.high import b",
                "fastomp_nvm.high.b": "import fastomp_nvm.low.a",
            },
            ["a cycle spans fastomp_nvm.high, fastomp_nvm.low: fastomp_nvm.high.b, fastomp_nvm.low.a"],
        ),
        (
            {
                "fastomp_nvm.low.a": "TABLE = {'name': 'storage_backends.b:Name'}",
                "storage_backends.b": "if TYPE_CHECKING:\n    from fastomp_nvm.c import Name",
                "fastomp_nvm.c": "from fastomp_nvm.low.a import TABLE",
            },
            ["a cycle spans fastomp_nvm, fastomp_nvm.low, storage_backends: fastomp_nvm.c, fastomp_nvm.low.a, storage_backends.b"],
        ),
        ({f"fastomp_nvm.x.m{i}": f"import fastomp_nvm.x.m{(i + 1) % 4}" for i in range(4)}, []),
        (
            {f"fastomp_nvm.x.m{i}": f"import fastomp_nvm.x.m{(i + 1) % 5}" for i in range(5)},
            ["a cycle of 5 modules, at most 4 are allowed: " + ", ".join(f"fastomp_nvm.x.m{i}" for i in range(5))],
        ),
    ],
    ids=["no cycle", "two folders", "through a table", "four modules", "five modules"],
)
def test_planted_cycles_are_found(planted: dict[str, str], expected: list[str]) -> None:
    """The checker accepts small cycles inside a folder, and names each larger or wider one, lazy imports and strings included."""
    assert problems({module: ast.parse(text) for module, text in planted.items()}) == expected
