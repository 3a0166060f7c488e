"""Hints in errors: similar names, and commands that install what is missing."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import fastomp_nvm as fo
from fastomp_nvm import errors
from fastomp_nvm.errors import how_to_install, near
from fastomp_nvm.registry import Lazy, Table

ROOT = Path(fo.__file__).parents[1]


@pytest.mark.parametrize(
    ("typed", "options", "hint"),
    [
        ("slect", ["select", "serve", "shard"], " (did you mean 'select'?)"),
        ("AGE", ["age", "income"], " (did you mean 'age'?)"),
        ("zzz", ["age", "income"], ""),
        ("", ["age"], ""),
        ("incme", [], ""),
    ],
)
def test_similar_names(typed: str, options: list[str], hint: str) -> None:
    """A hint names similar options, whatever their case, and is empty where none is similar."""
    assert near(typed, options) == hint


@pytest.mark.parametrize("typed", ["gen_61235_x", "egne_61235_x", "gene_61235_X", "gene-61235_x", "gene_61235_xx"])
def test_similar_names_among_a_million(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million names the right one is found, although only a few are compared one by one, which would take minutes."""
    compared: list[int] = []
    compare = difflib.get_close_matches

    def counted(name: str, names: Collection[str], **settings: Any) -> list[str]:
        compared.append(len(names))
        return compare(name, names, **settings)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    names = [f"gene_{number}_x" for number in range(1_000_000)]
    assert "'gene_61235_x'" in near(typed, names)
    assert near("something else altogether", names) == ""
    assert max(compared) <= 5_000


def test_hints_where_names_are_looked_up() -> None:
    """Algorithms, objectives, parameters, targets and features to exclude are looked up with a hint."""
    X = [[1.0, 0.5], [2.0, 0.1], [0.0, 0.7], [1.5, 0.9]]
    for fields, hint in (
        ({"algorithm": "fast_opm"}, "fast_omp"),
        ({"objective": "logistc"}, "logistic"),
        ({"epsilom": 0.1}, "epsilon"),
        ({"exclude": ["hight"]}, "height"),
        ({"target": "wieght"}, "weight"),
    ):
        with pytest.raises(fo.InputError, match=f"did you mean '{hint}'"):
            fo.select(X, None if "target" in fields else [1.0, 2.5, 3.0, 5.0], names=["height", "weight"], **{"k": 1, **fields})
    with pytest.raises(fo.StoreURLError, match="did you mean 'mmap'"):
        fo.open_store("mmpa:///a")


def test_commands_that_install_are_the_versions_we_promise() -> None:
    """Each hint names a library that exists, with the bound of pyproject.toml; our own package is on no index."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {requirement for name, group in extras.items() if name not in ("all", "dev") for requirement in group}
    assert set(errors._LIBRARIES.values()) <= wanted
    assert how_to_install("pyarrow.flight") == "pip install 'pyarrow>=14'"
    assert how_to_install("unknown") == "pip install unknown"
    for package in ("fastomp_nvm", "storage_backends", "ado_plugin", "benchmarks"):
        for path in (ROOT / package).rglob("*.py"):
            assert not re.search(r"pip install '?fastomp", path.read_text()), path


def test_a_missing_library_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry whose library is missing says what to type; where its own package is missing, that is installed again."""
    (tmp_path / "needy.py").write_text("import nosuchlibrary.part\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(fo.UnavailableError, match=r"needs the package 'nosuchlibrary', .*: pip install nosuchlibrary"):
        Table[object]("thing", {"a": "needy:name"}).load("a")
    with pytest.raises(fo.UnavailableError, match="install fastomp again"):
        Lazy[object]("nosuchpackage.part:name").load()
