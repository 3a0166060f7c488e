"""The compiled extension is what its stub says."""

from __future__ import annotations

import ast
import inspect
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
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


@pytest.mark.skipif(native.extension is None, reason="the extension is not built")
def test_absurd_arguments_are_refused() -> None:
    """Every function survives arguments of which one or two are absurd: it returns, or refuses them by an exception."""
    command = [sys.executable, "-m", "tests.harness.native_fuzz", "3000", "7"]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout[-11:]) == (0, "no finding\n"), ended.stderr[-2000:]


@pytest.mark.skipif(native.extension is None, reason="the extension is not built")
@pytest.mark.parametrize("column", [2**60, 2**62])
def test_columns_beyond_the_largest_offset_are_refused(column: int) -> None:
    """A column whose offset in the file exceeds 64 bits is refused, not read from elsewhere in memory."""
    assert native.extension is not None
    columns, buffer = np.array([0, column]), mmap.mmap(-1, 4 * 4096)
    with open(__file__, "rb") as file, pytest.raises(ValueError, match="largest offset"):
        native.extension.read_columns(file.fileno(), 0, 1000, 2**62, columns, np.arange(2), np.empty((2, 1000), np.uint8), buffer)
