"""The compiled extension is what its stub says."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from fastomp_nvm import native

pytestmark = [pytest.mark.numerics, pytest.mark.skipif(not native.extension, reason="the compiled extension is not built")]


def test_the_stub_describes_the_extension() -> None:
    """The stub and the extension have the same names, and their functions the same parameters."""
    stub = ast.parse(Path(native.__file__).with_name("_native.pyi").read_text())
    described = {node.target.id: None for node in stub.body if isinstance(node, ast.AnnAssign)}
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            described[node.name] = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    found = {
        name: list(inspect.signature(value).parameters) if callable(value) else None
        for name, value in vars(native.extension).items()
        if not name.startswith("__")
    }
    assert found == described
