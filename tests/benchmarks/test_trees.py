"""Benchmarks of source trees: lines and functions are counted, and two checkouts run the same cells in turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import footprint, side_by_side
from benchmarks.harness.timing import Ratio
from fastomp_nvm.errors import RequestError


def test_lines_exclude_blanks_comments_and_docstrings() -> None:
    """Of Python and of C, with comment signs inside strings, and strings that are not docstrings."""
    source = '''"""A
docstring."""

# a comment
TEXT = """two # lines
of text"""


def f():  # named
    """Docstring."""
    return (1 +
            2)
'''
    assert footprint.python_lines(source) == (5, 3)
    assert footprint.c_lines('/* a\n comment */ int x; // more\n\nchar *s = "// /* no comment */";\n/* b */\n') == 2


def test_the_footprint_of_this_tree(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of every package, and functions that selections enter: named ones, and with comprehensions at least as many."""
    for timed in ("start_up", "first_answers"):
        monkeypatch.setattr(footprint, timed, lambda trees, repeats: {label: {"ratio": Ratio(1.0, 1.0, 1.0)} for label in trees})
    assert footprint.main(["--quick", "--json", "--against", str(footprint.ROOT)]) == 0
    one, other = json.loads(capsys.readouterr().out)["found"].values()
    assert one == other
    assert all(one[f"{package}: lines of Python"] > 1000 for package in footprint.PACKAGES)
    for name in ("select from an array", "fastomp select from a store"):
        assert 10 < one[f"{name}: functions"] <= one[f"{name}: functions, comprehensions included"]


def test_a_tree_is_measured_whatever_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Code runs on the packages of the tree that was named, not on those of the folder it is started in."""
    (tmp_path / "fastomp_nvm").mkdir()
    (tmp_path / "fastomp_nvm" / "__init__.py").write_text("")
    code = "import sys, fastomp_nvm; print(fastomp_nvm.__file__)"
    monkeypatch.chdir(footprint.ROOT)
    assert footprint.run_in(tmp_path, code).startswith(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert footprint.run_in(footprint.ROOT, code).startswith(str(footprint.ROOT))


def test_start_up_is_a_ratio_to_numpy() -> None:
    """Every ratio is positive and inside its interval."""
    found = footprint.start_up({"this tree": footprint.ROOT}, 1)["this tree"]
    assert len(found) == 4
    assert all(0 < ratio.low <= ratio.median <= ratio.high for ratio in found.values())


def test_the_first_selection_of_a_process_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a positive ratio for every size."""
    monkeypatch.setattr(footprint, "FIRST_SIZES", ((50, 20, 3), (60, 20, 3)))
    found = footprint.first_answers({"this tree": footprint.ROOT}, 1)["this tree"]
    assert len(found) == 2
    assert all(ratio.median > 0 for ratio in found.values())


def test_two_checkouts_run_the_same_cells(capsys: pytest.CaptureFixture[str]) -> None:
    """Every cell has a ratio, and a checkout beside itself selects the same features."""
    assert side_by_side.main(["--quick", "--json", "--against", str(side_by_side.ROOT), "--repeats", "1", "--scale", "40"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["cells"]) == set(side_by_side.public_cells.CELLS)
    assert all(ratio["median"] > 0 for ratio in printed["cells"].values())
    assert printed["differing"] == []


@pytest.mark.parametrize("benchmark", [footprint, side_by_side])
def test_a_folder_without_the_package_is_refused(benchmark, tmp_path: Path) -> None:
    """One sentence that names it."""
    with pytest.raises(RequestError, match="is not a checkout"):
        benchmark.main(["--against", str(tmp_path)])
